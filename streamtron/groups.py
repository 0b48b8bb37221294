"""Rows at weights that do not move, summed by groups: the same sums to the last bit however cut.

Rows are summed by groups of GROUP_ROWS, counted over all shards, and the groups are added in their
order: where shards, chunks and tasks end cannot be seen in the sums. With its sums a group brings
what else a reading is for: counts made from slacks, and the rows that matter.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron import kernels
from streamtron.certificate import Part, length_of, no_bins, no_sums
from streamtron.chunk import Chunk, Rows
from streamtron.training import passes
from streamtron.training.active_set import NONZERO_BYTES, ROW_BYTES, RowStore
from streamtron.training.counts import Counts
from streamtron.training.targets import TargetRule, Targets

GROUP_ROWS = 4096
"""Sums are made of so many rows and added in order, wherever shards and blocks end."""


class View(NamedTuple):
    """What rows are looked at with: one learner's weights, at rest.

    Parameters
    ----------
    targets : the learner's signs and prices.
    w, bias, rho : its weights; columns beyond w weigh 0.
    scale : s₀, around which the least primal is looked for.
    threshold : rows with y·a ≤ threshold or a count are called.
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


class Called(NamedTuple):
    """The rows of a group that a view calls.

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


class Seen(NamedTuple):
    """What a view has seen of a group.

    Parameters
    ----------
    part : its sums.
    sq_radius, least_delta2 : R² and the least Δ_k², for a view that wants them; else 0 and ∞.
    made : the counts made from slacks; None where they are given.
    called : None where no rows are wanted.
    """

    part: Part
    sq_radius: float
    least_delta2: float
    made: Numbered | None
    called: Called | None


class Group(NamedTuple):
    """GROUP_ROWS consecutive rows, or those left at the end.

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
    seen: tuple[Seen, ...]
    numbers: NDArray[np.int64]
    squares: NDArray[np.float64]
    held: Rows


def scan_groups(
    chunks: Generator[Chunk, None, None],
    views: Sequence[View],
    counts: Sequence[Counts],
    rooms: Sequence[int] | None = None,
    start: int = 0,
    stop: int | None = None,
) -> Iterator[Group]:
    """Scan rows ``start`` … ``stop - 1``, a group at a time.

    Parameters
    ----------
    chunks : in the order of the data; closed as soon as no more are needed.
    counts : c_k of every row, for each of the views.
    rooms : bytes of called rows that are wanted, for each of the views: the first of them, up to
        one that finds no room. None = none are wanted.
    start, stop : borders of groups, or the end of the data, which None is too.

    Raises
    ------
    DataError : a view that wants R meets a row without any length.
    """
    gathered = _Gathered(views, counts, rooms)
    with closing(chunks):
        for chunk in chunks:
            [(first, last)] = chunk.ranges
            end = last if stop is None else min(last, stop)
            targets = [view.targets(chunk) for view in views]
            for a, z in pairwise(_cuts(max(first, start), end)):
                gathered.take(chunk, slice(a - first, z - first), targets)
                if z % GROUP_ROWS == 0:
                    yield gathered.close()
            if last > end:
                break
    if gathered.rows:
        yield gathered.close()


def _cuts(first: int, last: int) -> list[int]:
    """Both ends, and the borders of groups in between; nothing if there is nothing in between."""
    if first >= last:
        return []
    return [first, *range(first - first % GROUP_ROWS + GROUP_ROWS, last, GROUP_ROWS), last]


class _Gathered:
    """The group under way."""

    def __init__(
        self, views: Sequence[View], counts: Sequence[Counts], rooms: Sequence[int] | None
    ) -> None:
        wanted: Sequence[int | None] = [None] * len(views) if rooms is None else rooms
        self._looks = [_Look(*one) for one in zip(views, counts, wanted, strict=True)]
        self._begin()

    def _begin(self) -> None:
        self.rows = self._nonzeros = self._width = 0
        self._held = RowStore()

    def take(self, chunk: Chunk, some: slice, targets: Sequence[Targets]) -> None:
        """Look at some rows of a chunk."""
        rows = chunk.rows._replace(indptr=chunk.rows.indptr[some.start : some.stop + 1])
        self.rows += some.stop - some.start
        self._nonzeros += int(rows.indptr[-1] - rows.indptr[0])
        self._width = max(self._width, chunk.width)
        pairs = zip(self._looks, targets, strict=True)
        found = [look.take(rows, _some(own, some), self._width) for look, own in pairs]
        wanted = np.unique(np.concatenate([np.zeros(0, np.int64), *found]))
        if len(wanted):
            own = chunk.numbers[some], chunk.squares[some]
            self._held.add(rows, wanted, *own, sys.maxsize)

    def close(self) -> Group:
        """What is known of the group; the next one begins."""
        seen, held = tuple(look.close() for look in self._looks), self._held
        of_held = held.numbers, held.squares, held.first(len(held))
        group = Group(self.rows, self._nonzeros, self._width, seen, *of_held)
        self._begin()
        return group


def _some(targets: Targets, some: slice) -> Targets:
    return Targets(
        targets.numbers[some], targets.signs[some], targets.delta2[some], targets.squares[some]
    )


_NONE = np.zeros(0, np.int64), np.zeros(0, np.int8), np.zeros(0)
"""Numbers, signs and Δ² of no rows."""


class _Look:
    """What one view sees of the group under way; ``room`` is for all groups."""

    def __init__(self, view: View, counts: Counts, room: int | None) -> None:
        self._view, self._w, self._counts, self._room = view, view.w, counts, room
        self._fresh, self._low = np.zeros(len(view.w)), np.zeros(len(view.w))
        self._length = length_of(view.w, view.bias)
        self._begin()

    def _begin(self) -> None:
        self._bins = no_bins()
        self._sums, self._totals = no_sums(), np.zeros(4, dtype=np.int64)
        self._sq_radius, self._least_delta2 = 0.0, math.inf
        self._counted: list[tuple[Rows, Targets, NDArray[np.int32]]] = []
        self._called_rows, self._called = 0, [_NONE]

    def take(self, rows: Rows, targets: Targets, width: int) -> NDArray[np.int64]:
        """Look at rows, whose columns are below ``width``; positions of those wanted."""
        if width > len(self._w):
            more = np.zeros(width - len(self._w))
            self._w = np.append(self._w, more)
            self._fresh, self._low = np.append(self._fresh, more), np.append(self._low, more)
        view, called = self._view, np.empty(len(targets.signs), dtype=np.uint8)
        if view.first:
            self._meet(targets)
        counts = self._counts_of(rows, targets)
        kernels.scan(
            rows, targets.signs, targets.delta2, targets.squares, counts, view.rho, view.bias,
            view.threshold, self._w, self._length, view.scale, self._bins, self._fresh, self._low,
            self._sums, self._totals, called, kernels.NOT_SUMMED,
        )  # fmt: skip
        if counts.any():
            self._counted.append((rows, targets, counts))
        return self._call(rows, targets, np.flatnonzero(called))

    def close(self) -> Seen:
        """What has been seen of the group; the next one begins."""
        sums = [self._drained(rows, counts) for rows, _, counts in self._counted]
        columns = np.concatenate([np.zeros(0, np.uint32), *(columns for columns, _ in sums)])
        values = np.concatenate([np.zeros(0), *(values for _, values in sums)])
        part = Part(self._bins, self._sums, self._totals, columns, values)
        made = None if self._view.b is None else self._made()
        called = None
        if self._room is not None:
            numbers, signs, delta2 = map(np.concatenate, zip(*self._called, strict=True))
            called = Called(self._called_rows, numbers, signs, delta2)
        seen = Seen(part, self._sq_radius, self._least_delta2, made, called)
        self._begin()
        return seen

    def _meet(self, targets: Targets) -> None:
        lengths = targets.sq_lengths(self._view.rho)
        present = targets.delta2[targets.present]
        self._sq_radius = float(lengths.max(initial=self._sq_radius))
        self._least_delta2 = float(present.min(initial=self._least_delta2))

    def _counts_of(self, rows: Rows, targets: Targets) -> NDArray[np.int32]:
        view = self._view
        if view.b is None:
            return self._counts.take(targets.numbers)
        v = np.append(self._w, view.bias)
        margins = passes.margins(rows, targets.signs, view.rho, v)
        return counts_of_slacks(margins, view.scale, targets, view.b)

    def _call(self, rows: Rows, targets: Targets, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of the rows at positions ``chosen`` those for which there is room."""
        if self._room is None:
            return chosen[:0]
        self._called_rows += len(chosen)
        sizes = NONZERO_BYTES * np.diff(rows.indptr)[chosen] + ROW_BYTES
        total = np.cumsum(sizes)
        fits = int(np.searchsorted(total, self._room, side="right"))
        self._room = self._room - int(sizes[:fits].sum()) if fits == len(chosen) else 0
        own = chosen[:fits]
        self._called.append((targets.numbers[own], targets.signs[own], targets.delta2[own]))
        return own

    def _made(self) -> Numbered:
        numbers, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
        for _, targets, own in self._counted:
            numbers.append(targets.numbers[own > 0])
            counts.append(own[own > 0])
        return Numbered(np.concatenate(numbers), np.concatenate(counts))

    def _drained(
        self, rows: Rows, counts: NDArray[np.int32]
    ) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
        most = int(np.diff(rows.indptr)[counts > 0].sum())
        columns, values = np.empty(most, np.uint32), np.empty(most)
        found = kernels.drain(rows, counts, self._fresh, self._low, columns, values)
        return columns[:found], values[:found]


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
