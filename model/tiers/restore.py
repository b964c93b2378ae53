"""Which blocks are promoted from disk to host memory for a waiting request, and why that ends (offload specification 5.6, 6).

A request whose prefix lies on disk is restored in two hops: disk to host memory (a *promotion*), host memory to GPU (a *load*).
Host memory may be smaller than what waiting requests want of it, so a promotion has to evict, and what it evicts may be what
somebody, even the same request, is about to need. Finding 10 is that: with room for one block and the prefix [A, B], promoting
B evicts A, promoting A evicts B, and each read ends at a later instant, so a memory of the attempts of the *present* instant
never holds anything back. Two requests can do the same to each other with prefixes that each fit.

The rule here. Let ``P`` be the recoverable prefix of a request: its leading blocks beyond what the GPU has, each in host memory
or on disk, pending or not. Its *target* is as much of the head of ``P`` as host memory could hold if all of it but the rest of
``P`` gave way; the whole of ``P``, when that fits.

1. The blocks of the target that are absent are promoted together, in one read, or not at all. What they evict is neither a block
   of ``P`` nor claimed by another request.
2. The target is then *claimed* until the request loads it, is admitted without it, or ends. Promotions spare the claims of
   others. Stores do not: they happen only in a pass that computes something.
3. A request that finds no room, and has no claim, waits holding nothing; it looks again when a transfer ends or a claim does.
4. A request that has a claim may extend it, to a block that a store has evicted or that has become recoverable. It waits for
   room that transfers take up now, but not for the claims of others: it then goes on with what it has.

Why every restore ends.

* *No block is read twice for nothing.* A promoted block is claimed. It leaves host memory only through a store, in a pass that
  gets work done. So between two things that count as progress a block is promoted at most once, for one request, and a request
  promotes no more than its target.
* *A claim is used up.* Its owner waits for reads and copies alone, each of which ends by itself (4). Once its blocks are there
  it needs GPU blocks, which running requests and ended loads give up without ever asking for host memory. So it loads, or is
  admitted, and the claim ends.
* *Whoever waits for room gets it.* By (3) waiting requests without a claim take nothing from one another. What is in their way
  is pinned or pending, which ends by itself, or claimed, which ends as just said; both wake them. With nothing in its way a
  target fits, by its definition. Ready requests are looked up in the order in which they joined the queue, before new ones.

Nobody who has a claim waits for a claim, so there is no circle of requests that hold and wait, however many there are.

What that keeps: a request waits out pins that stand between it and a prefix that fits; other requests' blocks that nobody
claims are evicted in their order; a block that is pending for somebody else is waited for, not read again; with reads that
take no time nothing repeats at one instant; a tail that is nowhere does not stand in the way of the head. It evicts no block
of the own prefix for another one: where the rule found in the specification does that because a pin is in the way, and reads
the first block again later, this one waits for the pin and reads once.

The faulty rule and its half-mended variants (``greedy``) promote key by key and protect that one key alone. ``structural``
leaves out promotion while ``P`` exceeds host memory; ``bounded`` (in ``model.tiers.transfers``) counts rounds and gives up.
``unclaimed`` is the rule above without claims: then two requests evict from each other what was promoted for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from model.actions import Nanoseconds
from model.tiers.core import Offload, Stage
from model.tiers.disk import Disk, Probe
from model.tiers.host import EXTERNAL, Refusal
from model.tiers.notes import DiskJobEnded, DiskWriteBegan, Promoted, note


def stage(offload: Offload, disk: Disk, owner: str, keys: Sequence[int], now: Nanoseconds) -> bool:
    """Promote what ``owner`` needs of ``keys``, its blocks beyond those on the GPU; True if it has to wait.

    With the right rule only. The faulty one has its own meaning of True: a read began, or a block on the way was met.
    """
    run = recoverable(offload, disk, keys)
    # Ghost: what may be promoted for this request before anything else gets on (L4).
    most = max(offload.allowance.get(owner, 0), min(len(run), offload.rules.host_blocks))
    offload.allowance[owner] = most
    if offload.rules.greedy:
        too_long = offload.rules.structural and len(run) > offload.rules.host_blocks
        return stage_greedily(offload, disk, owner, keys, now, promotes=not too_long)
    return stage_whole(offload, disk, owner, run, now)


def recoverable(offload: Offload, disk: Disk, keys: Sequence[int]) -> list[int]:
    """The leading ``keys`` that are in host memory or on disk, pending or not."""
    run = []
    for key in keys:
        if key not in offload.host.entries and not disk.contains(offload.worker, key):
            break
        run.append(key)
    return run


def target_of(offload: Offload, run: Sequence[int]) -> list[int]:
    """The head of a recoverable prefix that host memory could hold without evicting any other block of it."""
    entries = offload.host.entries
    room = offload.rules.host_blocks - sum(1 for key in run if key in entries)
    target = []
    for key in run:
        if key not in entries:
            if not room:
                break
            room -= 1
        target.append(key)
    return target


def stage_whole(offload: Offload, disk: Disk, owner: str, run: Sequence[int], now: Nanoseconds) -> bool:
    """Promote the absent blocks of the target of ``owner`` together; True if it has to wait for them, or for room."""
    host = offload.host
    target = target_of(offload, run)
    absent = [key for key in target if key not in host.entries]
    if not absent:
        return any(host.entries[key].transfer is not None for key in target)
    found = [disk.probe(offload.worker, key) for key in absent]
    if Probe.PENDING in found:
        # Somebody is writing it; that ends, and then it can be read.
        return True
    claimed = set() if offload.rules.unclaimed else claims_of_others(offload, owner)
    reserved = host.reserve(EXTERNAL, owner, target, claimed.union(run))
    if isinstance(reserved, Refusal):
        # Who holds a claim waits for what ends by itself, and for no other claim.
        kept = sum(1 for block in host.entries if block in claimed or block in run)
        return owner not in offload.claims or len(absent) <= offload.rules.host_blocks - kept
    began = begin_read(offload, disk, owner, (reserved.transfer.id,), absent, now)
    assert began, "every absent block of a target is on disk"
    offload.claims.setdefault(owner, {}).update(dict.fromkeys(target))
    return True


def claims_of_others(offload: Offload, owner: str) -> set[int]:
    """The blocks of host memory that wait for anybody but ``owner``."""
    return {block for other, blocks in offload.claims.items() if other != owner for block in blocks}


def stage_greedily(
    offload: Offload, disk: Disk, owner: str, keys: Sequence[int], now: Nanoseconds, *, promotes: bool
) -> bool:
    """The rule as found (5.6): each absent key evicts what it needs, other keys of the same prefix included.

    True if a read began or a block on its way was met.
    """
    host = offload.host
    if now > offload.attempted_at:
        offload.attempted_at = now
        offload.attempted.clear()
    deferred = False
    reserved: list[int] = []
    promoted: list[int] = []
    for key in keys:
        entry = host.entries.get(key)
        if entry is not None:
            deferred |= entry.transfer is not None
            continue
        found = disk.probe(offload.worker, key)
        if found is Probe.PENDING:
            deferred = True
            continue
        if found is Probe.MISS or not promotes:
            break
        if (owner, key) in offload.attempted and not host.can_place(recoverable(offload, disk, keys)):
            break
        reservation = host.reserve(EXTERNAL, owner, (key,))
        if isinstance(reservation, Refusal):
            break
        reserved.append(reservation.transfer.id)
        promoted.append(key)
    if not promoted or not begin_read(offload, disk, owner, tuple(reserved), promoted, now):
        return deferred
    offload.attempted.update((owner, key) for key in promoted)
    return True


def begin_read(
    offload: Offload, disk: Disk, owner: str, transfers: tuple[int, ...], blocks: Sequence[int], now: Nanoseconds
) -> bool:
    """Read ``blocks`` into the entries reserved by ``transfers``; False, with these taken back, if the disk refuses."""
    job = disk.read(offload.worker, blocks, now)
    if job is None:
        for transfer in transfers:
            offload.host.roll_back(transfer)
        return False
    offload.stages[job.id] = Stage(owner, transfers)
    offload.promoted.update(blocks)
    note(offload.host.journal, Promoted(owner, tuple(blocks)))
    return True


def write_through(offload: Offload, disk: Disk, blocks: Sequence[int], now: Nanoseconds) -> None:
    """Write blocks that have reached host memory to disk; they stay there until that has ended."""
    job = disk.write(offload.worker, blocks, now)
    if job is not None:
        offload.host.pin(job.blocks)
        note(offload.host.journal, DiskWriteBegan(job.blocks))


def deliver(offload: Offload, disk: Disk, now: Nanoseconds) -> tuple[bool, list[tuple[int, ...]]]:
    """End the disk jobs of this worker that are done by ``now``.

    Returns:
        Whether anything ended, another worker's jobs included, and the blocks that reached host memory.
    """
    done = disk.take_completed(offload.worker, now)
    progress = bool(done) or disk.completions != offload.seen_completions
    offload.seen_completions = disk.completions
    arrivals = []
    for completion in done:
        note(offload.host.journal, DiskJobEnded(completion.reading, completion.blocks))
        if completion.reading:
            transfers = offload.stages.pop(completion.job).transfers
            arrivals += [offload.host.complete_external(transfer) for transfer in transfers]
        else:
            offload.host.unpin(completion.blocks)
            offload.got_on()
    return progress, arrivals
