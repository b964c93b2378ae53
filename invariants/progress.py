"""Progress properties: what must not happen along a path.

A *lasso* is a stem of actions and a cycle of passes and deadlines that comes back to the same canonical state, with no input
from outside and no token, completion or refusal on it: left alone, the engine goes round for ever. The explorer finds lassos in
a graph of states, a linear run by the recurrence of a state; both are judged here. So is what is left when work has been given
all the time it needs.

Preemptions are bounded in a linear run by what they cost: between two preemptions of one request somebody must have computed a
position never computed before, produced a token, or ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from attrs import define, field, frozen

from invariants.framework import PROGRESS, Invariant, Violation, declare
from model import engine as parts
from model.actions import Advance, Step, is_owed
from model.engine import Engine
from model.events import DEFERRED, StepReport

STALL = "stall"
PREEMPTION_CYCLE = "preemption-cycle"
EVICTION_CYCLE = "eviction-cycle"
STARVATION = "starvation"
LIVELOCK = "livelock"

_STATE = frozenset({parts.STATE})

for _id, _statement, _source, _catches in (
    (
        "no-stall",
        "While work remains and nothing is due by itself, a pass does something.",
        "vLLM specification L-PROG; SGLang specification L1",
        ("sglang-chunk-budget", "admits-unservable"),
    ),
    (
        "no-livelock",
        "No canonical state recurs without a token, an end of a request or an input in between.",
        "vLLM specification L-REC; offload specification L6",
        ("speculative-terminal-block", "restore-thrash", "admits-unservable"),
    ),
    (
        "bounded-preemption",
        "No request is preempted twice with nothing new computed, produced or ended in between.",
        "vLLM specification L-PROG; SGLang specification L6",
        ("speculative-terminal-block",),
    ),
    (
        "finite-passes-per-instant",
        "Passes that take no time and bring nothing do not repeat at one instant.",
        "vLLM specification L-ZENO; offload specification L9",
        ("speculative-terminal-block",),
    ),
    (
        "servable-finishes",
        "A request that the geometry can serve alone is never refused, and finishes once it is given the time.",
        "vLLM specification L-SERV",
        ("speculative-terminal-block", "sglang-chunk-budget", "restore-thrash"),
    ),
    (
        "unservable-refused",
        "A request that the geometry cannot serve is refused explicitly.",
        "vLLM specification L-SERV; SGLang specification 12",
        ("admits-unservable", "radix-admits-unservable"),
    ),
    (
        "no-starvation",
        "A request that can be served does not wait for ever behind one that cannot.",
        "vLLM specification L-STARVE; SGLang specification L5",
        ("admits-unservable", "radix-admits-unservable", "sglang-chunk-budget"),
    ),
):
    declare(Invariant(_id, PROGRESS, _statement, _source, _catches, _STATE))


@frozen
class Turn:
    """What a step on a cycle did, as far as classifying the cycle needs it."""

    worked: bool
    preempted: int
    evicted: int
    duration: bool

    @classmethod
    def of(cls, report: StepReport) -> Turn:
        """The turn that a report tells of."""
        return cls(
            worked=bool(report.work),
            preempted=len(report.preemptions),
            evicted=sum(1 for kind, _ in report.notes if kind in ("evicted", "promoted", "capacity-retry")),
            duration=report.end_ns != report.start_ns,
        )


def classify(turns: Sequence[Turn]) -> str:
    """The kind of a cycle: nothing happens (stall), who preempts whom, what evicts what, or work that leads nowhere."""
    if any(turn.preempted for turn in turns):
        return PREEMPTION_CYCLE
    if any(turn.evicted for turn in turns):
        return EVICTION_CYCLE
    if any(turn.worked for turn in turns):
        return STARVATION
    return STALL if not any(turn.duration for turn in turns) else LIVELOCK


@frozen
class LassoShape:
    """A lasso by its lengths: ``stem`` actions before the cycle, ``cycle`` passes and deadlines on it."""

    kind: str
    stem: int
    cycle: int


def judge_lasso(turns: Sequence[Turn], live: Mapping[str, bool], waiting: Sequence[str], at: int) -> list[Violation]:
    """Violations that a lasso amounts to.

    Args:
        turns: the steps on its cycle.
        live: the live requests on it, and whether each can be served.
        waiting: ids of those that wait at some time on it.
        at: number of the action that closes it.
    """
    kind = classify(turns)
    names = ", ".join(live)
    if kind == STALL:
        found = [Violation("no-stall", f"a pass does nothing, and would for ever, with {names} live", at)]
    else:
        period = "1 step" if len(turns) == 1 else f"{len(turns)} steps"
        found = [Violation("no-livelock", f"the state recurs after {period} with no token ({kind}), {names} live", at)]
        if not any(turn.duration for turn in turns):
            found.append(Violation("finite-passes-per-instant", "the cycle takes no time: it repeats at one instant", at))
        if any(turn.preempted for turn in turns):
            count = sum(turn.preempted for turn in turns)
            found.append(Violation("bounded-preemption", f"{count} preemptions in every round, without end", at))
    stuck = [id_ for id_, servable in live.items() if servable]
    refused_too_late = [id_ for id_, servable in live.items() if not servable]
    for id_ in stuck:
        found.append(Violation("servable-finishes", f"{id_} can be served and never finishes", at))
    for id_ in refused_too_late:
        found.append(Violation("unservable-refused", f"{id_} cannot be served here and is never refused", at))
    if refused_too_late:
        for id_ in stuck:
            if id_ in waiting:
                found.append(Violation("no-starvation", f"{id_} waits for ever behind {', '.join(refused_too_late)}", at))
    return found


@define
class ProgressMonitor:
    """Progress properties of a linear run.

    Attributes:
        lasso: the first lasso found, once there is one.
        exercised: how often each property met its subject.
    """

    engine: Engine
    lasso: LassoShape | None = None
    exercised: Counter[str] = field(factory=Counter)
    cycle: list[StepReport] = field(factory=list)
    """Reports of the steps on the cycle of ``lasso``."""
    _servable: dict[str, bool] = field(factory=dict)
    _seen: dict[bytes, int] = field(factory=dict)
    _since: list[StepReport] = field(factory=list)
    _idle: dict[int, StepReport] = field(factory=dict)
    """The last pass of each worker, since one had an effect."""
    _high_water: dict[str, int] = field(factory=dict)
    _preempted: dict[str, int] = field(factory=dict)
    _actions: int = 0

    def submitted(self, id_: str, servable: bool) -> None:
        """A request arrived; ``servable`` as the engine says."""
        self._servable[id_] = servable
        self.exercised["unservable-refused" if not servable else "servable-finishes"] += 1

    def observe(self, report: StepReport) -> list[Violation]:
        """Violations established by the action just applied."""
        self._actions += 1
        found = self._refusals(report)
        found += self._preemptions(report)
        ended = [id_ for id_ in report.finished if id_ not in report.handed_over]
        for id_ in (*ended, *report.rejected, *report.cancelled):
            self._servable.pop(id_, None)
            self._high_water.pop(id_, None)
        if not isinstance(report.action, Step | Advance) or report.made_progress:
            self._restart()
            return found
        if parts.STATE not in self.engine.observes or self.lasso is not None:
            return found
        return found + self._recurrence(report)

    def _restart(self) -> None:
        self._seen.clear()
        self._since.clear()
        self._idle.clear()

    def _recurrence(self, report: StepReport) -> list[Violation]:
        engine = self.engine
        if not engine.busy or any(is_owed(action) for action in engine.choices()):
            # Idle, or the next move is not the engine's.
            self._restart()
            return []
        self.exercised["no-stall"] += 1
        self.exercised["no-livelock"] += 1
        self._since.append(report)
        due = any(view.next_deadline_ns is not None for view in engine.views(blocks=False))
        if not report.is_pass:
            # Time alone makes no cycle: there is a pass on each.
            self._idle.clear()
            return []
        at_work = set(engine.at_work())
        if not report.had_effect and not any(kind == DEFERRED for kind, _ in report.notes):
            # A pass that finds nothing to do, while something is due, says no more than that it is time to advance.
            self._idle[report.worker] = report
            stuck = not due and at_work <= self._idle.keys()
            return self._close(list(self._idle.values()), self._actions - len(self._idle)) if stuck else []
        self._idle.clear()
        state = engine.freeze()
        first = self._seen.setdefault(state, self._actions)
        cycle = self._since[len(self._since) - (self._actions - first) :]
        # A cycle on which a worker that could do something has no turn shows nothing.
        if cycle and at_work <= {turn.worker for turn in cycle if turn.is_pass}:
            return self._close(cycle, first)
        return []

    def _close(self, cycle: Sequence[StepReport], stem: int) -> list[Violation]:
        turns = [Turn.of(report) for report in cycle]
        self.lasso = LassoShape(classify(turns), stem, len(cycle))
        self.cycle = list(cycle)
        views = self.engine.views(blocks=False)
        live = {id_: self._servable.get(id_, True) for view in views for id_ in view.requests}
        waiting = [id_ for view in views for id_ in view.waiting]
        return judge_lasso(turns, live, waiting, self._actions)

    def _refusals(self, report: StepReport) -> list[Violation]:
        found = []
        for id_ in report.rejected:
            if self._servable.get(id_):
                found.append(Violation("servable-finishes", f"{id_} can be served here and was refused", self._actions))
        for id_ in report.finished:
            if self._servable.get(id_) is False and id_ not in report.handed_over:
                found.append(Violation("unservable-refused", f"{id_} finished, though it cannot be served here", self._actions))
        return found

    def _preemptions(self, report: StepReport) -> list[Violation]:
        advanced = report.made_progress
        for work in report.work.values():
            reached = work.prefix_tokens + work.total if work.prompt_tokens else work.length
            if reached > self._high_water.get(work.id, 0):
                self._high_water[work.id] = reached
                advanced = True
        if advanced:
            self._preempted.clear()
        found = []
        for preemption in report.preemptions:
            self.exercised["bounded-preemption"] += 1
            count = self._preempted[preemption.victim] = self._preempted.get(preemption.victim, 0) + 1
            if count == 2:
                message = f"{preemption.victim} was preempted twice with nothing new computed or produced in between"
                found.append(Violation("bounded-preemption", message, self._actions))
        return found
