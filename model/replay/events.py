"""The event queue of the loop (replay specification 5.2), in both orders that are stored for equal times.

``identity`` (the written contract): kind of event, then what it is about, so the order of insertion never shows. ``insertion``:
work before telemetry before scaling, then as inserted.
"""

from __future__ import annotations

import heapq
from typing import Any

from attrs import frozen

from model.replay.order import order_key

STAGES = ("aggregated", "prefill", "decode")
IDENTITY = "identity"
INSERTION = "insertion"
ORDERS = (IDENTITY, INSERTION)


@frozen
class PassDone:
    """A pass of a worker ends."""

    worker: int
    pass_id: int
    stage: str = "aggregated"
    rank = (0, 0)
    idle = False

    def identity(self) -> tuple[int, ...]:
        """Stage, worker, pass."""
        return (STAGES.index(self.stage), self.worker, self.pass_id)


@frozen
class WorkerReady:
    """A worker begins to take requests."""

    worker: int
    stage: str = "aggregated"
    rank = (1, 0)
    idle = True

    def identity(self) -> tuple[int, ...]:
        """Stage, worker."""
        return (STAGES.index(self.stage), self.worker)


@frozen
class TransferDone:
    """A hand-off has arrived."""

    handoff: int
    rank = (2, 0)
    idle = False

    def identity(self) -> tuple[int, ...]:
        """The hand-off."""
        return (self.handoff,)


@frozen
class InterruptionDue:
    """A request is withdrawn or fails from outside, ``number`` in the list of those planned; an addition of ours.

    Idle: while its request lives the cluster is not empty, and afterwards there is nothing to interrupt.
    """

    number: int
    rank = (2, 0)
    idle = True

    def identity(self) -> tuple[int, ...]:
        """Its position."""
        return (self.number,)


@frozen
class Telemetry:
    """A sample is due."""

    rank = (3, 1)
    idle = True

    def identity(self) -> tuple[int, ...]:
        """There is one."""
        return ()


@frozen
class Scaling:
    """The scaling policy looks at the traffic of the window that ends."""

    rank = (4, 2)
    idle = True

    def identity(self) -> tuple[int, ...]:
        """There is one."""
        return ()


Event = PassDone | WorkerReady | TransferDone | InterruptionDue | Telemetry | Scaling
TICKS = (Telemetry, Scaling)


class EventQueue:
    """Events by time, then by the chosen order."""

    __slots__ = ("_by_identity", "_heap", "_inserted", "inspected")

    def __init__(self, order: str = IDENTITY) -> None:
        """An empty queue. ``rank`` of an event holds its kind for ``identity`` and for ``insertion``."""
        self._by_identity = order == IDENTITY
        self._heap: list[tuple[Any, ...]] = []
        self._inserted = 0
        self.inspected = 0
        """Ghost count: events that tests for work looked at."""

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, time: float, event: Event) -> None:
        """Plan ``event``."""
        self._inserted += 1
        if self._by_identity:
            key: tuple[Any, ...] = (order_key(time), event.rank[0], event.identity(), self._inserted)
        else:
            key = (order_key(time), event.rank[1], self._inserted)
        heapq.heappush(self._heap, (*key, time, event))

    @property
    def next_time(self) -> float | None:
        """When the first event is due."""
        return self._heap[0][-2] if self._heap else None

    def next_time_of_work(self, *ignored: type) -> float | None:
        """When the first event is due that is none of ``ignored``."""
        times = [entry[-2] for entry in self._heap if not isinstance(entry[-1], ignored)]
        return min(times) if times else None

    def due(self, now: float, kind: type | tuple[type, ...]) -> bool:
        """The first event is due exactly now, and of this kind."""
        return bool(self._heap) and self._heap[0][-2] == now and isinstance(self._heap[0][-1], kind)

    def pop(self) -> Event:
        """Take the first event out."""
        event: Event = heapq.heappop(self._heap)[-1]
        return event

    def only_idle(self) -> bool:
        """Nothing is planned but what happens to idle systems too."""
        for entry in self._heap:
            self.inspected += 1
            if not entry[-1].idle:
                return False
        return True
