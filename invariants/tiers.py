"""Invariants of the host and disk tiers (offload specification 7): conservation, truth of restores, and their bounds.

They read ``view.extra["tiers"]`` and the notes of reports; an engine without tiers never meets them. Counts of promotions are
ghosts that begin when an engine is built or thawed, so a linear run sees all of them and an exploration those of one step, where
lassos take their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction

from invariants.framework import PROGRESS, STEP, Found, StateCheck, StepCheck, Transition, on_state, on_step
from model import engine as parts
from model.config import EngineConfig
from model.events import Removed, Stored
from model.tiers.notes import CapacityRetry, DiskJobEnded, Evicted, LoadQueued, Promoted, notes_of
from model.tiers.rules import UPSTREAM_ROUNDS_MAX, TierRules
from model.tiers.views import DiskView, TiersView, tiers_of
from model.views import EngineView

TiersCheck = Callable[[TiersView, EngineConfig], Found]


def tiered(config: EngineConfig) -> bool:
    """The engine has tiers."""
    return config.tiers is not None


def on_tiers(
    id: str, statement: str, source: str, *, catches: Iterable[str] = (), kind: str = STEP
) -> Callable[[TiersCheck], StateCheck]:
    """Declare the decorated function as an invariant over the tiers in a state."""

    def register(check: TiersCheck) -> StateCheck:
        def on_view(view: EngineView, config: EngineConfig) -> Found:
            tiers = tiers_of(view)
            return None if tiers is None else check(tiers, config)

        return on_state(id, statement, source, needs={parts.REQUESTS}, catches=catches, applies=tiered, kind=kind)(
            on_view
        )

    return register


def on_tiers_step(
    id: str, statement: str, source: str, *, catches: Iterable[str] = (), kind: str = STEP
) -> Callable[[StepCheck], StepCheck]:
    """Declare the decorated function as an invariant over steps of an engine with tiers."""
    return on_step(id, statement, source, needs={parts.REQUESTS}, catches=catches, applies=tiered, kind=kind)


@on_tiers(
    "tier-conservation",
    "Host memory holds no more than it can; what is evictable is resident and read by nobody; who fills and reads it is known.",
    "offload specification S1, S2, S3, S4, S12",
)
def host_conservation(tiers: TiersView, config: EngineConfig) -> Found:
    """Entries of host memory against transfers, pins and the eviction order."""
    host = tiers.host
    if len(host.entries) > host.capacity:
        return f"host memory holds {len(host.entries)} blocks of {host.capacity}"
    evictable = {entry.block for entry in host.entries if entry.transfer is None and not entry.pins}
    if set(host.order) != evictable or len(host.order) != len(evictable):
        return f"the eviction order holds {list(host.order)}, evictable are {sorted(evictable)}"
    filling = {
        (block, transfer.id) for transfer in host.transfers if transfer.kind != "load" for block in transfer.blocks
    }
    pending = {(entry.block, entry.transfer) for entry in host.entries if entry.transfer is not None}
    if filling != pending:
        return f"pending blocks and the transfers that fill them do not agree: {sorted(filling ^ pending)}"
    readers: Counter[int] = Counter()
    for transfer in host.transfers:
        if transfer.kind == "load":
            readers.update(transfer.blocks)
            owner = tiers.restores.get(transfer.request)
            if owner is None or owner.load_transfer != transfer.id:
                return f"a load for {transfer.request} runs, which does not wait for it"
    if tiers.disk is not None:
        for job in tiers.disk.jobs:
            if not job.reading and job.worker == tiers.worker:
                readers.update(job.blocks)
    for entry in host.entries:
        if entry.pins != readers[entry.block]:
            return f"h{entry.block} counts {entry.pins} pins, {readers[entry.block]} copies read it"
    return True if host.entries else None


@on_tiers(
    "tier-conservation",
    "A pool of the disk holds no more than it can; each block being written has one writer, and its pins are the reads.",
    "offload specification S1, S5",
)
def disk_conservation(tiers: TiersView, config: EngineConfig) -> Found:
    """Blocks on disk against jobs."""
    disk = tiers.disk
    if disk is None or not disk.stored:
        return None
    used = Counter(stored.pool for stored in disk.stored)
    for pool, count in used.items():
        if count > disk.capacity:
            return f"pool {pool} of the disk holds {count} blocks of {disk.capacity}"
    readers, writers = _jobs_of(disk, config)
    for stored in disk.stored:
        key = stored.pool, stored.block
        if stored.pins != readers[key]:
            return f"h{stored.block} on disk counts {stored.pins} readers, {readers[key]} jobs read it"
        if writers[key] != stored.pending:
            state = "pending" if stored.pending else "resident"
            return f"h{stored.block} on disk is {state}, {writers[key]} jobs write it"
    return True


def _jobs_of(disk: DiskView, config: EngineConfig) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    """How many reads and writes of each block there are, by pool and block."""
    assert config.tiers is not None
    shared = config.tiers.disk_scope == "cluster_shared"
    readers: Counter[tuple[int, int]] = Counter()
    writers: Counter[tuple[int, int]] = Counter()
    for job in disk.jobs:
        counts = readers if job.reading else writers
        counts.update((0 if shared else job.worker, block) for block in job.blocks)
    return readers, writers


@on_tiers(
    "tier-conservation",
    "Each promotion is filled by exactly one running read, and each running read fills what it reads.",
    "offload specification S3",
)
def promotions_have_a_read(tiers: TiersView, config: EngineConfig) -> Found:
    """Stages against promotions and reads."""
    promotions = {transfer.id: transfer.blocks for transfer in tiers.host.transfers if transfer.kind == "external"}
    staged = [transfer for stage in tiers.stages for transfer in stage.transfers]
    if sorted(staged) != sorted(promotions):
        return f"promotions {sorted(promotions)} are under way, reads fill {sorted(staged)}"
    jobs = {job.id: job.blocks for job in tiers.disk.jobs if job.reading} if tiers.disk is not None else {}
    for stage in tiers.stages:
        filled = [block for transfer in stage.transfers for block in promotions[transfer]]
        if sorted(jobs.get(stage.job, ())) != sorted(filled):
            return f"read {stage.job} moves {jobs.get(stage.job)}, its promotions wait for {filled}"
        if stage.owner is not None and stage.owner not in tiers.restores:
            return f"read {stage.job} is for {stage.owner}, which is not live"
    return True if staged else None


@on_tiers(
    "restore-truth",
    "What is on its way to the GPU is resident in host memory as long as it is.",
    "offload specification S6",
)
def loads_read_what_is_there(tiers: TiersView, config: EngineConfig) -> Found:
    """The blocks of running loads."""
    resident = tiers.host.resident
    loads = [transfer for transfer in tiers.host.transfers if transfer.kind == "load"]
    for transfer in loads:
        missing = [block for block in transfer.blocks if block not in resident]
        if missing:
            return f"a load for {transfer.request} copies {missing}, which host memory does not have"
    return True if loads else None


@on_tiers_step(
    "restore-truth",
    "Tokens reported as loaded were loaded; a load begins from resident blocks, a promotion from blocks on disk.",
    "offload specification S6, S8",
)
def restored_from_what_was_there(step: Transition) -> Found:
    """Admissions with host tokens, loads and promotions against the tiers before the step."""
    before = tiers_of(step.before)
    assert before is not None
    met = False
    for admission in step.report.admissions:
        if not admission.host_tokens:
            continue
        met = True
        restore = before.restores.get(admission.id)
        if restore is None or restore.load != "loaded":
            return f"{admission.id} is admitted with {admission.host_tokens} tokens from host memory, and no load of it has ended"
        if not admission.host_tokens <= admission.reused:
            return f"{admission.id} reuses {admission.reused} tokens, {admission.host_tokens} of them from host memory"
    for load in notes_of(step.report, LoadQueued):
        met = True
        missing = [block for block in load.blocks if block not in before.host.resident]
        if missing:
            return f"a load for {load.request} begins with {missing}, which host memory does not have"
    for promoted in notes_of(step.report, Promoted):
        met = True
        on_disk = {stored.block for stored in before.disk.stored if not stored.pending} if before.disk else set()
        missing = [block for block in promoted.blocks if block not in on_disk]
        if missing:
            return f"{missing} are promoted for {promoted.request}, and are not on disk"
    return True if met else None


@on_tiers_step(
    "restore-truth",
    "Bytes read from and written to disk are those of the jobs that ended.",
    "offload specification S8",
)
def bytes_add_up(step: Transition) -> Found:
    """Completed bytes of the disk against the blocks of ended jobs."""
    before, after = tiers_of(step.before), tiers_of(step.after)
    if before is None or after is None or before.disk is None or after.disk is None:
        return None
    ended = notes_of(step.report, DiskJobEnded)
    size = TierRules.of(step.config).block_bytes if ended else 0
    for reading in (True, False):
        moved = after.disk.stats.of(reading).completed_bytes - before.disk.stats.of(reading).completed_bytes
        told = size * sum(len(job.blocks) for job in ended if job.reading is reading)
        if moved != told:
            return f"{moved} bytes count as {'read' if reading else 'written'}, the jobs that ended moved {told}"
    return True if ended else None


@on_tiers_step(
    "source-intact",
    "A GPU block that is still being copied to host memory is computed, or loaded, anew only once the copy has ended.",
    "offload specification S7",
)
def source_intact(step: Transition) -> Found:
    """Slots taken in a step against the copies that read them before it."""
    before, after = tiers_of(step.before), tiers_of(step.after)
    assert before is not None
    assert after is not None
    if not before.sources or not step.report.is_pass:
        return None
    due = {transfer.id: transfer.due_in_ns for transfer in before.host.transfers}
    loads = {load.request: load.due_ns - step.before.now_ns for load in notes_of(step.report, LoadQueued)}
    reused = {admission.id: admission.reused // step.config.block_size for admission in step.report.admissions}
    for id_, restore in after.restores.items():
        held = len(before.restores[id_].slots) if id_ in before.restores else 0
        hits = restore.on_gpu if id_ in loads else reused.get(id_, 0)
        filled_in = loads.get(id_, step.after.now_ns - step.before.now_ns)
        for slot in restore.slots[max(held, hits) :]:
            ends = due.get(before.sources.get(slot, -1))
            if ends is not None and ends > filled_in:
                return f"{id_} fills GPU slot {slot} within {filled_in} ns, a copy reads it for {ends} ns"
    return True


@on_tiers(
    "bandwidth-cap",
    "Jobs that move together stay within the bandwidth of their worker, and of the disk they share.",
    "offload specification S9",
)
def bandwidth_cap(tiers: TiersView, config: EngineConfig) -> Found:
    """Rates of moving jobs by direction."""
    disk = tiers.disk
    if disk is None or not disk.jobs:
        return None
    limits = TierRules.of(config).disk
    assert limits is not None
    for reading, of_worker, of_all in (
        (True, limits.read_rate, limits.shared_read_rate),
        (False, limits.write_rate, limits.shared_write_rate),
    ):
        moving = [job for job in disk.jobs if job.reading is reading and job.rate is not None]
        rates: dict[int, Fraction] = {}
        for job in moving:
            rates[job.worker] = rates.get(job.worker, Fraction(0)) + (job.rate or 0)
        for worker, total in rates.items():
            if of_worker is not None and total > of_worker:
                return f"jobs of worker {worker} move {float(total)} bytes/ns, its bandwidth is {float(of_worker)}"
        if limits.shared and of_all is not None and sum(rates.values()) > of_all:
            return f"all jobs move {float(sum(rates.values()))} bytes/ns, the shared disk has {float(of_all)}"
    return True


@on_step(
    "stored-needs-caching",
    "Nothing is told about host memory where there is none.",
    "offload specification S11",
    needs={parts.EVENTS},
    applies=lambda config: not tiered(config) or not config.prefix_caching,
)
def no_tier_no_event(step: Transition) -> Found:
    """Events of other tiers than the GPU."""
    for event in step.report.events:
        if event.tier != "gpu":
            return f"an event tells of the {event.tier} tier, and there is none"
    return True if step.report.events else None


@on_step(
    "events-mirror-cache",
    "Applied to what host memory held before a step, its Stored and Removed events give what it holds after it.",
    "offload specification 5.8",
    needs={parts.EVENTS},
    applies=lambda config: config.tiers is not None and config.tiers.host_events and config.kv_events,
)
def host_events_mirror(step: Transition) -> Found:
    """The events of the host tier as a reader of them would follow them."""
    before, after = tiers_of(step.before), tiers_of(step.after)
    if before is None or after is None:
        return None
    events = [event for event in step.report.events if event.tier == "host"]
    mirror = set(before.host.resident)
    for event in events:
        if isinstance(event, Removed):
            for block in event.blocks:
                if block not in mirror:
                    return f"Removed tells that h{block} left host memory, where it was not"
                mirror.discard(block)
        elif isinstance(event, Stored):
            for block in event.blocks:
                if block in mirror:
                    return f"Stored tells that h{block} reached host memory, where it was"
                mirror.add(block)
    if mirror != after.host.resident:
        return f"the events leave {sorted(mirror ^ after.host.resident)} told wrongly"
    return True if events else None


@on_tiers(
    "drains-empty",
    "With no live request and nothing due, no transfer, read, pin or claim is left.",
    "offload specification S13",
    kind=PROGRESS,
)
def tiers_drain(tiers: TiersView, config: EngineConfig) -> Found:
    """What an idle engine may not hold."""
    if tiers.restores or tiers.host.transfers or (tiers.disk is not None and tiers.disk.jobs):
        return None
    left = {
        "prepared stores": tiers.host.prepared,
        "reads for promotions": tiers.stages,
        "queued requests": tiers.connector,
        "GPU blocks under a copy": tuple(tiers.sources),
        "ended jobs not told": tiers.disk.undelivered if tiers.disk is not None else (),
        "pinned blocks": tuple(entry.block for entry in tiers.host.entries if entry.pins or entry.transfer is not None),
    }
    for what, found in left.items():
        if found:
            return f"{len(found)} {what} are left with no live request and nothing due"
    return True


@on_tiers_step(
    "bounded-restores",
    "A promotion evicts no block of the prefix it is for, when that prefix exceeds host memory.",
    "offload specification L1",
    catches=("restore-thrash", "restore-thrash:bounded-rounds"),
)
def no_self_eviction(step: Transition) -> Found:
    """Evictions by promotions against the recoverable prefix of the request they are for."""
    before = tiers_of(step.before)
    assert before is not None
    met = False
    for eviction in notes_of(step.report, Evicted):
        restore = before.restores.get(eviction.by)
        if eviction.cause != "promotion" or restore is None:
            continue
        met = True
        prefix = restore.keys[restore.on_gpu : restore.on_gpu + restore.recoverable]
        if len(prefix) > before.host.capacity and eviction.block in prefix:
            return (
                f"a promotion for {eviction.by} evicts h{eviction.block}, block {restore.keys.index(eviction.block)} of its own "
                f"prefix: {len(prefix)} blocks to restore through {before.host.capacity}"
            )
    return True if met else None


@on_tiers_step(
    "bounded-restores",
    "A block is promoted for a waiting request once, and again only after others evicted it.",
    "offload specification L2",
    catches=("restore-thrash", "restore-thrash:bounded-rounds", "restore-thrash:whole-prefix-only"),
    kind=PROGRESS,
)
def promoted_once(step: Transition) -> Found:
    """Promotions of each block for each waiting request against its evictions by others."""
    after = tiers_of(step.after)
    assert after is not None
    promoted = notes_of(step.report, Promoted)
    for told in promoted:
        restore = after.restores.get(told.request)
        if restore is None:
            continue
        for block in told.blocks:
            count, losses = restore.promotions.get(block, 0), restore.losses.get(block, 0)
            if count > 1 + losses:
                return (
                    f"block {restore.keys.index(block)} of {told.request} was promoted {count} times, "
                    f"and {losses} times evicted by others"
                )
    return True if promoted else None


@on_tiers_step(
    "bounded-restores",
    "As long as nothing else gets on, no block is promoted twice, and no more of them than those who wait may ask for.",
    "offload specification L4, L13",
    catches=("restore-thrash", "restore-thrash:bounded-rounds", "restore-thrash:whole-prefix-only"),
    kind=PROGRESS,
)
def promotions_between_progress(step: Transition) -> Found:
    """Promotions since the last token, admission, load, arrival or release of a pin."""
    after = tiers_of(step.after)
    assert after is not None
    if not notes_of(step.report, Promoted) or not after.promoted:
        return None
    for block, count in after.promoted.items():
        if count > 1:
            return f"h{block} was promoted {count} times, and nothing else got on in between"
    total, most = sum(after.promoted.values()), sum(after.allowance.values())
    if total > most:
        return f"{total} blocks were promoted with nothing else getting on, those who wait may ask for {most}"
    return True


@on_tiers(
    "bounded-restores",
    "With upstream's bound, a request takes no more than 1,024 rounds of promotion with no work in between.",
    "offload specification L5",
    kind=PROGRESS,
)
def upstream_rounds(tiers: TiersView, config: EngineConfig) -> Found:
    """Rounds counted by upstream's rule."""
    met = False
    for id_, restore in tiers.restores.items():
        met |= bool(restore.rounds)
        if restore.rounds > UPSTREAM_ROUNDS_MAX:
            return f"{id_} is in round {restore.rounds} of promotion"
    return True if met else None


@on_tiers_step(
    "bounded-restores",
    "A cohort that host memory refused is not offered again before anything has changed there.",
    "offload specification L11",
)
def refused_once(step: Transition) -> Found:
    """Refused stores against what was refused before the step."""
    before, after = tiers_of(step.before), tiers_of(step.after)
    assert before is not None
    assert after is not None
    refusals = [retry for retry in notes_of(step.report, CapacityRetry) if retry.cause == "store"]
    changed = any(isinstance(told, Evicted | Promoted | LoadQueued) for _, told in step.report.notes)
    for retry in refusals:
        then, now = before.restores.get(retry.request), after.restores.get(retry.request)
        if then is not None and now is not None and then.refused and then.refused == now.refused and not changed:
            return f"{retry.request} offers again what host memory refused, and nothing has changed"
    counts = Counter(retry.request for retry in refusals)
    for id_, count in counts.items():
        if count > 1:
            return f"{count} cohorts of {id_} were refused in one pass"
    return True if refusals else None


@on_state(
    "no-lost-wakeup",
    "A request that sleeps until a transfer ends has one to wait for, or a claim of a request that does not sleep.",
    "offload specification L7",
    needs={parts.REQUESTS},
    applies=tiered,
    kind=PROGRESS,
)
def no_lost_wakeup(view: EngineView, config: EngineConfig) -> Found:
    """Sleepers against deadlines and claims."""
    tiers = tiers_of(view)
    if tiers is None or not tiers.asleep:
        return None
    claimed = any(restore.claim for id_, restore in tiers.restores.items() if id_ not in tiers.asleep)
    if view.next_deadline_ns is None and not claimed:
        return f"{', '.join(tiers.asleep)} sleep until a transfer ends, and none is under way"
    return True


@on_state(
    "deadlines-ahead",
    "Whatever is under way ends, and not before now: what is due has been dealt with.",
    "offload specification L8",
    needs={parts.REQUESTS},
    applies=tiered,
    kind=PROGRESS,
)
def deadlines_ahead(view: EngineView, config: EngineConfig) -> Found:
    """The next deadline against now and against what is under way."""
    tiers = tiers_of(view)
    if tiers is None:
        return None
    under_way = bool(tiers.host.transfers) or (tiers.disk is not None and bool(tiers.disk.jobs))
    if view.next_deadline_ns is None:
        return "transfers are under way, and none of them ever ends" if under_way else None
    if view.next_deadline_ns <= view.now_ns:
        return f"something is due at {view.next_deadline_ns} ns, and it is {view.now_ns} ns"
    return True
