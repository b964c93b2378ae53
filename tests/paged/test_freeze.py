"""Frozen states: thawing keeps behaviour, equal states behave alike, and what steers nothing is not in them.

Drawn engines cover every option of the paged scheduler, the right engine and each of its defects.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from attrs import frozen
from hypothesis import event, given, settings
from hypothesis import strategies as st

from model.actions import Action, Advance, Cancel, Step, Submit
from model.config import EngineConfig
from model.defects import complete
from model.errors import BadInput
from model.events import StepReport
from model.paged.engine import PagedEngine
from model.registry import NO_BLOCK
from model.requests import RequestSpec
from model.views import EngineView
from tests.paged.driver import cancel, drafts, drain, paged, preempted, step, steps, submit, submit_all, text

IDS = ("r0", "r1", "r2", "r3")
DEFECTS = sorted(id_ for defect in complete().values() if "vllm" in defect.schedulers for id_ in defect.ids())


@frozen
class Scene:
    """An engine and the requests that may be submitted to it."""

    config: EngineConfig
    requests: tuple[RequestSpec, ...]


@st.composite
def scenes(draw: st.DrawFn, most: int = 4) -> Scene:
    """Engines too small for all their requests, and requests that share prefixes, generated ones too."""
    k = draw(st.none() | st.integers(1, 3))
    rarely = st.sampled_from([False, False, False, True])
    config = EngineConfig(
        scheduler="vllm",
        block_size=draw(st.integers(2, 4)),
        num_blocks=draw(st.integers(2, 5)),
        role=draw(st.sampled_from(["aggregated", "aggregated", "prefill", "decode"])),
        max_num_batched_tokens=draw(st.none() | st.integers(2, 12)),
        max_num_seqs=draw(st.integers(1, 3)) if draw(rarely) else None,
        chunked_prefill=not draw(rarely),
        prefix_caching=draw(st.booleans()),
        max_model_len=draw(st.integers(4, 14)) if draw(rarely) else None,
        preemption=draw(st.sampled_from(["lifo", "fifo"])),
        speculation=None if k is None else drafts(k, draw(st.integers(0, k))),
        defects=draw(st.sampled_from([[], "upstream", *([id_] for id_ in DEFECTS)])),
    )
    pieces = st.tuples(st.sampled_from(["B", "output of r0"]), st.integers(0, 4))
    planned = st.none() | st.lists(st.integers(0, 1), max_size=6).map(tuple)
    requests = [
        RequestSpec(id_, text(("A", draw(st.integers(1, 5))), draw(pieces)), draw(st.integers(0, 7)), draw(planned))
        for id_ in IDS[:most]
    ]
    return Scene(config, tuple(requests))


DRAFTS = ((0, 0, 0, 0), (1, 1, 1, 1), (3, 3, 3, 3), (0, 2, 1, 3), (3, 1, 0, 2))
PASSES = [Step(dict(zip(IDS, accepted, strict=True))) for accepted in DRAFTS]


def histories(scene: Scene) -> st.SearchStrategy[list[Action]]:
    """Some requests at once, then passes for the most part."""
    submits: list[Action] = [Submit(spec) for spec in scene.requests]
    moves = [*PASSES, *PASSES, *PASSES, *submits, *(Cancel(spec.id) for spec in scene.requests)]
    first = st.lists(st.sampled_from(submits), unique_by=id, min_size=1)
    return st.tuples(first, st.lists(st.sampled_from(moves), min_size=4, max_size=16)).map(lambda parts: parts[0] + parts[1])


def outcome(engine: PagedEngine, action: Action) -> dict[str, Any] | str:
    """All that an action did, told without the clock; a refusal in its words."""
    try:
        report: StepReport = engine.apply(action)
    except BadInput as error:
        return str(error)
    told = attrs.asdict(report, recurse=False)
    told["end_ns"] -= told["start_ns"]
    del told["start_ns"]
    return told


def shape(view: EngineView) -> tuple[Any, ...]:
    """A view without the clock, past preemptions, and the numbering of blocks, which freezing does not keep."""
    table = view.blocks
    assert table is not None
    requests = {
        id_: (
            (request.status, request.prompt, request.output, request.generated, request.computed, request.allocated),
            tuple(table[block] for block in request.blocks),
        )
        for id_, request in view.requests.items()
    }
    return requests, view.waiting, view.running, view.pool, view.cached


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_thawed_engine_behaves_like_the_one_that_was_frozen(data: st.DataObject) -> None:
    scene = data.draw(scenes())
    engine = PagedEngine(scene.config)
    for action in data.draw(histories(scene)):
        outcome(engine, action)
    state = engine.freeze()
    fork = engine.thaw(state)
    assert engine.freeze() == fork.freeze() == state
    assert shape(fork.view()) == shape(engine.view())
    for action in data.draw(histories(scene)):
        did = outcome(engine, action)
        assert outcome(fork, action) == did
        assert fork.freeze() == engine.freeze()
        assert shape(fork.view()) == shape(engine.view())
        for kind in ("preemptions", "admissions", "signals", "events"):
            if isinstance(did, dict) and did[kind]:
                event(f"after the fork: {kind}")


def twin(engine: PagedEngine) -> PagedEngine:
    """A copy that was never frozen: everything but what is fixed for the run is copied as it is."""
    fixed = (engine.registry, engine.rules, engine.config)
    return copy.deepcopy(engine, {id(part): part for part in fixed})


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_two_histories_that_reach_the_same_state_have_the_same_futures(data: st.DataObject) -> None:
    """The first and every later engine found in a state do the same, and reach the same state, on every action.

    One step is enough: where it leads is again a state in which all engines found there are compared.
    """
    scene = data.draw(scenes(most=2))
    most = 3 if scene.config.speculation else 0
    moves: list[Action] = [Step({"r0": low, "r1": high}) for low, high in sorted({(0, 0), (most, 0), (most, most)})]
    moves += [Submit(spec) for spec in scene.requests]
    moves += [Cancel(spec.id) for spec in scene.requests]
    start = PagedEngine(scene.config)
    known: dict[bytes, PagedEngine] = {start.freeze(): start}
    frontier = deque([start])
    compared = 0
    while frontier and len(known) < 30:
        engine = frontier.popleft()
        for move in moves:
            other = twin(engine)
            outcome(other, move)
            state = other.freeze()
            first = known.get(state)
            if first is None:
                known[state] = other
                frontier.append(other)
            elif compared < 40:
                compared += 1
                _compare(first, other, moves)
    event(f"states compared: {compared // 10 * 10} or more")


def _compare(first: PagedEngine, other: PagedEngine, moves: Sequence[Action]) -> None:
    assert shape(first.view()) == shape(other.view())
    for move in moves:
        one, two = twin(first), twin(other)
        assert outcome(one, move) == outcome(two, move)
        assert one.freeze() == two.freeze()


# --- what is in a state and what is not -------------------------------------------------------------------------------


def test_clock_past_preemptions_and_ended_requests_are_not_in_a_state() -> None:
    engine = paged("4/6/16/2")
    fresh = engine.freeze()
    submit_all(engine, {"r1": (8, 8), "r2": (8, 8)})
    reports = drain(engine)
    assert preempted(reports)
    assert engine.core.now
    assert engine.freeze() == fresh
    engine.apply(Advance(5))
    assert engine.freeze() == fresh


def test_private_blocks_have_no_identity_in_a_state() -> None:
    engine = paged("4/6/-/-")
    submit_all(engine, {"a": (4, 3), "b": (4, 3)})
    step(engine)
    state = engine.freeze()
    a, b = engine.core.requests.values()
    a.blocks, b.blocks = b.blocks, a.blocks
    assert engine.freeze() == state


def test_queue_order_is_in_a_state() -> None:
    states = []
    engine = paged("4/6/-/-")
    for order in (("a", "b"), ("b", "a")):
        other = engine.thaw(engine.freeze())
        for id_ in order:
            submit(other, id_, 4, 1)
        states.append(other.freeze())
    assert states[0] != states[1]


def test_eviction_order_is_in_a_state() -> None:
    states = []
    engine = paged("4/6/-/-", prefix_caching=True)
    # Known to the registry in one order, however they run.
    submit_all(engine, {"a": (4, 1), "b": (4, 1)})
    for order in (("a", "b"), ("b", "a")):
        other = engine.thaw(paged("4/6/-/-", prefix_caching=True).freeze())
        for id_ in order:
            submit(other, id_, 4, 1)
            drain(other)
        states.append(other.freeze())
    assert states[0] != states[1]


def test_a_preempted_request_is_not_a_waiting_one() -> None:
    engine = paged("4/2/-/-")
    submit_all(engine, {"a": (3, 5), "b": (4, 2)})
    report = steps(engine, 2)[-1]
    assert preempted([report]) == ["b"]
    request = engine.core.waiting[0]
    state = engine.freeze()
    request.status = "waiting"
    assert engine.freeze() != state


def test_a_state_tells_which_copy_of_an_identity_a_request_holds() -> None:
    engine = paged("4/6/-/-", prefix_caching=True)
    submit_all(engine, {"a": (text(("A", 4)), 3), "b": (text(("A", 4)), 3)})
    step(engine)
    a, b = engine.core.requests.values()
    assert a.blocks[0].identity == b.blocks[0].identity != NO_BLOCK
    assert a.blocks[0] is not b.blocks[0]
    state = engine.freeze()
    a.blocks[0], b.blocks[0] = b.blocks[0], a.blocks[0]
    assert engine.freeze() != state
    thawed = engine.thaw(state)
    cancel(thawed, "a")
    assert thawed.core.pool.inactive
    assert next(iter(thawed.core.pool.inactive)) is thawed.core.pool.primary(1)


def test_a_thawed_engine_is_another_one() -> None:
    engine = paged("4/6/-/-", prefix_caching=True)
    submit(engine, "r", 9, 4)
    step(engine)
    state = engine.freeze()
    view = engine.view()
    fork = engine.thaw(state)
    drain(fork)
    assert engine.freeze() == state
    assert engine.view() == view
    assert fork.registry is engine.registry


@pytest.mark.parametrize("tokens", [200, 300, 70_000])
def test_large_numbers_survive_freezing(tokens: int) -> None:
    engine = paged("4/20000/-/-", prefix_caching=True)
    submit(engine, "r", tokens, 3)
    step(engine)
    fork = engine.thaw(engine.freeze())
    assert shape(fork.view()) == shape(engine.view())
    assert [outcome(fork, Step()) for _ in range(2)] == [outcome(engine, Step()) for _ in range(2)]
