"""Read a text shard: decompress it, hash its stored bytes, cut it into whole lines."""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from pathlib import PurePath
from typing import Any

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

READ_BYTES = 1 << 18  # handed on at once, at most

LINE_LIMIT = 1 << 28
"""Bytes of the longest row read, some twenty million nonzeros; a longer one is no row."""

_UNPACKED_BYTES = 1 << 20  # handed from the unpacking thread to the parsing one at a time
_SIP = 4096  # compressed bytes unpacked at once: small, for bzip2 can turn them into 100 MB


class TextStream:
    """One reading of a text shard from its start; the suffix tells the compression."""

    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self._name = name
        self._digest = xxhash.xxh3_128()
        self.bytes_read = 0  # as stored

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


class BadLine(Exception):
    """A line is refused: the line, from 0 at the start of its text, and what is wrong with it."""

    def __init__(
        self, line: int, sentence: str, kind: type[DataError | MachineError] = DataError
    ) -> None:
        self.line, self.sentence, self.kind = line, sentence, kind


def whole_rows(
    blocks: Iterable[tuple[bytes, int]], batch_bytes: int, kind: str, share: int
) -> Iterator[tuple[bytearray, int]]:
    """Yield whole rows, ``batch_bytes`` of them or little more, with the stored bytes read for them
    and all before; the last may lack its newline. ``kind`` : what the text should be, in messages.
    ``share`` : a row may take this part of the memory that there is."""
    limit = min(LINE_LIMIT, available_memory() // share)
    held, end = bytearray(), 0
    for block, taken in blocks:
        if last := block.rfind(b"\n") + 1:
            end = len(held) + last
        held += block
        if end and len(held) >= batch_bytes:
            remainder = held[end:]
            del held[end:]
            yield held, taken
            held, end = remainder, 0
        elif len(held) - end > limit + batch_bytes:
            raise _too_long(held.count(b"\n", 0, end), limit, kind)
    if held:
        yield held, taken


def _too_long(line: int, limit: int, kind: str) -> BadLine:
    """Make the error for a row longer than the limit: of the data, or of this machine's memory."""
    length = f"longer than {limit:,} bytes"
    check = f"Check that this is {kind}, with a row on each line"
    if limit == LINE_LIMIT:
        return BadLine(line, f"{length}. {check}.")
    sentence = (
        f"{length}, which is too long for the {available_memory() >> 20:,} MiB of memory that this "
        f"process may use. {check}, or give the process more memory."
    )
    return BadLine(line, sentence, MachineError)
