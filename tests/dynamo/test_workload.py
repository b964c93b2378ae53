from __future__ import annotations

import pytest

from adapters.workload import TimedRequest, Workload
from model.errors import BadInput
from model.requests import Prompt, RequestSpec
from tests.dynamo.support import arriving


def named(id_: str, at_ns: int) -> TimedRequest:
    return TimedRequest(RequestSpec(id_, Prompt.of_tokens([1]), 1), at_ns)


def test_requests_stand_in_order_of_arrival_and_equal_ones_as_given() -> None:
    workload = Workload([named("late", 30), named("x", 10), named("a", 10)])
    assert [timed.id for timed in workload.requests] == ["x", "a", "late"]


def test_the_first_arrival_is_at_zero_and_gaps_are_kept() -> None:
    workload = Workload([named("a", 70), named("b", 100)])
    assert [timed.arrival_ns for timed in workload.requests] == [0, 30]
    assert workload.last_arrival_ns == 30


def test_an_id_is_used_once() -> None:
    with pytest.raises(BadInput, match="each id once"):
        Workload([named("a", 0), named("a", 1)])


def test_no_request_is_a_workload_too() -> None:
    assert arriving().last_arrival_ns == 0
