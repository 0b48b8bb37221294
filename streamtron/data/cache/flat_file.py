"""The flat cache file of one shard: arrays as they lie in memory, a checksum over every byte.

::

    "streamtron cache"                                   16 bytes
    segment 0: weights  float64 a row                    one segment for each block
               squares  float64 a row
               lengths  uint32 a row
               counts   uint32 a row                     left out where a row has one label
               codes    int32 a label; float64 a row if they are targets
               indices  uint32 a nonzero
               values   float32 a nonzero
    segment 1: …
    footer: JSON, with place, size and xxh3-64 of every segment
    bytes and xxh3-64 of the footer, 8 bytes each; "end of the cache"

Weights are left out where all are 1, values and squares where all values are 1, columns where every
row has the same ones, without a gap. Columns and values
are read straight into the arrays of a chunk, never mapped (mapped pages count as memory), and
checksums are compared every time.
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
from itertools import compress
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamtron.core.errors import FileDamaged
from streamtron.core.files import CACHE_REMEDY, flush, parse_json, reading_from, writing_to
from streamtron.core.rows import Chunk, Label, are_targets
from streamtron.data.blocks import Buffers, join_rows, make_chunk, spare
from streamtron.data.row_batch import RowBatch, offsets_of

FORMAT_VERSION = 6
TEMPORARY = re.compile(r"\.[a-z0-9_]{8}\.streamtron-cache")
"""Names of files that are being written."""

_HEAD = b"streamtron cache"
_END = b"end of the cache"
_TAIL = struct.Struct("<QQ16s")
_STEP = 1 << 20  # read and hashed at once: what was just read is still in the processor's cache

writing_cache = partial(writing_to, remedy=CACHE_REMEDY, what="the cache cannot be written")
"""Around what writes to the directory of a cache."""

_log = logging.getLogger("streamtron")


class Entry(NamedTuple):
    """Where a segment lies; ``labels`` None: one a row; ``first_column`` None: columns stored."""

    offset: int
    rows: int
    nonzeros: int
    labels: int | None
    has_values: bool
    has_weights: bool
    has_targets: bool
    first_column: int | None
    checksum: int

    @classmethod
    def of(cls, block: RowBatch, offset: int = 0, checksum: int = 0) -> Entry:
        """Make the entry of a block."""
        labels = None if block.code_offsets is None else len(block.codes)
        flags = block.values is not None, block.weights is not None, are_targets(block.codes)
        rows, nonzeros = block.rows, block.nonzeros
        return cls(offset, rows, nonzeros, labels, *flags, _first_of_dense(block), checksum)

    @property
    def head(self) -> list[tuple[type[np.generic], int]]:
        """Type and length of the arrays before columns and values, in the order of the file."""
        rows, labels = self.rows, self.labels
        return [
            (np.float64, rows if self.has_weights else 0),
            (np.float64, rows if self.has_values else 0),
            (np.uint32, rows),
            (np.uint32, 0 if labels is None else rows),
            (np.float64 if self.has_targets else np.int32, rows if labels is None else labels),
        ]

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        head = sum(np.dtype(dtype).itemsize * length for dtype, length in self.head)
        return head + 4 * (self.has_values + (self.first_column is None)) * self.nonzeros


class Contents(NamedTuple):
    """What a cache file says of itself: what it was made for, the shard's labels, its segments."""

    key: dict[str, Any]
    labels: list[Label]
    entries: list[Entry]

    @property
    def bytes(self) -> int:
        """Bytes of all segments."""
        return sum(entry.bytes for entry in self.entries)


class FlatWriter:
    """Write one cache file: under a temporary name until it is whole and safely on disk.

    A context manager: what has not been finished when it is left is removed.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._entries: list[Entry] = []
        self._end = len(_HEAD)

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

    def write(self, blocks: Iterable[RowBatch]) -> None:
        """Append blocks, a segment each."""
        for block in blocks:
            self._write(block)

    def _write(self, block: RowBatch) -> None:
        entry = Entry.of(block, self._end)
        counts = None if block.code_offsets is None else np.diff(block.code_offsets)
        arrays = [
            block.weights,
            None if block.values is None else block.squares,
            np.diff(block.indptr).astype(np.uint32),
            None if counts is None else counts.astype(np.uint32),
            block.codes,
            block.indices if entry.first_column is None else None,
            block.values,
        ]
        parts = [_bytes(array) for array in arrays if array is not None]
        digest = xxhash.xxh3_64()
        for part in parts:
            digest.update(part)
        entry = entry._replace(checksum=digest.intdigest())
        with writing_cache(self._directory):
            self._file.writelines(parts)
        self._end += entry.bytes
        self._entries.append(entry)

    def finish(self, path: str, key: dict[str, Any], labels: Sequence[Label]) -> Contents:
        """Write the footer and give the file its name."""
        contents = Contents(key, list(labels), self._entries)
        footer = json.dumps({"version": FORMAT_VERSION, **contents._asdict()}).encode()
        tail = _TAIL.pack(len(footer), xxhash.xxh3_64_intdigest(footer), _END)
        with writing_cache(self._directory):
            self._file.write(footer + tail)
            flush(self._file)
            os.replace(self._temporary, path)
        return contents


def _first_of_dense(block: RowBatch) -> int | None:
    """Return the first column where every row has the same ones, without a gap; else None."""
    width = block.nonzeros // max(block.rows, 1)
    if width < 2 or not (np.diff(block.indptr) == width).all():
        return None
    columns = block.indices.reshape(-1, width)
    first = columns[0, 0]
    return int(first) if (columns - first == np.arange(width, dtype=np.uint32)).all() else None


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
    """Read what a cache file holds."""
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
        if fields["version"] == FORMAT_VERSION:
            entries = [Entry(*entry) for entry in fields["entries"]]
            _check_entries(entries, start)
            return Contents(dict(fields["key"]), list(fields["labels"]), entries)
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(path, "its footer is none that we write") from error
    raise FileDamaged(f"{path}: written in another version of the format.")


def _check_entries(entries: Sequence[Entry], stop: int) -> None:
    """Raise ValueError unless the segments fill the file from its head to ``stop``."""
    offset = len(_HEAD)
    for entry in entries:
        optional = (number for number in (entry.labels, entry.first_column) if number is not None)
        numbers = (*entry[:3], entry.checksum, *optional)
        if any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError("not a segment")
        if entry.offset != offset:
            raise ValueError("a gap or an overlap")
        offset += entry.bytes
    if offset != stop:
        raise ValueError("segments of other sizes")


class CachedShard:
    """One shard in its cache file; a ``ShardReader`` whose batches are the segments.

    ``name`` is what messages call the shard, ``contents`` the file's footer.
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
        self.bytes_read = 0
        for number, entry in enumerate(self.contents.entries):
            self.bytes_read += entry.bytes
            yield self.read(number, *_room([entry], spare))

    def read(
        self, number: int, indices: NDArray[np.uint32], values: NDArray[np.float32] | None
    ) -> RowBatch:
        """Read a segment, its columns and values into these arrays."""
        entry, known = self.contents.entries[number], len(self.contents.labels)
        head = [np.empty(length, dtype) for dtype, length in entry.head]
        first = entry.first_column
        stored = compress((indices, values), (first is None, entry.has_values))
        self._fill(number, [*head, *stored])
        weights, squares, lengths, counts, codes = head
        indptr = offsets_of(lengths)
        even = first is None or (lengths == lengths[:1]).all()
        lengths_fit = indptr[-1] == entry.nonzeros and even
        outside = codes.min(initial=0) < -1 or codes.max(initial=-1) >= known
        if not lengths_fit or (outside and not entry.has_targets):
            raise _damaged(self.path, f"block {number}: not as we write them")
        if first is not None:
            columns = indices.reshape(max(entry.rows, 1), -1)
            columns[:] = np.arange(columns.shape[1], dtype=np.uint32) + np.uint32(first)
        if values is not None and not entry.has_values:
            values[:] = 1
        return RowBatch(
            indptr,
            indices,
            values,
            codes,
            self.contents.labels,
            weights if entry.has_weights else None,
            partial(self._place, number),
            None if entry.labels is None else offsets_of(counts),
            squares if entry.has_values else lengths.astype(np.float64),
        )

    def _fill(self, number: int, arrays: Sequence[Any]) -> None:
        """Read the bytes of a segment into arrays; a damaged file is rebuilt first."""
        entry = self.contents.entries[number]
        for remake in (self.remake, None):
            try:
                if _fill(self.path, entry.offset, map(_bytes, arrays)) != entry.checksum:
                    raise _damaged(self.path, f"block {number}: the checksum differs")
                return
            except FileDamaged as damage:
                if remake is None:
                    raise
                _log.warning("%s It is rebuilt from %s.", damage, self.name)
                if remake() != self.contents:
                    raise FileDamaged(
                        f"{self.path}: rebuilt it holds other rows than before. Run again."
                    ) from damage

    def _place(self, number: int, i: int) -> str:
        first_row = sum(entry.rows for entry in self.contents.entries[:number])
        return f"{self.name}, row {first_row + i} of the shard"


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
        indices, values = _room([slot.entry for slot in slots], self.buffers.take)
        parts, start = [], 0
        for slot in slots:
            span = slice(start, start + slot.entry.nonzeros)
            start, held = span.stop, None if values is None else values[span]
            part = slot.shard.read(slot.number, indices[span], held)
            parts.append(part.coded(slot.to_source))
        return make_chunk(join_rows(parts, indices, values), ranges)


def _room(
    entries: Sequence[Entry], take: Callable[[int], NDArray[np.uint8]]
) -> tuple[NDArray[np.uint32], NDArray[np.float32] | None]:
    """Arrays for columns and values of some segments, in one buffer."""
    size = 4 * sum(entry.nonzeros for entry in entries)
    if not any(entry.has_values for entry in entries):
        return take(size)[:size].view(np.uint32), None
    space = take(2 * size)
    return space[:size].view(np.uint32), space[size : 2 * size].view(np.float32)


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).view(np.uint8).data


def _fill(path: str, offset: int, targets: Iterable[memoryview]) -> int:
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
