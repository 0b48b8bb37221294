"""The active set holds copies of rows, in the order they came, within its budget; rows of one value
each take half the memory, and give the same bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtron.core.config import Settings
from streamtron.core.rows import NONZERO_BYTES, ROW_BYTES, Rows, make_rows, row_bytes
from streamtron.data.blocks import squares_of
from streamtron.solver.row_store import ActiveSet, ColumnSubset, NarrowRows
from streamtron.solver.targets import Targets
from tests.helpers.kernel_cases import prove
from tests.helpers.learners import bits, plain_rows
from tests.helpers.oracle import Row
from tests.helpers.sources import ListData, csr, trained

nonzeros = st.dictionaries(st.integers(0, 9), st.integers(1, 9).map(float), max_size=6)
chunks = st.lists(nonzeros.map(lambda row: sorted(row.items())), min_size=1, max_size=8)
batches = st.lists(st.tuples(chunks, st.lists(st.integers(0, 7), unique=True)), max_size=6)


def held(active: ActiveSet) -> list[Row]:
    """The rows it holds, as lists; whatever was done to it, it knows their squared lengths."""
    rows = plain_rows(active.rows)
    assert active.targets.squares.tolist() == [sum(value**2 for _, value in row) for row in rows]
    return rows


def fill(active: ActiveSet, rows: list[Row], positions: list[int], first: int) -> int:
    """Add the rows at ``positions``; their numbers are ``first`` more, signs and Δ² follow them."""
    chosen = np.array(positions, dtype=np.int64)
    return active.add(csr(rows), chosen, targets_of(rows, first).take(chosen))


def targets_of(rows: list[Row], first: int) -> Targets:
    numbers = np.arange(first, first + len(rows), dtype=np.int64)
    signs = np.where(numbers % 2 == 0, 1, -1).astype(np.int8)
    return Targets(numbers, signs, numbers / 4.0, squares_of(*csr(rows)))


def size(row: Row) -> int:
    return NONZERO_BYTES * len(row) + ROW_BYTES


def is_of(active: ActiveSet, rows: list[Row], numbers: list[int]) -> None:
    """It holds these rows, with all that belongs to them."""
    assert held(active) == rows
    assert active.numbers.tolist() == numbers
    assert active.targets.signs.tolist() == [1 if number % 2 == 0 else -1 for number in numbers]
    assert active.targets.costs.tolist() == [number / 4 for number in numbers]


@prove
@given(batches, st.integers(0, 500))
def test_it_holds_as_many_of_the_first_rows_as_fit_with_all_that_belongs_to_them(offers, budget):
    active, expected, numbers, spent = ActiveSet(budget), [], [], 0
    for n, (rows, positions) in enumerate(offers):
        positions = [k for k in positions if k < len(rows)]
        fits = 0
        for k in positions:
            if spent + size(rows[k]) > budget:
                break
            spent += size(rows[k])
            fits += 1
        assert fill(active, rows, positions, 100 * n) == fits
        expected += [rows[k] for k in positions[:fits]]
        numbers += [100 * n + k for k in positions[:fits]]
    is_of(active, expected, numbers)
    assert active.nbytes == spent <= budget
    assert active.sizes.tolist() == [size(row) for row in expected]
    assert active.nonzeros == sum(map(len, expected))
    assert not any(array.flags.writeable for array in active.rows[:3])
    active.clear()
    assert (len(active), active.nbytes, active.nonzeros) == (0, 0, 0)


@prove
@given(chunks, st.sets(st.integers(0, 7)))
def test_retain_keeps_the_chosen_rows_and_room_for_more(rows, places):
    active = ActiveSet(10**6)
    fill(active, rows, list(range(len(rows))), 0)
    chosen = sorted(k for k in places if k < len(rows))
    active.retain(np.array(chosen, dtype=np.int64))
    is_of(active, [rows[k] for k in chosen], chosen)
    assert fill(active, rows, [0], 100) == 1
    is_of(active, [*(rows[k] for k in chosen), rows[0]], [*chosen, 100])


ROWS: list[Row] = [[(0, 1.0)], [(1, 2.0), (3, 1.0)], [], [(2, 5.0)]]


@pytest.mark.parametrize("less", [0, 1])
def test_a_budget_may_be_filled_to_the_last_byte(less):
    budget = 2 * sum(map(size, ROWS)) - less
    assert fill(ActiveSet(budget), [*ROWS, *ROWS], list(range(8)), 0) == 8 - less


MANY, LENGTH, COLUMNS = 200, 5, 40


def rows_of_one_value() -> tuple[Rows, list[int]]:
    """Rows of as many nonzeros each, and noisy linear labels."""
    rng = np.random.default_rng(4)
    columns = np.array([np.sort(rng.choice(COLUMNS, LENGTH, replace=False)) for _ in range(MANY)])
    values = rng.choice([0.4, 1.0, 3.0], MANY).astype(np.float32)
    scores = values * rng.normal(size=COLUMNS)[columns].sum(axis=1) + rng.normal(size=MANY)
    indptr = np.arange(0, LENGTH * MANY + 1, LENGTH)
    return make_rows(indptr, columns.ravel(), values, 0), [1 if s > 0 else -1 for s in scores]


def spread(rows: Rows) -> Rows:
    return make_rows(rows.indptr, rows.indices, rows.spread())


CASES = [
    (loss, held, how)
    for loss in ("squared_hinge", "log_loss", "hinge", "squared_error")
    for held in (MANY, 30)
    for how in ({}, {"C": 50.0, "tol": 1e-6}, {"penalty": "l1", "C": 5.0})
    if loss != "hinge" or "penalty" not in how
]


@pytest.mark.parametrize(("loss", "held", "how"), CASES)
def test_training_is_the_same_to_the_bit(loss, held, how):
    rows, labels = rows_of_one_value()
    learners = []
    for these in (rows, spread(rows)):
        room = row_bytes(held * LENGTH, held, by_row=these.by_row)
        settings = Settings(loss=loss, active_set=room, max_epochs=8, **how)
        numbers = {"numbers": True} if settings.regression else {}
        data = ListData(these, labels, block_rows=16, **numbers)
        learners.append(trained(data, settings))
    assert bits(learners[0], MANY) == bits(learners[1], MANY)


def test_memory_holds_them_in_half_the_bytes_wherever_they_are_cut_and_moved():
    rows, _ = rows_of_one_value()
    zeros = np.zeros(MANY)
    targets = Targets(np.arange(MANY), np.ones(MANY, np.int8), zeros, zeros)
    chosen = np.array([3, 4, 5, 90, 17, 18])
    some, plain = ActiveSet(row_bytes(6 * LENGTH, 6, by_row=True)), ActiveSet(10**6)
    for active, these in ((some, rows.part(2, MANY)), (plain, spread(rows).part(2, MANY))):
        for positions in (chosen[:3], chosen[3:], chosen):
            active.add(these, positions, targets.take(positions))
    assert (len(some), some.nbytes) == (6, some.budget)
    assert sum(some.sizes) == some.nbytes
    for kept in (np.arange(6), np.array([0, 2, 5]), np.array([1])):
        some.retain(kept)
        plain.retain(kept)
        assert some.rows.spread().tobytes() == plain.rows.spread().tobytes()
        assert some.rows.indices.tobytes() == plain.rows.indices.tobytes()
        assert len(some.rows.values) == len(kept)


def test_rows_of_one_value_each_have_it_on_some_of_their_columns_too():
    rows = make_rows(np.array([0, 2, 3]), np.array([0, 1, 1]), np.array([4.0, 5.0]), 0)
    narrow = ColumnSubset(np.array([1]), 2).narrow(NarrowRows(rows, Targets.none())).rows
    assert [array.tolist() for array in narrow[:3]] == [[0, 1, 2], [0, 0], [4.0, 5.0]]
