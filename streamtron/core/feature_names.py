"""Map names of features to columns, by a vocabulary or by a hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import xxhash
from numpy.typing import NDArray


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
