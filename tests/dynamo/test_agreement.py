from __future__ import annotations

from typing import Any

import pytest

from adapters.dynamo.agreement import agreement
from adapters.dynamo.classes import CLASSES
from adapters.dynamo.compare import compare_case
from adapters.dynamo.fuzz import find_difference
from adapters.dynamo.wheel import Wheel
from model.config import SCHEDULERS

CASES = 12


@pytest.mark.parametrize("case_class", CLASSES, ids=lambda case_class: f"{case_class.scheduler}-{case_class.name}")
def test_the_model_agrees_with_the_release(wheel: Wheel, case_class: Any) -> None:
    if case_class.scheduler == "sglang" and not wheel.release.mapping:
        pytest.skip("SGLang of 1.5 is an earlier generation, which the model does not hold (SGLang specification 0.3)")
    found = agreement(case_class, range(CASES), wheel)
    assert [difference.story() for _, difference in found.differences] == []
    assert found.cases == CASES


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_no_difference_is_found_by_fuzzing(wheel: Wheel, scheduler: str) -> None:
    if scheduler == "sglang" and not wheel.release.mapping:
        pytest.skip("SGLang of 1.5 is an earlier generation, which the model does not hold (SGLang specification 0.3)")
    found = find_difference(wheel, scheduler, examples=50)
    assert found is None, found.story()


def test_a_model_without_the_defects_of_the_release_differs_and_the_case_is_shrunk(wheel: Wheel) -> None:
    found = find_difference(wheel, "vllm", examples=200, speculation=True, defects=())
    assert found is not None
    assert (found.ours, found.theirs) != (None, None)
    assert len(found.workload.requests) == 1
    assert compare_case(found.case, wheel, defects=()) is not None
    assert compare_case(found.case, wheel) is None


def test_cases_are_a_function_of_class_and_seed() -> None:
    for case_class in CLASSES:
        assert case_class.case(3) == case_class.case(3)
        assert case_class.case(3) != case_class.case(4)


def test_no_two_classes_have_one_name() -> None:
    names = [(case_class.scheduler, case_class.name) for case_class in CLASSES]
    assert len(set(names)) == len(names)
