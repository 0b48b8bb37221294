"""Parquet files, a row group at a time.

A row is a label, features in one of the layouts of ``layouts.LAYOUTS``, and a weight if its column
is named; columns beside them are never decoded. Within a row group batches have a bounded size, so
neither a large file nor a large row group needs room. Row groups and rows in messages count from
0, as pyarrow's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from streamtron.errors import DataError
from streamtron.shards.batches import bounded, make_piece
from streamtron.shards.columns import Columns, find_columns
from streamtron.shards.layouts import Spot
from streamtron.shards.piece import Piece, Reading
from streamtron.shards.storage import fingerprint, open_arrow
from streamtron.shards.tables import sentences

BATCH_ROWS = 1 << 14
BATCH_BYTES = 1 << 21
READ_BYTES = 1 << 20

_KIND = "a Parquet file"


@dataclass(frozen=True, slots=True)
class ParquetReader:
    """One Parquet shard, delivered as pieces of at most 2²⁰ nonzeros (or one longer row).

    Page checksums are verified where the file has them (``write_page_checksum=True`` in pyarrow;
    ``streamtron convert`` always writes them). Without them a damaged byte may go unnoticed:
    compression is no checksum.

    Parameters
    ----------
    path : the file, a local path or a URI.
    name : what messages call it.
    reading : see ``Reading``; index base ``"auto"`` means 0 here.

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
            type that is refused; what ``make_piece`` refuses in rows.
        SettingsError : the columns do not suit the reading, see ``find_columns``.
        MachineError : the file cannot be read.
        """
        with sentences(self.name, _KIND), self._open() as file:
            columns = find_columns(file.schema_arrow, self.reading, self.name)
            metadata, groups = file.metadata, range(file.num_row_groups)
            rows = sum(metadata.row_group(group).num_rows for group in groups)
            self._check_rows("", rows, metadata.num_rows)
            for group in groups:
                yield from self._group(file, group, columns)

    def fingerprint(self) -> str:
        """xxh3-128 of the file's bytes, 32 hex digits; one reading.

        Raises
        ------
        MachineError : the file cannot be read.
        """
        return fingerprint(self.path, self.name)

    def schema(self) -> pa.Schema:
        """Names and types of the file's columns. Raises what ``pieces`` raises."""
        with sentences(self.name, _KIND), self._open() as file:
            return file.schema_arrow

    @contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        # Without pre_buffer and with a buffer_size, pages are streamed; otherwise pyarrow holds
        # the compressed columns of a whole row group.
        with (
            open_arrow(self.path) as source,
            pq.ParquetFile(
                source, page_checksum_verification=True, pre_buffer=False, buffer_size=READ_BYTES
            ) as file,
        ):
            yield file

    def _group(self, file: pq.ParquetFile, group: int, columns: Columns) -> Iterator[Piece]:
        row = 0
        for batch in file.iter_batches(
            batch_size=_batch_rows(file.metadata.row_group(group)),
            row_groups=[group],
            columns=columns.all,
        ):
            spot = Spot(self.name, f"row group {group}", row)
            yield from bounded(make_piece(batch, columns, self.reading, spot))
            row += batch.num_rows
        self._check_rows(f", row group {group}", row, file.metadata.row_group(group).num_rows)

    def _check_rows(self, where: str, rows: int, wanted: int) -> None:
        if rows != wanted:
            raise DataError(
                f"{self.name}{where}: {rows} rows where the footer says {wanted}. The file is "
                "damaged. Write or fetch it again."
            )


def _batch_rows(group: pq.RowGroupMetaData) -> int:
    """Rows that decode to some 2²⁰ nonzeros or fewer, by the mean size of the group's rows.

    The footer also counts a column's values, but pyarrow aborts the process where a damaged footer
    contradicts itself there.
    """
    row_bytes = group.total_byte_size / max(group.num_rows, 1)
    return int(min(BATCH_ROWS, max(1, BATCH_BYTES // max(row_bytes, 1))))
