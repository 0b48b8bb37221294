"""Rows in memory: a Chunk is a read-only block of rows in CSR, a ChunkSource delivers chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

BLOCK_ROWS = 4096
BLOCK_NONZEROS = 1 << 20

COLUMN_MAX = 2**32 - 2
"""Largest column number."""

LARGEST_WEIGHT = 1e30
"""Largest weight of a row: sums of larger ones, times C, could overflow."""

Vector = NDArray[np.float64]
"""Numbers, most often one a column, or one a row."""

Label = float | str | bool
"""A class label. Numbers are floats, whatever their type in the file."""

Codes = NDArray[Any]
"""Of each row its class, int32, as a position in a table of labels; or, float64, its target: the
number that is to be predicted, finite. -1 or NaN where there is none (prediction only)."""


class Rows(NamedTuple):
    """Rows in CSR as the kernels take them: every array contiguous and read-only.

    Row i holds the finite ``values[indptr[i]:indptr[i+1]]`` in the columns
    ``indices[indptr[i]:indptr[i+1]]``, which differ within a row. ``indptr`` has the shape
    (rows + 1,); ``indptr[0]`` may be above 0. Where ``first`` is not −1, all nonzeros of row i have
    the value ``values[first + i]``: click logs, sets of words and categories take half the memory.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.uint32]
    values: NDArray[np.float32]
    first: int = -1

    @property
    def by_row(self) -> bool:
        """Whether all nonzeros of a row have the same value, which is stored once."""
        return self.first >= 0

    def part(self, start: int, stop: int) -> Rows:
        """Return rows ``start`` … ``stop - 1``, not copied."""
        first = self.first + start if self.by_row else -1
        return self._replace(indptr=self.indptr[start : stop + 1], first=first)

    def spread(self) -> NDArray[np.float32]:
        """Return the value of every nonzero, shape (nonzeros,)."""
        if not self.by_row:
            return self.values[self.indptr[0] : self.indptr[-1]]
        return np.repeat(self.values[self.first :][: len(self.indptr) - 1], np.diff(self.indptr))

    def sizes(self, lengths: Any) -> Any:
        """Return the bytes that rows of these lengths count against the active set."""
        return row_bytes(lengths, 1, by_row=self.by_row)


NONZERO_BYTES, ROW_BYTES = 8, 24
"""What a nonzero and a row count against the active set; 4 and 28 where values are one a row."""


def row_bytes(nonzeros: Any, rows: Any, *, by_row: bool) -> Any:
    """Return the bytes that rows with ``nonzeros`` altogether count against the active set.

    >>> row_bytes(10, 1, by_row=False), row_bytes(10, 1, by_row=True)
    (104, 68)
    """
    moved = 4 if by_row else 0
    return (NONZERO_BYTES - moved) * nonzeros + (ROW_BYTES + moved) * rows


@dataclass(frozen=True, eq=False)
class Chunk:
    """Hold rows in memory with their classes; checked by the reader, never changed.

    Parameters
    ----------
    rows : the CSR arrays.
    codes : ``Codes``, shape (rows,) or, with ``code_offsets``, (sum of labels,); classes are
        positions in the source's ``labels``.
    ranges : the row numbers held, as half-open ranges of the whole data, in the chunk's order.
    squares : float64, shape (rows,): ‖x_k‖², summed in row order.
    code_offsets : int64, shape (rows + 1,), where a row may have several labels; else None.
    weights : float64, shape (rows,), 0 to LARGEST_WEIGHT: row weights; None if all are 1.
    """

    rows: Rows
    codes: Codes
    ranges: tuple[tuple[int, int], ...]
    squares: NDArray[np.float64]
    code_offsets: NDArray[np.int64] | None = None
    weights: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.rows.indptr) - 1

    @property
    def nonzeros(self) -> int:
        """Return the number of stored values."""
        return int(self.rows.indptr[-1] - self.rows.indptr[0])

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """Return the rows' numbers in the whole data, shape (rows,)."""
        numbers = np.concatenate([np.arange(first, last) for first, last in self.ranges])
        freeze(numbers)
        return numbers

    @cached_property
    def width(self) -> int:
        """Return 1 + the largest column number in the chunk; 0 without nonzeros."""
        start, stop = int(self.rows.indptr[0]), int(self.rows.indptr[-1])
        return int(self.rows.indices[start:stop].max()) + 1 if stop > start else 0


def are_targets(codes: Codes) -> bool:
    """Tell whether codes are numbers to be predicted."""
    return codes.dtype == np.float64


def without_label(codes: Codes) -> NDArray[np.bool_]:
    """Tell which codes stand for no label."""
    return np.isnan(codes) if are_targets(codes) else codes < 0


def freeze(*arrays: NDArray) -> None:  # type: ignore[type-arg]
    """Make arrays read-only in place; the kernels' signatures demand it inside a Chunk."""
    for array in arrays:
        array.setflags(write=False)


def make_rows(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    values: NDArray[np.float32],
    first: int = -1,
) -> Rows:
    """Create rows from arrays of the right dtypes, contiguous and read-only, without checks."""
    given = zip((indptr, indices, values), (np.int64, np.uint32, np.float32), strict=True)
    arrays = [np.ascontiguousarray(array, dtype) for array, dtype in given]
    freeze(*arrays)
    return Rows(arrays[0], arrays[1], arrays[2], first)


class Block(NamedTuple):
    """One unit of order: rows ``first_row`` … ``first_row + rows - 1`` of the whole data."""

    first_row: int
    rows: int
    nonzeros: int


def size_of(blocks: Sequence[Block]) -> tuple[int, int]:
    """Return the rows and nonzeros of blocks."""
    return sum(block.rows for block in blocks), sum(block.nonzeros for block in blocks)


def ranges_of(blocks: Iterable[Block]) -> tuple[tuple[int, int], ...]:
    """Return the rows of blocks as half-open ranges, those that follow one another as one.

    >>> ranges_of([Block(0, 5, 9), Block(5, 2, 1), Block(9, 1, 1)])
    ((0, 7), (9, 10))
    """
    ranges: list[tuple[int, int]] = []
    for block in blocks:
        first = ranges.pop()[0] if ranges and ranges[-1][1] == block.first_row else block.first_row
        ranges.append((first, block.first_row + block.rows))
    return tuple(ranges)


class Facts(NamedTuple):
    """What is known of all rows of a weight above 0 before any is visited.

    ``rows`` : how many. ``weight`` : the sum of their weights; ``least_weight`` and
    ``largest_weight``. ``sq_norm`` : the largest ‖x_k‖². ``label_weights`` : the sum of the weights
    of the rows of each label, by code. ``total``, ``least``, ``largest`` : the sum and the ends of
    labels that are numbers; 0 of others. ``by_row`` : see ``Rows``.
    """

    rows: int
    weight: float
    least_weight: float
    largest_weight: float
    sq_norm: float
    label_weights: tuple[float, ...]
    total: float = 0.0
    least: float = 0.0
    largest: float = 0.0
    by_row: bool = False

    @property
    def mean(self) -> float:
        """The mean of labels that are numbers."""
        return self.total / max(self.rows, 1)

    def plus(self, later: Facts) -> Facts:
        """Add the facts of later rows, whose codes mean the same labels."""
        if not (self.rows and later.rows):
            return later if later.rows else self
        pairs = zip_longest(self.label_weights, later.label_weights, fillvalue=0.0)
        return Facts(
            self.rows + later.rows,
            self.weight + later.weight,
            min(self.least_weight, later.least_weight),
            max(self.largest_weight, later.largest_weight),
            max(self.sq_norm, later.sq_norm),
            tuple(first + second for first, second in pairs),
            self.total + later.total,
            min(self.least, later.least),
            max(self.largest, later.largest),
            self.by_row and later.by_row,
        )


NO_FACTS = Facts(0, 0.0, 0.0, 0.0, 0.0, ())
"""What is known of no rows."""


class Held(NamedTuple):
    """All rows of the data in memory, in their order: the CSR arrays and ‖x_k‖², frozen."""

    rows: Rows
    squares: NDArray[np.float64]


class Data(Protocol):
    """Rows that can be read any number of times, and all facts about them.

    Columns are numbered by rank, from 0 on: those that occur, the most frequent first. ``labels`` :
    the classes; codes are positions here. ``held`` : all rows, if they are in memory; then
    ``chunks`` delivers parts of them.
    """

    @property
    def labels(self) -> Sequence[Label]:
        """Return the classes; codes are positions here."""

    @property
    def columns(self) -> int:
        """Return how many columns occur."""

    @property
    def blocks(self) -> Sequence[Block]:
        """Return the blocks of the data."""

    @property
    def facts(self) -> Facts:
        """Return the facts about all rows."""

    @property
    def held(self) -> Held | None:
        """Return all rows, if they are in memory."""

    @property
    def nonzeros_read(self) -> int:
        """Return the nonzeros delivered from disk so far, from which ``readings`` is computed."""

    def chunks(self, order: Iterable[Sequence[int]] | None = None) -> Iterator[Chunk]:
        """Deliver the data once: in data order, up to 4,096 rows or 2²⁰ nonzeros at a time; or one
        chunk for each group of block numbers in ``order``, their rows concatenated."""
