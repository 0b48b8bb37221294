"""Counts are a plain list of integers, held in less memory."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtron.solver.duals import PAGE, Counts
from tests.helpers.examples import examples

prove = settings(max_examples=examples(100), deadline=None, derandomize=True)

row_numbers = st.one_of(
    st.integers(0, 50), st.integers(PAGE - 3, PAGE + 3), st.integers(0, 5 * PAGE)
)
puts = st.lists(st.dictionaries(row_numbers, st.integers(0, 2**31 - 1), max_size=20), max_size=6)


def put(counts: Counts, given: dict[int, int]) -> None:
    numbers = np.array(list(given), dtype=np.int64)
    counts.put(numbers, np.array(list(given.values()), dtype=np.int32))


@prove
@given(puts, st.lists(row_numbers, max_size=30))
def test_what_was_put_last_is_taken_and_0_where_nothing_was(
    made: list[dict[int, int]], asked: list[int]
) -> None:
    counts, plain = Counts(), {}
    for given_now in made:
        put(counts, given_now)
        plain |= given_now
    assert counts.take(np.array(asked, dtype=np.int64)).tolist() == [plain.get(k, 0) for k in asked]
    assert counts.dense(50).tolist() == [plain.get(k, 0) for k in range(50)]
    assert counts.largest() == max(plain.values(), default=0)
    assert counts.total() == sum(plain.values())
    nonzero = [
        (int(number), int(count))
        for numbers, values in counts.nonzero()
        for number, count in zip(numbers, values, strict=True)
    ]
    assert nonzero == sorted((k, count) for k, count in plain.items() if count)


borders = st.lists(row_numbers, max_size=8, unique=True).map(sorted)


@prove
@given(puts, borders, st.randoms(use_true_random=False))
def test_ranges_are_their_rows_one_behind_the_other(
    made: list[dict[int, int]], ends: list[int], chance: random.Random
) -> None:
    ranges = list(zip(ends[::2], ends[1::2], strict=False))
    chance.shuffle(ranges)
    numbers = np.array([k for a, z in ranges for k in range(a, z)], dtype=np.int64)
    by_ranges, by_numbers = Counts(), Counts()
    for given_now in made:
        put(by_ranges, given_now)
        put(by_numbers, given_now)
    taken = by_ranges.take_ranges(ranges)
    assert taken.dtype == np.int32
    assert taken.tolist() == by_numbers.take(numbers).tolist()
    values = np.arange(len(numbers), dtype=np.int32) % 3
    by_ranges.put_ranges(ranges, values)
    by_numbers.put(numbers, values)
    assert by_ranges.dense(6 * PAGE).tolist() == by_numbers.dense(6 * PAGE).tolist()
    assert by_ranges.nbytes == by_numbers.nbytes
    values[:] = 0
    assert by_ranges.take_ranges(ranges).tolist() == by_numbers.take(numbers).tolist()


def test_a_count_far_away_costs_nothing_in_between() -> None:
    counts = Counts()
    put(counts, {10**9: 3, 1: 0})
    assert counts.nbytes == 4 * PAGE
    assert counts.take(np.array([10**9])).tolist() == [3]


@pytest.mark.parametrize("rows", [10, PAGE])
def test_scaling_multiplies_every_count(rows: int) -> None:
    counts = Counts()
    counts.put(np.arange(rows, dtype=np.int64), np.arange(rows, dtype=np.int32))
    counts.scale(3)
    assert counts.dense(rows).tolist() == list(range(0, 3 * rows, 3))


def test_taking_gives_a_copy_and_putting_takes_one() -> None:
    counts, values = Counts(), np.arange(PAGE, dtype=np.int32)
    numbers = np.arange(PAGE, dtype=np.int64)
    counts.put(numbers, values)
    values[:] = 0
    taken = counts.take(numbers)
    taken[:] = 0
    assert counts.take(numbers).tolist() == list(range(PAGE))


def test_after_clear_all_are_0() -> None:
    counts = Counts()
    put(counts, {3: 4})
    counts.clear()
    assert counts.dense(10).tolist() == [0] * 10
    assert counts.nbytes == 0


@prove
@given(st.dictionaries(row_numbers, st.integers(0, 2**31 - 1), max_size=20))
def test_gaps_and_counts_tell_all(given_now: dict[int, int]) -> None:
    counts = Counts()
    put(counts, given_now)
    gaps, values = counts.gaps()
    again = Counts.of_gaps(gaps, values)
    assert again.dense(6 * PAGE).tolist() == counts.dense(6 * PAGE).tolist()
    assert np.cumsum(gaps).tolist() == sorted(k for k, count in given_now.items() if count)


@pytest.mark.parametrize(
    ("gaps", "counts"),
    [([1, 2], [1]), ([1], [0]), ([1], [-3]), ([1, 0], [1, 1])],
    ids=["one missing", "a count of 0", "a negative count", "a row twice"],
)
def test_gaps_that_no_counts_have_are_refused(gaps: list[int], counts: list[int]) -> None:
    with pytest.raises(ValueError, match="not positive int32"):
        Counts.of_gaps(np.array(gaps, dtype=np.uint32), np.array(counts, dtype=np.int32))
