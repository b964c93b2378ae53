"""Finding 1: the chunk rule compares with the configured budget, not with what is left of it (SGLang specification 5.1)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.radix.driver import FINDING_1, available, drain, evictable, protected, radix, step, submit, text, told, work_per_pass

Workload = Sequence[tuple[int, int]]


def started(geometry: str, workload: Workload, defects: Sequence[str]) -> list[int] | None:
    """Work per pass of disjoint prompts, queued together; None when a pass has no effect."""
    engine = radix(geometry, defects=defects)
    for number, (prompt, output) in enumerate(workload):
        submit(engine, f"r{number}", prompt, output)
    work = []
    while engine.busy:
        report = step(engine)
        if not report.had_effect:
            return None
        work.append(sum(report.scheduled.values()))
    return work


@pytest.mark.parametrize("output", [0, 1])
def test_trace_1a(output: int) -> None:
    right, faulty = radix("4/64/8"), radix("4/64/8", defects=[FINDING_1])
    for engine in (right, faulty):
        submit(engine, "a", 4, output)
        submit(engine, "b", 8, output)
    token = "" if output else ", no token"
    first = step(right)
    assert first.scheduled == {"a": 4, "b": 4}
    assert told(first) == [f"a done{token}"]
    assert right.view().waiting == ("b",)
    assert right.view().requests["b"].computed == 4
    assert right.core.requests["b"].cached == 4
    assert (available(right), evictable(right), protected(right)) == (248, 4, 4)
    first = step(faulty)
    assert first.scheduled == {"a": 4}
    assert told(first) == [f"a done{token}"]
    assert faulty.view().requests["b"].computed == 0
    assert (available(faulty), evictable(faulty), protected(faulty)) == (252, 4, 0)
    for engine, left in ((right, 4), (faulty, 8)):
        assert step(engine).scheduled == {"b": left}
        assert not engine.busy
        assert (available(engine), evictable(engine), protected(engine)) == (244, 12, 0)


@pytest.mark.parametrize("output", [0, 1, 3])
def test_trace_1b_is_refused_for_ever(output: int) -> None:
    engine = radix("4/64/6", defects=[FINDING_1])
    submit(engine, "a", 5, output)
    submit(engine, "behind", 1, 1)
    ratios = [engine.core.ratio]
    while len(ratios) < 3 or ratios[-1] != ratios[-2]:
        report = step(engine)
        assert not report.had_effect
        ratios.append(engine.core.ratio)
    assert ratios[1] == pytest.approx(0.698997, abs=1e-6)
    assert len(ratios) - 2 == 600
    assert engine.view().waiting == ("a", "behind")


@pytest.mark.parametrize("output", [0, 1])
def test_trace_1b_takes_two_passes_when_right(output: int) -> None:
    engine = radix("4/64/6")
    submit(engine, "a", 5, output)
    first = step(engine)
    assert first.scheduled == {"a": 4}
    assert engine.view().requests["a"].computed == 4
    second = step(engine)
    assert second.scheduled == {"a": 1}
    assert told(second) == ["a done" if output else "a done, no token"]


@pytest.mark.parametrize(
    ("geometry", "workload", "faulty", "right"),
    [
        ("4/64/8", [(4, 1), (8, 1), (4, 1)], [4, 8, 4], [8, 8]),
        ("2/64/3", [(3, 0)], None, [2, 1]),
        ("1/64/2", [(1, 0), (2, 0)], [1, 2], [2, 1]),
    ],
    ids=["third prompt", "smallest refusal", "smallest under-fill"],
)
def test_members_of_the_class(geometry: str, workload: Workload, faulty: list[int] | None, right: list[int]) -> None:
    assert started(geometry, workload, [FINDING_1]) == faulty
    assert started(geometry, workload, []) == right


@pytest.mark.parametrize(
    ("geometry", "workload", "expected"),
    [
        ("4/64/8", [(6, 0)], [6]),
        ("4/64/8", [(7, 0), (8, 0)], [7, 8]),
        ("4/64/8", [(4, 0), (4, 0)], [8]),
        ("4/64/8", [(4, 0), (12, 0)], [8, 8]),
        ("4/64/8", [(16, 2)], [8, 8, 1]),
        ("1/64/5", [(1, 0)], [1]),
        ("1/64/5", [(5, 0)], [5]),
        ("4/64/4", [(9, 1)], [4, 4, 1]),
        ("2/64/6", [(7, 1)], [6, 1]),
    ],
)
def test_neighbours_are_the_same_either_way(geometry: str, workload: Workload, expected: list[int]) -> None:
    assert started(geometry, workload, []) == expected
    assert started(geometry, workload, [FINDING_1]) == expected


@pytest.mark.parametrize("defects", [[], [FINDING_1]])
def test_without_a_slot_nothing_is_admitted_either_way(defects: list[str]) -> None:
    engine = radix("4/64/8", max_num_seqs=1, defects=defects)
    submit(engine, "running", 4, 5)
    step(engine)
    submit(engine, "a", 4, 1)
    assert step(engine).admissions == []


@pytest.mark.parametrize(("chunk", "suffixes", "right", "faulty"), [(8, (4, 8), [8, 4], [4, 8]), (6, (5,), [4, 1], None)])
def test_it_is_the_part_beyond_a_cached_prefix_that_counts(
    chunk: int, suffixes: tuple[int, ...], right: list[int], faulty: list[int] | None
) -> None:
    for defects, expected in (([], right), ([FINDING_1], faulty)):
        engine = radix(f"4/64/{chunk}", defects=defects)
        submit(engine, "seed", text(("A", 4)))
        drain(engine)
        for number, suffix in enumerate(suffixes):
            submit(engine, f"r{number}", text(("A", 4), (f"S{number}", suffix)))
        if expected is None:
            assert not step(engine).had_effect
        else:
            assert work_per_pass(engine) == expected


@pytest.mark.parametrize("chunk", range(4, 13))
def test_a_pass_cuts_one_prompt_at_most(chunk: int) -> None:
    engine = radix(f"4/64/{chunk}")
    for id_ in "abc":
        submit(engine, id_, 9)
    while engine.busy:
        assert step(engine).had_effect
        assert sum(1 for request in engine.core.waiting if request.computed) <= 1
