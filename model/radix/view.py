"""What a radix engine shows of itself; see ``model.views``.

Physical pages are numbered by appearance: first those of requests, then those of the tree, then any that neither holds
although the pool does not have them, so that a leak shows.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

from model.radix.core import Core
from model.radix.handoff import owners, parties
from model.radix.state import preorder, ranks
from model.registry import NO_BLOCK
from model.views import BlockView, EngineView, PoolView, RequestView, TreeNodeView


def snapshot(core: Core, blocks: bool) -> EngineView:
    """A view of the engine; without ``blocks`` the parts that cost as much as the cache is large are left out."""
    size = core.rules.page_size
    tree, pool = core.tree, core.pool
    table: dict[int, int] = {}
    requests = {}
    for request in parties(core):
        # The pages of a destination whose KV has not come belong to its reservation.
        has_room = request.id not in core.handoffs.reserved
        held = tuple([table.setdefault(page, len(table)) for page in request.pages]) if blocks and has_room else ()
        requests[request.id] = RequestView(
            request.id,
            request.status,
            request.prompt,
            request.limit,
            request.generated,
            request.computed,
            len(request.pages) * size if has_room else 0,
            held,
            request.cached_tokens or 0,
            request.preemptions,
        )
    available = pool.available
    view = EngineView(
        core.now,
        requests,
        tuple([request.id for request in chain(core.waiting, core.handoffs.ready)]),
        tuple([request.id for request in core.running]),
        PoolView(pool.total, available, pool.total - available - tree.evictable, tree.evictable),
        costs={"radix_capacity": tree.retained, "radix_stored": tree.stored},
        extra={
            "ratio": core.ratio,
            "interval": core.deferred_passes,
            "evictable_tokens": tree.evictable * size,
            "protected_tokens": tree.protected * size,
        },
    )
    if core.rules.hands_off:
        view.extra = {**view.extra, **owners(core)}
    if blocks:
        add_blocks(core, view, table)
    return view


def add_blocks(core: Core, view: EngineView, table: dict[int, int]) -> None:
    """Add the block table, the cache contents, the tree and the leases.

    Args:
        core: the engine.
        view: to be added to.
        table: the physical pages seen so far, each with its number in the view.
    """
    nodes, ends = preorder(core.tree.root)
    position = {node: at for at, node in enumerate(nodes)}
    identities: dict[int, int] = {}
    unlocked: set[int] = set()
    indexed = {number for _, number in core.tree.leaves}
    shown = []
    for node, rank in zip(nodes, ranks(nodes, ends), strict=True):
        identities.update(zip(node.pages, node.keys, strict=True))
        if not node.locks:
            unlocked.update(node.pages)
        shown.append(
            TreeNodeView(
                parent=-1 if node.parent is core.tree.root or node.parent is None else position[node.parent],
                pages=tuple(node.keys),
                locks=node.locks,
                capacity=2 * node.capacity,
                evictable_leaf=node.id in indexed,
                blocks=tuple([table.setdefault(page, len(table)) for page in node.pages]),
                recency=rank,
            )
        )
    free = set(core.pool.returned)
    for page in range(core.pool.next_fresh):
        if page not in free:
            table.setdefault(page, len(table))
    holders: Counter[int] = Counter()
    pins: Counter[int] = Counter()
    for request in chain(core.requests.values(), core.handoffs.held.values()):
        holders.update(request.pages)
    pinned = {}
    for id_, request in core.handoffs.reserved.items():
        pins.update(request.pages)
        pinned[id_] = tuple([table[page] for page in request.pages])
    view.blocks = tuple(
        [BlockView(identities.get(page, NO_BLOCK), holders[page], pins[page], page in unlocked) for page in table]
    )
    view.cached = frozenset(identities.values())
    view.tree = tuple(shown)
    leases = {}
    for request in chain(core.requests.values(), core.handoffs.held.values()):
        if request.computed:
            leases[request.id] = (request.cached, position.get(request.node, -1))
    view.extra = {**view.extra, "leases": leases}
    if pinned:
        locked = tuple([position.get(request.node, -1) for request in core.handoffs.reserved.values()])
        view.extra = {**view.extra, "pinned_blocks": pinned, "locked_nodes": locked}
