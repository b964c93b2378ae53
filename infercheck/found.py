"""Where found cases go: one file each, named after what breaks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from pathlib import Path

from attrs import evolve

from explorer.boxes import Finding
from model.case import Case, Expectation
from model.errors import BadInput
from regressions.files import read_document, write_document

DIRECTORY = Path("infercheck-found")
"""Where cases are written unless told otherwise."""


def write_found(case: Case, directory: Path) -> Path:
    """Write a case into ``directory`` under the first id it violates; the file, an old one when it holds the same case.

    Raises:
        BadInput: if it cannot be written.
    """
    document = case.to_json()
    stem = case.expect.violates[0]
    for number in count(1):
        path = directory / (f"{stem}.json" if number == 1 else f"{stem}-{number}.json")
        if not path.exists():
            write_document(path, document)
            return path
        try:
            if read_document(path) == document:
                return path
        except BadInput:
            continue
    raise AssertionError("unreachable: there is always a next number")


def distinct_cases(findings: Iterable[Finding]) -> list[tuple[Case, list[Finding]]]:
    """The cases of ``findings``, each once with all that it breaks, and the findings it stands for; the shortest first."""
    together: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        case = finding.case
        together.setdefault((case.engine, repr(case.actions)), []).append(finding)
    ordered = sorted(together.values(), key=lambda group: group[0].stem + group[0].cycle)
    return [
        (evolve(group[0].case, expect=Expectation(violates=tuple(finding.invariant for finding in group))), group)
        for group in ordered
    ]
