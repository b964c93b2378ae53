"""The general machine finds defects it knows nothing of, and shrinks what it finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from model.actions import Submit
from model.case import Case, Drain, Expectation, Steps, as_items, read_case
from model.config import EngineConfig, Speculation
from model.requests import Prompt, RequestSpec
from strategies.machine import fuzz
from strategies.shrink import breaks, shrink_case

FOUND = [
    ("vllm", "speculative-terminal-block"),
    ("vllm", "speculative-terminal-block:reservation-only"),
    ("vllm", "speculative-terminal-block:allocation-only"),
    ("vllm", "admits-unservable"),
    ("sglang", "sglang-chunk-budget"),
    ("sglang", "stored-without-caching"),
    ("sglang", "split-keeps-capacity"),
    ("sglang", "radix-admits-unservable"),
    ("sglang", "input-budget-blocks"),
]


@pytest.mark.parametrize(("scheduler", "defect"), FOUND)
def test_a_defect_is_found_within_200_runs_and_shrunk(scheduler: str, defect: str) -> None:
    result = fuzz(scheduler, defects=[defect], examples=200, seed_value=1)
    assert result.verdict == "violated"
    assert result.found_after is not None
    assert result.found_after <= 200
    assert result.failure is not None
    actions = result.failure.case.actions
    assert sum(isinstance(item, Submit) for item in actions) <= 2
    assert read_case(result.failure.case.to_json()) == result.failure.case


def test_finding_9_shrinks_to_one_request_and_at_most_two_actions() -> None:
    result = fuzz("vllm", defects=["speculative-terminal-block"], examples=200, seed_value=2)
    assert result.failure is not None
    others = [item for item in result.failure.case.actions if not isinstance(item, Drain)]
    assert sum(isinstance(item, Submit) for item in others) == 1
    assert len(others) <= 2


@pytest.mark.parametrize("scheduler", ["vllm", "trtllm", "sglang"])
def test_the_right_engine_holds(scheduler: str) -> None:
    result = fuzz(scheduler, examples=60, seed_value=7)
    assert result.verdict == "holds"
    assert result.failure is None
    assert result.exercised["queue-membership"] > 0


def test_a_run_is_a_function_of_its_seed_under_any_hash_seed() -> None:
    program = (
        "import json; from strategies.machine import fuzz; "
        "r = fuzz('vllm', defects=['admits-unservable'], examples=50, seed_value=3); "
        "print(json.dumps([r.found_after, r.rules, r.failure.case.to_json()]))"
    )
    printed = set()
    for value in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": value}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
        printed.add(done.stdout)
    (only,) = printed
    assert json.loads(only)[0] is not None


def test_a_case_is_cut_down_to_what_matters() -> None:
    config = EngineConfig(
        scheduler="vllm",
        block_size=4,
        num_blocks=2,
        max_num_seqs=3,
        speculation=Speculation(3),
        defects=frozenset({"speculative-terminal-block"}),
    )
    requests = [RequestSpec(name, Prompt.of_streams([(name, length)]), 1) for name, length in (("a", 3), ("b", 8), ("c", 2))]
    actions = (*as_items([Submit(request) for request in requests]), Steps(6), Drain(50))
    case = Case(config, actions, expect=Expectation(violates=("no-needless-preemption",)))
    smaller = shrink_case(case, breaks("no-needless-preemption"))
    assert sum(isinstance(item, Submit) for item in smaller.actions) == 1
    assert len(smaller.actions) == 2
    assert (smaller.engine.block_size, smaller.engine.num_blocks, smaller.engine.max_num_seqs) == (1, 1, None)
    assert shrink_case(case, breaks("no-needless-preemption")) == smaller
