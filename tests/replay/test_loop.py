"""The event loop (replay specification 5): instants, order at equal times, ticks, caps, interruptions, dead ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from model.actions import Step
from model.config import EngineConfig
from model.engine import Engine
from model.errors import BadInput
from model.events import StepReport
from model.replay.config import ReplayConfig
from model.replay.driver import CANCELED, COMPLETED, FAILED
from model.replay.errors import DriverError
from model.replay.events import (
    EventQueue,
    InterruptionDue,
    PassDone,
    Scaling,
    Telemetry,
    TransferDone,
    WorkerReady,
)
from model.replay.loop import RETRIES_MAX, Progress
from model.replay.observe import Advanced, Arrived, Ended, EngineActed, EngineWillAct, Finished, PassEnded, Settled
from model.replay.order import order_key
from model.replay.placement import RoundRobin
from model.replay.run import run_replay
from tests.replay.support import Row, driver, header, node, replay, row, uid_of
from tests.replay.toy import ToyEngine


def test_times_are_in_total_order() -> None:
    mixed = [float("nan"), 1.0, 0.0, float("inf"), 5e-324, -0.0, -1.0]
    ordered = [repr(time) for time in sorted(mixed, key=order_key)]
    assert ordered == ["-1.0", "-0.0", "0.0", "5e-324", "1.0", "inf", "nan"]


def test_equal_times_go_by_identity() -> None:
    queue = EventQueue("identity")
    ready, transfer = WorkerReady(3, "decode"), TransferDone(2)
    decode, prefill = PassDone(4, 9, "decode"), PassDone(2, 3, "prefill")
    for event in (Scaling(), Telemetry(), transfer, ready, decode, prefill):
        queue.push(10, event)
    assert [queue.pop() for _ in range(6)] == [prefill, decode, ready, transfer, Telemetry(), Scaling()]


def test_equal_times_go_by_insertion_but_for_ticks() -> None:
    queue = EventQueue("insertion")
    first, second, third = TransferDone(2), PassDone(4, 9), InterruptionDue(0)
    for event in (Scaling(), Telemetry(), first, second, third):
        queue.push(10, event)
    assert [queue.pop() for _ in range(5)] == [first, second, third, Telemetry(), Scaling()]


def test_only_ticks_and_workers_that_become_ready_are_idle_events() -> None:
    queue = EventQueue()
    for event in (Telemetry(), Scaling(), WorkerReady(0)):
        queue.push(1, event)
    assert queue.only_idle()
    queue.push(2, PassDone(0, 1))
    assert not queue.only_idle()
    assert queue.next_time_of_work(Telemetry, Scaling, WorkerReady) == 2


def test_round_robin_keeps_its_position_and_a_rank_counter_a_worker() -> None:
    placement = RoundRobin(dp_size=2)
    assert [placement.place((1, 2, 3)) for _ in range(4)] == [(1, 0), (2, 0), (3, 0), (1, 1)]
    assert placement.place((1, 2)) == (2, 1)


def test_a_given_rank_leaves_the_rank_counter_alone_and_a_failure_everything() -> None:
    placement = RoundRobin(dp_size=2)
    assert placement.place((1,), rank=1) == (1, 1)
    with pytest.raises(BadInput):
        placement.place((1,), rank=2)
    with pytest.raises(BadInput):
        placement.place(())
    assert placement.place((1,)) == (1, 0)


def test_requests_are_dealt_to_workers_in_turn() -> None:
    rows = [row(number, hash_ids=[number]) for number in range(5)]
    assert [one["worker"] for one in replay(rows, workers=3).rows] == [0, 1, 2, 0, 1]


def test_an_end_comes_before_an_arrival_at_the_same_time() -> None:
    rows = [row(0, session_id="a"), row(session_id="a", delay=0), row(10, session_id="b")]
    seen: list[tuple[float, str]] = []

    def watch(observation: Any) -> None:
        if isinstance(observation, Arrived | Ended):
            seen.append((observation.now_ms, f"{type(observation).__name__} {observation.name}"))

    replay(rows, observer=watch)
    assert seen[:4] == [(0, "Arrived r1"), (10, "Ended r1"), (10, "Arrived r2"), (10, "Arrived r3")]


def test_a_pass_that_starts_sees_all_that_has_arrived() -> None:
    rows = [row(10, hash_ids=[1]), row(10, hash_ids=[2]), row(10, hash_ids=[3])]
    assert [one["first_admit_ms"] for one in replay(rows).rows] == [0, 0, 0]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_order_of_events_at_equal_times_does_not_matter(workers: int) -> None:
    rows = [row(10 * (number % 3), hash_ids=[number % 2], output_length=number % 4) for number in range(12)]
    results = [replay(rows, engine={}, workers=workers, event_order=order) for order in ("identity", "insertion")]
    assert results[0].report == results[1].report
    assert results[0].rows == results[1].rows


def test_a_refusal_on_an_idle_worker_takes_no_time_and_the_next_turn_follows_in_the_same_instant() -> None:
    rows = [row(5, session_id="a", input_length=80, hash_ids=list(range(20))), row(session_id="a", delay=0)]
    first, second = replay(rows, toy={"max_model_len": 64}).rows
    assert (first["terminal_status"], first["terminal_time_ms"]) == ("rejected", 0)
    assert second["arrival_time_ms"] == 0


def test_a_turn_freed_by_a_refusal_counts_in_the_next_window() -> None:
    long = {"input_length": 80, "hash_ids": list(range(20))}
    rows = [row(0), row(20, session_id="a", **long), row(session_id="a", delay=0)]
    result = replay(rows, toy={"max_model_len": 64}, window_ms=20)
    assert [(window.end_ms, window.offered) for window in result.windows] == [(20, 2)]
    assert result.arrivals["r3"] == 20


def test_ticks_stop_when_the_run_is_done() -> None:
    result = replay([row(0)], window_ms=5, telemetry_ms=5)
    assert [window.end_ms for window in result.windows] == [5]
    assert [point.time_ms for point in result.telemetry] == [0, 5]


@pytest.mark.parametrize(
    "ticks", [{"telemetry_ms": 3}, {"window_ms": 7}, {"telemetry_ms": 5, "window_ms": 5, "first_window_ms": 0}]
)
def test_ticks_change_no_result(ticks: dict[str, Any]) -> None:
    rows = [row(15 * number, output_length=number, hash_ids=[number]) for number in range(6)]
    plain, ticking = replay(rows), replay(rows, **ticks)
    assert ticking.rows == plain.rows
    assert ticking.report == plain.report


def test_a_tick_interval_lost_to_rounding_still_ends() -> None:
    result = replay([row(0), row(1e17)], telemetry_ms=1, max_sim_time_ms=20)
    assert result.stopped == "time-cap"


@pytest.mark.parametrize(
    ("cap", "rows", "duration"),
    [(0, 0, 0), (10, 1, 10), (109, 1, 10), (110, 2, 110)],
)
def test_events_at_the_cap_happen_and_what_is_unfinished_has_no_row(cap: float, rows: int, duration: float) -> None:
    result = replay([row(0), row(100)], max_sim_time_ms=cap)
    assert len(result.rows) == rows
    assert result.report["duration_ms"] == duration
    assert result.complete == (cap == 110)


def test_worker_seconds_end_with_the_last_instant() -> None:
    result = replay([row(0), row(100)], max_sim_time_ms=50, workers=2, gpus_per_worker=4)
    assert result.report["worker_seconds"] == 0.02
    assert result.report["gpu_hours"] == pytest.approx(0.08 / 3600)


def test_a_bound_on_passes_cuts_the_run() -> None:
    result = replay([row(0, output_length=10)], max_passes=3)
    assert (result.stopped, result.complete, result.report["passes"]) == ("pass-limit", False, 3)
    assert result.report["unfinished_count"] == 1


def test_a_run_interrupted_from_the_keyboard_gives_what_it_has() -> None:
    def watch(observation: Any) -> None:
        if isinstance(observation, PassEnded) and observation.now_ms >= 110:
            raise KeyboardInterrupt

    result = replay([row(0), row(100), row(200)], observer=watch)
    assert (result.stopped, result.complete) == ("interrupted", False)
    assert len(result.rows) == 2
    assert list(result.arrivals) == ["r1", "r2"]


class Broken(ToyEngine):
    """Does nothing in a pass, for ever."""

    def _step(self, report: StepReport) -> None:
        report.is_pass = True


def broken_run(**more: Any) -> Any:
    """A run on an engine that does nothing."""
    engines: list[Engine] = [Broken()]
    return run_replay(ReplayConfig(rows=[row(0)], block_size=4, **more), EngineConfig("vllm", 4, 10), engines=engines)


def test_an_engine_that_does_nothing_at_one_instant_is_a_livelock() -> None:
    result = broken_run()
    assert (result.stopped, result.complete) == ("livelock", False)
    assert result.report["passes"] == RETRIES_MAX + 1
    assert "worker 0" in result.message


def test_a_heap_that_means_work_ends_in_a_dead_end() -> None:
    long: Row = {"input_length": 80, "hash_ids": list(range(20))}
    rows = [header(), node("root", **long), node("sibling", start=1_000_000)]
    toy = {"max_model_len": 64}
    assert replay(rows, format="agentic_mooncake", toy=toy).complete
    ticks: list[Row] = [{}, {"telemetry_ms": 10}, {"window_ms": 10}]
    for more in ticks:
        result = replay(rows, format="agentic_mooncake", toy=toy, defects=["sparse-completion-scan:heap-means-work"], **more)
        assert result.stopped == "dead-end"


@pytest.mark.parametrize("status", [CANCELED, FAILED])
@pytest.mark.parametrize(("after", "emitted"), [(5, 0), (11, 1), (13, 2)])
def test_an_interrupted_request_ends_at_once_with_the_tokens_it_has(status: str, after: float, emitted: int) -> None:
    rows = [row(0, session_id="a", output_length=5), row(session_id="a", delay=0), row(0, session_id="b", hash_ids=[2])]
    interruptions = [{"request": "r1", "after_ms": after, "status": status}]
    result = replay(rows, interruptions=interruptions)
    first = next(one for one in result.rows if one["id"] == "r1")
    assert (first["terminal_status"], first["terminal_time_ms"], first["output_length"]) == (status, after, emitted)
    assert "r2" not in result.arrivals
    assert result.complete
    assert result.report["completed_requests"] == 1


def test_an_interruption_after_the_end_does_nothing() -> None:
    interruptions = [{"request": "r1", "after_ms": 500}]
    assert replay([row(0)], interruptions=interruptions).report == replay([row(0)]).report


def test_a_play_settles_when_the_pass_of_its_canceled_request_ends() -> None:
    rows = [header(), node("root"), node("sibling", start=1_000_000)]
    result = replay(rows, format="agentic_mooncake", interruptions=[{"request": "root", "after_ms": 1, "status": FAILED}])
    (play,) = result.plays
    assert (play.status, play.causal_terminal_ms, play.settled_at_ms) == ("failed", 1, 10)
    assert result.complete


def test_an_observer_sees_each_action_around_itself() -> None:
    seen: list[Any] = []
    replay([row(0, output_length=2)], observer=seen.append)
    acts = [one for one in seen if isinstance(one, EngineWillAct | EngineActed)]
    assert [type(one) for one in acts] == [EngineWillAct, EngineActed] * (len(acts) // 2)
    assert sum(isinstance(one, EngineActed) and isinstance(one.report.action, Step) for one in acts) == 2
    assert [(one.from_ms, one.to_ms) for one in seen if isinstance(one, Advanced)] == [(0, 10), (10, 12)]
    assert isinstance(seen[-1], Finished)


def test_a_view_shows_sessions_heap_and_flight() -> None:
    views = []

    def watch(observation: Any) -> None:
        if isinstance(observation, Settled):
            views.append(observation.view())

    rows = [row(0, session_id="a"), row(session_id="a", delay=5), row(40, session_id="b")]
    replay(rows, format="mooncake-delta", observer=watch)
    first, second = views[0], views[1]
    assert first.in_flight == {1: 0}
    assert first.heap == ((40, 1, 0, False),)
    assert [session.history_capacity for session in first.sessions] == [10, 5]
    assert second.heap == ((15, 0, 1, False), (40, 1, 0, False))
    assert [(session.next_turn, session.next_ready_ms) for session in second.sessions] == [(1, 15), (0, 40)]


def test_progress_is_told_every_few_thousand_passes() -> None:
    told: list[Progress] = []
    config = ReplayConfig(rows=[row(0, output_length=9000)], block_size=4)
    run_replay(config, EngineConfig("vllm", 4, 10), progress=told.append, engines=[ToyEngine()])
    assert [point.passes for point in told] == [4096, 8192]
    assert told[-1].tokens == 8191


@pytest.mark.parametrize(
    "call",
    [
        lambda machine: machine.on_output_token(99, 0),
        lambda machine: machine.on_output_token(1, 12345),
        lambda machine: machine.terminal(99, 1, FAILED),
        lambda machine: machine.terminal(1, 1, "gone"),
        lambda machine: machine.feedback(1, [(1, COMPLETED), (1, COMPLETED)]),
    ],
)
def test_a_driver_call_that_is_refused_changes_nothing(call: Callable[[Any], None]) -> None:
    machine = driver([row(0, output_token_ids=[7])], 4, delta=True)
    machine.pop_ready(0)
    before = (dict(machine.in_flight), machine.sessions[0].next_turn, machine.costs)
    with pytest.raises(DriverError):
        call(machine)
    assert (dict(machine.in_flight), machine.sessions[0].next_turn, machine.costs) == before


def test_a_turn_emits_no_more_than_was_planned_and_is_not_rejected_after_a_token() -> None:
    machine = driver([row(0, output_token_ids=[7])], 4, delta=True)
    machine.pop_ready(0)
    machine.on_output_token(1, 7)
    with pytest.raises(DriverError, match="more than"):
        machine.on_output_token(1, 7)
    with pytest.raises(DriverError, match="rejected after"):
        machine.terminal(1, 1, "rejected")


def test_prompts_that_were_handed_out_are_not_kept() -> None:
    machine = driver([row(0, session_id="a", hash_ids=[1, 2]), row(session_id="a", delay=0, hash_ids=[1])], 4)
    assert machine.costs.prompt_ids_held == 3
    machine.pop_ready(0)
    assert machine.costs.prompt_ids_held == 1
    machine.terminal(uid_of(machine, 0), 1, CANCELED)
    assert machine.costs.prompt_ids_held == 0


def test_a_driver_wants_an_engine_block_and_prompts_within_their_hashes() -> None:
    with pytest.raises(BadInput):
        driver([row(0)], 4, engine_block_size=0)


def test_tiers_are_refused() -> None:
    config = EngineConfig.from_json({"scheduler": "vllm", "block_size": 4, "num_blocks": 8, "tiers": {"host_blocks": 4}})
    with pytest.raises(BadInput, match="tiers"):
        run_replay(ReplayConfig(rows=[row(0)], block_size=4), config)


@pytest.mark.parametrize(("rows", "expected"), [([row(0)], (None, None)), ([row(0, session_id="s")] * 2, ("s", 0))])
def test_sessions_are_named_where_one_has_turns(rows: list[Row], expected: tuple[str | None, int | None]) -> None:
    first = replay(rows).rows[0]
    assert (first["session_id"], first["turn_index"]) == expected


def test_sessions_are_named_in_concurrency_mode() -> None:
    first = replay([row(0)], mode={"concurrency": 2}).rows[0]
    assert (first["session_id"], first["turn_index"]) == ("request_1", 0)
