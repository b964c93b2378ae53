"""How requests end: refused, cut at the model length, without a token, withdrawn (vLLM specification 2.1, 3.2, 3.6, 3.9)."""

from __future__ import annotations

import pytest

from model.errors import BadInput
from model.events import StepReport
from model.paged.engine import PagedEngine
from model.views import PREEMPTED, RUNNING, WAITING
from tests.paged.driver import cancel, drafts, drain, paged, preempted, step, steps, submit, submit_all, text, tokens_out, told

# --- the cap on model length ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "output", "tokens"),
    [(7, 9, 1), (6, 9, 2), (6, 2, 2), (6, 1, 1), (7, 0, 0), (8, 9, None), (9, 1, None), (8, 0, None)],
)
def test_the_model_length_cuts_the_output_and_refuses_a_prompt_that_reaches_it(
    prompt: int, output: int, tokens: int | None
) -> None:
    for speculation in (None, drafts(2, accepted=2)):
        engine = paged("4/8/-/-", max_model_len=8, speculation=speculation)
        submit(engine, "r", prompt, output)
        reports = drain(engine)
        if tokens is None:
            assert [told(report) for report in reports] == [["r rejected"]]
            assert reports[0].work == {}
        else:
            assert tokens_out(reports) == tokens
            assert told(reports[-1])[-1] == ("r done" if tokens else "r done, no token")


def test_a_request_cut_by_the_model_length_is_served_where_the_whole_would_not_fit() -> None:
    for cap, signals in ((9, ["r done"]), (None, ["r rejected"])):
        engine = paged("4/2/-/-", max_model_len=cap)
        submit(engine, "r", 8, 100)
        assert told(step(engine)) == signals


def test_servable_is_what_the_admission_rule_serves() -> None:
    for chunked in (True, False):
        for cap in (None, 7, 9):
            engine = paged("4/2/6/-", max_model_len=cap, chunked_prefill=chunked)
            verdicts = set()
            for prompt in range(1, 11):
                for output in range(4):
                    submit(engine, "r", prompt, output)
                    servable = engine.servable(engine.registry.specs[-1])
                    assert (told(drain(engine)[-1]) != ["r rejected"]) is servable
                    verdicts.add(servable)
            assert verdicts == {True, False}


# --- no token wanted --------------------------------------------------------------------------------------------------


def test_a_request_for_no_token_computes_its_prompt_in_chunks_and_ends_with_the_last() -> None:
    engine = paged("4/4/4/-")
    submit(engine, "r", 10, 0)
    assert [(report.scheduled, told(report)) for report in drain(engine)] == [
        ({"r": 4}, []),
        ({"r": 4}, []),
        ({"r": 2}, ["r done, no token"]),
    ]


def test_requests_for_no_token_are_told_before_those_that_emit() -> None:
    for speculation in (None, drafts(1)):
        engine = paged("4/8/-/-", speculation=speculation)
        submit_all(engine, {"a": (4, 2), "none": (4, 0), "b": (4, 1)})
        assert told(step(engine)) == ["none done, no token", "a", "b done"]


def test_a_request_for_no_token_gives_its_blocks_back_before_bursts_look_for_room() -> None:
    engine = paged("4/3/-/-", speculation=drafts(1))
    submit_all(engine, {"burst": (4, 3), "none": (8, 0)})
    report = step(engine)
    assert preempted([report]) == []
    assert told(report) == ["none done, no token", "burst"]


# --- planned output ---------------------------------------------------------------------------------------------------


def test_the_number_of_planned_tokens_replaces_the_output_asked_for() -> None:
    engine = paged("4/8/-/-")
    submit(engine, "r", 4, 100, planned=(5, 6))
    assert engine.view().requests["r"].output == 2
    assert tokens_out(drain(engine)) == 2


def test_requests_with_the_same_prompt_and_plan_share_generated_blocks() -> None:
    engine = paged("4/8/-/-", prefix_caching=True)
    for id_, reused in (("first", 0), ("second", 4)):
        submit(engine, id_, text(("A", 5)), 0, planned=(1, 2, 3, 1, 2))
        reports = drain(engine)
        assert reports[0].admissions[0].reused == reused
        assert len(engine.view().cached or ()) == 2
    submit(engine, "other", text(("A", 5)), 0, planned=(1, 2, 4, 1, 2))
    drain(engine)
    assert len(engine.view().cached or ()) == 3


# --- withdrawal -------------------------------------------------------------------------------------------------------


def with_one_of_each() -> PagedEngine:
    """An engine with a running, a preempted and a waiting request."""
    engine = paged("4/4/-/-", prefix_caching=True)
    submit_all(engine, {"running": (7, 9), "preempted": (5, 4)})
    reports: list[StepReport] = []
    while not preempted(reports):
        reports += steps(engine, 1)
    submit(engine, "waiting", 4, 1)
    return engine


def test_cancel_reaches_a_request_in_every_status() -> None:
    for id_, status in (("running", RUNNING), ("preempted", PREEMPTED), ("waiting", WAITING)):
        engine = with_one_of_each()
        assert engine.view().requests[id_].status == status
        report = cancel(engine, id_)
        view = engine.view()
        assert report.cancelled == [id_]
        assert not report.is_pass
        assert id_ not in view.requests
        assert id_ not in view.running + view.waiting
        assert {*view.running, *view.waiting} == set(view.requests)
        drain(engine)
        assert engine.view().pool.active == 0


def test_cancelling_a_running_request_frees_private_blocks_and_keeps_cached_ones_evictable() -> None:
    engine = with_one_of_each()
    held = engine.view().requests["running"]
    assert (len(held.blocks), held.computed) == (3, 9)
    before = engine.view().pool
    cancel(engine, "running")
    after = engine.view().pool
    assert (before.active, after.active) == (3, 0)
    assert (after.inactive - before.inactive, after.free - before.free) == (2, 1)


def test_a_block_shared_with_a_cancelled_request_stays_with_the_other() -> None:
    engine = paged("4/8/-/-", prefix_caching=True)
    submit_all(engine, {"a": (text(("A", 9)), 4), "b": (text(("A", 10)), 4)})
    step(engine)
    assert [block.refs for block in engine.view().blocks or ()] == [2, 2, 1, 1]
    cancel(engine, "a")
    assert [block.refs for block in engine.view().blocks or ()] == [1, 1, 1]
    assert engine.view().pool.inactive == 0


def test_cancelling_an_unknown_or_ended_request_does_nothing() -> None:
    engine = paged("4/8/-/-")
    submit_all(engine, {"ended": (4, 1), "live": (4, 5)})
    step(engine)
    before = engine.freeze()
    for id_ in ("ended", "never heard of"):
        report = cancel(engine, id_)
        assert report.cancelled == []
        assert not report.had_effect
    assert engine.freeze() == before


def test_a_cancelled_id_is_free_again_at_once() -> None:
    engine = paged("4/8/-/-")
    submit(engine, "r", 4, 5)
    with pytest.raises(BadInput):
        submit(engine, "r", 4, 5)
    cancel(engine, "r")
    submit(engine, "r", 4, 5)
    assert step(engine).scheduled == {"r": 4}


def test_cancel_takes_no_time_and_makes_progress() -> None:
    engine = with_one_of_each()
    report = cancel(engine, "running")
    assert report.start_ns == report.end_ns
    assert report.made_progress


def test_an_idle_pass_has_no_effect() -> None:
    engine = paged("4/8/-/-")
    report = step(engine)
    assert report.is_pass
    assert not report.had_effect
    assert not engine.busy
