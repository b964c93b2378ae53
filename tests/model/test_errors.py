"""The one error for bad input, and the checks that raise it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from model.errors import BadInput, expect_int, expect_list, expect_object, expect_str, refuse_unknown, shown


def test_an_error_is_one_line_of_path_value_and_what_is_allowed() -> None:
    assert str(BadInput("engine.num_blocks", "0", "an integer ≥ 1")) == "engine.num_blocks: found 0; allowed: an integer ≥ 1"


@pytest.mark.parametrize(
    ("path", "prefix", "whole"),
    [("x", "engine", "engine.x"), ("[2].x", "actions", "actions[2].x"), ("", "engine", "engine")],
)
def test_a_part_of_a_document_says_where_it_stands(path: str, prefix: str, whole: str) -> None:
    error = BadInput(path, "0", "1").under(prefix)
    assert (error.path, error.found, error.allowed) == (whole, "0", "1")


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "null"), (True, "true"), (False, "false"), (3, "3"), ("x", "'x'"), ([1], "[1]"), (1.0, "1.0"), (0, "0")],
)
def test_values_are_shown_as_json_would(value: object, words: str) -> None:
    assert shown(value) == words


def test_a_long_value_is_cut() -> None:
    assert shown("x" * 100, limit=10) == "'xxxxxxxx…"
    assert len(shown(list(range(1000)))) == 60


def test_an_unknown_field_is_named_and_the_known_ones_are_listed() -> None:
    refuse_unknown({"a": 1}, ["a", "b"], "engine")
    for path, where in (("engine", "engine.c"), ("", "c")):
        with pytest.raises(BadInput) as caught:
            refuse_unknown({"a": 1, "c": 2, "d": 3}, ["b", "a"], path)
        assert (caught.value.path, caught.value.allowed) == (where, "a, b")


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (expect_object, [{}, {"a": 1}], [None, [], "x", 1]),
        (expect_list, [[], [1]], [None, {}, "x", (1,)]),
        (expect_int, [0, -5, 1 << 80], [None, True, 1.0, "1", []]),
        (expect_str, ["x", " "], [None, "", 1, ["x"]]),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(
    check: Callable[[object, str], object], good: list[object], bad: list[object]
) -> None:
    for value in good:
        assert check(value, "p") is value
    for value in bad:
        with pytest.raises(BadInput) as caught:
            check(value, "p")
        assert (caught.value.path, caught.value.found) == ("p", shown(value))


def test_an_integer_may_have_a_least_value_and_words_of_its_own() -> None:
    assert expect_int(3, "p", 3) == 3
    for least, allowed, words in ((4, None, "an integer ≥ 4"), (4, "four or more", "four or more"), (None, None, "an integer")):
        with pytest.raises(BadInput) as caught:
            expect_int(3 if least else "3", "p", least, allowed)
        assert caught.value.allowed == words
