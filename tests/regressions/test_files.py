"""Case files on disk: what is found, and what a file that cannot be used is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model.errors import BadInput
from regressions.files import json_files, load_case, read_document, write_document

CASE: dict[str, Any] = {
    "infercheck": 1,
    "engine": {"scheduler": "vllm", "block_size": 4, "num_blocks": 2},
    "actions": [{"submit": "a", "prompt": [1, 2, 3], "output": 1}, {"drain": 5}],
}


def changed(**parts: Any) -> dict[str, Any]:
    """The smallest case with some parts replaced."""
    return {**CASE, **parts}


def engine(**fields: Any) -> dict[str, Any]:
    """The smallest case with some fields of its engine replaced."""
    return changed(engine={**CASE["engine"], **fields})


def refused(path: Path) -> BadInput:
    with pytest.raises(BadInput) as error:
        load_case(path)
    return error.value


UNUSABLE = [
    # document, where, found, allowed
    (changed(extra=1), "extra", "an unknown field", "actions, engine, expect"),
    (engine(num_block=2), "engine.num_block", "an unknown field", "num_blocks"),
    (engine(num_blocks=-1), "engine.num_blocks", "-1", "an integer ≥ 1"),
    (engine(num_blocks=True), "engine.num_blocks", "true", "an integer ≥ 1"),
    (engine(block_size="4"), "engine.block_size", "'4'", "an integer ≥ 1"),
    (engine(scheduler="vlm"), "engine.scheduler", "'vlm'", '"vllm" or "trtllm" or "sglang"'),
    (engine(defects=["no-such"]), "engine.defects[0]", "'no-such'", "speculative-terminal-block"),
    (engine(defects="all"), "engine.defects", "'all'", '"seed" or "upstream"'),
    (engine(speculation={"draft_tokens": 0}), "engine.speculation.draft_tokens", "0", "an integer ≥ 1"),
    (engine(chunked_prefill_size=4), "engine.chunked_prefill_size", "4", "only with scheduler sglang"),
    (changed(infercheck=2), "infercheck", "2", "1, the version of the format"),
    (changed(actions=[]), "actions", "[]", "at least one action"),
    (changed(actions=[{"submit": "a", "prompt": ["x"], "output": 1}]), "actions[0].prompt[0]", "'x'", "token ids ≥ 0"),
    (changed(actions=[{"submit": "a", "prompt": [1], "output": -1}]), "actions[0].output", "-1", "an integer ≥ 0"),
    (changed(actions=[{"step": 0}]), "actions[0].step", "0", "an integer ≥ 1"),
    (changed(actions=[{"advance": -1}]), "actions[0].advance", "-1", "a finite number of milliseconds ≥ 0"),
    (changed(actions=[{"leap": 1}]), "actions[0]", "{'leap': 1}", "submit, cancel, step, advance, drain, handoff"),
    (changed(actions=[{"drain": 1, "to": 2}]), "actions[0].to", "an unknown field", "drain"),
    (changed(expect={"holds": False}), "expect.holds", "false", "true"),
    (changed(expect={"passes": {}}), "expect.passes", "{}", "a list"),
]


@pytest.mark.parametrize(("document", "where", "found", "allowed"), UNUSABLE, ids=[row[1] for row in UNUSABLE])
def test_what_cannot_be_used_is_refused_with_its_file_and_path(
    document: object, where: str, found: str, allowed: str, tmp_path: Path
) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps(document))
    error = refused(file)
    assert error.path == f"{file}: {where}"
    assert error.found == found
    assert allowed in error.allowed


NOT_JSON = [
    ("", "line 1, column 1", "the end of the file"),
    ("not json", "line 1, column 1", "'not json'"),
    ('{\n "infercheck": 1,\n "engine": }', "line 3, column 12", "'}'"),
    ('{"infercheck": 1} {}', "line 1, column 19", "'{}'"),
    ('{"infercheck": NaN}', "a number", "NaN"),
    ('{"infercheck": 1, "infercheck": 1}', "infercheck", "the field twice in one object"),
]


@pytest.mark.parametrize(("text", "where", "found"), NOT_JSON)
def test_text_that_is_not_json_is_refused_with_its_line_and_column(text: str, where: str, found: str, tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_text(text)
    error = refused(file)
    assert error.path == f"{file}: {where}"
    assert error.found == found


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    missing = refused(tmp_path / "none.json")
    assert (missing.path, missing.found) == (str(tmp_path / "none.json"), "no such file or directory")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b'{"title": "\xff"}')
    assert refused(binary).found == "bytes that are not UTF-8 at offset 11"
    assert refused(tmp_path).found == "is a directory"


def test_nesting_beyond_reason_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 200_000)
    assert "nested" in refused(deep).found


def test_a_directory_stands_for_the_json_files_below_it_in_order(tmp_path: Path) -> None:
    names = ["b.json", "a/z.json", "a/y.json", "a/notes.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    found = json_files([tmp_path, tmp_path / "b.json"])
    assert [str(file.relative_to(tmp_path)) for file in found] == ["a/y.json", "a/z.json", "b.json", "b.json"]


def test_paths_that_name_no_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, found in ((tmp_path / "none", "no such file"), (tmp_path / "empty", "a directory without .json files")):
        with pytest.raises(BadInput) as error:
            json_files([path])
        assert (error.value.path, error.value.found) == (str(path), found)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "new" / "case.json"
    write_document(file, CASE)
    assert read_document(file) == CASE
    assert load_case(file).to_json() == {**CASE, "expect": {"holds": True}}


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        write_document(tmp_path, CASE)
    assert error.value.found == "is a directory"
