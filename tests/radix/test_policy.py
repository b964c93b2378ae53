"""The order of the waiting queue (SGLang specification 4)."""

from __future__ import annotations

import pytest

from model.radix.policy import order_waiting
from tests.radix.driver import Parts, drain, radix, step, steps, submit, submit_all, text, told


def order(parts: Parts) -> list[str]:
    """Ids in the order of the queue, once sorted."""
    order_waiting(parts.core)
    return [request.id for request in parts.core.waiting]


def test_fcfs_leaves_the_queue_as_it_is() -> None:
    parts = Parts("1/64")
    parts.cache("seed", range(5))
    parts.request("a", [9])
    parts.request("b", range(5))
    assert order(parts) == ["a", "b"]


def test_with_caching_off_there_is_nothing_to_sort_by() -> None:
    parts = Parts("1/64", schedule_policy="lpm", prefix_caching=False)
    parts.request("a", text(("A", 32)))
    parts.request("b", text(("A", 32)))
    parts.request("c", text(("C", 32)))
    assert order(parts) == ["a", "b", "c"]


def test_the_whole_match_counts_also_the_last_token() -> None:
    parts = Parts("1/64", schedule_policy="lpm")
    parts.cache("seed", range(4))
    parts.request("three", [0, 1, 2, 9], 1)
    parts.request("four", range(4), 1)
    assert order(parts) == ["four", "three"]


def test_equals_keep_their_order() -> None:
    parts = Parts("1/64", schedule_policy="lpm")
    for id_ in "abc":
        parts.request(id_, 3)
    assert order(parts) == ["a", "b", "c"]


@pytest.mark.parametrize(("cached", "follows"), [(32, True), (33, False)])
def test_only_prompts_with_few_cached_tokens_wait_for_one_another(cached: int, follows: bool) -> None:
    parts = Parts("1/256", schedule_policy="lpm")
    parts.cache("seed", text(("A", cached)))
    parts.request("first", text(("A", 40)))
    parts.request("second", text(("A", 40)))
    parts.request("cold", text(("B", 40)))
    assert order(parts) == (["first", "cold", "second"] if follows else ["first", "second", "cold"])


@pytest.mark.parametrize(("length", "follows"), [(31, False), (32, True)])
def test_only_prompts_that_share_their_first_32_tokens_wait_for_one_another(length: int, follows: bool) -> None:
    parts = Parts("1/256", schedule_policy="lpm")
    for id_ in "ab":
        parts.request(id_, text(("A", length)))
    parts.request("c", text(("C", 40)))
    assert order(parts) == (["a", "c", "b"] if follows else ["a", "b", "c"])


@pytest.mark.parametrize(("size", "shared", "follows"), [(5, 35, True), (5, 34, False), (64, 64, True)])
def test_the_first_tokens_are_rounded_up_to_pages(size: int, shared: int, follows: bool) -> None:
    parts = Parts(f"{size}/64", schedule_policy="lpm")
    parts.request("a", text(("A", shared), ("B", 40)))
    parts.request("b", text(("A", shared), ("C", 40)))
    parts.request("c", text(("D", 40)))
    assert order(parts) == (["a", "c", "b"] if follows else ["a", "b", "c"])


def test_with_more_than_128_waiting_the_queue_is_left_as_it_is() -> None:
    for many, expected in ((126, "b"), (127, "a")):
        parts = Parts("1/1024", schedule_policy="lpm")
        parts.cache("seed", range(5))
        parts.request("a", [9])
        parts.request("b", range(5))
        for number in range(many):
            parts.request(f"r{number}", 1)
        assert order(parts)[0] == expected


def test_a_follower_finds_what_the_first_one_computed() -> None:
    engine = radix("4/64/40", schedule_policy="lpm")
    submit_all(engine, {"a": (text(("A", 40)), 1), "b": (text(("A", 40)), 1), "c": (8, 1)})
    reports = drain(engine)
    assert reports[0].scheduled == {"a": 40}
    assert reports[1].scheduled == {"b": 4, "c": 8}


def test_a_partial_stays_at_the_head_of_a_sorted_queue() -> None:
    engine = radix("1/64/2", schedule_policy="lpm")
    submit(engine, "seed", text(("A", 4)))
    drain(engine)
    submit(engine, "partial", 6)
    step(engine)
    submit(engine, "cached", text(("A", 4), ("B", 2)))
    assert [report.scheduled for report in steps(engine, 3)] == [{"partial": 2}, {"partial": 2}, {"cached": 2}]


def test_retracted_requests_go_to_the_back_and_arrivals_behind_them() -> None:
    engine = radix("4/3/8", prefix_caching=False, schedule_conservativeness=0)
    submit_all(engine, {"a": (3, 6), "b": (2, 3)})
    steps(engine, 3)
    submit(engine, "before", 8, 1)
    assert told(step(engine)) == ["b done"]
    submit(engine, "behind", 1)
    assert engine.view().waiting == ("before", "a", "behind")
