"""Read every layout of features: a record batch in, offsets, columns and values out.

A new layout is a function in ``LAYOUTS``. ``table_rows`` checks the columns for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.data.formats.column_types import pair_fields
from streamtron.data.formats.columns import Columns
from streamtron.data.row_batch import Layout, beyond_float32, offsets_of, row_of


class Spot(NamedTuple):
    """Where a batch begins; names its rows in messages.

    ``part`` is the file's own division: ``"row group 3"``, ``"record batch 0"``.
    """

    name: str
    part: str
    first_row: int

    def row(self, i: int) -> str:
        """Name row i of the batch."""
        return f"{self.name}, {self.part}, row {self.first_row + i}"

    def refuse(self, i: int, what: str) -> NoReturn:
        """Raise DataError about row i of the batch."""
        raise DataError(f"{self.row(i)}: {what}")


class Entries(NamedTuple):
    """A batch's features, row after row.

    ``columns`` are numbers of any integer type, or names as an Arrow array; ``values`` are finite,
    None if all are 1.
    """

    indptr: NDArray[np.int64]
    columns: NDArray[Any] | pa.Array
    values: NDArray[np.float32] | None


def lists(batch: pa.RecordBatch, columns: Columns, spot: Spot) -> Entries:
    """Read a list of column numbers or names, and one of values where there is one."""
    [column] = columns.features
    indptr, keys = _items(batch.column(column), column, spot)
    if columns.values is None:
        return Entries(indptr, _keys(keys), None)
    values_indptr, values = _items(batch.column(columns.values), columns.values, spot)
    if not np.array_equal(indptr, values_indptr):
        lengths, value_lengths = np.diff(indptr), np.diff(values_indptr)
        row = first(lengths != value_lengths)
        spot.refuse(
            row,
            f"{lengths[row]} features in {column!r} and {value_lengths[row]} values in "
            f"{columns.values!r}. A row needs as many of one as of the other.",
        )
    return Entries(indptr, _keys(keys), float32(indptr, _numbers(values), spot))


def pairs(batch: pa.RecordBatch, columns: Columns, spot: Spot) -> Entries:
    """Read a list of structs of a column and a value, or a map."""
    [column] = columns.features
    array = batch.column(column)
    key, value = 0, 1
    if not pa.types.is_map(array.type):
        key, value = pair_fields(array.type.value_type) or (key, value)
    indptr, structs = _items(array, column, spot)
    keys, values = structs.field(key), structs.field(value)
    for items in (keys, values):
        no_null_items(items, indptr, column, spot)
    numbers = float32(indptr, _numbers(decoded(values)), spot)
    return Entries(indptr, _keys(decoded(keys)), numbers)


def vector(batch: pa.RecordBatch, columns: Columns, spot: Spot) -> Entries:
    """Read Spark's VectorUDT: struct<type, size, indices, values>, type 0 sparse and 1 dense.

    A dense vector's value j is column j; its zeros are not stored.
    """
    [column] = columns.features
    array = batch.column(column)
    no_nulls(array, column, spot)
    kinds, values = array.field("type"), array.field("values")
    no_nulls(kinds, f"{column}.type", spot)
    dense = kinds.to_numpy() == 1
    if (odd := ~dense & (kinds.to_numpy() != 0)).any():
        spot.refuse(
            first(odd),
            f"a vector of type {kinds[first(odd)]} in column {column!r}. 0 is sparse and 1 dense.",
        )
    indptr, items = _items(values, f"{column}.values", spot)
    numbers = float32(indptr, _numbers(items), spot)
    indices = _sparse_indices(array, column, indptr, dense, spot)
    if not dense.any():
        return Entries(indptr, indices, numbers)
    rows = np.repeat(np.arange(len(batch)), np.diff(indptr))
    within = np.arange(len(numbers)) - indptr[rows]
    of_dense = dense[rows]
    within[~of_dense] = indices
    keep = ~of_dense | (numbers != 0)
    return Entries(_offsets(rows[keep], len(batch)), within[keep], numbers[keep])


def _sparse_indices(
    array: pa.StructArray, column: str, indptr: NDArray[np.int64], dense: NDArray[np.bool_],
    spot: Spot,
) -> NDArray[np.int64]:  # fmt: skip
    """The column numbers of the sparse vectors, below the vectors' sizes and as many as values."""
    indices = array.field("indices")
    lengths = pc.fill_null(pc.list_value_length(indices), 0).to_numpy(zero_copy_only=False)
    wanted = np.where(dense, 0, np.diff(indptr))
    if not np.array_equal(lengths, wanted):
        row = first(lengths != wanted)
        what = "dense" if dense[row] else "sparse"
        spot.refuse(
            row,
            f"a {what} vector of {indptr[row + 1] - indptr[row]} values and {lengths[row]} indices "
            f"in column {column!r}. A sparse one has as many of both, a dense one has no indices.",
        )
    numbers = indices.flatten()  # of the rows that have any
    offsets = offsets_of(lengths)
    no_null_items(numbers, offsets, f"{column}.indices", spot)
    numbers = _numbers(numbers).astype(np.int64)
    sizes = pc.fill_null(array.field("size"), 0).to_numpy(zero_copy_only=False)
    size_of = np.repeat(sizes, lengths)
    if (beyond := numbers >= size_of).any():
        at = first(beyond)
        spot.refuse(
            row_of(offsets, at),
            f"column {numbers[at]} in a sparse vector of size {size_of[at]} in {column!r}. "
            "Indices run from 0 to size - 1.",
        )
    return numbers


def dense_columns(batch: pa.RecordBatch, columns: Columns, spot: Spot) -> Entries:
    """Read columns of numbers, one a feature in their order; zeros are not stored.

    Behind them those that weigh 0: what is not 0 and not null in them is counted, and that is all.
    """
    known = len(columns.features)
    values = np.empty((len(batch), known + len(columns.unknown)), dtype=np.float32)
    for j, column in enumerate(columns.features):
        values[:, j] = _column(batch, column, spot)
    for j, column in enumerate(columns.unknown, known):
        array = decoded(batch.column(column))
        values[:, j] = (_numbers(array) != 0) & np.asarray(array.is_valid())
    stored = values != 0
    rows, within = np.nonzero(stored)
    return Entries(_offsets(rows, len(batch)), within, values[stored])


def _column(batch: pa.RecordBatch, column: str, spot: Spot) -> NDArray[np.float32]:
    array = decoded(batch.column(column))
    no_nulls(array, column, spot)
    return float32(np.arange(len(batch) + 1), _numbers(array), spot, column)


LAYOUTS: dict[Layout, Callable[[pa.RecordBatch, Columns, Spot], Entries]] = {
    "lists": lists,
    "lists of names": lists,
    "pairs": pairs,
    "pairs of names": pairs,
    "map": pairs,
    "map of names": pairs,
    "vector": vector,
    "columns": dense_columns,
}
"""How each layout is read."""


# What they share -------------------------------------------------------------------------------


def _items(array: pa.Array, column: str, spot: Spot) -> tuple[NDArray[np.int64], pa.Array]:
    """Return offsets from 0 and the items of a list column; nulls refused."""
    no_nulls(array, column, spot)
    if pa.types.is_fixed_size_list(array.type):
        offsets = (array.offset + np.arange(len(array) + 1, dtype=np.int64)) * array.type.list_size
    else:
        offsets = array.offsets.to_numpy().astype(np.int64)
    start, stop = int(offsets[0]), int(offsets[-1])
    items = decoded(array.values.slice(start, stop - start))
    offsets -= start
    no_null_items(items, offsets, column, spot)
    return offsets, items


def decoded(array: pa.Array) -> pa.Array:
    """An array, without its dictionary if it has one: a null may hide in the dictionary itself."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _keys(array: pa.Array) -> NDArray[Any] | pa.Array:
    return _numbers(array) if pa.types.is_integer(array.type) else array


def _numbers(array: pa.Array) -> NDArray[Any]:
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers


def _offsets(rows: NDArray[np.intp], count: int) -> NDArray[np.int64]:
    """Compute offsets from the rising row numbers of entries."""
    return offsets_of(np.bincount(rows, minlength=count))


def no_null_items(items: pa.Array, indptr: NDArray[np.int64], column: str, spot: Spot) -> None:
    """Refuse the first null within the lists of a column."""
    if items.null_count:
        row = row_of(indptr, first(items.is_null()))
        spot.refuse(row, f"a null in the list of column {column!r}. Remove it or fill it in.")


def no_nulls(array: pa.Array, column: str, spot: Spot) -> None:
    """Refuse the first null of a column."""
    if array.null_count:
        row = first(array.is_null())
        spot.refuse(row, f"null in column {column!r}. Fill it in or remove the row.")


def float32(
    indptr: NDArray[np.int64], numbers: NDArray[Any], spot: Spot, column: str | None = None
) -> NDArray[np.float32]:
    """Round values to float32; refuse what it cannot hold, with the ``column`` if given."""
    inside = "" if column is None else f" in column {column!r}"
    if numbers.dtype.kind in "iu" and (unfit := beyond_float32(numbers)).any():
        at = first(unfit)
        spot.refuse(
            row_of(indptr, at),
            f"value {numbers[at]}{inside} is an integer beyond 2²⁴ that float32 cannot hold. "
            "Rescale its column, or make identifiers columns of their own.",
        )
    with np.errstate(over="ignore"):  # judged below, by row
        values = numbers.astype(np.float32, copy=False)
    finite = np.isfinite(values)
    if not finite.all():
        at = first(~finite)
        row, number = row_of(indptr, at), float(numbers[at])
        if np.isfinite(number):
            spot.refuse(row, f"value {number!r}{inside} overflows float32. Rescale the column.")
        spot.refuse(row, f"value {number!r}{inside}. Values must be finite; remove it or the row.")
    return values


def first(mask: pa.Array | NDArray[np.bool_]) -> int:
    """Return the position of the first true entry."""
    return int(np.argmax(np.asarray(mask)))
