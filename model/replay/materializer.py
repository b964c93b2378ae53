"""The materializer (replay specification 1.10): static single-turn Mooncake rows as flat requests.

The reference for arrivals: a missing timestamp is an arrival at 0 and takes part in the minimum. Stricter than the native
loader in what a row may hold, except that an input longer than its hash ids is cut instead of refused (1.11).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from model.errors import shown
from model.replay.errors import TraceError
from model.replay.flat import FlatRequest, FlatTrace, in_order
from model.replay.mooncake import DEFAULT_BLOCK_SIZE, FIELDS
from model.replay.reader import named, read_record
from model.replay.trace import Interner, capacity_of, check_block_size, prompt_of
from model.replay.transform import check_speedup

_KNOWN = frozenset(name for one in FIELDS for name in (one.name, one.alias) if name)


def materialize(rows: Iterable[tuple[int, object]], block_size: int = DEFAULT_BLOCK_SIZE, *, speedup: float = 1.0) -> FlatTrace:
    """Flat requests from numbered Mooncake rows.

    Raises:
        TraceError: for the first rule that the first bad row breaks.
    """
    check_block_size(block_size)
    check_speedup(speedup)
    records = []
    for line, value in rows:
        if isinstance(value, dict):
            for name in value:
                if name not in _KNOWN:
                    allowed = ", ".join(sorted(_KNOWN))
                    raise TraceError(name, "an unknown field", allowed, code="E_UNKNOWN_FIELD", line=line)
        records.append((line, read_record(value, FIELDS, line)))
    if not records:
        raise TraceError("", "no request", "at least one", code="E_EMPTY")
    _check_single_turn(records)
    ids = _unique_ids(records)
    interner = Interner()
    requests = [_request(record, line, id_, block_size, interner) for (line, record), id_ in zip(records, ids, strict=True)]
    origin = min(named(request.arrival_ms, 0.0) for request in requests)
    shifted = [
        attrs.evolve(request, arrival_ms=(named(request.arrival_ms, 0.0) - origin) / speedup) for request in in_order(requests)
    ]
    return FlatTrace(tuple(shifted))


def _check_single_turn(records: Iterable[tuple[int, dict[str, Any]]]) -> None:
    sessions = set()
    for line, record in records:
        if record["delay"]:
            raise TraceError("delay", shown(record["delay"]), "no delay", code="E_UNSUPPORTED", line=line)
        if record["output_token_ids"] is not None:
            raise TraceError("output_token_ids", "a planned output", "no plan", code="E_UNSUPPORTED", line=line)
        session = record["session_id"]
        if session is not None and session in sessions:
            raise TraceError("session_id", shown(session), "one row a session", code="E_UNSUPPORTED", line=line)
        sessions.add(session)


def _unique_ids(records: Iterable[tuple[int, dict[str, Any]]]) -> list[str]:
    """Authored ids, and ``trace-{line}`` (``-2``, ``-3``, … on a clash) for the others."""
    records = list(records)
    taken: set[str] = set()
    for line, record in records:
        id_ = record["request_id"]
        if id_ in taken:
            raise TraceError("request_id", shown(id_), "an id once", code="E_DUPLICATE_ID", line=line)
        if id_ is not None:
            taken.add(id_)
    ids = []
    for line, record in records:
        id_ = plain = named(record["request_id"], f"trace-{line}")
        number = 2
        while record["request_id"] is None and id_ in taken:
            id_ = f"{plain}-{number}"
            number += 1
        taken.add(id_)
        ids.append(id_)
    return ids


def _request(record: dict[str, Any], line: int, id_: str, block_size: int, interner: Interner) -> FlatRequest:
    hashes = record["hash_ids"]
    if not hashes:
        found = "nothing" if hashes is None else "[]"
        raise TraceError("hash_ids", found, "a list of at least one id", code="E_NO_HASHES", line=line)
    capacity = capacity_of(hashes, block_size, line)
    length = min(named(record["input_length"], capacity), capacity)
    if not length:
        raise TraceError("input_length", "0", "an integer ≥ 1", code="E_ZERO_INPUT", line=line)
    if not record["output_length"]:
        found = shown(record["output_length"])
        raise TraceError("output_length", found, "an integer ≥ 1", code="E_NO_OUTPUT", line=line)
    return FlatRequest(
        id=id_,
        arrival_ms=record["timestamp"],
        input_tokens=length,
        output_tokens=record["output_length"],
        given_prompt=prompt_of(interner.intern(hashes, line), block_size, length),
        session_id=record["session_id"],
    )
