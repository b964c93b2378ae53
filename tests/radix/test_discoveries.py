"""What the specified behaviour does wrong on its own, each with its smallest case known, beside what the right engine does.

All requests lie inside the satisfiable envelope of SGLang specification 12, but for those of ``radix-admits-unservable``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from model.defects import named_set
from model.radix.engine import RadixEngine
from model.requests import RequestSpec
from tests.radix.driver import (
    UNSERVABLE,
    Mirror,
    cancel,
    drain,
    radix,
    retracted,
    spec,
    stalls,
    step,
    steps,
    submit,
    submit_all,
    text,
    told,
)

INPUT_BUDGET = "input-budget-blocks"
RETRACTED = "retracted-never-readmitted"
PARTIAL = "partial-starves-decode"
SORTED = "lpm-sorts-partials"
EARLY = "stored-before-cached"
TRUNCATION = "truncation-keeps-capacity"


def input_budget(*defects: str) -> RadixEngine:
    """A prompt of two pages, an input budget of one."""
    engine = radix("1/3/2", max_prefill_tokens=1, defects=defects)
    submit(engine, "a", 2)
    return engine


def comes_back(*defects: str) -> RadixEngine:
    """Two requests outgrow three pages; the older one is retracted with three tokens."""
    engine = radix("4/3/8", prefix_caching=False, schedule_conservativeness=0, defects=defects)
    submit_all(engine, {"a": (3, 6), "b": (2, 3)})
    return engine


def comes_back_evicted(*defects: str) -> RadixEngine:
    """With caching on it takes a third request to evict what the retracted one had cached."""
    engine = radix("4/3/8", schedule_conservativeness=0, defects=defects)
    submit_all(engine, {"b": (3, 6), "c": (2, 3), "a": (4, 5)})
    return engine


def partial_beside_the_last(*defects: str) -> RadixEngine:
    """One request runs, another has a page of its prompt; together they hold the pool."""
    engine = radix("1/5/1", schedule_conservativeness=0, defects=defects)
    submit_all(engine, {"a": (1, 3), "b": (3, 0)})
    return engine


def two_partials(*defects: str) -> RadixEngine:
    """A request with two cached pages arrives while another has computed one of its own."""
    engine = radix("1/5/1", schedule_policy="lpm", schedule_conservativeness=0, defects=defects)
    submit(engine, "seed", text(("A", 2)))
    submit(engine, "a", text(("B", 2)))
    steps(engine, 3)
    submit(engine, "b", text(("A", 2), ("C", 2)))
    return engine


STALLS: list[tuple[str, Callable[..., RadixEngine]]] = [
    (INPUT_BUDGET, input_budget),
    (RETRACTED, comes_back),
    (RETRACTED, comes_back_evicted),
    (PARTIAL, partial_beside_the_last),
    (SORTED, two_partials),
]


@pytest.mark.parametrize(("defect", "case"), STALLS)
def test_an_engine_with_the_defect_stands_still_and_the_right_one_finishes(defect: str, case: Callable[..., RadixEngine]) -> None:
    faulty = case(defect)
    assert stalls(faulty)
    assert all(faulty.servable(described) for described in faulty.registry.specs)
    assert not stalls(case())


@pytest.mark.parametrize(("defect", "case"), STALLS)
def test_it_is_this_defect_of_the_specified_behaviour_and_no_other(defect: str, case: Callable[..., RadixEngine]) -> None:
    specified = named_set("upstream", "sglang")
    assert defect in specified
    assert stalls(case(*specified))
    assert not stalls(case(*(specified - {defect})))


def test_the_right_chunk_fits_what_is_left_of_both_budgets() -> None:
    assert [report.scheduled for report in drain(input_budget())] == [{"a": 1}, {"a": 1}]
    for defects, expected in (([INPUT_BUDGET], [{"a": 2}, {"b": 2}]), ([], [{"a": 2, "b": 1}, {"b": 1}])):
        engine = radix("1/8/4", max_prefill_tokens=3, defects=defects)
        submit_all(engine, {"a": (2, 0), "b": (2, 0)})
        assert [report.scheduled for report in drain(engine)] == expected


def test_a_retracted_request_is_admitted_again_when_nobody_runs() -> None:
    faulty, right = comes_back(RETRACTED), comes_back()
    for engine in (faulty, right):
        reports = steps(engine, 4)
        assert retracted(reports) == ["a"]
        request = engine.view().requests["a"]
        assert (request.length, request.generated) == (5, 2)
        assert told(reports[-1]) == ["b done"]
    # Two pages and the four tokens still to come are the twelve there are.
    assert not step(faulty).had_effect
    report = step(right)
    assert report.scheduled == {"a": 5}
    assert [(admission.id, admission.first) for admission in report.admissions] == [("a", False)]


def test_a_retracted_request_waits_while_another_runs() -> None:
    engine = radix("4/4/8", prefix_caching=False, schedule_conservativeness=0)
    submit_all(engine, {"a": (3, 8), "b": (4, 7)})
    reports = drain(engine)
    assert retracted(reports) == ["a"]
    again = next(number for number, report in enumerate(reports) if any(not admission.first for admission in report.admissions))
    assert again > next(number for number, report in enumerate(reports) if "b" in report.finished)


def test_a_partial_gives_its_pages_to_the_last_running_request_and_keeps_its_place() -> None:
    engine = partial_beside_the_last()
    reports = steps(engine, 3)
    assert reports[-1].scheduled == {"b": 1}
    submit(engine, "behind", 1)
    while not retracted(reports):
        reports.append(step(engine))
    (preemption,) = reports[-1].preemptions
    assert (preemption.victim, preemption.requests) == ("b", ("a",))
    assert preemption.free < preemption.needed
    assert told(reports[-1])[0].startswith("a"), "the running request goes on in the same pass"
    assert engine.view().waiting == ("b", "behind")
    assert engine.view().requests["b"].computed == 0


def test_a_partial_keeps_the_head_of_the_queue() -> None:
    faulty, right = two_partials(SORTED), two_partials()
    for engine in (faulty, right):
        step(engine)
    assert [request.computed for request in faulty.core.waiting] == [3, 1]
    assert not right.core.requests.keys() & {"a"}


def early(*defects: str) -> RadixEngine:
    """Room for the first token of the second of two requests is short."""
    engine = radix("2/6/8", schedule_conservativeness=0, defects=defects)
    submit_all(engine, {"b": (3, 5), "a": (1, 5)})
    return engine


def test_what_is_announced_is_in_the_tree_at_the_end_of_every_pass() -> None:
    mirror, engine = Mirror(), early()
    for _ in range(20):
        if engine.busy:
            stored = mirror.follow(step(engine).events)
            assert stored == engine.view().cached
    assert not engine.busy


def test_pages_are_promised_before_they_are_cached_with_the_defect() -> None:
    mirror, engine = Mirror(), early(EARLY)
    promised = []
    while engine.busy:
        report = step(engine)
        stored = mirror.follow(report.events)
        cached = engine.view().cached
        assert cached is not None
        assert cached <= stored
        if stored != cached:
            promised.append((report.scheduled, told(report)))
    # The pass prefills a retracted request and finds no page for the token that is due.
    assert promised
    assert promised[0][1] == []


@pytest.mark.parametrize(("defects", "capacity"), [([TRUNCATION], 3), ([], 1)])
def test_a_truncated_edge(defects: list[str], capacity: int) -> None:
    engine = radix("1/4/8", defects=defects)
    submit(engine, "a", 3)
    drain(engine)
    submit(engine, "b", 3)
    drain(engine)
    nodes = engine.view().tree
    assert nodes is not None
    # Both vectors together.
    assert [(len(node.pages), node.capacity) for node in nodes] == [(1, 2 * capacity), (3, 6)]


UNSERVED: list[tuple[str, dict[str, object], RequestSpec]] = [
    ("4/2/8", {}, spec("a", 8, 1)),
    ("4/2/8", {}, spec("a", 4, 4)),
    ("4/2/8", {}, spec("a", 9)),
    ("4/8/3", {}, spec("a", 1)),
    ("4/8/8", {"max_prefill_tokens": 3}, spec("a", 1)),
    ("1/4/8", {"clip_max_new_tokens": 1}, spec("a", 2, 3)),
]


@pytest.mark.parametrize(("geometry", "options", "request_"), UNSERVED)
def test_what_cannot_be_served_is_refused_at_once_and_holds_nobody_up(
    geometry: str, options: dict[str, object], request_: RequestSpec
) -> None:
    faulty = radix(geometry, defects=[UNSERVABLE], **options)
    right = radix(geometry, **options)
    for engine in (faulty, right):
        assert not engine.servable(request_)
        submit(engine, "a", request_.prompt, request_.output)
    assert stalls(faulty)
    served = right.servable(spec("behind", 1))
    submit(right, "behind", 1)
    report = step(right)
    assert told(report) == ["a rejected", "behind done, no token" if served else "behind rejected"]
    assert not right.busy


@pytest.mark.parametrize(
    ("geometry", "options", "request_"),
    [
        ("4/3/8", {}, spec("a", 8, 1)),
        ("4/2/8", {}, spec("a", 4, 3)),
        ("4/3/8", {}, spec("a", 8)),
        ("4/8/4", {}, spec("a", 9, 2)),
        ("1/6/8", {"clip_max_new_tokens": 1}, spec("a", 2, 4)),
        ("1/5/8", {"max_model_len": 4}, spec("a", 2, 9)),
    ],
)
def test_what_just_can_be_served_is(geometry: str, options: dict[str, object], request_: RequestSpec) -> None:
    for defects in ([], [UNSERVABLE]):
        engine = radix(geometry, defects=defects, **options)
        assert engine.servable(request_)
        submit(engine, "a", request_.prompt, request_.output)
        assert not stalls(engine)


def test_a_request_in_the_middle_of_the_queue_is_refused_too() -> None:
    engine = radix("4/4/4", max_num_seqs=1)
    submit_all(engine, {"a": (8, 1), "b": (16, 1), "c": (4, 1)})
    assert told(step(engine)) == ["b rejected"]
    assert engine.view().waiting == ("a", "c")


def test_a_refused_request_may_be_cancelled_first() -> None:
    engine = radix("4/2/8")
    submit(engine, "a", 9)
    assert cancel(engine, "a").cancelled == ["a"]
    assert told(step(engine)) == []


def test_what_is_cached_does_not_decide_whether_a_request_is_refused() -> None:
    # With its first page cached the specified engine has room for it, and without not.
    for defects, expected in (([UNSERVABLE], ["a done"]), ([], ["a rejected"])):
        engine = radix("4/2/8", defects=defects)
        submit(engine, "seed", text(("A", 4)))
        drain(engine)
        submit(engine, "a", text(("A", 8)), 1)
        assert told(step(engine)) == expected
