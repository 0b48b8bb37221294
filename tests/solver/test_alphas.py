"""Dual variables are a plain list of numbers, in memory or in a file."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtron.solver import alphas as module
from streamtron.solver.alphas import Alphas
from streamtron.solver.targets import relaxed, to_alphas
from tests.helpers.kernel_cases import prove

LAST = 3 * 1000
row_numbers = st.one_of(st.integers(0, 50), st.integers(0, LAST))
numbers = st.floats(-(2.0**99), 2.0**99, width=32).map(lambda value: value + 0.0)
puts = st.lists(st.dictionaries(row_numbers, numbers, max_size=20), max_size=6)


@pytest.fixture(autouse=True, params=["memory", "file"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the α are, ten rows at a time being looked through."""
    monkeypatch.setattr(module, "PIECE", 10)
    if request.param == "file":
        monkeypatch.setattr(module, "IN_MEMORY", 60)


def alphas_of(entries: list[dict[int, float]]) -> tuple[Alphas, dict[int, float]]:
    """α after some have been put, and as a plain dictionary."""
    alphas, plain = Alphas(), {}
    for put in entries:
        alphas.put(np.array(list(put), np.int64), np.array(list(put.values()), np.float32))
        plain |= put
    return alphas, plain


@prove
@given(puts, st.lists(row_numbers, max_size=30))
def test_what_was_put_last_is_taken_and_0_where_nothing_was(entries, questions):
    alphas, plain = alphas_of(entries)
    taken = alphas.take(np.array(questions, dtype=np.int64))
    assert taken.tolist() == [plain.get(k, 0.0) for k in questions]
    assert alphas.dense(50).tolist() == [plain.get(k, 0.0) for k in range(50)]
    found = [pair for piece in alphas.nonzero() for pair in zip(*piece, strict=True)]
    assert found == sorted((k, value) for k, value in plain.items() if value)
    gaps, values = (part.whole() for part in alphas.streamed())
    assert np.cumsum(gaps).tolist() == [number for number, _ in found]
    assert Alphas.of_gaps(gaps, values).dense(LAST).tolist() == alphas.dense(LAST).tolist()


borders = st.lists(row_numbers, max_size=8, unique=True).map(sorted)


@prove
@given(puts, borders, st.randoms(use_true_random=False))
def test_ranges_are_their_rows_one_behind_the_other(entries, ends, chance):
    ranges = list(zip(ends[::2], ends[1::2], strict=False))
    chance.shuffle(ranges)
    numbers = np.array([k for a, z in ranges for k in range(a, z)], dtype=np.int64)
    by_ranges, by_numbers = alphas_of(entries)[0], alphas_of(entries)[0]
    taken = by_ranges.take_ranges(ranges)
    assert taken.dtype == np.float32
    assert taken.tolist() == by_numbers.take(numbers).tolist()
    values = (np.arange(len(numbers)) % 3).astype(np.float32)
    by_ranges.put_ranges(ranges, values)
    by_numbers.put(numbers, values)
    assert by_ranges.dense(LAST).tolist() == by_numbers.dense(LAST).tolist()
    values[:] = 0.0
    assert by_ranges.take_ranges(ranges).tolist() == by_numbers.take(numbers).tolist()


def test_a_change_meets_every_dual_variable_once():
    alphas, plain = alphas_of([{k: float(k) for k in range(1, 500, 7)}])
    alphas.change(lambda some: 2.0 * some)
    assert alphas.dense(500).tolist() == [2.0 * plain.get(k, 0.0) for k in range(500)]


def test_dual_variables_are_rounded_to_the_nearest_float32_that_is_not_beyond_the_most():
    tenth, below = np.float32(0.1), np.nextafter(np.float32(0.1), np.float32(0.0))
    assert float(tenth) > 0.1 > float(below)
    alpha, most = np.array([0.1, 0.1, -0.1, 7.0, -7.0, 0.0]), np.array([1, 0.1, 0.1, 5, 5, 0])
    assert to_alphas(alpha, (-most, most)).tolist() == [tenth, below, -below, 5.0, -5.0, 0.0]
    assert to_alphas(alpha, (-2 * most, most)).tolist() == [tenth, below, -tenth, 5.0, -7.0, 0.0]


def test_dual_variables_move_beyond_their_solution_but_not_beyond_their_ends():
    before, solution = np.float32([1.0, 1.0, 1.0]), np.float32([2.0, 0.0, 4.0])
    most = np.full(3, 4.5)
    assert relaxed(before, solution, 1.25, (-most, most)).tolist() == [2.25, -0.25, 4.5]
    assert relaxed(before, solution, 1.25, (0.0 * most, most)).tolist() == [2.25, 0.0, 4.5]


def test_several_of_a_row_are_taken_in_any_order_of_them_also_where_the_last_are_0():
    table = np.array([[0.0, 0.5, 0.0], [0.25, 0.0, 0.0], [0.0, 2.0, 0.0]], np.float32)
    alphas = Alphas(3)
    alphas.put(np.array([4, 0, 2]), table)
    [numbers, values] = (np.concatenate(part) for part in zip(*alphas.nonzero(), strict=True))
    assert numbers.tolist() == [0, 7, 13]
    assert values.tolist() == [0.25, 2.0, 0.5]
    saved = Alphas.of([(numbers, values)], 3)
    for known in (alphas, saved):
        assert known.take_ranges([(4, 5), (0, 1)]).tolist() == table[:2].tolist()
        moved = known.reordered([1, 2, 0])
        assert moved.dense(5)[[4, 0, 2]].tolist() == table[:, [1, 2, 0]].tolist()
