"""The conformance cases of replay specification 10, under their numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from model.config import EngineConfig
from model.replay.accept import AcceptLength
from model.replay.admission import FlatAdmission
from model.replay.collector import Collector, RequestRecord
from model.replay.config import ReplayConfig
from model.replay.driver import CANCELED, COMPLETED, FAILED
from model.replay.errors import DriverError, ReplayStuck
from model.replay.events import PassDone
from model.replay.flat import Sla, read_requests
from model.replay.loop import Limits, Loop, Ticks
from model.replay.run import run_replay
from model.replay.statistics import Sketch, mean_of, rank, summary
from tests.replay.support import (
    THREE_SESSIONS,
    TS,
    agentic,
    driver,
    names,
    node,
    refused,
    replay,
    row,
    trace,
    uid_of,
)
from tests.replay.toy import ToyEngine


def test_c01_a_row_is_a_session_with_interned_hashes_and_its_priorities() -> None:
    loaded = trace([row(123, input_length=8, output_length=4, hash_ids=[7, 8], priority=-3, strict_priority=7)])
    (session,) = loaded.sessions
    (turn,) = session.turns
    assert session.first_arrival_timestamp_ms == 123
    assert turn.hash_ids == (0, 1)
    assert (turn.priority, turn.strict_priority) == (-3, 7)


def test_c02_rows_of_one_session_are_its_turns() -> None:
    rows = [row(10, session_id="a"), row(session_id="a", delay=25, hash_ids=[1, 2], input_length=8), row(20, session_id="b")]
    loaded = trace(rows)
    assert [session.session_id for session in loaded.sessions] == ["a", "b"]
    assert loaded.sessions[0].turns[1].delay_after_previous_ms == 25
    assert loaded.sessions[0].turns[1].input_length == 8


def test_c03_an_absent_input_length_is_the_capacity_of_the_hashes() -> None:
    (session,) = trace([{"timestamp": 7, "output_length": 3, "hash_ids": [5, 6]}]).sessions
    assert session.turns[0].input_length == 8


def test_c04_a_plan_has_as_many_ids_as_output_tokens() -> None:
    with refused("E_PLAN_LEN", 1):
        trace([row(0, output_length=2, output_token_ids=[10])])


def test_c05_the_next_turn_is_ready_a_delay_after_the_end_of_the_last() -> None:
    machine = driver([row(0, session_id="a"), row(session_id="a", delay=10)], 4)
    assert names(machine.pop_ready(0)) == ["0.0"]
    assert machine.pop_ready(100) == []
    machine.terminal(uid_of(machine, 0), 5, COMPLETED)
    assert machine.next_ready_time() == 15
    assert machine.pop_ready(14) == []
    assert names(machine.pop_ready(15)) == ["0.1"]


def test_c06_next_ready_time_follows_pops_and_ends() -> None:
    machine = driver([row(10, session_id="a"), row(session_id="a", delay=5), row(20, session_id="b")], 4)
    seen = [machine.next_ready_time(), len(machine.pop_ready(10)), machine.next_ready_time()]
    machine.terminal(uid_of(machine, 0), 25, COMPLETED)
    seen += [machine.next_ready_time(), len(machine.pop_ready(20)), machine.next_ready_time()]
    assert seen == [10, 1, 20, 20, 1, 30]


def test_c07_a_delta_session_goes_on_with_its_history() -> None:
    rows = [
        row(10, session_id="a", output_length=2, hash_ids=[1, 2]),
        row(session_id="a", delay=5, input_length=2, output_length=3, hash_ids=[3]),
        row(12, session_id="b", hash_ids=[4, 5]),
    ]
    machine = driver(rows, 2, delta=True)
    assert machine.pop_ready(9) == []
    assert names(machine.pop_ready(10)) == ["0.0"]
    assert names(machine.pop_ready(12)) == ["1.0"]
    machine.terminal(uid_of(machine, 0), 20, COMPLETED)
    assert machine.pop_ready(24) == []
    (second,) = machine.pop_ready(25)
    assert (second.session, second.turn_index, second.arrival_ms) == (0, 1, 25)


def test_c08_a_cap_of_one_hands_out_one_turn() -> None:
    machine = driver(TS, cap=1)
    assert [len(machine.pop_ready(0)), len(machine.pop_ready(0))] == [1, 0]


def test_c09_a_session_keeps_its_place_through_its_think_time() -> None:
    machine = driver(TS, cap=1)
    assert names(machine.pop_ready(0)) == ["0.0"]
    machine.terminal(uid_of(machine, 0), 10, COMPLETED)
    assert machine.pop_ready(10) == []
    assert names(machine.pop_ready(15)) == ["0.1"]
    machine.terminal(uid_of(machine, 0), 20, COMPLETED)
    assert names(machine.pop_ready(20)) == ["1.0"]
    machine.terminal(uid_of(machine, 1), 30, COMPLETED)
    assert machine.is_drained()


def test_c10_the_next_session_begins_when_one_ends() -> None:
    machine = driver(THREE_SESSIONS, cap=2)
    assert names(machine.pop_ready(0)) == ["0.0", "1.0"]
    machine.terminal(uid_of(machine, 0), 10, COMPLETED)
    machine.terminal(uid_of(machine, 1), 10, COMPLETED)
    assert names(machine.pop_ready(10)) == ["2.0"]
    assert names(machine.pop_ready(15)) == ["0.1"]


def test_c11_a_canceled_session_makes_room_too() -> None:
    machine = driver(THREE_SESSIONS, cap=2)
    machine.pop_ready(0)
    machine.terminal(uid_of(machine, 0), 10, COMPLETED)
    machine.terminal(uid_of(machine, 1), 10, CANCELED)
    assert names(machine.pop_ready(10)) == ["2.0"]
    machine.terminal(uid_of(machine, 2), 12, COMPLETED)
    assert names(machine.pop_ready(15)) == ["0.1"]
    machine.terminal(uid_of(machine, 0), 20, COMPLETED)
    assert machine.is_drained()


def test_c12_nothing_is_next_while_the_cap_is_in_flight() -> None:
    machine = driver(TS, cap=1)
    machine.pop_ready(0)
    assert machine.next_ready_time() is None
    machine.terminal(uid_of(machine, 0), 10, COMPLETED)
    assert machine.next_ready_time() == 15


def test_c13_without_a_bound_all_sessions_begin_at_once() -> None:
    machine = driver(TS, cap=1 << 30)
    assert len(machine.pop_ready(0, 5)) == 2
    assert machine.next_ready_time() is None


def test_c14_canceling_what_has_ended_does_nothing() -> None:
    machine = driver(TS, cap=1)
    machine.pop_ready(0)
    uid = uid_of(machine, 0)
    machine.terminal(uid, 5, COMPLETED)
    machine.terminal(uid, 5, CANCELED)
    assert names(machine.pop_ready(10)) == ["0.1"]


def test_c15_a_canceled_turn_drops_those_behind_it() -> None:
    machine = driver(TS, cap=1)
    machine.pop_ready(0)
    machine.terminal(uid_of(machine, 0), 0, CANCELED)
    assert names(machine.pop_ready(0)) == ["1.0"]
    machine.terminal(uid_of(machine, 1), 1, COMPLETED)
    assert machine.is_drained()


def test_c16_ending_what_is_not_there_changes_nothing() -> None:
    machine = driver(TS, cap=1)
    machine.pop_ready(0)
    before = (sorted(machine.entries()), dict(machine.in_flight), [session.next_turn for session in machine.sessions])
    with pytest.raises(DriverError):
        machine.terminal(99, 1, COMPLETED)
    machine.terminal(99, 1, CANCELED)
    assert (sorted(machine.entries()), dict(machine.in_flight), [session.next_turn for session in machine.sessions]) == before


def test_c17_ties_go_by_position_in_the_file() -> None:
    machine = driver([row(10), row(1), row(1)], 4)
    assert [machine.pop_ready(math.inf, 1)[0].session for _ in range(3)] == [1, 2, 0]


def test_c18_a_node_starts_at_the_later_of_its_own_time_and_its_edges() -> None:
    machine = agentic(node("r1"), node("r2", ("r1", "completion", 5), start=12))
    machine.pop_ready(0)
    machine.feedback(10, [(1, COMPLETED)], [1])
    assert machine.next_ready_time() == 15


def test_c19_a_dispatch_edge_fires_within_the_pass_that_hands_out() -> None:
    machine = agentic(node("parent"), node("child", ("parent", "dispatch", 0)))
    assert [dispatch.turn.name for dispatch in machine.pop_ready(0)] == ["parent", "child"]


def test_c20_a_join_waits_for_its_last_edge() -> None:
    machine = agentic(node("a"), node("b"), node("join", ("a", "completion", 2), ("b", "completion", 2)))
    machine.pop_ready(0)
    machine.feedback(10, [(1, COMPLETED)], [1])
    assert machine.next_ready_time() is None
    machine.feedback(30, [(2, COMPLETED)], [2])
    assert machine.next_ready_time() == 32


def test_c21_a_play_behind_a_lane_keeps_its_own_gaps() -> None:
    rows = [
        node("a", play="A"),
        node("b", play="B", start=1000),
        node("child", ("b", "dispatch", 4.9), play="B", start=1005),
    ]
    machine = agentic(*rows, lanes=1)
    machine.pop_ready(0)
    assert machine.next_ready_time() is None
    machine.feedback(10, [(1, COMPLETED)], [1])
    assert machine.next_ready_time() == 10
    assert [dispatch.turn.name for dispatch in machine.pop_ready(10)] == ["b"]
    assert machine.next_ready_time() == 15


@pytest.mark.parametrize("defects", [(), ("sparse-completion-scan",)])
def test_c22_a_failed_play_is_drained_once_its_engine_is_through(defects: tuple[str, ...]) -> None:
    machine = agentic(node("root"), node("sibling", start=1_000_000), defects=defects)
    machine.pop_ready(0)
    machine.feedback(1, [(1, FAILED)])
    assert not machine.is_drained()
    machine.feedback(2, [], [1])
    assert machine.is_drained()
    assert machine.pop_ready(1_000_000) == []


def test_c22_a_heap_that_means_work_never_drains_the_failed_play() -> None:
    machine = agentic(node("root"), node("sibling", start=1_000_000), defects=["sparse-completion-scan:heap-means-work"])
    machine.pop_ready(0)
    machine.feedback(1, [(1, FAILED)])
    machine.feedback(2, [], [1])
    assert not machine.is_drained()


def flat(*arrivals: float) -> list[dict[str, Any]]:
    """Flat requests of one token each."""
    return [
        {"id": f"q{number}", "arrival_time_ms": arrival, "input_tokens": 1, "output_tokens": 1}
        for number, arrival in enumerate(arrivals)
    ]


def idle_loop(*arrivals: float) -> Loop:
    """A loop over flat requests that has no worker."""
    admission = FlatAdmission(read_requests(flat(*arrivals)))
    return Loop(admission, [], Collector(), lambda report: (0, 0), event_order="identity", ticks=Ticks(), limits=Limits())


@pytest.mark.parametrize(("arrival", "event", "expected"), [(1, 2, 1.0), (2, 1, 1.0), (3, None, 3.0), (None, 4, 4.0)])
def test_c23_the_next_instant_is_the_earlier_of_arrival_and_event(
    arrival: float | None, event: float | None, expected: float
) -> None:
    loop = idle_loop(*[] if arrival is None else [arrival])
    if event is not None:
        loop.events.push(event, PassDone(0, 0))
    assert loop.next_time() == expected


def test_c23_with_neither_arrival_nor_event_the_run_is_at_a_dead_end() -> None:
    with pytest.raises(ReplayStuck) as stuck:
        idle_loop().next_time()
    assert stuck.value.kind == "dead-end"


def test_c24_flat_requests_are_released_at_their_times() -> None:
    admission = FlatAdmission(read_requests(flat(1.0, 1.1, 2.0)))
    assert [arrival.name for arrival in admission.release(1.0, 0)] == ["q0"]
    assert [arrival.name for arrival in admission.release(1.1, 1)] == ["q1"]
    assert admission.next_time() == 2.0


def test_c25_capped_flat_requests_are_released_as_others_end_and_arrive_then() -> None:
    admission = FlatAdmission(read_requests(flat(0.0, 0.0)), 2)
    assert admission.release(5, 2) == []
    (released,) = admission.release(5, 1)
    assert released.arrival_ms == 5
    assert admission.next_time() is None


def record(arrival: float, tokens: list[float], **more: Any) -> RequestRecord:
    """A request that arrived and emitted at these times."""
    settings: dict[str, Any] = {"uid": 1, "name": "r", "session_id": None, "turn_index": None, "worker": 0, "input_length": 100}
    settings |= {"requested_output_length": len(tokens), "arrival_ms": arrival, "admissions": [(arrival, 0)]} | more
    return RequestRecord(times=list(tokens), **settings)


def reported(
    *records: tuple[RequestRecord, float], sla: Sla | None = None, worker_ms: float = 0, gpus: int = 1
) -> dict[str, Any]:
    """The report over completed requests, each with its end."""
    collector = Collector()
    for one, terminal in records:
        collector.arrived(one)
        collector.ended(one, terminal, COMPLETED)
    return collector.report(worker_ms=worker_ms, gpus_per_worker=gpus, sla=sla or Sla(), trajectories=None)


def test_c26_latencies_of_one_request() -> None:
    one = record(0, [50, 60, 75, 95], admissions=[(0, 30), (1, 20)])
    report = reported((one, 95))
    assert report["mean_ttft_ms"] == 50
    assert report["mean_ttst_ms"] == 10
    assert report["mean_e2e_latency_ms"] == 95
    assert report["mean_itl_ms"] == 15
    assert one.row()["reused_input_tokens"] == 30


def test_c27_a_request_without_output_counts_and_has_no_latency() -> None:
    one = record(0, [], input_length=32, admissions=[(5, 8)])
    report = reported((one, 25), worker_ms=25, gpus=4)
    assert report["completed_requests"] == 1
    assert report["duration_ms"] == 25
    assert report["num_ttft_samples"] == 0
    assert report["worker_seconds"] == 0.025
    assert report["gpu_hours"] == pytest.approx(0.1 / 3600, rel=1e-12)


def test_c28_reuse_is_a_share_of_the_input() -> None:
    report = reported((record(0, [50, 60], admissions=[(0, 20)]), 60))
    assert report["prefix_cache_reused_ratio"] == 0.2
    assert report["first_admission_prefix_cache_reused_ratio"] == 0.2


def test_c29_a_request_that_never_ends_is_in_no_summary() -> None:
    collector = Collector()
    collector.arrived(record(0, [25]))
    report = collector.report(worker_ms=25, gpus_per_worker=1, sla=Sla(), trajectories=None)
    assert report["num_requests"] == 1
    assert report["completed_requests"] == 0
    assert report["duration_ms"] == 0
    assert report["num_ttft_samples"] == 0


def test_c30_goodput_under_bounds_of_first_and_later_tokens() -> None:
    requests = [(record(0, [100, 150, 200]), 200.0), (record(0, [100, 120, 140]), 140.0), (record(0, [100]), 100.0)]
    report = reported(*requests, sla=Sla(ttft_ms=150, itl_ms=30))
    assert report["goodput_completed_requests"] == 2
    assert report["goodput_request_throughput_rps"] == 2 / 0.2
    assert report["goodput_output_throughput_tok_s"] == 4 / 0.2


def test_c31_a_bound_is_inclusive() -> None:
    sla = Sla(itl_ms=50)
    assert reported((record(0, [100, 150, 200]), 200), sla=sla)["goodput_completed_requests"] == 1
    assert reported((record(0, [100, 150, 201]), 201), sla=sla)["goodput_completed_requests"] == 0


def test_c32_goodput_under_an_end_to_end_bound() -> None:
    requests = [(record(0, [100, 200]), 200.0), (record(0, [60, 120]), 120.0)]
    assert reported(*requests, sla=Sla(e2e_ms=150))["goodput_completed_requests"] == 1


@pytest.mark.parametrize(("samples", "expected"), [([(3, 4), (0, 12)], 0.375), ([(0, 0), (2, 4)], 0.5)])
def test_c33_the_hit_rate_is_a_mean_over_prompts_with_a_block(samples: list[tuple[int, int]], expected: float) -> None:
    collector = Collector(windows=True)
    for overlap, blocks in samples:
        collector.hit(overlap, blocks)
    assert collector.drain_window(1).kv_hit_rate == expected


@pytest.mark.parametrize(("samples", "expected"), [([(6, 2), (2, 2)], 2.0), ([(4, 0), (0, 4)], None)])
def test_c34_a_sample_of_accept_length_with_a_zero_is_dropped(samples: list[tuple[int, int]], expected: float | None) -> None:
    accept, collector = AcceptLength(), Collector(windows=True)
    for sample in samples:
        accept.add(sample)
        collector.accepted(*sample)
    assert accept.mean == expected
    assert collector.drain_window(1).accept_length == expected


def test_c35_zero_is_a_sample_and_nan_is_none() -> None:
    sketch = Sketch()
    sketch.add([0.0, 10.0])
    assert sketch.summary()["mean"] == 5
    assert mean_of([0.0, 10.0]) == 5
    assert summary([0.0, 10.0])["mean"] == 5
    assert summary([math.nan])["mean"] == 0


def test_c36_percentiles_round_their_rank_half_away_from_zero() -> None:
    values = [0, 1, 1, 2.5, 4, 4, 7.25, 9.5, 15, 22, 22, 100]
    assert [rank(12, percent) for percent in (50, 75, 90, 95, 99)] == [6, 8, 10, 10, 11]
    found = summary(values)
    assert [found[name] for name in ("median", "p75", "p90", "p95", "p99")] == [7.25, 15, 22, 22, 100]
    assert found["mean"] == 15.6875


def test_c37_concurrent_sessions_of_growing_prompts_run_one_behind_the_other() -> None:
    synthetic: dict[str, Any] = {"sessions": 2, "turns": 3, "input": 8, "output": 2, "accumulates": True}
    synthetic["delays"] = {"law": "constant", "mean_ms": 5}
    config = ReplayConfig.from_json({"format": "synthetic", "synthetic": synthetic, "block_size": 4, "mode": {"concurrency": 1}})
    result = run_replay(config, EngineConfig("vllm", 4, 1000), engines=[ToyEngine()])
    assert [one["input_length"] for one in result.rows] == [8, 18, 28] * 2
    assert [one["session_id"] for one in result.rows] == ["session_0"] * 3 + ["session_1"] * 3
    assert result.report["completed_requests"] == 6
    assert result.rows[2]["terminal_time_ms"] <= result.rows[3]["arrival_time_ms"]


def test_c38_a_delta_row_arrives_a_delay_after_the_last_token_with_the_history_before_it() -> None:
    rows = [row(0, session_id="a", output_length=2), row(session_id="a", input_length=2, delay=5)]
    first, second = replay(rows, format="mooncake-delta").rows
    assert second["input_length"] == 8
    assert second["arrival_time_ms"] == first["last_token_ms"] + 5


def test_c39_applied_compute_prompts_grow_by_answer_and_tool_output() -> None:
    rows = [
        {
            "num_turns": 1,
            "input_prompt_length": 8,
            "assistant_response_length": [2],
            "tool_call_output_length": [3],
            "tool_call_latency": [0.005],
            "final_assistant_response_length": 1,
        }
    ]
    result = replay(rows, format="applied_compute_agentic", mode={"concurrency": 1})
    assert [one["input_length"] for one in result.rows] == [8, 13]


def test_c40_a_legacy_child_waits_for_delay_and_tool() -> None:
    rows = [
        {"request_id": "root", "input_length": 4, "output_length": 1, "hash_ids": [1]},
        {
            "request_id": "child",
            "input_length": 4,
            "output_length": 1,
            "hash_ids": [2],
            "wait_for": ["root"],
            "delay": 2,
            "tool_wait_ms": 3,
        },
    ]
    child, root = replay(rows, format="agentic_mooncake_legacy").rows
    assert (child["id"], root["id"]) == ("child", "root")
    assert child["arrival_time_ms"] == root["last_token_ms"] + 5


def test_c41_a_run_capped_before_its_first_arrival_does_nothing() -> None:
    requests = flat(10.0)
    result = replay(requests, format="flat", max_sim_time_ms=5, telemetry_ms=1)
    assert result.stopped == "time-cap"
    assert result.report["num_requests"] == 0
    assert result.report["duration_ms"] == 0
    assert [point.time_ms for point in result.telemetry] == [0]


def test_c42_flat_requests_go_by_arrival_and_ties_as_authored() -> None:
    requests = read_requests(flat(10, 1, 1))
    assert [request.id for request in requests] == ["q1", "q2", "q0"]
