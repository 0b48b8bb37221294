"""The frame of a reader of tables, Parquet or Arrow, and its errors as one sentence."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, NoReturn

import pyarrow as pa

from streamtron.core.errors import DataError, MachineError
from streamtron.data import storage
from streamtron.data.local_copies import open_whole
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

    def pieces(self) -> Iterator[RowBatch]:
        """The shard's rows in file order, checked; no piece at all for a file without rows.

        Raises
        ------
        DataError : the file is not of this format or is damaged; a column is missing, ambiguous or
            of a type that is refused; what ``make_piece`` refuses in rows.
        SettingsError : the columns do not suit the reading, see ``find_columns``.
        MachineError : the file cannot be read, or there is no room for a copy.
        """
        self.bytes_read = 0
        with (
            sentences(self.name, self.KIND),
            open_whole(self.path, self.name, self._scratch) as (file, fingerprint),
        ):
            self._fingerprint = fingerprint or self._fingerprint
            size = file.size()
            for piece, part in self._pieces(file):
                self.bytes_read = int(part * size)
                yield piece

    def fingerprint(self) -> str:
        """xxh3-128 of the file's bytes, 32 hex digits; one reading, unless it was fetched before.

        Raises
        ------
        MachineError : the file cannot be read.
        """
        if self._fingerprint is None:
            self._fingerprint = storage.fingerprint(self.path, self.name)
        return self._fingerprint

    def schema(self) -> pa.Schema:
        """Names and types of the file's columns. Raises what ``pieces`` raises."""
        with sentences(self.name, self.KIND), storage.open_arrow(self.path) as file:
            return self._schema(file)

    def column(self, name: str) -> Iterator[pa.Array]:
        """One column, whatever it holds, in the order of the rows.

        Raises
        ------
        DataError : there is none of this name, or several; the file is damaged.
        MachineError : the file cannot be read.
        """
        with sentences(self.name, self.KIND), storage.open_arrow(self.path) as file:
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
    def _pieces(self, file: pa.NativeFile) -> Iterator[tuple[RowBatch, float]]:
        """The rows, and what part of the file has been delivered with them."""

    @abstractmethod
    def _schema(self, file: pa.NativeFile) -> pa.Schema: ...


@contextmanager
def sentences(name: str, kind: str) -> Iterator[None]:
    """Turn what pyarrow and the operating system raise into one sentence about this file.

    ``kind`` is what it should be: ``"a Parquet file"``.
    """
    try:
        yield
    except MemoryError as error:
        raise MachineError(
            f"{name}: out of memory while reading ({error}). Give the machine more."
        ) from error
    except OSError as error:
        if error.errno is not None:
            reason = os.strerror(error.errno)  # pyarrow's own message is a paragraph
            raise MachineError(
                f"{name}: cannot be read ({reason}). Check the path, its permissions and the disk."
            ) from error
        _damaged(name, kind, error)  # pyarrow's word for a bad page, checksum or footer
    except (pa.ArrowException, UnicodeDecodeError) as error:
        _damaged(name, kind, error)


def _damaged(name: str, kind: str, error: Exception) -> NoReturn:
    reason = " ".join(str(error).split()).rstrip(".")
    raise DataError(
        f"{name}: not {kind}, or a damaged one ({reason}). Write or fetch it again."
    ) from error
