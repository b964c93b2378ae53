"""``applied_compute_agentic`` JSON Lines (replay specification 1.3): one session a line, tool calls between its turns.

The prompt of a turn is that of the turn before with the answer and the tool output behind it. Hash ids grow by one fresh id
a block, so a later prompt begins with the blocks of an earlier one. There are no arrivals: the format runs in concurrency
mode only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from model.errors import shown
from model.replay.errors import TraceError
from model.replay.reader import NUMBER_LIST, U64, U64_LIST, Field, read_record
from model.replay.trace import Session, Trace, Turn, blocks_of, check_block_size

FIELDS = (
    Field("num_turns", U64, required=True),
    Field("input_prompt_length", U64, required=True),
    Field("assistant_response_length", U64_LIST, required=True),
    Field("tool_call_output_length", U64_LIST, required=True),
    Field("tool_call_latency", NUMBER_LIST, required=True),
    Field("final_assistant_response_length", U64, required=True),
)
_MS_PER_S = 1000.0


def rounded(value: float) -> int:
    """The nearest integer to a number ≥ 0, halves away from zero."""
    return int(value + 0.5)


def load_applied_compute(
    rows: Iterable[tuple[int, object]], block_size: int, *, shared_prefix_ratio: float = 0.0, num_prefix_groups: int = 0
) -> Trace:
    """The trace in numbered rows.

    Args:
        rows: line numbers and JSON values.
        block_size: tokens a hash id stands for.
        shared_prefix_ratio: share of the blocks of a first prompt that sessions of one group have in common.
        num_prefix_groups: groups; the session of line ``n`` is in group ``n mod groups``. 0: nothing is shared.

    Raises:
        TraceError: ``E_PARSE``, ``E_ARRAY_LEN``, ``E_ZERO_PROMPT``, ``E_BAD_LATENCY``, ``E_EMPTY``, ``E_RATIO``.
    """
    check_block_size(block_size)
    if not 0 <= shared_prefix_ratio <= 1:
        raise TraceError("shared_prefix_ratio", shown(shared_prefix_ratio), "a number from 0 to 1", code="E_RATIO")
    ids = _Blocks(num_prefix_groups if shared_prefix_ratio > 0 else 0)
    sessions = []
    for line, value in rows:
        record = read_record(value, FIELDS, line)
        _check(record, line)
        shared = rounded(blocks_of(record["input_prompt_length"], block_size) * shared_prefix_ratio)
        sessions.append(_session(record, line, block_size, ids, shared))
    if not sessions:
        raise TraceError("", "no session", "at least one", code="E_EMPTY")
    return Trace(block_size, tuple(sessions))


def _check(record: dict[str, Any], line: int) -> None:
    turns = record["num_turns"]
    for name in ("assistant_response_length", "tool_call_output_length", "tool_call_latency"):
        if len(record[name]) != turns:
            found, allowed = f"{len(record[name])} elements", f"{turns}, as num_turns says"
            raise TraceError(name, found, allowed, code="E_ARRAY_LEN", line=line)
    if not record["input_prompt_length"]:
        raise TraceError("input_prompt_length", "0", "an integer ≥ 1", code="E_ZERO_PROMPT", line=line)
    for number, latency in enumerate(record["tool_call_latency"]):
        if latency < 0:
            path = f"tool_call_latency[{number}]"
            raise TraceError(path, shown(latency), "a finite number of seconds ≥ 0", code="E_BAD_LATENCY", line=line)


class _Blocks:
    """Hash ids: fresh ones, and for each group those that its sessions begin with."""

    def __init__(self, groups: int) -> None:
        """No id is in use."""
        self._next = 0
        self._groups: list[list[int]] = [[] for _ in range(groups)]

    def fresh(self) -> int:
        """An id that nothing has."""
        self._next += 1
        return self._next - 1

    def shared(self, line: int, count: int) -> list[int]:
        """The first ``count`` ids of the group of a line; none without groups."""
        if not self._groups:
            return []
        group = self._groups[line % len(self._groups)]
        while len(group) < count:
            group.append(self.fresh())
        return group[:count]


def _session(record: dict[str, Any], line: int, block_size: int, ids: _Blocks, shared: int) -> Session:
    outputs = (*record["assistant_response_length"], record["final_assistant_response_length"])
    delays = (0.0, *(_MS_PER_S * latency for latency in record["tool_call_latency"]))
    hashes = ids.shared(line, shared)
    length = record["input_prompt_length"]
    turns = []
    for number, (output, delay) in enumerate(zip(outputs, delays, strict=True)):
        while len(hashes) < blocks_of(length, block_size):
            hashes.append(ids.fresh())
        turns.append(Turn(f"r{line}.{number}", length, output, tuple(hashes), delay_after_previous_ms=delay, line=line))
        if number < record["num_turns"]:
            length += output + record["tool_call_output_length"][number]
    return Session(f"applied_compute_agentic_session_{line}", None, tuple(turns))
