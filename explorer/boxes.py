"""Boxes: all geometries and workloads of small ranges, each explored to the end (case format, section 3).

In a box any engine field may be a list of values to try, or ``{"from": a, "to": b}``; so may a field inside ``speculation``,
``timing`` and the like, and ``prompt``, ``output`` and ``count`` of a request. The plain value of ``defects`` is a list of ids
already, so a choice of several is a list of lists. A prompt may be a length: ``shared_prefixes`` says whether all such prompts
are beginnings of one stream (true) or each its own (false, the default); a list of lengths is a choice of lengths, and a list of
``[stream, length]`` pairs is one prompt, as in a case. A request with ``count`` n stands for n requests, each of which takes any
of its values; since they arrive in any order, only their multiset matters.

Results are three-valued and come in the order of the geometries, whatever ran first: one that met a limit is unknown, and named.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from itertools import combinations_with_replacement, islice, product
from typing import Any

from attrs import define, field, frozen

from explorer.check import check
from explorer.engines import EngineSystem
from explorer.findings import Lasso, Verdict
from explorer.search import Limits
from invariants.framework import Violation
from invariants.progress import LassoShape
from model.actions import Action
from model.build import build_engine
from model.case import Case, Expectation, as_items, check_format
from model.config import EngineConfig
from model.errors import BadInput, expect_int, expect_list, expect_object, refuse_unknown, shown
from model.requests import Prompt, RequestSpec

STEP_KIND = "step"
"""Kind of a violation that a single step shows; the others are kinds of lassos."""

CHUNK = 16
"""Geometries handed to a worker at a time."""

_NESTED = ("speculation", "timing", "tiers", "prefill")
_RANGE = ("from", "to")


@frozen
class Geometry:
    """One configuration with one workload."""

    number: int
    engine: EngineConfig
    requests: tuple[RequestSpec, ...]
    cancel: bool = False

    def to_json(self) -> dict[str, Any]:
        """The geometry, to name one that was not finished."""
        requests = [{"prompt": request.prompt.to_json(), "output": request.output} for request in self.requests]
        return {"engine": self.engine.to_json(), "requests": requests, "cancel": self.cancel}


@frozen
class BoxLimits:
    """Limits of a box: ``states`` and ``memory_mb`` of each geometry, ``seconds`` of the whole. None: no limit."""

    states: int | None = 1_000_000
    seconds: float | None = None
    memory_mb: int | None = 2_000


@frozen
class Box:
    """A box as read; iterate over ``geometries()``."""

    engines: tuple[EngineConfig, ...]
    workloads: tuple[tuple[tuple[RequestSpec, ...], bool], ...]
    limits: BoxLimits = field(factory=BoxLimits)
    title: str = ""

    def __len__(self) -> int:
        """Number of geometries."""
        return len(self.engines) * len(self.workloads)

    def geometries(self) -> Iterator[Geometry]:
        """Every geometry, in a fixed order."""
        pairs = product(self.engines, self.workloads)
        for number, (engine, (requests, cancel)) in enumerate(pairs):
            yield Geometry(number, engine, requests, cancel)


def _is_range(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and set(value) <= set(_RANGE)


def _choices(value: object, path: str) -> list[Any]:
    """The values that a field stands for."""
    if isinstance(value, dict) and _is_range(value):
        low = expect_int(value.get("from"), f"{path}.from")
        high = expect_int(value.get("to"), f"{path}.to", low, f"an integer ≥ from ({low})")
        return list(range(low, high + 1))
    if isinstance(value, list):
        if not value:
            raise BadInput(path, "[]", "at least one value")
        return [choice for element in value for choice in (_choices(element, path) if _is_range(element) else [element])]
    return [value]


def _objects(value: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    """Every object that one with choices in its fields stands for."""
    names, options = list(value), []
    for name, item in value.items():
        where = f"{path}.{name}"
        if name in _NESTED:
            parts = item if isinstance(item, list) else [item]
            options.append(
                [choice for part in parts for choice in (_objects(part, where) if isinstance(part, dict) else [part])]
            )
        elif name == "defects":
            several = isinstance(item, list) and any(isinstance(element, list) for element in item)
            options.append(item if several else [item])
        else:
            options.append(_choices(item, where))
    return [dict(zip(names, values, strict=True)) for values in product(*options)]


def _prompt_choices(value: object, path: str) -> list[int | Prompt]:
    if isinstance(value, list) and value and all(isinstance(element, list) for element in value):
        if all(element and isinstance(element[0], list) for element in value):
            return [Prompt.read(element, f"{path}[{number}]") for number, element in enumerate(value)]
        return [Prompt.read(value, path)]
    allowed = "a length ≥ 1, a range or list of lengths, or a list of [stream, length] pairs"
    return [expect_int(length, path, 1, allowed) for length in _choices(value, path)]


def _read_workloads(value: object, path: str) -> list[tuple[tuple[RequestSpec, ...], bool]]:
    given = expect_object(value, path)
    refuse_unknown(given, ("requests", "shared_prefixes", "cancel"), path)
    groups: list[list[tuple[tuple[int | Prompt, int], ...]]] = []
    for number, entry in enumerate(expect_list(given.get("requests", []), f"{path}.requests")):
        where = f"{path}.requests[{number}]"
        request = expect_object(entry, where)
        refuse_unknown(request, ("prompt", "output", "count"), where)
        for name in ("prompt", "output"):
            if name not in request:
                raise BadInput(f"{where}.{name}", "nothing", "a value, a list of values, or a range")
        prompts = _prompt_choices(request["prompt"], f"{where}.prompt")
        outputs = [expect_int(output, f"{where}.output", 0) for output in _choices(request["output"], f"{where}.output")]
        counts = [expect_int(count, f"{where}.count", 1) for count in _choices(request.get("count", 1), f"{where}.count")]
        kinds = list(product(prompts, outputs))
        groups.append([chosen for count in counts for chosen in combinations_with_replacement(kinds, count)])
    if not groups:
        raise BadInput(f"{path}.requests", "no request", "at least one request")
    switches = {}
    for name in ("shared_prefixes", "cancel"):
        switches[name] = _choices(given.get(name, False), f"{path}.{name}")
        for choice in switches[name]:
            if not isinstance(choice, bool):
                raise BadInput(f"{path}.{name}", shown(choice), "true, false, or a list of both")
    workloads = []
    for chosen in product(*groups):
        kinds = [kind for group in chosen for kind in group]
        for shared, cancel in product(switches["shared_prefixes"], switches["cancel"]):
            workloads.append((_requests(kinds, shared), cancel))
    return workloads


def _requests(kinds: Sequence[tuple[int | Prompt, int]], shared: bool) -> tuple[RequestSpec, ...]:
    requests = []
    for number, (prompt, output) in enumerate(kinds):
        if isinstance(prompt, int):
            prompt = Prompt.of_streams([("S" if shared else f"S{number}", prompt)])
        requests.append(RequestSpec(_name(number), prompt, output))
    return tuple(requests)


def _name(number: int) -> str:
    return chr(ord("a") + number) if number < 26 else f"r{number}"


def read_box(value: object, path: str = "") -> Box:
    """A box from its JSON document.

    Raises:
        BadInput: with the path of the first field that is wrong.
    """
    prefix = f"{path}." if path else ""
    given = check_format(value, path, ("infercheck", "title", "source", "engine", "workload", "limits"))
    fields = expect_object(given.get("engine"), f"{prefix}engine")
    engines = [EngineConfig.from_json(fields, f"{prefix}engine") for fields in _objects(fields, f"{prefix}engine")]
    workloads = _read_workloads(given.get("workload"), f"{prefix}workload")
    return Box(tuple(engines), tuple(workloads), _read_limits(given.get("limits", {}), f"{prefix}limits"), given.get("title", ""))


def _read_limits(value: object, path: str) -> BoxLimits:
    given = expect_object(value, path)
    refuse_unknown(given, ("states", "seconds", "memory_mb"), path)
    limits: dict[str, Any] = {}
    for name in ("states", "memory_mb"):
        if given.get(name) is not None:
            limits[name] = expect_int(given[name], f"{path}.{name}", 1)
    seconds = given.get("seconds")
    if seconds is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
            raise BadInput(f"{path}.seconds", shown(seconds), "a number of seconds > 0")
        limits["seconds"] = float(seconds)
    return BoxLimits(**limits)


@frozen
class Finding:
    """One violation of one geometry, by a shortest path.

    Attributes:
        invariant, message: what is broken.
        kind: ``step``, or the kind of the lasso.
        stem: actions before the cycle (``step``: up to the violation).
        cycle: length of the cycle; 0 for ``step``.
        geometry: number of the geometry.
        case: a case that shows it.
    """

    invariant: str
    message: str
    kind: str
    stem: int
    cycle: int
    geometry: int
    case: Case

    def to_json(self) -> dict[str, Any]:
        """As the result of ``explore`` holds it."""
        return {
            "invariant": self.invariant,
            "kind": self.kind,
            "stem": self.stem,
            "cycle": self.cycle,
            "message": self.message,
            "geometry": self.geometry,
            "case": self.case.to_json(),
        }


@frozen
class GeometryResult:
    """What exploring one geometry showed."""

    number: int
    verdict: str
    reason: str | None
    states: int
    transitions: int
    depth: int
    findings: tuple[Finding, ...]
    exercised: Mapping[str, int]


@define
class SweepResult:
    """What exploring a box showed, complete or not.

    Attributes:
        geometries: how many the box has.
        finished: how many were explored to the end.
        states, transitions: summed over the geometries looked at; ``depth``: the greatest.
        seconds: elapsed time.
        findings: one for each invariant broken in each geometry.
        exercised: how often each invariant met its subject.
        unknown: the geometries not finished, with the reason.
    """

    geometries: int
    finished: int = 0
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(factory=list)
    exercised: Counter[str] = field(factory=Counter)
    unknown: list[tuple[Geometry, str]] = field(factory=list)

    @property
    def verdict(self) -> str:
        """``violated`` if anything was found, else ``holds`` only if every geometry was finished."""
        if self.findings:
            return str(Verdict.VIOLATED)
        return str(Verdict.HOLDS if self.finished == self.geometries else Verdict.UNKNOWN)

    def smallest(self) -> dict[str, Finding]:
        """For each invariant broken, the finding with the fewest actions."""
        best: dict[str, Finding] = {}
        for finding in self.findings:
            known = best.get(finding.invariant)
            if known is None or finding.stem + finding.cycle < known.stem + known.cycle:
                best[finding.invariant] = finding
        return best

    def to_json(self) -> dict[str, Any]:
        """As the case format has it (section 3)."""
        return {
            "verdict": self.verdict,
            "geometries": self.geometries,
            "states": self.states,
            "transitions": self.transitions,
            "depth": self.depth,
            "seconds": round(self.seconds, 3),
            "violations": [finding.to_json() for finding in self.findings],
            "exercised": dict(sorted(self.exercised.items())),
            "unknown": [{**geometry.to_json(), "reason": reason} for geometry, reason in self.unknown],
        }


def explore_geometry(geometry: Geometry, limits: Limits | None = None) -> GeometryResult:
    """Explore one geometry to the end, or to a limit."""
    system = EngineSystem(build_engine(geometry.engine), geometry.requests, cancel=geometry.cancel)
    result = check(system, limits=limits)
    findings: dict[str, Finding] = {}
    for violation in result.search.violations:
        actions = [system.action(label) for label, _ in violation.path]
        found = Violation(violation.property_id, violation.message, len(actions))
        shape = LassoShape(STEP_KIND, len(actions), 0)
        findings[found.invariant] = _finding(geometry, found, shape, actions)
    lassos: list[Lasso[bytes]] = [*result.livelocks, *result.stalls]
    for lasso in lassos:
        shape, violations = system.judge(lasso)
        actions = [system.action(label) for label, _ in lasso.stem + lasso.cycle]
        for found in violations:
            known = findings.get(found.invariant)
            if known is None or shape.stem + shape.cycle < known.stem + known.cycle:
                findings[found.invariant] = _finding(geometry, found, shape, actions)
    exercised: Counter[str] = Counter()
    for suite in system.suites:
        exercised.update(suite.exercised)
    search = result.search
    return GeometryResult(
        geometry.number,
        str(result.verdict),
        result.reason,
        search.states,
        search.transitions,
        search.depth,
        tuple(findings.values()),
        exercised,
    )


def _finding(geometry: Geometry, found: Violation, shape: LassoShape, actions: Sequence[Action]) -> Finding:
    case = Case(
        engine=geometry.engine,
        actions=as_items(actions),
        title=f"{found.invariant}: {found.message}",
        source="exploration",
        expect=Expectation(violates=(found.invariant,)),
    )
    return Finding(found.invariant, found.message, shape.kind, shape.stem, shape.cycle, geometry.number, case)


def _explore_chunk(chunk: Sequence[Geometry], limits: Limits) -> list[GeometryResult]:
    return [explore_geometry(geometry, limits) for geometry in chunk]


def sweep(
    box: Box,
    *,
    executor: Executor | None = None,
    ahead: int = 4,
    progress: Callable[[SweepResult], None] | None = None,
) -> SweepResult:
    """Explore every geometry of a box.

    Args:
        box: what to explore.
        executor: runs chunks of geometries side by side (a process pool, or a cluster client that gives an executor); without
            one they run here, one after the other. The result is the same.
        ahead: chunks handed to the executor before the oldest is waited for.
        progress: called with the result so far after each chunk.

    ``KeyboardInterrupt`` and the limit in seconds end the sweep with what has been found; the rest is unknown.
    """
    began = time.perf_counter()
    total = SweepResult(len(box))
    limits = box.limits
    deadline = None if limits.seconds is None else began + limits.seconds
    chunks = _chunks(box.geometries())
    reason = "not reached: the limit in seconds was met"
    pending: list[tuple[Sequence[Geometry], Future[list[GeometryResult]] | None]] = []
    exhausted = False
    try:
        while True:
            while not exhausted and len(pending) < (ahead if executor else 1):
                following = next(chunks, None)
                if following is None:
                    exhausted = True
                else:
                    search = Limits(states=limits.states, memory_bytes=_bytes(limits), seconds=_left(deadline))
                    pending.append((following, executor.submit(_explore_chunk, following, search) if executor else None))
            if not pending or (deadline is not None and time.perf_counter() >= deadline):
                break
            chunk, future = pending[0]
            if future is None:
                _explore_here(total, chunk, limits, deadline)
            else:
                _add(total, chunk, future.result())
            pending.pop(0)
            total.seconds = time.perf_counter() - began
            if progress is not None:
                progress(total)
    except KeyboardInterrupt:
        reason = "not reached: interrupted"
    for _, future in pending:
        if future is not None:
            future.cancel()
    seen = total.finished + len(total.unknown)
    total.unknown.extend((geometry, reason) for geometry in islice(box.geometries(), seen, None))
    total.seconds = time.perf_counter() - began
    return total


def _explore_here(total: SweepResult, chunk: Sequence[Geometry], limits: BoxLimits, deadline: float | None) -> None:
    for geometry in chunk:
        search = Limits(states=limits.states, memory_bytes=_bytes(limits), seconds=_left(deadline))
        _add(total, [geometry], [explore_geometry(geometry, search)])


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.perf_counter(), 0.001)


def _bytes(limits: BoxLimits) -> int | None:
    return None if limits.memory_mb is None else limits.memory_mb * 1_000_000


def _chunks(geometries: Iterable[Geometry]) -> Iterator[list[Geometry]]:
    source = iter(geometries)
    while chunk := list(islice(source, CHUNK)):
        yield chunk


def _add(total: SweepResult, chunk: Sequence[Geometry], results: Sequence[GeometryResult]) -> None:
    for geometry, result in zip(chunk, results, strict=True):
        total.states += result.states
        total.transitions += result.transitions
        total.depth = max(total.depth, result.depth)
        total.findings.extend(result.findings)
        total.exercised.update(result.exercised)
        if result.reason is None:
            total.finished += 1
        else:
            total.unknown.append((geometry, result.reason))
            if result.reason == "interrupted":
                raise KeyboardInterrupt
