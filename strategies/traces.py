"""Hypothesis strategies for traces and replays.

Rows are drawn as a list, so that a failing trace shrinks row by row. A row is four draws, each from a table ordered from plain to
odd: what takes more draws than that, Hypothesis does not take out of a list again. Whatever is drawn is a legal trace: what the
rules of a session leave open decides where a time goes, on the first row of a session as its timestamp, on a later one as its
delay. Missing and negative timestamps, ties, empty outputs, prompts that are refused, withdrawn and lost requests are all
common. Nothing here knows of any defect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import frozen
from hypothesis import strategies as st

from model.config import EngineConfig, Speculation, Timing
from model.replay import config as formats
from model.replay.config import Interruption, ReplayConfig
from model.replay.driver import CANCELED, FAILED

BLOCK_SIZE = 2
"""Tokens of a trace block, and of an engine block."""

MAX_MODEL_LEN = 8
"""Where it is set, longer prompts are refused and long outputs cut."""

MOST_ROWS = 6
SHAPES = tuple((tokens, prefix) for tokens in (1, 3, 9, 4, 8) for prefix in (0, 1))
"""Length of a prompt, and which of two prefixes it has."""
OUTPUTS = (1, 0, 2, 3, 5)
STARTS: tuple[float | None, ...] = (None, 0, 100, -50, None, 5, -7.5)
TURNS: tuple[tuple[str | None, float | None], ...] = (
    *((None, None),) * 6,
    *((session, delay) for session in ("a", "b") for delay in (None, 0, 5, 60)),
)
"""Whose turn a row is (None: that of a session of its own), and its delay where it is a later one."""

NODE_STARTS = (0.0, 20.0, 100.0)
WAITS: tuple[tuple[tuple[int, str, float], ...], ...] = (
    (),
    *(((back, trigger, delay),) for back in (1, 2) for trigger in ("completion", "dispatch") for delay in (0.0, 5.0)),
    ((1, "completion", 0.0), (2, "completion", 5.0)),
    ((1, "completion", 5.0), (2, "dispatch", 0.0)),
)
"""What a node waits for: nodes of its play counted backwards, their dispatch or completion, and a delay."""
PLACES = tuple((play, waits) for waits in WAITS for play in ("p", "p", "q"))

ENGINE: dict[str, Any] = {"scheduler": "vllm", "block_size": BLOCK_SIZE, "num_blocks": 64, "max_num_batched_tokens": 64}
FIXED = Timing(prefill_ms=10, prefill_ms_per_token=0, decode_ms=2)


@frozen
class DrawnRow:
    """A request before it is written as a row: an entry of each of ``SHAPES``, ``OUTPUTS``, ``STARTS`` and ``TURNS``."""

    shape: tuple[int, int]
    output: int
    start: float | None
    turn: tuple[str | None, float | None]


def drawn_rows() -> st.SearchStrategy[list[DrawnRow]]:
    """A list of requests."""
    row = st.builds(
        DrawnRow,
        shape=st.sampled_from(SHAPES),
        output=st.sampled_from(OUTPUTS),
        start=st.sampled_from(STARTS),
        turn=st.sampled_from(TURNS),
    )
    return st.lists(row, min_size=1, max_size=MOST_ROWS)


def _hash_ids(prefix: int, tokens: int) -> list[int]:
    return [100 * prefix + block for block in range(-(-tokens // BLOCK_SIZE))]


def mooncake_rows(drawn: Sequence[DrawnRow]) -> list[dict[str, Any]]:
    """Requests as Mooncake rows."""
    rows = []
    begun: set[str] = set()
    for one in drawn:
        tokens, prefix = one.shape
        session, delay = one.turn
        row: dict[str, Any] = {"input_length": tokens, "output_length": one.output, "hash_ids": _hash_ids(prefix, tokens)}
        if session is not None:
            row["session_id"] = session
        name, time = ("delay", delay) if session in begun else ("timestamp", one.start)
        if time is not None:
            row[name] = time
        if session is not None:
            begun.add(session)
        rows.append(row)
    return rows


@frozen
class DrawnNode:
    """A request of a play before it is written as a row: entries of ``SHAPES``, ``OUTPUTS``, ``NODE_STARTS`` and ``PLACES``."""

    shape: tuple[int, int]
    output: int
    start: float
    place: tuple[str, tuple[tuple[int, str, float], ...]]


def drawn_nodes() -> st.SearchStrategy[list[DrawnNode]]:
    """A list of nodes; edges lead backwards, so any list is a graph without a cycle."""
    node = st.builds(
        DrawnNode,
        shape=st.sampled_from(SHAPES),
        output=st.sampled_from(OUTPUTS),
        start=st.sampled_from(NODE_STARTS),
        place=st.sampled_from(PLACES),
    )
    return st.lists(node, min_size=1, max_size=MOST_ROWS)


def agentic_rows(drawn: Sequence[DrawnNode]) -> list[dict[str, Any]]:
    """Nodes as the rows of an agentic trace, behind its header."""
    rows: list[dict[str, Any]] = [
        {
            "schema": "dynamo.agentic_mooncake",
            "version": 2,
            "block_size": BLOCK_SIZE,
            "hash_id_scope": "local",
            "source": {"format": "drawn", "digest": "none"},
        }
    ]
    earlier: dict[str, list[str]] = {}
    for number, one in enumerate(drawn):
        tokens, prefix = one.shape
        play, waits = one.place
        before = earlier.setdefault(play, [])
        edges = [
            {
                "request_id": before[-back],
                "trigger": trigger,
                "delay_ms": delay,
                "relation": "spawn" if trigger == "dispatch" else "sequence",
            }
            for back, trigger, delay in waits
            if back <= len(before)
        ]
        rows.append(
            {
                "request_id": f"n{number}",
                "play_id": play,
                "session_id": play,
                "model": "m",
                "input_length": tokens,
                "output_length": one.output,
                "hash_ids": _hash_ids(prefix, tokens),
                "not_before_ms": one.start,
                "dependencies": edges,
            }
        )
        before.append(f"n{number}")
    return rows


@st.composite
def _interruptions(draw: st.DrawFn, names: Sequence[str]) -> tuple[Interruption, ...]:
    """At most two requests withdrawn or lost, some milliseconds after their arrival."""
    ways = [(after, status) for after in (0.0, 5.0, 11.0, 40.0) for status in (CANCELED, FAILED)]
    drawn = draw(st.lists(st.tuples(st.sampled_from(list(names)), st.sampled_from(ways)), max_size=2))
    return tuple(Interruption(name, after, status) for name, (after, status) in drawn)


@st.composite
def replay_configs(draw: st.DrawFn) -> ReplayConfig:
    """A replay of single-turn or multi-turn rows, of delta rows, or of a graph, in any mode the format has."""
    kind = draw(st.sampled_from((formats.MOONCAKE, formats.DELTA, formats.AGENTIC)))
    options: dict[str, Any] = {"format": kind, "block_size": BLOCK_SIZE}
    if kind == formats.AGENTIC:
        rows = agentic_rows(draw(drawn_nodes()))
        names = [row["request_id"] for row in rows[1:]]
        options["lanes"] = draw(st.sampled_from((None, 1, 2)))
    else:
        rows = mooncake_rows(draw(drawn_rows()))
        names = [f"r{line}" for line in range(1, len(rows) + 1)]
        options["mode"] = draw(st.sampled_from((formats.TRACE_MODE, formats.TRACE_MODE, {"concurrency": 1}, {"concurrency": 2})))
    return ReplayConfig(
        rows=rows,
        workers=draw(st.sampled_from((1, 2))),
        speedup=draw(st.sampled_from((1.0, 2.0))),
        window_ms=draw(st.sampled_from((None, 15.0))),
        interruptions=draw(_interruptions(names)),
        **options,
    )


@st.composite
def replay_engines(draw: st.DrawFn, defects: Iterable[str] = ()) -> EngineConfig:
    """An engine with room for every drawn trace, so that what is seen is the replay's.

    Some have drafts; most cap the length of a sequence, so that the longest prompts are refused.
    """
    speculation = draw(st.sampled_from((None, Speculation(2, 2), None, Speculation(2, 1))))
    max_model_len = draw(st.sampled_from((None, MAX_MODEL_LEN, MAX_MODEL_LEN)))
    return EngineConfig(**ENGINE, timing=FIXED, speculation=speculation, max_model_len=max_model_len, defects=frozenset(defects))


def replays(defects: Iterable[str] = ()) -> st.SearchStrategy[tuple[ReplayConfig, EngineConfig]]:
    """A replay and its engines, with ``defects`` switched on."""
    return st.tuples(replay_configs(), replay_engines(defects))
