"""The explored part of a state space, in flat arrays.

States are numbered in the order of their discovery, which in a breadth-first search is also the order of their
distance from the initial states. Edges stand in the order in which they were computed: the edges out of state u are those from
`offsets[u]` up to `offsets[u + 1]`. That is 4 bytes for a parent, 4 for an offset, and 5 to 8 for an edge; a million states
cost their keys and little more, and nothing here is tracked by the cyclic garbage collector but the list of keys.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import chain, pairwise, repeat
from typing import Generic

import attrs

from explorer.system import K


@attrs.frozen(eq=False)
class StateGraph(Generic[K]):
    """States, parents and labelled edges.

    Attributes:
        keys: The states by number.
        initial: How many of them, from 0, are initial.
        parents: For each state the number of the state that discovered it. Never decreasing, as breadth-first search
            expands states in order; 0 and without meaning for initial states.
        offsets: Where the edges of each expanded state begin, and a last entry where they end. States from
            `expanded` on were discovered but not expanded: their edges are not known.
        targets: For each edge the number of the state it leads to.
        labels: For each edge its label.
    """

    keys: list[K]
    initial: int
    parents: array[int]
    offsets: array[int]
    targets: array[int]
    labels: array[int]

    def __len__(self) -> int:
        """How many states there are."""
        return len(self.keys)

    @property
    def expanded(self) -> int:
        """How many states, from 0, have their edges in the graph."""
        return len(self.offsets) - 1

    @property
    def is_complete(self) -> bool:
        """Whether every state has been expanded."""
        return self.expanded == len(self.keys)

    @property
    def transitions(self) -> int:
        """How many edges there are."""
        return len(self.targets)

    def level_starts(self) -> list[int]:
        """The number of the first state at distance 0, 1, 2 and so on from the initial states.

        Computed from the parents by bisection, in time proportional to the depth: a level begins with the first state
        discovered by a state of the level before.
        """
        starts = [0]
        following = self.initial
        while following < len(self.keys):
            starts.append(following)
            following = bisect_left(self.parents, following, lo=following)
        return starts

    @property
    def depth(self) -> int:
        """Distance of the last discovered state from the initial states."""
        return len(self.level_starts()) - 1

    def depth_of(self, state: int) -> int:
        """Distance of a state from the initial states, in edges."""
        return bisect_right(self.level_starts(), state) - 1

    def edges_of(self, state: int) -> Iterator[tuple[int, int]]:
        """The edges out of an expanded state as (label, number of the next state)."""
        first, last = self.offsets[state], self.offsets[state + 1]
        return zip(self.labels[first:last], self.targets[first:last], strict=True)

    def sources(self) -> Iterator[int]:
        """The number of the state each edge comes from, in the order of `targets`."""
        counts = (last - first for first, last in pairwise(self.offsets))
        return chain.from_iterable(map(repeat, range(self.expanded), counts))

    def path_to(self, state: int) -> tuple[K, tuple[tuple[int, K], ...]]:
        """The initial state and the edges (label, next state) of the path by which a state was discovered.

        No path to that state is shorter.
        """
        steps = []
        while state >= self.initial:
            parent = self.parents[state]
            edge = self.targets.index(state, self.offsets[parent], self.offsets[parent + 1])
            steps.append((self.labels[edge], self.keys[state]))
            state = parent
        steps.reverse()
        return self.keys[state], tuple(steps)
