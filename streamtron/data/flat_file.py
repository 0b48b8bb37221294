"""The prepared file of one shard: blocks of rows as arrays, a checksum over every byte.

::

    segment 0: weights  float64 a row                    one segment for each block
               squares  float64 a row
               lengths  uint32 a row
               labels   uint32 a row: how many           left out where a row has one label
               values   float32 a nonzero, or a row
               columns  uint16 or uint32 a nonzero, or a nonzero of one row
               codes    uint8, uint16 or uint32 a label; float64 a row if they are targets
    segment 1: …
    table:     counts   int64 a column of the shard      by number
               columns  uint32 a column
    footer: JSON, with place, size and xxh3-64 of every segment
    bytes and xxh3-64 of the footer, 8 bytes each; "end of the rows "

The shard's columns are numbered in order of first occurrence, and the table has the number that
the shard's own file gives each, and how often it occurs. Weights are left out where all are 1,
lengths where all are alike, values where all are 1. Columns are those of one row where all rows
have the same ones. Values are one a row where those of a row are equal; then squares are computed,
else they are stored. Codes are 1 + the place of the label in the footer, 0 where a row has none.
Everything is read, never mapped (mapped pages count as memory), and checksums are compared every
time.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from math import isfinite
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core import rows as chunk
from streamtron.core.errors import FileDamaged
from streamtron.core.files import (
    CACHE_REMEDY,
    flush,
    parse_json,
    reading_from,
    remove_scratch,
    writing_to,
)
from streamtron.core.rows import COLUMN_MAX, Chunk, Facts, Label, are_targets
from streamtron.data.blocks import Buffers, join_rows, make_chunk, one_a_row, squares_of
from streamtron.data.row_batch import RowBatch, offsets_of

FORMAT_VERSION = 8
TEMPORARY = re.compile(r"\.[a-z0-9_]{8}\.streamtron-cache")
"""Names of files that are being written."""

SCRATCH = ".sweep.streamtron-"
"""How the name of a sweep's scratch directory begins."""

_END = b"end of the rows "
_TAIL = struct.Struct("<QQ16s")
_STEP = 1 << 20  # read and hashed at once: what was just read is still in the processor's cache

SHORT = 1 << 16
"""Columns whose numbers take two bytes."""

_COLUMNS = {2: np.uint16, 4: np.uint32}
"""Bytes of a column's number → its type."""

_CODES: dict[int, type[np.generic]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.float64}
"""Bytes of a code → its type; codes of 8 bytes are targets."""

_FOOTER = "labels", "places", "facts", "entries", "columns", "table_checksum"

writing_cache = partial(writing_to, remedy=CACHE_REMEDY, what="the cache cannot be written")
"""Around what writes to the directory of a cache."""

Columns = NDArray[np.uint32]


class Entry(NamedTuple):
    """A segment: where it lies, its rows and nonzeros, the entries of its arrays in the order of
    the file, and the bytes of a column's number and of a code."""

    offset: int
    rows: int
    nonzeros: int
    sizes: Sequence[int]
    column_bytes: int
    code_bytes: int
    checksum: int

    @property
    def arrays(self) -> list[tuple[Any, int]]:
        """Type and length of the arrays, in the order of the file."""
        columns, codes = _COLUMNS[self.column_bytes], _CODES[self.code_bytes]
        types = np.float64, np.float64, np.uint32, np.uint32, np.float32, columns, codes
        return [*zip(types, self.sizes, strict=True)]

    @property
    def by_row(self) -> bool:
        """Whether the values of a row are equal: then no squares are stored."""
        return not self.sizes[1]

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        return sum(np.dtype(kind).itemsize * size for kind, size in self.arrays)

    def held_values(self, by_row: bool) -> int:
        """Return how many values memory holds, one a nonzero or ``by_row``."""
        return self.rows if by_row else self.nonzeros


class Table(NamedTuple):
    """The columns of a shard by their numbers in it: how often each occurs, and the number that the
    shard gives it."""

    counts: NDArray[np.int64]
    columns: Columns


class PreparedFile(NamedTuple):
    """A prepared file, and what it says of itself: the shard's labels, and for each the place in
    the shard where it was met first; the facts of its rows; its segments; how many columns its
    table has, and the table's checksum."""

    path: str
    labels: list[Label]
    places: list[str]
    facts: Facts
    entries: Sequence[Entry]
    columns: int
    table_checksum: int

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the shard that was prepared."""
        return os.path.basename(self.path).split("-")[2]

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

    def table(self) -> Table:
        """Read the table of the shard's columns."""
        stored = np.empty(12 * self.columns, np.uint8)
        self.fill(stored, self.bytes, self.table_checksum, "table of columns")
        counts, columns = np.split(stored, [8 * self.columns])
        table = Table(counts.view(np.int64), columns.view(np.uint32))
        rising = np.sort(table.columns)
        if (
            (rising[1:] == rising[:-1]).any()
            or (rising[-1:] > COLUMN_MAX).any()
            or (table.counts <= 0).any()
            or table.counts.sum() != self.nonzeros
        ):
            raise _damaged(self.path, "its table of columns is none that we write")
        return table

    def fill(self, target: NDArray[np.uint8], offset: int, checksum: int, what: str) -> None:
        """Read bytes of the file. FileDamaged: their checksum differs, and the file, which can be
        made anew, has been removed."""
        view, digest, done = target.data, xxhash.xxh3_64(), 0
        with reading_from(self.path), open(self.path, "rb", buffering=0) as file:
            file.seek(offset)
            while count := file.readinto(view[done : done + _STEP]):
                digest.update(view[done : done + count])
                done += count
        if done < len(view) or digest.intdigest() != checksum:
            with suppress(OSError):
                os.unlink(self.path)
            raise _damaged(self.path, f"{what}: the checksum differs")


class ColumnNumbers:
    """Number columns in order of first occurrence, and count them; ``columns`` are known, and there
    are some ``expected``."""

    def __init__(self, columns: Columns | None = None, expected: int = 1 << 12) -> None:
        self._columns = np.empty(0, np.uint32) if columns is None else columns
        self._known = len(self._columns)
        self._counts = np.zeros(self._known, np.int64)
        self._grow(1 << max(expected, self._known).bit_length())

    @property
    def table(self) -> Table:
        """The table of the columns so far."""
        return Table(self._counts[: self._known], self._columns[: self._known])

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

    def add(self, table: Table) -> Columns:
        """Add a table, and return the number of each of its columns."""
        numbers = self.number(table.columns)
        self._counts[numbers] += table.counts - 1
        return numbers

    def _grow(self, size: int) -> None:
        counts, columns = np.zeros(size, np.int64), np.zeros(size, np.uint32)
        counts[: self._known], columns[: self._known] = self.table
        self._counts, self._columns = counts, columns
        self._slots = np.zeros(2 * size, np.uint64)
        kernels.fill_table(columns[: self._known], self._slots)


class FlatWriter:
    """Write one prepared file: under a temporary name until it is whole and safely on disk.

    A context manager: what has not been finished when it is left is removed.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._entries: list[Entry] = []
        self._numbers = ColumnNumbers()
        self.bytes = 0
        """Bytes written so far."""

    def __enter__(self) -> FlatWriter:
        with writing_cache(self._directory):
            self._file, self._temporary = _locked_temporary(self._directory)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._temporary)

    def write(self, blocks: Iterable[RowBatch]) -> None:
        """Append blocks, a segment each."""
        for block in blocks:
            arrays = self._arrays(block)
            parts, digest = [*map(_bytes, arrays)], xxhash.xxh3_64()
            for part in parts:
                digest.update(part)
            with writing_cache(self._directory):
                self._file.writelines(parts)
            sizes, (*_, columns, codes) = [*map(len, arrays)], arrays
            kinds = columns.itemsize, codes.itemsize, digest.intdigest()
            self._entries.append(Entry(self.bytes, block.rows, block.nonzeros, sizes, *kinds))
            self.bytes += sum(map(len, parts))

    def _arrays(self, block: RowBatch) -> list[NDArray[Any]]:
        """Return the arrays of a block's segment; those that are left out are empty."""
        lengths, columns = np.diff(block.indptr), self._numbers.number(block.indices)
        alike = bool((lengths == lengths[0]).all())
        if alike and lengths[0]:
            table = columns.reshape(len(lengths), -1)
            if np.array_equal(table[0], table[-1]) and (table == table[0]).all():
                columns = table[0]
        if columns.max(initial=0) < SHORT:
            columns = columns.astype(np.uint16)
        squares, values = np.zeros(0), np.zeros(0, np.float32)
        if block.values is not None:
            assert block.squares is not None
            of_rows = one_a_row(block.indptr, block.values)
            values = block.values if of_rows is None else of_rows
            squares = block.squares if of_rows is None else squares
        labels = np.zeros(1) if block.code_offsets is None else block.code_offsets
        return [
            np.zeros(0) if block.weights is None else block.weights,
            squares,
            (lengths[:0] if alike else lengths).astype(np.uint32),
            np.diff(labels).astype(np.uint32),
            values,
            columns,
            _stored_codes(block.codes),
        ]

    def finish(
        self, path: str, labels: Sequence[Label], places: Sequence[str], facts: Facts
    ) -> PreparedFile:
        """Write the table and the footer, and give the file its name."""
        parts = [_bytes(array) for array in self._numbers.table]
        columns, checksum = len(parts[1]) // 4, xxhash.xxh3_64_intdigest(b"".join(parts))
        known = [*labels], [*places], facts, self._entries, columns, checksum
        made = PreparedFile(path, *known)
        named = {"version": FORMAT_VERSION, "name": os.path.basename(path)}
        footer = json.dumps(named | dict(zip(_FOOTER, known, strict=True))).encode()
        tail = _TAIL.pack(len(footer), xxhash.xxh3_64_intdigest(footer), _END)
        with writing_cache(self._directory):
            self._file.writelines([*parts, footer, tail])
            flush(self._file)
            os.replace(self._temporary, path)
        return made


def _stored_codes(codes: NDArray[Any]) -> NDArray[Any]:
    if are_targets(codes):
        return codes
    return (codes + 1).astype(np.min_scalar_type(int(codes.max(initial=-1)) + 1))


def _locked_temporary(directory: str) -> tuple[BinaryIO, str]:
    """Open a new file, locked against ``remove_abandoned``; return it with its path."""
    while True:
        descriptor, path = tempfile.mkstemp(".streamtron-cache", ".", directory)
        file = open(descriptor, "wb")  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.exists(path):
            return file, path
        file.close()  # it was taken for abandoned before it was locked


def remove_abandoned(directory: str) -> None:
    """Remove what killed processes left: temporary files of writers, the scratch of sweeps."""
    remove_scratch(SCRATCH, directory)
    for name in os.listdir(directory):
        if TEMPORARY.fullmatch(name):
            with suppress(OSError), open(os.path.join(directory, name), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(file.name)


def read_prepared(path: str) -> PreparedFile:
    """Read what a prepared file holds. FileDamaged: it is none of this version, or damaged."""
    with reading_from(path), open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END) - _TAIL.size
        file.seek(max(size, 0))
        length, checksum, end = _TAIL.unpack(file.read().ljust(_TAIL.size))
        if end != _END or length > size:
            raise _damaged(path, "it does not end as a cache")
        file.seek(size - length)
        footer = file.read(length)
    if xxhash.xxh3_64_intdigest(footer) != checksum:
        raise _damaged(path, "the checksum of its footer differs")
    try:
        fields = parse_json(footer)
        if fields.pop("version") == FORMAT_VERSION:
            is_named = fields.pop("name") == os.path.basename(path)
            fields["entries"] = [Entry(*entry) for entry in fields["entries"]]
            made = PreparedFile(path, **fields | {"facts": Facts(*fields["facts"])})
            if is_named and _is_ours(made, size - length):
                return made
            raise ValueError("not as we write it")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(path, "its footer is none that we write") from error
    raise FileDamaged(f"{path}: written in another version of the format.")


def _is_ours(made: PreparedFile, stop: int) -> bool:
    """Tell whether a footer is as we write it, of segments and a table that end at ``stop``."""
    _, labels, places, facts, entries, columns, _ = made
    rows, weight, least_weight, largest_weight, sq_norm, label_weights, total, *ends, _ = facts
    finite = [weight, least_weight, largest_weight, sq_norm, *label_weights, *ends]
    ours = type(columns) is int and columns >= 0 and all(map(_is_segment, entries))
    offsets = [*accumulate((entry.bytes for entry in entries if ours), initial=0)]
    return (
        ours
        and [entry.offset for entry in entries] == offsets[:-1]
        and offsets[-1] + 12 * columns == stop
        and all(type(label) in (str, float, bool) for label in labels)
        and [type(place) for place in places] == [str] * len(labels)
        and type(rows) is int
        and 0 <= rows <= made.rows
        and all(type(number) is float for number in (*finite, total))
        and all(map(isfinite, finite))
        and len(label_weights) <= len(labels)
    )


def _is_segment(entry: Entry) -> bool:
    """Tell whether a segment makes no more rows or nonzeros of its bytes than a writer would have
    put there."""
    numbers = (*entry[:3], *entry.sizes)
    if not all(type(number) is int and number >= 0 for number in numbers):
        return False
    _, rows, nonzeros, (weights, squares, lengths, labels, values, columns, codes), *_ = entry
    length = nonzeros // max(rows, 1)
    is_tiled = not lengths and columns == length and nonzeros < chunk.BLOCK_NONZEROS + length
    return (
        rows > 0
        and {weights, squares, lengths, labels} <= {0, rows}
        and (lengths == rows or rows * length == nonzeros)
        and values in ((nonzeros,) if squares else (0, rows))
        and (columns == nonzeros or is_tiled)
        and (labels == rows or codes == rows)
    )


class Slot(NamedTuple):
    """A block in a prepared file; ``codes`` are those of the data by the stored ones, ``ranks`` the
    data's columns by the shard's."""

    file: PreparedFile
    number: int
    codes: NDArray[np.int32]
    ranks: Columns

    @property
    def entry(self) -> Entry:
        """The segment's place and size."""
        return self.file.entries[self.number]

    def read(
        self,
        indices: Columns,
        values: NDArray[np.float32],
        room: NDArray[np.uint8],
        *,
        by_row: bool,
    ) -> RowBatch:
        """Read the rows, columns and values into these arrays, values one a nonzero or ``by_row``;
        ``room`` : for the segment as it is stored."""
        entry, what = self.entry, f"block {self.number}"
        self.file.fill(room[: entry.bytes], entry.offset, entry.checksum, what)
        arrays, start = list[NDArray[Any]](), 0
        for kind, size in entry.arrays:
            arrays.append(np.frombuffer(room, kind, size, start))
            start += arrays[-1].nbytes
        weights, squares, lengths, labels, stored, columns, codes = arrays
        if not len(lengths):
            lengths = np.full(entry.rows, entry.nonzeros // entry.rows, np.uint32)
        if len(columns) < entry.nonzeros:
            columns = np.tile(columns, entry.rows)
        indptr, offsets = offsets_of(lengths), offsets_of(labels) if len(labels) else None
        fits = indptr[-1] == entry.nonzeros and (offsets is None or offsets[-1] == len(codes))
        if not are_targets(codes):
            least = 0 if offsets is None else 1
            fits = fits and codes.min(initial=1) >= least and codes.max(initial=0) < len(self.codes)
        renumber = kernels.renumber_short if entry.column_bytes == 2 else kernels.renumber
        if not fits or not renumber(columns, self.ranks, indices):
            raise _damaged(self.file.path, f"{what}: not as we write them")
        if entry.by_row:
            stored = stored if len(stored) else np.ones(entry.rows, np.float32)
            squares = squares_of(indptr, indices, stored, 0)
            stored = stored if by_row else np.repeat(stored, lengths)
        values[:] = stored
        return RowBatch(
            indptr,
            indices,
            values,
            codes.copy() if are_targets(codes) else self.codes[codes],
            self.file.labels,
            weights.copy() if len(weights) else None,
            str,
            offsets,
            squares if entry.by_row else squares.copy(),
            by_row,
        )


class GroupReader:
    """Read groups of segments, into buffers that are reused. For one thread. ``by_row`` : whether
    values are one a row."""

    def __init__(self, *, by_row: bool) -> None:
        self.buffers, self._by_row = Buffers(), by_row
        self._room = np.empty(0, np.uint8)

    def read(
        self, slots: Sequence[Slot], indices: Columns, values: NDArray[np.float32]
    ) -> list[RowBatch]:
        """Read segments one behind the other into these arrays; see ``Slot.read``."""
        if (most := max(slot.entry.bytes for slot in slots)) > len(self._room):
            self._room = np.empty(most, np.uint8)
        parts, start, first = list[RowBatch](), 0, 0
        for slot in slots:
            stop, last = start + slot.entry.nonzeros, first + slot.entry.held_values(self._by_row)
            into = indices[start:stop], values[first:last]
            parts.append(slot.read(*into, self._room, by_row=self._by_row))
            start, first = stop, last
        return parts

    def chunk(self, slots: Sequence[Slot], ranges: tuple[tuple[int, int], ...]) -> Chunk:
        """Read the rows of the segments, in this order, as one chunk."""
        size = 4 * sum(slot.entry.nonzeros for slot in slots)
        stop = size + 4 * sum(slot.entry.held_values(self._by_row) for slot in slots)
        space = self.buffers.take(stop)
        indices, values = space[:size].view(np.uint32), space[size:stop].view(np.float32)
        parts = self.read(slots, indices, values)
        return make_chunk(join_rows(parts, indices, values, by_row=self._by_row), ranges)


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).view(np.uint8).data


def _damaged(path: str, what: str) -> FileDamaged:
    return FileDamaged(
        f"{path}, {what}. This cache file is damaged: run again, and it is made anew. Check that "
        "disk."
    )
