"""The one error for bad input: where it stands, what was found there, what is allowed.

The command line turns it into exit code 2; nothing is written when it is raised.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import frozen


@frozen
class BadInput(Exception):
    """A value that cannot be used.

    Attributes:
        path: where it stands, in the words of the file (``engine.num_blocks``, ``actions[2].prompt``).
        found: the value as a reader would recognise it.
        allowed: what would be accepted there.
    """

    path: str
    found: str
    allowed: str

    def __str__(self) -> str:
        """One line: path, value, what is allowed."""
        return f"{self.path}: found {self.found}; allowed: {self.allowed}"

    def under(self, prefix: str) -> BadInput:
        """The same error, seen from a document in which ``prefix`` holds the offending part."""
        joint = "" if self.path.startswith("[") or not self.path else "."
        return BadInput(f"{prefix}{joint}{self.path}", self.found, self.allowed)


def shown(value: object, limit: int = 60) -> str:
    """A value as an error line shows it: JSON-like and cut to ``limit`` characters."""
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def refuse_unknown(fields: dict[str, Any], known: Iterable[str], path: str) -> None:
    """Refuse the first field of ``fields`` that is not in ``known``.

    Raises:
        BadInput: naming the field and listing those that exist.
    """
    names = list(known)
    for name in fields:
        if name not in names:
            raise BadInput(f"{path}.{name}" if path else str(name), "an unknown field", ", ".join(sorted(names)))


def expect_object(value: object, path: str) -> dict[str, Any]:
    """``value`` as a JSON object.

    Raises:
        BadInput: if it is anything else.
    """
    if not isinstance(value, dict):
        raise BadInput(path, shown(value), "an object {…}")
    return value


def expect_list(value: object, path: str) -> list[Any]:
    """``value`` as a JSON array.

    Raises:
        BadInput: if it is anything else.
    """
    if not isinstance(value, list):
        raise BadInput(path, shown(value), "a list […]")
    return value


def expect_int(value: object, path: str, least: int | None = None, allowed: str | None = None) -> int:
    """``value`` as an integer of at least ``least``; ``true`` and ``1.0`` are not integers.

    Raises:
        BadInput: if it is anything else.
    """
    words = allowed or ("an integer" if least is None else f"an integer ≥ {least}")
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise BadInput(path, shown(value), words)
    return value


def expect_str(value: object, path: str) -> str:
    """``value`` as a string with at least one character.

    Raises:
        BadInput: if it is anything else.
    """
    if not isinstance(value, str) or not value:
        raise BadInput(path, shown(value), "a non-empty string")
    return value
