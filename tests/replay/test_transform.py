"""Transformations of a trace (replay specification 2)."""

from __future__ import annotations

import pytest

from model.replay.agentic import load_agentic
from model.replay.reader import rows_of
from model.replay.trace import Trace
from model.replay.transform import (
    duplicate_hash_space,
    expand_hash_prefix_depth,
    normalise_graph,
    partition,
    rescale_ready_span,
    rescale_session_start_span,
    speed_up,
    speed_up_graph,
)
from tests.replay.support import header, node, refused, row, trace


def starts(loaded: Trace) -> list[float | None]:
    """First arrivals."""
    return [session.first_arrival_timestamp_ms for session in loaded.sessions]


def delays(loaded: Trace) -> list[float]:
    """Delays of turns behind the first."""
    return [turn.delay_after_previous_ms for session in loaded.sessions for turn in session.turns[1:]]


def two_sessions() -> Trace:
    """a at 10 with a delay of 20, b at 30."""
    return trace([row(10, session_id="a"), row(session_id="a", delay=20), row(30, session_id="b")])


def test_speed_up_divides_arrivals_and_delays_and_leaves_missing_ones() -> None:
    loaded = speed_up(trace([row(10, session_id="a"), row(session_id="a", delay=20), row()]), 4)
    assert starts(loaded) == [2.5, None]
    assert delays(loaded) == [5]


@pytest.mark.parametrize("ratio", [0, -2, float("inf"), float("nan")])
def test_speed_up_is_finite_and_positive(ratio: float) -> None:
    with refused("E_SPEEDUP"):
        speed_up(two_sessions(), ratio)


def test_ready_span_stretches_to_the_last_ready_time() -> None:
    loaded = rescale_ready_span(two_sessions(), 100)
    assert starts(loaded) == [0, 100]
    assert delays(loaded) == [100]


def test_ready_span_counts_a_missing_arrival_as_0_and_leaves_it_missing() -> None:
    loaded = rescale_ready_span(trace([row(), row(50)]), 100)
    assert starts(loaded) == [None, 100]


def test_ready_span_of_no_span_puts_all_at_0() -> None:
    assert starts(rescale_ready_span(trace([row(7), row(7)]), 100)) == [0, 0]


def test_ready_span_refuses_a_ratio_that_is_not_finite() -> None:
    with refused("E_BAD_TIME"):
        rescale_ready_span(trace([row(0), row(5e-324)]), 1e300)


def test_start_span_stretches_given_arrivals_alone() -> None:
    assert starts(rescale_session_start_span(trace([row(), row(10), row(20)]), 100)) == [None, 0, 100]
    assert starts(rescale_session_start_span(trace([row(10), row(10)]), 100)) == [0, 0]
    assert starts(rescale_session_start_span(trace([row()]), 100)) == [None]


def test_prefix_depth_expands_each_hash() -> None:
    loaded = expand_hash_prefix_depth(trace([row(0, hash_ids=list(range(9)), input_length=6)]), 3)
    (turn,) = loaded.sessions[0].turns
    assert turn.input_length == 18
    assert turn.hash_ids[21:27] == (21, 22, 23, 24, 25, 26)
    with refused("E_TOO_MANY_HASHES"):
        expand_hash_prefix_depth(trace([row(0, hash_ids=[1, 2, 3])]), 1 << 31)


def test_copies_share_no_hash_and_no_name() -> None:
    loaded = duplicate_hash_space(trace([row(0, hash_ids=[5, 6]), row(3, hash_ids=[6])]), 3)
    assert [session.turns[0].hash_ids for session in loaded.sessions] == [(0, 1), (1,), (2, 3), (3,), (4, 5), (5,)]
    names = [session.turns[0].name for session in loaded.sessions]
    assert len(set(names)) == 6
    assert [session.session_id for session in loaded.sessions[2:4]] == ["request_1#1", "request_2#1"]


def test_partition_deals_sessions_in_turn_or_at_random() -> None:
    loaded = trace([row(number) for number in range(7)])
    assert [starts(part) for part in partition(loaded, 3)] == [[0, 3, 6], [1, 4], [2, 5]]
    drawn = partition(loaded, 3, seed=1)
    assert sorted(start or 0 for part in drawn for start in starts(part)) == list(range(7))
    assert drawn == partition(loaded, 3, seed=1)


def test_factors_are_positive() -> None:
    with refused("E_SIZE"):
        partition(two_sessions(), 0)


def test_a_graph_is_shifted_and_sped_up_with_its_edges() -> None:
    rows = [header(), node("a", start=10), node("b", ("a", "completion", 8), start=30)]
    graph = speed_up_graph(normalise_graph(load_agentic(rows_of(rows))), 2)
    assert [one.not_before_ms for one in graph.nodes] == [0, 10]
    assert graph.nodes[1].dependencies[0].delay_ms == 4
