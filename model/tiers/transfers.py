"""What moves between the tiers, and when: lookup in host memory, loads, stores, and time.

Offload specification 5.1, 5.3, 5.4, 5.7. Copies are set up in a pass, at its start: loads are queued at once, stores at the end
of the pass. What ends while a pass runs is handled together at its end; on an idle engine each instant is handled by itself.
Whatever ends wakes every request that waits for a transfer; the first byte of a disk job wakes nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from model.actions import Nanoseconds
from model.events import Removed, StepReport, Stored
from model.paged.core import announce, evicted
from model.paged.pool import Copy
from model.tiers.core import Load, TieredCore, TieredRequest, slot_of
from model.tiers.disk import Disk
from model.tiers.host import STORE, Refusal, Transfer
from model.tiers.notes import Evicted, Promoted
from model.tiers.restore import deliver, stage, write_through
from model.tiers.rules import UPSTREAM_ROUNDS_MAX


class Lookup(Enum):
    """What host memory has for a waiting request."""

    MISS = "nothing to load"
    HIT = "blocks to load"
    DEFERRED = "wait for a transfer"


def look_up_host(
    core: TieredCore, report: StepReport, request: TieredRequest, on_gpu: int
) -> tuple[Lookup, tuple[int, ...]]:
    """What host memory has of a request beyond its first ``on_gpu`` blocks (5.3); with a hit, those blocks."""
    host = core.offload.host
    if request.load is not None:
        return (Lookup.MISS if request.load.ended else Lookup.DEFERRED), ()
    if request.latest_store is not None:
        if request.latest_store in host.transfers:
            return Lookup.DEFERRED, ()
        request.latest_store = None
    found = _visit(core, report, request, on_gpu)
    touch(core, request)
    return found


def touch(core: TieredCore, request: TieredRequest) -> None:
    """Make the evictable keys of a request the youngest, its first one the very youngest."""
    for key in reversed(request.keys):
        core.offload.host.touch(key)


def _visit(core: TieredCore, report: StepReport, request: TieredRequest, on_gpu: int) -> tuple[Lookup, tuple[int, ...]]:
    keys = request.keys[on_gpu:]
    if not keys:
        if core.offload.detach(request.id):
            core.wake()
        return Lookup.MISS, ()
    disk = core.offload.disk
    if disk is not None and _restores(core, disk, request) and _staged(core, report, disk, request, keys):
        return Lookup.DEFERRED, ()
    entries = core.offload.host.entries
    matched = []
    deferred = False
    for key in keys:
        entry = entries.get(key)
        if entry is None:
            break
        matched.append(key)
        deferred |= entry.transfer is not None or key in core.loading
    if not matched:
        return Lookup.MISS, ()
    return (Lookup.DEFERRED, ()) if deferred else (Lookup.HIT, tuple(matched))


def _restores(core: TieredCore, disk: Disk, request: TieredRequest) -> bool:
    """Upstream's bound: after so many rounds without progress a request makes do without the disk."""
    if core.offload.rules.bounded and not request.bypasses_disk and request.rounds >= UPSTREAM_ROUNDS_MAX:
        request.bypasses_disk = True
        disk.stats.bypassed_restores += 1
    return not request.bypasses_disk


def _staged(core: TieredCore, report: StepReport, disk: Disk, request: TieredRequest, keys: Sequence[int]) -> bool:
    offload = core.offload
    told = len(report.notes)
    waits = stage(offload, disk, request.id, keys, core.now)
    for _, promoted in report.notes[told:]:
        if isinstance(promoted, Promoted):
            request.rounds += offload.rules.bounded
            request.promotions.update(promoted.blocks)
    follow_evictions(core, report, told)
    return waits


def start_load(
    core: TieredCore, report: StepReport, request: TieredRequest, on_gpu: int, blocks: tuple[int, ...]
) -> bool:
    """Begin to copy ``blocks`` to the GPU behind the ``on_gpu`` cached ones (5.4); False, with nothing changed, without room."""
    pool = core.pool
    hits: list[Copy] = [pool.index[key][0] for key in request.keys[:on_gpu]]
    removed = pool.reserve(hits, len(blocks))
    if removed is None:
        return False
    evicted(core, report, removed)
    fresh = [pool.place() for _ in blocks]
    for copy in fresh:
        copy.refs, copy.pins = 0, 1
    not_before = max([core.now, *still_read(core, (copy.slot for copy in fresh))])
    transfer = core.offload.host.schedule_load(request.id, blocks, core.now, not_before)
    assert transfer is not None, "a hit is resident"
    core.offload.detach(request.id)
    core.offload.got_on()
    core.loading.update(dict.fromkeys(blocks, transfer.id))
    request.load = Load(transfer.id, blocks, hits, fresh, on_gpu)
    return True


def still_read(core: TieredCore, slots: Iterable[int]) -> list[Nanoseconds]:
    """When the copies to host memory that still read any of ``slots`` end."""
    transfers = core.offload.host.transfers
    readers = {core.sources[slot] for slot in slots if slot in core.sources}
    return [due for reader in readers if (due := transfers[reader].due) is not None]


def offer_stores(core: TieredCore, report: StepReport) -> None:
    """Set up the copies to host memory of the prompt blocks that this pass has computed (5.7)."""
    for request in core.running:
        if request.id in report.work:
            _offer(core, report, request)


def _offer(core: TieredCore, report: StepReport, request: TieredRequest) -> None:
    host = core.offload.host
    size = core.rules.block_size
    start, end = request.cursor, min(min(request.computed, request.prompt) // size, len(request.keys))
    if end <= start:
        return
    absent = [position for position in range(start, end) if request.keys[position] not in host.entries]
    if not absent:
        request.cursor = end
        return
    if any(slot_of(request.blocks[position]) in core.sources for position in absent):
        return
    if request.refused == (end, host.changes):
        # Nothing that could make room has happened since this cohort was refused.
        return
    told = len(report.notes)
    reserved = host.reserve(STORE, request.id, request.keys[start:end])
    if isinstance(reserved, Refusal):
        request.refused = (end, host.changes)
        return
    follow_evictions(core, report, told)
    request.refused = None
    request.latest_store = reserved.transfer.id
    request.cursor = end
    core.sources.update((slot_of(request.blocks[position]), reserved.transfer.id) for position in absent)
    touch(core, request)


def follow_evictions(core: TieredCore, report: StepReport, told: int) -> None:
    """Tell the evictions among the notes from number ``told`` on as events; ghost: count them as losses of others."""
    gone = [detail for _, detail in report.notes[told:] if isinstance(detail, Evicted)]
    for eviction in gone:
        for request in core.requests.values():
            own = eviction.cause == "promotion" and eviction.by == request.id
            if eviction.block in request.promotions and not own:
                request.losses[eviction.block] += 1
    if gone and core.offload.rules.host_events:
        report.events.append(Removed(tuple(eviction.block for eviction in gone), tier="host"))


def advance(core: TieredCore, report: StepReport, now: Nanoseconds) -> None:
    """Handle whatever ended by ``now`` (5.1), and wake those who wait if anything did."""
    offload = core.offload
    ended = offload.host.tick(now)
    progress = bool(ended)
    for transfer in ended:
        if transfer.kind == STORE:
            _stored(core, report, transfer, now)
    if offload.disk is not None:
        delivered, arrivals = deliver(offload, offload.disk, now)
        progress |= delivered
        for blocks in arrivals:
            tell_arrivals(core, report, blocks)
    for transfer in ended:
        if transfer.kind != STORE:
            _loaded(core, report, transfer)
    if progress:
        core.wake()


def _stored(core: TieredCore, report: StepReport, transfer: Transfer, now: Nanoseconds) -> None:
    offload = core.offload
    for slot in [slot for slot, reader in core.sources.items() if reader == transfer.id]:
        del core.sources[slot]
    tell_arrivals(core, report, transfer.blocks)
    if offload.disk is not None:
        write_through(offload, offload.disk, transfer.blocks, now)


def _loaded(core: TieredCore, report: StepReport, transfer: Transfer) -> None:
    """A load ended: its request holds the blocks, and they are cached."""
    request = core.requests[transfer.request]
    load = request.load
    assert load is not None
    for block in transfer.blocks:
        del core.loading[block]
    core.offload.got_on()
    core.pool.activate(load.hits)
    visible: list[int] = []
    for position, copy in enumerate(load.fresh, start=load.g1_blocks):
        copy.refs, copy.pins = 1, 0
        if core.pool.cache(copy, request.keys[position]):
            visible.append(position)
        elif visible:
            announce(core, report, request, visible)
            visible = []
    if visible:
        announce(core, report, request, visible)
    request.blocks = [*load.hits, *load.fresh]
    request.allocated = len(request.blocks) * core.rules.block_size
    request.load = Load(None, load.blocks, [], [], load.g1_blocks)


def settle(core: TieredCore, report: StepReport, end: Nanoseconds) -> None:
    """The end of a pass: what ended in it, then its stores are queued, and what takes no time ends at once."""
    advance(core, report, end)
    core.offload.host.submit_prepared(end)
    advance(core, report, end)


def tell_arrivals(core: TieredCore, report: StepReport, blocks: Sequence[int]) -> None:
    """Tell that blocks became resident in host memory, one event for each run of a block and its successors."""
    if not core.offload.rules.host_events:
        return
    parent = core.registry.parent
    runs: list[list[int]] = []
    for block in blocks:
        if runs and parent(block) == runs[-1][-1]:
            runs[-1].append(block)
        else:
            runs.append([block])
    report.events.extend(Stored(parent(run[0]), tuple(run), tier="host") for run in runs)
