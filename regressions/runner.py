"""Running a case: actions through an engine under all invariants, and the result the case format describes (section 2).

A run goes on behind the violation of a step invariant, since more may be learnt, and ends at the first lasso: left alone, the
engine would go round for ever. What was done is then done once more on a fresh engine, and the two sequences of reports compared
(invariant ``deterministic``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from explorer.findings import Verdict
from invariants.determinism import judge_repetition
from invariants.framework import CATALOGUE, PROGRESS, Violation, known_ids
from invariants.monitor import Monitor
from invariants.progress import LassoShape
from model import engine as parts
from model.actions import Action
from model.build import build_engine
from model.case import Case, Drain, Expectation, Item, Steps
from model.config import EngineConfig
from model.engine import Engine, one_round
from model.errors import BadInput, shown
from model.events import StepReport
from model.replay.config import ReplayConfig
from model.views import EngineView
from regressions.expectations import compare
from regressions.moments import COSTS, Moment, costs_of, exercised_in, final_state, pass_json, report_of
from regressions.replays import repeated_reports, watch_replay

INTERRUPTED = "interrupted"
"""Why a run is incomplete that was stopped from outside."""

_PROGRESS = frozenset(invariant.id for invariant in CATALOGUE if invariant.kind == PROGRESS)


@frozen
class CaseResult:
    """What a case showed.

    Attributes:
        case: the case.
        verdict: ``violated`` when an invariant broke; else ``unknown`` when the run is incomplete; else ``holds``.
        reason: why the run is incomplete (a drain ran out of passes with work left, or it was interrupted); None when it is not.
        mismatches: where the run differs from what the case expects, in words.
        violations: everything that broke, in order.
        lasso: the lasso at which the run ended, if it did.
        moments: every action applied.
        passes, final, costs, report, exercised: as the case format describes them.
        not_observable: invariants that this engine cannot be judged by.
    """

    case: Case
    verdict: Verdict
    reason: str | None
    mismatches: tuple[str, ...]
    violations: tuple[Violation, ...]
    lasso: LassoShape | None
    moments: tuple[Moment, ...] = field(repr=False)
    passes: Sequence[Mapping[str, Any]] = field(repr=False)
    final: Mapping[str, Any]
    costs: Mapping[str, int]
    report: Mapping[str, Any]
    exercised: Mapping[str, int]
    not_observable: tuple[str, ...]

    @property
    def met(self) -> bool:
        """Everything the case expects was seen, and nothing is left unknown."""
        return not self.mismatches and self.verdict is not Verdict.UNKNOWN

    def to_json(self) -> dict[str, Any]:
        """As the case format has it."""
        lasso = self.lasso
        return {
            "verdict": str(self.verdict),
            "met": self.met,
            "violations": [
                {"invariant": broken.invariant, "at": broken.at, "message": broken.message} for broken in self.violations
            ],
            "lasso": None if lasso is None else {"kind": lasso.kind, "stem": lasso.stem, "cycle": lasso.cycle},
            "passes": self.passes,
            "final": self.final,
            "costs": self.costs,
            "report": self.report,
            "exercised": self.exercised,
            "not_observable": list(self.not_observable),
        }


@frozen
class _Ran:
    """A run, before it is compared with what was expected of it."""

    reason: str | None
    violations: Sequence[Violation]
    lasso: LassoShape | None
    moments: Sequence[Moment]
    final: Mapping[str, Any]
    costs: Mapping[str, int]
    report: Mapping[str, Any]
    met_by_invariants: Mapping[str, int]
    not_observable: tuple[str, ...]


def run_case(case: Case) -> CaseResult:
    """Run a case and compare it with what it expects.

    Raises:
        BadInput: for an engine that cannot be built, an action that it cannot carry out, or a trace that cannot be used.
    """
    _check_expected_ids(case.expect)
    ran = _run_actions(case) if case.replay is None else _run_replay(case, case.replay)
    verdict = Verdict.of(found=bool(ran.violations), complete=ran.reason is None)
    passes = [pass_json(moment.report) for moment in ran.moments if moment.report.is_pass]
    seen = {"passes": passes, "final": ran.final, "costs": ran.costs, "report": ran.report}
    judged = {id_: 0 for id_ in known_ids() if id_ not in ran.not_observable}
    judged |= {**ran.met_by_invariants, "deterministic": len(ran.moments)}
    return CaseResult(
        case=case,
        verdict=verdict,
        reason=ran.reason,
        mismatches=tuple(compare(case.expect, verdict, ran.violations, seen)),
        violations=tuple(ran.violations),
        lasso=ran.lasso,
        moments=tuple(ran.moments),
        passes=passes,
        final=ran.final,
        costs=ran.costs,
        report=ran.report,
        exercised={**exercised_in(ran.moments), **judged},
        not_observable=ran.not_observable,
    )


def _run_actions(case: Case) -> _Ran:
    engine = _build(case.engine)
    for number, item in enumerate(case.actions):
        _check_item(item, engine, f"actions[{number}]")
    run = _Run(engine)
    reason = run.apply_all(case.actions)
    monitor, moments = run.monitor, run.moments
    violations = list(monitor.violations)
    if reason != INTERRUPTED:
        again = _build(case.engine)
        violations += judge_repetition(_reports(moments), (again.apply(report.action) for report in _reports(moments)))
    return _Ran(
        reason=reason,
        violations=violations,
        lasso=monitor.progress.lasso,
        moments=moments,
        final=final_state([moments], run.views),
        costs=costs_of(run.views),
        report=report_of(moments),
        met_by_invariants=monitor.exercised,
        not_observable=monitor.not_observable,
    )


def _run_replay(case: Case, replay: Mapping[str, Any]) -> _Ran:
    """A replay, every action of every worker judged; its passes are those of one worker after the other."""
    _build(case.engine)
    config = ReplayConfig.from_json(dict(replay))
    try:
        watched = watch_replay(config, case.engine)
    except BadInput as error:
        raise (error if error.path.startswith("engine.") else error.under("replay")) from None
    runs = [list(engine.moments) for engine in watched.engines]
    violations = list(watched.violations)
    if watched.result.stopped is None:
        again = repeated_reports(config, case.engine, len(runs))
        for moments, reports in zip(runs, again, strict=True):
            violations += judge_repetition(_reports(moments), reports)
    views = [view for engine in watched.engines for view in engine.views(blocks=False)]
    return _Ran(
        reason=watched.incomplete,
        violations=violations,
        lasso=watched.lasso,
        moments=[moment for moments in runs for moment in moments],
        final=final_state(runs, views),
        costs={**dict.fromkeys(COSTS, 0), **watched.result.costs},
        report={**watched.result.report, "arrivals_ms": dict(watched.result.arrivals)},
        met_by_invariants=watched.exercised,
        not_observable=watched.not_observable,
    )


def _reports(moments: Iterable[Moment]) -> Iterator[StepReport]:
    return (moment.report for moment in moments)


def _build(config: EngineConfig) -> Engine:
    try:
        return build_engine(config)
    except BadInput as error:
        raise error.under("engine") from None


def _check_expected_ids(expect: Expectation) -> None:
    known = known_ids()
    for number, id_ in enumerate(expect.violates):
        if id_ not in known:
            raise BadInput(f"expect.violates[{number}]", shown(id_), ", ".join(sorted(known)))


def _check_item(item: Item, engine: Engine, path: str) -> None:
    """What an entry of ``actions`` says of the engine must be possible there."""
    workers = len(engine.configs())
    worker = 0 if isinstance(item, Drain) else item.step.worker if isinstance(item, Steps) else item.worker
    if worker >= workers:
        raise BadInput(f"{path}.worker", shown(worker), f"an integer from 0 to {workers - 1}")
    if isinstance(item, Steps):
        speculation = engine.configs()[worker].speculation
        most = speculation.draft_tokens if speculation else 0
        for id_, count in item.step.accepted.items():
            if count > most:
                allowed = f"an integer from 0 to {most} (draft_tokens)" if speculation else "0 without speculation"
                raise BadInput(f"{path}.accepted.{id_}", shown(count), allowed)


class _Run:
    """One run under a monitor, action by action."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.monitor = Monitor(engine)
        self.moments: list[Moment] = []
        self.views: Sequence[EngineView] = engine.views(blocks=False)

    @property
    def decided(self) -> bool:
        """Nothing new is to be learnt: the run has come to a lasso.

        An engine without a canonical state comes to no lasso; there any violated progress property decides.
        """
        if parts.STATE in self.engine.observes:
            return self.monitor.progress.lasso is not None
        return any(violation.invariant in _PROGRESS for violation in self.monitor.violations)

    def apply(self, action: Action) -> StepReport:
        known = len(self.monitor.violations)
        report = self.monitor.apply(action)
        self.views = self.engine.views(blocks=False)
        broken = tuple(self.monitor.violations[known:])
        self.moments.append(Moment(len(self.moments) + 1, report, self.views, broken))
        return report

    def apply_all(self, items: Sequence[Item]) -> str | None:
        """Carry out the entries of a case up to a lasso; why the run is incomplete, if it is."""
        reason = None
        for number, item in enumerate(items):
            try:
                if isinstance(item, Drain):
                    reason = self.drain(item.passes) or reason
                else:
                    self.apply_each(_actions_of(item))
            except BadInput as error:
                raise error.under(f"actions[{number}]") from None
            except KeyboardInterrupt:
                return INTERRUPTED
            if self.decided:
                return None
        return reason

    def apply_each(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self.apply(action)
            if self.decided:
                return

    def drain(self, passes: int) -> str | None:
        """Rounds of passes until idle, until the run is decided, or ``passes`` of them; with work left then, that."""
        for _ in range(passes):
            if self._ended():
                return None
            one_round(self.engine, self.apply, self._ended)
        return None if self._ended() else f"work is left after a drain of {passes} passes"

    def _ended(self) -> bool:
        return not self.engine.busy or self.decided


def _actions_of(item: Item) -> Iterator[Action]:
    """The single actions of an entry that is not a drain."""
    if isinstance(item, Steps):
        yield from (item.step for _ in range(item.count))
    elif not isinstance(item, Drain):
        yield item
