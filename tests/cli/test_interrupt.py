"""Ctrl-C: what was found so far is printed, the exit code is 3, and no process is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.driver import BOX, CASE, REPOSITORY, ROW, with_defect, written

LARGE_BOX = {**BOX, "workload": {"requests": [{"prompt": {"from": 1, "to": 8}, "output": {"from": 0, "to": 2}, "count": 2}]}}
LONG_CASE = {**CASE, "actions": [{"advance": 1}] * 5_000}
LONG_TRACE = "\n".join(json.dumps({**ROW, "hash_ids": [2 * number, 2 * number + 1]}) for number in range(2_000))

APPLY = "model.paged.engine:PagedEngine.apply"
GEOMETRIES_DONE = "explorer.boxes:_add"

JOBS: list[tuple[str, int, str, list[Any]]] = [
    # function, calls until the interrupt, command, arguments
    (APPLY, 1_000, "run", ["case.json"]),
    (APPLY, 1_000, "explore", ["box.json", "--workers", 1]),
    (GEOMETRIES_DONE, 2, "explore", ["box.json", "--workers", 2]),
    (APPLY, 2_000, "fuzz", ["--examples", 1_000_000]),
    (APPLY, 300, "replay", ["trace.jsonl", "--block-size", 4, "--num-blocks", 50]),
    (APPLY, 100, "check", ["--workers", 1]),
    (APPLY, 4_000, "check", ["--workers", 1, "--no-boxes"]),
    (GEOMETRIES_DONE, 2, "check", ["--workers", 2]),
]


def interrupted(target: str, calls: int, *arguments: object, cwd: Path) -> tuple[int, str, str]:
    """Run a command that is interrupted on the way: exit code, and what it printed."""
    command = [sys.executable, "-m", "tests.cli.interrupting", target, str(calls), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    # This returns once nobody holds the pipes any more, so no worker process is left either.
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("target", "calls", "command", "arguments"), JOBS, ids=[f"{row[2]} {row[3]}" for row in JOBS])
def test_an_interrupted_job_prints_what_it_has_and_is_unknown(
    target: str, calls: int, command: str, arguments: list[Any], directory: Path
) -> None:
    written(directory / "case.json", LONG_CASE)
    written(directory / "box.json", LARGE_BOX)
    written(directory / "trace.jsonl", LONG_TRACE)
    code, stdout, stderr = interrupted(target, calls, command, *arguments, "--json", cwd=directory)
    assert stderr == ""
    assert code == 3
    assert json.loads(stdout)["verdict"] == "unknown"


def test_what_an_interrupted_exploration_has_found_counts(directory: Path) -> None:
    written(directory / "box.json", with_defect(LARGE_BOX))
    code, stdout, stderr = interrupted(GEOMETRIES_DONE, 40, "explore", "box.json", "--workers", 1, cwd=directory)
    assert (code, stderr) == (1, "")
    assert "geometries unknown: not reached: interrupted" in stdout
    assert list((directory / "infercheck-found").iterdir())
