"""What is fixed about the requests of a run: their specifications and the identities of their blocks.

Engines that are thawed from one another share one registry, so a frozen state names a request by a small number and a
block by an interned one, and no prompt is ever part of a state. A registry only grows.
"""

from __future__ import annotations

from collections.abc import Iterable

from model.requests import Content, RequestSpec, merged, runs_of

NO_BLOCK = 0
"""The identity before the first block of a sequence; no block has it."""


class Registry:
    """Requests by number, and chained block identities by number, both in order of first appearance."""

    __slots__ = ("_identities", "_numbers", "_parents", "_tails", "block_size", "chains", "specs")

    def __init__(self, block_size: int) -> None:
        """An empty registry for blocks of ``block_size`` tokens."""
        self.block_size = block_size
        self.specs: list[RequestSpec] = []
        self._numbers: dict[RequestSpec, int] = {}
        self._identities: dict[tuple[int, Content], int] = {}
        self._parents = [NO_BLOCK]
        self.chains: list[list[int]] = []
        """Per request: the identities of its leading full blocks, as far as they have been asked for."""
        self._tails: list[Content] = []

    def number(self, spec: RequestSpec) -> int:
        """The number of a request, registering it when it is new.

        An id may be used again after its request has ended; a different request under a known id gets a number of its own.
        """
        known = self._numbers.get(spec)
        if known is not None:
            return known
        number = self._numbers[spec] = len(self.specs)
        self.specs.append(spec)
        full, tail = spec.prompt.blocks(self.block_size)
        self.chains.append(self.chained(full))
        self._tails.append(tail)
        return number

    def chained(self, contents: Iterable[Content]) -> list[int]:
        """The identities of blocks with ``contents``, each behind the one before it."""
        chain: list[int] = []
        parent = NO_BLOCK
        for content in contents:
            parent = self.identity(parent, content)
            chain.append(parent)
        return chain

    def identity(self, parent: int, content: Content) -> int:
        """The identity (≥ 1) of a block with ``content`` behind the block ``parent``: equal exactly for equal prefixes."""
        key = (parent, content)
        found = self._identities.get(key)
        if found is None:
            found = self._identities[key] = len(self._identities) + 1
            self._parents.append(parent)
        return found

    def parent(self, identity: int) -> int:
        """The identity of the block before the one with ``identity``; 0 for none."""
        return self._parents[identity]

    def chain(self, number: int, blocks: int) -> list[int]:
        """The identities of at least the first ``blocks`` full blocks of a request, generated ones included.

        The list is the registry's own; it may be longer than asked for and must not be changed.
        """
        chain = self.chains[number]
        while len(chain) < blocks:
            chain.append(self._next_identity(number, len(chain)))
        return chain

    def _next_identity(self, number: int, index: int) -> int:
        spec = self.specs[number]
        size = self.block_size
        first = index * size - spec.prompt.length
        tail = self._tails[number] if first < 0 else ()
        generated = runs_of(spec.output_token(at) for at in range(max(first, 0), first + size))
        parent = self.chains[number][index - 1] if index else NO_BLOCK
        return self.identity(parent, merged((*tail, *generated)))
