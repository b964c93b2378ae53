"""The KV events of a radix engine (SGLang specification 1.3).

The publisher knows which physical pages are announced, and under which identity; an identity is stored from its first announced
page on, and removed with its last. Pages are announced when they are allocated, not when they enter the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice

from model.events import Removed, Stored
from model.registry import NO_BLOCK, Registry
from model.requests import Content, RequestSpec, runs_of


def page_content(spec: RequestSpec, page_size: int, index: int) -> Content:
    """The content of one full page of a request, generated tokens included."""
    generated = (spec.output_token(position) for position in range(spec.output))
    return runs_of(islice(chain(spec.prompt.tokens(), generated), index * page_size, (index + 1) * page_size))


class Publisher:
    """The announced pages of one engine."""

    __slots__ = ("copies", "identities", "registry")

    def __init__(self, registry: Registry) -> None:
        """Nothing announced."""
        self.registry = registry
        self.identities: dict[int, int] = {}
        """Announced page to its identity."""
        self.copies: dict[int, int] = {}
        """Identity to the number of announced pages that have it."""

    def stored(self, number: int, pages: Sequence[int], first: int, end: int) -> Stored | None:
        """Announce the full pages ``first`` to ``end - 1`` of request ``number``, of those that are not announced yet.

        Args:
            number: of the request in the registry.
            pages: all pages it holds.
            first: index of the first page that may be new.
            end: number of its full pages.

        Returns:
            The event; None when no identity became stored. The pages behind the first new one are all in it, also those whose
            identity was stored already.
        """
        keys = self.registry.chain(number, end)
        event_parent = NO_BLOCK
        blocks: list[int] = []
        for index in range(first, end):
            page = pages[index]
            if page in self.identities:
                continue
            parent = self.identities.get(pages[index - 1], NO_BLOCK) if index else NO_BLOCK
            if parent == (keys[index - 1] if index else NO_BLOCK):
                identity = keys[index]
            else:
                # The page before was never announced: this one counts as the first of a sequence.
                content = page_content(self.registry.specs[number], self.registry.block_size, index)
                identity = self.registry.identity(parent, content)
            self.identities[page] = identity
            copies = self.copies[identity] = self.copies.get(identity, 0) + 1
            if copies == 1 and not blocks:
                event_parent = parent
            if copies == 1 or blocks:
                blocks.append(identity)
        return Stored(event_parent, tuple(blocks)) if blocks else None

    def removed(self, pages: Sequence[int]) -> Removed | None:
        """Withdraw what is announced of ``pages``; the event names the identities that lost their last page."""
        gone = []
        for page in pages:
            identity = self.identities.pop(page, NO_BLOCK)
            if identity == NO_BLOCK:
                continue
            left = self.copies[identity] - 1
            if left:
                self.copies[identity] = left
            else:
                del self.copies[identity]
                gone.append(identity)
        return Removed(tuple(gone)) if gone else None

    def adopt(self, pages: Sequence[int], identities: Sequence[int]) -> None:
        """Take ``pages`` for announced under ``identities``, with no event: the state of an engine is being restored."""
        for page, identity in zip(pages, identities, strict=True):
            self.identities[page] = identity
            self.copies[identity] = self.copies.get(identity, 0) + 1
