"""The radix tree against a naive reference, and the work it does counted.

The reference has no nodes: it keeps every cached page under the tokens that lead to it, with the instant of its last use,
the number of leases that hold it, and whether an edge ends at it. Everything else is found by looking at all pages.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field
from hypothesis import event, given, settings
from hypothesis import strategies as st

from model.radix.tree import Node
from tests.radix.audit import audit_tree
from tests.radix.test_tree import Keyed, ascending

Tokens = tuple[int, ...]


@define
class Page:
    """A cached page of the reference."""

    number: int
    used: int
    ends_edge: bool
    holders: int = 0


@define
class Reference:
    """See the module docstring."""

    pages: dict[Tokens, Page] = field(factory=dict)
    clock: int = 0

    def length(self, tokens: Tokens) -> int:
        """Leading tokens that are cached."""
        return next((at for at in range(len(tokens)) if tokens[: at + 1] not in self.pages), len(tokens))

    def has_children(self, tokens: Tokens) -> bool:
        """Whether a longer sequence goes on behind ``tokens``."""
        return any(len(other) == len(tokens) + 1 and other[:-1] == tokens for other in self.pages)

    def edge(self, tokens: Tokens) -> list[Tokens]:
        """All pages on the edge that ends at ``tokens``."""
        found = [tokens]
        while len(found[-1]) > 1 and not self.pages[found[-1][:-1]].ends_edge:
            found.append(found[-1][:-1])
        return found

    def touch(self, tokens: Tokens, now: int) -> None:
        """The edges on the way to ``tokens``, at which one ends, are used."""
        for at in range(1, len(tokens) + 1):
            self.pages[tokens[:at]].used = now

    def walk(self, tokens: Tokens, now: int) -> int:
        """Match, touch whole edges, and let an edge end where the match does."""
        length = self.length(tokens)
        whole = length
        while whole and not self.pages[tokens[:whole]].ends_edge:
            whole -= 1
        self.touch(tokens[:whole], now)
        if whole < length:
            self.pages[tokens[:length]].ends_edge = True
        return length

    def match(self, tokens: Tokens) -> int:
        """As the tree does it."""
        self.clock += 1
        return self.walk(tokens, self.clock)

    def insert(self, start: int, tokens: Tokens, numbers: Sequence[int]) -> None:
        """Insert behind ``tokens[:start]``, at which a lease of the caller ends (0: the root)."""
        if start == len(tokens):
            return
        self.clock += 1
        now = self.clock
        self.touch(tokens[:start], now)
        at = start
        while True:
            if at and not self.has_children(tokens[:at]):
                holders = self.pages[tokens[:at]].holders
                if not holders or (at == start and holders == 1):
                    self.pages[tokens[:at]].ends_edge = False
                    self.add(at, tokens, numbers, now, holders)
                    for page in self.edge(tokens):
                        self.pages[page].used = now
                    return
            end = at + 1
            if tokens[:end] not in self.pages:
                self.clock += 1
                self.add(at, tokens, numbers, self.clock, 0)
                return
            while not self.pages[tokens[:end]].ends_edge and end < len(tokens) and tokens[: end + 1] in self.pages:
                end += 1
            if not self.pages[tokens[:end]].ends_edge:
                self.pages[tokens[:end]].ends_edge = True
                if end < len(tokens):
                    self.clock += 1
                    self.add(end, tokens, numbers, self.clock, 0)
                return
            self.touch(tokens[:end], now)
            at = end
            if at == len(tokens):
                return

    def add(self, first: int, tokens: Tokens, numbers: Sequence[int], used: int, holders: int) -> None:
        """New pages behind ``tokens[:first]``, the last of which ends an edge."""
        for at in range(first, len(tokens)):
            self.pages[tokens[: at + 1]] = Page(numbers[at], used, at + 1 == len(tokens), holders)

    def hold(self, tokens: Tokens, count: int) -> None:
        """One more lease on ``tokens``, or one less."""
        for at in range(1, len(tokens) + 1):
            self.pages[tokens[:at]].holders += count

    def evict(self, count: int) -> list[int]:
        """One page after the other, always the last page of the least recently used sequence that nobody holds."""
        freed = []
        for _ in range(count):
            leaves = [tokens for tokens, page in self.pages.items() if not page.holders and not self.has_children(tokens)]
            if not leaves:
                break
            victim = min(leaves, key=lambda tokens: self.pages[tokens].used)
            freed.append(self.pages.pop(victim).number)
            if len(victim) > 1 and not self.has_children(victim[:-1]):
                self.pages[victim[:-1]].ends_edge = True
        return freed


@define
class Lease:
    """A sequence that is held."""

    tokens: Tokens
    node: Node


SEQUENCES = st.lists(st.integers(0, 1), min_size=1, max_size=7).map(tuple)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("match"), SEQUENCES),
        st.tuples(st.just("hold"), SEQUENCES),
        st.tuples(st.just("insert"), SEQUENCES),
        st.tuples(st.just("extend"), st.integers(0, 5), SEQUENCES),
        st.tuples(st.just("release"), st.integers(0, 5)),
        st.tuples(st.just("evict"), st.integers(1, 6)),
    ),
    max_size=25,
)


def compare(keyed: Keyed, reference: Reference, leases: Sequence[Lease]) -> None:
    """Contents, counts, holders and edges."""
    tree = keyed.tree
    audit_tree(tree)
    pages: dict[Tokens, int] = {}
    names = keyed.named()
    for node in tree.nodes.values():
        pages.update((names[key], page) for key, page in zip(node.keys, node.pages, strict=True))
        for key in node.keys:
            page = reference.pages[names[key]]
            assert page.holders == node.locks
            assert page.used == node.last_access
            assert page.ends_edge == (key == node.keys[-1])
    assert pages == {tokens: page.number for tokens, page in reference.pages.items()}
    assert tree.evictable == sum(1 for page in reference.pages.values() if not page.holders)
    for lease in leases:
        assert tree.pages_to(lease.node) == [reference.pages[lease.tokens[: at + 1]].number for at in range(len(lease.tokens))]


@settings(max_examples=400, deadline=None)
@given(OPERATIONS)
def test_the_tree_does_what_the_reference_does(operations: list[tuple[object, ...]]) -> None:
    keyed, reference = Keyed(), Reference()
    leases: list[Lease] = []
    for verb, *arguments in operations:
        if verb == "match":
            (tokens,) = arguments
            assert isinstance(tokens, tuple)
            assert keyed.length(tokens) == reference.length(tokens)
            assert keyed.match(tokens)[0] == reference.match(tokens)
        elif verb == "hold":
            (tokens,) = arguments
            assert isinstance(tokens, tuple)
            length, node = keyed.match(tokens)
            assert length == reference.match(tokens)
            keyed.tree.lock(node)
            reference.hold(tokens[:length], 1)
            leases.append(Lease(tokens[:length], node))
        elif verb == "insert":
            (tokens,) = arguments
            assert isinstance(tokens, tuple)
            numbers = range(keyed.pages, keyed.pages + len(tokens))
            keyed.insert(tokens)
            reference.insert(0, tokens, numbers)
        elif verb == "extend" and leases:
            index, more = arguments
            assert isinstance(index, int)
            assert isinstance(more, tuple)
            lease = leases[index % len(leases)]
            tokens = lease.tokens + more
            numbers = range(keyed.pages, keyed.pages + len(tokens))
            node = keyed.insert(tokens, lease.node, len(lease.tokens))
            reference.insert(len(lease.tokens), tokens, numbers)
            if node is not lease.node:
                keyed.tree.lock(node)
                keyed.tree.unlock(lease.node)
                reference.hold(tokens, 1)
                reference.hold(lease.tokens, -1)
            lease.tokens, lease.node = tokens, node
        elif verb == "release" and leases:
            (index,) = arguments
            assert isinstance(index, int)
            lease = leases.pop(index % len(leases))
            keyed.tree.unlock(lease.node)
            reference.hold(lease.tokens, -1)
        elif verb == "evict":
            (count,) = arguments
            assert isinstance(count, int)
            freed = keyed.tree.evict(count)
            assert sorted(freed) == sorted(reference.evict(count))
            event(f"evicts {min(len(freed), 2)}")
        compare(keyed, reference, leases)


def work(keyed: Keyed) -> int:
    """All the work counted so far."""
    return keyed.tree.compared + keyed.tree.visited + keyed.tree.moved


@given(others=st.integers(0, 60), length=st.integers(1, 60), matched=st.integers(0, 60))
def test_a_lookup_costs_what_it_matches_and_not_what_is_cached(others: int, length: int, matched: int) -> None:
    keyed = Keyed()
    for other in range(others):
        keyed.insert([1000 + other, *range(5)])
    keyed.insert(range(length))
    before = work(keyed)
    found = keyed.length([*range(matched), -1])
    assert found == min(matched, length)
    assert work(keyed) - before <= found + 2


@given(others=st.integers(0, 40), length=st.integers(1, 40), count=st.integers(1, 40))
def test_an_eviction_costs_at_most_a_visit_and_a_move_a_page(others: int, length: int, count: int) -> None:
    keyed = Keyed()
    keyed.insert(range(length))
    for other in range(others):
        keyed.insert([1000 + other])
    before = work(keyed)
    freed = keyed.tree.evict(count)
    assert len(freed) == min(count, length + others)
    assert work(keyed) - before <= 2 * len(freed)


@given(length=st.integers(1, 60), fresh=st.integers(1, 60), others=st.integers(0, 40))
def test_an_insert_costs_the_pages_it_passes_and_adds(length: int, fresh: int, others: int) -> None:
    keyed = Keyed()
    for other in range(others):
        keyed.insert([1000 + other, *range(5)])
    keyed.insert(range(length))
    before = work(keyed)
    keyed.insert([*range(length), *range(1000, 1000 + fresh)])
    assert work(keyed) - before <= length + fresh + 3


def test_a_split_costs_the_pages_of_the_edge_it_cuts() -> None:
    keyed = Keyed()
    ascending(keyed, 64, 64)
    before = keyed.tree.moved
    keyed.match(range(16))
    assert keyed.tree.moved - before == 64
