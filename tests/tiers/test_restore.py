"""Staging between disk and host memory: conformance rows A1 to A11 of the offload specification.

The rows are those of upstream's tests, so they hold with its variant of the defect. Where the right rule differs (it evicts no
block of the own prefix, and waits instead) its outcome stands beside. A5 and A7 are about host memory alone (``test_host``).
"""

from __future__ import annotations

import pytest
from attrs import define

from model.tiers.core import Offload
from model.tiers.disk import Disk, Probe
from model.tiers.host import STORE, Refusal, Reservation
from model.tiers.restore import deliver, stage, write_through
from model.tiers.rules import TierRules
from tests.tiers.fixtures import MS, configuration, ms, stored

A, B, C, X, MISSING = 1, 2, 3, 9, 8
OTHER, OWN = 0, 1
"""Workers: one that has written the disk, and the one under test."""

UPSTREAM = "restore-thrash:bounded-rounds"
RIGHT = ""


@define
class Bench:
    """Tiers of one worker on a disk shared with another."""

    offload: Offload
    disk: Disk
    now: int = 0

    def stage(self, *keys: int, owner: str = "r1") -> bool:
        """Stage ``keys`` for a request."""
        return stage(self.offload, self.disk, owner, keys, self.now * MS)

    def advance(self, to: int) -> bool:
        """Go on to ``to`` milliseconds; whether anything ended."""
        self.now = to
        return deliver(self.offload, self.disk, to * MS)[0]

    def hit(self, *keys: int) -> bool:
        """All ``keys`` are resident in host memory."""
        return all(self.offload.host.is_resident(key) for key in keys)

    def pending(self, *keys: int) -> bool:
        """All ``keys`` have a place in host memory and are not there yet."""
        return all(key in self.offload.host.entries and not self.hit(key) for key in keys)

    def store(self, key: int) -> Reservation | Refusal:
        """Offer one block to host memory."""
        return self.offload.host.reserve(STORE, "r", [key])

    @property
    def reads(self) -> int:
        """Read jobs so far."""
        return self.disk.stats.read.submitted_jobs


def bench(host_blocks: int, on_disk: tuple[int, ...] = (), *, rule: str = UPSTREAM, read: float = 1) -> Bench:
    """Tiers in which ``on_disk`` has just been written by the other worker, one block a millisecond."""
    config = configuration(
        host_blocks,
        defects=(rule,) if rule else (),
        d2h_gbps=0,
        h2d_gbps=0,
        disk_blocks=8,
        disk_scope="cluster_shared",
        disk_latency_ms=0,
        disk_read_gbps=read,
        disk_write_gbps=1,
        disk_shared_read_gbps=read,
        disk_shared_write_gbps=1,
    )
    rules = TierRules.of(config)
    assert rules.disk is not None
    shared = Disk(rules.disk)
    made = Bench(Offload(rules, shared, OWN), shared, len(on_disk))
    if on_disk:
        shared.write(OTHER, on_disk, 0)
        shared.take_completed(OTHER, made.now * MS)
        made.advance(made.now)
    return made


def test_a1_a_pin_in_the_way_is_retried_and_a_pending_block_is_read_once() -> None:
    tiers = bench(2, (A, B))
    stored(tiers.offload.host, [X])
    tiers.offload.host.pin([X])
    assert tiers.stage(A, B)
    assert tiers.pending(A)
    assert not tiers.hit(B)
    assert not tiers.pending(B)
    assert tiers.stage(A, B, owner="r2")
    assert tiers.reads == 1
    assert not tiers.offload.detach("r2")
    assert tiers.offload.detach("r1")
    tiers.advance(3)
    assert tiers.hit(A)
    assert tiers.disk.stats.read.completed_bytes == 1_000_000
    assert tiers.stage(A, B)
    tiers.advance(4)
    assert not tiers.hit(A)
    assert tiers.hit(B)
    tiers.offload.host.unpin([X])
    assert tiers.stage(A, B)
    tiers.advance(6)
    assert tiers.hit(A, B)
    assert X not in tiers.offload.host.entries
    assert tiers.disk.stats.read.completed_bytes == 4_000_000


def test_a1_the_right_rule_waits_for_the_pin_and_reads_once() -> None:
    tiers = bench(2, (A, B), rule=RIGHT)
    stored(tiers.offload.host, [X])
    tiers.offload.host.pin([X])
    for _ in range(3):
        assert tiers.stage(A, B)
        assert tiers.stage(A, B, owner="r2")
        tiers.now += 1
    assert tiers.reads == 0
    tiers.offload.host.unpin([X])
    assert tiers.stage(A, B)
    assert tiers.pending(A, B)
    tiers.advance(7)
    assert tiers.hit(A, B)
    assert tiers.disk.stats.read.completed_bytes == 2_000_000


@pytest.mark.parametrize("rule", [UPSTREAM, RIGHT])
def test_a2_a_pending_block_does_not_keep_more_from_being_promoted(rule: str) -> None:
    tiers = bench(3, (A, B, C), rule=rule)
    assert tiers.stage(A)
    assert tiers.stage(A, B, C)
    assert [job.blocks for job in tiers.disk.jobs.values()] == [(A,), (B, C)]
    assert len(tiers.offload.stages) == 2
    assert tiers.offload.detach("r1")
    tiers.advance(6)
    assert tiers.hit(A, B, C)
    assert tiers.disk.stats.read.completed_bytes == 3_000_000


@pytest.mark.parametrize("loading", [False, True])
def test_a3_a_hit_may_be_evicted_but_not_one_under_a_load(loading: bool) -> None:
    tiers = bench(2, (B,))
    stored(tiers.offload.host, [X], [A])
    tiers.offload.host.pin([X])
    if loading:
        tiers.offload.host.pin([A])
    assert tiers.stage(A, B) is not loading
    assert tiers.hit(A) is loading
    if loading:
        tiers.offload.host.unpin([A])
        assert tiers.stage(A, B)


@pytest.mark.parametrize("loading", [False, True])
def test_a3_the_right_rule_keeps_the_hit_and_waits(loading: bool) -> None:
    tiers = bench(2, (B,), rule=RIGHT)
    stored(tiers.offload.host, [X], [A])
    tiers.offload.host.pin([X])
    if loading:
        tiers.offload.host.pin([A])
    assert tiers.stage(A, B)
    assert tiers.hit(A)
    assert tiers.reads == 0
    tiers.offload.host.unpin([X])
    assert tiers.stage(A, B)
    assert tiers.pending(B)
    assert tiers.hit(A)


def test_a4_promotion_in_no_time_stops_within_the_instant_and_resumes_in_it() -> None:
    tiers = bench(2, (A, B), read=0)
    stored(tiers.offload.host, [X])
    tiers.offload.host.pin([X])
    assert tiers.stage(A, B)
    tiers.advance(2)
    assert tiers.stage(A, B)
    tiers.advance(2)
    assert not tiers.stage(A, B)
    assert not tiers.hit(A)
    assert tiers.reads == 2
    tiers.offload.host.unpin([X])
    assert tiers.stage(A, B)
    tiers.advance(2)
    assert not tiers.stage(A, B)
    assert tiers.hit(A, B)


def test_a4_the_right_rule_promotes_once_room_is_there_at_the_same_instant() -> None:
    tiers = bench(2, (A, B), rule=RIGHT, read=0)
    stored(tiers.offload.host, [X])
    tiers.offload.host.pin([X])
    for _ in range(3):
        assert tiers.stage(A, B)
        tiers.advance(2)
    assert tiers.reads == 0
    tiers.offload.host.unpin([X])
    assert tiers.stage(A, B)
    tiers.advance(2)
    assert not tiers.stage(A, B)
    assert tiers.hit(A, B)
    assert tiers.reads == 1


@pytest.mark.parametrize("rule", [UPSTREAM, RIGHT])
def test_a6_a_tail_that_is_nowhere_does_not_stand_in_the_way_of_the_head(rule: str) -> None:
    tiers = bench(1, (A,), rule=rule)
    assert tiers.stage(A, MISSING)
    tiers.advance(2)
    assert not tiers.stage(A, MISSING)
    assert tiers.hit(A)
    load = tiers.offload.host.schedule_load("r1", [A], 2 * MS, 2 * MS)
    assert load is not None
    assert tiers.store(MISSING) is Refusal.RETRY
    assert tiers.reads == 1


@pytest.mark.parametrize("rule", [UPSTREAM, RIGHT])
def test_a8_a_store_may_evict_a_hit_but_not_a_promotion_and_that_survives_its_owner(rule: str) -> None:
    tiers = bench(2, (B,), rule=rule)
    stored(tiers.offload.host, [A])
    assert tiers.stage(A, B)
    outcome = tiers.store(C)
    assert isinstance(outcome, Reservation)
    assert outcome.victims == (A,)
    assert tiers.pending(B)
    tiers.offload.detach("r1")
    assert tiers.pending(B)
    tiers.advance(50)
    assert tiers.hit(B)
    assert tiers.disk.stats.read.cancelled_jobs == 0


def test_a9_a_block_being_written_to_disk_is_not_evicted() -> None:
    tiers = bench(1)
    stored(tiers.offload.host, [A])
    write_through(tiers.offload, tiers.disk, [A], 0)
    assert tiers.store(B) is Refusal.RETRY
    assert tiers.advance(1)
    assert isinstance(tiers.store(B), Reservation)


@pytest.mark.parametrize("rule", [UPSTREAM, RIGHT])
@pytest.mark.parametrize("drained", [False, True])
def test_a10_another_workers_write_is_waited_for_and_its_end_is_seen(rule: str, drained: bool) -> None:
    tiers = bench(2, rule=rule)
    tiers.disk.write(OTHER, [A], 0)
    assert tiers.stage(A)
    assert not tiers.offload.stages
    assert ms(tiers.offload.next_deadline()) == 1.0
    if drained:
        tiers.disk.take_completed(OTHER, 1 * MS)
        assert ms(tiers.offload.next_deadline()) == 1.0
    assert tiers.advance(1)
    assert tiers.offload.next_deadline() is None
    assert tiers.disk.probe(OWN, A) is Probe.RESIDENT


@pytest.mark.parametrize("rule", [UPSTREAM, RIGHT])
def test_a11_a_peer_that_is_ahead_changes_no_time_of_a_read(rule: str) -> None:
    tiers = bench(2, rule=rule)
    tiers.disk.write(OTHER, [A], 0)
    tiers.disk.advance(1 * MS)
    tiers.now = 1
    assert tiers.stage(A)
    tiers.disk.advance(50 * MS)
    assert tiers.advance(1)
    assert tiers.pending(A)
    assert tiers.advance(2)
    assert tiers.hit(A)
