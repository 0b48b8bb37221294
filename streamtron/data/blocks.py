"""Cut a shard into blocks and make them chunks, whatever batches its reader delivers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core import rows as chunk
from streamtron.core.errors import DataError
from streamtron.core.rows import Chunk, Label, freeze, make_rows
from streamtron.data.buffers import spare
from streamtron.data.row_batch import RowBatch, cut_codes, offsets_of, row_of, slice_batch

_UNMET = -2
"""In a lookup of codes: a class of the batch of which no row was seen."""


class Segment(NamedTuple):
    """A block of a shard, or a part of one.

    ``indptr`` int64 from 0, ``indices`` uint32, ``values`` float32 or None where all are 1,
    ``codes`` int32 into the shard's own labels (-1 = none), ``weights`` float64 or None where all
    are 1, ``code_offsets`` int64 from 0 or None where a row has one label, ``squares`` float64:
    ‖x_k‖², which parts that are not joined yet need not know (None). ``lowest`` is the smallest
    column number (None without nonzeros), ``width`` 1 + the largest.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.uint32]
    values: NDArray[np.float32] | None
    codes: NDArray[np.int32]
    weights: NDArray[np.float64] | None
    code_offsets: NDArray[np.int64] | None
    squares: NDArray[np.float64] | None
    lowest: int | None
    width: int

    @property
    def rows(self) -> int:
        """Rows in the segment."""
        return len(self.indptr) - 1

    @property
    def nonzeros(self) -> int:
        """Stored values in the segment."""
        return len(self.indices)


def cut(batch: RowBatch, start: int, stop: int, codes: NDArray[np.int32]) -> Segment:
    """Cut rows ``start`` … ``stop - 1`` of a batch, as views, and give them codes.

    The width comes from all columns, not the last of each row: kernels trust it, and a cache file
    may be wrong."""
    part = slice_batch(batch, start, stop)
    return Segment(
        part.indptr,
        part.indices,
        part.values,
        codes,
        part.weights,
        part.code_offsets,
        part.squares,
        int(part.indices.min()) if len(part.indices) else None,
        int(part.indices.max()) + 1 if len(part.indices) else 0,
    )


def join(parts: Sequence[Segment]) -> Segment:
    """Join consecutive parts; leave out values and weights that are all 1, and compute squares."""
    if len(parts) == 1 and parts[0].squares is not None:
        return parts[0]  # of a cache file: as it was joined when that was written
    code_offsets = [part.code_offsets for part in parts if part.code_offsets is not None]
    indptr = _join_offsets([part.indptr for part in parts])
    indices = _joined([part.indices for part in parts], np.uint32)
    values = _join_or_none([(part.values, part.nonzeros) for part in parts], np.float32)
    squares = [part.squares for part in parts if part.squares is not None]
    known = len(squares) == len(parts)
    return Segment(
        indptr,
        indices,
        values,
        np.concatenate([part.codes for part in parts]),
        _join_or_none([(part.weights, part.rows) for part in parts], np.float64),
        _join_offsets(code_offsets) if code_offsets else None,
        np.concatenate(squares) if known else squares_of(indptr, indices, values),
        min((part.lowest for part in parts if part.lowest is not None), default=None),
        max(part.width for part in parts),
    )


def squares_of(
    indptr: NDArray[np.int64], indices: NDArray[np.uint32], values: NDArray[np.float32] | None
) -> NDArray[np.float64]:
    """Compute ‖x_k‖² of rows in CSR; ``values`` None = all are 1."""
    if values is None:
        return np.diff(indptr).astype(np.float64)
    squares = np.empty(len(indptr) - 1)
    kernels.squared_norms(make_rows(indptr, indices, values), squares)
    return squares


def _join_offsets(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return offsets_of(np.concatenate([np.diff(offsets) for offsets in parts]))


def _joined(arrays: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    size = sum(map(len, arrays)) * np.dtype(dtype).itemsize
    return np.concatenate(arrays, out=spare(size)[:size].view(dtype))


def _join_or_none(
    parts: Sequence[tuple[NDArray[np.floating] | None, int]], dtype: type[np.floating]
) -> NDArray | None:  # type: ignore[type-arg]
    if all(array is None or all_ones(array) for array, _ in parts):
        return None
    return _joined([np.ones(n, dtype) if a is None else a for a, n in parts], dtype)


def all_ones(array: NDArray[np.floating]) -> bool:
    """Tell whether all are 1."""
    return bool((array[:64] == 1).all() and (array == 1).all())


_ones = np.ones(0, np.float32)


def ones(count: int) -> NDArray[np.float32]:
    """Return ``count`` ones, read-only and shared by all callers."""
    global _ones
    shared = _ones
    if len(shared) < count:
        shared = np.ones(count + count // 8, np.float32)
        freeze(shared)
        _ones = shared
    return shared[:count]


class RowCutter:
    """Cut consecutive rows after so many rows, or after the row that fills so many nonzeros.

    Parameters
    ----------
    rows, nonzeros : of a group, at least 1.

    Examples
    --------
    >>> cutter = RowCutter(4096, 1 << 20)
    >>> [list(cutter.cuts(np.zeros(3001, np.int64))) for _ in range(2)]
    [[(0, 3000, False)], [(0, 1096, True), (1096, 3000, False)]]
    """

    def __init__(self, rows: int, nonzeros: int) -> None:
        self._most_rows, self._most_nonzeros = rows, nonzeros
        self._rows = self._nonzeros = 0  # of the open group

    def cuts(self, indptr: NDArray[np.int64]) -> Iterator[tuple[int, int, bool]]:
        """Cut the next rows at the ends of groups: (start, stop, whether a group ends)."""
        start, rows = 0, len(indptr) - 1
        while start < rows:
            full = int(indptr[start]) + self._most_nonzeros - self._nonzeros
            by_nonzeros = int(np.searchsorted(indptr, full))
            stop = min(by_nonzeros, start + self._most_rows - self._rows, rows)
            self._rows += stop - start
            self._nonzeros += int(indptr[stop] - indptr[start])
            ends = self._rows >= self._most_rows or self._nonzeros >= self._most_nonzeros
            if ends:
                self._rows = self._nonzeros = 0
            yield start, stop, ends
            start = stop


def block_cutter() -> RowCutter:
    """Cut a shard into blocks of 4,096 rows or 2²⁰ nonzeros."""
    return RowCutter(chunk.BLOCK_ROWS, chunk.BLOCK_NONZEROS)


class LabelTable:
    """The labels of a source in order of appearance; all of one kind, at most ``most``.

    Or only those of ``classes``, in that order; or behind those ``met`` before.

    Examples
    --------
    >>> table = LabelTable(2)
    >>> [table.code(label, "a.svm, line 1") for label in (-1.0, 1.0, -1.0)]
    [0, 1, 0]
    >>> table.code(3.0, "part-2.svm, line 17")
    Traceback (most recent call last):
    ...
    streamtron.core.errors.DataError: part-2.svm, line 17: a third label 3.0 after -1.0 and \
1.0. Use --multiclass, or remove the row.
    """

    def __init__(
        self,
        most: int | None = None,
        classes: Sequence[Label] | None = None,
        met: Sequence[Label] = (),
    ) -> None:
        self.labels: list[Label] = list(met if classes is None else classes)
        self._codes = {label: code for code, label in enumerate(self.labels)}
        self._most = most
        self._closed = classes is not None

    def code(self, label: Label, place: str) -> int:
        """Return the code of a label, which may be new; ``place`` is for messages."""
        kind = _kind(label)
        if self.labels and kind != _kind(self.labels[0]):
            raise DataError(
                f"{place}: the {kind} {label!r} as label, where the labels before are "
                f"{_kind(self.labels[0])}s ({_listed(self.labels)}). Write all labels alike."
            )
        known = self._codes.get(label)
        return self._new(label, place) if known is None else known

    def _new(self, label: Label, place: str) -> int:
        if self._closed:
            raise DataError(
                f"{place}: label {label!r}. Known are {_listed(self.labels)}; remove the row or "
                "correct its label, or fit anew on all shards if it is a class of its own."
            )
        if self._most is not None and len(self.labels) >= self._most:
            which = "a third label" if self._most == 2 else f"label number {self._most + 1},"
            raise DataError(
                f"{place}: {which} {label!r} after {_listed(self.labels)}. "
                "Use --multiclass, or remove the row."
            )
        self._codes[label] = len(self.labels)
        self.labels.append(label)
        return self._codes[label]


def _kind(label: Label) -> str:
    if isinstance(label, bool):
        return "boolean"
    return "string" if isinstance(label, str) else "number"


def _listed(labels: Sequence[Label], most: int = 5) -> str:
    shown = [repr(label) for label in labels[:most]]
    if len(labels) > most:
        return ", ".join(shown) + ", …"
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


class ShardLabels:
    """Number a shard's labels in order of appearance; its cache file keeps these codes."""

    def __init__(self, source: LabelTable) -> None:
        self._source = source
        self._to_shard: dict[int, int] = {}  # from the source's code; in order of appearance

    @property
    def labels(self) -> list[Label]:
        """The shard's labels; its codes point here."""
        return [self._source.labels[code] for code in self._to_shard]

    @property
    def to_source(self) -> NDArray[np.int32]:
        """int32, shape (labels + 1,): the source's code of each shard code; the last is -1."""
        return np.array([*self._to_shard, -1], np.int32)

    def lookup(self, batch: RowBatch) -> NDArray[np.int32]:
        """Make an empty table from a batch's codes to the shard's, for ``codes`` to fill."""
        table = np.full(len(batch.classes) + 1, _UNMET, np.int32)
        table[-1] = -1
        return table

    def codes(
        self, batch: RowBatch, start: int, stop: int, lookup: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Return the shard's codes of rows ``start`` … ``stop - 1`` of a batch."""
        mine, offsets = cut_codes(batch.codes, batch.code_offsets, start, stop)
        if (lookup[mine] == _UNMET).any():
            first = np.full(len(lookup), len(mine))
            first[mine[::-1]] = np.arange(len(mine))[::-1]  # of the same code the last one stays
            unmet = np.flatnonzero((lookup == _UNMET) & (first < len(mine)))
            for code in unmet.tolist():  # in order of appearance, as the batch's classes are
                place = batch.place(start + row_of(offsets, int(first[code])))
                source_code = self._source.code(batch.classes[code], place)
                lookup[code] = self._to_shard.setdefault(source_code, len(self._to_shard))
        return lookup[mine]


def make_chunk(segment: Segment, to_source: NDArray[np.int32], first_row: int) -> Chunk:
    """Make a block a chunk; ``first_row`` is its number in the whole data."""
    codes = to_source[segment.codes]
    values = ones(segment.nonzeros) if segment.values is None else segment.values
    freeze(codes, *(a for a in (segment.code_offsets, segment.weights) if a is not None))
    rows = make_rows(segment.indptr, segment.indices, values)
    assert segment.squares is not None
    freeze(segment.squares)
    ranges = ((first_row, first_row + segment.rows),)
    return Chunk(rows, codes, ranges, segment.squares, segment.code_offsets, segment.weights)
