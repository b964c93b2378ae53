"""Where arrivals come from (replay specification 5.1): a driver, or a flat list, in order of time or by requests in flight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from attrs import frozen

from model.errors import shown
from model.replay.driver import Dispatch, Driver
from model.replay.errors import TraceError
from model.replay.flat import FlatRequest
from model.requests import Prompt


@frozen
class Arrival:
    """A request that enters the system.

    Attributes:
        uid: names it from now on.
        name: its id.
        authored: the id comes from the trace and orders the report.
        prompt: its tokens.
        output_tokens: the most it may produce.
        output_token_ids: the authored output.
        arrival_ms: as recorded.
        session, turn_index: position in the driver; None for flat requests.
        session_id, turn_number: as the report shows them.
        rank: of the worker it asks for.
    """

    uid: int
    name: str
    prompt: Prompt
    output_tokens: int
    output_token_ids: tuple[int, ...] | None
    arrival_ms: float
    authored: bool = False
    session: int | None = None
    turn_index: int | None = None
    session_id: str | None = None
    turn_number: int | None = None
    rank: int | None = None


class Admission(ABC):
    """A source of arrivals."""

    driver: Driver | None = None

    @abstractmethod
    def release(self, now: float, in_flight: int) -> list[Arrival]:
        """What arrives at ``now``, in order, with ``in_flight`` requests in the cluster."""

    @abstractmethod
    def next_time(self) -> float | None:
        """When something arrives next; None when that depends on what is in flight, or nothing is left."""

    @abstractmethod
    def drained(self) -> bool:
        """Nothing will arrive any more."""


class DriverAdmission(Admission):
    """Turns of a driver, which enforces the cap itself."""

    def __init__(self, driver: Driver, *, shows_sessions: bool, shows_turns: bool, authored_ids: bool = False) -> None:
        """A source over ``driver``.

        Args:
            driver: what to hand out.
            shows_sessions: the report names the session.
            shows_turns: the report names the turn.
            authored_ids: the report goes by the ids of the trace.
        """
        self.driver: Driver = driver
        self._shows_sessions = shows_sessions
        self._shows_turns = shows_turns
        self._authored_ids = authored_ids

    def release(self, now: float, in_flight: int) -> list[Arrival]:
        """All that is ready."""
        return [self._arrival(dispatch, now) for dispatch in self.driver.pop_ready(now)]

    def _arrival(self, dispatch: Dispatch, now: float) -> Arrival:
        turn = dispatch.turn
        return Arrival(
            uid=dispatch.uid,
            name=turn.name,
            prompt=dispatch.prompt,
            output_tokens=turn.max_output_tokens,
            output_token_ids=turn.output_token_ids,
            arrival_ms=now if dispatch.arrival_ms is None else dispatch.arrival_ms,
            authored=self._authored_ids,
            session=dispatch.session,
            turn_index=dispatch.turn_index,
            session_id=self.driver.sessions[dispatch.session].session_id if self._shows_sessions else None,
            turn_number=dispatch.turn_index if self._shows_turns else None,
        )

    def next_time(self) -> float | None:
        """The next ready time."""
        return self.driver.next_ready_time()

    def drained(self) -> bool:
        """The driver is."""
        return self.driver.is_drained()


class FlatAdmission(Admission):
    """A flat list, at its times; or, with a cap, whenever fewer requests are in flight."""

    def __init__(self, requests: Sequence[FlatRequest], cap: int | None = None) -> None:
        """A source over requests in order of arrival.

        Raises:
            TraceError: ``E_IN_FLIGHT``; without a cap, ``E_BAD_TIME`` for a request that does not say when it arrives.
        """
        if cap is not None and cap < 1:
            raise TraceError("max_in_flight", shown(cap), "an integer ≥ 1", code="E_IN_FLIGHT")
        if cap is None:
            for request in requests:
                if request.arrival_ms is None:
                    subject = f"request {request.id}"
                    raise TraceError("arrival_time_ms", "nothing", "a number", code="E_BAD_TIME", subject=subject)
        self._queue = deque(requests)
        self._cap = cap
        self._issued = 0

    def release(self, now: float, in_flight: int) -> list[Arrival]:
        """From the front, while it is due or there is room."""
        taken: list[Arrival] = []
        while self._queue and self._is_due(now, in_flight + len(taken)):
            request = self._queue.popleft()
            self._issued += 1
            taken.append(
                Arrival(
                    uid=self._issued,
                    name=request.id,
                    prompt=request.prompt(),
                    output_tokens=request.output_tokens,
                    output_token_ids=request.output_token_ids,
                    arrival_ms=now if self._cap is not None or request.arrival_ms is None else request.arrival_ms,
                    authored=True,
                    session_id=request.session_id,
                    turn_number=request.turn_index,
                    rank=request.dp_rank,
                )
            )
        return taken

    def _is_due(self, now: float, in_flight: int) -> bool:
        if self._cap is not None:
            return in_flight < self._cap
        arrival = self._queue[0].arrival_ms
        return arrival is not None and arrival <= now

    def next_time(self) -> float | None:
        """The arrival of the front; None with a cap."""
        return self._queue[0].arrival_ms if self._queue and self._cap is None else None

    def drained(self) -> bool:
        """The list is empty."""
        return not self._queue
