"""The frozen form of a paged engine.

Numbers, in this order:

* how many requests wait and how many run; with a prefill cadence, the step of the wave and whether requests were left
  waiting; of a worker that takes part in hand-offs, how many completed sources and reserved and pending destinations there
  are, and whether the first pending one was tried in vain;
* each request, those that wait in queue order, those that run likewise, then completed sources: its number in the registry,
  status, generated, computed and allocated tokens, and with caching on the blocks of known identity and, per block it
  holds, 0 for a private one or 1 + the rank of the copy among those of its identity;
* of a worker that takes part in hand-offs: whether each live request is a source or an active destination; each reserved
  destination by number, with its fresh blocks, how many cached blocks it pins, and the rank of each; the pending ones by
  number; and with role ``decode``, where each of all these stands in the order of arrival;
* with caching on, the eviction order as (identity, rank).

Everything else follows: a cached block at position i has the i-th identity of its request, references are the number of
holders, blocks held are ``cdiv(allocated, block_size)``. What has no order (completed sources, reserved destinations) goes by
number. The clock and the counters of past preemptions steer nothing and are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from model.engine import pack, unpack
from model.paged.core import PARKED, PREEMPTED, RUNNING, WAITING, Core, Hold, Request
from model.paged.pool import Copy
from model.paged.rules import PagedRules, cdiv
from model.registry import NO_BLOCK, Registry

STATUSES = (WAITING, PREEMPTED, RUNNING, PARKED)
CODES = {status: code for code, status in enumerate(STATUSES)}


def freeze(core: Core) -> bytes:
    """The canonical state of an engine between two actions."""
    numbers = [len(core.waiting), len(core.running)]
    if core.rules.cadence > 1:
        numbers += (core.cadence.step, core.cadence.bound)
    handoffs = core.handoffs
    if core.rules.hands_off:
        numbers += (len(handoffs.held), len(handoffs.reserved), len(handoffs.pending), handoffs.tried)
    caching = core.rules.caching
    index = core.pool.index
    requests: Iterable[Request] = chain(core.waiting, core.running, sorted(handoffs.held.values(), key=lambda held: held.number))
    for request in requests:
        numbers += (request.number, CODES[request.status], request.generated, request.computed, request.allocated)
        if caching:
            numbers.append(request.identified)
            for copy in request.blocks:
                numbers.append(0 if copy.identity == NO_BLOCK else 1 + index[copy.identity].index(copy))
    if core.rules.hands_off:
        live = chain(core.waiting, core.running)
        numbers += [request.id in handoffs.sources or request.id in handoffs.active for request in live]
        for hold in by_number(handoffs.reserved.values()):
            numbers += (hold.request.number, hold.fresh, len(hold.hits))
            numbers += [index[copy.identity].index(copy) for copy in hold.hits]
        numbers += [request.number for request in handoffs.pending.values()]
    if core.rules.decode_role:
        orders = [request.order for request in ordered_by_arrival(core)]
        ranks = {order: rank for rank, order in enumerate(sorted(orders))}
        numbers += [ranks[order] for order in orders]
    if caching:
        for copy in core.pool.inactive:
            numbers += (copy.identity, index[copy.identity].index(copy))
    return pack(numbers)


def by_number(holds: Iterable[Hold]) -> list[Hold]:
    """Reserved destinations, which have no order, by the numbers of their requests."""
    return sorted(holds, key=lambda hold: hold.request.number)


def ordered_by_arrival(core: Core) -> list[Request]:
    """The requests whose order of arrival steers something, in the order of the state."""
    handoffs = core.handoffs
    reserved = [hold.request for hold in by_number(handoffs.reserved.values())]
    return [*core.waiting, *core.running, *reserved, *handoffs.pending.values()]


def thaw(rules: PagedRules, registry: Registry, state: bytes) -> Core:
    """The engine that froze to ``state``."""
    numbers = unpack(state)
    core = Core(rules, registry)
    waiting, running = numbers[0], numbers[1]
    at = 2
    if rules.cadence > 1:
        core.cadence.step = numbers[2]
        core.cadence.bound = bool(numbers[3])
        at = 4
    held_sources = reserved = pending = 0
    if rules.hands_off:
        held_sources, reserved, pending, tried = numbers[at : at + 4]
        core.handoffs.tried = bool(tried)
        at += 4
    copies: dict[tuple[int, int], Copy] = {}
    caching, size = rules.caching, rules.block_size
    private = 0
    for position in range(waiting + running + held_sources):
        number = numbers[at]
        request = Request(registry.specs[number], number, registry.chains[number], rules)
        status = STATUSES[numbers[at + 1]]
        request.status = status
        request.generated = numbers[at + 2]
        request.computed = numbers[at + 3]
        request.allocated = numbers[at + 4]
        if status != WAITING:
            request.cached_tokens = 0
        at += 5
        held = cdiv(request.allocated, size)
        if caching:
            request.identified = numbers[at]
            at += 1
            for block in range(held):
                rank = numbers[at + block]
                if not rank:
                    private += 1
                    request.blocks.append(Copy())
                    continue
                key = (request.chain[block], rank - 1)
                copy = copies.get(key)
                if copy is None:
                    copy = copies[key] = Copy(key[0], 0)
                copy.refs += 1
                request.blocks.append(copy)
            at += held
        else:
            private += held
            request.blocks = [Copy() for _ in range(held)]
        if position >= waiting + running:
            core.handoffs.held[request.id] = request
            continue
        core.requests[request.id] = request
        if position < waiting:
            core.waiting.append(request)
        else:
            core.running.append(request)
    if rules.hands_off:
        at = thaw_handoffs(core, numbers, at, copies, reserved, pending)
    pool = core.pool
    for start in range(at, len(numbers), 2):
        key = (numbers[start], numbers[start + 1])
        copy = copies[key] = Copy(key[0], 0)
        pool.inactive[copy] = None
    pool.copies = private + len(copies)
    for identity, rank in sorted(copies):
        if rank:
            pool.index[identity].append(copies[identity, rank])
        else:
            pool.index[identity] = [copies[identity, rank]]
    return core


def thaw_handoffs(
    core: Core, numbers: Sequence[int], at: int, copies: dict[tuple[int, int], Copy], reserved: int, pending: int
) -> int:
    """Read which live requests take part in a hand-off, and the destinations that are not live; the position behind them.

    Args:
        core: with its queues.
        numbers: of the state.
        at: where this part of it begins.
        copies: the cached blocks met so far, by identity and rank; those that are pinned are added.
        reserved: how many destinations have room.
        pending: how many have none.
    """
    handoffs, rules = core.handoffs, core.rules
    parts = handoffs.sources if rules.prefill_role else handoffs.active
    for id_, request in core.requests.items():
        if numbers[at]:
            parts[id_] = request
        at += 1
    for _ in range(reserved):
        number, fresh, hits = numbers[at : at + 3]
        request = thaw_parked(core, number)
        at += 3
        pinned = []
        for identity, rank in zip(request.chain, numbers[at : at + hits], strict=False):
            copy = copies.get((identity, rank))
            if copy is None:
                copy = copies[identity, rank] = Copy(identity, 0)
            copy.pins += 1
            pinned.append(copy)
        at += hits
        core.pool.reserved += fresh
        handoffs.reserved[request.id] = Hold(request, pinned, fresh)
    for number in numbers[at : at + pending]:
        request = thaw_parked(core, number)
        handoffs.pending[request.id] = request
    at += pending
    if not rules.decode_role:
        return at
    ordered = ordered_by_arrival(core)
    core.arrivals = len(ordered)
    for request, order in zip(ordered, numbers[at : at + len(ordered)], strict=True):
        request.order = order
    return at + len(ordered)


def thaw_parked(core: Core, number: int) -> Request:
    """A destination whose KV has not come."""
    registry = core.registry
    request = Request(registry.specs[number], number, registry.chains[number], core.rules)
    request.status = PARKED
    return request
