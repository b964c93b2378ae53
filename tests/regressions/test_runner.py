"""The runner: verdicts, drains, what is compared with an expectation, and the result as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

import regressions.runner
from invariants.determinism import judge_repetition
from model.actions import Step
from model.case import Case, read_case
from model.config import EngineConfig
from model.engine import Engine
from model.errors import BadInput
from model.events import StepReport
from model.paged.engine import PagedEngine
from regressions.runner import CaseResult, run_case

FINDING_9 = "speculative-terminal-block"
ONE_REQUEST: list[dict[str, Any]] = [{"submit": "r", "prompt": [["A", 8]], "output": 1}]


def case(actions: Sequence[dict[str, Any]], expect: dict[str, Any] | None = None, **engine: Any) -> Case:
    """A case over a cache of two blocks of four."""
    fields = {"scheduler": "vllm", "block_size": 4, "num_blocks": 2, **engine}
    return read_case({"infercheck": 1, "engine": fields, "actions": list(actions), "expect": expect or {}})


def run(actions: Sequence[dict[str, Any]], expect: dict[str, Any] | None = None, **engine: Any) -> CaseResult:
    return run_case(case(actions, expect, **engine))


def finding_9(expect: dict[str, Any] | None = None, drain: int = 50) -> CaseResult:
    """Finding 9 in its smallest geometry."""
    return run([*ONE_REQUEST, {"drain": drain}], expect, speculation={"draft_tokens": 1}, defects=[FINDING_9])


RESULT_KEYS = [
    "verdict",
    "met",
    "violations",
    "lasso",
    "passes",
    "final",
    "costs",
    "report",
    "exercised",
    "not_observable",
]


def test_a_result_has_exactly_the_fields_of_the_format() -> None:
    for result in (run([*ONE_REQUEST, {"drain": 5}]), finding_9()):
        written = json.loads(json.dumps(result.to_json()))
        assert list(written) == RESULT_KEYS
        assert list(written["costs"]) == [
            "handoff_scan_visits",
            "session_visits",
            "ended_history_capacity",
            "radix_capacity",
            "radix_stored",
        ]
        assert list(written["final"]) == ["requests", "active_blocks", "cached_blocks", "free_blocks", "preemptions"]
        for one in written["passes"]:
            assert list(one) == [
                "scheduled",
                "emitted",
                "preempted",
                "finished",
                "rejected",
                "events",
                "start_ms",
                "end_ms",
            ]


def test_a_run_in_which_nothing_breaks_holds() -> None:
    result = run([*ONE_REQUEST, {"drain": 5}])
    assert (result.verdict, result.met, result.violations, result.lasso) == ("holds", True, (), None)
    assert result.passes == [
        {
            "scheduled": {"r": 8},
            "emitted": {"r": 1},
            "preempted": [],
            "finished": ["r"],
            "rejected": [],
            "events": [{"stored": ["h1", "h2"], "parent": None}],
            "start_ms": 0,
            "end_ms": 8,
        }
    ]
    assert result.final == {
        "requests": {"r": {"status": "finished", "emitted": 1, "computed": 8, "cached_tokens": 0, "preemptions": 0}},
        "active_blocks": 0,
        "cached_blocks": 2,
        "free_blocks": 0,
        "preemptions": 0,
    }


def test_a_violation_is_numbered_by_the_action_that_broke_it() -> None:
    result = finding_9()
    assert result.verdict == "violated"
    assert [(broken.invariant, broken.at) for broken in result.violations] == [
        ("no-needless-preemption", 2),
        ("no-needless-preemption", 3),
        ("bounded-preemption", 3),
        ("no-livelock", 3),
        ("bounded-preemption", 3),
        ("servable-finishes", 3),
    ]
    assert [len(moment.violations) for moment in result.moments] == [0, 1, 5]


def test_a_drain_ends_at_the_first_lasso_and_so_does_the_run() -> None:
    actions: list[dict[str, Any]] = [*ONE_REQUEST, {"drain": 50}, {"submit": "late", "prompt": [1], "output": 1}, {"drain": 50}]
    result = run(actions, speculation={"draft_tokens": 1}, defects=[FINDING_9])
    assert result.to_json()["lasso"] == {"kind": "preemption-cycle", "stem": 2, "cycle": 1}
    assert [moment.number for moment in result.moments] == [1, 2, 3]
    assert list(result.final["requests"]) == ["r"]


def test_passes_asked_for_one_by_one_end_at_the_first_lasso_too() -> None:
    result = run([*ONE_REQUEST, {"step": 9}], speculation={"draft_tokens": 1}, defects=[FINDING_9])
    assert len(result.moments) == 3


def test_the_violation_of_a_step_does_not_end_the_run() -> None:
    actions: list[dict[str, Any]] = [
        {"submit": "p", "prompt": [["A", 8]], "output": 1},
        {"submit": "q", "prompt": [["B", 8]], "output": 1},
        {"drain": 9},
    ]
    result = run(actions, num_blocks=4, speculation={"draft_tokens": 1}, defects=[FINDING_9])
    assert [(broken.invariant, broken.at) for broken in result.violations] == [("no-needless-preemption", 3)]
    assert [request["status"] for request in result.final["requests"].values()] == ["finished", "finished"]
    assert len(result.passes) == 2


def test_a_drain_that_runs_out_with_work_left_is_unknown_and_never_met() -> None:
    result = run([{"submit": "r", "prompt": [1], "output": 5}, {"drain": 4}])
    assert (result.verdict, result.met) == ("unknown", False)
    assert result.reason == "work is left after a drain of 4 passes"
    assert result.mismatches == ()
    assert run([{"submit": "r", "prompt": [1], "output": 5}, {"drain": 5}]).verdict == "holds"


def test_a_drain_that_runs_out_stays_unknown_whatever_follows() -> None:
    result = run([{"submit": "r", "prompt": [1], "output": 5}, {"drain": 4}, {"drain": 1}])
    assert result.final["requests"]["r"]["status"] == "finished"
    assert (result.verdict, result.met) == ("unknown", False)


def test_a_violation_outweighs_a_drain_that_ran_out() -> None:
    result = finding_9({"violates": ["no-needless-preemption"]}, drain=1)
    assert (result.verdict, result.met) == ("violated", True)


def test_a_drain_of_an_idle_engine_does_nothing() -> None:
    assert run([{"drain": 5}]).moments == ()


def test_final_tells_of_every_request_ever_submitted() -> None:
    actions: list[dict[str, Any]] = [
        {"submit": "done", "prompt": [["S", 9]], "output": 2},
        {"submit": "hit", "prompt": [["S", 9]], "output": 1},
        {"submit": "long", "prompt": [["L", 40]], "output": 1},
        {"submit": "gone", "prompt": [1, 2, 3], "output": 9},
        {"step": 2},
        {"cancel": "gone"},
        {"submit": "runs", "prompt": [["S", 4]], "output": 9},
        {"step": 1},
        {"submit": "waits", "prompt": [7], "output": 1},
    ]
    result = run(actions, num_blocks=8)
    assert result.final["requests"] == {
        "done": {"status": "finished", "emitted": 2, "computed": 10, "cached_tokens": 0, "preemptions": 0},
        "hit": {"status": "finished", "emitted": 1, "computed": 9, "cached_tokens": 8, "preemptions": 0},
        "long": {"status": "rejected", "emitted": 0, "computed": 0, "cached_tokens": 0, "preemptions": 0},
        "gone": {"status": "cancelled", "emitted": 2, "computed": 4, "cached_tokens": 0, "preemptions": 0},
        "runs": {"status": "running", "emitted": 1, "computed": 4, "cached_tokens": 0, "preemptions": 0},
        "waits": {"status": "waiting", "emitted": 0, "computed": 0, "cached_tokens": 0, "preemptions": 0},
    }


def test_final_counts_what_a_burst_computes_and_who_was_preempted() -> None:
    actions: list[dict[str, Any]] = [
        {"submit": "p", "prompt": [["A", 8]], "output": 1},
        {"submit": "q", "prompt": [["B", 4]], "output": 2},
        {"drain": 9},
    ]
    result = run(actions, num_blocks=3, speculation={"draft_tokens": 1, "accepted": 1})
    assert result.final["requests"] == {
        "p": {"status": "finished", "emitted": 1, "computed": 8, "cached_tokens": 0, "preemptions": 0},
        "q": {"status": "finished", "emitted": 2, "computed": 5, "cached_tokens": 0, "preemptions": 1},
    }
    assert result.final["preemptions"] == 1


def test_the_report_tells_arrivals_passes_and_the_accept_length() -> None:
    actions: list[dict[str, Any]] = [
        {"submit": "a", "prompt": [1], "output": 7},
        {"step": 1, "accepted": {"a": 0}},
        {"advance": 2.5},
        {"submit": "b", "prompt": [2], "output": 0},
        {"step": 1, "accepted": {"a": 2}},
        {"drain": 9},
    ]
    result = run(actions, speculation={"draft_tokens": 2, "accepted": 1})
    assert result.report == {"accept_length": 7 / 3, "arrivals_ms": {"a": 0, "b": 4.5}, "passes": 4}


def test_without_a_decode_forward_there_is_no_accept_length() -> None:
    assert run([*ONE_REQUEST, {"drain": 5}]).report["accept_length"] is None


def test_what_never_came_up_is_counted_as_zero() -> None:
    exercised = run([*ONE_REQUEST, {"drain": 5}]).exercised
    assert (exercised["preemption"], exercised["prefix-hit"], exercised["no-needless-preemption"]) == (0, 0, 0)
    assert (exercised["terminal-once"], exercised["deterministic"]) == (1, 2)
    assert finding_9().exercised["preemption"] == 2


EXPECTATIONS = [
    # expectation, what is told of it (nothing: met)
    ({"violates": ["no-livelock"]}, []),
    ({"violates": ["no-livelock", "bounded-preemption"]}, []),
    ({"violates": ["no-stall"]}, ["expected a violation of no-stall"]),
    ({"violates": ["no-stall", "no-livelock"]}, ["expected a violation of no-stall"]),
    ({}, ["expected that everything holds"]),
    ({"holds": True}, ["expected that everything holds"]),
    ({"violates": ["no-livelock"], "passes": [{"scheduled": {"r": 8}, "emitted": {}}]}, []),
    ({"violates": ["no-livelock"], "passes": [{"scheduled": {"r": 7}}]}, ["passes[0].scheduled.r: expected 7, found 8"]),
    ({"violates": ["no-livelock"], "passes": [{"preempted": ["r"]}, {"preempted": []}]}, ["passes[1].preempted"]),
    ({"violates": ["no-livelock"], "passes": [{}, {}, {}]}, ["passes: expected at least 3, found 2"]),
    ({"violates": ["no-livelock"], "passes": [{"scheduled": {}}]}, ["passes[0].scheduled: expected nothing"]),
    ({"violates": ["no-livelock"], "final": {"requests": {"r": {}}}, "costs": {}, "passes": [{}]}, []),
    ({"violates": ["no-livelock"], "passes": [{"emitted": {"r": 1}}]}, ["passes[0].emitted.r: expected 1, found nothing"]),
    ({"violates": ["no-livelock"], "final": {"preemptions": 2}}, []),
    ({"violates": ["no-livelock"], "final": {"preemptions": True}}, ["final.preemptions"]),
    ({"violates": ["no-livelock"], "final": {"requests": {"r": {"status": "waiting"}}}}, []),
    ({"violates": ["no-livelock"], "final": {"requests": {"q": {}}}}, ["final.requests.q: expected {}, found nothing"]),
    ({"violates": ["no-livelock"], "costs": {"session_visits": 0}}, []),
    ({"violates": ["no-livelock"], "costs": {"session_visits": 1}}, ["costs.session_visits: expected 1, found 0"]),
    ({"violates": ["no-livelock"], "report": {"accept_length": None, "passes": 2.0}}, []),
    ({"violates": ["no-livelock"], "report": {"passes": 3}, "final": {"preemptions": 3}}, ["final.preem", "report.passes"]),
]


@pytest.mark.parametrize(("expect", "told"), EXPECTATIONS)
def test_an_expectation_is_compared_key_by_key(expect: dict[str, Any], told: list[str]) -> None:
    result = finding_9(expect)
    assert len(result.mismatches) == len(told)
    for mismatch, beginning in zip(result.mismatches, told, strict=True):
        assert mismatch.startswith(beginning)
    assert result.met is not bool(told)


IMPOSSIBLE = [
    # actions, expectation, engine, where, allowed
    ([{"submit": "a", "prompt": [1], "output": 1}] * 2, {}, {}, "actions[1].submit", "an id that no live request has"),
    ([{"step": 1, "accepted": {"a": 1}}], {}, {}, "actions[0].accepted.a", "0 without speculation"),
    ([{"step": 1, "accepted": {"a": 3}}], {}, {"speculation": {"draft_tokens": 2}}, "actions[0].accepted.a", "from 0 to 2"),
    ([{"step": 1, "worker": 1}], {}, {}, "actions[0].worker", "an integer from 0 to 0"),
    ([{"handoff": "teleport", "id": "a"}], {}, {}, "actions[0]", ""),
    ([{"drain": 1}], {"violates": ["no-stal"]}, {}, "expect.violates[0]", "no-stall"),
    ([{"drain": 1}], {}, {"implementation": "other"}, "engine.implementation", '"model"'),
]


@pytest.mark.parametrize(("actions", "expect", "engine", "where", "allowed"), IMPOSSIBLE, ids=[row[3] for row in IMPOSSIBLE])
def test_what_the_engine_cannot_do_is_bad_input(
    actions: list[dict[str, Any]], expect: dict[str, Any], engine: dict[str, Any], where: str, allowed: str
) -> None:
    with pytest.raises(BadInput) as error:
        run(actions, expect, **engine)
    assert error.value.path.startswith(where)
    assert allowed in error.value.allowed


def test_reports_that_differ_when_run_again_are_a_violation() -> None:
    first = [StepReport(Step()), StepReport(Step(), end_ns=1), StepReport(Step(), end_ns=2)]
    again = [StepReport(Step()), StepReport(Step(), end_ns=2), StepReport(Step(), end_ns=3)]
    assert judge_repetition(first, first) == []
    (found,) = judge_repetition(first, again)
    assert (found.invariant, found.at) == ("deterministic", 2)
    assert "end_ns" in found.message


def test_the_runner_runs_everything_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Engine] = []

    def build(config: EngineConfig) -> Engine:
        # The second engine is another one: it has fewer blocks.
        built.append(PagedEngine(EngineConfig(scheduler="vllm", block_size=4, num_blocks=2 - len(built))))
        return built[-1]

    monkeypatch.setattr(regressions.runner, "build_engine", build)
    result = run([*ONE_REQUEST, {"drain": 5}])
    assert [(broken.invariant, broken.at) for broken in result.violations] == [("deterministic", 2)]
    assert result.verdict == "violated"


def test_an_interrupted_run_keeps_what_it_has_and_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = PagedEngine.apply

    def interrupted(engine: PagedEngine, action: Any) -> StepReport:
        if engine.core.now >= 10_000_000:
            raise KeyboardInterrupt
        return apply(engine, action)

    monkeypatch.setattr(PagedEngine, "apply", interrupted)
    result = run([{"submit": "r", "prompt": [1, 2, 3], "output": 50}, {"drain": 100}], num_blocks=20)
    assert (result.verdict, result.reason, result.met) == ("unknown", "interrupted", False)
    assert len(result.passes) == 8
    assert result.final["requests"]["r"]["emitted"] == 8
