"""Finding 7: histories of ended delta sessions (replay specification 7.7). Elements, not bytes."""

from __future__ import annotations

import pytest

from model.replay.driver import CANCELED, COMPLETED, FAILED, REJECTED, Driver
from tests.replay.support import Row, driver, replay, row

RIGHT: tuple[str, ...] = ()
KEEPS = ("dead-delta-history",)
CLEARS = ("dead-delta-history:clear-keeps-capacity",)


def history(machine: Driver, session: int = 0) -> tuple[int, int]:
    """Length and capacity of a history."""
    found = machine.sessions[session].history
    assert found is not None
    return found.length, found.capacity


@pytest.mark.parametrize(("defects", "at_the_end"), [(RIGHT, (0, 0)), (KEEPS, (1, 2)), (CLEARS, (0, 2))])
def test_the_smallest_session(defects: tuple[str, ...], at_the_end: tuple[int, int]) -> None:
    rows = [row(0, input_length=1, hash_ids=[10], output_length=1, output_token_ids=[20])]
    machine = driver(rows, delta=True, defects=defects)
    assert history(machine) == (0, 2)
    machine.pop_ready(0)
    assert history(machine) == (1, 2)
    machine.on_output_token(1, 20)
    assert history(machine) == (1, 2)
    machine.terminal(1, 10, COMPLETED)
    assert history(machine) == at_the_end
    assert machine.costs.dead_history_capacity == at_the_end[1]
    assert machine.is_drained()


def two_turns() -> list[Row]:
    """Six tokens, two planned; then three new ones, one planned."""
    return [
        row(0, session_id="a", input_length=6, hash_ids=[10, 11], output_length=2, output_token_ids=[20, 21]),
        row(session_id="a", delay=5, input_length=3, hash_ids=[12], output_length=1, output_token_ids=[22]),
    ]


@pytest.mark.parametrize(("defects", "at_the_end"), [(RIGHT, (0, 0)), (KEEPS, (11, 12)), (CLEARS, (0, 12))])
def test_two_turns_token_by_token(defects: tuple[str, ...], at_the_end: tuple[int, int]) -> None:
    machine = driver(two_turns(), 4, cap=1, delta=True, defects=defects)
    assert history(machine) == (0, 12)
    (first,) = machine.pop_ready(0)
    assert list(first.prompt.tokens()) == [0] * 4 + [1] * 2
    machine.on_output_token(first.uid, 20)
    machine.on_output_token(first.uid, 21)
    machine.terminal(first.uid, 10, COMPLETED)
    assert history(machine)[0] == 8
    assert machine.next_ready_time() == 15
    (second,) = machine.pop_ready(15)
    assert list(second.prompt.tokens()) == [0] * 4 + [1] * 2 + [20, 21] + [2] * 3
    machine.terminal(second.uid, 20, COMPLETED)
    assert history(machine) == at_the_end


@pytest.mark.parametrize("status", [CANCELED, FAILED])
@pytest.mark.parametrize(("defects", "kept"), [(RIGHT, 0), (KEEPS, 4), (CLEARS, 4)])
def test_a_session_cut_short_lets_go_at_once_and_the_other_goes_on(status: str, defects: tuple[str, ...], kept: int) -> None:
    rows = []
    for name, token in (("a", 10), ("b", 30)):
        plan = [token + 1, token + 2]
        rows.append(row(0, session_id=name, input_length=1, hash_ids=[token], output_length=2, output_token_ids=plan))
        rows.append(row(session_id=name, delay=5, input_length=1, hash_ids=[token + 3], output_length=0))
    machine = driver(rows, delta=True, defects=defects)
    assert [history(machine, session)[1] for session in (0, 1)] == [4, 4]
    first, second = machine.pop_ready(0)
    machine.on_output_token(first.uid, 11)
    machine.on_output_token(second.uid, 31)
    machine.terminal(first.uid, 1, status)
    assert history(machine, 0)[1] == kept
    machine.terminal(second.uid, 2, COMPLETED)
    assert machine.next_ready_time() == 7
    assert machine.pop_ready(6) == []
    (last,) = machine.pop_ready(7)
    hashes = [number for number, _ in second.prompt.runs]
    assert list(last.prompt.tokens()) == [*hashes, 31, hashes[0] + 1]
    machine.terminal(last.uid, 8, COMPLETED)
    assert machine.is_drained()
    assert (history(machine, 0)[1], history(machine, 1)[1]) == (kept, kept)


def test_only_emitted_tokens_of_a_completed_turn_become_history() -> None:
    rows = [
        row(0, session_id="a", input_length=1, hash_ids=[10], output_length=3, output_token_ids=[20, 21, 22]),
        row(session_id="a", delay=0, input_length=1, hash_ids=[12]),
    ]
    machine = driver(rows, delta=True)
    (first,) = machine.pop_ready(0)
    machine.on_output_token(first.uid, 20)
    machine.on_output_token(first.uid, 21)
    machine.terminal(first.uid, 1, COMPLETED)
    (second,) = machine.pop_ready(1)
    assert list(second.prompt.tokens()) == [0, 20, 21, 1]


def test_the_input_of_a_rejected_turn_stays_and_its_session_lives() -> None:
    rows = [
        row(0, session_id="a", input_length=1, hash_ids=[10], output_length=1, output_token_ids=[20]),
        row(session_id="a", delay=0, input_length=1, hash_ids=[12]),
    ]
    machine = driver(rows, delta=True)
    (first,) = machine.pop_ready(0)
    machine.terminal(first.uid, 1, REJECTED)
    assert history(machine)[1] == 4
    (second,) = machine.pop_ready(1)
    assert list(second.prompt.tokens()) == [0, 1]


@pytest.mark.parametrize("defects", [RIGHT, KEEPS, CLEARS])
def test_full_prompts_have_no_history(defects: tuple[str, ...]) -> None:
    machine = driver(two_turns(), 4, defects=defects)
    assert machine.sessions[0].history is None
    assert machine.costs.live_history_capacity == 0


@pytest.mark.parametrize("sessions", [1, 5, 20])
@pytest.mark.parametrize(("defects", "per_session"), [(RIGHT, 0), (KEEPS, 12), (CLEARS, 12)])
def test_dead_capacity_is_nothing_or_that_of_all_that_ended(sessions: int, defects: tuple[str, ...], per_session: int) -> None:
    rows: list[Row] = []
    for number in range(sessions):
        first, second = two_turns()
        rows += [{**first, "session_id": str(number)}, {**second, "session_id": str(number)}]
    result = replay(rows, format="mooncake-delta", defects=defects)
    assert result.costs["ended_history_capacity"] == per_session * sessions
    assert result.costs["live_history_capacity"] == 0
    assert result.costs["copied_prompt_tokens"] == sessions * (6 + 11)


def test_the_history_changes_no_other_result() -> None:
    results = [replay(two_turns(), format="mooncake-delta", defects=defects) for defects in (RIGHT, KEEPS, CLEARS)]
    assert results[0].report == results[1].report == results[2].report
    assert results[0].rows == results[1].rows == results[2].rows
