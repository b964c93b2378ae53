"""Host memory: conformance rows B1 to B11 of the offload specification.

Rows on host memory shared between workers are not here: the model has host memory of one worker alone.
"""

from __future__ import annotations

import pytest

from model.tiers.host import EXTERNAL, STORE, HostTier, Refusal, Reservation, Transfer
from model.tiers.notes import CapacityRetry, Evicted, StorePrepared
from tests.tiers.fixtures import MS, host, ms, stored


def reserved(outcome: Reservation | Refusal) -> Reservation:
    assert isinstance(outcome, Reservation)
    return outcome


def loaded(tier: HostTier, *blocks: int, at: float = 0) -> Transfer:
    transfer = tier.schedule_load("r", blocks, int(at * MS), int(at * MS))
    assert transfer is not None
    return transfer


def test_b1_a_store_is_due_only_once_it_is_submitted() -> None:
    tier = host(2)
    first = reserved(tier.reserve(STORE, "r", [1, 2])).transfer
    assert first.id == 0
    assert first.blocks == (1, 2)
    assert tier.next_deadline() is None
    assert tier.reserve(STORE, "r", [1, 2]) is Refusal.PRESENT
    tier.submit_prepared(8 * MS)
    assert ms(tier.next_deadline()) == 10.0
    assert tier.tick(9 * MS) == []
    assert [transfer.blocks for transfer in tier.tick(10 * MS)] == [(1, 2)]
    assert tier.is_resident(1)
    assert tier.is_resident(2)


def test_b2_the_blocks_of_a_store_are_equally_young_and_touching_pending_ones_does_nothing() -> None:
    tier = host(2)
    reserved(tier.reserve(STORE, "r", [2, 1]))
    tier.touch(1)
    tier.submit_prepared(0)
    tier.tick(2 * MS)
    assert reserved(tier.reserve(STORE, "r", [3])).victims == (1,)


def test_b3_cohorts_are_evicted_oldest_first() -> None:
    tier = host(3)
    stored(tier, [1, 2], [3])
    assert reserved(tier.reserve(STORE, "r", [4])).victims == (1,)
    assert reserved(tier.reserve(STORE, "r", [5])).victims == (2,)


def test_b4_a_store_protects_what_it_finds_present() -> None:
    tier = host(2)
    stored(tier, [1, 2])
    tier.touch(1)
    found = reserved(tier.reserve(STORE, "r", [1, 3]))
    assert found.transfer.blocks == (3,)
    assert found.victims == (2,)
    assert tier.is_resident(1)


def test_b5_a_cohort_larger_than_host_memory_is_refused_and_uses_no_id() -> None:
    tier = host(1)
    for cohort in ([1, 2], [3, 4]):
        assert tier.reserve(STORE, "r", cohort) is Refusal.RETRY
    assert [told for _, told in tier.journal] == [
        CapacityRetry("r", (1, 2), True, "store"),
        CapacityRetry("r", (3, 4), True, "store"),
    ]
    assert tier.entries == {}
    assert reserved(tier.reserve(STORE, "r", [1])).transfer.id == 0


def test_b6_a_block_under_a_load_is_not_evicted() -> None:
    tier = host(2)
    stored(tier, [1, 2])
    loaded(tier, 1)
    assert reserved(tier.reserve(STORE, "r", [3])).victims == (2,)


def test_b7_blocks_of_a_cancelled_load_become_the_youngest_together() -> None:
    tier = host(3)
    stored(tier, [1, 2], [3])
    tier.cancel_load(loaded(tier, 1, 2).id)
    assert list(tier.order) == [3, 1, 2]
    assert reserved(tier.reserve(STORE, "r", [4])).victims == (3,)


def test_b8_the_lanes_are_independent_and_each_is_first_in_first_out() -> None:
    tier = host(4)
    stored(tier, [1], [2])
    stores = [reserved(tier.reserve(STORE, "r", [block])).transfer for block in (3, 4)]
    tier.submit_prepared(5 * MS)
    loads = [loaded(tier, block, at=5) for block in (1, 2)]
    assert [ms(transfer.due) for transfer in stores] == [6.0, 7.0]
    assert [ms(transfer.due) for transfer in loads] == [6.0, 7.0]


def test_b9_a_cancelled_load_keeps_its_place_on_the_lane() -> None:
    tier = host(2)
    stored(tier, [1], [2])
    first, second = loaded(tier, 1), loaded(tier, 2)
    tier.cancel_load(first.id)
    assert ms(second.due) == 2.0
    assert ms(tier.next_deadline()) == 2.0
    assert list(tier.transfers) == [second.id]


def test_b10_a_promotion_tells_only_what_it_evicts_and_what_it_could_not() -> None:
    tier = host(1)
    stored(tier, [1])
    tier.journal.clear()
    reserved(tier.reserve(EXTERNAL, "r", [2]))
    assert tier.reserve(EXTERNAL, "r", [2]) is Refusal.PRESENT
    assert tier.reserve(EXTERNAL, "r", [3]) is Refusal.RETRY
    assert tier.reserve(EXTERNAL, "r", [3, 4]) is Refusal.RETRY
    assert [told for _, told in tier.journal] == [
        Evicted(1, "promotion", "r"),
        CapacityRetry("r", (3,), False, "promotion"),
        CapacityRetry("r", (3, 4), True, "promotion"),
    ]
    assert tier.prepared == []


def test_b11_the_order_of_a_loads_blocks_changes_nothing() -> None:
    seen = []
    for blocks in ((1, 2), (2, 1)):
        tier = host(3)
        stored(tier, [1, 2], [3])
        due = loaded(tier, *blocks).due
        pins = [tier.entries[block].pins for block in (1, 2)]
        tier.tick(2 * MS)
        seen.append((due, pins, list(tier.order)))
    assert seen[0] == seen[1] == (2 * MS, [1, 1], [3, 1, 2])


def test_a_store_and_a_load_due_together_end_store_first() -> None:
    tier = host(2)
    stored(tier, [1])
    loaded(tier, 1)
    reserved(tier.reserve(STORE, "r", [2]))
    tier.submit_prepared(0)
    assert [transfer.kind for transfer in tier.tick(1 * MS)] == ["store", "load"]


def test_a_first_byte_does_not_occupy_the_lane() -> None:
    tier = host(2, host_latency_ms=5)
    stored(tier, [1], [2])
    assert ms(loaded(tier, 1).due) == 6.0
    assert ms(loaded(tier, 2, at=0.5).due) == 7.0


@pytest.mark.parametrize("blocks", [(), (1, 1), (1, 9), (1, 2, 3)])
def test_a_load_needs_resident_blocks_named_once(blocks: tuple[int, ...]) -> None:
    tier = host(3)
    stored(tier, [1], [2])
    reserved(tier.reserve(STORE, "r", [3]))
    assert tier.schedule_load("r", blocks, 0, 0) is None
    assert all(not entry.pins for entry in tier.entries.values())


def test_rolling_a_promotion_back_leaves_everything_else() -> None:
    """Row A7."""
    tier = host(4)
    stored(tier, [9])
    foreign = reserved(tier.reserve(EXTERNAL, "other", [3])).transfer
    own = [reserved(tier.reserve(EXTERNAL, "r", [block])).transfer for block in (1, 2)]
    for transfer in own:
        tier.roll_back(transfer.id)
    assert set(tier.entries) == {9, 3}
    assert tier.is_resident(9)
    assert not tier.is_resident(3)
    tier.complete_external(foreign.id)
    assert tier.is_resident(3)


def test_feasibility_is_asked_without_touching_and_reservation_evicts_the_oldest_outside() -> None:
    """Row A5."""
    a, x, b = 1, 9, 2
    tier = host(2)
    stored(tier, [a], [x])
    tier.pin([x])
    assert not tier.can_place([a, b])
    tier.unpin([x])
    for _ in range(3):
        assert tier.can_place([a, b])
    assert list(tier.order) == [a, x]
    assert reserved(tier.reserve(EXTERNAL, "r", [b])).victims == (a,)
    assert tier.is_resident(x)


def test_a_store_needs_no_note_but_its_own() -> None:
    tier = host(2)
    reserved(tier.reserve(STORE, "r", [1]))
    assert [told for _, told in tier.journal] == [StorePrepared("r", (1,))]
