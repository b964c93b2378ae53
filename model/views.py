"""What an engine shows of itself between two actions. Invariants read this, never the engine.

A view is a snapshot: it does not change when the engine goes on. A part that an engine cannot show is None, and what needs
it is reported as not observable (``Engine.observes`` names the parts that are there).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from model.actions import Nanoseconds

WAITING = "waiting"
PREEMPTED = "preempted"
RUNNING = "running"
PARKED = "parked"
"""Statuses of a live request; a parked one waits for a transfer and is in neither queue."""


@define
class RequestView:
    """A live request.

    Attributes:
        id: the request.
        status: ``waiting``, ``preempted`` (waiting again), ``running`` or ``parked``.
        prompt: prompt length in tokens.
        output: the most tokens it may produce, the cap on sequence length taken into account.
        generated: tokens produced so far.
        computed: tokens whose KV is there.
        allocated: tokens for which it holds room.
        blocks: numbers of the blocks it holds, in order; they index ``EngineView.blocks``.
        cached_tokens: tokens reused at its first admission; 0 before it.
        preemptions: how often it was preempted since this engine was built or thawed.
    """

    id: str
    status: str
    prompt: int
    output: int
    generated: int
    computed: int
    allocated: int
    blocks: tuple[int, ...] = ()
    cached_tokens: int = 0
    preemptions: int = 0

    @property
    def length(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt + self.generated


@define
class BlockView:
    """A physical block in use.

    Attributes:
        identity: of its content (≥ 1) once it is cached; 0 while it is private to one request.
        refs: requests that hold it.
        pins: reservations that hold it.
        evictable: it stands in the eviction order.
    """

    identity: int
    refs: int
    pins: int
    evictable: bool


@define
class PoolView:
    """Block counts of the GPU tier.

    Attributes:
        total: capacity.
        free: neither used nor promised.
        active: held by a request or promised.
        inactive: cached, held by nobody, evictable.
        reserved: of the active ones, those promised and not yet taken.
    """

    total: int
    free: int
    active: int
    inactive: int
    reserved: int = 0


@define
class TreeNodeView:
    """A node of a radix tree.

    Attributes:
        parent: position of the parent in ``EngineView.tree``; -1 for a child of the root.
        pages: identities of the pages on its edge, chained from the root.
        locks: requests that hold it or something below it.
        capacity: retained elements of its two vectors together (a ghost count); ``2 * len(pages)`` when tight.
        evictable_leaf: it stands in the eviction index.
        blocks: numbers of its pages; they index ``EngineView.blocks``.
        recency: rank of its last use; of two leaves the one with the smaller rank is evicted first.
    """

    parent: int
    pages: tuple[int, ...]
    locks: int
    capacity: int
    evictable_leaf: bool
    blocks: tuple[int, ...] = ()
    recency: int = 0


@define
class EngineView:
    """One engine between two actions.

    Attributes:
        now_ns: virtual time.
        requests: live requests by id.
        waiting, running: ids in queue order.
        pool: block counts.
        blocks: every physical block in use; None where an engine shows no block table or the caller did not ask for it.
        cached: identities that a lookup would find; None as above.
        tree: nodes of the radix tree, parents before children; None without one.
        next_deadline_ns: the earliest instant at which something happens by itself; None when nothing is due.
        costs: ghost totals by name.
        extra: what only some engines have, by name (owner collections of hand-offs, host and disk tiers).
        worker: position in a system of several engines.
    """

    now_ns: Nanoseconds
    requests: Mapping[str, RequestView]
    waiting: tuple[str, ...]
    running: tuple[str, ...]
    pool: PoolView
    blocks: tuple[BlockView, ...] | None = None
    cached: frozenset[int] | None = None
    tree: tuple[TreeNodeView, ...] | None = None
    next_deadline_ns: Nanoseconds | None = None
    costs: Mapping[str, int] = field(factory=dict)
    extra: Mapping[str, Any] = field(factory=dict)
    worker: int = 0
