"""Driving one paged engine: geometry in the notation of the specification's tables, requests by length, passes and drains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import define, field

from model.actions import Cancel, Handoff, Step, Submit
from model.config import EngineConfig
from model.events import StepReport, Stored
from model.paged.engine import PagedEngine
from model.paged.metrics import ForwardMetrics, forward_metrics
from model.registry import NO_BLOCK
from model.requests import Prompt, RequestSpec

FINDING_9 = "speculative-terminal-block"


def paged(geometry: str, **options: Any) -> PagedEngine:
    """An idle engine; ``"4/6/16/2"`` is block size / blocks / token budget / slots, with ``-`` for no limit.

    Prefix caching is off unless asked for, as in the specification's table of conformance cases.
    """
    size, blocks, budget, seqs = (None if part == "-" else int(part) for part in geometry.split("/"))
    return PagedEngine(
        EngineConfig(
            **{
                "scheduler": "vllm",
                "block_size": size,
                "num_blocks": blocks,
                "max_num_batched_tokens": budget,
                "max_num_seqs": seqs,
                "prefix_caching": False,
                **options,
            }
        )
    )


def drafts(draft_tokens: int, accepted: int = 0) -> dict[str, int]:
    """Speculation with ``draft_tokens`` a step, ``accepted`` of them kept."""
    return {"draft_tokens": draft_tokens, "accepted": accepted}


def text(*pieces: tuple[str, int]) -> Prompt:
    """A prompt of stretches of named streams."""
    return Prompt.of_streams(pieces)


def submit(engine: PagedEngine, id_: str, prompt: int | Prompt, output: int, planned: tuple[int, ...] | None = None) -> None:
    """Queue a request; a prompt given as a length shares nothing with any other."""
    tokens = prompt if isinstance(prompt, Prompt) else text((id_, prompt))
    engine.apply(Submit(RequestSpec(id_, tokens, output, planned)))


def submit_all(engine: PagedEngine, workload: Mapping[str, tuple[int | Prompt, int]]) -> None:
    """Queue ``id: (prompt, output)`` requests in order."""
    for id_, (prompt, output) in workload.items():
        submit(engine, id_, prompt, output)


def step(engine: PagedEngine, **accepted: int) -> StepReport:
    """One pass, with the drafts accepted by request."""
    return engine.apply(Step(accepted))


def steps(engine: PagedEngine, count: int) -> list[StepReport]:
    """``count`` passes."""
    return [step(engine) for _ in range(count)]


def measured(engine: PagedEngine) -> ForwardMetrics:
    """The forward-pass metrics of one pass."""
    report = step(engine)
    return forward_metrics(report, engine.view())


def cancel(engine: PagedEngine, id_: str) -> StepReport:
    """Withdraw a request."""
    return engine.apply(Cancel(id_))


def drain(engine: PagedEngine, most: int = 200) -> list[StepReport]:
    """Passes until the engine is idle; more than ``most`` is a failure."""
    reports: list[StepReport] = []
    while engine.busy:
        assert len(reports) < most, f"still busy after {most} passes"
        reports.append(step(engine))
    return reports


def livelocks(engine: PagedEngine, accepted: Callable[[int], Mapping[str, int]] = lambda _: {}) -> tuple[bool, list[StepReport]]:
    """Passes until the engine is idle (False) or a state recurs with no signal in between (True).

    Every way to go on ends in one of the two: a signal uses up output, and without one there are finitely many states.

    Args:
        engine: an engine that gets no further input.
        accepted: drafts accepted by request, for the pass of a number (from 0).
    """
    reports: list[StepReport] = []
    seen = {engine.freeze()}
    while engine.busy:
        report = engine.apply(Step(accepted(len(reports))))
        reports.append(report)
        if report.signals:
            seen.clear()
        state = engine.freeze()
        if state in seen:
            return True, reports
        seen.add(state)
    return False, reports


def told(report: StepReport) -> list[str]:
    """The signals of a pass in order, in words: ``a``, ``a done``, ``a done, no token``, ``a rejected``."""
    words = []
    for signal in report.signals:
        assert not signal.rejected or (signal.completed and not signal.token)
        ending = " rejected" if signal.rejected else " done" if signal.completed else ""
        words.append(signal.id + ending + ("" if signal.token or signal.rejected else ", no token"))
    return words


def tokens_out(reports: Iterable[StepReport]) -> int:
    """Tokens produced in all."""
    return sum(sum(report.emitted.values()) for report in reports)


def preempted(reports: Iterable[StepReport]) -> list[str]:
    """The victims of all preemptions, in order."""
    return [preemption.victim for report in reports for preemption in report.preemptions]


@define
class Mirror:
    """What an observer of the KV events holds to be cached; an event that contradicts it is a failure."""

    cached: set[int] = field(factory=set)

    def follow(self, reports: Iterable[StepReport]) -> frozenset[int]:
        """Take in the events of ``reports``; what is cached after them."""
        for report in reports:
            for event in report.events:
                if isinstance(event, Stored):
                    assert event.blocks
                    assert event.parent == NO_BLOCK or event.parent in self.cached, "stored behind a block that is not there"
                    for block in event.blocks:
                        assert block not in self.cached, "stored twice"
                        self.cached.add(block)
                else:
                    assert event.blocks
                    for block in event.blocks:
                        assert block in self.cached, "removed without having been stored"
                        self.cached.remove(block)
        return frozenset(self.cached)


def command(engine: PagedEngine, verb: str, id_: str, prompt: int | Prompt | None = None, output: int = 1) -> StepReport:
    """A hand-off command; a prompt given as a length shares nothing with any other."""
    request = None
    if prompt is not None:
        request = RequestSpec(id_, prompt if isinstance(prompt, Prompt) else text((id_, prompt)), output)
    return engine.apply(Handoff(verb, id_, request))


def noted(report: StepReport, kind: str) -> list[Any]:
    """The details of the notes of one kind."""
    return [details for name, details in report.notes if name == kind]
