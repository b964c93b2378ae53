"""Case and box files on disk: finding them, and reading them strictly.

Every error names the file, and for text that is not JSON the line and column too. What a permissive JSON reader lets
through (``NaN``, a field given twice) is refused here; everything behind that is checked by ``model.case`` and
``explorer.boxes``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from attrs import evolve

from model.case import Case, read_case
from model.errors import BadInput, shown

STORED_CASES = Path(__file__).parent / "cases"
"""The cases that come with the project: reported bugs, discoveries, and what the right engine does instead."""

STORED_BOXES = Path(__file__).parent / "boxes"
"""The boxes that the main job explores."""

_T = TypeVar("_T")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(twice, "the field twice in one object", "it once")
    return members


def _no_constant(text: str) -> object:
    raise BadInput("a number", text, "a finite JSON number")


def in_file(error: BadInput, path: Path) -> BadInput:
    """The same error, naming the file it stands in."""
    return evolve(error, path=f"{path}: {error.path}" if error.path else str(path))


def read_document(path: Path) -> object:
    """The JSON document in a file.

    Raises:
        BadInput: naming the file, and the line and column at which it stops being JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(str(path), (error.strerror or "an error").lower(), "a file that can be read") from None
    except UnicodeDecodeError as error:
        raise BadInput(str(path), f"bytes that are not UTF-8 at offset {error.start}", "a JSON document in UTF-8") from None
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        found = shown(text[error.pos : error.pos + 20]) if error.pos < len(text) else "the end of the file"
        where = f"{path}: line {error.lineno}, column {error.colno}"
        raise BadInput(where, found, f"JSON ({error.msg[0].lower()}{error.msg[1:]})") from None
    except RecursionError:
        raise BadInput(str(path), "lists or objects nested beyond reason", "a JSON document") from None
    except BadInput as error:
        raise in_file(error, path) from None


def load(path: Path, read: Callable[[object], _T]) -> _T:
    """What ``read`` makes of the JSON document in a file; its errors name the file.

    Raises:
        BadInput: for a file that cannot be read, is not JSON, or is not what ``read`` takes.
    """
    document = read_document(path)
    try:
        return read(document)
    except BadInput as error:
        raise in_file(error, path) from None


def load_case(path: Path) -> Case:
    """The case in a file; a trace that it replays is looked for from where the file is.

    Raises:
        BadInput: naming the file and the field.
    """
    case = load(path, read_case)
    trace = case.replay.get("file") if case.replay is not None else None
    if isinstance(trace, str):
        return evolve(case, replay={**(case.replay or {}), "file": str(path.parent / trace)})
    return case


def json_files(paths: Iterable[Path]) -> list[Path]:
    """The files meant by ``paths``: a file stands for itself, a directory for the ``.json`` files in and below it, by name.

    Raises:
        BadInput: for a path that does not exist, or a directory without such a file.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            below = sorted(path.rglob("*.json"))
            if not below:
                raise BadInput(str(path), "a directory without .json files", "a file, or a directory of .json files")
            files.extend(below)
        elif path.exists():
            files.append(path)
        else:
            raise BadInput(str(path), "no such file", "a file, or a directory of .json files")
    return files


def write_document(path: Path, document: object) -> None:
    """Write a JSON document, with its directory.

    Raises:
        BadInput: if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(str(path), (error.strerror or "an error").lower(), "a file that can be written") from None
