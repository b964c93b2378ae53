"""What an exploration reports: verdicts, violations with a path, and lassos."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from itertools import groupby
from typing import Generic

import attrs

from explorer.system import K, TransitionSystem


class Verdict(enum.StrEnum):
    """The three answers. Only `HOLDS` is a pass: a search that met a limit has not shown anything."""

    HOLDS = "holds"
    VIOLATED = "violated"
    UNKNOWN = "unknown"

    @classmethod
    def of(cls, *, found: bool, complete: bool) -> Verdict:
        """What was found counts whether or not all was looked at; finding nothing counts only if all was."""
        if found:
            return cls.VIOLATED
        return cls.HOLDS if complete else cls.UNKNOWN


@attrs.frozen
class Violation(Generic[K]):
    """A broken property and a shortest way to it.

    Attributes:
        property_id: Which property.
        message: What the system said.
        start: The initial state in which the path begins.
        path: The edges of the path as (label, next state).
        label: The label of the edge on which it happened, None for a property of the last state.
        completed: False when the system gave no successor for `label`, because the action failed: the path
            then ends in the state in which it was tried.
    """

    property_id: str
    message: str
    start: K
    path: tuple[tuple[int, K], ...]
    label: int | None = None
    completed: bool = True


@attrs.frozen
class Lasso(Generic[K]):
    """A run that goes on for ever without getting anything done.

    Attributes:
        kind: "stall" when nothing changes any more (the cycle is one edge from a state to itself, or there is no
            edge at all and the cycle is empty), else "livelock".
        start: The initial state in which the stem begins.
        stem: The edges up to the first state of the cycle, as (label, next state).
        cycle: The edges of the cycle; the last one leads back to the state where the stem ended.
    """

    kind: str
    start: K
    stem: tuple[tuple[int, K], ...]
    cycle: tuple[tuple[int, K], ...]

    @property
    def entry(self) -> K:
        """The state where the stem ends and the cycle begins."""
        return self.stem[-1][1] if self.stem else self.start


def make_lasso(start: K, stem: tuple[tuple[int, K], ...], cycle: tuple[tuple[int, K], ...]) -> Lasso[K]:
    """A lasso whose kind is read off its cycle."""
    return Lasso("stall" if len(cycle) < 2 else "livelock", start, stem, cycle)


def name_steps(steps: Iterable[tuple[int, K]], system: TransitionSystem[K]) -> str:
    """The actions of a path or cycle in words, repetitions counted: "arrive 6, step x4"."""
    parts = []
    for action, repeated in groupby(system.describe(label) for label, _ in steps):
        times = sum(1 for _ in repeated)
        parts.append(action if times == 1 else f"{action} x{times}")
    return ", ".join(parts)


def name_lasso(lasso: Lasso[K], system: TransitionSystem[K]) -> str:
    """A lasso in one line: its kind, stem and cycle with their lengths."""
    stem = f"after {len(lasso.stem)} ({name_steps(lasso.stem, system)})" if lasso.stem else "from the start"
    if not lasso.cycle:
        return f"{lasso.kind} {stem}: nothing is enabled"
    return f"{lasso.kind} {stem}: for ever {len(lasso.cycle)} ({name_steps(lasso.cycle, system)})"
