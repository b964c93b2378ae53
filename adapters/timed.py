"""A model engine run over a workload in virtual time, seen as a simulator with an arrival driver would show it.

The driver (replay specification 5.3, vLLM specification 3.11, SGLang specification 2.6): arrivals with a time not after the
end of a pass join before the next pass, after what the pass completed; an idle engine starts at an arrival. The whole
state change of a pass happens at its start; admissions carry that start, and tokens, completions and records its end. After
a pass that did nothing in no time the engine is not started again before the next arrival.

Counters are shown as they stood when a pass ended or a request arrived, whichever was later; at an arrival during a pass
they hold that pass already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from attrs import define, field

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
from model.events import StepReport, Work
from model.views import PREEMPTED, EngineView

SAME_INSTANT_FREE = 8
"""Passes at one instant before a recurring state is looked for; one that recurs at one instant recurs for ever."""

Duration = Callable[[StepReport], Nanoseconds]
Accepted = Callable[[StepReport, PassRecord], tuple[int, int]]


def own_duration(report: StepReport) -> Nanoseconds:
    """The time that the engine itself gave the pass."""
    return report.end_ns - report.start_ns


def own_accepted(report: StepReport, record: PassRecord) -> tuple[int, int]:
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
        The observation. *Hang* means that a state recurs at one instant: ``cap_ns`` is that instant then.
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
        self.now: Nanoseconds = 0
        self.preemptions = 0
        self.fates = {timed.id: _Fate(timed.arrival_ns) for timed in workload.requests}
        self.passes: list[PassRecord] = []
        self.samples: list[PoolSample] = []
        self.accepts: list[AcceptSample] = []

    def to(self, cap_ns: Nanoseconds) -> Observation:
        outcome = OK
        stalled = False
        at_instant = 0
        recurring: set[bytes] = set()
        while True:
            if self._arrive(self.now):
                stalled = False
                recurring.clear()
            if self.engine.busy and not stalled:
                start = self.now
                report = self.engine.apply(Step())
                end = start + self.duration(report)
                if end > cap_ns:
                    outcome = BOUNDED
                    # Requests still arrive while the cut-off pass is under way, and are seen to.
                    self._arrive(cap_ns)
                    break
                if end == start:
                    stalled = not report.had_effect
                    at_instant += 1
                    if at_instant > SAME_INSTANT_FREE and not stalled:
                        state = self.engine.freeze()
                        if state in recurring:
                            return self._observation(HANG, self.now)
                        recurring.add(state)
                else:
                    at_instant = 0
                    recurring.clear()
                if not stalled:
                    self._end(start, end, report)
                self.now = end
                continue
            if self.next_arrival == len(self.arrivals):
                break
            arrival = self.arrivals[self.next_arrival].arrival_ns
            if arrival > cap_ns:
                outcome = BOUNDED
                break
            self.engine.apply(Advance(arrival - self.now))
            self.now = arrival
            at_instant = 0
        if outcome == OK and any(fate.status == UNFINISHED for fate in self.fates.values()):
            outcome = STUCK
        return self._observation(outcome, cap_ns)

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
            self._sample(timed.arrival_ns, self.engine.view(blocks=False))
            came = True
        return came

    def _end(self, start: Nanoseconds, end: Nanoseconds, report: StepReport) -> None:
        """Enter a pass, and what arrives before it ends."""
        view = self.engine.view(blocks=False)
        record = pass_record(report, view, end_ns=end, duration_ns=end - start)
        self.passes.append(record)
        self._accept(end, *self.accepted(report, record))
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
        sample = PoolSample(
            at_ns, pool.active, pool.inactive, pool.total, len(view.running), len(view.waiting), self.preemptions
        )
        if self.samples and self.samples[-1].at_ns == at_ns:
            self.samples.pop()
        last = self.samples[-1] if self.samples else None
        if last is None or _counters(last) != _counters(sample):
            self.samples.append(sample)


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


def pass_record(report: StepReport, after: EngineView, *, end_ns: Nanoseconds, duration_ns: Nanoseconds) -> PassRecord:
    """The sums of a pass of a paged engine (vLLM specification 3.11).

    Args:
        report: of the pass; its records hold the values of the time of scheduling.
        after: the engine behind the pass, for the queue.
        end_ns: when it ended.
        duration_ns: how long it took.
    """
    prefill = [work for work in report.work.values() if work.prompt_tokens]
    decode = [work.length for work in report.work.values() if _decodes(work)]
    waiting = [after.requests[id_] for id_ in after.waiting]
    fresh = [request.prompt for request in waiting if request.status != PREEMPTED]
    preempted = [request.length for request in waiting if request.status == PREEMPTED]
    return PassRecord(
        end_ns=end_ns,
        duration_ns=duration_ns,
        prefill_requests=len(prefill),
        prefill_tokens=sum(work.total for work in prefill),
        prefill_kv_tokens=sum(work.prefix_tokens for work in prefill),
        prefill_length_variance=variance([work.prompt for work in prefill]),
        decode_requests=len(decode),
        decode_kv_tokens=sum(decode),
        decode_kv_variance=variance(decode),
        queued_prefill_requests=len(fresh),
        queued_prefill_tokens=sum(fresh),
        queued_prefill_variance=variance(fresh),
        queued_decode_requests=len(preempted),
        queued_decode_tokens=sum(preempted),
        queued_decode_variance=variance(preempted),
    )


def _decodes(work: Work) -> bool:
    return not work.prompt_tokens and not work.terminal


def variance(values: list[int]) -> float:
    """Population variance; 0 for no values."""
    if not values:
        return 0.0
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)
