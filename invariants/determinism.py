"""Determinism: equal configuration and actions give equal reports.

It speaks of two runs, so it is judged where a run can be repeated on a fresh engine, and not by a monitor on the way.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from attrs import fields

from invariants.framework import STEP, Invariant, Violation, declare
from model import engine as parts
from model.events import StepReport

ID = "deterministic"

declare(
    Invariant(
        ID,
        STEP,
        "Equal configuration and actions give equal reports.",
        "case format: a case is replayed from its file alone",
        needs=frozenset({parts.WORK, parts.SIGNALS}),
    )
)


def judge_repetition(first: Iterable[StepReport], second: Iterable[StepReport]) -> list[Violation]:
    """The first action whose reports differ between two runs of the same actions, if there is one."""
    for number, once, again in zip(count(1), first, second, strict=False):
        if once != again:
            names = [field.name for field in fields(StepReport) if getattr(once, field.name) != getattr(again, field.name)]
            return [Violation(ID, f"run again, the action reports different {', '.join(names)}", number)]
    return []
