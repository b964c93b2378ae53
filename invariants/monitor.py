"""Judging a linear run: every invariant, on every action, of any engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from attrs import evolve

import invariants.guaranteed
import invariants.handoff
import invariants.states
import invariants.steps
import invariants.tiers
import invariants.tree  # noqa: F401  (declares its invariants)
from invariants.framework import Suite, Transition, Violation
from invariants.progress import ProgressMonitor
from model.actions import Action, Submit
from model.engine import Engine
from model.events import StepReport


class Monitor:
    """An engine under all its invariants: apply actions through it, and read what broke.

    Attributes:
        engine: the engine it drives.
        violations: everything that broke so far, in order.
        reports: what each action did, in order; only when asked to keep them.
        applied: how many actions were applied.
    """

    def __init__(self, engine: Engine, *, keep_reports: bool = False, only: Iterable[str] | None = None) -> None:
        """Watch ``engine`` from its present state; all invariants, or ``only`` some ids."""
        self.engine = engine
        self.violations: list[Violation] = []
        self.reports: list[StepReport] = []
        self._keep = keep_reports
        self._only = None if only is None else frozenset(only)
        self._suites = [Suite.of(config, engine.observes, self._only) for config in engine.configs()]
        self.progress = ProgressMonitor(engine)
        self._before = list(engine.views())
        self.applied = 0

    def apply(self, action: Action) -> StepReport:
        """Carry out ``action`` and judge it.

        Raises:
            BadInput: if the engine cannot carry it out; nothing is judged then.
        """
        engine = self.engine
        if isinstance(action, Submit):
            self.progress.submitted(action.request.id, engine.servable(action.request))
        report = engine.apply(action)
        self.applied += 1
        after = list(engine.views())
        for worker, suite in enumerate(self._suites):
            self._note(suite.judge_state(after[worker]))
            if worker == report.worker:
                self._note(suite.judge_step(Transition(suite.config, self._before[worker], report, after[worker])))
        for violation in self.progress.observe(report):
            if self._only is None or violation.invariant in self._only:
                self.violations.append(violation)
        self._before = after
        if self._keep:
            self.reports.append(report)
        return report

    def _note(self, found: Iterable[Violation]) -> None:
        self.violations.extend(evolve(violation, at=self.applied) for violation in found)

    @property
    def exercised(self) -> Counter[str]:
        """How often each invariant met its subject."""
        total = Counter(self.progress.exercised)
        for suite in self._suites:
            total.update(suite.exercised)
        return total

    @property
    def not_observable(self) -> tuple[str, ...]:
        """Ids that no worker of the engine can be judged by."""
        hidden = [set(suite.not_observable) for suite in self._suites]
        return tuple(id_ for id_ in self._suites[0].not_observable if all(id_ in ids for ids in hidden))
