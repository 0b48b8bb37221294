"""Sealed files: JSON and arrays in one safetensors file, every bit of which is verified.

The header is JSON with sorted keys and no spaces, padded with spaces to a multiple of 8 bytes.
``__metadata__`` has two entries: ``streamtron``, the canonical JSON of everything but the tensors,
and ``digest``, the xxh3_128 of the header without that entry followed by every byte after the
header. Tensors lie in the order of their names, without gaps, little-endian. A reader rebuilds the
header from what it read and compares bytes. Equal contents give equal files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import safetensors.numpy
import xxhash
from numpy.typing import NDArray

from streamtron.core.errors import FileDamaged
from streamtron.core.files import reading_from, regular, write_atomically

_DTYPES = {"F64": "<f8", "I32": "<i4", "U32": "<u4", "I64": "<i8", "U8": "|u1"}
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
_LONGEST_HEADER = 100_000_000  # safetensors' own limit


def sealed_bytes(content: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes that ``write_sealed`` writes: a function of content and tensors alone.

    Examples
    --------
    >>> one = sealed_bytes({"a": 1, "b": [2]}, {"x": np.zeros(2), "y": np.ones(1, dtype=np.int32)})
    >>> two = sealed_bytes({"b": [2], "a": 1}, {"y": np.ones(1, dtype=np.int32), "x": np.zeros(2)})
    >>> one == two
    True
    """
    return b"".join(_parts(content, tensors))


def write_sealed(
    path: str | os.PathLike[str], content: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
) -> None:
    """Write a sealed file, completely or not at all.

    Parameters
    ----------
    content : JSON values without nan and inf.
    tensors : float64, int32, uint32, int64 or uint8, any shape.

    Raises
    ------
    MachineError : the file cannot be written.
    TypeError, ValueError : a tensor of another dtype, or content that is not JSON.
    """
    write_atomically(path, _parts(content, tensors))


def read_sealed(
    path: str | os.PathLike[str], what: str = "model"
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read and verify a sealed file; return its content and its tensors.

    Parameters
    ----------
    what : what the file should be, for the message: ``"model"``, ``"witness"``.

    Raises
    ------
    FileDamaged : not a file that ``write_sealed`` wrote, or not the bytes that were written.
    MachineError : the file cannot be read.
    """
    raw = _read_if_sealed(path, what)
    stop = 8 + int.from_bytes(raw[:8], "little")
    try:
        header = json.loads(raw[8:stop])
        del header["__metadata__"]["digest"]
        content: dict[str, Any] = json.loads(header["__metadata__"]["streamtron"])
        intact = (
            isinstance(content, dict)
            and _sealed_header(header, [memoryview(raw)[stop:]]) == raw[:stop]
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        intact = False
    if not intact:
        raise FileDamaged(
            f"{path}: not a streamtron {what}, or damaged: its checksum does not match. "
            "Copy it again from where it was written, or fit again."
        )
    return content, _tensors(path, header, raw)


def canonical(value: Any) -> str:
    """Return the one JSON text of a value: keys sorted, no spaces, ASCII, no nan, no inf.

    Examples
    --------
    >>> canonical({"b": (1, 2.0), "a": None})
    '{"a":null,"b":[1,2.0]}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _parts(
    content: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
) -> list[bytes | memoryview]:
    header: dict[str, Any] = {"__metadata__": {"streamtron": canonical(content)}}
    data: list[memoryview] = []
    start = 0
    for name in sorted(tensors):
        code, tensor = _encoded(name, tensors[name])
        stop = start + tensor.nbytes
        shape = list(tensor.shape)
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [start, stop]}
        data.append(tensor.data)
        start = stop
    return [_sealed_header(header, data), *data]


def _encoded(name: str, tensor: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    code = _CODES.get(tensor.dtype.newbyteorder("="))
    if code is None or name == "__metadata__":
        raise TypeError(f"tensor {name!r}: {tensor.dtype}; wanted one of {[*map(str, _CODES)]}")
    return code, np.asarray(tensor, dtype=_DTYPES[code], order="C")


def _sealed_header(header: dict[str, Any], data: Iterable[bytes | memoryview]) -> bytes:
    """Return the first bytes of a file: 8 of length, then the header with its digest."""
    digest = xxhash.xxh3_128(canonical(header).encode())
    for part in data:
        digest.update(part)
    metadata = {**header["__metadata__"], "digest": digest.hexdigest()}
    text = canonical({**header, "__metadata__": metadata}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _tensors(
    path: str | os.PathLike[str], header: Mapping[str, Any], raw: bytes
) -> dict[str, NDArray[Any]]:
    try:
        # safetensors has no message for some dtypes
        named = {entry["dtype"] for name, entry in header.items() if name != "__metadata__"}
        if odd := named - set(_DTYPES):
            raise ValueError(f"dtype {min(odd)}")
        tensors: dict[str, NDArray[Any]] = safetensors.numpy.load(raw)
    except (ValueError, TypeError, KeyError, safetensors.SafetensorError) as error:
        raise FileDamaged(
            f"{path}: sealed, but not safetensors as streamtron writes them ({error}). Fit again."
        ) from error
    return tensors


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
