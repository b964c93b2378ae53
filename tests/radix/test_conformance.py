"""The conformance cases of SGLang specification 9 that an aggregated engine shows, under their row numbers.

Rows on the cache alone stand in ``test_lease`` and ``test_publisher``, those on the tree in ``test_tree``, row 61 in
``test_finding_8``. Geometry is page size / pages / chunk budget; caching is on, the ratio starts at 0.7. Row 7 needs a
hand-off. Rows that describe what becomes of a request that cannot be served hold with the defect that admits it; what the right
engine does stands beside them.
"""

from __future__ import annotations

from statistics import pvariance

import pytest

from model.radix.core import Pass
from model.radix.decode import decode, retract_for_growth
from model.radix.policy import order_waiting
from tests.radix.audit import audit
from tests.radix.driver import (
    FINDING_1,
    UNSERVABLE,
    Parts,
    advance,
    available,
    drain,
    radix,
    retracted,
    shapes,
    step,
    steps,
    submit,
    submit_all,
    text,
    told,
    work_per_pass,
)

FIXED = {"prefill_ms": 7, "prefill_ms_per_token": 0, "decode_ms": 2}
MS = 1_000_000


def decode_pass(parts: Parts) -> Pass:
    """One decode step of what runs."""
    work = Pass(parts.report, {})
    decode(parts.core, work)
    audit(parts.core)
    return work


def test_row_01_a_request_for_no_token_ends_without_one() -> None:
    engine = radix("4/32/16")
    submit(engine, "a", 4)
    report = step(engine)
    assert told(report) == ["a done, no token"]
    assert report.decode_batch == 0
    assert not engine.busy


def test_row_02_a_prompt_larger_than_the_pool_is_tried_again_while_the_ratio_falls() -> None:
    engine = radix("4/1/8", defects=[UNSERVABLE])
    submit(engine, "a", 8, 2)
    retries, ratio = 0, None
    while ratio != engine.core.ratio:
        ratio = engine.core.ratio
        assert not step(engine).had_effect
        retries += 1
    # 600 passes change the ratio, the 601st does not.
    assert 1 < retries == 601 < 1024
    assert list(engine.core.requests) == ["a"]


def test_row_02_the_right_engine_refuses_it_at_once() -> None:
    engine = radix("4/1/8")
    submit(engine, "a", 8, 2)
    assert told(step(engine)) == ["a rejected"]
    assert not engine.busy


def test_row_03_who_asks_for_no_token_ends_and_the_last_request_does_not_grow() -> None:
    parts = Parts("4/2")
    parts.run("z", 4, 0)
    last = parts.run("n", 4, 1)
    work = decode_pass(parts)
    assert told(work.report) == ["z done, no token"]
    assert parts.core.running == [last]
    assert last.generated == 0


def test_row_04_the_request_with_fewest_tokens_is_retracted() -> None:
    parts = Parts("4/2")
    parts.run("r1", 3, 2, generated=1)
    parts.run("r2", 4, 5)
    work = decode_pass(parts)
    assert retracted([work.report]) == ["r2"]
    assert told(work.report) == ["r1 done"]
    assert parts.core.ratio == 1.0
    assert [request.id for request in parts.core.waiting] == ["r2"]


def test_row_05_a_cached_prompt_leaves_its_last_page_to_compute() -> None:
    parts = Parts("4/3")
    parts.cache("seed", text(("A", 8)))
    (node,) = parts.core.tree.nodes.values()
    first = node.pages[0]
    request = parts.request("a", text(("A", 8)), 1)
    assert parts.allocate(request)
    assert request.cached == 4
    assert len(request.pages) == 2
    assert request.pages[0] == first


def test_row_06_the_oldest_of_two_without_a_token_is_retracted() -> None:
    parts = Parts("4/3")
    parts.cache("seed", text(("A", 8)))
    parts.run("a", text(("A", 8)), 1)
    parts.run("blocker", 3, 1)
    parts.events()
    work = Pass(parts.report, {})
    assert [request.id for request in retract_for_growth(parts.core, work)] == ["a"]
    (preemption,) = work.report.preemptions
    assert (preemption.free, preemption.needed) == (0, 1)
    assert preemption.requests == ("a",)
    assert shapes(parts.events()) == ["Removed 1"]
    assert parts.available == 4
    assert parts.matches(text(("A", 8))) == 4


def test_row_08_the_first_chunk_of_an_impossible_prompt_is_admitted() -> None:
    engine = radix("4/3/8", defects=[UNSERVABLE])
    submit(engine, "a", 16, 2)
    report = step(engine)
    assert report.scheduled == {"a": 8}
    assert engine.view().requests["a"].computed == 8


def test_row_09_a_page_is_taken_when_the_tokens_need_it() -> None:
    parts = Parts("4/16")
    request = parts.run("a", 6, 4)
    allocated = []
    for _ in range(3):
        decode_pass(parts)
        allocated.append(4 * len(request.pages))
    assert allocated == [8, 8, 12]


def test_row_10_a_retracted_request_keeps_its_tokens_and_no_page() -> None:
    parts = Parts("4/4")
    parts.run("r1", 4, 8, generated=4)
    victim = parts.run("r2", 4, 8, generated=1)
    work = decode_pass(parts)
    assert retracted([work.report]) == ["r2"]
    assert (victim.generated, victim.computed, victim.pages) == (1, 0, [])


def test_row_11_a_decode_step_caches_the_pages_that_are_full() -> None:
    parts = Parts("4/16")
    parts.run("a", text(("A", 4)), 4)
    assert parts.matches(text(("A", 4))) == 0
    decode_pass(parts)
    assert parts.matches(text(("A", 4))) == 4


def test_row_12_a_running_request_holds_its_pages() -> None:
    engine = radix("4/32/8")
    submit(engine, "a", 6, 2)
    step(engine)
    assert engine.view().pool.active == 2


def test_row_13_bursts_but_for_the_first_token() -> None:
    engine = radix("4/32/16", speculation={"draft_tokens": 2, "accepted": 2})
    submit_all(engine, {"a": (4, 5), "b": (4, 8), "c": (4, 8)})
    emitted = [report.emitted for report in drain(engine)]
    assert emitted == [
        {"a": 1, "b": 1, "c": 1},
        {"a": 3, "b": 3, "c": 3},
        {"a": 1, "b": 3, "c": 3},
        {"b": 1, "c": 1},
    ]


def test_row_14_what_runs_stalls_while_another_is_prefilled() -> None:
    engine = radix("4/16/16", max_num_seqs=4)
    submit(engine, "r1", 4, 3)
    step(engine)
    submit(engine, "r2", 4, 3)
    second, third = steps(engine, 2)
    assert told(second) == ["r2"]
    assert told(third) == ["r1", "r2"]
    assert engine.view().running == ("r1", "r2")


@pytest.mark.parametrize(
    ("caching", "outputs", "hits", "computed"),
    [(True, (2, 1), [0, 4], [8, 4]), (False, (0, 0), [0, 0], [8, 8]), (True, (0, 0), [0, 8], [8, 0])],
    ids=["row 15", "row 16", "row 17"],
)
def test_rows_15_to_17_the_same_prompt_twice(
    caching: bool, outputs: tuple[int, int], hits: list[int], computed: list[int]
) -> None:
    engine = radix("4/16/16", max_num_seqs=4, prefix_caching=caching)
    for number, output in enumerate(outputs):
        submit(engine, f"r{number}", text(("A", 8)), output)
        first = step(engine)
        (admission,) = first.admissions
        assert admission.reused == hits[number]
        assert first.scheduled == {f"r{number}": computed[number]}
        assert hits[number] + computed[number] == 8
        if not output:
            assert told(first) == [f"r{number} done, no token"]
        drain(engine)
        if not caching:
            assert available(engine) == 64


def test_row_18_only_computed_tokens_arm_the_interval() -> None:
    engine = radix("4/16/16", max_num_seqs=4, prefill_decode_interval=2)
    submit(engine, "seed", text(("A", 8)))
    step(engine)
    armed = [engine.core.deferred_passes]
    submit(engine, "repeat", text(("A", 8)))
    for _ in range(2):
        assert not step(engine).had_effect
        armed.append(engine.core.deferred_passes)
    assert armed == [2, 1, 0]
    assert told(step(engine)) == ["repeat done, no token"]
    assert engine.core.deferred_passes == 0
    submit(engine, "fresh", 8, 1)
    assert told(step(engine)) == ["fresh done"]


def test_row_19_the_budget_of_a_pass_leaves_one_waiting() -> None:
    engine = radix("4/4/8", max_num_seqs=2)
    submit_all(engine, {"a": (8, 1), "b": (8, 1)})
    report = step(engine)
    assert report.scheduled == {"a": 8}
    assert engine.view().waiting == ("b",)


def test_row_20_prompt_lengths_of_a_prefill_batch() -> None:
    engine = radix("4/32/32")
    submit_all(engine, {"a": (4, 1), "b": (12, 1)})
    report = step(engine)
    assert pvariance([work.prompt for work in report.work.values()]) == 16


def test_row_21_a_prompt_twice_the_budget_takes_two_passes() -> None:
    engine = radix("4/32/8")
    submit(engine, "a", 16, 2)
    assert [report.scheduled for report in steps(engine, 2)] == [{"a": 8}, {"a": 8}]


def test_row_22_the_ratio_is_estimated_anew_after_a_retraction() -> None:
    # The third request never fits the pool, and is refused by the right engine.
    engine = radix("4/14/32", max_num_seqs=4, schedule_conservativeness=0.3, defects=[UNSERVABLE])
    submit_all(engine, {"r1": (4, 30), "r2": (4, 30)})
    assert step(engine).scheduled == {"r1": 4}
    submit(engine, "fresh", 32, 40)
    assert step(engine).scheduled == {"r2": 4}
    reports = [step(engine) for _ in range(2, 26)]
    assert [number for number, report in enumerate(reports, 3) if report.preemptions] == [26]
    (preemption,) = reports[-1].preemptions
    assert preemption.victim == "r1"
    produced = {id_: 1 + sum(report.emitted.get(id_, 0) for report in reports[:-1]) for id_ in ("r1", "r2")}
    assert produced == {"r1": 24, "r2": 24}
    assert engine.view().waiting == ("fresh", "r1")
    assert engine.core.ratio == min(1, (24 + 20) / (30 + 1)) == 1.0


def test_row_23_the_suffix_of_a_cached_prompt_fits_one_pass() -> None:
    engine = radix("1/256/6", max_prefill_tokens=6, max_num_seqs=4)
    submit(engine, "seed", text(("A", 12)))
    drain(engine)
    submit(engine, "a", text(("A", 10), ("B", 4)), 1)
    report = step(engine)
    assert report.scheduled == {"a": 4}
    assert told(report) == ["a done"]


def test_row_24_a_cached_prompt_computes_its_last_token_again() -> None:
    engine = radix("1/256/6", max_prefill_tokens=6, max_num_seqs=4)
    submit(engine, "seed", text(("A", 5)))
    drain(engine)
    before = available(engine)
    submit(engine, "a", text(("A", 5)), 2)
    assert step(engine).scheduled == {"a": 1}
    assert available(engine) == before - 1


def test_row_25_cached_tokens_do_not_count_against_the_budget() -> None:
    engine = radix("1/256/6", max_prefill_tokens=6, max_num_seqs=4)
    submit(engine, "seed", text(("A", 20)))
    drain(engine)
    submit_all(engine, {"a": (text(("A", 20), ("B", 4)), 2), "b": (2, 2)})
    assert step(engine).scheduled == {"a": 4, "b": 2}


def test_row_26_a_cold_prompt_in_two_chunks_is_admitted_once() -> None:
    engine = radix("1/256/6", max_prefill_tokens=6, max_num_seqs=4)
    submit(engine, "a", 12, 2)
    first, second = steps(engine, 2)
    assert [(admission.reused, admission.first) for admission in first.admissions] == [(0, True)]
    assert second.admissions == []
    assert first.scheduled == second.scheduled == {"a": 6}
    assert second.work["a"].prefix_tokens == 6


def test_row_27_a_first_token_that_is_the_last_needs_no_page() -> None:
    engine = radix("4/3/16", max_num_seqs=4)
    submit_all(engine, {"a": (4, 1), "b": (4, 1)})
    assert told(step(engine)) == ["a done", "b done"]
    assert available(engine) == 12 - 8


def test_row_28_a_first_token_that_is_not_the_last_has_its_page() -> None:
    engine = radix("4/3/16", max_num_seqs=4)
    submit(engine, "a", 4, 2)
    assert told(step(engine)) == ["a"]
    assert told(step(engine)) == ["a done"]


@pytest.mark.parametrize("defects", [[UNSERVABLE], []])
def test_row_29_admits_nothing(defects: list[str]) -> None:
    # 4 + 20 tokens are not less than the 24 there are: the row's own test accepts anything, and is vacuous.
    engine = radix("4/6/32", max_num_seqs=4, defects=defects)
    submit_all(engine, {"a": (4, 20), "b": (4, 20)})
    first = step(engine)
    submit(engine, "c", 12, 10)
    second = step(engine)
    if defects:
        assert not first.had_effect
        assert not second.had_effect
        assert engine.view().waiting == ("a", "b", "c")
    else:
        assert told(first) == ["a rejected", "b rejected"]
        assert told(second) == ["c"]


def test_row_30_the_longest_cached_prefix_goes_first() -> None:
    parts = Parts("1/64", schedule_policy="lpm")
    parts.cache("seed", range(1, 6))
    parts.request("short", [9, 8, 7])
    parts.request("long", range(1, 8))
    order_waiting(parts.core)
    assert [request.id for request in parts.core.waiting] == ["long", "short"]


def test_row_31_of_equal_prompts_all_but_the_first_go_last() -> None:
    parts = Parts("1/64", schedule_policy="lpm")
    for number in range(33):
        parts.request(f"equal{number}", text(("A", 32)))
    parts.request("unique", text(("B", 32)))
    order_waiting(parts.core)
    order = [request.id for request in parts.core.waiting]
    assert order[:3] == ["equal0", "unique", "equal1"]
    assert order[-1] == "equal32"


def test_row_32_pages_of_produced_tokens_are_announced() -> None:
    planned = (11, 12, 13, 14, 15, 16, 17)
    engine = radix("4/100/8")
    submit(engine, "a", text(("A", 2)), planned=planned)
    reports = drain(engine)
    assert sum(report.emitted.get("a", 0) for report in reports) == 7
    assert shapes(event for report in reports for event in report.events) == ["Stored 1", "Stored 1"]
    submit(engine, "again", text(("A", 2)).extended(planned))
    assert step(engine).admissions[0].reused == 8


@pytest.mark.parametrize(
    ("chunk", "cached", "suffixes", "right", "faulty"),
    [
        (8, 0, (4, 8), [8, 4], [4, 8]),
        (6, 0, (5,), [4, 1], None),
        (8, 0, (6,), [6], [6]),
        (8, 0, (7, 8), [7, 8], [7, 8]),
        (8, 4, (4, 8), [8, 4], [4, 8]),
        (6, 4, (5,), [4, 1], None),
    ],
    ids=[f"row {number}" for number in range(55, 61)],
)
def test_rows_55_to_60_chunks_against_the_budget(
    chunk: int, cached: int, suffixes: tuple[int, ...], right: list[int], faulty: list[int] | None
) -> None:
    for defects, expected in (([], right), ([FINDING_1], faulty)):
        engine = radix(f"4/1024/{chunk}", schedule_conservativeness=0, prefix_caching=bool(cached), defects=defects)
        if cached:
            submit(engine, "seed", text(("A", cached)))
            drain(engine)
        for number, suffix in enumerate(suffixes):
            pieces = [("A", cached)] if cached else []
            submit(engine, f"r{number}", text(*pieces, (f"S{number}", suffix)))
        if expected is None:
            assert not step(engine).had_effect
        else:
            assert work_per_pass(engine) == expected


def test_row_62_the_token_comes_with_the_last_chunk() -> None:
    engine = radix("1/1024/4", schedule_conservativeness=0, prefix_caching=False)
    submit(engine, "a", 12, 1)
    reports = drain(engine)
    assert [report.scheduled for report in reports] == [{"a": 4}] * 3
    assert [told(report) for report in reports] == [[], [], ["a done"]]


@pytest.mark.parametrize("interval", range(4))
def test_row_63_the_interval_is_spent_on_decoding(interval: int) -> None:
    engine = radix("1/1024/4", schedule_conservativeness=0, prefix_caching=False, prefill_decode_interval=interval, timing=FIXED)
    submit_all(engine, {"r1": (4, 100), "r2": (4, 1)})
    reports = steps(engine, 2 + interval)
    assert [report.scheduled for report in reports] == [{"r1": 4}, *[{"r1": 1}] * interval, {"r2": 4}]
    assert told(reports[-1]) == ["r2 done"]
    assert engine.core.now == (14 + 2 * interval) * MS


def test_row_64_the_interval_stands_between_chunks_and_takes_no_time() -> None:
    engine = radix("1/1024/4", schedule_conservativeness=0, prefix_caching=False, prefill_decode_interval=2, timing=FIXED)
    submit(engine, "a", 12, 1)
    seen = []
    while engine.busy:
        report = step(engine)
        seen.append((sum(report.scheduled.values()), engine.core.deferred_passes))
    assert seen == [(4, 2), (0, 1), (0, 0), (4, 2), (0, 1), (0, 0), (4, 2)]
    assert engine.core.now == 21 * MS
    assert advance(engine, 5 * MS).end_ns == 26 * MS


def test_row_65_a_warm_prompt_computes_no_more_than_a_page() -> None:
    engine = radix("4/64/16")
    for id_, computed in (("cold", 40), ("warm", 4)):
        submit(engine, id_, text(("A", 40)), 1)
        assert sum(work_per_pass(engine)) == computed
