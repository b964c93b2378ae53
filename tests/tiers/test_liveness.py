"""That restores end, and when: liveness of the right rule (offload specification 7), and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from attrs import evolve
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from invariants.monitor import Monitor
from model.actions import Action, Advance, Nanoseconds, Step, Submit
from model.config import EngineConfig
from model.events import Admission, StepReport
from model.tiers.engine import TieredEngine
from model.tiers.notes import LoadQueued, Promoted, notes_of
from tests.tiers.driver import Arrival, Run, arrival, drive
from tests.tiers.fixtures import MS, configuration
from tests.tiers.strategies import SIZE, configurations, plans, workloads

THRASH = "restore-thrash"


def without_defects(config: EngineConfig) -> EngineConfig:
    written = config.to_json()
    written.pop("defects", None)
    return EngineConfig.from_json(written)


def follow(monitor: Monitor, engine: TieredEngine, plan: Sequence[Action], passes_max: int = 400) -> None:
    """Carry out a plan, then drain; a pass is tried only where it may do something, and time only passes to what is due."""
    idle = False

    def apply(action: Action) -> None:
        nonlocal idle
        due = engine.core.offload.next_deadline()
        if isinstance(action, Step) and (idle or not engine.ready):
            action = Advance()
        if isinstance(action, Advance) and due is None:
            if idle or not engine.ready:
                return
            action = Step()
        report = monitor.apply(action)
        idle = isinstance(action, Step) and not report.had_effect

    for action in plan:
        apply(action)
    for _ in range(passes_max):
        if not engine.busy:
            return
        apply(Step())
    raise AssertionError("does not drain")


@settings(max_examples=100, deadline=None)
@given(configurations(), plans())
def test_the_right_engine_breaks_no_invariant_and_drains(config: EngineConfig, plan: list[Action]) -> None:
    """L1, L2, L4, L6, L7, L8, L11, L13 and S1 to S13, at every step of any run."""
    engine = TieredEngine(config)
    monitor = Monitor(engine)
    follow(monitor, engine, plan)
    assert monitor.violations == []


times_ns = st.sampled_from([0, MS, 3 * MS])


def isolated(
    host_blocks: int, blocks: int, read: Nanoseconds, h2d: Nanoseconds, latency_ms: float = 0, **more: Any
) -> Run:
    """One request with ``blocks`` blocks on disk, alone on an idle engine."""

    def gbps(block_ns: Nanoseconds) -> float:
        # Blocks of 3 MB, so that the times of the box are whole bandwidths.
        return float(Fraction(3 * MS, block_ns)) if block_ns else 0

    tokens = list(range(4 * blocks))
    config = configuration(
        host_blocks,
        kv_bytes_per_token=750_000,
        d2h_gbps=0,
        h2d_gbps=gbps(h2d),
        disk_blocks=16,
        disk_latency_ms=latency_ms,
        disk_read_gbps=gbps(read),
        disk_write_gbps=0,
        preloaded_disk=[tokens],
        **more,
    )
    return drive(config, [arrival("r", 1, [*tokens, 99])])


@given(st.integers(1, 5), st.integers(1, 8), times_ns, times_ns, st.sampled_from([0, 0.25]))
@settings(deadline=None)
def test_l3_an_isolated_request_is_admitted_in_time(
    host_blocks: int, blocks: int, read: int, h2d: int, latency_ms: float
) -> None:
    run = isolated(host_blocks, blocks, read, h2d, latency_ms)
    moved = min(host_blocks, blocks)
    at, admission = run.first("r")
    assert at == 1 + latency_ms + moved * (read + h2d) / MS
    assert admission.host_tokens == 4 * moved
    reads = [told for report in run.reports for told in notes_of(report, Promoted)]
    assert [len(told.blocks) for told in reads] == [moved]


@given(st.integers(1, 5), st.integers(1, 8), times_ns, times_ns)
@settings(deadline=None)
def test_l10_more_host_memory_delays_a_request_by_no_more_than_a_round(
    host_blocks: int, blocks: int, read: int, h2d: int
) -> None:
    at, admission = isolated(host_blocks, blocks, read, h2d).first("r")
    later, more = isolated(host_blocks + 1, blocks, read, h2d).first("r")
    assert later <= at + (read + h2d) / MS
    assert more.host_tokens >= admission.host_tokens


@pytest.mark.parametrize("write_ms", [1, 3, 10])
def test_l10_a_request_that_waits_for_a_pin_gets_on_when_it_is_released(write_ms: int) -> None:
    """Host memory for two blocks; one is being written to disk when a request comes that needs both places."""
    tokens = list(range(8))

    def run(written: bool) -> Run:
        config = configuration(
            2,
            d2h_gbps=0,
            h2d_gbps=1,
            disk_blocks=8,
            disk_latency_ms=0,
            disk_read_gbps=1,
            disk_write_gbps=1 / write_ms,
            preloaded_disk=[tokens],
            engine={"timing": {"prefill_ms": 0, "prefill_ms_per_token": 0, "decode_ms": 0}},
        )
        rows = [arrival("writer", 0, [77] * 4, 0)] if written else []
        return drive(config, [*rows, arrival("r", 0.5, [*tokens, 99])])

    free, pinned = run(False).first("r"), run(True).first("r")
    assert free[0] == 0.5 + 2 + 2
    assert pinned[0] == max(write_ms, 0.5) + 2 + 2
    assert free[1].host_tokens == pinned[1].host_tokens == 8


def admissions_of(run: Run) -> dict[str, tuple[Nanoseconds, Admission]]:
    """First admissions by request."""
    return {id_: (history[0][0], history[0][1]) for id_, history in run.admitted.items()}


@settings(max_examples=60, deadline=None)
@given(configurations(), workloads())
def test_l12_a_waiting_request_is_passed_by_each_other_one_at_most_once(
    config: EngineConfig, arrivals: list[Arrival]
) -> None:
    run = drive(config, arrivals)
    order = [id_ for report in run.reports for id_ in _arrived_or_admitted(report)]
    for each in arrivals:
        id_ = each.request.id
        if id_ not in run.admitted:
            continue
        came, went = order.index(f"+{id_}"), order.index(id_)
        passed = [other for other in order[came:went] if not other.startswith("+")]
        assert len(passed) == len(set(passed))
        assert len(passed) < len(arrivals)


def _arrived_or_admitted(report: StepReport) -> list[str]:
    if isinstance(report.action, Submit):
        return [f"+{report.action.request.id}"]
    return [admission.id for admission in report.admissions if admission.first]


@settings(max_examples=60, deadline=None)
@given(configurations(), workloads(), st.integers(2, 3))
def test_scaling_all_durations_scales_all_times_and_changes_nothing_else(
    config: EngineConfig, arrivals: list[Arrival], factor: int
) -> None:
    assert config.tiers is not None
    tiers = evolve(
        config.tiers,
        host_latency_ms=factor * config.tiers.host_latency_ms,
        disk_latency_ms=factor * config.tiers.disk_latency_ms
        if config.tiers.disk_blocks
        else config.tiers.disk_latency_ms,
    )
    timing = evolve(
        config.timing, prefill_ms=factor * config.timing.prefill_ms, decode_ms=factor * config.timing.decode_ms
    )
    plain = drive(config, arrivals)
    slow = drive(
        evolve(config, tiers=tiers, timing=timing, kv_bytes_per_token=factor * 1_000_000 // SIZE),
        [Arrival(each.at * factor, each.request) for each in arrivals],
    )
    assert {id_: at * factor for id_, at in plain.ended.items()} == slow.ended
    for one, other in zip(plain.reports, slow.reports, strict=True):
        assert one.admissions == other.admissions
        assert [kind for kind, _ in one.notes] == [kind for kind, _ in other.notes]


@settings(max_examples=60, deadline=None)
@given(configurations(), workloads())
def test_without_the_disk_the_same_requests_finish(config: EngineConfig, arrivals: list[Arrival]) -> None:
    written = config.to_json()
    written["tiers"] = {name: value for name, value in written["tiers"].items() if "disk" not in name}
    without = drive(EngineConfig.from_json(written), arrivals)
    assert set(drive(config, arrivals).ended) == set(without.ended) == {each.request.id for each in arrivals}


@given(st.integers(1, 3), st.integers(1, 6))
@settings(deadline=None)
def test_reads_in_no_time_and_in_some_admit_with_the_same_reuse(host_blocks: int, blocks: int) -> None:
    """The defect breaks this: with some it never admits."""
    instant = isolated(host_blocks, blocks, 0, 0).first("r")[1]
    assert instant == isolated(host_blocks, blocks, MS, 0).first("r")[1]


def finished(config: EngineConfig, arrivals: list[Arrival]) -> Run | None:
    """The run, if it ends."""
    try:
        return drive(config, arrivals, passes_max=400)
    except AssertionError:
        return None


@settings(max_examples=80, deadline=None)
@given(configurations((THRASH,)), workloads(1))
def test_an_isolated_request_reuses_no_less_than_with_the_faulty_rule(
    config: EngineConfig, arrivals: list[Arrival]
) -> None:
    faulty = finished(config, arrivals)
    assume(faulty is not None)
    assert faulty is not None
    right = drive(without_defects(config), arrivals)
    for id_, (_, admission) in admissions_of(faulty).items():
        assert admissions_of(right)[id_][1].reused >= admission.reused


@settings(max_examples=100, deadline=None)
@given(configurations((THRASH,)), workloads(3))
def test_where_every_prefix_fits_nobody_reuses_less_than_with_the_faulty_rule(
    config: EngineConfig, arrivals: list[Arrival]
) -> None:
    assert config.tiers is not None
    longest = max(each.request.prompt.length // SIZE for each in arrivals)
    assume(longest <= config.tiers.host_blocks)
    faulty = finished(config, arrivals)
    assume(faulty is not None)
    assert faulty is not None
    right = admissions_of(drive(without_defects(config), arrivals))
    total = 0
    for id_, (_, admission) in admissions_of(faulty).items():
        total += right[id_][1].reused - admission.reused
    assert total >= 0


def test_a_read_is_not_repeated_while_another_request_keeps_running() -> None:
    """L13: upstream's bound starts anew with every pass of anybody; the right rule reads once."""
    tokens = list(range(12))
    rows = [arrival("busy", 0, [77] * 4, 20), arrival("r", 0.5, [*tokens, 99])]
    reads = {}
    for rule in ("restore-thrash:bounded-rounds", ""):
        config = configuration(
            2,
            defects=[rule] if rule else [],  # type: ignore[arg-type]
            d2h_gbps=0,
            h2d_gbps=1,
            disk_blocks=8,
            disk_latency_ms=0,
            disk_read_gbps=8,
            disk_write_gbps=0,
            preloaded_disk=[tokens],
            engine={"timing": {"prefill_ms": 1, "prefill_ms_per_token": 0, "decode_ms": 1}},
        )
        run = drive(config, rows)
        reads[rule] = sum(len(notes_of(report, Promoted)) for report in run.reports)
        assert set(run.ended) == {"busy", "r"}
        assert notes_of(run.reports[-1], LoadQueued) == []
    assert reads[""] == 1
    assert reads["restore-thrash:bounded-rounds"] > 1000
