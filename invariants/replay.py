"""Invariants over a replay: arrivals, sessions, histories, ends, accept length, the report, and what it all cost.

They read what ``model.replay.observe`` shows, one observation after another, and remember what they need; the ids gather the
statements S1 to S14, L1 to L3 and R1 to R5 of the replay specification, section 9. What engines do inside a replay is judged by
the invariants over engines.

Costs: one observation costs a constant. What looks at all sessions (``Settled.view``) is asked for so rarely, in a large
workload, that it adds up to a constant for each instant.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from attrs import define, field

from invariants.framework import COST, PROGRESS, STEP, Found, Invariant, Violation, declare
from model.replay.agentic import Graph
from model.replay.config import ReplayConfig
from model.replay.observe import (
    Advanced,
    Arrived,
    Began,
    Checked,
    Ended,
    Finished,
    Observation,
    PassEnded,
    PassStarted,
    ReplayView,
    Settled,
)
from model.replay.trace import Trace, Turn
from model.requests import Content, RequestSpec, Run, merged

_ROUNDING = 1e-9
"""Relative difference of two sums made in different orders."""

_VIEWED_WHOLE = 64
"""Sessions up to which every instant is looked at whole."""

_VIEWED_SHARE = 8
"""Sessions of a larger workload that are looked at, on the average, in an instant."""


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= _ROUNDING * max(1.0, abs(one), abs(other))


class Check:
    """A statement about a replay, with a memory. A subclass has one method ``on_…`` for each kind of observation it reads."""

    id: ClassVar[str]
    kind: ClassVar[str] = STEP
    statement: ClassVar[str]
    source: ClassVar[str]
    catches: ClassVar[tuple[str, ...]] = ()


HANDLERS: Mapping[type, str] = {
    Began: "on_began",
    Arrived: "on_arrived",
    PassStarted: "on_pass_started",
    PassEnded: "on_pass_ended",
    Ended: "on_ended",
    Checked: "on_checked",
    Advanced: "on_advanced",
    Settled: "on_settled",
    Finished: "on_finished",
}
"""The method of a check that reads an observation."""

CHECKS: list[type[Check]] = []
"""Every check, in the order of declaration."""


def check(kind: type[Check]) -> type[Check]:
    """Declare a check; its id stands in the catalogue, and no engine alone can be judged by it."""
    CHECKS.append(kind)
    declare(Invariant(kind.id, kind.kind, kind.statement, kind.source, kind.catches, applies=lambda config: False))
    return kind


@define
class Workload:
    """What the checks know of the trace.

    Attributes:
        config: of the replay.
        turns: turns by session; empty for flat requests.
        starts: arrivals as written, by session; of nodes, by position.
        is_graph: the sessions are nodes of plays.
        accumulates: delta mode.
        block_size: of the trace.
        speculation: drafts proposed in a step.
        max_model_len: cap on the length of a sequence.
        requests: how many there are.
    """

    config: ReplayConfig
    turns: list[tuple[Turn, ...]] = field(factory=list)
    starts: list[float | None] = field(factory=list)
    is_graph: bool = False
    accumulates: bool = False
    block_size: int = 1
    speculation: int = 0
    max_model_len: int | None = None
    requests: int = 0

    @classmethod
    def of(cls, began: Began) -> Workload:
        """What ``began`` tells."""
        given = began.workload
        known = cls(began.config, speculation=began.speculation, max_model_len=began.max_model_len, requests=given.requests)
        if isinstance(given, Trace):
            known.turns = [session.turns for session in given.sessions]
            known.starts = [session.first_arrival_timestamp_ms for session in given.sessions]
            known.accumulates = given.accumulates
            known.block_size = given.block_size
        elif isinstance(given, Graph):
            known.is_graph = True
            known.starts = [node.not_before_ms for node in given.nodes]
            known.block_size = given.block_size
        return known

    @property
    def timed(self) -> bool:
        """Arrivals are those of the trace."""
        return self.config.concurrency is None

    def delay(self, session: int, turn: int) -> float:
        """Milliseconds between the end of the turn before and this one."""
        delay = self.turns[session][turn].delay_after_previous_ms
        return delay / self.config.speedup if self.timed and self.config.speedup != 1 else delay


@check
class ArrivalGaps(Check):
    """S1, S2."""

    id = "arrival-gaps"
    statement = "A session arrives as far behind the earliest as the trace says, a missing timestamp standing for 0."
    source = "finding 2; replay specification S1, S2"
    catches = ("trace-missing-timestamp",)

    def on_began(self, began: Began) -> Found:
        """Work out all arrivals."""
        known = Workload.of(began)
        self.expected: list[float] = []
        given = [0.0 if start is None else start for start in known.starts]
        if not known.timed or known.config.lanes is not None or not given:
            return None
        # Of a graph only those that wait for nothing are known; the others are judged by their edges.
        self.roots = {
            number
            for number in range(len(given))
            if not (isinstance(began.workload, Graph) and began.workload.nodes[number].dependencies)
        }
        origin = min(given)
        self.expected = [(start - origin) / known.config.speedup for start in given]
        return None

    def on_arrived(self, arrived: Arrived) -> Found:
        """First turns."""
        session = arrived.session
        if session is None or arrived.turn_index or not self.expected or session not in self.roots:
            return None
        expected = self.expected[session]
        if not _close(arrived.arrival_ms, expected):
            return f"{arrived.name} arrives at {arrived.arrival_ms} ms, the trace says {expected} ms"
        return True


@define
class _Progress:
    """How far a session is."""

    next_turn: int = 0
    in_flight: int | None = None
    ready_ms: float | None = None
    over: bool = False


@check
class SessionOrder(Check):
    """S3, S4, S5."""

    id = "session-order"
    statement = (
        "The turns of a session follow one another: each once, one at a time, a delay after the end of the one before, and none "
        "behind a canceled or failed one."
    )
    source = "replay specification S3, S4, S5"

    def on_began(self, began: Began) -> Found:
        """Nothing has arrived."""
        self.known = Workload.of(began)
        self.sessions: dict[int, _Progress] = {}
        self.uids: set[int] = set()
        self.last: tuple[float, int] | None = None
        return None

    def on_arrived(self, arrived: Arrived) -> Found:
        """A turn begins: is it its turn, and is it time?"""
        if arrived.uid in self.uids:
            return f"uid {arrived.uid} arrives twice"
        self.uids.add(arrived.uid)
        if arrived.session is None or arrived.turn_index is None:
            return None
        progress = self.sessions.setdefault(arrived.session, _Progress())
        if progress.over or progress.in_flight is not None or progress.next_turn != arrived.turn_index:
            state = "over" if progress.over else f"at turn {progress.next_turn}"
            return f"{arrived.name} is turn {arrived.turn_index} of a session that is {state}"
        progress.in_flight = arrived.uid
        return self._on_time(arrived, progress) or self._in_order(arrived)

    def _on_time(self, arrived: Arrived, progress: _Progress) -> str | None:
        if arrived.arrival_ms > arrived.now_ms:
            return f"{arrived.name} arrives at {arrived.now_ms} ms, before it is ready at {arrived.arrival_ms} ms"
        if progress.ready_ms is not None and arrived.arrival_ms != progress.ready_ms:
            return f"{arrived.name} arrives at {arrived.arrival_ms} ms, it is ready at {progress.ready_ms} ms"
        return None

    def _in_order(self, arrived: Arrived) -> Found:
        # An edge of a play may make a node ready in the middle of a batch, and a cap hands out as room is made.
        assert arrived.session is not None
        key = (arrived.arrival_ms, arrived.session)
        if self.known.is_graph or not self.known.timed or self.last is None:
            self.last = key
            return True
        if key < self.last:
            return f"{arrived.name} (ready at {key[0]} ms) is handed out behind one that was ready at {self.last[0]} ms"
        self.last = key
        return True

    def on_pass_started(self, _: PassStarted) -> Found:
        """A batch of arrivals is over."""
        self.last = None
        return None

    def on_ended(self, ended: Ended) -> Found:
        """A turn ends, and the next one gets its time."""
        if ended.uid not in self.uids:
            return f"{ended.name} ends without being in flight"
        self.uids.discard(ended.uid)
        self.last = None
        if ended.session is None or ended.turn_index is None or self.known.is_graph:
            return None
        progress = self.sessions[ended.session]
        progress.in_flight = None
        progress.next_turn += 1
        turns = len(self.known.turns[ended.session])
        progress.over = ended.status in ("canceled", "failed") or progress.next_turn >= turns
        if not progress.over:
            progress.ready_ms = ended.now_ms + self.known.delay(ended.session, progress.next_turn)
        return True


@check
class ConcurrencyCap(Check):
    """S6."""

    id = "concurrency-cap"
    statement = "In concurrency mode no more sessions are active than the cap, and no fewer while some have not begun."
    source = "replay specification S6"

    def on_began(self, began: Began) -> Found:
        """Nothing is active."""
        self.known = Workload.of(began)
        self.cap = began.config.concurrency if self.known.turns else None
        self.begun = self.over = 0
        return None

    def on_arrived(self, arrived: Arrived) -> Found:
        """A first turn begins a session."""
        self.begun += arrived.turn_index == 0
        return None

    def on_ended(self, ended: Ended) -> Found:
        """A last turn ends one."""
        if self.cap is not None and ended.session is not None and ended.turn_index is not None:
            last = ended.turn_index + 1 == len(self.known.turns[ended.session])
            self.over += last or ended.status in ("canceled", "failed")
        return None

    def on_settled(self, settled: Settled) -> Found:
        """The instant is over."""
        if self.cap is None:
            return None
        active, pending = self.begun - self.over, len(self.known.turns) - self.begun
        if active > self.cap or (pending and active < self.cap):
            return f"at {settled.now_ms} ms {active} sessions are active and {pending} wait, the cap is {self.cap}"
        return True


def _runs(turn: Turn, block_size: int) -> list[Run]:
    """The tokens of a turn as its hash ids say."""
    full, rest = divmod(turn.input_length, block_size)
    return [(one, block_size) for one in turn.hash_ids[:full]] + ([(turn.hash_ids[full], rest)] if rest else [])


@check
class DeltaHistory(Check):
    """S7."""

    id = "delta-history"
    statement = "A prompt is, token by token, the inputs of its session so far with the output of completed turns between them."
    source = "replay specification S7"

    def on_began(self, began: Began) -> Found:
        """No session has a history."""
        self.known = Workload.of(began)
        self.histories: dict[int, Content] = {}
        self.prompts: dict[int, RequestSpec] = {}
        return None

    def on_arrived(self, arrived: Arrived) -> Found:
        """Build the prompt again."""
        session, turn = arrived.session, arrived.turn_index
        if session is None or turn is None or not self.known.turns:
            return None
        authored = self.known.turns[session][turn]
        history = self.histories.get(session, ()) if self.known.accumulates else ()
        expected = merged((*history, *_runs(authored, self.known.block_size)))
        if self.known.accumulates:
            self.histories[session] = expected
            self.prompts[arrived.uid] = RequestSpec(
                arrived.name, arrived.prompt, authored.max_output_tokens, authored.output_token_ids
            )
        if arrived.prompt.runs != expected:
            wanted = sum(count for _, count in expected)
            return f"{arrived.name} has a prompt of {arrived.prompt.length} tokens that is not the {wanted} its session has had"
        return True

    def on_ended(self, ended: Ended) -> Found:
        """The output of a completed turn joins the history."""
        spec = self.prompts.pop(ended.uid, None)
        if spec is None or ended.session is None or ended.status != "completed":
            return None
        tokens = ((spec.output_token(at), 1) for at in range(ended.emitted))
        self.histories[ended.session] = merged((*self.histories[ended.session], *tokens))
        return None


@check
class AcceptLengthProvenance(Check):
    """S8, S9."""

    id = "accept-length"
    statement = (
        "Accept length counts decode forwards alone: no more of them than requests that decode, one token each without "
        "speculation and at most one more than the drafts with it; the windows add up to the whole."
    )
    source = "finding 3; replay specification S8, S9"
    catches = ("accept-length-denominator",)

    def on_began(self, began: Began) -> Found:
        """No pass has ended."""
        self.drafts = began.speculation
        self.samples: list[tuple[float, int, int]] = []
        self.keeps = began.config.window_ms is not None
        return None

    def on_pass_ended(self, ended: PassEnded) -> Found:
        """A sample against the work of its pass."""
        tokens, forwards = ended.sample
        if self.keeps and tokens and forwards:
            self.samples.append((ended.now_ms, tokens, forwards))
        work = ended.report.work.values()
        decoding = sum(1 for item in work if not item.prompt_tokens and not item.terminal)
        if forwards > decoding:
            return f"worker {ended.worker} counts {forwards} forwards in a pass in which {decoding} requests decode"
        if not forwards or not tokens:
            return None
        if not forwards <= tokens <= forwards * (self.drafts + 1):
            return f"worker {ended.worker} counts {tokens} tokens in {forwards} forwards with {self.drafts} drafts"
        return True

    def on_finished(self, finished: Finished) -> Found:
        """Windows against the whole."""
        tokens, forwards, _ = finished.accept
        length = finished.report["accept_length"]
        if (length is None) != (forwards == 0) or (length is not None and length != tokens / forwards):
            return f"accept length {length} of {tokens} tokens in {forwards} forwards"
        if not finished.windows:
            return None
        end = finished.windows[-1].end_ms
        inside = sum(window.accept_forwards for window in finished.windows)
        least = sum(count for time, _, count in self.samples if time < end)
        most = sum(count for time, _, count in self.samples if time <= end)
        if not least <= inside <= most:
            return f"the windows up to {end} ms hold {inside} forwards, the passes up to then had {most}"
        return True


@check
class ReplayOutputs(Check):
    """S12."""

    id = "output-exact"
    statement = "A completed request emitted what it asked for, as far as the model length allows; a refused one nothing."
    source = "replay specification S12"

    def on_began(self, began: Began) -> Found:
        """Nothing is in flight."""
        self.max_model_len = began.max_model_len
        self.planned: dict[int, int] = {}
        return None

    def on_arrived(self, arrived: Arrived) -> Found:
        """What it may emit."""
        room = math.inf if self.max_model_len is None else max(self.max_model_len - arrived.prompt.length, 0)
        self.planned[arrived.uid] = int(min(arrived.output_tokens, room))
        return None

    def on_ended(self, ended: Ended) -> Found:
        """What it did emit."""
        planned = self.planned.pop(ended.uid, None)
        if planned is None:
            return f"{ended.name} ends without being in flight"
        least, most = (planned, planned) if ended.status == "completed" else (0, 0 if ended.status == "rejected" else planned)
        if not least <= ended.emitted <= most:
            return f"{ended.name} is {ended.status} after {ended.emitted} tokens, planned are {planned}"
        return True


@check
class DrainedIffDone(Check):
    """S13, and the dead end that a wrong answer leads to (L2)."""

    id = "drained-iff-done"
    statement = "The workload is found drained exactly when nothing is in flight or settling and every session is exhausted."
    source = "finding 6; replay specification S13, L2"
    catches = ("sparse-completion-scan",)

    def on_began(self, began: Began) -> Found:
        """Count the sessions that are not over."""
        self.known = Workload.of(began)
        self.open = len(self.known.turns)
        self.asked = 0
        return None

    def on_ended(self, ended: Ended) -> Found:
        """A last turn closes a session."""
        if ended.session is not None and ended.turn_index is not None and self.known.turns:
            last = ended.turn_index + 1 == len(self.known.turns[ended.session])
            self.open -= last or ended.status in ("canceled", "failed")
        return None

    def on_checked(self, checked: Checked) -> Found:
        """Compare the answer with the definition; in a large workload mostly with the count of open sessions."""
        self.asked += 1
        whole = checked.sessions <= _VIEWED_WHOLE or checked.drained or self.asked % checked.sessions == 0
        truth = checked.truly_drained() if whole else self.known.is_graph is False and not self.open
        if not whole and self.known.is_graph:
            return None
        if checked.drained != truth:
            return f"found {'drained' if checked.drained else 'not drained'}, although it is {'' if truth else 'not '}so"
        return True

    def on_finished(self, finished: Finished) -> Found:
        """A dead end is an end that was not seen."""
        if finished.stopped != "dead-end":
            return None
        return f"at {finished.now_ms} ms the run is not done and nothing can happen any more"


@check
class ClockMonotone(Check):
    """S14."""

    id = "clock-monotone"
    statement = "Time never goes back, and a pass ends at the time that was planned when it started."
    source = "replay specification S14"

    def on_began(self, _: Began) -> Found:
        """Time is 0."""
        self.now = 0.0
        self.planned: dict[int, float] = {}
        return None

    def on_advanced(self, advanced: Advanced) -> Found:
        """Forward only, and past no end of a pass."""
        if advanced.from_ms != self.now or not advanced.to_ms >= advanced.from_ms:
            return f"time goes from {self.now} ms to {advanced.to_ms} ms"
        missed = [worker for worker, end in self.planned.items() if end < advanced.to_ms]
        if missed:
            return f"time goes to {advanced.to_ms} ms, the pass of worker {missed[0]} ends at {self.planned[missed[0]]} ms"
        self.now = advanced.to_ms
        return True

    def on_pass_started(self, started: PassStarted) -> Found:
        """It ends later, or now."""
        if started.now_ms != self.now or started.end_ms < started.now_ms or started.worker in self.planned:
            return f"at {self.now} ms worker {started.worker} starts a pass from {started.now_ms} to {started.end_ms} ms"
        self.planned[started.worker] = started.end_ms
        return None

    def on_pass_ended(self, ended: PassEnded) -> Found:
        """It ends when it was to end."""
        planned = self.planned.pop(ended.worker, None)
        if planned != ended.now_ms or ended.now_ms != self.now:
            return f"at {self.now} ms a pass of worker {ended.worker} ends that was to end at {planned} ms"
        return True


@check
class MetricsIdentity(Check):
    """S10, S11."""

    id = "metrics-identity"
    statement = "The report adds up: every request in one count, shares within 0 to 1, means those of the rows."
    source = "replay specification S10, S11"

    def on_began(self, began: Began) -> Found:
        """How many requests there are."""
        self.requests = began.workload.requests
        return None

    def on_finished(self, finished: Finished) -> Found:
        """The whole report."""
        return self._counts(finished) or self._shares(finished.report) or self._rows(finished) or True

    def _counts(self, finished: Finished) -> str | None:
        counts, arrived = finished.counts, finished.report["num_requests"]
        if sum(counts.values()) != arrived or arrived > self.requests:
            return f"{arrived} of {self.requests} requests arrived, and ended as {dict(counts)}"
        if finished.complete and counts["unfinished"]:
            return f"the run is complete with {counts['unfinished']} requests unfinished"
        if finished.report["completed_requests"] > counts["completed"]:
            return f"the summary is over {finished.report['completed_requests']} requests, {counts['completed']} completed"
        return None

    def _shares(self, report: Mapping[str, Any]) -> str | None:
        first, most = report["first_admission_prefix_cache_reused_ratio"], report["prefix_cache_reused_ratio"]
        if not 0 <= first <= most <= 1:
            return f"{first} of the input was reused at first admissions, {most} at the best ones"
        good = report.get("goodput_completed_requests", 0)
        if not 0 <= good <= report["completed_requests"]:
            return f"{good} of {report['completed_requests']} completed requests are good"
        return None

    def _rows(self, finished: Finished) -> str | None:
        report = finished.report
        included = [row for row in finished.rows if row["terminal_status"] == "completed" and row["admission_count"]]
        if len(included) != report["completed_requests"]:
            return f"{len(included)} rows are completed, the summary is over {report['completed_requests']}"
        for row in finished.rows:
            broken = _row(row)
            if broken:
                return f"{row['id']}: {broken}"
        for name in ("ttft_ms", "e2e_latency_ms"):
            values = [row[name] for row in included if row[name] is not None]
            mean = math.fsum(values) / len(values) if values else 0.0
            if not _close(mean, report[f"mean_{name}"]):
                return f"the mean of {name} over the rows is {mean}, the report says {report[f'mean_{name}']}"
        for key, name in (("total_input_tokens", "input_length"), ("total_output_tokens", "output_length")):
            total = sum(row[name] for row in included)
            if total != report[key]:
                return f"the rows hold {total} of {key}, the report says {report[key]}"
        return None


def _row(row: Mapping[str, Any]) -> str | None:
    """What does not fit in one row."""
    times = [row["arrival_time_ms"], row["first_admit_ms"], row["first_token_ms"], row["last_token_ms"], row["terminal_time_ms"]]
    given = [time for time in times if time is not None]
    if given != sorted(given):
        return f"arrival, admission, first token, last token and end are not in order: {given}"
    if row["output_length"] > row["requested_output_length"]:
        return f"{row['output_length']} tokens, {row['requested_output_length']} were asked for"
    if (row["output_length"] == 0) != (row["ttft_ms"] is None):
        return f"{row['output_length']} tokens and a first-token latency of {row['ttft_ms']}"
    if row["ttft_ms"] is not None and not row["ttft_ms"] <= row["e2e_latency_ms"]:
        return f"a first token after {row['ttft_ms']} ms and the last after {row['e2e_latency_ms']} ms"
    return None


class _Seldom:
    """Which instants are looked at whole: all of a small workload, and of a large one so few that the cost stays linear."""

    def __init__(self, sessions: int) -> None:
        """A workload of so many sessions."""
        self._every = 1 if sessions <= _VIEWED_WHOLE else sessions // _VIEWED_SHARE
        self._instants = 0

    def due(self) -> bool:
        """This one is."""
        self._instants += 1
        return self._instants % self._every == 0


@check
class SessionsLive(Check):
    """L1."""

    id = "sessions-live"
    kind = PROGRESS
    statement = (
        "A session that is not over is in flight, or ready at a time that stands once in the heap, or waits for the cap or for "
        "other nodes."
    )
    source = "replay specification L1"

    def on_began(self, began: Began) -> Found:
        """Nothing has happened."""
        self.seldom = _Seldom(began.workload.requests)
        return None

    def on_settled(self, settled: Settled) -> Found:
        """Every session."""
        if not self.seldom.due():
            return None
        view = settled.view()
        if not view.sessions:
            return None
        entries = Counter(session for _, session, _, stale in view.heap if not stale)
        first_pending = len(view.sessions) - (view.pending or 0)
        for number, session in enumerate(view.sessions):
            if session.ended:
                continue
            ways = (session.in_flight is not None) + (entries[number] > 0) + (number >= first_pending) + (number in view.blocked)
            if ways != 1 or entries[number] > 1:
                return f"session {number} is not over, and can go on in {ways} ways ({entries[number]} entries in the heap)"
        return True


@check
class BoundedInstants(Check):
    """L3."""

    id = "bounded-instants"
    kind = PROGRESS
    statement = "A run has no more instants than passes, arrivals, ticks and interruptions."
    source = "replay specification L3"

    def on_began(self, began: Began) -> Found:
        """No time has passed."""
        self.instants = 0
        self.interruptions = len(began.config.interruptions)
        return None

    def on_advanced(self, _: Advanced) -> Found:
        """One instant more."""
        self.instants += 1
        return None

    def on_finished(self, finished: Finished) -> Found:
        """Against what can make an instant."""
        bound = finished.passes + finished.arrivals + finished.ticks + self.interruptions + 1
        if self.instants > bound:
            return f"{self.instants} instants for {finished.passes} passes, {finished.arrivals} arrivals, {finished.ticks} ticks"
        return True


@check
class SessionVisitsLinear(Check):
    """R1, R2."""

    id = "session-visits-linear"
    kind = COST
    statement = (
        "A test for the end inspects one session while one is ready, and all of them only when none is; over a run without plays "
        "that is at most twice the sessions and once a test."
    )
    source = "finding 6; replay specification R1, R2"
    catches = ("sparse-completion-scan",)

    def on_began(self, began: Began) -> Found:
        """Nothing was inspected."""
        self.plays = isinstance(began.workload, Graph)
        self.visits = self.checks = 0
        return None

    def on_checked(self, checked: Checked) -> Found:
        """One test."""
        self.visits += checked.visits
        self.checks += 1
        allowed = 1 + (checked.sessions if checked.head_was_stale else 0)
        if checked.visits > allowed:
            return f"a test for the end inspects {checked.visits} of {checked.sessions} sessions, {allowed} would do"
        if not self.plays and self.visits > 2 * checked.sessions + self.checks:
            return f"{self.checks} tests for the end inspected {self.visits} sessions, there are {checked.sessions}"
        return True


@check
class EndedReleasesHistory(Check):
    """R3."""

    id = "ended-releases-history"
    kind = COST
    statement = "A session that is over retains no history, in elements of its buffer."
    source = "finding 7; replay specification R3"
    catches = ("dead-delta-history",)

    def on_began(self, began: Began) -> Found:
        """Whether there are histories at all."""
        self.known = Workload.of(began)
        self.seldom = _Seldom(began.workload.requests)
        return None

    def on_settled(self, settled: Settled) -> Found:
        """Every session that is over."""
        return self._look(settled.view()) if self.known.accumulates and self.seldom.due() else None

    def on_finished(self, finished: Finished) -> Found:
        """And at the end."""
        return self._look(finished.view()) if self.known.accumulates else None

    def _look(self, view: ReplayView) -> Found:
        over = [(number, session.history_capacity) for number, session in enumerate(view.sessions) if session.ended]
        kept = [(number, capacity) for number, capacity in over if capacity]
        if kept:
            total = sum(capacity for _, capacity in kept)
            return f"{len(kept)} of {len(over)} sessions that are over retain {total} elements, session {kept[0][0]} {kept[0][1]}"
        return True if over else None


@check
class ReplayDrainsEmpty(Check):
    """R4."""

    id = "drains-empty"
    statement = "When a replay is done nothing is in flight, on an engine or in a buffer."
    source = "replay specification R4"

    def on_finished(self, finished: Finished) -> Found:
        """The whole at the end."""
        if not finished.complete:
            return None
        view = finished.view()
        left = {
            "requests in the cluster": view.in_cluster,
            "turns in flight": len(view.in_flight),
            "busy engines": view.engines_busy,
            "hash ids of prompts": view.prompt_ids_held,
            "live history elements": view.costs.get("live_history_capacity", 0),
        }
        remaining = [f"{count} {name}" for name, count in left.items() if count]
        return f"the run is done with {', '.join(remaining)}" if remaining else True


@check
class PromptsReleased(Check):
    """R5."""

    id = "prompts-released"
    kind = COST
    statement = "The hash ids of a prompt are not kept once it is handed out, or its session is over."
    source = "replay specification R5"

    def on_began(self, began: Began) -> Found:
        """All prompts wait."""
        self.known = Workload.of(began)
        self.seldom = _Seldom(began.workload.requests)
        return None

    def on_settled(self, settled: Settled) -> Found:
        """Prompts that wait, against those that are held."""
        if not self.known.turns or not self.seldom.due():
            return None
        view = settled.view()
        waiting = 0
        for session, turns in zip(view.sessions, self.known.turns, strict=True):
            begun = session.next_turn + (session.in_flight is not None)
            waiting += sum(len(turn.hash_ids) for turn in turns[begun:])
        if waiting != view.prompt_ids_held:
            return f"{view.prompt_ids_held} hash ids are held at {settled.now_ms} ms, {waiting} belong to turns still to come"
        return True


@check
class EnginesGoOn(Check):
    """The livelock of an engine, as the loop sees it."""

    id = "no-stall"
    kind = PROGRESS
    statement = "No engine repeats, at one instant, a pass that takes no time and does nothing."
    source = "replay specification 5.3, L2"

    def on_finished(self, finished: Finished) -> Found:
        """How the run ended."""
        if finished.stopped == "livelock":
            return f"at {finished.now_ms} ms an engine has work and does nothing, for ever"
        return True if finished.complete else None


class ReplayMonitor:
    """An observer of a replay that judges it by all checks, or by ``only`` some ids.

    Attributes:
        violations: what broke, in order; ``at`` counts arrivals, ends and passes told so far.
        exercised: how often each id met its subject.
    """

    def __init__(self, only: Iterable[str] | None = None) -> None:
        """A monitor for one run."""
        wanted = None if only is None else set(only)
        self.violations: list[Violation] = []
        self.exercised: Counter[str] = Counter()
        self._told = 0
        self._readers: dict[type, list[tuple[str, Callable[[Any], Found]]]] = {kind: [] for kind in HANDLERS}
        for kind in CHECKS:
            if wanted is None or kind.id in wanted:
                instance = kind()
                for observed, name in HANDLERS.items():
                    method = getattr(instance, name, None)
                    if method is not None:
                        self._readers[observed].append((kind.id, method))

    def __call__(self, observation: Observation) -> None:
        """Judge one observation."""
        readers = self._readers.get(type(observation))
        if not readers:
            return
        self._told += 1
        for id_, read in readers:
            found = read(observation)
            if found is None or found is False:
                continue
            self.exercised[id_] += 1
            if found is not True:
                self.violations.append(Violation(id_, found, self._told, getattr(observation, "worker", 0)))


def ids() -> tuple[str, ...]:
    """The ids a replay is judged by, each once."""
    return tuple(dict.fromkeys(kind.id for kind in CHECKS))
