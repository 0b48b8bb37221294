"""A shard's rows into blocks: where blocks end, how labels become codes, how parts become a chunk.

Nothing here depends on the pieces that a reader delivers: the same rows of a shard give the same
blocks and, bit for bit, the same chunks, whatever shards lie before it.
"""

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
from streamtron.data.labels import cut_codes, offsets_of, row_of_code
from streamtron.data.row_batch import RowBatch

_UNMET = -2
"""In a lookup of codes: a class of the piece that no row has had yet."""


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


def cut(piece: RowBatch, start: int, stop: int, codes: NDArray[np.int32]) -> Segment:
    """Rows ``start`` … ``stop - 1`` of a piece, with the codes given, as views.

    All columns are looked at, although they should rise within a row: kernels trust the width, and
    a cache file is no more than a file.

    Examples
    --------
    >>> piece = RowBatch(np.array([0, 2, 2]), np.array([3, 9], np.uint32), None,
    ...               np.zeros(2, np.int32), [1.0], None, "row {}".format)
    >>> [(part.lowest, part.width) for part in (cut(piece, k, k + 1, []) for k in range(2))]
    [(3, 10), (None, 0)]
    """
    first, last = int(piece.indptr[start]), int(piece.indptr[stop])
    indices = piece.indices[first:last]
    _, code_offsets = cut_codes(piece.codes, piece.code_offsets, start, stop)
    return Segment(
        piece.indptr[start : stop + 1] - first,
        indices,
        None if piece.values is None else piece.values[first:last],
        codes,
        None if piece.weights is None else piece.weights[start:stop],
        code_offsets,
        None if piece.squares is None else piece.squares[start:stop],
        int(indices.min()) if len(indices) else None,
        int(indices.max()) + 1 if len(indices) else 0,
    )


def join(parts: Sequence[Segment]) -> Segment:
    """Consecutive parts as one, text and tables in arrays of their own; values and weights left out
    where all 1, and squares known.

    Examples
    --------
    >>> piece = RowBatch(np.array([0, 1, 2]), np.array([7, 9], np.uint32), np.ones(2, np.float32),
    ...               np.zeros(2, np.int32), [1.0], None, "row {}".format)
    >>> whole = join([cut(piece, k, k + 1, piece.codes[k : k + 1]) for k in range(2)])
    >>> whole.indptr.tolist(), whole.indices.tolist(), whole.values, whole.squares.tolist()
    ([0, 1, 2], [7, 9], None, [1.0, 1.0])
    """
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
    """‖x_k‖² of rows in CSR; ``values`` None = all are 1.

    Examples
    --------
    >>> indptr, indices = np.array([0, 2, 3]), np.zeros(3, np.uint32)
    >>> squares_of(indptr, indices, np.array([1, 2, 3], np.float32)).tolist()
    [5.0, 9.0]
    >>> squares_of(indptr, indices, None).tolist()
    [2.0, 1.0]
    """
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
    """Whether all are 1; mostly told by the first few.

    Examples
    --------
    >>> [all_ones(np.array(values)) for values in ([1.0, 1.0], [1.0, 0.5], [])]
    [True, False, True]
    """
    return bool((array[:64] == 1).all() and (array == 1).all())


_ones = np.ones(0, np.float32)


def ones(count: int) -> NDArray[np.float32]:
    """``count`` ones, read-only and shared by everybody who asks."""
    global _ones
    shared = _ones
    if len(shared) < count:
        shared = np.ones(count + count // 8, np.float32)
        freeze(shared)
        _ones = shared
    return shared[:count]


class BlockCutter:
    """Where the blocks of one shard end: after the 4,096th row, or the row that fills 2²⁰ nonzeros;
    and the last one with the shard.

    Examples
    --------
    >>> cutter = BlockCutter()
    >>> [list(cutter.cuts(np.zeros(3001, np.int64))) for _ in range(2)]
    [[(0, 3000, False)], [(0, 1096, True), (1096, 3000, False)]]
    """

    def __init__(self) -> None:
        self._rows = self._nonzeros = 0  # of the open block

    def cuts(self, indptr: NDArray[np.int64]) -> Iterator[tuple[int, int, bool]]:
        """Cut the shard's next rows at the ends of blocks: (start, stop, whether a block ends)."""
        start, rows = 0, len(indptr) - 1
        while start < rows:
            full = int(indptr[start]) + chunk.BLOCK_NONZEROS - self._nonzeros
            by_nonzeros = int(np.searchsorted(indptr, full))
            by_rows = start + chunk.BLOCK_ROWS - self._rows
            stop = min(by_nonzeros, by_rows, rows)
            self._rows += stop - start
            self._nonzeros += int(indptr[stop] - indptr[start])
            ends = self._rows >= chunk.BLOCK_ROWS or self._nonzeros >= chunk.BLOCK_NONZEROS
            if ends:
                self._rows = self._nonzeros = 0
            yield start, stop, ends
            start = stop


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
        """The label's code, a new one if it is new; ``place`` is where it stands.

        Raises
        ------
        DataError : one label too many, or a label of another kind than those before.
        """
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
    """One shard's labels in order of appearance, beside those of its source.

    A cache keeps the shard's own codes, which no neighbour can change.
    """

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

    def lookup(self, piece: RowBatch) -> NDArray[np.int32]:
        """An empty table from a piece's codes to the shard's, which ``codes`` fills as needed."""
        table = np.full(len(piece.classes) + 1, _UNMET, np.int32)
        table[-1] = -1
        return table

    def codes(
        self, piece: RowBatch, start: int, stop: int, lookup: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """The shard's codes of rows ``start`` … ``stop - 1`` of a piece.

        Raises
        ------
        DataError : a label is refused by the source's table; earlier rows are not affected.
        """
        mine, offsets = cut_codes(piece.codes, piece.code_offsets, start, stop)
        if (lookup[mine] == _UNMET).any():
            first = np.full(len(lookup), len(mine))
            first[mine[::-1]] = np.arange(len(mine))[::-1]  # of the same code the last one stays
            unmet = np.flatnonzero((lookup == _UNMET) & (first < len(mine)))
            for code in unmet.tolist():  # in order of appearance, as the piece's classes are
                place = piece.place(start + row_of_code(offsets, int(first[code])))
                source_code = self._source.code(piece.classes[code], place)
                lookup[code] = self._to_shard.setdefault(source_code, len(self._to_shard))
        return lookup[mine]


def make_chunk(segment: Segment, to_source: NDArray[np.int32], first_row: int) -> Chunk:
    """A block as a chunk, whose first row has this number in the whole data."""
    codes = to_source[segment.codes]
    values = ones(segment.nonzeros) if segment.values is None else segment.values
    freeze(codes, *(a for a in (segment.code_offsets, segment.weights) if a is not None))
    rows = make_rows(segment.indptr, segment.indices, values)
    assert segment.squares is not None
    freeze(segment.squares)
    ranges = ((first_row, first_row + segment.rows),)
    return Chunk(rows, codes, ranges, segment.squares, segment.code_offsets, segment.weights)
