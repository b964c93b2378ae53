"""Agentic Mooncake v2 (replay specification 1.4) and the older rows without a header (1.5): a graph of requests, in plays.

A node is a request that waits for others; a play is a connected set of nodes with its own roots. Nodes are kept sorted by
request id, plays by ordinal, else by id: the canonical order that the driver and its ties go by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import attrs
from attrs import field, frozen

from model.errors import shown
from model.replay.errors import TraceError
from model.replay.reader import (
    I32,
    LIST,
    NUMBER,
    OBJECT,
    TEXT,
    U32,
    U32_LIST,
    U64,
    U64_LIST,
    Field,
    named,
    parse_error,
    read_record,
)
from model.replay.trace import Interner, blocks_of, check_block_size

SCHEMA = "dynamo.agentic_mooncake"
VERSION = 2
DISPATCH = "dispatch"
COMPLETION = "completion"
TRIGGERS = (DISPATCH, COMPLETION)
RELATIONS = ("sequence", "spawn", "join", "replay_barrier")
LEGACY_SESSION = "agentic-session"

HEADER_FIELDS = (
    Field("schema", TEXT, required=True),
    Field("version", U64, required=True),
    Field("block_size", U64, required=True),
    Field("hash_id_scope", TEXT, required=True),
    Field("source", OBJECT, required=True),
)
_HEADER_VALUES: tuple[tuple[str, str, object], ...] = (
    ("schema", "E_HEADER", SCHEMA),
    ("version", "E_HEADER", VERSION),
    ("hash_id_scope", "E_PARSE", "local"),
)
SOURCE_FIELDS = (Field("format", TEXT, required=True), Field("digest", TEXT, required=True))
ROW_FIELDS = (
    Field("request_id", TEXT, required=True),
    Field("play_id", TEXT, required=True),
    Field("session_id", TEXT, required=True),
    Field("model", TEXT, required=True),
    Field("source_play_ordinal", U64),
    Field("input_length", U64, required=True),
    Field("output_length", U64, required=True),
    Field("output_token_ids", U32_LIST),
    Field("hash_ids", U64_LIST, required=True),
    Field("not_before_ms", NUMBER, required=True),
    Field("recorded_api_time_ms", NUMBER),
    Field("priority", I32),
    Field("strict_priority", U32),
    Field("policy_class", TEXT),
    Field("dependencies", LIST),
)
DEPENDENCY_FIELDS = (
    Field("request_id", TEXT, required=True),
    Field("trigger", TEXT, required=True),
    Field("delay_ms", NUMBER, required=True),
    Field("relation", TEXT, required=True),
)
LEGACY_FIELDS = (
    Field("request_id", TEXT, required=True),
    Field("session_id", TEXT),
    Field("input_length", U64, "input_tokens"),
    Field("output_length", U64, "output_tokens", required=True),
    Field("output_token_ids", U32_LIST),
    Field("hash_ids", U64_LIST, required=True),
    Field("timestamp", NUMBER, "created_time"),
    Field("delay", NUMBER, "delay_ms"),
    Field("tool_wait_ms", NUMBER),
    Field("wait_for", LIST),
    Field("priority", I32),
    Field("strict_priority", U32),
    Field("policy_class", TEXT),
)


@frozen
class Dependency:
    """An edge into a node: ``delay_ms`` after the ``trigger`` (dispatch or completion) of ``request_id``."""

    request_id: str
    trigger: str
    delay_ms: float
    relation: str


@frozen
class Node:
    """One request of a play; the fields are those of a row, ``hash_ids`` interned."""

    request_id: str
    play_id: str
    session_id: str
    model: str
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    not_before_ms: float
    dependencies: tuple[Dependency, ...] = ()
    output_token_ids: tuple[int, ...] | None = None
    source_play_ordinal: int | None = None
    recorded_api_time_ms: float | None = None
    priority: int = 0
    strict_priority: int = 0
    policy_class: str | None = None
    line: int = 0


@frozen
class Graph:
    """Plays of nodes, in canonical order.

    Attributes:
        block_size: tokens that a hash id stands for.
        nodes: sorted by request id.
        plays: play ids, by ordinal when all plays have one, else sorted.
        source: format and digest of what the rows were made from; empty for rows without a header.
    """

    block_size: int
    nodes: tuple[Node, ...]
    plays: tuple[str, ...]
    source: Mapping[str, str] = field(factory=dict)

    @property
    def requests(self) -> int:
        """Nodes."""
        return len(self.nodes)

    def digest(self) -> str:
        """A fingerprint of block size and nodes, with dependencies in canonical order.

        It covers what the public digest covers, with another hash function, so the values differ.
        """
        content = [repr(self.block_size)]
        for node in self.nodes:
            ordered = tuple(sorted(node.dependencies, key=_dependency_order))
            content.append(repr(attrs.astuple(attrs.evolve(node, dependencies=ordered, line=0))))
        return blake2b("\n".join(content).encode(), digest_size=32).hexdigest()


def _dependency_order(edge: Dependency) -> tuple[str, int, str, float]:
    return edge.request_id, TRIGGERS.index(edge.trigger), edge.relation, edge.delay_ms


def load_agentic(rows: Iterable[tuple[int, object]]) -> Graph:
    """The graph in numbered rows of version 2: a header, then a node a row.

    Raises:
        TraceError: ``E_HEADER`` and the errors of rows, with the line (header: 1 unless blank lines precede it); the errors
            of the graph, with the request ids.
    """
    rows = iter(rows)
    line, value = next(rows, (None, None))
    if line is None:
        raise TraceError("", "no request", "a header and at least one request", code="E_EMPTY")
    block_size, source = _header(value, line)
    interner = Interner()
    return build_graph(block_size, [_node(value, line, block_size, interner) for line, value in rows], source)


def load_legacy(rows: Iterable[tuple[int, object]], block_size: int) -> Graph:
    """The graph in numbered rows without a header (1.5).

    The rows become those of version 2 below a header, so that its checks name the line after the row.

    Raises:
        TraceError: as ``load_agentic``.
    """
    check_block_size(block_size)
    interner = Interner()
    nodes = [_legacy_node(value, line, block_size, interner) for line, value in rows]
    return build_graph(block_size, _with_plays(nodes), {})


def _header(value: object, line: int) -> tuple[int, dict[str, str]]:
    if not isinstance(value, dict) or "schema" not in value:
        allowed = f'a header with "schema": "{SCHEMA}" (rows without one: agentic_mooncake_legacy)'
        raise TraceError("", shown(value), allowed, code="E_HEADER", line=line)
    header = read_record(value, HEADER_FIELDS, line)
    for name, code, expected in _HEADER_VALUES:
        if header[name] != expected:
            raise TraceError(name, shown(header[name]), repr(expected), code=code, line=line)
    check_block_size(header["block_size"])
    source = read_record(header["source"], SOURCE_FIELDS, line, "source")
    for name in ("format", "digest"):
        _not_blank(source[name], f"source.{name}", line)
    return header["block_size"], source


def _not_blank(text: str, path: str, line: int) -> None:
    if not text.strip():
        raise TraceError(path, shown(text), "a name that is not blank", code="E_BLANK", line=line)


def _not_negative(time: float | None, path: str, line: int, code: str = "E_BAD_TIME") -> None:
    if time is not None and not (math.isfinite(time) and time >= 0):
        raise TraceError(path, shown(time), "a finite number of milliseconds ≥ 0", code=code, line=line)


def _check_tokens(record: dict[str, Any], block_size: int, line: int) -> None:
    """Length, hash ids and plan of a node: exactly as many ids as blocks."""
    length, hashes, plan = record["input_length"], record["hash_ids"], record["output_token_ids"]
    if not length:
        raise TraceError("input_length", "0", "an integer ≥ 1", code="E_ZERO_INPUT", line=line)
    if len(hashes) != blocks_of(length, block_size):
        found, allowed = f"{len(hashes)} ids", f"{blocks_of(length, block_size)}, one for each block of {length} tokens"
        raise TraceError("hash_ids", found, allowed, code="E_HASH_COUNT", line=line)
    if plan is not None and len(plan) != record["output_length"]:
        allowed = f"{record['output_length']} ids, as many as output_length"
        raise TraceError("output_token_ids", f"{len(plan)} ids", allowed, code="E_PLAN_LEN", line=line)


def _node(value: object, line: int, block_size: int, interner: Interner) -> Node:
    record = read_record(value, ROW_FIELDS, line)
    for name in ("request_id", "play_id", "session_id", "model"):
        _not_blank(record[name], name, line)
    _check_tokens(record, block_size, line)
    _not_negative(record["not_before_ms"], "not_before_ms", line)
    _not_negative(record["recorded_api_time_ms"], "recorded_api_time_ms", line)
    given = enumerate(named(record.pop("dependencies"), []))
    return Node(
        **{name: record[name] for name in record if name not in ("hash_ids", "priority", "strict_priority")},
        hash_ids=interner.intern(record["hash_ids"], line),
        priority=named(record["priority"], 0),
        strict_priority=named(record["strict_priority"], 0),
        dependencies=tuple(_dependency(edge, f"dependencies[{number}]", line) for number, edge in given),
        line=line,
    )


def _dependency(value: object, path: str, line: int) -> Dependency:
    record = read_record(value, DEPENDENCY_FIELDS, line, path)
    for name, allowed in (("trigger", TRIGGERS), ("relation", RELATIONS)):
        if record[name] not in allowed:
            raise parse_error(line, f"{path}.{name}", shown(record[name]), " or ".join(allowed))
    if record["trigger"] == DISPATCH and record["relation"] != "spawn":
        found = f"{record['relation']} with dispatch"
        raise TraceError(path, found, "spawn with dispatch; any with completion", code="E_TRIGGER", line=line)
    _not_negative(record["delay_ms"], f"{path}.delay_ms", line, "E_BAD_DELAY")
    return Dependency(**record)


def _legacy_node(value: object, line: int, block_size: int, interner: Interner) -> Node:
    """A row without header, its play still open. The delay of a root and the timestamp of any other are dropped."""
    record = read_record(value, LEGACY_FIELDS, line)
    _not_blank(record["request_id"], "request_id", line)
    if not record["hash_ids"]:
        raise TraceError("hash_ids", "[]", "at least one id", code="E_NO_HASHES", line=line)
    waits = named(record["wait_for"], [])
    for number, wait in enumerate(waits):
        if not TEXT.passes(wait):
            raise parse_error(line, f"wait_for[{number}]", shown(wait), TEXT.words)
    delay, tool_wait = named(record["delay"], 0.0), named(record["tool_wait_ms"], 0.0)
    _not_negative(delay, "delay", line, "E_BAD_DELAY")
    _not_negative(tool_wait, "tool_wait_ms", line)
    start = 0.0 if waits else named(record["timestamp"], 0.0)
    line_below_header = line + 1
    if record["input_length"] is None:
        raise parse_error(line_below_header, "input_length", "nothing", U64.words)
    _check_tokens(record, block_size, line_below_header)
    _not_negative(start, "timestamp", line_below_header)
    relation = "join" if len(waits) > 1 else "sequence"
    return Node(
        request_id=record["request_id"],
        play_id="",
        session_id=named(record["session_id"], LEGACY_SESSION),
        model="model",
        input_length=record["input_length"],
        output_length=record["output_length"],
        hash_ids=interner.intern(record["hash_ids"], line),
        not_before_ms=start,
        dependencies=tuple(Dependency(wait, COMPLETION, delay + tool_wait, relation) for wait in waits),
        output_token_ids=record["output_token_ids"],
        priority=named(record["priority"], 0),
        strict_priority=named(record["strict_priority"], 0),
        policy_class=record["policy_class"],
        line=line,
    )


def _with_plays(nodes: Sequence[Node]) -> list[Node]:
    """Each connected component is a play, called after its earliest root (ties: by id)."""
    index = {node.request_id: number for number, node in enumerate(nodes)}
    play = list(range(len(nodes)))

    def find(number: int) -> int:
        while play[number] != number:
            play[number] = play[play[number]]
            number = play[number]
        return number

    for number, node in enumerate(nodes):
        for edge in node.dependencies:
            if edge.request_id in index:
                play[find(number)] = find(index[edge.request_id])
    first_roots: dict[int, tuple[float, str]] = {}
    for number, node in enumerate(nodes):
        if not node.dependencies:
            root = (node.not_before_ms, node.request_id)
            first_roots[find(number)] = min(root, first_roots.get(find(number), root))
    # A component without a root is a cycle, and refused as one when the graph is built.
    labels = {number: f"legacy-play:{id_}" for number, (_, id_) in first_roots.items()}
    return [
        attrs.evolve(node, play_id=labels.get(find(number), f"legacy-play:{nodes[find(number)].request_id}"))
        for number, node in enumerate(nodes)
    ]


def build_graph(block_size: int, nodes: Sequence[Node], source: Mapping[str, str]) -> Graph:
    """The graph of ``nodes``, once it is seen to be one.

    Raises:
        TraceError: ``E_EMPTY``, ``E_DUPLICATE_ID``, ``E_SELF_DEPENDENCY``, ``E_UNKNOWN_ID``, ``E_CROSS_PLAY``, ``E_CYCLE``
            (also a play without a root), ``E_ORDINALS``.
    """
    if not nodes:
        raise TraceError("", "no request", "at least one", code="E_EMPTY")
    ordered = sorted(nodes, key=lambda node: node.request_id)
    plays: dict[str, str] = {}
    for node in ordered:
        if node.request_id in plays:
            raise _graph_error("E_DUPLICATE_ID", f"request {node.request_id}", "the id twice", "an id once")
        plays[node.request_id] = node.play_id
    for node in ordered:
        for edge in node.dependencies:
            _check_edge(node, edge, plays)
    _check_acyclic(ordered)
    return Graph(block_size, tuple(ordered), _play_order(ordered), source)


def _graph_error(code: str, subject: str, found: str, allowed: str) -> TraceError:
    return TraceError("", found, allowed, code=code, subject=subject)


def _check_edge(node: Node, edge: Dependency, plays: Mapping[str, str]) -> None:
    subject = f"request {node.request_id}"
    if edge.request_id == node.request_id:
        raise _graph_error("E_SELF_DEPENDENCY", subject, "a dependency on itself", "dependencies on others")
    if edge.request_id not in plays:
        raise _graph_error("E_UNKNOWN_ID", subject, f"a dependency on {edge.request_id}", "ids of requests in the file")
    if plays[edge.request_id] != node.play_id:
        found = f"a dependency on {edge.request_id} of play {plays[edge.request_id]}"
        raise _graph_error("E_CROSS_PLAY", subject, found, f"requests of play {node.play_id}")


def _check_acyclic(nodes: Sequence[Node]) -> None:
    waits = {node.request_id: {edge.request_id for edge in node.dependencies} for node in nodes}
    followers: dict[str, list[str]] = {node.request_id: [] for node in nodes}
    for node in nodes:
        for id_ in sorted(waits[node.request_id]):
            followers[id_].append(node.request_id)
    free = [id_ for id_, waited in waits.items() if not waited]
    done = 0
    while free:
        done += 1
        for id_ in followers[free.pop()]:
            waits[id_].pop()
            if not waits[id_]:
                free.append(id_)
    if done < len(nodes):
        stuck = ", ".join(id_ for id_, waited in waits.items() if waited)
        raise _graph_error("E_CYCLE", f"requests {stuck}", "a cycle among or before them", "no cycle")


def _play_order(nodes: Sequence[Node]) -> tuple[str, ...]:
    ordinals: dict[str, int | None] = {}
    for node in nodes:
        known = ordinals.setdefault(node.play_id, node.source_play_ordinal)
        if known != node.source_play_ordinal:
            found = f"ordinals {shown(known)} and {shown(node.source_play_ordinal)}"
            raise _graph_error("E_ORDINALS", f"play {node.play_id}", found, "one ordinal in all rows of a play")
    given = {play: ordinal for play, ordinal in ordinals.items() if ordinal is not None}
    if not given:
        return tuple(sorted(ordinals))
    if sorted(given.values()) != list(range(len(ordinals))):
        found = ", ".join(f"{play}: {shown(ordinal)}" for play, ordinal in sorted(ordinals.items()))
        raise _graph_error("E_ORDINALS", "plays", found, f"each of 0 to {len(ordinals) - 1}, on every play or on none")
    return tuple(sorted(given, key=given.__getitem__))
