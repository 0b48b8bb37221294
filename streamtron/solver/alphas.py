"""The dual variables α_k, a float32 a row: in memory, in the files of parts, and divided among
parts."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.core.files import writing_to
from streamtron.core.sealed import Streamed, read_sealed, write_sealed

IN_MEMORY = 1 << 24
"""A learner keeps the α of at most this many rows in memory, 67 MB. The α of more rows are in a
file, and the system keeps as much of it in memory as there is room for."""

SCRATCH = os.environ.get("TMPDIR") or "/var/tmp"
"""Where it is: not in /tmp, which many systems keep in memory."""

PIECE = 1 << 18
"""Rows that are looked through at a time: their numbers take twice as much memory as their α."""

MOST_ROWS = 2**32 - 1
"""Rows at most: their numbers are kept as differences of 32 bits."""

Ranges = Sequence[tuple[int, int]]

Pieces = Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]
"""Row numbers that have an α, rising, and these: some at a time."""


class Alphas:
    """α_k of every row, by row number; 0 where none has been set; below 0 only where labels are
    numbers. With a ``width`` K > 1, of softmax, a row k has K of them: taken and put are arrays of
    shape (rows, K), while ``nonzero`` and all that is saved number them k K + j.

    >>> alphas = Alphas()
    >>> alphas.put(np.array([7, 9]), np.array([0.5, 2.0], dtype=np.float32))
    >>> alphas.take(np.array([9, 8, 7])).tolist()
    [2.0, 0.0, 0.5]
    """

    width = 1

    def __init__(self, width: int = 1) -> None:
        self.width, self._values = width, np.zeros(0, dtype=np.float32)

    def _reach(self, rows: int) -> NDArray[np.float32]:
        """Return the α of rows 0 … ``rows`` − 1 or more, in place."""
        size, width = rows * self.width, self.width
        if size > len(self._values):
            values = _zeros(max(size, min(2 * len(self._values), MOST_ROWS)))
            values[: len(self._values)] = self._values
            self._values = values
        if width == 1:
            return self._values
        return self._values[: len(self._values) // width * width].reshape(-1, width)

    def take(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """α of rows, shape of ``numbers``: row numbers ≥ 0 in any order."""
        return self._reach(int(numbers.max(initial=-1)) + 1)[numbers]

    def take_ranges(self, ranges: Ranges) -> NDArray[np.float32]:
        """α of the rows in half-open ranges, one range after the other."""
        values = self._reach(max((last for _, last in ranges), default=0))
        return np.concatenate([values[:0], *(values[first:last] for first, last in ranges)])

    def put(self, numbers: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Set α of rows, each row named once."""
        self._reach(int(numbers.max(initial=-1)) + 1)[numbers] = values

    def put_ranges(self, ranges: Ranges, values: NDArray[np.float32]) -> None:
        """Set α of the rows in half-open ranges that do not overlap, one range after the other."""
        rows, done = self._reach(max((last for _, last in ranges), default=0)), 0
        for first, last in ranges:
            rows[first:last] = values[done : done + last - first]
            done += last - first

    def change(self, change: Callable[[NDArray[np.float32]], NDArray[Any]]) -> None:
        """Have a function change every α, some at a time."""
        for start in range(0, len(self._values), PIECE):
            piece = self._values[start : start + PIECE]
            piece[:] = change(piece)

    def nonzero(self) -> Pieces:
        """Row numbers with α_k ≠ 0, rising, and these α_k: some at a time."""
        for start in range(0, len(self._values), PIECE):
            piece = self._values[start : start + PIECE]
            places = np.flatnonzero(piece)
            yield start + places, piece[places]

    def streamed(self) -> tuple[Streamed, Streamed]:
        """Return, for the rows with α_k ≠ 0, rising: the distance of each from the one before (of
        the first from row 0), uint32, and α_k, float32; as many at a time as ``nonzero`` gives."""
        length = sum(len(values) for _, values in self.nonzero())

        def gaps() -> Iterator[NDArray[np.uint32]]:
            last = 0
            for numbers, _ in self.nonzero():
                yield np.diff(numbers, prepend=last).astype(np.uint32)
                last = int(numbers[-1]) if len(numbers) else last

        def values() -> Iterator[NDArray[np.float32]]:
            return (values for _, values in self.nonzero())

        kinds = np.dtype(np.uint32), np.dtype(np.float32)
        return Streamed(kinds[0], length, gaps), Streamed(kinds[1], length, values)

    @classmethod
    def of(cls, pieces: Pieces, width: int = 1) -> Alphas:
        """The α of pieces, in memory."""
        result = cls()
        for numbers, values in pieces:
            result.put(numbers, values)
        result.width = width
        return result

    def reordered(self, classes: Sequence[int]) -> Alphas:
        """Return the α of every row in another order of the classes."""
        result, rows = Alphas(self.width), -(-len(self._values) // self.width)
        for start in range(0, rows, PIECE):
            numbers = np.arange(start, min(rows, start + PIECE))
            result.put(numbers, self.take(numbers)[:, classes])
        return result

    @classmethod
    def of_gaps(cls, gaps: NDArray[np.uint32], values: NDArray[np.float32]) -> Alphas:
        """The α that ``gaps`` tells of, checked by ``check_gaps``."""
        check_gaps(gaps, values)
        result, last = cls(), 0
        for start in range(0, len(gaps), PIECE):
            numbers = last + np.cumsum(gaps[start : start + PIECE], dtype=np.int64)
            result.put(numbers, values[start : start + PIECE])
            last = int(numbers[-1])
        return result

    def dense(self, rows: int) -> NDArray[np.float32]:
        """α of rows 0 … rows − 1, shape (rows,)."""
        return self.take_ranges([(0, rows)])


def _zeros(rows: int) -> NDArray[np.float32]:
    """Return zeros, of many rows in a file that has no name and ends with them; a MachineError
    where the disk is full."""
    if rows > MOST_ROWS:
        raise DataError(
            f"row {rows} of the data: a run has at most {MOST_ROWS:,} rows. Split the data, or "
            "leave some of the rows out."
        )
    if rows <= IN_MEMORY:
        return np.zeros(rows, dtype=np.float32)
    with (
        writing_to(SCRATCH, "Name another place with TMPDIR."),
        tempfile.TemporaryFile(dir=SCRATCH) as file,
    ):
        for start in range(0, rows, PIECE):
            file.write(bytes(4 * min(PIECE, rows - start)))
        file.flush()
        return np.frombuffer(mmap.mmap(file.fileno(), 4 * rows), dtype=np.float32)


def check_gaps(gaps: NDArray[np.uint32], values: NDArray[np.float32]) -> None:
    """Refuse α that are no finite float32 other than 0, one a gap, and a row named twice."""
    right = gaps.dtype == np.uint32 and values.dtype == np.float32 and gaps.shape == values.shape
    strange = (values == 0.0) | ~np.isfinite(values) if right else np.ones(1, dtype=bool)
    if gaps.ndim != 1 or strange.any() or (gaps[1:] == 0).any():
        raise ValueError("dual variables that are no finite float32 other than 0, one a gap")


FORMAT_VERSION = 6


def saved_at(path: str, number: int | None, scans: int) -> str:
    """Return the file of a part's state after ``scans`` scans; ``number`` : of the class, where
    each has a learner."""
    return f"{path}{'' if number is None else f'.class-{number:04d}'}.scan-{scans:04d}"


def read_state(path: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read the state of a part, its α checked; FileDamaged, or a DataError for another version."""
    content, arrays = read_sealed(path, "part of a run")
    if content.get("part_version") != FORMAT_VERSION:
        raise DataError(f"{path}: not a part of version {FORMAT_VERSION}. Fit again.")
    check_gaps(arrays["gaps"], arrays["alphas"])
    return content, arrays


def write_state(path: str, alphas: Alphas, **content: Any) -> None:
    """Write the state of a part: its ``rows``, ``center``, ``rho`` and ``shuffles``."""
    gaps, values = alphas.streamed()
    arrays: dict[str, NDArray[Any] | Streamed] = {"gaps": gaps, "alphas": values}
    write_sealed(path, {"part_version": FORMAT_VERSION, **content}, arrays)


class SavedAlphas(Alphas):
    """α in the files of parts, in the order of the rows. ``nonzero`` and ``streamed`` have those of
    a part in memory at a time; anything else reads them all."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = list(files)

    @cached_property
    def _values(self) -> NDArray[np.float32]:  # type: ignore[override]
        return Alphas.of(self.nonzero())._values

    def nonzero(self) -> Pieces:
        """See ``Alphas``."""
        first = 0
        for file in self._files:
            content, arrays = read_state(file)
            yield first + np.cumsum(arrays["gaps"], dtype=np.int64), arrays["alphas"]
            first += content["rows"]


def split(pieces: Pieces, rows: Sequence[int], width: int = 1) -> Iterator[Alphas]:
    """Yield the α of each group of rows, ``width`` a row, numbered from 0; ``rows`` : how many each
    group has.

    Examples
    --------
    >>> alphas = Alphas()
    >>> alphas.put(np.array([1, 4, 5]), np.array([3.0, 4.0, 9.0], dtype=np.float32))
    >>> [own.dense(3).tolist() for own in split(alphas.nonzero(), [2, 3, 3])]
    [[0.0, 3.0, 0.0], [0.0, 0.0, 4.0], [9.0, 0.0, 0.0]]
    """
    numbers, values, first = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32), 0
    for size in (width * number for number in rows):
        alphas = Alphas()
        while True:
            stop = int(np.searchsorted(numbers, first + size))
            alphas.put(numbers[:stop] - first, values[:stop])
            numbers, values = numbers[stop:], values[stop:]
            if len(numbers) or (piece := next(pieces, None)) is None:
                break
            numbers, values = piece
        alphas.width = width
        yield alphas
        first += size
