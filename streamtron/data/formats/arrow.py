"""Read Arrow IPC files and streams (``.arrow``, ``.feather`` of version 2), by record batches.

Record batches and rows in messages count from 0. These files have no checksums: a damaged byte may
come back as another value without an error. Only offsets that lead out of the file are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa

from streamtron.core.errors import DataError
from streamtron.data.formats.layouts import Spot
from streamtron.data.formats.tables import BATCH_BYTES, Part, TableReader, batch_rows

_MAGIC = b"ARROW1"
_END = b"\xff\xff\xff\xff\0\0\0\0"


class ArrowReader(TableReader):
    """One Arrow shard: IPC file, stream or Feather version 2. A record batch is in memory whole."""

    KIND = "an Arrow file"

    def _parts(
        self, file: pa.NativeFile, columns: list[str], numbers: Collection[str] = ()
    ) -> Iterator[Part]:
        start = 0.0
        for number, (batch, after) in enumerate(self._batches(file, columns)):
            batch.validate(full=True)  # offsets of a damaged file may point anywhere
            step = batch_rows(len(batch), batch.nbytes, BATCH_BYTES)
            for row in range(0, len(batch), step):
                rows = batch.slice(row, step)
                end = start + (after - start) * (row + len(rows)) / len(batch)
                yield Part(rows, Spot(self.name, f"record batch {number}", row), end)
            start = after

    def _batches(
        self, file: pa.NativeFile, columns: list[str]
    ) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yield the record batches, each with the fraction of the file up to its end."""
        with _open(file) as reader:
            included = [reader.schema.get_field_index(column) for column in columns]
        with _open(file, pa.ipc.IpcReadOptions(included_fields=included)) as reader:
            if isinstance(reader, pa.ipc.RecordBatchFileReader):
                count = reader.num_record_batches
                for number in range(count):
                    yield reader.get_batch(number), (number + 1) / count
            else:
                yield from ((batch, file.tell() / file.size()) for batch in reader)
                self._check_end(file)

    def _check_end(self, file: pa.NativeFile) -> None:
        """Note that a stream may have been cut between record batches; refuse what is behind it."""
        end = file.tell()
        if behind := file.size() - end:
            raise DataError(
                f"{self.name}: {behind:,} bytes behind the end of its stream, as of streams that "
                "were joined as bytes. Write each to a file of its own."
            )
        file.seek(end - len(_END))
        if file.read(len(_END)) != _END:
            self.note_end("the stream ends without the mark of its end")

    def _schema(self, file: pa.NativeFile) -> pa.Schema:
        with _open(file) as reader:
            return reader.schema


def _open(file: pa.NativeFile, options: pa.ipc.IpcReadOptions | None = None) -> Any:
    """Return a reader of the file's or of the stream's record batches."""
    file.seek(0)
    is_file = file.read(len(_MAGIC)) == _MAGIC
    file.seek(0)
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(file, options=options)
