"""A state machine that drives any engine, judged by all invariants, and the fuzzer built on it.

The machine draws a configuration, then submits, cancels, runs passes (choosing accepted drafts), lets deadlines fall due and
transfers end or fail, in any order; Hypothesis leaves out a drawn subset of the rules in each run, so that runs differ in kind.
At the end there is no more input, and the engine has to come to rest: the drain phase. It knows nothing of any scheduler or
defect.

A failure is a case: the configuration and the actions, ready to be written as a file and replayed without Hypothesis.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from attrs import define, field, frozen
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings, target
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from invariants.framework import Violation
from invariants.monitor import Monitor
from invariants.progress import LassoShape
from model.actions import Action, Advance, Cancel, Step, Submit
from model.build import build_engine
from model.case import Case, Drain, Expectation, as_items
from model.config import EngineConfig
from model.engine import Engine
from model.requests import Prompt, RequestSpec
from strategies.configs import engine_configs
from strategies.shrink import drain, run_items, shrunk
from strategies.workloads import outputs, prompts

MOST_REQUESTS = 5
DRAIN_PASSES = 10_000
"""More than any drain of the drawn sizes takes: a drain ends idle, or in a lasso, long before."""


class InvariantBroken(AssertionError):
    """Raised by the machine when something broke; carries the case."""

    def __init__(self, failure: Failure) -> None:
        """For ``failure``."""
        super().__init__("; ".join(f"{violation.invariant}: {violation.message}" for violation in failure.violations))
        self.failure = failure


@frozen
class Failure:
    """What a run broke, and how to see it again.

    Attributes:
        case: the configuration and actions, expecting the violations.
        violations: everything that broke.
        lasso: the shape of the cycle, when there is one.
    """

    case: Case
    violations: tuple[Violation, ...]
    lasso: LassoShape | None = None


@define
class Tally:
    """Counts over all runs of a machine.

    Attributes:
        examples: runs started.
        rules: actions applied, the drain included.
        first_failure: the number of the run that failed first.
        exercised: how often each invariant met its subject.
        failure: of the last run that failed; once shrinking is over, the smallest.
    """

    examples: int = 0
    rules: int = 0
    first_failure: int | None = None
    exercised: Counter[str] = field(factory=Counter)
    failure: Failure | None = None


class EngineMachine(RuleBasedStateMachine):
    """See the module docstring. Use ``machine_for`` to get one for given configurations."""

    configs: st.SearchStrategy[EngineConfig]
    build: Callable[[EngineConfig], Engine]
    tally: Tally
    ignored: frozenset[str] = frozenset()

    def __init__(self) -> None:
        """A machine whose engine is not drawn yet."""
        super().__init__()
        self.monitor: Monitor | None = None
        self.actions: list[Action] = []
        self.ids: list[str] = []
        self.preempted = 0
        self.most_waiting = 0
        self.tally.examples += 1

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """Draw the configuration."""
        config = data.draw(self.configs)
        self.monitor = Monitor(type(self).build(config))

    def _apply(self, action: Action) -> None:
        assert self.monitor is not None
        self.actions.append(action)
        report = self.monitor.apply(action)
        self.tally.rules += 1
        self.preempted += len(report.preemptions)
        self._judge()

    def _judge(self, drained: bool = False) -> None:
        monitor = self.monitor
        assert monitor is not None
        broken = tuple(violation for violation in monitor.violations if violation.invariant not in self.ignored)
        if not broken:
            return
        ids = tuple(dict.fromkeys(violation.invariant for violation in broken))
        items = as_items(self.actions)
        if drained:
            items += (Drain(DRAIN_PASSES),)
        case = Case(
            engine=monitor.engine.config,
            actions=items,
            title=f"{broken[0].invariant}: {broken[0].message}",
            source="fuzzing",
            expect=Expectation(violates=ids),
        )
        failure = Failure(case, broken, monitor.progress.lasso)
        self.tally.failure = failure
        if self.tally.first_failure is None:
            self.tally.first_failure = self.tally.examples
        raise InvariantBroken(failure)

    @precondition(lambda self: len(self.ids) < MOST_REQUESTS)
    @rule(prompt=prompts(), output=outputs())
    def submit(self, prompt: Prompt, output: int) -> None:
        """A request arrives."""
        id_ = f"r{len(self.ids)}"
        self.ids.append(id_)
        self._apply(Submit(RequestSpec(id_, prompt, output)))

    @rule()
    def step(self) -> None:
        """One pass; everybody accepts what the configuration says."""
        self._apply(Step())

    @precondition(lambda self: self.monitor is not None and len(self.monitor.engine.configs()) > 1)
    @rule()
    def step_other(self) -> None:
        """One pass of the second worker."""
        self._apply(Step(worker=1))

    @precondition(lambda self: self.monitor is not None and bool(self.monitor.engine.choices()))
    @rule(number=st.integers(0, 2 * MOST_REQUESTS))
    def go_on(self, number: int) -> None:
        """Something happens around the engine: a transfer ends or fails, an answer comes."""
        assert self.monitor is not None
        choices = self.monitor.engine.choices()
        self._apply(choices[number % len(choices)])

    @rule(count=st.integers(2, 6))
    def steps(self, count: int) -> None:
        """Some passes in a row, of every worker that has something left."""
        assert self.monitor is not None
        for _ in range(count):
            for worker in self.monitor.engine.at_work() or (0,):
                self._apply(Step(worker=worker))

    @precondition(lambda self: self.monitor is not None and bool(self.monitor.engine.speculating()))
    @rule(accepted=st.lists(st.integers(0, 3), min_size=1, max_size=MOST_REQUESTS))
    def choose(self, accepted: list[int]) -> None:
        """One pass with a choice of accepted drafts for each request that may have some."""
        assert self.monitor is not None
        engine = self.monitor.engine
        speculation = engine.config.speculation
        assert speculation is not None
        counts = (min(count, speculation.draft_tokens) for count in accepted)
        chosen = dict(zip(sorted(engine.speculating()), counts, strict=False))
        # Drafts are accepted where tokens are decoded: of several workers, by the last.
        self._apply(Step(chosen, len(engine.configs()) - 1))

    @precondition(lambda self: bool(self.ids))
    @rule(number=st.integers(0, MOST_REQUESTS - 1))
    def cancel(self, number: int) -> None:
        """Withdraw a request, live or ended."""
        self._apply(Cancel(self.ids[number % len(self.ids)]))

    @precondition(lambda self: self.monitor is not None and _due(self.monitor.engine))
    @rule()
    def advance(self) -> None:
        """The next deadline falls due."""
        self._apply(Advance())

    def teardown(self) -> None:
        """The drain phase: no more input, and the engine comes to rest."""
        monitor = self.monitor
        if monitor is None or monitor.violations:
            return
        engine = monitor.engine
        self.most_waiting = max(len(view.waiting) for view in engine.views(blocks=False))
        before = monitor.applied
        at_rest = drain(monitor, DRAIN_PASSES)
        self.tally.rules += monitor.applied - before
        self._judge(drained=True)
        assert at_rest, f"still busy after {DRAIN_PASSES} passes"
        self.tally.exercised.update(monitor.exercised)
        # Pressure is where faults are: steer towards preemptions and long queues.
        target(float(self.preempted), label="preemptions")
        target(float(self.most_waiting), label="requests left waiting")


def _due(engine: Engine) -> bool:
    return any(view.next_deadline_ns is not None for view in engine.views(blocks=False))


def machine_for(
    configs: st.SearchStrategy[EngineConfig],
    *,
    build: Callable[[EngineConfig], Engine] = build_engine,
    ignored: Iterable[str] = (),
) -> type[EngineMachine]:
    """A machine class of its own for ``configs``.

    Args:
        configs: the configurations to draw from.
        build: from configuration to engine.
        ignored: invariant ids that do not fail a run.
    """
    members: dict[str, Any] = {
        "configs": configs,
        "build": staticmethod(build),
        "tally": Tally(),
        "ignored": frozenset(ignored),
    }
    return type("FuzzedEngine", (EngineMachine,), members)


@frozen
class FuzzResult:
    """What a fuzzing run showed.

    Attributes:
        verdict: ``violated``, ``holds`` (all examples were run) or ``unknown`` (interrupted, or out of time).
        examples: runs made, those of shrinking included.
        found_after: runs until the first failure, the failing one included.
        rules: actions applied.
        seconds: elapsed time.
        failure: the shrunk failure.
        exercised: how often each invariant met its subject in runs that held.
    """

    verdict: str
    examples: int
    found_after: int | None
    rules: int
    seconds: float
    failure: Failure | None
    exercised: Counter[str]

    def to_json(self) -> dict[str, Any]:
        """As ``infercheck fuzz --json`` prints it."""
        failure = self.failure
        return {
            "verdict": self.verdict,
            "examples": self.examples,
            "found_after": self.found_after,
            "rules": self.rules,
            "seconds": round(self.seconds, 3),
            "violations": []
            if failure is None
            else [{"invariant": item.invariant, "at": item.at, "message": item.message} for item in failure.violations],
            "case": None if failure is None else failure.case.to_json(),
            "exercised": dict(sorted(self.exercised.items())),
        }


def _smallest(failure: Failure, build: Callable[[EngineConfig], Engine]) -> Failure:
    """The failure with its case cut down by ``strategies.shrink``."""
    case = shrunk(failure.case, failure.violations[0].invariant, build)
    monitor = run_items(build(case.engine), case.actions)
    return Failure(case, tuple(monitor.violations), monitor.progress.lasso)


class _OutOfTime(KeyboardInterrupt):
    """Ends a run of Hypothesis from inside: nothing but an interrupt does."""


def fuzz(
    scheduler: str = "vllm",
    *,
    defects: Iterable[str] = (),
    examples: int = 1000,
    seed_value: int = 0,
    steps: int = 20,
    speculation: bool | None = None,
    ignored: Iterable[str] = (),
    build: Callable[[EngineConfig], Engine] = build_engine,
    configs: st.SearchStrategy[EngineConfig] | None = None,
    seconds: float | None = None,
    progress: Callable[[Tally], None] | None = None,
) -> FuzzResult:
    """Run the general machine until something breaks, and shrink it.

    The result is a function of the arguments alone, unless ``seconds`` or Ctrl-C cuts the run off.

    Args:
        scheduler: whose configurations are drawn, unless ``configs`` gives them.
        defects: ids switched on.
        examples: runs to make before shrinking.
        seed_value: of the random choices.
        steps: rules of a run, at most.
        speculation: always, never, or (None) both.
        ignored: invariant ids that do not fail a run.
        build: from configuration to engine.
        configs: configurations to draw from.
        seconds: limit on elapsed time.
        progress: called with the counts every hundred runs.
    """
    drawn = configs if configs is not None else engine_configs(scheduler, defects=defects, speculation=speculation)
    machine = machine_for(drawn, build=build, ignored=ignored)
    tally = machine.tally
    began = time.perf_counter()

    def started() -> EngineMachine:
        if seconds is not None and time.perf_counter() - began > seconds:
            raise _OutOfTime
        if progress is not None and tally.examples % 100 == 0:
            progress(tally)
        return machine()

    options = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.target, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    verdict = "holds"
    try:
        run_state_machine_as_test(seed(seed_value)(started), settings=options)  # type: ignore[arg-type]
    except InvariantBroken:
        verdict = "violated"
    except KeyboardInterrupt:
        verdict = "unknown" if tally.failure is None else "violated"
    except Flaky as error:
        raise RuntimeError("an engine did not behave the same twice under the same actions") from error
    if tally.failure is not None:
        # A run cut off while shrinking leaves a failure that is real and larger than need be; this makes it smaller too.
        tally.failure = _smallest(tally.failure, build)
    return FuzzResult(
        verdict, tally.examples, tally.first_failure, tally.rules, time.perf_counter() - began, tally.failure, tally.exercised
    )
