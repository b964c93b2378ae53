"""Finding 5: needless looks at every request (vLLM specification 6). The outcome is the same; the cost is counted."""

from __future__ import annotations

import re
from typing import Any

import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from invariants.handoff import judge_same_outcome
from invariants.monitor import Monitor
from model.actions import Action, Cancel, Handoff, Step, Submit
from model.config import EngineConfig
from model.errors import BadInput
from model.events import StepReport
from model.paged.engine import PagedEngine
from model.requests import RequestSpec
from tests.paged.driver import command, drain, noted, paged, step, steps, submit, submit_all, text

FINDING_5 = "handoff-scan"
VISITS = "handoff_scan_visits"


def engines(geometry: str, **options: Any) -> tuple[PagedEngine, PagedEngine]:
    """The engine with the finding and without."""
    return paged(geometry, defects=[FINDING_5], **options), paged(geometry, **options)


def visits(report: StepReport) -> int:
    """Requests looked at in a pass."""
    return report.costs.get(VISITS, 0)


@frozen
class Row:
    """A pass of the counted trace."""

    requests_before: int
    requests_after: int
    visits: int
    told: tuple[str, ...]


TRACE = (
    Row(4, 4, 12, ("a",)),
    Row(4, 4, 8, ("a",)),
    Row(4, 3, 7, ("a done",)),
    Row(3, 2, 8, ("b done",)),
    Row(2, 1, 5, ("c done",)),
    Row(1, 0, 1, ("d done",)),
)


def test_the_counted_trace() -> None:
    faulty, right = engines("4/2/16/4")
    for engine in (faulty, right):
        submit_all(engine, {"a": (4, 3), "b": (8, 1), "c": (8, 1), "d": (8, 1)})
    told: list[list[StepReport]] = [[], []]
    for row in TRACE:
        assert len(faulty.view().requests) == row.requests_before
        for engine, reports in zip((faulty, right), told, strict=True):
            reports.append(step(engine))
            signals = tuple(signal.id + (" done" if signal.completed else "") for signal in reports[-1].signals)
            assert signals == row.told
        assert len(faulty.view().requests) == row.requests_after
        assert (visits(told[0][-1]), visits(told[1][-1])) == (row.visits, 0)
    assert (faulty.view().costs, right.view().costs) == ({VISITS: 41}, {})
    assert judge_same_outcome(*told) == []


def test_a_pass_with_the_head_blocked_looks_twice_at_every_request() -> None:
    for waiting in (5, 50):
        faulty, _ = engines("4/2/16/4")
        submit(faulty, "a", 4, 3)
        step(faulty)
        submit_all(faulty, {f"b{number}": (8, 1) for number in range(waiting)})
        assert visits(step(faulty)) == 2 * (waiting + 1)


def test_with_all_slots_taken_nobody_is_looked_at() -> None:
    faulty, _ = engines("4/8/16/1")
    submit_all(faulty, {"a": (4, 3), "b": (4, 1)})
    step(faulty)
    assert visits(step(faulty)) == 0


def test_the_cost_is_seen_by_its_invariant_and_the_right_engine_is_not_blamed() -> None:
    for engine, broken in zip(engines("4/2/16/4"), (True, False), strict=True):
        submit_all(engine, {"a": (4, 3), "b": (8, 1)})
        monitor = Monitor(engine)
        monitor.apply(Step())
        assert [violation.invariant for violation in monitor.violations] == (["handoff-scan-needed"] if broken else [])
        assert monitor.exercised["handoff-scan-needed"] == 1


@pytest.mark.parametrize("scheduler", ["vllm", "trtllm"])
def test_a_hand_off_that_is_there_is_looked_at(scheduler: str) -> None:
    engine = paged("4/6/16/1", scheduler=scheduler, role="decode")
    command(engine, "reserve_destination", "dest", 4, 4)
    command(engine, "activate_destination", "dest")
    submit(engine, "late", 4, 4)
    monitor = Monitor(engine)
    # The head runs and takes the only slot: only TensorRT-LLM's policy would have needed the value, for the second.
    assert visits(monitor.apply(Step())) == 0
    engine = paged("4/6/16/2", scheduler=scheduler, role="decode")
    command(engine, "reserve_destination", "dest", 4, 4)
    command(engine, "activate_destination", "dest")
    submit(engine, "late", 4, 4)
    monitor = Monitor(engine)
    assert visits(monitor.apply(Step())) == (1 if scheduler == "trtllm" else 0)
    assert monitor.violations == []


def test_a_destination_on_its_way_costs_no_look_at_any_request() -> None:
    faulty, right = engines("4/4/16/2", scheduler="trtllm", role="decode")
    for engine in (faulty, right):
        command(engine, "reserve_destination", "dest", 4, 8)
        submit(engine, "ordinary", 4, 4)
    reports = steps(faulty, 1), steps(right, 1)
    assert judge_same_outcome(*reports) == []
    assert [visits(side[0]) for side in reports] == [2, 0]
    # The value is used all the same: two blocks are promised, so that the other request waits.
    assert right.view().extra["headroom"] == 2
    assert right.view().waiting == ("ordinary",)


IDS = ("a", "b", "c", "d")
VERBS = ("reserve_destination", "activate_destination", "cancel_destination", "cancel_request")


@st.composite
def decode_histories(draw: st.DrawFn) -> tuple[EngineConfig, list[Action]]:
    """A small decode worker, and actions of every kind on it."""
    config = EngineConfig(
        scheduler=draw(st.sampled_from(["vllm", "trtllm"])),
        role="decode",
        block_size=draw(st.integers(2, 3)),
        num_blocks=draw(st.integers(2, 6)),
        max_num_seqs=draw(st.none() | st.integers(1, 2)),
        prefix_caching=draw(st.booleans()),
    )
    specs = [RequestSpec(id_, text(("A", draw(st.integers(1, 5))), (id_, 1)), draw(st.integers(0, 4))) for id_ in IDS]
    moves: list[Action] = [*([Step()] * 6), *(Submit(spec) for spec in specs), *(Cancel(id_) for id_ in IDS)]
    moves += [Handoff(verb, spec.id, spec if verb == "reserve_destination" else None) for spec in specs for verb in VERBS]
    moves += [Handoff("reserve_destination", spec.id, spec) for spec in specs]
    return config, draw(st.lists(st.sampled_from(moves), min_size=5, max_size=30))


@settings(max_examples=250, deadline=None, derandomize=True)
@given(history=decode_histories())
def test_the_finding_changes_nothing_but_cost_and_the_right_engine_keeps_every_rule(
    history: tuple[EngineConfig, list[Action]],
) -> None:
    config, actions = history
    right = Monitor(PagedEngine(config), keep_reports=True)
    faulty = PagedEngine(EngineConfig(**{**config.to_json(), "defects": [FINDING_5]}))
    reports = []
    for action in actions:
        try:
            reports.append(faulty.apply(action))
        except BadInput as error:
            with pytest.raises(BadInput, match=re.escape(str(error))):
                right.apply(action)
            continue
        right.apply(action)
    assert judge_same_outcome(reports, right.reports) == []
    assert [violation for violation in right.violations if violation.invariant not in PROGRESS] == []
    assert faulty.freeze() == right.engine.freeze()


PROGRESS = ("no-stall", "no-livelock", "servable-finishes", "finite-passes-per-instant", "bounded-preemption", "no-starvation")


def test_a_different_outcome_is_told_with_its_place() -> None:
    one, other = paged("4/2/16/4"), paged("4/2/16/4")
    submit(one, "a", 4, 2)
    submit(other, "a", 4, 1)
    (violation,) = judge_same_outcome(drain(one), drain(other))
    assert (violation.invariant, violation.at, violation.message) == (
        "scan-changes-nothing",
        1,
        "the action reports different signals",
    )
    assert noted(step(one), "no-effect") == []
