"""The general machine finds defects it knows nothing of, and shrinks what it finds."""

from __future__ import annotations

import pytest

from model.actions import Submit
from model.case import read_case
from strategies.machine import fuzz

FOUND = [
    ("vllm", "speculative-terminal-block"),
    ("vllm", "speculative-terminal-block:reservation-only"),
]


@pytest.mark.parametrize(("scheduler", "defect"), FOUND)
def test_a_defect_is_found_within_200_runs_and_shrunk(scheduler: str, defect: str) -> None:
    result = fuzz(scheduler, defects=[defect], examples=200, seed_value=1)
    assert result.verdict == "violated"
    assert result.found_after is not None
    assert result.found_after <= 200
    assert result.failure is not None
    actions = result.failure.case.actions
    assert sum(isinstance(item, Submit) for item in actions) <= 2
    assert read_case(result.failure.case.to_json()) == result.failure.case
