"""Sealed files: JSON and arrays in one safetensors file of which no bit is unguarded.

The header is JSON with sorted keys and no spaces, padded with spaces to a multiple of 8 bytes.
``__metadata__`` has two entries: ``streamtron``, the canonical JSON of everything but the tensors,
and ``digest``, the xxh3_128 of the header without that entry followed by every byte after the
header. Tensors lie in the order of their names, without gaps, little-endian. A reader builds the
header again from what it read and compares bytes. This holds for every kind and version of file;
equal contents are equal files.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import xxhash
from numpy.typing import NDArray

from streamtron.core.errors import FileDamaged, MachineError
from streamtron.core.files import regular

_DTYPES = {"F64": "<f8", "I32": "<i4", "U32": "<u4", "I64": "<i8", "U8": "|u1"}
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
_LONGEST_HEADER = 100_000_000  # safetensors' own limit


def sealed_bytes(content: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """The file that ``write_sealed`` writes: a function of content and tensors alone.

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
    """Write a sealed file, whole or not at all.

    Parameters
    ----------
    content : what JSON can hold; no nan, no inf.
    tensors : float64, int32, uint32, int64 or uint8, any shape.

    Raises
    ------
    MachineError
        The file cannot be written.
    TypeError, ValueError
        A tensor of another dtype, or content that is not JSON: a mistake of the caller's.
    """
    write_atomically(path, _parts(content, tensors))


def read_sealed(
    path: str | os.PathLike[str], what: str = "model"
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The content and the tensors of a sealed file; every bit of it is verified.

    Parameters
    ----------
    what : what the file should be, for the message: ``"model"``, ``"witness"``.

    Raises
    ------
    FileDamaged
        Not a file that ``write_sealed`` wrote, or not the bytes that were written.
    MachineError
        The file cannot be read.
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


def write_atomically(path: str | os.PathLike[str], parts: Iterable[bytes | memoryview]) -> None:
    """Write a file whole or not at all: a new file beside it, synced, then renamed over it.

    A symbolic link is followed, and a file that is replaced leaves its permissions to the new one.
    A pipe or a device is not replaced: the parts are written into it as they come.

    Raises
    ------
    MachineError
        The machine refuses; a file still holds what it held before.
    """
    try:
        if is_stream(path):
            with open(path, "ab") as stream:
                stream.writelines(parts)
        else:
            _replace(Path(os.path.realpath(path)), parts)
    except OSError as error:
        raise MachineError(f"{path}: cannot be written ({error.strerror or error}).") from error


def _replace(target: Path, parts: Iterable[bytes | memoryview]) -> None:
    new = target.with_name(f"{_temporary(target)}{secrets.token_hex(8)}")
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    try:
        # nobody may read through the new file what the old one kept from them, not even for now
        private = None if mode is None else partial(os.open, mode=0o600)
        with open(new, "xb", opener=private) as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, target)
    finally:
        new.unlink(missing_ok=True)
    sync_directory(target.parent)


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a pipe, a device, or a file that a process has open (``/dev/stdout``):
    what is written to, never replaced.

    Examples
    --------
    >>> is_stream("/dev/null"), is_stream("/dev/stdout"), is_stream("nonesuch")
    (True, True, False)
    """
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    if real.startswith("/proc/") or (
        os.path.islink(real) and os.readlink(real).startswith("/proc/")
    ):
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def remove_half_written(path: str | os.PathLike[str]) -> None:
    """Remove what ``write_atomically`` left where its process was killed: for who alone writes
    ``path``."""
    target = Path(os.path.realpath(path))
    for left in target.parent.glob(f"{_temporary(target)}*"):
        left.unlink(missing_ok=True)


def _temporary(target: Path) -> str:
    """How the names of a file begin while it is written: of another file they begin otherwise."""
    return f".streamtron-{xxhash.xxh3_64_hexdigest(os.fsencode(target.name))}-"


@contextmanager
def reading_from(path: str | os.PathLike[str]) -> Iterator[None]:
    """Around what reads a file: an OSError becomes a MachineError that names the file, and so does
    a file that memory does not hold."""
    try:
        yield
    except OSError as error:
        raise MachineError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except MemoryError as error:
        raise MachineError(f"{path}: does not fit in memory. Give the right file.") from error


def canonical(value: Any) -> str:
    """The one JSON text of a value: keys sorted, no spaces, ASCII, no nan, no inf.

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
    """The first bytes of a file: 8 of length, then the header with the digest put in."""
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
        # the library would fail without a sentence on some dtypes that it knows
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
    """All of the file, after a glance at its start: what is not ours may be a terabyte."""
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


def sync_directory(directory: Path) -> None:
    """See to it that the names in a directory are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
