"""Everything that can be done to an engine. What is random or concurrent in a real one is a choice in an action.

``worker`` names the engine of a system of several by its position; a single engine is worker 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from attrs import field, frozen

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


Action = Submit | Cancel | Step | Advance | Handoff
