"""What an engine shows of its tiers: ``EngineView.extra["tiers"]``. All times are relative to the view's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import chain
from typing import Any

from attrs import evolve, frozen

from model.actions import Nanoseconds
from model.events import StepReport
from model.tiers.core import Offload, TieredCore, TieredRequest, slot_of
from model.tiers.disk import Disk, DiskStats
from model.tiers.notes import Evicted, Promoted, notes_of
from model.tiers.restore import recoverable
from model.views import EngineView

EXTRA = "tiers"
"""Where a view keeps its ``TiersView``."""


@frozen
class HostEntryView:
    """A block in host memory: being filled by ``transfer`` (None once resident), read by ``pins`` copies."""

    block: int
    transfer: int | None
    pins: int


@frozen
class TransferView:
    """A running transfer to or from host memory; ``due_in_ns`` is None while nobody can say."""

    id: int
    kind: str
    request: str
    blocks: tuple[int, ...]
    due_in_ns: Nanoseconds | None


@frozen
class HostView:
    """Host memory.

    Attributes:
        capacity: entries it may have.
        entries: those it has.
        order: the evictable ones, oldest first.
        transfers: running ones, in order of their start.
        prepared: of these, the stores that are not on their lane yet.
        d2h_free_in_ns, h2d_free_in_ns: when the last copy on a lane ends; 0 for an idle lane.
    """

    capacity: int
    entries: tuple[HostEntryView, ...]
    order: tuple[int, ...]
    transfers: tuple[TransferView, ...]
    prepared: tuple[int, ...]
    d2h_free_in_ns: Nanoseconds
    h2d_free_in_ns: Nanoseconds

    @property
    def present(self) -> frozenset[int]:
        """Blocks with an entry."""
        return frozenset(entry.block for entry in self.entries)

    @property
    def resident(self) -> frozenset[int]:
        """Blocks that are there, whole."""
        return frozenset(entry.block for entry in self.entries if entry.transfer is None)


@frozen
class StoredView:
    """A block on disk."""

    pool: int
    block: int
    pending: bool
    pins: int


@frozen
class JobView:
    """A disk read or write.

    Attributes:
        id: number of the job.
        worker: whose it is.
        reading: direction.
        blocks: what it moves.
        ready_in_ns: until its first byte; 0 once it moves.
        remaining_bytes: left to move.
        rate: bytes per nanosecond it moves at now; None for unlimited, 0 before its first byte.
    """

    id: int
    worker: int
    reading: bool
    blocks: tuple[int, ...]
    ready_in_ns: Nanoseconds
    remaining_bytes: Nanoseconds
    rate: Fraction | None


@frozen
class DiskView:
    """The disk: blocks in order of their last use, oldest first, and jobs in order of submission.

    Attributes:
        capacity: blocks of a pool.
        stored: blocks, of all pools.
        jobs: running jobs.
        undelivered: blocks of ended jobs that the worker has not been told of.
        stats: counts so far; not part of the state.
    """

    capacity: int
    stored: tuple[StoredView, ...]
    jobs: tuple[JobView, ...]
    undelivered: tuple[tuple[int, ...], ...]
    stats: DiskStats


@frozen
class StageView:
    """A disk read into host memory: its job, for whom (None: nobody any more), and the transfers that it fills."""

    job: int
    owner: str | None
    transfers: tuple[int, ...]


@frozen
class RestoreView:
    """What the tiers have to do with a live request.

    Attributes:
        id: the request.
        keys: its full prompt blocks.
        on_gpu: leading ones cached in G1.
        recoverable: how many behind those are in host memory or on disk, pending or not.
        load: ``none``, ``loading`` or ``loaded``.
        load_transfer: id of its running load.
        cursor: leading keys done with storing.
        latest_store: its last copy to host memory, as long as it runs.
        claim: blocks of host memory that wait for it.
        rounds: rounds counted by upstream's bound.
        refused: end of the cohort of keys that host memory refused, as long as nothing has changed there; 0 for none.
        slots: physical G1 slots of its blocks, in order, those of a load under way included.
        promotions, losses: how often a block was promoted for it since it began to wait, and such a block evicted for others,
            since this engine was built or thawed.
    """

    id: str
    keys: tuple[int, ...]
    on_gpu: int
    recoverable: int
    load: str
    load_transfer: int | None
    cursor: int
    latest_store: int | None
    claim: tuple[int, ...]
    rounds: int
    refused: int
    slots: tuple[int, ...]
    promotions: Mapping[int, int]
    losses: Mapping[int, int]


@frozen
class TiersView:
    """Both tiers of one worker between two actions.

    Attributes:
        host: host memory.
        disk: the disk; None without one.
        stages: disk reads under way.
        connector: requests that wait for a transfer or did until just now, in order.
        asleep: of these, those for which nothing has ended since they were looked up.
        restores: per live request.
        worker: the number under which this worker uses the disk.
        sources: G1 slots still read by a store, and that store's id.
        promoted: how often each block was promoted since anything else got on, since this engine was built or thawed.
        allowance: how many such promotions there may be, by request.
    """

    host: HostView
    disk: DiskView | None
    stages: tuple[StageView, ...]
    connector: tuple[str, ...]
    asleep: tuple[str, ...]
    restores: Mapping[str, RestoreView]
    worker: int
    sources: Mapping[int, int]
    promoted: Mapping[int, int]
    allowance: Mapping[str, int]


def tiers_of(view: EngineView) -> TiersView | None:
    """The tiers in a view; None for an engine without."""
    found = view.extra.get(EXTRA)
    assert found is None or isinstance(found, TiersView)
    return found


def tiers_view(core: TieredCore) -> TiersView:
    """The tiers of an engine as they are now."""
    offload = core.offload
    return TiersView(
        host=_host(offload, core.now),
        disk=None if offload.disk is None else _disk(offload.disk, offload.worker, core.now),
        stages=tuple(StageView(job, stage.owner, stage.transfers) for job, stage in offload.stages.items()),
        connector=tuple(core.connector),
        asleep=tuple(request.id for request in core.connector.values() if request.asleep),
        restores={request.id: _restore(core, request) for request in core.requests.values()},
        worker=offload.worker,
        sources=dict(core.sources),
        promoted=dict(offload.promoted),
        allowance=dict(offload.allowance),
    )


def _host(offload: Offload, now: Nanoseconds) -> HostView:
    host = offload.host
    return HostView(
        capacity=offload.rules.host_blocks,
        entries=tuple(HostEntryView(block, entry.transfer, entry.pins) for block, entry in host.entries.items()),
        order=tuple(host.order),
        transfers=tuple(
            TransferView(
                transfer.id,
                transfer.kind,
                transfer.request,
                transfer.blocks,
                None if transfer.due is None else transfer.due - now,
            )
            for transfer in host.transfers.values()
        ),
        prepared=tuple(host.prepared),
        d2h_free_in_ns=max(host.d2h_free - now, 0),
        h2d_free_in_ns=max(host.h2d_free - now, 0),
    )


def _disk(disk: Disk, worker: int, now: Nanoseconds) -> DiskView:
    rates = disk.rates()
    return DiskView(
        capacity=disk.rules.capacity,
        stored=tuple(StoredView(*key, stored.pending, stored.pins) for key, stored in disk.stored.items()),
        jobs=tuple(
            JobView(
                job.id,
                job.worker,
                job.reading,
                job.blocks,
                max(job.ready - now, 0),
                job.remaining,
                rates.get(job.id, Fraction(0)),
            )
            for job in disk.jobs.values()
        ),
        undelivered=tuple(completion.blocks for completion in disk.undelivered.get(worker, ())),
        stats=evolve(disk.stats, read=evolve(disk.stats.read), write=evolve(disk.stats.write)),
    )


def _restore(core: TieredCore, request: TieredRequest) -> RestoreView:
    offload = core.offload
    on_gpu = 0
    for key in request.keys:
        if key not in core.pool.index:
            break
        on_gpu += 1
    beyond = 0
    if offload.disk is not None:
        beyond = len(recoverable(offload, offload.disk, request.keys[on_gpu:]))
    load = request.load
    store = request.latest_store
    return RestoreView(
        id=request.id,
        keys=request.keys,
        on_gpu=on_gpu,
        recoverable=beyond,
        load="none" if load is None else "loaded" if load.ended else "loading",
        load_transfer=None if load is None else load.transfer,
        cursor=request.cursor,
        latest_store=store if store in offload.host.transfers else None,
        claim=tuple(offload.claims.get(request.id, ())),
        rounds=request.rounds,
        refused=request.refused[0] if request.refused and request.refused[1] == offload.host.changes else 0,
        slots=tuple(slot_of(copy) for copy in chain(request.blocks, *((load.hits, load.fresh) if load else ()))),
        promotions=dict(request.promotions),
        losses=dict(request.losses),
    )


def evictions_explained(before: EngineView, report: StepReport) -> Sequence[str]:
    """Every eviction from host memory by a promotion, in words: for which block of whom, and whose block it was.

    Args:
        before: the view before the action.
        report: of the action.
    """
    tiers = tiers_of(before)
    if tiers is None:
        return ()
    lines = []
    promoted: dict[str, tuple[int, ...]] = {told.request: told.blocks for told in notes_of(report, Promoted)}
    for eviction in notes_of(report, Evicted):
        owners = [
            f"block {restore.keys.index(eviction.block)} of {id_}"
            for id_, restore in tiers.restores.items()
            if eviction.block in restore.keys
        ]
        whose = " and ".join(owners) or "of nobody waiting"
        if eviction.cause == "store":
            lines.append(f"a store of {eviction.by} evicted h{eviction.block}, {whose}")
            continue
        keys: Any = tiers.restores[eviction.by].keys
        wanted = ", ".join(str(keys.index(block)) for block in promoted.get(eviction.by, ()))
        lines.append(f"promoting block {wanted} of {eviction.by} evicted h{eviction.block}, {whose}")
    return lines
