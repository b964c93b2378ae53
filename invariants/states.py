"""Invariants over single states: conservation, ownership, shapes, queues."""

from __future__ import annotations

from invariants.framework import Found, on_state
from model import engine as parts
from model.config import PAGED, EngineConfig
from model.views import PARKED, RUNNING, EngineView

OWNERS = ("held_sources", "pending_destinations", "destination_holds", "active_destinations", "sources")
"""The owner collections of hand-offs in a view; a request is in at most one of them."""


def paged(config: EngineConfig) -> bool:
    """The scheduler works on a block pool."""
    return config.scheduler in PAGED


def blocks_for(tokens: int, config: EngineConfig) -> int:
    """Blocks that hold ``tokens``."""
    return -(-tokens // config.block_size)


@on_state(
    "block-conservation",
    "Free, active and inactive blocks add up to the capacity, none of them is negative, and no block is lost or made up.",
    "vLLM specification S-CAP; SGLang specification S1, S4",
    needs={parts.POOL},
    catches=("speculative-terminal-block:reservation-only",),
)
def block_conservation(view: EngineView, config: EngineConfig) -> Found:
    """The counts of the pool, and the block table against them."""
    pool = view.pool
    if pool.free < 0 or pool.active < 0 or pool.inactive < 0 or pool.reserved < 0:
        return (
            f"a block count is negative: {pool.free} free, {pool.active} active, {pool.inactive} inactive, "
            f"{pool.reserved} reserved"
        )
    if pool.free + pool.active + pool.inactive != pool.total:
        return f"{pool.free} free + {pool.active} active + {pool.inactive} inactive blocks are not the {pool.total} there are"
    if view.blocks is not None and len(view.blocks) != pool.total - pool.free - pool.reserved:
        used = pool.total - pool.free - pool.reserved
        return f"{len(view.blocks)} blocks are in use, the counts say {used}"
    return True


@on_state(
    "refcount-exact",
    "The references of a block are the live requests that hold it, its pins the reservations that do.",
    "vLLM specification S-OWN; SGLang specification S3",
    needs={parts.BLOCKS, parts.REQUESTS},
)
def refcount_exact(view: EngineView, config: EngineConfig) -> Found:
    """Count holders; other owners (reservations, held sources, reads) are listed under ``extra``."""
    table = view.blocks
    if not table:
        return None
    holders = [0] * len(table)
    pins = [0] * len(table)
    for request in view.requests.values():
        for number in request.blocks:
            holders[number] += 1
    if view.extra:
        for blocks in view.extra.get("held_blocks", {}).values():
            for number in blocks:
                holders[number] += 1
        for blocks in view.extra.get("pinned_blocks", {}).values():
            for number in blocks:
                pins[number] += 1
    # Whole lists first: a check of every state, and nearly always right.
    if [block.refs for block in table] == holders and [block.pins for block in table] == pins:
        return True
    for number, block in enumerate(table):
        if block.refs != holders[number]:
            return f"block {number} counts {block.refs} references, {holders[number]} requests hold it"
        if block.pins != pins[number]:
            return f"block {number} counts {block.pins} pins, {pins[number]} reservations hold it"
    return True


@on_state(
    "single-owner",
    "A block that is not cached belongs to one request alone; a cached one is evictable exactly when nobody holds it.",
    "vLLM specification S-OWN, S-LRU; SGLang specification S1, S2",
    needs={parts.BLOCKS, parts.REQUESTS, parts.POOL},
)
def single_owner(view: EngineView, config: EngineConfig) -> Found:
    """Private blocks have one holder, nobody holds a block twice, and the eviction order holds what it should."""
    table = view.blocks
    if not table:
        return None
    evictable = 0
    identities = set()
    for number, block in enumerate(table):
        identity = block.identity
        if not identity:
            if block.evictable:
                return f"block {number} is private and evictable"
            if block.refs + block.pins != 1:
                return f"block {number} is private and has {block.refs} holders and {block.pins} reservations"
            continue
        identities.add(identity)
        held = block.refs or block.pins
        if block.evictable:
            if held:
                return f"cached block {number} is evictable with {block.refs} references and {block.pins} pins"
            evictable += 1
        elif not held:
            return f"cached block {number} is not evictable with {block.refs} references and {block.pins} pins"
    if evictable != view.pool.inactive:
        return f"{evictable} blocks are evictable, {view.pool.inactive} count as inactive"
    if view.cached is not None and view.cached != identities:
        return "the identities that a lookup finds are not those of the cached blocks"
    for request in view.requests.values():
        blocks = request.blocks
        if len(blocks) > 1 and len(set(blocks)) != len(blocks):
            return f"{request.id} holds a block twice"
    return True


@on_state(
    "request-shape",
    "No request has computed more tokens than it has, or holds room for tokens that are not computed yet.",
    "vLLM specification S-LEN, S-TIGHT, S-PRE; SGLang specification S7",
    needs={parts.REQUESTS},
    catches=("speculative-terminal-block", "speculative-terminal-block:reservation-only"),
    applies=paged,
)
def paged_request_shape(view: EngineView, config: EngineConfig) -> Found:
    """Computed, allocated and held blocks of every live request of a paged engine."""
    if not view.requests:
        return None
    counted = view.blocks is not None
    size = config.block_size
    for request in view.requests.values():
        length = request.prompt + request.generated
        computed, allocated = request.computed, request.allocated
        if computed > length or allocated > length:
            return f"{request.id} has {length} tokens, but {computed} computed and room for {allocated}"
        held = -(-allocated // size)
        if counted and len(request.blocks) != held:
            return f"{request.id} holds {len(request.blocks)} blocks for {allocated} tokens, not {held}"
        if request.status == RUNNING:
            if computed > allocated:
                return f"{request.id} has computed {computed} tokens in room for {allocated}"
            if held > -(-(length - 1) // size) and held > 1:
                return (
                    f"{request.id} holds {held} blocks, though only {length - 1} of its {length} tokens are computed: "
                    "the last one dangles"
                )
        elif (computed or allocated) and request.status != PARKED and not _prebuilt(request.id, view):
            return f"{request.id} is {request.status}, with {computed} computed tokens and room for {allocated}"
    return True


def _prebuilt(id_: str, view: EngineView) -> bool:
    return id_ in view.extra.get("prebuilt", ())


@on_state(
    "queue-membership",
    "Every live request is in exactly one queue, once, and its status says so.",
    "vLLM specification S-Q; SGLang specification S7",
    needs={parts.QUEUES, parts.REQUESTS},
)
def queue_membership(view: EngineView, config: EngineConfig) -> Found:
    """Queues against requests."""
    requests = view.requests
    queued = view.waiting + view.running
    if not queued and not requests:
        return None
    if len(queued) > 1 and len(set(queued)) != len(queued):
        return f"a request is queued twice: waiting {list(view.waiting)}, running {list(view.running)}"
    for id_ in view.running:
        if id_ not in requests or requests[id_].status != RUNNING:
            return f"{id_} is in the running queue and is not a running request"
    for id_ in view.waiting:
        if id_ not in requests or requests[id_].status in (RUNNING, PARKED):
            return f"{id_} is in the waiting queue and is not a waiting request"
    if len(requests) > len(queued):
        # Everybody who is queued is live and queued once, so somebody is not queued.
        for request in requests.values():
            if request.status != PARKED and request.id not in queued:
                return f"{request.id} is {request.status} and in no queue"
    return True


@on_state(
    "slot-limit",
    "Never more requests run than there are slots.",
    "vLLM specification S-BUD; SGLang specification 3",
    needs={parts.QUEUES},
    applies=lambda config: config.max_num_seqs is not None,
)
def slot_limit(view: EngineView, config: EngineConfig) -> Found:
    """Running requests against the limit."""
    limit = config.max_num_seqs
    assert limit is not None
    if not view.running:
        return None
    if len(view.running) > limit:
        return f"{len(view.running)} requests run, the limit is {limit}"
    return True


@on_state(
    "drains-empty",
    "With no live request nothing is held: no active block, no queued id, no part in a hand-off.",
    "vLLM specification L-DRAIN; SGLang specification R2",
    needs={parts.REQUESTS, parts.POOL, parts.QUEUES},
    kind="progress",
)
def drains_empty(view: EngineView, config: EngineConfig) -> Found:
    """An idle engine holds nothing."""
    if view.requests or view.next_deadline_ns is not None:
        return None
    if view.pool.active:
        return f"{view.pool.active} blocks are active with no live request"
    if view.waiting or view.running:
        return f"queued ids of no live request: {list(view.waiting + view.running)}"
    owners = [name for name in OWNERS if view.extra.get(name)]
    if owners:
        return f"no request is known, and {', '.join(owners)} is not empty"
    return True
