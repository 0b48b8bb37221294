"""The bytes of a text shard: counted and hashed as stored, unpacked if they are compressed."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import PurePath
from typing import Protocol

import xxhash
import zstandard

from streamtron.core.errors import DataError
from streamtron.data import storage
from streamtron.data.prefetch import ahead

PACKED = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of the compressions that are unpacked."""

READ_BYTES = 1 << 18
"""Bytes of text read at once, at most."""

_UNPACKED_BYTES = 1 << 20  # handed from the unpacking thread to the parsing one at a time
_SIP = 4096  # compressed bytes unpacked at once: small, for bzip2 can turn them into 100 MB


class TextStream:
    """One reading of a text shard from its start.

    Parameters
    ----------
    path : the file, a local path or a URI; its suffix tells the compression.
    name : what messages call it.

    Attributes
    ----------
    bytes_read : bytes as stored whose text has been given so far; within what was unpacked at a
        time, in proportion.

    Examples
    --------
    >>> import gzip, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "tiny.svm.gz")
    >>> with open(path, "wb") as file:
    ...     stored = file.write(gzip.compress(b"1 1:0.5"))
    >>> stream = TextStream(path, "tiny.svm.gz")
    >>> text = bytearray(100)
    >>> [bytes(text[:count]) for count in stream.text_into(lambda: memoryview(text))]
    [b'1 1:0.5']
    >>> stream.bytes_read == stored
    True
    """

    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self._name = name
        self._digest = xxhash.xxh3_128()
        self._taken = 0
        self.bytes_read = 0

    def text_into(self, space: Callable[[], memoryview]) -> Iterator[int]:
        """The text, unpacked: each time as many bytes as there are and as fit where ``space`` says
        then; yields how many. What is compressed is unpacked in a thread of its own, ahead of
        whoever parses it.

        Raises
        ------
        DataError : damaged compressed data, or cut off.
        MachineError : the file cannot be read.
        """
        suffix = PurePath(storage.file_name(self._path).lower()).suffix
        if suffix in PACKED:
            yield from self._handed_over(ahead(lambda: self._unpack(suffix)), space)
        elif storage.is_uri(self._path):
            stored = ((block, self._taken) for block in self._stored(READ_BYTES))
            yield from self._handed_over(stored, space)
        else:
            for part in storage.read_into(self._path, self._name, space):
                self._digest.update(part)
                self._taken += len(part)
                self.bytes_read = self._taken
                yield len(part)
        self.bytes_read = self._taken

    def _handed_over(
        self, counted: Generator[tuple[bytes, int]], space: Callable[[], memoryview]
    ) -> Iterator[int]:
        with closing(counted):
            for block, taken in counted:
                before, rest = self.bytes_read, memoryview(block)
                while rest:
                    place = space()
                    count = min(len(place), len(rest))
                    place[:count], rest = rest[:count], rest[count:]
                    part = 1 - len(rest) / len(block)
                    self.bytes_read = before + round(part * (taken - before))
                    yield count

    def fingerprint(self) -> str:
        """xxh3-128 of the bytes taken so far, 32 hex digits."""
        return self._digest.hexdigest()

    def _unpack(self, suffix: str) -> Iterator[tuple[bytes, int]]:
        """The text with the stored bytes taken for it; in a thread of its own."""
        for block in _gathered(_unpacked(self._stored(_SIP), suffix, self._name)):
            yield block, self._taken

    def _stored(self, size: int) -> Iterator[bytes]:
        for block in storage.blocks(self._path, self._name, size):
            self._digest.update(block)
            self._taken += len(block)
            yield block


def _gathered(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in blocks of _UNPACKED_BYTES or more."""
    gathered: list[bytes] = []
    size = 0
    for block in blocks:
        gathered.append(block)
        size += len(block)
        if size >= _UNPACKED_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    if size:
        yield b"".join(gathered)


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


_DECOMPRESSORS: dict[str, Callable[[], _Decompressor]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
_DAMAGE = (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, ValueError, EOFError)


def _unpacked(blocks: Iterator[bytes], suffix: str, name: str) -> Iterator[bytes]:
    """The text of one or several concatenated streams, zeros between them passed over.

    The standard library's file objects drop what follows a stream if it looks wrong; here that
    is an error, for it may be a damaged second stream.
    """
    remedy = "Copy or compress the file again."
    stream: _Decompressor | None = None
    begun = False
    for stored in blocks:
        block = stored
        while block:
            if stream is None:
                block = block.lstrip(b"\0")
                if not block:
                    break
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
