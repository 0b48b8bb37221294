"""The prepared file of one shard: blocks of rows as arrays, a checksum over every byte.

::

    "streamtron rows "                                   16 bytes
    segment 0: weights  float64 a row                    one segment for each block
               squares  float64 a row
               lengths  uint32 a row
               counts   uint32 a row                     left out where a row has one label
               codes    uint8, int16 or int32 a label; float64 a row if they are targets
               columns  uint16 or uint32 a nonzero
               values   float32 a nonzero, or a row
    segment 1: …
    table:     columns  uint32 a column of the shard     by number
               counts   int64 a column
    footer: JSON, with place, size and xxh3-64 of every segment
    bytes and xxh3-64 of the footer, 8 bytes each; "end of the rows "

The shard's columns are numbered in order of first occurrence, and the table has the number that
the shard's own file gives each, and how often it occurs. Weights are left out where all are 1,
lengths where all are alike, columns where every row has the same ones, without a gap, values where
all are 1; they are one a row where those of a row are equal, and squares are computed then.
Everything is read, never mapped (mapped pages count as memory), and checksums are compared every
time.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import isfinite
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core import rows as chunk
from streamtron.core.errors import FileDamaged
from streamtron.core.files import CACHE_REMEDY, flush, parse_json, reading_from, writing_to
from streamtron.core.rows import COLUMN_MAX, Chunk, Label, are_targets
from streamtron.data.blocks import Buffers, join_rows, make_chunk, one_a_row, squares_of
from streamtron.data.row_batch import RowBatch, offsets_of

FORMAT_VERSION = 7
TEMPORARY = re.compile(r"\.[a-z0-9_]{8}\.streamtron-cache")
"""Names of files that are being written."""

_HEAD = b"streamtron rows "
_END = b"end of the rows "
_TAIL = struct.Struct("<QQ16s")
_STEP = 1 << 20  # read and hashed at once: what was just read is still in the processor's cache

SHORT = 1 << 16
"""Columns whose numbers take two bytes."""

writing_cache = partial(writing_to, remedy=CACHE_REMEDY, what="the cache cannot be written")
"""Around what writes to the directory of a cache."""

_log = logging.getLogger("streamtron")

Columns = NDArray[np.uint32]


class Entry(NamedTuple):
    """Where a segment lies, and what is in it.

    ``labels`` : codes, None = one a row. ``length`` : nonzeros of every row, None = stored.
    ``first_column`` : of every row, the others follow; None = stored. ``column_bytes``,
    ``code_bytes`` : of a number; codes of 8 bytes are targets. ``values`` : stored for all
    nonzeros, for rows, or not at all.
    """

    offset: int
    rows: int
    nonzeros: int
    labels: int | None
    length: int | None
    first_column: int | None
    column_bytes: int
    code_bytes: int
    values: Literal["all", "rows", "none"]
    has_weights: bool
    checksum: int

    @property
    def arrays(self) -> list[tuple[type[np.generic], int]]:
        """Type and length of the arrays, in the order of the file."""
        rows, nonzeros, labels = self.rows, self.nonzeros, self.labels
        return [
            (np.float64, rows if self.has_weights else 0),
            (np.float64, rows if self.values == "all" else 0),
            (np.uint32, rows if self.length is None else 0),
            (np.uint32, 0 if labels is None else rows),
            (_CODES[self.code_bytes], rows if labels is None else labels),
            (_COLUMNS[self.column_bytes], nonzeros if self.first_column is None else 0),
            (np.float32, {"all": nonzeros, "rows": rows, "none": 0}[self.values]),
        ]

    def held_values(self, by_row: bool) -> int:
        """Return how many values memory holds, one a nonzero or ``by_row``."""
        return self.rows if by_row else self.nonzeros

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        return sum(np.dtype(dtype).itemsize * length for dtype, length in self.arrays)


_CODES: dict[int, type[np.generic]] = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.float64}
"""Bytes of a code → its type; one byte where there are up to 255 labels and every row has one."""

_COLUMNS: dict[int, type[np.generic]] = {2: np.uint16, 4: np.uint32}
"""Bytes of a column's number → its type."""


class Table(NamedTuple):
    """The columns of a shard by their numbers in it: those that the shard gives them, and how often
    each occurs."""

    columns: Columns
    counts: NDArray[np.int64]


class Contents(NamedTuple):
    """What a prepared file says of itself: what it was made for; the shard's labels, and for each
    the place in the shard where it was met first; what is known of the rows (``ShardFacts``); its
    segments; and the checksum of its table of so many columns."""

    key: dict[str, Any]
    labels: list[Label]
    places: list[str]
    facts: dict[str, Any]
    entries: list[Entry]
    columns: int
    table_checksum: int

    @property
    def bytes(self) -> int:
        """Bytes of all segments."""
        return sum(entry.bytes for entry in self.entries)

    @property
    def rows(self) -> int:
        """Rows of all segments."""
        return sum(entry.rows for entry in self.entries)

    @property
    def nonzeros(self) -> int:
        """Nonzeros of all segments."""
        return sum(entry.nonzeros for entry in self.entries)


class ColumnNumbers:
    """Number the columns of a shard in order of first occurrence, and count them."""

    def __init__(self) -> None:
        self._columns, self._counts = np.empty(0, np.uint32), np.empty(0, np.int64)
        self._slots, self._known = np.zeros(0, np.uint64), 0
        self._grow(1 << 12)

    @property
    def table(self) -> Table:
        """The table of the columns so far."""
        return Table(self._columns[: self._known], self._counts[: self._known])

    def number(self, indices: Columns) -> Columns:
        """Return the number of each column, shape of ``indices``."""
        numbers, done = np.empty(len(indices), np.uint32), 0
        while True:
            self._known, done = kernels.number_columns(
                indices, done, self._slots, self._columns, self._counts, self._known, numbers
            )
            if done == len(indices):
                return numbers
            self._grow(2 * len(self._columns))

    def _grow(self, size: int) -> None:
        columns, counts = np.zeros(size, np.uint32), np.zeros(size, np.int64)
        columns[: self._known], counts[: self._known] = self.table
        self._columns, self._counts = columns, counts
        self._slots = np.zeros(2 * size, np.uint64)
        kernels.fill_table(columns[: self._known], self._slots)


class FlatWriter:
    """Write one prepared file: under a temporary name until it is whole and safely on disk.

    A context manager: what has not been finished when it is left is removed.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._entries: list[Entry] = []
        self._end = len(_HEAD)
        self._numbers = ColumnNumbers()

    def __enter__(self) -> FlatWriter:
        with writing_cache(self._directory):
            self._file, self._temporary = _locked_temporary(self._directory)
            self._file.write(_HEAD)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._temporary)

    @property
    def bytes(self) -> int:
        """Bytes written so far."""
        return self._end

    def write(self, blocks: Iterable[RowBatch]) -> None:
        """Append blocks, a segment each."""
        for block in blocks:
            entry, arrays = self._stored(block)
            parts = [_bytes(array) for array in arrays if array is not None]
            digest = xxhash.xxh3_64()
            for part in parts:
                digest.update(part)
            with writing_cache(self._directory):
                self._file.writelines(parts)
            self._entries.append(entry._replace(checksum=digest.intdigest()))
            self._end += entry.bytes

    def _stored(self, block: RowBatch) -> tuple[Entry, list[NDArray[Any] | None]]:
        """Return the entry of a block, and its arrays."""
        lengths = np.diff(block.indptr)
        length = int(lengths[0]) if len(lengths) and (lengths == lengths[0]).all() else None
        columns = self._numbers.number(block.indices)
        first = _first_of_dense(columns, length)
        short = not len(columns) or int(columns.max()) < SHORT
        values, of_rows = block.values, None
        if values is not None:
            of_rows = one_a_row(block.indptr, values)
            values = values if of_rows is None else of_rows
        codes, counts = block.codes, None
        if block.code_offsets is not None:
            counts = np.diff(block.code_offsets).astype(np.uint32)
        entry = Entry(
            self._end,
            block.rows,
            block.nonzeros,
            None if counts is None else len(codes),
            length,
            first,
            2 if short else 4,
            _code_bytes(codes),
            "none" if values is None else "all" if of_rows is None else "rows",
            block.weights is not None,
            0,
        )
        return entry, [
            block.weights,
            block.squares if entry.values == "all" else None,
            lengths.astype(np.uint32) if length is None else None,
            counts,
            codes.astype(_CODES[entry.code_bytes], copy=False),
            None if first is not None else columns.astype(np.uint16) if short else columns,
            values,
        ]

    def finish(
        self,
        path: str,
        key: dict[str, Any],
        labels: Sequence[Label],
        places: Sequence[str],
        facts: dict[str, Any],
    ) -> Contents:
        """Write the table and the footer, and give the file its name."""
        table = self._numbers.table
        parts = [_bytes(array) for array in table]
        checksum = xxhash.xxh3_64_intdigest(b"".join(parts))
        contents = Contents(
            key, [*labels], [*places], facts, self._entries, len(table.columns), checksum
        )
        footer = json.dumps({"version": FORMAT_VERSION, **contents._asdict()}).encode()
        tail = _TAIL.pack(len(footer), xxhash.xxh3_64_intdigest(footer), _END)
        with writing_cache(self._directory):
            self._file.writelines([*parts, footer, tail])
            flush(self._file)
            os.replace(self._temporary, path)
        return contents


def _first_of_dense(columns: Columns, length: int | None) -> int | None:
    """Return the first column where every row has the same ones, without a gap; else None."""
    if length is None or length < 2:
        return None
    table = columns.reshape(-1, length)
    first = table[0, 0]
    return int(first) if (table - first == np.arange(length, dtype=np.uint32)).all() else None


def _code_bytes(codes: NDArray[Any]) -> int:
    if are_targets(codes):
        return 8
    least, most = int(codes.min(initial=0)), int(codes.max(initial=0))
    return 1 if least >= 0 and most < 1 << 8 else 2 if most < 1 << 15 else 4


def _locked_temporary(directory: str) -> tuple[BinaryIO, str]:
    """Open a new file, locked against ``remove_abandoned``; return it with its path."""
    while True:
        descriptor, path = tempfile.mkstemp(".streamtron-cache", ".", directory)
        file = open(descriptor, "wb")  # noqa: SIM115
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.path.exists(path):
            return file, path
        file.close()  # it was taken for abandoned before it was locked


def remove_abandoned(directory: str) -> None:
    """Remove the temporary files of writers that were killed."""
    for name in os.listdir(directory):
        if TEMPORARY.fullmatch(name):
            with suppress(OSError), open(os.path.join(directory, name), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(file.name)


def read_contents(path: str) -> Contents:
    """Read what a prepared file holds."""
    with reading_from(path), open(path, "rb") as file:
        start = file.seek(0, os.SEEK_END) - _TAIL.size
        file.seek(0)
        if start < len(_HEAD) or file.read(len(_HEAD)) != _HEAD:
            raise _damaged(path, "it does not begin as a cache")
        file.seek(start)
        length, checksum, end = _TAIL.unpack(file.read(_TAIL.size))
        start -= length
        if end != _END or start < len(_HEAD):
            raise _damaged(path, "it does not end as a cache")
        file.seek(start)
        footer = file.read(length)
    if xxhash.xxh3_64_intdigest(footer) != checksum:
        raise _damaged(path, "the checksum of its footer differs")
    try:
        fields = parse_json(footer)
        if fields.pop("version") == FORMAT_VERSION:
            fields["entries"] = [Entry(*entry) for entry in fields["entries"]]
            contents = Contents(**fields)
            if not (_fill_the_file(contents, start) and _are_of_our_kinds(contents)):
                raise ValueError("not as we write it")
            return contents
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise _damaged(path, "its footer is none that we write") from error
    raise FileDamaged(f"{path}: written in another version of the format.")


def _fill_the_file(contents: Contents, stop: int) -> bool:
    """Tell whether segments and table fill the file from its head to ``stop``."""
    offset, columns = len(_HEAD), contents.columns
    for entry in contents.entries:
        if entry.offset != offset or not _is_ours(entry, columns):
            return False
        offset += entry.bytes
    return type(columns) is int and columns >= 0 and offset + 12 * columns == stop


def _is_ours(entry: Entry, columns: int) -> bool:
    """Tell whether a segment makes no more rows or nonzeros of its bytes than a writer would have
    put there."""
    optional = [n for n in (entry.labels, entry.length, entry.first_column) if n is not None]
    numbers, length = (*entry[:3], entry.checksum, *optional), entry.length or 0
    return (
        all(type(number) is int and number >= 0 for number in numbers)
        and entry.column_bytes in _COLUMNS
        and entry.code_bytes in _CODES
        and (entry.length is None or entry.rows * length == entry.nonzeros)
        and (
            entry.first_column is None
            or (
                entry.nonzeros < chunk.BLOCK_NONZEROS + length
                and entry.first_column + length <= columns
            )
        )
    )


def _are_of_our_kinds(contents: Contents) -> bool:
    """Tell whether labels, their places and facts are of the kinds that we write."""
    labels, facts = contents.labels, contents.facts
    ends = [*facts["weights"], *facts["targets"]]
    numbers = [facts["weight"], facts["sq_norm"], *facts["labels"], *ends]
    return (
        isinstance(contents.key["fingerprint"], str)
        and all(type(label) in (str, float, bool) for label in labels)
        and [type(place) for place in contents.places] == [str] * len(labels)
        and type(facts["rows"]) is int
        and 0 <= facts["rows"] <= contents.rows
        and all(type(number) is float and isfinite(number) for number in numbers)
        and type(facts["total"]) is float
        and len(facts["labels"]) <= len(labels)
        and (len(facts["weights"]), len(facts["targets"])) == (2, 2)
    )


class CachedShard:
    """One shard in its prepared file. ``name`` is what messages call the shard, ``contents`` the
    file's footer."""

    def __init__(self, path: str, name: str, contents: Contents) -> None:
        self.path, self.name, self.contents = path, name, contents
        self.remake: Callable[[], Contents] | None = None
        """Rebuilds the file from the shard; None = a damaged file is refused."""

    def fingerprint(self) -> str:
        """Return the fingerprint of the shard that was prepared."""
        return str(self.contents.key["fingerprint"])

    def table(self) -> Table:
        """Read the table of the shard's columns."""
        size, entries = self.contents.columns, self.contents.entries
        table = Table(np.empty(size, np.uint32), np.empty(size, np.int64))
        offset = entries[-1].offset + entries[-1].bytes if entries else len(_HEAD)
        self.fill(offset, self.contents.table_checksum, "table of columns", table)
        rising = np.sort(table.columns)
        if (
            (rising[1:] == rising[:-1]).any()
            or (rising[-1:] > COLUMN_MAX).any()
            or (table.counts <= 0).any()
            or table.counts.sum() != self.contents.nonzeros
        ):
            raise _damaged(self.path, "its table of columns is none that we write")
        return table

    def fill(self, offset: int, checksum: int, what: str, arrays: Sequence[Any]) -> None:
        """Read bytes of the file into arrays; a damaged file is rebuilt first."""
        for remake in (self.remake, None):
            try:
                if _fill(self.path, offset, map(_bytes, arrays)) != checksum:
                    raise _damaged(self.path, f"{what}: the checksum differs")
                return
            except FileDamaged as damage:
                if remake is None:
                    raise
                _log.warning("%s It is rebuilt from %s.", damage, self.name)
                if remake() != self.contents:
                    raise FileDamaged(
                        f"{self.path}: rebuilt it holds other rows than before. Run again."
                    ) from damage


class Slot(NamedTuple):
    """A block in a prepared file; ``codes`` turns the shard's codes into those of the data,
    ``ranks`` the shard's columns into the data's."""

    shard: CachedShard
    number: int
    codes: NDArray[np.int32]
    ranks: Columns

    @property
    def entry(self) -> Entry:
        """The segment's place and size."""
        return self.shard.contents.entries[self.number]

    def read(
        self,
        indices: Columns,
        values: NDArray[np.float32],
        room: Columns,
        *,
        by_row: bool,
    ) -> RowBatch:
        """Read the rows, columns and values into these arrays, values one a nonzero or ``by_row``;
        ``room`` : for the columns as they are stored."""
        entry, labels, what = self.entry, self.shard.contents.labels, f"block {self.number}"
        *head, (dtype, stored_columns), (_, stored_values) = entry.arrays
        arrays = [np.empty(length, kind) for kind, length in head]
        stored = room.view(dtype)[:stored_columns]
        spread = entry.values != "all" and not by_row
        read = np.empty(entry.rows, np.float32) if spread else values
        parts = [*arrays, stored, read[:stored_values]]
        self.shard.fill(entry.offset, entry.checksum, what, parts)
        weights, squares, lengths, counts, codes = arrays
        if entry.length is not None:
            lengths = np.full(entry.rows, entry.length, np.uint32)
        indptr = offsets_of(lengths)
        if entry.first_column is not None:
            dense = np.arange(entry.length or 0, dtype=np.uint32) + np.uint32(entry.first_column)
            stored = np.tile(dense, entry.rows)
        offsets = None if entry.labels is None else offsets_of(counts)
        fits = indptr[-1] == entry.nonzeros == len(stored)
        fits = fits and (offsets is None or offsets[-1] == len(codes))
        if not are_targets(codes):
            codes = codes.astype(np.int32)
            least = -1 if offsets is None else 0
            fits = fits and codes.min(initial=0) >= least and codes.max(initial=-1) < len(labels)
        renumber = kernels.renumber_short if stored.dtype == np.uint16 else kernels.renumber
        if not fits or not renumber(stored, self.ranks, indices):
            raise _damaged(self.shard.path, f"{what}: not as we write them")
        if entry.values == "none":
            read[:] = 1
        if entry.values != "all":
            squares = squares_of(indptr, indices, read, 0)
        if spread:
            values[:] = np.repeat(read, lengths)
        return RowBatch(
            indptr,
            indices,
            values,
            codes if are_targets(codes) else self.codes[codes],
            labels,
            weights if entry.has_weights else None,
            str,
            offsets,
            squares,
            by_row,
        )


def read_blocks(
    slots: Sequence[Slot],
    indices: Columns,
    values: NDArray[np.float32],
    room: Columns,
    *,
    by_row: bool,
) -> list[RowBatch]:
    """Read blocks one behind the other; see ``Slot.read``."""
    parts, start, first = [], 0, 0
    for slot in slots:
        stop, last = start + slot.entry.nonzeros, first + slot.entry.held_values(by_row)
        parts.append(slot.read(indices[start:stop], values[first:last], room, by_row=by_row))
        start, first = stop, last
    return parts


def room_for(slots: Sequence[Slot]) -> int:
    """Return the nonzeros of the largest of some blocks."""
    return max((slot.entry.nonzeros for slot in slots), default=0)


class GroupReader:
    """Read groups of segments as chunks, into buffers that are reused. For one thread. ``by_row`` :
    whether values are one a row."""

    def __init__(self, *, by_row: bool) -> None:
        self.buffers, self._by_row = Buffers(), by_row
        self._room = np.empty(0, np.uint32)

    def chunk(self, slots: Sequence[Slot], ranges: tuple[tuple[int, int], ...]) -> Chunk:
        """Read the rows of the segments, in this order, as one chunk."""
        size = sum(slot.entry.nonzeros for slot in slots)
        of_values = sum(slot.entry.held_values(self._by_row) for slot in slots)
        space = self.buffers.take(4 * (size + of_values))[: 4 * (size + of_values)]
        indices, values = space[: 4 * size].view(np.uint32), space[4 * size :].view(np.float32)
        if (most := room_for(slots)) > len(self._room):
            self._room = np.empty(most, np.uint32)
        parts = read_blocks(slots, indices, values, self._room, by_row=self._by_row)
        return make_chunk(join_rows(parts, indices, values, by_row=self._by_row), ranges)


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).view(np.uint8).data


def _fill(path: str, offset: int, targets: Iterator[memoryview]) -> int:
    """Read a file from ``offset`` on into all targets; return xxh3-64 of these bytes."""
    digest = xxhash.xxh3_64()
    with reading_from(path), open(path, "rb", buffering=0) as file:
        file.seek(offset)
        for target in targets:
            done = 0
            while done < len(target):
                step = target[done : done + _STEP]
                count = file.readinto(step)
                if not count:
                    raise _damaged(path, "it is cut off")
                digest.update(step[:count])
                done += count
    return digest.intdigest()


def _damaged(path: str, what: str) -> FileDamaged:
    return FileDamaged(
        f"{path}, {what}. This cache file is damaged: remove it and run again, "
        "and it is rebuilt. Check that disk."
    )
