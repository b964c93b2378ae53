"""Hypothesis strategies for prompts and requests.

Prompts are made of the beginnings of a few streams, so that some share a prefix and some do not, and shrink to one short piece
of the first stream.
"""

from __future__ import annotations

from hypothesis import strategies as st

from model.requests import Prompt

STREAMS = ("A", "B", "C")
LONGEST = 14
"""Tokens of the first piece of a prompt, at most."""


FIRST = tuple((stream, length) for length in range(1, LONGEST + 1) for stream in STREAMS)
SECOND = (None, *((stream, length) for length in range(1, 5) for stream in STREAMS))


def prompts() -> st.SearchStrategy[Prompt]:
    """A piece of a stream, half the time followed by a shorter piece of another.

    Each piece is one draw from a table in order of size: drawing is what a fuzzing run spends most of its time on.
    """
    second = st.none() | st.sampled_from(SECOND)
    return st.tuples(st.sampled_from(FIRST), second).map(_prompt)


def _prompt(pieces: tuple[tuple[str, int], tuple[str, int] | None]) -> Prompt:
    return Prompt.of_streams([piece for piece in pieces if piece is not None])


def outputs() -> st.SearchStrategy[int]:
    """Output lengths, prefill-only requests among them."""
    return st.integers(0, 7)
