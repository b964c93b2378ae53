from __future__ import annotations

import pytest

from adapters.dynamo.ground_truth import EXPECTED, FINDINGS, GroundTruth, Trial, ground_truth
from adapters.dynamo.wheel import Wheel

COSTS = (5, 6)
"""Their trials compare CPU times, which a busy machine disturbs."""


@pytest.mark.parametrize("finding", [number for number in FINDINGS if number not in COSTS])
def test_the_release_shows_the_findings_it_is_known_to_have(wheel: Wheel, finding: int) -> None:
    found = ground_truth(wheel.python, findings=[finding])
    assert found.expected is not None
    assert found.shown == found.expected & {finding}, found.trials[0].figure


def test_shown_findings_are_those_whose_trial_showed() -> None:
    trials = (Trial(1, "", True, ""), Trial(9, "", False, ""), Trial(10, "", None, ""))
    assert GroundTruth("1.5.1", trials).shown == {1}


def test_both_releases_are_known_and_no_other() -> None:
    assert GroundTruth("1.5.0", ()).expected == EXPECTED["1.5"]
    assert GroundTruth("1.6.1", ()).expected == EXPECTED["1.6"]
    assert GroundTruth("1.7.0", ()).expected is None
