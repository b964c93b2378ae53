"""What an engine tells about one action: KV events, admissions, preemptions, signals, and the report that holds them.

Nobody changes a part of a report once it is in there. Those made for every request in every pass are plain attrs classes all the
same, since a frozen one takes several times as long to make.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import define, field, frozen

from model.actions import Action, Nanoseconds


@frozen
class Stored:
    """Blocks became reusable.

    Attributes:
        parent: identity of the block before the first one; 0 for none.
        blocks: identities, each the child of the one before it.
        tier: where they are cached: ``gpu``, ``host`` or ``disk``.
    """

    parent: int
    blocks: tuple[int, ...]
    tier: str = "gpu"


@frozen
class Removed:
    """Blocks are no longer reusable: the last copy of each was evicted."""

    blocks: tuple[int, ...]
    tier: str = "gpu"


KvEvent = Stored | Removed

DEFERRED = "deferred"
"""Kind of a note: the pass put prefills off on purpose; its details are the passes still to come of the same kind."""


@define(unsafe_hash=True)
class Admission:
    """A waiting request began to run.

    Attributes:
        id: the request.
        reused: tokens of it found in the prefix cache.
        first: it had never been admitted before.
        host_tokens: of ``reused``, the tokens that came from the host tier.
    """

    id: str
    reused: int
    first: bool = True
    host_tokens: int = 0


@frozen
class Preemption:
    """A running request lost its blocks (SGLang: was retracted).

    Attributes:
        victim: the request.
        cause: the request whose blocks could not be found, or None when a whole batch was short.
        phase: ``schedule`` (blocks for the tokens of this pass) or ``emission`` (room for the tokens about to be produced).
        needed: fresh blocks asked for.
        free: blocks free at that moment, evictable ones included.
        requests: the requests that the needed blocks were for.
    """

    victim: str
    cause: str | None
    phase: str
    needed: int
    free: int
    requests: tuple[str, ...] = ()


@define(unsafe_hash=True)
class Signal:
    """One output of a pass.

    Attributes:
        id: the request.
        token: a token came with it.
        completed: nothing follows for this request.
        rejected: the request was refused.
        handoff_delay_ns: with the last one of a prefill worker, how long its KV takes to the next worker; None if unknown.
    """

    id: str
    token: bool
    completed: bool
    rejected: bool = False
    handoff_delay_ns: Nanoseconds | None = None


@define(unsafe_hash=True)
class Work:
    """What a pass did for one request.

    Attributes:
        id: the request.
        total: tokens whose KV was computed.
        prompt_tokens: of these, prompt tokens.
        prefix_tokens: prompt tokens that were there before this pass.
        terminal: the request was complete when it was scheduled.
        prompt: prompt length.
        length: sequence length when it was scheduled.
        generated: tokens it had produced when it was scheduled.
    """

    id: str
    total: int
    prompt_tokens: int
    prefix_tokens: int
    terminal: bool
    prompt: int
    length: int
    generated: int


@define
class StepReport:
    """All that one action did. Filled while the action runs; to be read only once it is returned.

    Attributes:
        action: what was asked.
        worker: the engine of a system that did it.
        is_pass: the action ran a scheduler pass.
        start_ns, end_ns: virtual time before and after.
        work: work of the pass, by request; what a later preemption in the same pass undid is not in it.
        admissions, preemptions, signals, events: in the order in which they happened.
        cancelled: requests withdrawn.
        handed_over: requests that completed here and whose KV is kept for another worker, where they go on.
        accept_tokens, accept_forwards: accepted and base tokens of decode forwards before any output limit, and how many
            such forwards there were.
        decode_batch: requests of the decode forward whose time was charged.
        costs: ghost counts of this action, by name.
        notes: anything else worth telling, as (kind, details) with details in words or numbers.
    """

    action: Action
    worker: int = 0
    is_pass: bool = False
    start_ns: Nanoseconds = 0
    end_ns: Nanoseconds = 0
    work: dict[str, Work] = field(factory=dict)
    admissions: list[Admission] = field(factory=list)
    preemptions: list[Preemption] = field(factory=list)
    signals: list[Signal] = field(factory=list)
    events: list[KvEvent] = field(factory=list)
    cancelled: list[str] = field(factory=list)
    handed_over: list[str] = field(factory=list)
    accept_tokens: int = 0
    accept_forwards: int = 0
    decode_batch: int = 0
    costs: dict[str, int] = field(factory=dict)
    notes: list[tuple[str, Any]] = field(factory=list)

    @property
    def scheduled(self) -> dict[str, int]:
        """Tokens whose KV was computed, by request."""
        return {work.id: work.total for work in self.work.values()}

    @property
    def emitted(self) -> dict[str, int]:
        """Tokens produced, by request."""
        counts: dict[str, int] = {}
        for signal in self.signals:
            if signal.token:
                counts[signal.id] = counts.get(signal.id, 0) + 1
        return counts

    @property
    def finished(self) -> list[str]:
        """Requests that completed and were not refused."""
        return [signal.id for signal in self.signals if signal.completed and not signal.rejected]

    @property
    def rejected(self) -> list[str]:
        """Requests that were refused."""
        return [signal.id for signal in self.signals if signal.rejected]

    @property
    def made_progress(self) -> bool:
        """A token came out, or a request ended."""
        return bool(self.signals or self.cancelled)

    @property
    def had_effect(self) -> bool:
        """The pass did anything at all: time, work, admission, preemption or signal."""
        return bool(
            self.signals or self.work or self.preemptions or self.admissions or self.cancelled or self.end_ns != self.start_ns
        )


def block_names(blocks: Iterable[int]) -> list[str]:
    """Block identities as a reader sees them."""
    return [f"h{block}" for block in blocks]
