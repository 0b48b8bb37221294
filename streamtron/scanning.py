"""One reading at frozen weights, here or on many workers: the same sums to the last bit.

Rows are summed by groups of GROUP_ROWS, counted over all shards, and the groups are added in their
order: where shards, chunks and tasks end cannot be seen in the sums. A group belongs to the shard
in which it begins; who scans that shard reads on into the next ones for it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron import kernels
from streamtron.certificate import Part, no_sums
from streamtron.chunk import Chunk, Label, Rows
from streamtron.errors import DataError
from streamtron.shards import Reading, ShardFile, ShardSource
from streamtron.training.counts import Counts
from streamtron.training.targets import TargetRule

GROUP_ROWS = 4096
"""Sums are made of so many rows and added in order, wherever shards and blocks end."""


class View(NamedTuple):
    """What rows are looked at with: one learner's weights, at rest.

    Parameters
    ----------
    targets : the learner's signs and prices.
    w, bias, rho : its weights; columns beyond w weigh 0.
    scale : s₀, around which the least primal is looked for.
    """

    targets: TargetRule
    w: NDArray[np.float64]
    bias: float
    rho: float
    scale: float


class Group(NamedTuple):
    """What GROUP_ROWS consecutive rows, or those left at the end, add to the sums of every view;
    ``width`` is room for all their columns."""

    rows: int
    nonzeros: int
    width: int
    parts: tuple[Part, ...]


def scan_groups(
    chunks: Generator[Chunk, None, None],
    views: Sequence[View],
    counts: Sequence[Counts],
    start: int = 0,
    stop: int | None = None,
) -> Iterator[Group]:
    """Scan rows ``start`` … ``stop - 1``, a group at a time.

    Parameters
    ----------
    chunks : in the order of the data; closed as soon as no more are needed.
    counts : c_k of every row, for each of the views.
    start, stop : borders of groups, or the end of the data, which None is too.
    """
    scans = [_Scan(view) for view in views]
    rows = nonzeros = width = 0
    with closing(chunks):
        for chunk in chunks:
            [(first, last)] = chunk.ranges
            targets = [view.targets(chunk) for view in views]
            end = last if stop is None else min(last, stop)
            for a, z in pairwise(_cuts(max(first, start), end)):
                some = slice(a - first, z - first)
                part = chunk.rows._replace(indptr=chunk.rows.indptr[some.start : some.stop + 1])
                for scan, target, own in zip(scans, targets, counts, strict=True):
                    taken = own.take(target.numbers[some])
                    scan.take(part, target.signs[some], target.delta2[some], taken, chunk.width)
                rows, width = rows + z - a, max(width, chunk.width)
                nonzeros += int(part.indptr[-1] - part.indptr[0])
                if z % GROUP_ROWS == 0:
                    yield Group(rows, nonzeros, width, tuple(scan.close() for scan in scans))
                    rows = nonzeros = width = 0
            if last > end:
                break
    if rows:
        yield Group(rows, nonzeros, width, tuple(scan.close() for scan in scans))


def _cuts(first: int, last: int) -> list[int]:
    """Both ends, and the borders of groups in between; nothing if there is nothing in between."""
    if first >= last:
        return []
    return [first, *range(first - first % GROUP_ROWS + GROUP_ROWS, last, GROUP_ROWS), last]


class _Scan:
    """A view's sums of the group under way."""

    def __init__(self, view: View) -> None:
        self._view, self._w = view, view.w
        self._fresh = np.zeros(len(view.w))
        self._begin()

    def _begin(self) -> None:
        self._bins = np.zeros((3, kernels.BINS))
        self._sums, self._totals = no_sums(), np.zeros(4, dtype=np.int64)
        self._summed: list[tuple[Rows, NDArray[np.int32]]] = []

    def take(
        self,
        rows: Rows,
        signs: NDArray[np.int8],
        delta2: NDArray[np.float64],
        counts: NDArray[np.int32],
        width: int,
    ) -> None:
        """Look at rows, whose columns are below ``width``."""
        if width > len(self._w):
            more = np.zeros(width - len(self._w))
            self._w, self._fresh = (np.append(old, more) for old in (self._w, self._fresh))
        view, called = self._view, np.empty(len(counts), dtype=np.uint8)
        kernels.scan(
            rows, signs, delta2, counts, view.rho, view.bias, -np.inf, self._w, view.scale,
            self._bins, self._fresh, self._sums, self._totals, called,
        )  # fmt: skip
        if counts.any():
            self._summed.append((rows, counts))

    def close(self) -> Part:
        """What the group has summed; the next one begins."""
        found = [self._drained(*summed) for summed in self._summed]
        columns = np.concatenate([np.zeros(0, np.uint32), *(columns for columns, _ in found)])
        values = np.concatenate([np.zeros(0), *(values for _, values in found)])
        part = Part(self._bins, self._sums, self._totals, columns, values)
        self._begin()
        return part

    def _drained(
        self, rows: Rows, counts: NDArray[np.int32]
    ) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
        most = int(np.diff(rows.indptr)[counts > 0].sum())
        columns, values = np.empty(most, np.uint32), np.empty(most)
        found = kernels.drain(rows, counts, self._fresh, columns, values)
        return columns[:found], values[:found]


# --- on workers ----------------------------------------------------------------------------------


class Stretch(NamedTuple):
    """What one task scans: the groups that begin in one shard.

    Parameters
    ----------
    shards : that shard, and those into which its last group goes on.
    rows : of each of them.
    first_row : the number of their first row in the whole data.
    start, stop : the rows to scan.
    counts : of each view, the numbers of these rows that have a count, rising, and their counts.
    """

    shards: tuple[ShardFile, ...]
    rows: tuple[int, ...]
    first_row: int
    start: int
    stop: int
    counts: tuple[tuple[NDArray[np.int64], NDArray[np.int32]], ...]

    @property
    def name(self) -> str:
        """What the dashboard calls it."""
        return self.shards[0].name


def stretches(
    shards: Sequence[ShardFile], rows: Sequence[int], counts: Sequence[Counts]
) -> list[Stretch]:
    """The tasks that scan all rows once, in the order of the rows.

    Parameters
    ----------
    rows : of every shard.
    counts : c_k of every row, for each of the views.
    """
    borders = list(accumulate(rows, initial=0))
    entries = [own.entries() for own in counts]
    found = []
    for number, (first, last) in enumerate(pairwise(borders)):
        start, stop = _border_from(first), min(_border_from(last), borders[-1])
        if start >= stop:
            continue  # no group begins here: another task reads on to its end
        behind = next(k for k, border in enumerate(borders) if border >= stop)
        own = tuple(_between(numbers, values, start, stop) for numbers, values in entries)
        found.append(
            Stretch(
                tuple(shards[number:behind]), tuple(rows[number:behind]), first, start, stop, own
            )
        )
    return found


def _border_from(row: int) -> int:
    """The first border of groups at a row or behind it."""
    return -(-row // GROUP_ROWS) * GROUP_ROWS


def _between(
    numbers: NDArray[np.int64], counts: NDArray[np.int32], start: int, stop: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    own = slice(*np.searchsorted(numbers, (start, stop)))
    return numbers[own], counts[own]


def scan_stretch(
    stretch: Stretch, views: Sequence[View], reading: Reading, classes: Sequence[Label]
) -> Iterator[Group]:
    """The groups of a task.

    Raises
    ------
    DataError : a shard has more rows or fewer than it is said to have; what its reader refuses.
    MachineError : it cannot be read.
    """
    counts = [Counts() for _ in stretch.counts]
    for own, (numbers, values) in zip(counts, stretch.counts, strict=True):
        own.put(numbers, values)
    chunks = _chunks(stretch, reading, classes)
    yield from scan_groups(chunks, views, counts, stretch.start, stretch.stop)


def _chunks(
    stretch: Stretch, reading: Reading, classes: Sequence[Label]
) -> Generator[Chunk, None, None]:
    """The rows of the shards, numbered as in the whole data."""
    begin = stretch.first_row
    for shard, rows in zip(stretch.shards, stretch.rows, strict=True):
        last = 0
        with alone(shard, reading, classes) as source:
            for chunk in source.chunks():
                [(first, last)] = chunk.ranges
                if last > rows:
                    break
                yield replace(chunk, ranges=((begin + first, begin + last),))
        if last != rows:
            raise DataError(
                f"{shard.name}: it holds {'more' if last > rows else 'fewer'} rows than the {rows} "
                "that the witness has of it. Give the shards that the model was fitted on."
            )
        begin += rows


def alone(
    shard: ShardFile,
    reading: Reading,
    classes: Sequence[Label],
    cache_dir: str | None = None,
) -> ShardSource:
    """One shard by itself, which may have no row and may be there twice."""
    return ShardSource(
        [shard], reading, cache_dir=cache_dir, classes=classes, allow_duplicate=True,
        allow_empty=True,
    )  # fmt: skip


def fingerprint(
    shard: ShardFile, reading: Reading, classes: Sequence[Label]
) -> Iterator[tuple[str, str]]:
    """(name, fingerprint) of a shard, from its bytes.

    Raises
    ------
    MachineError : it cannot be read.
    """
    with alone(shard, reading, classes) as source:
        yield from source.fingerprints()
