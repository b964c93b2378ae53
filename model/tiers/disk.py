"""The disk tier (G3): a registry of blocks, and reads and writes that share its bandwidth.

Offload specification 3, 4.6, 4.7. One registry serves all workers of a deployment; with ``worker_local`` scope each worker
has a pool of its own in it, with ``cluster_shared`` scope all use one pool.

A job *moves* from its first byte on. Jobs of one worker and direction share that worker's bandwidth evenly; on a shared disk
all jobs of a direction also share the disk's. What a job cannot use is not given to others. So rates are constant between
events (a first byte, an end, a submission, a cancellation), and every time is a sum of exact quotients::

    rate(job) = min(worker_rate / n_worker, shared_rate / n_all)      end(job) = clock + remaining / rate(job)

How far somebody advances the clock, and in how many steps, changes no end of any job.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from enum import Enum
from fractions import Fraction

from attrs import define, field, frozen

from model.actions import Nanoseconds
from model.tiers.rules import DiskRules, exact

Key = tuple[int, int]
"""Pool and block."""


class Probe(Enum):
    """What a lookup finds."""

    MISS = "miss"
    PENDING = "pending"
    RESIDENT = "resident"


class Stored:
    """A block on disk: being written (``pending``), read by ``pins`` jobs, written by a worker."""

    __slots__ = ("pending", "pins", "writer")

    def __init__(self, writer: int, pending: bool = True) -> None:
        """A block that ``writer`` writes, or has written."""
        self.pending = pending
        self.pins = 0
        self.writer = writer


class Job:
    """A read or write: its first byte comes at ``ready``, ``remaining`` bytes are left."""

    __slots__ = ("blocks", "id", "reading", "ready", "remaining", "submitted", "worker")

    def __init__(
        self,
        id_: int,
        worker: int,
        reading: bool,
        blocks: tuple[int, ...],
        submitted: Nanoseconds,
        ready: Nanoseconds,
        remaining: Nanoseconds,
    ) -> None:
        """A job that has just been accepted."""
        self.id = id_
        self.worker = worker
        self.reading = reading
        self.blocks = blocks
        self.submitted = submitted
        self.ready = ready
        self.remaining = remaining


@frozen
class Completion:
    """A job that ended at ``at``."""

    job: int
    reading: bool
    blocks: tuple[int, ...]
    at: Nanoseconds


@define
class DirectionStats:
    """Counts of reads, or of writes. ``transfer_ns`` sums the times from submission to end."""

    submitted_jobs: int = 0
    completed_jobs: int = 0
    cancelled_jobs: int = 0
    completed_bytes: int = 0
    transfer_ns: Nanoseconds = 0


@define
class DiskStats:
    """Counts since the registry was made. They steer nothing."""

    lookup_probes: int = 0
    lookup_hits: int = 0
    lookup_pending: int = 0
    evictions: int = 0
    cross_worker_read_blocks: int = 0
    bypassed_restores: int = 0
    read: DirectionStats = field(factory=DirectionStats)
    write: DirectionStats = field(factory=DirectionStats)

    def of(self, reading: bool) -> DirectionStats:
        """The counts of one direction."""
        return self.read if reading else self.write


class Disk:
    """See the module docstring.

    Attributes:
        stored: blocks in order of their last use, oldest first; a job's blocks end together, in order of identity.
        jobs: running jobs by id, in order of submission.
        clock: how far the registry has come; a worker that lags behind submits at this time.
        completions: counts the jobs that ended, so that a worker sees that another's ended.
        undelivered: ended jobs by worker, until that worker takes them.
        used: blocks of each pool.
    """

    __slots__ = ("clock", "completions", "jobs", "next_id", "rules", "stats", "stored", "undelivered", "used")

    def __init__(self, rules: DiskRules) -> None:
        """An empty disk."""
        self.rules = rules
        self.stored: OrderedDict[Key, Stored] = OrderedDict()
        self.jobs: dict[int, Job] = {}
        self.clock: Nanoseconds = 0
        self.completions = 0
        self.next_id = 0
        self.undelivered: dict[int, list[Completion]] = {}
        self.used: Counter[int] = Counter()
        self.stats = DiskStats()

    def pool_of(self, worker: int) -> int:
        """The pool that a worker reads and writes."""
        return 0 if self.rules.shared else worker

    def key(self, worker: int, block: int) -> Key:
        """A block in the pool of a worker."""
        return self.pool_of(worker), block

    def preload(self, worker: int, blocks: Sequence[int]) -> None:
        """Put resident blocks in, the oldest first."""
        for block in blocks:
            key = self.key(worker, block)
            if key not in self.stored:
                self.put(key, Stored(worker, pending=False))
            self.stored.move_to_end(key)

    def put(self, key: Key, stored: Stored) -> None:
        """Put a block in as the youngest."""
        self.stored[key] = stored
        self.used[key[0]] += 1

    def _remove(self, key: Key) -> None:
        del self.stored[key]
        self.used[key[0]] -= 1

    def contains(self, worker: int, block: int) -> bool:
        """Whether a block is there or being written; nothing is counted or touched."""
        return self.key(worker, block) in self.stored

    def probe(self, worker: int, block: int) -> Probe:
        """Look a block up; a hit makes it the youngest."""
        self.stats.lookup_probes += 1
        key = self.key(worker, block)
        stored = self.stored.get(key)
        if stored is None:
            return Probe.MISS
        if stored.pending:
            self.stats.lookup_pending += 1
            return Probe.PENDING
        self.stats.lookup_hits += 1
        self.stored.move_to_end(key)
        return Probe.RESIDENT

    def write(self, worker: int, blocks: Sequence[int], now: Nanoseconds) -> Job | None:
        """Write those of ``blocks`` that are not there, as many leading ones as find room; None when that is none.

        What is evicted is neither read, nor written, nor one of ``blocks``.
        """
        self.advance(now)
        pool = self.pool_of(worker)
        missing = [block for block in dict.fromkeys(blocks) if (pool, block) not in self.stored]
        free = self.rules.capacity - self.used[pool]
        cohort = frozenset(blocks)
        victims: list[Key] = []
        for key, stored in self.stored.items():
            if free + len(victims) >= len(missing):
                break
            if key[0] == pool and not stored.pending and not stored.pins and key[1] not in cohort:
                victims.append(key)
        accepted = tuple(missing[: free + len(victims)])
        if not accepted:
            return None
        for key in victims:
            self._remove(key)
        self.stats.evictions += len(victims)
        for block in accepted:
            self.put((pool, block), Stored(worker))
        return self._submit(worker, False, accepted)

    def read(self, worker: int, blocks: Sequence[int], now: Nanoseconds) -> Job | None:
        """Read ``blocks``; None unless every one of them is resident."""
        self.advance(now)
        found = [self.stored.get(self.key(worker, block)) for block in blocks]
        if not blocks or any(stored is None or stored.pending for stored in found):
            return None
        for stored in found:
            assert stored is not None
            stored.pins += 1
        return self._submit(worker, True, tuple(blocks))

    def _submit(self, worker: int, reading: bool, blocks: tuple[int, ...]) -> Job:
        rules = self.rules
        size = len(blocks) * rules.block_bytes
        job = Job(self.next_id, worker, reading, blocks, self.clock, self.clock + rules.latency_ns, size)
        self.next_id += 1
        self.jobs[job.id] = job
        self.stats.of(reading).submitted_jobs += 1
        return job

    def cancel(self, id_: int, now: Nanoseconds) -> None:
        """Withdraw a job; what it was writing is gone."""
        self.advance(now)
        job = self.jobs.pop(id_)
        for block in job.blocks:
            key = self.key(job.worker, block)
            if job.reading:
                self.stored[key].pins -= 1
            else:
                self._remove(key)
        self.stats.of(job.reading).cancelled_jobs += 1

    def rates(self) -> dict[int, Fraction | None]:
        """Bytes per nanosecond of every moving job; None for unlimited."""
        moving = [job for job in self.jobs.values() if job.ready <= self.clock]
        of_worker: dict[tuple[int, bool], int] = {}
        of_all = {True: 0, False: 0}
        for job in moving:
            of_worker[job.worker, job.reading] = of_worker.get((job.worker, job.reading), 0) + 1
            of_all[job.reading] += 1
        rules = self.rules
        rates: dict[int, Fraction | None] = {}
        for job in moving:
            own = rules.read_rate if job.reading else rules.write_rate
            together = (rules.shared_read_rate if job.reading else rules.shared_write_rate) if rules.shared else None
            limits = []
            if own is not None:
                limits.append(own / of_worker[job.worker, job.reading])
            if together is not None:
                limits.append(together / of_all[job.reading])
            rates[job.id] = min(limits, default=None)
        return rates

    def events(self) -> dict[int, Nanoseconds]:
        """Per job, when something next happens to it by itself: its first byte, or its end at the present rates."""
        rates = self.rates()
        times: dict[int, Nanoseconds] = {}
        for id_, job in self.jobs.items():
            if id_ not in rates:
                times[id_] = job.ready
                continue
            moved = rates[id_]
            times[id_] = self.clock if moved is None else exact(self.clock + job.remaining / moved)
        return times

    def next_deadline(self, worker: int) -> Nanoseconds | None:
        """The next event of any job, or an end that ``worker`` has not been told yet."""
        times = list(self.events().values())
        times += [completion.at for completion in self.undelivered.get(worker, ())]
        return min(times, default=None)

    def advance(self, to: Nanoseconds) -> None:
        """Bring the registry to the time ``to``, if it is not there yet, event by event."""
        while self.jobs:
            times = self.events()
            instant = min(times.values())
            if instant > to:
                break
            moving = self.rates()
            ending = [job for id_, job in self.jobs.items() if id_ in moving and times[id_] <= instant]
            self._move(instant, moving)
            for job in ending:
                self._finish(job)
        if to > self.clock:
            self._move(to, self.rates())

    def _move(self, to: Nanoseconds, rates: dict[int, Fraction | None]) -> None:
        passed = to - self.clock
        if passed > 0:
            for id_, moved in rates.items():
                if moved is not None:
                    job = self.jobs[id_]
                    job.remaining = exact(job.remaining - moved * passed)
            self.clock = to

    def _finish(self, job: Job) -> None:
        del self.jobs[job.id]
        stats = self.stats.of(job.reading)
        stats.completed_jobs += 1
        stats.completed_bytes += len(job.blocks) * self.rules.block_bytes
        stats.transfer_ns += self.clock - job.submitted
        for block in sorted(job.blocks):
            key = self.key(job.worker, block)
            stored = self.stored[key]
            if job.reading:
                stored.pins -= 1
                self.stats.cross_worker_read_blocks += stored.writer != job.worker
            else:
                stored.pending = False
            self.stored.move_to_end(key)
        self.completions += 1
        self.undelivered.setdefault(job.worker, []).append(Completion(job.id, job.reading, job.blocks, self.clock))

    def take_completed(self, worker: int, now: Nanoseconds) -> list[Completion]:
        """Advance to ``now`` and hand over the jobs of ``worker`` that ended by then."""
        self.advance(now)
        waiting = self.undelivered.get(worker, [])
        taken = [completion for completion in waiting if completion.at <= now]
        left = [completion for completion in waiting if completion.at > now]
        if left:
            self.undelivered[worker] = left
        else:
            self.undelivered.pop(worker, None)
        return taken
