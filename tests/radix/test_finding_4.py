"""Finding 4: Stored events although prefix caching is off (SGLang specification 5.2)."""

from __future__ import annotations

import pytest

from model.events import Removed, Stored
from model.radix.engine import RadixEngine
from model.registry import NO_BLOCK
from tests.radix.driver import FINDING_4, Mirror, available, drain, radix, shapes, step, submit, text


def uncached(*defects: str) -> RadixEngine:
    """Trace 4a's engine."""
    return radix("4/16/16", prefix_caching=False, defects=defects)


def test_trace_4a() -> None:
    faulty, right = uncached(FINDING_4), uncached()
    for engine in (faulty, right):
        events = []
        for id_ in "ab":
            submit(engine, id_, text(("A", 8)))
            report = step(engine)
            assert report.scheduled == {id_: 8}
            assert report.admissions[0].reused == 0
            assert available(engine) == 64
            assert engine.view().cached == frozenset()
            events += report.events
        if engine is right:
            assert events == []
            continue
        h1, h2 = engine.registry.chain(0, 2)
        assert events == [Stored(NO_BLOCK, (h1, h2)), Removed((h1, h2))] * 2


def test_two_copies_in_one_pass_are_one_promise() -> None:
    for defects, expected in (([FINDING_4], ["Stored 2", "Removed 2"]), ([], [])):
        engine = uncached(*defects)
        submit(engine, "a", text(("A", 8)))
        submit(engine, "b", text(("A", 8)))
        report = step(engine)
        assert report.scheduled == {"a": 8, "b": 8}
        assert shapes(report.events) == expected


def test_pages_that_decoding_completes_are_not_even_announced() -> None:
    for defects, expected in (([FINDING_4], [["Stored 1"], [], [], [], ["Removed 1"]]), ([], [[]] * 5)):
        engine = uncached(*defects)
        submit(engine, "a", text(("A", 4)), 5)
        assert [shapes(report.events) for report in drain(engine)] == expected


def test_what_is_promised_is_not_found() -> None:
    engine = uncached(FINDING_4)
    submit(engine, "a", text(("A", 4)), 5)
    step(engine)
    submit(engine, "b", text(("A", 4)))
    assert step(engine).admissions[0].reused == 0


def test_a_continuation_promises_too() -> None:
    engine = radix("4/16/4", prefix_caching=False, defects=[FINDING_4])
    submit(engine, "a", 8, 2)
    reports = drain(engine)
    assert [shapes(report.events) for report in reports] == [["Stored 1"], ["Stored 1"], ["Removed 2"]]


@pytest.mark.parametrize("output", [0, 1])
@pytest.mark.parametrize("defects", [[], [FINDING_4]])
def test_with_caching_on_the_pages_stay_and_are_announced_once(output: int, defects: list[str]) -> None:
    engine = radix("4/16/16", defects=defects)
    submit(engine, "a", text(("A", 8)), output)
    assert shapes(step(engine).events) == ["Stored 2"]
    submit(engine, "b", text(("A", 8)), output)
    report = step(engine)
    assert report.events == []
    assert report.admissions[0].reused == (4 if output else 8)


@pytest.mark.parametrize("caching", [False, True])
def test_events_off_keep_no_books(caching: bool) -> None:
    engine = radix("4/16/16", prefix_caching=caching, kv_events=False, defects=[FINDING_4])
    submit(engine, "a", 8, 3)
    assert all(report.events == [] for report in drain(engine))
    assert engine.core.publisher is None


@pytest.mark.parametrize("defects", [[], [FINDING_4]])
@pytest.mark.parametrize("caching", [False, True])
def test_an_incomplete_page_makes_no_event(caching: bool, defects: list[str]) -> None:
    engine = radix("4/16/16", prefix_caching=caching, defects=defects)
    submit(engine, "a", 3)
    assert step(engine).events == []


def test_the_faulty_stream_is_orderly_in_itself() -> None:
    engine = radix("2/8/4", prefix_caching=False, defects=[FINDING_4], schedule_conservativeness=0)
    for number in range(4):
        submit(engine, f"r{number}", text(("A", 3 + number)), 4)
    mirror = Mirror()
    for report in drain(engine):
        mirror.follow(report.events)
    assert mirror.stored == set()
