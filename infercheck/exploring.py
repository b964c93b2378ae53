"""The command ``explore``: boxes through the explorer, what was found as stories and case files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from explorer.boxes import Box, SweepResult, sweep
from infercheck.found import DIRECTORY, distinct_cases, write_found
from infercheck.output import EXIT_CODES, print_json, print_lines, print_table, process_pool, progress_line, table, worst
from infercheck.story import story
from model.case import Case
from regressions.runner import run_case


def explore_boxes(boxes: Sequence[tuple[Path, Box]], workers: int, out: Path | None, as_json: bool) -> int:
    """Explore boxes, print what was found, write it as cases, and give the exit code."""
    results = []
    with process_pool(workers) as executor, progress_line("exploring") as tell:
        for file, box in boxes:
            results.append((file, explore_box(file.name, box, executor, workers, tell)))
    if as_json:
        documents = [result.to_json() for _, result in results]
        print_json(documents[0] if len(boxes) == 1 else documents)
    else:
        rows = table("box", "verdict", "#geometries", "#states", "#transitions", "#depth", "#seconds")
        for file, result in results:
            finished = f"{result.finished} of {result.geometries}" if result.unknown else str(result.geometries)
            counts = (f"{result.states:,}", f"{result.transitions:,}", str(result.depth), f"{result.seconds:.1f}")
            rows.add_row(file.name, result.verdict, finished, *counts)
        print_table(rows)
        for file, result in results:
            print_lines(unknown_lines(file.name, result))
    directory = out or (None if as_json else DIRECTORY)
    for _, result in results:
        if result.findings and directory:
            tell_findings(result, directory, quiet=as_json)
    return worst([EXIT_CODES[result.verdict] for _, result in results])


def explore_box(name: str, box: Box, executor: Executor | None, workers: int, tell: Callable[[str], None]) -> SweepResult:
    """Explore one box, telling how far it is."""

    def progress(so_far: SweepResult) -> None:
        seen = so_far.finished + len(so_far.unknown)
        tell(f"{name}, {seen} of {so_far.geometries} geometries, {so_far.states:,} states, {len(so_far.findings)} findings")

    return sweep(box, executor=executor, ahead=2 * workers, progress=progress)


def tell_findings(result: SweepResult, out: Path, *, quiet: bool) -> None:
    """Write the smallest case of each broken invariant, and unless ``quiet`` tell the story of the smallest of all."""
    cases = distinct_cases(result.smallest().values())
    files = [write_found(case, out) for case, _ in cases]
    if quiet:
        return
    geometries = Counter(finding.invariant for finding in result.findings)
    rows = table("broken", "kind", "#stem", "#cycle", "#geometries", "case file")
    for (_, findings), file in zip(cases, files, strict=True):
        for finding in findings:
            count = geometries[finding.invariant]
            rows.add_row(finding.invariant, finding.kind, str(finding.stem), str(finding.cycle), str(count), str(file))
    print_lines([""])
    print_table(rows)
    print_lines(["", "The shortest of them:", "", *found_story(cases[0][0], files[0])])


def found_story(case: Case, file: Path) -> list[str]:
    """The story of a case that was found, and how to see it again."""
    return [*story(run_case(case)), "", f"Case file: {file}", f"Run it again: infercheck run {file}"]


def unknown_lines(name: str, result: SweepResult) -> list[str]:
    """Why geometries of a box were not finished, with their number."""
    reasons = Counter(reason for _, reason in result.unknown)
    return [f"{name}: {count} of {result.geometries} geometries unknown: {reason}" for reason, count in reasons.items()]
