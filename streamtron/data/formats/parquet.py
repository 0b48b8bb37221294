"""Read Parquet files, a row group at a time, in batches of a bounded size.

Columns that are not needed are never decoded. Row groups and rows in messages count from 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from streamtron.core.errors import DataError
from streamtron.data.formats.layouts import Spot
from streamtron.data.formats.tables import Part, TableReader, batch_rows

BATCH_BYTES = 1 << 21
READ_BYTES = 1 << 20


class ParquetReader(TableReader):
    """One Parquet shard.

    Page checksums are verified where the file has them (``write_page_checksum=True`` in pyarrow;
    ``streamtron convert`` always writes them). Without them a damaged byte may go unnoticed:
    compression is no checksum.
    """

    KIND = "a Parquet file"

    def _parts(
        self, file: pa.NativeFile, columns: list[str], numbers: Collection[str] = ()
    ) -> Iterator[Part]:
        with _open(file) as table:
            metadata = table.metadata
            groups = [metadata.row_group(number) for number in range(table.num_row_groups)]
            rows = sum(group.num_rows for group in groups)
            self._check_rows("", rows, metadata.num_rows)
            first_row = 0
            for number, group in enumerate(groups):
                row, place = 0, f"row group {number}"
                # The footer also counts a column's values, but pyarrow aborts the process where a
                # damaged footer contradicts itself there.
                step = batch_rows(group.num_rows, group.total_byte_size, BATCH_BYTES)
                for batch in table.iter_batches(step, row_groups=[number], columns=columns):
                    start, row = row, row + batch.num_rows
                    yield Part(batch, Spot(self.name, place, start), (first_row + row) / rows)
                self._check_rows(f", {place}", row, group.num_rows)
                first_row += row

    def _schema(self, file: pa.NativeFile) -> pa.Schema:
        with _open(file) as table:
            return table.schema_arrow

    def _check_rows(self, where: str, rows: int, promised: int) -> None:
        if rows != promised:
            raise DataError(
                f"{self.name}{where}: {rows} rows where the footer says {promised}. The file is "
                "damaged. Write or fetch it again."
            )


def _open(file: pa.NativeFile) -> pq.ParquetFile:
    """Open a file whose pages are streamed: without a ``buffer_size``, or with ``pre_buffer``,
    pyarrow holds the compressed columns of a whole row group."""
    return pq.ParquetFile(
        file, page_checksum_verification=True, pre_buffer=False, buffer_size=READ_BYTES
    )
