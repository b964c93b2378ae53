"""Who gives way when blocks run out, and what becomes of it (vLLM specification 3.5, 3.7, 3.8)."""

from __future__ import annotations

from model.actions import Step
from model.events import Preemption, StepReport, Work
from model.paged.core import Pass, record, refund
from model.views import PREEMPTED
from tests.paged.driver import FINDING_9, drafts, drain, paged, preempted, step, steps, submit_all, tokens_out, told


def test_lifo_takes_the_last_running_request() -> None:
    engine = paged("4/3/-/-")
    submit_all(engine, {"a": (2, 9), "b": (4, 2), "c": (2, 2)})
    first, second = steps(engine, 2)
    assert second.preemptions == [Preemption("c", "b", "schedule", needed=1, free=0, requests=("b",))]
    assert second.scheduled == {"a": 1, "b": 1}
    assert told(second) == ["a", "b done"]
    view = engine.view()
    assert (view.running, view.waiting) == (("a",), ("c",))
    assert preempted([first]) == []


def test_fifo_takes_the_first_one_and_passes_over_the_request_that_slides_into_the_gap() -> None:
    engine = paged("4/3/-/-", preemption="fifo")
    submit_all(engine, {"a": (2, 9), "b": (4, 3), "c": (2, 3)})
    step(engine)
    second = step(engine)
    assert second.preemptions == [Preemption("a", "b", "schedule", needed=1, free=0, requests=("b",))]
    # What a had computed in this pass no longer counts; c moved to a place that was already passed.
    assert second.scheduled == {"b": 1}
    assert told(second) == ["b"]
    assert engine.view().running == ("b", "c")
    assert step(engine).scheduled == {"b": 1, "c": 1}


def test_a_fifo_victim_gives_back_its_budget() -> None:
    engine = paged("4/4/4/-", preemption="fifo")
    submit_all(engine, {"a": (1, 9), "b": (4, 9), "c": (1, 9), "d": (4, 9)})
    first, second, third = steps(engine, 3)
    assert (first.scheduled, second.scheduled) == ({"a": 1, "b": 3}, {"a": 1, "b": 1, "c": 1, "d": 1})
    assert preempted([third]) == ["a"]
    # Of a budget of four, a took one and gave it back, b took one, and c was passed over: three are left for d.
    assert third.scheduled == {"b": 1, "d": 3}


def test_a_victim_that_computed_prompt_tokens_leaves_the_prefill_batch() -> None:
    engine = paged("4/4/-/-")
    submit_all(engine, {"a": (8, 2), "b": (8, 2)})
    a, b = engine.core.requests.values()
    middle = Pass(engine.rules, StepReport(Step()), {})
    middle.budget = 10
    for request, prefix, tokens in ((a, 4, 4), (b, 0, 3)):
        record(middle, engine.core, Work(request.id, tokens, tokens, prefix, False, 8, 8, 0))
    assert (middle.batch, middle.batch_end, middle.batch_prefix) == (2, 11, 4)
    refund(middle, engine.core, a)
    assert (middle.batch, middle.batch_end, middle.batch_prefix, middle.budget) == (1, 3, 0, 14)
    assert set(middle.report.work) == {"b"}
    refund(middle, engine.core, a)
    assert (middle.batch, middle.budget) == (1, 14)


def test_the_last_running_request_preempts_itself() -> None:
    engine = paged("4/2/-/-")
    submit_all(engine, {"a": (3, 5), "b": (4, 2)})
    step(engine)
    report = step(engine)
    assert report.preemptions == [Preemption("b", "b", "schedule", needed=1, free=0, requests=("b",))]
    assert report.scheduled == {"a": 1}
    assert engine.view().running == ("a",)


def test_a_victim_keeps_its_tokens_gives_back_its_blocks_and_waits_in_front() -> None:
    engine = paged("4/4/-/2")
    submit_all(engine, {"a": (7, 9), "b": (5, 3), "c": (4, 1)})
    reports: list[StepReport] = []
    while not preempted(reports):
        reports += steps(engine, 1)
    view = engine.view()
    victim = view.requests["b"]
    assert view.waiting == ("b", "c")
    assert (victim.status, victim.generated, victim.computed, victim.allocated, victim.blocks) == (PREEMPTED, 2, 0, 0, ())
    assert victim.preemptions == 1
    assert view.pool.active == len(view.requests["a"].blocks) == 3


def test_several_victims_of_a_pass_wait_in_their_old_order() -> None:
    engine = paged("4/4/-/-", speculation=drafts(2))
    submit_all(engine, {"a": (3, 9), "b": (3, 9), "c": (3, 9), "d": (3, 9)})
    report = step(engine)
    assert preempted([report]) == ["d", "c"]
    view = engine.view()
    assert (view.running, view.waiting) == (("a", "b"), ("c", "d"))
    assert told(report) == ["a", "b"]


def test_nobody_is_admitted_in_a_pass_that_preempted() -> None:
    engine = paged("4/4/-/-")
    submit_all(engine, {"a": (4, 2), "b": (4, 3), "c": (8, 2)})
    step(engine)
    submit_all(engine, {"tiny": (1, 1)})
    report = step(engine)
    assert preempted([report]) == ["c"]
    assert engine.view().pool.free == 2 - len(report.finished) + 1
    assert report.admissions == []
    assert engine.view().waiting == ("c", "tiny")


def test_a_preempted_request_is_admitted_before_those_that_never_ran() -> None:
    engine = paged("4/4/-/-")
    submit_all(engine, {"a": (4, 2), "b": (4, 3), "c": (8, 2)})
    step(engine)
    submit_all(engine, {"tiny": (1, 1)})
    admitted = [(admission.id, admission.first) for report in drain(engine) for admission in report.admissions]
    assert admitted == [("c", False), ("tiny", True)]


def test_what_is_admitted_again_computes_prompt_and_generated_tokens() -> None:
    engine = paged("4/4/-/-")
    submit_all(engine, {"a": (7, 9), "b": (5, 3)})
    reports = drain(engine)
    (work,) = [
        report.work["b"]
        for report in reports
        for admission in report.admissions
        if (admission.id, admission.first) == ("b", False)
    ]
    assert (work.total, work.prompt_tokens, work.generated) == (7, 5, 2)
    assert tokens_out(reports) == 12


def test_an_emission_victim_keeps_its_place_in_the_work_of_the_pass() -> None:
    engine = paged("4/4/-/-", speculation=drafts(1), defects=[FINDING_9])
    submit_all(engine, {"p": (8, 1), "q": (8, 1)})
    report = step(engine)
    assert report.preemptions == [Preemption("q", None, "emission", needed=2, free=0, requests=("p", "q"))]
    assert report.scheduled == {"p": 8, "q": 8}
    assert report.end_ns == 16_000_000 + 1_000_000


def test_emission_may_take_a_request_that_is_not_ready_itself() -> None:
    engine = paged("4/3/8/-", speculation=drafts(2))
    submit_all(engine, {"ready": (3, 4), "prefilling": (8, 1)})
    report = step(engine)
    assert report.scheduled == {"ready": 3, "prefilling": 5}
    assert report.preemptions == [Preemption("prefilling", None, "emission", needed=1, free=0, requests=("ready",))]
    assert told(report) == ["ready"]


def test_after_an_emission_victim_only_those_still_ready_emit() -> None:
    engine = paged("4/3/8/-", preemption="fifo", speculation=drafts(3))
    submit_all(engine, {"a": (2, 5), "b": (4, 4), "c": (4, 6)})
    report = step(engine)
    assert report.scheduled == {"a": 2, "b": 4, "c": 2}
    assert report.preemptions == [Preemption("a", None, "emission", needed=2, free=0, requests=("a", "b"))]
    assert told(report) == ["b"]
    view = engine.view()
    assert view.running == ("b", "c")
    assert (view.requests["c"].computed, view.requests["c"].generated) == (2, 0)


def test_every_request_comes_through_a_cache_much_too_small_for_all() -> None:
    for preemption in ("lifo", "fifo"):
        for caching in (False, True):
            engine = paged("4/5/7/4", preemption=preemption, prefix_caching=caching)
            submit_all(engine, {f"r{number}": (3 + 2 * number, 9 - number) for number in range(6)})
            reports = drain(engine)
            assert preempted(reports)
            assert tokens_out(reports) == sum(9 - number for number in range(6))
            assert engine.view().pool.active == 0
