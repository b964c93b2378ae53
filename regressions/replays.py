"""Replays under all invariants: a trace through engines of which each action is judged, and the replay around them.

The replay itself (``model.replay``) knows nothing of invariants. It is given engines that hand every action to a monitor and
otherwise are the engines they watch, and an observer that judges arrivals, sessions and the report. A watched engine that has
come to a lasso ends the run: it would go round for ever.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from attrs import define, field

from invariants.framework import Violation
from invariants.monitor import Monitor
from invariants.progress import LassoShape
from invariants.replay import ReplayMonitor
from model.actions import Action
from model.build import build_engine
from model.config import EngineConfig
from model.engine import Engine
from model.events import StepReport
from model.replay.config import ReplayConfig
from model.replay.flat import FlatTrace
from model.replay.loop import Cut, Progress
from model.replay.observe import EngineActed, Observation
from model.replay.run import ReplayResult, load_workload, run_replay
from model.requests import RequestSpec
from model.views import EngineView
from regressions.moments import Moment

LASSO = "lasso"
"""Why a replay stopped whose engine has come to a lasso."""

STUCK = ("dead-end", "livelock")
"""Why a replay stopped that cannot go on although it is not done."""

TOLD = 12
"""Actions kept of each worker of a long replay: those before its first violation, or its last ones."""


class WatchedEngine(Engine):
    """An engine of which every action is judged.

    Attributes:
        monitor: the judge.
        moments: what was done; with ``keep`` the last so many actions, up to the one that first broke something.
    """

    def __init__(self, engine: Engine, keep: int | None = None) -> None:
        """Watch ``engine``; keep all that it does, or ``keep`` actions."""
        self.config = engine.config
        self.registry = engine.registry
        self.observes = engine.observes
        self.monitor = Monitor(engine)
        self.moments: deque[Moment] = deque(maxlen=keep)
        self._engine = engine
        self._keeps_all = keep is None
        self._applied = 0

    def apply(self, action: Action) -> StepReport:
        """Carry out an action and judge it.

        Raises:
            BadInput: as the engine does.
            Cut: when the engine has come to a lasso.
        """
        monitor = self.monitor
        known = len(monitor.violations)
        report = monitor.apply(action)
        self._applied += 1
        if self._keeps_all or not known:
            broken = tuple(monitor.violations[known:])
            self.moments.append(Moment(self._applied, report, self._engine.views(blocks=False), broken))
        if monitor.progress.lasso is not None:
            raise Cut(LASSO)
        return report

    def view(self, blocks: bool = True) -> EngineView:
        """As the engine's."""
        return self._engine.view(blocks)

    def views(self, blocks: bool = True) -> Sequence[EngineView]:
        """As the engine's."""
        return self._engine.views(blocks)

    def configs(self) -> Sequence[EngineConfig]:
        """As the engine's."""
        return self._engine.configs()

    def freeze(self) -> bytes:
        """As the engine's."""
        return self._engine.freeze()

    def thaw(self, state: bytes) -> Engine:
        """As the engine's; what is thawed is not watched."""
        return self._engine.thaw(state)

    @property
    def busy(self) -> bool:
        """As the engine's."""
        return self._engine.busy

    def speculating(self) -> tuple[str, ...]:
        """As the engine's."""
        return self._engine.speculating()

    def servable(self, request: RequestSpec) -> bool:
        """As the engine's."""
        return self._engine.servable(request)


@define
class WatchedReplay:
    """What a replay showed.

    Attributes:
        result: of the replay.
        engines: the workers.
        monitor: the judge of the replay around them.
        violations: what broke, worker by worker, where ``at`` counts the actions of a worker; then in the replay around them.
        incomplete: why the replay was not run to its end, when it was cut off by a limit or from outside.
    """

    result: ReplayResult
    engines: Sequence[WatchedEngine]
    monitor: ReplayMonitor
    violations: list[Violation] = field(factory=list)
    incomplete: str | None = None

    @property
    def lasso(self) -> LassoShape | None:
        """The lasso that ended the run."""
        shapes = [engine.monitor.progress.lasso for engine in self.engines]
        return next((shape for shape in shapes if shape is not None), None)

    @property
    def exercised(self) -> Counter[str]:
        """How often each invariant met its subject."""
        total = Counter(self.monitor.exercised)
        for engine in self.engines:
            total.update(engine.monitor.exercised)
        return total

    @property
    def not_observable(self) -> tuple[str, ...]:
        """Invariants that the engines cannot be judged by."""
        return self.engines[0].monitor.not_observable


def watch_replay(
    config: ReplayConfig,
    engine: EngineConfig,
    *,
    keep: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> WatchedReplay:
    """Replay a trace with every action of every worker judged.

    Args:
        config: the replay.
        engine: each worker.
        keep: actions to keep of each worker; all of them without.
        progress: is told now and then how far the run is.

    Raises:
        BadInput: for a trace or configuration that cannot be used; nothing was admitted then.
    """
    workload = load_workload(config)
    workers = (workload.workers if isinstance(workload, FlatTrace) else None) or config.workers
    engines = [WatchedEngine(build_engine(engine), keep) for _ in range(workers)]
    monitor = ReplayMonitor()
    result = run_replay(config, engine, monitor, progress, workload=workload, engines=engines)
    watched = WatchedReplay(result, engines, monitor)
    for watched_engine in engines:
        watched.violations.extend(watched_engine.monitor.violations)
    watched.violations.extend(monitor.violations)
    if result.stopped in STUCK:
        if not watched.violations:
            watched.violations.append(Violation("no-stall", result.message))
    elif result.stopped not in (None, LASSO):
        watched.incomplete = result.stopped
    return watched


def repeated_reports(config: ReplayConfig, engine: EngineConfig, workers: int) -> list[list[StepReport]]:
    """The reports of a replay by engines that are not watched, worker by worker, in the order of the actions."""
    reports: list[list[StepReport]] = [[] for _ in range(workers)]

    def observer(observation: Observation) -> None:
        if isinstance(observation, EngineActed):
            reports[observation.worker].append(observation.report)

    run_replay(config, engine, observer)
    return reports
