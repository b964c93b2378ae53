"""The workload driver: which turn of which session is ready when (replay specification 3).

A small-step machine without a clock: every call says what time it is. Per session it knows the next turn and when that is
ready; one heap holds the ready times of all sessions::

    pending → ready(t) → in flight → think (ready later) → … → ended

A heap entry is *stale* when its session is in flight, has moved on, or is ready at another time; stale heads are dropped when
they are met. What differs between modes is the policy: who is pushed at the start, how many may be in flight, what follows
the end of a session. ``Trace`` and ``Concurrency`` are here, the graph of agentic plays is in ``plays``.

A call that raises has changed nothing.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator, Sequence

from attrs import define, frozen

from model.replay.defects import COMPLETION_SCAN, DEAD_HISTORY
from model.replay.errors import DriverError
from model.replay.history import History
from model.replay.order import order_key
from model.replay.trace import Trace, Turn, check_block_size, check_capacity, prompt_of
from model.requests import Prompt, runs_of, stream_token

COMPLETED = "completed"
REJECTED = "rejected"
CANCELED = "canceled"
FAILED = "failed"
STATUSES = (COMPLETED, REJECTED, CANCELED, FAILED)
"""How a request ends."""

Entry = tuple[float, float, int, int]
"""Order key of the ready time, session, turn."""


@frozen
class Dispatch:
    """A turn handed out.

    Attributes:
        uid: names it from now on.
        session, turn_index: where it stands.
        turn: what the trace says of it; without its hash ids, which are its prompt now.
        prompt: its tokens, in delta mode with the history of the session before them.
        arrival_ms: when it was ready; None where it counts as arriving now.
    """

    uid: int
    session: int
    turn_index: int
    turn: Turn
    prompt: Prompt
    arrival_ms: float | None


@define
class InFlight:
    """A turn that was handed out and has not ended: where it stands, and the tokens it emitted so far (delta mode alone)."""

    session: int
    turn_index: int
    turn: Turn
    emitted: int = 0


class SessionState:
    """A session as the driver sees it. ``turns`` loses each turn as it is handed out; ``history`` is None but in delta mode."""

    __slots__ = ("count", "history", "in_flight", "next_ready", "next_turn", "session_id", "turns")

    def __init__(self, session_id: str, turns: Sequence[Turn]) -> None:
        """A session that has not begun."""
        self.session_id = session_id
        self.turns: list[Turn | None] = list(turns)
        self.count = len(self.turns)
        self.next_turn = 0
        self.next_ready: float | None = None
        self.in_flight: int | None = None
        self.history: History | None = None

    @property
    def exhausted(self) -> bool:
        """No turn is left to hand out, and none is in flight."""
        return self.next_turn >= self.count


@define
class DriverCosts:
    """Ghost counts (replay specification 8).

    Attributes:
        drained_checks: tests for the end that came to look at sessions.
        session_visits: sessions they inspected; ``visits_in_last_check`` and ``most_visits`` for the last and the worst.
        stale_pops: heap entries dropped because they were stale.
        heap_peak: most entries at one time.
        copied_prompt_tokens: history copied into prompts, in tokens.
        live_history_capacity, dead_history_capacity: elements retained for sessions that may go on, and for ended ones.
        prompt_ids_held: hash ids of prompts not handed out yet.
    """

    drained_checks: int = 0
    session_visits: int = 0
    visits_in_last_check: int = 0
    most_visits: int = 0
    stale_pops: int = 0
    heap_peak: int = 0
    copied_prompt_tokens: int = 0
    live_history_capacity: int = 0
    dead_history_capacity: int = 0
    prompt_ids_held: int = 0


class Policy:
    """What differs between modes. Each method does nothing special unless a mode says otherwise."""

    stamps_arrival = True
    """A turn arrives when it was ready, not when it was handed out."""

    def start(self, driver: Driver) -> None:
        """Push what is ready before anything ran."""

    def room(self, in_flight: int) -> int | None:
        """How many more turns may be handed out; None for no limit."""
        return None

    def dispatched(self, driver: Driver, session: int, now: float) -> None:
        """A turn of ``session`` was handed out."""

    def ended(self, driver: Driver, session: int, now: float, status: str) -> None:
        """``session`` ended, its last turn with ``status``."""

    def ordered(self, terminals: Sequence[tuple[int, str]]) -> Sequence[tuple[int, str]]:
        """The order in which ends at one instant take effect."""
        return terminals

    def check_quiescent(self, uid: int) -> bool:
        """An engine may let go of ``uid``."""
        return True

    def quiescent(self, uid: int, now: float) -> None:
        """The engine is through with ``uid``, which has ended."""

    @property
    def settling(self) -> bool:
        """Some ended turn is still on an engine."""
        return False

    def uid(self, session: int, issued: int) -> int:
        """The uid of the next turn of ``session`` when ``issued`` turns were handed out before."""
        return issued + 1


class TracePolicy(Policy):
    """All sessions are ready at their arrival from the start; one without arrival at 0."""

    def __init__(self, starts: Sequence[float | None]) -> None:
        """Args: starts: first arrivals by session."""
        self._starts = starts

    def start(self, driver: Driver) -> None:
        """Push every session."""
        for index, start in enumerate(self._starts):
            driver.push(index, 0.0 if start is None else start)


class ConcurrencyPolicy(Policy):
    """At most ``cap`` sessions have begun and not ended; the next begins, in file order, when one ends.

    The cap counts sessions through all their turns and think times; first arrivals are not looked at.
    """

    stamps_arrival = False

    def __init__(self, cap: int) -> None:
        """Args: cap: active sessions."""
        self.cap = cap
        self.active = 0
        self.next_pending = 0

    def start(self, driver: Driver) -> None:
        """Activate the first sessions at 0."""
        self._activate(driver, 0.0)

    def room(self, in_flight: int) -> int | None:
        """Turns in flight are capped too."""
        return max(self.cap - in_flight, 0)

    def ended(self, driver: Driver, session: int, now: float, status: str) -> None:
        """Another session begins in the same instant."""
        self.active -= 1
        self._activate(driver, now)

    def _activate(self, driver: Driver, now: float) -> None:
        while self.active < self.cap and self.next_pending < len(driver.sessions):
            driver.push(self.next_pending, now)
            self.next_pending += 1
            self.active += 1


class Driver:
    """See the module docstring."""

    def __init__(
        self,
        trace: Trace,
        policy: Policy,
        *,
        engine_block_size: int = 1,
        defects: Collection[str] = (),
    ) -> None:
        """A driver before time 0.

        Args:
            trace: what to drive.
            policy: the mode.
            engine_block_size: block size of the engines it feeds.
            defects: ids of the defects that are on.

        Raises:
            TraceError: for a block size below 1, or a prompt longer than its hash ids.
        """
        check_block_size(engine_block_size)
        check_block_size(trace.block_size)
        for session in trace.sessions:
            for turn in session.turns:
                check_capacity(turn.input_length, turn.hash_ids, trace.block_size, turn.line or None)
        self.block_size = trace.block_size
        self.accumulates = trace.accumulates
        self.sessions = [SessionState(session.session_id, session.turns) for session in trace.sessions]
        self.in_flight: dict[int, InFlight] = {}
        self.costs = DriverCosts()
        self.policy = policy
        self._heap: list[Entry] = []
        self._issued = 0
        self._last_feedback_ms = -math.inf
        self._scans = COMPLETION_SCAN in defects
        self._heap_means_work = f"{COMPLETION_SCAN}:heap-means-work" in defects
        self._keeps_dead = DEAD_HISTORY in defects
        self._clears_dead = f"{DEAD_HISTORY}:clear-keeps-capacity" in defects
        for state in self.sessions:
            self.costs.prompt_ids_held += sum(len(turn.hash_ids) for turn in state.turns if turn is not None)
            if self.accumulates:
                capacity = sum(turn.input_length + turn.max_output_tokens for turn in state.turns if turn is not None)
                state.history = History(capacity)
                self.costs.live_history_capacity += capacity
        policy.start(self)

    # Ready times

    def push(self, session: int, ready_at: float) -> None:
        """The next turn of ``session`` is ready at ``ready_at``. For policies."""
        state = self.sessions[session]
        state.next_ready = ready_at
        heapq.heappush(self._heap, (*order_key(ready_at), session, state.next_turn))
        self.costs.heap_peak = max(self.costs.heap_peak, len(self._heap))

    def _stale(self, entry: Entry) -> bool:
        state = self.sessions[entry[2]]
        if state.in_flight is not None or state.next_turn != entry[3] or state.next_ready is None:
            return True
        return order_key(state.next_ready) != entry[:2]

    def _drop_stale(self) -> None:
        while self._heap and self._stale(self._heap[0]):
            heapq.heappop(self._heap)
            self.costs.stale_pops += 1

    def next_ready_time(self) -> float | None:
        """When the next turn can be handed out; None when that depends on a turn in flight, or nothing is left."""
        if self.policy.room(len(self.in_flight)) == 0:
            return None
        self._drop_stale()
        return self.sessions[self._heap[0][2]].next_ready if self._heap else None

    def entries(self) -> Iterator[tuple[float, int, int, bool]]:
        """The heap as (ready time, session, turn, stale), in no order."""
        for entry in self._heap:
            yield entry[0], entry[2], entry[3], self._stale(entry)

    def pop_ready(self, now: float, limit: int | None = None) -> list[Dispatch]:
        """Hand out turns that are ready at ``now`` (equal times included), in order of ready time, session, turn."""
        if not self._heap or self._heap[0][0] > now:
            return []
        room = self.policy.room(len(self.in_flight))
        if limit is None or (room is not None and room < limit):
            limit = room
        taken: list[Dispatch] = []
        heap = self._heap
        while heap and (limit is None or len(taken) < limit):
            if heap[0][0] > now:
                break
            entry = heapq.heappop(heap)
            if self._stale(entry):
                self.costs.stale_pops += 1
                continue
            taken.append(self._dispatch(entry[2], now))
        return taken

    def _dispatch(self, index: int, now: float) -> Dispatch:
        state = self.sessions[index]
        turn, ready = state.turns[state.next_turn], state.next_ready
        assert turn is not None
        prompt = prompt_of(turn.hash_ids, self.block_size, turn.input_length)
        if state.history is not None:
            state.history.extend(prompt.runs)
            prompt = state.history.prompt()
            self.costs.copied_prompt_tokens += prompt.length
        # What was handed out is not kept: its prompt would stay in memory to the end of the run.
        state.turns[state.next_turn] = None
        self.costs.prompt_ids_held -= len(turn.hash_ids)
        uid = self.policy.uid(index, self._issued)
        self._issued += 1
        state.in_flight = uid
        state.next_ready = None
        self.in_flight[uid] = InFlight(index, state.next_turn, turn)
        self.policy.dispatched(self, index, now)
        return Dispatch(uid, index, state.next_turn, turn, prompt, ready if self.policy.stamps_arrival else None)

    # Feedback

    def on_output_token(self, uid: int, token: int) -> None:
        """``uid`` emitted ``token``; only a history cares.

        Raises:
            DriverError: for an unknown uid, a token that was not planned, or one too many.
        """
        if not self.accumulates:
            return
        flight = self._flight(uid)
        if flight.emitted >= flight.turn.max_output_tokens:
            raise DriverError(f"uid {uid} emits more than the {flight.turn.max_output_tokens} planned tokens")
        planned = planned_token(flight.turn, flight.emitted)
        if token != planned:
            raise DriverError(f"uid {uid} emits token {token} at {flight.emitted}, planned is {planned}")
        flight.emitted += 1

    def check_terminal(self, uid: int, status: str) -> InFlight | None:
        """The turn that would end; None for a cancellation of what is not there.

        Raises:
            DriverError: for an unknown uid, a turn that is not the current one of its session, a refusal after tokens.
        """
        if status not in STATUSES:
            raise DriverError(f"status {status}, allowed are {', '.join(STATUSES)}")
        if status == CANCELED and uid not in self.in_flight:
            return None
        flight = self._flight(uid)
        state = self.sessions[flight.session]
        if state.in_flight != uid or state.next_turn != flight.turn_index:
            raise DriverError(f"uid {uid} is not the current turn of session {state.session_id}")
        if status == REJECTED and flight.emitted:
            raise DriverError(f"uid {uid} is rejected after {flight.emitted} tokens")
        return flight

    def terminal(self, uid: int, now: float, status: str) -> None:
        """``uid`` ended with ``status``.

        A completed or rejected turn is followed by the next one after its delay; a canceled or failed one by nothing.

        Raises:
            DriverError: as ``check_terminal``.
        """
        flight = self.check_terminal(uid, status)
        if flight is None:
            return
        del self.in_flight[uid]
        state = self.sessions[flight.session]
        state.in_flight = None
        state.next_turn = flight.turn_index + 1 if status in (COMPLETED, REJECTED) else state.count
        if state.next_turn < state.count:
            if state.history is not None and status == COMPLETED:
                state.history.extend(runs_of(planned_token(flight.turn, at) for at in range(flight.emitted)))
            following = state.turns[state.next_turn]
            assert following is not None
            self.push(flight.session, now + following.delay_after_previous_ms)
            return
        self.end(flight.session)
        self.policy.ended(self, flight.session, now, status)

    def end(self, session: int) -> None:
        """``session`` hands out nothing more, and neither history nor prompts are kept for it. For policies."""
        state = self.sessions[session]
        state.next_turn = state.count
        state.next_ready = None
        for index, turn in enumerate(state.turns):
            if turn is not None:
                self.costs.prompt_ids_held -= len(turn.hash_ids)
                state.turns[index] = None
        history = state.history
        if history is None:
            return
        self.costs.live_history_capacity -= history.capacity
        if self._clears_dead:
            history.clear()
        elif not self._keeps_dead:
            history.release()
        self.costs.dead_history_capacity += history.capacity

    def feedback(self, now: float, terminals: Sequence[tuple[int, str]], quiescent: Collection[int] = ()) -> None:
        """All that an engine tells at one instant behind the tokens: ends, then the requests it is through with.

        Raises:
            DriverError: when time goes back, a uid ends twice, or as ``check_terminal``; for a uid that is quiescent before its
                end or twice. Nothing has changed then.
        """
        if now < self._last_feedback_ms:
            raise DriverError(f"feedback at {now} ms, behind {self._last_feedback_ms} ms")
        ends = dict(terminals)
        if len(ends) < len(terminals):
            raise DriverError("a uid ends twice at one instant")
        for uid, status in terminals:
            self.check_terminal(uid, status)
        for uid in quiescent:
            if not self.policy.check_quiescent(uid) or (uid in self.in_flight and uid not in ends):
                raise DriverError(f"uid {uid} is not on an engine, or has not ended")
        self._last_feedback_ms = now
        for uid, status in self.policy.ordered(terminals):
            self.terminal(uid, now, status)
        for uid in quiescent:
            self.policy.quiescent(uid, now)

    def _flight(self, uid: int) -> InFlight:
        flight = self.in_flight.get(uid)
        if flight is None:
            raise DriverError(f"uid {uid} is not in flight")
        return flight

    # The end

    def is_drained(self) -> bool:
        """Nothing is in flight or settling, and every session is exhausted.

        A head of the heap that is not stale says at once that work is left. It may be stale, or the heap empty with nodes
        still blocked; then all sessions are looked at (replay specification 3.8).
        """
        costs = self.costs
        costs.visits_in_last_check = 0
        if self.in_flight or self.policy.settling:
            return False
        costs.drained_checks += 1
        drained = self._nothing_left()
        costs.session_visits += costs.visits_in_last_check
        costs.most_visits = max(costs.most_visits, costs.visits_in_last_check)
        return drained

    def _nothing_left(self) -> bool:
        if self._heap_means_work and self._heap:
            return False
        if not self._scans and self._heap:
            self.costs.visits_in_last_check += 1
            if not self.sessions[self._heap[0][2]].exhausted:
                return False
        for state in self.sessions:
            self.costs.visits_in_last_check += 1
            if not state.exhausted:
                return False
        return True

    def truly_drained(self) -> bool:
        """The definition of ``is_drained``, evaluated without shortcut and without a count."""
        return not self.in_flight and not self.policy.settling and all(state.exhausted for state in self.sessions)

    @property
    def head_is_stale(self) -> bool:
        """The heap is empty, or its head belongs to a session that is exhausted."""
        return not self._heap or self.sessions[self._heap[0][2]].exhausted


def planned_token(turn: Turn, position: int) -> int:
    """The token that ``turn`` emits at ``position``: what the request made of it answers to ``output_token``."""
    if turn.output_token_ids is not None:
        return turn.output_token_ids[position]
    return stream_token(f"output of {turn.name}", position)
