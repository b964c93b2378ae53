"""The block pool by itself (vLLM specification 2.3): its six operations, and what holds between them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from model.paged.pool import BlockPool, Copy


def cached(pool: BlockPool, *identities: int) -> list[Copy]:
    """A request's blocks, all cached."""
    assert pool.reserve((), len(identities)) is not None
    copies = [pool.take() for _ in identities]
    for copy, identity in zip(copies, identities, strict=True):
        pool.cache(copy, identity)
    return copies


def counts(pool: BlockPool) -> tuple[int, int, int, int]:
    """Free, active, inactive and promised blocks."""
    return pool.free, pool.active, len(pool.inactive), pool.reserved


def order(pool: BlockPool) -> list[int]:
    """Identities in eviction order."""
    return [copy.identity for copy in pool.inactive]


def test_promised_blocks_are_active_before_they_are_taken() -> None:
    pool = BlockPool(3)
    assert pool.reserve((), 2) == []
    assert counts(pool) == (1, 2, 0, 2)
    pool.take()
    assert counts(pool) == (1, 2, 0, 1)
    pool.cancel((), 1)
    assert counts(pool) == (2, 1, 0, 0)


def test_a_refused_reservation_changes_nothing() -> None:
    pool = BlockPool(2)
    blocks = cached(pool, 1, 2)
    pool.release(blocks)
    before = (counts(pool), order(pool))
    assert pool.reserve((), 3) is None
    assert pool.reserve(blocks, 1) is None
    assert (counts(pool), order(pool)) == before
    assert [copy.pins for copy in blocks] == [0, 0]


def test_a_private_block_is_free_at_once_and_a_cached_one_only_when_evicted() -> None:
    pool = BlockPool(2)
    blocks = cached(pool, 1)
    pool.reserve((), 1)
    blocks.append(pool.take())
    pool.release(blocks)
    assert counts(pool) == (1, 0, 1, 0)
    assert pool.reserve((), 1) == []
    assert pool.reserve((), 1) == [1]
    assert pool.primary(1) is None


def test_the_deepest_block_of_a_released_request_is_evicted_first() -> None:
    pool = BlockPool(5)
    first, second = cached(pool, 1, 2), cached(pool, 3, 4, 5)
    pool.release(second)
    pool.release(first)
    assert order(pool) == [5, 4, 3, 2, 1]
    assert pool.reserve((), 2) == [5, 4]
    assert order(pool) == [3, 2, 1]


def test_the_prefix_of_a_cancelled_reservation_goes_back_leaf_first() -> None:
    pool = BlockPool(3)
    blocks = cached(pool, 1, 2)
    pool.release(blocks)
    assert pool.reserve(blocks, 1) == []
    assert counts(pool) == (0, 3, 0, 1)
    assert order(pool) == []
    pool.cancel(blocks, 1)
    assert counts(pool) == (1, 0, 2, 0)
    assert order(pool) == [2, 1]


def test_a_revived_block_leaves_the_eviction_order_and_comes_back_youngest() -> None:
    pool = BlockPool(3)
    one, two = cached(pool, 1), cached(pool, 2)
    pool.release(one)
    pool.release(two)
    pool.reserve(one, 0)
    pool.activate(one)
    assert (one[0].refs, one[0].pins) == (1, 0)
    assert order(pool) == [2]
    pool.release(one)
    assert order(pool) == [2, 1]


def test_a_pinned_block_stays_when_its_last_request_leaves() -> None:
    pool = BlockPool(1)
    block = cached(pool, 1)
    pool.reserve(block, 0)
    pool.release(block)
    assert order(pool) == []
    assert pool.reserve((), 1) is None
    pool.cancel(block, 0)
    assert order(pool) == [1]


def test_evicting_a_duplicate_tells_nothing_and_the_next_copy_becomes_primary() -> None:
    pool = BlockPool(2)
    primary, duplicate = cached(pool, 7), cached(pool, 7)
    assert pool.primary(7) is primary[0]
    pool.release(primary)
    assert pool.reserve((), 1) == []
    assert pool.primary(7) is duplicate[0]
    pool.cancel((), 1)
    pool.release(duplicate)
    assert pool.reserve((), 2) == [7]


def test_a_cached_identity_becomes_visible_once() -> None:
    pool = BlockPool(2)
    pool.reserve((), 2)
    assert pool.cache(pool.take(), 7)
    assert not pool.cache(pool.take(), 7)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(total=st.integers(1, 6), data=st.data())
def test_the_counts_always_add_up_and_only_free_cached_blocks_can_be_evicted(total: int, data: st.DataObject) -> None:
    pool = BlockPool(total)
    owners: list[list[Copy]] = []
    promised: list[tuple[list[Copy], int]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        visible = [copies[0] for copies in pool.index.values()]
        move = data.draw(st.sampled_from(["take", "promise", "use", "cancel", "release"]))
        if move == "take":
            size = data.draw(st.integers(1, 3))
            if pool.reserve((), size) is not None:
                blocks = [pool.take() for _ in range(size)]
                for block in blocks[: data.draw(st.integers(0, size))]:
                    pool.cache(block, data.draw(st.integers(1, 4)))
                owners.append(blocks)
        elif move == "promise":
            hits = data.draw(st.lists(st.sampled_from(visible), unique=True, max_size=3)) if visible else []
            fresh = data.draw(st.integers(0, 2))
            removed = pool.reserve(hits, fresh)
            assert (removed is None) == (fresh > total - _held(owners, promised, hits))
            if removed is not None:
                promised.append((hits, fresh))
        elif move == "use" and promised:
            hits, fresh = promised.pop(data.draw(st.integers(0, len(promised) - 1)))
            pool.activate(hits)
            owners.append(hits + [pool.take() for _ in range(fresh)])
        elif move == "cancel" and promised:
            pool.cancel(*promised.pop(data.draw(st.integers(0, len(promised) - 1))))
        elif move == "release" and owners:
            pool.release(owners.pop(data.draw(st.integers(0, len(owners) - 1))))
        _check(pool, owners, promised)


def _held(owners: Sequence[list[Copy]], promised: Sequence[tuple[list[Copy], int]], hits: Sequence[Copy]) -> int:
    """Blocks that cannot be had for fresh ones: held by requests, pinned or promised by reservations, or ``hits``."""
    blocks = {id(copy) for owner in owners for copy in owner} | {id(copy) for copy in hits}
    blocks |= {id(copy) for pinned, _ in promised for copy in pinned}
    return len(blocks) + sum(fresh for _, fresh in promised)


def _check(pool: BlockPool, owners: Sequence[list[Copy]], promised: Sequence[tuple[list[Copy], int]]) -> None:
    held = [copy for owner in owners for copy in owner]
    pinned = [copy for pins, _ in promised for copy in pins]
    indexed = [copy for copies in pool.index.values() for copy in copies]
    assert pool.free >= 0
    assert pool.reserved == sum(fresh for _, fresh in promised)
    assert pool.free + pool.active + len(pool.inactive) == pool.total
    assert pool.active == _held(owners, promised, ())
    for copy in {*held, *indexed}:
        if copy.identity:
            assert copy in pool.index[copy.identity]
            assert copy.refs == sum(1 for other in held if other is copy)
            assert copy.pins == sum(1 for other in pinned if other is copy)
            assert (copy in pool.inactive) == (not copy.refs and not copy.pins)
        else:
            assert copy not in pool.inactive
