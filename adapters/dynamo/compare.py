"""Our model and the simulated engine on the same case, compared pass by pass and request by request.

Both run under fixed pass times up to the same time cap. What is compared: the outcome; every pass record with its queue
figures; block, running, waiting and preemption counters where the release shows them; what forwards accepted; and of each request
its arrival, admissions with reuse, token times, tokens, end and status. The first difference in time is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isclose
from numbers import Number
from typing import Any

import attrs
from attrs import frozen

from adapters.cases import case_of, fixed_times, workload_of
from adapters.dynamo.release import Release
from adapters.dynamo.wheel import Wheel, look_every_ns
from adapters.observation import STUCK, Observation, PassRecord, PoolSample
from adapters.timed import own_accepted, own_duration, run_timed, seen_every
from adapters.workload import Workload
from model.actions import Nanoseconds
from model.build import build_engine
from model.case import Case
from model.config import NANOSECONDS_PER_MS, EngineConfig, nanoseconds
from model.events import StepReport
from model.paged.metrics import ForwardMetrics

CAP_NS = 400 * NANOSECONDS_PER_MS
TOLERANCE = 1e-9


@frozen
class Difference:
    """The first thing on which two observations of one case disagree.

    Attributes:
        what: the figure, such as ``prefill_tokens`` of pass 3 or ``terminal_ns`` of request ``a``.
        at_ns: when.
        ours: what the model says.
        theirs: what the engine says.
        config, workload: the case.
        before: the last passes on which both agree, in words.
    """

    what: str
    at_ns: Nanoseconds
    ours: Any
    theirs: Any
    config: EngineConfig
    workload: Workload
    before: tuple[str, ...] = ()

    @property
    def case(self) -> Case:
        """The case on which they differ, to be replayed."""
        return case_of(self.config, self.workload, title=f"model and engine differ: {self.what}")

    def story(self) -> str:
        """The difference for a reader."""
        lines = [*self.before, f"at {self.at_ns / NANOSECONDS_PER_MS:g} ms: {self.what}"]
        lines += [f"  model: {self.ours}", f"  engine: {self.theirs}"]
        return "\n".join(lines)


def observe_model(config: EngineConfig, workload: Workload, release: Release, cap_ns: Nanoseconds = CAP_NS) -> Observation:
    """The model under ``workload``, its passes timed and its forwards counted as ``release`` does."""
    engine = build_engine(attrs.evolve(config, implementation="model"))
    if release.mapping:
        return run_timed(engine, workload, cap_ns=cap_ns, duration=own_duration, accepted=own_accepted)
    timing = config.timing
    prefill = nanoseconds(timing.prefill_ms)
    decode = nanoseconds(max(timing.decode_ms, release.decode_ms_least))

    def duration(report: StepReport) -> Nanoseconds:
        prefills = any(work.prompt_tokens for work in report.work.values())
        return (prefill if prefills else 0) + (decode if report.emitted else 0)

    def accepted(report: StepReport, metrics: ForwardMetrics) -> tuple[int, int]:
        tokens = sum(report.emitted.values())
        return (tokens, metrics.num_decode_requests) if tokens and metrics.num_decode_requests else (0, 0)

    return run_timed(engine, workload, cap_ns=cap_ns, duration=duration, accepted=accepted)


def compare(
    workload: Workload, config: EngineConfig, wheel: Wheel, *, cap_ns: Nanoseconds = CAP_NS, counters: bool = True
) -> Difference | None:
    """The first difference between our model and the engine; None when they agree on everything that is shown.

    Where the model predicts that the engine loops at one instant for ever, or that its replay fails there, both are compared
    up to that instant (and the failing is).

    Args:
        workload: what arrives.
        config: under fixed times; the defects are those of our model.
        wheel: the engine.
        cap_ns: virtual time to follow.
        counters: compare the sampled counters too.

    Raises:
        BadInput: for what the engine cannot be told.
    """
    return compare_observed(workload, config, wheel, cap_ns=cap_ns, counters=counters).difference


def compare_case(case: Case, wheel: Wheel, *, defects: object = "upstream", cap_ns: Nanoseconds = CAP_NS) -> Difference | None:
    """``compare`` for a case of the case format, under fixed pass times.

    Args:
        case: with actions, or a replay of single turns.
        wheel: the engine.
        defects: of our model: a named set or a list of ids.
        cap_ns: virtual time to follow.

    Raises:
        BadInput: for what a timed workload cannot hold, or the engine cannot be told.
    """
    config = attrs.evolve(fixed_times(case.engine), defects=defects)
    return compare(workload_of(case), config, wheel, cap_ns=cap_ns)


@frozen
class Comparison:
    """Both observations of one case and their first difference; ``theirs`` is None where there was nothing to compare."""

    ours: Observation
    theirs: Observation | None
    difference: Difference | None


def compare_observed(
    workload: Workload, config: EngineConfig, wheel: Wheel, *, cap_ns: Nanoseconds = CAP_NS, counters: bool = True
) -> Comparison:
    """``compare``, with what it compared."""
    ours = observe_model(config, workload, wheel.release, cap_ns)
    if ours.cap_ns == cap_ns:
        theirs = wheel.run(config, workload, cap_ns=cap_ns, counters=counters)
        step = None
        if config.tiers is not None:
            step = look_every_ns(config, workload)
            ours = seen_every(ours, step)
        return Comparison(ours, theirs, difference(ours, theirs, config, workload, step))
    if ours.outcome == STUCK:
        theirs = wheel.run(config, workload, cap_ns=ours.cap_ns, record=False)
        if theirs.outcome != STUCK:
            return Comparison(ours, theirs, difference(ours, theirs, config, workload))
    before_ns = ours.cap_ns - 1
    if before_ns < 0:
        return Comparison(ours, None, None)
    compared = compare_observed(workload, config, wheel, cap_ns=before_ns, counters=counters)
    return Comparison(ours, compared.theirs, compared.difference)


def difference(
    ours: Observation, theirs: Observation, config: EngineConfig, workload: Workload, step_ns: int | None = None
) -> Difference | None:
    """The earliest disagreement of two observations, or None.

    Args:
        ours: of the model.
        theirs: of the engine.
        config: of both.
        workload: of both.
        step_ns: how far apart the engine was looked at, when that was not at every end of a pass. Times of transfers are
            rounded, so a look may just miss what the next one sees.
    """
    found = list(_differences(ours, theirs, config.scheduler, step_ns or 0))
    if not found:
        return None
    what, at, mine, other = min(found, key=lambda entry: entry[1])
    before = tuple(_in_words(record) for record in ours.passes or () if record.end_ns < at)[-3:]
    return Difference(what, at, mine, other, config, workload, before)


Found = tuple[str, Nanoseconds, Any, Any]
Samples = tuple[PoolSample, ...] | None


def _differences(ours: Observation, theirs: Observation, scheduler: str, step_ns: int) -> Iterator[Found]:
    last = ours.cap_ns
    if ours.outcome != theirs.outcome:
        yield "outcome", last, ours.outcome, f"{theirs.outcome} {theirs.detail}"
    for mine, other in zip(ours.requests, theirs.requests, strict=False):
        a, b = attrs.asdict(mine), attrs.asdict(other)
        for name in a:
            if not _same(a[name], b[name]):
                times = [at for at in (mine.terminal_ns, other.terminal_ns) if at is not None]
                yield f"{name} of request {mine.id}", min(times, default=last), getattr(mine, name), getattr(other, name)
    yield from _sequences("pass", ours.passes, theirs.passes, step_ns)
    yield from _sequences("counters", *_comparable(ours.samples, theirs.samples, scheduler), step_ns)
    yield from _sequences("accepted", ours.accepts, theirs.accepts, step_ns)


def _comparable(ours: Samples, theirs: Samples, scheduler: str) -> tuple[Samples, Samples]:
    """The counters as they can be compared.

    With SGLang the engine counts cached pages that nobody holds as active, and no retraction as a preemption. Its first
    reading counts no preemption at all, and those of passes of no duration at instant 0 turn up in the second one, whenever
    that is; where there are any, preemptions are compared at the end alone.
    """
    if not ours or not theirs:
        return ours, theirs
    if scheduler == "sglang":
        return _changed(ours, _as_radix), _changed(theirs, _as_radix)
    if ours[0].preemptions:
        return _changed(ours, _counting(ours[-1].preemptions)), _changed(theirs, _counting(theirs[-1].preemptions))
    return ours, theirs


def _as_radix(sample: PoolSample) -> PoolSample:
    taken = sample.active_blocks + sample.inactive_blocks
    return attrs.evolve(sample, active_blocks=taken, inactive_blocks=0, preemptions=0)


def _counting(preemptions: int) -> Callable[[PoolSample], PoolSample]:
    return lambda sample: attrs.evolve(sample, preemptions=preemptions)


def _changed(samples: tuple[PoolSample, ...], change: Callable[[PoolSample], PoolSample]) -> tuple[PoolSample, ...]:
    """The samples after ``change``, those that no longer differ from the one before left out."""
    kept: list[PoolSample] = []
    for sample in map(change, samples):
        if not kept or attrs.evolve(kept[-1], at_ns=sample.at_ns) != sample:
            kept.append(sample)
    return tuple(kept)


def _sequences(what: str, ours: Any, theirs: Any, step_ns: int) -> Iterator[Found]:
    if ours is None or theirs is None:
        return
    for position, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        a, b = _figures(mine), _figures(other)
        if step_ns >= abs(_instant(mine) - _instant(other)):
            b.update({name: a[name] for name in ("at_ns", "end_ns") if name in a})
        fields = [name for name in a if not _same(a[name], b[name])]
        if fields:
            at = min(_instant(mine), _instant(other))
            yield f"{', '.join(fields)} of {what} {position}", at, _in_words(mine), _in_words(other)
            return
    if len(ours) != len(theirs):
        longer = ours if len(ours) > len(theirs) else theirs
        extra = longer[min(len(ours), len(theirs))]
        sides = (_in_words(extra), "nothing") if longer is ours else ("nothing", _in_words(extra))
        yield f"one more {what}", _instant(extra), *sides


def _same(mine: Any, other: Any) -> bool:
    """Equal, figures up to rounding; times are whole nanoseconds on one side, which is rounding enough."""
    if isinstance(mine, dict):
        return all(_same(mine[name], other[name]) for name in mine)
    if isinstance(mine, list | tuple):
        return len(mine) == len(other) and all(map(_same, mine, other))
    if isinstance(mine, Number) and isinstance(other, Number):
        return isclose(mine, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)  # type: ignore[arg-type]
    return bool(mine == other)


def _figures(entry: Any) -> dict[str, Any]:
    """The figures of an entry by name; times first."""
    figures = attrs.asdict(entry)
    figures.update(figures.pop("metrics", {}))
    return figures


def _instant(entry: Any) -> Any:
    return entry.end_ns if isinstance(entry, PassRecord) else entry.at_ns


def _in_words(entry: Any) -> str:
    shown = {name: value for name, value in _figures(entry).items() if value and name not in ("at_ns", "end_ns")}
    at_ms = _instant(entry) / NANOSECONDS_PER_MS
    return f"{at_ms:g} ms: " + ", ".join(f"{name} {float(value):g}" for name, value in shown.items())
