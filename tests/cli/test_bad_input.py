"""Bad input: the path, what was found, what is allowed; exit code 2; nothing written, and never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.driver import ACTIONS, BOX, CASE, ENGINE, ROW, call, program, written


def case(**parts: Any) -> dict[str, Any]:
    return {**CASE, **parts}


def case_engine(**fields: Any) -> dict[str, Any]:
    return case(engine={**ENGINE, **fields})


def box(**parts: Any) -> dict[str, Any]:
    return {**BOX, **parts}


BAD = [
    # command, document, where, found, allowed
    ("run", case(colour="red"), "colour", "an unknown field", "actions, engine"),
    ("run", case_engine(blocks=2), "engine.blocks", "an unknown field", "num_blocks"),
    ("run", case_engine(num_blocks=-2), "engine.num_blocks", "-2", "an integer ≥ 1"),
    ("run", case(actions=[{"submit": "r", "prompt": ["hello", "world"], "output": 1}]), "actions[0].prompt[0]", "hello", "token"),
    ("run", "{'infercheck': 1}", "line 1, column 2", "'infercheck'", "JSON"),
    ("run", "", "line 1, column 1", "the end of the file", "JSON"),
    ("run", "[]", "the document", "[]", "an object"),
    ("run", case_engine(defects=["no-such-defect"]), "engine.defects[0]", "no-such-defect", "speculative-terminal-block"),
    ("run", case_engine(implementation="other"), "engine.implementation", "other", '"model"'),
    ("run", case(actions=[*ACTIONS[:1], *ACTIONS[:1]]), "actions[1].submit", "'r'", "an id that no live request has"),
    ("run", case(expect={"violates": ["no-sta11"]}), "expect.violates[0]", "no-sta11", "no-stall"),
    ("run", case(actions=[{"step": 1, "accepted": {"r": 2}}]), "actions[0].accepted.r", "2", "from 0 to 1"),
    ("explore", box(workload={"requests": []}), "workload.requests", "no request", "at least one request"),
    ("explore", box(engine={**ENGINE, "num_blocks": {"from": 3, "to": 1}}), "engine.num_blocks.to", "1", "≥ from (3)"),
    ("explore", box(engine={**ENGINE, "num_blocks": [1, 0]}), "engine.num_blocks", "0", "an integer ≥ 1"),
    ("explore", box(limits={"hours": 1}), "limits.hours", "an unknown field", "seconds, states"),
    ("explore", case(), "actions", "an unknown field", "workload"),
    ("replay", "", "E_EMPTY", "no request", "at least one"),
    ("replay", "\n\n", "E_EMPTY", "no request", "at least one"),
    ("replay", "{}", "line 1", "nothing", "a list of ids"),
    ("replay", "not json", "line 1", "not json", "JSON"),
    ("replay", '{"input_length": -1, "output_length": 1, "hash_ids": [1]}', "line 1", "-1", "an integer from 0"),
    ("replay", '{"hash_ids": [1], "output_length": 1}\n\n{"hash_ids": [1]}', "line 3", "nothing", "an integer ≥ 0"),
]


@pytest.mark.parametrize(("command", "document", "where", "found", "allowed"), BAD, ids=[f"{row[0]} {row[2]}" for row in BAD])
def test_bad_input_is_told_by_path_found_and_allowed(
    command: str, document: object, where: str, found: str, allowed: str, directory: Path
) -> None:
    file = written(directory / "input.json", document)
    for arguments in ([], ["--json"]):
        result = call(command, file, *arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("Error: ")
        assert len(result.stderr.splitlines()) == 1
        for words in (str(file), where, found, allowed):
            assert words in result.stderr
        assert isinstance(result.exception, SystemExit)
    assert list(directory.iterdir()) == [file]


def test_one_bad_file_among_good_ones_stops_all_of_them(directory: Path) -> None:
    good = written(directory / "good.json", case())
    bad = written(directory / "bad.json", case(colour="red"))
    result = call("run", good, bad)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "bad.json" in result.stderr


NO_FILE = [("run", "none.json"), ("explore", "none.json"), ("replay", "none.jsonl"), ("run", "empty")]


@pytest.mark.parametrize(("command", "name"), NO_FILE)
def test_a_path_that_names_no_file_is_bad_input(command: str, name: str, directory: Path) -> None:
    (directory / "empty").mkdir()
    result = call(command, name)
    assert result.exit_code == 2
    assert name in result.stderr


WRONG_CALLS = [
    (["run"], "Missing argument"),
    (["run", "--colour"], "No such option"),
    (["sing"], "No such command"),
    (["explore", "box.json", "--workers", "0"], "0 is not in the range x>=1"),
    (["fuzz", "--examples", "many"], "'many' is not a valid integer"),
    (["fuzz", "--scheduler", "fifo"], "'fifo' is not one of"),
    (["check", "--seconds", "0"], "0.0 is not in the range x>0"),
    (["replay", "t.jsonl", "--num-blocks", "-1"], "-1 is not in the range x>=1"),
    (["fuzz", "--defect", "no-such"], "--defect[0]: found 'no-such'"),
    (["fuzz", "--ignore", "no-such"], "--ignore: found 'no-such'"),
]


@pytest.mark.parametrize(("arguments", "told"), WRONG_CALLS, ids=[" ".join(row[0]) for row in WRONG_CALLS])
def test_a_wrong_call_is_bad_input(arguments: list[str], told: str, directory: Path) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert told in result.stderr
    assert list(directory.iterdir()) == []


def test_an_unknown_defect_of_a_replay_is_bad_input(directory: Path) -> None:
    trace = written(directory / "trace.jsonl", ROW)
    result = call("replay", trace, "--defect", "no-such")
    assert result.exit_code == 2
    assert "defects[0]: found 'no-such'" in result.stderr


def test_a_directory_that_cannot_be_written_is_bad_input(directory: Path) -> None:
    written(directory / "taken", "")
    box = written(directory / "box.json", {**BOX, "engine": {**ENGINE, "defects": ["speculative-terminal-block"]}})
    result = call("explore", box, "--workers", 1, "--out", directory / "taken")
    assert result.exit_code == 2
    assert "a file that can be written" in result.stderr


def test_a_program_of_its_own_tells_bad_input_without_a_traceback(directory: Path) -> None:
    file = written(directory / "case.json", case_engine(num_blocks=-2))
    process = program("run", file, cwd=directory)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (2, "")
    assert stderr == f"Error: {file}: engine.num_blocks: found -2; allowed: an integer ≥ 1\n"
