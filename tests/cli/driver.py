"""Calling the command line: in this process, or as a program of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from infercheck.cli import main

REPOSITORY = Path(__file__).parents[2]
FINDING_9 = "speculative-terminal-block"

ENGINE: dict[str, Any] = {"scheduler": "vllm", "block_size": 4, "num_blocks": 2, "speculation": {"draft_tokens": 1}}
ACTIONS: list[dict[str, Any]] = [{"submit": "r", "prompt": [["A", 8]], "output": 1}, {"drain": 50}]
CASE: dict[str, Any] = {"infercheck": 1, "title": "Exact capacity", "engine": ENGINE, "actions": ACTIONS}
BOX: dict[str, Any] = {
    "infercheck": 1,
    "engine": {**ENGINE, "num_blocks": {"from": 1, "to": 2}},
    "workload": {"requests": [{"prompt": {"from": 1, "to": 8}, "output": [0, 1, 2]}]},
}
ROW: dict[str, Any] = {"timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]}


def with_defect(document: dict[str, Any], **engine: Any) -> dict[str, Any]:
    """A case or box with finding 9 in its engine."""
    return {**document, "engine": {**document["engine"], "defects": [FINDING_9], **engine}}


def call(*arguments: object) -> Result:
    """Run ``infercheck`` here."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def call_json(*arguments: object) -> tuple[int, Any]:
    """Run ``infercheck … --json`` here: exit code and document."""
    result = call(*arguments, "--json")
    assert result.stderr == ""
    return result.exit_code, json.loads(result.stdout)


def program(*arguments: object, cwd: Path) -> subprocess.Popen[str]:
    """Start ``infercheck`` as a program of its own."""
    command = [sys.executable, "-c", "from infercheck.cli import main; main()", *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def written(path: Path, document: object) -> Path:
    """A document, or text as it is, in a file."""
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path
