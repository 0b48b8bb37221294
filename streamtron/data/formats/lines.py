"""Text cut into whole lines, and lines refused that are too long to be held in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from streamtron.core.errors import DataError, MachineError
from streamtron.core.limits import available_memory
from streamtron.data.formats.compression import READ_BYTES

LINE_LIMIT = 1 << 28
"""Bytes of the longest line read, some twenty million nonzeros; a longer one is no libsvm text."""

LINE_SHARE = 16
"""A line may take this part of the memory that there is: reading one takes up to six times its
length, beside the interpreter."""


def whole_lines(
    text_into: Callable[[Callable[[], memoryview]], Iterator[int]],
    piece_bytes: int,
    good_for: int,
) -> Iterator[memoryview]:
    """Text of ``piece_bytes`` or little more that ends with a newline, as often as there is any.

    A few buffers hold all of them in turn (fresh memory for each costs as much as reading the
    file): a text is good until ``good_for`` more have been asked for, and another.

    Raises
    ------
    LongLine : a line is longer than the limit, and no more of it is read.
    """
    limit = _line_limit()
    step = min(piece_bytes, READ_BYTES)
    others = deque(bytearray(piece_bytes + step) for _ in range(good_for))
    buffer, size = bytearray(piece_bytes + step), 0

    def space() -> memoryview:
        nonlocal buffer
        if size + step >= len(buffer):  # one byte is left for the last line's end
            buffer = buffer + bytes(len(buffer))
        return memoryview(buffer)[size : size + step]

    for count in text_into(space):
        start, size = size, size + count
        if size < piece_bytes:
            continue
        end = buffer.rfind(b"\n", start, size) + 1
        if end:
            yield memoryview(buffer)[:end]
            rest, size = memoryview(buffer)[end:size], size - end
            others.append(buffer)
            buffer = others.popleft()
            memoryview(buffer)[:size] = rest  # a bytearray would copy it twice
        elif size > limit + piece_bytes:
            raise LongLine(buffer.count(b"\n", 0, size))
    if size:
        buffer[size : size + 1] = b"\n"
        yield memoryview(buffer)[: size + 1]


class LongLine(Exception):
    """A line is too long to be read: ``line`` lines after the end of the last text."""

    def __init__(self, line: int) -> None:
        self.line = line


def _line_limit() -> int:
    """Bytes of the longest line read here."""
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
