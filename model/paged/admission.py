"""Who is admitted from the waiting queue, and with how much of its prompt already cached (vLLM specification 3.2 to 3.4)."""

from __future__ import annotations

from enum import Enum

from model.paged.core import PREEMPTED, RUNNING, Core, Request
from model.paged.pool import Copy
from model.paged.rules import PagedRules, cdiv


class Verdict(Enum):
    """What the admission rule says of the head of the queue."""

    ADMIT = "admit"
    WAIT = "wait"
    REJECT = "reject"


class Cost:
    """What a lookup found: leading tokens that are cached, and of these the ones that somebody holds."""

    __slots__ = ("active_cached", "cached")

    def __init__(self, cached: int, active_cached: int) -> None:
        """Both in tokens, multiples of the block size."""
        self.cached = cached
        self.active_cached = active_cached


NOTHING_CACHED = Cost(0, 0)


def cached_run(core: Core, request: Request) -> list[Copy]:
    """The cached blocks at the head of a request, as far as they go without a gap."""
    index = core.pool.index
    found = []
    for identity in request.chain[: request.identified]:
        copies = index.get(identity)
        if copies is None:
            break
        found.append(copies[0])
    return found


def look_up(core: Core, request: Request) -> Cost:
    """The reusable prefix of a request (3.3); ``cost_of`` tells how much of what is cached is used."""
    rules = core.rules
    if not rules.caching:
        return NOTHING_CACHED
    return cost_of(core, request, cached_run(core, request))


def cost_of(core: Core, request: Request, found: list[Copy]) -> Cost:
    """What ``found``, the cached blocks at the head of a request, save it.

    A request that still needs logits recomputes at least its last token, hence its last whole block when everything is
    cached; with speculation one more block is left out. TensorRT-LLM's policy leaves nothing out. Only blocks that are used
    count as active: the specification counts those left out too, while an older one that is used may have to be revived, so
    admission could run short and preempt.
    """
    rules = core.rules
    if not found:
        return NOTHING_CACHED
    size = rules.block_size
    cached = len(found) * size
    if not request.complete and not rules.guaranteed:
        cached = min(cached, (request.length - 1) // size * size)
        if rules.speculative and cached >= size:
            cached -= size
    used = found if rules.counts_dropped_hits else found[: cached // size]
    active = sum(1 for copy in used if copy.refs or copy.pins)
    return Cost(cached, min(active * size, cached))


def can_serve(rules: PagedRules, prompt: int, limit: int) -> bool:
    """Whether a request could finish were it alone: all its tokens but the last fit the cache, and its prompt a pass.

    TensorRT-LLM's policy sets room aside for the last token too.

    Args:
        rules: of the engine.
        prompt: prompt length in tokens.
        limit: tokens it may produce; without one, its prompt must fit whole.
    """
    to_compute = prompt + (limit if rules.guaranteed else max(limit - 1, 0))
    return cdiv(to_compute, rules.block_size) <= rules.num_blocks and (rules.chunked or prompt <= rules.budget)


def to_completion_blocks(core: Core, request: Request) -> int:
    """Blocks that hold a request when it has produced all it may."""
    return cdiv(request.prompt + request.limit, core.rules.block_size)


def judge(core: Core, request: Request, cost: Cost) -> Verdict:
    """The admission rule for a fresh request (3.4): its whole known length must fit beside what is held.

    Room for future output is not set aside, and an inactive hit is not discounted, since using it takes room. TensorRT-LLM's
    policy wants room for the whole output, beside that of all who run, so that nobody ever has to be preempted.
    """
    rules, pool = core.rules, core.pool
    wanted = to_completion_blocks(core, request) if rules.guaranteed else cdiv(request.length, rules.block_size)
    if request.status != PREEMPTED and wanted > rules.num_blocks:
        return Verdict.REJECT
    if not rules.admits_unservable and not can_serve(rules, request.prompt, request.limit):
        return Verdict.REJECT
    needed = wanted - cost.active_cached // rules.block_size
    available = rules.num_blocks - pool.active
    if rules.guaranteed:
        available -= still_to_take(core) + headroom(core, request)
    return Verdict.ADMIT if needed <= available else Verdict.WAIT


def still_to_take(core: Core) -> int:
    """Blocks that the running requests will take before they complete."""
    return sum(to_completion_blocks(core, request) - len(request.blocks) for request in core.running)


def headroom(core: Core, candidate: Request | None = None) -> int:
    """Blocks that accepted hand-offs will take before they complete, beyond those they have (4.4); ``handoff_room`` tells which.

    Only TensorRT-LLM's policy uses the value. The requests looked at are counted.
    """
    if not core.rules.scans_needlessly:
        core.scan_visits += len(core.handoffs.active)
    return handoff_room(core, candidate)


def scan_needlessly(core: Core) -> None:
    """Finding 5: look at every request to find the headroom, before anybody asks whether it is needed."""
    core.scan_visits += len(core.requests)


def handoff_room(core: Core, candidate: Request | None = None) -> int:
    """Blocks still to be taken by destinations whose KV is on its way, and by those that wait with it but the ``candidate``."""
    handoffs = core.handoffs
    room = sum(to_completion_blocks(core, hold.request) - hold.blocks for hold in handoffs.reserved.values())
    for request in handoffs.active.values():
        if request.status != RUNNING and request is not candidate:
            room += to_completion_blocks(core, request) - len(request.blocks)
    return room
