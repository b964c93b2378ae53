"""The token history of a session in delta mode, kept as runs, with the capacity that a buffer of tokens would have retained.

Capacity is a ghost: elements of 4 bytes that the buffer holds on to, whatever its length (replay specification 7.7).
"""

from __future__ import annotations

from collections.abc import Iterable

from model.requests import Prompt, Run


class History:
    """A growing buffer of tokens."""

    __slots__ = ("_runs", "capacity", "length")

    def __init__(self, capacity: int) -> None:
        """An empty buffer with room for ``capacity`` tokens."""
        self._runs: list[Run] = []
        self.length = 0
        self.capacity = capacity

    def extend(self, runs: Iterable[Run]) -> None:
        """Append tokens; beyond its capacity the buffer grows to what it holds."""
        whole = self._runs
        for token, count in runs:
            if whole and whole[-1][0] == token:
                whole[-1] = (token, whole[-1][1] + count)
            else:
                whole.append((token, count))
            self.length += count
        self.capacity = max(self.capacity, self.length)

    def prompt(self) -> Prompt:
        """A copy of what it holds."""
        return Prompt(tuple(self._runs))

    def clear(self) -> None:
        """Forget the tokens and keep the buffer."""
        self._runs = []
        self.length = 0

    def release(self) -> None:
        """Forget the tokens and give the buffer back."""
        self.clear()
        self.capacity = 0
