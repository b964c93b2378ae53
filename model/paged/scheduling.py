"""The running and the waiting phase of a pass (vLLM specification 3.1, 3.2, 3.5)."""

from __future__ import annotations

from enum import Enum

from model.events import Admission, Work
from model.paged.admission import NOTHING_CACHED, Cost, Verdict, judge, look_up, scan_needlessly
from model.paged.core import RUNNING, Core, Pass, Request, evicted, finalize, preempt, record, refund
from model.paged.rules import cdiv


class Outcome(Enum):
    """What became of an attempt to schedule a request."""

    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    PREEMPTED_ITSELF = "preempted itself"


def running_phase(core: Core, step: Pass) -> None:
    """Schedule the running requests in order, as far as the budget goes.

    The position is not corrected when a ``fifo`` victim in front of it leaves: the request that slides into the gap is not
    scheduled in this pass.
    """
    position = 0
    while position < len(core.running) and step.budget > 0:
        if step.throttled and not core.running[position].prebuilt:
            position += 1
            continue
        outcome = schedule(core, step, core.running[position])
        if outcome is Outcome.BLOCKED:
            return
        if outcome is Outcome.SCHEDULED:
            position += 1


def waiting_phase(core: Core, step: Pass) -> None:
    """Admit from the head of the queue while nothing was preempted and slots are left.

    The first request that does not fit ends it: a smaller follower never overtakes. A throttled pass prefills nobody, and
    neither does one with destinations pending. The loop does not look at the budget; with none left the head is still looked
    up and judged before it is found blocked.

    Only who has its KV already, from another worker, overtakes: it needs nothing, and the head may be waiting for the very blocks
    it holds (defect ``holders-wait``).
    """
    rules = core.rules
    while core.waiting and not step.preempted_any and len(core.running) < rules.max_seqs:
        request = next_in_turn(core)
        if rules.scans_needlessly:
            scan_needlessly(core)
        if request.prompt >= rules.max_length:
            reject(core, step, request)
            continue
        if core.handoffs.pending and not request.prebuilt:
            return
        cost, verdict = consider(core, request)
        if verdict is Verdict.REJECT:
            reject(core, step, request)
            continue
        if verdict is Verdict.WAIT:
            ready = first_prebuilt(core)
            if ready is None or rules.holders_wait:
                return
            request, cost = ready, NOTHING_CACHED
        if step.throttled and request.length - request.computed - cost.cached > 1:
            return
        if schedule(core, step, request, cost) is not Outcome.SCHEDULED:
            return
        if not step.budget and not step.report.work[request.id].total:
            return


def next_in_turn(core: Core) -> Request:
    """Who is looked at next: the head of the queue; while destinations are pending, the first that has its KV, if any."""
    head = core.waiting[0]
    return first_prebuilt(core) or head if core.handoffs.pending else head


def first_prebuilt(core: Core) -> Request | None:
    """The first waiting request whose KV came from another worker."""
    if not core.handoffs.active:
        return None
    return next((request for request in core.waiting if request.prebuilt), None)


def consider(core: Core, request: Request) -> tuple[Cost, Verdict]:
    """What admission costs a waiting request, and what the rule says; one that has its KV needs nothing more."""
    if request.prebuilt:
        return NOTHING_CACHED, Verdict.ADMIT
    cost = look_up(core, request)
    return cost, judge(core, request, cost)


def reject(core: Core, step: Pass, head: Request) -> None:
    """Refuse the head of the queue; it is told after all other signals of the pass."""
    core.leave_queue(head)
    core.drop(head)
    step.rejected.append(head.id)


def schedule(core: Core, step: Pass, request: Request, admitted_at: Cost | None = None) -> Outcome:
    """Give a request its tokens of this pass and the blocks for them (3.5).

    Args:
        core: the engine.
        step: the pass.
        request: a running request, or the head of the queue.
        admitted_at: what a lookup found for the head of the queue; None for a running request.
    """
    rules = core.rules
    cached = 0
    if not request.computed:
        cached = (admitted_at or look_up(core, request)).cached
    before = request.computed + cached
    prompt = request.prompt
    length = prompt + request.generated
    prompt_before = before if before < prompt else prompt
    budget = step.budget
    if prompt - prompt_before > budget and not rules.chunked:
        return Outcome.BLOCKED
    take = length - before
    if take > budget:
        take = budget
    if not take and before < length:
        return Outcome.BLOCKED
    target = before + take
    size = rules.block_size
    if target > request.allocated:
        if cached or target > len(request.blocks) * size:
            outcome = allocate(core, step, request, target, cached)
            if outcome is not Outcome.SCHEDULED:
                return outcome
        else:
            # Its last block has room: the usual case of a decode, in which nothing else can happen.
            request.allocated = target
    request.computed = target
    if before // size != target // size:
        finalize(core, step.report, request, before, target)
    prompt_tokens = (target if target < prompt else prompt) - prompt_before
    record(
        step,
        core,
        Work(request.id, take, prompt_tokens, prompt_before, request.complete, prompt, length, request.generated),
    )
    step.budget -= take
    if admitted_at is not None:
        admit(core, step, request, cached)
    return Outcome.SCHEDULED


def admit(core: Core, step: Pass, request: Request, reused: int) -> None:
    """Move the head of the queue to the tail of the running requests.

    With the defect ``counts-dropped-hits`` it may have preempted others, which then wait in front of it.
    """
    core.leave_queue(request)
    core.running.append(request)
    request.status = RUNNING
    step.report.admissions.append(Admission(request.id, reused, first=request.cached_tokens is None))
    if request.cached_tokens is None:
        request.cached_tokens = reused


def allocate(core: Core, step: Pass, request: Request, target: int, cached: int) -> Outcome:
    """Blocks for the tokens up to ``target``, preempting running requests until they can be had.

    The first ``cached`` tokens are blocks found in the cache; a request whose prefix was loaded from host memory holds them
    already. A victim that was already scheduled in this pass gives its budget back.
    """
    rules, pool = core.rules, core.pool
    held = len(request.blocks)
    found_until = max(cached // rules.block_size, held)
    fresh = cdiv(target, rules.block_size) - found_until
    while True:
        found = [pool.index[identity][0] for identity in request.chain[held:found_until]]
        removed = pool.reserve(found, fresh)
        if removed is not None:
            break
        if not core.running:
            return Outcome.BLOCKED
        step.preempted_any = True
        victim = preempt(core, step.report, request, "schedule", fresh, (request.id,))
        refund(step, core, victim)
        if victim is request:
            return Outcome.PREEMPTED_ITSELF
    evicted(core, step.report, removed)
    pool.activate(found)
    request.blocks.extend(found)
    for _ in range(fresh):
        request.blocks.append(pool.take())
    request.allocated = target
    return Outcome.SCHEDULED
