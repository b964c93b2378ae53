"""The page pool (SGLang specification 1.1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from model.radix.pool import PagePool


def test_all_pages_at_once_are_numbered_from_0() -> None:
    assert PagePool(4).allocate(4) == [0, 1, 2, 3]


def test_pages_freed_one_by_one_come_back_in_the_order_of_the_stack() -> None:
    for count, pages in ((2, [0, 1]), (1, [1])):
        pool = PagePool(2)
        pool.allocate(2)
        pool.free([0])
        pool.free([1])
        assert pool.allocate(count) == pages


def test_returned_pages_go_out_before_fresh_ones() -> None:
    pool = PagePool(5)
    pool.allocate(3)
    pool.free([2, 0])
    assert pool.allocate(3) == [2, 0, 3]
    assert pool.available == 1


def test_the_last_returned_pages_go_out_first() -> None:
    pool = PagePool(4)
    pool.allocate(4)
    pool.free([3, 1, 0])
    assert pool.allocate(2) == [1, 0]
    assert pool.allocate(1) == [3]


def test_too_large_a_wish_changes_nothing() -> None:
    pool = PagePool(3)
    pool.allocate(2)
    pool.free([0])
    assert pool.allocate(3) is None
    assert pool.available == 2
    assert pool.allocate(2) == [0, 2]


def test_no_page_is_a_wish_that_is_always_granted() -> None:
    pool = PagePool(1)
    pool.allocate(1)
    assert pool.allocate(0) == []
    pool.free([0])
    assert pool.allocate(0) == []
    assert pool.available == 1


@given(total=st.integers(1, 8), wishes=st.lists(st.integers(-3, 4), max_size=20))
def test_every_page_is_free_or_out_exactly_once(total: int, wishes: list[int]) -> None:
    pool = PagePool(total)
    out: list[list[int]] = []
    for wish in wishes:
        if wish < 0 and out:
            pool.free(out.pop(wish % len(out)))
        elif wish >= 0:
            pages = pool.allocate(wish)
            if pages is None:
                assert wish > pool.available
            else:
                assert len(pages) == wish
                out.append(pages)
        held = [page for pages in out for page in pages]
        free = [*pool.returned, *range(pool.next_fresh, total)]
        assert sorted([*held, *free]) == list(range(total))
        assert pool.available == len(free)
