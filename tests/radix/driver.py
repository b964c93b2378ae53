"""Driving one radix engine: geometry in the notation of the specification's tables, requests by length, passes and drains.

The lower half builds states that only an engine in the middle of its work has, for what the specification says of its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import define, field

from model.actions import Advance, Cancel, Step, Submit
from model.config import EngineConfig
from model.events import KvEvent, StepReport, Stored
from model.radix.core import RUNNING, Core, Request
from model.radix.engine import RadixEngine
from model.radix.lease import begin, cache_prefix, cached_prefix, finish
from model.registry import NO_BLOCK
from model.requests import Prompt, RequestSpec
from tests.radix.audit import audit

FINDING_1 = "sglang-chunk-budget"
FINDING_4 = "stored-without-caching"
FINDING_8 = "split-keeps-capacity"
UNSERVABLE = "radix-admits-unservable"


def radix(geometry: str, **options: Any) -> RadixEngine:
    """An idle engine; ``"4/16/8"`` is page size / pages / chunk budget."""
    size, pages, chunk = (int(part) for part in geometry.split("/"))
    return RadixEngine(EngineConfig(scheduler="sglang", block_size=size, num_blocks=pages, chunked_prefill_size=chunk, **options))


def text(*pieces: tuple[str, int]) -> Prompt:
    """A prompt of stretches of named streams."""
    return Prompt.of_streams(pieces)


def spec(id_: str, prompt: int | Prompt | Iterable[int], output: int = 0, planned: tuple[int, ...] | None = None) -> RequestSpec:
    """A request; a prompt given as a length shares nothing with any other, one given as numbers has those tokens."""
    if isinstance(prompt, int):
        prompt = text((id_, prompt))
    elif not isinstance(prompt, Prompt):
        prompt = Prompt.of_tokens(prompt)
    return RequestSpec(id_, prompt, output, planned)


def submit(
    engine: RadixEngine,
    id_: str,
    prompt: int | Prompt | Iterable[int],
    output: int = 0,
    planned: tuple[int, ...] | None = None,
) -> None:
    """Queue a request."""
    engine.apply(Submit(spec(id_, prompt, output, planned)))


def submit_all(engine: RadixEngine, workload: Mapping[str, tuple[int | Prompt, int]]) -> None:
    """Queue ``id: (prompt, output)`` requests in order."""
    for id_, (prompt, output) in workload.items():
        submit(engine, id_, prompt, output)


def step(engine: RadixEngine, **accepted: int) -> StepReport:
    """One pass, with the drafts accepted by request; the state after it is audited."""
    report = engine.apply(Step(accepted))
    audit(engine.core)
    return report


def steps(engine: RadixEngine, count: int) -> list[StepReport]:
    """``count`` passes."""
    return [step(engine) for _ in range(count)]


def cancel(engine: RadixEngine, id_: str) -> StepReport:
    """Withdraw a request."""
    report = engine.apply(Cancel(id_))
    audit(engine.core)
    return report


def advance(engine: RadixEngine, ns: int) -> StepReport:
    """Let virtual time pass."""
    return engine.apply(Advance(ns))


def drain(engine: RadixEngine, most: int = 300) -> list[StepReport]:
    """Passes until the engine is idle; more than ``most`` is a failure."""
    reports: list[StepReport] = []
    while engine.busy:
        assert len(reports) < most, f"still busy after {most} passes"
        reports.append(step(engine))
    return reports


def stalls(engine: RadixEngine, most: int = 300) -> bool:
    """Passes until the engine is idle (False), or one has no effect (True): then all that follow have none.

    Only the new-token ratio changes in such a pass. It weighs what running requests will still produce, so it can free nobody
    where none runs; where one runs, room is short of what that one needs for its next token.
    """
    for _ in range(most):
        if not engine.busy:
            return False
        deferred = engine.core.deferred_passes
        if not step(engine).had_effect and not deferred:
            return True
    raise AssertionError(f"still busy after {most} passes")


def work_per_pass(engine: RadixEngine, most: int = 300) -> list[int]:
    """Tokens computed in each pass of a drain."""
    return [sum(report.scheduled.values()) for report in drain(engine, most)]


def told(report: StepReport) -> list[str]:
    """The signals of a pass in order, in words: ``a``, ``a done``, ``a done, no token``, ``a rejected``."""
    words = []
    for signal in report.signals:
        assert not signal.rejected or (signal.completed and not signal.token)
        ending = " rejected" if signal.rejected else " done" if signal.completed else ""
        words.append(signal.id + ending + ("" if signal.token or signal.rejected else ", no token"))
    return words


def retracted(reports: Iterable[StepReport]) -> list[str]:
    """The victims of all retractions, in order."""
    return [preemption.victim for report in reports for preemption in report.preemptions]


def available(engine: RadixEngine) -> int:
    """Free tokens of the pool."""
    return engine.core.pool.available * engine.rules.page_size


def evictable(engine: RadixEngine) -> int:
    """Evictable tokens of the tree."""
    return engine.core.tree.evictable * engine.rules.page_size


def protected(engine: RadixEngine) -> int:
    """Locked tokens of the tree."""
    return engine.core.tree.protected * engine.rules.page_size


@define
class Mirror:
    """What an observer of the KV events holds to be stored; an event that contradicts it is a failure."""

    stored: set[int] = field(factory=set)

    def follow(self, events: Iterable[KvEvent]) -> frozenset[int]:
        """Take in ``events``; what is stored after them."""
        for event in events:
            assert event.blocks
            if isinstance(event, Stored):
                assert event.parent == NO_BLOCK or event.parent in self.stored, "stored behind a page that is not there"
                for block in event.blocks:
                    assert block not in self.stored, "stored twice"
                    self.stored.add(block)
            else:
                for block in event.blocks:
                    assert block in self.stored, "removed without having been stored"
                    self.stored.remove(block)
        return frozenset(self.stored)


def shapes(events: Iterable[KvEvent]) -> list[str]:
    """Events in words: ``Stored 2``, ``Removed 1``."""
    return [f"{type(event).__name__} {len(event.blocks)}" for event in events]


class Parts:
    """The cache of an engine and single requests, driven without a scheduler.

    Every method that changes something returns the events it made.
    """

    def __init__(self, geometry: str, **options: Any) -> None:
        """``"4/3"`` is page size / pages."""
        self.engine = radix(f"{geometry}/1024", **options)
        self.core: Core = self.engine.core
        self.report = StepReport(Step())

    def request(self, id_: str, prompt: int | Prompt | Iterable[int], output: int = 0, generated: int = 0) -> Request:
        """A live request that has produced ``generated`` tokens and holds nothing."""
        described = spec(id_, prompt, output)
        number = self.engine.registry.number(described)
        request = Request(described, number, self.engine.rules, self.core.tree.root)
        request.generated = generated
        self.core.requests[id_] = request
        self.core.waiting.append(request)
        return request

    def allocate(self, request: Request, end: int | None = None) -> bool:
        """Its first allocation, up to ``end`` tokens (all it has); whether there was room."""
        end = request.length if end is None else end
        prefix = min(cached_prefix(self.core, request), self.engine.rules.whole_pages(end))
        return begin(self.core, self.report, request, prefix, end)

    def run(self, id_: str, prompt: int | Prompt, output: int, generated: int = 0) -> Request:
        """A running request with all its tokens computed, none of them in the tree."""
        request = self.request(id_, prompt, output, generated)
        assert self.allocate(request)
        self.core.waiting.remove(request)
        self.core.running.append(request)
        request.status = RUNNING
        return request

    def finish(self, request: Request) -> None:
        """Complete it."""
        finish(self.core, self.report, request)
        self.forget(request)

    def forget(self, request: Request) -> None:
        """Its lease has ended: it is live no more."""
        del self.core.requests[request.id]
        queue = self.core.running if request.status == RUNNING else self.core.waiting
        queue.remove(request)

    def cache(self, id_: str, prompt: int | Prompt | Iterable[int]) -> None:
        """Let a request with this prompt come and go."""
        request = self.request(id_, prompt)
        assert self.allocate(request)
        cache_prefix(self.core, self.report, request)
        self.finish(request)

    def matches(self, prompt: int | Prompt | Iterable[int], id_: str = "lookup") -> int:
        """Tokens of a prompt that are cached."""
        described = spec(id_, prompt)
        number = self.engine.registry.number(described)
        full = described.prompt.length // self.engine.rules.page_size
        return self.core.tree.match_length(self.engine.registry.chain(number, full), full) * self.engine.rules.page_size

    def events(self) -> list[KvEvent]:
        """The events since the last call."""
        events, self.report.events = self.report.events, []
        return events

    @property
    def available(self) -> int:
        """Free tokens."""
        return available(self.engine)

    @property
    def evictable(self) -> int:
        """Evictable tokens."""
        return evictable(self.engine)

    @property
    def protected(self) -> int:
        """Locked tokens."""
        return protected(self.engine)
