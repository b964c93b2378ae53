"""What a prefix lookup finds, when blocks become reusable, and what KV events tell of it (vLLM specification 2.2, 3.3, 3.5)."""

from __future__ import annotations

from typing import Any

import pytest

from model.actions import Step
from model.events import Removed, StepReport, Stored
from model.paged.admission import look_up
from model.paged.core import Request, finalize
from model.paged.engine import PagedEngine
from model.requests import Prompt
from tests.paged.driver import Mirror, cancel, drafts, drain, paged, preempted, step, steps, submit, text, told


def caching(geometry: str, **options: Any) -> PagedEngine:
    """An idle engine with prefix caching."""
    return paged(geometry, prefix_caching=True, **options)


def seeded(tokens: int, **options: Any) -> PagedEngine:
    """An engine in whose cache the full blocks of the first ``tokens`` tokens of stream A are left."""
    engine = caching("4/16/-/-", **options)
    submit(engine, "seed", text(("A", tokens)), 0)
    drain(engine)
    return engine


@pytest.mark.parametrize(
    ("seed", "prompt", "output", "plain", "speculative"),
    [
        # The last token is computed again, hence the whole last block of a prompt that is cached to its end.
        (4, 4, 1, 0, 0),
        (8, 8, 1, 4, 0),
        (12, 12, 1, 8, 4),
        # One token more, and every full block is used; with speculation all but one.
        (4, 5, 1, 4, 0),
        (8, 9, 1, 8, 4),
        (8, 12, 1, 8, 4),
        # A partial last block of the seed is not in the cache.
        (7, 12, 1, 4, 0),
        (3, 12, 1, 0, 0),
        # Less cached than the prompt has.
        (4, 8, 1, 4, 0),
        (4, 16, 1, 4, 0),
        # A request for no token needs no logits and uses all there is.
        (4, 4, 0, 4, 4),
        (8, 8, 0, 8, 8),
        (8, 9, 0, 8, 8),
        (8, 4, 0, 4, 4),
    ],
)
def test_a_lookup_finds_full_blocks_and_leaves_something_to_compute(
    seed: int, prompt: int, output: int, plain: int, speculative: int
) -> None:
    for speculation, reused in ((None, plain), (drafts(2), speculative)):
        engine = seeded(seed, speculation=speculation)
        submit(engine, "r", text(("A", prompt)), output)
        report = step(engine)
        assert [admission.reused for admission in report.admissions] == [reused]
        assert report.scheduled == {"r": prompt - reused}


def test_nothing_is_reused_without_caching() -> None:
    engine = paged("4/16/-/-")
    for id_ in ("seed", "r"):
        submit(engine, id_, text(("A", 8)), 1)
        report = step(engine)
        assert [admission.reused for admission in report.admissions] == [0]
        assert report.events == []
    assert engine.view().pool.inactive == 0


def test_a_lookup_stops_at_the_first_block_that_differs() -> None:
    engine = seeded(12)
    submit(engine, "r", text(("A", 4), ("B", 4), ("A", 8)), 1)
    assert [admission.reused for admission in step(engine).admissions] == [4]


def test_full_blocks_are_reusable_by_later_requests_of_the_same_pass() -> None:
    engine = caching("4/8/-/-")
    submit(engine, "first", text(("A", 8)), 1)
    submit(engine, "second", text(("A", 12)), 1)
    report = step(engine)
    assert [(admission.id, admission.reused) for admission in report.admissions] == [("first", 0), ("second", 8)]
    assert report.scheduled == {"first": 8, "second": 4}
    assert report.events == [Stored(0, (1, 2)), Stored(2, (3,))]


def test_a_generated_block_is_reusable_once_its_last_token_is_computed() -> None:
    engine = caching("4/16/-/-")
    submit(engine, "r", 4, 6)
    turn = text(("r", 4), ("output of r", 4), ("B", 1))
    reused = []
    for _ in range(6):
        step(engine)
        probe = engine.thaw(engine.freeze())
        submit(probe, "next turn", turn, 1)
        reused += [look_up(probe.core, probe.core.requests["next turn"]).cached]
    # The fourth generated token fills the block in pass 4 and is computed in pass 5.
    assert engine.view().requests == {}
    assert reused == [4, 4, 4, 4, 8, 8]


def test_a_preempted_request_finds_its_own_generated_blocks() -> None:
    engine = caching("4/5/-/-")
    for id_ in ("r1", "r2"):
        submit(engine, id_, 4, 9)
    reports: list[StepReport] = []
    while not preempted(reports):
        reports += steps(engine, 1)
    request = engine.view().requests["r2"]
    assert (request.length, request.computed) == (9, 0)
    cancel(engine, "r1")
    report = step(engine)
    # Of nine tokens eight had been computed; both full blocks are there, the generated one too.
    assert [(admission.id, admission.reused, admission.first) for admission in report.admissions] == [("r2", 8, False)]
    assert report.scheduled == {"r2": 1}
    assert report.work["r2"].prompt_tokens == 0


@pytest.mark.parametrize("k", [None, 2])
def test_generated_tokens_count_for_the_last_token_rule(k: int | None) -> None:
    engine = caching("4/8/-/-", speculation=None if k is None else drafts(k))
    planned = (1, 2, 3, 4, 5, 6)
    submit(engine, "whole", text(("A", 4)), 0, planned)
    drain(engine)
    # A request that stopped at eight tokens with everything cached: the last of two blocks is computed again.
    submit(engine, "r", text(("A", 4)), 0, planned)
    request = engine.core.requests["r"]
    request.generated, request.identified = 4, 2
    assert look_up(engine.core, request).cached == (4 if k is None else 0)


# --- events -----------------------------------------------------------------------------------------------------------


def test_a_prompt_is_stored_in_one_event_and_a_chunked_one_in_one_for_each_chunk() -> None:
    whole = caching("4/8/-/-")
    submit(whole, "r", 13, 1)
    assert step(whole).events == [Stored(0, (1, 2, 3))]
    chunked = caching("4/8/6/-")
    submit(chunked, "r", 13, 1)
    assert [step(chunked).events for _ in range(3)] == [[Stored(0, (1,))], [Stored(1, (2, 3))], []]


def test_what_follows_a_hit_is_stored_behind_it() -> None:
    engine = seeded(8)
    submit(engine, "r", text(("A", 8), ("B", 4)), 1)
    assert step(engine).events == [Stored(2, (3,))]


def test_a_block_computed_again_is_a_silent_duplicate_and_the_next_is_stored_behind_it() -> None:
    engine = seeded(4, speculation=drafts(1))
    submit(engine, "r", text(("A", 8)), 2)
    report = step(engine)
    assert report.scheduled == {"r": 8}
    assert report.events == [Stored(1, (2,))]
    assert len(engine.core.pool.index[1]) == 2


def test_a_duplicate_in_the_middle_splits_the_group() -> None:
    engine = caching("4/8/-/-")
    submit(engine, "r", 16, 1)
    core = engine.core
    request: Request = core.requests["r"]
    core.pool.reserve((), 5)
    # The second block of the prompt is cached already, elsewhere.
    core.pool.cache(core.pool.take(), request.chain[1])
    request.blocks = [core.pool.take() for _ in range(4)]
    report = StepReport(Step())
    finalize(core, report, request, 0, 16)
    assert report.events == [Stored(0, (1,)), Stored(2, (3, 4))]


def test_neither_release_nor_preemption_nor_a_partial_block_makes_an_event() -> None:
    engine = caching("4/4/-/-")
    submit(engine, "r1", 8, 2)
    submit(engine, "r2", 7, 3)
    first = step(engine)
    second = step(engine)
    assert preempted([second]) == ["r2"]
    assert [told(first), told(second)] == [["r1", "r2"], ["r1 done"]]
    assert first.events == [Stored(0, (1, 2)), Stored(0, (3,))]
    assert second.events == []


def test_eviction_is_told_when_the_last_copy_goes_before_what_takes_its_place() -> None:
    engine = caching("4/2/-/-")
    submit(engine, "old", text(("A", 8)), 1)
    step(engine)
    submit(engine, "new", text(("B", 8)), 1)
    assert step(engine).events == [Removed((2, 1)), Stored(0, (3, 4))]
    assert engine.view().cached == frozenset({3, 4})


def test_the_oldest_evictable_block_goes_first_and_a_deep_one_before_its_parent() -> None:
    engine = caching("4/4/-/-")
    submit(engine, "old", text(("A", 8)), 1)
    step(engine)
    submit(engine, "young", text(("B", 8)), 1)
    step(engine)
    submit(engine, "next", text(("C", 4)), 1)
    assert step(engine).events == [Removed((2,)), Stored(0, (5,))]
    submit(engine, "last", text(("D", 8)), 1)
    assert step(engine).events == [Removed((1, 4)), Stored(0, (6, 7))]


def test_without_kv_events_the_cache_works_in_silence() -> None:
    engine = caching("4/3/-/-", kv_events=False)
    submit(engine, "seed", text(("A", 8)), 1)
    submit(engine, "sharer", text(("A", 12)), 1)
    submit(engine, "evicts", 12, 1)
    reports = drain(engine)
    assert [admission.reused for report in reports for admission in report.admissions] == [0, 8, 0]
    assert engine.view().cached == frozenset(engine.registry.chains[2])
    assert [event for report in reports for event in report.events] == []


def test_the_events_of_a_busy_cache_mirror_it() -> None:
    engine = caching("4/6/8/3")
    mirror = Mirror()
    prompts = [text(("A", 4 * shared), (f"own {number}", 5)) for number, shared in enumerate((0, 2, 1, 2, 0, 1, 2))]
    for number, prompt in enumerate(prompts):
        submit(engine, f"r{number}", prompt, 4)
    evictions = 0
    while engine.busy:
        report = step(engine)
        evictions += sum(isinstance(event, Removed) for event in report.events)
        assert mirror.follow([report]) == engine.view().cached
    assert evictions


# --- a hit that must be revived is not free ---------------------------------------------------------------------------


def contended(**options: Any) -> tuple[PagedEngine, StepReport]:
    """A waiting request whose prefix is cached to its end in two blocks: the first held by nobody, the second by ``b``.

    Only the first is used, since the last token is to be computed again. Reviving it and one fresh block are two more than
    the two that ``b`` holds, and the cache has three.
    """
    engine = caching("4/3/-/-", **options)
    submit(engine, "a", text(("A", 4)), 1)
    submit(engine, "b", text(("A", 4)), 8)
    steps(engine, 4)
    submit(engine, "c", Prompt.of_streams([("A", 4), ("output of b", 4)]), 1)
    return engine, step(engine)


def test_admission_counts_as_held_only_the_hits_it_uses() -> None:
    engine, report = contended()
    assert report.preemptions == []
    assert engine.view().waiting == ("c",)
    assert told(report) == ["b"]


def test_counting_dropped_hits_admits_by_preempting() -> None:
    engine, report = contended(defects=["counts-dropped-hits"])
    assert [(preemption.victim, preemption.cause) for preemption in report.preemptions] == [("b", "c")]
    assert told(report) == ["c done"]
    assert engine.view().waiting == ("b",)
    assert drain(engine)
