"""Prefill admission (SGLang specification 3): what it charges, and where it stops."""

from __future__ import annotations

import pytest

from tests.radix.driver import UNSERVABLE, Parts, drain, radix, step, steps, submit, submit_all, text, told


@pytest.mark.parametrize(
    ("pages", "prompt", "output", "admitted"),
    [(2, 8, 1, False), (3, 8, 1, True), (2, 4, 4, False), (2, 4, 3, True), (2, 8, 0, False), (2, 7, 0, False), (3, 7, 0, True)],
)
def test_room_must_be_more_than_the_pages_and_the_output(pages: int, prompt: int, output: int, admitted: bool) -> None:
    engine = radix(f"4/{pages}/64", defects=[UNSERVABLE])
    submit(engine, "a", prompt, output)
    assert bool(step(engine).admissions) == admitted
    assert radix(f"4/{pages}/64").servable(engine.registry.specs[0]) == admitted


def test_room_is_less_by_what_the_running_requests_are_expected_to_produce() -> None:
    # One page and five tokens to come must be less than the 32 tokens that are free, less 0.7 of the output still to come.
    for output, admitted in ((33, True), (34, False)):
        engine = radix("4/10/64")
        submit(engine, "running", 4, output)
        step(engine)
        submit(engine, "a", 4, 5)
        assert bool(step(engine).admissions) == admitted


def test_the_expectation_is_cut_by_the_clip() -> None:
    for clip, admitted in ((35, False), (4, True)):
        engine = radix("4/11/64", clip_max_new_tokens=clip, schedule_conservativeness=1.4)
        submit(engine, "running", 4, 36)
        step(engine)
        submit(engine, "a", 4, 1)
        assert bool(step(engine).admissions) == admitted


def test_a_chunk_that_does_not_complete_a_prompt_reserves_no_output() -> None:
    engine = radix("4/8/8", schedule_conservativeness=0)
    submit(engine, "a", 12, 8)
    submit(engine, "b", 4, 8)
    first, second, third = steps(engine, 3)
    assert first.scheduled == {"a": 8}
    assert second.scheduled == {"a": 4}, "with 8 tokens set aside for a, the 12 of b do not find more than 12"
    assert third.scheduled == {"b": 4}


def test_the_first_that_does_not_fit_ends_admission() -> None:
    engine = radix("4/8/64")
    submit_all(engine, {"large": (20, 2), "larger": (24, 2), "small": (1, 1)})
    assert step(engine).scheduled == {"large": 20}
    assert engine.view().waiting == ("larger", "small")


def test_a_prefix_that_an_admission_locks_stays_in_the_room_but_not_in_the_pages() -> None:
    engine = radix("4/4/64", schedule_conservativeness=0)
    submit(engine, "seed", text(("A", 8)))
    drain(engine)
    # Eight of sixteen tokens are locked by a; b, admitted by the room, then lacks a page.
    submit_all(engine, {"a": (text(("A", 8), ("B", 2)), 0), "b": (8, 0)})
    report = step(engine)
    assert report.scheduled == {"a": 2}
    assert [admission.reused for admission in report.admissions] == [8]
    assert step(engine).scheduled == {"b": 8}


def test_slots_count_those_that_run() -> None:
    engine = radix("4/16/64", max_num_seqs=2)
    submit_all(engine, {"a": (4, 3), "b": (4, 1), "c": (4, 1)})
    assert step(engine).scheduled == {"a": 4, "b": 4}
    assert step(engine).scheduled == {"c": 4}


def test_a_partial_takes_a_slot_of_its_pass_and_none_in_between() -> None:
    engine = radix("4/16/8", max_num_seqs=2)
    submit_all(engine, {"a": (4, 3), "b": (12, 0)})
    assert step(engine).scheduled == {"a": 4, "b": 4}
    assert engine.view().running == ("a",)
    assert step(engine).scheduled == {"b": 8}
    engine = radix("4/16/8", max_num_seqs=1)
    submit_all(engine, {"a": (12, 0), "b": (4, 0)})
    assert [report.scheduled for report in drain(engine)] == [{"a": 8}, {"a": 4}, {"b": 4}]


def test_a_request_for_no_token_may_be_cached_whole() -> None:
    engine = radix("4/16/64")
    submit(engine, "seed", text(("A", 8)))
    drain(engine)
    submit(engine, "none", text(("A", 8)))
    report = step(engine)
    assert report.scheduled == {"none": 0}
    assert report.admissions[0].reused == 8
    assert told(report) == ["none done, no token"]
    assert report.end_ns == report.start_ns


def test_the_input_budget_is_kept_too() -> None:
    engine = radix("4/16/64", max_prefill_tokens=8)
    submit_all(engine, {"a": (4, 0), "b": (8, 0)})
    assert [report.scheduled for report in steps(engine, 2)] == [{"a": 4, "b": 4}, {"b": 4}]


def test_prompts_beyond_the_model_length_are_refused_before_anything_else() -> None:
    engine = radix("4/16/64", max_model_len=8)
    submit_all(engine, {"a": (4, 9), "long": (8, 1), "b": (7, 5)})
    report = step(engine)
    assert told(report) == ["long rejected", "b done", "a"]
    assert report.scheduled == {"a": 4, "b": 7}
    assert {id_: request.output for id_, request in engine.view().requests.items()} == {"a": 4}
    assert sum(report.emitted.get("a", 0) for report in drain(engine)) == 3


def test_an_admission_that_finds_no_page_puts_the_request_back() -> None:
    parts = Parts("1/4")
    parts.cache("seed", text(("A", 3)))
    parts.run("b", text(("A", 3), ("B", 1)), 0)
    waiting = parts.request("c", text(("A", 2), ("C", 2)))
    assert not parts.allocate(waiting)
    assert list(parts.core.waiting) == [waiting]
    assert waiting.node is parts.core.tree.root
