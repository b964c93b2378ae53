"""The working state of a paged engine with tiers: requests and blocks as in ``model.paged.core``, and what the tiers add.

A request that waits for a transfer stands in the *connector* queue, out of the way of those behind it: *asleep* until some
transfer ends, then ready, in the order in which requests joined. Besides the rules of ``model.paged.core`` these hold between
actions:

* a request that loads holds G1 blocks outside its ``blocks``: the cached ones in front of the load, pinned, and one private
  block for each block on its way; when the load has ended they are its ``blocks``, cached, and it has computed nothing yet;
* ``sources`` names the physical slots that a copy to host memory still reads. A slot may be taken again meanwhile: the pass
  that does so starts to compute when the copy has ended. Which slot is taken is therefore part of the state: the one freed last.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import islice

from model.actions import Nanoseconds
from model.paged.core import Core, Request
from model.paged.pool import BlockPool, Copy
from model.paged.rules import PagedRules
from model.registry import NO_BLOCK, Registry
from model.requests import RequestSpec
from model.tiers.disk import Disk
from model.tiers.host import HostTier
from model.tiers.rules import TierRules

WORKER = 0
"""The number under which an engine alone uses a disk."""


class Placed(Copy):
    """A physical block that knows its slot."""

    __slots__ = ("slot",)

    def __init__(self, slot: int, identity: int = NO_BLOCK, refs: int = 1) -> None:
        """A block in ``slot``."""
        super().__init__(identity, refs)
        self.slot = slot


class SlottedPool(BlockPool):
    """A block pool that knows which slot each block lies in; ``vacant`` ends with the slot to be taken next."""

    __slots__ = ("taken", "vacant")

    def __init__(self, total: int) -> None:
        """An empty pool."""
        super().__init__(total)
        self.vacant = list(range(total - 1, -1, -1))
        self.taken: list[int] = []
        """Slots taken for computation in this pass."""

    def place(self) -> Placed:
        """A private block out of what was promised, to be filled by a load."""
        self.reserved -= 1
        self.copies += 1
        return Placed(self.vacant.pop())

    def take(self) -> Placed:
        """A private block out of what was promised, to be computed."""
        placed = self.place()
        self.taken.append(placed.slot)
        return placed

    def discard(self, blocks: Sequence[Placed]) -> None:
        """Give back private blocks that nobody filled."""
        self.copies -= len(blocks)
        self.vacant += [copy.slot for copy in reversed(blocks)]

    def release(self, blocks: Sequence[Copy]) -> None:
        """Give back the blocks of a request, last to first."""
        self.vacant += [slot_of(copy) for copy in reversed(blocks) if copy.identity == NO_BLOCK]
        super().release(blocks)

    def _evict(self, count: int) -> list[int]:
        self.vacant += [slot_of(copy) for copy in islice(self.inactive, max(count, 0))]
        return super()._evict(count)


def slot_of(copy: Copy) -> int:
    """The slot of a block of a ``SlottedPool``."""
    assert isinstance(copy, Placed)
    return copy.slot


class Load:
    """A prefix on its way from host memory to the GPU, or just there.

    Attributes:
        transfer: id of the copy; None once it has ended.
        blocks: what is copied, in order.
        hits: the cached G1 blocks in front of it, pinned until the copy ends.
        fresh: the private G1 blocks that it fills, until it ends.
        g1_blocks: how many blocks were cached in G1.
    """

    __slots__ = ("blocks", "fresh", "g1_blocks", "hits", "transfer")

    def __init__(
        self, transfer: int | None, blocks: tuple[int, ...], hits: list[Copy], fresh: list[Placed], g1_blocks: int
    ) -> None:
        """A load in the state given."""
        self.transfer = transfer
        self.blocks = blocks
        self.hits = hits
        self.fresh = fresh
        self.g1_blocks = g1_blocks

    @property
    def ended(self) -> bool:
        """The blocks are on the GPU."""
        return self.transfer is None

    @property
    def prefix_blocks(self) -> int:
        """Blocks of the request that are on the GPU once the load has ended."""
        return self.g1_blocks + len(self.blocks)


class TieredRequest(Request):
    """A live request.

    Attributes:
        keys: its full prompt blocks; only these are ever stored or loaded.
        cursor: leading keys that need not be offered to host memory any more.
        latest_store: its last copy to host memory, until it is seen to have ended.
        load: its copy from host memory, until it is admitted with it.
        deferred: it stands in the connector queue.
        asleep: there, and no transfer has ended since it was looked up.
        rounds, bypasses_disk: upstream's bound (offload specification 6.4).
        refused: the cohort that host memory had no room for, as its end and ``HostTier.changes`` then.
        promotions, losses: ghosts: how often a block was promoted for it since it began to wait, and how often such a block
            was evicted for anybody else.
    """

    __slots__ = (
        "asleep",
        "bypasses_disk",
        "cursor",
        "deferred",
        "keys",
        "latest_store",
        "load",
        "losses",
        "promotions",
        "refused",
        "rounds",
    )

    def __init__(self, spec: RequestSpec, number: int, chain: list[int], rules: PagedRules) -> None:
        """A request that has just arrived."""
        super().__init__(spec, number, chain, rules)
        self.keys = tuple(chain[: self.prompt // rules.block_size])
        self.cursor = 0
        self.latest_store: int | None = None
        self.load: Load | None = None
        self.deferred = False
        self.asleep = False
        self.rounds = 0
        self.bypasses_disk = False
        self.refused: tuple[int, int] | None = None
        self.promotions: Counter[int] = Counter()
        self.losses: Counter[int] = Counter()


class Stage:
    """A disk read into host memory: for whom (None: nobody any more), and the promotions that it fills."""

    __slots__ = ("owner", "transfers")

    def __init__(self, owner: str | None, transfers: tuple[int, ...]) -> None:
        """A stage of ``owner``."""
        self.owner = owner
        self.transfers = transfers


class Offload:
    """Both tiers of one worker, and what ties them to each other (offload specification 3, "adapter").

    Attributes:
        stages: disk reads under way, by job.
        claims: per request the blocks of host memory that wait for it (``model.tiers.restore``).
        attempted, attempted_at: promotions of the present instant (specification 5.6).
        seen_completions: of ``Disk.completions``, those known here.
        promoted, allowance: ghosts: promotions since anything else got on, by block, and how many there may be, by request.
    """

    __slots__ = (
        "allowance",
        "attempted",
        "attempted_at",
        "claims",
        "disk",
        "host",
        "promoted",
        "rules",
        "seen_completions",
        "stages",
        "worker",
    )

    def __init__(self, rules: TierRules, disk: Disk | None = None, worker: int = WORKER) -> None:
        """Empty tiers; ``disk`` when it is shared with other workers."""
        self.rules = rules
        self.host = HostTier(rules)
        self.disk = disk if disk is not None or rules.disk is None else Disk(rules.disk)
        self.worker = worker
        self.stages: dict[int, Stage] = {}
        self.claims: dict[str, dict[int, None]] = {}
        self.attempted: set[tuple[str, int]] = set()
        self.attempted_at: Nanoseconds = 0
        self.seen_completions = 0
        self.promoted: Counter[int] = Counter()
        self.allowance: dict[str, int] = {}

    def got_on(self) -> None:
        """Ghost: something counts as progress, so promotions are counted anew."""
        self.promoted.clear()
        self.allowance.clear()

    def detach(self, owner: str) -> bool:
        """Withdraw the claim of a request, and its name from what is read for it; True if there was any."""
        found = self.claims.pop(owner, None) is not None
        for stage in self.stages.values():
            if stage.owner == owner:
                stage.owner = None
                found = True
        return found

    def next_deadline(self) -> Nanoseconds | None:
        """When something happens by itself; the disk's own time when another worker's job ended and this one has not seen it."""
        times = [self.host.next_deadline()]
        if self.disk is not None:
            stale = self.disk.completions != self.seen_completions
            times.append(self.disk.clock if stale else self.disk.next_deadline(self.worker))
        return min((time for time in times if time is not None), default=None)


class TieredCore(Core):
    """The mutable state of an engine with tiers; see the module docstring.

    Attributes:
        connector: requests that wait for a transfer, or did until just now, in the order in which they joined.
        loading: blocks on their way from host memory, and the copy that brings each.
        sources: slots that a copy to host memory still reads, and that copy.
    """

    __slots__ = ("connector", "loading", "offload", "sources")

    pool: SlottedPool
    requests: dict[str, TieredRequest]  # type: ignore[assignment]
    running: list[TieredRequest]  # type: ignore[assignment]

    def __init__(self, rules: PagedRules, registry: Registry, offload: Offload) -> None:
        """An idle engine."""
        super().__init__(rules, registry)
        self.pool = SlottedPool(rules.num_blocks)
        self.offload = offload
        self.connector: OrderedDict[str, TieredRequest] = OrderedDict()
        self.loading: dict[int, int] = {}
        self.sources: dict[int, int] = {}

    def leave_queue(self, request: Request) -> None:
        """Take a request that waits out of its queue."""
        assert isinstance(request, TieredRequest)
        if request.deferred:
            del self.connector[request.id]
            request.deferred = request.asleep = False
        else:
            super().leave_queue(request)

    def defer(self, request: TieredRequest) -> None:
        """Put a request to sleep until a transfer ends; one that is new to the connector queue joins at its end."""
        if not request.deferred:
            self.leave_queue(request)
            self.connector[request.id] = request
            request.deferred = True
        request.asleep = True

    def wake(self) -> None:
        """Make every request in the connector queue ready: whatever ended may be what it waits for."""
        for request in self.connector.values():
            request.asleep = False

    def drop(self, request: Request) -> None:
        """Forget a request; what is promoted for it goes on, and lands in host memory."""
        assert isinstance(request, TieredRequest)
        self.give_up(request)
        super().drop(request)

    def give_up(self, request: TieredRequest) -> None:
        """End the interest of a request in the tiers; whoever waits may look again if that gives anything free."""
        offload = self.offload
        released = offload.detach(request.id)
        load, request.load = request.load, None
        if load is not None and load.transfer is not None:
            for block in load.blocks:
                del self.loading[block]
            offload.host.cancel_load(load.transfer)
            self.pool.discard(load.fresh)
            self.pool.cancel(load.hits, 0)
            released = True
        if released:
            self.wake()
