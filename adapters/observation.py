"""What is seen of an engine that runs a workload in virtual time: passes, block counts, and the fate of each request.

The model (``adapters.timed``) and an engine outside (``adapters.dynamo``) fill the same classes, so that two of them can be
compared and one judged. Times are nanoseconds of virtual time. What an engine does not show is None, and its name stands in
``Observation.not_observable``.
"""

from __future__ import annotations

from attrs import field, frozen

from model.actions import Nanoseconds
from model.paged.metrics import ForwardMetrics

OK = "ok"
"""Every request ended."""
BOUNDED = "bounded"
"""Requests were left at the time cap, with passes still running."""
STUCK = "stuck"
"""Requests were left with nothing that could happen any more."""
HANG = "hang"
"""The engine no longer moves virtual time; it was killed."""
INVALID = "invalid"
"""The engine refused the configuration or the workload. Nobody's fault."""
OUTCOMES = (OK, BOUNDED, STUCK, HANG, INVALID)

FINISHED = "finished"
REJECTED = "rejected"
UNFINISHED = "unfinished"
STATUSES = (FINISHED, REJECTED, UNFINISHED)


@frozen
class PassRecord:
    """One forward pass: when it ended, and its sums."""

    end_ns: Nanoseconds
    metrics: ForwardMetrics


@frozen
class PoolSample:
    """Counters of an engine from ``at_ns`` on, until the next sample.

    ``preemptions`` counts those since the start.
    """

    at_ns: Nanoseconds
    active_blocks: int
    inactive_blocks: int
    total_blocks: int
    running: int
    waiting: int
    preemptions: int


@frozen
class AcceptSample:
    """Tokens accepted by decode forwards, and the number of these forwards, as told at ``at_ns``."""

    at_ns: Nanoseconds
    tokens: int
    forwards: int


@frozen
class AdmissionRecord:
    """A request began to run at ``at_ns`` with ``reused`` tokens found in the cache; ``again`` after a preemption."""

    at_ns: Nanoseconds
    reused: int
    again: bool


@frozen
class RequestRecord:
    """The fate of a request.

    Attributes:
        id: the request.
        arrival_ns: when it arrived.
        status: one of ``STATUSES``. Of an unfinished one nothing else is told.
        admissions: each time it began to run.
        first_token_ns, last_token_ns: None when it produced no token.
        terminal_ns: when it ended.
        tokens: how many it produced.
        reused: tokens reported as reused.
    """

    id: str
    arrival_ns: Nanoseconds
    status: str
    admissions: tuple[AdmissionRecord, ...] = ()
    first_token_ns: Nanoseconds | None = None
    last_token_ns: Nanoseconds | None = None
    terminal_ns: Nanoseconds | None = None
    tokens: int = 0
    reused: int = 0


@frozen
class Observation:
    """One run.

    Attributes:
        source: who was observed, such as ``model`` or ``dynamo 1.6.1``.
        outcome: one of ``OUTCOMES``.
        detail: what the engine said about it, if anything.
        cap_ns: virtual time up to which the run was seen: its cap, or where it hung or gave up, what came before that.
        requests: in order of arrival.
        passes: in order of their ends; of several that end at one instant the last alone. None when not recorded.
        samples: where a counter changes. None when not shown.
        accepts: where forwards were counted. None when not recorded.
        not_observable: the parts of ``model.engine.PARTS`` that cannot be seen.
    """

    source: str
    outcome: str
    cap_ns: Nanoseconds
    requests: tuple[RequestRecord, ...] = ()
    passes: tuple[PassRecord, ...] | None = None
    samples: tuple[PoolSample, ...] | None = None
    accepts: tuple[AcceptSample, ...] | None = None
    detail: str = ""
    not_observable: frozenset[str] = field(factory=frozenset)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Ids of requests that did not end."""
        return tuple(record.id for record in self.requests if record.status == UNFINISHED)
