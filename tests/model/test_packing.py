"""Frozen numbers: every list has its own bytes, and reads back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.engine import pack, unpack

NUMBERS = st.lists(st.integers(0, 300) | st.integers(0, (1 << 64) - 1), max_size=8)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(numbers=NUMBERS)
def test_what_is_packed_unpacks(numbers: list[int]) -> None:
    assert list(unpack(pack(numbers))) == numbers


@settings(deadline=None, derandomize=True, max_examples=300)
@given(one=NUMBERS, other=NUMBERS)
def test_different_numbers_have_different_bytes(one: list[int], other: list[int]) -> None:
    assert (pack(one) == pack(other)) == (one == other)


@pytest.mark.parametrize(
    ("numbers", "size"),
    [([], 1), ([0], 2), ([255, 255], 3), ([256], 9), ([255, 256], 17), ([(1 << 64) - 1], 9)],
)
def test_small_numbers_take_a_byte_each_and_large_ones_eight(numbers: list[int], size: int) -> None:
    assert len(pack(numbers)) == size


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_a_number_that_does_not_fit_is_refused(number: int) -> None:
    with pytest.raises(OverflowError):
        pack([number])
