"""Read a text shard: decompress it, hash its stored bytes, cut it into whole lines."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import PurePath
from typing import Protocol

import xxhash
import zstandard

from streamtron.core.errors import DataError, MachineError
from streamtron.core.limits import available_memory
from streamtron.data import storage
from streamtron.data.prefetch import prefetch

PACKED = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of the compressions that are unpacked."""

READ_BYTES = 1 << 18
"""Bytes of text read at once, at most."""

LINE_LIMIT = 1 << 28
"""Bytes of the longest line read, some twenty million nonzeros; a longer one is no libsvm text."""

LINE_SHARE = 16
"""A line may take this part of the memory that there is: reading one takes up to six times its
length, beside the interpreter."""

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
        """Read the text, unpacked, into the buffers that ``space`` returns; yield how many bytes.

        Compressed text is unpacked ahead in another thread.
        """
        suffix = PurePath(storage.file_name(self._path).lower()).suffix
        if suffix in PACKED:
            yield from self._handed_over(prefetch(lambda: self._unpack(suffix)), space)
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
        """Yield the text with the stored bytes taken for it; in a thread of its own."""
        for block in _gathered(_unpacked(self._stored(_SIP), suffix, self._name)):
            yield block, self._taken

    def _stored(self, size: int) -> Iterator[bytes]:
        for block in storage.blocks(self._path, self._name, size):
            self._digest.update(block)
            self._taken += len(block)
            yield block


def _gathered(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in blocks of _UNPACKED_BYTES or more."""
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
    """Yield the text of one or several concatenated streams, zeros between them passed over.

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


def whole_lines(
    text_into: Callable[[Callable[[], memoryview]], Iterator[int]],
    batch_bytes: int,
    good_for: int,
) -> Iterator[memoryview]:
    """Text of ``batch_bytes`` or little more that ends with a newline, as often as there is any.

    A few buffers hold all of them in turn (fresh memory for each costs as much as reading the
    file): a text is good until ``good_for`` more have been asked for, and another."""
    limit = _line_limit()
    step = min(batch_bytes, READ_BYTES)
    others = deque(bytearray(batch_bytes + step) for _ in range(good_for))
    buffer, size = bytearray(batch_bytes + step), 0

    def space() -> memoryview:
        nonlocal buffer
        if size + step >= len(buffer):  # one byte is left for the last line's end
            buffer = buffer + bytes(len(buffer))
        return memoryview(buffer)[size : size + step]

    for count in text_into(space):
        start, size = size, size + count
        if size < batch_bytes:
            continue
        end = buffer.rfind(b"\n", start, size) + 1
        if end:
            yield memoryview(buffer)[:end]
            rest, size = memoryview(buffer)[end:size], size - end
            others.append(buffer)
            buffer = others.popleft()
            memoryview(buffer)[:size] = rest  # a bytearray would copy it twice
        elif size > limit + batch_bytes:
            raise LongLine(buffer.count(b"\n", 0, size))
    if size:
        buffer[size : size + 1] = b"\n"
        yield memoryview(buffer)[: size + 1]


class LongLine(Exception):
    """A line is too long to be read: ``line`` lines after the end of the last text."""

    def __init__(self, line: int) -> None:
        self.line = line


def _line_limit() -> int:
    """Return bytes of the longest line read here."""
    return min(LINE_LIMIT, available_memory() // LINE_SHARE)


def too_long(place: str) -> DataError | MachineError:
    """The error for a line longer than the limit: of the data, or of this machine's memory."""
    found = f"{place}: longer than {_line_limit():,} bytes"
    check = "Libsvm text has a row on each line; check that the file is one, with newlines"
    if _line_limit() == LINE_LIMIT:
        return DataError(f"{found}. {check}.")
    return MachineError(
        f"{found}, which is too long for the {available_memory() >> 20:,} MiB of memory that this "
        f"process may use. {check}, or give the process more memory."
    )
