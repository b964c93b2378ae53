"""The conformance cases of vLLM specification 8 that one aggregated worker can show, under their row numbers.

Caching off, chunked prefill on, ``lifo`` preemption, unless a row says otherwise. Accept rates 1,1 are two accepted drafts,
rates 0,1 none.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from model.events import Removed, Stored
from model.paged.admission import Verdict, judge, look_up
from model.paged.engine import PagedEngine
from model.paged.metrics import forward_metrics
from model.paged.pool import BlockPool
from model.views import PREEMPTED
from tests.paged.driver import (
    FINDING_9,
    Mirror,
    drafts,
    drain,
    livelocks,
    measured,
    paged,
    preempted,
    step,
    steps,
    submit,
    submit_all,
    text,
    tokens_out,
    told,
)


def verdict(engine: PagedEngine) -> Verdict:
    """What the admission rule says of the head of the queue."""
    head = engine.core.waiting[0]
    return judge(engine.core, head, look_up(engine.core, head))


def test_row_01_chunks_fill_the_budget_in_running_order() -> None:
    engine = paged("4/6/12/3")
    submit_all(engine, {"r1": (8, 2), "r2": (8, 2)})
    report = step(engine)
    view = engine.view()
    assert told(report) == ["r1"]
    assert view.running == ("r1", "r2")
    assert view.waiting == ()
    assert [view.requests[id_].computed for id_ in view.running] == [8, 4]
    assert view.pool.active == 3


def test_row_02_a_long_prompt_is_finished_before_the_next_one_starts() -> None:
    engine = paged("4/16/4/3")
    submit_all(engine, {"r1": (8, 2), "r2": (8, 2)})
    first, second = steps(engine, 2)
    assert told(first) == []
    assert told(second) == ["r1"]
    assert engine.view().requests["r2"].computed == 0


def test_row_03_two_prompts_that_fit_one_pass_are_admitted_and_answered_together() -> None:
    engine = paged("4/16/8/4")
    submit_all(engine, {"r1": (4, 1), "r2": (4, 1)})
    report = step(engine)
    assert [admission.id for admission in report.admissions] == ["r1", "r2"]
    assert told(report) == ["r1 done", "r2 done"]
    assert not engine.busy


def test_row_04_the_first_token_of_two_comes_with_the_prefill() -> None:
    engine = paged("4/6/8/3")
    submit(engine, "r", 8, 2)
    assert told(step(engine)) == ["r"]
    assert engine.view().requests["r"].generated == 1


def test_row_05_a_request_for_no_token_ends_without_one() -> None:
    engine = paged("4/6/8/3")
    submit(engine, "r", 4, 0)
    report = step(engine)
    after = engine.view()
    assert told(report) == ["r done, no token"]
    assert after.pool.active == 0
    assert forward_metrics(report, after).num_decode_requests == 0
    assert not engine.busy


def test_row_06_a_fully_cached_request_for_no_token_computes_nothing() -> None:
    engine = paged("4/12/12/3", prefix_caching=True)
    submit(engine, "first", text(("A", 4)), 0)
    assert measured(engine).num_prefill_requests == 1
    submit(engine, "second", text(("A", 4)), 0)
    report = step(engine)
    metrics = forward_metrics(report, engine.view())
    assert (metrics.num_prefill_requests, metrics.num_decode_requests) == (0, 0)
    assert report.scheduled == {"second": 0}
    assert told(report) == ["second done, no token"]


def test_row_07_a_burst_beside_a_request_for_no_token() -> None:
    engine = paged("4/8/8/2", speculation=drafts(2, accepted=2))
    submit_all(engine, {"none": (4, 0), "three": (4, 3)})
    report = step(engine)
    assert told(report) == ["none done, no token", "three", "three", "three done"]
    # The row counts tokens by emitting request; by provenance a burst behind a prefill counts in neither.
    assert report.emitted == {"three": 3}
    assert (report.accept_tokens, report.accept_forwards) == (0, 0)
    assert engine.view().pool.active == 0


def test_row_08_one_preemption_in_pass_6_and_13_tokens_computed_again_in_pass_9() -> None:
    engine = paged("4/6/16/2")
    submit_all(engine, {"r1": (8, 8), "r2": (8, 8)})
    first = steps(engine, 5)
    sixth = step(engine)
    view = engine.view()
    assert preempted(first) == []
    assert preempted([sixth]) == ["r2"]
    assert view.waiting == ("r2",)
    assert view.requests["r2"].status == PREEMPTED
    assert view.requests["r2"].computed == 0
    rest = drain(engine)
    assert preempted(rest) == []
    admitted = [number for number, report in enumerate(rest, 7) if report.admissions]
    assert admitted == [9]
    assert rest[2].scheduled == {"r2": 13}
    assert [admission.first for admission in rest[2].admissions] == [False]


def test_row_09_a_small_follower_does_not_overtake_the_blocked_head() -> None:
    engine = paged("4/6/16/3")
    submit_all(engine, {"holder": (16, 1), "head": (12, 1), "follower": (4, 1)})
    first = step(engine)
    assert told(first) == ["holder done"]
    assert engine.view().waiting == ("head", "follower")
    second = step(engine)
    assert [admission.id for admission in second.admissions] == ["head", "follower"]
    assert preempted([first, second]) == []


def test_row_10_a_prompt_larger_than_the_cache_is_refused_and_the_next_admitted() -> None:
    engine = paged("4/4/32/2")
    submit_all(engine, {"large": (20, 1), "small": (4, 1)})
    report = step(engine)
    assert [admission.id for admission in report.admissions] == ["small"]
    # A refusal is told after every other signal of the pass.
    assert told(report) == ["small done", "large rejected"]


def test_row_11_bursts_of_two_requests_in_running_order() -> None:
    engine = paged("4/16/16/4", speculation=drafts(2, accepted=2))
    submit_all(engine, {"s": (4, 5), "l": (4, 8)})
    first = step(engine)
    assert len(first.signals) == 6
    second = step(engine)
    after = engine.view()
    assert told(second) == ["s", "s done", "l", "l", "l"]
    long = after.requests["l"]
    assert (long.generated, long.length - long.computed) == (6, 1)
    assert forward_metrics(second, after).num_decode_requests == 2


@pytest.mark.parametrize(
    ("speculation", "reused", "prefill_tokens", "prefill_kv_tokens"),
    [(None, 8, 4, 8), (drafts(1, accepted=1), 4, 8, 4)],
    ids=["plain", "speculative"],
)
def test_row_12_speculation_gives_up_one_more_block_of_a_hit(
    speculation: dict[str, int] | None, reused: int, prefill_tokens: int, prefill_kv_tokens: int
) -> None:
    engine = paged("4/16/16/1", prefix_caching=True, speculation=speculation)
    submit(engine, "seed", text(("A", 8)), 1)
    drain(engine)
    submit(engine, "sharer", text(("A", 8), ("B", 4)), 1)
    report = step(engine)
    metrics = forward_metrics(report, engine.view())
    assert [admission.reused for admission in report.admissions] == [reused]
    assert (metrics.sum_prefill_tokens, metrics.sum_prefill_kv_tokens) == (prefill_tokens, prefill_kv_tokens)


@pytest.mark.parametrize("defects", [(), (FINDING_9,)], ids=["right", "finding 9"])
def test_row_13_unused_room_of_rejected_drafts_is_given_back(defects: tuple[str, ...]) -> None:
    engine = paged("2/8/8/2", speculation=drafts(2), defects=defects)
    submit(engine, "r", 3, 5)
    assert told(step(engine)) == ["r"]
    view = engine.view()
    request = view.requests["r"]
    assert (view.pool.active, view.pool.reserved) == (2, 0)
    assert (request.generated, request.length - request.computed) == (1, 1)


@pytest.mark.parametrize(("defects", "passes", "preemptions"), [((), 19, 4), ((FINDING_9,), 20, 6)], ids=["right", "finding 9"])
def test_row_14_three_requests_drain_through_preemptions_and_evictions(
    defects: tuple[str, ...], passes: int, preemptions: int
) -> None:
    engine = paged("4/6/12/3", prefix_caching=True, speculation=drafts(2), defects=defects)
    submit_all(engine, {"r1": (8, 7), "r2": (8, 7), "r3": (12, 7)})
    reports = drain(engine)
    assert len(reports) == passes
    assert len(preempted(reports)) == preemptions
    assert tokens_out(reports) == 21
    assert engine.view().pool.active == 0
    assert any(isinstance(event, Removed) for report in reports for event in report.events)
    assert Mirror().follow(reports) == engine.view().cached


def test_row_15_a_preempted_request_comes_back_and_the_events_stay_true() -> None:
    engine = paged("4/6/16/2", prefix_caching=True)
    submit_all(engine, {"r1": (8, 8), "r2": (8, 8)})
    reports = drain(engine)
    assert set(preempted(reports)) == {"r2"}
    readmitted = [admission for report in reports for admission in report.admissions if not admission.first]
    assert [admission.id for admission in readmitted] == ["r2"] * len(preempted(reports))
    assert tokens_out(reports) == 16
    assert Mirror().follow(reports) == engine.view().cached
    assert any(isinstance(event, Stored) for report in reports for event in report.events)


def test_row_26_metrics_of_a_prompt_in_two_chunks() -> None:
    engine = paged("4/16/8/4")
    submit(engine, "r", 16, 2)
    first, second = measured(engine), measured(engine)
    assert [metrics.sum_prefill_tokens for metrics in (first, second)] == [8, 8]
    assert [metrics.sum_prefill_kv_tokens for metrics in (first, second)] == [0, 8]
    assert [metrics.var_prefill_length for metrics in (first, second)] == [0, 0]


def test_row_27_metrics_have_the_variance_of_prompt_lengths() -> None:
    engine = paged("4/32/32/4")
    submit_all(engine, {"r1": (4, 1), "r2": (12, 1)})
    metrics = measured(engine)
    assert metrics.num_prefill_requests == 2
    assert metrics.var_prefill_length == Fraction(16)


def test_row_28_metrics_of_a_prefill_beside_a_decode() -> None:
    engine = paged("4/16/16/4")
    submit(engine, "r1", 4, 3)
    step(engine)
    submit(engine, "r2", 4, 3)
    metrics = measured(engine)
    assert (metrics.num_prefill_requests, metrics.sum_prefill_tokens) == (1, 4)
    assert (metrics.num_decode_requests, metrics.sum_decode_kv_tokens) == (1, 5)


def test_row_29_a_decode_that_completes_is_still_in_the_metrics() -> None:
    engine = paged("4/16/16/4")
    submit(engine, "r", 4, 2)
    step(engine)
    metrics = measured(engine)
    assert not engine.busy
    assert (metrics.num_decode_requests, metrics.sum_decode_kv_tokens) == (1, 5)


def test_row_30_each_copy_of_one_identity_takes_room() -> None:
    pool = BlockPool(2)
    visible = []
    for _ in range(2):
        assert pool.reserve((), 1) == []
        visible.append(pool.cache(pool.take(), 9))
    assert visible == [True, False]
    assert pool.active == 2
    assert pool.reserve((), 1) is None
    assert (pool.active, pool.free, pool.reserved, len(pool.inactive)) == (2, 0, 0, 0)


def test_row_31_a_hit_that_is_the_only_evictable_block_makes_no_room() -> None:
    pool = BlockPool(1)
    pool.reserve((), 1)
    copy = pool.take()
    pool.cache(copy, 9)
    pool.release([copy])
    assert pool.reserve([copy], 1) is None
    assert (pool.active, len(pool.inactive), copy.pins) == (0, 1, 0)


@pytest.mark.parametrize(
    ("held", "prompt", "output", "upstream", "right"),
    [
        (0, 8, 32, Verdict.ADMIT, Verdict.REJECT),
        (3, 8, 32, Verdict.WAIT, Verdict.REJECT),
        (0, 20, 1, Verdict.REJECT, Verdict.REJECT),
        # The same geometry with an output that can be served.
        (0, 8, 9, Verdict.ADMIT, Verdict.ADMIT),
        (3, 8, 9, Verdict.WAIT, Verdict.WAIT),
    ],
)
def test_row_32_the_admission_rule(held: int, prompt: int, output: int, upstream: Verdict, right: Verdict) -> None:
    for defects, expected in ((("admits-unservable",), upstream), ((), right)):
        engine = paged("4/4/-/-", defects=defects)
        if held:
            submit(engine, "holder", held * 4, 2)
            step(engine)
            assert engine.view().pool.active == held
        submit(engine, "r", prompt, output)
        assert verdict(engine) is expected


def test_row_33_only_active_hits_are_discounted() -> None:
    active = paged("4/3/-/-", prefix_caching=True)
    submit(active, "holder", text(("A", 8)), 2)
    step(active)
    submit(active, "sharer", text(("A", 8), ("B", 4)), 1)
    assert (active.view().pool.active, active.view().pool.inactive) == (2, 0)
    assert verdict(active) is Verdict.ADMIT

    inactive = paged("4/3/-/-", prefix_caching=True)
    submit(inactive, "holder", text(("A", 8)), 1)
    submit(inactive, "other", text(("C", 3)), 2)
    step(inactive)
    submit(inactive, "sharer", text(("A", 8), ("B", 4)), 1)
    assert (inactive.view().pool.active, inactive.view().pool.inactive) == (1, 2)
    assert verdict(inactive) is Verdict.WAIT


@pytest.mark.parametrize(("prompt", "realizable"), [(8, 4), (10, 2), (17, 0)])
def test_row_35_the_model_length_caps_what_can_come_and_not_what_was_asked_for(prompt: int, realizable: int) -> None:
    engine = paged("4/4/-/-", max_model_len=12)
    submit(engine, "r", prompt, 1_000_000)
    assert engine.view().requests["r"].output == realizable
    assert engine.core.requests["r"].output == 1_000_000


def test_row_37_planned_tokens_come_one_a_pass_and_make_the_blocks() -> None:
    engine = paged("4/6/8/3", prefix_caching=True)
    planned = (7, 8, 9)
    submit(engine, "r", text(("A", 2)), 0, planned)
    request = engine.core.requests["r"]
    reports = drain(engine)
    assert [told(report) for report in reports] == [["r"], ["r"], ["r done"]]
    spec = engine.registry.specs[request.number]
    assert [spec.output_token(position) for position in range(3)] == list(planned)
    assert request.cached_tokens == 0
    # The last token is never computed, so exactly the prompt and the first two can be reused.
    submit(engine, "next", text(("A", 2)).extended((7, 8, 1)), 1)
    assert [admission.reused for admission in step(engine).admissions] == [4]
    drain(engine)
    submit(engine, "other", text(("A", 2)).extended((7, 1, 8)), 1)
    assert [admission.reused for admission in step(engine).admissions] == [0]


def test_row_39_one_token_beyond_the_cache_livelocks_with_finding_9_alone() -> None:
    for defects, stuck in (((FINDING_9,), True), ((), False)):
        engine = paged("4/2/8/1", speculation=drafts(1), defects=defects)
        submit(engine, "r", 8, 1)
        assert livelocks(engine)[0] is stuck
