"""Read Parquet files, a row group at a time, in batches of a bounded size.

Columns that are not needed are never decoded. Row groups and rows in messages count from 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from streamtron.core.errors import DataError
from streamtron.data.formats.columns import Columns, find_columns
from streamtron.data.formats.layouts import Spot
from streamtron.data.formats.table_rows import make_batch, split_batch
from streamtron.data.formats.tables import TableReader
from streamtron.data.row_batch import RowBatch

BATCH_ROWS = 1 << 14
BATCH_BYTES = 1 << 21
READ_BYTES = 1 << 20


class ParquetReader(TableReader):
    """One Parquet shard, delivered as row batches of at most 2²⁰ nonzeros (or one longer row).

    Page checksums are verified where the file has them (``write_page_checksum=True`` in pyarrow;
    ``streamtron convert`` always writes them). Without them a damaged byte may go unnoticed:
    compression is no checksum. Parameters: see ``TableReader``.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from streamtron.data import Reading
    >>> table = pa.table({"indices": [[0, 7], [3]], "values": [[1.0, 0.5], [2.0]], "y": [1, -1]})
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = str(pathlib.Path(directory, "a.parquet"))
    ...     pq.write_table(table, path)
    ...     [row_batch] = ParquetReader(path, "a.parquet", Reading()).batches()
    >>> row_batch.indices.tolist(), row_batch.classes, row_batch.place(1)
    ([0, 7, 3], [1.0, -1.0], 'a.parquet, row group 0, row 1')
    """

    KIND = "a Parquet file"

    def _row_batches(self, file: pa.NativeFile) -> Iterator[tuple[RowBatch, float]]:
        with self._open(file) as table:
            columns = find_columns(table.schema_arrow, self.reading, self.name)
            metadata, groups = table.metadata, range(table.num_row_groups)
            rows = sum(metadata.row_group(group).num_rows for group in groups)
            self._check_rows("", rows, metadata.num_rows)
            delivered = 0
            for group in groups:
                for row_batch in self._group(table, group, columns):
                    delivered += len(row_batch.codes)
                    yield row_batch, delivered / rows

    def _column(self, file: pa.NativeFile, name: str) -> Iterator[pa.Array]:
        with self._open(file) as table:
            for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=[name]):
                yield batch.column(0)

    def _schema(self, file: pa.NativeFile) -> pa.Schema:
        with self._open(file) as table:
            return table.schema_arrow

    def _open(self, file: pa.NativeFile) -> pq.ParquetFile:
        # Without pre_buffer and with a buffer_size, pages are streamed; otherwise pyarrow holds
        # the compressed columns of a whole row group.
        return pq.ParquetFile(
            file, page_checksum_verification=True, pre_buffer=False, buffer_size=READ_BYTES
        )

    def _group(self, file: pq.ParquetFile, group: int, columns: Columns) -> Iterator[RowBatch]:
        row = 0
        for batch in file.iter_batches(
            batch_size=_batch_rows(file.metadata.row_group(group)),
            row_groups=[group],
            columns=columns.all,
        ):
            spot = Spot(self.name, f"row group {group}", row)
            yield from split_batch(make_batch(batch, columns, self.reading, spot))
            row += batch.num_rows
        self._check_rows(f", row group {group}", row, file.metadata.row_group(group).num_rows)

    def _check_rows(self, where: str, rows: int, wanted: int) -> None:
        if rows != wanted:
            raise DataError(
                f"{self.name}{where}: {rows} rows where the footer says {wanted}. The file is "
                "damaged. Write or fetch it again."
            )


def _batch_rows(group: pq.RowGroupMetaData) -> int:
    """Return how many rows decode to some 2²⁰ nonzeros, by the mean size of the group's rows.

    The footer also counts a column's values, but pyarrow aborts the process where a damaged footer
    contradicts itself there.
    """
    row_bytes = group.total_byte_size / max(group.num_rows, 1)
    return int(min(BATCH_ROWS, max(1, BATCH_BYTES // max(row_bytes, 1))))
