"""The published systems: counts on which several checkers agree, and what is wrong with some of them."""

from __future__ import annotations

import json

import attrs
import pytest

from benchmarks.minisched import GEOMETRIES, MiniSched, floor
from benchmarks.minisched.__main__ import main
from explorer import Limits, Verdict, check, explore

# System, then stem and cycle of the nearest stall, of the first fair livelock, and of the first drain that goes round.
FINDINGS = [
    ("S", None, None, None),
    ("M", None, None, None),
    ("LS", None, (4, 3), (1, 3)),
    ("LM", None, (6, 5), (1, 5)),
    ("SS", (7, 1), (10, 1), (7, 1)),
]


@pytest.mark.parametrize(("name", "stall", "livelock", "drain"), FINDINGS)
def test_counts_and_findings_are_the_published_ones(
    name: str, stall: tuple[int, int] | None, livelock: tuple[int, int] | None, drain: tuple[int, int] | None
) -> None:
    geometry = GEOMETRIES[name]
    result = check(MiniSched(geometry), drain=True)
    assert (result.search.states, result.search.transitions) == (geometry.states, geometry.transitions)
    assert result.search.violations == ()
    found = [
        (len(lassos[0].stem), len(lassos[0].cycle)) if lassos else None
        for lassos in (result.stalls, result.livelocks, result.search.drain_lassos)
    ]
    assert found == [stall, livelock, drain]
    assert result.verdict is (Verdict.VIOLATED if livelock else Verdict.HOLDS)


@pytest.mark.parametrize("name", ["S", "LS", "SS", "M"])
def test_the_floor_counts_the_same(name: str) -> None:
    geometry = GEOMETRIES[name]
    assert floor.search(geometry) == (geometry.states, geometry.transitions)


def test_a_state_that_holds_too_many_blocks_is_judged() -> None:
    geometry = GEOMETRIES["S"]
    system = MiniSched(geometry)
    requests = len(geometry.prompts)
    wrong = bytearray(system.queue)
    wrong[0] = 0b1
    wrong[1 + 2 * requests] = geometry.blocks + 1
    system.step(bytes(wrong) + bytes([0]))
    assert [problem.property_id for problem in system.problems] == ["blocks-fit"]


def test_a_request_that_computed_more_than_its_blocks_hold_is_judged() -> None:
    geometry = attrs.evolve(GEOMETRIES["S"], lookahead=-1)
    assert [found.property_id for found in explore(MiniSched(geometry)).violations] == ["computed-fits-blocks"]


def test_more_requests_than_a_byte_has_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 8 requests"):
        MiniSched(attrs.evolve(GEOMETRIES["S"], prompts=(1,) * 9, outputs=(1,) * 9))


def test_the_large_livelock_is_met_by_drain_within_fifty_states() -> None:
    result = explore(MiniSched(GEOMETRIES["LL"]), drain=True, stop_at_first=True)
    assert result.verdict is Verdict.VIOLATED
    assert result.states <= 50
    (lasso,) = result.drain_lassos
    assert (lasso.kind, len(lasso.stem), len(lasso.cycle)) == ("livelock", 1, 4)


def test_the_large_livelock_is_the_shortest_lasso_of_the_first_eleven_levels() -> None:
    # Of 28 levels; the whole graph gives the same in some seconds more: `python -m benchmarks.minisched LL`.
    result = check(MiniSched(GEOMETRIES["LL"]), limits=Limits(states=345_000), most_lassos=1)
    assert result.verdict is Verdict.VIOLATED
    (lasso,) = result.livelocks
    assert (lasso.kind, len(lasso.stem), len(lasso.cycle)) == ("livelock", 7, 4)


def test_the_command_prints_counts_and_lassos_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["LS", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["states"], row["transitions"], row["counts_match"]) == (810, 1_475, True)
    assert (row["verdict"], row["livelock"]["stem"], row["livelock"]["cycle"]) == ("violated", 4, 3)
    assert row["drain"]["states"] <= 50


def test_the_command_prints_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["SS"]) == 0
    printed = capsys.readouterr().out
    assert "1,018" in printed
    assert "SS, stall: stall after 7 (arrive 3, step x2, step (generates) x3, step): for ever 1 (step)" in printed


def test_a_comparison_runs_every_tool_apart_and_all_count_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["S", "--compare", "--repeat", "1", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert {"explorer", "floor"} <= set(row["tools"])
    assert all(tool.get("missing") or tool["states"] == 1_134 for tool in row["tools"].values())
    assert row["bounds"] == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["XL"], "unknown system 'XL'; there are S, M, L"), (["--compare", "--repeat", "0"], "at least 1, not 0")],
)
def test_the_command_refuses_what_it_does_not_know(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert complaint in capsys.readouterr().err
