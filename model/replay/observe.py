"""What a replay shows of itself: an observation for each small step, and a view of the whole on request.

An observer is called with one observation after another. Those of engines come in pairs around each action, so that an
engine can be judged with the views before and after it; those of the replay tell arrivals, passes, ends and completion
checks. ``Settled`` closes an instant and offers a view, which costs as much as there are sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from model.actions import Action
from model.engine import Engine
from model.events import StepReport
from model.replay.accept import Sample
from model.replay.agentic import Graph
from model.replay.config import ReplayConfig
from model.replay.flat import FlatTrace
from model.replay.trace import Trace
from model.requests import Prompt

Workload = Trace | Graph | FlatTrace


@frozen
class Began:
    """The trace was read and nothing ran yet.

    Attributes:
        config: of the replay.
        workload: the trace as it was read, before origin and speed-up.
        speculation: drafts that the engines propose in a step; 0 for none.
        max_model_len: cap on the length of a sequence; None for none.
    """

    config: ReplayConfig
    workload: Workload
    speculation: int
    max_model_len: int | None


@frozen
class EngineWillAct:
    """An engine is about to carry out an action."""

    now_ms: float
    worker: int
    engine: Engine
    action: Action


@frozen
class EngineActed:
    """An engine carried out an action; of a pass, the outputs are told at its end."""

    now_ms: float
    worker: int
    engine: Engine
    report: StepReport


@frozen
class Arrived:
    """A request entered the system.

    Attributes:
        uid, name: of the request.
        session, turn_index: position in the driver; None for flat requests.
        arrival_ms: as recorded.
        prompt: its tokens.
        output_tokens: the most it may produce.
        worker: where it was placed.
        in_flight: requests in the cluster, this one included.
    """

    now_ms: float
    uid: int
    name: str
    session: int | None
    turn_index: int | None
    arrival_ms: float
    prompt: Prompt
    output_tokens: int
    worker: int
    in_flight: int


@frozen
class PassStarted:
    """A worker began a pass that ends at ``end_ms``."""

    now_ms: float
    worker: int
    end_ms: float


@frozen
class PassEnded:
    """The outputs of a pass came out: its report, and its sample of accept length."""

    now_ms: float
    worker: int
    report: StepReport
    sample: Sample


@frozen
class Ended:
    """A request ended with ``status`` after ``emitted`` tokens."""

    now_ms: float
    uid: int
    name: str
    session: int | None
    turn_index: int | None
    status: str
    emitted: int


@frozen
class Checked:
    """Sessions were looked at to see whether the workload is done.

    Attributes:
        drained: the answer.
        truly_drained: the answer by definition.
        visits: sessions inspected.
        head_was_stale: the ready heap was empty, or its head belonged to a session that is exhausted.
        sessions: how many there are.
    """

    drained: bool
    truly_drained: Callable[[], bool]
    visits: int
    head_was_stale: bool
    sessions: int


@frozen
class Advanced:
    """Time moved."""

    from_ms: float
    to_ms: float


@frozen
class SessionView:
    """A session: its next turn, how many it has, when the next is ready, the uid in flight, and its history."""

    next_turn: int
    turns: int
    next_ready_ms: float | None
    in_flight: int | None
    history_length: int
    history_capacity: int

    @property
    def ended(self) -> bool:
        """It hands out nothing more and nothing of it is in flight."""
        return self.next_turn >= self.turns and self.in_flight is None


@frozen
class ReplayView:
    """The whole between two instants.

    Attributes:
        now_ms: virtual time.
        sessions: all of them; empty for flat requests.
        heap: ready times as (time, session, turn, stale).
        in_flight: uid to session.
        cap, active, pending: of concurrency mode: sessions that may be active, are, and have not begun; None otherwise.
        blocked: nodes that wait for others.
        settling: an ended node is still on an engine.
        in_cluster: requests in the cluster.
        engines_busy: engines with live requests.
        prompt_ids_held: hash ids of prompts not handed out.
        costs: ghost counts of driver and event queue.
    """

    now_ms: float
    sessions: tuple[SessionView, ...]
    heap: tuple[tuple[float, int, int, bool], ...]
    in_flight: Mapping[int, int]
    cap: int | None
    active: int | None
    pending: int | None
    blocked: frozenset[int]
    settling: bool
    in_cluster: int
    engines_busy: int
    prompt_ids_held: int
    costs: Mapping[str, int]


@frozen
class Settled:
    """All that happens at ``now_ms`` has happened."""

    now_ms: float
    view: Callable[[], ReplayView]


@frozen
class Finished:
    """The run is over.

    Attributes:
        complete: everything was replayed.
        stopped: why not: ``time-cap``, ``pass-limit``, ``interrupted``, ``dead-end`` or ``livelock``; None when complete.
        view: the whole at the end.
        report, counts: of the run.
        windows: traffic windows.
        accept: totals of accept length as (tokens, forwards, samples).
        passes, arrivals, ticks: how many there were.
    """

    now_ms: float
    complete: bool
    stopped: str | None
    view: Callable[[], ReplayView]
    report: Mapping[str, Any]
    counts: Mapping[str, int]
    rows: tuple[Mapping[str, Any], ...]
    windows: tuple[Any, ...]
    accept: tuple[int, int, int]
    passes: int
    arrivals: int
    ticks: int


Observation = (
    Began | EngineWillAct | EngineActed | Arrived | PassStarted | PassEnded | Ended | Checked | Advanced | Settled | Finished
)
Observer = Callable[[Observation], None]
