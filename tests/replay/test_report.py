"""Statistics, windows and the report (replay specification 6), and the configuration of a replay."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from model.config import EngineConfig
from model.errors import BadInput
from model.replay.collector import Window, merge
from model.replay.config import ReplayConfig
from model.replay.driver import planned_token
from model.replay.run import load_workload, run_replay
from model.replay.statistics import ACCURACY, Sketch, rank, summary
from model.replay.timeline import LIMIT, Timeline, TimelinePoint
from model.replay.trace import Turn
from model.requests import Prompt, RequestSpec
from tests.replay.support import refused, replay, row

METRICS = ("ttft_ms", "ttst_ms", "tpot_ms", "itl_ms", "e2e_latency_ms", "output_token_throughput_per_user")
STATISTICS = ("mean", "min", "max", "median", "p75", "p90", "p95", "p99", "std")


@pytest.mark.parametrize(
    ("count", "percent", "expected"), [(1, 99, 0), (2, 50, 1), (3, 50, 1), (4, 50, 2), (5, 75, 3), (11, 95, 10), (101, 99, 99)]
)
def test_a_rank_rounds_half_away_from_zero(count: int, percent: float, expected: int) -> None:
    assert rank(count, percent) == expected


def test_a_sketch_is_exact_but_for_percentiles_and_those_are_within_its_accuracy() -> None:
    values = [0.0, 0.0, *(1.5**power for power in range(40))]
    sketch = Sketch()
    for start in range(0, len(values), 5):
        sketch.add(values[start : start + 5])
    exact, found = summary(values), sketch.summary()
    for name in ("mean", "min", "max", "std"):
        assert found[name] == pytest.approx(exact[name], rel=1e-12)
    for name in ("median", "p75", "p90", "p95", "p99"):
        assert found[name] == pytest.approx(exact[name], rel=ACCURACY * 1.01)


def test_a_sketch_returns_a_single_sample_and_zeros_as_they_are() -> None:
    one, zeros = Sketch(), Sketch()
    one.add([5.0])
    zeros.add([0.0, 0.0, 7.0])
    assert one.percentile(50) == 5.0
    assert zeros.percentile(50) == 0.0
    assert Sketch().summary() == dict.fromkeys(("mean", "min", "max", "median", "p75", "p90", "p95", "p99", "std"), 0.0)


def test_a_sketch_has_the_bucket_values_of_its_form() -> None:
    sketch = Sketch()
    sketch.add([5.0, 5.0, 15.0])
    gamma = 1.001 / 0.999
    for percent, value in ((50, 5.0), (99, 15.0)):
        bucket = math.ceil(math.log(value) / math.log(gamma))
        assert sketch.percentile(percent) == pytest.approx(2 * gamma**bucket / (gamma + 1), rel=1e-12)


def test_a_report_has_every_statistic_of_every_metric() -> None:
    report = replay([row(0, output_length=3)]).report
    assert all(f"{statistic}_{metric}" in report for metric in METRICS for statistic in STATISTICS)
    assert {"num_ttft_samples", "num_tpot_samples", "num_e2e_latency_samples"} <= set(report)
    assert not any(key.startswith(("goodput", "total_trajectories")) for key in report)


def test_a_report_of_nothing_is_zero() -> None:
    report = replay([row(0)], max_sim_time_ms=0).report
    assert report["num_requests"] == 1
    assert report["completed_requests"] == 0
    assert all(report[f"{statistic}_{metric}"] == 0 for metric in METRICS for statistic in STATISTICS)


def test_pooled_gaps_count_zeros_and_rates_do_not() -> None:
    report = replay([row(0, output_length=4)], toy={"burst": 3}).report
    assert report["mean_itl_ms"] == pytest.approx(2 / 3)
    assert report["min_itl_ms"] == 0
    assert report["mean_output_token_throughput_per_user"] == 500


def test_throughputs_divide_by_the_last_end() -> None:
    report = replay([row(100, output_length=2), row(200, input_length=3)]).report
    assert report["duration_ms"] == 110
    assert report["input_throughput_tok_s"] == pytest.approx(7 / 0.11)
    assert report["output_throughput_tok_s"] == pytest.approx(3 / 0.11)
    assert report["total_throughput_tok_s"] == pytest.approx(10 / 0.11)


def test_goodput_is_in_the_report_only_under_a_bound() -> None:
    report = replay([row(0), row(0)], sla={"ttft_ms": 10}).report
    assert report["goodput_completed_requests"] == 2


def test_every_request_ends_in_one_of_the_counts() -> None:
    rows = [row(0), row(1, input_length=80, hash_ids=list(range(20))), row(2), row(900)]
    interruptions = [{"request": "r3", "after_ms": 1}]
    report = replay(rows, toy={"max_model_len": 64}, interruptions=interruptions, max_sim_time_ms=905).report
    counts = [report[f"{name}_count"] for name in ("completed", "rejected", "canceled", "failed", "unfinished")]
    assert counts == [1, 1, 1, 0, 1]
    assert report["num_requests"] == 4


def test_committed_prefill_counts_passes_that_ended() -> None:
    rows = [row(0, hash_ids=[1, 2], input_length=8), row(20, hash_ids=[1, 2], input_length=8)]
    assert replay(rows, engine={}).report["committed_prefill_tokens"] == 8 + 4
    assert replay(rows, engine={}, max_sim_time_ms=5).report["committed_prefill_tokens"] == 0


def test_windows_add_up_to_the_whole() -> None:
    rows = [row(9 * number, output_length=number % 4, hash_ids=[number % 3]) for number in range(20)]
    windows = replay(rows, engine={}, window_ms=25).windows
    whole = replay(rows, engine={}, window_ms=1e6, first_window_ms=0).windows[0]
    merged = merge(windows)
    assert merged.offered == 20
    assert whole.offered == 1
    assert merged.shape_count == len([one for one in replay(rows, engine={}).rows if one["terminal_time_ms"] <= merged.end_ms])
    assert all(later.start_ms == earlier.end_ms for earlier, later in pairwise(windows))


def test_a_merge_weighs_means_by_their_counts() -> None:
    merged = merge([Window(offered=1, shape_count=1, isl=10), Window(offered=2, shape_count=3, isl=2), Window()])
    assert (merged.offered, merged.shape_count, merged.isl) == (3, 4, 4)
    assert merge([]) == Window()
    assert merge([Window(accept_tokens=6, accept_forwards=2), Window(accept_tokens=2, accept_forwards=2)]).accept_length == 2


def test_requests_without_output_have_lengths_and_no_latency_in_a_window() -> None:
    (window,) = replay([row(0, output_length=0), row(0, output_length=1), row(40)], window_ms=20, first_window_ms=20).windows[:1]
    assert (window.shape_count, window.ttft_count, window.itl_count) == (2, 1, 0)
    assert window.osl == 0.5


def test_a_timeline_is_bounded_and_spans_the_run() -> None:
    rows = [row(7 * number) for number in range(2000)]
    timeline = replay(rows).timeline
    assert LIMIT / 4 <= len(timeline) <= LIMIT
    assert timeline[0].time_ms == 0
    assert timeline[-1].time_ms >= 0.9 * 7 * 1999
    assert all(later.arrived >= earlier.arrived for earlier, later in pairwise(timeline))


def test_a_timeline_without_a_known_span_stays_bounded() -> None:
    timeline = Timeline(0)
    for time in range(100_000):
        if timeline.due(time):
            timeline.add(TimelinePoint(time, 0, 0, 0, 0, 0, 0, 0))
    assert LIMIT / 4 <= len(timeline.points) <= LIMIT


def test_the_driver_plans_the_tokens_that_a_request_emits() -> None:
    for plan in (None, (5, 6, 7)):
        turn = Turn("name", 1, 3, (0,), plan)
        spec = RequestSpec("name", Prompt(((0, 1),)), 3, plan)
        assert [planned_token(turn, at) for at in range(3)] == [spec.output_token(at) for at in range(3)]


def test_outputs_and_rows_can_be_cut() -> None:
    rows = [row(0, output_length=9, output_token_ids=list(range(9))), row(0, output_length=1), row(0)]
    result = replay(rows, max_rows=2, max_output_tokens=2)
    assert [one["output_length"] for one in result.rows] == [2, 1]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"rows": []}, None),
        ({"rows": [], "file": "x"}, "replay.rows"),
        ({}, "replay.rows"),
        ({"rows": 5}, "replay.rows"),
        ({"rows": [], "format": "csv"}, "replay.format"),
        ({"rows": [], "mode": "burst"}, "replay.mode"),
        ({"rows": [], "mode": {"concurrency": 0}}, "replay.mode"),
        ({"rows": [], "workers": 0}, "replay.workers"),
        ({"rows": [], "workers": True}, "replay.workers"),
        ({"rows": [], "max_sim_time_ms": -1}, "replay.max_sim_time_ms"),
        ({"rows": [], "max_sim_time_ms": math.inf}, "replay.max_sim_time_ms"),
        ({"rows": [], "max_sim_time_ms": -0.0}, None),
        ({"rows": [], "sla": {"itl_ms": 0}}, "replay.sla.itl_ms"),
        ({"rows": [], "lanes": 1}, "replay.lanes"),
        ({"rows": [], "accept_length": "mean"}, "replay.accept_length"),
        ({"rows": [], "event_order": "random"}, "replay.event_order"),
        ({"rows": [], "surprise": 1}, "replay.surprise"),
        ({"rows": [], "interruptions": [{"request": "a"}]}, "replay.interruptions[0].after_ms"),
        ({"rows": [], "interruptions": [{"request": "a", "after_ms": 1, "status": "late"}]}, "replay.interruptions[0].status"),
        ({"rows": [], "telemetry_ms": 0}, "replay.telemetry_ms"),
        ({"rows": [], "block_size": 0}, "replay.block_size"),
        ({"rows": [], "speedup": "fast"}, "replay.speedup"),
        ({"format": "synthetic", "rows": []}, "replay.synthetic"),
        ({"format": "synthetic", "synthetic": {"sessions": 1, "input": 1, "output": 1}}, None),
        ({"format": "synthetic", "synthetic": {"input": 1, "output": 1}}, "replay.synthetic.sessions"),
        ({"format": "synthetic", "synthetic": {"sessions": 0, "input": 1, "output": 1}}, "replay.synthetic.sessions"),
        ({"format": "synthetic", "synthetic": {"sessions": 1, "input": {"mean": 0}, "output": 1}}, "replay.synthetic.input.mean"),
    ],
)
def test_a_configuration_is_checked_field_by_field(given: dict[str, Any], path: str | None) -> None:
    if path is None:
        assert ReplayConfig.from_json(given)
        return
    with pytest.raises(BadInput) as caught:
        ReplayConfig.from_json(given)
    assert caught.value.path == path


@pytest.mark.parametrize(
    "given",
    [
        {"format": "mooncake", "rows": [row(0)], "block_size": 4},
        {"format": "mooncake-delta", "file": "t.jsonl", "speedup": 2.5, "workers": 3, "mode": {"concurrency": 2}},
        {"format": "agentic_mooncake", "rows": [{}], "lanes": 2, "sla": {"e2e_ms": 9.0}, "window_ms": 5.0, "strict": True},
        {"format": "mooncake", "rows": [], "interruptions": [{"request": "a", "after_ms": 3.0, "status": "failed"}]},
        {
            "format": "synthetic",
            "synthetic": {
                "block_size": 8,
                "sessions": 2,
                "input": {"mean": 8, "std": 2},
                "output": {"mean": 2},
                "arrivals": {"law": "poisson", "rate_per_s": 3},
                "delays": {"law": "constant", "mean_ms": 5},
            },
            "block_size": 4,
        },
    ],
)
def test_a_configuration_is_written_as_it_was_read(given: dict[str, Any]) -> None:
    config = ReplayConfig.from_json(given)
    assert config.to_json() == given
    assert ReplayConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize("speedup", [0, -1])
def test_a_speed_up_matters_in_trace_mode_alone(speedup: float) -> None:
    with refused("E_SPEEDUP"):
        replay([row(0)], speedup=speedup)
    assert replay([row(0)], speedup=speedup, mode={"concurrency": 1}).complete


def test_concurrency_mode_leaves_delays_alone() -> None:
    rows = [row(session_id="a"), row(session_id="a", delay=50)]
    result = replay(rows, speedup=2, mode={"concurrency": 1})
    assert result.arrivals["r2"] == 60


def test_nothing_is_admitted_of_a_trace_that_breaks_a_rule() -> None:
    engine = EngineConfig("vllm", 4, 10)
    acted: list[Any] = []
    config = ReplayConfig(rows=[row(0), row(5), row(0, input_length=9)], block_size=4)
    with refused("E_CAPACITY", 3):
        run_replay(config, engine, acted.append)
    assert acted == []


def test_a_strict_replay_demands_first_arrivals() -> None:
    rows = [row(5), row()]
    assert replay(rows).complete
    with refused("E_NO_FIRST_TS", 2):
        replay(rows, strict=True)


def test_a_turn_without_input_is_refused_before_the_run() -> None:
    with refused("E_ZERO_INPUT", 2):
        replay([row(0), row(0, input_length=0)])


def test_a_workload_can_be_read_once_and_replayed_often() -> None:
    config = ReplayConfig(rows=[row(0), row(50)], block_size=4)
    workload = load_workload(config)
    engine = EngineConfig("vllm", 4, 10)
    results = [run_replay(config, engine, workload=workload) for _ in range(2)]
    assert results[0] == results[1]
