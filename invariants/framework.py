"""What an invariant is, and how a suite of them judges a step.

Three kinds:

* **step**: looks at one step, either at the state after it (``state``) or at what the step did between two states (``step``);
* **progress**: looks at a path (``invariants.progress``);
* **cost**: looks at ghost counts; checked like a step invariant.

An invariant never looks inside an engine. It gets views and a report and returns what it found:

* a string: broken, and why;
* ``True``: it met its subject, and holds;
* ``None``: nothing in this step concerned it.

So one call tells violations and how often each invariant was *exercised*; one that never met its subject is vacuous and is
reported so. An invariant names the parts of an engine it reads; where an engine does not show one of them it is *not
observable*, and never counts as held. One id may stand for several checks, each over what some engines show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from attrs import define, field, frozen

from model.actions import Action
from model.config import EngineConfig
from model.events import StepReport
from model.views import EngineView

Found = str | bool | None

STEP = "step"
PROGRESS = "progress"
COST = "cost"


@define
class Transition:
    """One step of one worker, as invariants see it.

    Attributes:
        config: configuration of the worker.
        before, after: views around the step.
        action: what was asked.
        report: what it did.
    """

    config: EngineConfig
    before: EngineView
    report: StepReport
    after: EngineView

    @property
    def action(self) -> Action:
        """What was asked."""
        return self.report.action


StateCheck = Callable[[EngineView, EngineConfig], Found]
StepCheck = Callable[[Transition], Found]


@frozen
class Invariant:
    """One check under an id.

    Attributes:
        id: as reports and case files use it.
        kind: ``step``, ``progress`` or ``cost``.
        statement: what holds, in a sentence.
        source: where the rule comes from.
        catches: defects it is expected to catch.
        needs: the parts of an engine it reads.
        applies: configurations it speaks of.
        state: the check, when it looks at a state.
        step: the check, when it looks at a step.
    """

    id: str
    kind: str
    statement: str
    source: str
    catches: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()
    applies: Callable[[EngineConfig], bool] = lambda config: True
    state: StateCheck | None = None
    step: StepCheck | None = None


CATALOGUE: list[Invariant] = []
"""Every invariant, in the order of declaration."""


def declare(invariant: Invariant) -> None:
    """Add an invariant to the catalogue."""
    CATALOGUE.append(invariant)


def known_ids() -> tuple[str, ...]:
    """The ids of the catalogue, each once, in the order of declaration."""
    return tuple(dict.fromkeys(invariant.id for invariant in CATALOGUE))


def _always(_: EngineConfig) -> bool:
    return True


def on_state(
    id: str,
    statement: str,
    source: str,
    *,
    needs: Iterable[str],
    catches: Iterable[str] = (),
    applies: Callable[[EngineConfig], bool] = _always,
    kind: str = STEP,
) -> Callable[[StateCheck], StateCheck]:
    """Declare the decorated function as an invariant over single states."""

    def register(check: StateCheck) -> StateCheck:
        declare(Invariant(id, kind, statement, source, tuple(catches), frozenset(needs), applies, state=check))
        return check

    return register


def on_step(
    id: str,
    statement: str,
    source: str,
    *,
    needs: Iterable[str],
    catches: Iterable[str] = (),
    applies: Callable[[EngineConfig], bool] = _always,
    kind: str = STEP,
) -> Callable[[StepCheck], StepCheck]:
    """Declare the decorated function as an invariant over steps."""

    def register(check: StepCheck) -> StepCheck:
        declare(Invariant(id, kind, statement, source, tuple(catches), frozenset(needs), applies, step=check))
        return check

    return register


@frozen
class Violation:
    """A broken invariant.

    Attributes:
        invariant: its id.
        message: what was found, in the field's words.
        at: number of the action that broke it, counted from 1; 0 where that is not known.
        worker: the engine of a system that broke it.
    """

    invariant: str
    message: str
    at: int = 0
    worker: int = 0


@define
class Suite:
    """The invariants that speak of one configuration and can be observed, ready to judge.

    Attributes:
        config: configuration of the worker judged.
        not_observable: ids none of whose checks can be made, because the engine does not show what they read.
    """

    config: EngineConfig
    not_observable: tuple[str, ...] = ()
    # Checks by number: which id each belongs to, and how often it met its subject. A list is faster to count in than a Counter.
    _ids: list[str] = field(factory=list)
    _met: list[int] = field(factory=list)
    _states: list[tuple[int, StateCheck]] = field(factory=list)
    _steps: list[tuple[int, StepCheck]] = field(factory=list)

    @classmethod
    def of(cls, config: EngineConfig, observes: frozenset[str], only: Iterable[str] | None = None) -> Suite:
        """The suite for an engine with ``config`` that shows the parts ``observes``; all ids, or ``only`` some."""
        wanted = None if only is None else set(only)
        suite = cls(config)
        seen: dict[str, bool] = {}
        for invariant in CATALOGUE:
            if (wanted is not None and invariant.id not in wanted) or not invariant.applies(config):
                continue
            visible = invariant.needs <= observes
            seen[invariant.id] = seen.get(invariant.id, False) or visible
            if visible and invariant.state is not None:
                suite._states.append((suite._number(invariant.id), invariant.state))
            if visible and invariant.step is not None:
                suite._steps.append((suite._number(invariant.id), invariant.step))
        suite.not_observable = tuple(id_ for id_, visible in seen.items() if not visible)
        return suite

    def _number(self, id_: str) -> int:
        self._ids.append(id_)
        self._met.append(0)
        return len(self._ids) - 1

    @property
    def exercised(self) -> Counter[str]:
        """How often each id met its subject; ids that never did are left out."""
        counts: Counter[str] = Counter()
        for id_, met in zip(self._ids, self._met, strict=True):
            if met:
                counts[id_] += met
        return counts

    def judge_state(self, view: EngineView) -> Sequence[Violation]:
        """Violations of a single state."""
        found: list[Violation] = []
        config, met = self.config, self._met
        for number, check in self._states:
            result = check(view, config)
            if result is True:
                met[number] += 1
            elif result is not None and result is not False:
                met[number] += 1
                found.append(Violation(self._ids[number], result, worker=view.worker))
        return found

    def judge_step(self, transition: Transition) -> Sequence[Violation]:
        """Violations of a step, the state after it not included."""
        found: list[Violation] = []
        met = self._met
        for number, check in self._steps:
            result = check(transition)
            if result is True:
                met[number] += 1
            elif result is not None and result is not False:
                met[number] += 1
                found.append(Violation(self._ids[number], result, worker=transition.after.worker))
        return found
