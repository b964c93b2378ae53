"""The KV events of single operations: rows T40 to T44 of the specification, and what is told of which page (1.3)."""

from __future__ import annotations

from model.events import Removed, Stored
from model.radix.lease import cache_prefix, extend, release
from model.radix.publisher import Publisher
from model.registry import NO_BLOCK, Registry
from tests.radix.driver import Parts, shapes, spec, text


def test_row_40_what_is_stored_is_not_announced_again() -> None:
    parts = Parts("1/100")
    parts.cache("a", [1, 2, 3])
    assert shapes(parts.events()) == ["Stored 3"]
    again = parts.request("b", [1, 2, 3])
    assert parts.allocate(again)
    assert again.cached == 3
    assert parts.events() == []


def test_row_41_a_page_is_removed_when_its_request_is_and_may_then_hold_another() -> None:
    parts = Parts("1/1")
    first = parts.request("a", [1])
    assert parts.allocate(first)
    (page,) = first.pages
    release(parts.core, parts.report, first)
    parts.forget(first)
    second = parts.request("b", [2])
    assert parts.allocate(second)
    assert second.pages == [page]
    stored, removed, other = parts.events()
    assert isinstance(stored, Stored)
    assert isinstance(removed, Removed)
    assert isinstance(other, Stored)
    assert stored.blocks == removed.blocks != other.blocks


def test_row_42_an_incomplete_page_is_not_announced() -> None:
    parts = Parts("4/4")
    parts.cache("a", 6)
    assert shapes(parts.events()) == ["Stored 1"]
    parts.cache("b", 3)
    assert parts.events() == []


def test_row_43_two_copies_are_stored_with_the_first_and_removed_with_the_last() -> None:
    parts = Parts("1/100")
    first, second = parts.request("a", [1, 2, 3]), parts.request("b", [1, 2, 3])
    assert parts.allocate(first)
    assert parts.allocate(second)
    assert set(first.pages).isdisjoint(second.pages)
    assert shapes(parts.events()) == ["Stored 3"]
    release(parts.core, parts.report, first)
    assert parts.events() == []
    release(parts.core, parts.report, second)
    assert shapes(parts.events()) == ["Removed 3"]


def test_row_44_a_longer_sequence_is_announced_behind_its_cached_part() -> None:
    parts = Parts("1/100")
    tokens = [1, 2, 3, 4, 5, 6]
    first = parts.request("a", tokens)
    assert parts.allocate(first, 3)
    cache_prefix(parts.core, parts.report, first)
    second = parts.request("b", tokens)
    assert parts.allocate(second)
    assert second.cached == 3
    head, tail = parts.events()
    assert isinstance(head, Stored)
    assert isinstance(tail, Stored)
    assert (head.parent, len(head.blocks)) == (NO_BLOCK, 3)
    assert (tail.parent, len(tail.blocks)) == (head.blocks[-1], 3)


def test_a_continuation_announces_the_pages_it_adds() -> None:
    parts = Parts("2/8")
    request = parts.request("a", 6)
    assert parts.allocate(request, 4)
    (head,) = parts.events()
    assert extend(parts.core, parts.report, request, 6)
    (tail,) = parts.events()
    assert isinstance(head, Stored)
    assert isinstance(tail, Stored)
    assert (tail.parent, len(tail.blocks)) == (head.blocks[-1], 1)


def test_an_evicted_page_is_removed() -> None:
    parts = Parts("1/3")
    parts.cache("a", [1, 2, 3])
    (stored,) = parts.events()
    parts.cache("b", [4])
    removed, other = parts.events()
    assert isinstance(stored, Stored)
    assert isinstance(removed, Removed)
    assert removed.blocks == stored.blocks[-1:]
    assert isinstance(other, Stored)


def test_a_duplicate_that_is_given_back_is_not_removed() -> None:
    parts = Parts("1/8")
    first, second = parts.request("a", [1, 2]), parts.request("b", [1, 2])
    for request in (first, second):
        assert parts.allocate(request)
    for request in (first, second):
        cache_prefix(parts.core, parts.report, request)
    assert first.pages == second.pages
    assert shapes(parts.events()) == ["Stored 2"]


def test_nothing_is_told_with_events_off_or_caching_off() -> None:
    for options in ({"kv_events": False}, {"prefix_caching": False}):
        parts = Parts("1/8", **options)
        parts.cache("a", [1, 2, 3])
        assert parts.core.publisher is None
        assert parts.events() == []


def test_a_page_behind_one_that_was_never_announced_counts_as_the_first_of_a_sequence() -> None:
    registry = Registry(2)
    publisher = Publisher(registry)
    number = registry.number(spec("a", text(("A", 6)), 2))
    event = publisher.stored(number, [7, 8, 9, 10], 1, 4)
    assert event is not None
    first, second, third = registry.chain(number, 4)[1:]
    assert event.parent == NO_BLOCK
    assert set(event.blocks).isdisjoint({first, second, third})
    assert event.blocks[0] == registry.identity(NO_BLOCK, text(("A", 4)).runs[2:])
    assert [registry.parent(block) for block in event.blocks[1:]] == list(event.blocks[:2])


def test_a_new_page_behind_one_that_is_new_is_told_also_if_its_identity_was_stored() -> None:
    registry = Registry(1)
    publisher = Publisher(registry)
    number = registry.number(spec("a", [1, 2]))
    first, second = registry.chain(number, 2)
    publisher.adopt([5], [second])
    event = publisher.stored(number, [3, 4], 0, 2)
    assert event == Stored(NO_BLOCK, (first, second))
    assert publisher.removed([5]) is None
    assert publisher.removed([3, 4]) == Removed((first, second))
