"""Errors of traces and of the loop.

A trace that breaks a rule is bad input: the error carries a code, the 1-based line (a row of a list counts as a line, blank
lines of a file are counted), the field, what was found and what is allowed. The codes are those of the replay
specification, section 1, and ``CODES`` tells what each stands for.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from model.errors import BadInput

CODES: Mapping[str, str] = {
    "E_PARSE": "not a JSON record with these fields and types",
    "E_EMPTY": "no request at all",
    "E_BLOCK_SIZE": "a trace block of no token, or none that fits",
    "E_NO_HASHES": "hash_ids is missing",
    "E_OVERFLOW": "hash ids times block size does not fit 64 bits",
    "E_CAPACITY": "more input tokens than the hash ids stand for",
    "E_NO_OUTPUT": "output_length is missing",
    "E_PLAN_LEN": "as many planned output ids as output tokens",
    "E_DELAY_FIRST": "a delay on the first turn of a session",
    "E_NO_PREV_TS": "a timestamp behind a turn without one",
    "E_BAD_DELAY": "a delay that is negative or not finite",
    "E_TOO_MANY_HASHES": "more than 2**32 distinct hash ids",
    "E_NO_FIRST_TS": "no first arrival where one is demanded",
    "E_BAD_FIRST": "a first arrival that is negative or not finite",
    "E_ZERO_INPUT": "a turn without input",
    "E_SPEEDUP": "a speed-up that is not finite and above 0",
    "E_ARRAY_LEN": "a list whose length is not num_turns",
    "E_ZERO_PROMPT": "a first prompt without tokens",
    "E_BAD_LATENCY": "a tool latency that is negative or not finite",
    "E_NEEDS_CONCURRENCY": "a format that has no arrivals",
    "E_NO_CONCURRENCY": "a format that has its own arrivals",
    "E_HEADER": "no version 2 header on the first line",
    "E_BLANK": "a blank name",
    "E_HASH_COUNT": "not exactly as many hash ids as blocks",
    "E_BAD_TIME": "a time that is negative or not finite",
    "E_TRIGGER": "a relation that this trigger does not have",
    "E_DUPLICATE_ID": "an id used twice",
    "E_UNKNOWN_ID": "a dependency on a request that is not there",
    "E_SELF_DEPENDENCY": "a request that waits for itself",
    "E_CROSS_PLAY": "a dependency between plays",
    "E_CYCLE": "requests that wait for each other",
    "E_ORDINALS": "play ordinals that are not 0, 1, 2, …",
    "E_LANES": "a number of lanes below 1",
    "E_VERSION": "a document of another version",
    "E_TOPOLOGY": "a topology that cannot be replayed",
    "E_TOKEN_LEN": "as many input ids as input tokens",
    "E_RANK": "a rank that the engine does not have",
    "E_IN_FLIGHT": "a bound of no request in flight",
    "E_SLA": "bounds that exclude each other, or one that is not finite and above 0",
    "E_SIZE": "a size below 1",
    "E_RATE": "an arrival rate or shape that is not finite and above 0",
    "E_RATIO": "a ratio outside 0 to 1",
    "E_PREFIX": "a cached prefix that is not whole blocks of every input",
    "E_UNKNOWN_FIELD": "a field that does not exist",
    "E_UNSUPPORTED": "something that single-turn requests do not have",
}


@frozen
class TraceError(BadInput):
    """A trace, or something said about it, that cannot be used; nothing of it was admitted.

    Attributes:
        code: one of ``CODES``.
        line: 1-based line of the file (row of a list); None for what no single line is to blame for.
        subject: the session, turn or requests it is about, where a line does not say it.
    """

    code: str = field(kw_only=True)
    line: int | None = field(default=None, kw_only=True)
    subject: str = field(default="", kw_only=True)

    def __str__(self) -> str:
        """One line: code, place, value, what is allowed."""
        places = (f"line {self.line}" if self.line is not None else "", self.subject, self.path)
        return f"{self.code}: {', '.join(place for place in places if place)}: found {self.found}; allowed: {self.allowed}"

    def under(self, prefix: str) -> TraceError:
        """The same error, seen from a document in which ``prefix`` holds the offending part."""
        inner = super().under(prefix)
        return TraceError(inner.path, self.found, self.allowed, code=self.code, line=self.line, subject=self.subject)


class DriverError(Exception):
    """A call that the driver cannot take in its state; nothing has changed."""


class ReplayStuck(Exception):
    """The run cannot go on although it is not done.

    Attributes:
        kind: ``livelock`` (an engine still owns work), or ``dead-end`` (nothing is left that could happen).
    """

    def __init__(self, kind: str, message: str) -> None:
        """See the class."""
        super().__init__(message)
        self.kind = kind
