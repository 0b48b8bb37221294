"""Read the rows of one shard once, as chunks: what scores rows needs no more.

Columns are numbered as the file numbers them. Training reads a ``Dataset`` instead.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager

from streamtron.core.limits import available_processors
from streamtron.core.rows import Chunk, Label
from streamtron.data import readers
from streamtron.data.blocks import chunk_cutter, make_block, make_chunk
from streamtron.data.discover import ShardFile
from streamtron.data.labels import LabelTable
from streamtron.data.manifest import check_unchanged
from streamtron.data.prefetch import prefetch, run_in_thread
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import FileReader, RowBatch, take_rows
from streamtron.data.storage import is_uri

SHORT_BYTES = 1 << 20
"""A file of so many bytes is read without a thread of its own, which takes longer."""


class ShardRows(AbstractContextManager["ShardRows"]):
    """The rows of one shard, which may have none; a context manager, with which the reading ends.

    Parameters
    ----------
    shard, reading : what is read, and how, completed by the columns of a first shard.
    table : what numbers its labels; None = as they come.
    threads : that parse text, ≥ 1; None = all processors that this process may use.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from streamtron.data import find_shards
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = pathlib.Path(root, "a.svm").write_text("1 1:0.5\\n-1 3:1\\n")
    ...     with ShardRows(find_shards([root])[0], ReaderConfig()) as rows:
    ...         [chunk] = rows.chunks()
    >>> chunk.codes.tolist(), rows.labels, chunk.rows.indices.tolist()
    ([0, 1], [1.0, -1.0], [1, 3])
    """

    def __init__(
        self,
        shard: ShardFile,
        reading: ReaderConfig,
        table: LabelTable | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        self.shard, self._table = shard, table or LabelTable()
        self._reader = readers.open_reader(shard, reading, threads or available_processors())
        self._running: Generator[Chunk] | None = None

    @property
    def labels(self) -> list[Label]:
        """The labels by their codes, those of the chunks delivered at least."""
        return self._table.labels

    def fingerprint(self) -> str:
        """Return the fingerprint of the shard's bytes; text has been hashed with its rows."""
        return run_in_thread(self._reader.fingerprint)

    def chunks(self) -> Generator[Chunk]:
        """Deliver all rows once, up to 4,096 rows or 2²⁰ nonzeros at a time; a thread reads ahead.

        Chunks may be kept; where they are not, a few buffers are used again and again. DataError is
        raised for what readers refuse and for labels, MachineError for a file that cannot be read.
        """
        is_short = not is_uri(self.shard.path) and 0 < self.shard.size <= SHORT_BYTES
        self._running = self._read() if is_short else prefetch(self._read, depth=1)
        return self._running

    def _read(self) -> Generator[Chunk]:
        check_unchanged(self.shard)
        first = 0
        for rows in rows_of(self._reader, self._table):
            chunk = make_chunk(rows, ((first, first + rows.rows),))
            first += rows.rows
            del rows
            yield chunk
            del chunk  # it would keep its buffer from the next but one
        check_unchanged(self.shard)
        self._reader.warn()

    def __exit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.close()


def rows_of(reader: FileReader, table: LabelTable) -> Iterator[RowBatch]:
    """Yield the rows of a shard, a chunk at a time, with their ‖x_k‖² and the codes of a table."""
    parts: list[RowBatch] = []
    cutter = chunk_cutter()
    for batch in reader.batches():
        for start, stop, ends in cutter.cuts(batch.indptr):
            parts.append(table.recoded(take_rows(batch, slice(start, stop))))
            if ends:
                yield make_block(parts)
                parts = []
    if parts:
        yield make_block(parts)
