"""Finding 9: with speculation, room for a token that is never computed (vLLM specification 5).

A single request of final length ``F`` needs room for ``F - 1`` tokens. The defect asks for one more, so the request
preempts itself for ever exactly when ``F - 1`` tokens fill the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from attrs import frozen

from model.actions import Step
from model.config import nanoseconds
from model.events import Preemption, Removed, StepReport, Stored
from model.paged.admission import judge, look_up
from model.paged.core import Pass
from model.paged.engine import PagedEngine
from model.paged.metrics import forward_metrics
from model.paged.rules import cdiv
from model.paged.scheduling import running_phase, waiting_phase
from model.paged.speculation import terminal_room
from model.views import PREEMPTED
from tests.paged.driver import FINDING_9, drafts, drain, livelocks, paged, preempted, step, submit, submit_all, tokens_out, told

RESERVATION_ONLY = f"{FINDING_9}:reservation-only"
ALLOCATION_ONLY = f"{FINDING_9}:allocation-only"

BOTH = pytest.mark.parametrize("caching", [False, True], ids=["caching off", "caching on"])


def base(**options: Any) -> PagedEngine:
    """The smallest geometry: two blocks of four, a prompt of eight, one token, one draft."""
    engine = paged("4/2/8/1", **{"speculation": drafts(1), **options})
    submit(engine, "r", 8, 1)
    return engine


def scheduled(engine: PagedEngine) -> tuple[PagedEngine, Pass]:
    """A copy of ``engine`` in the middle of its next pass: everything is scheduled, nothing emitted."""
    copy = engine.thaw(engine.freeze())
    middle = Pass(copy.rules, StepReport(Step()), {})
    running_phase(copy.core, middle)
    waiting_phase(copy.core, middle)
    return copy, middle


def rooms(engine: PagedEngine) -> dict[str, int]:
    """Blocks that the next pass reserves for the burst of each running request."""
    copy, _ = scheduled(engine)
    return {request.id: terminal_room(copy.core, request) for request in copy.core.running}


# --- 5.1: the trace, digit by digit -----------------------------------------------------------------------------------


def test_base_is_admitted_and_scheduled_whole_with_and_without_the_defect() -> None:
    for defects in ((), (FINDING_9,)):
        engine = base(defects=defects)
        core = engine.core
        head = core.waiting[0]
        cost = look_up(core, head)
        assert cdiv(head.length, 4) - cost.active_cached == 2
        assert core.rules.num_blocks - core.pool.active == 2
        assert judge(core, head, cost).value == "admit"
        copy, middle = scheduled(engine)
        request = copy.core.running[0]
        assert middle.budget == 8 - 8
        assert (len(request.blocks), request.computed, request.allocated) == (2, 8, 8)
        assert (copy.core.pool.free, copy.core.pool.active) == (0, 2)


def test_base_with_the_defect_preempts_itself_in_every_pass() -> None:
    engine = base(defects=[FINDING_9])
    assert rooms(engine) == {"r": 1}
    states = set()
    for number in range(1, 8):
        report = step(engine)
        view = engine.view()
        request = view.requests["r"]
        assert report.preemptions == [Preemption("r", None, "emission", needed=1, free=0, requests=("r",))]
        assert report.signals == []
        assert view.waiting == ("r",)
        assert view.running == ()
        assert (request.status, request.computed, request.allocated, request.generated) == (PREEMPTED, 0, 0, 0)
        assert view.pool.active == 0
        assert engine.core.preemptions == number
        metrics = forward_metrics(report, view)
        assert (metrics.num_prefill_requests, metrics.sum_prefill_tokens, metrics.num_decode_requests) == (1, 8, 0)
        states.add(engine.freeze())
    assert len(states) == 1


def test_base_with_the_defect_and_caching_stores_and_evicts_both_blocks_in_every_pass() -> None:
    engine = base(defects=[FINDING_9], prefix_caching=True)
    first = step(engine)
    assert first.events == [Stored(0, (1, 2))]
    assert [copy.identity for copy in engine.core.pool.inactive] == [2, 1]
    assert engine.view().pool.inactive == 2
    states = {engine.freeze()}
    for _ in range(5):
        report = step(engine)
        assert [admission.reused for admission in report.admissions] == [0]
        assert report.events == [Removed((2, 1)), Stored(0, (1, 2))]
        states.add(engine.freeze())
    assert len(states) == 1


def test_base_with_the_defect_takes_the_time_of_its_prefill_again_and_again() -> None:
    engine = base(defects=[FINDING_9])
    for number in range(1, 4):
        assert step(engine).end_ns == number * nanoseconds(8)


def test_base_with_the_defect_on_a_decode_worker_loops_at_one_instant() -> None:
    stuck, reports = livelocks(base(defects=[FINDING_9], role="decode"))
    assert stuck
    assert [report.end_ns for report in reports] == [0] * len(reports)


def test_with_the_defect_a_wholly_cached_prompt_loops_at_one_instant() -> None:
    engine = paged("4/3/-/1", speculation=drafts(1), prefix_caching=True, defects=[FINDING_9])
    submit(engine, "r", 4, 9)
    stuck, reports = livelocks(engine)
    assert stuck
    again = step(engine)
    assert reports[-1].emitted == again.emitted == {}
    assert [admission.reused for admission in again.admissions] == [4]
    assert again.start_ns == again.end_ns


@BOTH
def test_base_ends_in_one_pass_and_reserves_nothing(caching: bool) -> None:
    engine = base(prefix_caching=caching)
    assert rooms(engine) == {"r": 0}
    report = step(engine)
    pool = engine.view().pool
    assert told(report) == ["r done"]
    assert report.preemptions == []
    assert (pool.active, pool.inactive) == (0, 2 if caching else 0)
    assert report.events == ([Stored(0, (1, 2))] if caching else [])


# --- 5.2: exactly when it livelocks, over a whole box -----------------------------------------------------------------


@frozen
class Futures:
    """All that can become of an engine without further input, whatever drafts are accepted.

    Attributes:
        stuck: some future livelocks.
        ends: some future comes to an end.
        preempts: some future preempts.
        story: signals by state and number of accepted drafts, states named in order of discovery.
    """

    stuck: bool
    ends: bool
    preempts: bool
    story: tuple[tuple[int, int, tuple[str, ...]], ...]


def futures(engine: PagedEngine) -> Futures:
    """Every future of an engine with one request, with every number of accepted drafts in every pass.

    A pass without a signal does not depend on what is accepted, so it has one successor, and a livelock is a state from
    which a chain of such passes comes back to it.
    """
    choices = engine.rules.draft_tokens + 1
    start = engine.freeze()
    names = {start: 0}
    frontier = [start]
    story = []
    stuck = ends = preempts = False
    while frontier:
        state = frontier.pop()
        for accepted in range(choices):
            engine = engine.thaw(state)
            silent = {state}
            while True:
                report = step(engine, r=accepted)
                preempts = preempts or bool(report.preemptions)
                after = engine.freeze()
                if report.signals or after in silent:
                    break
                silent.add(after)
            story.append((names[state], accepted, tuple(told(report))))
            if not report.signals:
                stuck = True
            elif not engine.busy:
                ends = True
            elif after not in names:
                names[after] = len(names)
                frontier.append(after)
    return Futures(stuck, ends, preempts, tuple(story))


def box(block_size: int) -> Iterator[tuple[int, int, int, int]]:
    """Blocks, prompt, output and draft tokens: all of 5.2 for one block size."""
    for blocks in (1, 2, 3):
        for prompt in range(1, block_size * blocks + 1):
            for output in range(1, 8):
                for draft_tokens in (1, 2, 3):
                    yield blocks, prompt, output, draft_tokens


def alone(block_size: int, blocks: int, prompt: int, output: int, **options: Any) -> PagedEngine:
    """An engine with one request, limited by nothing but its cache."""
    engine = paged(f"{block_size}/{blocks}/-/-", **options)
    submit(engine, "r", prompt, output)
    return engine


def check_box_case(block_size: int, case: tuple[int, int, int, int], final: int, **options: Any) -> None:
    """One case of the box: what becomes of the request with and without the defect."""
    blocks, prompt, output, draft_tokens = case
    options["speculation"] = drafts(draft_tokens)
    right = alone(block_size, blocks, prompt, output, **options)
    wrong = alone(block_size, blocks, prompt, output, defects=[FINDING_9], **options)
    capacity = blocks * block_size
    if final - 1 > capacity:
        for engine in (right, wrong):
            report = step(engine)
            assert told(report) == ["r rejected"]
            assert report.work == {}
        return
    good, bad = futures(right), futures(wrong)
    assert (good.stuck, good.ends, good.preempts) == (False, True, False)
    if final - 1 == capacity:
        assert bad.stuck
        assert not bad.ends
    else:
        assert bad == good


@BOTH
@pytest.mark.parametrize("block_size", [2, 3, 4])
def test_livelock_exactly_when_all_tokens_but_the_last_fill_the_cache(block_size: int, caching: bool) -> None:
    for case in box(block_size):
        _, prompt, output, _ = case
        check_box_case(block_size, case, prompt + output, prefix_caching=caching)


@pytest.mark.parametrize("beyond", [0, 1])
@pytest.mark.parametrize("block_size", [2, 3, 4])
def test_a_model_length_one_beyond_the_cache_livelocks_too_and_one_that_fits_never(block_size: int, beyond: int) -> None:
    for case in box(block_size):
        blocks, prompt, output, _ = case
        cap = blocks * block_size + beyond
        # Below the cap the model length changes nothing, and such cases are in the box without one.
        if prompt < cap < prompt + output:
            check_box_case(block_size, case, cap, max_model_len=cap)


def test_without_the_caps_no_version_serves_what_is_larger() -> None:
    for block_size in (2, 3, 4):
        for case in box(block_size):
            blocks, prompt, output, draft_tokens = case
            if prompt + output - 1 > blocks * block_size:
                for defects in (["admits-unservable"], ["admits-unservable", FINDING_9]):
                    for speculation in (None, drafts(draft_tokens)):
                        engine = alone(block_size, blocks, prompt, output, defects=defects, speculation=speculation)
                        assert livelocks(engine)[0]


@pytest.mark.parametrize("pattern", [(0, 1), (1, 0), (2, 0, 1), (0, 0, 3, 1), (1, 2, 3)])
def test_varying_acceptance_changes_nothing(pattern: tuple[int, ...]) -> None:
    def accepted(number: int) -> Mapping[str, int]:
        return {"r": pattern[number % len(pattern)]}

    for case in box(3):
        blocks, prompt, output, draft_tokens = case
        if prompt + output - 1 <= 3 * blocks:
            options = {"speculation": drafts(draft_tokens)}
            wrong = alone(3, blocks, prompt, output, defects=[FINDING_9], **options)
            right = alone(3, blocks, prompt, output, **options)
            assert livelocks(wrong, accepted)[0] is (prompt + output - 1 == 3 * blocks)
            stuck, reports = livelocks(right, accepted)
            assert not stuck
            assert tokens_out(reports) == output


def test_the_smallest_model_length_case_of_the_specification() -> None:
    stuck, reports = livelocks(alone(4, 2, 8, 5, max_model_len=9, speculation=drafts(1), defects=[FINDING_9]))
    assert stuck
    assert tokens_out(reports) == 0
    right = drain(alone(4, 2, 8, 5, max_model_len=9, speculation=drafts(1)))
    assert [told(report) for report in right] == [["r done"]]


# --- 5.4: the neighbours ----------------------------------------------------------------------------------------------

NEIGHBOURS = [
    # blocks, prompt, output, accepted, passes without speculation, tokens before the loop (None: no loop), passes
    (2, 8, 1, 0, 1, 0, 1),
    (2, 8, 1, 1, 1, 0, 1),
    (2, 7, 2, 1, 2, 0, 1),
    (2, 7, 2, 0, 2, 0, 2),
    (2, 7, 1, 0, 1, None, 1),
    (2, 7, 1, 1, 1, None, 1),
    (2, 6, 2, 0, 2, None, 2),
    (2, 6, 2, 1, 2, None, 1),
    (2, 5, 3, 0, 3, None, 3),
    (2, 5, 3, 1, 3, None, 2),
    (2, 4, 4, 0, 4, None, 4),
    (2, 4, 4, 1, 4, None, 2),
    (2, 6, 3, 1, 3, 2, 2),
    (2, 6, 3, 0, 3, 1, 3),
    (2, 5, 4, 1, 4, 2, 2),
    (2, 5, 4, 0, 4, 2, 4),
    (2, 4, 5, 1, 5, 4, 3),
    (2, 4, 5, 0, 5, 3, 5),
    (3, 8, 1, 0, 1, None, 1),
    (3, 8, 1, 1, 1, None, 1),
    (3, 8, 4, 1, 4, None, 2),
    (3, 7, 3, 1, 3, None, 2),
]


@BOTH
@pytest.mark.parametrize(("blocks", "prompt", "output", "accepted", "ordinary", "before_loop", "passes"), NEIGHBOURS)
def test_neighbours_of_the_base_case(
    blocks: int, prompt: int, output: int, accepted: int, ordinary: int, before_loop: int | None, passes: int, caching: bool
) -> None:
    options: dict[str, Any] = {"prefix_caching": caching}
    plain = drain(alone(4, blocks, prompt, output, **options))
    options["speculation"] = drafts(1, accepted)
    right = drain(alone(4, blocks, prompt, output, **options))
    stuck, wrong = livelocks(alone(4, blocks, prompt, output, defects=[FINDING_9], **options))
    assert len(plain) == ordinary
    assert preempted(plain) == preempted(right) == []
    assert (len(right), tokens_out(right)) == (passes, output)
    if before_loop is None:
        assert not stuck
        assert [told(report) for report in wrong] == [told(report) for report in right]
    else:
        assert stuck
        assert tokens_out(wrong) == before_loop


def holding(engine: PagedEngine, id_: str = "r") -> tuple[int, int, int]:
    """Length, tokens allocated and blocks held of a request."""
    request = engine.view().requests[id_]
    return request.length, request.allocated, len(request.blocks)


def test_a_third_block_is_reserved_and_given_back_with_the_defect_only() -> None:
    for defects, need in (((FINDING_9,), 1), ((), 0)):
        engine = alone(4, 3, 8, 1, speculation=drafts(1), defects=defects)
        assert rooms(engine) == {"r": need}
        assert told(step(engine)) == ["r done"]
        pool = engine.view().pool
        assert (pool.free, pool.active, pool.reserved) == (3, 0, 0)


def test_a_burst_that_crosses_a_block_boundary() -> None:
    for defects, allocated in (((FINDING_9,), 10), ((), 9)):
        engine = alone(4, 3, 8, 4, speculation=drafts(1, accepted=1), defects=defects)
        assert rooms(engine) == {"r": 1}
        assert told(step(engine)) == ["r", "r"]
        assert holding(engine) == (10, allocated, 3)
        assert rooms(engine) == {"r": 0}
        assert told(step(engine)) == ["r", "r done"]


def test_a_burst_that_ends_just_beyond_a_block_takes_no_block_for_its_last_token() -> None:
    for defects, need, allocated, blocks in (((FINDING_9,), 1, 9, 3), ((), 0, 8, 2)):
        engine = alone(4, 3, 7, 3, speculation=drafts(1, accepted=1), defects=defects)
        assert rooms(engine) == {"r": need}
        assert told(step(engine)) == ["r", "r"]
        assert holding(engine) == (9, allocated, blocks)
        copy, _ = scheduled(engine)
        assert len(copy.core.running[0].blocks) == 3
        assert told(step(engine)) == ["r done"]


def test_a_burst_stores_the_blocks_it_fills() -> None:
    options: dict[str, Any] = {"speculation": drafts(3, accepted=3), "prefix_caching": True}
    wrong = alone(4, 3, 7, 6, defects=[FINDING_9], **options)
    right = alone(4, 3, 7, 6, **options)
    for engine in (wrong, right):
        middle, _ = scheduled(engine)
        # Block 0 is stored when the prompt is scheduled, block 1 inside the burst that fills it.
        assert sorted(middle.core.pool.index) == [1]
        first = step(engine)
        assert first.emitted == {"r": 4}
        assert first.events == [Stored(0, (1,)), Stored(1, (2,))]
    assert rooms(wrong) == {"r": 1}
    stuck, reports = livelocks(wrong)
    assert stuck
    assert tokens_out(reports) == 0
    last = step(right)
    assert told(last) == ["r", "r done"]
    assert last.events == [Stored(2, (3,))]
    assert right.view().pool.inactive == 3


def test_a_prefill_worker_livelocks_as_well() -> None:
    assert livelocks(base(defects=[FINDING_9], role="prefill"))[0]
    assert [told(report) for report in drain(base(role="prefill"))] == [["r done"]]


def test_two_requests_that_fit_exactly_preempt_each_other_with_the_defect_only() -> None:
    stories = {}
    for defects in ((), (FINDING_9,)):
        engine = paged("4/4/-/-", speculation=drafts(1), defects=defects)
        submit_all(engine, {"p": (8, 1), "q": (8, 1)})
        needs = rooms(engine)
        reports = drain(engine)
        stories[defects] = (sum(needs.values()), [told(report) for report in reports], preempted(reports))
    assert stories[(FINDING_9,)] == (2, [["p done"], ["q done"]], ["q"])
    assert stories[()] == (0, [["p done", "q done"]], [])


def test_two_requests_of_which_one_must_give_way_either_way() -> None:
    for defects, needs in (((FINDING_9,), {"p": 1, "q": 1}), ((), {"p": 0, "q": 1})):
        engine = paged("4/3/-/-", speculation=drafts(1, accepted=1), defects=defects)
        submit_all(engine, {"p": (8, 1), "q": (4, 2)})
        assert rooms(engine) == needs
        first = step(engine)
        assert preempted([first]) == ["q"]
        assert told(first) == ["p done"]
        assert [told(report) for report in drain(engine)] == [["q", "q done"]]


# --- half fixes -------------------------------------------------------------------------------------------------------


def test_reserving_less_alone_holds_a_block_for_a_token_that_is_not_computed() -> None:
    for defects, blocks in (([RESERVATION_ONLY], 3), ([], 2)):
        engine = alone(4, 3, 7, 3, speculation=drafts(1, accepted=1), defects=defects)
        step(engine)
        length, _, held = holding(engine)
        assert (held, cdiv(length - 1, 4)) == (blocks, 2)


def test_reserving_less_alone_takes_blocks_that_are_not_there() -> None:
    for defects, free in (([RESERVATION_ONLY], -2), ([], 0)):
        engine = paged("4/4/-/-", speculation=drafts(1, accepted=1), defects=defects)
        submit_all(engine, {"p": (7, 3), "q": (7, 3)})
        step(engine)
        assert engine.view().pool.free == free


@BOTH
def test_allocating_less_alone_livelocks_just_the_same(caching: bool) -> None:
    stuck, reports = livelocks(base(defects=[ALLOCATION_ONLY], prefix_caching=caching))
    assert stuck
    assert tokens_out(reports) == 0
