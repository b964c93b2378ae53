"""The interface every engine stands behind: the model's schedulers, systems of several engines, real ones in adapters.

``apply`` is one indivisible thing. Equal configuration and actions give equal reports. Between actions an engine may be
frozen to ``bytes`` and thawed: the frozen form is canonical (queues in order, recency as rank, no physical block numbers,
no counters that steer nothing), so that two states that freeze alike behave alike. It refers to requests and block contents
by their numbers in the engine's registry, which thawed engines share; that keeps prompts out of every state, and is why
``thaw`` is a method of an engine and not a function of configuration and state alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence

from model.actions import Action, Advance, Step, is_owed
from model.config import EngineConfig
from model.errors import BadInput
from model.events import StepReport
from model.registry import Registry
from model.requests import RequestSpec
from model.views import EngineView

WORK = "work"
"""Tokens computed per request and pass."""
SIGNALS = "signals"
"""Tokens, completions and refusals per request, with the pass that made them."""
QUEUES = "queues"
"""Ids of waiting and running requests, in order."""
REQUESTS = "requests"
"""Computed and allocated tokens of live requests."""
POOL = "pool"
"""Free, active and inactive block counts."""
BLOCKS = "blocks"
"""The physical blocks, who holds them, and what a lookup finds."""
EVENTS = "events"
"""The KV event stream."""
PREEMPTIONS = "preemptions"
"""Which request was preempted, and for whose blocks."""
TREE = "tree"
"""The nodes of a radix tree."""
COSTS = "costs"
"""Ghost counts."""
STATE = "state"
"""A canonical frozen state, so that a recurrence is seen at once."""

PARTS = (WORK, SIGNALS, QUEUES, REQUESTS, POOL, BLOCKS, EVENTS, PREEMPTIONS, TREE, COSTS, STATE)


class UnknownAction(BadInput):
    """An action that this engine cannot carry out."""


class Engine(ABC):
    """One engine, or a system of several that takes actions and makes reports like one."""

    config: EngineConfig
    registry: Registry
    observes: frozenset[str]
    """The parts of ``PARTS`` that reports and views of this engine hold."""

    @abstractmethod
    def apply(self, action: Action) -> StepReport:
        """Carry out one action.

        Raises:
            BadInput: if the action cannot be carried out (an id in use, an unknown verb); nothing has changed then.
        """

    @abstractmethod
    def view(self, blocks: bool = True) -> EngineView:
        """A snapshot; without ``blocks`` the block table, cache contents and tree are left out (None)."""

    @abstractmethod
    def freeze(self) -> bytes:
        """The canonical state, to be thawed by this engine or one thawed from it."""

    @abstractmethod
    def thaw(self, state: bytes) -> Engine:
        """A new engine in ``state``, sharing this one's configuration and registry."""

    def views(self, blocks: bool = True) -> Sequence[EngineView]:
        """One view per worker."""
        return (self.view(blocks),)

    def configs(self) -> Sequence[EngineConfig]:
        """The configuration of each worker."""
        return (self.config,)

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Work remains: a live request, a transfer, a deadline."""

    def speculating(self) -> tuple[str, ...]:
        """Ids of requests for which the next pass may use a choice of accepted drafts; empty without speculation."""
        return ()

    def live(self) -> tuple[str, ...]:
        """Ids of the requests that are under way, each once."""
        return tuple(dict.fromkeys(id_ for view in self.views(blocks=False) for id_ in view.requests))

    def at_work(self) -> tuple[int, ...]:
        """The workers that have something left to do."""
        return (0,) if self.busy else ()

    def choices(self) -> tuple[Action, ...]:
        """What the world around may do next besides new input: ends of transfers, answers of other workers.

        They come in the order in which a drain takes them. Those that are owed are sure to come (``model.actions.is_owed``); the
        rest may go wrong.
        """
        return ()

    @abstractmethod
    def servable(self, request: RequestSpec) -> bool:
        """Whether the geometry can serve ``request`` at all, were it alone (a necessary condition of finishing)."""


def one_round(engine: Engine, apply: Callable[[Action], StepReport], ended: Callable[[], bool]) -> None:
    """What comes next when there is no more input.

    That is all the world around owes (ends of transfers, answers), then a pass of every worker with something left; where these
    do nothing, the next deadline.

    Args:
        engine: whose ``choices`` and views tell what can come.
        apply: carries an action out.
        ended: nothing more is wanted.
    """
    while not ended():
        owed = next((action for action in engine.choices() if is_owed(action)), None)
        if owed is None:
            break
        apply(owed)
    effect = False
    for worker in engine.at_work() or (0,):
        if ended():
            return
        effect = apply(Step(worker=worker)).had_effect or effect
    if not effect and not ended() and any(view.next_deadline_ns is not None for view in engine.views(blocks=False)):
        apply(Advance())


def pack(numbers: list[int]) -> bytes:
    """Non-negative integers as canonical bytes: one byte each when all are below 256, else eight."""
    try:
        return b"\x01" + bytes(numbers)
    except ValueError:
        return b"\x08" + array("Q", numbers).tobytes()


def unpack(state: bytes) -> Sequence[int]:
    """The integers that ``pack`` wrote."""
    if state[0] == 1:
        return state[1:]
    return array("Q", state[1:])
