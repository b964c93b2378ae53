"""The fuzzer of replays: any trace, any mode, judged by all invariants over replays.

It knows nothing of the defects it looks for: they are switched on in the engine configuration, and what it finds is whatever
an invariant says. A failure is a case, ready to be written as a file and replayed without Hypothesis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from attrs import define, field, frozen
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from invariants.framework import Violation
from invariants.replay import ReplayMonitor
from model.case import Case, Expectation
from model.config import EngineConfig
from model.replay import config as formats
from model.replay.config import ReplayConfig
from model.replay.run import run_replay
from strategies.traces import replays

MOST_PASSES = 2_000
"""More than any drawn trace takes; a run that reaches it has come to no end."""


@frozen
class ReplayFailure:
    """What a replay broke, and how to see it again.

    Attributes:
        replay: the replay.
        engine: its engines.
        violations: everything that broke.
    """

    replay: ReplayConfig
    engine: EngineConfig
    violations: tuple[Violation, ...]

    @property
    def requests(self) -> int:
        """Rows of the trace that are requests."""
        rows = len(self.replay.rows or ())
        return rows - 1 if self.replay.format == formats.AGENTIC else rows

    def case(self) -> Case:
        """The replay as a case that expects what broke."""
        ids = tuple(dict.fromkeys(violation.invariant for violation in self.violations))
        return Case(self.engine, title="found by fuzzing replays", expect=Expectation(violates=ids), replay=self.replay.to_json())


@define
class ReplayFuzzResult:
    """What a fuzzing run showed.

    Attributes:
        examples: replays run, those of shrinking included.
        found_after: replays until the first failure, the failing one included; None when all held.
        failure: the shrunk failure.
        exercised: how often each invariant met its subject.
    """

    examples: int = 0
    found_after: int | None = None
    failure: ReplayFailure | None = None
    exercised: Counter[str] = field(factory=Counter)


class _Broken(AssertionError):
    """Some invariant broke."""


def judge_replay(replay: ReplayConfig, engine: EngineConfig) -> ReplayMonitor:
    """Run a replay under all its invariants.

    Raises:
        BadInput: for a trace that cannot be used.
    """
    monitor = ReplayMonitor()
    run_replay(replay, engine, monitor)
    return monitor


def fuzz_replays(defects: Iterable[str] = (), *, examples: int = 300, seed_value: int = 0) -> ReplayFuzzResult:
    """Draw replays until something breaks, and shrink it.

    Args:
        defects: ids switched on.
        examples: replays to run before shrinking.
        seed_value: of the random choices; equal seeds give equal results.
    """
    result = ReplayFuzzResult()

    @seed(seed_value)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(replays(defects))
    def run(drawn: tuple[ReplayConfig, EngineConfig]) -> None:
        replay, engine = drawn
        result.examples += 1
        monitor = judge_replay(replay, engine)
        result.exercised.update(monitor.exercised)
        if monitor.violations:
            if result.found_after is None:
                result.found_after = result.examples
            result.failure = ReplayFailure(replay, engine, tuple(monitor.violations))
            raise _Broken(monitor.violations[0].message)

    try:
        run()
    except _Broken:
        assert result.failure is not None
    return result
