"""Rows in memory as a ChunkSource: the same blocks and chunks as one shard of these rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamtron.chunk import LARGEST_WEIGHT, Block, Chunk, Label, freeze, make_rows
from streamtron.errors import DataError
from streamtron.shards.blocks import BlockCutter, LabelTable, squares_of
from streamtron.shards.labels import Offsets, cut_codes, offsets_of, repeated, row_of_code
from streamtron.shards.piece import beyond_float32

MOST_COLUMNS = 2**32 - 1


class MemorySource:
    """A ``ChunkSource`` over arrays.

    Parameters
    ----------
    X : shape (rows, columns): a scipy sparse matrix or array of any format, with int32 or int64
        indices in any order, or anything numpy takes for a two-dimensional array of numbers.
        Values are rounded to float32; zeros of a dense array are left out, those stored in a
        sparse one are kept.
    y : shape (rows,): labels, all numbers, all strings or all booleans; None = no labels.
        With ``multilabel`` each entry is a list, tuple, set or array of them.
    weights : shape (rows,): row weights, finite and ≥ 0; None = all 1.
    multilabel : a row may have several labels, or none.

    Attributes
    ----------
    labels : the classes, in order of appearance.
    width : 1 + the largest column number that a row holds (not the shape's, if that is larger).
    blocks : the blocks of the data.
    nonzeros_read : nonzeros delivered so far.

    Raises
    ------
    DataError : wrong shapes; no rows; a value that is not finite or overflows float32; an integer
        that float32 cannot hold; a column or label twice in a row; a label or weight that is
        refused.

    Examples
    --------
    >>> source = MemorySource([[0, 2.5], [1, 0]], ["spam", "ham"])
    >>> [chunk] = source.chunks()
    >>> chunk.rows.indices.tolist(), chunk.codes.tolist(), source.labels
    ([1, 0], [0, 1], ['spam', 'ham'])
    """

    index_base = 0
    """The number of the first column."""
    bytes_read = 0
    """Bytes fetched from disk: none."""

    def __init__(
        self,
        X: Any,
        y: ArrayLike | Sequence[Collection[Label]] | None = None,
        weights: ArrayLike | None = None,
        *,
        multilabel: bool = False,
    ) -> None:
        self._indptr, self._indices, self._values = _csr(X)
        rows = len(self._indptr) - 1
        if not rows:
            raise DataError("X: no rows. Wanted is at least one.")
        self._code_offsets: Offsets | None = None
        if multilabel and y is not None:
            self.labels, self._codes, self._code_offsets = _label_lists(y, rows)
        else:
            self.labels, self._codes = _labels(y, rows)
        self._weights = _weights(weights, rows)
        self.width = int(self._indices.max()) + 1 if len(self._indices) else 0
        freeze(self._indices, self._values, self._codes)
        self.blocks = tuple(
            Block(start, stop - start, int(self._indptr[stop] - self._indptr[start]))
            for start, stop, _ in BlockCutter().cuts(self._indptr)
        )
        self._squares = np.concatenate([self._squares_of(block) for block in self.blocks])
        self.nonzeros_read = 0

    @property
    def rows(self) -> int:
        """Rows in the data."""
        return len(self._indptr) - 1

    @property
    def nonzeros(self) -> int:
        """Stored values in the data."""
        return len(self._indices)

    @property
    def readings(self) -> float:
        """Nonzeros delivered ÷ nonzeros in the data; 0 if there are none."""
        return self.nonzeros_read / self.nonzeros if self.nonzeros else 0.0

    def chunks(self, order: Iterable[Sequence[int]] | None = None) -> Generator[Chunk, None, None]:
        """Deliver the data once: in data order, a block at a time; or one chunk for each group of
        block numbers in ``order``, their rows concatenated."""
        for group in order if order is not None else ((k,) for k in range(len(self.blocks))):
            chunk = self._chunk([self.blocks[number] for number in group])
            self.nonzeros_read += chunk.nonzeros
            yield chunk

    def _chunk(self, blocks: Sequence[Block]) -> Chunk:
        ranges = tuple((block.first_row, block.first_row + block.rows) for block in blocks)
        spans = [(int(self._indptr[a]), int(self._indptr[b])) for a, b in ranges]
        lengths = [np.diff(self._indptr[a : b + 1]) for a, b in ranges]
        indptr = np.cumsum(_one([np.zeros(1, np.int64), *lengths]), dtype=np.int64)
        rows = make_rows(
            indptr,
            _one([self._indices[a:b] for a, b in spans]),
            _one([self._values[a:b] for a, b in spans]),
        )
        codes, code_offsets = self._codes_of(ranges)
        squares = _one([self._squares[a:b] for a, b in ranges])
        freeze(squares)
        if self._weights is None:
            return Chunk(rows, codes, ranges, squares, code_offsets)
        weights = _one([self._weights[a:b] for a, b in ranges])
        freeze(weights)
        all_one = bool((weights == 1).all())
        return Chunk(rows, codes, ranges, squares, code_offsets, None if all_one else weights)

    def _squares_of(self, block: Block) -> NDArray[np.float64]:
        indptr = self._indptr[block.first_row : block.first_row + block.rows + 1]
        return squares_of(indptr, self._indices, self._values)

    def _codes_of(
        self, ranges: Sequence[tuple[int, int]]
    ) -> tuple[NDArray[np.int32], Offsets | None]:
        """The codes of the rows in these ranges, and their offsets."""
        parts = [cut_codes(self._codes, self._code_offsets, a, b) for a, b in ranges]
        codes = _one([codes for codes, _ in parts])
        freeze(codes)
        if self._code_offsets is None:
            return codes, None
        offsets = offsets_of(_one([np.diff(self._code_offsets[a : b + 1]) for a, b in ranges]))
        freeze(offsets)
        return codes, offsets

    def close(self) -> None:
        """Nothing to do."""

    def __enter__(self) -> MemorySource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _one(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The arrays as one; a single one without a copy."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


# Values ------------------------------------------------------------------------------------------


def _csr(X: Any) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32]]:
    """CSR with columns that rise strictly; X is not changed."""
    from scipy import sparse

    array = X if sparse.issparse(X) else _array(X, "X")
    if array.ndim != 2:
        raise DataError(f"X: {array.ndim} dimension(s). Wanted are two: rows and columns.")
    if array.dtype.kind not in "biuf":
        raise DataError(f"X: values of type {array.dtype}. Wanted are real numbers.")
    indptr, indices, values = _from_sparse(X) if sparse.issparse(X) else _from_dense(array)
    if len(indices) and not 0 <= indices.min() <= indices.max() < MOST_COLUMNS:
        raise DataError(
            f"X: columns from {indices.min()} to {indices.max()}. Wanted are 0 to "
            f"{MOST_COLUMNS - 1}."
        )
    return indptr.astype(np.int64), indices.astype(np.uint32), _float32(values, indptr)


def _array(values: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name}: not an array ({error}).") from error


def _from_dense(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    rows, columns = np.nonzero(array)
    indptr = np.searchsorted(rows, np.arange(len(array) + 1))
    return indptr, columns, array[rows, columns]


def _from_sparse(X: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    if X.format in ("csr", "csc"):
        matrix = X.tocsr()
    else:
        coordinates = X.tocoo()
        matrix = coordinates.tocsr()  # adds up what occurs twice, without a word
        if matrix.nnz != coordinates.nnz:
            raise DataError(f"X: a column occurs twice in a row. {_TWICE}")
    if _first_fall(matrix) is not None:
        matrix = matrix.sorted_indices()
    at = _first_fall(matrix)
    if at is not None:
        row = _row_of(at, matrix.indptr)
        raise DataError(f"X, row {row}: column {matrix.indices[at]} occurs twice. {_TWICE}")
    return matrix.indptr, matrix.indices, matrix.data


_TWICE = "Call X.sum_duplicates() if the sum is meant."


def _first_fall(matrix: Any) -> int | None:
    """The first nonzero whose column is not above its predecessor's in the same row."""
    falls = np.zeros(len(matrix.indices), bool)
    falls[1:] = matrix.indices[1:] <= matrix.indices[:-1]
    starts = matrix.indptr[:-1]
    falls[starts[starts < len(falls)]] = False
    return _first(falls)


def _first(mask: NDArray[np.bool_]) -> int | None:
    return int(np.argmax(mask)) if mask.any() else None


def _row_of(nonzero: int, indptr: NDArray[Any]) -> int:
    return int(np.searchsorted(indptr, nonzero, side="right")) - 1


def _float32(values: NDArray[Any], indptr: NDArray[Any]) -> NDArray[np.float32]:
    """Values rounded to float32; what it cannot hold is refused."""
    if values.dtype.kind in "iu":
        at = _first(beyond_float32(values))
        if at is not None:
            raise DataError(
                f"X, row {_row_of(at, indptr)}: value {values[at]} is an integer beyond 2**24 that "
                "float32 cannot hold. Rescale the column."
            )
    with np.errstate(over="ignore"):  # judged below, by row
        rounded = values.astype(np.float32)
    at = _first(~np.isfinite(rounded))
    if at is not None:
        why = "overflows float32" if np.isfinite(values[at]) else "is not finite"
        raise DataError(
            f"X, row {_row_of(at, indptr)}: value {values[at]} {why}. Rescale the column, or "
            "remove the row."
        )
    return rounded


# Labels and weights ------------------------------------------------------------------------------


def _labels(y: Any, rows: int) -> tuple[list[Label], NDArray[np.int32]]:
    """The labels in order of appearance, and a code for each row."""
    if y is None:
        return [], np.full(rows, -1, np.int32)
    return _encoded(_vector(y, "y", rows), "y, row {}".format)


def _label_lists(y: Any, rows: int) -> tuple[list[Label], NDArray[np.int32], Offsets]:
    """The labels in order of appearance, the codes of all rows and their offsets."""
    lists = [_as_list(row, number) for number, row in enumerate(y)]
    if len(lists) != rows:
        raise DataError(f"y: labels of {len(lists)} rows. Wanted are those of {rows}.")
    offsets = offsets_of(np.array([len(own) for own in lists]))
    items = list(chain.from_iterable(lists))

    def place(at: int) -> str:
        return f"y, row {row_of_code(offsets, at)}"

    labels, codes = _encoded(_vector(items, "y", len(items)), place)
    twice = repeated(codes, offsets)
    if twice is not None:
        row, code = twice
        raise DataError(f"y, row {row}: label {labels[code]!r} occurs twice. Give each one once.")
    return labels, codes, offsets


def _as_list(row: Any, number: int) -> list[Any]:
    """The labels of one row; those of a set in their order, which otherwise may be any."""
    if isinstance(row, str) or not isinstance(row, Collection):
        raise DataError(f"y, row {number}: {row!r}. Wanted is a list of labels, [] for none.")
    return sorted(row) if isinstance(row, set | frozenset) else list(row)


def _encoded(
    array: NDArray[Any], place: Callable[[int], str]
) -> tuple[list[Label], NDArray[np.int32]]:
    """Labels in order of appearance, and codes; ``place`` names an entry in messages."""
    if array.dtype.kind in "iuf":
        array = _numbers(array, place)
    elif array.dtype.kind not in "bU":
        table = LabelTable()
        items = array.tolist()
        codes = [table.code(_label(item, place(at)), place(at)) for at, item in enumerate(items)]
        return table.labels, np.array(codes, np.int32)
    found, first, inverse = np.unique(array, return_index=True, return_inverse=True)
    order = np.argsort(first)
    codes_of = np.empty(len(found), np.int32)
    codes_of[order] = np.arange(len(found))
    return found[order].tolist(), codes_of[inverse]


def _numbers(array: NDArray[Any], place: Callable[[int], str]) -> NDArray[np.float64]:
    floats = array.astype(np.float64) + 0.0  # -0 is 0
    bad = ~np.isfinite(floats)
    if array.dtype.kind in "iu":
        bad |= np.abs(floats) >= 2.0**53  # beyond, two labels could become one float
    at = _first(bad)
    if at is not None:
        raise DataError(
            f"{place(at)}: label {array[at]}. Numbers as labels are finite, integers below 2**53."
        )
    return floats


def _label(item: Any, place: str) -> Label:
    if isinstance(item, (bool, np.bool_)):
        return bool(item)
    if isinstance(item, str):
        return str(item)
    if isinstance(item, (int, float, np.number)) and not np.iscomplexobj(item):
        if not np.isfinite(item) or (item == int(item) and abs(int(item)) >= 2**53):
            raise DataError(f"{place}: label {item}. Wanted is a finite number below 2**53.")
        return float(item) + 0.0
    raise DataError(
        f"{place}: label {item!r} of type {type(item).__name__}. Wanted are numbers, strings "
        "or booleans."
    )


def _weights(weights: Any, rows: int) -> NDArray[np.float64] | None:
    if weights is None:
        return None
    array = _vector(weights, "weights", rows)
    if array.dtype.kind not in "biuf":
        raise DataError(f"weights: values of type {array.dtype}. Wanted are real numbers.")
    array = array.astype(np.float64)
    at = _first(~((array >= 0) & (array <= LARGEST_WEIGHT)))
    if at is not None:
        raise DataError(
            f"weights, row {at}: weight {array[at]}. Weights are at least 0 and at most 1e30."
        )
    freeze(array)
    return array


def _vector(values: Any, name: str, rows: int) -> NDArray[Any]:
    array = _array(values, name)
    if array.shape != (rows,):
        raise DataError(
            f"{name}: shape {array.shape}. Wanted is ({rows},), one entry for each row."
        )
    return array
