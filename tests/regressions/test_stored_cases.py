"""Every stored case is met, and the cases cover the catalogue of defects."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from attrs import evolve

from model.case import Case, read_case
from model.defects import complete
from regressions.files import STORED_CASES, json_files, load_case, read_document
from regressions.runner import CaseResult, run_case

FILES = [str(file.relative_to(STORED_CASES)) for file in json_files([STORED_CASES])]

CATALOGUE = complete()

PAGED = ("speculative-terminal-block", "admits-unservable", "fifo-preempts-last-ready", "counts-dropped-hits")
"""Defects of which every variant has its case."""

SHOWN = sorted({id_ for name in FILES for id_ in load_case(STORED_CASES / name).engine.defects})
"""Defects and variants that some case switches on."""


@cache
def stored(name: str) -> tuple[Case, CaseResult]:
    case = load_case(STORED_CASES / name)
    return case, run_case(case)


def without_defects(case: Case) -> Case:
    """What two cases share of which one shows a defect and the other the right engine."""
    return Case(evolve(case.engine, defects=frozenset()), case.actions, replay=case.replay)


@pytest.mark.parametrize("name", FILES)
def test_stored_case_is_met(name: str) -> None:
    _, result = stored(name)
    assert result.mismatches == ()
    assert result.met


@pytest.mark.parametrize("name", FILES)
def test_stored_case_reports_nothing_that_it_does_not_expect(name: str) -> None:
    case, result = stored(name)
    assert {violation.invariant for violation in result.violations} == set(case.expect.violates)


@pytest.mark.parametrize("name", FILES)
def test_stored_case_has_a_title_and_a_source_and_is_read_back_as_written(name: str) -> None:
    case = load_case(STORED_CASES / name)
    assert read_case(json.loads(json.dumps(case.to_json()))) == case
    document = read_document(STORED_CASES / name)
    assert isinstance(document, dict)
    assert document["title"]
    assert document["source"]


def test_no_two_stored_cases_are_the_same() -> None:
    seen: dict[str, str] = {}
    for name in FILES:
        case, _ = stored(name)
        key = json.dumps({**case.to_json(), "title": "", "source": ""}, sort_keys=True)
        assert key not in seen, f"{name} repeats {seen[key]}"
        seen[key] = name


def test_every_variant_of_the_paged_defects_has_a_case() -> None:
    assert {id_ for defect in PAGED for id_ in CATALOGUE[defect].ids()} <= set(SHOWN)


@pytest.mark.parametrize("defect", SHOWN)
def test_each_defect_and_variant_fires_in_a_case_whose_right_twin_holds(defect: str) -> None:
    firing = [name for name in FILES if defect in stored(name)[0].engine.defects and stored(name)[1].violations]
    assert firing, f"no stored case in which {defect} breaks anything"
    for name in firing:
        twin = without_defects(stored(name)[0])
        right = [other for other in FILES if not stored(other)[0].engine.defects and without_defects(stored(other)[0]) == twin]
        assert right, f"{name} has no stored twin without the defect"
        for other in right:
            assert stored(other)[1].verdict == "holds"


@pytest.mark.parametrize("defect", SHOWN)
def test_each_defect_breaks_an_invariant_that_its_catalogue_entry_names(defect: str) -> None:
    expected = set(CATALOGUE[defect.partition(":")[0]].caught_by)
    broken = {
        violation.invariant
        for name in FILES
        if defect in stored(name)[0].engine.defects
        for violation in stored(name)[1].violations
    }
    assert expected & broken


def test_case_files_are_packaged_where_the_runner_looks_for_them() -> None:
    assert Path("regressions/cases").resolve() == STORED_CASES.resolve()
