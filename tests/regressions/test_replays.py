"""Replays under all invariants: as cases, and through watched engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import regressions.runner
from model.actions import Step, Submit
from model.build import build_engine
from model.case import read_case
from model.config import EngineConfig
from model.errors import BadInput
from model.events import StepReport
from model.replay.config import ReplayConfig
from model.replay.loop import Cut
from model.requests import Prompt, RequestSpec
from regressions.files import load_case
from regressions.replays import LASSO, WatchedEngine, repeated_reports, watch_replay
from regressions.runner import CaseResult, run_case

ROWS: list[dict[str, Any]] = [
    {"timestamp": 0, "input_length": 8, "output_length": 3, "hash_ids": [1, 2]},
    {"timestamp": 2, "input_length": 8, "output_length": 2, "hash_ids": [1, 3]},
    {"timestamp": 50, "input_length": 4, "output_length": 1, "hash_ids": [1]},
]
FINDING_9 = ["speculative-terminal-block"]


def engine(**options: Any) -> dict[str, Any]:
    return {"scheduler": "vllm", "block_size": 4, "num_blocks": 8, "max_num_batched_tokens": 16, **options}


def run(replay: dict[str, Any], expect: dict[str, Any] | None = None, **options: Any) -> CaseResult:
    document = {"infercheck": 1, "engine": engine(**options), "replay": {"block_size": 4, **replay}, "expect": expect or {}}
    return run_case(read_case(document))


def test_a_replay_runs_as_a_case() -> None:
    result = run({"format": "mooncake", "rows": ROWS})
    assert (result.verdict, result.met, result.violations) == ("holds", True, ())
    assert {name: one["status"] for name, one in result.final["requests"].items()} == dict.fromkeys(
        ("r1", "r2", "r3"), "finished"
    )
    assert {name: one["emitted"] for name, one in result.final["requests"].items()} == {"r1": 3, "r2": 2, "r3": 1}
    assert result.final["active_blocks"] == 0
    assert result.report["arrivals_ms"] == {"r1": 0.0, "r2": 2.0, "r3": 50.0}
    assert result.report["passes"] == len(result.passes) == sum(moment.report.is_pass for moment in result.moments)
    assert {"handoff_scan_visits", "session_visits", "radix_capacity"} <= set(result.costs)
    assert result.exercised["deterministic"] == len(result.moments)
    assert list(result.to_json())[:3] == ["verdict", "met", "violations"]


def test_an_expectation_of_a_replay_is_compared() -> None:
    met = {"report": {"arrivals_ms": {"r3": 50}, "completed_count": 3}, "final": {"requests": {"r2": {"emitted": 2}}}}
    assert run({"rows": ROWS}, met).met
    unmet = run({"rows": ROWS}, {"report": {"completed_count": 4}})
    assert unmet.mismatches == ("report.completed_count: expected 4, found 3",)
    assert not unmet.met


def test_a_replay_that_livelocks_ends_at_the_lasso() -> None:
    rows = [{"timestamp": 0, "input_length": 8, "output_length": 1, "hash_ids": [1, 2]}]
    expect = {"violates": ["no-livelock", "no-needless-preemption"]}
    options: dict[str, Any] = {"num_blocks": 2, "speculation": {"draft_tokens": 1}}
    result = run({"rows": rows}, expect, **options, defects=FINDING_9)
    assert (result.verdict, result.met) == ("violated", True)
    assert result.lasso is not None
    assert (result.lasso.kind, result.lasso.stem, result.lasso.cycle) == ("preemption-cycle", 2, 1)
    assert len(result.moments) == 3
    assert run({"rows": rows}, **options).met


def test_the_replay_around_the_engines_is_judged_too() -> None:
    rows = [{**ROWS[0], "session_id": "late", "timestamp": 20}, {**ROWS[1], "session_id": "early", "timestamp": None}]
    result = run({"rows": rows}, {"violates": ["arrival-gaps"]}, defects=["trace-missing-timestamp"])
    assert result.met
    assert {broken.invariant for broken in result.violations} == {"arrival-gaps"}
    right = run({"rows": rows})
    assert right.met
    assert right.exercised["arrival-gaps"] > 0


def test_a_replay_that_is_cut_off_is_unknown() -> None:
    result = run({"rows": ROWS, "max_passes": 2})
    assert (result.verdict, result.reason, result.met) == ("unknown", "pass-limit", False)
    assert len(result.passes) == 2


def test_every_worker_of_a_replay_is_judged() -> None:
    result = run({"rows": ROWS, "workers": 2})
    assert result.met
    assert sorted(result.final["requests"]) == ["r1", "r2", "r3"]
    assert result.final["free_blocks"] + result.final["cached_blocks"] == 16
    # Each worker numbers its own actions.
    assert [moment.number for moment in result.moments].count(1) == 2


def test_a_replay_that_differs_when_run_again_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(config: ReplayConfig, engine: EngineConfig, workers: int) -> list[list[StepReport]]:
        (reports,) = repeated_reports(config, engine, workers)
        reports[2].end_ns += 1
        return [reports]

    monkeypatch.setattr(regressions.runner, "repeated_reports", other)
    result = run({"rows": ROWS})
    assert [(broken.invariant, broken.at) for broken in result.violations] == [("deterministic", 3)]


def test_a_trace_is_found_beside_its_case(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
    document = {"infercheck": 1, "engine": engine(), "replay": {"file": "trace.jsonl", "block_size": 4}}
    (tmp_path / "case.json").write_text(json.dumps(document))
    assert run_case(load_case(tmp_path / "case.json")).report["completed_count"] == 3


UNUSABLE = [
    ({"rows": []}, "E_EMPTY"),
    ({"rows": [{}]}, "line 1, replay.hash_ids"),
    ({"rows": ROWS, "speedup": "fast"}, "replay.speedup"),
    ({"rows": ROWS, "pace": 2}, "replay.pace"),
    ({"format": "csv", "rows": ROWS}, "replay.format"),
    ({"file": "nowhere.jsonl"}, "replay.file"),
]


@pytest.mark.parametrize(("replay", "where"), UNUSABLE, ids=[where for _, where in UNUSABLE])
def test_a_trace_that_cannot_be_used_is_bad_input(replay: dict[str, Any], where: str) -> None:
    with pytest.raises(BadInput) as error:
        run(replay)
    assert where in str(error.value)


def spec(id_: str, prompt: int, output: int) -> Submit:
    return Submit(RequestSpec(id_, Prompt.of_streams([(id_, prompt)]), output))


def test_a_watched_engine_is_the_engine_it_watches() -> None:
    config = EngineConfig.from_json(engine(speculation={"draft_tokens": 1}))
    plain, watched = build_engine(config), WatchedEngine(build_engine(config))
    for action in (spec("a", 6, 3), Step({"a": 1}), spec("b", 6, 2), Step()):
        assert watched.apply(action) == plain.apply(action)
        assert watched.view() == plain.view()
        assert (watched.busy, watched.speculating()) == (plain.busy, plain.speculating())
    assert watched.freeze() == plain.freeze()
    assert watched.thaw(watched.freeze()).freeze() == plain.freeze()
    assert (watched.configs(), watched.views(blocks=False)) == (plain.configs(), plain.views(blocks=False))
    for request in (spec("c", 32, 1).request, spec("d", 33, 2).request):
        assert watched.servable(request) == plain.servable(request)


def test_a_watched_engine_that_comes_to_a_lasso_ends_the_run() -> None:
    config = EngineConfig.from_json(engine(num_blocks=2, speculation={"draft_tokens": 1}, defects=FINDING_9))
    watched = WatchedEngine(build_engine(config))
    watched.apply(spec("a", 8, 1))
    watched.apply(Step())
    with pytest.raises(Cut, match=LASSO):
        watched.apply(Step())


def test_of_a_long_replay_the_actions_before_the_first_violation_are_kept() -> None:
    rows = [{"timestamp": 0, "input_length": 7, "output_length": 3, "hash_ids": [2 * n, 2 * n + 1]} for n in range(30)]
    config = ReplayConfig.from_json({"rows": rows, "block_size": 4, "mode": {"concurrency": 2}})
    options: dict[str, Any] = {"num_blocks": 8, "speculation": {"draft_tokens": 1, "accepted": 1}}
    right = watch_replay(config, EngineConfig.from_json(engine(**options)), keep=5)
    assert (len(right.engines[0].moments), right.violations) == (5, [])
    wrong = watch_replay(config, EngineConfig.from_json(engine(**options, defects=FINDING_9)), keep=5)
    moments = wrong.engines[0].moments
    assert len(wrong.violations) > len(moments[-1].violations) > 0
    assert not any(moment.violations for moment in list(moments)[:-1])
    assert moments[-1].number == wrong.violations[0].at
