"""Parquet with parallel list columns: one list of column numbers and one of values a row.

The usual layout::

    indices  list<uint32>    column numbers of the row's nonzeros
    values   list<float32>   their values; a file without this column has all values 1
    label    any number, bool or string, also dictionary-encoded
    weight   any number, read only when named

A file is read a row group at a time and within it in batches of bounded size, so neither a large
file nor a large row group needs room. Row groups and rows in messages count from 0, as pyarrow's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from streamtron.chunk import Label
from streamtron.errors import DataError, MachineError
from streamtron.shards.piece import Piece, Reading

PIECE_NONZEROS = 1 << 20
BATCH_ROWS = 1 << 14
BATCH_BYTES = 1 << 21
READ_BYTES = 1 << 20

MAX_COLUMN = 2**32 - 2
"""The largest column number: the width, one more, must still fit uint32."""

Role = Literal["label", "indices", "values", "weight"]

USUAL_NAMES: dict[Role, tuple[str, ...]] = {
    "label": ("label", "labels", "y", "target", "class"),
    "indices": ("indices", "index", "columns", "feature_indices", "features_indices"),
    "values": ("values", "value", "data", "feature_values", "features_values"),
    "weight": (),
}
"""Where a role's column is looked for when it is not named. A weight has to be named."""


class Columns(NamedTuple):
    """The names of the columns to read; None where the file has none and needs none."""

    label: str | None
    indices: str
    values: str | None
    weight: str | None


@dataclass(frozen=True, slots=True)
class ParquetReader:
    """One Parquet shard, delivered as pieces of at most 2²⁰ nonzeros (or one longer row).

    Page checksums are verified where the file has them (``write_page_checksum=True`` in pyarrow;
    ``streamtron convert`` always writes them). Without them a damaged byte may go unnoticed:
    compression is no checksum.

    Parameters
    ----------
    path : the file.
    name : what messages call it.
    reading : names of the columns (None = the usual ones, ``USUAL_NAMES``; ``values_column=""``
        says that there is none and all values are 1), index base (``"auto"`` means 0 here),
        whether rows must have labels.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> table = pa.table({"indices": [[0, 7], [3]], "values": [[1.0, 0.5], [2.0]], "y": [1, -1]})
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = str(pathlib.Path(directory, "a.parquet"))
    ...     pq.write_table(table, path)
    ...     [piece] = ParquetReader(path, "a.parquet", Reading()).pieces()
    >>> piece.indices.tolist(), piece.classes, piece.place(1)
    ([0, 7, 3], [1.0, -1.0], 'a.parquet, row group 0, row 1')
    """

    path: str
    name: str
    reading: Reading

    def pieces(self) -> Iterator[Piece]:
        """The shard's rows in file order, checked; no piece at all for a file without rows.

        Raises
        ------
        DataError : the file is not Parquet or is damaged; a column is missing, ambiguous or of a
            type that is refused; a null, a column number outside 0 … 2³²-2 (1 … if declared
            1-based) or twice in a row, a value that is not finite in float32, an integer that
            float32 does not hold, lists of different lengths, a negative weight.
        MachineError : the file cannot be read.
        """
        with _sentences(self.name), self._open() as file:
            columns = find_columns(file.schema_arrow, self.reading, self.name)
            metadata, groups = file.metadata, range(file.num_row_groups)
            rows = sum(metadata.row_group(group).num_rows for group in groups)
            self._check_rows("", rows, metadata.num_rows)
            for group in groups:
                yield from self._group(file, group, columns)

    def fingerprint(self) -> str:
        """xxh3-128 of the file's bytes, 32 hex digits; one sequential reading in 1 MiB blocks.

        Raises
        ------
        MachineError : the file cannot be read.
        """
        digest = xxhash.xxh3_128()
        with _sentences(self.name), open(self.path, "rb") as file:
            while block := file.read(READ_BYTES):
                digest.update(block)
        return digest.hexdigest()

    def _open(self) -> pq.ParquetFile:
        # Without pre_buffer and with a buffer_size, pages are streamed; otherwise pyarrow holds
        # the compressed columns of a whole row group.
        return pq.ParquetFile(
            self.path, page_checksum_verification=True, pre_buffer=False, buffer_size=READ_BYTES
        )

    def _group(self, file: pq.ParquetFile, group: int, columns: Columns) -> Iterator[Piece]:
        row = 0
        for batch in file.iter_batches(
            batch_size=_batch_rows(file.metadata.row_group(group)),
            row_groups=[group],
            columns=[column for column in columns if column is not None],
        ):
            piece = _piece(batch, columns, self.reading, _Spot(self.name, group, row))
            yield from _bounded(piece)
            row += batch.num_rows
        self._check_rows(f", row group {group}", row, file.metadata.row_group(group).num_rows)

    def _check_rows(self, where: str, rows: int, wanted: int) -> None:
        if rows != wanted:
            raise DataError(
                f"{self.name}{where}: {rows} rows where the footer says {wanted}. The file is "
                "damaged. Write or fetch it again."
            )


@contextmanager
def _sentences(name: str) -> Iterator[None]:
    """Turn what pyarrow and the operating system raise into one sentence about this file."""
    try:
        yield
    except MemoryError as error:
        raise MachineError(
            f"{name}: out of memory while reading ({error}). Give the machine more."
        ) from error
    except OSError as error:
        if error.errno is not None:
            reason = os.strerror(error.errno)  # pyarrow's own message is a paragraph
            raise MachineError(
                f"{name}: cannot be read ({reason}). Check the path, its permissions and the disk."
            ) from error
        _damaged(name, error)  # pyarrow's word for a bad page, checksum or footer
    except (pa.ArrowException, UnicodeDecodeError) as error:
        _damaged(name, error)


def _damaged(name: str, error: Exception) -> NoReturn:
    reason = " ".join(str(error).split()).rstrip(".")
    raise DataError(
        f"{name}: not a Parquet file, or a damaged one ({reason}). Write or fetch it again."
    ) from error


# Which columns ---------------------------------------------------------------------------------


def find_columns(schema: pa.Schema, reading: Reading, name: str) -> Columns:
    """The columns to read, named by ``reading`` or found by their usual names.

    Raises
    ------
    DataError : a column is absent, ambiguous, twice in the file, or of a type that is refused.

    Examples
    --------
    >>> schema = pa.schema({"index": pa.list_(pa.int64()), "target": pa.string()})
    >>> find_columns(schema, Reading(), "a.parquet")
    Columns(label='target', indices='index', values=None, weight=None)
    """
    label_needed = reading.labels == "required"
    indices = _find(schema, "indices", reading.indices_column, True, name)
    assert indices is not None
    columns = Columns(
        label=_find(schema, "label", reading.label_column, label_needed, name),
        indices=indices,
        values=_find_values(schema, reading, indices, name),
        weight=_find(
            schema, "weight", reading.weight_column, reading.weight_column is not None, name
        ),
    )
    for role, column in zip(Columns._fields, columns, strict=True):
        if column is not None and not _fits(role, schema.field(column).type):
            raise DataError(
                f"{name}: column {column!r} of type {schema.field(column).type} cannot be the "
                f"{_WORDS[role]}, which {_WANTED[role]}. Name another one with --{role} NAME "
                f"({_there(schema)})."
            )
    return columns


def _find(schema: pa.Schema, role: Role, named: str | None, needed: bool, name: str) -> str | None:
    usual = (named,) if named is not None else USUAL_NAMES[role]
    # A usual name counts only on a column of the right shape: pandas' own "index" is no list.
    found = [
        field.name
        for field in schema
        if field.name in usual and (named is not None or _fits(role, field.type))
    ]
    if len(found) > 1:
        raise DataError(
            f"{name}: {' and '.join(map(repr, found))} could all be the {_WORDS[role]}. "
            f"Say which with --{role} NAME, a name that occurs once ({_there(schema)})."
        )
    if not found and needed:
        raise DataError(
            f"{name}: no column for the {_WORDS[role]}, looked for {', '.join(map(repr, usual))}. "
            f"Name it with --{role} NAME ({_there(schema)})."
        )
    return found[0] if found else None


def _find_values(schema: pa.Schema, reading: Reading, indices: str, name: str) -> str | None:
    named = reading.values_column
    if named == "":
        return None
    found = _find(schema, "values", named, named is not None, name)
    if found is None and any(_may_be_values(field) for field in schema):
        # To take all values as 1 while they stand in a column not understood would be silent.
        raise DataError(
            f"{name}: column numbers in {indices!r}, and no list of numbers of a usual name for "
            'the values. Name it with --values NAME, or say --values "" if all are 1 '
            f"({_there(schema)})."
        )
    return found


def _there(schema: pa.Schema) -> str:
    return "columns there: " + ", ".join(f"{field.name} {field.type}" for field in schema)


_WORDS: dict[str, str] = {
    "label": "labels",
    "indices": "column numbers",
    "values": "values",
    "weight": "row weights",
}
_WANTED: dict[str, str] = {
    "label": "are numbers, booleans or strings",
    "indices": "are lists of integers",
    "values": "are lists of numbers",
    "weight": "are numbers",
}


def _fits(role: str, type_: pa.DataType) -> bool:
    types = pa.types
    if role == "indices":
        return _is_list(type_) and bool(types.is_integer(type_.value_type))
    if role == "values":
        return _is_list(type_) and _is_number(type_.value_type)
    if role == "label":
        plain = type_.value_type if types.is_dictionary(type_) else type_
        return bool(_is_number(plain) or types.is_boolean(plain) or _is_string(plain))
    return _is_number(type_)


def _is_list(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
    )


def _may_be_values(field: pa.Field) -> bool:
    of_floats = _is_list(field.type) and pa.types.is_floating(field.type.value_type)
    return bool(of_floats or field.name in USUAL_NAMES["values"])


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def _is_string(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_)
    )


# From a batch to a piece -----------------------------------------------------------------------


class _Spot(NamedTuple):
    """Where a batch begins; names its rows in messages."""

    name: str
    group: int
    first_row: int

    def row(self, i: int) -> str:
        return f"{self.name}, row group {self.group}, row {self.first_row + i}"

    def refuse(self, i: int, what: str) -> NoReturn:
        raise DataError(f"{self.row(i)}: {what}")


def _batch_rows(group: pq.RowGroupMetaData) -> int:
    """Rows that decode to some 2²⁰ nonzeros or fewer, by the mean size of the group's rows.

    The footer also counts a column's values, but pyarrow aborts the process where a damaged footer
    contradicts itself there.
    """
    row_bytes = group.total_byte_size / max(group.num_rows, 1)
    return int(min(BATCH_ROWS, max(1, BATCH_BYTES // max(row_bytes, 1))))


def _bounded(piece: Piece) -> Iterator[Piece]:
    """Cut a piece at PIECE_NONZEROS: rows may be very unequal."""
    start, rows = 0, len(piece.codes)
    while start < rows:
        end = piece.indptr[start] + PIECE_NONZEROS
        stop = max(start + 1, int(np.searchsorted(piece.indptr, end, side="right")) - 1)
        yield piece if stop - start == rows else cut_piece(piece, start, stop)
        start = stop


def cut_piece(piece: Piece, start: int, stop: int) -> Piece:
    """Rows ``start`` … ``stop - 1`` of a piece, as views; its class table is kept whole.

    Examples
    --------
    >>> piece = Piece(np.array([0, 1, 3]), np.array([5, 2, 4], np.uint32), None,
    ...               np.array([0, 0], np.int32), [1.0], None, "row {}".format)
    >>> last = cut_piece(piece, 1, 2)
    >>> last.indptr.tolist(), last.indices.tolist(), last.place(0)
    ([0, 2], [2, 4], 'row 1')
    """
    first, last = int(piece.indptr[start]), int(piece.indptr[stop])
    place = piece.place
    return Piece(
        piece.indptr[start : stop + 1] - first,
        piece.indices[first:last],
        None if piece.values is None else piece.values[first:last],
        piece.codes[start:stop],
        piece.classes,
        None if piece.weights is None else piece.weights[start:stop],
        lambda i: place(start + i),
    )


def _piece(batch: pa.RecordBatch, columns: Columns, reading: Reading, spot: _Spot) -> Piece:
    indptr, numbers = _lists(batch, columns.indices, spot)
    indices = _column_numbers(indptr, numbers, reading.index_base, spot)
    values = None
    if columns.values is not None:
        values_indptr, numbers = _lists(batch, columns.values, spot)
        _same_lengths(indptr, values_indptr, columns, spot)
        values = _float32(indptr, numbers, spot)
    indices, values = _rising(indptr, indices, values, spot)
    codes, classes = _labels(batch, columns.label, reading, spot)
    weights = None if columns.weight is None else _weights(batch, columns.weight, spot)
    return Piece(indptr, indices, values, codes, classes, weights, spot.row)


def _lists(
    batch: pa.RecordBatch, column: str, spot: _Spot
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Offsets from 0 and the items of a list column, as numpy; nulls refused."""
    lists = batch.column(column)
    _no_nulls(lists, column, spot)
    if pa.types.is_fixed_size_list(lists.type):
        offsets = (lists.offset + np.arange(len(lists) + 1, dtype=np.int64)) * lists.type.list_size
    else:
        offsets = lists.offsets.to_numpy().astype(np.int64)
    start, stop = int(offsets[0]), int(offsets[-1])
    items = lists.values.slice(start, stop - start)
    offsets -= start
    if items.null_count:
        row = _row_of(offsets, _first(items.is_null()))
        spot.refuse(row, f"a null in the list of column {column!r}. Remove it or fill it in.")
    return offsets, items.to_numpy(zero_copy_only=False)


def _no_nulls(array: pa.Array, column: str, spot: _Spot) -> None:
    if array.null_count:
        row = _first(array.is_null())
        spot.refuse(row, f"null in column {column!r}. Fill it in or remove the row.")


def _first(mask: pa.Array | NDArray[np.bool_]) -> int:
    """Position of the first true entry."""
    return int(np.argmax(np.asarray(mask)))


def _row_of(indptr: NDArray[np.int64], nonzero: int) -> int:
    return int(np.searchsorted(indptr, nonzero, side="right")) - 1


def _column_numbers(
    indptr: NDArray[np.int64], numbers: NDArray[Any], base: Literal["auto", 0, 1], spot: _Spot
) -> NDArray[np.uint32]:
    least = 1 if base == 1 else 0
    if len(numbers) and (numbers.min() < least or numbers.max() > MAX_COLUMN):
        at = _first((numbers < least) | (numbers > MAX_COLUMN))
        row, number = _row_of(indptr, at), int(numbers[at])
        if number == 0:
            spot.refuse(row, "column 0 in a file declared 1-based. Use --index-base 0.")
        spot.refuse(row, f"column {number}. Column numbers run from {least} to {MAX_COLUMN}.")
    return numbers.astype(np.uint32, copy=False)


def _same_lengths(
    indptr: NDArray[np.int64], values_indptr: NDArray[np.int64], columns: Columns, spot: _Spot
) -> None:
    if np.array_equal(indptr, values_indptr):
        return
    lengths, value_lengths = np.diff(indptr), np.diff(values_indptr)
    row = _first(lengths != value_lengths)
    spot.refuse(
        row,
        f"{lengths[row]} column numbers in {columns.indices!r} and {value_lengths[row]} values in "
        f"{columns.values!r}. A row needs as many of one as of the other.",
    )


def _float32(indptr: NDArray[np.int64], numbers: NDArray[Any], spot: _Spot) -> NDArray[np.float32]:
    """Values rounded to float32; what float32 cannot hold is refused."""
    if numbers.dtype.kind in "iu" and (unfit := _beyond_float32(numbers)).any():
        at = _first(unfit)
        spot.refuse(
            _row_of(indptr, at),
            f"value {numbers[at]} is an integer beyond 2²⁴ that float32 cannot hold. Rescale its "
            "column, or make identifiers columns of their own.",
        )
    with np.errstate(over="ignore"):  # judged below, by row
        values = numbers.astype(np.float32, copy=False)
    finite = np.isfinite(values)
    if not finite.all():
        at = _first(~finite)
        row, number = _row_of(indptr, at), float(numbers[at])
        if np.isfinite(number):
            spot.refuse(row, f"value {number!r} overflows float32. Rescale the column.")
        spot.refuse(row, f"value {number!r}. Values must be finite; remove it or the row.")
    return values


def _beyond_float32(integers: NDArray[Any]) -> NDArray[np.bool_]:
    """Which integers have more than 24 bits between their first and their last 1."""
    size = integers if integers.dtype.kind == "u" else np.abs(integers.astype(np.int64))
    size = size.astype(np.uint64)  # also right for -2⁶³, whose absolute value wraps onto itself
    last_one = size & (~size + np.uint64(1))
    return (size >> np.uint64(24) >= last_one) & (size > 0)


def _rising(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
    spot: _Spot,
) -> tuple[NDArray[np.uint32], NDArray[np.float32] | None]:
    """Rows with their columns in rising order; a column twice in a row is refused."""
    if _first_fall(indptr, indices) is None:
        return indices, values
    rows = np.repeat(np.arange(len(indptr) - 1, dtype=np.uint64), np.diff(indptr))
    order = np.argsort(rows << np.uint64(32) | indices, kind="stable")
    indices = indices[order]
    at = _first_fall(indptr, indices)
    if at is not None:
        spot.refuse(
            _row_of(indptr, at),
            f"column {indices[at]} occurs twice. Add the values up or remove one.",
        )
    return indices, None if values is None else values[order]


def _first_fall(indptr: NDArray[np.int64], indices: NDArray[np.uint32]) -> int | None:
    """The first nonzero whose column is not above its predecessor's in the same row."""
    falls = np.zeros(len(indices), dtype=bool)
    np.less_equal(indices[1:], indices[:-1], out=falls[1:])
    starts = indptr[:-1]
    falls[starts[starts < len(indices)]] = False
    at = _first(falls) if len(falls) else 0
    return at if len(falls) and falls[at] else None


def _labels(
    batch: pa.RecordBatch, column: str | None, reading: Reading, spot: _Spot
) -> tuple[NDArray[np.int32], list[Label]]:
    """Class codes and their table in order of appearance; -1 for a row without a label."""
    if column is None:
        return np.full(batch.num_rows, -1, dtype=np.int32), []
    labels = batch.column(column)
    if pa.types.is_dictionary(labels.type):
        labels = labels.dictionary_decode()  # a null may hide in the dictionary itself
    if reading.labels == "required":
        _no_nulls(labels, column, spot)
    if _is_number(labels.type):
        labels = _float_labels(labels, spot)
    encoded = labels.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy().astype(np.int32, copy=False)
    return codes, encoded.dictionary.to_pylist()


def _float_labels(labels: pa.Array, spot: _Spot) -> pa.Array:
    """Number labels as float64, -0.0 as 0.0; one that is not finite or would be rounded refused."""
    present = np.asarray(labels.is_valid())
    numbers = labels.fill_null(0).to_numpy(zero_copy_only=False)
    floats = numbers.astype(np.float64) + 0.0
    bad = ~np.isfinite(floats)
    if numbers.dtype.kind in "iu":
        bad |= np.abs(floats) >= 2.0**53  # beyond, two labels could become one float
    if bad.any():
        row = _first(bad)
        spot.refuse(
            row, f"label {numbers[row]}. Numbers as labels are finite, integers below 2**53."
        )
    return pa.array(floats, mask=~present)


def _weights(batch: pa.RecordBatch, column: str, spot: _Spot) -> NDArray[np.float64]:
    array = batch.column(column)
    _no_nulls(array, column, spot)
    weights: NDArray[np.float64] = array.to_numpy(zero_copy_only=False).astype(np.float64)
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        row = _first(bad)
        spot.refuse(row, f"weight {weights[row]}. Weights are finite and at least 0.")
    return weights
