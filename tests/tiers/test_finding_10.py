"""Finding 10 (offload specification 6): blocks of a prefix that evict each other for ever, and what ends it."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice

import pytest

from model.actions import Advance, Step, Submit
from model.config import EngineConfig
from model.requests import Prompt, RequestSpec
from model.tiers.engine import TieredEngine
from model.tiers.notes import CapacityRetry, DiskJobEnded, Evicted, LoadQueued, Promoted, notes_of
from model.tiers.views import evictions_explained, tiers_of
from tests.tiers.driver import Run, arrival, drive
from tests.tiers.fixtures import MS, configuration
from tests.tiers.test_restore import Bench, bench

THRASH = "restore-thrash"
BOUNDED = "restore-thrash:bounded-rounds"
STRUCTURAL = "restore-thrash:whole-prefix-only"
UNCLAIMED = "restore-thrash:unclaimed"

A, B, C, D, E, F = range(1, 7)
R0_AND_R2 = list(range(1, 9))
WORKLOAD = (
    arrival("r0", 0, R0_AND_R2, 0),
    arrival("r1", 2, range(100, 116), 0),
    arrival("r2", 6, R0_AND_R2, 1),
)


def geometry(*defects: str, read: float = 1) -> EngineConfig:
    """The smallest geometry (6.1)."""
    return configuration(
        1,
        defects=defects,
        d2h_gbps=0,
        h2d_gbps=1,
        disk_blocks=8,
        disk_latency_ms=0,
        disk_read_gbps=read,
        disk_write_gbps=0,
        engine={
            "num_blocks": 4,
            "max_num_batched_tokens": 4,
            "max_num_seqs": 1,
            "timing": {"prefill_ms": 1, "prefill_ms_per_token": 0, "decode_ms": 0},
        },
    )


def told(run: Run) -> list[tuple[float, list[object]]]:
    """Evictions, refusals and reads by the millisecond in which they happened, from the arrival of r2 on."""
    found = []
    for report in run.reports:
        notes = notes_of(report, Evicted, CapacityRetry, Promoted)
        if notes and report.start_ns >= 6 * MS:
            found.append((float(report.start_ns / MS), list(notes)))
    return found


def test_the_tiers_before_the_thrash_are_as_specified() -> None:
    run = drive(geometry(THRASH), WORKLOAD[:2])
    offload = run.engine.core.offload
    assert offload.disk is not None
    assert list(offload.host.entries) == [F]
    assert [block for _, block in offload.disk.stored] == [A, B, C, D, E, F]
    assert run.ended == {"r0": 2, "r1": 6}
    evictions = [(float(r.start_ns / MS), e.block) for r in run.reports for e in notes_of(r, Evicted)]
    assert evictions == [(1.0, A), (2.0, B), (3.0, C), (4.0, D), (5.0, E)]


def test_the_thrash_goes_on_as_traced() -> None:
    run = drive(geometry(THRASH), WORKLOAD, until=11 * MS)
    retry = CapacityRetry("r2", (B,), False, "promotion")
    by_r2 = [Evicted(block, "promotion", "r2") for block in (A, B, F)]
    evicts_a, evicts_b, evicts_f = by_r2
    reads_a, reads_b = Promoted("r2", (A,)), Promoted("r2", (B,))
    assert told(run) == [
        (6.0, [evicts_f, retry, reads_a]),
        (7.0, [evicts_a, reads_b]),
        (8.0, [evicts_b, retry, reads_a]),
        (9.0, [evicts_a, reads_b]),
        (10.0, [evicts_b, retry, reads_a]),
        (11.0, [evicts_a, reads_b]),
    ]
    assert run.engine.core.pool.active == 0
    assert "r2" not in run.admitted


def test_the_thrash_counts_as_specified_and_never_ends() -> None:
    probes = []
    for rounds in (1, 2, 3, 4, 40):
        run = drive(geometry(THRASH), WORKLOAD, until=(6 + rounds - 1) * MS)
        disk = run.engine.core.offload.disk
        assert disk is not None
        assert (disk.stats.read.submitted_jobs, disk.stats.read.completed_jobs) == (rounds, rounds - 1)
        assert disk.stats.lookup_probes == _probes_of_warming() + rounds + (rounds + 1) // 2
        probes.append(disk.stats.lookup_probes - _probes_of_warming())
    assert probes[:4] == [2, 3, 5, 6]


def _probes_of_warming() -> int:
    run = drive(geometry(THRASH), WORKLOAD[:2])
    assert run.engine.core.offload.disk is not None
    return run.engine.core.offload.disk.stats.lookup_probes


def test_the_thrash_comes_back_to_the_same_state_every_2_ms() -> None:
    run = drive(geometry(THRASH), WORKLOAD, until=7 * MS)
    engine = run.engine
    states = []
    for _ in range(6):
        states.append(engine.freeze())
        engine.apply(Advance())
        engine.apply(Step())
    assert states[0] == states[2] == states[4]
    assert states[1] == states[3] == states[5]
    assert states[0] != states[1]


def test_each_eviction_of_the_thrash_is_explained() -> None:
    engine = TieredEngine(geometry(THRASH))
    for each in WORKLOAD[:2]:
        engine.apply(Submit(each.request))
        while engine.core.requests:
            engine.apply(Step())
    engine.apply(Submit(WORKLOAD[2].request))
    lines: list[str] = []
    for _ in range(3):
        before = engine.view()
        lines += evictions_explained(before, engine.apply(Step()))
        engine.apply(Advance())
    assert lines == [
        "promoting block 0 of r2 evicted h6, of nobody waiting",
        "promoting block 1 of r2 evicted h1, block 0 of r2",
        "promoting block 0 of r2 evicted h2, block 1 of r2",
    ]


def test_the_right_rule_restores_the_head_that_fits_and_computes_the_rest() -> None:
    """F-partial of 6.4."""
    run = drive(geometry(), WORKLOAD)
    at, admission = run.first("r2")
    assert (at, admission.reused, admission.host_tokens) == (8, 4, 4)
    assert run.ended["r2"] == 9
    assert told(run)[0] == (6.0, [Evicted(F, "promotion", "r2"), Promoted("r2", (A,))])
    assert [load.blocks for report in run.reports for load in notes_of(report, LoadQueued)] == [(A,)]
    assert _reads(run) == 1


def test_the_structural_check_goes_cold() -> None:
    """F-cold of 6.4."""
    run = drive(geometry(STRUCTURAL), WORKLOAD)
    at, admission = run.first("r2")
    assert (at, admission.reused) == (6, 0)
    assert _reads(run) == 0


def test_upstreams_bound_lets_go_after_1024_rounds() -> None:
    """F-upstream of 6.4."""
    run = drive(geometry(BOUNDED), WORKLOAD)
    at, admission = run.first("r2")
    assert (at, admission.reused) == (1030, 0)
    assert _reads(run) == 1024
    disk = run.engine.core.offload.disk
    assert disk is not None
    assert disk.stats.bypassed_restores == 1


def _reads(run: Run) -> int:
    disk = run.engine.core.offload.disk
    assert disk is not None
    return disk.stats.read.submitted_jobs


@pytest.mark.parametrize("rule", [THRASH, BOUNDED, STRUCTURAL, UNCLAIMED, ""])
def test_reads_that_take_no_time_end_within_the_instant(rule: str) -> None:
    """6.2: the memory of this instant's attempts works when time stands still."""
    run = drive(geometry(*[rule] if rule else [], read=0), WORKLOAD)
    at, admission = run.first("r2")
    reads = {THRASH: 2, BOUNDED: 2, STRUCTURAL: 0, UNCLAIMED: 1, "": 1}[rule]
    assert _reads(run) == reads
    assert (at, admission.reused) == ((7, 4) if rule in ("", UNCLAIMED) else (6, 0))


def rounds(host_blocks: int, blocks: int, rule: str) -> list[int]:
    """Blocks read in each round for one prefix, looked up whenever a read has ended; at most 12 rounds."""
    tiers = bench(host_blocks, tuple(range(1, blocks + 1)), rule=rule)
    return list(islice(_rounds(tiers, range(1, blocks + 1)), 12))


def _rounds(tiers: Bench, keys: range) -> Iterator[int]:
    while tiers.stage(*keys):
        # A lookup ends with that: the first block becomes the youngest.
        for key in reversed(keys):
            tiers.offload.host.touch(key)
        (job,) = tiers.disk.jobs.values()
        yield len(job.blocks)
        due = tiers.offload.next_deadline()
        assert due is not None
        tiers.advance(int(due / MS))


GRID = {
    (1, 2): [1],
    (2, 3): [2, 1],
    (2, 4): [2],
    (3, 4): [3, 1, 2, 2, 2],
    (3, 5): [3, 2],
    (3, 6): [3],
    (4, 5): [4, 1, 2, 2, 2],
    (4, 6): [4, 2],
    (4, 7): [4, 3],
    (4, 8): [4],
    (5, 6): [5, 1, 2, 2, 2],
    (5, 8): [5, 3],
}
"""Sizes of the rounds of the faulty rule, by capacity of host memory and length of the prefix: the start of a list that goes
on with its last one or two."""


def expected(host_blocks: int, blocks: int) -> list[int] | None:
    """The first rounds of the faulty rule as the specification tells them; None where it does not."""
    if blocks <= host_blocks:
        return [blocks]
    told = GRID.get((host_blocks, blocks))
    if told is None and host_blocks * 2 <= blocks:
        told = [host_blocks]
    if told is None:
        return None
    period = told[-2:] if len(told) == 2 else told[-1:]
    return list(islice([*told, *period * 12], 12))


@pytest.mark.parametrize("blocks", range(1, 9))
@pytest.mark.parametrize("host_blocks", range(1, 6))
def test_the_faulty_rule_cycles_exactly_when_the_prefix_exceeds_host_memory(host_blocks: int, blocks: int) -> None:
    found = rounds(host_blocks, blocks, THRASH)
    assert (len(found) == 12) is (blocks > host_blocks)
    sizes = expected(host_blocks, blocks)
    assert sizes is None or found == sizes


@pytest.mark.parametrize("blocks", range(1, 9))
@pytest.mark.parametrize("host_blocks", range(1, 6))
def test_the_right_rule_takes_one_round(host_blocks: int, blocks: int) -> None:
    assert rounds(host_blocks, blocks, "") == [min(blocks, host_blocks)]


def test_a_lookup_inside_a_read_is_an_accident_that_ends_the_thrash() -> None:
    """6.3: no checker may count on it."""
    tiers = bench(1, (A, B), rule=THRASH)
    assert tiers.stage(A, B)
    tiers.advance(3)
    assert tiers.stage(A, B)
    # B is being read, and has the only place: A cannot have it.
    assert not tiers.stage(A, B)
    inside_the_first = bench(1, (A, B), rule=THRASH)
    assert inside_the_first.stage(A, B)
    assert inside_the_first.stage(A, B)


def test_a_completion_elsewhere_rescues_the_faulty_rule_and_changes_nothing_for_the_right_one() -> None:
    """6.3, and the metamorphic relation of 7: an unrelated completion must not decide whether a workload ends."""
    for rule, rescued in ((THRASH, True), ("", True)):
        outcomes = []
        for foreign in (False, True):
            engine = _restoring(rule)
            disk = engine.core.offload.disk
            assert disk is not None
            engine.apply(Step())
            engine.apply(Advance())
            engine.apply(Step())
            if foreign:
                # Another worker's write that ends inside the second read.
                job = disk.write(1, [99], engine.core.now)
                assert job is not None
                job.remaining = Fraction(MS, 2)
            for _ in range(40):
                engine.apply(Advance())
                engine.apply(Step())
            outcomes.append("r2" not in engine.core.requests)
        assert outcomes == [not rule, rescued]


def _restoring(rule: str) -> TieredEngine:
    """An engine that waits with r2, its two blocks on disk and room for one."""
    config = configuration(
        1,
        defects=[rule] if rule else [],  # type: ignore[arg-type]
        d2h_gbps=0,
        h2d_gbps=0,
        disk_blocks=8,
        disk_scope="cluster_shared",
        disk_latency_ms=0,
        disk_read_gbps=1,
        disk_write_gbps=1,
        disk_shared_read_gbps=0,
        disk_shared_write_gbps=0,
        preloaded_disk=[R0_AND_R2],
    )
    engine = TieredEngine(config)
    engine.apply(Submit(RequestSpec("r2", Prompt.of_tokens(R0_AND_R2), 1)))
    return engine


def for_two(defect: str, host_blocks: list[list[int]], disk_blocks: list[list[int]]) -> EngineConfig:
    """Room for two blocks of one token in host memory; loads and reads of a block take 1 ms."""
    return EngineConfig.from_json(
        {
            "scheduler": "vllm",
            "block_size": 1,
            "num_blocks": 12,
            "max_num_batched_tokens": 8,
            "timing": {"prefill_ms": 1, "prefill_ms_per_token": 0, "decode_ms": 1},
            "tiers": {
                "host_blocks": 2,
                "disk_blocks": 8,
                "d2h_gbps": 0,
                "h2d_gbps": 1,
                "disk_latency_ms": 0,
                "disk_read_gbps": 1,
                "disk_write_gbps": 0,
                "preloaded_host": host_blocks,
                "preloaded_disk": disk_blocks,
            },
            "defects": [defect] if defect else [],
        }
    )


@pytest.mark.parametrize(
    ("defect", "x", "y"),
    [
        # The structural check alone is not enough: [A, B] and [A, D].
        (STRUCTURAL, [1, 2], [1, 4]),
        # Nor is to promote whole and to spare the own prefix: [A, B] and [C].
        (UNCLAIMED, [1, 2], [3]),
    ],
)
def test_two_requests_thrash_each_other_with_prefixes_that_each_fit(defect: str, x: list[int], y: list[int]) -> None:
    arrivals = [arrival("x", 0, [*x, 20]), arrival("y", 0.5, [*y, 30])]
    run = drive(for_two(defect, [x[:1]], [x, y]), arrivals, until=200 * MS)
    assert run.admitted == {}
    reads = [ended for report in run.reports for ended in notes_of(report, DiskJobEnded)]
    assert len(reads) > 150
    view = tiers_of(run.engine.view())
    assert view is not None
    assert all(0 < restore.recoverable <= view.host.capacity for restore in view.restores.values())
    right = drive(for_two("", [x[:1]], [x, y]), arrivals)
    assert right.first("x")[1].host_tokens == 2
    assert right.first("y")[1].host_tokens == 1
    assert _reads(right) == 2
