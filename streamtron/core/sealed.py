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
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
import xxhash
from numpy.typing import NDArray

from streamtron.core.errors import FileDamaged
from streamtron.core.files import reading_from, regular, write_atomically

_DTYPES = {"F64": "<f8", "I32": "<i4", "U32": "<u4", "I64": "<i8", "U8": "|u1"}
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
_LONGEST_HEADER = 100_000_000  # safetensors' own limit


class Streamed(NamedTuple):
    """A tensor of one axis that is made piece by piece, twice, and never held as a whole."""

    dtype: np.dtype[Any]
    length: int
    pieces: Callable[[], Iterable[NDArray[Any]]]


Tensors = Mapping[str, "NDArray[Any] | Streamed"]


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
    raw = _read_if_sealed(path, what)
    stop = 8 + int.from_bytes(raw[:8], "little")
    try:
        content: dict[str, Any] = json.loads(json.loads(raw[8:stop])["__metadata__"]["streamtron"])
        tensors: dict[str, NDArray[Any]] = safetensors.numpy.load(raw)
        intact = isinstance(content, dict) and next(_parts(content, tensors)) == raw[:stop]
    except (ValueError, TypeError, KeyError, RecursionError, safetensors.SafetensorError):
        intact = False
    if not intact:
        raise FileDamaged(
            f"{path}: not a streamtron {what}, or damaged: its checksum does not match. "
            "Copy it again from where it was written, or fit again."
        )
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
        for piece in tensor.pieces() if isinstance(tensor, Streamed) else (tensor,):
            yield np.asarray(piece, dtype=piece.dtype.newbyteorder("<"), order="C").data


def _read_if_sealed(path: str | os.PathLike[str], what: str) -> bytes:
    """Read a whole file after checking its start: another kind of file may be a terabyte."""
    with reading_from(path), open(path, "rb", opener=regular) as file:
        start, size = file.read(9), os.fstat(file.fileno()).st_size
        length = int.from_bytes(start[:8], "little")
        if start[8:] == b"{" and length <= min(size - 8, _LONGEST_HEADER):
            return start + file.read()
    found = f"it begins with {start!r}" if start else "it is empty"
    raise FileDamaged(
        f"{path}: not a streamtron {what}, or cut short: {found}. "
        f"Give a {what} that `streamtron fit` wrote."
    )
