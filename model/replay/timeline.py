"""Samples of a run for a plot: a bounded number, spread over its whole length whatever that is."""

from __future__ import annotations

from attrs import frozen

LIMIT = 256
"""Most samples kept. When they are reached every second one is dropped, and the interval doubles."""


@frozen
class TimelinePoint:
    """The system at one instant.

    Attributes:
        time_ms: virtual time.
        arrived, ended, preemptions: totals so far.
        waiting, running: requests, over all workers.
        active_blocks, cached_blocks: blocks held by requests, and cached ones that nobody holds, over all workers.
    """

    time_ms: float
    arrived: int
    ended: int
    waiting: int
    running: int
    active_blocks: int
    cached_blocks: int
    preemptions: int


class Timeline:
    """See the module docstring."""

    __slots__ = ("_interval_ms", "_next_ms", "points")

    def __init__(self, span_ms: float) -> None:
        """No sample yet; ``span_ms``: the length that the run has at least, 0 when unknown."""
        self.points: list[TimelinePoint] = []
        self._interval_ms = span_ms / (LIMIT / 2)
        self._next_ms = 0.0

    def due(self, now: float) -> bool:
        """A sample is due."""
        return now >= self._next_ms

    def add(self, point: TimelinePoint) -> None:
        """Keep a sample."""
        self.points.append(point)
        if len(self.points) >= LIMIT:
            del self.points[1::2]
            self._interval_ms = max(self._interval_ms * 2, point.time_ms / (LIMIT / 2))
        self._next_ms = point.time_ms + self._interval_ms
