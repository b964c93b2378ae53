"""TensorRT-LLM's guaranteed-no-evict policy in one aggregated worker (vLLM specification 3.3, 3.4, 8)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from explorer.boxes import read_box, sweep
from invariants.framework import Suite, Transition
from invariants.monitor import Monitor
from model.actions import Step, Submit
from model.build import build_engine
from model.config import EngineConfig
from model.errors import BadInput
from model.events import Preemption
from model.paged.engine import PagedEngine
from model.requests import RequestSpec
from model.views import RequestView
from tests.paged import driver
from tests.paged.driver import drafts, drain, measured, preempted, step, submit, submit_all, text, told

BOX = Path("regressions/boxes/guaranteed-no-evict.json")


def guaranteed(geometry: str, **options: Any) -> PagedEngine:
    """An idle TensorRT-LLM engine, in the notation of ``driver.paged``."""
    return driver.paged(geometry, **{"scheduler": "trtllm", **options})


def limits(engine: PagedEngine) -> dict[str, int]:
    """The most tokens each live request may produce."""
    return {id_: request.output for id_, request in engine.view().requests.items()}


def test_the_configuration_builds_a_paged_engine() -> None:
    engine = build_engine(EngineConfig(scheduler="trtllm", block_size=4, num_blocks=4))
    assert isinstance(engine, PagedEngine)


@pytest.mark.parametrize("option", [{"max_model_len": 8}, {"preemption": "fifo"}])
def test_what_only_vllm_knows_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="only with scheduler"):
        EngineConfig(scheduler="trtllm", block_size=4, num_blocks=4, **option)


def test_row_05_a_request_that_asks_for_no_token_ends_in_its_prefill() -> None:
    engine = guaranteed("4/6/8/3")
    submit(engine, "r", 4, 0)
    metrics = measured(engine)
    assert metrics.num_decode_requests == 0
    assert not engine.busy
    assert engine.view().pool.active == 0


def test_row_36_the_cache_holds_the_whole_output_of_all_who_run() -> None:
    engine = guaranteed("32/7319/8192/256")
    submit_all(engine, {f"r{number}": (1096, 7000) for number in range(64)})
    monitor = Monitor(engine)
    for _ in range(40):
        monitor.apply(Step())
    view = engine.view(blocks=False)
    assert len(view.running) == 28
    assert len(view.waiting) == 36
    assert {-(-(request.prompt + request.output) // 32) for request in view.requests.values()} == {253}
    assert monitor.violations == []
    assert sum(request.preemptions for request in view.requests.values()) == 0


def test_who_would_have_to_be_preempted_later_waits() -> None:
    workload = {"a": (4, 8), "b": (4, 8)}
    eager, careful = driver.paged("4/4/16/2"), guaranteed("4/4/16/2")
    for engine in (eager, careful):
        submit_all(engine, workload)
        step(engine)
    assert eager.view().running == ("a", "b")
    assert careful.view().running == ("a",)
    assert preempted(drain(eager)) == ["b"]
    assert preempted(drain(careful)) == []


@pytest.mark.parametrize(
    ("prompt", "output", "limit", "outcome"),
    [
        (3, 20, 5, "r done"),
        (7, 20, 1, "r done"),
        (8, 0, 0, "r done, no token"),
        (8, 1, 1, "r rejected"),
        (9, 0, 0, "r rejected"),
    ],
)
def test_output_is_cut_to_what_the_cache_holds_beside_the_prompt(prompt: int, output: int, limit: int, outcome: str) -> None:
    engine = guaranteed("4/2/16/2")
    submit(engine, "r", prompt, output)
    assert limits(engine) == {"r": limit}
    reports = drain(engine)
    assert told(reports[-1])[-1] == outcome
    assert sum(sum(report.emitted.values()) for report in reports) == (limit if "rejected" not in outcome else 0)


def test_what_can_be_served_is_what_is_not_refused() -> None:
    engine = guaranteed("4/2/4/2", chunked_prefill=False)
    for prompt in range(1, 10):
        for output in range(3):
            spec = RequestSpec("r", text(("r", prompt)), output)
            fork = engine.thaw(engine.freeze())
            fork.apply(Submit(spec))
            refused = "r rejected" in told(step(fork))
            assert engine.servable(spec) is not refused, (prompt, output)


def test_a_whole_cached_prompt_is_used_and_computes_nothing() -> None:
    for options in ({}, {"speculation": drafts(2, 2)}):
        engine = guaranteed("4/8/16/2", prefix_caching=True, **options)
        submit(engine, "first", text(("A", 8)), 1)
        drain(engine)
        submit(engine, "second", text(("A", 8)), 1)
        report = step(engine)
        assert [admission.reused for admission in report.admissions] == [8]
        assert report.scheduled == {"second": 0}
        assert told(report) == ["second done"]
        assert report.decode_batch == 1


def test_cached_blocks_that_somebody_holds_are_not_needed_again() -> None:
    engine = guaranteed("4/4/16/2", prefix_caching=True)
    submit(engine, "a", text(("A", 8)), 3)
    step(engine)
    submit(engine, "b", text(("A", 8)), 3)
    assert step(engine).scheduled == {"a": 1, "b": 0}
    assert step(engine).finished == ["a"]
    assert preempted(drain(engine)) == []


def test_cached_blocks_that_nobody_holds_are_needed() -> None:
    engine = guaranteed("4/4/16/2", prefix_caching=True)
    submit(engine, "seed", text(("A", 8)), 0)
    drain(engine)
    submit_all(engine, {"a": (4, 4), "b": (text(("A", 8)), 3)})
    step(engine)
    view = engine.view()
    # Two of four blocks are inactive hits of b: with them and what a still takes, b's third block is one too many.
    assert (view.running, view.waiting) == (("a",), ("b",))


def test_a_prefill_that_is_not_finished_keeps_its_room() -> None:
    engine = guaranteed("4/3/4/2")
    submit_all(engine, {"long": (8, 4)})
    step(engine)
    submit(engine, "short", 2, 2)
    step(engine)
    view = engine.view()
    assert (view.pool.free, view.running, view.waiting) == (1, ("long",), ("short",))
    assert preempted(drain(engine)) == []


def test_preempting_and_promising_twice_are_seen() -> None:
    engine = guaranteed("4/4/16/2")
    suite = Suite.of(engine.config, engine.observes, ["guaranteed-no-evict"])
    submit_all(engine, {"a": (4, 8)})
    before = engine.view()
    report = step(engine)
    after = engine.view()
    assert suite.judge_state(after) == []
    assert suite.judge_step(Transition(engine.config, before, report, after)) == []
    report.preemptions.append(Preemption("a", None, "schedule", 1, 0))
    (violation,) = suite.judge_step(Transition(engine.config, before, report, after))
    assert violation.message == "a was preempted"
    after.requests = {**after.requests, "b": RequestView("b", "running", 4, 4, 0, 4, 4)}
    after.running = ("a", "b")
    after.pool = evolve(after.pool, active=2, free=2)
    (violation,) = suite.judge_state(after)
    assert violation.message == "2 blocks are in use and 3 more are promised, of 4"


def test_nothing_goes_wrong_in_the_box_and_forgetting_future_output_is_caught_there(monkeypatch: pytest.MonkeyPatch) -> None:
    box = read_box(json.loads(BOX.read_text()))
    result = sweep(box)
    assert result.verdict == "holds"
    assert result.exercised["guaranteed-no-evict"] > 5_000
    assert result.exercised["prefix-hit-truth"]
    monkeypatch.setattr("model.paged.admission.still_to_take", lambda core: 0)
    found = sweep(box).smallest()["guaranteed-no-evict"]
    # Two requests arrive, and the first pass admits both.
    assert (found.kind, found.stem) == ("step", 3)
