"""Prompts: canonical runs, blocks, streams, and the case format."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.errors import BadInput
from model.requests import Prompt, RequestSpec, merged, runs_of, stream_token

QUICK = settings(deadline=None, derandomize=True, max_examples=200)
TOKENS = st.lists(st.integers(0, 2), max_size=12)
STREAMS = st.lists(st.tuples(st.text(min_size=1, max_size=2), st.integers(1, 5)), min_size=1, max_size=4)


@QUICK
@given(tokens=TOKENS)
def test_a_prompt_is_its_tokens(tokens: list[int]) -> None:
    prompt = Prompt.of_tokens(tokens)
    assert list(prompt.tokens()) == tokens
    assert prompt.length == len(tokens)


@QUICK
@given(tokens=TOKENS)
def test_runs_are_maximal(tokens: list[int]) -> None:
    runs = runs_of(tokens)
    assert all(count for _, count in runs)
    assert all(left[0] != right[0] for left, right in pairwise(runs))


@QUICK
@given(pieces=st.lists(TOKENS, max_size=5))
def test_equal_tokens_have_equal_runs_however_they_are_put_together(pieces: list[list[int]]) -> None:
    tokens = [token for piece in pieces for token in piece]
    assert merged(run for piece in pieces for run in runs_of(piece)) == runs_of(tokens)
    assert merged((token, count) for token in tokens for count in (0, 1)) == runs_of(tokens)
    built = Prompt(())
    for piece in pieces:
        built = built.extended(piece)
    whole = Prompt.of_tokens(tokens)
    assert built == whole
    assert hash(built) == hash(whole)
    assert built.length == len(tokens)


@QUICK
@given(tokens=TOKENS, other=TOKENS)
def test_different_tokens_are_different_prompts(tokens: list[int], other: list[int]) -> None:
    assert (Prompt.of_tokens(tokens) == Prompt.of_tokens(other)) == (tokens == other)


@QUICK
@given(tokens=TOKENS, size=st.integers(1, 5))
def test_blocks_are_the_prompt_in_full_blocks_and_a_rest(tokens: list[int], size: int) -> None:
    full, rest = Prompt.of_tokens(tokens).blocks(size)
    assert full == [runs_of(tokens[at : at + size]) for at in range(0, len(tokens) // size * size, size)]
    assert rest == runs_of(tokens[len(tokens) // size * size :])


def test_a_long_run_is_cut_into_equal_blocks() -> None:
    full, rest = Prompt.of_tokens([7] * 1000 + [8]).blocks(300)
    assert full == [((7, 300),)] * 3
    assert rest == ((7, 100), (8, 1))


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_is_named_and_starts_anew_in_each_piece() -> None:
    prompt = Prompt.of_streams([("A", 2), ("B", 1), ("A", 3)])
    expected = [("A", 0), ("A", 1), ("B", 0), ("A", 0), ("A", 1), ("A", 2)]
    assert list(prompt.tokens()) == [stream_token(name, at) for name, at in expected]


@QUICK
@given(places=st.lists(st.tuples(st.text(max_size=3), st.integers(0, 5)), unique=True, min_size=2, max_size=8))
def test_different_places_of_streams_are_different_tokens_and_none_is_a_plain_one(places: list[tuple[str, int]]) -> None:
    tokens = [stream_token(name, position) for name, position in places]
    assert len(set(tokens)) == len(places)
    assert all(token < 0 for token in tokens)


def test_names_that_differ_in_zero_bytes_only_are_different_streams() -> None:
    assert len({stream_token(name, 0) for name in ("", "\0", "\0\0", "a", "\0a", "a\0")}) == 6


# --- the case format --------------------------------------------------------------------------------------------------


@QUICK
@given(tokens=st.lists(st.integers(0, 1 << 70), min_size=1, max_size=8))
def test_token_ids_are_written_as_they_are(tokens: list[int]) -> None:
    prompt = Prompt.read(tokens, "prompt")
    assert prompt.to_json() == tokens
    assert Prompt.read(json.loads(json.dumps(prompt.to_json())), "prompt") == prompt


@QUICK
@given(pieces=STREAMS)
def test_streams_are_written_as_pairs_that_read_back_equal(pieces: list[tuple[str, int]]) -> None:
    prompt = Prompt.read([list(piece) for piece in pieces], "prompt")
    assert prompt == Prompt.of_streams(pieces)
    written = json.loads(json.dumps(prompt.to_json()))
    assert written == [list(piece) for piece in pieces]
    assert Prompt.read(written, "prompt") == prompt


def test_a_lone_surrogate_in_a_name_is_a_name() -> None:
    name = json.loads('"\\ud800"')
    prompt = Prompt.read([[name, 2]], "prompt")
    assert prompt.to_json() == [[name, 2]]


TOKEN_LIST = "a non-empty list of token ids ≥ 0, or of [stream, length ≥ 1] pairs"


@pytest.mark.parametrize(
    ("value", "path", "found", "allowed"),
    [
        (None, "prompt", "null", "a list […]"),
        ("abc", "prompt", "'abc'", "a list […]"),
        ({}, "prompt", "{}", "a list […]"),
        ([], "prompt", "[]", TOKEN_LIST),
        ([1, -1], "prompt[1]", "-1", TOKEN_LIST),
        ([1, True], "prompt[1]", "true", TOKEN_LIST),
        ([1.0], "prompt[0]", "1.0", TOKEN_LIST),
        ([1, ["A", 2]], "prompt[1]", "['A', 2]", TOKEN_LIST),
        ([["A", 2], 1], "prompt[0]", "['A', 2]", TOKEN_LIST),
        ([["A", 2], ["B"]], "prompt[1]", "['B']", "a [stream, length] pair"),
        ([["A", 2, 3]], "prompt[0]", "['A', 2, 3]", "a [stream, length] pair"),
        ([["", 2]], "prompt[0][0]", "''", "a non-empty string"),
        ([[3, 2]], "prompt[0][0]", "3", "a non-empty string"),
        ([["A", 0]], "prompt[0][1]", "0", "an integer ≥ 1"),
        ([["A", True]], "prompt[0][1]", "true", "an integer ≥ 1"),
    ],
)
def test_a_wrong_prompt_is_refused_at_the_element_that_is_wrong(value: object, path: str, found: str, allowed: str) -> None:
    with pytest.raises(BadInput) as caught:
        Prompt.read(value, "prompt")
    assert (caught.value.path, caught.value.found, caught.value.allowed) == (path, found, allowed)


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompt", "output", "path"), [(Prompt(()), 1, "prompt"), (Prompt.of_tokens([1]), -1, "output")])
def test_a_request_has_a_prompt_and_a_non_negative_output(prompt: Prompt, output: int, path: str) -> None:
    with pytest.raises(BadInput) as caught:
        RequestSpec("r", prompt, output)
    assert caught.value.path == path


def test_generated_tokens_are_planned_or_the_requests_own() -> None:
    prompt = Prompt.of_tokens([1])
    planned = RequestSpec("r", prompt, 9, (5, 6))
    assert planned.output == 2
    assert [planned.output_token(at) for at in range(2)] == [5, 6]
    free = [RequestSpec(id_, prompt, 2) for id_ in ("a", "b")]
    tokens = [spec.output_token(at) for spec in free for at in range(2)]
    assert tokens == list(Prompt.of_streams([("output of a", 2), ("output of b", 2)]).tokens())


def test_an_empty_plan_asks_for_no_token() -> None:
    assert RequestSpec("r", Prompt.of_tokens([1]), 9, ()).output == 0
