"""Read shards that are tables, Parquet or Arrow: what the readers of both formats share."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import current_process
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import xxhash

from streamtron.core.errors import DataError
from streamtron.core.files import check_room, reading_from, writing_to
from streamtron.core.text import reason_of
from streamtron.data import storage
from streamtron.data.formats.columns import find_columns, resolve_layout, unused_in
from streamtron.data.formats.layouts import Spot, without_views
from streamtron.data.formats.table_rows import make_batch
from streamtron.data.prefetch import in_order, run_in_thread
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import FileReader, RowBatch
from streamtron.data.transform import in_processes

BATCH_ROWS, BATCH_BYTES = 1 << 14, 1 << 23
"""Of a batch at most; so many bytes in memory have 2²⁰ nonzeros."""

PROCESSES_FROM = 1 << 22
"""Bytes of a file from which on processes transform its rows: each needs a second to begin."""


class Part(NamedTuple):
    """Consecutive rows of a table, where they begin, the fraction of the file up to their end."""

    rows: pa.RecordBatch
    spot: Spot
    end: float


class TableReader(FileReader, ABC):
    """One shard of a format that holds tables.

    Row batches have some 2²⁰ nonzeros at most; index base ``"auto"`` means 0. From a
    store the file is fetched once, whole, and read from a copy in the directory ``scratch`` (None =
    where the system keeps temporary files), which has no name and is gone with the reading.
    """

    KIND: ClassVar[str]
    """What the file should be, in messages: ``"a Parquet file"``."""

    def _batches_of_all(self) -> Iterator[RowBatch]:
        """Yield the shard's rows in file order, checked; nothing for a file without rows."""
        self.bytes_read = 0
        with table_errors(self.name, self.KIND), self._open(whole=True) as file:
            size, threads = file.size(), 1
            columns = find_columns(self._schema(file), self.reading, self.name)
            if (transformer := columns.transformer) is not None:
                if size >= PROCESSES_FROM and not current_process().daemon:
                    threads = self._threads
                make = transformer.made if threads == 1 else in_processes(transformer, threads)
                columns = columns._replace(made=make)

            def made(part: Part) -> tuple[RowBatch, int]:
                batch = make_batch(without_views(part.rows), columns, part.spot, self.reading)
                return batch, int(size * part.end)

            parts = self._parts(file, columns.all, columns.numbers)
            with closing(in_order(made, parts, threads)) as batches:
                for batch, self.bytes_read in batches:
                    yield batch

    def schema(self) -> pa.Schema:
        """Return names and types of the file's columns. Raises what ``batches`` raises."""
        with table_errors(self.name, self.KIND), self._open(whole=False) as file:
            return self._schema(file)

    def resolve(self) -> ReaderConfig:
        """Return the config with the layout and the columns of this file, if it has none."""
        if self.reading.layout is not None:
            return self.reading
        return resolve_layout(run_in_thread(self.schema), self.reading, self.name)

    def unused(self) -> dict[str, str]:
        """Return the columns that this config leaves aside, and their types."""
        schema = run_in_thread(self.schema)
        columns = find_columns(schema, self.reading, self.name)
        return dict(unused_in(schema, columns, self.reading))

    def rows(self, columns: list[str], numbers: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield some columns, whatever they hold, in the order of the rows. ``numbers`` : see
        ``_parts``."""
        with table_errors(self.name, self.KIND), self._open(whole=False) as file:
            times = Counter(self._schema(file).names)
            for name in columns:
                if times[name] != 1:
                    raise DataError(
                        f"{self.name}: {times[name]} columns of the name {name!r}: expected "
                        f"one of {', '.join([*times][:20])}."
                    )
            for part in self._parts(file, columns, numbers):
                yield without_views(part.rows)

    @contextmanager
    def _open(self, whole: bool) -> Iterator[Any]:
        """Open the file, which is read throughout if ``whole``: then of a store a copy of it, which
        is hashed meanwhile."""
        if not (whole and storage.is_uri(self.path)):
            with storage.open_arrow(self.path) as file:
                yield file
            return
        scratch, digest = self._scratch or tempfile.gettempdir(), xxhash.xxh3_128()
        what, elsewhere = (
            f"no copy of it can be kept in {scratch}",
            "Name another with --cache-dir.",
        )
        with ExitStack() as stack:
            with writing_to(self.path, elsewhere, what):
                size = storage.stamp(self.path).size
                check_room(scratch, size, f"{self.path}: {what}, it needs", elsewhere)
                copy = stack.enter_context(tempfile.TemporaryFile(dir=scratch))
                for block in storage.blocks(self.path, self.name):
                    digest.update(block)
                    copy.write(block)
                copy.flush()
            self._fingerprint = digest.hexdigest()
            yield stack.enter_context(pa.PythonFile(copy, mode="r"))

    @abstractmethod
    def _parts(
        self, file: Any, columns: list[str], numbers: Collection[str] = ()
    ) -> Iterator[Part]:
        """Yield the rows in file order, these columns of them. ``numbers`` : those that hold any
        numbers, of which text may show only whole ones in its first rows."""

    @abstractmethod
    def _schema(self, file: Any) -> pa.Schema: ...


def batch_rows(rows: int, size: int, most: int) -> int:
    """Return how many of rows of this size in bytes have some ``most`` bytes, or 2²⁰ nonzeros."""
    return int(min(BATCH_ROWS, max(1, most // max(size / max(rows, 1), 1))))


@contextmanager
def table_errors(name: str, kind: str) -> Iterator[None]:
    """Turn what pyarrow and the operating system raise into an error about this file."""
    try:
        with reading_from(name):
            try:
                yield
            except OSError as error:
                if error.errno is None:  # pyarrow's bad page, checksum or footer
                    raise pa.ArrowException(str(error)) from error
                # pyarrow's own message is a paragraph
                raise OSError(error.errno, os.strerror(error.errno)) from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = reason_of(error)
        if isinstance(error, pa.ArrowNotImplementedError):  # as 128-bit integers in Parquet
            sentence = f"holds what pyarrow cannot read ({reason}). Write it with other types."
        else:
            sentence = f"not {kind}, or a damaged one ({reason}). Write or fetch it again."
        raise DataError(f"{name}: {sentence}") from error
