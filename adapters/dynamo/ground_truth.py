"""The findings of aisimulate #285 on released binaries: which of them each release shows.

Releases 1.5 stand before the fix of findings 1 to 8, 1.6 behind it; finding 9 is in both, and 1.6 bounds finding 10. So
they are ground truth for what this project looks for. Findings 2 and 4 cannot be reached through the replay of the wheel.

Schedules are judged by the invariants (``adapters.dynamo.judge``). Costs are compared as CPU time of N and 2N, memory as peak
resident size against a control order; each of those runs in a process of its own (``adapters.dynamo.trigger``). Under glibc large
blocks are made to go back to the system when they are freed, since otherwise a peak shows what was ever used.

Two environments, one release each, without their dependencies::

    python3.11 -m venv old && old/bin/pip install --no-deps ai-dynamo-runtime==1.5.1
    python3.11 -m venv new && new/bin/pip install --no-deps ai-dynamo-runtime==1.6.1
    infercheck ground-truth --python old/bin/python --python new/bin/python
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from attrs import frozen

from adapters.dynamo.run import run_judged
from adapters.dynamo.wheel import EngineError, Wheel
from adapters.workload import TimedRequest, Workload
from model.config import NANOSECONDS_PER_MS, EngineConfig, Speculation, Timing
from model.requests import Prompt, RequestSpec

TRIGGER = Path(__file__).with_name("trigger.py")
FINDINGS = (1, 3, 5, 6, 7, 8, 9, 10)
"""Those that can be reached through the replay of the wheel."""
EXPECTED = {"1.5": frozenset({1, 3, 5, 6, 7, 8, 9}), "1.6": frozenset({9, 10})}
"""Findings that a minor release shows."""
QUADRATIC = 3.0
"""CPU time of 2N over that of N: 2 when linear, 4 when quadratic."""
RESTORES_MOST = 4
"""Disk reads of a restore through a host tier that is too small, over those through one that is not."""
SECONDS_MAX = 300.0


@frozen
class Trial:
    """One finding on one release.

    Attributes:
        finding: its number.
        title: what is looked at.
        shown: the release has it; None where the release cannot be asked.
        figure: what was measured.
    """

    finding: int
    title: str
    shown: bool | None
    figure: str


@frozen
class GroundTruth:
    """All trials on one release."""

    release: str
    trials: tuple[Trial, ...]

    @property
    def shown(self) -> frozenset[int]:
        """Numbers of the findings that the release has."""
        return frozenset(trial.finding for trial in self.trials if trial.shown)

    @property
    def expected(self) -> frozenset[int] | None:
        """Numbers of the findings that it is known to have; None for a release that nothing is known of."""
        return EXPECTED.get(".".join(self.release.split(".")[:2]))


def ground_truth(
    python: str, *, findings: Iterable[int] = FINDINGS, tell: Callable[[Trial], None] = lambda trial: None
) -> GroundTruth:
    """Try findings on the release that ``python`` has.

    Args:
        python: an interpreter with the wheel.
        findings: numbers of those to try.
        tell: called with each trial as it is done.

    Raises:
        WheelMissing: if the interpreter has no wheel.
        UnknownRelease: if it has one that the adapter does not know.
        EngineError: if a workload cannot be run.
    """
    wanted = frozenset(findings)
    trials: list[Trial] = []
    with Wheel(python) as wheel:
        for number in FINDINGS:
            if number in wanted:
                trials.append(_trial(number, wheel))
                tell(trials[-1])
        return GroundTruth(wheel.release.version, tuple(trials))


def _trial(number: int, wheel: Wheel) -> Trial:
    python = wheel.python
    if number in SCHEDULES:
        return _schedule(number, wheel)
    if number == 5:
        return _cost(python, 5, "CPU time of a queued burst", "queued_burst", 2000)
    if number == 6:
        return _cost(python, 6, "CPU time of sparse sessions", "sparse_sessions", 16_000)
    if number == 7:
        title = "memory of ended histories, against all alive"
        return _memory(python, 7, title, "histories_in_turn", "histories_at_once", 200, 0.5)
    if number == 8:
        return _memory(python, 8, "memory of splits, against the other order", "ascending_splits", "descending_splits", 1024, 1.5)
    return _restores(wheel)


def _schedule(number: int, wheel: Wheel) -> Trial:
    title, id_, config, workload = SCHEDULES[number]
    seen, judgement = run_judged(config, workload, wheel)
    messages = [violation.message for violation in judgement.violations if violation.invariant == id_]
    return Trial(number, title, bool(messages), messages[0] if messages else f"{seen.outcome}, nothing broken")


def _restores(wheel: Wheel) -> Trial:
    title = "disk reads of one restore"
    if not wheel.release.mapping:
        return Trial(10, title, None, "the release has no tiers")
    reads = [_measure(wheel.python, "restores", blocks)["g3_offload"]["read"]["submitted_jobs"] for blocks in (1, 2)]
    figure = f"{reads[0]} disk reads for two blocks through a host tier of one, {reads[1]} through one of two"
    return Trial(10, title, reads[0] > RESTORES_MOST * reads[1], figure)


def _cost(python: str, finding: int, title: str, workload: str, n: int) -> Trial:
    once, twice = (_measure(python, workload, size)["cpu_seconds"] for size in (n, 2 * n))
    ratio = twice / once
    return Trial(finding, title, ratio > QUADRATIC, f"{once:.2f} s for {n:,}, {twice:.2f} s for {2 * n:,}: times {ratio:.1f}")


def _memory(python: str, finding: int, title: str, workload: str, control: str, n: int, most: float) -> Trial:
    """``most``: the share of the control's memory that is right at most."""
    used, usual = (_measure(python, name, n)["grown_mb"] for name in (workload, control))
    return Trial(finding, title, used > most * usual, f"{used:.0f} MB, control {usual:.0f} MB")


def _measure(python: str, workload: str, n: int) -> dict[str, Any]:
    """One run of the trigger in a process of its own."""
    environment = {**os.environ, "DYN_LOG": "error", "MALLOC_MMAP_THRESHOLD_": "131072"}
    command = [python, str(TRIGGER), workload, str(n)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=SECONDS_MAX, check=False)
    if done.returncode:
        raise EngineError(f"{workload} fails on {python}: {done.stderr.strip().splitlines()[-1:]}")
    measured = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(measured, dict)
    return measured


def _timed(id_: str, prompt: int, output: int, arrival_ms: int = 0) -> TimedRequest:
    return TimedRequest(RequestSpec(id_, Prompt.of_streams([(id_, prompt)]), output), arrival_ms * NANOSECONDS_PER_MS)


_FIXED = Timing(prefill_ms=10, prefill_ms_per_token=0, decode_ms=2)
SCHEDULES: dict[int, tuple[str, str, EngineConfig, Workload]] = {
    1: (
        "prompts of 4 and 8 tokens, a chunk budget of 8",
        "work-conservation",
        EngineConfig(scheduler="sglang", block_size=4, num_blocks=64, chunked_prefill_size=8, timing=_FIXED),
        Workload([_timed("a", 4, 1), _timed("b", 8, 1)]),
    ),
    3: (
        "accept length of a pass that prefills and decodes",
        "accept-length",
        EngineConfig(scheduler="vllm", block_size=4, num_blocks=16, max_num_batched_tokens=16, timing=_FIXED),
        Workload([_timed("a", 4, 2), _timed("b", 4, 1, arrival_ms=5)]),
    ),
    9: (
        "speculation, a request that fits the cache exactly",
        "no-livelock",
        EngineConfig(
            scheduler="vllm",
            block_size=4,
            num_blocks=2,
            max_num_batched_tokens=16,
            prefix_caching=False,
            speculation=Speculation(1),
            timing=_FIXED,
        ),
        Workload([_timed("a", 8, 1)]),
    ),
}
"""By finding: what is looked at, the invariant it breaks, and the case."""
