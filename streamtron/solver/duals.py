"""The integer dual variables c_k: in memory, in the files of parts, and divided among parts."""

from __future__ import annotations

import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.core.files import writing_to
from streamtron.core.sealed import Streamed, read_sealed, write_sealed

PAGE = 4096
"""Rows a page: a page is held once one of its rows has a count."""

IN_MEMORY = 4096
"""Pages at most that the counts of a learner keep in memory, 67 MB; others are in files, of which
the system keeps in memory what has room."""

FEWEST = 16
"""Pages at least that such a file has, and IN_MEMORY at most."""

SCRATCH = os.environ.get("TMPDIR") or "/var/tmp"
"""Where they are: not in /tmp, which many systems keep in memory."""

PIECE = 1 << 18
"""Counts that are put into their pages at a time: their row numbers take twice as much memory."""

MOST_ROWS = 2**32 - 1
"""Rows at most: their numbers are kept as differences of 32 bits, and the sum of so many counts
below 2³¹ is below 2⁶³."""


Page = NDArray[np.int32]

_Run = tuple[int, slice, NDArray[np.int64] | slice]
"""Page, entries of those asked for, places in the page."""

Ranges = Sequence[tuple[int, int]]


class Counts:
    """c_k of every row, int32, by row number; 0 where none has been set; below 0 only where labels
    are numbers.

    >>> counts = Counts()
    >>> counts.put(np.array([7, 10_000]), np.array([3, 5], dtype=np.int32))
    >>> counts.take(np.array([10_000, 8, 7])).tolist(), counts.nbytes
    ([5, 0, 3], 32768)
    """

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._pages: dict[int, Page] = {}
        self._in_memory, self._free = in_memory, list[Page]()

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return 4 * PAGE * min(len(self._pages), self._in_memory)

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
        """The largest |c_k|; 0 if there is none."""
        return max((int(np.abs(page).max()) for page in self._pages.values()), default=0)

    def total(self) -> int:
        """t = Σ |c_k|."""
        return sum(int(np.abs(page).sum(dtype=np.int64)) for page in self._pages.values())

    def nonzero(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """Row numbers that have a count, rising, and their counts: a page at a time."""
        for number in sorted(self._pages):
            page = self._pages[number]
            places = np.flatnonzero(page != 0)
            yield number * PAGE + places, page[places]

    def entries(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """All row numbers that have a count, rising, and their counts."""
        none = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        numbers, counts = zip(none, *self.nonzero(), strict=True)
        return np.concatenate(numbers), np.concatenate(counts)

    def streamed(self) -> tuple[Streamed, Streamed]:
        """Of the rows that have a count, rising: how far each lies behind the one before (the
        first: behind row 0), uint32, and the counts, int32; as many at a time as ``nonzero``
        gives."""
        length = sum(len(counts) for _, counts in self.nonzero())

        def gaps() -> Iterator[NDArray[np.uint32]]:
            last = 0
            for numbers, _ in self.nonzero():
                yield np.diff(numbers, prepend=last).astype(np.uint32)
                last = int(numbers[-1]) if len(numbers) else last

        def counts() -> Iterator[NDArray[np.int32]]:
            return (values for _, values in self.nonzero())

        return (
            Streamed(np.dtype(np.uint32), length, gaps),
            Streamed(np.dtype(np.int32), length, counts),
        )

    def gaps(self) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        """Return ``streamed`` in memory."""
        gaps, counts = self.streamed()
        return gaps.whole(), counts.whole()

    @classmethod
    def of_gaps(cls, gaps: NDArray[np.uint32], counts: NDArray[np.int32]) -> Counts:
        """The counts that ``gaps`` tells of, checked by ``check_gaps``."""
        check_gaps(gaps, counts)
        result, last = cls(), 0
        for start in range(0, len(gaps), PIECE):
            numbers = last + np.cumsum(gaps[start : start + PIECE], dtype=np.int64)
            result.put(numbers, counts[start : start + PIECE])
            last = int(numbers[-1])
        return result

    def dense(self, rows: int) -> NDArray[np.int32]:
        """Counts of rows 0 … rows − 1, shape (rows,)."""
        return self.take_ranges([(0, rows)])

    def _taken(self, runs: Iterator[_Run], rows: int) -> NDArray[np.int32]:
        result = np.zeros(rows, dtype=np.int32)
        for number, run, at in runs:
            if number in self._pages:
                result[run] = self._pages[number][at]
        return result

    def _put(self, runs: Iterator[_Run], counts: NDArray[np.int32]) -> None:
        for number, run, at in runs:
            if number in self._pages or counts[run].any():
                if number not in self._pages:
                    self._pages[number] = self._new_page()
                self._pages[number][at] = counts[run]

    def _new_page(self) -> Page:
        held = len(self._pages)
        if held < self._in_memory:
            return np.zeros(PAGE, dtype=np.int32)
        self._free = self._free or pages_of_file(min(max(held, FEWEST), IN_MEMORY))
        return self._free.pop()


def pages_of_file(number: int, directory: str = SCRATCH) -> list[Page]:
    """Return so many pages, all 0, in a file that has no name and ends with them; a MachineError
    where the disk is full."""
    with (
        writing_to(directory, "Name another place with TMPDIR."),
        tempfile.TemporaryFile(dir=directory) as file,
    ):
        for _ in range(number):
            file.write(bytes(4 * PAGE))
        file.flush()
        pages = mmap.mmap(file.fileno(), 4 * PAGE * number)
    return list(np.frombuffer(pages, dtype=np.int32).reshape(number, PAGE))


def check_gaps(gaps: NDArray[np.uint32], counts: NDArray[np.int32]) -> None:
    """Refuse counts that are no int32 other than 0, one a gap, and a row named twice."""
    right = gaps.dtype == np.uint32 and counts.dtype == np.int32 and gaps.shape == counts.shape
    zero = (counts == 0) | (counts == np.iinfo(np.int32).min)  # whose size is no int32
    if not right or gaps.ndim != 1 or zero.any() or (gaps[1:] == 0).any():
        raise ValueError("counts that are no int32 other than 0, one a gap")


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


FORMAT_VERSION = 5

State = tuple[dict[str, Any], dict[str, NDArray[Any]]]


def saved_at(path: str, number: int | None, scans: int) -> str:
    """Return the file of a part's state after so many scans; ``number`` : of the class, if there is
    a learner for each."""
    return f"{path}{'' if number is None else f'.class-{number:04d}'}.scan-{scans:04d}"


def read_state(path: str) -> State:
    """Read the state of a part, its counts checked; FileDamaged, or a DataError for another
    version."""
    content, arrays = read_sealed(path, "part of a run")
    if content.get("part_version") != FORMAT_VERSION:
        raise DataError(f"{path}: not a part of version {FORMAT_VERSION}. Fit again.")
    check_gaps(arrays["gaps"], arrays["counts"])
    return content, arrays


def write_state(path: str, counts: Counts, held: NDArray[np.int64], **content: Any) -> None:
    """Write the state of a part; ``held`` : the rows that it keeps whatever a scan finds."""
    gaps, values = counts.streamed()
    arrays: dict[str, NDArray[Any] | Streamed] = {"gaps": gaps, "counts": values, "held": held}
    write_sealed(path, {"part_version": FORMAT_VERSION, **content}, arrays)


def write_first_state(
    path: str, counts: Counts, rows: int, b: float, center: float, rho: float
) -> None:
    """Write the state of a part of so many rows that has counts, in units of b, and has read no
    row."""
    write_state(
        path, counts, np.zeros(0, np.int64), rows=rows, b=b, center=center, rho=rho, shuffles=0
    )


class StreamedCounts(Counts, ABC):
    """Counts that are in files. ``nonzero`` and ``streamed`` have some of them in memory at a time;
    ``gaps`` and anything else reads them all."""

    def __init__(self) -> None:
        self._in_memory, self._free = IN_MEMORY, []

    @abstractmethod
    def nonzero(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """Row numbers that have a count, rising, and their counts: some at a time."""

    @cached_property
    def _pages(self) -> dict[int, NDArray[np.int32]]:  # type: ignore[override]
        all_counts = Counts()
        for numbers, counts in self.nonzero():
            all_counts.put(numbers, counts)
        return all_counts._pages


class SavedCounts(StreamedCounts):
    """Counts in the files of parts, in the order of the rows: those of a part at a time."""

    def __init__(self, files: Sequence[str]) -> None:
        super().__init__()
        self._files = list(files)

    def nonzero(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """Row numbers that have a count, rising, and their counts: a part at a time."""
        first = 0
        for file in self._files:
            content, arrays = read_state(file)
            yield first + np.cumsum(arrays["gaps"], dtype=np.int64), arrays["counts"]
            first += content["rows"]


Pieces = Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]
"""Row numbers that have a count, rising, and their counts: some at a time."""


def split(pieces: Pieces, rows: Sequence[int]) -> Iterator[Counts]:
    """Yield the counts of so many rows each, one after the other, numbered from 0 in each.

    Examples
    --------
    >>> counts = Counts()
    >>> counts.put(np.array([1, 4, 5]), np.array([3, 4, 9], dtype=np.int32))
    >>> [own.dense(3).tolist() for own in split(counts.nonzero(), [2, 3, 3])]
    [[0, 3, 0], [0, 0, 4], [9, 0, 0]]
    """
    numbers, values, first = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32), 0
    for size in rows:
        counts = Counts()
        while True:
            stop = int(np.searchsorted(numbers, first + size))
            counts.put(numbers[:stop] - first, values[:stop])
            numbers, values = numbers[stop:], values[stop:]
            if len(numbers) or (piece := next(pieces, None)) is None:
                break
            numbers, values = piece
        yield counts
        first += size
