"""Exclude rows that were forgotten and are still in their shard.

Readers drop these rows before anything else sees them, so a run on shards with deletions is, bit
for bit, the run on shards written without those rows. Deletions hold the fingerprint of the shard
and row numbers, nothing of the rows; a shard with other bytes is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamtron.core.errors import DataError, FileDamaged
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.data.row_batch import RowBatch, ShardReader, slice_batch

NAME = "deletions"
"""The file in a run directory."""

FORMAT_VERSION = 1

_TENSOR = "{:06d}.forgotten"


@dataclass(frozen=True, slots=True, eq=False)
class Deletions:
    """The rows that are left out of a shard.

    ``path`` is the file, absolute, or its URI, ``fingerprint`` that of its bytes, which still hold
    the rows; ``rows`` are their numbers in the file, from 0, int64, rising.
    """

    path: str
    fingerprint: str
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def digest(self) -> str:
        """A digest of the row numbers."""
        return xxhash.xxh3_64_hexdigest(self.rows.astype("<i8").tobytes())


class DeletionFilter:
    """Read a shard without the rows that have deletions; ``name`` is what messages call it."""

    def __init__(self, reader: ShardReader, deletions: Deletions, name: str) -> None:
        self._reader, self._deletions, self._name = reader, deletions, name

    @property
    def bytes_read(self) -> int:
        """Bytes of the file fetched so far."""
        return int(getattr(self._reader, "bytes_read", 0))

    def fingerprint(self) -> str:
        """Of all the file's bytes, 32 hex digits."""
        return self._reader.fingerprint()

    def batches(self) -> Iterator[RowBatch]:
        """Read the rows that are left, in file order."""
        first = 0
        for batch in self._reader.batches():
            within = slice(*np.searchsorted(self._deletions.rows, (first, first + batch.rows)))
            start = 0
            for gone in (*(self._deletions.rows[within] - first).tolist(), batch.rows):
                if start < gone:
                    yield slice_batch(batch, start, gone)
                start = gone + 1
            first += batch.rows
        if self.fingerprint() != self._deletions.fingerprint:
            raise DataError(
                f"{self._name}: its bytes changed since {len(self._deletions)} of its rows were "
                "forgotten. Put it back as it was; or take it out with streamtron forget RUN "
                "SHARD, and add it as it is now with streamtron update."
            )


def save(path: str | os.PathLike[str], deletions: Sequence[Deletions]) -> None:
    """Write a sealed file of deletions."""
    content, tensors = encode(deletions)
    write_sealed(path, {"deletions_version": FORMAT_VERSION, **content}, tensors)


def load(run: str | os.PathLike[str]) -> dict[str, Deletions]:
    """Load the deletions of a run directory, by the paths of their shards."""
    path = os.path.join(run, NAME)
    if not os.path.exists(path):
        return {}
    content, tensors = read_sealed(path, "file of deletions")
    if content.get("deletions_version") != FORMAT_VERSION:
        raise DataError(
            f"{path}: not deletions of version {FORMAT_VERSION}. Use the streamtron that wrote "
            "them."
        )
    return {deletion.path: deletion for deletion in decode(content, tensors, path)}


def encode(deletions: Sequence[Deletions]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Encode deletions as JSON content and tensors."""
    table = [{"path": deletion.path, "fingerprint": deletion.fingerprint} for deletion in deletions]
    tensors = {_TENSOR.format(number): one.rows for number, one in enumerate(deletions)}
    return {"deletions": table} if table else {}, tensors


def decode(
    content: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], where: str | os.PathLike[str]
) -> list[Deletions]:
    """Decode the deletions in a sealed file, if its content has any."""
    decoded = []
    try:
        for number, shard in enumerate(content.get("deletions", ())):
            path, fingerprint = shard["path"], shard["fingerprint"]
            rows = tensors[_TENSOR.format(number)]
            if type(path) is not str or type(fingerprint) is not str:
                raise ValueError("a shard without a path and a fingerprint")
            if rows.dtype != np.int64 or rows.ndim != 1 or (np.diff(rows, prepend=-1) <= 0).any():
                raise ValueError("rows that are not rising int64")
            decoded.append(Deletions(path, fingerprint, rows))
    except (KeyError, TypeError, ValueError) as error:
        raise FileDamaged(
            f"{where}: sealed, but its deletions are none ({error}). Fit anew."
        ) from error
    return decoded


def total(deletions: Iterable[Deletions]) -> int:
    """Count the rows of all deletions."""
    return sum(map(len, deletions))
