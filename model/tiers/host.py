"""Host memory (G2): entries, their eviction order, transfers, and the two lanes to and from the GPU.

Offload specification 3, 4.1 to 4.5. An entry is *pending* while the transfer that fills it runs, then *resident*. A resident
entry may be pinned by copies that read it. The eviction order holds exactly the resident entries without pins; a pending or
pinned one is never evicted.

Three kinds of transfer fill or read entries:

* ``STORE``, GPU to host, prepared in a pass and queued on its lane at the end of it;
* ``LOAD``, host to GPU, queued at once;
* ``EXTERNAL``, a promotion from disk: the disk has the timing, here it only owns its pending entries.

A lane is first in, first out: a copy starts when the one before it ended and its own first byte is there. The blocks of one
completed copy, and those unpinned together, become young together; among themselves the order of their identities decides.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from enum import Enum

from attrs import frozen

from model.actions import Nanoseconds
from model.tiers.notes import (
    CapacityRetry,
    Evicted,
    Journal,
    LoadCancelled,
    LoadCompleted,
    LoadQueued,
    StoreCompleted,
    StorePrepared,
    StoreSubmitted,
    note,
)
from model.tiers.rules import TierRules

STORE = "store"
LOAD = "load"
EXTERNAL = "external"
KINDS = (STORE, LOAD, EXTERNAL)
CAUSES = {STORE: "store", EXTERNAL: "promotion"}


class Entry:
    """A block of host memory: the ``transfer`` that fills it (None once resident), and the copies that read it."""

    __slots__ = ("pins", "transfer")

    def __init__(self, transfer: int | None = None) -> None:
        """Pending on ``transfer``, or resident."""
        self.transfer = transfer
        self.pins = 0


class Transfer:
    """A running transfer; ``due`` is when it ends, None as long as nobody can say."""

    __slots__ = ("blocks", "due", "id", "kind", "request")

    def __init__(self, id_: int, kind: str, request: str, blocks: tuple[int, ...]) -> None:
        """A transfer of ``blocks``, in order, on behalf of ``request``."""
        self.id = id_
        self.kind = kind
        self.request = request
        self.blocks = blocks
        self.due: Nanoseconds | None = None


class Refusal(Enum):
    """Why nothing was reserved."""

    PRESENT = "every block has an entry already"
    RETRY = "no room now"


@frozen
class Reservation:
    """Entries set aside for ``transfer``, and the blocks that were evicted for them, oldest first."""

    transfer: Transfer
    victims: tuple[int, ...]


class HostTier:
    """See the module docstring.

    Attributes:
        entries: by block.
        order: the eviction order, oldest first.
        transfers: running ones by id, in order of id.
        prepared: ids of stores that are not on their lane yet.
        d2h_free, h2d_free: when the last copy queued on a lane ends.
        changes: counts what may make room or take it; a reservation that found none finds none before it counts on.
        journal: where notes go.
    """

    __slots__ = (
        "changes",
        "d2h_free",
        "entries",
        "h2d_free",
        "journal",
        "next_id",
        "order",
        "prepared",
        "rules",
        "transfers",
    )

    def __init__(self, rules: TierRules) -> None:
        """Empty host memory."""
        self.rules = rules
        self.entries: dict[int, Entry] = {}
        self.order: OrderedDict[int, None] = OrderedDict()
        self.transfers: dict[int, Transfer] = {}
        self.prepared: list[int] = []
        self.d2h_free: Nanoseconds = 0
        self.h2d_free: Nanoseconds = 0
        self.next_id = 0
        self.changes = 0
        self.journal: Journal = []

    @property
    def free(self) -> int:
        """Entries that may be added without evicting any."""
        return self.rules.host_blocks - len(self.entries)

    def is_resident(self, block: int) -> bool:
        """The block is there, whole."""
        entry = self.entries.get(block)
        return entry is not None and entry.transfer is None

    def preload(self, blocks: Iterable[int]) -> None:
        """Put resident blocks in, the oldest first."""
        for block in blocks:
            if block not in self.entries:
                self.entries[block] = Entry()
            self.order[block] = None
            self.order.move_to_end(block)

    def can_place(self, blocks: Sequence[int]) -> bool:
        """Whether all of ``blocks`` could be there together, evicting none of them."""
        missing = sum(1 for block in blocks if block not in self.entries)
        own = sum(1 for block in blocks if block in self.order)
        return missing <= self.free + len(self.order) - own

    def reserve(
        self, kind: str, request: str, blocks: Sequence[int], spared: Collection[int] = ()
    ) -> Reservation | Refusal:
        """Set entries aside for those of ``blocks`` that have none, evicting the oldest; all or nothing.

        Args:
            kind: ``STORE`` or ``EXTERNAL``.
            request: on whose behalf.
            blocks: what is to be there; none of them is evicted.
            spared: other blocks not to be evicted.
        """
        missing = tuple(dict.fromkeys(block for block in blocks if block not in self.entries))
        if not missing:
            return Refusal.PRESENT
        victims = self._victims(len(missing) - self.free, frozenset(blocks), spared)
        if victims is None:
            unfittable = len(set(blocks)) > self.rules.host_blocks
            note(self.journal, CapacityRetry(request, missing, unfittable, CAUSES[kind]))
            return Refusal.RETRY
        for victim in victims:
            del self.order[victim]
            del self.entries[victim]
            note(self.journal, Evicted(victim, CAUSES[kind], request))
        transfer = self._begin(kind, request, missing)
        for block in missing:
            self.entries[block] = Entry(transfer.id)
        if kind == STORE:
            self.prepared.append(transfer.id)
            note(self.journal, StorePrepared(request, missing))
        return Reservation(transfer, victims)

    def _victims(self, count: int, protected: Collection[int], spared: Collection[int]) -> tuple[int, ...] | None:
        victims: list[int] = []
        if count > 0:
            for block in self.order:
                if block not in protected and block not in spared:
                    victims.append(block)
                    if len(victims) == count:
                        break
            else:
                return None
        return tuple(victims)

    def _begin(self, kind: str, request: str, blocks: tuple[int, ...]) -> Transfer:
        transfer = Transfer(self.next_id, kind, request, blocks)
        self.next_id += 1
        self.transfers[transfer.id] = transfer
        self.changes += 1
        return transfer

    def submit_prepared(self, now: Nanoseconds) -> None:
        """Queue the prepared stores on the lane to the host."""
        for id_ in self.prepared:
            transfer = self.transfers[id_]
            start = max(self.d2h_free, now + self.rules.host_latency_ns)
            transfer.due = self.d2h_free = start + len(transfer.blocks) * self.rules.d2h_ns
            note(self.journal, StoreSubmitted(transfer.request, transfer.blocks, transfer.due))
        self.prepared.clear()

    def schedule_load(
        self, request: str, blocks: Sequence[int], now: Nanoseconds, not_before: Nanoseconds
    ) -> Transfer | None:
        """Queue a copy of ``blocks`` to the GPU and pin them; None if any of them is not resident, or named twice."""
        if not blocks or len(set(blocks)) != len(blocks) or not all(self.is_resident(block) for block in blocks):
            return None
        self.pin(blocks)
        transfer = self._begin(LOAD, request, tuple(blocks))
        start = max(self.h2d_free, max(now, not_before) + self.rules.host_latency_ns)
        transfer.due = self.h2d_free = start + len(blocks) * self.rules.h2d_ns
        note(self.journal, LoadQueued(request, transfer.blocks, transfer.due))
        return transfer

    def cancel_load(self, id_: int) -> None:
        """Withdraw a load. The lane stays taken: later copies keep their times."""
        transfer = self.transfers.pop(id_)
        self.unpin(transfer.blocks)
        note(self.journal, LoadCancelled(transfer.request, transfer.blocks))

    def pin(self, blocks: Iterable[int]) -> None:
        """Keep entries from eviction."""
        for block in blocks:
            self.entries[block].pins += 1
            self.order.pop(block, None)

    def unpin(self, blocks: Iterable[int]) -> None:
        """Release one pin of each; those without any become evictable together, as the youngest."""
        loose = []
        for block in blocks:
            entry = self.entries[block]
            entry.pins -= 1
            if not entry.pins:
                loose.append(block)
        self._settle(loose)

    def touch(self, block: int) -> None:
        """Make an evictable block the youngest."""
        if block in self.order:
            self.order.move_to_end(block)

    def complete_external(self, id_: int) -> tuple[int, ...]:
        """A promotion ended: its blocks are resident, the first of them the oldest."""
        transfer = self.transfers.pop(id_)
        for block in transfer.blocks:
            self.entries[block].transfer = None
            self._settle((block,))
        return transfer.blocks

    def roll_back(self, id_: int) -> None:
        """Take back a promotion whose read was refused."""
        for block in self.transfers.pop(id_).blocks:
            del self.entries[block]
        self.changes += 1

    def _settle(self, blocks: Iterable[int]) -> None:
        for block in sorted(blocks):
            self.order[block] = None
            self.order.move_to_end(block)
        self.changes += 1

    def next_deadline(self) -> Nanoseconds | None:
        """When the next copy on a lane ends."""
        return min((transfer.due for transfer in self.transfers.values() if transfer.due is not None), default=None)

    def tick(self, now: Nanoseconds) -> list[Transfer]:
        """End the copies due by ``now``: in order of time, stores before loads, then as they were begun."""
        due = [
            (transfer.due, KINDS.index(transfer.kind), id_)
            for id_, transfer in self.transfers.items()
            if transfer.due is not None
        ]
        ended = [self.transfers.pop(id_) for when, _, id_ in sorted(due) if when <= now]
        for transfer in ended:
            if transfer.kind == STORE:
                for block in transfer.blocks:
                    self.entries[block].transfer = None
                self._settle(transfer.blocks)
                note(self.journal, StoreCompleted(transfer.request, transfer.blocks))
            else:
                self.unpin(transfer.blocks)
                note(self.journal, LoadCompleted(transfer.request, transfer.blocks))
        return ended
