"""Runs that go on for ever and get nothing done: stalls and fair livelocks of an explored graph.

Edges of progress and of external input are cut, and goal states are taken out. What can still go round is in the
non-trivial strongly connected components of what is left: more than one state, or one that leads to itself. A
run that stays in such a component for ever can be a *fair* one exactly if every weak-fairness class is either taken by
an edge inside the component or disabled in some state of it: the run that goes through the whole component again and
again is then fair, and if a class is neither, every run inside neglects it. So an engine is not blamed for a
cycle that lasts only as long as a request which must arrive does not.

All of it is linear in the graph but the last step, the search for the shortest cycle, which is linear in the component times
the number of sets of classes a cycle can still owe (one, unless fairness is at odds with short cycles).

On a graph that is not complete, what is found is real (edges of an expanded state are all there), but finding nothing
shows nothing.

Tarjan, "Depth-first search and linear graph algorithms", 1972. Emerson and Lei, "Modalities for model checking", 1987 for
fairness by components.
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import compress, count, groupby, islice
from typing import Generic

import attrs

from explorer.findings import Lasso, make_lasso
from explorer.graph import StateGraph
from explorer.system import K, TransitionSystem

MOST_LASSOS = 16
"""How many lassos a check gives, unless told otherwise."""


@attrs.frozen
class Component:
    """A strongly connected component that has a cycle.

    Attributes:
        states: Its states by number, ascending; the first is (one of) the nearest to the initial states.
        is_fair: Whether some fair run stays in it for ever.
    """

    states: tuple[int, ...]
    is_fair: bool


class _LabelFacts(Generic[K]):
    """What the system says about each label in the graph, asked once."""

    def __init__(self, graph: StateGraph[K], system: TransitionSystem[K]) -> None:
        distinct = sorted(set(graph.labels))
        self.is_kept = {label: not system.is_progress(label) for label in distinct}
        classes = {label: system.fairness(label) for label in distinct}
        bit_of = {fair: 1 << bit for bit, fair in enumerate(sorted({c for c in classes.values() if c is not None}))}
        self.class_bit = {label: 0 if fair is None else bit_of[fair] for label, fair in classes.items()}
        self.all_classes = (1 << len(bit_of)) - 1


def cyclic_components(graph: StateGraph[K], system: TransitionSystem[K]) -> list[Component]:
    """All components that have a cycle of edges which are neither progress nor input, ordered by their first state.

    Goal states are not part of any. Time and memory are linear in the graph.
    """
    return _components(graph, system, _LabelFacts(graph, system))


def _components(graph: StateGraph[K], system: TransitionSystem[K], facts: _LabelFacts[K]) -> list[Component]:
    core = [state for state in _trim(graph, facts) if not system.is_goal(graph.keys[state])]
    offsets, targets = _subgraph(graph, facts, core)
    components = []
    for members in _strong_components(offsets, targets):
        states = tuple(sorted(core[member] for member in members))
        components.append(Component(states, _is_fair(graph, facts, states)))
    components.sort(key=lambda component: component.states[0])
    return components


def find_livelocks(graph: StateGraph[K], system: TransitionSystem[K], *, most: int = MOST_LASSOS) -> list[Lasso[K]]:
    """The shortest lassos of the fair components, one for each, at most `most`.

    The *stem* is a shortest path from an initial state to the component. The *cycle* is the shortest closed walk inside
    the component that begins where the stem ends and is itself fair: going round it for ever neglects no class.
    Where several states of a component are equally near, the one with the shortest cycle is taken, then the one
    discovered first. Lassos are ordered by length of stem, then of cycle, then by discovery, so the first is the
    shortest stem to any fair livelock, with the shortest cycle there.

    Lassos of kind "stall" have a cycle of one edge.
    """
    facts = _LabelFacts(graph, system)
    fair = (component for component in _components(graph, system, facts) if component.is_fair)
    starts = graph.level_starts()
    found: list[tuple[int, int, list[tuple[int, int]]]] = []  # Stem length, entry, cycle.
    # Components come in the order of their first states, and so of their stems: whole stem lengths are
    # taken until there are enough.
    for stem, group in groupby(fair, key=lambda component: bisect_right(starts, component.states[0]) - 1):
        if len(found) >= most:
            break
        for component in group:
            entry, cycle = _shortest_cycle(graph, facts, component.states, starts)
            found.append((stem, entry, cycle))
    found.sort(key=lambda lasso: (lasso[0], len(lasso[2]), lasso[1]))
    lassos = []
    for _, entry, cycle in found[:most]:
        start, path = graph.path_to(entry)
        lassos.append(make_lasso(start, path, tuple((label, graph.keys[state]) for label, state in cycle)))
    return lassos


def find_stalls(graph: StateGraph[K], system: TransitionSystem[K], *, most: int = MOST_LASSOS) -> list[Lasso[K]]:
    """States in which nothing can change any more though work remains, nearest first, at most `most`.

    That is an expanded state that is not a goal and either has no successors (a deadlock: the cycle is
    empty), or has edges to itself and, progress and input apart, no others (the cycle is one edge). Fairness plays no part:
    a state that only fresh input could move is a stall. A system that is to wait in such a state for an answer from
    outside should not declare the answer's edge as input.
    """
    is_kept = {label: not system.is_progress(label) for label in sorted(set(graph.labels))}
    ends = islice(graph.offsets, 1, None)
    deadlocked = compress(range(graph.expanded), map(operator.eq, graph.offsets, ends))
    at_self = compress(count(), map(operator.eq, graph.sources(), graph.targets))
    looping = (bisect_right(graph.offsets, edge) - 1 for edge in at_self if is_kept[graph.labels[edge]])
    lassos: list[Lasso[K]] = []
    for state in sorted({*deadlocked, *looping}):
        if len(lassos) >= most:
            break
        kept = [edge for edge in graph.edges_of(state) if is_kept[edge[0]]]
        if any(target != state for _, target in kept) or system.is_goal(graph.keys[state]):
            continue
        start, path = graph.path_to(state)
        lassos.append(make_lasso(start, path, tuple((label, graph.keys[state]) for label, _ in kept[:1])))
    return lassos


def _trim(graph: StateGraph[K], facts: _LabelFacts[K]) -> list[int]:
    """The states that may be on a cycle of kept edges: all that are, and hopefully few others.

    Most edges lead from a state to one discovered later. Going backwards over the edges, a state is dropped when
    all it leads to was discovered later and is dropped already; then going forwards, the same with all that
    leads to it. The two passes are linear and leave little of a graph whose kept edges seldom lead back (nothing at all if
    none does); Tarjan's algorithm sorts out the rest.
    """
    kept = bytes(map(facts.is_kept.__getitem__, graph.labels))
    sources = array("I", compress(graph.sources(), kept))
    targets = array("I", compress(graph.targets, kept))
    leads_on = bytearray(len(graph))
    led_to = bytearray(len(graph))
    for source, target in zip(reversed(sources), reversed(targets), strict=True):
        if target <= source:
            leads_on[source] = led_to[target] = 1
        elif leads_on[target]:
            leads_on[source] = 1
    for source, target in zip(sources, targets, strict=True):
        if led_to[source] and leads_on[source]:
            led_to[target] = 1
    return list(compress(range(len(graph)), map(operator.and_, leads_on, led_to)))


def _subgraph(graph: StateGraph[K], facts: _LabelFacts[K], states: Sequence[int]) -> tuple[array[int], array[int]]:
    """The kept edges among some states, as offsets and targets over positions in `states`."""
    position = {state: place for place, state in enumerate(states)}
    offsets = array("I", [0])
    targets = array("I")
    for state in states:
        for label, target in graph.edges_of(state):
            if facts.is_kept[label] and target in position:
                targets.append(position[target])
        offsets.append(len(targets))
    return offsets, targets


def _strong_components(offsets: array[int], targets: array[int]) -> Iterator[list[int]]:
    """The strongly connected components with a cycle, by Tarjan's algorithm without recursion."""
    size = len(offsets) - 1
    unseen, finished = 0, size + 1
    order = array("I", bytes(4 * size))  # When each node was first seen, from 1; `finished` once its component is known.
    lowest = array("I", bytes(4 * size))  # The least order a node can reach on the stack.
    next_edge = array("I", offsets[:size])
    stack: list[int] = []
    seen = 0
    for root in range(size):
        if order[root] != unseen:
            continue
        path = [root]
        while path:
            node = path[-1]
            if order[node] == unseen:
                seen += 1
                order[node] = lowest[node] = seen
                stack.append(node)
            for edge in range(next_edge[node], offsets[node + 1]):
                target = targets[edge]
                if order[target] == unseen:
                    next_edge[node] = edge  # Looked at once more when the target is done, for its `lowest`.
                    path.append(target)
                    break
                if order[target] != finished and lowest[target] < lowest[node]:
                    lowest[node] = lowest[target]
            else:
                path.pop()
                if lowest[node] == order[node]:
                    members = []
                    while order[node] != finished:
                        member = stack.pop()
                        order[member] = finished
                        members.append(member)
                    if len(members) > 1 or node in targets[offsets[node] : offsets[node + 1]]:
                        yield members


def _enabled(graph: StateGraph[K], facts: _LabelFacts[K], state: int) -> int:
    """The fairness classes enabled in a state, as bits."""
    enabled = 0
    for label in graph.labels[graph.offsets[state] : graph.offsets[state + 1]]:
        enabled |= facts.class_bit[label]
    return enabled


def _is_fair(graph: StateGraph[K], facts: _LabelFacts[K], states: tuple[int, ...]) -> bool:
    """Whether each class is taken inside the component or disabled in some state of it."""
    inside = frozenset(states)
    always_enabled = facts.all_classes
    taken = 0
    for state in states:
        always_enabled &= _enabled(graph, facts, state)
        for label, target in graph.edges_of(state):
            if facts.is_kept[label] and target in inside:
                taken |= facts.class_bit[label]
    return always_enabled & ~taken == 0


def _shortest_cycle(
    graph: StateGraph[K], facts: _LabelFacts[K], states: tuple[int, ...], starts: list[int]
) -> tuple[int, list[tuple[int, int]]]:
    """The entry state and the shortest fair cycle through it, over all states of a fair component nearest to the start."""
    inside = frozenset(states)
    level = bisect_right(starts, states[0])
    level_end = starts[level] if level < len(starts) else len(graph)
    best_entry = -1
    best: list[tuple[int, int]] = []
    for entry in states:
        if entry >= level_end:
            break
        cycle = _fair_cycle_through(graph, facts, inside, entry, len(best) or None)
        if cycle is not None:
            best_entry, best = entry, cycle
    return best_entry, best


def _fair_cycle_through(
    graph: StateGraph[K],
    facts: _LabelFacts[K],
    inside: frozenset[int],
    entry: int,
    shorter_than: int | None,
) -> list[tuple[int, int]] | None:
    """The shortest closed walk from `entry` inside a component that neglects no fairness class, if short enough.

    Breadth-first over pairs of a state and the classes still owed: those that were enabled in every state so far
    and have not been taken.
    """
    first = (entry, _enabled(graph, facts, entry))
    came_from: dict[tuple[int, int], tuple[tuple[int, int], int]] = {}
    layer = [first]
    length = 0
    while shorter_than is None or length + 1 < shorter_than:
        length += 1
        following: list[tuple[int, int]] = []
        for node in layer:
            state, owed = node
            for label, target in graph.edges_of(state):
                if not facts.is_kept[label] or target not in inside:
                    continue
                reached = (target, owed & ~facts.class_bit[label] & _enabled(graph, facts, target))
                if reached in came_from:
                    continue
                came_from[reached] = (node, label)
                if reached == (entry, 0):
                    return _walk_back(came_from, first, reached)
                following.append(reached)
        assert following, "a fair component has a fair cycle through each of its states"
        layer = following
    return None


def _walk_back(
    came_from: dict[tuple[int, int], tuple[tuple[int, int], int]], first: tuple[int, int], last: tuple[int, int]
) -> list[tuple[int, int]]:
    """The edges (label, next state) from the first pair to the last."""
    steps = []
    node = last
    while True:
        previous, label = came_from[node]
        steps.append((label, node[0]))
        if previous == first:
            break
        node = previous
    steps.reverse()
    return steps
