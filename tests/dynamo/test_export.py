from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.cases import case_of
from adapters.dynamo.export import export
from adapters.dynamo.wheel import Wheel
from model.case import Case
from model.config import Speculation
from model.errors import BadInput
from tests.dynamo.support import arriving, sglang, vllm

FINDING_9 = case_of(
    vllm(4, 2, speculation=Speculation(1)),
    arriving((0, 8, 1)),
    title='a title with "quotes" and \\backslashes',
    violates=("no-livelock",),
)


def test_trace_configurations_and_script_are_written(tmp_path: Path) -> None:
    written = export(FINDING_9, tmp_path / "new")
    assert [path.name for path in written] == ["trace.jsonl", "engine.json", "engine-1.5.json", "show.py"]
    assert json.loads(written[0].read_text())["input_length"] == 8
    assert json.loads(written[1].read_text())["engine"]["aic_nextn"] == 1
    assert json.loads(written[2].read_text())["engine_type"] == "vllm"


def test_the_script_imports_the_standard_library_and_the_wheel_alone(tmp_path: Path) -> None:
    tree = ast.parse(export(FINDING_9, tmp_path)[-1].read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) == {"dynamo"}


def test_what_an_older_release_cannot_be_told_leaves_its_configuration_out(tmp_path: Path) -> None:
    case = case_of(sglang(4, 16, prefill_decode_interval=1), arriving((0, 4, 1)))
    assert [path.name for path in export(case, tmp_path)] == ["trace.jsonl", "engine.json", "show.py"]


def test_nothing_is_written_for_a_case_that_cannot_be_told(tmp_path: Path) -> None:
    case = Case(vllm(4, 2, role="prefill"), replay=FINDING_9.replay)
    with pytest.raises(BadInput, match=r"engine\.role"):
        export(case, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_script_shows_the_fault_with_the_wheel_alone(wheel: Wheel, tmp_path: Path) -> None:
    script = export(FINDING_9, tmp_path)[-1]
    shown = subprocess.run([wheel.python, str(script)], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert f"ai-dynamo-runtime {wheel.release.version}" in shown.stdout
    assert "0 of 1 requests completed" in shown.stdout
    assert shown.stdout.count("prefill 1 (8 tokens), decode 0, queued 0 + 1") == 8
    assert shown.stderr == ""
