"""What the explorer asks of the thing it explores.

A *transition system* has initial states, labelled edges from each state to its successors, and a few words about
liveness: which edges are progress, which are fair, which states are done. The search, the liveness checks and the
export know nothing else, so an inference engine, a pair of engines with the transfers between them, or a
toy of four states are explored by the same code.

Safety is judged by the system itself while it computes successors, because only there are the action, its report and the
views before and after at hand: whatever it finds it appends to `problems`, and the search turns each into a
violation with a path.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

import attrs

K = TypeVar("K", bound=Hashable)
A = TypeVar("A", bound=Hashable)

LABEL_LIMIT = 2**32
"""Labels are smaller than this: the graph keeps them in four bytes."""


@attrs.frozen
class Problem:
    """One broken property, as the system saw it while it computed initial states or successors.

    Attributes:
        property_id: Which property is broken.
        message: What was found, for people.
        label: The label of the edge on which it happened; None when it is the expanded state (or, after
            `initial_states`, the initial state) itself.
        successor: Position, from 0, in the successors (or initial states) just given; None means the first edge
            with `label`, and the first initial state. A label that no successor has stands for an action
            that failed and led nowhere.
    """

    property_id: str
    message: str
    label: int | None = None
    successor: int | None = None


class TransitionSystem(Protocol[K]):
    """The waist between the explorer and everything it can explore.

    States are hashable values that are never changed. `bytes` serves best: it hashes once, is compact, and the
    cyclic garbage collector does not track it, where a million tuples slow every collection.

    Every method must be a function of its arguments: the same successors in the same order each time, under
    any hash seed. Order decides which of several equally short counterexamples is reported.

    Two optional attributes are read when they are there. `label_limit` is an exclusive upper bound of the labels
    (default `LABEL_LIMIT`); below 2**8 or 2**16 the graph keeps a label in one or two bytes.
    """

    @property
    def problems(self) -> list[Problem]:
        """What judging the last `successors` or `initial_states` call found.

        One list for the life of the system: the search keeps a reference, tests it after each call and clears it.
        """

    def initial_states(self) -> Iterable[K]:
        """The states a run may start in; repetitions are ignored."""

    def successors(self, state: K) -> Iterable[tuple[int, K]]:
        """The edges out of a state as (label, next state), in a fixed order.

        Labels are integers from 0, below 2**32; the same label may be used in many states, and stands for the same
        progress, fairness and description in all of them.
        """

    def is_progress(self, label: int) -> bool:
        """Whether a livelock has to do without edges of this label.

        True of what gets work done (a token emitted, a request finished), and of external input, which can not be
        relied on to go on for ever. Such edges are cut before cycles are looked for. Asked once per label.
        """

    def fairness(self, label: int) -> int | None:
        """The weak-fairness class of the label, None when nothing obliges it to happen.

        A run is fair when no class stays enabled for ever without being taken. A class is enabled in a state that
        has any edge of that class, a progress edge included. Asked once per label.
        """

    def is_goal(self, state: K) -> bool:
        """Whether nothing that was accepted remains to be done in this state.

        Goal states may lack successors, and a run that visits them again and again is not a livelock.
        """

    def drain(self, state: K) -> tuple[int, K] | None:
        """The one edge taken when no more input comes, None when all that was accepted is done.

        A state that is stuck with work left gives the edge to itself.
        """

    def describe(self, label: int) -> str:
        """The label in words, for reports and exports."""


class BaseSystem(Generic[K]):
    """Defaults for everything but the edges: no progress, no fairness, no goal, nothing to drain."""

    label_limit: int = LABEL_LIMIT

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def is_progress(self, label: int) -> bool:
        """No edge is progress."""
        return False

    def fairness(self, label: int) -> int | None:
        """No edge is fair."""
        return None

    def is_goal(self, state: K) -> bool:
        """No state is a goal."""
        return False

    def drain(self, state: K) -> tuple[int, K] | None:
        """Nothing to drain."""
        return None

    def describe(self, label: int) -> str:
        """The number itself."""
        return str(label)


class ActionSystem(BaseSystem[K], Generic[K, A]):
    """A transition system spelled as initial states, actions of a state, and the next state; see `from_actions`."""

    def __init__(
        self,
        initial_states: Iterable[K],
        actions: Callable[[K], Iterable[A]],
        next_state: Callable[[K, A], K | None],
        *,
        invariants: Mapping[str, Callable[[K], bool]],
        is_progress: Callable[[A], bool],
        fairness: Callable[[A], int | None],
        is_goal: Callable[[K], bool],
        drain: Callable[[K], A | None],
        describe: Callable[[A], str],
    ) -> None:
        super().__init__()
        self._initial_states = tuple(initial_states)
        self._actions = actions
        self._next_state = next_state
        self._invariants = tuple(invariants.items())
        self._is_progress = is_progress
        self._fairness = fairness
        self._is_goal = is_goal
        self._drain = drain
        self._describe = describe
        self._labels: dict[A, int] = {}
        self._action_of: list[A] = []

    def label_of(self, action: A) -> int:
        """The label that stands for an action: actions are numbered in the order they are first met."""
        label = self._labels.get(action)
        if label is None:
            label = self._labels[action] = len(self._action_of)
            self._action_of.append(action)
        return label

    def action_of(self, label: int) -> A:
        """The action a label stands for."""
        return self._action_of[label]

    def initial_states(self) -> Iterable[K]:
        """The initial states as given."""
        return self._initial_states

    def successors(self, state: K) -> Iterable[tuple[int, K]]:
        """One edge for each action that has a next state; the state itself is judged by the invariants."""
        for property_id, holds in self._invariants:
            if not holds(state):
                self.problems.append(Problem(property_id, f"{property_id} does not hold in {state!r}"))
        edges = []
        for action in self._actions(state):
            following = self._next_state(state, action)
            if following is not None:
                edges.append((self.label_of(action), following))
        return edges

    def is_progress(self, label: int) -> bool:
        """As the action's."""
        return self._is_progress(self._action_of[label])

    def fairness(self, label: int) -> int | None:
        """As the action's."""
        return self._fairness(self._action_of[label])

    def is_goal(self, state: K) -> bool:
        """As given."""
        return self._is_goal(state)

    def drain(self, state: K) -> tuple[int, K] | None:
        """The action chosen for draining; without a next state it leaves the state as it is."""
        action = self._drain(state)
        if action is None:
            return None
        following = self._next_state(state, action)
        return self.label_of(action), state if following is None else following

    def describe(self, label: int) -> str:
        """As the action's."""
        return self._describe(self._action_of[label])


def from_actions(
    initial_states: Iterable[K],
    actions: Callable[[K], Iterable[A]],
    next_state: Callable[[K, A], K | None],
    *,
    invariants: Mapping[str, Callable[[K], bool]] | None = None,
    is_progress: Callable[[A], bool] = lambda action: False,
    fairness: Callable[[A], int | None] = lambda action: None,
    is_goal: Callable[[K], bool] = lambda state: False,
    drain: Callable[[K], A | None] = lambda state: None,
    describe: Callable[[A], str] = str,
) -> ActionSystem[K, A]:
    """Make a transition system from the three functions in which models are usually written.

    Args:
        initial_states: Where runs start.
        actions: The actions to try in a state, in a fixed order.
        next_state: Where an action leads, None when it is not enabled after all.
        invariants: Predicates that must hold in every reachable state, by property id.
        is_progress: See `TransitionSystem.is_progress`, here by action.
        fairness: See `TransitionSystem.fairness`, here by action.
        is_goal: See `TransitionSystem.is_goal`.
        drain: The action to take when no more input comes, None when done.
        describe: An action in words.
    """
    return ActionSystem(
        initial_states,
        actions,
        next_state,
        invariants={} if invariants is None else invariants,
        is_progress=is_progress,
        fairness=fairness,
        is_goal=is_goal,
        drain=drain,
        describe=describe,
    )
