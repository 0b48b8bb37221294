"""Convert a record batch of a table to a RowBatch: check columns, values, labels and weights."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamtron.core.feature_names import Vocabulary
from streamtron.core.rows import COLUMN_MAX, LARGEST_WEIGHT, Codes, Label
from streamtron.data.formats import layouts
from streamtron.data.formats.layouts import Columns, Spot, first
from streamtron.data.formats.text_labels import NUMBER, REGRESSION_TAKES
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import Offsets, RowBatch, offsets_of, repeated, row_of, sort_columns


def make_batch(
    batch: pa.RecordBatch, columns: Columns, spot: Spot, reading: ReaderConfig
) -> RowBatch:
    """Check the rows of a record batch and convert them to a RowBatch."""
    indptr, keys, values, unknown = layouts.LAYOUTS[columns.layout].read(batch, columns, spot)
    if not columns.have_names:
        indices = _column_numbers(indptr, keys, reading, spot)
    elif isinstance(keys, np.ndarray):  # hashed as they were read
        indices = keys
    else:
        indices = _columns_of(keys, indptr, reading, spot)
    indptr, indices, values = _rising(indptr, indices, values, columns.have_names, spot)
    codes, code_offsets, classes = _labels(batch, columns.label, reading, spot)
    weights = None if columns.weight is None else _weights(batch, columns.weight, spot)
    checked = RowBatch(indptr, indices, values, codes, classes, weights, spot.row, code_offsets)
    return checked._replace(unknown=unknown)


def _column_numbers(
    indptr: Offsets, numbers: NDArray[Any], reading: ReaderConfig, spot: Spot
) -> NDArray[np.uint32]:
    shift = reading.table_shift
    least, most = reading.table_base, COLUMN_MAX - shift
    if len(numbers) and (numbers.min() < least or numbers.max() > most):
        at = first((numbers < least) | (numbers > most))
        row, number = row_of(indptr, at), int(numbers[at])
        if number == 0:
            spot.refuse(row, "column 0 in a file declared 1-based. Use --index-base 0.")
        spot.refuse(row, f"column {number}. Column numbers run from {least} to {most}.")
    columns = numbers.astype(np.uint32, copy=False)
    return columns + np.uint32(shift) if shift else columns


def _columns_of(
    keys: pa.Array, indptr: Offsets, reading: ReaderConfig, spot: Spot
) -> NDArray[np.uint32]:
    """Return the columns of names, by their hash or their places in the vocabulary."""
    encoded = keys.dictionary_encode()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    assert reading.names is not None  # find_columns has seen to it
    columns = reading.names.columns(names)
    strange = np.flatnonzero(columns < 0)
    if len(strange):
        assert isinstance(reading.names, Vocabulary)
        known = len(reading.names.names)
        if reading.unknown_features == "refused":
            at = first(np.isin(codes, strange))
            spot.refuse(
                row_of(indptr, at),
                f"{names[codes[at]]!r} is not in the vocabulary of {known} names. Remove it, or "
                "fit anew.",
            )
        columns[strange] = known + np.arange(len(strange))
    indices: NDArray[np.uint32] = columns.astype(np.uint32)[codes]
    return indices


def _rising(
    indptr: Offsets,
    indices: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
    have_names: bool,
    spot: Spot,
) -> tuple[Offsets, NDArray[np.uint32], NDArray[np.float32] | None]:
    """Sort the columns of each row; refuse a column number twice in a row, and add up the values of
    names that share a column."""
    if not _falls(indptr, indices):
        return indptr, indices, values
    order, keys = sort_columns(indptr, indices)
    again = np.append(False, keys[1:] == keys[:-1])
    if not again.any():
        return indptr, indices[order], None if values is None else values[order]
    if not have_names:
        at = first(again)
        what = f"column {indices[order[at]]} occurs twice. Add the values up or remove one."
        spot.refuse(int(keys[at] >> 32), what)
    if values is None:
        values = np.ones(len(keys), dtype=np.float32)
    meet = again | np.append(again[1:], False)
    # By value, so that a sum does not depend on the order of names in a row.
    order[meet] = order[meet][np.lexsort((values[order[meet]], keys[meet]))]
    starts = np.flatnonzero(~again)
    sums = np.add.reduceat(values[order].astype(np.float64), starts)
    rows = (keys[starts] >> 32).astype(np.int64)
    indptr = offsets_of(np.bincount(rows, minlength=len(indptr) - 1))
    return indptr, indices[order[starts]], layouts.float32(indptr, sums, spot)


def _falls(indptr: Offsets, indices: NDArray[np.uint32]) -> bool:
    """Tell whether a column is not above its predecessor in the same row."""
    falls = np.zeros(len(indices), dtype=bool)
    np.less_equal(indices[1:], indices[:-1], out=falls[1:])
    starts = indptr[:-1]
    falls[starts[starts < len(indices)]] = False
    return bool(falls.any())


def _labels(
    batch: pa.RecordBatch, column: str | None, reading: ReaderConfig, spot: Spot
) -> tuple[Codes, Offsets | None, list[Label]]:
    """Return class codes, their offsets where a row may have several, and their table in order of
    appearance; -1, or no code at all, for a row without a label. Or targets, and no table."""
    if column is None and reading.numbers:
        return np.full(batch.num_rows, np.nan), None, []
    if column is None:
        count = 0 if reading.multilabel else batch.num_rows
        offsets = np.zeros(batch.num_rows + 1, np.int64) if reading.multilabel else None
        return np.full(count, -1, dtype=np.int32), offsets, []
    labels = layouts.decoded(batch.column(column))
    if pa.types.is_null(labels.type):
        labels = labels.cast(pa.float64())
    if reading.labels == "required" and reading.null_labels == "refused":
        ways = ", or leave such rows out with --on-null-label skip"
        layouts.no_nulls(labels, column, spot, ways)
    offsets = None
    if reading.multilabel and layouts.is_list(labels.type):
        offsets, labels = layouts.items_of(labels, column, spot)
    elif reading.multilabel:
        offsets, labels = offsets_of(np.asarray(labels.is_valid())), labels.drop_null()
    if layouts.is_number(labels.type) or pa.types.is_decimal(labels.type):
        numbers = _float_labels(labels, offsets, column, spot)
        if reading.numbers:
            return numbers, None, []
        labels = layouts.to_arrow(numbers)
    elif reading.numbers:
        _refuse_names(labels, column, spot)
    encoded = labels.dictionary_encode()
    codes = layouts.to_numpy(layouts.filled(encoded.indices, -1)).astype(np.int32, copy=False)
    classes = encoded.dictionary.to_pylist()
    twice = repeated(codes, offsets)
    if twice is not None:
        row, code = twice
        spot.refuse(row, f"label {classes[code]!r} occurs twice. Write each label once.")
    return codes, offsets, classes


def _float_labels(
    labels: pa.Array, offsets: Offsets | None, column: str, spot: Spot
) -> NDArray[np.float64]:
    """Convert labels to float64, a null to NaN; refuse what is not finite, or another integer."""
    is_decimal, present = pa.types.is_decimal(labels.type), layouts.filled(labels, 0)
    if is_decimal:
        present = present.cast(pa.string()).cast(pa.float64())  # the nearest one, always
    floats: NDArray[np.float64] = layouts.to_numpy(present).astype(np.float64) + 0.0
    bad = ~np.isfinite(floats)
    if is_decimal or pa.types.is_integer(labels.type):
        bad |= np.abs(floats) >= 2.0**53  # beyond, two labels could become one float
    if bad.any():
        at = first(bad)
        what = f"label {labels[at]} in column {column!r}"
        finite = "Numbers as labels are finite, integers below 2**53."
        spot.refuse(row_of(offsets, at), f"{what}. {finite}")
    if labels.null_count:
        floats[np.asarray(labels.is_null())] = np.nan
    return floats


def _refuse_names(labels: pa.Array, column: str, spot: Spot) -> NoReturn:
    """Refuse labels that are no numbers: by the first that is none as it is written, either."""
    texts = layouts.filled(labels.cast(pa.string()), "0")
    named = ~np.asarray(pc.match_substring_regex(texts, f"^(?:{NUMBER.pattern.decode()})$"))
    row = first(named)
    label = f"label {labels[row]} in column {column!r} of type {labels.type}"
    spot.refuse(row, f"{label}. {REGRESSION_TAKES}")


def _weights(batch: pa.RecordBatch, column: str, spot: Spot) -> NDArray[np.float64]:
    array = batch.column(column)
    layouts.no_nulls(array, column, spot)
    weights: NDArray[np.float64] = layouts.to_numpy(array).astype(np.float64)
    bad = ~((weights >= 0) & (weights <= LARGEST_WEIGHT))
    if bad.any():
        row = first(bad)
        spot.refuse(row, f"weight {weights[row]}. Weights are at least 0 and at most 1e30.")
    return weights
