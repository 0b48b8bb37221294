"""Read shards once, in their order, as chunks: what scores rows needs no more.

Columns are numbered as the files number them. Training reads a ``Dataset`` instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from typing import Any, Literal, NamedTuple
from weakref import WeakSet

from streamtron.core.errors import DataError
from streamtron.core.limits import available_processors
from streamtron.core.rows import Chunk, Label
from streamtron.data import readers
from streamtron.data.blocks import chunk_cutter, make_block, make_chunk
from streamtron.data.deletions import Deletions
from streamtron.data.discover import FORMATS, ShardFile, find_shards
from streamtron.data.labels import LabelTable, ShardLabels
from streamtron.data.manifest import (
    Manifest,
    ShardRecord,
    check_duplicate,
    check_unchanged,
    no_rows,
)
from streamtron.data.prefetch import PATIENCE, prefetch, run_in_thread
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import RowBatch, ShardReader, slice_batch
from streamtron.data.storage import is_uri

_log = logging.getLogger("streamtron")

SHORT_BYTES = 1 << 20
"""A single file of so many bytes is read without a thread of its own, which takes longer."""


class Skipped(NamedTuple):
    """A shard that was left out, and the sentence with which its reader refused it."""

    name: str
    reason: str


class _Read(NamedTuple):
    """Rows that have been read, and what was known then: the thread that reads is ahead."""

    chunk: Chunk | None
    labels: tuple[Label, ...]
    width: int
    bytes: int


def open_shards(
    paths: Sequence[str], reading: ReaderConfig | None = None, **options: Any
) -> ShardSource:
    """Open the shards in files, directories and patterns (see ``find_shards``) as a source; nothing
    is read yet. ``options``: see ``ShardSource``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = pathlib.Path(root, "a.svm").write_text("1 1:0.5\\n-1 3:1\\n")
    ...     with open_shards([root]) as source:
    ...         [chunk] = source.chunks()
    >>> chunk.codes.tolist(), source.labels, source.width, source.rows
    ([0, 1], [1.0, -1.0], 4, 2)
    """
    return ShardSource(find_shards(paths), reading or ReaderConfig(), **options)


class ShardSource(AbstractContextManager["ShardSource"]):
    """Read shards, every time anew; a context manager.

    A thread reads ahead. The attributes are as of the last chunk delivered, and do not depend on
    timing. Chunks may be kept; where they are not, a few buffers are used again and again.

    Parameters
    ----------
    shards, reading : what is read, and how.
    threads : that parse text, ≥ 1; None = all processors that this process may use.
    classes : the only labels there may be, and their codes in this order; None = as they come.
    most_labels : see ``LabelTable``.
    allow_duplicate, allow_empty : accept two shards with the same bytes, or no row in any shard.
    on_bad_shard : ``"skip"`` leaves out a shard that its reader refuses, as a whole: in the first
        reading all are read twice. ``"error"`` ends the reading.

    Attributes
    ----------
    manifest : the record of the shards, ``rows`` and ``nonzeros`` its sums; None until all rows
        have been read.
    skipped : the shards that were left out.
    labels : the classes met so far, in order of appearance, after ``classes``; the list grows.
    width : 1 + the largest column number met so far, as the files number columns.
    nonzeros_read, bytes_read : delivered so far, and fetched from disk for it.
    """

    def __init__(
        self,
        shards: Sequence[ShardFile],
        reading: ReaderConfig,
        *,
        threads: int | None = None,
        classes: Sequence[Label] | None = None,
        most_labels: int | None = 2,
        allow_duplicate: bool = False,
        allow_empty: bool = False,
        on_bad_shard: Literal["error", "skip"] = "error",
    ) -> None:
        self._resolved, self._threads = False, threads or available_processors()
        self.shards, self.reading = tuple(shards), reading
        self._classes, self._most_labels = classes, most_labels
        self._allow_duplicate, self._allow_empty = allow_duplicate, allow_empty
        self._skips = on_bad_shard == "skip"
        self.manifest: Manifest | None = None
        self.skipped: tuple[Skipped, ...] = ()
        self.labels: list[Label] = list(classes or ())
        self.width = self.nonzeros_read = self.bytes_read = 0
        self._lowest: int | None = None
        self._closed = False
        self._running: WeakSet[Generator[Chunk, None, None]] = WeakSet()

    @property
    def rows(self) -> int | None:
        """The rows of all shards; None until they have been read."""
        return None if self.manifest is None else self.manifest.rows

    @property
    def nonzeros(self) -> int | None:
        """The nonzeros of all shards; None until they have been read."""
        return None if self.manifest is None else self.manifest.nonzeros

    @property
    def readings(self) -> float:
        """Nonzeros delivered ÷ nonzeros in the data, 0 while the latter are unknown or none."""
        return self.nonzeros_read / self.nonzeros if self.nonzeros else 0.0

    @property
    def index_base(self) -> int | None:
        """The number of the first column, 0 or 1; None until it is known.

        ``"auto"`` becomes 1 for text in which column 0 does not occur in a complete reading, else
        0.
        """
        if self.reading.index_base != "auto":
            return self.reading.index_base
        if self.shards[0].format != "libsvm":
            return 0
        if self.manifest is None:
            return None
        return 0 if self._lowest == 0 else 1

    def fingerprints(self) -> list[tuple[str, str]]:
        """Return (name, fingerprint) of every shard; before the first complete reading this reads
        their bytes, without counting them."""
        if self.manifest is not None:
            return [(shard.name, shard.fingerprint) for shard in self.manifest.shards]
        return [
            (shard.name, run_in_thread(self.open_shard(shard).fingerprint)) for shard in self.shards
        ]

    def exclude(self, deletions: Iterable[Deletions]) -> None:
        """Exclude rows of the shards of these paths; see ``excluding``."""
        self.shards = excluding(self.shards, deletions, self.fingerprints)

    def resolve(self) -> ReaderConfig:
        """Complete the reading by the columns of the first shard, and return it."""
        if not self._resolved:
            self.reading = readers.resolve_by_first(self.shards, self.reading, skip=self._skips)
            self._resolved = True
        return self.reading

    def chunks(self) -> Generator[Chunk, None, None]:
        """Deliver all rows once, up to 4,096 rows or 2²⁰ nonzeros at a time.

        DataError is raised for what readers refuse and for labels, MachineError for a file that
        cannot be read.
        """
        self.resolve()
        running = self._deliver()
        self._running.add(running)
        return running

    @property
    def _is_short(self) -> bool:
        """Whether a reading is over before there is anything to read ahead."""
        sizes = [0 if is_uri(shard.path) else shard.size for shard in self.shards]
        return len(sizes) == 1 and 0 < sizes[0] <= SHORT_BYTES

    def _deliver(self) -> Generator[Chunk, None, None]:
        read = _Reading(self)
        fetched = self.bytes_read
        ahead = read.chunks() if self._is_short else prefetch(read.chunks, depth=1)
        with closing(ahead) as arriving:
            for event in arriving:
                if self._closed:
                    raise ValueError("The source is closed.")
                self.labels += event.labels[len(self.labels) :]
                self.width = max(self.width, event.width)
                self.bytes_read = fetched + event.bytes
                if event.chunk is not None:
                    self.nonzeros_read += event.chunk.nonzeros
                    yield event.chunk
                del event  # it would keep its chunk's buffer from the next but one
        self._lowest = read.lowest
        if self.manifest is None:
            self.skipped = tuple(read.skipped)
            left_out = {shard.name for shard in self.skipped}
            self.shards = tuple(shard for shard in self.shards if shard.name not in left_out)
        self.manifest = Manifest(tuple(read.records))

    def close(self) -> None:
        """Stop all readings, their threads included."""
        self._closed = True
        close_readings(self._running)

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_shard(self, shard: ShardFile) -> ShardReader:
        """Open a shard."""
        return readers.open_reader(shard, self.reading, self._threads)

    def label_table(self) -> LabelTable:
        """Return the table that numbers the labels of a reading."""
        return LabelTable(self._most_labels, self._classes)

    def check(self, records: Sequence[ShardRecord], files: Sequence[ShardFile]) -> None:
        """Refuse a last shard with the bytes of another."""
        last = records[-1]
        for record, shard in zip(records[:-1], files, strict=False):
            if last.rows and record.rows and record.fingerprint == last.fingerprint:
                check_duplicate(shard, files[-1], self._allow_duplicate)
                break

    @property
    def skips(self) -> bool:
        """Whether a shard that its reader refuses is left out; none once all have been read."""
        return self._skips and self.manifest is None

    @property
    def allow_empty(self) -> bool:
        """Whether there may be no row."""
        return self._allow_empty


class _Reading:
    """One reading of a source, in the thread that reads ahead."""

    def __init__(self, source: ShardSource) -> None:
        self._source, self._table = source, source.label_table()
        self.records, self.skipped = list[ShardRecord](), list[Skipped]()
        self.lowest: int | None = None
        self._files = list[ShardFile]()
        self._width = self._bytes = self._rows = 0
        self._notes = set[str]()

    def chunks(self) -> Generator[_Read]:
        for shard in self._source.shards:
            yield from self._read(shard)
        if not self._rows and not self._source.allow_empty:
            raise no_rows(self._source.shards, self._source.reading.share)
        yield self._event(None, 0)

    def _read(self, shard: ShardFile) -> Iterator[_Read]:
        check_unchanged(shard)
        if self._source.skips and (reason := self._refusal(shard)) is not None:
            self.skipped.append(Skipped(shard.name, reason))
            return
        reader, labels = self._source.open_shard(shard), ShardLabels(self._table)
        first_row, nonzeros = self._rows, 0
        for rows in rows_of(reader, labels):
            if rows.nonzeros:
                lowest = int(rows.indices.min())
                self.lowest = lowest if self.lowest is None else min(lowest, self.lowest)
            self._width = max(self._width, rows.width)
            ranges = ((self._rows, self._rows + rows.rows),)
            self._rows, nonzeros = ranges[0][1], nonzeros + rows.nonzeros
            chunk = make_chunk(rows.coded(labels.to_source), ranges)
            yield self._event(chunk, int(getattr(reader, "bytes_read", 0)))
            del chunk, rows
        fingerprint, read = reader.fingerprint(), self._rows - first_row
        check_unchanged(shard)
        self.records.append(record_of(shard, fingerprint, read, nonzeros, first_row))
        self._files.append(shard)
        self._source.check(self.records, self._files)
        self._bytes += bytes_of(shard)
        for note in sorted(getattr(reader, "notes", ())):
            if note not in self._notes:
                self._notes.add(note)
                _log.warning("%s", note)

    def _refusal(self, shard: ShardFile) -> str | None:
        """Read a whole shard before any of its rows is delivered; return why it is left out."""
        try:
            for _ in rows_of(self._source.open_shard(shard), ShardLabels(LabelTable())):
                pass
        except DataError as error:
            check_unchanged(shard)  # a shard that is being rewritten is not a bad one
            _log.warning("%s The shard is left out.", error)
            return str(error)
        return None

    def _event(self, chunk: Chunk | None, fetched: int) -> _Read:
        return _Read(chunk, (*self._table.labels,), self._width, self._bytes + fetched)


def rows_of(reader: ShardReader, labels: ShardLabels) -> Iterator[RowBatch]:
    """Yield the rows of a shard, a chunk at a time, with their ‖x_k‖² and the shard's codes."""
    parts: list[RowBatch] = []
    cutter = chunk_cutter()
    for batch in reader.batches():
        for start, stop, ends in cutter.cuts(batch.indptr):
            parts.append(labels.recoded(slice_batch(batch, start, stop)))
            if ends:
                yield make_block(parts)
                parts = []
    if parts:
        yield make_block(parts)


def record_of(
    shard: ShardFile, fingerprint: str, rows: int, nonzeros: int, first_row: int
) -> ShardRecord:
    """Make the record of a shard that was read as it was found."""
    file = shard.name, shard.path, shard.format, shard.size, shard.mtime_ns
    return ShardRecord(*file, fingerprint, rows, nonzeros, first_row)


def close_readings(running: Iterable[Generator[Chunk, None, None]]) -> None:
    """Stop readings, their threads included."""
    for reading in list(running):
        patience = time.monotonic() + PATIENCE
        while time.monotonic() < patience:
            try:
                reading.close()
                break
            except ValueError:  # another thread is in it, and ends it with its next chunk
                time.sleep(0.01)


def bytes_of(shard: ShardFile) -> int:
    """Count the bytes read of a shard: local tables are read again for their fingerprints."""
    return shard.size * (1 if FORMATS[shard.format].is_text or is_uri(shard.path) else 2)


def excluding(
    shards: Sequence[ShardFile],
    deletions: Iterable[Deletions],
    fingerprints: Callable[[], list[tuple[str, str]]],
) -> tuple[ShardFile, ...]:
    """Return shards without the rows that are deleted from them, by their paths. If some were moved
    or renamed, all are found by their ``fingerprints``."""
    deleted = tuple(deletions)
    known = {deletion.path: deletion for deletion in deleted}
    if not known.keys() <= {shard.path for shard in shards}:
        by_bytes = {deletion.fingerprint: deletion for deletion in deleted}
        for shard, (_, fingerprint) in zip(shards, fingerprints(), strict=True):
            if fingerprint in by_bytes and shard.path not in known:
                known[shard.path] = replace(by_bytes[fingerprint], path=shard.path)
    return tuple(shard._replace(without=known.get(shard.path)) for shard in shards)
