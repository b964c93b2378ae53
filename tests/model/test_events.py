"""Reports: what follows from what a pass noted."""

from __future__ import annotations

import pytest

from model.actions import Step
from model.events import Admission, Preemption, Signal, StepReport, Work, block_names
from model.views import RequestView

NOTHING = StepReport(Step())


def test_a_report_sums_up_work_and_signals() -> None:
    report = StepReport(
        Step(),
        work={"a": Work("a", 4, 4, 0, False, 4, 4, 0), "b": Work("b", 1, 0, 8, False, 8, 9, 1)},
        signals=[
            Signal("none", token=False, completed=True),
            Signal("b", token=True, completed=False),
            Signal("b", token=True, completed=True),
            Signal("a", token=True, completed=False),
            Signal("no", token=False, completed=True, rejected=True),
        ],
    )
    assert report.scheduled == {"a": 4, "b": 1}
    assert report.emitted == {"b": 2, "a": 1}
    assert report.finished == ["none", "b"]
    assert report.rejected == ["no"]


@pytest.mark.parametrize(
    ("report", "progress", "effect"),
    [
        (NOTHING, False, False),
        (StepReport(Step(), signals=[Signal("r", token=True, completed=False)]), True, True),
        (StepReport(Step(), cancelled=["r"]), True, True),
        (StepReport(Step(), work={"r": Work("r", 1, 1, 0, False, 2, 2, 0)}), False, True),
        (StepReport(Step(), admissions=[Admission("r", 0)]), False, True),
        (StepReport(Step(), preemptions=[Preemption("r", None, "emission", 1, 0)]), False, True),
        (StepReport(Step(), start_ns=3, end_ns=4), False, True),
        (StepReport(Step(), start_ns=4, end_ns=4), False, False),
    ],
)
def test_what_is_progress_and_what_is_an_effect(report: StepReport, progress: bool, effect: bool) -> None:
    assert (report.made_progress, report.had_effect) == (progress, effect)


def test_blocks_are_named_by_their_identity() -> None:
    assert block_names([1, 12]) == ["h1", "h12"]


def test_the_length_of_a_request_is_its_prompt_and_what_it_generated() -> None:
    assert RequestView("r", "running", prompt=5, output=9, generated=3, computed=7, allocated=8).length == 8
