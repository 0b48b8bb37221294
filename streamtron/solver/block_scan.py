"""Rows at weights that do not move, summed block by block.

The sums of a block are made by themselves, and the blocks are added in their order: whichever
worker reads a shard, the same sums come out to the last bit. With its sums a block brings what else
a reading is for: counts made from slacks, and the rows that matter.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import Part, length_of, no_bins, no_sums
from streamtron.core.rows import Chunk, Rows
from streamtron.solver import passes
from streamtron.solver.duals import Counts
from streamtron.solver.targets import TargetRule, Targets
from streamtron.solver.working_set import NONZERO_BYTES, ROW_BYTES, RowStore


class ScanRequest(NamedTuple):
    """A scan at one learner's fixed weights.

    Parameters
    ----------
    targets : the learner's signs and prices.
    w, bias, rho : its weights; columns beyond w weigh 0.
    scale : s₀, around which the least primal is looked for.
    threshold : rows with y·a ≤ threshold or a count are violators.
    b : counts are not given, but made from the slacks, b to a unit of dual; None = they are given.
    first : whether R and the least Δ² are wanted.
    """

    targets: TargetRule
    w: NDArray[np.float64]
    bias: float
    rho: float
    scale: float
    threshold: float = -math.inf
    b: float | None = None
    first: bool = False


class Numbered(NamedTuple):
    """Rows that have a count, by their numbers in the whole data, rising; and their counts."""

    numbers: NDArray[np.int64]
    counts: NDArray[np.int32]


class Violators(NamedTuple):
    """The violators of a block: rows that the request asks for.

    Parameters
    ----------
    rows : how many they are.
    numbers : of the first of them, for which there is room; in the whole data, rising.
    signs, delta2 : theirs, as in ``Targets``.
    """

    rows: int
    numbers: NDArray[np.int64]
    signs: NDArray[np.int8]
    delta2: NDArray[np.float64]


class PartialSums(NamedTuple):
    """What a view has seen of a block.

    Parameters
    ----------
    part : its sums.
    sq_radius, least_delta2 : R² and the least Δ_k², for a view that wants them; else 0 and ∞.
    made : the counts made from slacks; None where they are given.
    violators : None where no rows are wanted.
    """

    part: Part
    sq_radius: float
    least_delta2: float
    made: Numbered | None
    violators: Violators | None


class BlockScan(NamedTuple):
    """What a scan has seen of one block.

    Parameters
    ----------
    rows, nonzeros : how many.
    width : room for all their columns.
    seen : by every view.
    numbers, squares, held : the rows that some view calls and has room for, each once, rising by
        their numbers in the whole data; ``squares`` are ‖x_k‖².
    """

    rows: int
    nonzeros: int
    width: int
    seen: tuple[PartialSums, ...]
    numbers: NDArray[np.int64]
    squares: NDArray[np.float64]
    held: Rows


def scan_blocks(
    chunks: Generator[Chunk, None, None],
    views: Sequence[ScanRequest],
    counts: Sequence[Counts],
    rooms: Sequence[int] | None = None,
) -> Iterator[BlockScan]:
    """Scan blocks, one after the other.

    Parameters
    ----------
    chunks : a block each, in the order of the data; closed at the end.
    counts : c_k of every row, for each of the views.
    rooms : bytes of violators that are wanted, for each of the views: the first of them, up to
        one that finds no room. None = none are wanted.

    Raises
    ------
    DataError : a view that wants R meets a row without any length.
    """
    wanted: Sequence[int | None] = [None] * len(views) if rooms is None else rooms
    looks = [_Look(*one) for one in zip(views, counts, wanted, strict=True)]
    with closing(chunks):
        for chunk in chunks:
            yield _scanned(chunk, looks)


def _scanned(chunk: Chunk, looks: Sequence[_Look]) -> BlockScan:
    found = [look.at(chunk) for look in looks]
    places = [places for _, places in found]
    wanted = np.unique(np.concatenate([np.zeros(0, np.int64), *places]))
    held = RowStore()
    if len(wanted):
        held.add(chunk.rows, wanted, chunk.numbers, chunk.squares, sys.maxsize)
    return BlockScan(
        len(chunk), chunk.nonzeros, chunk.width, tuple(seen for seen, _ in found),
        held.numbers, held.squares, held.first(len(held)),
    )  # fmt: skip


class _Look:
    """What one view sees, block by block; ``room`` is for all blocks."""

    def __init__(self, view: ScanRequest, counts: Counts, room: int | None) -> None:
        self._view, self._w, self._counts, self._room = view, view.w, counts, room
        # all 0 between blocks
        self._bins, self._fresh, self._low = no_bins(), np.zeros(len(view.w)), np.zeros(len(view.w))
        self._length = length_of(view.w, view.bias)

    def at(self, chunk: Chunk) -> tuple[PartialSums, NDArray[np.int64]]:
        """Look at a block; also the positions of the rows that are wanted."""
        view, rows, targets = self._view, chunk.rows, self._view.targets(chunk)
        self._widen(chunk.width)
        extent = _extent(targets, view.rho) if view.first else (0.0, math.inf)
        counts = self._counts_of(rows, targets)
        sums, totals = no_sums(), np.zeros(4, dtype=np.int64)
        marks = np.empty(len(chunk), dtype=np.uint8)
        kernels.scan(
            rows, targets.signs, targets.delta2, targets.squares, counts, view.rho, view.bias,
            view.threshold, self._w, self._length, view.scale, self._bins, self._fresh, self._low,
            sums, totals, marks, kernels.NO_DOTS,
        )  # fmt: skip
        part = Part(*self._filled(), sums, totals, *self._drained(rows, counts))
        counted = counts > 0
        made = Numbered(targets.numbers[counted], counts[counted])
        violators, places = self._violators(rows, targets, np.flatnonzero(marks))
        return PartialSums(part, *extent, None if view.b is None else made, violators), places

    def _widen(self, width: int) -> None:
        if width > len(self._w):
            more = np.zeros(width - len(self._w))
            self._w = np.append(self._w, more)
            self._fresh, self._low = np.append(self._fresh, more), np.append(self._low, more)

    def _counts_of(self, rows: Rows, targets: Targets) -> NDArray[np.int32]:
        view = self._view
        if view.b is None:
            return self._counts.take(targets.numbers)
        v = np.append(self._w, view.bias)
        margins = passes.margins(rows, targets.signs, view.rho, v)
        return counts_of_slacks(margins, view.scale, targets, view.b)

    def _filled(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The bins that the block fills, which it leaves empty: few where it has few rows."""
        bins = self._bins.reshape(-1, kernels.BIN_SUMS)
        places = np.flatnonzero(bins.any(axis=1))
        filled = bins[places]
        bins[places] = 0.0
        return places, filled

    def _drained(
        self, rows: Rows, counts: NDArray[np.int32]
    ) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
        most = int(np.diff(rows.indptr)[counts > 0].sum())
        columns, values = np.empty(most, np.uint32), np.empty(most)
        found = kernels.drain(rows, counts, self._fresh, self._low, columns, values)
        return columns[:found], values[:found]

    def _violators(
        self, rows: Rows, targets: Targets, chosen: NDArray[np.int64]
    ) -> tuple[Violators | None, NDArray[np.int64]]:
        """The rows at positions ``chosen``, and the positions of those for which there is room."""
        if self._room is None:
            return None, chosen[:0]
        sizes = NONZERO_BYTES * np.diff(rows.indptr)[chosen] + ROW_BYTES
        fits = int(np.searchsorted(np.cumsum(sizes), self._room, side="right"))
        self._room = self._room - int(sizes[:fits].sum()) if fits == len(chosen) else 0
        own = chosen[:fits]
        found = Violators(
            len(chosen), targets.numbers[own], targets.signs[own], targets.delta2[own]
        )
        return found, own


def _extent(targets: Targets, rho: float) -> tuple[float, float]:
    """R² and the least Δ_k² of a block."""
    present = targets.delta2[targets.present]
    return float(targets.sq_lengths(rho).max(initial=0.0)), float(present.min(initial=math.inf))


def counts_of_slacks(
    margins: NDArray[np.float64], scale: float, targets: Targets, b: float
) -> NDArray[np.int32]:
    """c_k = ⌊b max(0, 1 − s m_k)/Δ_k² + ½⌋, 2³¹ − 1 at most; 0 for rows left out.

    At the optimum of P, with b → ∞, these are b times the dual solution.

    Parameters
    ----------
    margins : m_k, shape (rows,), finite.
    scale : s, of which P(s) is least.
    targets : of the same rows, Δ_k² > 0.
    b : counts to a unit of dual.

    Examples
    --------
    >>> signs, delta2 = np.array([1, -1, 0], np.int8), np.array([0.5, 0.5, 1.0])
    >>> rows = Targets(np.arange(3), signs, delta2, np.zeros(3))
    >>> counts_of_slacks(np.array([0.7, 2.0, -6.0]), 1.0, rows, 10.0)
    array([6, 0, 0], dtype=int32)
    """
    with np.errstate(over="ignore"):  # infinity is cut too
        slacks = np.where(targets.signs == 0, 0.0, np.maximum(1.0 - scale * margins, 0.0))
        counts = np.floor(b * slacks / targets.delta2 + 0.5)
    return np.minimum(counts, float(kernels.COUNT_MAX)).astype(np.int32)
