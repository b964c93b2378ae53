"""The metamorphic relations M1 to M4 of replay specification 9, over drawn traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import EngineConfig
from model.replay.config import TRACE_MODE, ReplayConfig
from model.replay.events import ORDERS
from model.replay.materializer import materialize
from model.replay.mooncake import load_mooncake
from model.replay.reader import rows_of
from model.replay.run import ReplayResult, run_replay
from model.replay.transform import normalise_session_starts, speed_up
from strategies.replay_fuzz import judge_replay
from strategies.traces import BLOCK_SIZE, STARTS, drawn_rows, mooncake_rows, replay_configs, replay_engines, replays

FEW = settings(max_examples=60, deadline=None)
Rows = list[dict[str, Any]]
WORKER_TIME = ("worker_seconds", "gpu_hours")
"""Sums over time: a tick only changes how they are rounded."""


def traces() -> st.SearchStrategy[Rows]:
    """Rows of sessions, some with timestamps."""
    return drawn_rows().map(mooncake_rows)


def first_rows(rows: Rows) -> list[int]:
    """Positions of the first row of each session."""
    seen: set[str] = set()
    found = []
    for number, row in enumerate(rows):
        session = row.get("session_id", f"request_{number + 1}")
        if session not in seen:
            found.append(number)
        seen.add(session)
    return found


def run(rows: Sequence[dict[str, Any]], engine: EngineConfig, **config: Any) -> ReplayResult:
    """A replay of rows."""
    return run_replay(ReplayConfig(rows=list(rows), block_size=BLOCK_SIZE, **config), engine)


@FEW
@given(traces(), replay_engines(), st.sampled_from((1.0, 2.0)))
def test_m1_a_missing_timestamp_is_an_explicit_0(rows: Rows, engine: EngineConfig, speedup: float) -> None:
    explicit = [dict(row) for row in rows]
    for number in first_rows(rows):
        explicit[number].setdefault("timestamp", 0)
    plain, other = run(rows, engine, speedup=speedup), run(explicit, engine, speedup=speedup)
    assert plain.arrivals == other.arrivals
    assert plain.report == other.report


@FEW
@given(traces(), replay_engines(), st.sampled_from((-256.0, -1.0, 64.0, 1024.0)))
def test_m1_a_shift_of_all_timestamps_changes_nothing(rows: Rows, engine: EngineConfig, shift: float) -> None:
    explicit = [dict(row) for row in rows]
    for number in first_rows(rows):
        explicit[number].setdefault("timestamp", 0)
    moved = [{**row, "timestamp": row["timestamp"] + shift} if "timestamp" in row else row for row in explicit]
    assert run(explicit, engine).report == run(moved, engine).report


@FEW
@given(st.lists(st.integers(-100, 100), min_size=1, max_size=6, unique=True), st.randoms(use_true_random=False), replay_engines())
def test_m1_the_order_of_rows_with_distinct_times_does_not_matter(times: list[int], random: Any, engine: EngineConfig) -> None:
    rows = [
        {"request_id": f"at {time}", "timestamp": time, "input_length": 2, "output_length": 1, "hash_ids": [time + 100]}
        for time in times
    ]
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert run(rows, engine).arrivals == run(shuffled, engine).arrivals


@FEW
@given(traces(), replay_engines(), st.sampled_from(STARTS))
def test_m2_a_request_of_one_token_leaves_the_accept_length_alone(rows: Rows, engine: EngineConfig, start: float | None) -> None:
    extra: dict[str, Any] = {"input_length": 2, "output_length": 1, "hash_ids": [999]}
    if start is not None:
        extra["timestamp"] = start
    plain, other = run(rows, engine).report["accept_length"], run([*rows, extra], engine).report["accept_length"]
    assert plain == other


@FEW
@given(replays(), st.sampled_from((1.0, 7.0, 30.0)), st.sampled_from((None, 9.0)))
def test_m3_ticks_change_no_result(drawn: tuple[ReplayConfig, EngineConfig], telemetry: float, window: float | None) -> None:
    config, engine = drawn
    plain = run_replay(evolve(config, window_ms=None), engine)
    ticking = run_replay(evolve(config, telemetry_ms=telemetry, window_ms=window), engine)
    assert ticking.rows == plain.rows
    for key, value in plain.report.items():
        if key in WORKER_TIME:
            assert ticking.report[key] == pytest.approx(value, rel=1e-12)
        else:
            assert ticking.report[key] == value


@FEW
@given(traces(), st.sampled_from((2.0, 3.0, 0.7)))
def test_m4_a_speed_up_and_its_inverse_cancel(rows: Rows, ratio: float) -> None:
    loaded = normalise_session_starts(load_mooncake(rows_of(rows), BLOCK_SIZE))
    back = speed_up(speed_up(loaded, ratio), 1 / ratio)
    for one, other in zip(loaded.sessions, back.sessions, strict=True):
        assert other.first_arrival_timestamp_ms == pytest.approx(one.first_arrival_timestamp_ms)
        for turn, turned in zip(one.turns, other.turns, strict=True):
            assert turned.delay_after_previous_ms == pytest.approx(turn.delay_after_previous_ms)


@FEW
@given(traces(), st.sampled_from((1.0, 2.0, 3.0)))
def test_m4_both_loaders_agree_on_single_turns(rows: Rows, ratio: float) -> None:
    single = [{**{key: row[key] for key in row if key not in ("session_id", "delay")}, "output_length": 1} for row in rows]
    native = speed_up(normalise_session_starts(load_mooncake(rows_of(single), BLOCK_SIZE)), ratio)
    flat = materialize(rows_of(single), BLOCK_SIZE, speedup=ratio)
    by_line = {request.id: request.arrival_ms for request in flat.requests_in_order}
    for line, session in enumerate(native.sessions, 1):
        assert by_line[f"trace-{line}"] == (session.first_arrival_timestamp_ms or 0.0)


@FEW
@given(replay_configs(), replay_engines())
def test_the_order_of_events_at_equal_times_changes_nothing(config: ReplayConfig, engine: EngineConfig) -> None:
    plain = evolve(config, interruptions=())
    results = [run_replay(evolve(plain, event_order=order), engine) for order in ORDERS]
    assert results[0].report == results[1].report
    assert results[0].rows == results[1].rows


@FEW
@given(replays())
def test_right_replays_break_no_invariant(drawn: tuple[ReplayConfig, EngineConfig]) -> None:
    assert judge_replay(*drawn).violations == []


@FEW
@given(replay_configs(), replay_engines())
def test_trace_mode_runs_whatever_is_drawn(config: ReplayConfig, engine: EngineConfig) -> None:
    result = run_replay(config, engine)
    assert result.complete
    assert result.report["unfinished_count"] == 0
    if config.mode == TRACE_MODE:
        assert min(result.arrivals.values()) >= 0
