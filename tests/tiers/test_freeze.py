"""The frozen form: what thaws goes on as what was frozen, in every variant."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings

from model.actions import Action
from model.config import EngineConfig
from model.events import StepReport
from model.tiers.engine import TieredEngine
from tests.tiers.strategies import configurations, plans

RULES = (
    "",
    "loaded-behind-blocked",
    *(f"restore-thrash{variant}" for variant in ("", ":bounded-rounds", ":whole-prefix-only", ":unclaimed")),
)

SEEN: Counter[str] = Counter()
"""Kinds of notes met, over all examples."""


def comparable(report: StepReport) -> list[object]:
    """A report without what a thawed engine does not know: the clock, ids of those who began a transfer, repeated admissions."""
    admissions = [(admission.id, admission.reused, admission.host_tokens) for admission in report.admissions]
    return [
        report.end_ns - report.start_ns,
        report.work,
        admissions,
        report.preemptions,
        report.signals,
        report.events,
        report.cancelled,
        [kind for kind, _ in report.notes],
    ]


@settings(max_examples=120, deadline=None)
@given(configurations(RULES), plans())
def test_a_thawed_engine_goes_on_as_the_frozen_one(config: EngineConfig, plan: list[Action]) -> None:
    engine = TieredEngine(config)
    twin = engine.thaw(engine.freeze())
    for number, action in enumerate(plan):
        if number % 3 == 0:
            state = engine.freeze()
            twin = engine.thaw(state)
            assert twin.freeze() == state
        report = engine.apply(action)
        assert comparable(twin.apply(action)) == comparable(report)
        assert twin.freeze() == engine.freeze()
        assert twin.busy == engine.busy
        assert twin.ready == engine.ready
        SEEN.update(kind for kind, _ in report.notes)


def test_the_examples_met_every_kind_of_transfer() -> None:
    """Runs after the one above."""
    kinds = {
        "promoted",
        "evicted",
        "store-completed",
        "load-queued",
        "load-completed",
        "disk-write-began",
        "capacity-retry",
    }
    assert kinds <= set(SEEN)


@settings(max_examples=30, deadline=None)
@given(configurations(RULES), plans())
def test_equal_configurations_and_actions_give_equal_reports(config: EngineConfig, plan: list[Action]) -> None:
    first, second = TieredEngine(config), TieredEngine(config)
    for action in plan:
        assert first.apply(action) == second.apply(action)
    assert first.freeze() == second.freeze()
    assert first.view() == second.view()
