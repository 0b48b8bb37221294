"""Read rows that are in memory, or come as a stream, where they are.

They stand as a shard of their own, whose file is Arrow without a row: it has their columns.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from streamtron.core.errors import DataError
from streamtron.core.files import scratch_directory
from streamtron.core.text import reason_of
from streamtron.data.arrays import canonical
from streamtron.data.discover import ROWS_GIVEN
from streamtron.data.formats.arrow import ArrowReader
from streamtron.data.formats.layouts import decoded, without_views
from streamtron.data.row_batch import RowBatch

BATCH = 1 << 16
"""Rows of a matrix in a record batch, and of those that a library is asked for."""

BATCH_VALUES = 1 << 22
"""Values of a matrix in a record batch, zeros too."""


def _refusal(what: str) -> DataError:
    return DataError(f"the rows to fit on: {what}")


class _Given:
    """Rows given to a function: ``schema``, and the batches; the first is taken at once."""

    def __init__(self, rows: Any, y: Any) -> None:
        self._rows, self._y = rows, y
        batches = self._read()
        first = next(batches, None)
        if first is None:
            raise _refusal("there are none: expected one at least.")
        self.schema = first.schema
        self._begun: Iterator[pa.RecordBatch] | None = chain([first], batches)

    def _read(self) -> Iterator[pa.RecordBatch]:
        if self._y is None:
            return _of_tables(self._rows)
        table = _labelled(self._rows, self._y)
        return _of_matrix(self._rows, self._y) if table is None else _of_tables(table)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the record batches, from the first one on."""
        batches, self._begun = self._begun, None
        if batches is None:
            if isinstance(self._rows, Iterator):
                raise _refusal(
                    "an iterator, which can be read once, and they are needed "
                    "again, for memory is small. Give a table or shards, or raise the memory."
                )
            batches = self._read()
        for batch in batches:
            if not batch.schema.equals(self.schema):
                raise _refusal(
                    f"a record batch with {_columns(batch.schema)} after one "
                    f"with {_columns(self.schema)}. All need the same columns and types."
                )
            yield batch


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


_given: dict[str, _Given] = {}
"""Path of the file that stands for rows → the rows."""


@contextmanager
def standing(rows: Any, y: Any) -> Iterator[str]:
    """Give the path of a file that stands for rows while the context lasts.

    ``rows`` : a data frame, a table, an iterator of either or of record batches; or a matrix, dense
    or scipy.sparse, with the labels ``y``, which has the columns ``indices``, ``values`` and
    ``label``; or a data frame or a list of documents with them, which gets the column ``label``,
    and documents are in ``text``. An index of pandas is no column. DataError: rows of another kind.
    """
    given = _Given(rows, y)
    with scratch_directory("streamtron-rows-") as directory:
        path = os.path.join(directory, ROWS_GIVEN)
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, given.schema):
            pass
        _given[path] = given
        try:
            yield path
        finally:
            del _given[path]


class GivenReader(ArrowReader):
    """Read rows where they are, by the path of the file that stands for them."""

    def _batches_of_all(self) -> Iterator[RowBatch]:
        """Yield the rows in their order, checked; then they have their fingerprint."""
        digest = xxhash.xxh3_128()
        for batch in super()._batches_of_all():
            codes = batch.codes, batch.code_offsets
            for part in (batch.indptr, batch.indices, batch.values, *codes, batch.weights):
                if part is not None:
                    digest.update(np.ascontiguousarray(part).data)
            digest.update(repr(batch.classes).encode())
            yield batch
        self._fingerprint = digest.hexdigest()

    def fingerprint(self) -> str:
        """Compute xxh3-128 of the rows as they are read, 32 hex digits."""
        if self._fingerprint is None:
            for _ in self._batches_of_all():
                pass
        return super().fingerprint()

    def _batches(
        self, file: pa.NativeFile, columns: list[str]
    ) -> Iterator[tuple[pa.RecordBatch, float]]:
        if self.path not in _given:
            raise _refusal("in the memory of another process. Give shards to workers.")
        yield from ((batch.select(columns), 0.0) for batch in _given[self.path].batches())


def _labelled(rows: Any, y: Any) -> pa.Table | None:
    """Return a data frame, or documents as the column ``text``, with the labels; None of a
    matrix."""
    if isinstance(rows, list) and rows and isinstance(rows[0], str):
        rows = pa.table({"text": rows})
    if not hasattr(rows, "__arrow_c_stream__"):
        return None
    table, labels = pa.Table.from_batches([*_of_tables(rows)]), np.asarray(y)
    if "label" in table.column_names:
        raise _refusal("a data frame with a column 'label', and y beside it. Rename the column.")
    if labels.shape != (len(table),):
        raise _refusal(f"{len(table):,} rows, and y of shape {labels.shape}.")
    return table.append_column("label", pa.array(labels.tolist()))


def _of_tables(rows: Any) -> Iterator[pa.RecordBatch]:
    for table in _tables(rows):
        if isinstance(table, pa.RecordBatch):
            yield _plain(table)
        elif hasattr(table, "__arrow_c_stream__"):
            try:
                batches = pa.RecordBatchReader.from_stream(table)
            except pa.ArrowException as error:  # as of columns whose bytes are in another order
                raise _refusal(
                    f"{reason_of(error)}. Expected are columns that Arrow has."
                ) from error
            yield from map(_plain, batches)
        else:
            raise _refusal(
                f"a {type(table).__name__}: expected a pandas, polars or Dask data frame, a "
                "Hugging Face data set, a DuckDB relation, an Arrow table or stream, or an "
                "iterator of record batches; or a matrix with its labels, y."
            )


def _tables(rows: Any) -> Iterator[Any]:
    """Yield the tables that rows come as, each when it is needed."""
    if isinstance(rows, Iterator):
        yield from rows
    elif hasattr(rows, "collect_batches"):  # a LazyFrame of polars
        yield from rows.collect_batches(chunk_size=BATCH)
    elif hasattr(rows, "with_format"):  # a data set of Hugging Face
        yield from rows.with_format("arrow").iter(batch_size=BATCH)
    elif hasattr(rows, "npartitions"):  # a data frame of Dask
        yield from (rows.partitions[k].compute() for k in range(rows.npartitions))
    elif hasattr(rows, "to_arrow_reader"):  # a relation of DuckDB
        yield from rows.to_arrow_reader(BATCH)
    else:
        yield rows


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch without an index of pandas and without dictionaries, which differ by batch."""
    index = (batch.schema.pandas_metadata or {}).get("index_columns", ())
    rows = without_views(batch.select([n for n in batch.schema.names if n not in index]))
    return pa.RecordBatch.from_arrays([decoded(column) for column in rows], rows.schema.names)


def _of_matrix(X: Any, y: Any) -> Iterator[pa.RecordBatch]:
    from scipy import sparse

    labels = np.asarray(y)
    matrix: Any = X if hasattr(X, "shape") else np.asarray(X)
    if np.ndim(X) != 2 or labels.shape != (matrix.shape[0],):
        raise _refusal(
            f"X of shape {np.shape(X)} and y of shape {labels.shape}: expected a matrix, "
            "(rows, columns), and one label a row."
        )
    if np.ma.is_masked(X) or np.ma.is_masked(y):
        raise _refusal("values that are masked. Remove or fill them.")
    if sparse.issparse(X):
        matrix = sparse.csr_array(X)
        matrix.data = _numbers(matrix.data)  # which scipy can slice
    step = min(BATCH, max(1, BATCH_VALUES // max(matrix.shape[1], 1)))
    for start in range(0, matrix.shape[0], step):  # of a memory map a batch at a time is in memory
        rows = canonical(sparse.csr_array(_numbers(matrix[start : start + step])))
        arrays = rows.indices.astype(np.int64), rows.data
        offsets = rows.indptr.astype(np.int64)
        lists = [pa.LargeListArray.from_arrays(offsets, pa.array(array)) for array in arrays]
        try:
            label = pa.array(labels[start : start + step].tolist())
        except (pa.ArrowException, OverflowError) as error:
            what = f"y of {labels.dtype} ({error}): expected labels of one kind."
            raise _refusal(what) from error
        yield pa.RecordBatch.from_arrays([*lists, label], ["indices", "values", "label"])


def _numbers(values: Any) -> Any:
    """Return values of a matrix as numbers that Arrow has."""
    type_ = values.dtype
    if type_.kind == "f" and type_.itemsize == 2:  # which scipy has not
        return values.astype(np.float32)
    if type_.kind in "iuf" and type_.itemsize <= 8:
        return values.astype(type_.newbyteorder("="), copy=False)
    try:
        if type_.kind not in "bfO":
            raise TypeError("no real numbers")
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise _refusal(f"X of {type_} ({error}): expected numbers.") from error
