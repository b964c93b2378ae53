"""The tokens of a pass with speculation (vLLM specification 3.8), and finding 9 (5).

In a burst of ``m`` tokens from length ``L`` the tokens ``L`` to ``L + m - 2`` are computed in this pass, so their blocks are
needed now; the last one dangles (or is terminal) and is not. Hence, with at most ``b`` tokens to come::

    reserve    cdiv(L + b - 1) - blocks held
    allocate   through L + m - 1 tokens

Finding 9 is ``+ b`` and ``+ m`` in these places: a request whose last token lies just beyond the cache then preempts itself
for ever. The two halves are separate switches, since mending one alone is wrong too: to reserve less and still allocate
through the last token takes a block that nobody set aside.
"""

from __future__ import annotations

from model.events import Signal
from model.paged.core import Core, Pass, Request, evicted, finalize, preempt, signal_end
from model.paged.emission import count_forwards, end_complete, keep_live
from model.paged.rules import cdiv


def emit_bursts(core: Core, step: Pass) -> int:
    """A burst of tokens for every running request that is computed to its end.

    Room for the largest burst of each is reserved first, preempting running requests, ready or not, until it fits; what the
    sampled bursts do not use is given back. A request preempted here keeps its place in the work of the pass.

    Returns:
        The number of requests in the decode batch, whose time is charged; with nobody left to emit, 0.
    """
    rules, pool = core.rules, core.pool
    ready = end_complete(core, step)
    while ready:
        wanted = sum(terminal_room(core, request) for request in ready)
        removed = pool.reserve((), wanted)
        if removed is not None:
            evicted(core, step.report, removed)
            break
        preempt(core, step.report, None, "emission", wanted, tuple(request.id for request in ready))
        ready = [request for request in core.running if request.computed == request.length and not request.complete]
    else:
        return 0
    bursts = {}
    unused = wanted
    for request in ready:
        drafts = min(step.accepted.get(request.id, rules.accepted), rules.max_burst - 1)
        bursts[request.id] = 1 + drafts
        unused -= emit_burst(core, step, request, min(1 + drafts, request.limit - request.generated))
    keep_live(core)
    pool.cancel((), unused)
    count_forwards(step, ready, bursts)
    return len(ready)


def terminal_room(core: Core, request: Request) -> int:
    """Fresh blocks to reserve for the largest burst of a request."""
    rules = core.rules
    size = rules.block_size
    length = request.length
    burst = min(rules.max_burst, request.limit - request.generated)
    if rules.reserves_terminal:
        return cdiv(length + burst, size) - cdiv(length, size)
    return max(cdiv(length + burst - 1, size) - len(request.blocks), 0)


def emit_burst(core: Core, step: Pass, request: Request, tokens: int) -> int:
    """Emit ``tokens`` tokens of one request; the number of reserved blocks it took."""
    rules, pool = core.rules, core.pool
    taken = 0
    through = request.length + tokens - (0 if rules.allocates_terminal else 1)
    for _ in range(tokens):
        # The token before is computed now; the block it fills becomes reusable.
        finalize(core, step.report, request, request.length - 1, request.length)
        request.generated += 1
        held = min(request.length, through)
        if request.allocated < held:
            if cdiv(held, rules.block_size) > len(request.blocks):
                request.blocks.append(pool.take())
                taken += 1
            request.allocated = held
        if request.complete:
            signal_end(core, step.report, request, token=True)
        else:
            step.report.signals.append(Signal(request.id, token=True, completed=False))
    if request.complete:
        core.complete(request, step.report)
    else:
        request.computed = request.length - 1
    return taken
