"""Forward-pass metrics (vLLM specification 3.11): which requests are counted where, and the exact sums and variances."""

from __future__ import annotations

from fractions import Fraction

from model.paged.metrics import ForwardMetrics, forward_metrics, variance
from tests.paged.driver import FINDING_9, drafts, measured, paged, preempted, step, submit, submit_all, text

ZERO = Fraction(0)
IDLE = ForwardMetrics(0, 0, 0, ZERO, 0, 0, ZERO, 0, 0, ZERO, 0, 0, ZERO, 0)


def test_variance_is_that_of_the_whole_population_and_exact() -> None:
    assert variance([]) == variance([7]) == 0
    assert variance([4, 12]) == 16
    assert variance([1, 2, 4]) == Fraction(14, 9)


def test_an_idle_pass_measures_nothing() -> None:
    assert measured(paged("4/8/-/-")) == IDLE


def test_every_figure_of_a_pass_with_prefills_decodes_and_both_queues() -> None:
    engine = paged("4/8/11/-")
    submit_all(engine, {"d1": (4, 9), "d2": (2, 9)})
    step(engine)
    submit_all(engine, {"p1": (6, 2), "p2": (9, 2), "w1": (3, 1), "w2": (6, 1)})
    assert measured(engine) == ForwardMetrics(
        num_prefill_requests=2,
        sum_prefill_tokens=6 + 3,
        sum_prefill_kv_tokens=0,
        var_prefill_length=Fraction(9, 4),
        num_decode_requests=2,
        sum_decode_kv_tokens=5 + 3,
        var_decode_kv_tokens=Fraction(1),
        num_queued_prefill=2,
        sum_queued_prefill_tokens=3 + 6,
        var_queued_prefill_length=Fraction(9, 4),
        num_queued_decode=0,
        sum_queued_decode_kv_tokens=0,
        var_queued_decode_kv_tokens=ZERO,
        wall_time_ns=9_000_000 + 1_000_000,
    )


def test_preempted_requests_queue_for_decode_with_all_their_tokens() -> None:
    engine = paged("4/4/-/-")
    submit_all(engine, {"a": (7, 9), "b": (5, 3)})
    while not preempted([report := step(engine)]):
        pass
    submit(engine, "c", 2, 1)
    metrics = forward_metrics(report, engine.view())
    assert (metrics.num_queued_decode, metrics.sum_queued_decode_kv_tokens) == (1, 5 + 2)
    assert (metrics.num_queued_prefill, metrics.sum_queued_prefill_tokens) == (1, 2)


def test_generated_tokens_computed_again_count_as_prefill_tokens() -> None:
    engine = paged("4/4/-/-")
    submit_all(engine, {"a": (7, 3), "b": (5, 3)})
    while not preempted([step(engine)]):
        pass
    metrics = measured(engine)
    while not metrics.num_prefill_requests:
        metrics = measured(engine)
    assert (metrics.num_prefill_requests, metrics.sum_prefill_tokens, metrics.num_decode_requests) == (1, 5 + 2, 0)


def test_cached_prompt_tokens_are_kv_tokens_of_the_prefill() -> None:
    engine = paged("4/8/-/-", prefix_caching=True)
    submit(engine, "seed", text(("A", 8)), 1)
    step(engine)
    submit(engine, "r", text(("A", 8), ("B", 3)), 1)
    metrics = measured(engine)
    assert (metrics.sum_prefill_tokens, metrics.sum_prefill_kv_tokens) == (3, 8)


def test_a_request_that_was_complete_when_scheduled_is_no_decode() -> None:
    engine = paged("4/8/-/-", prefix_caching=True)
    submit(engine, "seed", text(("A", 4)), 0)
    assert measured(engine).num_decode_requests == 0
    submit(engine, "r", text(("A", 4)), 0)
    assert measured(engine) == IDLE


def test_an_emission_victim_is_among_the_scheduled_and_in_the_queue() -> None:
    engine = paged("4/4/-/-", speculation=drafts(1), defects=[FINDING_9])
    submit_all(engine, {"p": (8, 1), "q": (8, 1)})
    metrics = measured(engine)
    assert (metrics.num_prefill_requests, metrics.sum_prefill_tokens) == (2, 16)
    assert (metrics.num_queued_decode, metrics.sum_queued_decode_kv_tokens) == (1, 8)


def test_a_schedule_victim_is_not_among_the_scheduled() -> None:
    engine = paged("4/3/-/-", preemption="fifo")
    submit_all(engine, {"a": (2, 9), "b": (4, 3), "c": (2, 3)})
    step(engine)
    report = step(engine)
    assert preempted([report]) == ["a"]
    metrics = forward_metrics(report, engine.view())
    assert (metrics.num_decode_requests, metrics.sum_decode_kv_tokens) == (1, 5)


def test_the_wall_time_is_that_of_the_pass_and_not_of_the_run() -> None:
    engine = paged("4/8/-/-")
    submit(engine, "r", 8, 3)
    assert [measured(engine).wall_time_ns for _ in range(3)] == [8_000_000, 1_000_000, 1_000_000]
    assert measured(engine) == IDLE
