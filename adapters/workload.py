"""Timed requests: what a real engine that is given all its input at the start, and only then runs, can be told.

A workload has no cancellations and no choices; whoever has actions instead (a case file) turns them into a workload with
``adapters.timed.workload_of_actions``.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import field, frozen

from model.actions import Nanoseconds
from model.errors import BadInput, shown
from model.requests import Prompt, RequestSpec


@frozen
class TimedRequest:
    """A request and the instant at which it arrives, in ns of virtual time."""

    request: RequestSpec
    arrival_ns: Nanoseconds = 0

    @property
    def id(self) -> str:
        """The id of the request."""
        return self.request.id

    @property
    def prompt(self) -> Prompt:
        """The prompt of the request."""
        return self.request.prompt

    @property
    def output(self) -> int:
        """The most tokens it asks for."""
        return self.request.output


def _in_order_of_arrival(requests: Iterable[TimedRequest]) -> tuple[TimedRequest, ...]:
    ordered = sorted(requests, key=lambda timed: timed.arrival_ns)
    origin = ordered[0].arrival_ns if ordered else 0
    return tuple(TimedRequest(timed.request, timed.arrival_ns - origin) for timed in ordered)


@frozen
class Workload:
    """Requests in order of arrival, equal instants in the order given; the first one arrives at 0.

    Arrivals are shifted to begin at 0, as trace replay does (replay specification 2).

    Raises:
        BadInput: for an id that is used twice.
    """

    requests: tuple[TimedRequest, ...] = field(converter=_in_order_of_arrival)

    def __attrs_post_init__(self) -> None:
        seen: set[str] = set()
        for timed in self.requests:
            if timed.id in seen:
                raise BadInput("requests", shown(timed.id), "each id once")
            seen.add(timed.id)

    @property
    def last_arrival_ns(self) -> Nanoseconds:
        """When the last request arrives; 0 without requests."""
        return self.requests[-1].arrival_ns if self.requests else 0
