"""Read a text shard: decompress it, hash its stored bytes, cut it into whole rows."""

from __future__ import annotations

import bz2
import lzma
import sys
import threading
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import chain
from pathlib import PurePath
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import xxhash

from streamtron.core.errors import DataError, MachineError
from streamtron.core.limits import available_memory
from streamtron.data import storage
from streamtron.data.prefetch import prefetch

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
    ".zst": zstd.ZstdDecompressor,
}
PACKED = tuple(_DECOMPRESSORS)
"""Suffixes of the compressions that are unpacked."""

MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8, which is no part of a text."""

READ_BYTES = 1 << 18  # handed on at once, at most

LINE_LIMIT = 1 << 28
"""Bytes of the longest row read, some twenty million nonzeros; a longer one is no row."""

_UNPACKED_BYTES = 1 << 20  # handed from the unpacking thread to the parsing one at a time
_SIP = 4096  # compressed bytes unpacked at once: small, for bzip2 can turn them into 100 MB


class Cut(NamedTuple):
    """Whole rows of a text, the line of the first, the stored bytes read for them and all before;
    the last row of a file may lack its newline."""

    text: bytearray
    line: int
    bytes_read: int

    def line_of(self, at: int) -> int:
        """Return the line of a byte."""
        return self.line + self.text.count(b"\n", 0, at)


A = TypeVar("A")


class Scratch(threading.local, Generic[A]):
    """A kernel's arrays, of each thread its own, which the next text overwrites."""

    def __init__(self, make: Callable[[int], A]) -> None:
        self._make, self._size = make, 0
        self._arrays = make(0)

    def of(self, size: int) -> A:
        """Return what ``make`` makes for a text of this many bytes, or more."""
        if size > self._size:
            self._size = size * 5 // 4  # the next one is a little longer or shorter
            self._arrays = self._make(self._size)
        return self._arrays


class TextStream:
    """One reading of a text shard from its start; the suffix tells the compression."""

    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self._name = name
        self._digest = xxhash.xxh3_128()
        self.bytes_read = 0  # as stored

    def size(self) -> int:
        """Bytes as stored."""
        return storage.stamp(self._path, self._name).size

    def blocks(self, size: int) -> Generator[tuple[bytes, int]]:
        """Yield the text, at most ``size`` bytes at a time, with the stored bytes that it and all
        before it were made of; within what was unpacked at a time, in proportion. Compressed text
        is unpacked ahead in another thread."""
        suffix = PurePath(storage.file_name(self._path).lower()).suffix
        if suffix not in PACKED:
            for block in self._stored(size):
                yield block, self.bytes_read
            return
        first = 0
        with closing(prefetch(lambda: self._unpack(suffix))) as unpacked:
            for block, taken in unpacked:
                for start in range(0, len(block), size):
                    part = min(start + size, len(block)) / len(block)
                    yield block[start : start + size], first + round(part * (taken - first))
                first = taken

    def cuts(
        self,
        size: int,
        kind: str,
        share: int = 0,
        longest: int | None = None,
        end_of: Callable[[Cut, bool], int] | None = None,
    ) -> Iterator[Cut]:
        """Cut the text into whole rows, ``size`` bytes of them or little more.

        Parameters
        ----------
        kind : what the text should be, in messages.
        share : a row may take this part of the memory that there is; 0 = any.
        longest : bytes of a row, at most; None = LINE_LIMIT.
        end_of : return where the last whole row of a text ends, or its length where the file ends
            there; None = a row ends with its line.
        """
        longest = LINE_LIMIT if longest is None else longest
        limit = min(longest, available_memory() // share) if share else longest
        held, line, end = bytearray(), 1, 0
        for block, bytes_read in chain(self.blocks(min(size, READ_BYTES)), [(b"", 0)]):
            taken = bytes_read if block else self.bytes_read
            fresh = max(len(held) - len(MARK), 0)
            held += block
            if line == 1 and held.startswith(MARK):
                del held[: len(MARK)]
            if end_of is None:
                end = (held.rfind(b"\n", fresh) + 1 or end) if block else len(held)
            if block and len(held) < size:
                continue
            if end_of is not None:
                end = end_of(Cut(held, line, taken), not block)
            if len(held) - end > limit:
                line += held.count(b"\n", 0, end)
                raise _too_long(f"{self._name}, line {line}", limit, kind, limit < longest)
            if end:
                cut, held = Cut(held, line, taken), held[end:]
                del cut.text[end:]
                # six times as fast as to count in the bytes
                line += int(np.count_nonzero(np.frombuffer(cut.text, np.uint8) == ord("\n")))
                yield cut
                end = 0

    def fingerprint(self) -> str:
        """xxh3-128 of the bytes taken so far, 32 hex digits."""
        return self._digest.hexdigest()

    def _unpack(self, suffix: str) -> Iterator[tuple[bytes, int]]:
        gathered = bytearray()
        for block in _unpacked(self._stored(_SIP), suffix, self._name):
            gathered += block
            if len(gathered) >= _UNPACKED_BYTES:
                yield bytes(gathered), self.bytes_read
                gathered.clear()
        yield bytes(gathered), self.bytes_read

    def _stored(self, size: int) -> Generator[bytes]:
        for block in storage.blocks(self._path, self._name, size):
            self._digest.update(block)
            self.bytes_read += len(block)
            yield block


_DAMAGE = (zlib.error, lzma.LZMAError, zstd.ZstdError, OSError, ValueError, EOFError)


def _unpacked(blocks: Iterator[bytes], suffix: str, name: str) -> Iterator[bytes]:
    """Yield the text of one or several concatenated streams, zeros between them passed over.

    The standard library's file objects drop what follows a stream if it looks wrong; here that
    is an error, for it may be a damaged second stream.
    """
    remedy = "Copy or compress the file again."
    stream: Any = None
    begun = False
    for stored in blocks:
        block = stored
        while block := block if stream else block.lstrip(b"\0"):
            if stream is None:
                stream, begun = _DECOMPRESSORS[suffix](), True
            try:
                yield stream.decompress(block)
            except _DAMAGE as error:
                raise DataError(f"{name}: damaged {suffix} data ({error}). {remedy}") from error
            block = stream.unused_data
            if stream.eof:
                stream = None
    if stream is not None or not begun:
        raise DataError(f"{name}: the {suffix} data is cut off before its end. {remedy}")


def _too_long(place: str, limit: int, kind: str, of_memory: bool) -> DataError | MachineError:
    """Make the error for a row longer than the limit: of the data, or of this machine's memory."""
    length = f"{place}: a row longer than {limit:,} bytes"
    check = f"Check that this is {kind}, with a row on each line"
    if not of_memory:
        return DataError(f"{length}. {check}.")
    return MachineError(
        f"{length}, which is too long for the {available_memory() >> 20:,} MiB of memory that this "
        f"process may use. {check}, or give the process more memory."
    )
