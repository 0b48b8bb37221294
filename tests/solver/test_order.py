"""Order is a function of (seed, reading) and of nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtron.core.config import Settings
from streamtron.core.rows import BLOCK_ROWS, Block, Chunk, Rows
from streamtron.solver import order
from tests.helpers.kernel_cases import prove

numbers = st.integers(0, 2**40)
BLOCKS = [Block(0, BLOCK_ROWS, BLOCK_ROWS)] * 800


def orders(seed: int, reading: int, place: int, rows: int = 100) -> tuple[list[int], ...]:
    """All orders of so many rows that are functions of seed, reading and place."""
    turn, none = order.Turn(seed, reading, place), np.zeros(0)
    chunk = Chunk(Rows(np.zeros(rows + 1), none, none), none, ((place, place + rows),), none)
    orders = (
        order.visiting_order(Settings(seed=seed), reading, chunk),
        turn.all(rows),
        turn.drawn(np.linspace(1.0, 2.0, rows)),
    )
    return tuple(positions.tolist() for positions in orders)


@prove
@given(numbers, numbers, st.lists(st.sampled_from([1, 128, 700, BLOCK_ROWS]), max_size=300))
def test_every_block_is_read_once_in_groups_of_about_the_stated_size(seed, reading, sizes):
    blocks = [Block(0, rows, 10 * rows) for rows in sizes]
    groups = order.block_groups(seed, reading, blocks)
    assert sorted(block for group in groups for block in group) == list(range(len(blocks)))
    assert all(groups)
    most = order.GROUP * BLOCK_ROWS + 2 * max(sizes, default=0)
    assert all(sum(sizes[block] for block in group) <= most for group in groups)
    assert len(groups) <= max(3, 1 + sum(sizes) // (order.GROUP * BLOCK_ROWS))


@pytest.mark.parametrize("question", [(1, 5, 3), (0, 6, 3), (0, 5, 4)])
def test_seed_reading_and_place_decide_every_order_of_rows(question):
    assert orders(0, 5, 3) == orders(0, 5, 3)
    assert all(a != b for a, b in zip(orders(0, 5, 3), orders(*question), strict=True))
    assert len(set(map(str, orders(0, 5, 3)))) == 3, "drawn independently"


def test_seed_and_reading_decide_the_order_of_blocks_which_mixes_distant_ones():
    groups = order.block_groups(0, 5, BLOCKS)
    assert groups == order.block_groups(0, 5, BLOCKS)
    assert groups not in (order.block_groups(1, 5, BLOCKS), order.block_groups(0, 6, BLOCKS))
    assert np.median([max(group) - min(group) for group in groups]) > 400


SIZES = {1: [1], 2: [1, 1], 3: [2, 1], 5: [3, 2], 7: [3, 2, 2], 16: [6, 5, 5], 25: [7, 6, 6, 6]}


def test_there_are_three_groups_at_least_so_that_one_is_read_while_another_is_visited():
    for number, sizes in SIZES.items():
        assert [*map(len, order.block_groups(0, 1, BLOCKS[:number]))] == sizes


def test_a_row_is_drawn_first_as_often_as_its_weight_says():
    weights = np.array([1.0, 2.0, 7.0])
    first = [int(order.Turn(0, 0, draw).drawn(weights)[0]) for draw in range(3000)]
    shares = np.bincount(first, minlength=3) / len(first)
    assert np.abs(shares - weights / weights.sum()).max() < 0.03  # three standard deviations


@pytest.mark.parametrize("rows", [order.WINDOW, order.WINDOW + 1, 3 * order.WINDOW + 700])
def test_a_mini_epoch_visits_every_row_once_in_windows_of_runs_from_distant_places(rows):
    positions = order.Turn(0, 1, 2).all(rows)
    assert sorted(positions.tolist()) == list(range(rows))
    for first in range(0, rows, order.WINDOW):
        window = positions[first : first + order.WINDOW]
        runs = len(np.unique(window // order.RUN))
        assert runs <= len(window) // order.RUN + 2
        if runs > 2:  # the last window may be a row
            assert np.ptp(window) > 0.5 * rows
            assert np.mean(np.diff(window) == 1) < 0.02, "not as the rows lie"


def test_some_rows_are_visited_in_the_order_of_as_many():
    turn, chosen = order.Turn(3, 1, 9), np.arange(5, 400, 7)
    assert turn.some(chosen).tolist() == chosen[turn.all(len(chosen))].tolist()
