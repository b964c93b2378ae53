"""The prefill cadence of attention-data-parallel ranks (vLLM specification 3.10)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from explorer.boxes import read_box, sweep
from model.config import EngineConfig
from model.errors import BadInput
from model.events import StepReport
from model.paged.engine import PagedEngine
from model.paged.metrics import ForwardMetrics, forward_metrics
from tests.paged import driver
from tests.paged.driver import drafts, drain, measured, step, steps, submit, submit_all, told


def rank(geometry: str, interval: int = 4, **options: Any) -> PagedEngine:
    """One rank of two, in the notation of ``driver.paged``."""
    return driver.paged(geometry, dp_size=2, prefill_schedule_interval=interval, **options)


def counts(metrics: ForwardMetrics) -> tuple[int, int, int]:
    """Prefills, decodes, requests that wait for their prefill."""
    return metrics.num_prefill_requests, metrics.num_decode_requests, metrics.num_queued_prefill


def test_row_38_a_rank_that_decodes_prefills_in_every_fourth_step() -> None:
    engine = rank("4/64/8/4")
    submit(engine, "r1", 4, 8)
    assert counts(measured(engine)) == (1, 0, 0)
    submit(engine, "r2", 12, 2)
    assert [counts(measured(engine)) for _ in range(3)] == [(0, 1, 1)] * 3
    assert counts(measured(engine)) == (1, 1, 0)
    # Seven of twelve prompt tokens are computed: the rest waits for step 8, though the request runs.
    assert [counts(measured(engine)) for _ in range(3)] == [(0, 1, 0)] * 3
    assert engine.view().requests["r2"].computed == 7
    assert told(step(engine)) == ["r2"]


@pytest.mark.parametrize("options", [{"dp_size": 1, "prefill_schedule_interval": 4}, {"dp_size": 2}, {}])
def test_one_rank_alone_and_an_interval_of_one_put_nothing_off(options: dict[str, int]) -> None:
    engine = driver.paged("4/64/8/4", **options)
    submit(engine, "r1", 4, 8)
    step(engine)
    submit(engine, "r2", 12, 2)
    assert step(engine).scheduled == {"r1": 1, "r2": 7}


def test_a_rank_with_nothing_to_decode_prefills_in_any_step() -> None:
    engine = rank("4/64/4/4")
    submit(engine, "r1", 12, 2)
    assert [report.scheduled for report in steps(engine, 3)] == [{"r1": 4}] * 3


def test_a_rank_that_does_not_keep_up_puts_nothing_off() -> None:
    engine = rank("4/64/8/4")
    submit_all(engine, {"r1": (4, 8), "r2": (4, 8), "r3": (4, 8)})
    first, second, third = steps(engine, 3)
    assert [admission.id for admission in first.admissions] == ["r1", "r2"]
    # One was left waiting in step 0; in step 1 nobody is, so that from then on prefills are put off again.
    assert [admission.id for admission in second.admissions] == ["r3"]
    submit(engine, "r4", 4, 1)
    assert step(engine).admissions == third.admissions == []
    assert step(engine).scheduled == {"r1": 1, "r2": 1, "r3": 1, "r4": 4}


def test_a_pass_that_preempts_leaves_it_open_whether_the_rank_keeps_up() -> None:
    engine = rank("4/3/16/3", interval=6)
    submit_all(engine, {"r1": (4, 6), "r2": (4, 6)})
    reports = steps(engine, 2)
    assert [len(report.preemptions) for report in reports] == [0, 1]
    # r2 waits, but the last pass that counts left nobody waiting: it is not looked at before step 6.
    assert engine.view().waiting == ("r2",)
    assert not engine.core.cadence.bound
    assert [report.scheduled for report in steps(engine, 4)] == [{"r1": 1}] * 4


def test_one_token_behind_a_cached_prefix_is_no_prefill_to_put_off() -> None:
    engine = rank("4/64/16/4", prefix_caching=True)
    submit(engine, "seed", driver.text(("A", 9)), 0)
    drain(engine)
    submit(engine, "r1", 4, 8)
    step(engine)
    submit(engine, "r2", driver.text(("A", 9)), 1)
    report = step(engine)
    assert (report.scheduled["r2"], told(report)) == (1, ["r1", "r2 done"])


def test_a_request_that_cannot_be_served_is_refused_in_a_step_that_prefills_nobody() -> None:
    engine = rank("4/4/16/4")
    submit(engine, "r1", 4, 8)
    step(engine)
    submit(engine, "r2", 20, 1)
    assert told(step(engine)) == ["r1", "r2 rejected"]


def test_a_wave_ends_with_the_last_request() -> None:
    engine = rank("4/64/16/4")
    fresh = engine.freeze()
    submit(engine, "r1", 4, 2)
    states = [(step(engine), engine.core.cadence.step)[1] for _ in range(2)]
    assert states == [1, 0]
    assert engine.freeze() == fresh
    step(engine)
    assert engine.freeze() == fresh


def test_freezing_keeps_the_step_of_the_wave_and_whether_the_rank_keeps_up() -> None:
    engine = rank("4/64/8/2")
    submit_all(engine, {"r1": (4, 8), "r2": (4, 3), "r3": (4, 3)})
    for _ in range(8):
        fork = engine.thaw(engine.freeze())
        assert (fork.core.cadence.step, fork.core.cadence.bound) == (engine.core.cadence.step, engine.core.cadence.bound)
        did, again = step(engine), step(fork)
        assert (did.work, did.signals) == (again.work, again.signals)


def test_the_fields_are_vllms_alone() -> None:
    for scheduler in ("trtllm", "sglang"):
        for field in ("dp_size", "prefill_schedule_interval"):
            options: dict[str, Any] = {field: 2}
            with pytest.raises(BadInput, match=field):
                EngineConfig(scheduler=scheduler, block_size=4, num_blocks=4, **options)
    with pytest.raises(BadInput, match="null with dp_size 2"):
        EngineConfig(scheduler="vllm", block_size=4, num_blocks=4, dp_size=2, tiers={"host_blocks": 2})


def test_everybody_is_served_under_any_cadence() -> None:
    box = {
        "infercheck": 1,
        "engine": {
            "scheduler": "vllm",
            "block_size": 2,
            "num_blocks": 3,
            "max_num_batched_tokens": [3, None],
            "dp_size": 2,
            "prefill_schedule_interval": [2, 3],
            "speculation": [None, {"draft_tokens": 1}],
        },
        "workload": {"requests": [{"prompt": [1, 4], "output": [0, 3], "count": 2}], "shared_prefixes": [True, False]},
    }
    result = sweep(read_box(json.loads(json.dumps(box))))
    assert result.verdict == "holds"
    assert result.exercised["no-needless-preemption"]


def test_speculative_passes_keep_the_cadence_too() -> None:
    engine = rank("4/64/8/4", speculation=drafts(1, 1))
    submit(engine, "r1", 4, 12)
    step(engine)
    submit(engine, "r2", 4, 2)
    reports: list[StepReport] = steps(engine, 4)
    assert ["r2" in report.work for report in reports] == [False, False, False, True]
    assert forward_metrics(reports[0], engine.view()).num_prefill_requests == 0
