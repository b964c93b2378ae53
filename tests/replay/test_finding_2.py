"""Finding 2: a missing timestamp is an arrival at 0 (replay specification 7.2)."""

from __future__ import annotations

import math

import pytest

from model.replay.driver import Driver, TracePolicy
from model.replay.trace import Trace
from model.replay.transform import normalise_session_starts, speed_up
from tests.replay.support import refused, replay, row, trace

RIGHT: tuple[str, ...] = ()
EXPLICIT_ONLY = ("trace-missing-timestamp",)
NO_WRITEBACK = ("trace-missing-timestamp:no-writeback",)
Starts = list[float | None]


def starts_of(loaded: Trace) -> Starts:
    """First arrivals by session."""
    return [session.first_arrival_timestamp_ms for session in loaded.sessions]


def one_session_each(starts: Starts) -> Trace:
    """A trace with these first arrivals."""
    return trace([row(start, hash_ids=[number]) for number, start in enumerate(starts)])


def arrivals(starts: Starts, defects: tuple[str, ...], speedup: float = 1) -> list[float]:
    """Recorded arrivals by session, when the starts are driven."""
    loaded = speed_up(normalise_session_starts(one_session_each(starts), defects), speedup)
    machine = Driver(loaded, TracePolicy(starts_of(loaded)))
    popped = machine.pop_ready(math.inf)
    by_session = {dispatch.session: dispatch.arrival_ms for dispatch in popped}
    return [by_session[number] or 0.0 for number in range(len(starts))]


@pytest.mark.parametrize(
    ("starts", "right", "explicit_only", "no_writeback"),
    [
        ([None, 100], [0, 100], [0, 0], [0, 100]),
        ([50, None, 100], [50, 0, 100], [0, 0, 50], [50, 0, 100]),
        ([None, -50], [50, 0], [0, 0], [0, 0]),
        ([None, 0, 100], [0, 0, 100], [0, 0, 100], [0, 0, 100]),
        ([100, 250], [0, 150], [0, 150], [0, 150]),
        ([None, None], [0, 0], [0, 0], [0, 0]),
        ([None], [0], [0], [0]),
        ([100], [0], [0], [0]),
    ],
)
def test_arrivals_of_missing_and_explicit_timestamps(
    starts: Starts, right: list[float], explicit_only: list[float], no_writeback: list[float]
) -> None:
    assert arrivals(starts, RIGHT) == right
    assert arrivals(starts, EXPLICIT_ONLY) == explicit_only
    assert arrivals(starts, NO_WRITEBACK) == no_writeback


@pytest.mark.parametrize(("defects", "expected"), [(RIGHT, [0, 50]), (EXPLICIT_ONLY, [0, 0])])
def test_speed_up_comes_after_the_origin(defects: tuple[str, ...], expected: list[float]) -> None:
    assert arrivals([None, 100], defects, speedup=2) == expected


@pytest.mark.parametrize(
    ("defects", "normalised", "at_once", "next_ready"),
    [(RIGHT, [0, 100], [0], 100), (EXPLICIT_ONLY, [None, 0], [0, 1], None)],
)
def test_the_smallest_trace_step_by_step(
    defects: tuple[str, ...], normalised: Starts, at_once: list[int], next_ready: float | None
) -> None:
    loaded = trace([row(hash_ids=[1]), row(100, hash_ids=[2])])
    assert starts_of(loaded) == [None, 100]
    loaded = normalise_session_starts(loaded, defects)
    assert starts_of(loaded) == normalised
    machine = Driver(loaded, TracePolicy(starts_of(loaded)))
    assert [dispatch.session for dispatch in machine.pop_ready(0)] == at_once
    assert machine.next_ready_time() == next_ready


@pytest.mark.parametrize(
    ("defects", "ends", "duration", "rate"),
    [(RIGHT, [10, 110], 110, 18.181818181818183), (EXPLICIT_ONLY, [10, 10], 10, 200)],
)
def test_a_collapsed_gap_makes_the_run_look_ten_times_as_fast(
    defects: tuple[str, ...], ends: list[float], duration: float, rate: float
) -> None:
    result = replay([row(hash_ids=[1]), row(100, hash_ids=[2])], defects=defects)
    assert [one["terminal_time_ms"] for one in result.rows] == ends
    assert result.report["duration_ms"] == duration
    assert result.report["request_throughput_rps"] == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize("defects", [RIGHT, EXPLICIT_ONLY, NO_WRITEBACK])
def test_concurrency_mode_looks_at_no_timestamp(defects: tuple[str, ...]) -> None:
    rows = [row(hash_ids=[1]), row(100, hash_ids=[2])]
    result = replay(rows, defects=defects, mode={"concurrency": 1})
    assert list(result.arrivals.values()) == [0, 10]


def test_delays_do_not_move_with_the_origin() -> None:
    rows = [row(70, session_id="a"), row(session_id="a", delay=25), row(session_id="b")]
    loaded = normalise_session_starts(trace(rows))
    assert starts_of(loaded) == [70, 0]
    assert loaded.sessions[0].turns[1].delay_after_previous_ms == 25


def test_a_timestamp_behind_a_turn_without_one_stays_refused() -> None:
    with refused("E_NO_PREV_TS", 2):
        trace([row(session_id="a"), row(5, session_id="a")])
