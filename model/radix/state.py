"""The frozen form of a radix engine.

Numbers, in this order:

* how many requests wait, how many run, the passes in which nothing will be admitted, the eight bytes of the new-token ratio (a
  double: it decides how much is admitted for as long as the engine lives, also after it was idle);
* for each request, in queue order: its number in the registry, status, tokens generated, computed and cached, and with events
  published and caching off the pages announced;
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
from collections.abc import Sequence
from itertools import chain

from model.engine import pack, unpack
from model.radix.admission import is_refused
from model.radix.core import PREEMPTED, RUNNING, WAITING, Core, Request
from model.radix.rules import RadixRules
from model.radix.tree import Node
from model.registry import Registry

STATUSES = (WAITING, PREEMPTED, RUNNING)
CODES = {status: code for code, status in enumerate(STATUSES)}
RATIO_BYTES = 8


def freeze(core: Core) -> bytes:
    """The canonical state of an engine between two actions."""
    numbers = [len(core.waiting), len(core.running), core.deferred_passes, *struct.pack(">d", core.ratio)]
    announced = core.publisher is not None and not core.rules.caching
    for request in chain(core.waiting, core.running):
        numbers += (request.number, CODES[request.status], request.generated, request.computed, request.cached)
        if announced:
            numbers.append(announced_pages(core, request))
    nodes, ends = preorder(core.tree.root)
    for node, rank in zip(nodes, ranks(nodes, ends), strict=True):
        numbers += (len(node.keys), len(node.children), rank)
        numbers += node.keys
    return pack(numbers)


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
    end = start + width * (waiting + running)
    thaw_tree(core, numbers, end)
    for position, at in enumerate(range(start, end, width)):
        number, code, generated, computed, cached = numbers[at : at + 5]
        request = Request(registry.specs[number], number, rules, core.tree.root)
        request.status = STATUSES[code]
        request.generated = generated
        if request.status != WAITING or computed:
            request.cached_tokens = 0
        elif is_refused(rules, request):
            core.refused.append(request)
        core.requests[request.id] = request
        if position < waiting:
            core.waiting.append(request)
        else:
            core.running.append(request)
        if computed:
            announced = computed // rules.page_size if width == 5 else numbers[at + 5]
            thaw_lease(core, request, computed, cached, announced)
    return core


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
