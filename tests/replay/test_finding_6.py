"""Finding 6: how many sessions the tests for the end look at (replay specification 7.6)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from model.replay.run import ReplayResult
from tests.replay.support import Row, replay, row

SCAN = ("sparse-completion-scan",)
RIGHT: tuple[str, ...] = ()


def sparse(count: int, gap: float = 100) -> list[Row]:
    """One-turn sessions, each over before the next arrives."""
    return [row(number * gap, hash_ids=[number]) for number in range(count)]


def visits(result: ReplayResult) -> tuple[int, int]:
    """Sessions inspected, and tests that inspected any."""
    return result.costs["session_visits"], result.costs["drained_checks"]


@pytest.mark.parametrize("count", [1, 2, 3, 10, 100, 200, 400])
def test_visits_are_linear_in_sessions_and_quadratic_with_the_scan(count: int) -> None:
    assert visits(replay(sparse(count))) == (2 * count - 1, count)
    assert visits(replay(sparse(count), defects=SCAN)) == ((count * count + 3 * count - 2) // 2, count)


def test_twice_the_sessions_are_twice_the_visits() -> None:
    right = [visits(replay(sparse(count)))[0] for count in (100, 200, 400)]
    buggy = [visits(replay(sparse(count), defects=SCAN))[0] for count in (100, 200, 400)]
    assert buggy == [5149, 20299, 80599]
    assert right == [199, 399, 799]
    assert all(later <= 2.2 * earlier for earlier, later in pairwise(right))
    assert all(later >= 3.8 * earlier for earlier, later in pairwise(buggy))


@pytest.mark.parametrize(("defects", "expected"), [(RIGHT, 85), (SCAN, 247)])
def test_each_idle_telemetry_tick_tests_twice(defects: tuple[str, ...], expected: int) -> None:
    result = replay(sparse(4), defects=defects, telemetry_ms=7)
    assert result.costs["session_visits"] == expected


@pytest.mark.parametrize(
    ("turns", "sessions", "right", "buggy"),
    [(2, 3, 6, 9), (3, 4, 12, 24)],
)
def test_think_time_under_a_cap_of_one(turns: int, sessions: int, right: int, buggy: int) -> None:
    rows = []
    for number in range(sessions):
        rows.append(row(session_id=str(number), hash_ids=[number]))
        rows += [row(session_id=str(number), delay=50, hash_ids=[number]) for _ in range(turns - 1)]
    cap: dict[str, Any] = {"mode": {"concurrency": 1}}
    assert visits(replay(rows, **cap))[0] == right
    assert visits(replay(rows, defects=SCAN, **cap))[0] == buggy


@pytest.mark.parametrize("defects", [RIGHT, SCAN])
def test_a_burst_is_tested_once(defects: tuple[str, ...]) -> None:
    assert visits(replay([row(0, hash_ids=[number]) for number in range(6)], defects=defects)) == (6, 1)


@pytest.mark.parametrize("defects", [RIGHT, SCAN])
def test_arrivals_against_the_order_of_the_file_cost_the_same_either_way(defects: tuple[str, ...]) -> None:
    assert visits(replay(list(reversed(sparse(6))), defects=defects)) == (11, 6)


def test_no_test_but_the_last_looks_at_more_than_one_session() -> None:
    looked: list[int] = []

    def watch(observation: Any) -> None:
        if hasattr(observation, "visits"):
            looked.append(observation.visits)

    replay(sparse(10), observer=watch)
    assert looked == [1] * 9 + [10]


def test_the_scan_changes_nothing_but_its_cost() -> None:
    right, buggy = replay(sparse(10)), replay(sparse(10), defects=SCAN)
    assert right.report == buggy.report
    assert right.rows == buggy.rows


def test_events_inspected_stay_within_workers_and_ticks() -> None:
    result = replay(sparse(10), workers=3, telemetry_ms=7)
    tests = result.costs["drained_checks"] + result.report["passes"] * 4 + len(result.telemetry) * 3
    assert result.costs["events_inspected"] <= tests * (3 + 1)
