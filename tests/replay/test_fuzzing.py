"""Every defect of a replay, and every wrong fix of it, is found blind by the general fuzzer, and shrunk to a few rows."""

from __future__ import annotations

import pytest

from model.replay.run import run_replay
from strategies.replay_fuzz import fuzz_replays, judge_replay

FOUND_BY = {
    "trace-missing-timestamp": "arrival-gaps",
    "trace-missing-timestamp:no-writeback": "arrival-gaps",
    "accept-length-denominator": "accept-length",
    "accept-length-denominator:distinct-ids": "accept-length",
    "sparse-completion-scan": "session-visits-linear",
    "sparse-completion-scan:heap-means-work": "drained-iff-done",
    "dead-delta-history": "ended-releases-history",
    "dead-delta-history:clear-keeps-capacity": "ended-releases-history",
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("defect", "invariant"), FOUND_BY.items())
def test_a_defect_is_found_and_shrunk(defect: str, invariant: str, seed: int) -> None:
    result = fuzz_replays([defect], examples=300, seed_value=seed)
    failure = result.failure
    assert failure is not None
    assert result.found_after is not None
    assert result.found_after <= 300
    assert failure.requests <= 3
    assert invariant in {violation.invariant for violation in failure.violations}


def test_a_right_replay_holds_and_meets_every_invariant() -> None:
    result = fuzz_replays(examples=150, seed_value=5)
    assert result.failure is None
    assert result.examples == 150
    assert min(result.exercised.values()) > 50


def test_equal_seeds_find_the_same_failure() -> None:
    results = [fuzz_replays(["sparse-completion-scan"], seed_value=3) for _ in range(2)]
    assert results[0] == results[1]


def test_a_failure_is_a_case_that_fails_again() -> None:
    failure = fuzz_replays(["trace-missing-timestamp"], seed_value=0).failure
    assert failure is not None
    case = failure.case()
    assert case.expect.violates == ("arrival-gaps",)
    written = case.to_json()
    assert written["replay"]["rows"] == list(failure.replay.rows or ())
    assert judge_replay(failure.replay, failure.engine).violations == list(failure.violations)
    assert run_replay(failure.replay, failure.engine).complete
