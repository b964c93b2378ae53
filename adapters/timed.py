"""A model engine run over a workload in virtual time, seen as a simulator with an arrival driver would show it.

The driver (replay specification 5.3, vLLM specification 3.11, SGLang specification 2.6): arrivals with a time not after the
end of a pass join before the next pass, after what the pass completed; an idle engine starts at an arrival. The whole
state change of a pass happens at its start; admissions carry that start, and tokens, completions and records its end.

A pass that did nothing in no time ends differently. A paged engine is not started again before the next arrival, or with
host and disk tiers the end of the next transfer. SGLang's is
run again at once as long as its state changes (the new-token ratio falls); when it no longer does, the replay fails on the spot,
arrivals still to come or not, or with requests running goes round for ever.

Counters are shown as they stood when a pass ended or a request arrived, whichever was later; at an arrival during a pass
they hold that pass already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from attrs import define, evolve, field

from adapters.metrics import pass_metrics, queued
from adapters.observation import (
    BOUNDED,
    FINISHED,
    HANG,
    OK,
    REJECTED,
    STUCK,
    UNFINISHED,
    AcceptSample,
    AdmissionRecord,
    Observation,
    PassRecord,
    PoolSample,
    RequestRecord,
)
from adapters.workload import Workload
from model.actions import Advance, Nanoseconds, Step, Submit
from model.engine import Engine
from model.events import StepReport
from model.paged.metrics import ForwardMetrics
from model.views import EngineView

SAME_INSTANT_FREE = 8
"""Passes at one instant before a recurring state is looked for; one that recurs at one instant recurs for ever."""

Duration = Callable[[StepReport], Nanoseconds]
Accepted = Callable[[StepReport, ForwardMetrics], tuple[int, int]]


def own_duration(report: StepReport) -> Nanoseconds:
    """The time that the engine itself gave the pass."""
    return report.end_ns - report.start_ns


def own_accepted(report: StepReport, metrics: ForwardMetrics) -> tuple[int, int]:
    """Accepted tokens and decode forwards as the engine counted them."""
    return report.accept_tokens, report.accept_forwards


def run_timed(
    engine: Engine,
    workload: Workload,
    *,
    cap_ns: Nanoseconds,
    duration: Duration = own_duration,
    accepted: Accepted = own_accepted,
) -> Observation:
    """Run a fresh engine over ``workload`` until nothing is left to do, or nothing ends by ``cap_ns``.

    Args:
        engine: an idle engine of the model, which is used up.
        workload: what arrives.
        cap_ns: virtual time after which the run is cut off; what happens at it is still seen.
        duration: how long a pass took, where a release measures it otherwise than the engine does.
        accepted: what a pass says about accepted tokens, where a release counts otherwise.

    Returns:
        The observation. Where the run ends for good before ``cap_ns``, its ``cap_ns`` is that instant: *hang* when a state
        recurs there for ever, *stuck* with SGLang when the replay fails there.
    """
    run = _Run(engine, workload, duration, accepted)
    return run.to(cap_ns)


@define
class _Fate:
    """What became of a request so far."""

    arrival_ns: Nanoseconds
    admissions: list[AdmissionRecord] = field(factory=list)
    first_token_ns: Nanoseconds | None = None
    last_token_ns: Nanoseconds | None = None
    terminal_ns: Nanoseconds | None = None
    tokens: int = 0
    status: str = UNFINISHED

    def record(self, id_: str) -> RequestRecord:
        """The fate as it is observed, which for a request that did not end is nothing."""
        if self.status == UNFINISHED:
            return RequestRecord(id_, self.arrival_ns, UNFINISHED)
        return RequestRecord(
            id=id_,
            arrival_ns=self.arrival_ns,
            status=self.status,
            admissions=tuple(self.admissions),
            first_token_ns=self.first_token_ns,
            last_token_ns=self.last_token_ns,
            terminal_ns=self.terminal_ns,
            tokens=self.tokens,
            reused=max((entry.reused for entry in self.admissions), default=0),
        )


class _Run:
    """The working state of one run."""

    def __init__(self, engine: Engine, workload: Workload, duration: Duration, accepted: Accepted) -> None:
        self.engine = engine
        self.duration = duration
        self.accepted = accepted
        self.arrivals = list(workload.requests)
        self.next_arrival = 0
        self.retries = engine.config.scheduler == "sglang"
        self.now: Nanoseconds = 0
        self.live = 0
        """Requests that arrived and did not end."""
        self.idle = False
        """Not to be started before the next arrival or end of a transfer."""
        self.at_instant = 0
        """Passes that ended at this instant without a lapse of time."""
        self.states: set[bytes] = set()
        """States behind passes at this instant, as far as they were looked at."""
        self.preemptions = 0
        self.fates = {timed.id: _Fate(timed.arrival_ns) for timed in workload.requests}
        self.passes: list[PassRecord] = []
        self.samples: list[PoolSample] = []
        self.accepts: list[AcceptSample] = []

    def to(self, cap_ns: Nanoseconds) -> Observation:
        """Run up to ``cap_ns``."""
        outcome = self._follow(cap_ns)
        ended = outcome == HANG or (outcome == STUCK and self.retries)
        return self._observation(outcome, self.now if ended else cap_ns)

    def _follow(self, cap_ns: Nanoseconds) -> str:
        while True:
            if self._arrive(self.now):
                self.idle = False
                self.states.clear()
            if self.live and not self.idle:
                outcome = self._pass(cap_ns)
                if outcome is not None:
                    return outcome
                continue
            instant = self._next_instant()
            if instant is None:
                return STUCK if self.live else OK
            if instant > cap_ns:
                return BOUNDED
            self.engine.apply(Advance(instant - self.now))
            self.idle = False
            self._move(instant)

    def _next_instant(self) -> Nanoseconds | None:
        """When something happens by itself: a request arrives or, with requests left, a transfer ends."""
        instants = []
        if self.next_arrival < len(self.arrivals):
            instants.append(self.arrivals[self.next_arrival].arrival_ns)
        if self.live:
            deadline = self.engine.view(blocks=False).next_deadline_ns
            if deadline is not None:
                instants.append(deadline)
        return min(instants, default=None)

    def _pass(self, cap_ns: Nanoseconds) -> str | None:
        """One pass; the outcome when it is the last."""
        start = self.now
        before = self.engine.view(blocks=False)
        report = self.engine.apply(Step())
        end = start + self.duration(report)
        if end > cap_ns:
            # Requests still arrive while the pass that is cut off is under way, and show the counters behind it.
            self.preemptions += len(report.preemptions)
            self._arrive(cap_ns)
            return BOUNDED
        # A pass that only began a transfer is not recorded; SGLang's decode pass is, also when nobody could grow.
        if _is_recorded(report, end - start) or (self.retries and before.running):
            self._end(before, report, start, end)
        else:
            self._sample(end, self.engine.view(blocks=False))
        self.idle = not report.had_effect and not self.retries
        if end != start:
            self._move(end)
            return None
        self.at_instant += 1
        if self.idle or (report.had_effect and self.at_instant <= SAME_INSTANT_FREE):
            return None
        state = self.engine.freeze()
        if state in self.states:
            return HANG if before.running or report.had_effect else STUCK
        self.states.add(state)
        return None

    def _move(self, to_ns: Nanoseconds) -> None:
        self.now = to_ns
        self.at_instant = 0
        self.states.clear()

    def _observation(self, outcome: str, cap_ns: Nanoseconds) -> Observation:
        return Observation(
            source="model",
            outcome=outcome,
            cap_ns=cap_ns,
            requests=tuple(self.fates[timed.id].record(timed.id) for timed in self.arrivals),
            passes=tuple(last_of_each_instant(self.passes)),
            samples=tuple(self.samples),
            accepts=tuple(self.accepts),
        )

    def _arrive(self, until: Nanoseconds, strictly: bool = False) -> bool:
        """Submit what arrives up to ``until`` (``strictly``: before it); whether anything did."""
        came = False
        while self.next_arrival < len(self.arrivals):
            timed = self.arrivals[self.next_arrival]
            if timed.arrival_ns > until or (strictly and timed.arrival_ns == until):
                break
            self.next_arrival += 1
            self.engine.apply(Submit(timed.request))
            self.live += 1
            self._sample(timed.arrival_ns, self.engine.view(blocks=False))
            came = True
        return came

    def _end(self, before: EngineView, report: StepReport, start: Nanoseconds, end: Nanoseconds) -> None:
        """Enter a pass, and what arrives before it ends."""
        view = self.engine.view(blocks=False)
        metrics = evolve(pass_metrics(self.engine.config, before, report, view), wall_time_ns=end - start)
        self.passes.append(PassRecord(end, metrics))
        self._accept(end, *self.accepted(report, metrics))
        for admission in report.admissions:
            again = bool(self.fates[admission.id].admissions)
            self.fates[admission.id].admissions.append(AdmissionRecord(start, admission.reused, again))
        self.preemptions += len(report.preemptions)
        for signal in report.signals:
            fate = self.fates[signal.id]
            if signal.token:
                fate.tokens += 1
                fate.last_token_ns = end
                if fate.first_token_ns is None:
                    fate.first_token_ns = end
            if signal.completed:
                self.live -= 1
                fate.terminal_ns = end
                fate.status = REJECTED if signal.rejected else FINISHED
        if self._arrive(end, strictly=True):
            view = self.engine.view(blocks=False)
        self._sample(end, view)

    def _accept(self, at_ns: Nanoseconds, tokens: int, forwards: int) -> None:
        if not forwards:
            return
        if self.accepts and self.accepts[-1].at_ns == at_ns:
            earlier = self.accepts.pop()
            tokens, forwards = tokens + earlier.tokens, forwards + earlier.forwards
        self.accepts.append(AcceptSample(at_ns, tokens, forwards))

    def _sample(self, at_ns: Nanoseconds, view: EngineView) -> None:
        pool = view.pool
        sample = PoolSample(at_ns, pool.active, pool.inactive, pool.total, len(view.running), len(queued(view)), self.preemptions)
        if self.samples and self.samples[-1].at_ns == at_ns:
            self.samples.pop()
        last = self.samples[-1] if self.samples else None
        if last is None or _counters(last) != _counters(sample):
            self.samples.append(sample)


def _is_recorded(report: StepReport, duration: Nanoseconds) -> bool:
    return bool(duration or report.work or report.signals or report.preemptions or report.admissions)


def _counters(sample: PoolSample) -> tuple[int, ...]:
    return (
        sample.active_blocks,
        sample.inactive_blocks,
        sample.total_blocks,
        sample.running,
        sample.waiting,
        sample.preemptions,
    )


def last_of_each_instant(passes: Iterable[PassRecord]) -> list[PassRecord]:
    """The passes that an observer who looks once an instant sees."""
    seen: list[PassRecord] = []
    for record in passes:
        if seen and seen[-1].end_ns == record.end_ns:
            seen.pop()
        seen.append(record)
    return seen


def seen_every(observation: Observation, step_ns: int) -> Observation:
    """What an observer sees who looks at multiples of ``step_ns``: passes, counters and counts at the next look."""

    def look(at_ns: Nanoseconds) -> int:
        return -int(-at_ns // step_ns) * step_ns

    passes = [evolve(record, end_ns=look(record.end_ns)) for record in observation.passes or ()]
    samples: list[PoolSample] = []
    for sample in observation.samples or ():
        at_ns = look(sample.at_ns)
        if samples and samples[-1].at_ns == at_ns:
            samples.pop()
        if not samples or _counters(samples[-1]) != _counters(sample):
            samples.append(evolve(sample, at_ns=at_ns))
    accepts: list[AcceptSample] = []
    for count in observation.accepts or ():
        at_ns, tokens, forwards = look(count.at_ns), count.tokens, count.forwards
        if accepts and accepts[-1].at_ns == at_ns:
            earlier = accepts.pop()
            tokens, forwards = tokens + earlier.tokens, forwards + earlier.forwards
        accepts.append(AcceptSample(at_ns, tokens, forwards))
    return evolve(observation, passes=tuple(last_of_each_instant(passes)), samples=tuple(samples), accepts=tuple(accepts))
