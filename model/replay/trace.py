"""The in-memory trace: sessions of turns, with prompts as hash ids (replay specification 1.0).

A hash id stands for ``block_size`` equal tokens, so a prompt is a run a block and is never expanded. Raw 64-bit ids are
interned: replaced, over the whole file, by 0, 1, 2, … in order of first use.

The output of a turn is planned before time 0: the authored ids, else ids that nothing else has (``RequestSpec.output_token``,
which draws no random numbers).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from attrs import field, frozen

from model.errors import shown
from model.replay.errors import TraceError
from model.replay.reader import U32_MAX, U64_MAX
from model.requests import Prompt, merged


def blocks_of(tokens: int, block_size: int) -> int:
    """Blocks that ``tokens`` take."""
    return -(-tokens // block_size)


@frozen
class Turn:
    """One request of a session.

    Attributes:
        name: names it in reports and is its id in an engine; unique in the trace.
        input_length, max_output_tokens: tokens.
        output_token_ids: the authored output, or None.
        replay_key: names an authored output; None without one.
        hash_ids: interned, each standing for a trace block of tokens.
        delay_after_previous_ms: from the end of the turn before it; 0 on the first.
        priority, strict_priority, policy_class: passed through; round robin placement does not look at them.
        line: where it stands in its file; 0 for a generated one.
    """

    name: str
    input_length: int
    max_output_tokens: int
    hash_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...] | None = None
    replay_key: str | None = None
    delay_after_previous_ms: float = 0.0
    priority: int = 0
    strict_priority: int = 0
    policy_class: str | None = None
    line: int = 0


@frozen
class Session:
    """Turns that follow one another.

    Attributes:
        session_id: grouping key.
        first_arrival_timestamp_ms: of the first turn; None when the trace does not say it.
        turns: at least one.
    """

    session_id: str
    first_arrival_timestamp_ms: float | None
    turns: tuple[Turn, ...]


@frozen
class Trace:
    """Sessions in order of first appearance.

    Attributes:
        block_size: tokens that a hash id stands for.
        sessions: in order of first appearance.
        accumulates: each turn brings its new input alone and is prefixed with the history of its session.
    """

    block_size: int
    sessions: tuple[Session, ...]
    accumulates: bool = field(default=False, kw_only=True)

    @property
    def requests(self) -> int:
        """Turns of all sessions."""
        return sum(len(session.turns) for session in self.sessions)

    @property
    def multi_turn(self) -> bool:
        """Some session has more than one turn."""
        return any(len(session.turns) > 1 for session in self.sessions)


class Interner:
    """Dense numbers for raw ids, in order of first use."""

    __slots__ = ("_most", "_numbers")

    def __init__(self, most: int = U32_MAX + 1) -> None:
        """An interner for at most ``most`` distinct ids."""
        self._numbers: dict[int, int] = {}
        self._most = most

    def intern(self, raw: Iterable[int], line: int | None = None) -> tuple[int, ...]:
        """The numbers of ``raw`` ids.

        Raises:
            TraceError: ``E_TOO_MANY_HASHES``.
        """
        numbers = self._numbers
        dense = tuple([numbers.setdefault(one, len(numbers)) for one in raw])
        if len(numbers) > self._most:
            allowed = f"at most {self._most} distinct ids in a file"
            raise TraceError("hash_ids", "one id more", allowed, code="E_TOO_MANY_HASHES", line=line)
        return dense


class Names:
    """Unique names: the wanted one while it is free, else the fallback, numbered when that is taken too."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        """No name is taken."""
        self._taken: set[str] = set()

    def take(self, wanted: str | None, fallback: str) -> str:
        """A name nobody has."""
        name = wanted if wanted and wanted not in self._taken else fallback
        number = 2
        while name in self._taken:
            name = f"{fallback}-{number}"
            number += 1
        self._taken.add(name)
        return name


def check_block_size(block_size: int) -> None:
    """Refuse a trace block that holds no token.

    Raises:
        TraceError: ``E_BLOCK_SIZE``.
    """
    if not 1 <= block_size <= U64_MAX:
        raise TraceError("block_size", shown(block_size), "an integer ≥ 1", code="E_BLOCK_SIZE")


def capacity_of(hash_ids: Sequence[int], block_size: int, line: int | None = None) -> int:
    """Tokens that ``hash_ids`` stand for.

    Raises:
        TraceError: ``E_OVERFLOW``.
    """
    capacity = len(hash_ids) * block_size
    if capacity > U64_MAX:
        allowed = "ids whose blocks together count below 2**64 tokens"
        raise TraceError("hash_ids", f"{len(hash_ids)} ids of {block_size} tokens", allowed, code="E_OVERFLOW", line=line)
    return capacity


def check_capacity(input_length: int, hash_ids: Sequence[int], block_size: int, line: int | None = None) -> None:
    """Refuse a prompt longer than its hash ids.

    Raises:
        TraceError: ``E_OVERFLOW`` or ``E_CAPACITY``.
    """
    capacity = capacity_of(hash_ids, block_size, line)
    if input_length > capacity:
        allowed = f"at most {capacity} ({len(hash_ids)} hash ids of {block_size} tokens)"
        raise TraceError("input_length", shown(input_length), allowed, code="E_CAPACITY", line=line)


def prompt_of(hash_ids: Sequence[int], block_size: int, input_length: int) -> Prompt:
    """Each hash id repeated ``block_size`` times, cut to ``input_length`` tokens.

    Raises:
        TraceError: ``E_BLOCK_SIZE``, ``E_OVERFLOW`` or ``E_CAPACITY``.
    """
    check_block_size(block_size)
    check_capacity(input_length, hash_ids, block_size)
    full, rest = divmod(input_length, block_size)
    runs = [(one, block_size) for one in hash_ids[:full]]
    if rest:
        runs.append((hash_ids[full], rest))
    return Prompt(merged(runs))


def validate(trace: Trace, *, arrivals: bool) -> None:
    """The checks of the public file entry, after normalising and speed-up (1.1).

    Args:
        trace: as it would be driven.
        arrivals: first arrivals count, so each session needs one.

    Raises:
        TraceError: ``E_NO_FIRST_TS``, ``E_BAD_FIRST`` or ``E_ZERO_INPUT``, naming the session (and turn).
    """
    for session in trace.sessions:
        start = session.first_arrival_timestamp_ms
        subject = f"session {session.session_id}"
        line = session.turns[0].line or None
        if start is None and arrivals:
            raise TraceError("timestamp", "nothing", "a number", code="E_NO_FIRST_TS", line=line, subject=subject)
        if start is not None and not (math.isfinite(start) and start >= 0):
            allowed = "a finite number ≥ 0"
            raise TraceError("timestamp", shown(start), allowed, code="E_BAD_FIRST", line=line, subject=subject)
        check_inputs(session)


def check_inputs(session: Session) -> None:
    """Refuse a turn without input: no engine takes a prompt of no token.

    Raises:
        TraceError: ``E_ZERO_INPUT``, naming the session and the turn.
    """
    for number, turn in enumerate(session.turns):
        if not turn.input_length:
            subject = f"session {session.session_id} turn {number}"
            raise TraceError("input_length", "0", "an integer ≥ 1", code="E_ZERO_INPUT", line=turn.line or None, subject=subject)
