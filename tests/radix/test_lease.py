"""What a request holds of the cache, without a scheduler: rows T33 to T39 and T45 to T47 of the specification, and 2.1 to 2.3."""

from __future__ import annotations

from model.radix.lease import cache_prefix, extend, release
from tests.radix.audit import audit
from tests.radix.driver import Parts, text


def test_row_33_pages_follow_the_tokens() -> None:
    parts = Parts("16/4")
    request = parts.request("a", 49)
    assert parts.allocate(request, 33)
    seen = [(len(request.pages), parts.available)]
    for end in (48, 49):
        assert extend(parts.core, parts.report, request, end)
        seen.append((len(request.pages), parts.available))
    assert seen == [(3, 16), (3, 16), (4, 0)]


def test_row_34_a_released_request_gives_everything_back() -> None:
    parts = Parts("4/3")
    request = parts.request("a", 5)
    assert parts.allocate(request, 1)
    seen = [parts.available]
    for end in (4, 5):
        assert extend(parts.core, parts.report, request, end)
        seen.append(parts.available)
    release(parts.core, parts.report, request)
    assert [*seen, parts.available] == [8, 8, 4, 12]
    assert (request.computed, request.pages) == (0, [])


def test_row_35_an_extension_that_finds_no_page_changes_nothing() -> None:
    parts = Parts("4/2")
    first, second = parts.request("a", 5), parts.request("b", 1)
    assert parts.allocate(first, 1)
    assert parts.allocate(second)
    pages = list(first.pages)
    assert not extend(parts.core, parts.report, first, 5)
    assert (first.pages, first.computed, parts.available) == (pages, 1, 0)


def test_row_36_a_prefix_is_kept_and_one_page_of_another_goes() -> None:
    parts = Parts("4/3")
    parts.cache("a", text(("A", 4)))
    parts.cache("b", text(("B", 8)))
    keys = parts.engine.registry.chain(1, 2)
    parts.core.tree.match(keys, 2)
    request = parts.request("c", text(("A", 8)))
    assert parts.allocate(request)
    assert request.cached == 4
    assert parts.matches(text(("B", 8))) == 4
    assert parts.available == 0


def test_row_37_whole_pages_of_a_finished_request_stay() -> None:
    parts = Parts("4/3")
    request = parts.request("a", text(("A", 5)))
    assert parts.allocate(request)
    assert parts.available == 4
    parts.finish(request)
    assert parts.available == 8
    assert parts.matches(text(("A", 5))) == 4
    assert [len(node.keys) for node in parts.core.tree.nodes.values()] == [1]


def test_row_38_a_released_request_leaves_what_is_cached() -> None:
    parts = Parts("4/4")
    request = parts.request("a", text(("A", 6)))
    assert parts.allocate(request, 4)
    cache_prefix(parts.core, parts.report, request)
    assert extend(parts.core, parts.report, request, 6)
    release(parts.core, parts.report, request)
    assert (parts.available, parts.protected, parts.evictable) == (12, 0, 4)
    assert parts.matches(text(("A", 6))) == 4


def test_row_39_nodes_while_two_requests_part() -> None:
    parts = Parts("4/4")
    first, second = parts.request("a", text(("A", 8))), parts.request("b", text(("A", 4), ("B", 4)))
    nodes = parts.core.tree.nodes
    assert parts.allocate(first, 4)
    cache_prefix(parts.core, parts.report, first)
    node = first.node
    assert extend(parts.core, parts.report, first, 8)
    cache_prefix(parts.core, parts.report, first)
    assert first.node is node
    # The specification counts the root too.
    assert len(nodes) + 1 == 2
    assert parts.allocate(second)
    assert len(nodes) + 1 == 3
    cache_prefix(parts.core, parts.report, second)
    assert len(nodes) + 1 == 4
    audit(parts.core)
    parts.finish(first)
    release(parts.core, parts.report, second)
    assert (parts.protected, parts.evictable) == (0, 12)
    parts.core.pool.free(parts.core.tree.evict(3))
    assert parts.available == 16
    assert len(nodes) + 1 == 1


def test_row_45_a_full_pool_refuses() -> None:
    parts = Parts("1/3")
    first, second = parts.request("a", 3), parts.request("b", 3)
    assert parts.allocate(first)
    assert not parts.allocate(second)
    assert second.pages == []
    audit(parts.core)


def test_row_46_the_last_token_of_a_cached_prompt_is_computed_again() -> None:
    parts = Parts("1/64")
    parts.cache("a", range(5))
    before = parts.available
    request = parts.request("b", range(5), output=1)
    assert parts.allocate(request)
    assert (request.cached, len(request.pages)) == (4, 5)
    assert parts.available == before - 1


def test_row_47_a_continuation_is_not_matched_again() -> None:
    parts = Parts("1/64")
    parts.cache("a", range(1, 9))
    before = parts.available
    request = parts.request("b", range(1, 11))
    assert parts.allocate(request, 4)
    assert request.cached == 4
    cache_prefix(parts.core, parts.report, request)
    assert extend(parts.core, parts.report, request, 10)
    assert request.cached == 4
    assert parts.available == before - 6


def test_caching_a_page_that_the_tree_has_gives_the_own_one_back() -> None:
    parts = Parts("2/8")
    requests = [parts.request(id_, text(("A", 5))) for id_ in "ab"]
    for request in requests:
        assert parts.allocate(request)
    assert parts.available == 4
    for request in requests:
        cache_prefix(parts.core, parts.report, request)
    assert parts.available == 8
    assert requests[0].pages[:2] == requests[1].pages[:2]
    assert requests[0].pages[2] != requests[1].pages[2]
    audit(parts.core)


def test_caching_is_idempotent_and_waits_for_a_whole_page() -> None:
    parts = Parts("4/4")
    request = parts.request("a", 6)
    assert parts.allocate(request, 3)
    cache_prefix(parts.core, parts.report, request)
    assert (request.cached, parts.core.tree.stored) == (0, 0)
    assert extend(parts.core, parts.report, request, 6)
    for _ in range(2):
        cache_prefix(parts.core, parts.report, request)
        assert (request.cached, parts.core.tree.stored) == (4, 1)
    assert request.node.locks == 1


def test_with_caching_off_nothing_stays() -> None:
    parts = Parts("4/4", prefix_caching=False)
    request = parts.request("a", 8)
    assert parts.allocate(request)
    cache_prefix(parts.core, parts.report, request)
    assert request.cached == 0
    parts.finish(request)
    assert parts.available == 16
    assert not parts.core.tree.nodes


def test_an_allocation_that_finds_no_page_leaves_its_split_behind() -> None:
    parts = Parts("1/4")
    parts.cache("a", text(("A", 3)))
    held = parts.request("b", text(("A", 3), ("B", 1)))
    assert parts.allocate(held)
    other = parts.request("c", text(("A", 2), ("C", 2)))
    assert not parts.allocate(other)
    assert sorted(len(node.keys) for node in parts.core.tree.nodes.values()) == [1, 2]
    assert other.pages == []
    audit(parts.core)


def test_what_is_matched_is_locked_before_anything_is_evicted() -> None:
    parts = Parts("1/4")
    parts.cache("a", text(("A", 2)))
    parts.cache("b", text(("B", 2)))
    request = parts.request("c", text(("A", 2), ("C", 2)))
    assert parts.allocate(request)
    assert request.cached == 2
    assert parts.matches(text(("B", 2))) == 0
    audit(parts.core)
