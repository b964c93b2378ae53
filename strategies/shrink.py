"""Making a failing case smaller, action by action and field by field.

Hypothesis shrinks the choices that made a case; what is left there can still hold a request that does not matter. Here the case
itself is cut: whole requests, actions, passes, then lengths, then the configuration, again and again until nothing more can go.
It needs no Hypothesis, so a counterexample of the explorer or of a real engine is made smaller in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
from attrs import evolve

from invariants.monitor import Monitor
from model.actions import Cancel, Handoff, Step, Submit
from model.build import build_engine
from model.case import Case, Drain, Expectation, Item, Steps
from model.config import EngineConfig, Speculation
from model.engine import Engine, one_round
from model.errors import BadInput
from model.requests import Prompt, RequestSpec

DRAIN_LIMIT = 2_000
"""Passes of a drain while trying a smaller case."""


def run_items(engine: Engine, items: Sequence[Item], drain_limit: int = DRAIN_LIMIT) -> Monitor:
    """Drive ``engine`` through the entries of a case, under all invariants; stops at the first violation.

    Raises:
        BadInput: for an action that the engine cannot carry out.
    """
    monitor = Monitor(engine)
    for item in items:
        if isinstance(item, Steps):
            for _ in range(item.count):
                monitor.apply(item.step)
                if monitor.violations:
                    return monitor
        elif isinstance(item, Drain):
            drain(monitor, min(item.passes, drain_limit))
        else:
            monitor.apply(item)
        if monitor.violations:
            return monitor
    return monitor


def drain(monitor: Monitor, passes: int) -> bool:
    """No more input, but passes and all that is sure to come, until idle or something breaks; False at the limit."""
    engine = monitor.engine

    def ended() -> bool:
        return not engine.busy or bool(monitor.violations)

    for _ in range(passes):
        if ended():
            return True
        one_round(engine, monitor.apply, ended)
    return not engine.busy


def breaks(invariant: str, build: Callable[[EngineConfig], Engine] = build_engine) -> Callable[[Case], bool]:
    """A test for ``shrink_case``: the case still breaks ``invariant``."""

    def still_fails(case: Case) -> bool:
        try:
            monitor = run_items(build(case.engine), case.actions)
        except BadInput:
            return False
        return any(violation.invariant == invariant for violation in monitor.violations)

    return still_fails


def shrink_case(case: Case, still_fails: Callable[[Case], bool]) -> Case:
    """The smallest case that can be reached from ``case`` by single cuts, each of which still fails.

    Deterministic; ends because every cut makes the case smaller. The expectation is kept.
    """
    cut = True
    while cut:
        cut = False
        for smaller in _cuts(case):
            if still_fails(smaller):
                case = smaller
                cut = True
                break
    return case


def _cuts(case: Case) -> Iterator[Case]:
    """Cases one cut smaller, the boldest cuts first."""
    items = case.actions
    requests = [item.request.id for item in items if isinstance(item, Submit)]
    for id_ in requests:
        yield evolve(case, actions=_without_request(items, id_))
    for number, item in enumerate(items):
        if not isinstance(item, Submit):
            yield evolve(case, actions=(*items[:number], *items[number + 1 :]))
    for number, item in enumerate(items):
        for smaller in _smaller_items(item):
            yield evolve(case, actions=(*items[:number], smaller, *items[number + 1 :]))
    for config in _smaller_configs(case.engine):
        yield evolve(case, engine=config)


def _without_request(items: Sequence[Item], id_: str) -> tuple[Item, ...]:
    kept: list[Item] = []
    for item in items:
        if isinstance(item, Submit) and item.request.id == id_:
            continue
        if isinstance(item, Cancel | Handoff) and item.id == id_:
            continue
        if isinstance(item, Steps) and id_ in item.step.accepted:
            accepted = {name: count for name, count in item.step.accepted.items() if name != id_}
            item = Steps(item.count, Step(accepted, item.step.worker))
        kept.append(item)
    return tuple(kept)


def _smaller_items(item: Item) -> Iterator[Item]:
    if isinstance(item, Submit):
        for request in _smaller_requests(item.request):
            yield evolve(item, request=request)
    elif isinstance(item, Steps):
        if item.count > 1:
            yield evolve(item, count=item.count // 2)
            yield evolve(item, count=item.count - 1)
        if item.step.accepted:
            yield Steps(item.count, Step({}, item.step.worker))
        for id_, count in item.step.accepted.items():
            if count:
                yield Steps(item.count, Step({**item.step.accepted, id_: count - 1}, item.step.worker))


def _smaller_requests(request: RequestSpec) -> Iterator[RequestSpec]:
    if request.output_tokens is not None:
        return
    tokens = list(request.prompt.tokens())
    for length in dict.fromkeys((len(tokens) // 2, len(tokens) - 1)):
        if length >= 1:
            yield evolve(request, prompt=Prompt.of_tokens(tokens[:length]))
    if request.output:
        for output in dict.fromkeys((request.output // 2, request.output - 1)):
            yield evolve(request, output=output)


def _smaller_configs(config: EngineConfig) -> Iterator[EngineConfig]:
    """Options back at their defaults, limits and geometry reduced."""
    for attribute in attrs.fields(EngineConfig):
        name, value = attribute.name, getattr(config, attribute.name)
        if name in ("scheduler", "defects", "implementation", "role", "timing", "tiers", "prefill"):
            continue
        candidates: list[object] = []
        if attribute.default is not attrs.NOTHING and value != attribute.default:
            candidates.append(attribute.default)
        if isinstance(value, Speculation) and value.draft_tokens > 1:
            candidates.append(Speculation(value.draft_tokens - 1, min(value.accepted, value.draft_tokens - 1)))
        if name in ("block_size", "num_blocks") and value > 1:
            candidates.append(value - 1)
        for candidate in candidates:
            try:
                yield evolve(config, **{name: candidate})  # type: ignore[arg-type]
            except BadInput:
                continue
    if config.prefill is not None:
        yield evolve(config, prefill=None)
        blocks = config.prefill.num_blocks
        if blocks is not None and blocks > 1:
            yield evolve(config, prefill=evolve(config.prefill, num_blocks=blocks - 1))


def shrunk(case: Case, invariant: str, build: Callable[[EngineConfig], Engine] = build_engine) -> Case:
    """``case`` cut down while it breaks ``invariant``, expecting what the smaller one breaks."""
    smaller = shrink_case(case, breaks(invariant, build))
    monitor = run_items(build(smaller.engine), smaller.actions)
    ids = tuple(dict.fromkeys(violation.invariant for violation in monitor.violations))
    first = next(violation for violation in monitor.violations if violation.invariant == invariant)
    return evolve(smaller, title=f"{invariant}: {first.message}", expect=Expectation(violates=ids))
