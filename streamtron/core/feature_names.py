"""Map names of features to columns, by a vocabulary or by a hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.core.files import at_most, reading_from
from streamtron.core.limits import available_memory

VOCABULARY_SHARE = 32
"""Part of the memory that a vocabulary's file may have; its names take some twenty times that."""


@dataclass(frozen=True)
class Hashing:
    """A name's column is its hash modulo 2^bits: MurmurHash3_x86_32 of the name's UTF-8.

    No sign alternates; values of names with the same column are added up. ``bits`` are 1 … 31.

    Examples
    --------
    >>> Hashing(bits=10).columns(["cheap", "pills"]).tolist()
    [69, 57]
    """

    bits: int

    def columns(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the column of every name, int64, shape (names,), 0 … 2^bits - 1."""
        from sklearn.utils.murmurhash import murmurhash3_32  # which takes half a second to load

        hashes = (murmurhash3_32(name, positive=True) for name in names)
        return np.fromiter(hashes, np.int64, len(names)) & ((1 << self.bits) - 1)


@dataclass(frozen=True)
class Vocabulary:
    """A name's column is its place among ``names``, which are all different, from 0."""

    names: tuple[str, ...]

    def columns(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the column of every name, int64, shape (names,); -1 for one that is not there."""
        known = self._columns
        return np.fromiter((known.get(n, -1) for n in names), dtype=np.int64, count=len(names))

    @cached_property
    def digest(self) -> str:
        """xxh3-128 of the names in order, 32 hex digits."""
        return xxhash.xxh3_128_hexdigest("\n".join(self.names).encode())

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {name: column for column, name in enumerate(self.names)}


def load_vocabulary(path: str) -> Vocabulary:
    """Load a vocabulary from UTF-8 text, one name a line: line 1 is column 0."""
    opener = at_most(available_memory() // VOCABULARY_SHARE)
    try:
        with (
            reading_from(path),
            open(path, encoding="utf-8-sig", newline="", opener=opener) as file,
        ):
            lines = file.read().split("\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 ({error.reason} at byte {error.start}). A vocabulary is text, one "
            "name a line; convert it."
        ) from error
    if lines[-1] == "":
        lines.pop()
    line_of: dict[str, int] = {}
    for line, name in enumerate((line.removesuffix("\r") for line in lines), start=1):
        if not name:
            raise DataError(f"{path}, line {line}: no name. Remove the line.")
        if (first_line := line_of.setdefault(name, line)) != line:
            raise DataError(
                f"{path}, line {line}: {name!r} is in line {first_line} too. A name has one "
                "column; remove one of them."
            )
    if not line_of:
        raise DataError(f"{path}: no names. A vocabulary has one name a line.")
    return Vocabulary(tuple(line_of))
