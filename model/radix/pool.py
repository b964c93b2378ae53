"""The page pool (SGLang specification 1.1): which physical pages are free, and which one is handed out next.

Page numbers steer nothing in an engine; they are kept so that a block table can be shown, and because who holds which page is
what most accounting errors are about. The pool does not know its users and so cannot refuse a page that is freed twice.
"""

from __future__ import annotations

from collections.abc import Iterable


class PagePool:
    """Pages 0 to ``total - 1``: the returned ones on a stack, the rest never used yet."""

    __slots__ = ("next_fresh", "returned", "total")

    def __init__(self, total: int) -> None:
        """A pool of ``total`` pages, all free."""
        self.total = total
        self.next_fresh = 0
        self.returned: list[int] = []

    @property
    def available(self) -> int:
        """Free pages."""
        return len(self.returned) + self.total - self.next_fresh

    def allocate(self, count: int) -> list[int] | None:
        """``count`` pages: the last returned ones in the order of the stack, then fresh ones, ascending.

        Returns:
            The pages; None, with nothing changed, when there are not enough.
        """
        if self.available < count:
            return None
        kept = max(len(self.returned) - count, 0)
        pages = self.returned[kept:]
        del self.returned[kept:]
        fresh = count - len(pages)
        pages.extend(range(self.next_fresh, self.next_fresh + fresh))
        self.next_fresh += fresh
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Take ``pages`` back, in the given order."""
        self.returned.extend(pages)
