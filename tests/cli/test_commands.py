"""Every command: exit codes, words, JSON, and the files it writes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from infercheck.cli import main
from regressions.files import STORED_BOXES, STORED_CASES
from tests.cli.driver import ACTIONS, BOX, CASE, ENGINE, FINDING_9, REPOSITORY, ROW, call, call_json, with_defect, written

COMMANDS = sorted(main.commands)


def test_every_command_has_help_with_an_example() -> None:
    assert COMMANDS == ["check", "defects", "explore", "fuzz", "invariants", "replay", "run"]
    for command in COMMANDS:
        result = call(command, "--help")
        assert result.exit_code == 0
        assert f"Example:\n    infercheck {command}" in result.stdout
        assert "--json" in result.stdout
    assert "Example:\n    infercheck check" in call("--help").stdout


def test_the_version_is_told() -> None:
    assert re.fullmatch(r"\S+, version \d+\.\d+\.\d+\n", call("--version").stdout)


# --- run --------------------------------------------------------------------------------------------------------------

RUNS = [
    # case, exit code, verdict, met
    (CASE, 0, "holds", True),
    (with_defect(CASE), 1, "violated", False),
    ({**with_defect(CASE), "expect": {"violates": ["no-livelock"]}}, 0, "violated", True),
    ({**CASE, "expect": {"violates": ["no-livelock"]}}, 1, "holds", False),
    ({**CASE, "actions": [{"submit": "r", "prompt": [1], "output": 5}, {"drain": 2}]}, 3, "unknown", False),
    ({**CASE, "expect": {"final": {"free_blocks": 1}}}, 1, "holds", False),
]


@pytest.mark.parametrize(("document", "code", "verdict", "met"), RUNS)
def test_run_exits_by_whether_the_case_is_met(document: object, code: int, verdict: str, met: bool, directory: Path) -> None:
    file = written(directory / "case.json", document)
    assert call("run", file).exit_code == code
    found, result = call_json("run", file)
    assert (found, result["verdict"], result["met"]) == (code, verdict, met)
    assert list(directory.iterdir()) == [file]


def test_run_prints_the_json_of_the_case_format(directory: Path) -> None:
    _, result = call_json("run", written(directory / "case.json", with_defect(CASE)))
    keys = ["verdict", "met", "violations", "lasso", "passes", "final", "costs", "report", "exercised", "not_observable"]
    assert list(result) == keys
    assert result["violations"][0]["invariant"] == "no-needless-preemption"
    assert set(result["violations"][0]) == {"invariant", "at", "message"}
    assert result["lasso"] == {"kind": "preemption-cycle", "stem": 2, "cycle": 1}


def test_several_cases_give_a_list_and_the_worst_exit_code(directory: Path) -> None:
    good = written(directory / "a.json", CASE)
    unknown = written(
        directory / "b.json", {**CASE, "actions": [*ACTIONS[:1], {"submit": "s", "prompt": [1], "output": 5}, {"drain": 1}]}
    )
    bad = written(directory / "c.json", with_defect(CASE))
    assert call_json("run", good, unknown)[0] == 3
    code, results = call_json("run", directory)
    assert code == 1
    assert [result["verdict"] for result in results] == ["holds", "unknown", "violated"]
    words = call("run", good, unknown, bad).stdout
    assert "1 of 3 cases met" in words
    assert "Unknown: work is left after a drain of 1 passes." in words


def test_the_story_of_a_livelock(directory: Path) -> None:
    file = written(directory / "case.json", with_defect(CASE))
    lines = [line.strip() for line in call("run", file).stdout.splitlines()]
    told = [
        "Engine: vllm: 2 blocks of 4 tokens, speculation with 1 draft token, with defect speculative-terminal-block",
        "1  submit r: prompt of 8 tokens (A:8), output of 1 token",
        "-> waiting r",
        "2  pass: r is admitted, computes 8 tokens",
        "r is preempted: r needs 1 more block for the tokens about to be emitted, 0 free",
        "Stored h1 h2",
        "-> blocks 0 free, 0 active, 2 cached",
        "3  pass: r is admitted again, computes 8 tokens",
        "Removed h2 h1",
        "^  back to the state after step 2: step 3 repeats for ever (preemption cycle)",
        "Broken: servable-finishes (step 3): r can be served and never finishes",
        "Not as expected: expected that everything holds, found a violation of bounded-preemption, no-livelock, "
        "no-needless-preemption, servable-finishes",
        f"Case file: {file}",
        f"Run it again: infercheck run {file}",
    ]
    places = [lines.index(line) for line in told]
    assert places == sorted(places)


def test_the_story_of_a_cycle_of_two_steps_names_both(directory: Path) -> None:
    file = REPOSITORY / "regressions/cases/fifo-preempts-last-ready/two-requests-defect.json"
    assert "back to the state after step 5: steps 6 to 7 repeat for ever (preemption cycle)" in call("run", file).stdout


def test_the_story_of_a_long_run_counts_what_is_alike_and_leaves_out_the_middle(directory: Path) -> None:
    engine = {**ENGINE, "num_blocks": 40, "speculation": None, "prefix_caching": False}
    decode = written(
        directory / "decode.json",
        {**CASE, "engine": engine, "actions": [{"submit": "r", "prompt": [1], "output": 90}, {"drain": 99}]},
    )
    words = call("run", decode).stdout
    assert " 3-90  pass: r computes 1 token, emits 1 token, 88 times" in words
    assert len(words.splitlines()) < 25
    many = [{"submit": f"r{number}", "prompt": [number], "output": 1} for number in range(200)]
    words = call("run", written(directory / "many.json", {**CASE, "engine": engine, "actions": many})).stdout
    assert "…  steps 16 to 185" in words
    assert len(words.splitlines()) < 90


def test_a_case_that_is_met_among_others_takes_one_line(directory: Path) -> None:
    for name in ("a.json", "b.json"):
        written(directory / name, CASE)
    assert call("run", directory).stdout.splitlines() == [
        f"met     holds     {directory}/a.json",
        f"met     holds     {directory}/b.json",
        "2 of 2 cases met",
    ]


# --- explore ----------------------------------------------------------------------------------------------------------


def test_explore_of_a_box_that_holds(directory: Path) -> None:
    file = written(directory / "box.json", BOX)
    code, result = call_json("explore", file, "--workers", 1)
    assert (code, result["verdict"], result["violations"], result["unknown"]) == (0, "holds", [], [])
    assert result["geometries"] == 2 * 8 * 3
    keys = ["verdict", "geometries", "states", "transitions", "depth", "seconds", "violations", "exercised", "unknown"]
    assert list(result) == keys
    words = call("explore", file, "--workers", 1)
    assert words.exit_code == 0
    assert re.search(r"box\.json +holds +48 ", words.stdout)
    assert list(directory.iterdir()) == [file]


def test_explore_writes_what_it_finds_as_cases_that_show_it(directory: Path) -> None:
    file = written(directory / "box.json", with_defect(BOX))
    words = call("explore", file, "--workers", 1)
    assert words.exit_code == 1
    assert "The shortest of them:" in words.stdout
    found = sorted((directory / "infercheck-found").iterdir())
    assert found
    commands = re.findall(r"^Run it again: infercheck (.+)$", words.stdout, re.MULTILINE)
    assert len(commands) == 1
    assert call(*shlex.split(commands[0])).exit_code == 0
    code, results = call_json("run", *found)
    assert code == 0
    broken = {
        violation["invariant"] for result in ([results] if len(found) == 1 else results) for violation in result["violations"]
    }
    assert "no-livelock" in broken


def test_explore_writes_the_same_case_once(directory: Path) -> None:
    file = written(directory / "box.json", with_defect(BOX))
    for _ in range(2):
        call("explore", file, "--workers", 1)
    names = [path.name for path in (directory / "infercheck-found").iterdir()]
    assert not [name for name in names if name.endswith("-2.json")]


def test_explore_as_json_holds_whole_cases_and_writes_only_where_it_is_told(directory: Path) -> None:
    file = written(directory / "box.json", with_defect(BOX))
    code, result = call_json("explore", file, "--workers", 1)
    assert code == 1
    assert list(directory.iterdir()) == [file]
    violation = next(violation for violation in result["violations"] if violation["invariant"] == "no-livelock")
    assert (violation["kind"], violation["stem"], violation["cycle"]) == ("preemption-cycle", 2, 1)
    case = written(directory / "found.json", violation["case"])
    assert call("run", case).exit_code == 0
    call_json("explore", file, "--workers", 1, "--out", directory / "cases")
    assert list((directory / "cases").iterdir())


def test_a_box_that_meets_a_limit_is_unknown(directory: Path) -> None:
    file = written(directory / "box.json", BOX)
    code, result = call_json("explore", file, "--workers", 1, "--states", 2)
    assert (code, result["verdict"]) == (3, "unknown")
    assert len(result["unknown"]) > 10
    assert {"engine", "requests", "reason"} <= set(result["unknown"][0])
    assert "geometries unknown: limit of 2 states" in call("explore", file, "--workers", 1, "--states", 2).stdout


def test_several_boxes_give_a_list_and_the_worst_exit_code(directory: Path) -> None:
    files = [written(directory / "a.json", BOX), written(directory / "b.json", with_defect(BOX))]
    code, results = call_json("explore", *files, "--workers", 1)
    assert (code, [result["verdict"] for result in results]) == (1, ["holds", "violated"])


def test_worker_processes_give_the_same_result(directory: Path) -> None:
    file = written(directory / "box.json", with_defect(BOX))
    (_, one), (_, two) = (call_json("explore", file, "--workers", workers) for workers in (1, 2))
    for result in (one, two):
        del result["seconds"]
    assert one == two


# --- fuzz -------------------------------------------------------------------------------------------------------------


def test_fuzz_finds_a_defect_shrinks_it_and_writes_the_case(directory: Path) -> None:
    result = call("fuzz", "--defect", FINDING_9, "--examples", 400)
    assert result.exit_code == 1
    assert result.stdout.startswith("violated: run ")
    (file,) = (directory / "infercheck-found").iterdir()
    assert f"Run it again: infercheck run infercheck-found/{file.name}" in result.stdout
    assert call("run", file).exit_code == 0


def test_fuzz_of_the_right_engine_holds() -> None:
    code, result = call_json("fuzz", "--examples", 30)
    assert (code, result["verdict"], result["case"], result["violations"]) == (0, "holds", None, [])
    assert result["examples"] >= 30
    words = call("fuzz", "--examples", 30).stdout
    assert words.startswith("holds: ")
    assert "never exercised: " in words


def test_fuzz_that_runs_out_of_time_is_unknown() -> None:
    code, result = call_json("fuzz", "--examples", 1_000_000, "--seconds", 0.5)
    assert (code, result["verdict"]) == (3, "unknown")


def test_fuzz_is_a_function_of_its_seed() -> None:
    results = [call_json("fuzz", "--examples", 20, "--seed", seed)[1] for seed in (5, 5, 6)]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]
    assert results[0] != results[2]


def test_an_ignored_invariant_fails_no_run() -> None:
    ids = [invariant["id"] for invariant in call_json("invariants")[1]]
    options = ["--defect", FINDING_9, "--speculation", "--examples", 100]
    code, result = call_json("fuzz", *options, *(word for id_ in ids for word in ("--ignore", id_)))
    assert (code, result["verdict"], result["violations"]) == (0, "holds", [])


# --- replay -----------------------------------------------------------------------------------------------------------

TRACE = "\n".join(json.dumps({**ROW, "timestamp": 5 * number, "hash_ids": [0, number]}) for number in range(40))
SMALL = ["--block-size", 4, "--num-blocks", 12, "--max-num-batched-tokens", 8, "--max-num-seqs", 4]


@pytest.mark.parametrize("arrivals", [[], ["--arrivals"]])
def test_replay_judges_every_action(arrivals: list[str], directory: Path) -> None:
    trace = written(directory / "trace.jsonl", TRACE)
    code, result = call_json("replay", trace, *SMALL, *arrivals)
    assert (code, result["verdict"], result["violations"], result["stopped"]) == (0, "holds", [], None)
    assert result["report"]["completed_count"] == 40
    assert result["exercised"]["token-budget"] == result["report"]["passes"]
    assert result["exercised"]["prefix-hit-truth"] > 0
    assert "holds: 40 completed, 0 refused of 40 requests" in call("replay", trace, *SMALL, *arrivals).stdout
    assert list(directory.iterdir()) == [trace]


def test_replay_in_file_order_runs_the_requests_in_the_order_of_the_file(directory: Path) -> None:
    rows = [{**ROW, "timestamp": 1000 - number} for number in range(6)]
    trace = written(directory / "trace.jsonl", "\n".join(map(json.dumps, rows)))
    assert call_json("replay", trace, *SMALL)[0] == 0


def test_replay_cuts_outputs_and_rows(directory: Path) -> None:
    trace = written(directory / "trace.jsonl", TRACE)
    _, result = call_json("replay", trace, *SMALL, "--max-output", 1, "--max-rows", 7)
    assert (result["report"]["num_requests"], result["report"]["total_output_tokens"]) == (7, 7)


@pytest.mark.parametrize("scheduler", ["vllm", "sglang"])
def test_replay_runs_on_every_scheduler(scheduler: str, directory: Path) -> None:
    trace = written(directory / "trace.jsonl", TRACE)
    code, result = call_json("replay", trace, *SMALL, "--scheduler", scheduler)
    assert (code, result["report"]["completed_count"]) == (0, 40)


def test_replay_tells_what_led_to_a_livelock(directory: Path) -> None:
    trace = written(directory / "trace.jsonl", {**ROW, "output_length": 1})
    arguments = ["--block-size", 4, "--num-blocks", 2, "--draft-tokens", 1, "--defect", FINDING_9]
    result = call("replay", trace, *arguments)
    assert result.exit_code == 1
    assert "violated: 0 completed, 0 refused of 1 requests" in result.stdout
    assert "r1 is preempted: r1 needs 1 more block for the tokens about to be emitted, 0 free" in result.stdout
    assert "Broken: no-needless-preemption (step 2)" in result.stdout
    code, document = call_json("replay", trace, *arguments)
    assert (code, document["stopped"], document["lasso"]["kind"]) == (1, "lasso", "preemption-cycle")


# --- check ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_job(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Stored cases and boxes of the test's own."""
    cases, boxes = directory / "cases", directory / "boxes"
    for folder, document in ((cases, CASE), (boxes, BOX)):
        folder.mkdir()
        written(folder / "right.json", document)
    written(cases / "wrong.json", {**with_defect(CASE), "expect": {"violates": ["no-livelock"]}})
    monkeypatch.setattr("infercheck.mainjob.STORED_CASES", cases)
    monkeypatch.setattr("infercheck.mainjob.STORED_BOXES", boxes)
    return cases, boxes


def test_check_runs_cases_boxes_and_fuzzing(small_job: tuple[Path, Path]) -> None:
    code, result = call_json("check", "--workers", 1, "--seconds", 4)
    assert (code, result["verdict"], result["interrupted"]) == (0, "holds", False)
    assert [case["met"] for case in result["cases"]] == [True, True]
    assert [box["verdict"] for box in result["boxes"]] == ["holds"]
    assert {one["verdict"] for one in result["fuzz"]} == {"holds"}
    assert result["defects"][FINDING_9] == 1
    assert result["exercised"]["no-livelock"] > 0
    assert set(result["never_exercised"]) == {id_ for id_, count in result["exercised"].items() if not count}


def test_check_prints_a_table(small_job: tuple[Path, Path]) -> None:
    result = call("check", "--workers", 1, "--no-fuzz")
    assert result.exit_code == 0
    for row in (
        r"stored cases +met +2 of 2: 1 break something as they should, 1 hold",
        r"defects +reproduced +1 of the \d+ defects and variants",
        r"box right +holds +48 geometries, [\d,]+ states",
        r"invariants +exercised +\d+ of \d+",
        r"never +\S+",
        r"^holds, [\d.]+ s$",
    ):
        assert re.search(row, result.stdout, re.MULTILINE), row
    assert "fuzzing" not in result.stdout


def test_check_fails_by_a_case_that_is_not_met(small_job: tuple[Path, Path]) -> None:
    written(small_job[0] / "wrong.json", with_defect(CASE))
    result = call("check", "--workers", 1, "--no-fuzz", "--no-boxes")
    assert result.exit_code == 1
    assert "NOT MET" in result.stdout
    assert "back to the state after step 2" in result.stdout


def test_check_fails_by_a_box_that_is_violated_and_writes_the_case(small_job: tuple[Path, Path], directory: Path) -> None:
    written(small_job[1] / "wrong.json", with_defect(BOX))
    result = call("check", "--workers", 1, "--no-fuzz", "--no-cases")
    assert result.exit_code == 1
    assert "Run it again: infercheck run infercheck-found/" in result.stdout
    assert list((directory / "infercheck-found").iterdir())


def test_a_box_that_does_not_fit_the_time_of_check_is_unknown(small_job: tuple[Path, Path]) -> None:
    box = {**BOX, "workload": {"requests": [{"prompt": {"from": 1, "to": 8}, "output": {"from": 0, "to": 2}, "count": 2}]}}
    written(small_job[1] / "large.json", box)
    code, result = call_json("check", "--workers", 1, "--no-fuzz", "--no-cases", "--seconds", 0.2)
    assert (code, result["verdict"]) == (3, "unknown")


def test_the_stored_cases_and_boxes_are_those_of_the_project() -> None:
    for folder in (STORED_CASES, STORED_BOXES):
        assert folder.parent == REPOSITORY / "regressions"
        assert list(folder.rglob("*.json"))


# --- defects, invariants ----------------------------------------------------------------------------------------------


def test_defects_are_listed_with_their_variants_and_sets() -> None:
    code, defects = call_json("defects")
    assert code == 0
    keys = {"id", "summary", "source", "schedulers", "caught_by", "correction", "variants", "sets"}
    assert all(set(defect) == keys for defect in defects)
    finding = next(defect for defect in defects if defect["id"] == FINDING_9)
    assert "vllm" in finding["schedulers"]
    assert finding["sets"] == ["seed", "upstream"]
    assert [variant["id"] for variant in finding["variants"]] == [
        f"{FINDING_9}:reservation-only",
        f"{FINDING_9}:allocation-only",
    ]
    assert "no-livelock" in finding["caught_by"]
    words = call("defects")
    assert words.exit_code == 0
    assert all(defect["id"] in words.stdout for defect in defects)


def test_invariants_are_listed_once_each() -> None:
    code, invariants = call_json("invariants")
    assert code == 0
    assert all(set(invariant) == {"id", "kind", "statement", "source", "catches"} for invariant in invariants)
    ids = [invariant["id"] for invariant in invariants]
    assert len(set(ids)) == len(ids)
    assert {"no-livelock", "deterministic", "token-budget"} <= set(ids)
    assert {invariant["kind"] for invariant in invariants} <= {"step", "progress", "cost"}
    assert "no-livelock" in call("invariants").stdout
