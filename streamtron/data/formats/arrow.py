"""Read Arrow IPC files and streams (``.arrow``, ``.feather`` of version 2), by record batches.

Record batches and rows in messages count from 0. These files have no checksums: a damaged byte may
come back as another value without an error. Only offsets that lead out of the file are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from streamtron.data.formats.columns import find_columns
from streamtron.data.formats.layouts import Spot
from streamtron.data.formats.table_rows import BATCH_NONZEROS, make_batch, split_batch
from streamtron.data.formats.tables import TableReader
from streamtron.data.row_batch import RowBatch

SLICE_ROWS = 1 << 14

_MAGIC = b"ARROW1"


class ArrowReader(TableReader):
    """One Arrow shard, delivered as row batches of at most 2²⁰ nonzeros (or one longer row).

    It is an IPC file, an IPC stream or Feather version 2, told apart by its first bytes. A record
    batch is held in memory whole. Parameters: see ``TableReader``.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from streamtron.data import Reading
    >>> table = pa.table({"bag": [[(0, 1.0), (7, 0.5)], [(3, 2.0)]], "y": [1, -1]},
    ...     pa.schema({"bag": pa.map_(pa.int32(), pa.float32()), "y": pa.int8()}))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = str(pathlib.Path(directory, "a.arrow"))
    ...     with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
    ...         writer.write_table(table)
    ...     [row_batch] = ArrowReader(path, "a.arrow", Reading(features=("bag",))).batches()
    >>> row_batch.indices.tolist(), row_batch.classes, row_batch.place(1)
    ([0, 7, 3], [1.0, -1.0], 'a.arrow, record batch 0, row 1')
    """

    KIND = "an Arrow file"

    def _row_batches(self, file: pa.NativeFile) -> Iterator[tuple[RowBatch, float]]:
        columns = find_columns(self._schema(file), self.reading, self.name)
        for number, (batch, before, after) in enumerate(_batches(file, columns.all)):
            batch.validate(full=True)  # offsets of a damaged file may point anywhere
            delivered, step = 0, _slice_rows(batch)
            for row in range(0, batch.num_rows, step):
                spot = Spot(self.name, f"record batch {number}", row)
                whole = make_batch(batch.slice(row, step), columns, self.reading, spot)
                for row_batch in split_batch(whole):
                    delivered += len(row_batch.codes)
                    yield row_batch, before + (after - before) * delivered / batch.num_rows

    def _column(self, file: pa.NativeFile, name: str) -> Iterator[pa.Array]:
        for batch, *_ in _batches(file, [name]):
            batch.validate(full=True)
            yield batch.column(0)

    def _schema(self, file: pa.NativeFile) -> pa.Schema:
        with _open(file) as reader:
            return reader.schema


def _open(file: pa.NativeFile, options: pa.ipc.IpcReadOptions | None = None) -> Any:
    """Return a reader of the file's or of the stream's record batches."""
    file.seek(0)
    is_file = file.read(len(_MAGIC)) == _MAGIC
    file.seek(0)
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(file, options=options)


def _batches(
    file: pa.NativeFile, columns: list[str]
) -> Iterator[tuple[pa.RecordBatch, float, float]]:
    """Yield the record batches, with the parts of the file that lie before and after their ends."""
    with _open(file) as reader:
        included = [reader.schema.get_field_index(column) for column in columns]
    with _open(file, pa.ipc.IpcReadOptions(included_fields=included)) as reader:
        if isinstance(reader, pa.ipc.RecordBatchFileReader):
            count = reader.num_record_batches
            for number in range(count):
                yield reader.get_batch(number), number / count, (number + 1) / count
        else:
            size, before = file.size(), 0.0
            for batch in reader:
                after = file.tell() / size
                yield batch, before, after
                before = after


def _slice_rows(batch: pa.RecordBatch) -> int:
    """Return how many rows hold some 2²⁰ nonzeros, by the mean size of the batch's rows."""
    row_bytes = batch.nbytes / max(batch.num_rows, 1)
    return int(min(SLICE_ROWS, max(1, 8 * BATCH_NONZEROS // max(row_bytes, 1))))
