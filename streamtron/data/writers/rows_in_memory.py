"""Write rows in memory, or an iterator of record batches, as an Arrow shard."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from streamtron.core.errors import DataError, MachineError
from streamtron.data.formats.layouts import decoded

MATRIX_ROWS = 1 << 16
"""Rows of a matrix in a record batch."""

_WANTED = "a pandas or polars data frame, an Arrow table, or an iterator of record batches"


def write_shard(path: str, rows: Any, y: Any = None) -> None:
    """Write ``rows`` as an Arrow file: a data frame, a table, an iterator of record batches, which
    is not held in memory; or a matrix, dense or scipy.sparse, with the labels ``y``.

    A matrix has the columns ``indices``, ``values`` and ``label``. An index of pandas is no column.
    DataError: rows of another kind, or of several schemas.
    """
    batches = _of_table(rows) if y is None else _of_matrix(rows, y)
    try:
        first = next(batches, None)
        if first is None:
            raise DataError("the rows to fit on: there are none. Wanted is one at least.")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, first.schema) as writer:
            for batch in chain([first], batches):
                writer.write_batch(batch)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"the rows to fit on: {error}. All record batches need the same columns and types."
        ) from error
    except OSError as error:
        raise MachineError(
            f"{path}: the rows to fit on cannot be written there ({error.strerror or error}). Make "
            "room, or set TMPDIR to another place."
        ) from error


def _of_table(rows: Any) -> Iterator[pa.RecordBatch]:
    for table in rows if isinstance(rows, Iterator) else [rows]:
        if isinstance(table, pa.RecordBatch):
            yield _plain(table)
        elif hasattr(table, "__arrow_c_stream__"):
            yield from map(_plain, pa.RecordBatchReader.from_stream(table))
        else:
            raise DataError(
                f"the rows to fit on: a {type(table).__name__}. Wanted is {_WANTED}; or a matrix "
                "with its labels, y."
            )


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a record batch without an index of pandas, and without dictionaries, which may differ
    from batch to batch."""
    index = (batch.schema.pandas_metadata or {}).get("index_columns", ())
    names = [name for name in batch.schema.names if name not in index]
    return pa.RecordBatch.from_arrays([decoded(batch.column(name)) for name in names], names)


def _of_matrix(X: Any, y: Any) -> Iterator[pa.RecordBatch]:
    from scipy import sparse

    labels = np.asarray(y)
    if np.ndim(X) != 2 or labels.shape != (X.shape[0],):
        raise DataError(
            f"the rows to fit on: X of shape {np.shape(X)} and y of shape {labels.shape}. Wanted "
            "are a matrix, (rows, columns), and one label a row."
        )
    matrix = sparse.csr_array(X)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    for start in range(0, matrix.shape[0], MATRIX_ROWS):
        rows = matrix[start : start + MATRIX_ROWS]
        arrays = (pa.array(rows.indices.astype(np.int64)), pa.array(rows.data))
        lists = [
            pa.LargeListArray.from_arrays(rows.indptr.astype(np.int64), array) for array in arrays
        ]
        yield pa.RecordBatch.from_arrays(
            [*lists, pa.array(labels[start : start + MATRIX_ROWS].tolist())],
            ["indices", "values", "label"],
        )
