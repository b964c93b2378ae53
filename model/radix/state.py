"""The frozen form of a radix engine.

Numbers, in this order:

* how many requests wait, how many run, the passes in which nothing will be admitted, the eight bytes of the new-token ratio (a
  double: it decides how much is admitted for as long as the engine lives, also after it was idle); of a worker that takes part
  in hand-offs, how many completed sources and ready, reserved and pending destinations there are, and whether the first
  pending one was tried in vain;
* for each request, those that wait, run and are ready in queue order, then completed sources by number: its number in the
  registry, status, tokens generated, computed and cached, and with events published and caching off the pages announced;
* of a worker that takes part in hand-offs: whether each live request is a source or an active destination; each reserved
  destination by number, with its cached tokens; the pending ones by number;
* the nodes of the tree, parents before children and children in the order of their first key: how many keys and children, the
  rank of the last use, the keys.

Everything else follows. The node of a lease is where its cached tokens end; locks are the leases at or below a node; which pages
the pool hands out next steers nothing; a page of the tree is announced when events are published, and so is a private one whose
tokens were all computed. Capacities and counters are ghosts, the clock steers nothing.

*Rank of last use.* Only leaves are compared by it, and a node and one above it are never leaves at the same time. So the order
among related nodes is left out: a node's rank is one more than the highest among the unrelated nodes used before it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain

from model.engine import pack, unpack
from model.radix.admission import is_refused
from model.radix.core import PARKED, PREEMPTED, RUNNING, WAITING, Core, Request
from model.radix.rules import RadixRules
from model.radix.tree import Node
from model.registry import Registry

STATUSES = (WAITING, PREEMPTED, RUNNING, PARKED)
CODES = {status: code for code, status in enumerate(STATUSES)}
RATIO_BYTES = 8


def freeze(core: Core) -> bytes:
    """The canonical state of an engine between two actions."""
    numbers = [len(core.waiting), len(core.running), core.deferred_passes, *struct.pack(">d", core.ratio)]
    handoffs = core.handoffs
    if core.rules.hands_off:
        numbers += (len(handoffs.held), len(handoffs.ready), len(handoffs.reserved), len(handoffs.pending), handoffs.tried)
    announced = core.publisher is not None and not core.rules.caching
    for request in chain(core.waiting, core.running, handoffs.ready, by_number(handoffs.held.values())):
        numbers += (request.number, CODES[request.status], request.generated, request.computed, request.cached)
        if announced:
            numbers.append(announced_pages(core, request))
    if core.rules.hands_off:
        live = chain(core.waiting, core.running, handoffs.ready)
        numbers += [request.id in handoffs.sources or request.id in handoffs.active for request in live]
        for request in by_number(handoffs.reserved.values()):
            numbers += (request.number, request.cached)
        numbers += [request.number for request in handoffs.pending.values()]
    nodes, ends = preorder(core.tree.root)
    for node, rank in zip(nodes, ranks(nodes, ends), strict=True):
        numbers += (len(node.keys), len(node.children), rank)
        numbers += node.keys
    return pack(numbers)


def by_number(requests: Iterable[Request]) -> list[Request]:
    """Requests that have no order, by their numbers."""
    return sorted(requests, key=lambda request: request.number)


def announced_pages(core: Core, request: Request) -> int:
    """The leading pages of a request that are announced (those computed by decoding are not, with caching off)."""
    assert core.publisher is not None
    identities = core.publisher.identities
    return sum(1 for page in request.pages if page in identities)


def preorder(root: Node) -> tuple[list[Node], list[int]]:
    """The nodes below the root, parents first, and for each the position behind its last descendant."""
    nodes: list[Node] = []
    parents: list[int] = []
    stack = [(root.children[key], -1) for key in sorted(root.children, reverse=True)]
    while stack:
        node, parent = stack.pop()
        position = len(nodes)
        nodes.append(node)
        parents.append(parent)
        stack.extend((node.children[key], position) for key in sorted(node.children, reverse=True))
    ends = list(range(1, len(nodes) + 1))
    for position in range(len(nodes) - 1, -1, -1):
        if parents[position] >= 0:
            ends[parents[position]] = max(ends[parents[position]], ends[position])
    return nodes, ends


def ranks(nodes: Sequence[Node], ends: Sequence[int]) -> list[int]:
    """The rank of the last use of each node; see the module docstring.

    Args:
        nodes: in preorder.
        ends: for each the position behind its last descendant.
    """
    found = [0] * len(nodes)
    older: list[int] = []
    for position in sorted(range(len(nodes)), key=lambda position: nodes[position].last_access):
        for other in older:
            related = other < position < ends[other] or position < other < ends[position]
            if not related and found[other] >= found[position]:
                found[position] = found[other] + 1
        older.append(position)
    return found


def thaw(rules: RadixRules, registry: Registry, state: bytes) -> Core:
    """The engine that froze to ``state``."""
    numbers = unpack(state)
    core = Core(rules, registry)
    waiting, running, core.deferred_passes = numbers[:3]
    (core.ratio,) = struct.unpack(">d", bytes(list(numbers[3 : 3 + RATIO_BYTES])))
    width = 5 if core.publisher is None or rules.caching else 6
    start = 3 + RATIO_BYTES
    held = ready = reserved = pending = 0
    if rules.hands_off:
        held, ready, reserved, pending, tried = numbers[start : start + 5]
        core.handoffs.tried = bool(tried)
        start += 5
    live = waiting + running + ready
    end = start + width * (live + held)
    parts = end
    if rules.hands_off:
        end += live + 2 * reserved + pending
    thaw_tree(core, numbers, end)
    for position, at in enumerate(range(start, parts, width)):
        number, code, generated, computed, cached = numbers[at : at + 5]
        request = Request(registry.specs[number], number, rules, core.tree.root)
        request.status = STATUSES[code]
        request.generated = generated
        is_ready = waiting + running <= position < live
        if (request.status != WAITING or computed) and not is_ready:
            request.cached_tokens = 0
        elif not is_ready and is_refused(rules, request):
            core.refused.append(request)
        if position < live:
            core.requests[request.id] = request
        if position < waiting:
            core.waiting.append(request)
        elif position < waiting + running:
            core.running.append(request)
        elif is_ready:
            core.handoffs.ready.append(request)
        else:
            core.handoffs.held[request.id] = request
        if computed:
            announced = announced_while_caching(rules, request, computed, cached) if width == 5 else numbers[at + 5]
            thaw_lease(core, request, computed, cached, announced)
    if rules.hands_off:
        thaw_handoffs(core, numbers[parts:end], reserved)
    return core


def announced_while_caching(rules: RadixRules, request: Request, computed: int, cached: int) -> int:
    """The leading pages of a request that are announced, with caching on: the full ones of its computed tokens.

    What a completed source computed by decoding and did not cache is not.
    """
    if request.status == PARKED:
        return max(cached, rules.whole_pages(min(computed, request.prompt))) // rules.page_size
    return computed // rules.page_size


def thaw_handoffs(core: Core, numbers: Sequence[int], reserved: int) -> None:
    """Read which live requests take part in a hand-off, and the destinations that are not live.

    Args:
        core: with its queues and its tree.
        numbers: this part of the state.
        reserved: how many destinations have their pages.
    """
    handoffs, rules = core.handoffs, core.rules
    parts = handoffs.active if rules.decode_role else handoffs.sources
    for (id_, request), takes_part in zip(core.requests.items(), numbers, strict=False):
        if takes_part:
            parts[id_] = request
    at = len(core.requests)
    for _ in range(reserved):
        number, cached = numbers[at : at + 2]
        at += 2
        request = parked(core, number)
        handoffs.reserved[request.id] = request
        thaw_lease(core, request, request.prompt, cached, cached // rules.page_size)
        request.computed = 0
    for number in numbers[at:]:
        request = parked(core, number)
        handoffs.pending[request.id] = request


def parked(core: Core, number: int) -> Request:
    """A destination whose KV has not come."""
    request = Request(core.registry.specs[number], number, core.rules, core.tree.root)
    request.status = PARKED
    return request


def thaw_tree(core: Core, numbers: Sequence[int], at: int) -> None:
    """Build the tree that stands in ``numbers`` from position ``at`` on."""
    tree = core.tree
    unfinished = [(tree.root, len(numbers))]
    while at < len(numbers):
        keys, children, rank = numbers[at : at + 3]
        at += 3
        parent, missing = unfinished.pop()
        if missing > 1:
            unfinished.append((parent, missing - 1))
        pages = core.pool.allocate(keys)
        assert pages is not None
        node = tree.restore(parent, list(numbers[at : at + keys]), pages, rank)
        if core.publisher is not None:
            core.publisher.adopt(node.pages, node.keys)
        at += keys
        if children:
            unfinished.append((node, children))
    tree.reindex()


def thaw_lease(core: Core, request: Request, computed: int, cached: int, announced: int) -> None:
    """Give a request its lease: ``cached`` of its ``computed`` tokens in the tree, its first ``announced`` pages announced."""
    size = core.rules.page_size
    keys = core.registry.chain(request.number, computed // size)
    shared = cached // size
    request.node = core.tree.find(keys, shared)
    core.tree.lock(request.node)
    own = core.pool.allocate(-(-computed // size) - shared)
    assert own is not None
    request.pages = core.tree.pages_to(request.node) + own
    request.computed = computed
    request.cached = cached
    if core.publisher is not None:
        core.publisher.adopt(request.pages[shared:announced], keys[shared:announced])
