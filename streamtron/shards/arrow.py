"""Arrow IPC files and streams (``.arrow``, ``.feather`` of version 2), a record batch at a time.

The same columns and layouts as in Parquet. Record batches and rows in messages count from 0. These
files hold no checksums, and compression is no checksum: a damaged byte may come back as another
value without an error. Only what would lead out of the file's memory is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streamtron.shards.batches import PIECE_NONZEROS, bounded, make_piece
from streamtron.shards.columns import find_columns
from streamtron.shards.layouts import Spot
from streamtron.shards.piece import Piece, Reading
from streamtron.shards.storage import fingerprint, open_arrow
from streamtron.shards.tables import sentences

SLICE_ROWS = 1 << 14

_KIND = "an Arrow file"
_MAGIC = b"ARROW1"


@dataclass(frozen=True, slots=True)
class ArrowReader:
    """One Arrow shard, delivered as pieces of at most 2²⁰ nonzeros (or one longer row).

    A record batch is held in memory whole.

    Parameters
    ----------
    path : the file, a local path or a URI: an IPC file, an IPC stream or Feather version 2, told
        apart by its first bytes.
    name : what messages call it.
    reading : see ``Reading``; index base ``"auto"`` means 0 here.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> table = pa.table({"bag": [[(0, 1.0), (7, 0.5)], [(3, 2.0)]], "y": [1, -1]},
    ...     pa.schema({"bag": pa.map_(pa.int32(), pa.float32()), "y": pa.int8()}))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = str(pathlib.Path(directory, "a.arrow"))
    ...     with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
    ...         writer.write_table(table)
    ...     [piece] = ArrowReader(path, "a.arrow", Reading(features=("bag",))).pieces()
    >>> piece.indices.tolist(), piece.classes, piece.place(1)
    ([0, 7, 3], [1.0, -1.0], 'a.arrow, record batch 0, row 1')
    """

    path: str
    name: str
    reading: Reading

    def pieces(self) -> Iterator[Piece]:
        """The shard's rows in file order, checked; no piece at all for a file without rows.

        Raises
        ------
        DataError : the file is not Arrow or is damaged, and what ``make_piece`` and
            ``find_columns`` refuse.
        SettingsError : the columns do not suit the reading, see ``find_columns``.
        MachineError : the file cannot be read.
        """
        with sentences(self.name, _KIND), ExitStack() as stack:
            schema = self._open(stack).schema
            columns = find_columns(schema, self.reading, self.name)
            included = [schema.get_field_index(column) for column in columns.all]
            reader = self._open(stack, pa.ipc.IpcReadOptions(included_fields=included))
            for number, batch in enumerate(_batches(reader)):
                batch.validate(full=True)  # offsets of a damaged file may point anywhere
                step = _slice_rows(batch)
                for row in range(0, batch.num_rows, step):
                    spot = Spot(self.name, f"record batch {number}", row)
                    piece = make_piece(batch.slice(row, step), columns, self.reading, spot)
                    yield from bounded(piece)

    def fingerprint(self) -> str:
        """xxh3-128 of the file's bytes, 32 hex digits; one reading.

        Raises
        ------
        MachineError : the file cannot be read.
        """
        return fingerprint(self.path, self.name)

    def schema(self) -> pa.Schema:
        """Names and types of the file's columns. Raises what ``pieces`` raises."""
        with sentences(self.name, _KIND), ExitStack() as stack:
            return self._open(stack).schema

    def _open(self, stack: ExitStack, options: pa.ipc.IpcReadOptions | None = None) -> Any:
        """A reader of the file's or of the stream's record batches."""
        file = stack.enter_context(open_arrow(self.path))
        is_file = file.read(len(_MAGIC)) == _MAGIC
        file.seek(0)
        open_ = pa.ipc.open_file if is_file else pa.ipc.open_stream
        return stack.enter_context(open_(file, options=options))


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        yield from map(reader.get_batch, range(reader.num_record_batches))
    else:
        yield from reader


def _slice_rows(batch: pa.RecordBatch) -> int:
    """Rows that hold some 2²⁰ nonzeros or fewer, by the mean size of the batch's rows."""
    row_bytes = batch.nbytes / max(batch.num_rows, 1)
    return int(min(SLICE_ROWS, max(1, 8 * PIECE_NONZEROS // max(row_bytes, 1))))
