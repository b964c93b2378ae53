"""Round-robin placement (replay specification 5.6): which worker, and which of its ranks, gets a request. It never queues."""

from __future__ import annotations

from collections.abc import Collection

from model.errors import BadInput, shown


class RoundRobin:
    """The position in the sorted list of workers is kept, not the worker; each worker has a rank counter of its own."""

    __slots__ = ("_next", "_ranks", "dp_size")

    def __init__(self, dp_size: int = 1) -> None:
        """A placement over workers with ``dp_size`` ranks."""
        self.dp_size = dp_size
        self._next = 0
        self._ranks: dict[int, int] = {}

    def place(self, workers: Collection[int], rank: int | None = None) -> tuple[int, int]:
        """The worker and rank of the next request; a given ``rank`` leaves the rank counter alone.

        Raises:
            BadInput: without a worker, or for a rank that does not exist; no counter has moved then.
        """
        if not workers:
            raise BadInput("workers", "none", "at least one worker")
        if rank is not None and not 0 <= rank < self.dp_size:
            raise BadInput("dp_rank", shown(rank), f"an integer from 0 to {self.dp_size - 1}")
        index = self._next % len(workers)
        worker = sorted(workers)[index]
        self._next = index + 1
        if rank is None:
            rank = self._ranks.get(worker, 0)
            self._ranks[worker] = (rank + 1) % self.dp_size
        return worker, rank
