"""Counts of rows: 4 bytes a row at most, less where few pages of rows have one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError

PAGE = 4096
"""Rows a page: a page is held once one of its rows has a count."""

MOST_ROWS = 2**32 - 1
"""Rows at most: their numbers are kept as differences of 32 bits, and the sum of so many counts
below 2³¹ is below 2⁶³."""


_Run = tuple[int, slice, NDArray[np.int64] | slice]
"""Page, entries of those asked for, places in the page."""

Ranges = Sequence[tuple[int, int]]


class Counts:
    """c_k ≥ 0 of every row, int32, by row number; 0 where none has been set.

    >>> counts = Counts()
    >>> counts.put(np.array([7, 10_000]), np.array([3, 5], dtype=np.int32))
    >>> counts.take(np.array([10_000, 8, 7])).tolist(), counts.nbytes
    ([5, 0, 3], 32768)
    """

    def __init__(self) -> None:
        self._pages: dict[int, NDArray[np.int32]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(page.nbytes for page in self._pages.values())

    def take(self, numbers: NDArray[np.int64]) -> NDArray[np.int32]:
        """Counts of rows, shape of ``numbers``: row numbers ≥ 0 in any order."""
        return self._taken(_runs(numbers), len(numbers))

    def take_ranges(self, ranges: Ranges) -> NDArray[np.int32]:
        """Counts of the rows in half-open ranges, one behind the other."""
        return self._taken(_stretches(ranges), sum(last - first for first, last in ranges))

    def put(self, numbers: NDArray[np.int64], counts: NDArray[np.int32]) -> None:
        """Set counts of rows, each row named once."""
        self._put(_runs(numbers), counts)

    def put_ranges(self, ranges: Ranges, counts: NDArray[np.int32]) -> None:
        """Set counts of the rows in half-open ranges that do not overlap, one behind the other."""
        self._put(_stretches(ranges), counts)

    def clear(self) -> None:
        """All counts are 0."""
        self._pages = {}

    def scale(self, factor: int) -> None:
        """Multiply every count; the caller sees to it that none passes 2³¹ − 1."""
        for page in self._pages.values():
            page *= np.int32(factor)

    def largest(self) -> int:
        """The largest count; 0 if there is none."""
        return max((int(page.max()) for page in self._pages.values()), default=0)

    def total(self) -> int:
        """t = Σ c_k."""
        return sum(int(page.sum(dtype=np.int64)) for page in self._pages.values())

    def nonzero(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """Row numbers that have a count, rising, and their counts: a page at a time."""
        for number in sorted(self._pages):
            page = self._pages[number]
            places = np.flatnonzero(page)
            yield number * PAGE + places, page[places]

    def entries(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """All row numbers that have a count, rising, and their counts."""
        none = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        numbers, counts = zip(none, *self.nonzero(), strict=True)
        return np.concatenate(numbers), np.concatenate(counts)

    def gaps(self) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        """Of the rows that have a count, rising: how far each lies behind the one before (the
        first: behind row 0), and the counts."""
        numbers, counts = self.entries()
        return np.diff(numbers, prepend=0).astype(np.uint32), counts

    @classmethod
    def of_gaps(cls, gaps: NDArray[np.uint32], counts: NDArray[np.int32]) -> Counts:
        """The counts that ``gaps`` tells of, checked by ``check_gaps``."""
        check_gaps(gaps, counts)
        made = cls()
        made.put(np.cumsum(gaps, dtype=np.int64), counts)
        return made

    def dense(self, rows: int) -> NDArray[np.int32]:
        """Counts of rows 0 … rows − 1, shape (rows,)."""
        return self.take_ranges([(0, rows)])

    def _taken(self, runs: Iterator[_Run], rows: int) -> NDArray[np.int32]:
        found = np.zeros(rows, dtype=np.int32)
        for number, run, at in runs:
            if number in self._pages:
                found[run] = self._pages[number][at]
        return found

    def _put(self, runs: Iterator[_Run], counts: NDArray[np.int32]) -> None:
        for number, run, at in runs:
            if number in self._pages or counts[run].any():
                page = self._pages.setdefault(number, np.zeros(PAGE, dtype=np.int32))
                page[at] = counts[run]


def check_gaps(gaps: NDArray[np.uint32], counts: NDArray[np.int32]) -> None:
    """Refuse counts that are not positive int32, one a gap, and a row named twice."""
    right = gaps.dtype == np.uint32 and counts.dtype == np.int32 and gaps.shape == counts.shape
    # an upper bound holds for counts ≥ 0 alone: one negative count would prove what is false
    if not right or gaps.ndim != 1 or (counts <= 0).any() or (gaps[1:] == 0).any():
        raise ValueError("counts that are not positive int32, one a gap")


def _check_rows(last: int) -> None:
    """Refuse rows whose numbers, or whose counts' sum, would wrap."""
    if last > MOST_ROWS:
        raise DataError(
            f"row {last} of the data: a run has at most {MOST_ROWS:,} rows. Split the data, or "
            "leave some of the rows out."
        )


def _runs(numbers: NDArray[np.int64]) -> Iterator[_Run]:
    """Stretches of consecutive entries that lie in one page."""
    if not len(numbers):
        return
    _check_rows(int(numbers.max()) + 1)
    first = int(numbers.min()) // PAGE
    if first == int(numbers.max()) // PAGE:
        yield first, slice(None), numbers - first * PAGE
        return
    pages = numbers // PAGE
    borders = np.flatnonzero(pages[1:] != pages[:-1]) + 1
    for start, stop in zip((0, *borders), (*borders, len(numbers)), strict=True):
        yield int(pages[start]), slice(start, stop), numbers[start:stop] % PAGE


def _stretches(ranges: Ranges) -> Iterator[_Run]:
    """The same of all rows in half-open ranges."""
    done = 0
    for first, last in ranges:
        _check_rows(last)
        while first < last:
            number, at = divmod(first, PAGE)
            rows = min(last - first, PAGE - at)
            yield number, slice(done, done + rows), slice(at, at + rows)
            first, done = first + rows, done + rows
