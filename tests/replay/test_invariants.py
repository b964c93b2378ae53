"""The invariants over replays: each is met by right runs, and each fires on what it forbids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import evolve

from invariants.framework import known_ids
from invariants.replay import CHECKS, ReplayMonitor, ids
from model.replay.collector import Window
from model.replay.observe import Advanced, Arrived, Began, Checked, Ended, Finished, Observation, PassEnded, PassStarted, Settled
from model.requests import Prompt
from tests.replay.support import Row, header, node, replay, row

Log = list[Observation]
Tamper = Callable[[Log], Log]

DELTA: list[Row] = [
    row(0, session_id="a", output_length=2),
    row(session_id="a", delay=5, hash_ids=[2], output_length=2),
    row(40, session_id="b", hash_ids=[3]),
    row(session_id="b", delay=0, hash_ids=[4]),
    row(100, session_id="c", output_length=3),
]
GRAPH: list[Row] = [header(), node("a"), node("b", ("a", "completion", 5)), node("c", ("a", "dispatch", 1), start=3)]


def recorded(rows: Sequence[Row] = DELTA, **config: Any) -> Log:
    """What a right run shows, its views taken when they were shown."""
    log: Log = []

    def watch(observation: Observation) -> None:
        if isinstance(observation, Settled | Finished):
            view = observation.view()
            observation = evolve(observation, view=lambda: view)
        elif isinstance(observation, Checked):
            truth = observation.truly_drained()
            observation = evolve(observation, truly_drained=lambda: truth)
        log.append(observation)

    settings: dict[str, Any] = {"format": "mooncake-delta", "window_ms": 30, **config}
    replay(rows, engine={}, observer=watch, **settings)
    return log


def judged(log: Log) -> ReplayMonitor:
    """A monitor that was told a log."""
    monitor = ReplayMonitor()
    for observation in log:
        monitor(observation)
    return monitor


def first(log: Log, kind: type, nth: int = 0) -> int:
    """Position of the ``nth`` observation of a kind."""
    return [number for number, one in enumerate(log) if isinstance(one, kind)][nth]


def changed(kind: type, nth: int = 0, **fields: Any) -> Tamper:
    """The log with one observation changed; a field may be given as a function of its value."""

    def tamper(log: Log) -> Log:
        at = first(log, kind, nth)
        one = log[at]
        values = {name: value(getattr(one, name)) if callable(value) else value for name, value in fields.items()}
        return [*log[:at], evolve(one, **values), *log[at + 1 :]]

    return tamper


def viewed(kind: type, nth: int = 0, **fields: Any) -> Tamper:
    """The log with one view changed."""

    def tamper(log: Log) -> Log:
        at = first(log, kind, nth)
        one: Any = log[at]
        view = one.view()
        values = {name: value(getattr(view, name)) if callable(value) else value for name, value in fields.items()}
        other = evolve(view, **values)
        return [*log[:at], evolve(one, view=lambda: other), *log[at + 1 :]]

    return tamper


def without(kind: type, nth: int = 0) -> Tamper:
    """The log without one observation."""
    return lambda log: [one for number, one in enumerate(log) if number != first(log, kind, nth)]


def twice(kind: type, nth: int = 0) -> Tamper:
    """The log with one observation told again."""

    def tamper(log: Log) -> Log:
        at = first(log, kind, nth)
        return [*log[: at + 1], log[at], *log[at + 1 :]]

    return tamper


def swapped(kind: type, nth: int) -> Tamper:
    """The log with two observations of a kind in each other's place."""

    def tamper(log: Log) -> Log:
        one, other = first(log, kind, nth), first(log, kind, nth + 1)
        changed_log = list(log)
        changed_log[one], changed_log[other] = log[other], log[one]
        return changed_log

    return tamper


def reported(**fields: Any) -> Tamper:
    """The log with fields of the report changed."""
    return changed(Finished, report=lambda report: {**report, **fields})


def with_row(**fields: Any) -> Tamper:
    """The log with fields of the first row changed."""
    return changed(Finished, rows=lambda rows: ({**rows[0], **fields}, *rows[1:]))


def kept_history(sessions: Any) -> Any:
    """The first session with a capacity that it has no use for."""
    return (evolve(sessions[0], history_capacity=7), *sessions[1:])


FORBIDDEN: list[tuple[str, Tamper]] = [
    ("arrival-gaps", changed(Arrived, 2, arrival_ms=lambda time: time + 1, now_ms=lambda time: time + 1)),
    ("session-order", changed(Arrived, 1, turn_index=0)),
    ("session-order", changed(Arrived, 1, uid=1)),
    ("session-order", changed(Arrived, 1, arrival_ms=lambda time: time - 1)),
    ("session-order", changed(Arrived, 1, arrival_ms=lambda time: time + 1)),
    ("session-order", changed(Ended, 0, status="canceled")),
    ("session-order", twice(Ended)),
    ("session-order", without(Ended)),
    ("delta-history", changed(Arrived, 1, prompt=Prompt(((0, 4), (1, 4))))),
    ("delta-history", changed(Ended, 0, emitted=1)),
    ("accept-length", changed(PassEnded, 0, sample=(1, 1))),
    ("accept-length", changed(PassEnded, 1, sample=(2, 1))),
    ("accept-length", reported(accept_length=2.0)),
    ("accept-length", changed(Finished, windows=lambda windows: (*windows, Window(start_ms=0, end_ms=1e9, accept_forwards=50)))),
    ("output-exact", changed(Ended, 0, emitted=1)),
    ("output-exact", changed(Ended, 0, status="rejected")),
    ("drained-iff-done", changed(Checked, 0, drained=True)),
    ("drained-iff-done", changed(Checked, -1, drained=False)),
    ("drained-iff-done", changed(Finished, stopped="dead-end")),
    ("clock-monotone", changed(Advanced, 1, to_ms=0.0)),
    ("clock-monotone", changed(Advanced, 0, to_ms=11.0)),
    ("clock-monotone", changed(PassStarted, 0, end_ms=-1.0)),
    ("clock-monotone", changed(PassEnded, 0, now_ms=3.0)),
    ("metrics-identity", changed(Finished, counts=lambda counts: {**counts, "completed": 4})),
    ("metrics-identity", changed(Finished, counts=lambda counts: {**counts, "completed": 4, "unfinished": 1})),
    ("metrics-identity", reported(num_requests=9)),
    ("metrics-identity", reported(prefix_cache_reused_ratio=1.5)),
    ("metrics-identity", reported(first_admission_prefix_cache_reused_ratio=0.9)),
    ("metrics-identity", reported(goodput_completed_requests=99)),
    ("metrics-identity", reported(completed_requests=4)),
    ("metrics-identity", reported(mean_ttft_ms=1.0)),
    ("metrics-identity", reported(total_output_tokens=1)),
    ("metrics-identity", with_row(first_token_ms=99999.0)),
    ("metrics-identity", with_row(output_length=9)),
    ("metrics-identity", with_row(ttft_ms=None)),
    ("metrics-identity", with_row(e2e_latency_ms=1.0)),
    ("sessions-live", viewed(Settled, 0, in_flight={}, sessions=lambda all_: (evolve(all_[0], in_flight=None), *all_[1:]))),
    ("sessions-live", viewed(Settled, 0, heap=lambda heap: (*heap, *heap))),
    ("bounded-instants", changed(Finished, passes=0, arrivals=0, ticks=0)),
    ("session-visits-linear", changed(Checked, 0, visits=3)),
    ("ended-releases-history", viewed(Finished, sessions=kept_history)),
    ("drains-empty", viewed(Finished, in_cluster=1)),
    ("drains-empty", viewed(Finished, in_flight={1: 0})),
    ("drains-empty", viewed(Finished, costs={"live_history_capacity": 3})),
    ("prompts-released", viewed(Settled, 0, prompt_ids_held=lambda held: held + 1)),
    ("no-stall", changed(Finished, stopped="livelock")),
]


@pytest.mark.parametrize(("invariant", "tamper"), FORBIDDEN)
def test_an_invariant_fires_on_what_it_forbids(invariant: str, tamper: Tamper) -> None:
    assert invariant in {violation.invariant for violation in judged(tamper(recorded())).violations}


def test_a_cap_fires_on_one_session_too_few_and_one_too_many() -> None:
    log = recorded(mode={"concurrency": 2})
    assert judged(log).violations == []
    one_too_few = changed(Ended, 0, status="canceled")
    # The end of a session goes unnoticed, and another begins.
    last_turns = [one for one in log if isinstance(one, Ended) and one.turn_index == 1]
    one_too_many = [one for one in log if one is not last_turns[0]]
    for tampered in (one_too_few(log), one_too_many):
        assert "concurrency-cap" in {violation.invariant for violation in judged(tampered).violations}


def test_the_order_of_arrivals_at_one_instant_fires_when_it_is_turned() -> None:
    rows = [row(0, hash_ids=[1]), row(0, hash_ids=[2]), row(0, hash_ids=[3])]
    log = recorded(rows, format="mooncake")
    assert judged(log).violations == []
    assert "session-order" in {violation.invariant for violation in judged(swapped(Arrived, 0)(log)).violations}


def test_visits_that_add_up_fire_although_each_test_was_allowed() -> None:
    log = [evolve(one, visits=99, head_was_stale=True, sessions=98) if isinstance(one, Checked) else one for one in recorded()]
    assert "session-visits-linear" in {violation.invariant for violation in judged(log).violations}


@pytest.mark.parametrize(
    ("rows", "config"),
    [
        (DELTA, {}),
        (DELTA, {"format": "mooncake"}),
        (DELTA, {"mode": {"concurrency": 1}}),
        (DELTA, {"mode": {"concurrency": 2}, "workers": 2}),
        (DELTA, {"speedup": 3, "telemetry_ms": 7}),
        (GRAPH, {"format": "agentic_mooncake"}),
        (GRAPH, {"format": "agentic_mooncake", "lanes": 1}),
        (DELTA, {"interruptions": [{"request": "r1", "after_ms": 4}]}),
        (DELTA, {"max_sim_time_ms": 50}),
        ([{"id": "q", "arrival_time_ms": 3, "input_tokens": 5, "output_tokens": 2}], {"format": "flat"}),
    ],
)
def test_right_runs_break_nothing(rows: list[Row], config: dict[str, Any]) -> None:
    assert judged(recorded(rows, **config)).violations == []


def test_every_invariant_meets_its_subject() -> None:
    met = judged(recorded()).exercised + judged(recorded(mode={"concurrency": 1})).exercised
    assert set(met) == set(ids())
    assert all(count > 0 for count in met.values())


def test_every_id_is_in_the_catalogue_and_every_one_is_seen_firing() -> None:
    assert set(ids()) <= set(known_ids())
    assert set(ids()) == {invariant for invariant, _ in FORBIDDEN} | {"concurrency-cap"}


def test_a_monitor_can_be_told_to_judge_some_ids_alone() -> None:
    log = changed(Finished, stopped="livelock")(recorded())
    assert {one.invariant for one in _told(log, ["no-stall"])} == {"no-stall"}
    assert _told(log, ["arrival-gaps"]) == []


def _told(log: Log, only: list[str]) -> list[Any]:
    monitor = ReplayMonitor(only)
    for observation in log:
        monitor(observation)
    return monitor.violations


def test_checks_cost_a_constant_for_each_instant() -> None:
    viewed_sessions = 0
    log = recorded([row(100 * number, hash_ids=[number]) for number in range(150)], format="mooncake")
    for number, one in enumerate(log):
        if isinstance(one, Settled):
            view = one.view()

            def count(view: Any = view) -> Any:
                nonlocal viewed_sessions
                viewed_sessions += len(view.sessions)
                return view

            log[number] = evolve(one, view=count)
    judged(log)
    instants = sum(isinstance(one, Settled) for one in log)
    assert 0 < viewed_sessions <= 2 * 8 * instants + 2 * 150


def test_every_check_has_its_words() -> None:
    for kind in CHECKS:
        assert kind.statement.endswith(".")
        assert "replay specification" in kind.source


def test_began_is_told_first() -> None:
    assert isinstance(recorded()[0], Began)
