"""Convert a record batch of a table to a RowBatch: check columns, values, labels and weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamtron.core.rows import LARGEST_WEIGHT, Label
from streamtron.data.formats.column_types import is_list, is_number
from streamtron.data.formats.columns import Columns
from streamtron.data.formats.feature_names import Hashing
from streamtron.data.formats.layouts import (
    LAYOUTS,
    Spot,
    decoded,
    first,
    float32,
    no_null_items,
    no_nulls,
)
from streamtron.data.row_batch import (
    Offsets,
    Reading,
    RowBatch,
    fitting_rows,
    offsets_of,
    repeated,
    row_of,
    slice_batch,
)

BATCH_NONZEROS = 1 << 20
MAX_COLUMN = 2**32 - 2
"""The largest column number: the width, one more, must still fit uint32."""


def make_batch(batch: pa.RecordBatch, columns: Columns, reading: Reading, spot: Spot) -> RowBatch:
    """Check the rows of a record batch and convert them to a RowBatch.

    Raises
    ------
    DataError : a null, a column number outside 0 … 2³²-2 (1 … if declared 1-based), a column twice
        in a row, a name that the vocabulary does not have, a value that is not finite in float32,
        an integer that float32 does not hold, lists of different lengths, a negative weight, a
        label twice in a row.
    """
    indptr, keys, values = LAYOUTS[columns.layout](batch, columns, spot)
    if columns.have_names:
        indptr, indices, values = _by_name(indptr, keys, values, reading, spot)
    else:
        indices = _column_numbers(indptr, keys, reading, spot)
        indices, values = _rising(indptr, indices, values, spot)
    codes, code_offsets, classes = _labels(batch, columns.label, reading, spot)
    weights = None if columns.weight is None else _weights(batch, columns.weight, spot)
    return RowBatch(indptr, indices, values, codes, classes, weights, spot.row, code_offsets)


def split_batch(row_batch: RowBatch) -> Iterator[RowBatch]:
    """Cut a row batch at BATCH_NONZEROS: rows may be very unequal."""
    start, rows = 0, row_batch.rows
    while start < rows:
        stop = start + fitting_rows(row_batch, start, BATCH_NONZEROS, alone=True)
        yield row_batch if stop - start == rows else slice_batch(row_batch, start, stop)
        start = stop


def _column_numbers(
    indptr: NDArray[np.int64], numbers: NDArray[Any], reading: Reading, spot: Spot
) -> NDArray[np.uint32]:
    shift = reading.table_shift
    least, most = reading.table_base, MAX_COLUMN - shift
    if len(numbers) and (numbers.min() < least or numbers.max() > most):
        at = first((numbers < least) | (numbers > most))
        row, number = row_of(indptr, at), int(numbers[at])
        if number == 0:
            spot.refuse(row, "column 0 in a file declared 1-based. Use --index-base 0.")
        spot.refuse(row, f"column {number}. Column numbers run from {least} to {most}.")
    found = numbers.astype(np.uint32, copy=False)
    return found + np.uint32(shift) if shift else found


def _rising(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
    spot: Spot,
) -> tuple[NDArray[np.uint32], NDArray[np.float32] | None]:
    """Sort the columns of each row; refuse a column twice in a row."""
    if _first_fall(indptr, indices) is None:
        return indices, values
    rows = np.repeat(np.arange(len(indptr) - 1, dtype=np.uint64), np.diff(indptr))
    order = np.argsort(rows << np.uint64(32) | indices, kind="stable")
    indices = indices[order]
    at = _first_fall(indptr, indices)
    if at is not None:
        spot.refuse(
            row_of(indptr, at),
            f"column {indices[at]} occurs twice. Add the values up or remove one.",
        )
    return indices, None if values is None else values[order]


def _first_fall(indptr: NDArray[np.int64], indices: NDArray[np.uint32]) -> int | None:
    """Return the first nonzero whose column is not above its predecessor's in the same row."""
    falls = np.zeros(len(indices), dtype=bool)
    np.less_equal(indices[1:], indices[:-1], out=falls[1:])
    starts = indptr[:-1]
    falls[starts[starts < len(indices)]] = False
    at = first(falls) if len(falls) else 0
    return at if len(falls) and falls[at] else None


# Names -----------------------------------------------------------------------------------------


def _by_name(
    indptr: NDArray[np.int64],
    names: pa.Array,
    values: NDArray[np.float32] | None,
    reading: Reading,
    spot: Spot,
) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32] | None]:
    """Replace names by columns, rising; values of a row in the same column are added up.

    That is names of one hash, and, where there are no values, occurrences of one name. A name that
    comes twice in a row with values of its own is refused.
    """
    encoded = names.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    known = encoded.dictionary.to_pylist()
    indices = _columns_of(known, codes, indptr, reading, spot)[codes]
    if _first_fall(indptr, indices) is None:
        return indptr, indices, values
    rows = np.repeat(np.arange(len(indptr) - 1, dtype=np.uint64), np.diff(indptr))
    keys = rows << np.uint64(32) | indices
    order = np.argsort(keys)
    starts = np.flatnonzero(np.concatenate(([True], np.diff(keys[order]) != 0)))
    if len(starts) == len(keys):
        return indptr, indices[order], None if values is None else values[order]
    ones = np.ones(len(keys), dtype=np.float32) if values is None else values
    if values is not None:
        meet = np.repeat(np.diff(starts, append=len(keys)) > 1, np.diff(starts, append=len(keys)))
        _no_name_twice(order[meet], keys, codes, known, spot)
        # In the order of values, so that a sum does not depend on the order of names in a row.
        order[meet] = order[meet][np.lexsort((values[order[meet]], keys[order[meet]]))]
    sums = np.add.reduceat(ones[order].astype(np.float64), starts)
    rows = keys[order[starts]] >> np.uint64(32)
    indptr = np.searchsorted(rows, np.arange(len(indptr), dtype=np.uint64)).astype(np.int64)
    return indptr, indices[order[starts]], float32(indptr, sums, spot)


def _no_name_twice(
    meeting: NDArray[np.intp], keys: NDArray[np.uint64], codes: NDArray[Any], known: list[str],
    spot: Spot,
) -> None:  # fmt: skip
    """Refuse a name that comes twice in a row, among the entries that meet others."""
    order = meeting[np.lexsort((codes[meeting], keys[meeting]))]
    again = (np.diff(keys[order]) == 0) & (np.diff(codes[order]) == 0)
    if again.any():
        at = order[first(again)]
        row = int(keys[at] >> np.uint64(32))
        spot.refuse(row, f"{known[codes[at]]!r} occurs twice. Add the values up or remove one.")


def _columns_of(
    names: list[str], codes: NDArray[Any], indptr: NDArray[np.int64], reading: Reading, spot: Spot
) -> NDArray[np.uint32]:
    """Return the columns of distinct names."""
    if reading.vocabulary is None:
        assert reading.hash_bits is not None  # find_columns has seen to it
        return Hashing(reading.hash_bits, reading.hash_seed).columns(names).astype(np.uint32)
    columns = reading.vocabulary.columns(names)
    strange = np.flatnonzero(columns < 0)
    if len(strange) and reading.unknown_features == "refused":
        at = first(np.isin(codes, strange))
        spot.refuse(
            row_of(indptr, at),
            f"{names[codes[at]]!r} is not in the vocabulary of {len(reading.vocabulary.names)} "
            "names. Add it at the vocabulary's end, remove it, or use --hash-bits.",
        )
    columns[strange] = len(reading.vocabulary.names) + np.arange(len(strange))
    return columns.astype(np.uint32)


# Labels and weights ----------------------------------------------------------------------------


def _labels(
    batch: pa.RecordBatch, column: str | None, reading: Reading, spot: Spot
) -> tuple[NDArray[np.int32], Offsets | None, list[Label]]:
    """Class codes, their offsets where a row may have several, and their table in order of
    appearance; -1, or no code at all, for a row without a label."""
    if column is None:
        count = 0 if reading.multilabel else batch.num_rows
        offsets = np.zeros(batch.num_rows + 1, np.int64) if reading.multilabel else None
        return np.full(count, -1, dtype=np.int32), offsets, []
    labels = decoded(batch.column(column))
    if reading.labels == "required":
        no_nulls(labels, column, spot)
    offsets = None
    if reading.multilabel:
        labels, offsets = _label_lists(labels, column, spot)
    if is_number(labels.type):
        labels = _float_labels(labels, offsets, spot)
    encoded = labels.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy().astype(np.int32, copy=False)
    classes = encoded.dictionary.to_pylist()
    twice = repeated(codes, offsets)
    if twice is not None:
        row, code = twice
        spot.refuse(row, f"label {classes[code]!r} occurs twice. Write each label once.")
    return codes, offsets, classes


def _label_lists(labels: pa.Array, column: str, spot: Spot) -> tuple[pa.Array, Offsets]:
    """The labels of all rows and their offsets; none for a row that is null, one for a row of a
    column without lists."""
    if not is_list(labels.type):
        return labels.drop_null(), offsets_of(np.asarray(labels.is_valid()))
    lengths = pc.fill_null(pc.list_value_length(labels), 0).to_numpy(zero_copy_only=False)
    offsets, items = offsets_of(lengths), decoded(labels.flatten())
    no_null_items(items, offsets, column, spot)
    return items, offsets


def _float_labels(labels: pa.Array, offsets: Offsets | None, spot: Spot) -> pa.Array:
    """Number labels as float64, -0.0 as 0.0; one that is not finite or would be rounded refused."""
    present = np.asarray(labels.is_valid())
    numbers = labels.fill_null(0).to_numpy(zero_copy_only=False)
    floats = numbers.astype(np.float64) + 0.0
    bad = ~np.isfinite(floats)
    if numbers.dtype.kind in "iu":
        bad |= np.abs(floats) >= 2.0**53  # beyond, two labels could become one float
    if bad.any():
        at = first(bad)
        spot.refuse(
            row_of(offsets, at),
            f"label {numbers[at]}. Numbers as labels are finite, integers below 2**53.",
        )
    return pa.array(floats, mask=~present)


def _weights(batch: pa.RecordBatch, column: str, spot: Spot) -> NDArray[np.float64]:
    array = batch.column(column)
    no_nulls(array, column, spot)
    weights: NDArray[np.float64] = array.to_numpy(zero_copy_only=False).astype(np.float64)
    bad = ~((weights >= 0) & (weights <= LARGEST_WEIGHT))
    if bad.any():
        row = first(bad)
        spot.refuse(row, f"weight {weights[row]}. Weights are at least 0 and at most 1e30.")
    return weights
