"""Draining: from any state, take no more input and see whether the work that was accepted ends.

Under drain a system is deterministic, so from each state there is one path. It ends where nothing is left to do, or it
repeats a state and then goes round for ever: a livelock, or a stall when that state leads to itself. This meets a livelock
long before the search has walked to it (the path runs ahead of the breadth-first front), at the price of
one more successor for every state. What it reports is a true lasso but not always the shortest, and it asks less
than fairness does: the stem may leave fair input untaken. `liveness.find_livelocks` is the full check.
"""

from __future__ import annotations

from typing import Generic

import attrs

from explorer.findings import Lasso, make_lasso
from explorer.graph import StateGraph
from explorer.system import K, TransitionSystem

WALK_LIMIT = 100_000
"""Longest drain followed, in edges. Longer ones count as unfinished, never as passed."""


@attrs.frozen
class DrainCycle(Generic[K]):
    """A drain that goes round: the edges from the state it began in to the cycle, and the cycle."""

    stem: tuple[tuple[int, K], ...]
    cycle: tuple[tuple[int, K], ...]


class DrainWatch(Generic[K]):
    """Follows drains and remembers every state on them, so that all calls together take each edge once.

    Memory: one set entry for each state drained, and the states themselves where they are not shared.

    Attributes:
        unfinished: How many drains were given up after `walk_limit` edges.
    """

    def __init__(self, system: TransitionSystem[K], *, walk_limit: int = WALK_LIMIT) -> None:
        self._drain = system.drain
        self._problems = system.problems
        self._walk_limit = walk_limit
        self._settled: set[K] = set()
        self.unfinished = 0

    def visit(self, state: K) -> DrainCycle[K] | None:
        """Drain from a state; a cycle met by an earlier drain is not reported again.

        Problems the system reports on the way are dropped: the search finds them when it expands those states.
        """
        settled = self._settled
        if state in settled:
            return None
        place = {state: 0}
        steps: list[tuple[int, K]] = []
        found: DrainCycle[K] | None = None
        while len(steps) < self._walk_limit:
            step = self._drain(state)
            if step is None:
                break
            steps.append(step)
            state = step[1]
            if state in settled:
                break
            if state in place:
                entry = place[state]
                found = DrainCycle(tuple(steps[:entry]), tuple(steps[entry:]))
                break
            place[state] = len(steps)
        else:
            self.unfinished += 1
        settled.update(place)
        self._problems.clear()
        return found


def extend_to_lasso(graph: StateGraph[K], state: int, found: DrainCycle[K]) -> Lasso[K]:
    """The lasso whose stem goes to the state where a drain began, then along the drain to its cycle."""
    start, path = graph.path_to(state)
    return make_lasso(start, path + found.stem, found.cycle)


@attrs.frozen
class DrainResult(Generic[K]):
    """What draining every state of a graph has shown.

    Attributes:
        lassos: One for each cycle that drains run into, in the order of discovery of the states they began in.
        states: How many states of the graph were drained.
        unfinished: How many drains were given up as too long: with any, nothing has been shown about the rest.
    """

    lassos: tuple[Lasso[K], ...]
    states: int
    unfinished: int


def drain_check(
    graph: StateGraph[K], system: TransitionSystem[K], *, most: int = 1, walk_limit: int = WALK_LIMIT
) -> DrainResult[K]:
    """Drain every state of a graph in breadth-first order, until `most` cycles have been met.

    Linear in the number of distinct states drained. The search does the same on the way when asked to.
    """
    watch = DrainWatch(system, walk_limit=walk_limit)
    lassos: list[Lasso[K]] = []
    states = 0
    for states, key in enumerate(graph.keys, start=1):
        found = watch.visit(key)
        if found is not None:
            lassos.append(extend_to_lasso(graph, states - 1, found))
            if len(lassos) >= most:
                break
    return DrainResult(tuple(lassos), states, watch.unfinished)
