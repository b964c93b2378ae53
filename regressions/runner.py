"""Running a case: actions through an engine under all invariants, and the result the case format describes (section 2).

A run goes on behind the violation of a step invariant, since more may be learnt, and ends at the first lasso: left alone, the
engine would go round for ever. What was done is then done once more on a fresh engine, and the two sequences of reports compared
(invariant ``deterministic``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from explorer.findings import Verdict
from invariants.determinism import judge_repetition
from invariants.framework import CATALOGUE, PROGRESS, Violation, known_ids
from invariants.monitor import Monitor
from invariants.progress import LassoShape
from model import engine as parts
from model.actions import Action, Advance, Step, Submit
from model.build import build_engine
from model.case import Case, Drain, Expectation, Item, Steps, to_ms
from model.config import EngineConfig
from model.engine import Engine
from model.errors import BadInput, shown
from model.events import KvEvent, Removed, StepReport, Stored, block_names
from model.registry import NO_BLOCK
from model.views import RUNNING, EngineView, RequestView

COSTS = ("handoff_scan_visits", "session_visits", "ended_history_capacity", "radix_capacity", "radix_stored")
"""Cost counts that every result holds, 0 where the engine does not keep them."""


INTERRUPTED = "interrupted"
"""Why a run is incomplete that was stopped from outside."""

_PROGRESS = frozenset(invariant.id for invariant in CATALOGUE if invariant.kind == PROGRESS)


@frozen
class Moment:
    """One applied action, and what the engine showed after it.

    Attributes:
        number: of the action, counted from 1.
        report: what it did.
        views: one per worker, without block tables.
        violations: what it broke.
    """

    number: int
    report: StepReport
    views: Sequence[EngineView]
    violations: Sequence[Violation]


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


def run_case(case: Case) -> CaseResult:
    """Run a case and compare it with what it expects.

    Raises:
        BadInput: for an engine that cannot be built, an action that it cannot carry out, or a replay.
    """
    _check_expected_ids(case.expect)
    if case.replay is not None:
        raise BadInput("replay", "a replay", "actions; replays are not run yet")
    engine = _build(case.engine)
    for number, item in enumerate(case.actions):
        _check_item(item, engine, f"actions[{number}]")
    run = _Run(engine)
    reason = run.apply_all(case.actions)
    moments = tuple(run.moments)
    violations = list(run.monitor.violations)
    if reason != INTERRUPTED:
        violations += _repetition(case.engine, moments)
    verdict = Verdict.of(found=bool(violations), complete=reason is None)
    final, costs, report = final_state(moments, run.views), _costs(run.views), _report(moments)
    passes = [pass_json(moment.report) for moment in moments if moment.report.is_pass]
    seen = {"passes": passes, "final": final, "costs": costs, "report": report}
    return CaseResult(
        case=case,
        verdict=verdict,
        reason=reason,
        mismatches=tuple(compare(case.expect, verdict, violations, seen)),
        violations=tuple(violations),
        lasso=run.monitor.progress.lasso,
        moments=moments,
        passes=passes,
        final=final,
        costs=costs,
        report=report,
        exercised=_exercised(run.monitor, moments),
        not_observable=run.monitor.not_observable,
    )


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
        """Passes and deadlines until idle, until the run is decided, or ``passes`` of them; with work left then, that."""
        for _ in range(passes):
            if not self.engine.busy or self.decided:
                return None
            report = self.apply(Step())
            if not report.had_effect and not self.decided and self._due():
                self.apply(Advance())
        return f"work is left after a drain of {passes} passes" if self.engine.busy and not self.decided else None

    def _due(self) -> bool:
        return any(view.next_deadline_ns is not None for view in self.views)


def _actions_of(item: Item) -> Iterator[Action]:
    """The single actions of an entry that is not a drain."""
    if isinstance(item, Steps):
        yield from (item.step for _ in range(item.count))
    elif not isinstance(item, Drain):
        yield item


def _repetition(config: EngineConfig, moments: Sequence[Moment]) -> list[Violation]:
    """The same actions on a fresh engine, against the reports of the first run."""
    engine = _build(config)
    return judge_repetition((moment.report for moment in moments), (engine.apply(moment.report.action) for moment in moments))


def pass_json(report: StepReport) -> dict[str, Any]:
    """A pass as the case format has it."""
    return {
        "scheduled": report.scheduled,
        "emitted": report.emitted,
        "preempted": [preemption.victim for preemption in report.preemptions],
        "finished": report.finished,
        "rejected": report.rejected,
        "events": [event_json(event) for event in report.events],
        "start_ms": to_ms(report.start_ns),
        "end_ms": to_ms(report.end_ns),
    }


def event_json(event: KvEvent) -> dict[str, Any]:
    """A KV event as the case format has it; the tier is named where it is not the GPU's."""
    names = block_names(event.blocks)
    if isinstance(event, Stored):
        parent = None if event.parent == NO_BLOCK else block_names((event.parent,))[0]
        written: dict[str, Any] = {"stored": names, "parent": parent}
    else:
        written = {"removed": names}
    if event.tier != "gpu":
        written["tier"] = event.tier
    return written


def final_state(moments: Sequence[Moment], views: Sequence[EngineView]) -> dict[str, Any]:
    """Every request ever submitted, ended ones as they were when they ended, and the block counts at the end."""
    requests: dict[str, dict[str, Any]] = {}
    preemptions = 0
    before: dict[str, RequestView] = {}
    for moment in moments:
        report = moment.report
        preemptions += len(report.preemptions)
        for status, ids in (
            ("finished", report.finished),
            ("rejected", report.rejected),
            ("cancelled", report.cancelled),
        ):
            for id_ in ids:
                if id_ in before:
                    requests[id_] = _ended(before[id_], report, status)
        before = {id_: request for view in moment.views for id_, request in view.requests.items()}
        for id_, request in before.items():
            requests[id_] = _account(
                "running" if request.status == RUNNING else "waiting",
                request.generated,
                request.computed,
                request.cached_tokens,
                request.preemptions,
            )
    pools = [view.pool for view in views]
    return {
        "requests": requests,
        "active_blocks": sum(pool.active for pool in pools),
        "cached_blocks": sum(pool.inactive for pool in pools),
        "free_blocks": sum(pool.free for pool in pools),
        "preemptions": preemptions,
    }


def _account(status: str, emitted: int, computed: int, cached_tokens: int, preemptions: int) -> dict[str, Any]:
    return {
        "status": status,
        "emitted": emitted,
        "computed": computed,
        "cached_tokens": cached_tokens,
        "preemptions": preemptions,
    }


def _ended(before: RequestView, report: StepReport, status: str) -> dict[str, Any]:
    """A request that ended in a step: as it was before, and what the step did for it."""
    id_ = before.id
    admission = next((admission for admission in report.admissions if admission.id == id_), None)
    reused = admission.reused if admission else 0
    emitted = report.emitted.get(id_, 0)
    computed = before.computed + reused + report.scheduled.get(id_, 0) + max(emitted - 1, 0)
    return _account(
        status,
        before.generated + emitted,
        computed,
        reused if admission and admission.first else before.cached_tokens,
        before.preemptions + sum(1 for preemption in report.preemptions if preemption.victim == id_),
    )


def _costs(views: Sequence[EngineView]) -> dict[str, int]:
    total = Counter(dict.fromkeys(COSTS, 0))
    for view in views:
        for name, count in view.costs.items():
            total[name] += count
    return dict(total)


def _report(moments: Sequence[Moment]) -> dict[str, Any]:
    reports = [moment.report for moment in moments]
    forwards = sum(report.accept_forwards for report in reports)
    return {
        "accept_length": sum(report.accept_tokens for report in reports) / forwards if forwards else None,
        "arrivals_ms": {
            report.action.request.id: to_ms(report.start_ns) for report in reports if isinstance(report.action, Submit)
        },
        "passes": sum(report.is_pass for report in reports),
    }


def _exercised(monitor: Monitor, moments: Sequence[Moment]) -> dict[str, int]:
    """How often the subjects of the invariants came up, and how often each invariant met its own."""
    subjects = Counter({"preemption": 0, "prefix-hit": 0, "eviction": 0, "refusal": 0, "burst": 0})
    for moment in moments:
        report = moment.report
        subjects["preemption"] += len(report.preemptions)
        subjects["prefix-hit"] += sum(1 for admission in report.admissions if admission.reused)
        subjects["eviction"] += sum(len(event.blocks) for event in report.events if isinstance(event, Removed))
        subjects["refusal"] += len(report.rejected)
        subjects["burst"] += sum(1 for count in report.emitted.values() if count > 1)
    counts = {id_: 0 for id_ in known_ids() if id_ not in monitor.not_observable}
    return {**subjects, **counts, **monitor.exercised, "deterministic": len(moments)}


def compare(expect: Expectation, verdict: Verdict, violations: Sequence[Violation], seen: Mapping[str, Any]) -> Iterator[str]:
    """Where a run differs from what is expected of it, in words.

    Every id under ``violates`` must be reported, beside which others may be; without any, nothing may be. The other parts are
    compared key by key with ``seen``: what is not named is not compared, and of ``passes`` those behind the last one named. Only
    that nothing was scheduled or emitted can be said by naming nothing: ``"emitted": {}``.
    """
    reported = {violation.invariant for violation in violations}
    for id_ in expect.violates:
        if id_ not in reported:
            yield f"expected a violation of {id_}, found {', '.join(sorted(reported)) or 'none'}"
    if expect.holds and verdict is Verdict.VIOLATED:
        yield f"expected that everything holds, found a violation of {', '.join(sorted(reported))}"
    if expect.passes is not None:
        found = seen["passes"]
        if len(found) < len(expect.passes):
            yield f"passes: expected at least {len(expect.passes)}, found {len(found)}"
        for number, (wanted, given) in enumerate(zip(expect.passes, found, strict=False)):
            yield from _differences(wanted, given, f"passes[{number}]")
            for name in ("scheduled", "emitted"):
                if wanted.get(name) == {} and given[name]:
                    yield f"passes[{number}].{name}: expected nothing, found {shown(given[name])}"
    for name in ("final", "report", "costs"):
        wanted = getattr(expect, name)
        if wanted is not None:
            yield from _differences(wanted, seen[name], name)


def _differences(wanted: Any, given: Any, path: str) -> Iterator[str]:
    """Differences key by key in objects; a list stands for all of the list."""
    if isinstance(wanted, Mapping) and isinstance(given, Mapping):
        for name, value in wanted.items():
            if name in given:
                yield from _differences(value, given[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}: expected {shown(value)}, found nothing"
    elif isinstance(wanted, list) and isinstance(given, list):
        if len(wanted) != len(given):
            yield f"{path}: expected {shown(wanted)}, found {shown(given)}"
        else:
            for number, (one, other) in enumerate(zip(wanted, given, strict=True)):
                yield from _differences(one, other, f"{path}[{number}]")
    elif not _equal(wanted, given):
        yield f"{path}: expected {shown(wanted)}, found {shown(given)}"


def _equal(wanted: Any, given: Any) -> bool:
    """JSON equality; floats to nine digits, since they were rounded on the way."""
    if isinstance(wanted, bool) or isinstance(given, bool):
        return wanted is given
    if isinstance(wanted, float) or isinstance(given, float):
        numbers = isinstance(wanted, int | float) and isinstance(given, int | float)
        return numbers and math.isclose(wanted, given, rel_tol=1e-9)
    return bool(wanted == given)
