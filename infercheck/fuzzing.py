"""The command ``fuzz``: the general state machine, and what it found as a story and a case file."""

from __future__ import annotations

from pathlib import Path

from infercheck.exploring import found_story
from infercheck.found import DIRECTORY, write_found
from infercheck.output import EXIT_CODES, print_json, print_lines, progress_line
from invariants.framework import known_ids
from model import defects as catalogue
from model.errors import BadInput, shown
from strategies.machine import FuzzResult, Tally, fuzz


def fuzz_engine(
    *,
    scheduler: str,
    defects: tuple[str, ...],
    examples: int,
    steps: int,
    speculation: bool | None,
    ignored: tuple[str, ...],
    seconds: float | None,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> int:
    """Fuzz, print what was found, write it as a case, and give the exit code.

    Raises:
        BadInput: for an unknown defect or invariant.
    """
    catalogue.resolve(defects, scheduler, "--defect")
    for id_ in ignored:
        if id_ not in known_ids():
            raise BadInput("--ignore", shown(id_), ", ".join(sorted(known_ids())))
    with progress_line("fuzzing") as tell:
        result = fuzz(
            scheduler,
            defects=defects,
            examples=examples,
            seed_value=seed,
            steps=steps,
            speculation=speculation,
            ignored=ignored,
            seconds=seconds,
            progress=lambda tally: tell(_counts(tally)),
        )
    directory = out or (None if as_json else DIRECTORY)
    file = write_found(result.failure.case, directory) if result.failure is not None and directory else None
    if as_json:
        print_json(result.to_json())
    else:
        print_lines(_words(result, examples))
        if result.failure is not None and file is not None:
            print_lines(["", *found_story(result.failure.case, file)])
    return EXIT_CODES[result.verdict]


def _counts(tally: Tally) -> str:
    return f"{tally.examples:,} runs, {tally.rules:,} actions"


def _words(result: FuzzResult, asked: int) -> list[str]:
    rate = result.rules / result.seconds if result.seconds else 0.0
    amount = f"{result.examples:,} runs, {result.rules:,} actions in {result.seconds:.1f} s ({rate:,.0f} a second)"
    if result.verdict == "violated":
        return [f"violated: run {result.found_after} broke something; {amount}, shrinking included"]
    if result.verdict == "unknown":
        return [f"unknown: nothing broke, but it was out of time or interrupted before {asked:,} runs; {amount}"]
    vacuous = [id_ for id_ in known_ids() if not result.exercised.get(id_)]
    lines = [f"holds: {amount}"]
    return lines + ([f"never exercised: {', '.join(vacuous)}"] if vacuous else [])
