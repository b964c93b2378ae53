"""The event loop in virtual time (replay specification 5): arrivals, passes, outputs, ticks.

Time is a float64 in milliseconds, starting at 0, and every sum is made in the order of the public loop (``start + duration``,
``end + delay``, ``number * (1000 / rate)``), so that its ties are ours. Engines know durations alone: a pass changes the whole
engine when it starts; its duration is that of the engine's own exact clock, and its outputs come out when it ends. Nothing is
ever compared that was summed up in two ways, so no rounding decides but the one of the specification.

An instant, ``drain``, repeats until nothing changes::

    ends of passes → interruptions → arrivals → starts of passes → telemetry → scaling policy

So at equal times an end comes before an arrival, and a pass that starts sees all that has arrived. A pass of no length ends where
it starts, and the round begins anew. Left out: pools that grow and shrink (the policy looks and never scales), disaggregated
stages, deadlines inside engines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import attrs
from attrs import define, field, frozen
from attrs.converters import optional

from model.actions import Action, Cancel, Step, Submit
from model.config import NANOSECONDS_PER_MS
from model.engine import Engine
from model.events import StepReport
from model.replay.accept import AcceptLength, Sample
from model.replay.admission import Admission, Arrival
from model.replay.collector import Collector, RequestRecord, Window
from model.replay.config import Interruption
from model.replay.driver import COMPLETED, REJECTED, ConcurrencyPolicy, Driver
from model.replay.errors import ReplayStuck
from model.replay.events import TICKS, EventQueue, InterruptionDue, PassDone, Scaling, Telemetry
from model.replay.observe import (
    Advanced,
    Arrived,
    Checked,
    Ended,
    EngineActed,
    EngineWillAct,
    Observer,
    PassEnded,
    PassStarted,
    ReplayView,
    SessionView,
    Settled,
)
from model.replay.placement import RoundRobin
from model.replay.plays import AgenticPolicy, NodeState
from model.replay.timeline import Timeline, TimelinePoint
from model.requests import RequestSpec

RETRIES_MAX = 1024
"""Passes of a worker at one instant that take no time and do nothing, before that is a livelock."""

_STEP = Step()


@define
class _Worker:
    """An engine, and the pass it is in.

    Attributes:
        quiescent: uids that ended from outside during the pass and leave the engine with it.
        retries: passes in a row that did nothing.
    """

    engine: Engine
    report: StepReport | None = None
    quiescent: list[int] = field(factory=list)
    retries: int = 0


@define
class _Live:
    """A request in the cluster."""

    arrival: Arrival
    spec: RequestSpec
    record: RequestRecord
    times: list[float]


@frozen
class Ticks:
    """Intervals of samples and of traffic windows, in ms; None for none."""

    telemetry_ms: float | None = field(default=None, converter=optional(float))
    window_ms: float | None = field(default=None, converter=optional(float))
    first_window_ms: float | None = field(default=None, converter=optional(float))


@frozen
class Limits:
    """Where a run is cut short."""

    max_sim_time_ms: float | None = None
    max_passes: int | None = None


@frozen
class Progress:
    """How far a run is, told every few thousand passes."""

    now_ms: float
    arrived: int
    ended: int
    tokens: int
    passes: int


class Cut(Exception):
    """A limit was reached; the run ends there."""


_PROGRESS_PASSES = 1 << 12


class Loop:
    """A run. ``run`` is the whole; the steps that it is made of can be taken one by one."""

    def __init__(
        self,
        admission: Admission,
        engines: Sequence[Engine],
        collector: Collector,
        sample: Callable[[StepReport], Sample],
        *,
        event_order: str,
        ticks: Ticks,
        limits: Limits,
        interruptions: Sequence[Interruption] = (),
        span_ms: float = 0.0,
        observer: Observer | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """A run before time 0.

        Args:
            admission: where requests come from.
            engines: the workers.
            collector: what is written down.
            sample: the definition of accept length.
            event_order: of events at equal times.
            ticks: telemetry and windows.
            limits: where to stop.
            interruptions: requests withdrawn or lost.
            span_ms: the run takes at least so long, as far as one knows.
            observer: is told every step.
            progress: is told now and then.
        """
        self.admission = admission
        self.driver: Driver | None = admission.driver
        self.workers = [_Worker(engine) for engine in engines]
        self.collector = collector
        self.events = EventQueue(event_order)
        self.placement = RoundRobin()
        self.accept = AcceptLength()
        self.ticks = ticks
        self.limits = limits
        self.live: dict[str, _Live] = {}
        self.now = 0.0
        self.windows: list[Window] = []
        self.telemetry: list[TimelinePoint] = []
        self.timeline = Timeline(span_ms)
        self.ended = 0
        self.passes = 0
        self.tokens = 0
        self.preemptions = 0
        self.ticks_fired = 0
        self._sample = sample
        self._interruptions = interruptions
        self._interrupts: dict[str, list[int]] = {}
        for number, interruption in enumerate(interruptions):
            self._interrupts.setdefault(interruption.request, []).append(number)
        self._startable: set[int] = set()
        self._observer = observer
        self._progress = progress

    # The whole

    def run(self) -> None:
        """Go on until everything is done.

        Raises:
            Cut: when a limit is reached.
            ReplayStuck: when nothing can happen although work is left.
        """
        self.drain()
        if self.ticks.telemetry_ms is not None:
            self.telemetry.append(self._point())
            self.events.push(self.ticks.telemetry_ms, Telemetry())
        if self.ticks.window_ms is not None:
            first = self.ticks.first_window_ms
            self.events.push(self.ticks.window_ms if first is None else first, Scaling())
        while not self.done():
            self.advance(self.next_time())
            if self._only_telemetry_now():
                self._sample_telemetry()
            else:
                self.drain()

    def done(self) -> bool:
        """Only idle events are left, nothing is in the cluster, nothing will arrive, no engine has work; asked in this order."""
        return (
            self.events.only_idle()
            and not self.live
            and self._arrivals_drained()
            and not any(worker.engine.busy for worker in self.workers)
        )

    def _arrivals_drained(self) -> bool:
        driver = self.driver
        if driver is None or self._observer is None:
            return self.admission.drained()
        checks, stale = driver.costs.drained_checks, driver.head_is_stale
        drained = self.admission.drained()
        if driver.costs.drained_checks > checks:
            visits = driver.costs.visits_in_last_check
            self._observer(Checked(drained, driver.truly_drained, visits, stale, len(driver.sessions)))
        return drained

    def next_time(self) -> float:
        """The next instant at which something happens.

        Raises:
            ReplayStuck: when nothing but ticks is left.
            Cut: when it lies beyond the time cap.
        """
        arrival, event = self.admission.next_time(), self.events.next_time
        if self.limits.max_sim_time_ms is not None or arrival is None:
            self._check_next(arrival)
        times = [time for time in (arrival, event) if time is not None]
        return max(min(times), self.now)

    def _check_next(self, arrival: float | None) -> None:
        work = self.events.next_time_of_work(*TICKS)
        if arrival is None and work is None:
            busy = [number for number, worker in enumerate(self.workers) if worker.engine.busy]
            if busy:
                raise ReplayStuck("livelock", f"at {self.now} ms worker {busy[0]} has work and no pass to do it in")
            raise ReplayStuck("dead-end", f"at {self.now} ms the workload is not done and nothing will happen any more")
        cap = self.limits.max_sim_time_ms
        if cap is None:
            return
        counted = [time for time in (arrival, self.events.next_time_of_work(Telemetry)) if time is not None]
        if min(counted) > cap:
            raise Cut("time-cap")

    def advance(self, to_ms: float) -> None:
        """Move time."""
        if self._observer is not None:
            self._observer(Advanced(self.now, to_ms))
        self.now = to_ms

    def drain(self) -> None:
        """Let everything happen that happens now."""
        events, now = self.events, self.now
        again = True
        while again:
            if events.next_time == now:
                self.complete_passes()
                self.interrupt()
            self.arrive()
            # Only a pass that ended where it started, or an event that is still due, gives another round something to do.
            again = self.start_passes()
            if events.next_time == now:
                if events.due(now, Telemetry) and self._take_tick():
                    self._sample_telemetry(popped=True)
                if events.due(now, Scaling) and self._take_tick():
                    self._close_window()
                again = again or events.next_time == now
        if self.timeline.due(self.now):
            self.timeline.add(self._point())
        if self._observer is not None:
            # Several readers of one instant share its view.
            self._observer(Settled(self.now, cache(self.view)))

    # The steps

    def complete_passes(self) -> None:
        """Let out the outputs of all passes that end now."""
        while self.events.due(self.now, PassDone):
            event = self.events.pop()
            assert isinstance(event, PassDone)
            self._end_pass(event.worker)

    def interrupt(self) -> None:
        """Take away the requests that are withdrawn or lost now."""
        while self.events.due(self.now, InterruptionDue):
            event = self.events.pop()
            assert isinstance(event, InterruptionDue)
            self._interrupt(self._interruptions[event.number])

    def arrive(self) -> None:
        """Place what arrives now."""
        for arrival in self.admission.release(self.now, len(self.live)):
            self._arrive(arrival)

    def start_passes(self) -> bool:
        """Start a pass on every idle worker with work, in order; True when one had no length, and so has ended already."""
        if not self._startable:
            return False
        ended = False
        for number in sorted(self._startable):
            ended |= self._start_pass(number)
        return ended

    def _apply(self, number: int, action: Action) -> StepReport:
        engine = self.workers[number].engine
        observer = self._observer
        if observer is None:
            return engine.apply(action)
        observer(EngineWillAct(self.now, number, engine, action))
        report = engine.apply(action)
        observer(EngineActed(self.now, number, engine, report))
        return report

    def _arrive(self, arrival: Arrival) -> None:
        number, _rank = self.placement.place(range(len(self.workers)), arrival.rank)
        spec = RequestSpec(arrival.name, arrival.prompt, arrival.output_tokens, arrival.output_token_ids)
        record = RequestRecord(
            uid=arrival.uid,
            name=arrival.name,
            session_id=arrival.session_id,
            turn_index=arrival.turn_number,
            worker=number,
            input_length=arrival.prompt.length,
            requested_output_length=arrival.output_tokens,
            arrival_ms=arrival.arrival_ms,
            authored=arrival.authored,
        )
        assert record.times is not None
        self.live[arrival.name] = _Live(arrival, spec, record, record.times)
        self.collector.arrived(record)
        for interruption in self._interrupts.get(arrival.name, ()):
            self.events.push(self.now + self._interruptions[interruption].after_ms, InterruptionDue(interruption))
        if self._observer is not None:
            self._observer(
                Arrived(
                    self.now,
                    arrival.uid,
                    arrival.name,
                    arrival.session,
                    arrival.turn_index,
                    arrival.arrival_ms,
                    arrival.prompt,
                    arrival.output_tokens,
                    number,
                    len(self.live),
                )
            )
        self._apply(number, Submit(spec))
        if self.workers[number].report is None:
            self._startable.add(number)

    def _start_pass(self, number: int) -> bool:
        worker = self.workers[number]
        report = self._apply(number, _STEP)
        self.passes += 1
        self.preemptions += len(report.preemptions)
        for admission in report.admissions:
            live = self.live.get(admission.id)
            if live is not None:
                self.collector.admitted(live.record, self.now, admission.reused)
                if admission.first:
                    block = worker.engine.config.block_size
                    self.collector.hit(admission.reused // block, live.record.input_length // block)
        end = self.now + (report.end_ns - report.start_ns) / NANOSECONDS_PER_MS
        if self._observer is not None:
            self._observer(PassStarted(self.now, number, end))
        worker.report = report
        lasts = end > self.now
        if lasts:
            self._startable.discard(number)
            self.events.push(end, PassDone(number, self.passes))
            worker.retries = 0
        else:
            worker.retries = 0 if report.had_effect else worker.retries + 1
            self._end_pass(number)
            if worker.retries > RETRIES_MAX:
                raise ReplayStuck(
                    "livelock", f"at {self.now} ms worker {number} repeats a pass that takes no time and does nothing"
                )
        if self.passes % _PROGRESS_PASSES == 0 and self._progress is not None:
            self._progress(Progress(self.now, len(self.collector.records), self.ended, self.tokens, self.passes))
        if self.limits.max_passes is not None and self.passes >= self.limits.max_passes:
            raise Cut("pass-limit")
        return not lasts

    def _end_pass(self, number: int) -> None:
        """Outputs of a pass, in the order of the specification (5.5)."""
        worker = self.workers[number]
        report = worker.report
        assert report is not None
        worker.report = None
        now, live, collector, driver = self.now, self.live, self.collector, self.driver
        sample = self._sample(report)
        self.accept.add(sample)
        collector.accepted(*sample)
        for work in report.work.values():
            # What was generated before a preemption and is computed again behind the prompt counts with it.
            if work.prompt_tokens:
                collector.committed_prefill_tokens += work.total
        history = driver if driver is not None and driver.accumulates else None
        terminals: list[tuple[int, str]] = []
        observed: list[Ended] = []
        for signal in report.signals:
            request = live.get(signal.id)
            if request is None:
                # It was withdrawn while this pass ran.
                continue
            if signal.token:
                if history is not None:
                    history.on_output_token(request.arrival.uid, request.spec.output_token(len(request.times)))
                request.times.append(now)
                self.tokens += 1
            if signal.completed:
                status = REJECTED if signal.rejected else COMPLETED
                terminals.append((request.arrival.uid, status))
                observed.append(self._end(request, status))
        if self._observer is not None:
            self._observer(PassEnded(now, number, report, sample))
        if driver is not None and (terminals or worker.quiescent):
            driver.feedback(now, terminals, [uid for uid, _ in terminals] + worker.quiescent)
            worker.quiescent = []
        self._tell(observed)
        if worker.engine.busy:
            self._startable.add(number)
        else:
            self._startable.discard(number)

    def _end(self, request: _Live, status: str) -> Ended:
        """Close the record of a request; what an observer is told of it."""
        arrival, emitted = request.arrival, len(request.times)
        self.collector.ended(request.record, self.now, status)
        del self.live[arrival.name]
        self.ended += 1
        return Ended(self.now, arrival.uid, arrival.name, arrival.session, arrival.turn_index, status, emitted)

    def _tell(self, ends: Sequence[Ended]) -> None:
        if self._observer is not None:
            for end in ends:
                self._observer(end)

    def _interrupt(self, interruption: Interruption) -> None:
        request = self.live.get(interruption.request)
        if request is None:
            return
        number = request.record.worker
        worker = self.workers[number]
        self._apply(number, Cancel(interruption.request))
        observed = self._end(request, interruption.status)
        uid = request.arrival.uid
        # The engine is through with it only when the pass is that it takes part in.
        in_pass = worker.report is not None and interruption.request in worker.report.work
        if in_pass:
            worker.quiescent.append(uid)
        if self.driver is not None:
            self.driver.feedback(self.now, [(uid, interruption.status)], () if in_pass else (uid,))
        self._tell([observed])
        if worker.report is None and not worker.engine.busy:
            self._startable.discard(number)

    # Ticks

    def _only_telemetry_now(self) -> bool:
        """A sample is due and nothing else: it is taken without letting anything happen."""
        if not self.events.due(self.now, Telemetry):
            return False
        arrival = self.admission.next_time()
        if arrival is not None and arrival <= self.now:
            return False
        work = self.events.next_time_of_work(Telemetry)
        return work is None or work > self.now

    def _take_tick(self) -> bool:
        """Take the tick that is due out of the queue; False when the run is done, and it no longer fires."""
        self.events.pop()
        return not self.done()

    def _sample_telemetry(self, popped: bool = False) -> None:
        if not popped:
            self.events.pop()
        self.telemetry.append(self._point())
        self.ticks_fired += 1
        assert self.ticks.telemetry_ms is not None
        if not self.done():
            self.events.push(self._later(self.ticks.telemetry_ms), Telemetry())

    def _close_window(self) -> None:
        self.windows.append(self.collector.drain_window(self.now))
        self.ticks_fired += 1
        assert self.ticks.window_ms is not None
        if not self.done():
            self.events.push(self._later(self.ticks.window_ms), Scaling())

    def _later(self, by_ms: float) -> float:
        """A time after now, even when the interval is lost to rounding."""
        return max(self.now + by_ms, math.nextafter(self.now, math.inf))

    # What it shows

    def _point(self) -> TimelinePoint:
        views = [worker.engine.view(blocks=False) for worker in self.workers]
        return TimelinePoint(
            time_ms=self.now,
            arrived=len(self.collector.records),
            ended=self.ended,
            waiting=sum(len(view.waiting) for view in views),
            running=sum(len(view.running) for view in views),
            active_blocks=sum(view.pool.active for view in views),
            cached_blocks=sum(view.pool.inactive for view in views),
            preemptions=self.preemptions,
        )

    def costs(self) -> Mapping[str, int]:
        """Ghost counts of driver, queue and engines, by name."""
        found = self._own_costs()
        for worker in self.workers:
            for name, count in worker.engine.view(blocks=False).costs.items():
                found[name] = found.get(name, 0) + count
        return found

    def _own_costs(self) -> dict[str, int]:
        """Ghost counts of driver and queue."""
        found: dict[str, int] = {"events_inspected": self.events.inspected}
        if self.driver is not None:
            found |= attrs.asdict(self.driver.costs)
            found["ended_history_capacity"] = found.pop("dead_history_capacity")
            del found["visits_in_last_check"]
        return found

    def view(self) -> ReplayView:
        """The whole, as an invariant may look at it."""
        driver = self.driver
        policy = driver.policy if driver is not None else None
        capped = policy if isinstance(policy, ConcurrencyPolicy) else None
        blocked: frozenset[int] = frozenset()
        if isinstance(policy, AgenticPolicy):
            blocked = frozenset(number for number, state in enumerate(policy.states) if state is NodeState.BLOCKED)
        return ReplayView(
            now_ms=self.now,
            sessions=tuple(
                SessionView(
                    state.next_turn,
                    state.count,
                    state.next_ready,
                    state.in_flight,
                    state.history.length if state.history is not None else 0,
                    state.history.capacity if state.history is not None else 0,
                )
                for state in (driver.sessions if driver is not None else ())
            ),
            heap=tuple(sorted(driver.entries())) if driver is not None else (),
            in_flight={uid: flight.session for uid, flight in driver.in_flight.items()} if driver is not None else {},
            cap=capped.cap if capped else None,
            active=capped.active if capped else None,
            pending=len(driver.sessions) - capped.next_pending if driver is not None and capped else None,
            blocked=blocked,
            settling=policy.settling if policy is not None else False,
            in_cluster=len(self.live),
            engines_busy=sum(worker.engine.busy for worker in self.workers),
            prompt_ids_held=driver.costs.prompt_ids_held if driver is not None else 0,
            costs=self._own_costs(),
        )
