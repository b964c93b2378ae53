"""Invariants over a radix tree and the requests that lean on it (SGLang specification 8)."""

from __future__ import annotations

from invariants.framework import COST, Found, Transition, on_state, on_step
from model import engine as parts
from model.config import EngineConfig
from model.views import RUNNING, EngineView, TreeNodeView

LEAST_CAPACITY = 4
"""A vector that grows gets room for at least this many pages (5.3)."""


def sglang(config: EngineConfig) -> bool:
    """The scheduler works on a radix tree."""
    return config.scheduler == "sglang"


def _children(tree: tuple[TreeNodeView, ...]) -> list[int]:
    counts = [0] * len(tree)
    for node in tree:
        if node.parent >= 0:
            counts[node.parent] += 1
    return counts


@on_state(
    "tree-shape",
    "Edges are not empty, no page stands twice, parents come before children, and the eviction index holds the unlocked leaves.",
    "SGLang specification S5, S6, R4",
    needs={parts.TREE},
    applies=sglang,
)
def tree_shape(view: EngineView, config: EngineConfig) -> Found:
    """The nodes of the tree, one by one."""
    tree = view.tree
    if not tree:
        return None
    children = _children(tree)
    pages = 0
    identities: set[int] = set()
    blocks: set[int] = set()
    for position, node in enumerate(tree):
        if not node.pages or len(node.pages) != len(node.blocks):
            return f"node {position} has {len(node.pages)} keys and {len(node.blocks)} pages"
        if not -1 <= node.parent < position:
            return f"node {position} hangs under node {node.parent}"
        if node.evictable_leaf != (not node.locks and not children[position]):
            state = "stands" if node.evictable_leaf else "does not stand"
            return f"node {position} {state} in the eviction index, with {node.locks} locks and {children[position]} children"
        pages += len(node.pages)
        identities.update(node.pages)
        blocks.update(node.blocks)
    if len(identities) != pages or len(blocks) != pages:
        return f"{pages} pages in the tree, {len(identities)} sequences, {len(blocks)} physical pages"
    return True


@on_state(
    "refcount-exact",
    "The locks of a node are the requests whose deepest node is it or lies below it.",
    "SGLang specification S3",
    needs={parts.TREE, parts.REQUESTS},
    applies=sglang,
)
def locks_exact(view: EngineView, config: EngineConfig) -> Found:
    """Locks counted anew from the leases."""
    tree = view.tree
    if not tree:
        return None
    expected = [0] * len(tree)
    nodes = [node for _, node in view.extra.get("leases", {}).values()]
    nodes += view.extra.get("locked_nodes", ())
    for node in nodes:
        while node >= 0:
            expected[node] += 1
            node = tree[node].parent
    for position, node_view in enumerate(tree):
        if node_view.locks != expected[position]:
            return f"node {position} counts {node_view.locks} locks, {expected[position]} requests lean on it"
    return True


@on_state(
    "single-owner",
    "The cached part of a request is the path of its node, page for page.",
    "SGLang specification S2",
    needs={parts.TREE, parts.BLOCKS, parts.REQUESTS},
    applies=sglang,
)
def cached_part_is_path(view: EngineView, config: EngineConfig) -> Found:
    """Pages of requests against pages of the tree."""
    tree, met = view.tree, False
    if not tree:
        return None
    for id_, (cached, node) in view.extra.get("leases", {}).items():
        path: list[int] = []
        while node >= 0:
            path[:0] = tree[node].blocks
            node = tree[node].parent
        shared = cached // config.block_size
        met = met or bool(shared)
        if view.requests[id_].blocks[:shared] != tuple(path[:shared]) or len(path) < shared:
            return f"the {cached} cached tokens of {id_} are not the pages on the path of its node"
    return True if met else None


@on_state(
    "block-conservation",
    "Evictable and protected tokens are those of the unlocked and of the locked nodes.",
    "SGLang specification S4",
    needs={parts.TREE, parts.POOL},
    applies=sglang,
)
def tree_totals(view: EngineView, config: EngineConfig) -> Found:
    """The totals of the tree counted anew."""
    if not view.tree:
        return None
    evictable = sum(len(node.pages) for node in view.tree if not node.locks) * config.block_size
    protected = sum(len(node.pages) for node in view.tree if node.locks) * config.block_size
    told = view.extra["evictable_tokens"], view.extra["protected_tokens"]
    if told != (evictable, protected):
        return f"{told[0]} evictable and {told[1]} protected tokens are told, the nodes hold {evictable} and {protected}"
    return True


@on_state(
    "request-shape",
    "A request holds exactly the pages of its computed tokens, and has not computed more than it has.",
    "SGLang specification S7",
    needs={parts.REQUESTS},
    applies=sglang,
)
def radix_request_shape(view: EngineView, config: EngineConfig) -> Found:
    """Computed and allocated tokens of every live request."""
    if not view.requests:
        return None
    size = config.block_size
    for request in view.requests.values():
        if request.computed > request.length:
            return f"{request.id} has {request.length} tokens and {request.computed} computed"
        if request.allocated % size or not 0 <= request.allocated - request.computed < size:
            return f"{request.id} has {request.computed} computed tokens in room for {request.allocated} (pages of {size})"
        if request.status == RUNNING and request.computed < request.length - 1:
            return f"{request.id} runs with {request.computed} of its {request.length} tokens computed"
    return True


@on_state(
    "one-partial",
    "At most one waiting request is partly prefilled, and it is the head of the queue.",
    "SGLang specification S9",
    needs={parts.QUEUES, parts.REQUESTS},
    catches=("lpm-sorts-partials",),
    applies=sglang,
)
def one_partial(view: EngineView, config: EngineConfig) -> Found:
    """Waiting requests that hold pages."""
    ready = view.extra.get("prebuilt", ())
    partial = [id_ for id_ in view.waiting if view.requests[id_].computed and id_ not in ready]
    if not partial:
        return None
    if len(partial) > 1:
        return f"{', '.join(partial)} wait partly prefilled, each holding pages"
    if view.waiting[0] != partial[0]:
        return f"{partial[0]} is partly prefilled and waits behind {view.waiting[0]}"
    return True


@on_state(
    "prefix-hit-truth",
    "With caching off nothing is cached.",
    "SGLang specification S12",
    needs={parts.TREE, parts.BLOCKS},
    applies=lambda config: sglang(config) and not config.prefix_caching,
)
def nothing_cached(view: EngineView, config: EngineConfig) -> Found:
    """The tree and what a lookup finds."""
    if view.tree or view.cached:
        return f"{len(view.tree or ())} nodes in the tree, with prefix caching off"
    return True


@on_step(
    "radix-capacity-tight",
    "The prefix of a split edge retains its own length; no edge retains more than twice its pages.",
    "finding 8; SGLang specification R1, 5.3",
    needs={parts.TREE, parts.COSTS},
    catches=("split-keeps-capacity", "truncation-keeps-capacity"),
    applies=sglang,
    kind=COST,
)
def radix_capacity_tight(step: Transition) -> Found:
    """Retained elements of every edge; two vectors, one of keys and one of pages."""
    tree = step.after.tree
    if not tree:
        return None
    edges = {node.pages[0]: node.pages for node in step.before.tree or ()}
    starts = {node.pages[0] for node in tree}
    for node in tree:
        count, retained = len(node.pages), node.capacity // 2
        old = edges.get(node.pages[0], ())
        if count < len(old) and old[:count] == node.pages:
            split = old[count] in starts
            most = count if split else 2 * count
            why = f"{'the prefix of a split edge' if split else 'an edge cut down from one'} of {len(old)} pages"
        else:
            most = max(2 * count, LEAST_CAPACITY)
            why = "an edge"
        if retained > most:
            return f"{why} has {count} pages and retains room for {retained}"
    return True
