"""The radix tree by itself: rows T48 to T54 of the specification, splits and their capacities (5.3), ghost counts of work.

Pages hold one token unless said otherwise. Keys are path identities, here handed out by a small interner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from model.radix.tree import Node, RadixTree
from tests.radix.audit import audit_tree


class Keyed:
    """A tree whose sequences are given as tokens, and whose pages are numbered as they come."""

    def __init__(self, *, tight_splits: bool = True, tight_truncation: bool = True) -> None:
        """An empty tree."""
        self.tree = RadixTree(tight_splits=tight_splits, tight_truncation=tight_truncation)
        self.identities: dict[tuple[int, int], int] = {}
        self.pages = 0

    def keys(self, tokens: Iterable[int]) -> list[int]:
        """The identity of every prefix of ``tokens``, each chained to the one before it."""
        keys = [0]
        for token in tokens:
            keys.append(self.identities.setdefault((keys[-1], token), len(self.identities) + 1))
        return keys[1:]

    def named(self) -> dict[int, tuple[int, ...]]:
        """The sequence that each identity stands for."""
        names: dict[int, tuple[int, ...]] = {0: ()}
        for (parent, token), identity in self.identities.items():
            names[identity] = (*names[parent], token)
        return names

    def insert(self, tokens: Iterable[int], start: Node | None = None, first: int = 0) -> Node:
        """Insert a sequence, with fresh pages behind ``first``."""
        keys = self.keys(tokens)
        pages = list(range(self.pages, self.pages + len(keys)))
        self.pages += len(keys)
        return self.tree.insert(start or self.tree.root, first, keys, len(keys), pages)

    def match(self, tokens: Iterable[int]) -> tuple[int, Node]:
        """Match a sequence."""
        keys = self.keys(tokens)
        return self.tree.match(keys, len(keys))

    def length(self, tokens: Iterable[int]) -> int:
        """The cached length of a sequence."""
        keys = self.keys(tokens)
        return self.tree.match_length(keys, len(keys))

    def capacities(self) -> list[int]:
        """Capacities of the nodes, ancestors first."""
        found = []
        stack = list(self.tree.root.children.values())
        while stack:
            node = stack.pop()
            found.append(node.capacity)
            stack.extend(node.children.values())
        return found


def through(last: int, first: int = 1) -> range:
    """The tokens from ``first`` to ``last``."""
    return range(first, last + 1)


def test_row_48_a_match_that_ends_inside_an_edge_splits_it() -> None:
    keyed = Keyed()
    keyed.insert(through(5))
    keyed.insert(through(7))
    length, node = keyed.match([*through(5), 9, 9])
    assert length == 5
    assert len(node.keys) == 5
    (child,) = node.children.values()
    assert len(child.pages) == 2
    audit_tree(keyed.tree)


def test_row_49_a_lock_protects_every_node_on_the_path() -> None:
    keyed = Keyed()
    first = keyed.insert([1, 2, 3, 4, 5])
    keyed.tree.lock(first)
    second = keyed.insert([1, 2, 3, 6, 7])
    keyed.tree.lock(second)
    assert keyed.tree.protected == 7
    audit_tree(keyed.tree)
    keyed.tree.unlock(first)
    keyed.tree.unlock(second)
    assert keyed.tree.protected == 0
    assert keyed.tree.evictable == 7


def test_row_50_the_least_recently_used_leaf_goes_first() -> None:
    keyed = Keyed()
    keyed.insert([1, 2, 3])
    keyed.insert([4, 5, 6])
    assert keyed.tree.evict(3) == [0, 1, 2]
    assert keyed.length([1, 2, 3]) == 0
    assert keyed.length([4, 5, 6]) == 3


def test_row_51_unlocking_does_not_count_as_use() -> None:
    keyed = Keyed()
    older = keyed.insert([1, 2, 3])
    keyed.tree.lock(older)
    newer = keyed.insert([4, 5, 6])
    keyed.tree.lock(newer)
    keyed.tree.unlock(newer)
    keyed.tree.unlock(older)
    keyed.tree.evict(3)
    assert keyed.length([1, 2, 3]) == 0
    assert keyed.length([4, 5, 6]) == 3


def test_row_52_a_leaf_is_evicted_from_its_end_and_keeps_its_place_in_the_order() -> None:
    keyed = Keyed()
    keyed.insert([1, 2, 3, 4])
    keyed.insert([5, 6, 7])
    assert keyed.tree.evict(2) == [2, 3]
    assert keyed.length([1, 2, 3, 4]) == 2
    assert keyed.tree.evict(2) == [0, 1]
    assert keyed.length([1, 2, 3, 4]) == 0
    assert keyed.length([5, 6, 7]) == 3


def test_row_53_a_parent_becomes_a_leaf_when_its_last_child_goes() -> None:
    keyed = Keyed()
    first = keyed.insert([10, 11, 12])
    # Held for the moment, so that the second sequence does not grow out of the first.
    keyed.tree.lock(first)
    keyed.insert([10, 11, 13])
    keyed.tree.unlock(first)
    keyed.insert([20, 21])
    keyed.tree.evict(2)
    assert keyed.length([10, 11, 12]) == 2
    assert keyed.length([10, 11, 13]) == 2
    keyed.tree.evict(2)
    assert keyed.length([10, 11]) == 0
    assert keyed.length([20, 21]) == 2
    audit_tree(keyed.tree)


def test_row_54_branches_count_their_common_pages_once() -> None:
    keyed = Keyed()
    keyed.insert([1, 2])
    keyed.insert([1, 3])
    assert keyed.tree.evictable == 3
    assert len(keyed.tree.evict(3)) == 3
    assert not keyed.tree.nodes


def test_more_is_asked_for_than_there_is() -> None:
    keyed = Keyed()
    keyed.insert([1, 2])
    assert keyed.tree.evict(5) == [0, 1]
    assert keyed.tree.evict(1) == []


def test_what_is_locked_is_not_evicted() -> None:
    keyed = Keyed()
    held = keyed.insert([1, 2])
    keyed.tree.lock(held)
    keyed.insert([1, 2, 3], held, 2)
    assert keyed.tree.protected == 3, "the sole holder of a leaf extends it in place"
    assert keyed.tree.evict(3) == []
    audit_tree(keyed.tree)


def test_the_sole_holder_of_a_leaf_extends_it_in_place_and_anybody_an_unlocked_one() -> None:
    keyed = Keyed()
    held = keyed.insert([1, 2])
    keyed.tree.lock(held)
    assert keyed.insert([1, 2, 3], held, 2) is held
    keyed.tree.unlock(held)
    assert keyed.insert([1, 2, 3, 4]) is held
    assert len(held.keys) == 4
    assert len(keyed.tree.nodes) == 1


def test_a_leaf_that_two_hold_gets_a_child() -> None:
    keyed = Keyed()
    held = keyed.insert([1, 2])
    keyed.tree.lock(held)
    keyed.tree.lock(held)
    child = keyed.insert([1, 2, 3], held, 2)
    assert child is not held
    assert child.parent is held
    assert (child.locks, held.locks) == (0, 2)


def test_a_leaf_that_somebody_else_holds_gets_a_child() -> None:
    keyed = Keyed()
    held = keyed.insert([1, 2])
    keyed.tree.lock(held)
    child = keyed.insert([1, 2, 3])
    assert child.parent is held


def test_a_new_child_is_newer_than_what_its_insert_touched() -> None:
    keyed = Keyed()
    held = keyed.insert([1])
    keyed.tree.lock(held)
    child = keyed.insert([1, 2])
    assert child.last_access > held.last_access


def test_the_pages_that_are_there_stay() -> None:
    keyed = Keyed()
    keyed.insert([1, 2, 3])
    node = keyed.insert([1, 2, 3])
    assert keyed.tree.pages_to(node) == [0, 1, 2]


def test_an_insert_of_nothing_touches_nothing() -> None:
    keyed = Keyed()
    node = keyed.insert([1, 2])
    used = node.last_access
    assert keyed.insert([1, 2], node, 2) is node
    assert node.last_access == used


def test_a_match_touches_whole_nodes_only() -> None:
    keyed = Keyed()
    first = keyed.insert([1, 2])
    keyed.tree.lock(first)
    second = keyed.insert([1, 2, 3, 4])
    keyed.tree.unlock(first)
    used = second.last_access
    _, upper = keyed.match([1, 2, 3])
    assert first.last_access > used
    assert second.last_access == used
    assert upper.last_access == used


def test_the_read_only_lookup_changes_nothing() -> None:
    keyed = Keyed()
    node = keyed.insert([1, 2, 3])
    used = node.last_access
    assert keyed.length([1, 2]) == 2
    assert keyed.length([1, 2, 9]) == 2
    assert keyed.length([9]) == 0
    assert (node.last_access, len(node.keys), len(keyed.tree.nodes)) == (used, 3, 1)


def test_a_split_changes_nothing_but_the_shape() -> None:
    keyed = Keyed()
    node = keyed.insert([1, 2, 3, 4])
    keyed.tree.lock(node)
    keyed.insert([9])
    totals = (keyed.tree.evictable, keyed.tree.protected)
    pages = keyed.tree.pages_to(node)
    used, number = node.last_access, node.id
    _, upper = keyed.match([1])
    assert (keyed.tree.evictable, keyed.tree.protected) == totals
    assert keyed.tree.pages_to(node) == pages
    assert (node.last_access, node.id) == (used, number), "what follows keeps the node"
    assert (upper.locks, upper.last_access) == (node.locks, used)
    assert keyed.length([1, 2, 3, 4]) == 4
    keyed.tree.unlock(node)
    audit_tree(keyed.tree)
    assert keyed.tree.evict(4) == [1, 2, 3, 0], "the older sequence still goes first"


def ascending(keyed: Keyed, pages: int, every: int) -> None:
    """One edge, split at ``every`` pages, then twice as many, and so on."""
    keyed.insert(range(pages))
    keys = keyed.keys(range(pages))
    for at in range(every, pages, every):
        keyed.tree.match(keys, at)


@pytest.mark.parametrize(
    ("pages", "every", "faulty", "faulty_total"),
    [
        (2, 1, [2, 1], 3),
        (4, 1, [4, 3, 2, 1], 10),
        (6, 2, [6, 4, 2], 12),
        (8, 2, [8, 6, 4, 2], 20),
        (16, 4, [16, 12, 8, 4], 40),
        (4096, 8, [*range(4096, 8, -8), 8], 1_050_624),
    ],
)
def test_ascending_splits_retain_the_square_of_the_edge_only_with_finding_8(
    pages: int, every: int, faulty: list[int], faulty_total: int
) -> None:
    kept = Keyed(tight_splits=False)
    ascending(kept, pages, every)
    assert kept.capacities() == faulty
    assert kept.tree.retained == faulty_total
    right = Keyed()
    ascending(right, pages, every)
    assert right.tree.retained == right.tree.stored == pages
    assert len(right.tree.nodes) == pages // every
    if pages == 4096:
        assert (16 * kept.tree.retained, 16 * right.tree.retained) == (16_809_984, 65_536)


@pytest.mark.parametrize(("tight", "capacities", "total"), [(False, [8, 2, 2, 2], 14), (True, [2, 2, 2, 2], 8)])
def test_descending_splits_hand_one_large_vector_on(tight: bool, capacities: list[int], total: int) -> None:
    keyed = Keyed(tight_splits=tight)
    keyed.insert(range(8))
    for at in (6, 4, 2):
        keyed.match(range(at))
    assert keyed.capacities() == capacities
    assert keyed.tree.retained == total


@pytest.mark.parametrize("tight", [False, True])
def test_capacity_apart_a_tree_with_finding_8_is_the_same_tree(tight: bool) -> None:
    def shape(keyed: Keyed) -> Sequence[tuple[list[int], list[int], int, int]]:
        return [(node.keys, node.pages, node.locks, node.last_access) for node in keyed.tree.nodes.values()]

    faulty, right = Keyed(tight_splits=False), Keyed(tight_splits=True)
    for keyed in (faulty, right):
        ascending(keyed, 12, 3)
        keyed.insert([*range(4), 99])
        keyed.tree.evict(2)
    assert shape(faulty) == shape(right)
    assert faulty.tree.leaves == right.tree.leaves
    assert faulty.tree.retained > right.tree.retained


def test_growth_in_place_doubles_the_vector_and_starts_with_four() -> None:
    keyed = Keyed()
    node = keyed.insert([1])
    seen = [node.capacity]
    for length in range(2, 10):
        keyed.insert(through(length))
        seen.append(node.capacity)
    assert seen == [1, 4, 4, 4, 8, 8, 8, 8, 16]


@pytest.mark.parametrize(("tight", "after"), [(False, [8, 8, 8, 8]), (True, [8, 8, 3, 3])])
def test_a_truncated_edge_gives_back_its_vector_once_it_is_less_than_half_full(tight: bool, after: list[int]) -> None:
    keyed = Keyed(tight_truncation=tight)
    node = keyed.insert(range(8))
    seen = []
    for evicted in (2, 2, 1, 1):
        keyed.tree.evict(evicted)
        seen.append(node.capacity)
    assert seen == after


def test_a_removed_node_retains_nothing() -> None:
    keyed = Keyed()
    keyed.insert([1, 2])
    keyed.insert([3])
    keyed.tree.evict(2)
    assert keyed.tree.retained == 1


def test_an_unlock_without_a_lock_is_an_error_of_the_model() -> None:
    keyed = Keyed()
    node = keyed.insert([1])
    with pytest.raises(AssertionError):
        keyed.tree.unlock(node)
