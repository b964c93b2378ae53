"""Agentic plays: a graph of requests as a policy of the driver (replay specification 4).

A node is a session with one turn. Its states::

    blocked → ready → emitted → completed | failed          blocked, ready → skipped

A dispatch fires the dispatch edges of the node, within the same pass of ``pop_ready``; a completion fires its completion edges
unless the play has failed. Any other end fails the play: its blocked and ready nodes are skipped at once, and their heap
entries stay behind, stale.

With lanes, the first plays begin at 0 and the others wait in one list; its head begins when any lane is released. A lane is
released when its play has completed or failed and no dispatched node lacks an end; the play *settles* once the engines are
through with all of it, and the workload is not drained before.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from attrs import define, field, frozen

from model.replay.agentic import COMPLETION, DISPATCH, Graph
from model.replay.driver import COMPLETED, Driver, Policy
from model.replay.errors import TraceError
from model.replay.trace import Session, Trace, Turn


class NodeState(Enum):
    """See the module docstring."""

    BLOCKED = "blocked"
    READY = "ready"
    EMITTED = "emitted"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


@define
class PlayState:
    """One play.

    Attributes:
        play_id: its name.
        nodes: positions of its nodes.
        open: nodes that have neither ended nor been skipped.
        running: dispatched nodes that have not ended.
        unsettled: dispatched nodes that the engines are not through with.
        active: it has begun.
        first_root_ms: first dispatch of a root.
        last_terminal_ms: the latest end so far.
        settled_ms: the latest moment at which an engine was through with a node.
        failure: time and position of its primary failure, the smallest of both.
    """

    play_id: str
    nodes: list[int] = field(factory=list)
    open: int = 0
    running: int = 0
    unsettled: int = 0
    active: bool = False
    first_root_ms: float | None = None
    last_terminal_ms: float | None = None
    settled_ms: float | None = None
    failure: tuple[float, int] | None = None

    @property
    def over(self) -> bool:
        """It completed or failed, and nothing of it runs: its lane is free."""
        return (self.open == 0 or self.failure is not None) and not self.running


@frozen
class PlayOutcome:
    """What became of a play.

    Attributes:
        status: ``completed``, ``failed`` or ``incomplete`` (the run was cut).
        causal_terminal_ms: its last end; of a failed play the primary failure; None when nothing ended.
        settled_at_ms: when the engines were through with it; None when they were not.
        failing_request_id: of a failed play.
        e2e_ms: of a completed play, from the first dispatch of a root to the last end.
    """

    play_id: str
    status: str
    causal_terminal_ms: float | None
    settled_at_ms: float | None = None
    failing_request_id: str | None = None
    e2e_ms: float | None = None


def trace_of(graph: Graph) -> Trace:
    """The nodes as sessions of one turn."""
    sessions = []
    for node in graph.nodes:
        turn = Turn(
            name=node.request_id,
            input_length=node.input_length,
            max_output_tokens=node.output_length,
            hash_ids=node.hash_ids,
            output_token_ids=node.output_token_ids,
            priority=node.priority,
            strict_priority=node.strict_priority,
            policy_class=node.policy_class,
            line=node.line,
        )
        sessions.append(Session(node.session_id, node.not_before_ms, (turn,)))
    return Trace(graph.block_size, tuple(sessions))


class AgenticPolicy(Policy):
    """See the module docstring."""

    def __init__(self, graph: Graph, lanes: int | None = None) -> None:
        """A graph that has not begun.

        Raises:
            TraceError: ``E_LANES``.
        """
        if lanes is not None and lanes < 1:
            raise TraceError("lanes", str(lanes), "an integer ≥ 1", code="E_LANES")
        self.graph = graph
        self.lanes = lanes
        index = {node.request_id: number for number, node in enumerate(graph.nodes)}
        by_id = {play_id: PlayState(play_id) for play_id in graph.plays}
        self.plays = list(by_id.values())
        self.states = [NodeState.BLOCKED] * len(graph.nodes)
        self._play_of: list[PlayState] = []
        self._remaining = [len(node.dependencies) for node in graph.nodes]
        self._ready_after = [node.not_before_ms for node in graph.nodes]
        self._edges: dict[str, list[list[tuple[int, float]]]] = {
            trigger: [[] for _ in graph.nodes] for trigger in (DISPATCH, COMPLETION)
        }
        self._unquiet: set[int] = set()
        self._waiting = self.plays[lanes:] if lanes is not None else []
        for number, node in enumerate(graph.nodes):
            play = by_id[node.play_id]
            play.nodes.append(number)
            play.open += 1
            self._play_of.append(play)
            for edge in node.dependencies:
                self._edges[edge.trigger][index[edge.request_id]].append((number, edge.delay_ms))

    def uid(self, session: int, issued: int) -> int:
        """Nodes are numbered from 1."""
        return session + 1

    @property
    def settling(self) -> bool:
        """An ended node is still on an engine."""
        return bool(self._unquiet)

    def start(self, driver: Driver) -> None:
        """Roots are ready at their earliest start; with lanes, those of the first plays, moved to begin at 0."""
        if self.lanes is not None:
            for play in self.plays[: self.lanes]:
                self._activate(driver, play, 0.0)
            return
        for play in self.plays:
            play.active = True
            self._release_roots(driver, play)

    def _activate(self, driver: Driver, play: PlayState, now: float) -> None:
        nodes = self.graph.nodes
        first = min(nodes[number].not_before_ms for number in play.nodes if not self._remaining[number])
        for number in play.nodes:
            self._ready_after[number] = now + max(0.0, nodes[number].not_before_ms - first)
        play.active = True
        self._release_roots(driver, play)

    def _release_roots(self, driver: Driver, play: PlayState) -> None:
        for number in play.nodes:
            if not self._remaining[number]:
                self._release(driver, number)

    def _release(self, driver: Driver, number: int) -> None:
        self.states[number] = NodeState.READY
        driver.push(number, self._ready_after[number])

    def _fire(self, driver: Driver, trigger: str, number: int, now: float) -> None:
        for target, delay in self._edges[trigger][number]:
            if self.states[target] is not NodeState.BLOCKED:
                continue
            self._remaining[target] -= 1
            self._ready_after[target] = max(self._ready_after[target], now + delay)
            if not self._remaining[target]:
                self._release(driver, target)

    def dispatched(self, driver: Driver, session: int, now: float) -> None:
        """A node was handed out."""
        self.states[session] = NodeState.EMITTED
        play = self._play_of[session]
        play.running += 1
        play.unsettled += 1
        self._unquiet.add(session)
        if play.first_root_ms is None:
            play.first_root_ms = now
        self._fire(driver, DISPATCH, session, now)

    def ended(self, driver: Driver, session: int, now: float, status: str) -> None:
        """A node ended; the play may fail by it, and a waiting play may begin."""
        play = self._play_of[session]
        play.running -= 1
        play.open -= 1
        play.last_terminal_ms = now if play.last_terminal_ms is None else max(play.last_terminal_ms, now)
        if status == COMPLETED:
            self.states[session] = NodeState.COMPLETED
            if play.failure is None:
                self._fire(driver, COMPLETION, session, now)
        else:
            self.states[session] = NodeState.FAILED
            failure = (now, session)
            play.failure = failure if play.failure is None else min(play.failure, failure)
            self._skip_rest(driver, play)
        if play.over and self._waiting:
            self._activate(driver, self._waiting.pop(0), now)

    def _skip_rest(self, driver: Driver, play: PlayState) -> None:
        for number in play.nodes:
            if self.states[number] in (NodeState.BLOCKED, NodeState.READY):
                self.states[number] = NodeState.SKIPPED
                play.open -= 1
                driver.end(number)

    def quiescent(self, uid: int, now: float) -> None:
        """The engines are through with a node."""
        number = uid - 1
        self._unquiet.remove(number)
        play = self._play_of[number]
        play.unsettled -= 1
        play.settled_ms = now if play.settled_ms is None else max(play.settled_ms, now)

    def ordered(self, terminals: Sequence[tuple[int, str]]) -> Sequence[tuple[int, str]]:
        """Ends at one instant go by position of the node."""
        return sorted(terminals)

    def check_quiescent(self, uid: int) -> bool:
        """The node was handed out, and no engine has let go of it yet."""
        return uid - 1 in self._unquiet

    def outcomes(self) -> list[PlayOutcome]:
        """What became of each play, in play order."""
        return [self._outcome(play) for play in self.plays]

    def _outcome(self, play: PlayState) -> PlayOutcome:
        failure = play.failure
        failing = self.graph.nodes[failure[1]].request_id if failure else None
        if play.open or play.running or play.unsettled or not play.active:
            causal = failure[0] if failure else play.last_terminal_ms
            return PlayOutcome(play.play_id, "incomplete", causal, failing_request_id=failing)
        if failure:
            return PlayOutcome(play.play_id, "failed", failure[0], play.settled_ms, failing)
        assert play.last_terminal_ms is not None
        assert play.first_root_ms is not None
        e2e = play.last_terminal_ms - play.first_root_ms
        return PlayOutcome(play.play_id, "completed", play.last_terminal_ms, play.settled_ms, e2e_ms=e2e)
