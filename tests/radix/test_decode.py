"""First tokens, decode steps, retraction, the new-token ratio, time (SGLang specification 2)."""

from __future__ import annotations

import pytest

from model.radix.core import Pass
from model.radix.decode import decode, estimated_ratio, first_tokens
from tests.radix.audit import audit
from tests.radix.driver import Parts, cancel, drain, radix, retracted, step, steps, submit, submit_all, text, told

MS = 1_000_000


def test_signals_of_a_prefill_pass_come_by_kind() -> None:
    engine = radix("4/16/64")
    submit_all(engine, {"three": (4, 3), "one": (4, 1), "none": (4, 0), "two": (4, 2), "other": (4, 0)})
    assert told(step(engine)) == ["none done, no token", "other done, no token", "one done", "three", "two"]


def test_without_pages_for_all_first_tokens_there_is_none() -> None:
    parts = Parts("4/3")
    fresh = [parts.run("a", 4, 3), parts.run("b", 4, 3)]
    work = Pass(parts.report, {})
    first_tokens(parts.core, work, fresh)
    audit(parts.core)
    assert told(work.report) == []
    assert [request.computed for request in fresh] == [4, 4]
    work = Pass(parts.report, {})
    decode(parts.core, work)
    assert retracted([work.report]) == ["a"]
    assert told(work.report) == ["b"]


def test_first_tokens_retract_nobody() -> None:
    engine = radix("2/6/8", schedule_conservativeness=0)
    submit_all(engine, {"b": (3, 5), "a": (1, 5)})
    for report in drain(engine):
        if report.admissions or (report.work and not report.decode_batch):
            assert report.preemptions == []


def test_a_final_token_takes_a_slot_unless_it_is_the_first() -> None:
    parts = Parts("2/8")
    one, two = parts.run("one", 2, 1), parts.run("two", 2, 2, generated=1)
    work = Pass(parts.report, {})
    first_tokens(parts.core, work, [one])
    assert (one.generated, one.computed) == (1, 0), "its lease has ended with no slot taken"
    decode(parts.core, work)
    assert parts.matches(text(("two", 2))) == 2
    assert two.generated == 2
    engine = radix("1/4/8")
    submit(engine, "a", 1, 2)
    first, second = steps(engine, 2)
    assert told(first) == ["a"]
    assert told(second) == ["a done"]
    # Prompt, first and final token: three pages stay cached.
    assert engine.core.tree.stored == 3


def test_the_victim_has_produced_least_and_of_equals_runs_longest() -> None:
    parts = Parts("1/6")
    for id_, generated in (("a", 1), ("b", 0), ("c", 0)):
        parts.run(id_, 2 - generated, 9, generated=generated)
    work = Pass(parts.report, {})
    decode(parts.core, work)
    assert retracted([work.report]) == ["b"]
    assert [request.id for request in parts.core.running] == ["a", "c"]
    assert [request.id for request in parts.core.waiting] == ["b"]
    audit(parts.core)


def test_several_are_retracted_in_the_order_in_which_they_wait() -> None:
    # Each of three needs a page and there is none; the one that the first gives back is not enough for two.
    parts = Parts("4/3")
    for id_ in "abc":
        parts.run(id_, 4, 9)
    work = Pass(parts.report, {})
    decode(parts.core, work)
    first = work.report.preemptions[0]
    assert (first.victim, first.needed, first.free, first.requests) == ("a", 3, 0, ("a", "b", "c"))
    assert retracted([work.report]) == ["a", "b"]
    assert [request.id for request in parts.core.waiting] == ["a", "b"]
    assert told(work.report) == ["c"]


def test_the_last_running_request_is_never_retracted() -> None:
    parts = Parts("4/1")
    request = parts.run("a", 4, 9)
    work = Pass(parts.report, {})
    assert not decode(parts.core, work)
    assert not work.report.had_effect
    assert parts.core.now == 0
    assert parts.core.running == [request]


@pytest.mark.parametrize(
    ("generated", "limits", "ratio"),
    [((1,), (2,), 1.0), ((10,), (99,), 30 / 100), ((0, 5), (100, 200), 45 / 301), ((24,), (30,), 1.0)],
)
def test_the_ratio_after_a_retraction(generated: tuple[int, ...], limits: tuple[int, ...], ratio: float) -> None:
    parts = Parts("4/64")
    survivors = [
        parts.request(f"r{number}", 4, limit, generated=produced)
        for number, (produced, limit) in enumerate(zip(generated, limits, strict=True))
    ]
    assert estimated_ratio(survivors) == ratio


def test_the_ratio_falls_in_passes_without_a_prefill_batch_down_to_its_least() -> None:
    engine = radix("4/64/64")
    submit(engine, "a", 4, 200)
    first, *_ = steps(engine, 1)
    assert first.admissions
    assert engine.core.ratio == 0.7
    step(engine)
    assert engine.core.ratio == 0.7 - (0.7 - 0.7 * 0.14) / 600
    for _ in range(3):
        submit(engine, f"r{_}", 4)
        before = engine.core.ratio
        step(engine)
        assert engine.core.ratio == before
    for _ in range(700):
        step(engine)
    assert engine.core.ratio == 0.7 * 0.14


def test_a_deferred_pass_with_nothing_to_decode_sets_the_ratio_back() -> None:
    engine = radix("4/64/4", prefill_decode_interval=1)
    submit(engine, "a", 4, 3)
    drain(engine)
    assert engine.core.ratio < 0.7
    submit(engine, "b", 8)
    step(engine)
    assert engine.core.deferred_passes == 1
    report = step(engine)
    assert not report.had_effect
    assert (engine.core.ratio, engine.core.deferred_passes) == (0.7, 0)


def test_the_countdown_goes_on_in_passes_of_an_idle_engine() -> None:
    engine = radix("4/64/4", prefill_decode_interval=3)
    submit(engine, "a", 4)
    step(engine)
    left = []
    for _ in range(4):
        left.append(engine.core.deferred_passes)
        step(engine)
    assert left == [3, 2, 1, 0]


def test_bursts_are_cut_by_the_output_and_unused_pages_go_back() -> None:
    engine = radix("1/16/8", speculation={"draft_tokens": 3})
    submit(engine, "a", 1, 7)
    assert engine.speculating() == ()
    step(engine)
    assert engine.speculating() == ("a",)
    report = step(engine, a=1)
    assert report.scheduled == {"a": 2}
    assert (report.accept_tokens, report.accept_forwards) == (2, 1)
    assert engine.core.pool.available == 16 - 4
    step(engine, a=0)
    report = step(engine, a=3)
    assert told(report) == ["a", "a", "a done"]
    assert report.accept_tokens == 4, "counted before the output cuts it"


def test_room_is_set_aside_for_the_largest_burst() -> None:
    for draft_tokens, victims in ((1, []), (2, ["a"])):
        parts = Parts("1/6", speculation={"draft_tokens": draft_tokens})
        parts.run("a", 1, 9)
        parts.run("b", 1, 9, generated=0)
        work = Pass(parts.report, {"a": 0, "b": 0})
        decode(parts.core, work)
        assert retracted([work.report]) == victims
        audit(parts.core)


TIMING = {"prefill_ms": 10, "prefill_ms_per_token": 0, "decode_ms": 5}


def test_fixed_times() -> None:
    engine = radix("4/16/8", timing=TIMING)
    submit_all(engine, {"a": (8, 2), "b": (4, 1)})
    ends = [report.end_ns for report in drain(engine)]
    assert ends == [10 * MS, 20 * MS, 25 * MS]


def test_a_batch_whose_few_tokens_vanish_in_the_means_takes_no_time() -> None:
    engine = radix("1/16/8", timing=TIMING)
    submit(engine, "seed", text(("A", 2)))
    drain(engine)
    before = engine.core.now
    submit_all(engine, {"cached": (text(("A", 2)), 0), "cold": (1, 0)})
    report = step(engine)
    assert report.scheduled == {"cached": 0, "cold": 1}
    assert engine.core.now == before


def test_times_by_token_and_by_request() -> None:
    timing = {"prefill_ms": 3, "prefill_ms_per_token": 2, "decode_ms": 5, "decode_ms_per_request": 0.5}
    engine = radix("4/16/64", timing=timing)
    submit_all(engine, {"a": (8, 2), "b": (3, 3)})
    ends = [report.end_ns for report in drain(engine)]
    assert ends == [25 * MS, 31 * MS, int(36.5 * MS)]


def test_a_cancelled_request_leaves_what_it_cached() -> None:
    engine = radix("4/16/8")
    submit(engine, "a", text(("A", 16)), 4)
    step(engine)
    assert cancel(engine, "a").cancelled == ["a"]
    assert not engine.busy
    view = engine.view()
    assert (view.pool.active, view.pool.inactive) == (0, 2)
    submit(engine, "a", text(("A", 16)), 4)
    assert step(engine).admissions[0].reused == 8


@pytest.mark.parametrize("passes", range(4))
def test_a_request_can_be_cancelled_at_any_time(passes: int) -> None:
    engine = radix("4/8/4", schedule_conservativeness=0)
    submit_all(engine, {"a": (6, 4), "b": (8, 2)})
    steps(engine, passes)
    assert cancel(engine, "a").cancelled == ["a"]
    assert cancel(engine, "a").cancelled == []
    drain(engine)
    assert engine.view().pool.active == 0
