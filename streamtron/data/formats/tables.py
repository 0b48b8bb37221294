"""Read shards that are tables, Parquet or Arrow: what the readers of both formats share."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from io import RawIOBase
from typing import ClassVar

import pyarrow as pa
import xxhash

from streamtron.core.errors import DataError
from streamtron.core.files import reading_from
from streamtron.data import storage
from streamtron.data.disk import check_room, writing_to
from streamtron.data.row_batch import Reading, RowBatch


class TableReader(ABC):
    """One shard of a format that holds tables; a ``ShardReader``.

    Parameters
    ----------
    path : the file, a local path or a URI; from a store it is fetched once, whole, and read from
        the copy.
    name : what messages call it.
    reading : see ``Reading``; index base ``"auto"`` means 0 here.
    scratch : the directory of that copy, which has no name and is gone with the reading; None =
        where the system keeps temporary files.
    """

    KIND: ClassVar[str]
    """What the file should be, in messages: ``"a Parquet file"``."""

    def __init__(self, path: str, name: str, reading: Reading, scratch: str | None = None) -> None:
        self.path, self.name, self.reading = path, name, reading
        self.bytes_read = 0
        """Bytes of the file that the rows delivered last were made of, and all before them: their
        part of its size."""
        self._scratch = scratch
        self._fingerprint: str | None = None

    def batches(self) -> Iterator[RowBatch]:
        """The shard's rows in file order, checked; no row_batch at all for a file without rows.

        Raises
        ------
        DataError : the file is not of this format or is damaged; a column is missing, ambiguous or
            of a type that is refused; what ``make_batch`` refuses in rows.
        SettingsError : the columns do not suit the reading, see ``find_columns``.
        MachineError : the file cannot be read, or there is no room for a copy.
        """
        self.bytes_read = 0
        with (
            table_errors(self.name, self.KIND),
            _open_whole(self.path, self.name, self._scratch) as (file, fingerprint),
        ):
            self._fingerprint = fingerprint or self._fingerprint
            size = file.size()
            for row_batch, part in self._row_batches(file):
                self.bytes_read = int(part * size)
                yield row_batch

    def fingerprint(self) -> str:
        """Return xxh3-128 of the file's bytes, 32 hex digits."""
        if self._fingerprint is None:
            self._fingerprint = storage.fingerprint(self.path, self.name)
        return self._fingerprint

    def schema(self) -> pa.Schema:
        """Names and types of the file's columns. Raises what ``batches`` raises."""
        with table_errors(self.name, self.KIND), storage.open_arrow(self.path) as file:
            return self._schema(file)

    def column(self, name: str) -> Iterator[pa.Array]:
        """One column, whatever it holds, in the order of the rows."""
        with table_errors(self.name, self.KIND), storage.open_arrow(self.path) as file:
            schema = self._schema(file)
            if len(schema.get_all_field_indices(name)) != 1:
                raise DataError(
                    f"{self.name}: {schema.names.count(name)} columns of the name {name!r}. Wanted "
                    f"is one of {', '.join(schema.names[:20])}."
                )
            yield from self._column(file, name)

    @abstractmethod
    def _column(self, file: pa.NativeFile, name: str) -> Iterator[pa.Array]: ...

    @abstractmethod
    def _row_batches(self, file: pa.NativeFile) -> Iterator[tuple[RowBatch, float]]:
        """Return the rows, and what part of the file has been delivered with them."""

    @abstractmethod
    def _schema(self, file: pa.NativeFile) -> pa.Schema: ...


@contextmanager
def table_errors(name: str, kind: str) -> Iterator[None]:
    """Turn what pyarrow and the operating system raise into an error about this file.

    ``kind`` is what it should be: ``"a Parquet file"``.
    """
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
        reason = " ".join(str(error).split()).rstrip(".")
        raise DataError(
            f"{name}: not {kind}, or a damaged one ({reason}). Write or fetch it again."
        ) from error


@contextmanager
def _open_whole(
    path: str, name: str, scratch: str | None
) -> Iterator[tuple[pa.NativeFile, str | None]]:
    """Open a file that will be read throughout, for random access; yield its fingerprint if known.

    What lies in a store is fetched once, in large parts, into a file without a name in the
    directory ``scratch``, and hashed on the way.
    """
    if not storage.is_uri(path):
        with pa.OSFile(path) as file:
            yield file, None
        return
    scratch = scratch or tempfile.gettempdir()
    what = f"no copy of it can be kept in {scratch}"
    elsewhere = "Name another place with --cache-dir."
    keeping = partial(writing_to, path, elsewhere, what)
    with ExitStack() as stack:
        with keeping():
            check_room(scratch, storage.stamp(path).size, f"{path}: {what}, it needs", elsewhere)
            copy = stack.enter_context(tempfile.TemporaryFile(dir=scratch, buffering=0))
        digest = xxhash.xxh3_128()
        for block in storage.blocks(path, name):
            digest.update(block)
            with keeping():
                _write_all(copy, block)
        yield stack.enter_context(pa.PythonFile(copy, mode="r")), digest.hexdigest()


def _write_all(file: RawIOBase, data: bytes) -> None:
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) :]
