"""The workload driver under any sequence of calls, good and bad (replay specification 3, S4, S6, S13, S15, L1, R1, R3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from model.replay.agentic import load_agentic
from model.replay.driver import COMPLETED, REJECTED, STATUSES, ConcurrencyPolicy, Driver, TracePolicy, planned_token
from model.replay.errors import DriverError
from model.replay.mooncake import load_mooncake
from model.replay.plays import AgenticPolicy, trace_of
from model.replay.reader import rows_of
from model.replay.transform import normalise_session_starts
from strategies.traces import BLOCK_SIZE, agentic_rows, drawn_nodes, drawn_rows, mooncake_rows


class DriverMachine(RuleBasedStateMachine):
    """Pops, tokens, ends and time, in any order; a call that is refused changes nothing."""

    driver: Driver

    @initialize(drawn=drawn_rows(), delta=st.booleans(), cap=st.sampled_from((None, 1, 2)))
    def sessions(self, drawn: Any, delta: bool, cap: int | None) -> None:
        """A driver over sessions."""
        trace = normalise_session_starts(load_mooncake(rows_of(mooncake_rows(drawn)), BLOCK_SIZE, delta=delta))
        starts = [session.first_arrival_timestamp_ms for session in trace.sessions]
        self._begin(Driver(trace, TracePolicy(starts) if cap is None else ConcurrencyPolicy(cap)))

    def _begin(self, driver: Driver) -> None:
        self.driver = driver
        self.now = 0.0
        self.ready: dict[int, float] = {}
        self.unquiet: list[int] = []

    def _snapshot(self) -> Any:
        driver = self.driver
        sessions = [(one.next_turn, one.next_ready, one.in_flight, list(one.turns)) for one in driver.sessions]
        histories = [(one.history.length, one.history.capacity) if one.history else None for one in driver.sessions]
        flights = {uid: (one.session, one.turn_index, one.emitted) for uid, one in driver.in_flight.items()}
        return sessions, histories, flights, sorted(driver.entries()), driver.policy.settling

    @rule(limit=st.sampled_from((None, 1, 2)))
    def pop(self, limit: int | None) -> None:
        """What is handed out is ready, in order, and one turn of a session at a time."""
        before = {number: session.next_ready for number, session in enumerate(self.driver.sessions)}
        popped = self.driver.pop_ready(self.now, limit)
        assert limit is None or len(popped) <= limit
        for dispatch in popped:
            assert self.driver.sessions[dispatch.session].in_flight == dispatch.uid
            if dispatch.arrival_ms is not None:
                assert dispatch.arrival_ms <= self.now
                assert before[dispatch.session] in (dispatch.arrival_ms, None)

    @rule(by=st.sampled_from((0.0, 1.0, 5.0, 60.0, 200.0)))
    def wait(self, by: float) -> None:
        """Time moves."""
        self.now += by

    @precondition(lambda self: self.driver.in_flight)
    @rule(data=st.data(), status=st.sampled_from(STATUSES), emitted=st.integers(0, 3), lets_go=st.booleans())
    def end(self, data: st.DataObject, status: str, emitted: int, lets_go: bool) -> None:
        """A turn emits and ends; its follower is ready a delay later."""
        uid = data.draw(st.sampled_from(sorted(self.driver.in_flight)))
        flight = self.driver.in_flight[uid]
        state = self.driver.sessions[flight.session]
        if self.driver.accumulates and status != REJECTED:
            for at in range(min(emitted, flight.turn.max_output_tokens)):
                self.driver.on_output_token(uid, planned_token(flight.turn, at))
        self.driver.feedback(self.now, [(uid, status)], [uid] if lets_go else [])
        if not lets_go and isinstance(self.driver.policy, AgenticPolicy):
            self.unquiet.append(uid)
        goes_on = status in (COMPLETED, REJECTED) and flight.turn_index + 1 < state.count
        assert state.exhausted is not goes_on
        if goes_on:
            following = state.turns[flight.turn_index + 1]
            assert following is not None
            assert state.next_ready == self.now + following.delay_after_previous_ms
        elif state.history is not None:
            assert (state.history.length, state.history.capacity) == (0, 0)

    @precondition(lambda self: self.unquiet)
    @rule()
    def let_go(self) -> None:
        """An engine is through with a request that ended."""
        self.driver.feedback(self.now, [], [self.unquiet.pop()])

    @rule(call=st.integers(0, 5))
    def refused(self, call: int) -> None:
        """A bad call raises, and nothing has changed."""
        driver, before = self.driver, self._snapshot()
        flying = next(iter(driver.in_flight), None)
        calls: list[Any] = [
            lambda: driver.terminal(987, self.now, COMPLETED),
            lambda: driver.terminal(987, self.now, "lost"),
            lambda: driver.feedback(self.now - 1000, [(987, COMPLETED)]),
            lambda: driver.feedback(self.now, [(flying or 987, COMPLETED), (flying or 987, COMPLETED)]),
            lambda: driver.feedback(self.now, [(987, COMPLETED)] if flying is None else [(flying, COMPLETED), (987, COMPLETED)]),
            lambda: driver.feedback(self.now, [(987, COMPLETED)], [987]),
        ]
        with pytest.raises(DriverError):
            calls[call]()
        assert self._snapshot() == before

    @rule()
    def canceling_what_is_not_there_does_nothing(self) -> None:
        """No error, and no change."""
        before = self._snapshot()
        self.driver.terminal(987, self.now, "canceled")
        assert self._snapshot() == before

    @invariant()
    def the_cheap_answer_is_the_true_one(self) -> None:
        """S13, R1."""
        stale = self.driver.head_is_stale
        assert self.driver.is_drained() == self.driver.truly_drained()
        assert self.driver.costs.visits_in_last_check <= 1 + stale * len(self.driver.sessions)

    @invariant()
    def every_session_can_go_on(self) -> None:
        """L1, R3."""
        live = [session for _, session, _, stale in self.driver.entries() if not stale]
        policy = self.driver.policy
        for number, state in enumerate(self.driver.sessions):
            if state.exhausted and state.in_flight is None:
                assert live.count(number) == 0
                assert state.history is None or state.history.capacity == 0
                continue
            pending = isinstance(policy, ConcurrencyPolicy) and number >= policy.next_pending
            blocked = isinstance(policy, AgenticPolicy) and policy.states[number].value == "blocked"
            assert (state.in_flight is not None) + live.count(number) + pending + blocked == 1

    @invariant()
    def the_cap_is_kept_and_used(self) -> None:
        """S6."""
        policy = self.driver.policy
        if isinstance(policy, ConcurrencyPolicy):
            assert len(self.driver.in_flight) <= policy.active <= policy.cap
            assert policy.active == policy.cap or policy.next_pending == len(self.driver.sessions)


class AgenticMachine(DriverMachine):
    """The same over plays."""

    @initialize(drawn=drawn_nodes(), delta=st.just(False), cap=st.sampled_from((None, 1, 2)))
    def sessions(self, drawn: Any, delta: bool, cap: int | None) -> None:
        """A driver over nodes, with or without lanes."""
        graph = load_agentic(rows_of(agentic_rows(drawn)))
        self._begin(Driver(trace_of(graph), AgenticPolicy(graph, cap)))


TestDriver = DriverMachine.TestCase
TestDriver.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestAgenticDriver = AgenticMachine.TestCase
TestAgenticDriver.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
