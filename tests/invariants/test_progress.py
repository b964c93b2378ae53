"""Progress properties along linear runs: stalls, livelocks, refusals, bounded preemption; what the monitor tells."""

from __future__ import annotations

from typing import Any

import pytest

from invariants.framework import Violation
from invariants.monitor import Monitor
from invariants.progress import LassoShape, Turn, classify, judge_lasso
from model.actions import Step, Submit
from model.build import build_engine
from model.config import EngineConfig
from model.requests import Prompt, RequestSpec

FINDING_9 = {"block_size": 4, "num_blocks": 2, "speculation": {"draft_tokens": 1}}


def watched(requests: list[tuple[int, int]], passes: int, *defects: str, **options: Any) -> Monitor:
    given = {"scheduler": "vllm", "block_size": 4, "num_blocks": 2, "defects": list(defects), **options}
    monitor = Monitor(build_engine(EngineConfig.from_json(given)), keep_reports=True)
    for number, (prompt, output) in enumerate(requests):
        monitor.apply(Submit(RequestSpec("abc"[number], Prompt.of_streams([("ABC"[number], prompt)]), output)))
    for _ in range(passes):
        if monitor.engine.busy:
            monitor.apply(Step())
    return monitor


def ids(violations: list[Violation]) -> set[str]:
    return {violation.invariant for violation in violations}


def test_finding_9_is_a_preemption_cycle_closed_by_the_second_pass() -> None:
    monitor = watched([(8, 1)], 3, "speculative-terminal-block", **FINDING_9)
    assert monitor.progress.lasso == LassoShape("preemption-cycle", 2, 1)
    closed = [violation for violation in monitor.violations if violation.invariant == "no-livelock"]
    assert [violation.at for violation in closed] == [3]
    assert {"bounded-preemption", "servable-finishes"} <= ids(monitor.violations)
    assert watched([(8, 1)], 3, **FINDING_9).violations == []


def test_a_cycle_without_duration_repeats_at_one_instant() -> None:
    timing = {"prefill_ms_per_token": 0, "decode_ms": 0}
    monitor = watched([(8, 1)], 3, "speculative-terminal-block", timing=timing, **FINDING_9)
    assert "finite-passes-per-instant" in ids(monitor.violations)


def test_the_first_pass_without_effect_is_a_stall() -> None:
    monitor = watched([(8, 1)], 5, "admits-unservable", chunked_prefill=False, max_num_batched_tokens=4)
    assert monitor.progress.lasso == LassoShape("stall", 1, 1)
    assert ids(monitor.violations) == {"no-stall", "unservable-refused"}


def test_a_request_behind_one_that_cannot_be_served_starves_with_the_defect_alone() -> None:
    options: dict[str, Any] = {"chunked_prefill": False, "max_num_batched_tokens": 4}
    monitor = watched([(8, 1), (4, 1)], 5, "admits-unservable", **options)
    assert {"no-starvation", "servable-finishes"} <= ids(monitor.violations)
    assert watched([(8, 1), (4, 1)], 5, **options).violations == []


def test_a_served_request_that_is_refused_or_finishes_against_the_rule_is_told() -> None:
    monitor = watched([(8, 1)], 0)
    monitor.progress.submitted("a", servable=False)
    monitor.apply(Step())
    assert [violation.message for violation in monitor.violations] == ["a finished, though it cannot be served here"]
    refused = watched([(9, 1)], 0)
    refused.progress.submitted("a", servable=True)
    refused.apply(Step())
    assert [violation.message for violation in refused.violations] == ["a can be served here and was refused"]


@pytest.mark.parametrize(
    ("turns", "kind"),
    [
        ([Turn(worked=False, preempted=0, evicted=0, duration=False)], "stall"),
        ([Turn(worked=True, preempted=1, evicted=0, duration=True)], "preemption-cycle"),
        ([Turn(worked=False, preempted=0, evicted=2, duration=True)], "eviction-cycle"),
        ([Turn(worked=True, preempted=0, evicted=0, duration=True)], "starvation"),
        ([Turn(worked=False, preempted=0, evicted=0, duration=True)], "livelock"),
    ],
)
def test_a_cycle_is_named_by_what_happens_on_it(turns: list[Turn], kind: str) -> None:
    assert classify(turns) == kind


def test_a_stall_of_requests_that_can_and_cannot_be_served() -> None:
    turns = [Turn(worked=False, preempted=0, evicted=0, duration=False)]
    found = judge_lasso(turns, {"a": False, "b": True}, ["a", "b"], 4)
    assert [(violation.invariant, violation.at) for violation in found] == [
        ("no-stall", 4),
        ("servable-finishes", 4),
        ("unservable-refused", 4),
        ("no-starvation", 4),
    ]


def test_the_monitor_counts_what_was_met_and_numbers_what_broke() -> None:
    monitor = watched([(4, 2)], 5)
    assert monitor.applied == len(monitor.reports) == 3
    assert monitor.exercised["token-budget"] == 0
    assert monitor.exercised["output-exact"] == 2
    assert monitor.not_observable == ()
