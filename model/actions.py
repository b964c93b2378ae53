"""Everything that can be done to an engine. What is random or concurrent in a real one is a choice in an action.

``worker`` names the engine of a system of several by its position; a single engine is worker 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from attrs import field, frozen

from model.errors import BadInput, shown
from model.requests import RequestSpec

Nanoseconds = int | Fraction
"""Virtual time: exact, so that a state reached twice compares equal."""


@frozen
class Submit:
    """Queue a request."""

    request: RequestSpec
    worker: int = 0


@frozen
class Cancel:
    """Withdraw a request, whatever its state; unknown and ended ones are left alone."""

    id: str
    worker: int = 0


@frozen
class Step:
    """One scheduler pass.

    Attributes:
        accepted: drafts accepted for a request in this pass; requests not named accept what the configuration says.
    """

    accepted: Mapping[str, int] = field(factory=dict)
    worker: int = 0


@frozen
class Advance:
    """Move virtual time forward by ``by_ns``, or to the next deadline when it is None; deadlines on the way fire in order."""

    by_ns: Nanoseconds | None = None
    worker: int = 0


@frozen
class Handoff:
    """A command of disaggregated serving.

    Attributes:
        verb: the command, such as ``reserve_destination``.
        id: the hand-off (or request) it is about.
        request: the request, for the commands that bring one.
    """

    verb: str
    id: str
    request: RequestSpec | None = None
    worker: int = 0


def brought(action: Handoff) -> RequestSpec:
    """The request that a hand-off command brings.

    Raises:
        BadInput: if there is none, or it has another id than the hand-off.
    """
    if action.request is None:
        raise BadInput("prompt", "nothing", f"a request for {action.verb}")
    if action.request.id != action.id:
        raise BadInput("id", shown(action.id), f"the id of the request, {shown(action.request.id)}")
    return action.request


def unknown_verb(verb: str, known: tuple[str, ...]) -> BadInput:
    """The error for a hand-off command that an engine does not know."""
    return BadInput("handoff", shown(verb), ", ".join(known) or "nothing: role prefill or decode takes part in hand-offs")


HANDOFF_VERBS = (
    "submit_prefill",
    "release_source",
    "cancel_source",
    "reserve_destination",
    "activate_destination",
    "cancel_destination",
    "cancel_request",
    "fail_transfer",
    "time_out",
)
"""The commands of a hand-off, and what may go wrong with it."""

MISHAPS = ("fail_transfer", "time_out")
"""What may happen to a hand-off and need not. Every other action that an engine names as a choice is sure to come."""


def is_owed(action: Action) -> bool:
    """Whether an action that an engine names as a choice is sure to come if nothing else happens."""
    return not (isinstance(action, Handoff) and action.verb in MISHAPS)


Action = Submit | Cancel | Step | Advance | Handoff
