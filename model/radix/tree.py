"""The radix tree of cached pages (SGLang specification 1.2, 5.3).

A node holds an edge: the keys of consecutive pages and the physical pages that hold their KV. A key is the identity of the
sequence up to and including its page, so equal keys at one depth mean equal prefixes. Counts are in pages.

*Locks.* A lease locks the deepest node of its prefix and everything above it. Unlocked pages are ``evictable``, also those of
inner nodes; locked ones are ``protected``. An unlocked node without children is an evictable leaf and stands in the eviction
index, ordered by last use.

*Clock.* Every ``match`` and every ``insert`` is one instant, a new child node the next one. Nodes that share an instant are
therefore always ancestors and descendants of one another (a match touches one path; a split hands the instant of a node on to
the node above it), and of these at most one is a leaf. So the eviction order has no ties; the number of a node, which the
specification names as the tie-break, decides nothing.

*Capacity* is a ghost: the elements a vector of the edge retains under the growth rules of 5.3, counted once for the two
vectors (keys and pages), which always grow together. It steers nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

MINIMAL_GROWTH = 4
"""Elements of the first allocation of a vector that grows."""


class Node:
    """A node; the root has an empty edge, no parent, and is never locked, counted or evicted."""

    __slots__ = ("capacity", "children", "id", "keys", "last_access", "locks", "pages", "parent")

    def __init__(self, id_: int, parent: Node | None, keys: list[int], pages: list[int], last_access: int) -> None:
        """An unlocked, childless node with tight vectors."""
        self.id = id_
        self.parent = parent
        self.keys = keys
        self.pages = pages
        self.last_access = last_access
        self.locks = 0
        self.children: dict[int, Node] = {}
        self.capacity = len(keys)

    @property
    def evictable_leaf(self) -> bool:
        """It stands in the eviction index."""
        return self.parent is not None and not self.locks and not self.children


class RadixTree:
    """See the module docstring.

    Attributes:
        compared, visited, moved: ghost counts of the work done: pages compared, nodes visited, pages moved into a vector.
    """

    __slots__ = (
        "clock",
        "compared",
        "evictable",
        "leaves",
        "moved",
        "nodes",
        "numbers",
        "protected",
        "retained",
        "root",
        "tight_splits",
        "tight_truncation",
        "visited",
    )

    def __init__(self, *, tight_splits: bool = True, tight_truncation: bool = True) -> None:
        """An empty tree; the switches say whether a split (finding 8) and a truncation give back unused capacity."""
        self.tight_splits = tight_splits
        self.tight_truncation = tight_truncation
        self.root = Node(0, None, [], [], 0)
        self.nodes: dict[int, Node] = {}
        """All nodes but the root, by number."""
        self.leaves: list[tuple[int, int]] = []
        """The eviction index: (last access, number) of every evictable leaf, oldest first."""
        self.clock = 0
        self.numbers = 0
        self.evictable = 0
        self.protected = 0
        self.retained = 0
        self.compared = 0
        self.visited = 0
        self.moved = 0

    @property
    def stored(self) -> int:
        """Pages in the tree."""
        return self.evictable + self.protected

    def match_length(self, keys: Sequence[int], end: int) -> int:
        """Pages of ``keys[:end]`` that are cached from the start on. Changes nothing."""
        node = self.root
        at = 0
        while at < end:
            child = node.children.get(keys[at])
            if child is None:
                return at
            shared = self._shared(child.keys, keys, at, end)
            at += shared
            if shared < len(child.keys):
                return at
            node = child
        return at

    def match(self, keys: Sequence[int], end: int) -> tuple[int, Node]:
        """The cached prefix of ``keys[:end]``: its length in pages and the node at which it ends.

        Every node on the way that is matched whole is touched. One that is matched in part is split there; neither part is
        touched.
        """
        now = self._tick()
        node = self.root
        at = 0
        while at < end:
            child = node.children.get(keys[at])
            if child is None:
                break
            shared = self._shared(child.keys, keys, at, end)
            at += shared
            if shared < len(child.keys):
                return at, self._split(child, shared)
            node = child
            self._touch(node, now)
        return at, node

    def insert(self, start: Node, first: int, keys: Sequence[int], end: int, pages: Sequence[int]) -> Node:
        """Put ``keys[first:end]`` with their pages below ``start``, at which ``keys[:first]`` end.

        Where the tree has a page already, it keeps its own. A leaf that nobody else holds is extended in place.

        Returns:
            The node at which ``keys[:end]`` end.
        """
        if first >= end:
            return start
        now = self._tick()
        ancestor = start
        while ancestor.parent is not None:
            self._touch(ancestor, now)
            ancestor = ancestor.parent
        node = start
        at = first
        while at < end:
            alone = not node.locks or (node is start and node.locks == 1)
            if node.parent is not None and not node.children and alone:
                self._extend(node, keys[at:end], pages[at:end])
                return node
            child = node.children.get(keys[at])
            if child is None:
                return self._create(node, list(keys[at:end]), list(pages[at:end]))
            shared = self._shared(child.keys, keys, at, end)
            at += shared
            if shared < len(child.keys):
                upper = self._split(child, shared)
                return self._create(upper, list(keys[at:end]), list(pages[at:end])) if at < end else upper
            node = child
            self._touch(node, now)
        return node

    def lock(self, node: Node) -> None:
        """Lock ``node`` and everything above it once more."""
        while node.parent is not None:
            if not node.locks:
                self._unindex(node)
                self.evictable -= len(node.keys)
                self.protected += len(node.keys)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Take back one lock of ``node`` and everything above it; it keeps its place in the order of use.

        The specified engine only warns about a node without a lock, and stops there; here it is an error of the model.
        """
        while node.parent is not None:
            assert node.locks > 0
            node.locks -= 1
            if not node.locks:
                self.protected -= len(node.keys)
                self.evictable += len(node.keys)
                self._index(node)
            node = node.parent

    def evict(self, count: int) -> list[int]:
        """Evict ``count`` pages, or as many as there are: the least recently used leaf first, and of it the last pages first.

        Returns:
            The pages, in the order in which they become free.
        """
        freed: list[int] = []
        while len(freed) < count and self.leaves:
            victim = self.nodes[self.leaves[0][1]]
            self.visited += 1
            kept = max(len(victim.keys) - (count - len(freed)), 0)
            freed.extend(victim.pages[kept:])
            if kept:
                self._truncate(victim, kept)
            else:
                self._remove(victim)
        self.evictable -= len(freed)
        self.moved += len(freed)
        return freed

    def pages_to(self, node: Node) -> list[int]:
        """The pages from the root to the end of the edge of ``node``."""
        edges = []
        while node.parent is not None:
            edges.append(node.pages)
            node = node.parent
        return [page for edge in reversed(edges) for page in edge]

    def find(self, keys: Sequence[int], end: int) -> Node:
        """The node at which ``keys[:end]``, known to end at one, end. Changes nothing."""
        node = self.root
        at = 0
        while at < end:
            node = node.children[keys[at]]
            at += len(node.keys)
        assert at == end
        return node

    def restore(self, parent: Node, keys: list[int], pages: list[int], last_access: int) -> Node:
        """Add an unlocked node as it once was; ``reindex`` must follow the last one."""
        self.evictable += len(keys)
        self.clock = max(self.clock, last_access)
        return self._new_node(parent, keys, pages, last_access)

    def reindex(self) -> None:
        """Build the eviction index anew."""
        self.leaves = sorted((node.last_access, node.id) for node in self.nodes.values() if node.evictable_leaf)

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    def _shared(self, edge: list[int], keys: Sequence[int], at: int, end: int) -> int:
        """How many leading keys of ``edge`` and ``keys[at:end]`` agree."""
        self.visited += 1
        length = min(len(edge), end - at)
        shared = 0
        while shared < length and edge[shared] == keys[at + shared]:
            shared += 1
        self.compared += min(shared + 1, length)
        return shared

    def _touch(self, node: Node, now: int) -> None:
        self.visited += 1
        self._unindex(node)
        node.last_access = now
        self._index(node)

    def _index(self, node: Node) -> None:
        if node.evictable_leaf:
            insort(self.leaves, (node.last_access, node.id))

    def _unindex(self, node: Node) -> None:
        if node.evictable_leaf:
            del self.leaves[bisect_left(self.leaves, (node.last_access, node.id))]

    def _new_node(self, parent: Node, keys: list[int], pages: list[int], last_access: int) -> Node:
        self.numbers += 1
        node = self.nodes[self.numbers] = Node(self.numbers, parent, keys, pages, last_access)
        parent.children[keys[0]] = node
        self.retained += node.capacity
        return node

    def _create(self, parent: Node, keys: list[int], pages: list[int]) -> Node:
        # The parent is in no index: an unlocked leaf would have been extended instead.
        node = self._new_node(parent, keys, pages, self._tick())
        self.moved += len(keys)
        self.evictable += len(keys)
        self._index(node)
        return node

    def _extend(self, node: Node, keys: Sequence[int], pages: Sequence[int]) -> None:
        node.keys.extend(keys)
        node.pages.extend(pages)
        self.moved += len(keys)
        if node.locks:
            self.protected += len(keys)
        else:
            self.evictable += len(keys)
        length = len(node.keys)
        if length > node.capacity:
            self._retain(node, max(2 * node.capacity, length, MINIMAL_GROWTH))

    def _split(self, node: Node, at: int) -> Node:
        """Cut the edge of ``node`` after ``at`` pages; it keeps what follows, a new node above it takes what precedes.

        The new node inherits locks and last use, so nothing but the shape changes.
        """
        assert node.parent is not None
        upper = self._new_node(node.parent, node.keys[:at], node.pages[:at], node.last_access)
        upper.locks = node.locks
        upper.children[node.keys[at]] = node
        if not self.tight_splits:
            # Finding 8: the prefix keeps the vector of the whole edge.
            self._retain(upper, node.capacity)
        self.moved += len(node.keys)
        del node.keys[:at], node.pages[:at]
        self._retain(node, len(node.keys))
        node.parent = upper
        return upper

    def _truncate(self, node: Node, kept: int) -> None:
        del node.keys[kept:], node.pages[kept:]
        # Giving back only from half full on keeps the cost proportional to what was evicted.
        if self.tight_truncation and node.capacity > 2 * kept:
            self._retain(node, kept)

    def _remove(self, node: Node) -> None:
        assert node.parent is not None
        del self.leaves[0], self.nodes[node.id], node.parent.children[node.keys[0]]
        self.retained -= node.capacity
        self._index(node.parent)

    def _retain(self, node: Node, capacity: int) -> None:
        self.retained += capacity - node.capacity
        node.capacity = capacity
