"""Breadth-first search of a transition system into a `StateGraph`, judging as it goes.

Breadth first, so that states are met by shortest paths and a counterexample is one. The queue is the list of states itself
and the visited set a dictionary from state to number, dropped at the end: what is left is the flat graph. The
inner loop makes no container per state beyond what the system makes; limits, the clock and the progress report are
looked at between chunks of states only.

The result is the same on every run: it depends on the order of successors alone, never on a hash. The one exception
is where a limit on seconds or on memory, or an interrupt, cuts the search off.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections.abc import Callable
from sys import getsizeof
from typing import Any, Generic

import attrs

from explorer.drain import WALK_LIMIT, DrainCycle, DrainWatch, extend_to_lasso
from explorer.findings import Lasso, Verdict, Violation
from explorer.graph import StateGraph
from explorer.system import LABEL_LIMIT, K, Problem, TransitionSystem

CHUNK_STATES = 256
"""States expanded between two looks at the limits, at most."""

CHUNK_SECONDS = 0.1
"""What a chunk may take: slow systems get smaller chunks, so that limits in seconds are kept."""

INDEX_INT_BYTES = 32
"""One integer object a state in the visited dictionary, as CPython's allocator rounds it."""

MAX_DRAIN_LASSOS = 16
"""Cycles kept of those that draining meets on the way."""


def _positive(instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and value <= 0:
        raise ValueError(f"{attribute.name} must be greater than 0 or None (no limit), not {value!r}")


@attrs.frozen(kw_only=True)
class Limits:
    """Where a search gives up, each None for no limit. A search that meets one answers "unknown", never "holds".

    Attributes:
        states: States kept. Exact and repeatable: the search ends before the state whose expansion would exceed
            it, and a system with exactly that many states is explored to the end.
        memory_bytes: Estimated memory of the search; see `SearchResult.memory_bytes`.
        seconds: Elapsed time.
    """

    states: int | None = attrs.field(default=None, validator=_positive)
    memory_bytes: int | None = attrs.field(default=None, validator=_positive)
    seconds: float | None = attrs.field(default=None, validator=_positive)


@attrs.frozen
class Progress:
    """How far a running search has come."""

    states: int
    expanded: int
    transitions: int
    depth: int
    seconds: float


@attrs.frozen(eq=False)
class SearchResult(Generic[K]):
    """What a search has shown, complete or not.

    Attributes:
        verdict: `VIOLATED` when anything was found, else `HOLDS` if every reachable state was expanded and every
            drain asked for has ended, else `UNKNOWN`. It speaks of what the system judges and of drains; stalls
            and livelocks are looked for in the graph afterwards.
        reason: Why the search is incomplete, None when it is complete.
        states: Distinct states found.
        transitions: Edges found.
        depth: Greatest distance of a state from the initial states.
        seconds: Elapsed time.
        memory_bytes: Largest estimate: the sizes of the arrays, of the list of states and of the visited dictionary as
            `sys.getsizeof` gives them, 32 bytes a state for its number, and the size of the states
            from a sample of one in sixteen (`getsizeof`, so what a tuple refers to is not counted).
        violations: One for each property broken, the shortest, in the order of their discovery.
        drain_lassos: Cycles that draining ran into, at most `MAX_DRAIN_LASSOS`; empty when draining was not asked for.
        first_drain_states: How many states had been drained when the first of them was met; None without one.
        graph: The states and edges found.
    """

    verdict: Verdict
    reason: str | None
    states: int
    transitions: int
    depth: int
    seconds: float
    memory_bytes: int
    violations: tuple[Violation[K], ...]
    drain_lassos: tuple[Lasso[K], ...]
    first_drain_states: int | None
    graph: StateGraph[K] = attrs.field(repr=False)

    @property
    def is_complete(self) -> bool:
        """Whether every reachable state was expanded."""
        return self.graph.is_complete


def explore(
    system: TransitionSystem[K],
    *,
    limits: Limits | None = None,
    stop_at_first: bool = False,
    drain: bool = False,
    walk_limit: int = WALK_LIMIT,
    progress: Callable[[Progress], None] | None = None,
    progress_seconds: float = 0.5,
) -> SearchResult[K]:
    """Explore all states reachable from the initial ones, or as many as the limits allow.

    Args:
        system: What to explore.
        limits: When to give up; without, never.
        stop_at_first: Stop after the state whose expansion showed the first violation or drain cycle. Otherwise the
            first (shortest) violation of each property is recorded and the search goes on. The one violation of an
            early stop can be one edge longer than the shortest, as edges are judged before the states they lead to.
        drain: Also drain each state as it is discovered, see `explorer.drain`. About doubles the work.
        walk_limit: Longest drain followed, in edges.
        progress: Called with a `Progress` now and then.
        progress_seconds: Least time between two such calls.

    Raises:
        ValueError: No initial state, or a label outside what the system declares.

    `KeyboardInterrupt` ends the search with what has been found so far; other exceptions of the system pass through.
    """
    search = _Search(system, limits or Limits(), DrainWatch(system, walk_limit=walk_limit) if drain else None)
    try:
        reason = search.run(stop_at_first, progress, progress_seconds)
    except KeyboardInterrupt:
        reason = "interrupted"
    return search.result(reason)


@attrs.frozen
class _Sighting:
    """A problem and where it was seen: in a state, or (with `edge`) on an edge out of it."""

    problem: Problem
    expanding: int  # The state whose expansion showed it, -1 for `initial_states`.
    state: int
    edge: int | None


class _Search(Generic[K]):
    """The growing graph and what was found on the way."""

    def __init__(self, system: TransitionSystem[K], limits: Limits, watch: DrainWatch[K] | None) -> None:
        self.began = time.perf_counter()
        self.system = system
        self.limits = limits
        self.watch = watch
        self.label_limit: int = getattr(system, "label_limit", LABEL_LIMIT)
        self.keys: list[K] = []
        self.index: dict[K, int] = {}
        self.initial = 0
        self.parents = array("I")
        self.offsets = array("I", [0])
        self.targets = array("I")
        self.labels = array("B" if self.label_limit <= 2**8 else "H" if self.label_limit <= 2**16 else "I")
        # By property and whether it is the state's own. Both are kept, because a state's own problem, seen later at
        # the same depth, has a path one edge shorter than that of a problem on an edge.
        self.sightings: dict[tuple[str, bool], _Sighting] = {}
        self.drain_cycles: list[tuple[int, DrainCycle[K]]] = []
        self.sampled_states = 0
        self.sampled_bytes = 0
        self.memory_bytes_max = 0

    def run(self, stop_at_first: bool, progress: Callable[[Progress], None] | None, progress_seconds: float) -> str | None:
        """Search until done (None) or stopped (why)."""
        self._add_initial_states()
        done = depth = 0
        level_end = self.initial
        chunk_states = 1
        reported = before = time.perf_counter()
        while done < len(self.keys):
            if stop_at_first and (self.sightings or self.drain_cycles):
                return "stopped at the first violation"
            if done == level_end:
                depth += 1
                level_end = len(self.keys)
            self._expand(range(done, min(done + chunk_states, level_end)), stop_at_first)
            now = time.perf_counter()
            seconds_per_state = (now - before) / (self._expanded - done)
            chunk_states = int(min(CHUNK_STATES, max(1, CHUNK_SECONDS / max(seconds_per_state, 1e-9))))
            before = now
            done = self._expanded
            reason = self._limit_met(now)
            if reason is not None:
                return reason
            if progress is not None and now - reported >= progress_seconds:
                reported = now
                progress(Progress(len(self.keys), done, len(self.targets), depth, now - self.began))
        return None

    @property
    def _expanded(self) -> int:
        return len(self.offsets) - 1

    def _add_initial_states(self) -> None:
        self.system.problems.clear()
        numbers = []
        for state in self.system.initial_states():
            number = self.index.setdefault(state, len(self.keys))
            if number == len(self.keys):
                self.keys.append(state)
                self.parents.append(0)
            numbers.append(number)
        if not numbers:
            raise ValueError("the system gives no initial state; at least one is needed")
        self.initial = len(self.keys)
        for problem in self.system.problems:
            position = problem.successor or 0
            if not 0 <= position < len(numbers):
                raise ValueError(f"{problem} names initial state {position}; there are {len(numbers)}")
            self._see(_Sighting(problem, -1, numbers[position], None))
        self.system.problems.clear()
        self._drain(range(self.initial))

    def _expand(self, states: range, stop_at_first: bool) -> None:
        """Add the edges of some states, and the states they discover. This is the inner loop."""
        keys = self.keys
        successors = self.system.successors
        problems = self.system.problems
        number_of = self.index.setdefault
        add_key = keys.append
        add_parent = self.parents.append
        targets = self.targets
        add_target = targets.append
        add_label = self.labels.append
        add_offset = self.offsets.append
        draining = self.watch is not None
        count = len(keys)
        label = -1
        try:
            for state in states:
                known = count
                for label, following in successors(keys[state]):
                    target = number_of(following, count)
                    if target == count:
                        count += 1
                        add_key(following)
                        add_parent(state)
                    add_target(target)
                    add_label(label)
                add_offset(len(targets))
                if problems:
                    self._judge(state)
                if draining:
                    self._drain(range(known, count))
                if stop_at_first and (self.sightings or self.drain_cycles):
                    return
        except OverflowError as error:
            if 0 <= label < self.label_limit:
                raise
            allowed = f"labels must be from 0 to {self.label_limit - 1}"
            raise ValueError(f"successors of {keys[state]!r} gave label {label}; {allowed}") from error

    def _judge(self, state: int) -> None:
        """Take over the problems that the expansion of a state has shown."""
        problems = self.system.problems
        for problem in problems:
            if (problem.property_id, problem.label is None) not in self.sightings:
                self._see(_Sighting(problem, state, state, self._edge_of(problem, state)))
        problems.clear()

    def _see(self, sighting: _Sighting) -> None:
        problem = sighting.problem
        self.sightings.setdefault((problem.property_id, problem.label is None), sighting)

    def _edge_of(self, problem: Problem, state: int) -> int | None:
        """The edge out of a state on which a problem was seen, None for the state's own or without such an edge."""
        if problem.label is None:
            return None
        first, last = self.offsets[state], self.offsets[state + 1]
        if problem.successor is not None:
            if not 0 <= problem.successor < last - first:
                raise ValueError(f"{problem} names successor {problem.successor}; there are {last - first}")
            return first + problem.successor
        return next((edge for edge in range(first, last) if self.labels[edge] == problem.label), None)

    def _drain(self, states: range) -> None:
        watch = self.watch
        if watch is None:
            return
        for state in states:
            found = watch.visit(self.keys[state])
            if found is not None and len(self.drain_cycles) < MAX_DRAIN_LASSOS:
                self.drain_cycles.append((state, found))

    def _limit_met(self, now: float) -> str | None:
        """Which limit, if any, ends the search here."""
        limits = self.limits
        if limits.states is not None and len(self.keys) > limits.states:
            # Back to the last expansion that kept within the limit, wherever the chunk ended.
            self._take_back_to(self.parents[limits.states] if limits.states >= self.initial else 0)
            return f"limit of {limits.states} states"
        if self._expanded == len(self.keys):
            return None
        if limits.memory_bytes is not None and self._measure_memory() > limits.memory_bytes:
            return f"limit of {limits.memory_bytes} bytes"
        if limits.seconds is not None and now - self.began > limits.seconds:
            return f"limit of {limits.seconds} seconds"
        return None

    def _measure_memory(self) -> int:
        """Estimate the memory in use, in bytes, and remember the largest estimate."""
        sample = self.keys[self.sampled_states :: 16]
        self.sampled_states += 16 * len(sample)
        self.sampled_bytes += 16 * sum(map(getsizeof, sample))
        containers = (self.keys, self.index, self.parents, self.offsets, self.targets, self.labels)
        estimate = sum(map(getsizeof, containers)) + INDEX_INT_BYTES * len(self.keys) + self.sampled_bytes
        self.memory_bytes_max = max(self.memory_bytes_max, estimate)
        return estimate

    def _take_back_to(self, expanded: int) -> None:
        """Forget every expansion from the given state on, finished or not, with what it alone has found."""
        del self.offsets[expanded + 1 :]  # First, so that an interrupt from here on leaves only what a second call removes.
        edges = self.offsets[-1]
        del self.targets[edges:]
        del self.labels[edges:]
        states = bisect_left(self.parents, expanded, lo=self.initial)
        del self.parents[states:]
        del self.keys[states:]
        self.sightings = {key: seen for key, seen in self.sightings.items() if seen.expanding < expanded}
        self.drain_cycles = [(state, found) for state, found in self.drain_cycles if state < states]

    def result(self, reason: str | None) -> SearchResult[K]:
        """Close the search, whatever ended it."""
        self.system.problems.clear()
        self._take_back_to(self._expanded)
        self._measure_memory()
        self.index.clear()
        graph = StateGraph(self.keys, self.initial, self.parents, self.offsets, self.targets, self.labels)
        violations = self._violations(graph)
        lassos = tuple(extend_to_lasso(graph, state, found) for state, found in self.drain_cycles)
        if reason is None and self.watch is not None and self.watch.unfinished:
            reason = f"{self.watch.unfinished} drains did not end within the walk limit"
        return SearchResult(
            verdict=Verdict.of(found=bool(violations or lassos), complete=reason is None),
            reason=reason,
            states=len(graph),
            transitions=graph.transitions,
            depth=graph.depth,
            seconds=time.perf_counter() - self.began,
            memory_bytes=self.memory_bytes_max,
            violations=violations,
            drain_lassos=lassos,
            first_drain_states=self.drain_cycles[0][0] + 1 if self.drain_cycles else None,
            graph=graph,
        )

    def _violations(self, graph: StateGraph[K]) -> tuple[Violation[K], ...]:
        """The shortest violation of each property, in the order in which the properties were first seen broken."""
        shortest: dict[str, Violation[K]] = {}
        for sighting in self.sightings.values():
            problem = sighting.problem
            start, path = graph.path_to(sighting.state)
            if sighting.edge is not None:
                path = (*path, (graph.labels[sighting.edge], graph.keys[graph.targets[sighting.edge]]))
            completed = problem.label is None or sighting.edge is not None
            found = Violation(problem.property_id, problem.message, start, path, problem.label, completed)
            best = shortest.get(problem.property_id)
            if best is None or len(found.path) < len(best.path):
                shortest[problem.property_id] = found
        return tuple(shortest.values())
