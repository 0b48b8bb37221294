"""The active set holds copies of rows, in the order they came, within its budget."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtron.core.rows import Rows, freeze
from streamtron.data.blocks import squares_of
from streamtron.solver.row_store import NONZERO_BYTES, ROW_BYTES, ActiveSet, Pool, fitting
from streamtron.solver.targets import Targets
from tests.helpers.examples import examples
from tests.helpers.oracle import Row
from tests.helpers.sources import csr

prove = settings(max_examples=examples(100), deadline=None, derandomize=True)

nonzeros = st.dictionaries(st.integers(0, 9), st.integers(1, 9).map(float), max_size=6)
chunks = st.lists(nonzeros.map(lambda row: sorted(row.items())), min_size=1, max_size=8)
batches = st.lists(st.tuples(chunks, st.lists(st.integers(0, 7), unique=True)), max_size=6)


def held(active: ActiveSet) -> list[Row]:
    """The rows it holds, as lists; whatever was done to it, it knows their squared lengths."""
    indptr, indices, values = active.rows
    rows = [
        [(int(indices[j]), float(values[j])) for j in range(indptr[k], indptr[k + 1])]
        for k in range(len(active))
    ]
    assert active.squares.tolist() == [sum(value**2 for _, value in row) for row in rows]
    return rows


def fill(active: ActiveSet, rows: list[Row], positions: list[int], first: int) -> int:
    """Add the rows at ``positions``; their numbers are ``first`` more, signs and Δ² follow them."""
    chosen = np.array(positions, dtype=np.int64)
    return active.add(csr(rows), chosen, targets_of(rows, first))


def targets_of(rows: list[Row], first: int) -> Targets:
    numbers = np.arange(first, first + len(rows), dtype=np.int64)
    signs = np.where(numbers % 2 == 0, 1, -1).astype(np.int8)
    return Targets(numbers, signs, numbers / 4.0, squares_of(*csr(rows)))


def size(row: Row) -> int:
    return NONZERO_BYTES * len(row) + ROW_BYTES


@prove
@given(batches, st.integers(0, 500))
def test_it_holds_as_many_of_the_first_rows_as_fit_with_all_that_belongs_to_them(
    offers: list[tuple[list[Row], list[int]]], budget: int
) -> None:
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
    assert held(active) == expected
    assert active.numbers.tolist() == numbers
    assert active.signs.tolist() == [1 if number % 2 == 0 else -1 for number in numbers]
    assert active.delta2.tolist() == [number / 4 for number in numbers]
    assert active.nbytes == spent <= budget
    assert active.sizes.tolist() == [size(row) for row in expected]
    assert active.nonzeros == sum(map(len, expected))
    assert not any(array.flags.writeable for array in active.rows)
    active.clear()
    assert (len(active), active.nbytes, active.nonzeros) == (0, 0, 0)


@prove
@given(chunks, st.sets(st.integers(0, 7)))
def test_retain_keeps_the_chosen_rows_and_room_for_more(rows: list[Row], places: set[int]) -> None:
    active = ActiveSet(10**6)
    fill(active, rows, list(range(len(rows))), 0)
    chosen = sorted(k for k in places if k < len(rows))
    active.retain(np.array(chosen, dtype=np.int64))
    assert held(active) == [rows[k] for k in chosen]
    assert active.numbers.tolist() == chosen
    assert active.delta2.tolist() == [k / 4 for k in chosen]
    assert fill(active, rows, [0], 100) == 1
    assert held(active) == [*(rows[k] for k in chosen), rows[0]]
    assert active.numbers.tolist() == [*chosen, 100]


@prove
@given(chunks, st.permutations(range(8)), st.integers(0, 500))
def test_of_rows_in_any_order_it_keeps_the_first_that_fit_in_a_smaller_budget(
    rows: list[Row], positions: list[int], budget: int
) -> None:
    active = ActiveSet(10**6)
    fill(active, rows, list(range(len(rows))), 0)
    positions = [k for k in positions if k < len(rows)]
    order = np.array(positions, dtype=np.int64)
    active.retain(np.sort(order[: fitting(active.sizes[order], budget)]))
    numbers = active.numbers.tolist()
    assert numbers == sorted(positions[: len(numbers)])
    assert active.nbytes <= budget
    assert (
        len(numbers) == len(positions)
        or active.nbytes + size(rows[positions[len(numbers)]]) > budget
    )


# --- rows held once by several ---


def offer(active: ActiveSet, pool: Pool, rows: list[Row], first: int) -> bool:
    """Share all rows; numbers, signs and Δ² as in ``fill``."""
    return active.share(pool, csr(rows), targets_of(rows, first))


ROWS: list[Row] = [[(0, 1.0)], [(1, 2.0), (3, 1.0)], [], [(2, 5.0)]]


def test_room_grows_within_the_budget_and_a_copy_has_the_rows_and_not_the_room_beyond_them() -> (
    None
):
    rows: list[Row] = [[(k, 1.0) for k in range(1000)]]
    active = ActiveSet(20 * 1000 * NONZERO_BYTES)
    for n in range(17):
        fill(active, rows, [0], n)
    assert held(active) == rows * 17
    copied = active.copy()
    assert held(copied) == held(active)
    assert copied.numbers.tolist() == active.numbers.tolist() == list(range(17))
    room = [len(store._indices) for store in (active._store, copied._store)]
    assert room[1] == len(copied._store._values) == 17_000 < room[0] <= 20_000
    fill(copied, rows, [0], 5)
    assert (len(copied), len(active)) == (18, 17)


def test_rows_shared_by_several_are_held_once() -> None:
    pool, sets = Pool(), [ActiveSet(10**6) for _ in range(3)]
    for first in (0, 4):
        for active in sets:
            assert offer(active, pool, ROWS, first)
    assert len(pool) == 8
    for active in sets:
        assert held(active) == [*ROWS, *ROWS]
        assert active.numbers.tolist() == list(range(8))
        assert active.delta2.tolist() == [k / 4 for k in range(8)]
        assert np.shares_memory(active.rows.values, sets[0].rows.values)


def test_a_pool_takes_a_chunk_wholly_or_not_at_all() -> None:
    budget = sum(map(size, ROWS)) + size(ROWS[0])
    pool, active = Pool(), ActiveSet(budget)
    assert offer(active, pool, ROWS, 0)
    assert not offer(active, pool, ROWS, 4)
    assert held(active) == ROWS
    assert pool.nbytes == sum(map(size, ROWS))


@prove
@given(st.sets(st.integers(0, 3)), st.sets(st.integers(0, 3)))
def test_a_set_that_leaves_the_pool_takes_its_rows_along_and_leaves_the_others_theirs(
    first: set[int], second: set[int]
) -> None:
    pool, sets = Pool(), [ActiveSet(10**6) for _ in range(2)]
    for active in sets:
        offer(active, pool, ROWS, 0)
    for active, positions in zip(sets, (sorted(first), sorted(second)), strict=True):
        active.retain(np.array(positions, dtype=np.int64))
        assert held(active) == [ROWS[k] for k in positions]
        assert active.numbers.tolist() == positions
        assert fill(active, ROWS, [1], 100) == 1
    assert held(sets[0]) == [*(ROWS[k] for k in sorted(first)), ROWS[1]]


def test_rows_that_another_thread_offers_while_they_are_copied_are_held_once() -> None:
    numbers, squares = np.arange(len(ROWS)), squares_of(*csr(ROWS))
    others: list[threading.Thread] = []

    class Watched(Pool):
        """Has another thread offer the rows before it copies them."""

        def add(self, *arguments: Any) -> int:
            if not others:
                others.append(threading.Thread(target=offer_them))
                others[0].start()
                others[0].join(0.5)  # it has to wait until these are held; else it ends at once
            return super().add(*arguments)

    pool, answers = Watched(), []

    def offer_them() -> None:
        answers.append(pool.offer(csr(ROWS), numbers, squares, 10**6))

    offer_them()
    others[0].join()
    assert answers == [True, True]
    assert pool.numbers.tolist() == numbers.tolist()
    assert pool.nonzeros == sum(map(len, ROWS))


def test_a_learner_that_leaves_the_pool_copies_rows_only_while_others_use_it() -> None:
    pool = Pool()
    first, cleared, last = (ActiveSet(10**6) for _ in range(3))
    for active in (first, cleared, last):
        offer(active, pool, ROWS, 0)
    copied, numbers = first.copy(), pool.numbers
    cleared.clear()
    fill(cleared, [[(9, 9.0)]], [0], 50)
    assert held(cleared) == [[(9, 9.0)]]
    for active in (first, copied):
        active.retain(np.array([1, 3]))
        assert not np.shares_memory(active.numbers, numbers)
    last.retain(np.array([0, 1, 3]))
    assert np.shares_memory(last.numbers, numbers)
    for active, positions in ((first, [1, 3]), (copied, [1, 3]), (last, [0, 1, 3])):
        assert held(active) == [ROWS[k] for k in positions]
        assert active.numbers.tolist() == positions


@pytest.mark.parametrize("less", [0, 1])
def test_a_budget_may_be_filled_to_the_last_byte(less: int) -> None:
    budget = sum(map(size, ROWS)) - less
    assert fill(ActiveSet(budget), ROWS, [0, 1, 2, 3], 0) == len(ROWS) - less
    assert offer(ActiveSet(budget), Pool(), ROWS, 0) == (less == 0)


def test_rows_from_the_midst_of_others_are_shared_as_they_are() -> None:
    pool, active = Pool(), ActiveSet(10**6)
    twice = csr([*ROWS, *ROWS])
    part = Rows(twice.indptr[len(ROWS) :], twice.indices, twice.values)
    freeze(*part)
    for first in (0, len(ROWS)):
        assert active.share(pool, part, targets_of(ROWS, first))
    assert held(active) == [*ROWS, *ROWS]
