"""Speed of exploring and fuzzing an engine under every invariant: ``python -m benchmarks.engine``, ``… --json``.

Both are measured on the paged scheduler: exploration on two-request boxes, with and without speculation, caching and
cancellations; fuzzing with the general machine. Each is run once as it is, for the rate, and once with a clock around every
phase, for the shares; what the clocks take themselves is subtracted. Time is processor time of this process, so that figures
mean something on a machine that is busy with other things; even so a busy neighbour on the same core slows everything down, which
the calibration (a plain loop, in millions of additions a second) shows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from explorer.boxes import Box, read_box, sweep
from explorer.findings import Verdict
from invariants.framework import Suite
from invariants.progress import ProgressMonitor
from model.paged.engine import PagedEngine
from strategies.machine import fuzz

AIMS = {"transitions_per_second": 20_000, "rules_per_second": 2_000}

BOX: dict[str, Any] = {
    "infercheck": 1,
    "title": "Two requests that share a prefix, in three or four blocks",
    "engine": {
        "scheduler": "vllm",
        "block_size": [2, 4],
        "num_blocks": [3, 4],
        "max_num_batched_tokens": [3, 8],
        "prefix_caching": [True, False],
        "speculation": [None, {"draft_tokens": 2}],
    },
    "workload": {
        "requests": [{"prompt": 5, "output": [3, 6]}, {"prompt": 4, "output": 5}],
        "shared_prefixes": True,
        "cancel": [False, True],
    },
}

EXAMPLES = 400
"""Runs of the machine."""

Phases = Mapping[str, tuple[type, str]]

EXPLORATION: Phases = {
    "thaw": (PagedEngine, "thaw"),
    "step": (PagedEngine, "apply"),
    "freeze": (PagedEngine, "freeze"),
    "view": (PagedEngine, "view"),
    "invariants (state)": (Suite, "judge_state"),
    "invariants (step)": (Suite, "judge_step"),
}
FUZZING: Phases = {
    **{name: phase for name, phase in EXPLORATION.items() if name not in ("thaw", "freeze")},
    # Freezing is part of it: a recurrence of a state is what progress is judged by.
    "invariants (progress)": (ProgressMonitor, "observe"),
}

Row = dict[str, Any]


class Clocks:
    """Processor seconds by phase, the clocks' own time taken off."""

    def __init__(self) -> None:
        """All at zero."""
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._depth = 0

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` with its time charged to ``name``, unless it runs inside another phase."""
        self.seconds[name] = 0.0
        self.calls[name] = 0
        clock = time.process_time

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return function(*args, **kwargs)
            self._depth = 1
            began = clock()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += clock() - began
                self.calls[name] += 1
                self._depth = 0

        return timed

    @contextmanager
    def on(self, phases: Phases) -> Iterator[None]:
        """Clock the methods of ``phases`` for the time being."""
        kept = {name: getattr(class_, method) for name, (class_, method) in phases.items()}
        for name, (class_, method) in phases.items():
            setattr(class_, method, self.around(name, kept[name]))
        try:
            yield
        finally:
            for name, (class_, method) in phases.items():
                setattr(class_, method, kept[name])

    def shares(self, total: float) -> dict[str, float]:
        """Parts of ``total`` processor seconds, the rest included; they add up to 1."""
        inside, outside = _clock_costs()
        spent = {name: max(seconds - inside * self.calls[name], 0.0) for name, seconds in self.seconds.items()}
        net = total - (inside + outside) * sum(self.calls.values())
        shares = {name: seconds / net for name, seconds in spent.items()}
        shares["rest"] = 1 - sum(shares.values())
        return shares


def _clock_costs(calls: int = 50_000) -> tuple[float, float]:
    """What one clocked call adds inside the measured interval and around it, in seconds."""
    clocks = Clocks()
    timed = clocks.around("nothing", lambda: None)
    began = time.process_time()
    for _ in range(calls):
        timed()
    whole = time.process_time() - began
    inside = clocks.seconds["nothing"]
    return inside / calls, (whole - inside) / calls


def calibrate(additions: int = 3_000_000) -> float:
    """Millions of additions a second in a plain loop: how fast this interpreter on this machine is just now."""
    began = time.process_time()
    total = 0
    for number in range(additions):
        total += number
    return additions / (time.process_time() - began) / 1e6


def measure_exploration(box: Box) -> Row:
    """Transitions a second on a box in which everything holds, and the share of each phase."""
    began = time.process_time()
    result = sweep(box)
    seconds = time.process_time() - began
    if result.verdict != Verdict.HOLDS:
        raise RuntimeError(f"the box is to hold, and is {result.verdict}: {[item.message for item in result.findings[:3]]}")
    clocks = Clocks()
    with clocks.on(EXPLORATION):
        began = time.process_time()
        sweep(box)
        clocked = time.process_time() - began
    return {
        "geometries": result.geometries,
        "states": result.states,
        "transitions": result.transitions,
        "seconds": seconds,
        "transitions_per_second": result.transitions / seconds,
        "shares": clocks.shares(clocked),
    }


def measure_fuzzing(examples: int) -> Row:
    """Rules a second of the general machine on the right engine, and the share of each phase."""
    began = time.process_time()
    result = fuzz(examples=examples)
    seconds = time.process_time() - began
    clocks = Clocks()
    with clocks.on(FUZZING):
        began = time.process_time()
        fuzz(examples=examples)
        clocked = time.process_time() - began
    return {
        "examples": result.examples,
        "rules": result.rules,
        "seconds": seconds,
        "rules_per_second": result.rules / seconds,
        "shares": clocks.shares(clocked),
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the aims are told and never fail the run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help=f"runs of the machine (default {EXAMPLES})")
    options = parser.parse_args(arguments)
    if options.examples < 1:
        parser.error(f"--examples must be at least 1, not {options.examples}")
    row: Row = {
        "calibration_mops": calibrate(),
        "exploration": measure_exploration(read_box(BOX)),
        "fuzzing": measure_fuzzing(options.examples),
        "aims": AIMS,
    }
    print(json.dumps(row, indent=1) if options.json else _table(row))
    return 0


def _table(row: Row) -> str:
    explored, fuzzed = row["exploration"], row["fuzzing"]
    lines = [f"calibration: {row['calibration_mops']:.1f} million additions a second"]
    for name, part, counted, rate in (
        ("exploration", explored, "transitions", "transitions_per_second"),
        ("fuzzing", fuzzed, "rules", "rules_per_second"),
    ):
        lines.append(
            f"{name}: {part[counted]:,} {counted} in {part['seconds']:.1f} s, {part[rate]:,.0f} a second (aim {AIMS[rate]:,})"
        )
        lines.extend(f"  {phase:<22}{share:6.1%}" for phase, share in part["shares"].items())
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
