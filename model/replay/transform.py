"""What is done to a trace before it is driven (replay specification 2): origin, speed-up, and ways to stretch one.

All pure. The order that matters is origin, then speed-up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import attrs

from model.errors import shown
from model.replay.agentic import Graph
from model.replay.defects import MISSING_TIMESTAMP
from model.replay.draws import Draws
from model.replay.errors import TraceError
from model.replay.reader import U32_MAX
from model.replay.trace import Session, Trace


def normalise_session_starts(trace: Trace, defects: Collection[str] = ()) -> Trace:
    """Shift the first arrivals so that the earliest is 0.

    A session without one arrives at 0, so it takes part in the minimum and its shifted arrival is written down: left
    missing, it would still arrive at 0 while the origin has moved (finding 2). With no arrival at all nothing changes.
    """
    starts = [session.first_arrival_timestamp_ms for session in trace.sessions]
    given = [start for start in starts if start is not None]
    if not given:
        return trace
    if MISSING_TIMESTAMP in defects:
        return _shifted(trace, min(given))
    origin = min(0.0 if start is None else start for start in starts)
    if f"{MISSING_TIMESTAMP}:no-writeback" in defects:
        return _shifted(trace, origin)
    return _map_starts(trace, lambda start: (0.0 if start is None else start) - origin)


def normalise_explicit_starts(trace: Trace) -> Trace:
    """What the public file entry does: shift the arrivals that are there; those that are not it refuses afterwards."""
    given = [one.first_arrival_timestamp_ms for one in trace.sessions if one.first_arrival_timestamp_ms is not None]
    return _shifted(trace, min(given)) if given else trace


def _shifted(trace: Trace, origin: float) -> Trace:
    return _map_starts(trace, lambda start: None if start is None else start - origin)


def _map_starts(trace: Trace, change: Callable[[float | None], float | None]) -> Trace:
    sessions = [
        attrs.evolve(session, first_arrival_timestamp_ms=change(session.first_arrival_timestamp_ms)) for session in trace.sessions
    ]
    return attrs.evolve(trace, sessions=tuple(sessions))


def _map_times(trace: Trace, start: Callable[[float], float], delay: Callable[[float], float]) -> Trace:
    """Change the given first arrivals and all delays."""
    sessions = []
    for session in trace.sessions:
        first = session.first_arrival_timestamp_ms
        turns = tuple(
            attrs.evolve(turn, delay_after_previous_ms=delay(turn.delay_after_previous_ms)) if number else turn
            for number, turn in enumerate(session.turns)
        )
        sessions.append(Session(session.session_id, None if first is None else start(first), turns))
    return attrs.evolve(trace, sessions=tuple(sessions))


def check_speedup(ratio: float) -> None:
    """Refuse a ratio that is not finite and above 0.

    Raises:
        TraceError: ``E_SPEEDUP``.
    """
    if not (math.isfinite(ratio) and ratio > 0):
        raise TraceError("speedup", shown(ratio), "a finite number > 0", code="E_SPEEDUP")


def speed_up(trace: Trace, ratio: float) -> Trace:
    """Divide given arrivals and delays.

    Raises:
        TraceError: ``E_SPEEDUP``.
    """
    check_speedup(ratio)
    if ratio == 1:
        return trace
    return _map_times(trace, lambda start: start / ratio, lambda delay: delay / ratio)


def normalise_graph(graph: Graph) -> Graph:
    """Shift all nodes so that the earliest may start at 0."""
    origin = min(node.not_before_ms for node in graph.nodes)
    return attrs.evolve(graph, nodes=tuple(attrs.evolve(node, not_before_ms=node.not_before_ms - origin) for node in graph.nodes))


def speed_up_graph(graph: Graph, ratio: float) -> Graph:
    """Divide earliest starts and the delays of edges.

    Raises:
        TraceError: ``E_SPEEDUP``.
    """
    check_speedup(ratio)
    nodes = []
    for node in graph.nodes:
        edges = tuple(attrs.evolve(edge, delay_ms=edge.delay_ms / ratio) for edge in node.dependencies)
        nodes.append(attrs.evolve(node, not_before_ms=node.not_before_ms / ratio, dependencies=edges))
    return attrs.evolve(graph, nodes=tuple(nodes))


def rescale_session_start_span(trace: Trace, span_ms: float) -> Trace:
    """Stretch the given first arrivals over ``span_ms``; all at 0 when they have no span."""
    given = [one.first_arrival_timestamp_ms for one in trace.sessions if one.first_arrival_timestamp_ms is not None]
    if not given:
        return trace
    low, high = min(given), max(given)

    def change(start: float | None) -> float | None:
        if start is None:
            return None
        return (start - low) * span_ms / (high - low) if high > low else 0.0

    return _map_starts(trace, change)


def rescale_ready_span(trace: Trace, span_ms: float) -> Trace:
    """Stretch arrivals and delays so that the last turn, were service instant, is ready at ``span_ms``.

    A session without a first arrival counts as one at 0, and keeps none.

    Raises:
        TraceError: ``E_BAD_TIME``, when the ratio is not finite.
    """
    starts = [0.0 if one.first_arrival_timestamp_ms is None else one.first_arrival_timestamp_ms for one in trace.sessions]
    last = max(
        start + sum(turn.delay_after_previous_ms for turn in session.turns)
        for start, session in zip(starts, trace.sessions, strict=True)
    )
    low = min(starts)
    ratio = span_ms / (last - low) if last > low else 0.0
    if not math.isfinite(ratio):
        raise TraceError("span_ms", shown(span_ms), "a span whose ratio to that of the trace is finite", code="E_BAD_TIME")
    return _map_times(trace, lambda start: (start - low) * ratio, lambda delay: delay * ratio)


def expand_hash_prefix_depth(trace: Trace, factor: int) -> Trace:
    """Make prompts ``factor`` times as long: each hash id becomes ``factor`` ids, of its own.

    Raises:
        TraceError: ``E_SIZE``, ``E_TOO_MANY_HASHES``.
    """
    _check_factor(factor)
    largest = _largest_hash(trace)
    if largest * factor + factor - 1 > U32_MAX:
        found = f"{largest} times {factor}"
        raise TraceError("hash_ids", found, "ids below 2**32", code="E_TOO_MANY_HASHES")
    sessions = []
    for session in trace.sessions:
        turns = tuple(
            attrs.evolve(
                turn,
                input_length=turn.input_length * factor,
                hash_ids=tuple(one * factor + part for one in turn.hash_ids for part in range(factor)),
            )
            for turn in session.turns
        )
        sessions.append(attrs.evolve(session, turns=turns))
    return attrs.evolve(trace, sessions=tuple(sessions))


def duplicate_hash_space(trace: Trace, copies: int) -> Trace:
    """``copies`` of the trace side by side, which share no hash id.

    Raises:
        TraceError: ``E_SIZE``.
    """
    _check_factor(copies)
    stride = _largest_hash(trace) + 1
    sessions = list(trace.sessions)
    for copy in range(1, copies):
        for session in trace.sessions:
            turns = tuple(
                attrs.evolve(turn, name=f"{turn.name}#{copy}", hash_ids=tuple(one + stride * copy for one in turn.hash_ids))
                for turn in session.turns
            )
            sessions.append(attrs.evolve(session, session_id=f"{session.session_id}#{copy}", turns=turns))
    return attrs.evolve(trace, sessions=tuple(sessions))


def partition(trace: Trace, parts: int, seed: int | None = None) -> tuple[Trace, ...]:
    """The trace split by sessions: in turn, or at random when there is a ``seed``.

    Raises:
        TraceError: ``E_SIZE``.
    """
    _check_factor(parts)
    draws = None if seed is None else Draws(seed)
    chosen: list[list[Session]] = [[] for _ in range(parts)]
    for number, session in enumerate(trace.sessions):
        chosen[number % parts if draws is None else draws.below(parts)].append(session)
    return tuple(attrs.evolve(trace, sessions=tuple(sessions)) for sessions in chosen)


def _check_factor(factor: int) -> None:
    if factor < 1:
        raise TraceError("factor", shown(factor), "an integer ≥ 1", code="E_SIZE")


def _largest_hash(trace: Trace) -> int:
    return max((one for session in trace.sessions for turn in session.turns for one in turn.hash_ids), default=0)
