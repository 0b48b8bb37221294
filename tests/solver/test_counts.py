"""Counts are a plain list of integers, held in less memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtron.solver.duals import PAGE, Counts
from streamtron.solver.targets import largest_counts, round_counts
from tests.helpers.kernel_cases import prove

row_numbers = st.one_of(
    st.integers(0, 50), st.integers(PAGE - 3, PAGE + 3), st.integers(0, 5 * PAGE)
)
puts = st.lists(st.dictionaries(row_numbers, st.integers(0, 2**31 - 1), max_size=20), max_size=6)


def counts_of(entries: list[dict[int, int]]) -> tuple[Counts, dict[int, int]]:
    """Counts after some have been put, and as a plain dictionary; those of two pages at most are in
    memory."""
    counts, plain = Counts(in_memory=2), {}
    for put in entries:
        numbers = np.array(list(put), dtype=np.int64)
        counts.put(numbers, np.array(list(put.values()), dtype=np.int32))
        plain |= put
    return counts, plain


@prove
@given(puts, st.lists(row_numbers, max_size=30), st.integers(2, 5))
def test_what_was_put_last_is_taken_and_0_where_nothing_was(entries, questions, factor):
    counts, plain = counts_of(entries)
    taken = counts.take(np.array(questions, dtype=np.int64))
    assert taken.tolist() == [plain.get(k, 0) for k in questions]
    assert counts.dense(50).tolist() == [plain.get(k, 0) for k in range(50)]
    assert counts.largest() == max(plain.values(), default=0)
    assert counts.total() == sum(plain.values())
    nonzero = [pair for piece in counts.nonzero() for pair in zip(*piece, strict=True)]
    assert nonzero == sorted((k, count) for k, count in plain.items() if count)
    gaps, values = counts.gaps()
    assert np.cumsum(gaps).tolist() == [number for number, _ in nonzero]
    assert Counts.of_gaps(gaps, values).dense(6 * PAGE).tolist() == counts.dense(6 * PAGE).tolist()
    if counts.largest() * factor < 2**31:
        counts.scale(factor)
        assert counts.dense(50).tolist() == [factor * plain.get(k, 0) for k in range(50)]
    counts.clear()
    assert not counts.dense(6 * PAGE).any()
    assert counts.nbytes == 0


borders = st.lists(row_numbers, max_size=8, unique=True).map(sorted)


@prove
@given(puts, borders, st.randoms(use_true_random=False))
def test_ranges_are_their_rows_one_behind_the_other(entries, ends, chance):
    ranges = list(zip(ends[::2], ends[1::2], strict=False))
    chance.shuffle(ranges)
    numbers = np.array([k for a, z in ranges for k in range(a, z)], dtype=np.int64)
    by_ranges, by_numbers = counts_of(entries)[0], counts_of(entries)[0]
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


def test_counts_beyond_the_most_pages_are_in_a_file_and_not_in_memory():
    tracemalloc.start()
    counts, plain = counts_of([{page * PAGE: page + 1 for page in range(700)}])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert counts.nbytes == 2 * 4 * PAGE
    assert held < 700 * 4 * PAGE / 10
    assert counts.total() == sum(plain.values())


@pytest.mark.parametrize(
    ("gaps", "counts"),
    [([1, 2], [1]), ([1], [0]), ([1], [-(2**31)]), ([1, 0], [1, 1])],
    ids=["one missing", "a count of 0", "a count of no size", "a row twice"],
)
def test_gaps_that_no_counts_have_are_refused(gaps, counts):
    with pytest.raises(ValueError, match="no int32 other than 0"):
        Counts.of_gaps(np.array(gaps, dtype=np.uint32), np.array(counts, dtype=np.int32))


def test_counts_are_rounded_to_the_nearest_whole_number_below_the_most_that_there_may_be():
    alpha, most = np.array([0.24, 0.25, 1.0, 0.5, 1e300, 0.0]), np.array([1, 1, 1, 0.33, 1e300, 1])
    # 10 · 1 may be more than b C, of which roundings are known
    assert round_counts(alpha, 10.0, most).tolist() == [2, 3, 9, 3, 2**31 - 1, 0]
    assert largest_counts(10.0 * (1.0 + 2.0**-45), most).tolist() == [10, 10, 10, 3, 2**31 - 1, 10]
