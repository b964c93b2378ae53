"""Virtual time of a pass, decode batches and accept counters (vLLM specification 3.6, 3.8, 3.11)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from model.actions import Advance
from model.paged.engine import PagedEngine
from tests.paged.driver import cancel, drafts, drain, paged, step, steps, submit, submit_all, text

MS = 1_000_000
TIMING = {"prefill_ms": 1000, "prefill_ms_per_token": 10, "decode_ms": 100, "decode_ms_per_request": 1}
"""Every part of a duration has a decimal digit of its own."""


def timed(geometry: str, **options: Any) -> PagedEngine:
    """An engine whose durations tell what was charged."""
    return paged(geometry, timing=TIMING, **options)


def durations(engine: PagedEngine) -> list[int | Fraction]:
    """Milliseconds of each pass until the engine is idle."""
    return [Fraction(report.end_ns - report.start_ns, MS) for report in drain(engine)]


def test_a_first_token_behind_its_prefill_is_not_in_the_decode_batch() -> None:
    engine = timed("4/8/-/-")
    submit(engine, "r", 8, 3)
    assert durations(engine) == [1080, 101, 101]


def test_each_chunk_takes_the_time_of_its_tokens() -> None:
    engine = timed("4/8/5/-")
    submit(engine, "r", 8, 2)
    assert durations(engine) == [1050, 1030, 101]


def test_prefills_of_one_pass_share_the_base_time_and_decodes_come_on_top() -> None:
    engine = timed("4/16/-/-")
    submit(engine, "old", 4, 3)
    step(engine)
    submit_all(engine, {"a": (4, 1), "b": (6, 1)})
    assert durations(engine) == [1000 + 10 * 10 + 101, 101]


def test_cached_tokens_take_no_time() -> None:
    engine = timed("4/16/-/-", prefix_caching=True)
    submit(engine, "seed", text(("A", 8)), 1)
    drain(engine)
    submit(engine, "r", text(("A", 9)), 1)
    assert durations(engine) == [1010]


def test_with_speculation_first_tokens_are_in_the_decode_batch() -> None:
    engine = timed("4/16/-/-", speculation=drafts(2, accepted=2))
    submit_all(engine, {"a": (4, 6), "b": (4, 3)})
    assert durations(engine) == [1080 + 102, 101]


def test_a_request_for_no_token_is_in_no_decode_batch() -> None:
    for speculation in (None, drafts(1)):
        engine = timed("4/16/-/-", speculation=speculation)
        submit(engine, "none", 4, 0)
        assert durations(engine) == [1040]


def test_a_request_admitted_again_is_in_the_decode_batch_and_only_its_prompt_is_prefill_time() -> None:
    engine = timed("4/4/-/-")
    submit_all(engine, {"a": (7, 3), "b": (5, 3)})
    # Pass 3: a takes the third block, b goes on; pass 4 ends a after b gave way.
    reports = drain(engine)
    (again,) = [report for report in reports for admission in report.admissions if not admission.first]
    assert again.work["b"].prompt_tokens == 5
    assert again.work["b"].total == 7
    assert again.end_ns - again.start_ns == (1000 + 10 * 5 + 101) * MS
    assert again.decode_batch == 1


def test_computing_generated_tokens_again_behind_a_wholly_cached_prompt_is_no_prefill() -> None:
    engine = timed("4/5/-/-", prefix_caching=True)
    submit_all(engine, {"r1": (4, 9), "r2": (4, 9)})
    while engine.view().requests["r2"].status != "preempted":
        step(engine)
    cancel(engine, "r1")
    report = step(engine)
    assert report.work["r2"].prompt_tokens == 0
    assert report.end_ns - report.start_ns == 101 * MS


def test_a_prefill_worker_takes_no_decode_time_and_a_decode_worker_no_prefill_time() -> None:
    # A decode worker counts a first token as a decode, with speculation or without.
    for role, expected in (("prefill", [1080, 0]), ("decode", [101, 101])):
        for speculation in (None, drafts(1)):
            engine = timed("4/16/-/-", role=role, speculation=speculation)
            submit(engine, "r", 8, 2)
            assert durations(engine) == expected


def test_a_pass_may_take_no_time_at_all() -> None:
    nothing = {"prefill_ms": 0, "prefill_ms_per_token": 0, "decode_ms": 0, "decode_ms_per_request": 0}
    engine = paged("4/8/-/-", timing=nothing)
    submit(engine, "r", 8, 2)
    reports = drain(engine)
    assert [report.end_ns for report in reports] == [0, 0]
    assert all(report.had_effect for report in reports)


def test_a_pass_that_only_preempts_takes_no_time_and_has_an_effect() -> None:
    engine = timed("4/2/-/-", speculation=drafts(1), defects=["speculative-terminal-block"], role="decode")
    submit(engine, "r", 8, 1)
    report = step(engine)
    assert report.start_ns == report.end_ns
    assert report.had_effect
    assert not report.made_progress


def test_each_pass_starts_where_the_one_before_ended_and_time_can_be_moved_on() -> None:
    engine = timed("4/8/-/-")
    submit(engine, "r", 8, 3)
    first = step(engine)
    moved = engine.apply(Advance(Fraction(1, 3)))
    second = step(engine)
    assert (first.start_ns, first.end_ns) == (0, 1080 * MS)
    assert (moved.start_ns, moved.end_ns) == (1080 * MS, 1080 * MS + Fraction(1, 3))
    assert (second.start_ns, second.end_ns) == (moved.end_ns, moved.end_ns + 101 * MS)


def test_advancing_to_the_next_deadline_stands_still_where_there_is_none() -> None:
    engine = timed("4/8/-/-")
    assert engine.apply(Advance()).end_ns == 0
    assert engine.view().next_deadline_ns is None


# --- accept counters --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "accepted", "emitted", "counted"),
    [
        # One token behind the prefill, then three and three: six in two forwards.
        (7, (0, 2, 2), [1, 3, 3], [(0, 0), (3, 1), (3, 1)]),
        # The last burst is cut by the output and still counts in full.
        (5, (0, 2, 2), [1, 3, 1], [(0, 0), (3, 1), (3, 1)]),
        # A burst behind the prefill counts in neither.
        (6, (2, 0, 1), [3, 1, 2], [(0, 0), (1, 1), (2, 1)]),
    ],
)
def test_accepted_tokens_are_counted_by_decode_forward_before_any_limit(
    output: int, accepted: tuple[int, ...], emitted: list[int], counted: list[tuple[int, int]]
) -> None:
    engine = paged("4/16/-/-", speculation=drafts(2))
    submit(engine, "r", 4, output)
    reports = [step(engine, r=count) for count in accepted]
    assert not engine.busy
    assert [report.emitted["r"] for report in reports] == emitted
    assert [(report.accept_tokens, report.accept_forwards) for report in reports] == counted


def test_without_speculation_every_decode_accepts_one() -> None:
    engine = paged("4/16/-/-")
    submit_all(engine, {"a": (4, 3), "b": (4, 2)})
    assert [(report.accept_tokens, report.accept_forwards) for report in drain(engine)] == [(0, 0), (2, 2), (1, 1)]


def test_an_action_chooses_for_the_requests_it_names_and_the_configuration_for_the_rest() -> None:
    engine = paged("4/16/-/-", speculation=drafts(2, accepted=1))
    submit_all(engine, {"a": (4, 9), "b": (4, 9)})
    assert step(engine, a=2).emitted == {"a": 3, "b": 2}
    # No more can be accepted than was drafted.
    assert step(engine, b=7).emitted == {"a": 2, "b": 3}


def test_a_prefill_worker_drafts_nothing() -> None:
    engine = paged("4/16/-/-", speculation=drafts(2, accepted=2), role="prefill")
    submit(engine, "r", 4, 2)
    assert [report.emitted for report in steps(engine, 2)] == [{"r": 1}, {"r": 1}]
