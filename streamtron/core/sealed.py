"""Sealed files: JSON and arrays in one safetensors file, every bit of which is verified.

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
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import safetensors.numpy
import xxhash
from numpy.typing import NDArray

from streamtron.core.errors import FileDamaged
from streamtron.core.files import parse_json, reading_from, regular, write_atomically

_DTYPES = {"F64": "<f8", "I32": "<i4", "U32": "<u4", "I64": "<i8", "U8": "|u1"}
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
_LONGEST_HEADER = 100_000_000  # safetensors' own limit
_PIECE = 1 << 16  # entries


class Streamed(NamedTuple):
    """A tensor of one axis that is made piece by piece, twice, and never held as a whole."""

    dtype: np.dtype[Any]
    length: int
    pieces: Callable[[], Iterable[NDArray[Any]]]


class _Version(NamedTuple):
    """What tells a file from another, and from itself before a change."""

    inode: int
    size: int
    changed: int


class Stored(NamedTuple):
    """A tensor in a verified file, of which some entries are read at a time."""

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
            at = self.start + first * self.dtype.itemsize
            found = np.fromfile(file, self.dtype, stop - first, offset=at)
            if len(found) == stop - first and _version(file) == self.version:
                return found
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
    with _opened(path, what) as (file, stop):
        raw = file.read()
    with _verifying(path, what):
        content: dict[str, Any] = parse_json(parse_json(raw[8:stop])["__metadata__"]["streamtron"])
        tensors: dict[str, NDArray[Any]] = safetensors.numpy.load(raw)
        _verify(content, tensors, raw[:stop])
    return content, tensors


def open_sealed(
    path: str | os.PathLike[str], what: str
) -> tuple[dict[str, Any], dict[str, Stored]]:
    """Verify a sealed file; return its content and its tensors, which are not in memory. Raises as
    ``read_sealed``."""
    with _opened(path, what) as (file, stop):
        header, version = file.read(stop), _version(file)
    with _verifying(path, what):
        table = parse_json(header[8:])
        content: dict[str, Any] = parse_json(table.pop("__metadata__")["streamtron"])
        tensors = {}
        for name in sorted(table):
            dtype, shape = np.dtype(_DTYPES[table[name]["dtype"]]), table[name]["shape"]
            if not all(type(length) is int and length >= 0 for length in shape):
                raise ValueError("a shape that no tensor has")
            tensors[name] = Stored(path, version, stop, dtype, tuple(shape))
            stop += tensors[name].length * dtype.itemsize
        if stop != version.size:
            raise ValueError("bytes missing, or more than those of the tensors")
        _verify(content, tensors, header)
    return content, tensors


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
            raise TypeError(f"tensor {name!r}: {dtype}; wanted one of {[*map(str, _CODES)]}")
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


@contextmanager
def _opened(path: str | os.PathLike[str], what: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file after checking its start, for another kind of file may be a terabyte; yield it
    and the number of bytes before its tensors."""
    with reading_from(path), open(path, "rb", opener=regular) as file:
        start, size = file.read(9), os.fstat(file.fileno()).st_size
        length = int.from_bytes(start[:8], "little")
        if start[8:] == b"{" and length <= min(size - 8, _LONGEST_HEADER):
            file.seek(0)
            yield file, 8 + length
            return
    found = f"it begins with {start!r}" if start else "it is empty"
    raise FileDamaged(
        f"{path}: not a streamtron {what}, or cut short: {found}. "
        f"Give a {what} that `streamtron fit` wrote."
    )


def _version(file: BinaryIO) -> _Version:
    found = os.fstat(file.fileno())
    return _Version(found.st_ino, found.st_size, found.st_mtime_ns)


def _verify(content: Any, tensors: Tensors, header: bytes) -> None:
    """Raise a ValueError unless the header is that of the content and the tensors."""
    if not isinstance(content, dict) or next(_parts(content, tensors)) != header:
        raise ValueError("another header")


@contextmanager
def _verifying(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, RecursionError, safetensors.SafetensorError) as error:
        raise FileDamaged(
            f"{path}: not a streamtron {what}, or damaged: its checksum does not match. "
            "Copy it again from where it was written, or fit again."
        ) from error
