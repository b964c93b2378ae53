"""What must hold of the working state of a radix engine between two actions (SGLang specification 8, S1 to S7, R1, R3, R4)."""

from __future__ import annotations

from itertools import chain

from model.radix.core import RUNNING, Core
from model.radix.tree import Node, RadixTree


def audit_tree(tree: RadixTree) -> None:
    """Shape, counts, index and capacities of a tree, counted anew (S4 to S6, R1, R4)."""
    seen: list[Node] = []
    stack = list(tree.root.children.values())
    for key, child in tree.root.children.items():
        assert child.parent is tree.root
        assert child.keys[0] == key
    while stack:
        node = stack.pop()
        seen.append(node)
        assert node.keys
        assert len(node.keys) == len(node.pages)
        assert node.locks >= 0
        for key, child in node.children.items():
            assert child.parent is node
            assert child.keys[0] == key
            assert child.locks <= node.locks
            assert child.last_access != node.last_access or not (child.evictable_leaf and node.evictable_leaf)
        stack.extend(node.children.values())
    assert {node.id: node for node in seen} == tree.nodes
    pages = [page for node in seen for page in node.pages]
    assert len(set(pages)) == len(pages)
    keys = [key for node in seen for key in node.keys]
    assert len(set(keys)) == len(keys), "a key names the whole sequence up to it, so it stands once"
    assert tree.evictable == sum(len(node.keys) for node in seen if not node.locks)
    assert tree.protected == sum(len(node.keys) for node in seen if node.locks)
    assert tree.leaves == sorted((node.last_access, node.id) for node in seen if not node.locks and not node.children)
    assert len({access for access, _ in tree.leaves}) == len(tree.leaves), "no two leaves share an instant"
    assert tree.retained == sum(node.capacity for node in seen)
    assert all(node.capacity >= len(node.keys) for node in seen)
    if tree.tight_splits and tree.tight_truncation:
        assert tree.retained <= 2 * len(pages) + 2 * len(seen)


def audit(core: Core) -> None:
    """The whole engine."""
    rules, tree = core.rules, core.tree
    size = rules.page_size
    audit_tree(tree)
    expected: dict[int, int] = {}
    private: list[int] = []
    for request in core.requests.values():
        length = request.length
        assert request.prompt <= length
        assert 0 <= request.cached <= request.computed <= length
        assert request.cached % size == 0
        assert len(request.pages) == -(-request.computed // size)
        assert request.generated <= request.limit
        assert len(set(request.pages)) == len(request.pages)
        path = tree.pages_to(request.node)
        assert path == request.pages[: request.cached // size]
        private += request.pages[request.cached // size :]
        assert request.node is tree.root or request.computed
        node = request.node
        while node.parent is not None:
            expected[node.id] = expected.get(node.id, 0) + 1
            node = node.parent
    for node in tree.nodes.values():
        assert node.locks == expected.get(node.id, 0)
    in_tree = [page for node in tree.nodes.values() for page in node.pages]
    free = [*core.pool.returned, *range(core.pool.next_fresh, core.pool.total)]
    assert sorted(chain(in_tree, private, free)) == list(range(rules.num_pages))
    queued = [request.id for request in chain(core.waiting, core.running)]
    assert sorted(queued) == sorted(core.requests)
    assert all(request.status == RUNNING for request in core.running)
    assert all(request.status != RUNNING for request in core.waiting)
    assert all(request.computed == request.length for request in core.running)
    if not rules.caching:
        assert not tree.nodes
    if not core.requests:
        assert not tree.protected
    audit_publisher(core, [*in_tree, *private])


def audit_publisher(core: Core, live: list[int]) -> None:
    """Announced pages are live ones, every page of the tree among them, and are counted right (S15, R3)."""
    publisher = core.publisher
    if publisher is None:
        return
    assert set(publisher.identities) <= set(live)
    counts: dict[int, int] = {}
    for identity in publisher.identities.values():
        counts[identity] = counts.get(identity, 0) + 1
    assert counts == publisher.copies
    for node in core.tree.nodes.values():
        assert [publisher.identities.get(page) for page in node.pages] == node.keys
