"""What the tiers tell about one action, as details of ``StepReport.notes``.

The kind of a note is the ``kind`` of its class, and ``str`` gives it in words. Blocks are identities; requests are ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import frozen

from model.actions import Nanoseconds
from model.events import StepReport, block_names


def named(blocks: tuple[int, ...]) -> str:
    """Blocks as a reader sees them."""
    return ", ".join(block_names(blocks))


@frozen
class Evicted:
    """A block lost its place in host memory.

    Attributes:
        block: the block.
        cause: ``promotion`` or ``store``: what its place was wanted for.
        by: the request it was wanted for.
    """

    kind: ClassVar[str] = "evicted"
    block: int
    cause: str
    by: str

    def __str__(self) -> str:
        """The note in words."""
        return f"h{self.block} leaves host memory for a {self.cause} of {self.by}"


@frozen
class Promoted:
    """A disk read into host memory began for a waiting request."""

    kind: ClassVar[str] = "promoted"
    request: str
    blocks: tuple[int, ...]

    def __str__(self) -> str:
        """The note in words."""
        return f"{self.request} waits for {named(self.blocks)} from disk"


@frozen
class CapacityRetry:
    """Host memory had no room; nothing was changed.

    Attributes:
        request: who asked.
        blocks: the blocks that were missing.
        unfittable: more blocks were asked for than host memory holds.
        cause: ``promotion`` or ``store``.
    """

    kind: ClassVar[str] = "capacity-retry"
    request: str
    blocks: tuple[int, ...]
    unfittable: bool
    cause: str

    def __str__(self) -> str:
        """The note in words."""
        why = "more than it holds" if self.unfittable else "no room now"
        return f"host memory refuses a {self.cause} of {named(self.blocks)} for {self.request}: {why}"


@frozen
class StorePrepared:
    """A copy from GPU to host was set up; it begins at the end of the pass."""

    kind: ClassVar[str] = "store-prepared"
    request: str
    blocks: tuple[int, ...]

    def __str__(self) -> str:
        """The note in words."""
        return f"{named(self.blocks)} of {self.request} will be copied to host memory"


@frozen
class StoreSubmitted:
    """A copy from GPU to host was queued on its lane, to end at ``due_ns``."""

    kind: ClassVar[str] = "store-submitted"
    request: str
    blocks: tuple[int, ...]
    due_ns: Nanoseconds

    def __str__(self) -> str:
        """The note in words."""
        return f"{named(self.blocks)} on the way to host memory"


@frozen
class StoreCompleted:
    """A copy from GPU to host ended; its blocks are resident."""

    kind: ClassVar[str] = "store-completed"
    request: str
    blocks: tuple[int, ...]

    def __str__(self) -> str:
        """The note in words."""
        return f"{named(self.blocks)} copied to host memory"


@frozen
class LoadQueued:
    """A copy from host to GPU was queued on its lane, to end at ``due_ns``."""

    kind: ClassVar[str] = "load-queued"
    request: str
    blocks: tuple[int, ...]
    due_ns: Nanoseconds

    def __str__(self) -> str:
        """The note in words."""
        return f"{self.request} waits for {named(self.blocks)} from host memory"


@frozen
class LoadCompleted:
    """A copy from host to GPU ended."""

    kind: ClassVar[str] = "load-completed"
    request: str
    blocks: tuple[int, ...]

    def __str__(self) -> str:
        """The note in words."""
        return f"{self.request} has {named(self.blocks)} from host memory"


@frozen
class LoadCancelled:
    """A copy from host to GPU was withdrawn with its request."""

    kind: ClassVar[str] = "load-cancelled"
    request: str
    blocks: tuple[int, ...]

    def __str__(self) -> str:
        """The note in words."""
        return f"{named(self.blocks)} no longer on the way from host memory to {self.request}"


@frozen
class DiskWriteBegan:
    """Blocks that reached host memory are written to disk."""

    kind: ClassVar[str] = "disk-write-began"
    blocks: tuple[int, ...]

    def __str__(self) -> str:
        """The note in words."""
        return f"{named(self.blocks)} on the way to disk"


@frozen
class DiskJobEnded:
    """A disk read or write of this worker ended."""

    kind: ClassVar[str] = "disk-job-ended"
    reading: bool
    blocks: tuple[int, ...]

    def __str__(self) -> str:
        """The note in words."""
        return f"{named(self.blocks)} {'read from' if self.reading else 'written to'} disk"


Note = (
    Evicted
    | Promoted
    | CapacityRetry
    | StorePrepared
    | StoreSubmitted
    | StoreCompleted
    | LoadQueued
    | LoadCompleted
    | LoadCancelled
    | DiskWriteBegan
    | DiskJobEnded
)

Journal = list[tuple[str, Any]]
"""The notes of a report, in the order of what they tell."""


def note(journal: Journal, told: Note) -> None:
    """Append a note."""
    journal.append((told.kind, told))


def notes_of(report: StepReport, *kinds: type[Note]) -> Sequence[Any]:
    """The notes of the given classes in a report, in order."""
    return [told for _, told in report.notes if isinstance(told, kinds)]
