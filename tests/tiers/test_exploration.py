"""Exploration of restores: every order of arrivals, passes and deadlines in small geometries."""

from __future__ import annotations

from typing import Any

import pytest

from explorer.boxes import SweepResult, read_box, sweep
from model.actions import Action
from model.build import build_engine
from model.case import Case, Drain, Steps
from model.tiers.views import evictions_explained
from regressions.runner import run_case


def box(
    *defects: str,
    workload: list[dict[str, Any]],
    host_blocks: Any,
    host: list[Any],
    cancel: bool = False,
) -> SweepResult:
    """Explore requests of one-token blocks that all lie on disk; reads take 1 ms, loads 3."""
    return sweep(
        read_box(
            {
                "infercheck": 1,
                "engine": {
                    "scheduler": "vllm",
                    "block_size": 1,
                    "num_blocks": [4, 12],
                    "max_num_batched_tokens": 8,
                    "kv_bytes_per_token": 3_000_000,
                    "timing": {"prefill_ms": 1, "prefill_ms_per_token": 0, "decode_ms": 0},
                    "tiers": {
                        "host_blocks": host_blocks,
                        "disk_blocks": 16,
                        "d2h_gbps": 0,
                        "h2d_gbps": 1,
                        "disk_latency_ms": 0,
                        "disk_read_gbps": 3,
                        "disk_write_gbps": 0,
                        "preloaded_host": host,
                        "preloaded_disk": [[[["A", 2]], [["A", 1], ["D", 1]], [["X", 2]]]],
                    },
                    "defects": list(defects),
                },
                "workload": {"requests": workload, "cancel": cancel},
                "limits": {"states": 20_000},
            }
        )
    )


AB = {"prompt": [["A", 2], ["U", 1]], "output": 1}
AD = {"prompt": [["A", 1], ["D", 1], ["V", 1]], "output": 1}
XY = {"prompt": [["X", 2], ["W", 1]], "output": 1}
X = {"prompt": [["X", 1], ["W", 1]], "output": 1}


@pytest.mark.parametrize("workload", [[AB], [AB, AD], [AB, X]], ids=["one", "shared", "apart"])
def test_the_right_rule_holds(workload: list[dict[str, Any]]) -> None:
    result = box(workload=workload, host_blocks=[1, 2], host=[[], [[["A", 1]]]])
    assert result.verdict == "holds"
    assert result.findings == []
    for id_ in ("tier-conservation", "restore-truth", "bounded-restores", "no-lost-wakeup", "deadlines-ahead"):
        assert result.exercised[id_], id_


def test_the_right_rule_holds_with_cancellations() -> None:
    result = box(workload=[AB, X], host_blocks=2, host=[[], [[["A", 1]]]], cancel=True)
    assert result.verdict == "holds"


CYCLES = [
    ("restore-thrash", [AB], 1, [[]], (2, 4)),
    ("restore-thrash:whole-prefix-only", [AB, XY], 3, [[[["A", 1]]]], (3, 4)),
    ("restore-thrash:unclaimed", [AB, X], 2, [[[["A", 1]]]], None),
]
"""Defect, workload, blocks of host memory, what lies there, and the lengths of stem and cycle."""


@pytest.mark.parametrize(("defect", "workload", "host_blocks", "host", "lengths"), CYCLES)
def test_each_variant_cycles_and_each_eviction_on_the_cycle_is_explained(
    defect: str, workload: list[dict[str, Any]], host_blocks: int, host: list[Any], lengths: tuple[int, int] | None
) -> None:
    result = box(defect, workload=workload, host_blocks=host_blocks, host=host)
    assert result.verdict == "violated"
    lasso = result.smallest()["no-livelock"]
    assert lasso.kind == "eviction-cycle"
    assert lengths is None or (lasso.stem, lasso.cycle) == lengths
    lines = explained(lasso.case)[-lasso.cycle :]
    told = [line for each in lines for line in each]
    assert told
    assert all(line.startswith("promoting block ") and not line.endswith("of nobody waiting") for line in told)


def explained(case: Case) -> list[list[str]]:
    """The evictions of every action of a case, in words."""
    engine = build_engine(case.engine)
    actions: list[Action] = []
    for item in case.actions:
        assert not isinstance(item, Drain)
        actions += [item.step] * item.count if isinstance(item, Steps) else [item]
    lines = []
    for action in actions:
        before = engine.view()
        lines.append(list(evictions_explained(before, engine.apply(action))))
    return lines


def test_a_cycle_found_is_a_case_that_shows_it_again() -> None:
    result = box("restore-thrash", workload=[AB], host_blocks=1, host=[[]])
    case = result.smallest()["no-livelock"].case
    assert {"no-livelock", "bounded-restores"} <= {found.invariant for found in run_case(case).violations}
