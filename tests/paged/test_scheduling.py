"""Budget, slots and queue order (vLLM specification 3.1, 3.2, 3.4, 3.5)."""

from __future__ import annotations

import pytest

from model.errors import BadInput
from model.events import Work
from tests.paged.driver import drafts, drain, livelocks, paged, preempted, step, steps, submit, submit_all, text, told

# --- the budget -------------------------------------------------------------------------------------------------------


def test_running_requests_come_first_and_the_rest_of_the_budget_goes_to_a_chunk() -> None:
    engine = paged("4/16/4/-")
    submit(engine, "a", 4, 5)
    step(engine)
    submit(engine, "b", 8, 1)
    assert [report.scheduled for report in steps(engine, 3)] == [{"a": 1, "b": 3}] * 2 + [{"a": 1, "b": 2}]


def test_the_running_phase_ends_where_the_budget_does() -> None:
    engine = paged("4/16/2/-")
    submit_all(engine, {"a": (2, 3), "b": (1, 3), "c": (1, 3)})
    reports = drain(engine)
    assert all(sum(report.scheduled.values()) <= 2 for report in reports)
    assert [report.scheduled for report in reports] == [
        {"a": 2},
        {"a": 1, "b": 1},
        {"a": 1, "b": 1},
        {"b": 1, "c": 1},
        {"c": 1},
        {"c": 1},
    ]


def test_the_work_of_a_pass_tells_prompt_and_generated_tokens_apart() -> None:
    engine = paged("4/16/6/-")
    submit(engine, "r", 8, 2)
    assert [step(engine).work["r"] for _ in range(3)] == [
        Work("r", total=6, prompt_tokens=6, prefix_tokens=0, terminal=False, prompt=8, length=8, generated=0),
        Work("r", total=2, prompt_tokens=2, prefix_tokens=6, terminal=False, prompt=8, length=8, generated=0),
        Work("r", total=1, prompt_tokens=0, prefix_tokens=8, terminal=False, prompt=8, length=9, generated=1),
    ]


def test_a_speculative_decode_costs_one_token_of_budget() -> None:
    engine = paged("4/16/4/-", speculation=drafts(3, accepted=3))
    submit(engine, "r", 4, 12)
    step(engine)
    report = step(engine)
    assert report.scheduled == {"r": 1}
    assert report.emitted == {"r": 4}


def test_without_a_limit_everything_that_fits_is_scheduled_in_one_pass() -> None:
    engine = paged("4/100/-/-")
    submit_all(engine, {f"r{number}": (20, 1) for number in range(20)})
    assert step(engine).scheduled == {f"r{number}": 20 for number in range(20)}


def test_with_no_budget_left_the_head_is_still_judged() -> None:
    engine = paged("4/4/8/-")
    submit_all(engine, {"fills": (8, 2), "too large": (17, 1), "waits": (4, 1)})
    report = step(engine)
    assert told(report) == ["fills", "too large rejected"]
    assert engine.view().waiting == ("waits",)


def test_with_no_budget_left_one_request_that_needs_none_is_admitted_and_no_more() -> None:
    for budget, second in (("4", 1), ("5", 2)):
        engine = paged(f"4/16/{budget}/-", prefix_caching=True)
        submit(engine, "seed", text(("A", 4)), 0)
        drain(engine)
        submit_all(engine, {"spends": (4, 2), "z1": (text(("A", 4)), 0), "z2": (text(("A", 4)), 0)})
        report = step(engine)
        assert [admission.id for admission in report.admissions] == ["spends", "z1", "z2"][: 1 + second]
        assert [id_ for id_, tokens in report.scheduled.items() if not tokens] == ["z1", "z2"][:second]


# --- chunked prefill off ----------------------------------------------------------------------------------------------


def test_unchunked_a_prompt_waits_for_a_pass_with_room_for_all_of_it() -> None:
    engine = paged("4/16/8/-", chunked_prefill=False)
    submit_all(engine, {"a": (6, 2), "b": (6, 1), "c": (2, 1)})
    assert [report.scheduled for report in drain(engine)] == [{"a": 6}, {"a": 1, "b": 6}, {"c": 2}]


def test_unchunked_only_what_is_not_cached_must_fit_the_rest_of_the_budget() -> None:
    engine = paged("4/16/8/-", chunked_prefill=False, prefix_caching=True)
    submit(engine, "seed", text(("A", 4)), 0)
    drain(engine)
    submit(engine, "a", 4, 1)
    submit(engine, "b", text(("A", 8)), 1)
    assert step(engine).scheduled == {"a": 4, "b": 4}


def test_unchunked_a_prompt_beyond_the_budget_is_refused() -> None:
    engine = paged("4/16/8/-", chunked_prefill=False)
    submit_all(engine, {"large": (9, 1), "next": (8, 1)})
    assert told(step(engine)) == ["next done", "large rejected"]


def test_unchunked_a_prompt_beyond_the_budget_blocks_the_queue_for_ever_upstream() -> None:
    engine = paged("4/16/8/-", chunked_prefill=False, defects=["admits-unservable"])
    submit_all(engine, {"large": (9, 1), "next": (8, 1)})
    stuck, reports = livelocks(engine)
    assert stuck
    assert not any(report.had_effect for report in reports)


def test_unchunked_generated_tokens_are_computed_again_in_pieces() -> None:
    engine = paged("4/5/8/-", chunked_prefill=False)
    submit_all(engine, {"r1": (7, 5), "r2": (7, 5)})
    reports = drain(engine)
    assert preempted(reports) == ["r2"]
    # Nine tokens are due again: the prompt by itself fits the budget, and the ninth token takes another pass.
    computed = [report.scheduled["r2"] for report in reports if "r2" in report.scheduled]
    assert computed == [7, 1, 8, 1, 1, 1]
    assert [told(report) for report in reports[-4:]] == [[], ["r2"], ["r2"], ["r2 done"]]


# --- slots and order --------------------------------------------------------------------------------------------------


def test_no_more_run_than_there_are_slots_and_a_slot_is_filled_in_the_next_pass() -> None:
    engine = paged("4/16/-/2")
    submit_all(engine, {"a": (4, 1), "b": (4, 3), "c": (4, 1), "d": (4, 1)})
    admitted = [[admission.id for admission in report.admissions] for report in drain(engine)]
    assert admitted == [["a", "b"], ["c"], ["d"]]


def test_a_refused_request_takes_no_slot() -> None:
    engine = paged("4/4/-/1")
    submit_all(engine, {"large": (17, 1), "small": (4, 1)})
    assert told(step(engine)) == ["small done", "large rejected"]


def test_a_large_head_blocks_small_followers_until_it_fits() -> None:
    engine = paged("4/4/-/-")
    submit_all(engine, {"holder": (8, 3), "head": (12, 1), "small": (1, 1)})
    reports = drain(engine)
    admitted = [[admission.id for admission in report.admissions] for report in reports]
    assert admitted == [["holder"], [], [], ["head", "small"]]
    assert preempted(reports) == []


def test_the_whole_known_length_must_fit_and_not_just_the_first_chunk() -> None:
    engine = paged("4/4/4/-")
    submit(engine, "holder", 4, 4)
    step(engine)
    submit(engine, "long", 12, 1)
    # The holder has one block of four and takes a second one for its fifth token.
    assert [admission.id for admission in step(engine).admissions] == []
    assert engine.view().pool.free == 2


def test_room_for_later_output_is_not_set_aside() -> None:
    engine = paged("4/4/-/-")
    submit_all(engine, {"a": (8, 9), "b": (8, 9)})
    assert [admission.id for admission in step(engine).admissions] == ["a", "b"]
    assert engine.view().pool.free == 0


# --- submission -------------------------------------------------------------------------------------------------------


def test_an_id_in_use_is_refused_and_nothing_changes() -> None:
    engine = paged("4/16/-/-")
    submit(engine, "r", 4, 2)
    before = engine.freeze()
    with pytest.raises(BadInput) as caught:
        submit(engine, "r", 8, 1)
    assert (caught.value.path, caught.value.allowed) == ("submit", "an id that no live request has")
    assert engine.freeze() == before


def test_an_id_may_be_used_again_once_its_request_has_ended() -> None:
    engine = paged("4/16/-/-")
    for prompt in (4, 9):
        submit(engine, "r", prompt, 1)
        assert step(engine).scheduled == {"r": prompt}
