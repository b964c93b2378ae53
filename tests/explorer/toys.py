"""Small systems for the explorer's tests: graphs given as a table of labelled edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from explorer import BaseSystem, Problem
from explorer.system import K

Edges = Mapping[K, Sequence[tuple[int, K]]]
N = TypeVar("N")


class Table(BaseSystem[K]):
    """A system whose edges are a table. Labels named `progress` are progress, `fair` gives fairness classes by label."""

    def __init__(
        self,
        edges: Edges[K],
        *,
        initial: Iterable[K],
        goals: Iterable[K] = (),
        progress: Iterable[int] = (),
        fair: Mapping[int, int] | None = None,
        problems_at: Mapping[K, Sequence[Problem]] | None = None,
        drain_labels: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.edges = edges
        self.initial = tuple(initial)
        self.goals = frozenset(goals)
        self.progress = frozenset(progress)
        self.fair = fair or {}
        self.problems_at = problems_at or {}
        self.drain_labels = drain_labels
        self.drained: list[K] = []

    def initial_states(self) -> Iterable[K]:
        return self.initial

    def successors(self, state: K) -> Iterable[tuple[int, K]]:
        self.problems.extend(self.problems_at.get(state, ()))
        return self.edges.get(state, ())

    def is_progress(self, label: int) -> bool:
        return label in self.progress

    def fairness(self, label: int) -> int | None:
        return self.fair.get(label)

    def is_goal(self, state: K) -> bool:
        return state in self.goals

    def drain(self, state: K) -> tuple[int, K] | None:
        self.drained.append(state)
        for label, target in self.edges.get(state, ()):
            if self.drain_labels is None or label in self.drain_labels:
                return label, target
        return None


def chain(length: int) -> dict[int, list[tuple[int, int]]]:
    """0 -> 1 -> … -> length, all edges labelled 0."""
    return {state: [(0, state + 1)] for state in range(length)}


def grid(size: int) -> dict[tuple[int, int], list[tuple[int, tuple[int, int]]]]:
    """A square in which label 0 counts the first coordinate up and label 1 the second."""
    return {
        (x, y): [(label, to) for label, to in ((0, (x + 1, y)), (1, (x, y + 1))) if max(to) < size]
        for x in range(size)
        for y in range(size)
    }
