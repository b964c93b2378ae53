"""Mooncake rows: fields, defaults, sessions, replay keys (replay specification 1.0, 1.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model.errors import BadInput
from model.replay.errors import CODES, TraceError
from model.replay.mooncake import load_mooncake
from model.replay.reader import lines_of
from model.replay.trace import Interner, prompt_of, validate
from model.replay.transform import normalise_explicit_starts
from tests.replay.support import refused, row, trace

GOOD = '{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [1]}'


def written(tmp_path: Path, *lines: str | bytes, end: bytes = b"\n") -> Path:
    """A file with these lines."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(end.join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return path


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{", "E_PARSE"),
        ("[1, 2", "E_PARSE"),
        ('"text"', "E_PARSE"),
        ("null", "E_PARSE"),
        (f"{GOOD} {GOOD}", "E_PARSE"),
        (f"{GOOD[:-1]},}}", "E_PARSE"),
        (b"\xef\xbb\xbf" + GOOD.encode(), "E_PARSE"),
        (b'{"session_id": "\xff", ' + GOOD[1:].encode(), "E_PARSE"),
        (GOOD.replace('"timestamp": 0', '"timestamp": NaN'), "E_PARSE"),
        (GOOD.replace('"timestamp": 0', '"timestamp": 1e999'), "E_PARSE"),
        (GOOD.replace('"timestamp": 0', '"timestamp": "0"'), "E_PARSE"),
        (GOOD.replace('"timestamp": 0', '"timestamp": 0, "timestamp": 0'), "E_PARSE"),
        (GOOD.replace('"timestamp": 0', '"timestamp": 0, "created_time": 0'), "E_PARSE"),
        (GOOD.replace('"timestamp": 0', '"timestamp": 0, "created_time": null'), "E_PARSE"),
        (GOOD.replace('"input_length": 4', '"input_length": 4.0'), "E_PARSE"),
        (GOOD.replace('"input_length": 4', '"input_length": -0'), "E_PARSE"),
        (GOOD.replace('"input_length": 4', '"input_length": -1'), "E_PARSE"),
        (GOOD.replace('"input_length": 4', '"input_length": true'), "E_PARSE"),
        (GOOD.replace('"input_length": 4', '"input_length": 18446744073709551616'), "E_PARSE"),
        (GOOD.replace("[1]", "[1, null]"), "E_PARSE"),
        (GOOD.replace("[1]", '{"0": 1}'), "E_PARSE"),
        (GOOD[:-1] + ', "session_id": 5}', "E_PARSE"),
        (GOOD[:-1] + ', "session_id": "\\ud800"}', "E_PARSE"),
        (GOOD[:-1] + ', "priority": 2147483648}', "E_PARSE"),
        (GOOD[:-1] + ', "strict_priority": -1}', "E_PARSE"),
        (GOOD[:-1] + ', "output_token_ids": [4294967296]}', "E_PARSE"),
        ("[null, null, 4, 1, null, [1], 0, 0, 0, 0, null, 9]", "E_PARSE"),
        ("[]", "E_NO_HASHES"),
        ("{}", "E_NO_HASHES"),
        (GOOD.replace("[1]", "null"), "E_NO_HASHES"),
        (GOOD.replace('"input_length": 4', '"input_length": 5'), "E_CAPACITY"),
        (GOOD.replace('"input_length": 4', '"input_length": 18446744073709551615'), "E_CAPACITY"),
        (GOOD.replace(', "output_length": 1', ""), "E_NO_OUTPUT"),
        (GOOD[:-1] + ', "output_token_ids": [1, 2]}', "E_PLAN_LEN"),
        (GOOD[:-1] + ', "delay": 1}', "E_DELAY_FIRST"),
        (GOOD[:-1] + ', "delay_ms": -1}', "E_DELAY_FIRST"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line: str | bytes, code: str) -> None:
    path = written(tmp_path, GOOD, "", "  ", line, "{")
    with refused(code, 4):
        load_mooncake(lines_of(path), 4)


@pytest.mark.parametrize(
    ("rows", "code", "line"),
    [
        ([row(session_id="a"), row(5, session_id="a")], "E_NO_PREV_TS", 2),
        ([row(5, session_id="a"), row(4, session_id="a")], "E_BAD_DELAY", 2),
        ([row(5, session_id="a"), row(session_id="a", delay=-1)], "E_BAD_DELAY", 2),
        ([row(5, session_id="a"), row(session_id="a"), row(4, session_id="a")], "E_BAD_DELAY", 3),
        ([row(0, session_id="request_2"), row(5, delay=-1)], "E_BAD_DELAY", 2),
        ([], "E_EMPTY", None),
    ],
)
def test_a_bad_session_is_refused_with_the_line_that_breaks_it(rows: list[Any], code: str, line: int | None) -> None:
    with refused(code, line):
        trace(rows)


def test_checks_of_a_row_go_in_their_order() -> None:
    everything = {"input_length": 99, "output_token_ids": [1], "delay": 1}
    with refused("E_NO_HASHES", 1):
        trace([everything])
    with refused("E_CAPACITY", 1):
        trace([{**everything, "hash_ids": [1]}])
    with refused("E_NO_OUTPUT", 1):
        trace([{**everything, "hash_ids": [1], "input_length": 4}])
    with refused("E_PLAN_LEN", 1):
        trace([{**everything, "hash_ids": [1], "input_length": 4, "output_length": 2}])
    with refused("E_DELAY_FIRST", 1):
        trace([{**everything, "hash_ids": [1], "input_length": 4, "output_length": 1}])


def test_more_tokens_than_64_bits_are_refused() -> None:
    with refused("E_OVERFLOW", 1):
        trace([row(0, hash_ids=[1, 2], input_length=1)], 1 << 63)


def test_a_block_of_no_token_is_refused_before_the_file_is_opened() -> None:
    with refused("E_BLOCK_SIZE"):
        load_mooncake(lines_of("/nonexistent"), 0)


def test_a_file_that_is_not_there_is_bad_input() -> None:
    with pytest.raises(BadInput, match="No such file"):
        load_mooncake(lines_of("/nonexistent"), 4)


def test_a_row_may_be_a_list_in_the_order_of_the_fields() -> None:
    listed = trace([["A", "S", 4, 1, [9], [1], 3, 0, -1, 2, "gold"]])
    (session,) = listed.sessions
    (turn,) = session.turns
    assert (session.session_id, session.first_arrival_timestamp_ms) == ("S", 3)
    assert (turn.name, turn.output_token_ids, turn.priority, turn.strict_priority) == ("A", (9,), -1, 2)
    assert turn.policy_class == "gold"


def test_aliases_stand_for_their_fields() -> None:
    (session,) = trace([{"created_time": 7, "input_tokens": 3, "output_tokens": 2, "hash_ids": [1]}]).sessions
    assert session.first_arrival_timestamp_ms == 7
    assert (session.turns[0].input_length, session.turns[0].max_output_tokens) == (3, 2)


def test_unknown_fields_are_left_alone_whatever_they_hold(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD[:-1] + ', "zz": 1e999, "zz": {"deep": [1, 2]}}')
    assert load_mooncake(lines_of(path), 4).requests == 1


def test_carriage_returns_and_a_missing_last_newline_are_fine(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD, GOOD, end=b"\r\n")
    assert load_mooncake(lines_of(path), 4).requests == 2


def test_numbers_beyond_64_bits_are_floats(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace('"timestamp": 0', '"timestamp": 123456789012345678901234567890'))
    assert load_mooncake(lines_of(path), 4).sessions[0].first_arrival_timestamp_ms == pytest.approx(1.2345678901234568e29)


def test_hash_ids_are_interned_over_the_file_and_never_merged() -> None:
    large = [0xB300000000000000, 0xB300000100000000]
    loaded = trace([row(0, hash_ids=[7, 8]), row(0, hash_ids=large), row(0, hash_ids=[8, 7])])
    assert [session.turns[0].hash_ids for session in loaded.sessions] == [(0, 1), (2, 3), (1, 0)]


def test_more_distinct_hashes_than_fit_are_refused() -> None:
    interner = Interner(most=2)
    interner.intern([5, 6, 5])
    with refused("E_TOO_MANY_HASHES", 3):
        interner.intern([7], 3)


@pytest.mark.parametrize(
    ("hashes", "block_size", "length", "tokens"),
    [([1, 2], 4, 6, [1, 1, 1, 1, 2, 2]), ([7], (1 << 64) - 1, 1, [7]), ([3], 4, 0, []), ([5, 5], 2, 3, [5, 5, 5])],
)
def test_a_prompt_repeats_each_hash_and_is_cut(hashes: list[int], block_size: int, length: int, tokens: list[int]) -> None:
    assert list(prompt_of(hashes, block_size, length).tokens()) == tokens


def test_a_prompt_longer_than_its_hashes_is_refused() -> None:
    with refused("E_CAPACITY"):
        prompt_of([1], 4, 5)


@pytest.mark.parametrize(("engine_block", "full_blocks"), [(4, 1), (2, 3)])
def test_an_engine_sees_whole_blocks_of_its_own_size(engine_block: int, full_blocks: int) -> None:
    full, _ = prompt_of([1, 2], 4, 6).blocks(engine_block)
    assert len(full) == full_blocks


def test_the_delay_of_a_turn_is_said_or_lies_between_timestamps() -> None:
    rows = [
        row(10, session_id="a"),
        row(30, session_id="a"),
        row(99, session_id="a", delay=5),
        row(100, session_id="a"),
        row(session_id="a"),
        row(130, session_id="a"),
    ]
    (session,) = trace(rows).sessions
    assert [turn.delay_after_previous_ms for turn in session.turns] == [0, 20, 5, 1, 0, 30]
    assert session.first_arrival_timestamp_ms == 10


def test_a_later_timestamp_never_becomes_the_first_arrival() -> None:
    (session,) = trace([row(session_id="a"), row(session_id="a", delay=3)]).sessions
    assert session.first_arrival_timestamp_ms is None


def test_a_row_without_session_joins_one_that_is_called_like_it() -> None:
    loaded = trace([row(0, session_id="request_2"), row(5)])
    assert [len(session.turns) for session in loaded.sessions] == [2]


def test_a_blank_session_is_a_session() -> None:
    assert [session.session_id for session in trace([row(0, session_id="")]).sessions] == [""]


def test_planned_outputs_have_a_key() -> None:
    plan: dict[str, Any] = {"output_token_ids": [1]}
    rows = [
        row(0, request_id=" explicit ", **plan),
        row(0, session_id="s"),
        row(session_id="s", request_id="  ", **plan),
        row(0, session_id=" ", **plan),
        row(0, **plan),
        row(0),
    ]
    keys = [turn.replay_key for session in trace(rows).sessions for turn in session.turns]
    assert keys == ["explicit", None, "s:1", "line:3", "line:4", None]


def test_names_are_unique() -> None:
    rows = [row(0, request_id="x"), row(0, request_id="x"), row(0, request_id="r2"), row(0, request_id="r5"), row(0)]
    names = [session.turns[0].name for session in trace(rows).sessions]
    assert names == ["x", "r2", "r3", "r5", "r5-2"]


@pytest.mark.parametrize(
    ("rows", "arrivals", "code", "line"),
    [
        ([row()], True, "E_NO_FIRST_TS", 1),
        ([row(5), row()], True, "E_NO_FIRST_TS", 2),
        ([row(-5)], False, "E_BAD_FIRST", 1),
        ([row(0, input_length=0)], True, "E_ZERO_INPUT", 1),
        ([row(), row(0, input_length=0)], False, "E_ZERO_INPUT", 2),
    ],
)
def test_the_file_entry_demands_arrivals_and_inputs(rows: list[Any], arrivals: bool, code: str, line: int) -> None:
    loaded = trace(rows)
    with refused(code, line):
        validate(normalise_explicit_starts(loaded) if arrivals else loaded, arrivals=arrivals)


def test_the_file_entry_accepts_negative_timestamps_where_it_shifts_them() -> None:
    loaded = normalise_explicit_starts(trace([row(-5), row(5)]))
    validate(loaded, arrivals=True)
    assert [session.first_arrival_timestamp_ms for session in loaded.sessions] == [0, 10]


def test_an_error_names_code_line_field_value_and_what_is_allowed() -> None:
    with pytest.raises(TraceError) as caught:
        trace([row(0), row(0, input_length=9)])
    assert str(caught.value) == "E_CAPACITY: line 2, input_length: found 9; allowed: at most 4 (1 hash ids of 4 tokens)"
    assert caught.value.under("replay").code == "E_CAPACITY"
    assert caught.value.under("replay").line == 2


def test_every_code_is_explained() -> None:
    assert all(code.startswith("E_") and text for code, text in CODES.items())
