from __future__ import annotations

from typing import Any

import pytest

from adapters.cases import case_of, fixed_times, mooncake_rows, workload_of
from adapters.dynamo.classes import CLASSES
from model.case import Case, read_case
from model.config import Timing
from model.errors import BadInput
from tests.dynamo.support import FIXED, MS, arriving, vllm

ENGINE = {"scheduler": "vllm", "block_size": 4, "num_blocks": 16, "timing": {"prefill_ms": 10, "prefill_ms_per_token": 0}}


def case(**parts: Any) -> Case:
    return read_case({"infercheck": 1, "engine": ENGINE, **parts})


@pytest.mark.parametrize("case_class", CLASSES, ids=lambda case_class: f"{case_class.scheduler}-{case_class.name}")
def test_a_workload_comes_back_from_its_case(case_class: Any) -> None:
    drawn = case_class.case(1)
    written = case_of(drawn.config, drawn.workload, violates=("no-livelock",)).to_json()
    again = workload_of(read_case(written))
    assert mooncake_rows(again) == mooncake_rows(drawn.workload)


def test_requests_of_a_case_with_actions_arrive_when_they_were_submitted() -> None:
    submitted = case(
        actions=[
            {"submit": "a", "prompt": [["A", 8]], "output": 3},
            {"step": 2},
            {"submit": "b", "prompt": [["B", 4]], "output": 1},
            {"advance": 7},
            {"submit": "c", "prompt": [["C", 4]], "output": 1},
            {"drain": 50},
        ]
    )
    arrivals = [(timed.id, timed.arrival_ns // MS) for timed in workload_of(submitted).requests]
    assert arrivals == [("a", 0), ("b", 11), ("c", 18)]


def test_submitting_behind_a_drain_is_arriving_when_the_engine_was_idle() -> None:
    submitted = case(
        actions=[
            {"submit": "a", "prompt": [["A", 8]], "output": 1},
            {"drain": 50},
            {"submit": "b", "prompt": [["B", 4]], "output": 1},
        ]
    )
    assert [timed.arrival_ns for timed in workload_of(submitted).requests] == [0, 10 * MS]


def test_a_trace_block_is_its_id_repeated_and_cut_to_the_length() -> None:
    row = {"timestamp": 3, "input_length": 6, "output_length": 1, "hash_ids": [10, 20], "request_id": "a"}
    (timed,) = workload_of(case(replay={"format": "mooncake", "block_size": 4, "rows": [row]})).requests
    assert list(timed.prompt.tokens()) == [0, 0, 0, 0, 1, 1]
    assert (timed.id, timed.output, timed.arrival_ns) == ("a", 1, 0)


SUBMIT = {"submit": "a", "prompt": [1], "output": 1}
ROW = {"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0], "session_id": "s"}


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ({"actions": [SUBMIT, {"cancel": "a"}]}, "actions[1]"),
        ({"actions": [SUBMIT, {"step": 1, "accepted": {"a": 1}}]}, "actions[1]"),
        ({"actions": [{**SUBMIT, "worker": 1}]}, "actions[0]"),
        ({"replay": {"rows": [ROW, {**ROW, "timestamp": 1}]}}, "replay.rows"),
        ({"replay": {"rows": [ROW], "mode": {"concurrency": 1}}}, "replay.mode"),
        ({"replay": {"rows": [ROW], "workers": 2}}, "replay.workers"),
        ({"replay": {"rows": [ROW], "format": "mooncake-delta"}}, "replay.format"),
    ],
)
def test_what_a_timed_workload_cannot_hold_is_refused_by_name(parts: dict[str, Any], path: str) -> None:
    with pytest.raises(BadInput) as refused:
        workload_of(case(**parts))
    assert refused.value.path == path


def test_times_that_are_fixed_stay_and_others_are_replaced() -> None:
    assert fixed_times(vllm(4, 16)).timing == FIXED
    assert fixed_times(vllm(4, 16, timing=Timing())).timing.prefill_ms_per_token == 0


def test_a_case_holds_its_engine_title_and_what_it_breaks() -> None:
    written = case_of(vllm(4, 16), arriving((0, 3, 1)), title="t", source="s", violates=("no-stall",))
    assert (written.title, written.source, written.expect.violates) == ("t", "s", ("no-stall",))
    assert written.engine == vllm(4, 16)
