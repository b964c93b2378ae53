"""The command ``check``: all stored cases, the small boxes, and fuzzing for the rest of the time.

Cases and boxes are exhausted, so one of them that meets the limit on time is unknown. Fuzzing is never exhaustive: it is made of
rounds with seeds of their own, and the time decides how many of them there are and where the last one ends.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from pathlib import Path
from typing import Any

from attrs import define, evolve, field

from explorer.boxes import SweepResult, read_box
from explorer.findings import Verdict
from infercheck.exploring import explore_box, found_story, unknown_lines
from infercheck.found import DIRECTORY, distinct_cases, write_found
from infercheck.output import EXIT_CODES, print_json, print_lines, print_table, process_pool, progress_line, table
from infercheck.running import exit_code, outcome, run_file
from invariants.framework import known_ids
from model.case import Case
from model.defects import complete
from regressions.files import STORED_BOXES, STORED_CASES, json_files, load, load_case
from regressions.runner import INTERRUPTED, CaseResult
from strategies.configs import OPTIONS
from strategies.machine import FuzzResult, fuzz

BOX_SHARE = 0.8
"""Of the time that is left for boxes and fuzzing, the part that boxes may use."""

ROUND_EXAMPLES = 100
"""Runs of a round of fuzzing."""

LEAST_SECONDS = 1.0
"""Of a round that is due although the time is up."""

ROUNDS = 1_000
"""Rounds of a seed and scheduler, at most, so that those of two seeds differ."""


@define
class Outcome:
    """What the main job has shown so far.

    Attributes:
        cases: stored cases and their results.
        boxes: boxes by file and their results.
        fuzzed: results of rounds by scheduler.
        interrupted: it was stopped from outside.
        seconds: elapsed time.
    """

    cases: list[tuple[Path, CaseResult]] = field(factory=list)
    boxes: list[tuple[Path, SweepResult]] = field(factory=list)
    fuzzed: dict[str, list[FuzzResult]] = field(factory=dict)
    interrupted: bool = False
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """Violated when anything broke or was not met; else unknown when anything is."""
        verdicts = [result.verdict for _, result in self.boxes]
        verdicts += [fuzz_verdict(rounds) for rounds in self.fuzzed.values()]
        codes = [exit_code(result) for _, result in self.cases] + [EXIT_CODES[verdict] for verdict in verdicts]
        broken = EXIT_CODES[Verdict.VIOLATED] in codes
        return Verdict.of(found=broken, complete=not self.interrupted and EXIT_CODES[Verdict.UNKNOWN] not in codes)

    @property
    def exercised(self) -> dict[str, int]:
        """How often each invariant met its subject, over everything."""
        total: Counter[str] = Counter(dict.fromkeys(known_ids(), 0))
        counts = [result.exercised for _, result in self.cases] + [result.exercised for _, result in self.boxes]
        counts += [result.exercised for rounds in self.fuzzed.values() for result in rounds]
        for exercised in counts:
            total.update({id_: count for id_, count in exercised.items() if id_ in total})
        return dict(total)

    def reproduced(self) -> dict[str, int]:
        """For each defect and variant, the met cases that show it."""
        shown = {id_: 0 for defect in complete().values() for id_ in defect.ids()}
        for _, result in self.cases:
            if result.met and result.violations:
                for id_ in result.case.engine.defects:
                    shown[id_] += 1
        return shown

    def found(self) -> list[Case]:
        """A case for everything that boxes and fuzzing have broken, each once."""
        cases = [case for _, result in self.boxes for case, _ in distinct_cases(result.smallest().values())]
        failures = [result.failure for rounds in self.fuzzed.values() for result in rounds if result.failure is not None]
        return cases + [failure.case for failure in failures]


def fuzz_verdict(rounds: list[FuzzResult]) -> Verdict:
    """Violated when any round broke something; unknown when not a single run was made."""
    return Verdict.of(
        found=any(result.failure is not None for result in rounds), complete=any(result.examples for result in rounds)
    )


def check(
    *,
    seconds: float,
    seed: int,
    workers: int,
    cases: bool,
    boxes: bool,
    fuzzing: bool,
    out: Path | None,
    as_json: bool,
) -> int:
    """Do the main job, print what came out, write what was found as cases, and give the exit code."""
    began = time.perf_counter()
    deadline = began + seconds
    job = Outcome()
    with process_pool(workers) as executor, progress_line("checking") as tell:
        try:
            if cases:
                _run_cases(job, tell)
            if boxes and not job.interrupted:
                _explore_boxes(job, executor, workers, deadline, tell)
            if fuzzing and not job.interrupted:
                _fuzz(job, executor, workers, seed, deadline, tell)
        except KeyboardInterrupt:
            job.interrupted = True
    job.seconds = time.perf_counter() - began
    directory = out or (None if as_json else DIRECTORY)
    found = [(case, write_found(case, directory)) for case in job.found()] if directory else []
    if as_json:
        print_json(_result(job))
    else:
        _print(job, found)
    return EXIT_CODES[job.verdict]


def _run_cases(job: Outcome, tell: Callable[[str], None]) -> None:
    files = json_files([STORED_CASES])
    for number, file in enumerate(files):
        tell(f"case {number + 1} of {len(files)}")
        job.cases.append((file, run_file(file, load_case(file))))
        if job.cases[-1][1].reason == INTERRUPTED:
            job.interrupted = True
            return


def _explore_boxes(job: Outcome, executor: Executor | None, workers: int, deadline: float, tell: Callable[[str], None]) -> None:
    until = time.perf_counter() + BOX_SHARE * (deadline - time.perf_counter())
    for file in json_files([STORED_BOXES]):
        box = load(file, read_box)
        left = max(until - time.perf_counter(), 0.1)
        limit = min(left, box.limits.seconds or left)
        box = evolve(box, limits=evolve(box.limits, seconds=limit))
        result = explore_box(file.stem, box, executor, workers, tell)
        job.boxes.append((file, result))
        if any(INTERRUPTED in reason for _, reason in result.unknown):
            job.interrupted = True
            return


def _fuzz(job: Outcome, executor: Executor | None, workers: int, seed: int, deadline: float, tell: Callable[[str], None]) -> None:
    """Rounds for every scheduler in turn, until the time is up or something broke; at least one of each."""
    for scheduler in OPTIONS:
        job.fuzzed[scheduler] = []
    pending: dict[Future[FuzzResult], str] = {}
    rounds = _rounds(seed)
    started = 0
    while True:
        results = [result for rounds_of_one in job.fuzzed.values() for result in rounds_of_one]
        tell(f"fuzzing, {sum(result.examples for result in results):,} runs")
        over = started >= len(OPTIONS) and time.perf_counter() > deadline
        over = over or any(result.failure is not None for result in results)
        while not over and len(pending) < workers:
            scheduler, number = next(rounds)
            started += 1
            seconds = max(deadline - time.perf_counter(), LEAST_SECONDS)
            if executor is None:
                job.fuzzed[scheduler].append(_round(scheduler, number, seconds))
                break
            pending[executor.submit(_round, scheduler, number, seconds)] = scheduler
        if pending:
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                job.fuzzed[pending.pop(future)].append(future.result())
        elif over:
            return


def _rounds(seed: int) -> Iterator[tuple[str, int]]:
    """Scheduler and seed of every round."""
    for number in range(ROUNDS):
        for scheduler in OPTIONS:
            yield scheduler, seed * ROUNDS + number


def _round(scheduler: str, seed: int, seconds: float) -> FuzzResult:
    began = time.perf_counter()
    result = fuzz(scheduler, examples=ROUND_EXAMPLES, seed_value=seed, seconds=seconds)
    if result.verdict == Verdict.UNKNOWN and time.perf_counter() - began < seconds:
        # Neither broken, nor done, nor out of time: it was interrupted.
        raise KeyboardInterrupt
    return result


def _result(job: Outcome) -> dict[str, Any]:
    exercised = job.exercised
    return {
        "verdict": str(job.verdict),
        "interrupted": job.interrupted,
        "seconds": round(job.seconds, 3),
        "cases": [
            {"file": str(file), "verdict": str(result.verdict), "met": result.met, "mismatches": list(result.mismatches)}
            for file, result in job.cases
        ],
        "defects": job.reproduced(),
        "boxes": [{"file": str(file), **result.to_json()} for file, result in job.boxes],
        "fuzz": [
            {
                "scheduler": scheduler,
                "verdict": str(fuzz_verdict(rounds)),
                "rounds": len(rounds),
                "examples": sum(result.examples for result in rounds),
                "rules": sum(result.rules for result in rounds),
                "failures": [result.to_json() for result in rounds if result.failure is not None],
            }
            for scheduler, rounds in job.fuzzed.items()
        ],
        "exercised": exercised,
        "never_exercised": [id_ for id_, count in exercised.items() if not count],
    }


def _print(job: Outcome, found: list[tuple[Case, Path]]) -> None:
    for file, result in job.cases:
        if not result.met:
            print_lines(outcome(file, result, told=True))
    for number, (case, file) in enumerate(found):
        print_lines([*(found_story(case, file) if number == 0 else [f"Another case: {file}"]), ""])
    for file, box_result in job.boxes:
        print_lines(unknown_lines(file.stem, box_result))
    rows = table("what", "result", "how much")
    for what, verdict, amount in _rows(job):
        rows.add_row(what, verdict, amount)
    print_table(rows)
    interrupted = " (interrupted)" if job.interrupted else ""
    print_lines(["", f"{job.verdict}{interrupted}, {job.seconds:.1f} s"])


def _rows(job: Outcome) -> Iterator[tuple[str, str, str]]:
    if job.cases:
        met = sum(result.met for _, result in job.cases)
        broken = sum(bool(result.violations) for _, result in job.cases)
        yield (
            "stored cases",
            "met" if met == len(job.cases) else "NOT MET",
            f"{met} of {len(job.cases)}: {broken} break something as they should, {met - broken} hold",
        )
        reproduced = job.reproduced()
        shown = sum(count > 0 for count in reproduced.values())
        yield "defects", "reproduced", f"{shown} of the {len(reproduced)} defects and variants of the catalogue"
    for file, result in job.boxes:
        amount = f"{result.geometries:,} geometries, {result.states:,} states, {result.transitions:,} transitions"
        yield f"box {file.stem}", result.verdict, f"{amount}, {result.seconds:.1f} s"
    for scheduler, rounds in job.fuzzed.items():
        runs, actions = sum(result.examples for result in rounds), sum(result.rules for result in rounds)
        yield f"fuzzing {scheduler}", str(fuzz_verdict(rounds)), f"{runs:,} runs, {actions:,} actions"
    exercised = job.exercised
    vacuous = [id_ for id_, count in exercised.items() if not count]
    judged = len(exercised) - len(vacuous)
    yield "invariants", "exercised", f"{judged} of {len(exercised)}, {sum(exercised.values()):,} times"
    if vacuous:
        yield "", "never", ", ".join(vacuous)
