"""Each invariant of the tiers fires when what it states is not so, and is met by what the engine does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
from attrs import evolve

import invariants.monitor  # noqa: F401  (declares the invariants)
from invariants.framework import Suite, Transition, Violation, known_ids
from invariants.monitor import Monitor
from model import engine as parts
from model.actions import Action, Advance, Cancel, Step, Submit
from model.config import EngineConfig
from model.defects import complete
from model.events import Admission, Removed, StepReport, Stored
from model.paged.engine import PagedEngine
from model.requests import Prompt, RequestSpec
from model.tiers.engine import TieredEngine
from model.tiers.notes import CapacityRetry, DiskJobEnded, Evicted, LoadQueued, Promoted
from model.tiers.views import EXTRA, HostEntryView, TiersView, tiers_of
from model.views import EngineView
from tests.tiers.fixtures import configuration
from tests.tiers.test_finding_10 import WORKLOAD, geometry

OBSERVED = frozenset(parts.PARTS)
CONFIG = configuration(
    2,
    d2h_gbps=1,
    h2d_gbps=1,
    disk_blocks=8,
    disk_latency_ms=0,
    disk_read_gbps=1,
    disk_write_gbps=1,
    preloaded_disk=[list(range(8))],
    engine={"num_blocks": 3, "max_num_batched_tokens": 4, "timing": {"prefill_ms": 1, "prefill_ms_per_token": 0}},
)


assert CONFIG.tiers is not None
TIERS = CONFIG.tiers


def run(actions: Sequence[Action], config: EngineConfig = CONFIG) -> list[tuple[EngineView, StepReport, EngineView]]:
    """Views and reports of a run."""
    engine = TieredEngine(config)
    seen = []
    for action in actions:
        before = engine.view()
        report = engine.apply(action)
        seen.append((before, report, engine.view()))
    return seen


def request(id_: str, tokens: Sequence[int], output: int = 1) -> Submit:
    return Submit(RequestSpec(id_, Prompt.of_tokens(tokens), output))


RESTORE: list[Action] = [request("r", [*range(8), 99]), Step(), Advance(), Step(), Advance(), Step(), Step()]
"""Promotion of two blocks, their load, admission with them, and the first token."""

COLD: list[Action] = [request("cold", [50] * 8), Step(), Step(), Advance(), Advance()]
"""Two blocks computed, copied to host memory, and on to disk."""


def found_in_state(view: EngineView, config: EngineConfig = CONFIG) -> list[str]:
    return _ids(Suite.of(config, OBSERVED).judge_state(view))


def found_in_step(
    before: EngineView, report: StepReport, after: EngineView, config: EngineConfig = CONFIG
) -> list[str]:
    return _ids(Suite.of(config, OBSERVED).judge_step(Transition(config, before, report, after)))


def _ids(violations: Sequence[Violation]) -> list[str]:
    return sorted({violation.invariant for violation in violations})


def with_tiers(view: EngineView, change: Callable[[TiersView], TiersView]) -> EngineView:
    """A view with other tiers."""
    tiers = tiers_of(view)
    assert tiers is not None
    return evolve(view, extra={**view.extra, EXTRA: change(tiers)})


def host(**changes: Any) -> Callable[[TiersView], TiersView]:
    """Change host memory."""
    return lambda tiers: evolve(
        tiers, host=evolve(tiers.host, **{name: value(tiers.host) for name, value in changes.items()})
    )


def disk(**changes: Any) -> Callable[[TiersView], TiersView]:
    """Change the disk."""

    def change(tiers: TiersView) -> TiersView:
        assert tiers.disk is not None
        return evolve(tiers, disk=evolve(tiers.disk, **{name: value(tiers.disk) for name, value in changes.items()}))

    return change


def restores(**changes: Any) -> Callable[[TiersView], TiersView]:
    """Change what the tiers know of every request."""
    return lambda tiers: evolve(tiers, restores={id_: evolve(each, **changes) for id_, each in tiers.restores.items()})


PROMOTING, LOADING, WRITING = (RESTORE, 1), (RESTORE, 3), (COLD, 3)
"""States: a read runs; a load runs; a write to disk runs. Named by actions and the one after which they are."""

FREE_ENTRY = HostEntryView(70, None, 0)

STATES: list[tuple[str, tuple[list[Action], int], Callable[[TiersView], TiersView], str]] = [
    ("S1 host memory overfull", PROMOTING, host(capacity=lambda host: 1), "tier-conservation"),
    ("S1 disk overfull", PROMOTING, disk(capacity=lambda disk: 1), "tier-conservation"),
    ("S2 a pinned block is evictable", LOADING, host(order=lambda host: (1,)), "tier-conservation"),
    (
        "S2 an evictable block is not in the order",
        LOADING,
        host(entries=lambda host: (*host.entries[:1], FREE_ENTRY)),
        "tier-conservation",
    ),
    ("S3 a pending block has no transfer", PROMOTING, host(transfers=lambda host: ()), "tier-conservation"),
    ("S3 a promotion has no read", PROMOTING, lambda tiers: evolve(tiers, stages=()), "tier-conservation"),
    (
        "S3 a read fills something else",
        PROMOTING,
        disk(jobs=lambda disk: (evolve(disk.jobs[0], blocks=(1,)),)),
        "tier-conservation",
    ),
    (
        "S4 a pin nobody holds",
        LOADING,
        host(entries=lambda host: tuple(evolve(each, pins=2) for each in host.entries)),
        "tier-conservation",
    ),
    (
        "S4 a write without its pin",
        WRITING,
        host(entries=lambda host: tuple(evolve(each, pins=0) for each in host.entries)),
        "tier-conservation",
    ),
    (
        "S5 a reader too many",
        PROMOTING,
        disk(stored=lambda disk: tuple(evolve(each, pins=2) for each in disk.stored)),
        "tier-conservation",
    ),
    (
        "S5 a pending block without writer",
        PROMOTING,
        disk(stored=lambda disk: (evolve(disk.stored[0], pending=True), *disk.stored[1:])),
        "tier-conservation",
    ),
    (
        "S6 a load of what is not there",
        LOADING,
        host(entries=lambda host: (evolve(host.entries[0], transfer=9), *host.entries[1:])),
        "restore-truth",
    ),
    (
        "S9 a worker too fast",
        PROMOTING,
        disk(jobs=lambda disk: (evolve(disk.jobs[0], rate=Fraction(2)),)),
        "bandwidth-cap",
    ),
    ("S12 a load for nobody", LOADING, lambda tiers: evolve(tiers, restores={}), "tier-conservation"),
    ("S13 a source nobody reads", (COLD, 4), lambda tiers: evolve(tiers, sources={0: 1}), "drains-empty"),
    (
        "S13 a pin left over",
        (COLD, 4),
        host(entries=lambda host: tuple(evolve(each, pins=1) for each in host.entries)),
        "drains-empty",
    ),
    ("L5 past the bound", PROMOTING, restores(rounds=1025), "bounded-restores"),
]


@pytest.mark.parametrize(("case", "change", "invariant"), [row[1:] for row in STATES], ids=[row[0] for row in STATES])
def test_a_state_that_cannot_be_is_told(
    case: tuple[list[Action], int], change: Callable[[TiersView], TiersView], invariant: str
) -> None:
    actions, at = case
    view = run(actions)[at][2]
    if invariant == "drains-empty":
        assert view.next_deadline_ns is None
    assert invariant not in found_in_state(view)
    assert invariant in found_in_state(with_tiers(view, change))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(restores(promotions={1: 2, 2: 1}, losses={}), id="L2 promoted twice"),
        pytest.param(lambda tiers: evolve(tiers, promoted={1: 2, 2: 1}), id="L4 promoted twice"),
        pytest.param(lambda tiers: evolve(tiers, allowance={"r": 1}), id="L4 more than asked for"),
    ],
)
def test_a_promotion_too_many_is_told(change: Callable[[TiersView], TiersView]) -> None:
    before, report, after = run(RESTORE)[1]
    assert "bounded-restores" not in found_in_step(before, report, after)
    assert "bounded-restores" in found_in_step(before, report, with_tiers(after, change))


def test_a_block_that_others_evicted_may_be_promoted_again() -> None:
    before, report, after = run(RESTORE)[1]
    again = with_tiers(after, restores(promotions={1: 2, 2: 1}, losses={1: 1}))
    assert "bounded-restores" not in found_in_step(before, report, again)


def test_s9_a_shared_disk_has_a_cap_of_its_own() -> None:
    config = evolve(CONFIG, tiers=evolve(TIERS, disk_scope="cluster_shared", disk_shared_read_gbps=0.5))
    view = run(RESTORE[:2], config)[-1][2]
    assert "bandwidth-cap" not in found_in_state(view, config)
    faster = with_tiers(view, disk(jobs=lambda disk: (evolve(disk.jobs[0], rate=Fraction(1)),)))
    assert "bandwidth-cap" in found_in_state(faster, config)


def test_l7_a_sleeper_needs_somebody_to_wake_it() -> None:
    view = run(RESTORE[:2])[-1][2]
    assert tiers_of(view) is not None
    assert "no-lost-wakeup" not in found_in_state(view)
    assert "no-lost-wakeup" in found_in_state(evolve(view, next_deadline_ns=None))


def test_l8_what_is_under_way_ends_and_is_ahead() -> None:
    view = run(RESTORE[:2])[-1][2]
    assert "deadlines-ahead" not in found_in_state(view)
    assert "deadlines-ahead" in found_in_state(evolve(view, next_deadline_ns=None))
    assert "deadlines-ahead" in found_in_state(evolve(view, next_deadline_ns=view.now_ns))


def noted(report: StepReport, *told: Any) -> StepReport:
    """A report with other notes."""
    return evolve(report, notes=[(each.kind, each) for each in told])


STEPS: list[tuple[str, int, Callable[[StepReport], StepReport], str]] = [
    (
        "S6 host tokens before the load has ended",
        1,
        lambda report: evolve(report, admissions=[Admission("r", 8, True, 8)]),
        "restore-truth",
    ),
    (
        "S6 more host tokens than reused",
        5,
        lambda report: evolve(report, admissions=[Admission("r", 4, True, 8)]),
        "restore-truth",
    ),
    ("S6 a load of what is not there", 3, lambda report: noted(report, LoadQueued("r", (70,), 0)), "restore-truth"),
    ("S8 a promotion of what is not on disk", 1, lambda report: noted(report, Promoted("r", (70,))), "restore-truth"),
    ("S8 bytes that no job moved", 2, lambda report: noted(report), "restore-truth"),
    ("S8 a job that moved more", 2, lambda report: noted(report, DiskJobEnded(True, (1, 2, 3))), "restore-truth"),
    (
        "host events: a block that was there",
        2,
        lambda report: evolve(report, events=[*report.events, Stored(0, (1,), "host")]),
        "events-mirror-cache",
    ),
    (
        "host events: a block that was not",
        1,
        lambda report: evolve(report, events=[Removed((70,), "host")]),
        "events-mirror-cache",
    ),
    ("host events: left out", 2, lambda report: evolve(report, events=[]), "events-mirror-cache"),
]


@pytest.mark.parametrize(("at", "change", "invariant"), [row[1:] for row in STEPS], ids=[row[0] for row in STEPS])
def test_a_step_that_cannot_be_is_told(at: int, change: Callable[[StepReport], StepReport], invariant: str) -> None:
    before, report, after = run(RESTORE)[at]
    assert invariant not in found_in_step(before, report, after)
    assert invariant in found_in_step(before, change(report), after)


def test_s7_a_block_under_a_copy_is_not_filled_before_that_has_ended() -> None:
    config = configuration(
        2, d2h_gbps=1, engine={"num_blocks": 1, "timing": {"prefill_ms": 0, "prefill_ms_per_token": 0}}
    )
    submits: list[Action] = [request("first", [1] * 4, 0), Step(), request("second", [2] * 3, 2), Step()]
    before, report, after = run(submits, config)[-1]
    assert report.work["second"].total == 3
    assert "source-intact" not in found_in_step(before, report, after, config)
    early = evolve(after, now_ns=before.now_ns + 1)
    assert "source-intact" in found_in_step(before, report, early, config)


def test_l1_a_promotion_that_evicts_its_own_prefix_is_told() -> None:
    before, report, after = run([*RESTORE[:1], Step()])[-1]
    tiers = tiers_of(before)
    assert tiers is not None
    own = noted(report, *[told for _, told in report.notes], Evicted(tiers.restores["r"].keys[0], "promotion", "r"))
    assert "bounded-restores" not in found_in_step(before, own, after)
    smaller = with_tiers(before, host(capacity=lambda host: 1))
    assert "bounded-restores" in found_in_step(smaller, own, after)


def test_l11_a_refused_cohort_is_not_offered_again_before_anything_changes() -> None:
    config = evolve(CONFIG, tiers=evolve(TIERS, host_blocks=1), max_num_batched_tokens=8)
    seen = run([request("r", [50] * 8, 3), Step(), Step()], config)
    refused = [told for _, told in seen[1][1].notes if isinstance(told, CapacityRetry)]
    assert [(told.unfittable, told.blocks) for told in refused] == [(True, (3, 4))]
    before, report, after = seen[2]
    assert not [told for _, told in report.notes if isinstance(told, CapacityRetry)]
    assert "bounded-restores" not in found_in_step(before, report, after, config)
    assert "bounded-restores" in found_in_step(before, noted(report, *refused), after, config)
    assert "bounded-restores" in found_in_step(*seen[1][:1], noted(seen[1][1], *refused * 2), seen[1][2], config)


def test_s11_an_engine_without_tiers_tells_of_none() -> None:
    config = EngineConfig.from_json({"scheduler": "vllm", "block_size": 4, "num_blocks": 4})
    engine = PagedEngine(config)
    engine.apply(request("r", [1] * 5))
    before = engine.view()
    report = engine.apply(Step())
    after = engine.view()
    assert found_in_step(before, report, after, config) == []
    told = evolve(report, events=[*report.events, Stored(0, (1,), "host")])
    assert "stored-needs-caching" in found_in_step(before, told, after, config)


def test_s12_a_cancelled_request_is_never_loaded_and_its_promotion_ends_once() -> None:
    engine = TieredEngine(CONFIG)
    monitor = Monitor(engine)
    for action in (RESTORE[0], Step(), Cancel("r")):
        monitor.apply(action)
    while engine.busy:
        monitor.apply(Advance())
    assert monitor.violations == []
    assert engine.core.pool.active == 0
    assert engine.core.offload.disk is not None
    assert engine.core.offload.disk.stats.read.completed_jobs == 1
    assert len(engine.core.offload.host.order) == 2


@pytest.mark.parametrize(
    ("defect", "caught"),
    [
        ("restore-thrash", {"bounded-restores", "no-livelock", "servable-finishes"}),
        ("restore-thrash:bounded-rounds", {"bounded-restores"}),
    ],
)
def test_the_thrash_is_caught_in_a_linear_run(defect: str, caught: set[str]) -> None:
    """L6: the state recurs. With the bound it does not, its counter sees to that; that restores are not bounded is seen."""
    engine = TieredEngine(geometry(defect))
    monitor = Monitor(engine)
    for each in WORKLOAD:
        monitor.apply(Submit(each.request))
        for _ in range(40):
            if not engine.busy or monitor.progress.lasso is not None:
                break
            monitor.apply(Step() if engine.ready else Advance())
    assert {violation.invariant for violation in monitor.violations} == caught
    lasso = monitor.progress.lasso
    assert (lasso is not None) is ("no-livelock" in caught)
    if lasso is not None:
        assert (lasso.kind, lasso.cycle) == ("eviction-cycle", 4)


def test_the_right_engine_meets_every_invariant_of_the_tiers() -> None:
    engine = TieredEngine(CONFIG)
    monitor = Monitor(engine)
    for action in (*COLD, *RESTORE):
        monitor.apply(action)
    assert monitor.violations == []
    exercised = monitor.exercised
    for id_ in (
        "tier-conservation",
        "restore-truth",
        "bounded-restores",
        "bandwidth-cap",
        "no-lost-wakeup",
        "deadlines-ahead",
    ):
        assert exercised[id_], id_


def test_the_declared_catchers_of_the_defects_exist() -> None:
    for id_ in ("restore-thrash", "loaded-behind-blocked"):
        assert set(complete()[id_].caught_by) <= set(known_ids())
