"""Reading JSON Lines: one record a line, with the line in every error, and the strictness of a typed parser.

What a permissive JSON reader lets through is refused here: NaN, a name given twice, an integer written as a fraction, a
number out of range, text that is not valid Unicode (replay specification 1.1). Unknown fields are left alone, whatever
is in them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from attrs import field, frozen

from model.errors import BadInput, shown
from model.replay.errors import TraceError

U64_MAX = (1 << 64) - 1
U32_MAX = (1 << 32) - 1
I32_MAX = (1 << 31) - 1
_INTEGER_DIGITS = 25
"""Longer integers are beyond 64 bits, and numbers beyond 64 bits are read as floats."""

_T = TypeVar("_T")


class _Repeating(dict[str, Any]):
    """A JSON object in which some names were given more than once."""

    repeated: frozenset[str] = frozenset()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    names = [name for name, _ in pairs]
    repeating = _Repeating(members)
    repeating.repeated = frozenset(name for name in names if names.count(name) > 1)
    return repeating


def _integer(text: str) -> int | float:
    # A typed reader takes -0 for a float.
    return int(text) if text != "-0" and len(text) <= _INTEGER_DIGITS else float(text)


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is no JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_constant=_no_constant)


def decode(text: bytes, line: int | None) -> object:
    """The JSON value in ``text``.

    Raises:
        TraceError: ``E_PARSE``, when it is not exactly one JSON value in UTF-8.
    """
    try:
        return _DECODER.decode(text.decode())
    except (ValueError, RecursionError) as error:
        found = shown(text.decode(errors="replace").strip())
        raise TraceError("", f"{found} ({error})", "one JSON value", code="E_PARSE", line=line) from None


def lines_of(path: str | Path) -> Iterator[tuple[int, object]]:
    """The JSON values of a file, one by one, each with its 1-based line; blank lines are skipped and counted.

    Raises:
        BadInput: if the file cannot be read.
        TraceError: ``E_PARSE``.
    """
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, decode(line, number)
    except OSError as error:
        raise BadInput("file", f"{path} ({error.strerror})", "a file that can be read") from None


def rows_of(values: Iterable[object]) -> Iterator[tuple[int, object]]:
    """Rows that were already decoded, numbered like the lines of a file."""
    return iter(enumerate(values, 1))


@frozen
class Kind:
    """A type of field: what passes, in code and in words, and how it is kept."""

    passes: Callable[[Any], bool]
    words: str
    keep: Callable[[Any], Any] = lambda value: value


def _is_integer(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return True
    return type(value) is float and math.isfinite(value)


def _is_list(passes: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(passes, value))


_u64, _u32 = _is_integer(0, U64_MAX), _is_integer(0, U32_MAX)
TEXT = Kind(_is_text, "a string")
U64 = Kind(_u64, "an integer from 0 to 2**64 - 1")
U32 = Kind(_u32, "an integer from 0 to 2**32 - 1")
I32 = Kind(_is_integer(-I32_MAX - 1, I32_MAX), "an integer from -2**31 to 2**31 - 1")
NUMBER = Kind(_is_number, "a finite number", float)
U64_LIST = Kind(_is_list(_u64), "a list of integers from 0 to 2**64 - 1", tuple)
U32_LIST = Kind(_is_list(_u32), "a list of integers from 0 to 2**32 - 1", tuple)
NUMBER_LIST = Kind(_is_list(_is_number), "a list of finite numbers", lambda value: tuple(map(float, value)))
OBJECT = Kind(lambda value: isinstance(value, dict), "an object {…}")
LIST = Kind(lambda value: isinstance(value, list), "a list […]")
FLAG = Kind(lambda value: isinstance(value, bool), "true or false")


@frozen
class Field:
    """A field of a record; without ``required`` it may be absent or null, and is None then."""

    name: str
    kind: Kind
    alias: str | None = None
    required: bool = field(default=False, kw_only=True)


def parse_error(line: int | None, path: str, found: str, allowed: str) -> TraceError:
    """A record that is not of its type."""
    return TraceError(path, found, allowed, code="E_PARSE", line=line)


def read_record(value: object, fields: Sequence[Field], line: int | None, path: str = "") -> dict[str, Any]:
    """The values of ``fields`` in a record: an object, or a list with the values in the order of the fields.

    Raises:
        TraceError: ``E_PARSE``, for a wrong type, a missing required field, a name (or its alias) given twice.
    """
    prefix = f"{path}." if path else ""
    if isinstance(value, list):
        if len(value) > len(fields):
            raise parse_error(line, path or "record", f"{len(value)} elements", f"at most {len(fields)}")
        given: Mapping[str, Any] = dict(zip([one.name for one in fields], value, strict=False))
    elif isinstance(value, dict):
        given = value
    else:
        raise parse_error(line, path or "record", shown(value), "an object {…}")
    repeated = getattr(given, "repeated", ())
    record = {}
    for one in fields:
        name, found = one.name, given.get(one.name)
        twice = name in repeated
        if one.alias is not None and one.alias in given:
            twice = twice or one.alias in repeated or name in given
            found = given[one.alias]
        if twice:
            both = f"{name} once" + (f", or {one.alias} instead" if one.alias else "")
            raise parse_error(line, prefix + name, "it twice", both)
        if found is None:
            if one.required:
                raise parse_error(line, prefix + name, "nothing", one.kind.words)
        elif not one.kind.passes(found):
            raise parse_error(line, prefix + name, shown(found), one.kind.words)
        else:
            found = _kept(one, found, line, prefix)
        record[name] = found
    return record


def _kept(one: Field, found: Any, line: int | None, prefix: str) -> Any:
    try:
        return one.kind.keep(found)
    except OverflowError:
        raise parse_error(line, prefix + one.name, shown(found), one.kind.words) from None


def named(value: _T | None, default: _T) -> _T:
    """``value``, or ``default`` when it is absent."""
    return default if value is None else value
