"""Flat request lists (replay specification 1.9): a JSON document with requests that know their arrival, and no sessions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from model.errors import BadInput, expect_list, expect_object, shown
from model.replay.errors import TraceError
from model.replay.reader import FLAG, LIST, NUMBER, OBJECT, TEXT, U32, U32_LIST, U64, Field, decode, named, read_record
from model.requests import Prompt

VERSION = 1
DOCUMENT_FIELDS = (
    Field("version", U64, required=True),
    Field("topology", OBJECT),
    Field("engine", OBJECT),
    Field("adapters", OBJECT),
    Field("max_sim_time_ms", NUMBER),
    Field("max_in_flight", U64),
    Field("record_per_request", FLAG),
    Field("sla", OBJECT),
    Field("requests", LIST, required=True),
)
REQUEST_FIELDS = (
    Field("id", TEXT, required=True),
    Field("arrival_time_ms", NUMBER),
    Field("input_tokens", U64, required=True),
    Field("input_token_ids", U32_LIST),
    Field("output_tokens", U64, required=True),
    Field("output_token_ids", U32_LIST),
    Field("dp_rank", U32),
    Field("prefill_dp_rank", U32),
    Field("session_id", TEXT),
    Field("turn_index", U64),
    Field("metadata", OBJECT),
)
SLA_FIELDS = (Field("ttft_ms", NUMBER), Field("itl_ms", NUMBER), Field("e2e_ms", NUMBER))
WORKER_FIELDS = (Field("initial_workers", U64, required=True), Field("startup_delay_ms", NUMBER))
_LENGTH_ONLY_STRIDE = 1_000_003
_TOKENS = 1 << 32


@frozen
class Sla:
    """Bounds of goodput, in ms; an end-to-end bound excludes the other two.

    Raises:
        TraceError: ``E_SLA``.
    """

    ttft_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None

    def __attrs_post_init__(self) -> None:
        for name in ("ttft_ms", "itl_ms", "e2e_ms"):
            bound = getattr(self, name)
            if bound is not None and not (math.isfinite(bound) and bound > 0):
                raise TraceError(f"sla.{name}", shown(bound), "a finite number > 0", code="E_SLA")
        if self.e2e_ms is not None and (self.ttft_ms is not None or self.itl_ms is not None):
            raise TraceError("sla.e2e_ms", "a bound beside ttft_ms or itl_ms", "one kind of bounds", code="E_SLA")

    @property
    def given(self) -> bool:
        """Some bound is set."""
        return self.ttft_ms is not None or self.itl_ms is not None or self.e2e_ms is not None


@frozen
class FlatRequest:
    """One request.

    Attributes:
        id: unique.
        arrival_ms: None is refused in trace mode, and not looked at in concurrency mode.
        input_tokens: length of the prompt.
        output_tokens: the most it may produce.
        given_prompt: its tokens; None when only the length is known.
        index: position in the document, which the tokens of such a prompt come from.
        output_token_ids: the authored output.
        dp_rank: rank of the worker it asks for.
        session_id, turn_index: as authored, for the report.
    """

    id: str
    arrival_ms: float | None
    input_tokens: int
    output_tokens: int
    given_prompt: Prompt | None = None
    index: int = 0
    output_token_ids: tuple[int, ...] | None = None
    dp_rank: int | None = None
    session_id: str | None = None
    turn_index: int | None = None

    def prompt(self) -> Prompt:
        """The tokens of the prompt."""
        return length_only_prompt(self.index, self.input_tokens) if self.given_prompt is None else self.given_prompt


@frozen
class FlatTrace:
    """Requests in order of arrival (ties: as authored), and what the document says of the run.

    Attributes:
        workers, max_in_flight, max_sim_time_ms, sla: as authored; None where the document is silent.
    """

    requests_in_order: tuple[FlatRequest, ...]
    workers: int | None = None
    max_in_flight: int | None = None
    max_sim_time_ms: float | None = None
    sla: Sla = field(factory=Sla)

    @property
    def requests(self) -> int:
        """Number of requests."""
        return len(self.requests_in_order)


def length_only_prompt(index: int, length: int) -> Prompt:
    """The prompt of request ``index`` when only its length is known: ``index * 1000003 + 0, 1, 2, …`` (u32), all distinct."""
    first = index * _LENGTH_ONLY_STRIDE
    return Prompt(tuple(((first + at) % _TOKENS, 1) for at in range(length)))


def load_flat_file(path: str | Path, dp_size: int = 1) -> FlatTrace:
    """The trace in a file with one document.

    Raises:
        BadInput: if the file cannot be read.
        TraceError: as ``load_flat``.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise BadInput("file", f"{path} ({error.strerror})", "a file that can be read") from None
    return load_flat(decode(text, None), dp_size)


def load_flat(document: object, dp_size: int = 1) -> FlatTrace:
    """The trace in a document; what it says of the engine is left to the engine configuration.

    Raises:
        TraceError: for the first rule it breaks; errors of requests name them by position.
    """
    expect_object(document, "document")
    record = read_record(document, DOCUMENT_FIELDS, None)
    if record["version"] != VERSION:
        raise TraceError("version", shown(record["version"]), str(VERSION), code="E_VERSION")
    for adapter, provider in (("placement", "round_robin"), ("scaling", "none")):
        found = named(record["adapters"], {}).get(adapter, {}).get("provider", provider)
        if found != provider:
            raise TraceError(f"adapters.{adapter}.provider", shown(found), provider, code="E_TOPOLOGY")
    if record["max_in_flight"] == 0:
        raise TraceError("max_in_flight", "0", "an integer ≥ 1", code="E_IN_FLIGHT")
    return FlatTrace(
        read_requests(expect_list(record["requests"], "requests"), dp_size),
        _workers(record["topology"]),
        record["max_in_flight"],
        record["max_sim_time_ms"],
        Sla(**read_record(named(record["sla"], {}), SLA_FIELDS, None, "sla")),
    )


def _workers(topology: dict[str, Any] | None) -> int | None:
    if topology is None:
        return None
    aggregated = topology.get("aggregated")
    if not isinstance(aggregated, dict):
        raise TraceError("topology", json.dumps(topology)[:60], 'an object with "aggregated"', code="E_TOPOLOGY")
    workers = read_record(named(aggregated.get("workers"), {}), WORKER_FIELDS, None, "topology.aggregated.workers")
    if workers["initial_workers"] < 1:
        raise TraceError("topology.aggregated.workers.initial_workers", "0", "an integer ≥ 1", code="E_TOPOLOGY")
    return int(workers["initial_workers"])


def read_requests(values: Sequence[object], dp_size: int = 1) -> tuple[FlatRequest, ...]:
    """Requests from JSON objects, stably sorted by arrival.

    Raises:
        TraceError: ``E_PARSE``, ``E_BLANK``, ``E_DUPLICATE_ID``, ``E_BAD_TIME``, ``E_TOKEN_LEN``, ``E_PLAN_LEN``, ``E_RANK``.
    """
    requests, known = [], set()
    for index, value in enumerate(values):
        request = _request(value, index, dp_size)
        if request.id in known:
            raise TraceError("id", shown(request.id), "an id once", code="E_DUPLICATE_ID", line=index + 1)
        known.add(request.id)
        requests.append(request)
    return in_order(requests)


def in_order(requests: Iterable[FlatRequest]) -> tuple[FlatRequest, ...]:
    """Requests by arrival, ties as they are; those without one stay where a time of 0 would be."""
    return tuple(sorted(requests, key=lambda request: named(request.arrival_ms, 0.0)))


def _request(value: object, index: int, dp_size: int) -> FlatRequest:
    line = index + 1
    record = read_record(value, REQUEST_FIELDS, line)
    if not record["id"]:
        raise TraceError("id", "an empty string", "a name", code="E_BLANK", line=line)
    arrival, length = record["arrival_time_ms"], record["input_tokens"]
    if arrival is not None and arrival < 0:
        raise TraceError("arrival_time_ms", shown(arrival), "a finite number ≥ 0", code="E_BAD_TIME", line=line)
    ids = record["input_token_ids"]
    if ids is not None and len(ids) != length:
        raise TraceError("input_token_ids", f"{len(ids)} ids", f"{length}, as input_tokens says", code="E_TOKEN_LEN", line=line)
    plan = record["output_token_ids"]
    if plan is not None and len(plan) != record["output_tokens"]:
        allowed = f"{record['output_tokens']} ids, as output_tokens says"
        raise TraceError("output_token_ids", f"{len(plan)} ids", allowed, code="E_PLAN_LEN", line=line)
    if record["dp_rank"] is not None and record["dp_rank"] >= dp_size:
        raise TraceError("dp_rank", shown(record["dp_rank"]), f"below {dp_size}", code="E_RANK", line=line)
    if record["prefill_dp_rank"] is not None:
        found = shown(record["prefill_dp_rank"])
        raise TraceError("prefill_dp_rank", found, "only with a disaggregated topology", code="E_RANK", line=line)
    return FlatRequest(
        id=record["id"],
        arrival_ms=arrival,
        input_tokens=length,
        output_tokens=record["output_tokens"],
        given_prompt=None if ids is None else Prompt.of_tokens(ids),
        index=index,
        output_token_ids=plan,
        dp_rank=record["dp_rank"],
        session_id=record["session_id"],
        turn_index=record["turn_index"],
    )
