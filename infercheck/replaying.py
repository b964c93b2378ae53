"""The command ``replay``: a trace through one engine, every action judged."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from explorer.findings import Verdict
from infercheck.output import EXIT_CODES, print_json, print_lines, progress_line
from infercheck.story import broken, replay_story
from model.config import EngineConfig
from model.errors import BadInput
from model.replay import config as formats
from model.replay.config import ReplayConfig
from model.replay.loop import Progress
from regressions.files import in_file
from regressions.moments import COSTS
from regressions.replays import TOLD, WatchedReplay, watch_replay

FORMATS = tuple(name for name in formats.FORMATS if name != formats.SYNTHETIC)
"""Formats that come as a file."""

QUEUED_PER_SLOT = 2
"""Requests in the engine for each of its slots, when they come as there is room: as many wait as run."""


def replay_trace(
    trace: Path,
    *,
    format_: str,
    scheduler: str,
    block_size: int,
    num_blocks: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    max_output: int | None,
    max_rows: int | None,
    draft_tokens: int | None,
    defects: tuple[str, ...],
    arrivals: bool,
    as_json: bool,
) -> int:
    """Replay a trace, print what came out, and give the exit code.

    Raises:
        BadInput: for a trace that cannot be used (naming the file and the line), or an engine that cannot be built.
    """
    options: dict[str, Any] = {
        "block_size": block_size,
        "num_blocks": num_blocks,
        "max_num_seqs": max_num_seqs,
        "chunked_prefill_size" if scheduler == "sglang" else "max_num_batched_tokens": max_num_batched_tokens,
        "speculation": {"draft_tokens": draft_tokens} if draft_tokens else None,
        "defects": list(defects),
    }
    engine = EngineConfig(scheduler, **options)
    config = ReplayConfig(
        format=format_,
        file=str(trace),
        block_size=block_size,
        mode="trace" if arrivals else {"concurrency": QUEUED_PER_SLOT * max_num_seqs},
        max_output_tokens=max_output,
        max_rows=max_rows,
    )
    began = time.perf_counter()
    with progress_line("replaying") as tell:
        try:
            watched = watch_replay(config, engine, keep=TOLD, progress=lambda so_far: tell(_counts(so_far)))
        except BadInput as error:
            raise in_file(error, trace) from None
    seconds = time.perf_counter() - began
    verdict = Verdict.of(found=bool(watched.violations), complete=watched.incomplete is None)
    if as_json:
        print_json(_result(watched, verdict, seconds))
    else:
        print_lines(_words(watched, verdict, seconds))
    return EXIT_CODES[verdict]


def _counts(so_far: Progress) -> str:
    return f"{so_far.ended:,} of {so_far.arrived:,} requests ended, {so_far.passes:,} passes, {so_far.tokens:,} tokens"


def _result(watched: WatchedReplay, verdict: Verdict, seconds: float) -> dict[str, Any]:
    lasso = watched.lasso
    return {
        "verdict": str(verdict),
        "stopped": watched.result.stopped,
        "violations": [
            {"invariant": broken.invariant, "at": broken.at, "message": broken.message} for broken in watched.violations
        ],
        "lasso": None if lasso is None else {"kind": lasso.kind, "stem": lasso.stem, "cycle": lasso.cycle},
        "costs": {**dict.fromkeys(COSTS, 0), **watched.result.costs},
        "report": dict(watched.result.report),
        "exercised": dict(watched.exercised),
        "not_observable": list(watched.not_observable),
        "seconds": round(seconds, 3),
    }


def _words(watched: WatchedReplay, verdict: Verdict, seconds: float) -> list[str]:
    result, report = watched.result, watched.result.report
    ended = f"{report['completed_count']:,} completed, {report['rejected_count']:,} refused of {len(result.arrivals):,} requests"
    judged = sum(watched.exercised.values())
    lines = [
        f"{verdict}: {ended}; {report['passes']:,} passes, {report['preemptions']:,} preemptions, in {seconds:.1f} s",
        f"invariants met their subject {judged:,} times, {len(watched.violations):,} violations",
    ]
    if watched.incomplete is not None:
        lines.append(f"stopped before the end: {watched.incomplete}")
    for engine in watched.engines:
        if engine.monitor.violations:
            lines.extend(["", *replay_story(list(engine.moments), engine.config, engine.monitor.progress.lasso)])
    if watched.violations:
        lines.extend(["", *broken(watched.violations)])
    return lines
