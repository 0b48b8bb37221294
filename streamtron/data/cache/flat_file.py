"""The flat cache file of one shard: arrays as they lie in memory, a checksum over every byte.

::

    "streamtron cache"                                   16 bytes
    segment 0: lengths  uint32 a row                     one segment for each block
               counts   uint32 a row                     left out where a row has one label
               codes    int32 a label
               weights  float64 a row                    left out where all are 1
               squares  float64 a row                    left out where all values are 1
               indices  uint32 a nonzero
               values   float32 a nonzero                left out where all are 1
    segment 1: …
    footer: JSON, with place, size and xxh3-64 of every segment
    bytes and xxh3-64 of the footer, 8 bytes each; "end of the cache"

A segment is read straight into the arrays of a chunk, never mapped (mapped pages count as memory),
and its checksum is compared every time.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamtron.core.errors import FileDamaged
from streamtron.core.files import reading_from
from streamtron.core.rows import Chunk, Label, freeze, make_rows
from streamtron.data.blocks import Segment, ones
from streamtron.data.buffers import Buffers, spare
from streamtron.data.cache.file_bytes import damaged, fill, read_bytes
from streamtron.data.disk import CACHE_REMEDY, writing_to
from streamtron.data.row_batch import Offsets, RowBatch

FORMAT_VERSION = 3
TEMPORARY = ".tmp"

_HEAD = b"streamtron cache"
_END = b"end of the cache"
_TAIL = struct.Struct("<QQ16s")

writing_cache = partial(writing_to, remedy=CACHE_REMEDY, what="the cache cannot be written")
"""Around what writes to the directory of a cache."""

_log = logging.getLogger("streamtron")


class Entry(NamedTuple):
    """Where one segment lies and what it is; ``labels`` is None where a row has one."""

    offset: int
    rows: int
    nonzeros: int
    labels: int | None
    has_values: bool
    has_weights: bool
    checksum: int

    @property
    def codes(self) -> int:
        """Codes of labels."""
        return self.rows if self.labels is None else self.labels

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        row = 4 + 4 * (self.labels is not None) + 8 * self.has_weights + 8 * self.has_values
        return row * self.rows + 4 * self.codes + (8 if self.has_values else 4) * self.nonzeros


class Contents(NamedTuple):
    """What a cache file says of itself.

    ``key`` is what it was made for, ``labels`` the shard's own table of labels.
    """

    key: dict[str, Any]
    labels: list[Label]
    entries: list[Entry]

    @property
    def bytes(self) -> int:
        """Bytes of all segments."""
        return sum(entry.bytes for entry in self.entries)


# Writing -----------------------------------------------------------------------------------------


class FlatWriter:
    """Write one cache file: under a temporary name until it is whole and safely on disk.

    A context manager: what has not been finished when it is left is removed.

    Parameters
    ----------
    directory : where the file will be.
    check_room : called with the bytes of every segment before it is written.
    """

    def __init__(self, directory: str, check_room: Callable[[int], None]) -> None:
        self._directory = directory
        self._check_room = check_room
        self._entries: list[Entry] = []
        self._written = 0

    def __enter__(self) -> FlatWriter:
        with writing_cache(self._directory):
            self._file, self._temporary = _locked_temporary(self._directory)
            self._write(_HEAD)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._temporary)

    def write(self, segment: Segment) -> None:
        """Append a segment."""
        offsets = segment.code_offsets
        arrays = [
            np.diff(segment.indptr).astype(np.uint32),
            None if offsets is None else np.diff(offsets).astype(np.uint32),
            segment.codes,
            segment.weights,
            None if segment.values is None else segment.squares,
            segment.indices,
            segment.values,
        ]
        there = [_bytes(array) for array in arrays if array is not None]
        digest = xxhash.xxh3_64()
        for data in there:
            digest.update(data)
        entry = Entry(
            self._written,
            segment.rows,
            segment.nonzeros,
            None if offsets is None else len(segment.codes),
            segment.values is not None,
            segment.weights is not None,
            digest.intdigest(),
        )
        self._check_room(entry.bytes)
        with writing_cache(self._directory):
            for data in there:
                self._write(data)
        self._entries.append(entry)

    def finish(self, path: str, key: dict[str, Any], labels: Sequence[Label]) -> Contents:
        """Write the footer and give the file its name."""
        contents = Contents(key, list(labels), self._entries)
        footer = json.dumps({"version": FORMAT_VERSION, **contents._asdict()}).encode()
        checksum = xxhash.xxh3_64_intdigest(footer)
        with writing_cache(self._directory):
            self._write(memoryview(footer))
            self._write(memoryview(_TAIL.pack(len(footer), checksum, _END)))
            os.fsync(self._file.fileno())
            os.replace(self._temporary, path)
        return contents

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while len(view):
            written = self._file.write(view)
            self._written += written
            view = view[written:]


def _locked_temporary(directory: str) -> tuple[IO[bytes], str]:
    """Open a new file, locked against ``remove_abandoned``; return it with its path."""
    while True:
        descriptor, path = tempfile.mkstemp(TEMPORARY, dir=directory)
        file = open(descriptor, "wb", buffering=0)  # noqa: SIM115
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.path.exists(path):
            return file, path
        file.close()  # it was taken for abandoned before it was locked


def remove_abandoned(directory: str) -> None:
    """Remove the temporary files of writers that were killed."""
    for name in os.listdir(directory):
        if name.endswith(TEMPORARY):
            with suppress(OSError), open(os.path.join(directory, name), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(file.name)


# Reading -----------------------------------------------------------------------------------------


def read_contents(path: str) -> Contents | None:
    """What a cache file holds; None if another version of the format wrote it."""
    with reading_from(path):
        size = os.stat(path).st_size
    if size < len(_HEAD) + _TAIL.size or read_bytes(path, 0, len(_HEAD)) != _HEAD:
        raise damaged(path, "it does not begin as a cache")
    length, checksum, end = _TAIL.unpack(read_bytes(path, size - _TAIL.size, _TAIL.size))
    start = size - _TAIL.size - length
    if end != _END or start < len(_HEAD):
        raise damaged(path, "it does not end as a cache")
    footer = read_bytes(path, start, length)
    if xxhash.xxh3_64_intdigest(footer) != checksum:
        raise damaged(path, "the checksum of its footer differs")
    try:
        fields = json.loads(footer)
        if fields["version"] != FORMAT_VERSION:
            return None
        entries = [Entry(*entry) for entry in fields["entries"]]
        _check_entries(entries, start)
        return Contents(dict(fields["key"]), list(fields["labels"]), entries)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise damaged(path, "its footer is none that we write") from error


def _check_entries(entries: Sequence[Entry], stop: int) -> None:
    """Raise ValueError unless the segments fill the file from its head to ``stop``."""
    offset = len(_HEAD)
    for entry in entries:
        numbers = (*entry[:3], entry.checksum, 0 if entry.labels is None else entry.labels)
        if any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError(f"not a segment: {entry}")
        if entry.offset != offset:
            raise ValueError(f"a gap or an overlap before {entry}")
        offset += entry.bytes
    if offset != stop:
        raise ValueError(f"segments up to {offset}, the footer from {stop} on")


class _Target(NamedTuple):
    """Arrays for segments, in the order of the file, and offsets made of lengths and counts."""

    lengths: NDArray[np.uint32]
    counts: NDArray[np.uint32] | None
    codes: NDArray[np.int32]
    weights: NDArray[np.float64] | None
    squares: NDArray[np.float64] | None
    indices: NDArray[np.uint32]
    values: NDArray[np.float32] | None
    indptr: NDArray[np.int64]
    code_offsets: Offsets | None

    @property
    def stored(self) -> Iterator[NDArray[Any]]:
        """The arrays that the file holds."""
        return (array for array in self[:-2] if array is not None)

    @classmethod
    def within(cls, space: NDArray[np.uint8], entries: Sequence[Entry]) -> _Target:
        """Arrays for all the rows of some segments, laid out in one buffer of ``_room`` bytes."""
        rows, nonzeros = sum(e.rows for e in entries), sum(e.nonzeros for e in entries)

        def carve(count: int, dtype: type[np.generic]) -> NDArray[Any]:
            nonlocal space
            size = count * np.dtype(dtype).itemsize
            array, space = space[:size].view(dtype), space[size:]
            return array

        several = any(e.labels is not None for e in entries)
        indptr = carve(rows + 1, np.int64)  # eight-byte items first: every array is aligned
        code_offsets = carve(rows + 1, np.int64) if several else None
        weights = carve(rows, np.float64) if any(e.has_weights for e in entries) else None
        squares = carve(rows, np.float64) if any(e.has_values for e in entries) else None
        lengths, counts = carve(rows, np.uint32), carve(rows, np.uint32) if several else None
        codes = carve(sum(e.codes for e in entries), np.int32)
        indices = carve(nonzeros, np.uint32)
        values = carve(nonzeros, np.float32) if any(e.has_values for e in entries) else None
        return cls(lengths, counts, codes, weights, squares, indices, values, indptr, code_offsets)

    def part(self, entry: Entry, row: int, code: int, nonzero: int) -> _Target:
        """Return the part for one segment; write ones where it leaves values or weights out."""
        rows, nonzeros = slice(row, row + entry.rows), slice(nonzero, nonzero + entry.nonzeros)
        counts = None if self.counts is None else self.counts[rows]
        weights = None if self.weights is None else self.weights[rows]
        squares = self.squares[rows] if self.squares is not None and entry.has_values else None
        values = None if self.values is None else self.values[nonzeros]
        if weights is not None and not entry.has_weights:
            weights[:], weights = 1, None
        if values is not None and not entry.has_values:
            values[:], values = 1, None
        return _Target(
            self.lengths[rows], counts, self.codes[code : code + entry.codes], weights,
            squares, self.indices[nonzeros], values, self.indptr[row : rows.stop + 1], None,
        )  # fmt: skip

    def set_offsets(self) -> None:
        """Compute the offsets from lengths and counts."""
        for lengths, offsets in ((self.lengths, self.indptr), (self.counts, self.code_offsets)):
            if lengths is not None and offsets is not None:
                offsets[0] = 0
                np.cumsum(lengths, dtype=np.int64, out=offsets[1:])

    @property
    def known_squares(self) -> NDArray[np.float64]:
        """‖x_k‖², whether the file has them or not."""
        return self.lengths.astype(np.float64) if self.squares is None else self.squares

    def freeze(self) -> None:
        """Make the arrays of a chunk read-only."""
        for array in (self.codes, self.code_offsets, self.weights):
            if array is not None:
                freeze(array)


def _room(entries: Sequence[Entry]) -> int:
    """Count bytes that hold all the arrays of some segments."""
    row = 28 if all(entry.labels is None for entry in entries) else 40
    return 16 + sum(row * e.rows + 4 * e.codes + 8 * e.nonzeros for e in entries)


class CachedShard:
    """One shard in its cache file; a ``ShardReader`` whose batches are the segments.

    Parameters
    ----------
    path : the cache file.
    name : what messages call the shard.
    contents : the file's footer.
    """

    def __init__(self, path: str, name: str, contents: Contents) -> None:
        self.path = path
        self.name = name
        self.contents = contents
        self.bytes_read = 0
        """Bytes of the cache file that ``batches()`` has taken so far."""
        self.remake: Callable[[], Contents] | None = None
        """Rebuilds the file from the shard; None = a damaged file is refused."""

    def fingerprint(self) -> str:
        """Return the fingerprint of the shard that was cached."""
        return str(self.contents.key["fingerprint"])

    def batches(self) -> Iterator[RowBatch]:
        """Yield the shard's rows, a segment at a time."""
        row = self.bytes_read = 0
        for number, entry in enumerate(self.contents.entries):
            self.bytes_read += entry.bytes
            target = _Target.within(spare(_room([entry])), [entry])
            self.read(number, target)
            target.set_offsets()
            self._check_sense(number, target)
            yield RowBatch(
                target.indptr,
                target.indices,
                target.values,
                target.codes,
                self.contents.labels,
                target.weights,
                partial(self._place, row),
                target.code_offsets,
                target.known_squares,
            )
            row += entry.rows

    def _place(self, first_row: int, i: int) -> str:
        return f"{self.name}, row {first_row + i} of the shard"

    def _check_sense(self, number: int, target: _Target) -> None:
        """Refuse lengths and codes that lead out of the file's arrays; ``cut`` checks columns."""
        lengths_fit = target.indptr[-1] == self.contents.entries[number].nonzeros
        codes, labels = target.codes, len(self.contents.labels)
        if not lengths_fit or codes.min(initial=0) < -1 or codes.max(initial=-1) >= labels:
            raise damaged(self.path, f"block {number}: not as we write them")

    def read(self, number: int, target: _Target) -> None:
        """Read one segment and compare its checksum; a damaged file is rebuilt first."""
        try:
            self._read(number, target)
        except FileDamaged as damage:
            if self.remake is None:
                raise
            _log.warning("%s It is rebuilt from %s.", damage, self.name)
            if self.remake() != self.contents:
                raise FileDamaged(
                    f"{self.path}: rebuilt it holds other rows than before. Run again."
                ) from damage
            self._read(number, target)

    def _read(self, number: int, target: _Target) -> None:
        entry = self.contents.entries[number]
        if fill(self.path, entry.offset, map(_bytes, target.stored)) != entry.checksum:
            raise damaged(self.path, f"block {number}: the checksum differs")


class CacheSlot(NamedTuple):
    """A block in the cache; ``to_source`` turns the shard's codes into the source's."""

    shard: CachedShard
    number: int
    to_source: NDArray[np.int32]

    @property
    def entry(self) -> Entry:
        """The segment's place and size."""
        return self.shard.contents.entries[self.number]


class GroupReader:
    """Read groups of segments as chunks, into buffers that are reused. For one thread."""

    def __init__(self) -> None:
        self.buffers = Buffers()

    def chunk(self, slots: Sequence[CacheSlot], ranges: tuple[tuple[int, int], ...]) -> Chunk:
        """Read the rows of the segments, in this order, as one chunk."""
        entries = [slot.entry for slot in slots]
        whole = _Target.within(self.buffers.take(_room(entries)), entries)
        row = code = nonzero = 0
        for slot, entry in zip(slots, entries, strict=True):
            part = whole.part(entry, row, code, nonzero)
            slot.shard.read(slot.number, part)
            part.codes[:] = slot.to_source[part.codes]
            if whole.squares is not None and not entry.has_values:
                whole.squares[row : row + entry.rows] = part.lengths
            row, code = row + entry.rows, code + entry.codes
            nonzero += entry.nonzeros
        whole.set_offsets()
        whole.freeze()
        values = ones(nonzero) if whole.values is None else whole.values
        csr = make_rows(whole.indptr, whole.indices, values)
        squares = whole.known_squares
        freeze(squares)
        return Chunk(csr, whole.codes, ranges, squares, whole.code_offsets, whole.weights)


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).view(np.uint8).data
