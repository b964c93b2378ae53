"""Short ways to write traces, drivers and runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from model.config import EngineConfig
from model.engine import Engine
from model.replay.agentic import load_agentic
from model.replay.config import ReplayConfig
from model.replay.driver import ConcurrencyPolicy, Dispatch, Driver, TracePolicy
from model.replay.errors import TraceError
from model.replay.mooncake import load_mooncake
from model.replay.plays import AgenticPolicy, trace_of
from model.replay.reader import rows_of
from model.replay.run import ReplayResult, run_replay
from model.replay.trace import Trace
from tests.replay.toy import ToyEngine

Row = dict[str, Any]
VLLM = {"scheduler": "vllm", "block_size": 4, "num_blocks": 1000, "max_num_batched_tokens": 8192}
FIXED = {"prefill_ms": 10, "prefill_ms_per_token": 0, "decode_ms": 2}
"""10 ms a prefill pass, 2 ms a decode pass."""

TS: list[Row] = [
    {"session_id": "a", "timestamp": 0, "input_length": 2, "hash_ids": [1, 2], "output_length": 1},
    {"session_id": "a", "delay": 5, "input_length": 2, "hash_ids": [3, 4], "output_length": 1},
    {"session_id": "b", "timestamp": 0, "input_length": 2, "hash_ids": [5, 6], "output_length": 1},
]
"""The two-session trace of specification 10."""
THREE_SESSIONS: list[Row] = [*TS, {"session_id": "c", "timestamp": 0, "input_length": 2, "hash_ids": [7, 8], "output_length": 1}]


def row(timestamp: float | None = None, **fields: Any) -> Row:
    """A Mooncake row of one block of 4 tokens and one output token, with or without a timestamp."""
    given = {} if timestamp is None else {"timestamp": timestamp}
    return {"input_length": 4, "output_length": 1, "hash_ids": [1], **given, **fields}


def trace(rows: Iterable[Any], block_size: int = 4, *, delta: bool = False) -> Trace:
    """Rows as a trace."""
    return load_mooncake(rows_of(rows), block_size, delta=delta)


def driver(rows: Iterable[Row], block_size: int = 1, *, cap: int | None = None, delta: bool = False, **more: Any) -> Driver:
    """A driver over rows, in trace mode or with a cap on sessions."""
    loaded = trace(rows, block_size, delta=delta)
    starts = [session.first_arrival_timestamp_ms for session in loaded.sessions]
    return Driver(loaded, TracePolicy(starts) if cap is None else ConcurrencyPolicy(cap), **more)


def header(block_size: int = 4) -> Row:
    """The first row of an agentic trace."""
    source = {"format": "test", "digest": "0"}
    return {
        "schema": "dynamo.agentic_mooncake",
        "version": 2,
        "block_size": block_size,
        "hash_id_scope": "local",
        "source": source,
    }


def node(request_id: str, *waits: tuple[str, str, float], play: str = "p", start: float = 0, **fields: Any) -> Row:
    """A row of an agentic trace; ``waits`` are (request, trigger, delay)."""
    dependencies = [
        {
            "request_id": id_,
            "trigger": trigger,
            "delay_ms": delay,
            "relation": "spawn" if trigger == "dispatch" else "sequence" if len(waits) == 1 else "join",
        }
        for id_, trigger, delay in waits
    ]
    return {
        "request_id": request_id,
        "play_id": play,
        "session_id": f"session of {play}",
        "model": "m",
        "input_length": 4,
        "output_length": 1,
        "hash_ids": [1],
        "not_before_ms": start,
        "dependencies": dependencies,
        **fields,
    }


def agentic(*rows: Row, lanes: int | None = None, defects: Iterable[str] = ()) -> Driver:
    """A driver over an agentic graph."""
    graph = load_agentic(rows_of([header(), *rows]))
    return Driver(trace_of(graph), AgenticPolicy(graph, lanes), defects=frozenset(defects))


def names(dispatches: Sequence[Dispatch]) -> list[str]:
    """Session and turn of what was handed out: ``a0`` is turn 0 of session a."""
    return [f"{dispatch.session}.{dispatch.turn_index}" for dispatch in dispatches]


def uid_of(driver: Driver, session: int) -> int:
    """The uid in flight of a session."""
    uid = driver.sessions[session].in_flight
    assert uid is not None
    return uid


def replay(
    rows: Iterable[Any],
    *,
    engine: Mapping[str, Any] | None = None,
    toy: Mapping[str, Any] | None = None,
    defects: Sequence[str] = (),
    observer: Any = None,
    **config: Any,
) -> ReplayResult:
    """A run over rows: on toy engines, or on engines of the model when ``engine`` is given."""
    settings = {"block_size": 4, **config}
    read = ReplayConfig(rows=list(rows), **settings)
    engine_config = EngineConfig.from_json({**VLLM, "timing": FIXED, **(engine or {}), "defects": list(defects)})
    engines: list[Engine] | None = None
    if engine is None:
        engines = [ToyEngine(**(toy or {})) for _ in range(read.workers)]
    return run_replay(read, engine_config, observer, engines=engines)


def refused(code: str, line: int | None = None) -> Any:
    """A context in which a trace is refused with ``code``, naming ``line``."""

    class Refused:
        def __enter__(self) -> Any:
            self.context = pytest.raises(TraceError)
            self.info = self.context.__enter__()
            return self.info

        def __exit__(self, *error: Any) -> bool:
            caught = self.context.__exit__(*error)
            assert self.info.value.code == code, str(self.info.value)
            assert self.info.value.line == line, str(self.info.value)
            return bool(caught)

    return Refused()
