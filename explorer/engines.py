"""An engine and a fixed workload as a transition system.

A state is which requests have arrived, as a bit mask, followed by the frozen engine. The edges out of it, in this order:

* ``submit``: any request that has not arrived (of several alike only the next, since they differ in name alone);
* ``cancel``: any live request, where the workload allows it;
* ``choices`` of the engine: ends of transfers, answers of other workers, mishaps;
* ``step``: a scheduler pass of each worker, once for every choice of accepted drafts. Who may choose is found by a pass that
  accepts all drafts: it is those that emit more than one token in it, since room is reserved for the largest burst whatever is
  accepted. Where there are several workers, or choices, a pass that does nothing is left out if anything else is sure to come.
* ``advance``: to the next deadline, where one is due.

A label is the code of the action, doubled, plus one when the edge is progress: input from outside (a mishap is), or a token,
completion or refusal. So a cycle without progress consists of passes, deadlines and what the engine is owed. Fair are the passes
of each worker, deadlines, and what is owed.

Everything is judged while the edges are computed, on the live engine and not on the thawed one, so that what freezing would
normalise away (a leaked reservation, a wrong count) is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from attrs import evolve

import invariants.monitor  # noqa: F401  (declares the invariants)
from explorer.findings import Lasso
from explorer.system import Problem
from invariants.framework import Suite, Transition, Violation
from invariants.progress import LassoShape, Turn, classify, judge_lasso
from model.actions import HANDOFF_VERBS, Action, Advance, Cancel, Handoff, Step, Submit, is_owed
from model.engine import Engine
from model.errors import BadInput
from model.events import StepReport
from model.requests import RequestSpec
from model.views import EngineView

BY_ITSELF = (Step, Advance, Handoff)
"""Actions that are no input from outside, unless they are mishaps."""


def _alike(requests: Sequence[RequestSpec]) -> list[int | None]:
    """For each request the nearest one before it that differs from it in name alone; None without one.

    Names make the tokens that a request produces, so one whose output some prompt contains is like no other.
    """
    prompted = {token for request in requests for token, _ in request.prompt.runs}
    nearest: dict[tuple[object, ...], int] = {}
    found: list[int | None] = []
    for number, request in enumerate(requests):
        if any(request.output_token(position) in prompted for position in range(request.output)):
            found.append(None)
            continue
        kind = (request.prompt, request.output, request.output_tokens)
        found.append(nearest.get(kind))
        nearest[kind] = number
    return found


class EngineSystem:
    """See the module docstring.

    Attributes:
        problems: what judging found; the search takes it from here.
        suites: the invariants in use, one suite per worker, with how often each was exercised.
    """

    label_limit = 1 << 32

    def __init__(
        self, engine: Engine, requests: Sequence[RequestSpec], *, cancel: bool = False, only: Iterable[str] | None = None
    ) -> None:
        """Explore ``engine``, idle, under ``requests``.

        Args:
            engine: as built; it is not changed.
            requests: the workload; they arrive in any order.
            cancel: live requests may be cancelled.
            only: judge these invariant ids alone.
        """
        self.problems: list[Problem] = []
        self.engine = engine
        self.requests = tuple(requests)
        self.cancel = cancel
        self.suites = [Suite.of(config, engine.observes, only) for config in engine.configs()]
        self.servable = {request.id: engine.servable(request) for request in requests}
        # Numbers are given in the order of the workload, so that equal states freeze alike whatever arrived first.
        for request in requests:
            engine.registry.number(request)
        self._bytes = (len(requests) + 7) // 8 or 1
        self._alike = _alike(self.requests)
        speculation = engine.config.speculation
        self._base = 1 + (speculation.draft_tokens if speculation else 0)
        self._workers = len(self.suites)
        self._cancel_code = len(requests)
        self._choice_code = 2 * len(requests)
        self._advance_code = self._choice_code + len(HANDOFF_VERBS) * len(requests)
        self._step_code = self._advance_code + 1
        self._step_codes: int = self._base ** len(requests)
        """How many codes the passes of one worker take."""
        self._numbers = {request.id: number for number, request in enumerate(self.requests)}
        self._submits = [Submit(request) for request in self.requests]
        self._cancels = [Cancel(request.id) for request in self.requests]
        self._weights = {request.id: self._base**number for number, request in enumerate(self.requests)}
        self._all_arrived = (1 << len(self.requests)) - 1

    def initial_states(self) -> Iterable[bytes]:
        """The idle engine with nothing arrived."""
        return (bytes(self._bytes) + self.engine.freeze(),)

    def _thawed(self, state: bytes) -> Engine:
        return self.engine.thaw(state[self._bytes :])

    def successors(self, state: bytes) -> list[tuple[int, bytes]]:
        """All edges out of a state, each judged."""
        head = state[: self._bytes]
        frozen = state[self._bytes :]
        mask = int.from_bytes(head, "little")
        thaw = self.engine.thaw
        source = thaw(frozen)
        before = source.views()
        edges: list[tuple[int, bytes]] = []
        if mask != self._all_arrived:
            for number, submit in enumerate(self._submits):
                alike = self._alike[number]
                if mask >> number & 1 or (alike is not None and not mask >> alike & 1):
                    continue
                arrived = (mask | 1 << number).to_bytes(self._bytes, "little")
                self._edge(edges, thaw(frozen), before, number, submit, arrived)
        due = any(view.next_deadline_ns is not None for view in before)
        live = source.live()
        if self.cancel:
            for id_ in live:
                number = self._numbers[id_]
                self._edge(edges, thaw(frozen), before, self._cancel_code + number, self._cancels[number], head)
        choices = source.choices()
        for choice in choices:
            assert isinstance(choice, Handoff)
            self._edge(edges, thaw(frozen), before, self._choice_number(choice), choice, head)
        if live or (self._workers > 1 and source.busy):
            sure = due or any(is_owed(choice) for choice in choices)
            for worker in range(self._workers):
                self._passes(edges, frozen, before, thaw(frozen) if worker else source, head, worker)
            if self._workers > 1 or choices:
                self._leave_idle_out(edges, state, sure)
        if due:
            self._edge(edges, thaw(frozen), before, self._advance_code, Advance(), head)
        return edges

    def _choice_number(self, choice: Handoff) -> int:
        return self._choice_code + HANDOFF_VERBS.index(choice.verb) * len(self.requests) + self._numbers[choice.id]

    def _leave_idle_out(self, edges: list[tuple[int, bytes]], state: bytes, sure: bool) -> None:
        """Take out the passes that lead back to ``state``, if other passes do not or something else is sure to come.

        What they broke stays told: of an action that leads nowhere.
        """
        idle = [label // 2 >= self._step_code and target == state for label, target in edges]
        passes = sum(label // 2 >= self._step_code for label, _ in edges)
        if not any(idle) or (sum(idle) == passes and not sure):
            return
        places: list[int | None] = []
        kept = 0
        for is_idle in idle:
            places.append(None if is_idle else kept)
            kept += not is_idle
        for number, problem in enumerate(self.problems):
            if problem.successor is not None:
                self.problems[number] = evolve(problem, successor=places[problem.successor])
        edges[:] = [edge for edge, is_idle in zip(edges, idle, strict=True) if not is_idle]

    def _passes(
        self,
        edges: list[tuple[int, bytes]],
        frozen: bytes,
        before: Sequence[EngineView],
        source: Engine,
        head: bytes,
        worker: int,
    ) -> None:
        """The passes of a worker. ``source`` is used up by the first; every other edge has a copy of its own."""
        choosers = source.speculating()
        greedy = dict.fromkeys(choosers, self._base - 1)
        report = self._edge(edges, source, before, self._code(greedy, worker), Step(greedy, worker), head)
        if not choosers or report is None:
            return
        emitted = report.emitted
        most = {id_: emitted[id_] - 1 for id_ in choosers if emitted.get(id_, 0) > 1}
        for choice in product(*(range(count + 1) for count in most.values())):
            accepted = dict(zip(most, choice, strict=True))
            if accepted == most:
                continue
            code = self._code(accepted, worker)
            self._edge(edges, self.engine.thaw(frozen), before, code, Step(accepted, worker), head)

    def _code(self, accepted: dict[str, int], worker: int) -> int:
        code = self._step_code + worker * self._step_codes
        for id_, count in accepted.items():
            code += count * self._weights[id_]
        return code

    def _edge(
        self,
        edges: list[tuple[int, bytes]],
        engine: Engine,
        before: Sequence[EngineView],
        code: int,
        action: Action,
        head: bytes,
    ) -> StepReport | None:
        """Apply ``action`` to ``engine``, a copy of the state, judge it, and append the edge."""
        try:
            report = engine.apply(action)
        except BadInput:
            return None
        after = engine.views()
        problems: list[Violation] = []
        for worker, suite in enumerate(self.suites):
            if after[worker] is not before[worker]:
                problems += suite.judge_state(after[worker])
            if worker == report.worker:
                problems += suite.judge_step(Transition(suite.config, before[worker], report, after[worker]))
        if report.signals:
            problems += self._judge_endings(report)
        progress = report.made_progress or not (isinstance(action, BY_ITSELF) and is_owed(action))
        label = 2 * code + progress
        for violation in problems:
            self.problems.append(Problem(violation.invariant, violation.message, label, len(edges)))
        edges.append((label, head + engine.freeze()))
        return report

    def _judge_endings(self, report: StepReport) -> list[Violation]:
        """Refusals of requests that can be served, and completions of those that cannot."""
        found = []
        for id_ in report.rejected:
            if self.servable.get(id_):
                found.append(Violation("servable-finishes", f"{id_} can be served here and was refused"))
        for id_ in report.finished:
            if self.servable.get(id_) is False and id_ not in report.handed_over:
                found.append(Violation("unservable-refused", f"{id_} finished, though it cannot be served here"))
        return found

    def is_progress(self, label: int) -> bool:
        """Input from outside, a token, a completion or a refusal."""
        return bool(label & 1)

    def fairness(self, label: int) -> int | None:
        """Passes of every worker go on for ever; deadlines come, and so does what is owed."""
        code = label // 2
        if code >= self._step_code:
            return 2 + (code - self._step_code) // self._step_codes
        if code == self._advance_code:
            return 1
        return 0 if code >= self._choice_code and is_owed(self.action(label)) else None

    def is_goal(self, state: bytes) -> bool:
        """No live request, and nothing due."""
        return not self._thawed(state).busy

    def drain(self, state: bytes) -> tuple[int, bytes] | None:
        """What is owed; else the first pass that does anything, accepting what the configuration says; else the next deadline."""
        engine = self._thawed(state)
        if not engine.busy:
            return None
        owed = [choice for choice in engine.choices() if is_owed(choice)]
        if owed:
            assert isinstance(owed[0], Handoff)
            report = engine.apply(owed[0])
            return 2 * self._choice_number(owed[0]) + report.made_progress, state[: self._bytes] + engine.freeze()
        for worker in range(self._workers):
            report = engine.apply(Step(worker=worker))
            following = state[: self._bytes] + engine.freeze()
            if report.had_effect or following != state:
                return 2 * (self._step_code + worker * self._step_codes) + report.made_progress, following
        if any(view.next_deadline_ns is not None for view in engine.views(blocks=False)):
            report = engine.apply(Advance())
            return 2 * self._advance_code + report.made_progress, state[: self._bytes] + engine.freeze()
        return 2 * self._step_code, state

    def action(self, label: int) -> Action:
        """The action that a label stands for."""
        code = label // 2
        if code < self._cancel_code:
            return self._submits[code]
        if code < self._choice_code:
            return self._cancels[code - self._cancel_code]
        if code < self._advance_code:
            verb, number = divmod(code - self._choice_code, len(self.requests))
            return Handoff(HANDOFF_VERBS[verb], self.requests[number].id)
        if code == self._advance_code:
            return Advance()
        accepted = {}
        worker, code = divmod(code - self._step_code, self._step_codes)
        speculating = self._base > 1
        for request in self.requests if speculating else ():
            code, count = divmod(code, self._base)
            accepted[request.id] = count
        return Step(accepted, worker)

    def describe(self, label: int) -> str:
        """The action of a label in words."""
        action = self.action(label)
        if isinstance(action, Submit):
            return f"submit {action.request.id}"
        if isinstance(action, Cancel):
            return f"cancel {action.id}"
        if isinstance(action, Advance):
            return "advance to the next deadline"
        if isinstance(action, Handoff):
            return f"{action.verb.replace('_', ' ')} {action.id}"
        assert isinstance(action, Step)
        chosen = ", ".join(f"{id_} accepts {count}" for id_, count in action.accepted.items() if count)
        name = "pass" if self._workers == 1 else f"{self.engine.configs()[action.worker].role} pass"
        return f"{name} ({chosen})" if chosen else name

    def judge(self, lasso: Lasso[bytes]) -> tuple[LassoShape, list[Violation]]:
        """What a lasso amounts to: its kind, and the violations, by going round it once more."""
        engine = self._thawed(lasso.entry)
        cycle = [self.action(label) for label, _ in lasso.cycle] or [Step()]
        turns = [Turn.of(engine.apply(action)) for action in cycle]
        views = engine.views(blocks=False)
        live = {id_: self.servable[id_] for view in views for id_ in view.requests}
        waiting = [id_ for view in views for id_ in view.waiting]
        at = len(lasso.stem) + len(cycle)
        shape = LassoShape(classify(turns), len(lasso.stem), len(cycle))
        return shape, [evolve(violation, at=at) for violation in judge_lasso(turns, live, waiting, at)]
