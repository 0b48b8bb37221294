"""Sealed files: JSON and arrays in one safetensors file; every bit of it is verified.

The header is JSON with sorted keys and no spaces, padded with spaces to a multiple of 8 bytes.
``__metadata__`` has two entries: ``streamtron``, the canonical JSON of everything but the tensors,
and ``digest``, the xxh3_128 of the header without that entry followed by every byte after the
header. Tensors lie in the order of their names, without gaps, little-endian. Equal contents give
equal files, so a file is intact if the header made of what was read from it is its own.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamtron.core.errors import FileDamaged
from streamtron.core.files import parse_json, reading_from, regular, write_atomically

_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I32": "<i4",
    "U32": "<u4",
    "I64": "<i8",
    "U8": "|u1",
}
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
_LONGEST_HEADER = 100_000_000  # safetensors' own limit
_PIECE = 1 << 16  # entries


class Streamed(NamedTuple):
    """A tensor of one axis that is made piece by piece: to be written, twice."""

    dtype: np.dtype[Any]
    length: int
    pieces: Callable[[], Iterable[NDArray[Any]]]

    def whole(self) -> NDArray[Any]:
        """Make all of it."""
        array, start = np.empty(self.length, self.dtype), 0
        for piece in self.pieces():
            array[start : start + len(piece)] = piece
            start += len(piece)
        return array


class _Version(NamedTuple):
    """What tells a file from another, and from itself before a change."""

    inode: int
    size: int
    changed: int


class Stored(NamedTuple):
    """A tensor in a verified file, read some entries at a time."""

    path: str | os.PathLike[str]
    version: _Version
    start: int
    """first byte"""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def length(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    def read(self, first: int, stop: int) -> NDArray[Any]:
        """Read the entries from ``first`` up to ``stop``; FileDamaged if the file has changed."""
        with reading_from(self.path), open(self.path, "rb", opener=regular) as file:
            offset = self.start + first * self.dtype.itemsize
            entries = np.fromfile(file, self.dtype, stop - first, offset=offset)
            if len(entries) == stop - first and _version(file) == self.version:
                return entries
        raise FileDamaged(f"{self.path}: changed while it was read. Repeat the command.")

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Read all entries, some at a time."""
        for first in range(0, self.length, _PIECE):
            yield self.read(first, min(first + _PIECE, self.length))


Tensors = Mapping[str, "NDArray[Any] | Streamed | Stored"]


def sealed_bytes(content: Mapping[str, Any], tensors: Tensors) -> bytes:
    """Return the bytes that ``write_sealed`` writes: a function of content and tensors alone."""
    return b"".join(_parts(content, tensors))


def write_sealed(
    path: str | os.PathLike[str], content: Mapping[str, Any], tensors: Tensors
) -> None:
    """Write a sealed file, completely or not at all; tensors have the types of ``_DTYPES``."""
    write_atomically(path, _parts(content, tensors))


def read_sealed(
    path: str | os.PathLike[str], what: str = "model"
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read and verify a sealed file, by its name a ``what``; return its content and its tensors.

    FileDamaged is raised unless it has the very bytes that ``write_sealed`` wrote.
    """
    content, tensors = open_sealed(path, what)
    return content, {
        name: stored.read(0, stored.length).reshape(stored.shape)
        for name, stored in tensors.items()
    }


def open_sealed(
    path: str | os.PathLike[str], what: str
) -> tuple[dict[str, Any], dict[str, Stored]]:
    """Verify a sealed file; return its content and its tensors, which are not in memory. Raises as
    ``read_sealed``."""
    header, version = _read_header(path, what)
    start = len(header)
    try:
        table = parse_json(header[8:])
        content: dict[str, Any] = parse_json(table.pop("__metadata__")["streamtron"])
        tensors = {}
        for name in sorted(table):
            dtype, shape = np.dtype(_DTYPES[table[name]["dtype"]]), table[name]["shape"]
            if not all(type(length) is int and length >= 0 for length in shape):
                raise ValueError("a shape that no tensor has")
            tensors[name] = Stored(path, version, start, dtype, tuple(shape))
            start += tensors[name].length * dtype.itemsize
        if start != version.size:
            raise ValueError("bytes missing, or more than those of the tensors")
        if not isinstance(content, dict) or next(_parts(content, tensors)) != header:
            raise ValueError("another header than that of the content and the tensors")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FileDamaged(
            f"{path}: not a streamtron {what}, or damaged: its checksum does not match. "
            "Copy it again from where it was written, or fit again."
        ) from error
    return content, tensors


_BEGINNING = b'{"__metadata__":{"digest":"'


def canonical(value: Any) -> str:
    """Return the one JSON text of a value: keys sorted, no spaces, ASCII, no nan, no inf.

    >>> canonical({"b": (1, 2.0), "a": None})
    '{"a":null,"b":[1,2.0]}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _parts(content: Mapping[str, Any], tensors: Tensors) -> Iterator[bytes | memoryview]:
    """Yield the parts of a file: the header, after 8 bytes of its length, and every tensor."""
    metadata = {"streamtron": canonical(content)}
    header: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        code = _CODES.get(tensor.dtype.newbyteorder("="))
        if code is None or name == "__metadata__":
            dtype = tensor.dtype
            raise TypeError(f"tensor {name!r}: {dtype}; expected one of {[*map(str, _CODES)]}")
        shape = [tensor.length] if isinstance(tensor, Streamed) else [*tensor.shape]
        stop = start + math.prod(shape) * tensor.dtype.itemsize
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [start, stop]}
        start = stop
    digest = xxhash.xxh3_128(canonical(header).encode())
    for piece in _data(tensors):
        digest.update(piece)
    metadata["digest"] = digest.hexdigest()
    text = canonical(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    yield from _data(tensors)


def _data(tensors: Tensors) -> Iterator[memoryview]:
    """Yield the bytes of all tensors in the order of their names."""
    for _, tensor in sorted(tensors.items()):
        for piece in (tensor,) if isinstance(tensor, np.ndarray) else tensor.pieces():
            yield np.asarray(piece, dtype=piece.dtype.newbyteorder("<"), order="C").data


def is_sealed(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as those that ``write_sealed`` writes."""
    with reading_from(path), open(path, "rb", opener=regular) as file:
        return file.read(8 + len(_BEGINNING))[8:] == _BEGINNING


def _read_header(path: str | os.PathLike[str], what: str) -> tuple[bytes, _Version]:
    """Return the bytes of a file before its tensors, whose number is checked first, for another
    kind of file may be a terabyte; and the file's version."""
    with reading_from(path), open(path, "rb", opener=regular) as file:
        start, version = file.read(9), _version(file)
        length = int.from_bytes(start[:8], "little")
        if start[8:] == b"{" and length <= min(version.size - 8, _LONGEST_HEADER):
            file.seek(0)
            return file.read(8 + length), version
    content = f"it begins with {start!r}" if start else "it is empty"
    raise FileDamaged(
        f"{path}: not a streamtron {what}, or cut short: {content}. "
        f"Give a {what} that `streamtron fit` wrote."
    )


def _version(file: BinaryIO) -> _Version:
    status = os.fstat(file.fileno())
    return _Version(status.st_ino, status.st_size, status.st_mtime_ns)
