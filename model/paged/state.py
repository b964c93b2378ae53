"""The frozen form of a paged engine.

Numbers, in this order: how many requests wait and how many run; with a prefill cadence, the step of the wave and whether
requests were left waiting; for each request, in queue order, its number in the registry, status, generated, computed and
allocated tokens, and with caching on the blocks of known identity and, per block it holds, 0 for a private one or 1 + the rank
of the copy among those of its identity; then, with caching on, the eviction order as (identity, rank). Everything else
follows: a cached block at position i has the i-th identity of its request, references are the number of holders, blocks held
are ``cdiv(allocated, block_size)``. The clock and the counters of past preemptions steer nothing and
are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from model.engine import pack, unpack
from model.paged.core import PREEMPTED, RUNNING, WAITING, Core, Request
from model.paged.pool import Copy
from model.paged.rules import PagedRules, cdiv
from model.registry import NO_BLOCK, Registry

STATUSES = (WAITING, PREEMPTED, RUNNING)
CODES = {status: code for code, status in enumerate(STATUSES)}


def freeze(core: Core) -> bytes:
    """The canonical state of an engine between two actions."""
    numbers = [len(core.waiting), len(core.running)]
    if core.rules.cadence > 1:
        numbers += (core.cadence.step, core.cadence.bound)
    caching = core.rules.caching
    index = core.pool.index
    requests: Iterable[Request] = chain(core.waiting, core.running)
    for request in requests:
        numbers += (request.number, CODES[request.status], request.generated, request.computed, request.allocated)
        if caching:
            numbers.append(request.identified)
            for copy in request.blocks:
                numbers.append(0 if copy.identity == NO_BLOCK else 1 + index[copy.identity].index(copy))
    if caching:
        for copy in core.pool.inactive:
            numbers += (copy.identity, index[copy.identity].index(copy))
    return pack(numbers)


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
    copies: dict[tuple[int, int], Copy] = {}
    caching, size = rules.caching, rules.block_size
    private = 0
    for position in range(waiting + running):
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
        core.requests[request.id] = request
        if position < waiting:
            core.waiting.append(request)
        else:
            core.running.append(request)
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
