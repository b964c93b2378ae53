"""Prompts and requests as the outside sees them.

A prompt is kept as runs of equal tokens, ``((token, count), …)``, which is canonical: equal token sequences have equal
runs however they were written. So a trace row that repeats one id 512 times costs one pair, and the content of a block is
a small tuple whose equality is exactly the equality of its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from attrs import field, frozen

from model.errors import BadInput, expect_int, expect_list, expect_str, shown

Run = tuple[int, int]
Content = tuple[Run, ...]

_STREAM_POSITIONS = 1 << 32


def runs_of(tokens: Iterable[int]) -> Content:
    """The runs of a token sequence: maximal groups of equal neighbours, each (token, count)."""
    return tuple((token, sum(1 for _ in group)) for token, group in groupby(tokens))


def merged(runs: Iterable[Run]) -> Content:
    """``runs`` with empty ones dropped and equal neighbours joined, so that the form is canonical."""
    whole: list[Run] = []
    for token, count in runs:
        if count and whole and whole[-1][0] == token:
            whole[-1] = (token, whole[-1][1] + count)
        elif count:
            whole.append((token, count))
    return tuple(whole)


def stream_token(stream: str, position: int) -> int:
    """The token at ``position`` of a named stream: equal streams are equal tokens, and no list of ids (≥ 0) meets one."""
    return -(_stream_code(stream) * _STREAM_POSITIONS + position + 1)


def _stream_code(name: str) -> int:
    # The leading 1 keeps names apart that differ in leading zero bytes; a JSON string may hold lone surrogates.
    return int.from_bytes(b"\x01" + name.encode(errors="surrogatepass"), "big")


def _stream_name(code: int) -> str:
    return code.to_bytes((code.bit_length() + 7) // 8, "big")[1:].decode(errors="surrogatepass")


@frozen
class Prompt:
    """A sequence of tokens.

    Attributes:
        runs: its canonical runs.
        length: number of tokens.
    """

    runs: Content
    length: int = field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "length", sum(count for _, count in self.runs))

    @classmethod
    def of_tokens(cls, tokens: Iterable[int]) -> Prompt:
        """A prompt of explicit token ids."""
        return cls(runs_of(tokens))

    @classmethod
    def of_streams(cls, pieces: Iterable[tuple[str, int]]) -> Prompt:
        """A prompt that concatenates the first ``length`` tokens of each named stream."""
        return cls(runs_of(stream_token(name, at) for name, length in pieces for at in range(length)))

    def tokens(self) -> Iterator[int]:
        """The tokens one by one."""
        for token, count in self.runs:
            for _ in range(count):
                yield token

    def blocks(self, block_size: int) -> tuple[list[Content], Content]:
        """The contents of the full blocks of ``block_size`` tokens, and of what is left over.

        Costs the number of runs plus the number of blocks.
        """
        full: list[Content] = []
        current: list[Run] = []
        room = block_size
        for token, left in self.runs:
            count = left
            while count >= room:
                current.append((token, room))
                full.append(tuple(current))
                count -= room
                current = []
                room = block_size
            if count:
                current.append((token, count))
                room -= count
        return full, tuple(current)

    def extended(self, tokens: Iterable[int]) -> Prompt:
        """This prompt followed by ``tokens``."""
        return Prompt(merged((*self.runs, *runs_of(tokens))))

    @classmethod
    def read(cls, value: object, path: str) -> Prompt:
        """A prompt in the case format: a list of token ids, or of ``[stream, length]`` pairs.

        Raises:
            BadInput: naming the element that is neither.
        """
        elements = expect_list(value, path)
        allowed = "a non-empty list of token ids ≥ 0, or of [stream, length ≥ 1] pairs"
        if not elements:
            raise BadInput(path, "[]", allowed)
        if all(isinstance(element, list) for element in elements):
            pieces = []
            for number, element in enumerate(elements):
                where = f"{path}[{number}]"
                if len(element) != 2:
                    raise BadInput(where, shown(element), "a [stream, length] pair")
                pieces.append((expect_str(element[0], f"{where}[0]"), expect_int(element[1], f"{where}[1]", 1)))
            return cls.of_streams(pieces)
        for number, element in enumerate(elements):
            if isinstance(element, bool) or not isinstance(element, int) or element < 0:
                raise BadInput(f"{path}[{number}]", shown(element), allowed)
        return cls.of_tokens(elements)

    def to_json(self) -> list[Any]:
        """The prompt in the case format: ids as they are, streams as ``[stream, length]`` pairs."""
        if all(token >= 0 for token, _ in self.runs):
            return list(self.tokens())
        pieces: list[list[Any]] = []
        for token in self.tokens():
            code, position = divmod(-token - 1, _STREAM_POSITIONS)
            name = _stream_name(code)
            if pieces and position and pieces[-1] == [name, position]:
                pieces[-1][1] += 1
            else:
                pieces.append([name, 1])
        return pieces


@frozen
class RequestSpec:
    """A request as it is submitted.

    Attributes:
        id: unique among the requests an engine has at one time.
        prompt: its tokens, at least one.
        output: the most new tokens it asks for, ≥ 0 (0: prefill only).
        output_tokens: the ids it will produce, in order, when they are planned; their number replaces ``output``.
    """

    id: str
    prompt: Prompt
    output: int
    output_tokens: tuple[int, ...] | None = None

    def __attrs_post_init__(self) -> None:
        if not self.prompt.length:
            raise BadInput("prompt", "no token", "at least one token")
        if self.output_tokens is not None:
            object.__setattr__(self, "output", len(self.output_tokens))
        elif self.output < 0:
            raise BadInput("output", shown(self.output), "an integer ≥ 0")

    def output_token(self, position: int) -> int:
        """The ``position``-th generated token: the planned one, else one that no other request produces."""
        if self.output_tokens is not None:
            return self.output_tokens[position]
        return stream_token(f"output of {self.id}", position)
