"""Drives an engine with tiers through arrivals in virtual time, as an event loop does: it wakes on completions alone.

At one instant transfers end first, then requests arrive, then passes run until one has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from attrs import define, field

from model.actions import Action, Advance, Nanoseconds, Step, Submit
from model.config import EngineConfig
from model.events import Admission, StepReport
from model.requests import Prompt, RequestSpec
from model.tiers.engine import TieredEngine
from tests.tiers.fixtures import MS


@define
class Arrival:
    """A request and when it comes, in milliseconds."""

    at: Fraction | int
    request: RequestSpec


def arrival(id_: str, at: float, prompt: Iterable[int], output: int = 1) -> Arrival:
    """The request ``id_`` at ``at`` milliseconds."""
    return Arrival(Fraction(str(at)), RequestSpec(id_, Prompt.of_tokens(prompt), output))


@define
class Run:
    """What happened: every report, and by request the milliseconds of its admissions and of its end."""

    engine: TieredEngine
    reports: list[StepReport] = field(factory=list)
    admitted: dict[str, list[tuple[Fraction, Admission]]] = field(factory=dict)
    ended: dict[str, Fraction] = field(factory=dict)

    def apply(self, action: Action) -> StepReport:
        """Apply an action and take down what it did."""
        report = self.engine.apply(action)
        self.reports.append(report)
        for admission in report.admissions:
            self.admitted.setdefault(admission.id, []).append((Fraction(report.start_ns, MS), admission))
        for signal in report.signals:
            if signal.completed:
                self.ended[signal.id] = Fraction(report.end_ns, MS)
        return report

    def first(self, id_: str) -> tuple[float, Admission]:
        """The first admission of a request, and when it was, in milliseconds."""
        at, admission = self.admitted[id_][0]
        return float(at), admission


def drive(
    config: EngineConfig, arrivals: Sequence[Arrival], *, passes_max: int = 10_000, until: Nanoseconds | None = None
) -> Run:
    """Run a workload to its end, or to ``until``.

    Raises:
        AssertionError: if it takes more than ``passes_max`` passes, or stands still.
    """
    run = Run(TieredEngine(config))
    engine = run.engine
    coming = sorted(arrivals, key=lambda each: each.at)
    passes = 0
    while True:
        while coming and coming[0].at * MS <= engine.core.now:
            run.apply(Submit(coming.pop(0).request))
        if engine.ready:
            passes += 1
            assert passes <= passes_max, "too many passes"
            if run.apply(Step()).had_effect:
                continue
        due = engine.core.offload.next_deadline()
        next_arrival = coming[0].at * MS if coming else None
        if due is None and next_arrival is None:
            assert not engine.core.requests, f"stands still with {list(engine.core.requests)}"
            return run
        if until is not None and min(time for time in (due, next_arrival) if time is not None) > until:
            return run
        if due is not None and (next_arrival is None or due <= next_arrival):
            run.apply(Advance())
        else:
            assert next_arrival is not None
            run.apply(Advance(next_arrival - engine.core.now))
