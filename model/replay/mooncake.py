"""Mooncake JSON Lines (replay specification 1.1, 1.2): one request a line, sessions by ``session_id``.

The checks of a row, in order: parse, hash ids, overflow, capacity, output, plan, delay. The first bad line ends the load.
``mooncake-delta`` is the same file with another meaning: follow-up rows bring their new input alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from attrs import define, field

from model.errors import shown
from model.replay.errors import TraceError
from model.replay.reader import I32, NUMBER, TEXT, U32, U32_LIST, U64, U64_LIST, Field, named, read_record
from model.replay.trace import Interner, Names, Session, Trace, Turn, capacity_of, check_block_size, check_capacity

FIELDS = (
    Field("request_id", TEXT),
    Field("session_id", TEXT),
    Field("input_length", U64, "input_tokens"),
    Field("output_length", U64, "output_tokens"),
    Field("output_token_ids", U32_LIST),
    Field("hash_ids", U64_LIST),
    Field("timestamp", NUMBER, "created_time"),
    Field("delay", NUMBER, "delay_ms"),
    Field("priority", I32),
    Field("strict_priority", U32),
    Field("policy_class", TEXT),
)
"""In the order in which a row written as a list gives them."""

DEFAULT_BLOCK_SIZE = 512


@define
class _Rows:
    """The rows of one session so far."""

    first_ms: float | None
    last_ms: float | None
    turns: list[Turn] = field(factory=list)


def load_mooncake(rows: Iterable[tuple[int, object]], block_size: int = DEFAULT_BLOCK_SIZE, *, delta: bool = False) -> Trace:
    """The trace in numbered rows (``reader.lines_of``, ``reader.rows_of``), read one at a time.

    Args:
        rows: line numbers and JSON values.
        block_size: tokens a hash id stands for.
        delta: rows that follow in a session bring their new input alone.

    Raises:
        TraceError: with the code of the first rule that the first bad line breaks.
    """
    check_block_size(block_size)
    interner, names = Interner(), Names()
    sessions: dict[str, _Rows] = {}
    for line, value in rows:
        record = read_record(value, FIELDS, line)
        input_length = _input_length(record, block_size, line)
        session_id, timestamp = named(record["session_id"], f"request_{line}"), record["timestamp"]
        session = sessions.get(session_id)
        if session is None:
            session = sessions[session_id] = _Rows(timestamp, timestamp)
        delay = _delay(record, session, session_id, line)
        plan = record["output_token_ids"]
        session.turns.append(
            Turn(
                name=names.take(record["request_id"], f"r{line}"),
                input_length=input_length,
                max_output_tokens=record["output_length"],
                hash_ids=interner.intern(record["hash_ids"], line),
                output_token_ids=plan,
                replay_key=_replay_key(record, session_id, len(session.turns), line) if plan is not None else None,
                delay_after_previous_ms=delay,
                priority=named(record["priority"], 0),
                strict_priority=named(record["strict_priority"], 0),
                policy_class=record["policy_class"],
                line=line,
            )
        )
        if timestamp is not None:
            session.last_ms = timestamp
    if not sessions:
        raise TraceError("", "no request", "at least one", code="E_EMPTY")
    return Trace(
        block_size,
        tuple(Session(id_, session.first_ms, tuple(session.turns)) for id_, session in sessions.items()),
        accumulates=delta,
    )


def _input_length(record: dict[str, Any], block_size: int, line: int) -> int:
    """The length of the prompt, once all that a row says of prompt and output is checked."""
    hash_ids, output, plan = record["hash_ids"], record["output_length"], record["output_token_ids"]
    if hash_ids is None:
        raise TraceError("hash_ids", "nothing", "a list of ids", code="E_NO_HASHES", line=line)
    length: int = named(record["input_length"], capacity_of(hash_ids, block_size, line))
    check_capacity(length, hash_ids, block_size, line)
    if output is None:
        raise TraceError("output_length", "nothing", "an integer ≥ 0", code="E_NO_OUTPUT", line=line)
    if plan is not None and len(plan) != output:
        allowed = f"{output} ids, as many as output_length"
        raise TraceError("output_token_ids", f"{len(plan)} ids", allowed, code="E_PLAN_LEN", line=line)
    return length


def _delay(record: dict[str, Any], session: _Rows, session_id: str, line: int) -> float:
    """The delay of the next turn of a session: as said, else between timestamps, else none.

    The one between timestamps runs from start to start, and is applied from end to start.
    """
    delay, timestamp = record["delay"], record["timestamp"]
    subject = f"session {session_id}"
    if not session.turns:
        if delay:
            allowed = "no delay on a first turn"
            raise TraceError("delay", shown(delay), allowed, code="E_DELAY_FIRST", line=line, subject=subject)
        return 0.0
    if delay is None and timestamp is not None:
        if session.last_ms is None:
            allowed = "a timestamp only behind rows of the session that have one"
            raise TraceError("timestamp", shown(timestamp), allowed, code="E_NO_PREV_TS", line=line, subject=subject)
        delay = timestamp - session.last_ms
    delay = named(delay, 0.0)
    if not (math.isfinite(delay) and delay >= 0):
        allowed = "a finite number of milliseconds ≥ 0"
        raise TraceError("delay", shown(delay), allowed, code="E_BAD_DELAY", line=line, subject=subject)
    return float(delay)


def _replay_key(record: dict[str, Any], session_id: str, turn: int, line: int) -> str:
    request_id = named(record["request_id"], "").strip()
    if request_id:
        return str(request_id)
    if named(record["session_id"], "").strip():
        return f"{session_id}:{turn}"
    return f"line:{line - 1}"
