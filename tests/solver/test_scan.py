"""What a block of rows says of weights at rest: its sums, counts from slacks, rows that matter."""

import math
from collections.abc import Generator, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamtron.core import kernels
from streamtron.core.errors import DataError
from streamtron.core.losses import SQUARED_ERROR, SQUARED_HINGE
from streamtron.core.rows import BLOCK_ROWS, Chunk
from streamtron.core.scan_sums import ScanSums
from streamtron.core.threads import open_threads
from streamtron.data.blocks import squares_of
from streamtron.solver import passes
from streamtron.solver.duals import Counts
from streamtron.solver.row_store import NONZERO_BYTES, ROW_BYTES
from streamtron.solver.scan import (
    BlockScan,
    Frozen,
    ScanRequest,
    counts_of_slacks,
    scan_blocks,
)
from streamtron.solver.targets import TargetRule, Targets
from tests.helpers.examples import examples
from tests.helpers.learners import plain_rows
from tests.helpers.oracle import LARGEST_COUNT, Oracle, Row
from tests.helpers.sources import csr, random_rows

COLUMNS = 6
ROWS = 2 * BLOCK_ROWS + 300
RHO = 0.5
DELTA2 = 0.25
CUTS = [[0, BLOCK_ROWS, 2 * BLOCK_ROWS, ROWS], [0, 1, 4095, 4097, 8192, ROWS], [0, 3000, ROWS]]


@dataclass
class Data:
    rows: list[Row]
    labels: list[int]

    def chunks(self, borders: Sequence[int]) -> Generator[Chunk, None, None]:
        codes = np.array([0 if label == 1 else 1 for label in self.labels], np.int32)
        matrix = csr(self.rows)
        for first, last in pairwise(borders):
            part = matrix._replace(indptr=matrix.indptr[first : last + 1])
            squares = squares_of(*part)
            yield Chunk(part, codes[first:last], ((first, last),), squares)


@pytest.fixture(scope="module")
def data() -> Data:
    return Data(*random_rows(0, ROWS, COLUMNS))


def violators(blocks: Sequence[BlockScan], place: int) -> tuple[int, list[Targets]]:
    """How many all blocks have, and the targets of those that came."""
    parts = [block.seen[place].violators for block in blocks]
    return sum(part.rows for part in parts), [part.targets for part in parts]


def view(seed: int = 0, **changes: object) -> ScanRequest:
    """Weights that leave most rows a slack, and not all."""
    w = np.random.default_rng(seed).normal(size=COLUMNS)
    rule = TargetRule(DELTA2, [1.0, -1.0], None, 1.0)
    return ScanRequest(rule, w, 0.1, RHO, 0.8)._replace(**changes)


def scanned(
    data: Data,
    views: Sequence[ScanRequest],
    borders: Sequence[int],
    rooms: Sequence[int] | None = None,
) -> list[BlockScan]:
    return list(scan_blocks(data.chunks(borders), views, [Counts() for _ in views], rooms))


def plain(value: object) -> object:
    """Tuples of arrays as something that ``==`` compares to the bit."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Targets):
        value = astuple(value)
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def margins(data: Data, request: ScanRequest) -> list[float]:
    oracle = Oracle(data.rows, data.labels, [DELTA2] * ROWS, RHO, width=COLUMNS)
    return oracle.margins(request.w.tolist(), request.bias)


@pytest.mark.parametrize("loss", [SQUARED_HINGE, SQUARED_ERROR], ids=lambda loss: loss.name)
def test_a_scan_sums_the_rows_that_count_in_their_order_on_any_number_of_threads(loss, monkeypatch):
    monkeypatch.setattr(passes, "SHARED", 1)
    monkeypatch.setattr(passes, "SAMPLED", 3)
    rows, _ = random_rows(4, 300, COLUMNS)
    rows[0] = rows[7] = []
    rows[1::2] = [row[::-1] for row in rows[1::2]]  # columns of a row may fall
    draw = np.random.default_rng(4).integers
    signs, counts = draw(-1, 2, 300).astype(np.int8), draw(-(2**30), 2**30, 300).astype(np.int32)
    fresh, low = [0.0] * COLUMNS, [0.0] * COLUMNS
    for row, sign, count in zip(rows, signs.tolist(), counts.tolist(), strict=True):
        for column, value in row if sign and (count > 0 or loss.numbers) else ():
            before, term = fresh[column], float(sign * count) * value
            fresh[column] = before + term
            grown = fresh[column] - before
            low[column] += (before - (fresh[column] - grown)) + (term - grown)
    t = np.zeros(300 if loss.numbers else 0)
    targets = Targets(np.arange(300), signs, np.ones(300), np.ones(300), t)
    told = []
    for threads in (1, 2, 3, 4, 6):
        scan = Frozen(np.linspace(-1, 1, COLUMNS), 0.1, 1.0, 0.0, loss, 2.0**20)
        with open_threads(threads):
            marks = scan.scan(csr(rows), targets, counts, RHO)
        sums = scan.scan_sums
        assert [sums.fresh.tolist(), sums.low.tolist()] == [fresh, low]
        told.append([array.tobytes() for array in (marks, sums.bins, sums.sums, sums.totals)])
    assert told == [told[0]] * 5


@pytest.mark.parametrize("borders", CUTS)
def test_a_block_says_the_same_to_the_bit_whatever_was_scanned_before_it(data, borders):
    views = [view(0, b=9.0, from_slacks=True), view(1, threshold=0.2, first=True, ratio=0.5)]
    rooms = [10**9, 10**9]
    together = scanned(data, views, borders, rooms)
    apart = [scanned(data, views, list(ends), rooms) for ends in pairwise(borders)]
    assert [block.rows for block in together] == np.diff(borders).tolist()
    assert plain(tuple(together)) == plain(tuple(block for [block] in apart))


def test_blocks_add_up_to_the_bins_of_all_rows_at_once(data):
    """And to the squares of columns; what a block brings grows with its rows and not with the
    bins."""
    request = view(0, b=9.0, from_slacks=True, ratio=0.5)
    bins, squares = [], np.zeros(COLUMNS)
    for row in data.rows:
        for column, value in row:
            squares[column] += 0.5 / DELTA2 * value**2
    for borders in ([0, ROWS], CUTS[1], [0, ROWS - 7, ROWS]):
        scan_sums = ScanSums(request.scale, COLUMNS, ratio=0.5)
        for block in scanned(data, [request], borders):
            part = block.seen[0].sums
            assert 0 < len(part.places) <= block.rows
            assert part.bins.shape == (len(part.places), kernels.BIN_SUMS)
            scan_sums.add(part)
        sums = scan_sums.bins.reshape(-1, kernels.BIN_SUMS)
        bins.append(sums[:, ::2] + sums[:, 1::2])
        np.testing.assert_allclose(scan_sums.sq_columns, squares, rtol=1e-12)
    for sums in bins[1:]:
        np.testing.assert_allclose(bins[0], sums, rtol=1e-14)
    assert (bins[0] != 0.0).any(axis=1).sum() > 100


def test_counts_from_slacks_are_those_of_the_formula_and_the_sums_are_theirs(data):
    request = view(b=9.0, from_slacks=True)
    expected, sums, bias = {}, [0.0] * COLUMNS, 0.0
    for k, margin in enumerate(margins(data, request)):
        count = math.floor(9.0 * max(0.0, 1.0 - request.scale * margin) / DELTA2 + 0.5)
        if count:
            expected[k] = count
            bias += count * data.labels[k] * RHO
            for column, value in data.rows[k]:
                sums[column] += count * data.labels[k] * value
    counts: dict[int, int] = {}
    scan_sums = ScanSums(request.scale, COLUMNS)
    for first, block in zip(CUTS[0], scanned(data, [request], CUTS[0]), strict=False):
        [seen] = block.seen
        numbered = (first + seen.made.numbers).tolist()
        counts |= dict(zip(numbered, seen.made.counts.tolist(), strict=True))
        scan_sums.add(seen.sums)
    assert counts == expected
    assert 0.2 * ROWS < len(counts) < 0.9 * ROWS
    assert scan_sums.fresh == pytest.approx(sums, rel=1e-12)
    assert scan_sums.fresh_bias == pytest.approx(bias, rel=1e-12)
    assert scan_sums.steps == sum(expected.values())
    assert scan_sums.sq_extension == DELTA2 * sum(count * count for count in expected.values())


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.sampled_from([-1, 0, 1])), max_size=8),
    st.floats(1e-6, 1e6), st.one_of(st.floats(1e-3, 1e3), st.just(1e-20)),
    st.floats(1e-6, 1e6),
)  # fmt: skip
@example([(0.0, 1)], 1.0, 1e-10, 500.0)
@example([(0.0, 1)], 1.0, 5e-324, 500.0)
def test_a_count_is_b_slacks_over_the_price_and_cut_where_int32_ends(rows, scale, delta2, b):
    n, signs = len(rows), np.array([sign for _, sign in rows], np.int8)
    targets = Targets(np.arange(n), signs, np.full(n, delta2), np.zeros(n))
    products = scale * np.array([margin for margin, _ in rows])
    counts = counts_of_slacks(SQUARED_HINGE, products, targets, b)
    expected = []
    for margin, sign in rows:
        slack = max(0.0, 1.0 - scale * margin) if sign else 0.0
        count = b * slack / delta2 + 0.5
        expected.append(LARGEST_COUNT if count > LARGEST_COUNT else math.floor(count))
    assert counts.dtype == np.int32
    assert counts.tolist() == expected


@pytest.mark.parametrize("room", [0, 23, 1000, 100_000, 10**9])
@pytest.mark.parametrize("borders", CUTS)
def test_the_first_rows_that_are_called_come_as_long_as_there_is_room(data, borders, room):
    views = [view(0, threshold=0.3), view(1, threshold=-0.1)]
    blocks = scanned(data, views, borders, [room, 5000])
    asked: set[int] = set()
    for place, (request, limit) in enumerate(zip(views, (room, 5000), strict=True)):
        violating = np.flatnonzero(np.array(margins(data, request)) <= request.threshold).tolist()
        sizes = [NONZERO_BYTES * len(data.rows[k]) + ROW_BYTES for k in violating]
        fitting = violating[: int((np.cumsum(sizes) <= limit).sum())]
        number, called = violators(blocks, place)
        rows = [row for t in called for row in zip(t.numbers, t.signs, t.delta2, strict=True)]
        assert number == len(violating)
        assert rows == [(k, data.labels[k], DELTA2) for k in fitting]
        asked |= set(fitting)
    held = []
    for first, block in zip(borders, blocks, strict=False):
        held += (first + block.positions).tolist()
        assert plain_rows(block.held) == [data.rows[first + at] for at in block.positions]
    assert held == sorted(asked)


@pytest.mark.parametrize(("room", "fitting"), [(71, [0]), (72, [0, 1]), (104, [0, 1, 2])])
def test_a_room_may_be_filled_to_the_byte_and_behind_a_row_without_none_does(room, fitting):
    rows: list[Row] = [[(0, 1.0)], [(0, 1.0), (1, 1.0)], [(0, 1.0)]]  # 32, 40 and 32 bytes
    blocks = scanned(Data(rows, [1, 1, 1]), [view(threshold=math.inf)], [0, 3], [room])
    number, [called] = violators(blocks, 0)
    assert (called.numbers.tolist(), number) == (fitting, 3)


def test_without_a_room_no_row_comes(data):
    for block in scanned(data, [view(threshold=math.inf)], CUTS[0]):
        assert block.seen[0].violators is None
        assert len(block.positions) == len(block.held.values) == 0


def test_the_first_look_finds_the_radius_and_the_least_price(data):
    weights = np.random.default_rng(3).choice([0.0, 1.0, 2.0, 4.0], size=ROWS)
    lengths = [sum(value * value for _, value in row) + RHO**2 for row in data.rows]
    pairs = zip(lengths, weights, strict=True)
    squares = [length + DELTA2 / weight for length, weight in pairs if weight]
    [chunk] = data.chunks([0, ROWS])
    weighted = replace(chunk, weights=weights)
    blocks = list(scan_blocks((c for c in [weighted]), [view(first=True)], [Counts()]))
    assert max(block.seen[0].sq_radius for block in blocks) == pytest.approx(max(squares))
    assert min(block.seen[0].least_delta2 for block in blocks) == DELTA2 / 4.0


@pytest.mark.parametrize("row", [0, BLOCK_ROWS + 5])
def test_the_first_look_refuses_a_row_that_can_have_no_margin_by_its_number(data, row):
    rows = [[] if k == row else [(0, 1.0)] for k in range(ROWS)]
    hard = view(targets=TargetRule(0.0, [1.0, -1.0], None, 1.0), rho=0.0, first=True)
    with pytest.raises(DataError, match=rf"row {row + 1} has no features"):
        scanned(Data(rows, [1] * ROWS), [hard], CUTS[2])
