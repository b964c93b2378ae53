"""Engines as transition systems, and boxes of them."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import regressions
from explorer.boxes import Box, explore_geometry, read_box, sweep
from explorer.check import check
from explorer.engines import EngineSystem
from model.actions import Advance, Cancel, Step, Submit
from model.build import build_engine
from model.config import EngineConfig
from model.errors import BadInput
from model.requests import Prompt, RequestSpec
from regressions.runner import run_case

BOXES = Path(regressions.__file__).parent / "boxes"


def system(cancel: bool = False, **options: Any) -> EngineSystem:
    given = {"scheduler": "vllm", "block_size": 2, "num_blocks": 3, **options}
    requests = [RequestSpec("ab"[at], Prompt.of_streams([("AB"[at], 2)]), 3) for at in range(2)]
    return EngineSystem(build_engine(EngineConfig.from_json(given)), requests, cancel=cancel)


def box(**parts: Any) -> dict[str, Any]:
    engine = {"scheduler": "vllm", "block_size": 2, "num_blocks": [1, 2], **parts.pop("engine", {})}
    return {"infercheck": 1, "engine": engine, "workload": {"requests": [{"prompt": 1, "output": 1}]}, **parts}


def test_every_label_stands_for_the_action_that_made_the_edge() -> None:
    explored = system(cancel=True, speculation={"draft_tokens": 1})
    (start,) = explored.initial_states()
    labels = {label for label, _ in explored.successors(start)}
    assert [explored.action(label) for label in sorted(labels)] == [Submit(request) for request in explored.requests]
    graph = check(explored).search.graph
    assert {type(explored.action(label)) for label in graph.labels} == {Submit, Cancel, Step}
    assert explored.describe(2 * (explored._step_code + 1)).startswith("pass (a accepts 1")


def test_every_choice_of_accepted_drafts_is_explored_once() -> None:
    explored = system(speculation={"draft_tokens": 2})
    (state,) = explored.initial_states()
    for _ in range(2):
        state = explored.successors(state)[0][1]
    reached = {target for label, target in explored.successors(state) if isinstance(explored.action(label), Step)}
    expected = set()
    for first, second in product(range(3), repeat=2):
        engine = explored.engine.thaw(state[1:])
        engine.apply(Step({"a": first, "b": second}))
        expected.add(state[:1] + engine.freeze())
    assert reached == expected


def test_no_state_waits_for_a_deadline_in_an_engine_that_has_none() -> None:
    explored = system()
    result = check(explored)
    actions = {type(explored.action(label)) for label in set(result.search.graph.labels)}
    assert Advance not in actions
    assert str(result.verdict) == "holds"


def test_with_finding_9_a_request_loops_exactly_where_its_last_token_lies_one_beyond_the_cache() -> None:
    document = json.loads((BOXES / "finding-9-speculation.json").read_text())
    document["engine"].update(
        defects=["speculative-terminal-block"],
        block_size={"from": 2, "to": 3},
        num_blocks=[1, 2],
        speculation={"draft_tokens": [1, 2]},
    )
    document["workload"]["requests"] = [{"prompt": {"from": 1, "to": 6}, "output": {"from": 0, "to": 7}}]
    faulty = read_box(document)
    loops = {finding.geometry for finding in sweep(faulty).findings if finding.invariant == "no-livelock"}
    expected = set()
    for geometry in faulty.geometries():
        (request,) = geometry.requests
        capacity = geometry.engine.block_size * geometry.engine.num_blocks
        if request.output and request.prompt.length <= capacity == request.prompt.length + request.output - 1:
            expected.add(geometry.number)
    assert loops == expected
    assert expected
    document["engine"]["defects"] = []
    assert sweep(read_box(document)).verdict == "holds"


def test_each_finding_is_a_case_that_shows_it_again() -> None:
    document = box(engine={"speculation": {"draft_tokens": 1}, "defects": ["speculative-terminal-block"]})
    document["workload"]["requests"] = [{"prompt": [1, 2], "output": [1, 2, 3]}]
    findings = sweep(read_box(document)).findings
    assert findings
    for finding in findings:
        assert finding.invariant in {violation.invariant for violation in run_case(finding.case).violations}


DEFECTS = [
    ("speculative-terminal-block", "finding-9-speculation"),
    ("speculative-terminal-block:reservation-only", "finding-9-speculation"),
    ("speculative-terminal-block:allocation-only", "finding-9-speculation"),
    ("admits-unservable", "paged-admission"),
    ("sglang-chunk-budget", "radix-two-requests"),
    ("stored-without-caching", "radix-two-requests"),
    ("split-keeps-capacity", "radix-two-requests"),
    ("radix-admits-unservable", "radix-two-requests"),
    ("input-budget-blocks", "radix-two-requests"),
    ("retracted-never-readmitted", "radix-growth"),
]


@pytest.mark.parametrize(("defect", "name"), DEFECTS)
def test_a_general_box_finds_a_defect(defect: str, name: str) -> None:
    document = json.loads((BOXES / f"{name}.json").read_text())
    document["engine"].update(defects=[defect])
    assert any(explore_geometry(geometry).findings for geometry in read_box(document).geometries())


def test_a_sweep_in_worker_processes_finds_the_same() -> None:
    document = box(engine={"speculation": {"draft_tokens": 1}, "defects": ["speculative-terminal-block"]})
    document["workload"]["requests"] = [{"prompt": {"from": 1, "to": 4}, "output": {"from": 0, "to": 3}}]
    alone = sweep(read_box(document)).to_json()
    with ProcessPoolExecutor(2) as executor:
        together = sweep(read_box(document), executor=executor).to_json()
    assert {**alone, "seconds": 0} == {**together, "seconds": 0}


def test_ranges_lists_and_counts_multiply() -> None:
    document = box(engine={"block_size": {"from": 1, "to": 3}, "speculation": [None, {"draft_tokens": [1, 2]}]})
    document["workload"] = {"requests": [{"prompt": [1, 2], "output": 1, "count": 2}], "shared_prefixes": [True, False]}
    read = read_box(document)
    assert (len(read.engines), len(read.workloads), len(read)) == (3 * 2 * 3, 3 * 2, 108)
    shared, apart = read.workloads[0][0], read.workloads[1][0]
    assert shared[0].prompt == shared[1].prompt
    assert apart[0].prompt != apart[1].prompt


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"engine": {"num_blocks": {"from": 2, "to": 1}}}, "engine.num_blocks.to", "1"),
    ({"engine": {"num_blocks": []}}, "engine.num_blocks", "[]"),
    ({"engine": {"blocks": 1}}, "engine.blocks", "an unknown field"),
    ({"workload": {"requests": []}}, "workload.requests", "no request"),
    ({"workload": {"requests": [{"prompt": 0, "output": 1}]}}, "workload.requests[0].prompt", "0"),
    ({"workload": {"requests": [{"prompt": 1}]}}, "workload.requests[0].output", "nothing"),
    ({"workload": {"requests": [{"prompt": 1, "output": 1}], "cancel": 1}}, "workload.cancel", "1"),
    ({"limits": {"states": 0}}, "limits.states", "0"),
    ({"infercheck": 2}, "infercheck", "2"),
]


@pytest.mark.parametrize(("change", "path", "value"), BAD)
def test_a_box_that_cannot_be_read_is_refused_with_its_path(change: dict[str, Any], path: str, value: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_box(box(**change))
    assert (refused.value.path, refused.value.found) == (path, value)


def test_a_limit_makes_the_rest_unknown_and_names_it() -> None:
    result = sweep(read_box(box(limits={"states": 1})))
    assert result.verdict == "unknown"
    assert [geometry.number for geometry, _ in result.unknown] == [0, 1]
    assert result.finished == 0


def test_an_interrupted_sweep_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def stop(partial: Any) -> None:
        calls.append(partial.finished)
        raise KeyboardInterrupt

    many: Box = read_box(box(engine={"num_blocks": {"from": 1, "to": 40}}))
    result = sweep(many, progress=stop)
    assert calls == [16]
    assert (result.verdict, result.finished, len(result.unknown)) == ("unknown", 16, 24)
