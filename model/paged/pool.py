"""The block pool (vLLM specification 2.3): physical copies, the hash index, the eviction order, promised blocks.

A copy is private to one request until its content is computed; then it is cached under its identity. Several copies of one
identity may exist, and each takes room. A cached copy that nobody holds is inactive: it still serves lookups, and is evicted
from the head of the eviction order when room is needed. ``free`` is what is neither used nor promised::

    free = total - copies - reserved        free + active + inactive = total
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from model.registry import NO_BLOCK


class Copy:
    """One physical block: the ``identity`` of its content once cached (0: private), and who holds it.

    ``refs`` counts requests, ``pins`` reservations.
    """

    __slots__ = ("identity", "pins", "refs")

    def __init__(self, identity: int = NO_BLOCK, refs: int = 1) -> None:
        """A private copy held by one request, unless said otherwise."""
        self.identity = identity
        self.refs = refs
        self.pins = 0


class BlockPool:
    """See the module docstring. The methods are the operations 1 to 6 of the specification, and change all or nothing."""

    __slots__ = ("copies", "inactive", "index", "reserved", "total")

    def __init__(self, total: int) -> None:
        """An empty pool of ``total`` blocks."""
        self.total = total
        self.copies = 0
        self.reserved = 0
        self.index: dict[int, list[Copy]] = {}
        """Identity to its copies, the primary one first."""
        self.inactive: OrderedDict[Copy, None] = OrderedDict()
        """The eviction order, oldest first."""

    @property
    def free(self) -> int:
        """Blocks neither used nor promised."""
        return self.total - self.copies - self.reserved

    @property
    def active(self) -> int:
        """Blocks held by somebody or promised."""
        return self.copies - len(self.inactive) + self.reserved

    def primary(self, identity: int) -> Copy | None:
        """The copy that a lookup finds, if any."""
        copies = self.index.get(identity)
        return copies[0] if copies else None

    def shortage(self, hits: Sequence[Copy], fresh: int) -> bool:
        """Whether ``hits`` and ``fresh`` new blocks cannot be had together: a hit that is pinned is no longer evictable."""
        missing = fresh - self.free
        if missing <= 0:
            return False
        revived = sum(1 for copy in hits if copy in self.inactive)
        return missing > len(self.inactive) - revived

    def reserve(self, hits: Sequence[Copy], fresh: int) -> list[int] | None:
        """Pin ``hits`` and promise ``fresh`` blocks, evicting as needed.

        Returns:
            The identities that lost their last copy, oldest first; None, with nothing changed, when there is no room.
        """
        if self.shortage(hits, fresh):
            return None
        for copy in hits:
            copy.pins += 1
            self.inactive.pop(copy, None)
        removed = self._evict(fresh - self.free)
        self.reserved += fresh
        return removed

    def activate(self, hits: Sequence[Copy]) -> None:
        """Turn the pins of a reservation into references."""
        for copy in hits:
            copy.pins -= 1
            copy.refs += 1

    def take(self) -> Copy:
        """A private copy out of what was promised."""
        self.reserved -= 1
        self.copies += 1
        return Copy()

    def cancel(self, hits: Sequence[Copy], fresh: int) -> None:
        """Give back a reservation, or what is left of it; leaves become the older entries of the eviction order."""
        for copy in reversed(hits):
            copy.pins -= 1
            if not copy.pins and not copy.refs:
                self.inactive[copy] = None
        self.reserved -= fresh

    def cache(self, copy: Copy, identity: int) -> bool:
        """Cache a private copy under its identity; True when the identity becomes visible by it."""
        copy.identity = identity
        copies = self.index.get(identity)
        if copies is None:
            self.index[identity] = [copy]
            return True
        copies.append(copy)
        return False

    def release(self, blocks: Sequence[Copy]) -> None:
        """Give back the blocks of a request, last to first, so that the deepest is the first to be evicted."""
        for copy in reversed(blocks):
            if copy.identity == NO_BLOCK:
                self.copies -= 1
                continue
            copy.refs -= 1
            if not copy.refs and not copy.pins:
                self.inactive[copy] = None

    def _evict(self, count: int) -> list[int]:
        removed = []
        for _ in range(count):
            copy, _none = self.inactive.popitem(last=False)
            copies = self.index[copy.identity]
            copies.remove(copy)
            if not copies:
                del self.index[copy.identity]
                removed.append(copy.identity)
            self.copies -= 1
        return removed
