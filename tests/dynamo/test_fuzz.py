from __future__ import annotations

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.cases import workload_of
from adapters.dynamo.fuzz import REPORTED, UNEXPLAINED, attribution, campaign, configs, fuzz, workloads
from adapters.dynamo.mapping import engine_argument
from adapters.dynamo.run import patience_ns
from adapters.dynamo.wheel import Wheel
from adapters.observation import OK
from adapters.timed import run_timed
from model.build import build_engine
from model.case import read_case
from model.config import SCHEDULERS, EngineConfig, Speculation
from tests.dynamo.support import NEW, OLD, arriving, sglang, vllm

QUIET = settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("release", [NEW, OLD], ids=lambda release: release.version)
def test_every_request_drawn_can_be_served_and_told(scheduler: str, release: object) -> None:
    assert release in (NEW, OLD)

    @QUIET
    @given(st.data())
    def check(data: st.DataObject) -> None:
        config = data.draw(configs(NEW if release is NEW else OLD, scheduler))
        workload = data.draw(workloads(config))
        engine = build_engine(attrs.evolve(config, implementation="model"))
        assert all(engine.servable(timed.request) for timed in workload.requests)
        engine_argument(config, NEW if release is NEW else OLD)

    check()


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_right_model_ends_every_case_in_the_time_allowed(scheduler: str) -> None:
    @QUIET
    @given(st.data())
    def check(data: st.DataObject) -> None:
        config = data.draw(configs(NEW, scheduler))
        workload = data.draw(workloads(config))
        engine = build_engine(attrs.evolve(config, implementation="model"))
        assert run_timed(engine, workload, cap_ns=patience_ns(config, workload)).outcome == OK

    check()


EXACT_FIT = vllm(4, 2, speculation=Speculation(1))


@pytest.mark.parametrize(
    ("config", "requests", "release", "ids", "expected"),
    [
        (EXACT_FIT, [(0, 8, 1)], NEW, {"no-livelock", "servable-finishes"}, ("speculative-terminal-block",)),
        (sglang(4, 64, chunked_prefill_size=8), [(0, 4, 1), (0, 8, 1)], OLD, {"work-conservation"}, ("sglang-chunk-budget",)),
        (vllm(4, 16), [(0, 4, 2), (5, 4, 1)], OLD, {"accept-length"}, (REPORTED,)),
        (vllm(4, 16), [(0, 4, 2)], NEW, {"no-stall"}, (UNEXPLAINED,)),
    ],
)
def test_a_failure_is_attributed_to_the_defect_that_shows_it_alone(
    config: EngineConfig, requests: list[tuple[int, int, int]], release: object, ids: set[str], expected: tuple[str, ...]
) -> None:
    assert attribution(config, arriving(*requests), NEW if release is NEW else OLD, ids) == expected


def test_finding_9_is_found_in_the_released_engine_and_shrunk_to_the_smallest_case(wheel: Wheel) -> None:
    result = fuzz(wheel, "vllm", examples=500, speculation=True)
    assert result.failure is not None
    assert result.failure.attributed == ("speculative-terminal-block",)
    assert "no-livelock" in result.failure.judgement.ids
    (timed,) = result.failure.workload.requests
    assert (result.failure.config.block_size, result.failure.config.num_blocks) == (2, 1)
    assert (timed.prompt.length, timed.output) == (1, 2)


def test_what_was_found_is_a_case_file_that_shows_it_again(wheel: Wheel) -> None:
    found = fuzz(wheel, "vllm", examples=500, speculation=True).failure
    assert found is not None
    case = read_case(found.case.to_json())
    assert case.expect.violates == found.judgement.ids
    assert case.engine.implementation == "dynamo"
    seen = wheel.run(case.engine, workload_of(case), cap_ns=patience_ns(found.config, found.workload))
    assert seen.unfinished == found.seen.unfinished
    assert "no-livelock" in found.story()


def test_a_known_finding_is_counted_and_left_aside(wheel: Wheel) -> None:
    known = ("speculative-terminal-block", "fifo-preempts-last-ready", REPORTED)
    result = fuzz(wheel, "vllm", examples=60, speculation=True, known=known)
    assert result.failure is None
    assert result.found_after is None
    assert result.hits[("speculative-terminal-block",)] > 0
    assert result.exercised["token-budget"] > 0


def test_without_speculation_the_paged_engines_break_nothing(wheel: Wheel) -> None:
    for scheduler in ("vllm", "trtllm"):
        result = fuzz(wheel, scheduler, examples=60, speculation=False, known=(REPORTED,))
        assert result.failure is None, result.failure.story()


def test_a_campaign_ends_when_nothing_new_is_met(wheel: Wheel) -> None:
    found = campaign(wheel, "vllm", examples=60, speculation=True, known=(REPORTED,))
    assert found.complete
    assert found.failures[0].attributed == ("speculative-terminal-block",)
    assert found.last.failure is None
