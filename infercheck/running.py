"""The command ``run``: case files through the runner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from infercheck.output import EXIT_CODES, EXIT_HOLDS, EXIT_UNKNOWN, EXIT_VIOLATED, print_json, print_lines, worst
from infercheck.story import story
from model.case import Case
from model.errors import BadInput
from regressions.files import in_file
from regressions.runner import CaseResult, run_case


def run_files(cases: Sequence[tuple[Path, Case]], as_json: bool) -> int:
    """Run cases, print what came out, and give the exit code.

    Raises:
        BadInput: for a case that its engine cannot carry out, naming the file.
    """
    results: list[tuple[Path, CaseResult]] = []
    interrupted = False
    try:
        for file, case in cases:
            results.append((file, run_file(file, case)))
            if results[-1][1].reason == "interrupted":
                break
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        documents = [result.to_json() for _, result in results]
        print_json(documents[0] if len(cases) == 1 and documents else documents)
    else:
        for file, result in results:
            print_lines(outcome(file, result, told=len(cases) == 1 or not result.met))
        if len(cases) > 1:
            print_lines([summary(results, len(cases))])
    codes = [exit_code(result) for _, result in results]
    return worst([*codes, EXIT_UNKNOWN] if interrupted or len(results) < len(cases) else codes)


def run_file(file: Path, case: Case) -> CaseResult:
    """Run one case; its errors name the file.

    Raises:
        BadInput: for a case that its engine cannot carry out.
    """
    try:
        return run_case(case)
    except BadInput as error:
        raise in_file(error, file) from None


def exit_code(result: CaseResult) -> int:
    """0 when the case is met, 3 when it could not be decided, else 1."""
    if result.met:
        return EXIT_HOLDS
    return EXIT_UNKNOWN if EXIT_CODES[result.verdict] == EXIT_UNKNOWN else EXIT_VIOLATED


def outcome(file: Path, result: CaseResult, *, told: bool) -> list[str]:
    """One line on a case, and its story when it is to be told."""
    words = "met" if result.met else "unknown" if exit_code(result) == EXIT_UNKNOWN else "NOT MET"
    lines = [f"{words:<8}{result.verdict:<9} {file}"]
    if told:
        lines.extend(["", f"  {result.case.title}", "", *(f"  {line}" if line else "" for line in story(result))])
        lines.extend(["", f"  Case file: {file}", f"  Run it again: infercheck run {file}", ""])
    return lines


def summary(results: Sequence[tuple[Path, CaseResult]], asked: int) -> str:
    """How many cases were met."""
    met = sum(result.met for _, result in results)
    rest = f" ({asked - len(results)} not run: interrupted)" if len(results) < asked else ""
    return f"{met} of {asked} cases met{rest}"
