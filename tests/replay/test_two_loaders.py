"""The native loader against the materializer (replay specification 1.10, 1.11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from model.replay.flat import FlatTrace
from model.replay.materializer import materialize
from model.replay.reader import rows_of
from model.replay.trace import Trace
from model.replay.transform import normalise_session_starts, speed_up
from tests.replay.support import Row, refused, row, trace

MISSING = ("trace-missing-timestamp",)


def native_arrivals(rows: Sequence[Row], defects: tuple[str, ...] = (), speedup: float = 1) -> list[float]:
    """Arrivals by row, by the native loader and driver."""
    loaded = speed_up(normalise_session_starts(trace(rows), defects), speedup)
    return [session.first_arrival_timestamp_ms or 0.0 for session in loaded.sessions]


def materialized(rows: Sequence[Row], speedup: float = 1) -> FlatTrace:
    """Rows as flat requests."""
    return materialize(rows_of(rows), 4, speedup=speedup)


def materialized_arrivals(rows: Sequence[Row], speedup: float = 1) -> list[float]:
    """Arrivals by row, by the materializer."""
    by_id = {request.id: request.arrival_ms for request in materialized(rows, speedup).requests_in_order}
    return [by_id[f"trace-{line}"] or 0.0 for line in range(1, len(rows) + 1)]


@pytest.mark.parametrize(
    ("rows", "expected", "with_defect"),
    [
        ([row(), row(100)], [0, 100], [0, 0]),
        ([row(), row(-50)], [50, 0], [0, 0]),
        ([row(50), row(), row(100)], [50, 0, 100], [0, 0, 50]),
        ([row(100), row(250)], [0, 150], [0, 150]),
        ([row(), row()], [0, 0], [0, 0]),
        ([row(30), row(10), row(10)], [20, 0, 0], [20, 0, 0]),
    ],
)
def test_arrivals_agree_but_for_the_defect(rows: list[Row], expected: list[float], with_defect: list[float]) -> None:
    assert materialized_arrivals(rows) == expected
    assert native_arrivals(rows) == expected
    assert native_arrivals(rows, MISSING) == with_defect


def test_arrivals_agree_under_speed_up() -> None:
    rows = [row(), row(100), row(7)]
    assert materialized_arrivals(rows, 3) == native_arrivals(rows, speedup=3) == [0, 100 / 3, 7 / 3]


def test_equal_arrivals_keep_the_order_of_the_file() -> None:
    rows = [row(5), row(0), row(5), row(0)]
    assert [request.id for request in materialized(rows).requests_in_order] == ["trace-2", "trace-4", "trace-1", "trace-3"]


def _length(loaded: Trace | FlatTrace) -> int:
    if isinstance(loaded, FlatTrace):
        return loaded.requests_in_order[0].input_tokens
    return loaded.sessions[0].turns[0].input_length


@pytest.mark.parametrize(
    ("rows", "by_native", "by_materializer"),
    [
        pytest.param([row(0, input_length=9)], "E_CAPACITY", 4, id="input beyond capacity"),
        pytest.param([row(0, output_length=0)], 4, "E_NO_OUTPUT", id="no output"),
        pytest.param([{"timestamp": 0, "hash_ids": [], "output_length": 1}], 0, "E_NO_HASHES", id="no hashes, no length"),
        pytest.param([row(0, surprise=1)], 4, "E_UNKNOWN_FIELD", id="unknown field"),
    ],
)
def test_what_one_loader_refuses_the_other_takes(rows: list[Row], by_native: int | str, by_materializer: int | str) -> None:
    loaders: list[tuple[Callable[[], Trace | FlatTrace], int | str]] = [
        (lambda: trace(rows), by_native),
        (lambda: materialized(rows), by_materializer),
    ]
    for load, expected in loaders:
        if isinstance(expected, int):
            assert _length(load()) == expected
        else:
            with refused(expected, 1):
                load()


def test_turns_of_one_session_are_the_native_loaders_alone() -> None:
    rows = [row(0, session_id="a"), row(5, session_id="a")]
    assert trace(rows).requests == 2
    with refused("E_UNSUPPORTED", 2):
        materialized(rows)


@pytest.mark.parametrize(
    ("rows", "code", "line"),
    [
        ([row(0), row(0, created_time=0)], "E_PARSE", 2),
        ([row(0), row(0, delay=5)], "E_UNSUPPORTED", 2),
        ([row(0, output_token_ids=[1])], "E_UNSUPPORTED", 1),
        ([row(0, request_id="x"), row(0, request_id="x")], "E_DUPLICATE_ID", 2),
        ([row(0), {"timestamp": 0, "output_length": 1}], "E_NO_HASHES", 2),
        ([row(0, input_length=0)], "E_ZERO_INPUT", 1),
        ([{"timestamp": 0, "hash_ids": [1]}], "E_NO_OUTPUT", 1),
        ([], "E_EMPTY", None),
    ],
)
def test_the_materializer_refuses(rows: list[Any], code: str, line: int | None) -> None:
    with refused(code, line):
        materialized(rows)


@pytest.mark.parametrize("speedup", [0, -1, float("inf"), float("nan")])
def test_the_materializer_wants_a_finite_positive_speed_up(speedup: float) -> None:
    with refused("E_SPEEDUP"):
        materialized([row(0)], speedup)


def test_generated_ids_make_way_for_authored_ones() -> None:
    rows = [row(0), row(0, request_id="trace-1"), row(0), row(0, request_id="trace-3"), row(0, request_id="trace-3-2")]
    ids = [request.id for request in materialized(rows).requests_in_order]
    assert ids == ["trace-1-2", "trace-1", "trace-3-3", "trace-3", "trace-3-2"]


def test_a_materialized_prompt_is_the_native_one() -> None:
    (request,) = materialized([row(0, hash_ids=[9, 9], input_length=6)]).requests_in_order
    assert list(request.prompt().tokens()) == [0] * 6
