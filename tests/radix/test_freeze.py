"""Frozen states: thawing keeps behaviour, equal states behave alike, and what steers nothing is not in them.

Drawn engines cover every option of the radix scheduler, the right engine and each of its defects.
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

from model.actions import Action, Cancel, Step, Submit
from model.config import EngineConfig
from model.defects import complete
from model.errors import BadInput
from model.events import StepReport
from model.radix.engine import RadixEngine
from model.radix.state import preorder, ranks
from model.requests import RequestSpec
from model.views import EngineView
from tests.radix.audit import audit
from tests.radix.driver import FINDING_4, advance, drain, radix, spec, step, submit, submit_all, text
from tests.radix.test_tree import Keyed

IDS = ("r0", "r1", "r2", "r3")
DEFECTS = sorted(id_ for defect in complete().values() if "sglang" in defect.schedulers for id_ in defect.ids())


@frozen
class Scene:
    """An engine and the requests that may be submitted to it."""

    config: EngineConfig
    requests: tuple[RequestSpec, ...]


@st.composite
def scenes(draw: st.DrawFn, most: int = 4) -> Scene:
    """Engines too small for all their requests, and requests that share prefixes, generated ones too."""
    rarely = st.sampled_from([False, False, False, True])
    size = draw(st.sampled_from([1, 2, 4]))
    k = draw(st.integers(1, 2)) if draw(rarely) else None
    config = EngineConfig(
        scheduler="sglang",
        block_size=size,
        num_blocks=draw(st.integers(3, 8)),
        chunked_prefill_size=draw(st.integers(1, 8)),
        max_prefill_tokens=draw(st.integers(1, 8)) if draw(rarely) else 16384,
        max_num_seqs=draw(st.integers(1, 3)) if draw(rarely) else None,
        schedule_policy=draw(st.sampled_from(["fcfs", "lpm"])),
        schedule_conservativeness=draw(st.sampled_from([0, 0, 0.3, 1.0])),
        clip_max_new_tokens=draw(st.integers(1, 4)) if draw(rarely) else 4096,
        prefill_decode_interval=draw(st.integers(1, 2)) if draw(rarely) else 0,
        prefix_caching=not draw(rarely),
        kv_events=not draw(rarely),
        max_model_len=draw(st.integers(4, 14)) if draw(rarely) else None,
        speculation=None if k is None else {"draft_tokens": k, "accepted": draw(st.integers(0, k))},
        defects=draw(st.sampled_from([[], "upstream", *([id_] for id_ in DEFECTS)])),
    )
    pieces = st.tuples(st.sampled_from(["B", "output of r0"]), st.integers(0, 4))
    requests = [spec(id_, text(("A", draw(st.integers(1, 5))), draw(pieces)), draw(st.integers(0, 6))) for id_ in IDS[:most]]
    return Scene(config, tuple(requests))


DRAFTS = ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (0, 2, 1, 0))
PASSES = [Step(dict(zip(IDS, accepted, strict=True))) for accepted in DRAFTS]


def histories(scene: Scene) -> st.SearchStrategy[list[Action]]:
    """Some requests at once, then passes for the most part."""
    submits: list[Action] = [Submit(described) for described in scene.requests]
    moves = [*PASSES, *PASSES, *PASSES, *submits, *(Cancel(described.id) for described in scene.requests)]
    first = st.lists(st.sampled_from(submits), unique_by=id, min_size=1)
    return st.tuples(first, st.lists(st.sampled_from(moves), min_size=4, max_size=16)).map(lambda parts: parts[0] + parts[1])


def outcome(engine: RadixEngine, action: Action) -> dict[str, Any] | str:
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
    """A view without what freezing does not keep: clock, past retractions, first hits, ghosts, and the numbering of pages."""
    table = view.blocks
    assert table is not None
    assert view.tree is not None
    requests = {
        id_: (
            (request.status, request.prompt, request.output, request.generated, request.computed, request.allocated),
            tuple(table[block] for block in request.blocks),
        )
        for id_, request in view.requests.items()
    }
    nodes = [
        (node.parent, node.pages, node.locks, node.evictable_leaf, node.recency, tuple(table[block] for block in node.blocks))
        for node in view.tree
    ]
    return requests, view.waiting, view.running, view.pool, view.cached, nodes, view.extra


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_thawed_engine_behaves_like_the_one_that_was_frozen(data: st.DataObject) -> None:
    scene = data.draw(scenes())
    engine = RadixEngine(scene.config)
    for action in data.draw(histories(scene)):
        outcome(engine, action)
        audit(engine.core)
    state = engine.freeze()
    fork = engine.thaw(state)
    audit(fork.core)
    assert engine.freeze() == fork.freeze() == state
    assert shape(fork.view()) == shape(engine.view())
    for action in data.draw(histories(scene)):
        did = outcome(engine, action)
        assert outcome(fork, action) == did
        audit(fork.core)
        assert fork.freeze() == engine.freeze()
        assert shape(fork.view()) == shape(engine.view())
        for kind in ("preemptions", "admissions", "signals", "events"):
            if isinstance(did, dict) and did[kind]:
                event(f"after the fork: {kind}")


def twin(engine: RadixEngine) -> RadixEngine:
    """A copy that was never frozen: everything but what is fixed for the run is copied as it is."""
    fixed = (engine.registry, engine.rules, engine.config)
    return copy.deepcopy(engine, {id(part): part for part in fixed})


@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_two_histories_that_reach_the_same_state_have_the_same_futures(data: st.DataObject) -> None:
    """The first and every later engine found in a state do the same, and reach the same state, on every action.

    One step is enough: where it leads is again a state in which all engines found there are compared.
    """
    scene = data.draw(scenes(most=3))
    moves: list[Action] = [PASSES[0], PASSES[2]] if scene.config.speculation else [PASSES[0]]
    moves += [Submit(described) for described in scene.requests]
    moves += [Cancel(described.id) for described in scene.requests]
    start = RadixEngine(scene.config)
    known: dict[bytes, RadixEngine] = {start.freeze(): start}
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


def _compare(first: RadixEngine, other: RadixEngine, moves: Sequence[Action]) -> None:
    for move in moves:
        one, two = twin(first), twin(other)
        assert outcome(one, move) == outcome(two, move)
        assert one.freeze() == two.freeze()


# --- what is in a state and what is not -------------------------------------------------------------------------------


def test_clock_past_retractions_and_ended_requests_are_not_in_a_state() -> None:
    engine = radix("4/3/8", prefix_caching=False, schedule_conservativeness=0)
    fresh = engine.freeze()
    submit_all(engine, {"a": (3, 6), "b": (2, 3)})
    reports = drain(engine)
    assert any(report.preemptions for report in reports)
    assert engine.core.now
    # The ratio that the retraction left behind is.
    assert engine.freeze() != fresh
    engine.core.ratio = engine.rules.initial_ratio
    assert engine.freeze() == fresh
    advance(engine, 5)
    assert engine.freeze() == fresh


def test_the_ratio_of_an_idle_engine_is_in_its_state_for_it_decides_later_admissions() -> None:
    engine = radix("4/10/64")
    engines = []
    for ratio in (0.7, 0.5):
        other = engine.thaw(engine.freeze())
        other.core.ratio = ratio
        engines.append(other.thaw(other.freeze()))
    assert engines[0].freeze() != engines[1].freeze()
    admitted = []
    for other in engines:
        assert other.core.ratio in (0.7, 0.5)
        submit(other, "running", 4, 34)
        step(other)
        submit(other, "a", 4, 5)
        admitted.append(bool(step(other).admissions))
    assert admitted == [False, True]


def test_page_numbers_are_not_in_a_state() -> None:
    engine = radix("4/8/64")
    submit(engine, "a", text(("A", 6)), 3)
    step(engine)
    state = engine.freeze()
    engine.core.pool.returned.append(engine.core.pool.next_fresh)
    engine.core.pool.next_fresh += 1
    assert engine.freeze() == state


def test_queue_order_is_in_a_state() -> None:
    states = []
    engine = radix("4/6/64")
    for order in (("a", "b"), ("b", "a")):
        other = engine.thaw(engine.freeze())
        for id_ in order:
            submit(other, id_, 4, 1)
        states.append(other.freeze())
    assert states[0] != states[1]


def test_eviction_order_is_in_a_state_and_the_order_along_a_path_is_not() -> None:
    keyed = Keyed()
    first = keyed.insert([1, 2])
    second = keyed.insert([3])
    keyed.match([1])
    upper = first.parent
    assert upper is not None
    nodes, ends = preorder(keyed.tree.root)
    by_node = dict(zip((node.id for node in nodes), ranks(nodes, ends), strict=True))
    assert by_node[first.id] == by_node[upper.id] < by_node[second.id]
    keyed.match([1])
    nodes, ends = preorder(keyed.tree.root)
    by_node = dict(zip((node.id for node in nodes), ranks(nodes, ends), strict=True))
    assert by_node[first.id] < by_node[second.id] < by_node[upper.id]


def test_a_retracted_request_is_not_a_waiting_one() -> None:
    engine = radix("4/3/8", prefix_caching=False, schedule_conservativeness=0)
    submit_all(engine, {"a": (3, 6), "b": (2, 3)})
    drain_until_retraction(engine)
    state = engine.freeze()
    engine.core.waiting[0].status = "waiting"
    assert engine.freeze() != state


def drain_until_retraction(engine: RadixEngine) -> None:
    """Passes up to the first that retracts."""
    while not step(engine).preemptions:
        assert engine.busy


def test_with_events_and_caching_off_a_state_tells_what_is_announced() -> None:
    states = []
    for events in (True, False):
        engine = radix("2/8/8", prefix_caching=False, kv_events=events, defects=[FINDING_4])
        submit(engine, "a", 4, 4)
        for _ in range(3):
            step(engine)
        states.append(engine.freeze())
        fork = engine.thaw(engine.freeze())
        assert [report.events for report in drain(fork)] == [report.events for report in drain(engine)]
    assert states[0] != states[1]


def test_a_thawed_engine_is_another_one() -> None:
    engine = radix("4/6/64")
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
    engine = radix("4/20000/100000")
    submit(engine, "r", tokens, 3)
    step(engine)
    fork = engine.thaw(engine.freeze())
    assert shape(fork.view()) == shape(engine.view())
    assert [outcome(fork, Step()) for _ in range(2)] == [outcome(engine, Step()) for _ in range(2)]


def test_a_deep_tree_is_frozen_and_thawed() -> None:
    engine = radix("1/4000/4000", schedule_conservativeness=0)
    submit(engine, "seed", text(("A", 1100)))
    drain(engine)
    for shared in range(1, 1100):
        keys = engine.registry.chain(0, 1100)
        engine.core.tree.match(keys, shared)
    state = engine.freeze()
    assert engine.thaw(state).freeze() == state
