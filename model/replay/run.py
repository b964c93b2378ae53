"""The entry point: from a configuration and an engine to a result.

The trace is read to its end, and everything about it is checked, before anything of it is admitted. A run that is cut, by a
limit or from the keyboard, still gives a result, of what happened so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import attrs
from attrs import field, frozen

from model.build import build_engine
from model.config import EngineConfig
from model.engine import Engine
from model.errors import BadInput
from model.replay import config as formats
from model.replay.accept import definition
from model.replay.admission import Admission, DriverAdmission, FlatAdmission
from model.replay.agentic import Graph, load_agentic, load_legacy
from model.replay.applied_compute import load_applied_compute
from model.replay.collector import Collector, Window
from model.replay.config import ReplayConfig
from model.replay.driver import ConcurrencyPolicy, Driver, Policy, TracePolicy
from model.replay.errors import ReplayStuck
from model.replay.flat import FlatTrace, load_flat_file, read_requests
from model.replay.loop import Cut, Limits, Loop, Progress, Ticks
from model.replay.mooncake import load_mooncake
from model.replay.observe import Began, Finished, Observer, Workload
from model.replay.plays import AgenticPolicy, PlayOutcome, trace_of
from model.replay.reader import lines_of, rows_of
from model.replay.synthetic import synthesize
from model.replay.timeline import TimelinePoint
from model.replay.trace import Trace, check_inputs, validate
from model.replay.transform import (
    check_speedup,
    normalise_explicit_starts,
    normalise_graph,
    normalise_session_starts,
    speed_up,
    speed_up_graph,
)


@frozen
class ReplayResult:
    """What a replay gave.

    Attributes:
        complete: everything was replayed.
        stopped: why it was not: ``time-cap``, ``pass-limit``, ``interrupted``, ``dead-end`` or ``livelock``.
        message: what a stuck run was stuck at.
        report: the summary, with the keys of the replay specification, section 6; also ``accept_length`` and how requests ended.
        rows: one object per ended request: by id where the trace gives ids (plays, flat requests), else by arrival.
        arrivals: recorded arrival in ms by request, in order.
        costs: ghost counts by name.
        timeline: samples over the run.
        telemetry: samples at the interval asked for, the first before anything ran.
        windows: traffic between ticks of the policy.
        plays: outcomes of agentic plays, in play order.
    """

    complete: bool
    stopped: str | None
    message: str
    report: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    arrivals: Mapping[str, float]
    costs: Mapping[str, int]
    timeline: tuple[TimelinePoint, ...]
    telemetry: tuple[TimelinePoint, ...] = ()
    windows: tuple[Window, ...] = ()
    plays: tuple[PlayOutcome, ...] = field(default=())


def load_workload(config: ReplayConfig) -> Workload:
    """Read the trace, line by line, to its end.

    Raises:
        BadInput: if the file cannot be read.
        TraceError: for the first rule that the first bad line breaks.
    """
    kind = config.format
    if kind == formats.SYNTHETIC:
        assert config.synthetic is not None
        return synthesize(config.synthetic)
    if kind == formats.FLAT:
        if config.file is not None:
            return load_flat_file(config.file)
        return FlatTrace(read_requests(list(islice(config.rows or (), config.max_rows))))
    rows = lines_of(config.file) if config.file is not None else rows_of(config.rows or ())
    if config.max_rows is not None:
        rows = islice(rows, config.max_rows)
    if kind == formats.AGENTIC:
        return load_agentic(rows)
    if kind == formats.AGENTIC_LEGACY:
        return load_legacy(rows, config.block_size)
    if kind == formats.APPLIED_COMPUTE:
        return load_applied_compute(
            rows,
            config.block_size,
            shared_prefix_ratio=config.shared_prefix_ratio,
            num_prefix_groups=config.num_prefix_groups,
        )
    return load_mooncake(rows, config.block_size, delta=kind == formats.DELTA)


def prepare(trace: Trace, config: ReplayConfig, defects: frozenset[str]) -> Trace:
    """Origin, then speed-up, then the checks that stand before a driver; concurrency mode leaves times alone (2, 1.1).

    Raises:
        TraceError: ``E_SPEEDUP``, ``E_NO_FIRST_TS``, ``E_BAD_FIRST``, ``E_ZERO_INPUT``.
    """
    arrivals = config.concurrency is None
    if arrivals:
        check_speedup(config.speedup)
        trace = normalise_explicit_starts(trace) if config.strict else normalise_session_starts(trace, defects)
        trace = speed_up(trace, config.speedup)
    if config.strict:
        validate(trace, arrivals=arrivals)
    for session in trace.sessions:
        check_inputs(session)
    return trace


def _cut_outputs(workload: Workload, most: int | None) -> Workload:
    """Outputs of at most ``most`` tokens, authored ones too."""
    if most is None:
        return workload

    def cut(plan: tuple[int, ...] | None) -> tuple[int, ...] | None:
        return None if plan is None else plan[:most]

    if isinstance(workload, FlatTrace):
        requests = tuple(
            attrs.evolve(one, output_tokens=min(one.output_tokens, most), output_token_ids=cut(one.output_token_ids))
            for one in workload.requests_in_order
        )
        return attrs.evolve(workload, requests_in_order=requests)
    if isinstance(workload, Graph):
        nodes = tuple(
            attrs.evolve(one, output_length=min(one.output_length, most), output_token_ids=cut(one.output_token_ids))
            for one in workload.nodes
        )
        return attrs.evolve(workload, nodes=nodes)
    sessions = []
    for session in workload.sessions:
        turns = tuple(
            attrs.evolve(one, max_output_tokens=min(one.max_output_tokens, most), output_token_ids=cut(one.output_token_ids))
            for one in session.turns
        )
        sessions.append(attrs.evolve(session, turns=turns))
    return attrs.evolve(workload, sessions=tuple(sessions))


@frozen
class _Setup:
    """A workload ready to run."""

    admission: Admission
    workers: int
    max_sim_time_ms: float | None
    sla: Any
    span_ms: float = 0.0
    plays: AgenticPolicy | None = None


def _set_up(workload: Workload, config: ReplayConfig, engine: EngineConfig) -> _Setup:
    defects = engine.defects
    if isinstance(workload, FlatTrace):
        cap = config.concurrency if config.concurrency is not None else workload.max_in_flight
        admission: Admission = FlatAdmission(_sped_up(workload, config.speedup).requests_in_order, cap)
        time_cap = config.max_sim_time_ms if config.max_sim_time_ms is not None else workload.max_sim_time_ms
        sla = config.sla if config.sla.given else workload.sla
        span = max((one.arrival_ms or 0.0 for one in workload.requests_in_order), default=0.0)
        return _Setup(admission, workload.workers or config.workers, time_cap, sla, span)
    plays: AgenticPolicy | None = None
    if isinstance(workload, Graph):
        check_speedup(config.speedup)
        graph = speed_up_graph(normalise_graph(workload), config.speedup)
        trace = trace_of(graph)
        policy: Policy = AgenticPolicy(graph, config.lanes)
        plays = policy if isinstance(policy, AgenticPolicy) else None
    else:
        trace = prepare(workload, config, defects)
        starts = [session.first_arrival_timestamp_ms for session in trace.sessions]
        policy = TracePolicy(starts) if config.concurrency is None else ConcurrencyPolicy(config.concurrency)
    driver = Driver(trace, policy, engine_block_size=engine.block_size, defects=defects)
    multi_turn = config.concurrency is not None or trace.multi_turn
    admission = DriverAdmission(
        driver,
        shows_sessions=multi_turn or plays is not None,
        shows_turns=multi_turn and plays is None,
        authored_ids=plays is not None,
    )
    starts = [session.first_arrival_timestamp_ms for session in trace.sessions]
    span = max((start for start in starts if start is not None), default=0.0) if config.concurrency is None else 0.0
    return _Setup(admission, config.workers, config.max_sim_time_ms, config.sla, span, plays)


def _sped_up(trace: FlatTrace, ratio: float) -> FlatTrace:
    check_speedup(ratio)
    if ratio == 1:
        return trace
    requests = tuple(
        one if one.arrival_ms is None else attrs.evolve(one, arrival_ms=one.arrival_ms / ratio) for one in trace.requests_in_order
    )
    return attrs.evolve(trace, requests_in_order=requests)


def run_replay(
    config: ReplayConfig,
    engine: EngineConfig,
    observer: Observer | None = None,
    progress: Callable[[Progress], None] | None = None,
    *,
    workload: Workload | None = None,
    engines: Sequence[Engine] | None = None,
) -> ReplayResult:
    """Replay a trace.

    Args:
        config: the replay.
        engine: each worker; its ``defects`` hold those of the replay too.
        observer: is told every step (``model.replay.observe``).
        progress: is told now and then how far the run is.
        workload: the trace, when it is already read.
        engines: the workers, instead of engines of the model for ``engine``.

    Raises:
        BadInput: for a trace or configuration that cannot be used; nothing was admitted then.
    """
    loaded = _cut_outputs(load_workload(config) if workload is None else workload, config.max_output_tokens)
    setup = _set_up(loaded, config, engine)
    if engine.tiers is not None:
        raise BadInput("engine.tiers", "host and disk tiers", "null: a replay has no deadlines inside engines")
    workers = [build_engine(engine) for _ in range(setup.workers)] if engines is None else list(engines)
    collector = Collector(windows=config.window_ms is not None)
    loop = Loop(
        setup.admission,
        workers,
        collector,
        definition(config.accept_length, engine.defects),
        event_order=config.event_order,
        ticks=Ticks(config.telemetry_ms, config.window_ms, config.first_window_ms),
        limits=Limits(setup.max_sim_time_ms, config.max_passes),
        interruptions=config.interruptions,
        span_ms=setup.span_ms,
        observer=observer,
        progress=progress,
    )
    if observer is not None:
        drafts = engine.speculation.draft_tokens if engine.speculation is not None else 0
        observer(Began(config, loaded, drafts, engine.max_model_len))
    stopped, message = None, ""
    try:
        loop.run()
    except Cut as cut:
        stopped = str(cut)
    except ReplayStuck as stuck:
        stopped, message = stuck.kind, str(stuck)
    except KeyboardInterrupt:
        stopped = "interrupted"
    result = _result(loop, setup, config, stopped, message)
    if observer is not None:
        observer(_finished(loop, result))
    return result


def _result(loop: Loop, setup: _Setup, config: ReplayConfig, stopped: str | None, message: str) -> ReplayResult:
    collector = loop.collector
    outcomes = tuple(setup.plays.outcomes()) if setup.plays is not None else ()
    trajectories = [outcome.e2e_ms for outcome in outcomes if outcome.e2e_ms is not None]
    report = collector.report(
        worker_ms=len(loop.workers) * loop.now,
        gpus_per_worker=config.gpus_per_worker,
        sla=setup.sla,
        trajectories=trajectories if setup.plays is not None else None,
    )
    if setup.plays is not None:
        report["total_trajectories"] = len(outcomes)
        report["completed_trajectories"] = len(trajectories)
        report["incomplete_trajectories"] = len(outcomes) - len(trajectories)
    report["accept_length"] = loop.accept.mean
    report["accept_forwards"] = loop.accept.forwards
    report["passes"] = loop.passes
    report["preemptions"] = loop.preemptions
    report |= {f"{status}_count": count for status, count in collector.counts().items()}
    ended = [record for record in collector.records if record.status is not None]
    ordered = sorted(ended, key=lambda record: (record.name if record.authored else "", record.arrival_ms, record.uid))
    return ReplayResult(
        complete=stopped is None,
        stopped=stopped,
        message=message,
        report=report,
        rows=tuple(record.row() for record in ordered),
        arrivals={record.name: record.arrival_ms for record in collector.records},
        costs=loop.costs(),
        timeline=tuple(loop.timeline.points),
        telemetry=tuple(loop.telemetry),
        windows=tuple(loop.windows),
        plays=outcomes,
    )


def _finished(loop: Loop, result: ReplayResult) -> Finished:
    accept = loop.accept
    return Finished(
        now_ms=loop.now,
        complete=result.complete,
        stopped=result.stopped,
        view=loop.view,
        report=result.report,
        counts=loop.collector.counts(),
        rows=result.rows,
        windows=result.windows,
        accept=(accept.tokens, accept.forwards, accept.samples),
        passes=loop.passes,
        arrivals=len(result.arrivals),
        ticks=loop.ticks_fired,
    )
