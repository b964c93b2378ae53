"""The engine with tiers: conformance rows R1 to R6, R9, R10 and N3 of the offload specification, cancellation, events.

R7 and R8 are about host memory shared between ranks and about disaggregated serving, which the model's tiers do not have. N1 is
``test_finding_10``.
"""

from __future__ import annotations

from typing import Any

import pytest

from model.actions import Advance, Cancel, Step, Submit
from model.build import build_engine
from model.errors import BadInput
from model.events import Removed, StepReport, Stored
from model.requests import Prompt, RequestSpec
from model.tiers.core import Offload
from model.tiers.disk import Disk
from model.tiers.engine import TieredEngine
from model.tiers.notes import Evicted, LoadCancelled, LoadQueued, Promoted, notes_of
from model.tiers.rules import TierRules
from model.tiers.views import TiersView, tiers_of
from model.views import PARKED
from tests.tiers.driver import Run, arrival, drive
from tests.tiers.fixtures import MS, configuration, ms

UPSTREAM = ("restore-thrash:bounded-rounds", "loaded-behind-blocked", "admits-unservable", "counts-dropped-hits")


def engine(host_blocks: int, num_blocks: int = 16, *, on: dict[str, Any] | None = None, **tiers: Any) -> TieredEngine:
    """An engine whose passes take no time."""
    timing = {"prefill_ms": 0, "prefill_ms_per_token": 0, "decode_ms": 0}
    tiers = {"d2h_gbps": 0, "h2d_gbps": 1, **tiers}
    config = configuration(host_blocks, engine={"num_blocks": num_blocks, "timing": timing, **(on or {})}, **tiers)
    return TieredEngine(config)


def request(id_: str, tokens: range | list[int], output: int = 0) -> RequestSpec:
    return RequestSpec(id_, Prompt.of_tokens(tokens), output)


def tiers(of: TieredEngine) -> TiersView:
    view = tiers_of(of.view())
    assert view is not None
    return view


def shared(host_blocks: int, num_blocks: int, on_disk: list[int], **more: Any) -> tuple[TieredEngine, Disk]:
    """An engine as worker 1 of a disk on which worker 0 has written the full blocks of ``on_disk``."""
    config = configuration(
        host_blocks,
        engine={"num_blocks": num_blocks, "timing": {"prefill_ms": 0, "prefill_ms_per_token": 0, "decode_ms": 0}},
        d2h_gbps=0,
        h2d_gbps=1,
        disk_blocks=8,
        disk_scope="cluster_shared",
        disk_latency_ms=0,
        disk_read_gbps=1,
        disk_write_gbps=1,
        disk_shared_read_gbps=0,
        disk_shared_write_gbps=0,
        **more,
    )
    rules = TierRules.of(config)
    assert rules.disk is not None
    disk = Disk(rules.disk)
    made = TieredEngine(config, Offload(rules, disk, 1))
    disk.preload(0, made.registry.chained(Prompt.of_tokens(on_disk).blocks(4)[0]))
    return made, disk


def test_r1_a_prefix_in_both_tiers_is_staged_loaded_and_admitted() -> None:
    made, disk = shared(2, 2, list(range(8)), preloaded_host=[list(range(4))])
    made.apply(Submit(request("r", range(8))))
    made.apply(Step())
    assert made.view().requests["r"].status == PARKED
    assert made.view().pool.active == 0
    assert ms(made.apply(Advance()).end_ns) == 1.0
    (load,) = notes_of(made.apply(Step()), LoadQueued)
    assert len(load.blocks) == 2
    assert ms(load.due_ns) == 3.0
    assert made.view().pool.active == 2
    made.apply(Advance())
    assert made.view().pool.active == 2
    (admission,) = made.apply(Step()).admissions
    assert (admission.reused, admission.host_tokens) == (8, 8)
    assert disk.stats.read.completed_bytes == 1_000_000
    assert disk.stats.cross_worker_read_blocks == 1


def test_r2_a_load_waits_for_room_on_the_gpu_and_a_follower_for_the_load() -> None:
    made = engine(2, 1, preloaded_host=[[1, 2, 3, 4]], on={"max_num_batched_tokens": 8})
    made.apply(Submit(request("busy", [9, 9, 9], output=2)))
    made.apply(Step())
    made.apply(Submit(request("r", [1, 2, 3, 4])))
    report = made.apply(Step())
    assert report.finished == ["busy"]
    assert not notes_of(report, LoadQueued)
    assert made.view().waiting == ("r",)
    made.apply(Submit(request("follower", [1, 2, 3, 4])))
    assert [load.request for load in notes_of(made.apply(Step()), LoadQueued)] == ["r"]
    assert tiers(made).asleep == ("r", "follower")
    assert made.view().pool.active == 1
    assert notes_of(made.apply(Cancel("r")), LoadCancelled)
    assert made.view().pool.active == 0
    assert tiers(made).asleep == ()
    (load,) = notes_of(made.apply(Step()), LoadQueued)
    assert load.request == "follower"
    # The lane stays taken by the withdrawn copy.
    assert ms(load.due_ns) == 2.0


def test_r3_a_gpu_block_under_a_store_is_computed_anew_only_when_that_has_ended() -> None:
    made = engine(2, 1, d2h_gbps=1)
    made.apply(Submit(request("first", [1, 2, 3, 4])))
    assert made.apply(Step()).finished == ["first"]
    assert ms(made.view().next_deadline_ns) == 1.0
    assert len(tiers(made).sources) == 1
    made.apply(Submit(request("second", [5, 6, 7, 8])))
    report = made.apply(Step())
    assert ms(report.end_ns) == 1.0
    assert report.finished == ["second"]
    # Its block lay where a copy was still reading when it could have been offered.
    assert tiers(made).host.resident == {made.registry.chains[0][0]}
    assert tiers(made).host.transfers == ()


@pytest.mark.parametrize(("cancelled_at", "foreign", "moved"), [(0.5, None, 0), (0.9, 0.75, 0), (2, 3, 1_000_000)])
def test_r4_what_is_promoted_for_a_cancelled_request_lands_in_host_memory(
    cancelled_at: float, foreign: float | None, moved: int
) -> None:
    made, disk = shared(2, 2, list(range(4)))
    made.apply(Submit(request("r", range(4))))
    made.apply(Step())
    (block,) = tiers(made).host.present
    if foreign is not None:
        disk.advance(int(foreign * MS))
    made.apply(Advance(int(cancelled_at * MS)))
    made.apply(Cancel("r"))
    assert tiers(made).host.resident == frozenset()
    assert tiers(made).host.present == {block}
    assert disk.stats.read.completed_bytes == moved
    assert disk.stats.read.cancelled_jobs == 0
    made.apply(Advance(4 * MS - made.core.now))
    assert tiers(made).host.resident == {block}
    assert made.view().pool.active == 0
    assert made.view().next_deadline_ns is None


def test_r5_who_waits_is_not_looked_up_once_the_budget_is_used_up() -> None:
    made = engine(4, 64, h2d_gbps=0, on={"max_num_batched_tokens": 4, "max_num_seqs": 3})
    shared_tokens = list(range(1, 9))
    evicted: list[int] = []

    def finish(spec: RequestSpec, passes: int) -> None:
        made.apply(Submit(spec))
        for _ in range(passes):
            evicted.extend(eviction.block for eviction in notes_of(made.apply(Step()), Evicted))

    finish(request("shared", shared_tokens), 2)
    finish(request("b", [9, 9, 9, 9]), 1)
    finish(request("d", [8, 8, 8, 8]), 1)
    assert not made.core.requests
    assert evicted == []
    x, a = made.registry.chained(Prompt.of_tokens(shared_tokens).blocks(4)[0])
    assert list(made.core.offload.host.order)[:2] == [x, a]
    made.apply(Submit(request("producer", range(21, 29))))
    evicted.extend(eviction.block for eviction in notes_of(made.apply(Step()), Evicted))
    finish(request("waiter", shared_tokens, output=1), 1)
    assert evicted == [x, a]


def test_r6_host_events_tell_what_left_and_what_came() -> None:
    made = engine(1, 1, h2d_gbps=0)
    made.apply(Submit(request("first", [1, 2, 3, 4])))
    (first,) = host_events(made.apply(Step()))
    assert isinstance(first, Stored)
    made.apply(Submit(request("second", [5, 6, 7, 8])))
    removed, stored = host_events(made.apply(Step()))
    assert removed == Removed(first.blocks, tier="host")
    assert isinstance(stored, Stored)
    assert len(stored.blocks) == 1


def host_events(report: StepReport) -> list[Stored | Removed]:
    return [event for event in report.events if event.tier == "host"]


@pytest.mark.parametrize("switch", [{"host_events": False}, {"on": {"kv_events": False}}])
def test_host_events_can_be_left_out(switch: dict[str, Any]) -> None:
    made = engine(1, 1, **switch)
    made.apply(Submit(request("first", [1, 2, 3, 4])))
    assert host_events(made.apply(Step())) == []
    assert tiers(made).host.resident


def test_a_stored_event_runs_along_a_prefix_and_names_what_is_in_front() -> None:
    made = engine(4, 4, on={"max_num_batched_tokens": 8})
    made.apply(Submit(request("r", range(16))))
    first = host_events(made.apply(Step()))
    second = host_events(made.apply(Step()))
    assert first == [Stored(0, (1, 2), tier="host")]
    assert second == [Stored(2, (3, 4), tier="host")]


R9_ROWS = (
    ("r93", 2872.55, 1100, 12, 3),
    ("r97", 3035.964, 600, 31, 1),
    ("r99", 3084.905, 300, 24, 6),
    ("r100", 3111.521, 1100, 31, 3),
    ("r108", 3285.675, 300, 31, 2),
    ("r109", 3325.659, 1000, 5, 6),
    ("r110", 3341.429, 200, 16, 2),
    ("r111", 3376.429, 1100, 31, 3),
)
"""Id, arrival in milliseconds, first token id, prompt length, output."""


def r9(*defects: str) -> Run:
    """The regression of finding 10 in a replay."""
    config = configuration(
        4,
        defects=defects,
        d2h_gbps=1,
        h2d_gbps=0,
        disk_blocks=64,
        disk_scope="cluster_shared",
        disk_latency_ms=0.25,
        disk_read_gbps=0.5,
        disk_write_gbps=0.5,
        disk_shared_read_gbps=2.0,
        disk_shared_write_gbps=0.75,
        engine={
            "max_num_seqs": 2,
            "max_num_batched_tokens": 32,
            "timing": {"prefill_ms": 0.5, "prefill_ms_per_token": 0, "decode_ms": 0.25},
        },
    )
    rows = [arrival(id_, at, range(first, first + length), output) for id_, at, first, length, output in R9_ROWS]
    return drive(config, rows)


def test_r9_upstreams_bound_ends_the_thrash_after_1024_rounds() -> None:
    run = r9("restore-thrash:bounded-rounds")
    assert len(run.ended) == 8
    at, admission = run.first("r111")
    assert at == 9776.429
    assert (admission.reused, admission.host_tokens) == (4, 0)
    disk = run.engine.core.offload.disk
    assert disk is not None
    assert disk.stats.read.completed_jobs == 1024
    assert disk.stats.bypassed_restores == 1
    sizes = [len(told.blocks) for report in run.reports for told in notes_of(report, Promoted)]
    assert sizes == [4, 2] * 512


def test_r9_the_right_rule_restores_four_blocks_in_one_round() -> None:
    run = r9()
    assert len(run.ended) == 8
    at, admission = run.first("r111")
    assert at == 3376.429 + 0.25 + 8
    assert (admission.reused, admission.host_tokens) == (20, 16)
    disk = run.engine.core.offload.disk
    assert disk is not None
    assert disk.stats.read.completed_jobs == 1


def test_r10_a_replay_with_restores_and_a_readmission() -> None:
    """With what the row leaves open chosen to fit it: loads 1 GB/s, first byte 0.1 ms, passes 0.5 and 0.25 ms.

    The row tells 4.0 ms for r0; by the fixed pass times it is three prefill passes and six decodes, 3.0 ms, and that is what the
    released engine 1.6.1 gives for these inputs.
    """
    config = configuration(
        5,
        defects=UPSTREAM,
        d2h_gbps=1,
        h2d_gbps=1,
        disk_blocks=64,
        disk_scope="cluster_shared",
        disk_latency_ms=0.1,
        disk_read_gbps=0.5,
        disk_write_gbps=1,
        engine={
            "num_blocks": 8,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 3,
            "timing": {"prefill_ms": 0.5, "prefill_ms_per_token": 0, "decode_ms": 0.25},
        },
    )
    rows = [("r0", 0.0, 0, 8, 7), ("r3", 5.5, 200, 7, 4), ("r4", 5.5, 100, 10, 6)]
    rows += [("r6", 11.5, 0, 3, 11), ("r7", 11.5, 100, 13, 10), ("r9", 15.5, 0, 11, 8)]
    run = drive(config, [arrival(id_, at, range(first, first + length), out) for id_, at, first, length, out in rows])
    ended = {id_: float(at) for id_, at in run.ended.items()}
    assert ended == {"r0": 3.0, "r3": 9.25, "r4": 11.0, "r6": 16.0, "r7": 16.75, "r9": 23.85}
    assert [admission.reused for _, admission in run.admitted["r7"]] == [8, 16]
    assert run.first("r9")[1].host_tokens == 8
    disk = run.engine.core.offload.disk
    assert disk is not None
    assert (disk.stats.read.completed_jobs, disk.stats.bypassed_restores) == (1, 0)


@pytest.mark.parametrize(
    "rule", ["restore-thrash", "restore-thrash:bounded-rounds", "restore-thrash:whole-prefix-only", ""]
)
@pytest.mark.parametrize(("host_blocks", "blocks"), [(2, 2), (1, 1)])
def test_n3_a_prefix_that_fits_takes_one_read(rule: str, host_blocks: int, blocks: int) -> None:
    tokens = list(range(4 * blocks))
    config = configuration(
        host_blocks,
        defects=(rule,) if rule else (),
        d2h_gbps=0,
        h2d_gbps=1,
        disk_blocks=8,
        disk_latency_ms=0,
        disk_read_gbps=1,
        disk_write_gbps=0,
        preloaded_disk=[tokens],
    )
    run = drive(config, [arrival("r", 0, [*tokens, 99])])
    (load,) = [(float(r.start_ns / MS), told) for r in run.reports for told in notes_of(r, LoadQueued)]
    assert load[0] == blocks
    assert run.first("r")[1].host_tokens == 4 * blocks
    disk = run.engine.core.offload.disk
    assert disk is not None
    assert disk.stats.read.completed_jobs == 1


def test_a_prompt_loaded_whole_recomputes_its_last_block() -> None:
    tokens = list(range(8))
    made = engine(2, 4, preloaded_host=[tokens])
    made.apply(Submit(request("r", tokens, output=1)))
    made.apply(Step())
    made.apply(Advance())
    report = made.apply(Step())
    (admission,) = report.admissions
    assert (admission.reused, admission.host_tokens) == (4, 4)
    assert report.work["r"].total == 4
    assert report.finished == ["r"]


def test_a_load_reserves_room_for_whom_it_is_and_others_may_not_load_into_it() -> None:
    made = engine(4, 3, preloaded_host=[[1] * 4, [2] * 4])
    made.apply(Submit(request("r", [1] * 4 + [7] * 4, output=1)))
    made.apply(Submit(request("other", [2] * 4 + [7] * 4, output=1)))
    loads = notes_of(made.apply(Step()), LoadQueued)
    assert [load.request for load in loads] == ["r"]
    assert made.view().waiting == ("other",)


@pytest.mark.parametrize("defect", [False, True])
def test_an_ended_load_is_looked_at_before_those_it_blocks(defect: bool) -> None:
    """``loaded-behind-blocked``: x waits for blocks that y's ended load holds, and y for its turn behind x."""
    config = configuration(
        8,
        defects=("loaded-behind-blocked",) if defect else (),
        d2h_gbps=0,
        h2d_gbps=1,
        engine={"num_blocks": 4, "timing": {"prefill_ms": 0.5, "prefill_ms_per_token": 0, "decode_ms": 0.25}},
    )
    c, d = [1] * 4, [2] * 4
    rows = [arrival("c", 0, c), arrival("d", 2, d), arrival("flush", 4, range(100, 116))]
    rows += [arrival("z", 10, [*c, 3]), arrival("x", 10, [*c, *range(50, 59)]), arrival("y", 10, [*d, 3])]
    if defect:
        with pytest.raises(AssertionError, match="stands still with"):
            drive(config, rows)
        return
    run = drive(config, rows)
    assert {id_: float(run.ended[id_]) for id_ in "zyx"} == {"z": 11.5, "y": 12.5, "x": 13.0}


def test_tiers_are_built_from_the_configuration() -> None:
    assert isinstance(build_engine(configuration(1)), TieredEngine)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"prefix_caching": False}, "engine.tiers"),
        ({"role": "prefill"}, "engine.tiers"),
        ({"dp_size": 2}, "engine.tiers"),
        ({"scheduler": "sglang"}, "engine.tiers"),
        (
            {"tiers": {"host_blocks": 1, "disk_blocks": 4}, "speculation": {"draft_tokens": 1}},
            "engine.tiers.disk_blocks",
        ),
        ({"tiers": {"host_blocks": 1, "disk_read_gbps": 1}}, "engine.tiers.disk_read_gbps"),
        ({"tiers": {"host_blocks": 1, "preloaded_host": [[["A", 8]]]}}, "engine.tiers.preloaded_host"),
        ({"tiers": {"host_blocks": 1, "preloaded_host": [[]]}}, "engine.tiers.preloaded_host[0]"),
        ({"tiers": {"disk_blocks": 1}}, "engine.tiers.host_blocks"),
        ({"tiers": {"host_blocks": 1, "h2d_gbps": -1}}, "engine.tiers.h2d_gbps"),
    ],
)
def test_impossible_tiers_are_refused(change: dict[str, Any], path: str) -> None:
    with pytest.raises(BadInput) as refused:
        configuration(1, engine=change)
    assert refused.value.path == path


def test_speculation_works_beside_host_memory() -> None:
    made = engine(4, 8, on={"speculation": {"draft_tokens": 1, "accepted": 1}})
    made.apply(Submit(request("r", range(9), output=4)))
    report = made.apply(Step())
    assert report.emitted == {"r": 2}
    assert len(tiers(made).host.resident) == 2
