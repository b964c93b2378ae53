"""The disk tier: conformance rows C1 to C12 of the offload specification, and bandwidth sharing."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.actions import Nanoseconds
from model.tiers.disk import Disk, Job, Probe
from tests.tiers.fixtures import MS, disk, ms


def written(tier: Disk, worker: int, *blocks: int) -> None:
    """Have blocks on disk, written before the clock moves on."""
    tier.preload(worker, blocks)


def accepted(job: Job | None) -> Job:
    assert job is not None
    return job


def ends(tier: Disk, worker: int, until: int) -> dict[int, float | None]:
    """Milliseconds at which jobs of a worker end, by job."""
    return {done.job: ms(done.at) for done in tier.take_completed(worker, until * MS)}


def test_c1_a_job_that_waits_for_its_first_byte_takes_no_bandwidth() -> None:
    tier = disk()
    accepted(tier.write(0, [1], 0))
    late = accepted(tier.write(0, [2], 0))
    late.ready = 1 * MS
    assert ends(tier, 0, 1) == {0: 1.0}
    assert ms(tier.next_deadline(0)) == 2.0
    assert ends(tier, 0, 2) == {1: 2.0}
    assert ms(tier.stats.write.transfer_ns) == 3.0


@pytest.mark.parametrize(
    ("scope", "worker", "shared", "took"),
    [
        ("cluster_shared", 10, 80, 2.0),
        ("worker_local", 10, 80, 1.0),
        ("cluster_shared", 10, 0, 1.0),
        ("worker_local", 10, 0, 1.0),
        ("cluster_shared", 0, 80, 2.0),
        ("worker_local", 0, 80, 0.0),
        ("cluster_shared", 0, 0, 0.0),
        ("worker_local", 0, 0, 0.0),
    ],
)
def test_c2_sixteen_workers_share_what_the_scope_says(scope: str, worker: float, shared: float, took: float) -> None:
    tier = disk(1024, write=worker, disk_scope=scope, disk_shared_write_gbps=shared, kv_bytes_per_token=2_500_000)
    for number in range(16):
        accepted(tier.write(number, [number + 1], 0))
    tier.advance(100 * MS)
    found = {ms(done.at) for number in range(16) for done in tier.take_completed(number, 100 * MS)}
    assert found == {took}
    assert tier.stats.write.completed_bytes == 160_000_000


@pytest.mark.parametrize(
    ("workers", "worker_gbps", "shared_gbps", "end"), [((0, 1), 1, 0, 1.0), ((0, 0), 1, 0, 2.0), ((0, 1), 0, 1, 2.0)]
)
def test_c3_two_writes_share_a_worker_or_the_disk(
    workers: tuple[int, int], worker_gbps: float, shared_gbps: float, end: float
) -> None:
    tier = disk(write=worker_gbps, disk_scope="cluster_shared", disk_shared_write_gbps=shared_gbps)
    for block, worker in enumerate(workers, start=1):
        accepted(tier.write(worker, [block], 0))
    tier.advance(10 * MS)
    assert [ms(done.at) for worker in set(workers) for done in tier.take_completed(worker, 10 * MS)] == [end, end]
    assert ms(tier.stats.write.transfer_ns) == 2 * end


def test_c4_reads_and_writes_do_not_share() -> None:
    tier = disk(latency=2)
    accepted(tier.write(0, [1], 0))
    assert ends(tier, 0, 3) == {0: 3.0}
    accepted(tier.read(0, [1], 3 * MS))
    accepted(tier.write(0, [2], 3 * MS))
    assert ends(tier, 0, 6) == {1: 6.0, 2: 6.0}
    assert ms(tier.stats.read.transfer_ns) == 3.0
    assert ms(tier.stats.write.transfer_ns) == 6.0


def test_c5_overlapping_writes_slow_each_other_from_the_second_first_byte_on() -> None:
    tier = disk(latency=2)
    accepted(tier.write(0, [1], 0))
    accepted(tier.write(0, [2], MS // 2))
    assert ends(tier, 0, 10) == {0: 3.5, 1: 4.0}


def test_c6_a_block_that_is_read_is_not_evicted() -> None:
    tier = disk(1, read=0.001, write=0)
    written(tier, 0, 1)
    reading = accepted(tier.read(0, [1], 0))
    assert tier.write(0, [2], 1 * MS) is None
    tier.cancel(reading.id, 10 * MS)
    accepted(tier.write(0, [2], 10 * MS))
    assert tier.stats.evictions == 1
    assert tier.stats.read.cancelled_jobs == 1


@pytest.mark.parametrize(("scope", "resident", "evictions"), [("worker_local", 6, 0), ("cluster_shared", 3, 3)])
def test_c7_capacity_is_of_a_worker_or_of_all(scope: str, resident: int, evictions: int) -> None:
    tier = disk(3, write=0, disk_scope=scope)
    for worker, blocks in ((0, [1]), (0, [2, 3]), (1, [4, 5, 6])):
        accepted(tier.write(worker, blocks, 0))
        tier.advance(0)
    assert sum(1 for stored in tier.stored.values() if not stored.pending) == resident
    assert tier.stats.evictions == evictions


def test_c8_a_write_keeps_the_leading_blocks_that_fit() -> None:
    tier = disk(2, write=0.001, kv_bytes_per_token=250)
    accepted(tier.write(0, [3, 1, 2], 0))
    (done,) = tier.take_completed(0, 10 * MS)
    assert done.blocks == (3, 1)
    assert ms(done.at) == 2.0
    assert tier.stats.write.completed_bytes == 2_000


def test_c9_a_write_evicts_nothing_read_written_or_its_own() -> None:
    tier = disk(4, read=0.001, write=0.001)
    written(tier, 0, 1, 2, 9)
    accepted(tier.read(0, [2], 0))
    accepted(tier.write(0, [3], 0))
    assert accepted(tier.write(0, [1, 4, 5], 0)).blocks == (4,)
    assert not tier.contains(0, 9)
    assert tier.stats.evictions == 1


def test_c10_cancelling_leaves_other_jobs_their_times_and_a_late_worker_submits_at_the_clock() -> None:
    tier = disk(latency=100, write=0)
    first = accepted(tier.write(0, [1], 0))
    second = accepted(tier.write(0, [2], 10 * MS))
    tier.advance(50 * MS)
    tier.cancel(first.id, 50 * MS)
    assert not tier.contains(0, 1)
    assert ends(tier, 0, 150) == {second.id: 110.0}
    assert ms(tier.stats.write.transfer_ns) == 100.0
    late = accepted(tier.write(0, [3], 10 * MS))
    assert ends(tier, 0, 1000) == {late.id: 250.0}


def test_c11_a_job_ends_exactly_at_its_deadline() -> None:
    tier = disk(write=10, kv_bytes_per_token=1024)
    accepted(tier.write(0, [1], 10_000 * MS))
    due = tier.next_deadline(0)
    assert due == 10_000 * MS + Fraction(4096, 10)
    assert [done.at for done in tier.take_completed(0, due)] == [due]
    assert tier.next_deadline(0) is None


def test_c12_a_block_is_written_once_and_its_first_writer_stays() -> None:
    tier = disk(read=0, write=0, disk_scope="cluster_shared")
    assert tier.probe(1, 1) is Probe.MISS
    accepted(tier.write(0, [1], 0))
    tier.advance(0)
    assert tier.write(1, [1], 0) is None
    for worker in (0, 1, 1):
        assert tier.probe(worker, 1) is Probe.RESIDENT
    accepted(tier.read(1, [1], 0))
    tier.advance(0)
    assert (tier.stats.lookup_probes, tier.stats.lookup_hits) == (4, 3)
    assert tier.stats.cross_worker_read_blocks == 1


def test_a_pending_block_is_no_hit_and_cannot_be_read() -> None:
    tier = disk()
    accepted(tier.write(0, [1], 0))
    assert tier.probe(0, 1) is Probe.PENDING
    assert tier.read(0, [1], 0) is None
    assert tier.stats.lookup_pending == 1


def test_another_workers_end_stays_undelivered_and_is_seen_in_the_count() -> None:
    tier = disk(disk_scope="cluster_shared")
    accepted(tier.write(0, [1], 0))
    assert tier.take_completed(1, 5 * MS) == []
    assert tier.completions == 1
    assert ms(tier.next_deadline(0)) == 1.0
    assert ends(tier, 0, 5) == {0: 1.0}


Submission = tuple[int, bool, int, int]
"""Worker, reading, blocks, milliseconds since the one before."""

submissions = st.lists(
    st.tuples(st.integers(0, 1), st.booleans(), st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=6
)
gaps = st.lists(st.fractions(0, 3, max_denominator=7), max_size=12)


def run(plan: list[Submission], pauses: list[Fraction]) -> tuple[dict[int, Nanoseconds], Disk]:
    """Submit a plan, stopping also at ``pauses`` on the way, and give the end of each job."""
    tier = disk(
        1000,
        latency=1,
        read=2,
        write=0.75,
        disk_scope="cluster_shared",
        disk_shared_read_gbps=3,
        disk_shared_write_gbps=1,
    )
    written(tier, 0, *range(1000, 1010))
    now: Fraction | int = 0
    stops = list(pauses)
    ended: dict[int, Nanoseconds] = {}
    block = 1
    for worker, reading, count, gap in plan:
        target = now + gap * MS
        while stops and now + stops[0] * MS < target:
            now += stops.pop(0) * MS
            tier.advance(now)
        now = target
        if reading:
            tier.read(worker, range(1000, 1000 + count), now)
        else:
            tier.write(worker, range(block, block + count), now)
            block += count
    for worker in (1, 0):
        for done in tier.take_completed(worker, 10**12):
            ended[done.job] = done.at
    return ended, tier


@given(submissions, gaps)
def test_ends_do_not_depend_on_how_the_clock_is_advanced(plan: list[Submission], pauses: list[Fraction]) -> None:
    straight, _ = run(plan, [])
    broken, tier = run(plan, pauses)
    assert broken == straight
    assert len(broken) == len(plan)
    assert tier.next_deadline(0) is None


@given(submissions)
def test_moving_jobs_stay_within_every_cap_and_no_job_is_faster_than_it(plan: list[Submission]) -> None:
    ended, _ = run(plan, [])
    starts = []
    now = 0
    for _, reading, count, gap in plan:
        now += gap * MS
        starts.append((now, reading, count))
    for job, (start, reading, count) in enumerate(starts):
        took = ended[job] - start - MS
        assert took >= count * MS / (2 if reading else Fraction(3, 4))
