"""Read shards that are tables, Parquet or Arrow: what the readers of both formats share."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from multiprocessing import current_process
from typing import Any, ClassVar, NamedTuple, TypeVar

import pyarrow as pa
import xxhash

from streamtron.core.errors import DataError
from streamtron.core.files import check_room, reading_from, writing_to
from streamtron.core.text import reason_of, some
from streamtron.data import storage
from streamtron.data.formats.columns import find_columns, find_label, resolve_layout, unused_in
from streamtron.data.formats.layouts import Columns, Spot, without_views
from streamtron.data.formats.table_rows import make_batch
from streamtron.data.prefetch import in_order, run_in_thread
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import FileReader, RowBatch
from streamtron.data.transform import in_processes

R = TypeVar("R")

BATCH_ROWS = 1 << 14

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
        yield from self.mapped(partial(make_batch, reading=self.reading), whole=True)

    def mapped(
        self, function: Callable[[pa.RecordBatch, Columns, Spot], R], *, whole: bool = False
    ) -> Iterator[R]:
        """Yield what a function makes of consecutive rows, in their order; ``whole`` : of all
        columns that are read, so that the bytes count, and the fingerprint is known at the end."""
        self.bytes_read = 0
        with table_errors(self.name, self.KIND), self._open(whole) as (file, size):
            columns = find_columns(self._schema(file), self.reading, self.name)

            def made(part: Part) -> tuple[R, int]:
                return function(part.rows, columns, part.spot), int(size * part.end)

            threads, transformer = 1, columns.transformer
            if transformer is not None and size >= PROCESSES_FROM and not current_process().daemon:
                threads = self._threads
            if transformer is not None and threads > 1:
                columns = columns._replace(made=in_processes(transformer, threads))
            parts = _numbered(self._parts(file, columns.all, columns.numbers))
            with closing(in_order(made, parts, threads)) as results:
                for result, self.bytes_read in results:
                    yield result
            if columns.unknown:
                count, names = sum(columns.unknown.values()), some(sorted(columns.unknown))
                self.notes.add(
                    f"{self.name}: {count:,} values in {names} are categories that the transformer "
                    "was not fitted on."
                )

    def schema(self) -> pa.Schema:
        """Return names and types of the file's columns. Raises what ``batches`` raises."""
        with table_errors(self.name, self.KIND), self._open(whole=False) as (file, _):
            return self._schema(file)

    def resolve(self) -> ReaderConfig:
        """Return the config with the layout and the columns of this file, if it has none."""
        if self.reading.settled is not None:
            return self.reading
        return resolve_layout(run_in_thread(self.schema), self.reading, self.name)

    def unused(self) -> dict[str, str]:
        """Return the columns that this config leaves aside, and their types."""
        schema = run_in_thread(self.schema)
        columns = find_columns(schema, self.reading, self.name)
        return dict(unused_in(schema, columns, self.reading))

    def label_column(self) -> str | None:
        """Return the column of the labels; None where there is none, and none is needed."""
        return find_label(run_in_thread(self.schema), self.reading, self.name)

    def column(self, name: str) -> Iterator[pa.Array]:
        """Yield one column, whatever it holds, in the order of the rows."""
        for rows in self.rows([name]):
            yield rows.column(0)

    def rows(self, columns: list[str], numbers: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield some columns, whatever they hold, in the order of the rows. ``numbers`` : see
        ``_parts``."""
        with table_errors(self.name, self.KIND), self._open(whole=False) as (file, _):
            times = Counter(self._schema(file).names)
            for name in columns:
                if times[name] != 1:
                    raise DataError(
                        f"{self.name}: {times[name]} columns of the name {name!r}: expected "
                        f"one of {', '.join([*times][:20])}."
                    )
            for part in _numbered(self._parts(file, columns, numbers)):
                yield part.rows

    @contextmanager
    def _open(self, whole: bool) -> Iterator[tuple[Any, int]]:
        """Open the file, which is read throughout if ``whole``; yield it and its bytes."""
        if not whole:
            with storage.open_arrow(self.path) as file:
                yield file, 0
            return
        with _open_whole(self.path, self.name, self._scratch) as (file, fingerprint):
            self._fingerprint = fingerprint or self._fingerprint
            yield file, file.size()

    @abstractmethod
    def _parts(
        self, file: Any, columns: list[str], numbers: Collection[str] = ()
    ) -> Iterator[Part]:
        """Yield the rows in file order, these columns of them. ``numbers`` : those that hold any
        numbers, of which text may show only whole ones in its first rows."""

    @abstractmethod
    def _schema(self, file: Any) -> pa.Schema: ...


def _numbered(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield parts whose spots know how many rows are before them."""
    start = 0
    for part in parts:
        rows = without_views(part.rows)
        yield part._replace(rows=rows, spot=part.spot._replace(rows_before=start))
        start += len(rows)


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


@contextmanager
def _open_whole(
    path: str, name: str, scratch: str | None
) -> Iterator[tuple[pa.NativeFile, str | None]]:
    """Open a file that will be read throughout, for random access; yield its fingerprint if known,
    as that of a file of a store is, which is hashed while it is copied."""
    if not storage.is_uri(path):
        with pa.OSFile(os.fsencode(path)) as file:
            yield file, None
        return
    scratch = scratch or tempfile.gettempdir()
    what, elsewhere = f"no copy of it can be kept in {scratch}", "Name another with --cache-dir."
    digest = xxhash.xxh3_128()
    with ExitStack() as stack:
        with writing_to(path, elsewhere, what):
            check_room(scratch, storage.stamp(path).size, f"{path}: {what}, it needs", elsewhere)
            copy = stack.enter_context(tempfile.TemporaryFile(dir=scratch))
            for block in storage.blocks(path, name):
                digest.update(block)
                copy.write(block)
            copy.flush()
        yield stack.enter_context(pa.PythonFile(copy, mode="r")), digest.hexdigest()
