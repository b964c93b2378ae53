"""The tokens of a pass (SGLang specification 2.4, 2.5).

A pass that admitted anything gives the freshly prefilled requests their first token and lets the running ones stall; any other
pass decodes. Every token takes its slot in the pass that produces it, so that a running request has computed all it has; only a
first token that is also the last takes none. Pages for the new tokens are set aside for the whole batch at once, or not at all.
"""

from __future__ import annotations

from model.events import Preemption, Signal, Work
from model.radix.core import PARKED, PREEMPTED, Core, Pass, Request, emit
from model.radix.lease import cache_prefix, evict_for, finish, release
from model.radix.rules import RETRACTION_DECODE_STEPS


def first_tokens(core: Core, step: Pass, fresh: list[Request]) -> None:
    """The first token of freshly prefilled requests, which are running already (2.4).

    When the pages for it are not there, none of them gets one, and they go on in a later decode pass.
    """
    report = step.report
    completed = end_complete(core, step, fresh)
    for request in fresh:
        if request.remaining == 1:
            emit(core, report, request)
            completed.append(request)
    growing = [request for request in fresh if request.remaining]
    slots = reserve(core, step, sum(growth(core, request, 1) for request in growing))
    if slots is not None:
        for request in growing:
            take_slot(core, request, slots)
            emit(core, report, request)
            cache_prefix(core, report, request)
        core.pool.free(slots)
    elif not core.rules.caches_with_first_token:
        # Their pages are announced already.
        for request in growing:
            cache_prefix(core, report, request)
    end(core, step, completed)


def decode(core: Core, step: Pass) -> bool:
    """One decode step of all running requests (2.5); whether any of them was retracted.

    The retracted ones go to the back of the queue. If what is left cannot grow, nobody gets a token and no time passes.
    """
    rules, report = core.rules, step.report
    completed = end_complete(core, step, core.running)
    core.running = [request for request in core.running if request.remaining]
    retracted = retract_for_growth(core, step)
    if not rules.partials_keep_pages:
        release_partials(core, step)
    if retracted:
        core.ratio = estimated_ratio(core.running)
    slots = reserve(core, step, batch_growth(core))
    batch = core.running
    if slots is not None and batch:
        for request in batch:
            if decode_burst(core, step, request, slots):
                completed.append(request)
        core.pool.free(slots)
        core.now += rules.decode_ns + rules.decode_request_ns * len(batch)
        report.decode_batch = len(batch)
    end(core, step, completed)
    core.waiting.extend(retracted)
    return bool(retracted)


def end_complete(core: Core, step: Pass, requests: list[Request]) -> list[Request]:
    """Those of ``requests`` that ask for no (further) token: each ends with a signal that carries none."""
    completed = [request for request in requests if not request.remaining]
    for request in completed:
        delay = core.rules.config.handoff_delay_ns(request.prompt)
        step.report.signals.append(Signal(request.id, token=False, completed=True, handoff_delay_ns=delay))
    return completed


def end(core: Core, step: Pass, completed: list[Request]) -> None:
    """Forget completed requests and end their leases, in order; those of sources are kept for the worker that goes on."""
    handoffs = core.handoffs
    for request in completed:
        del core.requests[request.id]
        handoffs.active.pop(request.id, None)
        if handoffs.sources.pop(request.id, None) is not None:
            hold(core, step, request)
        else:
            finish(core, step.report, request)
            handoffs.tried = False
    core.running = [request for request in core.running if request.id in core.requests]


def hold(core: Core, step: Pass, request: Request) -> None:
    """Keep the lease of a completed source (7). Its full pages are announced already, so they enter the tree now."""
    request.status = PARKED
    core.handoffs.held[request.id] = request
    if not core.rules.holds_uncached:
        cache_prefix(core, step.report, request)
    step.report.handed_over.append(request.id)
    step.report.notes.append(("source-held", request.id))


def growth(core: Core, request: Request, burst: int) -> int:
    """Pages that a request needs for its next ``burst`` tokens, as far as it may produce them."""
    tokens = request.length + min(burst, request.remaining)
    return max(-(-tokens // core.rules.page_size) - len(request.pages), 0)


def batch_growth(core: Core) -> int:
    """Pages that the running requests need for their next, largest bursts."""
    return sum(growth(core, request, core.rules.draft_tokens + 1) for request in core.running)


def retract_for_growth(core: Core, step: Pass) -> list[Request]:
    """Retract running requests until the others can grow; the last one stays, unless a ready destination waits for its slot.

    The victim is the request that produced the fewest tokens, of several the one that runs longest. Its tokens stay its own. With
    all slots taken, a destination whose KV has come may hold the very pages that the last one cannot grow without (defect
    ``ready-starves-running``).
    """
    retracted = []
    least = 1 if not core.handoffs.ready or core.rules.last_one_stays else 0
    while len(core.running) > least and batch_growth(core) > core.obtainable:
        victim = min(core.running, key=_generated)
        retract(core, step, victim)
        core.running.remove(victim)
        retracted.append(victim)
    return retracted


def release_partials(core: Core, step: Pass) -> None:
    """Take the pages of partials when what runs cannot grow beside them; they keep their places in the queue.

    Without this, the last running request (which is never retracted) and a partial may hold the pool between them for ever.
    """
    for request in reversed(core.waiting):
        if batch_growth(core) <= core.obtainable:
            return
        if request.computed:
            retract(core, step, request)


def retract(core: Core, step: Pass, victim: Request) -> None:
    """Take its pages from a request; the tokens it produced stay its own. The caller sees to the queues."""
    burst = core.rules.draft_tokens + 1
    step.report.preemptions.append(
        Preemption(
            victim=victim.id,
            cause=None,
            phase="decode",
            needed=batch_growth(core),
            free=core.obtainable,
            requests=tuple([request.id for request in core.running if growth(core, request, burst)]),
        )
    )
    release(core, step.report, victim)
    victim.status = PREEMPTED
    victim.preemptions += 1
    core.handoffs.tried = False


def _generated(request: Request) -> int:
    return request.generated


def estimated_ratio(survivors: list[Request]) -> float:
    """The share of their output that running requests are expected to have produced some steps after a retraction."""
    produced = sum(request.generated for request in survivors) + RETRACTION_DECODE_STEPS * len(survivors)
    return min(1.0, produced / (sum(request.limit for request in survivors) + 1))


def reserve(core: Core, step: Pass, pages: int) -> list[int] | None:
    """Set ``pages`` aside, evicting as needed; None, with everything evictable gone, when they are not there."""
    evict_for(core, step.report, pages)
    return core.pool.allocate(pages)


def take_slot(core: Core, request: Request, slots: list[int]) -> None:
    """Room for one more token of a request, out of the pages set aside."""
    if request.computed % core.rules.page_size == 0:
        request.pages.append(slots.pop())
    request.computed += 1


def decode_burst(core: Core, step: Pass, request: Request, slots: list[int]) -> bool:
    """The tokens of one request in a decode step; whether it completed."""
    report, rules = step.report, core.rules
    burst = 1 + min(step.accepted.get(request.id, rules.accepted), rules.draft_tokens)
    report.accept_forwards += 1
    report.accept_tokens += burst
    tokens = min(burst, request.remaining)
    report.work[request.id] = Work(
        id=request.id,
        total=tokens,
        prompt_tokens=0,
        prefix_tokens=request.prompt,
        terminal=False,
        prompt=request.prompt,
        length=request.length,
        generated=request.generated,
    )
    for _ in range(tokens):
        take_slot(core, request, slots)
        if emit(core, report, request):
            return True
        cache_prefix(core, report, request)
    return False
