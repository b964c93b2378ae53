"""Who follows a request from the prefill to the decode worker (vLLM specification 4, SGLang specification 7).

A coordinator knows of each request how far either side is, and owes it the next command. What it hears comes from the reports
of the workers; nothing else reaches it. Its commands take effect at once, but when each is given is left open, so that a
worker may run passes, and other requests come and go, between any two of them.

What is owed follows from the two sides alone::

    source    destination    source first (vLLM, TensorRT-LLM)    destination first (SGLang)
    none      none           submit_prefill, on arrival           reserve_destination, on arrival
    none      pending                                             (waits for room)
    none      reserved                                            submit_prefill
    live      any            (the prefill runs)                   (the prefill runs)
    held      none           reserve_destination
    held      pending        (waits for room)
    held      reserved       activate_destination: the transfer ends
    held      active, gone   release_source
    gone      active         (the decode runs)

A transfer may fail, a destination that is not active time out, and the request be cancelled at any time. From then on the
hand-off is *over*: what is left on either side is owed a cancel command, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define

from model.requests import RequestSpec

NONE = "none"
LIVE = "live"
HELD = "held"
PENDING = "pending"
RESERVED = "reserved"
ACTIVE = "active"
GONE = "gone"

SOURCES = (NONE, LIVE, HELD, GONE)
"""How far the prefill side is: not asked, running, completed with its blocks kept, done with."""

DESTINATIONS = (NONE, PENDING, RESERVED, ACTIVE, GONE)
"""How far the decode side is: not asked, accepted, with room, with its KV, done with."""

_BOTH: Mapping[tuple[str, str], str] = {
    (HELD, RESERVED): "activate_destination",
    (HELD, ACTIVE): "release_source",
    (HELD, GONE): "release_source",
}
SOURCE_FIRST: Mapping[tuple[str, str], str] = {
    **_BOTH,
    (NONE, NONE): "submit_prefill",
    (HELD, NONE): "reserve_destination",
}
"""What is owed to a hand-off that goes on, by source and destination; nothing when it is not named."""

DESTINATION_FIRST: Mapping[tuple[str, str], str] = {
    **_BOTH,
    (NONE, NONE): "reserve_destination",
    (NONE, RESERVED): "submit_prefill",
}


@define
class Record:
    """One hand-off.

    Attributes:
        request: as it was submitted to the system.
        number: of the request in the registry.
        source, destination: how far the two sides are.
        over: it was cancelled, refused, failed or timed out.
    """

    request: RequestSpec
    number: int
    source: str = NONE
    destination: str = NONE
    over: bool = False

    @property
    def settled(self) -> bool:
        """Neither side has anything of it any more."""
        return self.source in (NONE, GONE) and (self.destination == GONE or (self.over and self.destination == NONE))

    def owed(self, order: Mapping[tuple[str, str], str]) -> tuple[str, ...]:
        """The commands that may be given now; of a hand-off that is over there may be two, in any order."""
        if self.over:
            commands = []
            if self.source in (LIVE, HELD):
                commands.append("cancel_source")
            if self.destination in (PENDING, RESERVED, ACTIVE):
                commands.append("cancel_destination")
            return tuple(commands)
        command = order.get((self.source, self.destination))
        return () if command is None else (command,)

    def mishaps(self) -> tuple[str, ...]:
        """What may go wrong now."""
        if self.over or self.destination not in (PENDING, RESERVED):
            return ()
        return ("fail_transfer", "time_out") if (self.source, self.destination) == (HELD, RESERVED) else ("time_out",)
