"""Agentic traces: the rows (replay specification 1.4, 1.5), and the graph as it is driven (4)."""

from __future__ import annotations

from typing import Any

import pytest

from model.replay.agentic import Graph, load_agentic, load_legacy
from model.replay.driver import CANCELED, COMPLETED, FAILED, REJECTED, Driver
from model.replay.errors import DriverError
from model.replay.plays import AgenticPolicy, NodeState, PlayOutcome
from model.replay.reader import rows_of
from tests.replay.support import Row, agentic, header, node, refused, replay


def load(*rows: Any) -> Graph:
    """A graph from rows behind a header."""
    return load_agentic(rows_of([header(), *rows]))


def edge(request_id: str, **fields: Any) -> Row:
    """A dependency."""
    return {"request_id": request_id, "trigger": "completion", "delay_ms": 0, "relation": "sequence", **fields}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"schema": "other"}, "E_HEADER"),
        ({"version": 1}, "E_HEADER"),
        ({"block_size": 0}, "E_BLOCK_SIZE"),
        ({"hash_id_scope": "global"}, "E_PARSE"),
        ({"source": None}, "E_PARSE"),
        ({"source": {"format": "x"}}, "E_PARSE"),
        ({"source": {"format": " ", "digest": "y"}}, "E_BLANK"),
        ({"version": "2"}, "E_PARSE"),
    ],
)
def test_the_header_is_checked(changes: Row, code: str) -> None:
    with refused(code, None if code == "E_BLOCK_SIZE" else 1):
        load_agentic(rows_of([{**header(), **changes}, node("a")]))


def test_rows_without_header_are_refused_with_a_hint() -> None:
    with refused("E_HEADER", 1) as caught:
        load_agentic(rows_of([node("a")]))
    assert "agentic_mooncake_legacy" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"request_id": " "}, "E_BLANK"),
        ({"play_id": ""}, "E_BLANK"),
        ({"session_id": ""}, "E_BLANK"),
        ({"model": "\t"}, "E_BLANK"),
        ({"model": None}, "E_PARSE"),
        ({"input_length": None}, "E_PARSE"),
        ({"input_length": 0}, "E_ZERO_INPUT"),
        ({"output_length": None}, "E_PARSE"),
        ({"hash_ids": [1, 2]}, "E_HASH_COUNT"),
        ({"hash_ids": []}, "E_HASH_COUNT"),
        ({"output_token_ids": [1, 2]}, "E_PLAN_LEN"),
        ({"not_before_ms": None}, "E_PARSE"),
        ({"not_before_ms": -1}, "E_BAD_TIME"),
        ({"recorded_api_time_ms": -1}, "E_BAD_TIME"),
        ({"dependencies": [edge("b", delay_ms=-1)]}, "E_BAD_DELAY"),
        ({"dependencies": [edge("b", trigger="end")]}, "E_PARSE"),
        ({"dependencies": [edge("b", relation="love")]}, "E_PARSE"),
        ({"dependencies": [edge("b", trigger="dispatch", relation="sequence")]}, "E_TRIGGER"),
        ({"dependencies": [edge("b", trigger="dispatch", relation="join")]}, "E_TRIGGER"),
        ({"dependencies": [edge("b", trigger="dispatch", relation="replay_barrier")]}, "E_TRIGGER"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(changes: Row, code: str) -> None:
    with refused(code, 3):
        load(node("b"), {**node("a"), **changes})


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([node("a"), node("a")], "E_DUPLICATE_ID"),
        ([node("a", ("a", "completion", 0))], "E_SELF_DEPENDENCY"),
        ([node("a", ("z", "completion", 0))], "E_UNKNOWN_ID"),
        ([node("a", play="p"), node("b", ("a", "completion", 0), play="q")], "E_CROSS_PLAY"),
        ([node("a", ("b", "completion", 0)), node("b", ("a", "completion", 0))], "E_CYCLE"),
        ([node("r"), node("a", ("b", "dispatch", 0)), node("b", ("a", "dispatch", 0))], "E_CYCLE"),
        ([node("a", source_play_ordinal=0), node("b", source_play_ordinal=1)], "E_ORDINALS"),
        ([node("a", source_play_ordinal=0), node("b", play="q")], "E_ORDINALS"),
        ([node("a", source_play_ordinal=1)], "E_ORDINALS"),
        ([node("a", source_play_ordinal=0), node("b", play="q", source_play_ordinal=2)], "E_ORDINALS"),
        ([], "E_EMPTY"),
    ],
)
def test_a_bad_graph_is_refused_with_its_requests(rows: list[Row], code: str) -> None:
    with refused(code) as caught:
        load(*rows)
    assert rows == [] or any(name in str(caught.value) for name in ("request", "play"))


def test_nodes_are_sorted_by_id_and_plays_by_ordinal() -> None:
    graph = load(
        node("z", play="first", source_play_ordinal=1),
        node("b", play="second", source_play_ordinal=0),
        node("a", play="second", source_play_ordinal=0),
    )
    assert [one.request_id for one in graph.nodes] == ["a", "b", "z"]
    assert graph.plays == ("second", "first")
    assert load(node("z", play="first"), node("b", play="second")).plays == ("first", "second")


def test_the_header_decides_the_block_size_and_equal_edges_are_two() -> None:
    rows = [header(8), node("a"), node("b", ("a", "completion", 0), ("a", "completion", 0))]
    graph = load_agentic(rows_of(rows))
    assert graph.block_size == 8
    assert len(graph.nodes[1].dependencies) == 2


def test_the_digest_does_not_depend_on_the_order_of_rows_or_edges() -> None:
    two = [("a", "completion", 1.0), ("a", "dispatch", 0.0)]
    rows = [node("a"), node("b", *two, hash_ids=[1])]
    turned = [node("b", *reversed(two), hash_ids=[1]), node("a")]
    assert load(*rows).digest() == load(*turned).digest()
    assert load(*rows).digest() != load(node("a"), node("b", two[0])).digest()


def legacy(request_id: str, **fields: Any) -> Row:
    """A row of the older form."""
    return {"request_id": request_id, "input_length": 4, "output_length": 1, "hash_ids": [1], **fields}


def test_legacy_waits_become_edges_and_components_become_plays() -> None:
    rows = [legacy("r1"), legacy("r2", wait_for=["r1"], delay=10, tool_wait_ms=6, timestamp=77), legacy("r3")]
    graph = load_legacy(rows_of(rows), 4)
    assert graph.nodes[1].dependencies[0].delay_ms == 16
    assert graph.nodes[1].not_before_ms == 0
    assert graph.plays == ("legacy-play:r1", "legacy-play:r3")
    assert [one.session_id for one in graph.nodes] == ["agentic-session"] * 3


def test_legacy_joins_keep_the_starts_of_their_roots() -> None:
    rows = [legacy("r1", timestamp=0), legacy("r2", timestamp=5), legacy("r3", wait_for=["r1", "r2"])]
    graph = load_legacy(rows_of(rows), 4)
    assert graph.plays == ("legacy-play:r1",)
    assert [one.not_before_ms for one in graph.nodes] == [0, 5, 0]
    assert {edge.relation for edge in graph.nodes[2].dependencies} == {"join"}


@pytest.mark.parametrize(
    ("rows", "first_arrival"),
    [([legacy("root", timestamp=3), legacy("child", wait_for=["root"])], 3), ([legacy("root", timestamp=3)], 0)],
)
def test_a_legacy_root_is_shifted_only_when_nothing_starts_at_0(rows: list[Row], first_arrival: float) -> None:
    result = replay(rows, format="agentic_mooncake_legacy")
    assert min(result.arrivals.values()) == first_arrival


@pytest.mark.parametrize(
    ("changes", "code", "line"),
    [
        ({"delay": 1, "delay_ms": 1}, "E_PARSE", 2),
        ({"tool_wait_ms": -1}, "E_BAD_TIME", 2),
        ({"hash_ids": []}, "E_NO_HASHES", 2),
        ({"wait_for": [1]}, "E_PARSE", 2),
        ({"request_id": " "}, "E_BLANK", 2),
        ({"input_length": None}, "E_PARSE", 3),
        ({"hash_ids": [1, 2]}, "E_HASH_COUNT", 3),
        ({"timestamp": -1}, "E_BAD_TIME", 3),
    ],
)
def test_a_bad_legacy_row_names_its_line_or_the_one_below_the_header_it_gets(changes: Row, code: str, line: int) -> None:
    with refused(code, line):
        load_legacy(rows_of([legacy("a"), {**legacy("b"), **changes}]), 4)


def test_a_legacy_cycle_is_refused() -> None:
    with refused("E_CYCLE"):
        load_legacy(rows_of([legacy("a", wait_for=["b"]), legacy("b", wait_for=["a"])]), 4)


def policy_of(machine: Driver) -> AgenticPolicy:
    """The plays of a driver."""
    assert isinstance(machine.policy, AgenticPolicy)
    return machine.policy


def states(machine: Driver) -> list[str]:
    """States of the nodes, by id."""
    return [state.value for state in policy_of(machine).states]


def outcomes(machine: Driver) -> list[PlayOutcome]:
    """Outcomes of the plays."""
    return policy_of(machine).outcomes()


@pytest.mark.parametrize("status", [FAILED, CANCELED, REJECTED])
def test_any_end_but_completion_fails_the_play_and_skips_what_has_not_begun(status: str) -> None:
    machine = agentic(node("a"), node("b", ("a", "completion", 0)), node("c", start=9), node("d", ("b", "dispatch", 0)))
    machine.pop_ready(0)
    machine.feedback(1, [(1, status)], [1])
    assert states(machine) == ["failed", "skipped", "skipped", "skipped"]
    assert machine.is_drained()
    assert machine.next_ready_time() is None


def test_a_completion_in_a_failed_play_fires_nothing() -> None:
    machine = agentic(node("a"), node("b"), node("c", ("b", "completion", 0)))
    machine.pop_ready(0)
    machine.feedback(1, [(1, FAILED)], [1])
    machine.feedback(2, [(2, COMPLETED)], [2])
    assert states(machine)[2] == NodeState.SKIPPED.value
    assert outcomes(machine) == [PlayOutcome("p", "failed", 1, 2, "a")]


def test_the_primary_failure_is_the_earliest_and_then_the_first_by_id() -> None:
    machine = agentic(node("a"), node("b"))
    machine.pop_ready(0)
    machine.feedback(1, [(2, FAILED), (1, REJECTED)], [1, 2])
    assert outcomes(machine)[0].failing_request_id == "a"


def test_a_lane_frees_when_nothing_of_its_play_runs() -> None:
    machine = agentic(node("a", play="A"), node("a2", play="A"), node("b", play="B"), lanes=1)
    assert [one.turn.name for one in machine.pop_ready(0)] == ["a", "a2"]
    machine.feedback(1, [(1, FAILED)], [1])
    assert machine.next_ready_time() is None
    machine.feedback(5, [(2, COMPLETED)], [2])
    assert machine.next_ready_time() == 5
    machine.pop_ready(5)
    machine.feedback(9, [(3, COMPLETED)], [3])
    assert [(one.status, one.settled_at_ms) for one in outcomes(machine)] == [("failed", 5), ("completed", 9)]


def test_lanes_begin_waiting_plays_in_play_order_whichever_lane_frees() -> None:
    rows = [node(name, play=name) for name in "abcd"]
    machine = agentic(*rows, lanes=2)
    assert [one.turn.name for one in machine.pop_ready(0)] == ["a", "b"]
    machine.feedback(3, [(2, COMPLETED)], [2])
    assert [one.turn.name for one in machine.pop_ready(3)] == ["c"]
    machine.feedback(4, [(3, COMPLETED)], [3])
    assert [one.turn.name for one in machine.pop_ready(4)] == ["d"]


def test_lanes_are_at_least_one() -> None:
    with refused("E_LANES"):
        agentic(node("a"), lanes=0)


def test_a_play_that_is_cut_is_incomplete() -> None:
    machine = agentic(node("a"), node("b"), node("c", play="q", start=50))
    machine.pop_ready(0)
    machine.feedback(1, [(1, FAILED)], [1])
    assert outcomes(machine) == [
        PlayOutcome("p", "incomplete", 1, None, "a"),
        PlayOutcome("q", "incomplete", None),
    ]


@pytest.mark.parametrize(
    ("now", "terminals", "quiescent"),
    [
        (4, [(1, COMPLETED)], [1]),
        (6, [(9, COMPLETED)], []),
        (6, [(1, COMPLETED), (1, FAILED)], []),
        (6, [(1, COMPLETED)], [2]),
        (6, [], [1]),
        (6, [(1, "lost")], []),
    ],
)
def test_a_batch_that_is_refused_changes_nothing(now: float, terminals: list[tuple[int, str]], quiescent: list[int]) -> None:
    machine = agentic(node("a"), node("b"), node("c", ("a", "completion", 0)))
    machine.pop_ready(0)
    machine.feedback(5, [], [])
    before = (states(machine), dict(machine.in_flight), sorted(machine.entries()))
    with pytest.raises(DriverError):
        machine.feedback(now, terminals, quiescent)
    assert (states(machine), dict(machine.in_flight), sorted(machine.entries())) == before


def test_a_run_reports_its_plays() -> None:
    rows = [
        header(),
        node("a"),
        node("b", ("a", "completion", 3)),
        node("c", play="q", input_length=80, hash_ids=list(range(20))),
    ]
    result = replay(rows, format="agentic_mooncake", toy={"max_model_len": 64})
    assert [(play.play_id, play.status) for play in result.plays] == [("p", "completed"), ("q", "failed")]
    report = result.report
    assert (report["total_trajectories"], report["completed_trajectories"], report["incomplete_trajectories"]) == (2, 1, 1)
    first, second = result.rows[0], result.rows[1]
    assert second["arrival_time_ms"] == first["terminal_time_ms"] + 3
    assert report["mean_trajectory_e2e_latency_ms"] == second["terminal_time_ms"]
    assert [one["turn_index"] for one in result.rows] == [None] * 3
    assert first["session_id"] == "session of p"


def test_agentic_traces_have_their_own_arrivals() -> None:
    with refused("E_NO_CONCURRENCY"):
        replay([header(), node("a")], format="agentic_mooncake", mode={"concurrency": 1})
