"""Judging an observation by the invariants that can be seen from outside.

An engine outside shows sums of passes, counters, and the fate of requests; no block tables, no events, no ids within a pass. So
each check here is the part of an invariant (by its id, ``invariants``) that those show, and errs on the side of silence: what is
reported is broken. Ids with no such part are *not observable*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import attrs
from attrs import field, frozen

import invariants.monitor  # noqa: F401  (declares the invariants)
from adapters.observation import (
    BOUNDED,
    FINISHED,
    HANG,
    INVALID,
    OK,
    REJECTED,
    STUCK,
    UNFINISHED,
    Observation,
    PassRecord,
    RequestRecord,
)
from adapters.workload import TimedRequest, Workload
from invariants.framework import Violation, known_ids
from model.build import build_engine
from model.config import NANOSECONDS_PER_MS, PAGED, EngineConfig
from model.paged.metrics import ForwardMetrics
from model.requests import Prompt

PERIOD_MAX = 16
"""Passes of a cycle that is looked for at the end of a run."""
REPEATS = 4
"""How often it must have been gone round."""


@frozen
class Judgement:
    """What was found.

    Attributes:
        violations: in no particular order; ``at`` is not known.
        exercised: how often each id met its subject.
        not_observable: ids that nothing shown speaks of.
    """

    violations: tuple[Violation, ...] = ()
    exercised: Counter[str] = field(factory=Counter)
    not_observable: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids that are broken, each once, sorted."""
        return tuple(sorted({violation.invariant for violation in self.violations}))


@frozen
class _Run:
    """An observation with what was asked for."""

    config: EngineConfig
    workload: Workload
    seen: Observation
    servable: dict[str, bool]

    @property
    def passes(self) -> tuple[PassRecord, ...]:
        return self.seen.passes or ()

    @property
    def pairs(self) -> Iterator[tuple[TimedRequest, RequestRecord]]:
        return zip(self.workload.requests, self.seen.requests, strict=True)


Finding = tuple[str, str | None]
"""An id that met its subject, and what is broken, if anything is."""
Check = Callable[[_Run], Iterator[Finding]]

CHECKS: list[Check] = []
OBSERVABLE: set[str] = set()
"""Ids of which some part can be seen from outside."""


def _judges(*ids: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CHECKS.append(check)
        OBSERVABLE.update(ids)
        return check

    return register


def judge(config: EngineConfig, workload: Workload, seen: Observation) -> Judgement:
    """Judge one run. A refused configuration is nobody's fault: nothing is judged.

    Args:
        config: of the engine; its defects do not matter.
        workload: what arrived.
        seen: what came of it.
    """
    right = build_engine(attrs.evolve(config, implementation="model", defects=frozenset()))
    servable = {timed.id: right.servable(timed.request) for timed in workload.requests}
    run = _Run(config, workload, seen, servable)
    violations: list[Violation] = []
    exercised: Counter[str] = Counter()
    for check in () if seen.outcome == INVALID else CHECKS:
        for id_, broken in check(run):
            exercised[id_] += 1
            if broken is not None:
                violations.append(Violation(id_, broken))
    hidden = tuple(id_ for id_ in known_ids() if id_ not in OBSERVABLE)
    return Judgement(tuple(violations), exercised, hidden)


def _ms(at_ns: object) -> str:
    return f"{float(at_ns) / NANOSECONDS_PER_MS:g} ms"  # type: ignore[arg-type]


@_judges("token-budget")
def _token_budget(run: _Run) -> Iterator[Finding]:
    """What the records show of a pass, which may be less than it computed, against the budget."""
    for record in run.passes:
        shown, budget = _budget(run.config, record.metrics)
        if budget is None or not shown:
            continue
        broken = f"the pass that ends at {_ms(record.end_ns)} computes {shown} tokens, the budget is {budget}"
        yield "token-budget", broken if shown > budget else None


def _budget(config: EngineConfig, metrics: ForwardMetrics) -> tuple[int, int | None]:
    """Tokens that a pass is charged at least, and its budget."""
    if config.scheduler not in PAGED:
        return metrics.sum_prefill_tokens, min(config.chunked_prefill_size, config.max_prefill_tokens)
    # TensorRT-LLM counts among the decoding ones a request whose whole prompt was cached, which computes nothing.
    decodes = 0 if config.scheduler == "trtllm" and config.prefix_caching else metrics.num_decode_requests
    return metrics.sum_prefill_tokens + decodes, config.max_num_batched_tokens


@_judges("slot-limit")
def _slot_limit(run: _Run) -> Iterator[Finding]:
    slots = run.config.max_num_seqs
    if slots is None:
        return
    counts = [(record.end_ns, _batch(record.metrics)) for record in run.passes]
    counts += [(sample.at_ns, sample.running) for sample in run.seen.samples or ()]
    for at_ns, count in counts:
        if count:
            yield "slot-limit", f"{count} requests run at {_ms(at_ns)}, there are {slots} slots" if count > slots else None


def _batch(metrics: ForwardMetrics) -> int:
    return metrics.num_prefill_requests + metrics.num_decode_requests


@_judges("block-conservation")
def _block_conservation(run: _Run) -> Iterator[Finding]:
    for sample in run.seen.samples or ():
        active, inactive, total = sample.active_blocks, sample.inactive_blocks, sample.total_blocks
        bad = min(active, inactive) < 0 or active + inactive > total or total != run.config.num_blocks
        broken = f"{active} active and {inactive} inactive blocks of {total} at {_ms(sample.at_ns)}"
        yield "block-conservation", broken if bad else None


@_judges("work-conservation")
def _work_conservation(run: _Run) -> Iterator[Finding]:
    """A queue behind a pass that left budget over, where slots and cache have room for everybody at once."""
    config, size = run.config, run.config.block_size
    if config.prefill_decode_interval or not config.chunked_prefill or not _everybody_fits(run):
        return
    for record in run.passes:
        metrics = record.metrics
        shown, budget = _budget(config, metrics)
        if budget is None or not shown or not metrics.num_queued_prefill:
            continue
        least = 1
        if config.scheduler == "sglang":
            if not metrics.num_prefill_requests:
                continue
            # Chunks are charged in whole pages; how many each rounds up is not shown, so take the most.
            shown = (shown + metrics.num_prefill_requests * (size - 1)) // size * size
            least = size
        broken = (
            f"{metrics.num_queued_prefill} requests still wait behind the pass that ends at {_ms(record.end_ns)}, though "
            f"{budget - shown} or more of its {budget} tokens were left, and slots and cache have room for all"
        )
        yield "work-conservation", broken if budget - shown >= least else None


def _everybody_fits(run: _Run) -> bool:
    config, size = run.config, run.config.block_size
    requests = run.workload.requests
    if config.max_num_seqs is not None and len(requests) > config.max_num_seqs:
        return False
    drafts = config.speculation.draft_tokens if config.speculation else 0
    blocks = sum(-(-(timed.prompt.length + timed.output + drafts + 1) // size) + 1 for timed in requests)
    return blocks < config.num_blocks and all(run.servable.values())


@_judges("arrival-order")
def _arrival_order(run: _Run) -> Iterator[Finding]:
    """First admissions in order of arrival."""
    if run.config.schedule_policy != "fcfs":
        return
    before: RequestRecord | None = None
    for _, record in run.pairs:
        if not record.admissions:
            continue
        if before is not None:
            early, late = record.admissions[0].at_ns, before.admissions[0].at_ns
            broken = f"{record.id} is admitted at {_ms(early)}, before {before.id} (at {_ms(late)}), which came first"
            yield "arrival-order", broken if early < late else None
        before = record


@_judges("terminal-once")
def _terminal_once(run: _Run) -> Iterator[Finding]:
    for record in run.seen.requests:
        if record.status not in (FINISHED, REJECTED, UNFINISHED):
            yield "terminal-once", f"{record.id} ends as {record.status}"
        elif record.status == REJECTED:
            yield "terminal-once", f"{record.id} was refused with {record.tokens} tokens" if record.tokens else None
        elif record.status == FINISHED:
            yield "terminal-once", None


@_judges("output-exact")
def _output_exact(run: _Run) -> Iterator[Finding]:
    limit = run.config.max_model_len
    for timed, record in run.pairs:
        if record.status != FINISHED:
            continue
        asked = timed.output if limit is None else max(min(timed.output, limit - timed.prompt.length), 0)
        if run.config.scheduler == "trtllm":
            # A prompt that fits has its output cut to the cache when it is submitted (vLLM specification 3.4).
            asked = min(asked, max(run.config.num_blocks * run.config.block_size - timed.prompt.length, 0))
        broken = f"{record.id} finished with {record.tokens} tokens of {asked}"
        yield "output-exact", broken if record.tokens != asked else None


@_judges("clock-monotone")
def _clock_monotone(run: _Run) -> Iterator[Finding]:
    for timed, record in run.pairs:
        if record.status == UNFINISHED:
            continue
        if record.arrival_ns != timed.arrival_ns:
            yield "clock-monotone", f"{record.id} arrives at {_ms(record.arrival_ns)}, not at {_ms(timed.arrival_ns)}"
        admissions = [admission.at_ns for admission in record.admissions]
        order = [record.arrival_ns, *admissions[:1], record.first_token_ns, record.last_token_ns, record.terminal_ns]
        times = [at for at in order if at is not None]
        told = ", ".join(map(_ms, times))
        bad = times != sorted(times) or admissions != sorted(admissions)
        yield "clock-monotone", f"the times of {record.id} go back: {told}" if bad else None
    ends = [record.end_ns for record in run.passes]
    if len(ends) > 1:
        yield "clock-monotone", "passes end out of order" if ends != sorted(ends) else None


@_judges("prefix-hit-truth")
def _prefix_hit_truth(run: _Run) -> Iterator[Finding]:
    """What is reused was there: whole blocks, in the prompt of somebody else or computed before by itself."""
    size = run.config.block_size
    for timed, record in run.pairs:
        for admission in record.admissions:
            if not admission.reused:
                continue
            at = f"{record.id} reuses {admission.reused} tokens at {_ms(admission.at_ns)}"
            most = timed.prompt.length + (record.tokens if admission.again else 0)
            broken = None
            if not run.config.prefix_caching:
                broken = f"{at} with prefix caching off"
            elif admission.reused > most:
                broken = f"{at}; it has {most}"
            elif admission.reused % size:
                broken = f"{at}, not whole blocks of {size}"
            elif not admission.again and admission.reused > (shared := _shared(run, timed)):
                broken = f"{at}; it shares {shared} with any other request"
            yield "prefix-hit-truth", broken


def _shared(run: _Run, timed: TimedRequest) -> int:
    """The longest beginning of a prompt that another request has too."""
    others = [other for other in run.workload.requests if other.id != timed.id]
    return max((_common(timed.prompt, _whole(other)) for other in others), default=0)


def _whole(timed: TimedRequest) -> Prompt:
    return timed.prompt.extended(timed.request.output_tokens or ())


def _common(one: Prompt, other: Prompt) -> int:
    length = 0
    for mine, theirs in zip(one.tokens(), other.tokens(), strict=False):
        if mine != theirs:
            break
        length += 1
    return length


@_judges("accept-length")
def _accept_length(run: _Run) -> Iterator[Finding]:
    most = 1 + (run.config.speculation.draft_tokens if run.config.speculation else 0)
    for sample in run.seen.accepts or ():
        tokens, forwards = sample.tokens, sample.forwards
        broken = f"{tokens} tokens in {forwards} decode forwards at {_ms(sample.at_ns)}; each accepts 1 to {most}"
        yield "accept-length", None if forwards <= tokens <= forwards * most else broken


@_judges("metrics-identity")
def _metrics_identity(run: _Run) -> Iterator[Finding]:
    """Each preemption of a run in which all ended was followed by an admission."""
    samples = run.seen.samples
    if run.seen.outcome != OK or not samples or run.config.scheduler not in PAGED:
        return
    preemptions = samples[-1].preemptions
    again = sum(admission.again for record in run.seen.requests for admission in record.admissions)
    if preemptions or again:
        broken = f"{preemptions} preemptions are counted, and {again} admissions behind a preemption"
        yield "metrics-identity", broken if preemptions != again else None


@_judges("drains-empty")
def _drains_empty(run: _Run) -> Iterator[Finding]:
    samples = run.seen.samples
    # SGLang's counters hold cached pages as active.
    if run.seen.outcome != OK or not samples or (run.config.scheduler == "sglang" and run.config.prefix_caching):
        return
    last = samples[-1]
    left = last.active_blocks or last.running or last.waiting
    broken = f"at the end {last.active_blocks} blocks are active, {last.running} requests run and {last.waiting} wait"
    yield "drains-empty", broken if left else None


@_judges("servable-finishes", "unservable-refused")
def _refusals(run: _Run) -> Iterator[Finding]:
    for record in run.seen.requests:
        servable = run.servable[record.id]
        if record.status == REJECTED:
            yield "servable-finishes", f"{record.id} can be served here and was refused" if servable else None
        if not servable and record.status == FINISHED:
            yield "unservable-refused", f"{record.id} finished, though it cannot be served here"
        elif not servable and record.status == REJECTED:
            yield "unservable-refused", None


@_judges("no-stall", "no-livelock", "finite-passes-per-instant", "no-starvation")
def _progress(run: _Run) -> Iterator[Finding]:
    """What is left when nothing more will come of it."""
    outcome = run.seen.outcome
    yield "no-stall", None
    yield "no-livelock", None
    left = run.seen.unfinished
    if outcome == OK:
        yield "servable-finishes", None
        return
    names = ", ".join(left)
    if outcome == STUCK:
        yield "no-stall", f"nothing happens any more, with {names} left"
    elif outcome == HANG:
        yield "no-livelock", f"the engine goes round at one instant behind {_ms(run.seen.cap_ns)}, with {names} left"
        yield "finite-passes-per-instant", f"passes repeat at one instant behind {_ms(run.seen.cap_ns)}"
    elif outcome == BOUNDED:
        period = _cycle(run)
        if period:
            passes = "the same pass repeats" if period == 1 else f"the same {period} passes repeat"
            yield "no-livelock", f"{passes} up to {_ms(run.seen.cap_ns)} with nothing ended, {names} left"
    unservable = [id_ for id_ in left if not run.servable[id_]]
    for id_ in left:
        if id_ in unservable:
            yield "unservable-refused", f"{id_} cannot be served here and was not refused by {_ms(run.seen.cap_ns)}"
            continue
        yield "servable-finishes", f"{id_} can be served and has not finished by {_ms(run.seen.cap_ns)}"
        if unservable:
            yield "no-starvation", f"{id_} can be served and is left with {', '.join(unservable)}, which cannot"


def _cycle(run: _Run) -> int:
    """Passes in the cycle at the end of the run; 0 when it does not end in one.

    Decode passes that produce tokens have longer sequences each time, so sums that recur with no request ended in between stand
    for passes that led nowhere.
    """
    ended = max((record.terminal_ns or 0 for record in run.seen.requests), default=0)
    tail = [record.metrics for record in run.passes if record.end_ns > ended]
    for period in range(1, PERIOD_MAX + 1):
        window = tail[-period * REPEATS :]
        if len(window) == period * REPEATS and all(window[at] == window[at % period] for at in range(len(window))):
            return period
    return 0
