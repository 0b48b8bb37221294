"""What a block of rows says of weights at rest: its sums, α from slacks, rows that matter."""

from collections.abc import Generator, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise

import numpy as np
import pytest

from streamtron.core.losses import SQUARED_ERROR, SQUARED_HINGE
from streamtron.core.rows import BLOCK_ROWS, NONZERO_BYTES, ROW_BYTES, Chunk
from streamtron.core.threads import open_threads
from streamtron.data.blocks import squares_of
from streamtron.solver import passes
from streamtron.solver import scan as scan_module
from streamtron.solver.alphas import Alphas
from streamtron.solver.scan import BlockScan, Frozen, ScanRequest, scan_blocks
from streamtron.solver.targets import TargetRule, Targets
from tests.helpers.learners import plain_rows
from tests.helpers.oracle import Oracle, Row
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
            yield Chunk(part, codes[first:last], ((first, last),), squares_of(*part))


@pytest.fixture(scope="module")
def data() -> Data:
    return Data(*random_rows(0, ROWS, COLUMNS))


def view(seed: int = 0, **changes: object) -> ScanRequest:
    """Weights that leave most rows a slack, and not all."""
    w = np.random.default_rng(seed).normal(size=COLUMNS)
    rule = TargetRule(0.5 / DELTA2, [1.0, -1.0], None, 1.0)
    return ScanRequest(rule, w, 0.1, RHO)._replace(**changes)


def scanned(
    data: Data,
    views: Sequence[ScanRequest],
    borders: Sequence[int],
    rooms: Sequence[int] | None = None,
) -> list[BlockScan]:
    return list(scan_blocks(data.chunks(borders), views, [Alphas() for _ in views], rooms))


def plain(value: object) -> object:
    """Tuples of arrays as something that ``==`` compares to the bit."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Targets):
        value = astuple(value)
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


@pytest.mark.parametrize("loss", [SQUARED_HINGE, SQUARED_ERROR], ids=lambda loss: loss.name)
def test_a_scan_sums_the_rows_that_count_to_the_same_bits_on_any_threads(loss, monkeypatch):
    monkeypatch.setattr(passes, "SHARED", 1)
    monkeypatch.setattr(scan_module, "SHARED", 1)
    monkeypatch.setattr(passes, "SAMPLED", 3)
    rows, _ = random_rows(4, 300, COLUMNS)
    rows[0] = rows[7] = []
    rows[1::2] = [row[::-1] for row in rows[1::2]]  # columns of a row may fall
    draw = np.random.default_rng(4).integers
    signs, alphas = draw(-1, 2, 300).astype(np.int8), draw(0, 2**24, 300).astype(np.float32)
    alphas = alphas - np.float32(2**23) if loss.numbers else alphas
    t = np.zeros(300 if loss.numbers else 0)
    targets = Targets(np.arange(300), signs, np.full(300, 0.5), np.ones(300), t)
    counting = np.where(signs != 0, alphas, np.float32(0.0))
    told, added = [], set()
    for threads, given in (1, counting), *((number, alphas) for number in (1, 2, 3, 4, 6)):
        scan = Frozen(np.linspace(-1, 1, COLUMNS), 0.1, loss)
        with open_threads(threads):
            marks = scan.scan(csr(rows), targets, given, RHO)
        sums = scan.scan_sums
        told.append([array.tobytes() for array in (marks, sums.sums, sums.totals)])
        added.add((sums.fresh.tobytes(), sums.low.tobytes()))
    assert told[1:] == [told[1]] * 5
    assert len(added) == 1


@pytest.mark.parametrize("borders", CUTS)
def test_a_block_says_the_same_to_the_bit_whatever_was_scanned_before_it(data, borders):
    views = [view(0, from_slacks=True), view(1, threshold=0.2, ratio=0.5)]
    rooms = [10**9, 10**9]
    together = scanned(data, views, borders, rooms)
    apart = [scanned(data, views, list(ends), rooms) for ends in pairwise(borders)]
    assert [block.rows for block in together] == np.diff(borders).tolist()
    assert plain(tuple(together)) == plain(tuple(block for [block] in apart))


@pytest.mark.parametrize("room", [0, 23, 1000, 100_000, 10**9])
@pytest.mark.parametrize("borders", CUTS)
def test_the_first_rows_that_are_called_come_as_long_as_there_is_room(data, borders, room):
    views = [view(0, threshold=0.3), view(1, threshold=-0.1)]
    blocks = scanned(data, views, borders, [room, 5000])
    asked: set[int] = set()
    oracle = Oracle(data.rows, data.labels, [DELTA2] * ROWS, RHO, width=COLUMNS)
    for place, (request, limit) in enumerate(zip(views, (room, 5000), strict=True)):
        margins = oracle.margins(request.w.tolist(), request.bias)
        violating = [k for k, margin in enumerate(margins) if margin <= request.threshold]
        sizes = [NONZERO_BYTES * len(data.rows[k]) + ROW_BYTES for k in violating]
        fitting = violating[: int((np.cumsum(sizes) <= limit).sum())]
        parts = [block.seen[place].violators for block in blocks]
        called = [part.targets for part in parts]
        rows = [row for t in called for row in zip(t.numbers, t.signs, t.costs, strict=True)]
        assert sum(part.rows for part in parts) == len(violating)
        assert rows == [(k, data.labels[k], 0.5 / DELTA2) for k in fitting]
        asked |= set(fitting)
    held = []
    for first, block in zip(borders, blocks, strict=False):
        held += (first + block.positions).tolist()
        assert plain_rows(block.held) == [data.rows[first + at] for at in block.positions]
    assert held == sorted(asked)
    without = [part for block in scanned(data, views, borders) for part in block.seen]
    assert {part.violators for part in without} == {None}, "without a room no row comes"
