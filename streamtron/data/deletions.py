"""Deletions: rows that were forgotten, and whose shard still holds them.

The rule: a row with a deletion is not there. Its reader drops it before anything is made of it, so
a run on shards with deletions is, bit for bit, the run on shards that were written without those
rows: they have no number, no count, no place in a block, no part in a sum or in R. Deletions say
which row of which bytes, and nothing of what was in it; a shard whose bytes are others is refused
where rows are to be left out of it.
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
from streamtron.data.labels import offsets_of
from streamtron.data.row_batch import RowBatch, ShardReader

NAME = "deletions"
"""The file in a run directory."""

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, eq=False)
class Deletions:
    """The rows that are left out of a shard.

    Parameters
    ----------
    path : the file, absolute, or its URI.
    fingerprint : of its bytes, which still hold the rows.
    rows : int64, rising: their numbers in the file, from 0.

    Examples
    --------
    >>> deletion = Deletions("/data/a.svm", "0" * 32, np.array([2, 5]))
    >>> deletion.numbers_left(np.array([0, 3, 6])).tolist(), len(deletion)
    ([0, 2, 4], 2)
    """

    path: str
    fingerprint: str
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def digest(self) -> str:
        """Of the rows: equal where the same ones are left out."""
        return xxhash.xxh3_64_hexdigest(self.rows.astype("<i8").tobytes())

    def numbers_left(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers that rows of the file have among those that are left; none of them has a
        deletion."""
        return rows - np.searchsorted(self.rows, rows)


class Without:
    """A shard without the rows that have deletions; a ``ShardReader``.

    Parameters
    ----------
    reader : of all its rows.
    name : what messages call the shard.
    """

    def __init__(self, reader: ShardReader, deletions: Deletions, name: str) -> None:
        self._reader, self._tombstones, self._name = reader, deletions, name

    @property
    def bytes_read(self) -> int:
        """Bytes of the file fetched so far."""
        return int(getattr(self._reader, "bytes_read", 0))

    def fingerprint(self) -> str:
        """Of all the file's bytes, 32 hex digits."""
        return self._reader.fingerprint()

    def pieces(self) -> Iterator[RowBatch]:
        """The rows that are left, in file order.

        Raises
        ------
        DataError : what the reader refuses; the shard's bytes are others than those that the
            deletions are for.
        """
        first = 0
        for piece in self._reader.pieces():
            start, stop = np.searchsorted(self._tombstones.rows, (first, first + piece.rows))
            kept = np.ones(piece.rows, dtype=bool)
            kept[self._tombstones.rows[start:stop] - first] = False
            first += piece.rows
            if kept.all():
                yield piece
            elif kept.any():
                yield select(piece, kept)
        if self.fingerprint() != self._tombstones.fingerprint:
            raise DataError(
                f"{self._name}: its bytes changed since {len(self._tombstones)} of its rows were "
                "forgotten. Put it back as it was, or name the new file by streamtron forget RUN "
                "SHARD --replaced-by FILE."
            )


def select(piece: RowBatch, kept: NDArray[np.bool_]) -> RowBatch:
    """Some rows of a piece, in their order; its class table is kept whole.

    Examples
    --------
    >>> piece = RowBatch(np.array([0, 1, 3]), np.array([5, 2, 4], np.uint32), None,
    ...               np.array([0, 0], np.int32), [1.0], None, "row {}".format)
    >>> last = select(piece, np.array([False, True]))
    >>> last.indptr.tolist(), last.indices.tolist(), last.place(0)
    ([0, 2], [2, 4], 'row 1')
    """
    lengths, rows, place = np.diff(piece.indptr), np.flatnonzero(kept), piece.place
    stored = np.repeat(kept, lengths)
    labels, code_offsets = kept, None
    if piece.code_offsets is not None:
        counts = np.diff(piece.code_offsets)
        labels, code_offsets = np.repeat(kept, counts), offsets_of(counts[kept])
    return RowBatch(
        offsets_of(lengths[kept]),
        piece.indices[stored],
        None if piece.values is None else piece.values[stored],
        piece.codes[labels],
        piece.classes,
        None if piece.weights is None else piece.weights[kept],
        lambda i: place(int(rows[i])),
        code_offsets,
    )


# Files -------------------------------------------------------------------------------------------


def save(path: str | os.PathLike[str], deletions: Sequence[Deletions]) -> None:
    """Write them, sealed: a function of the deletions alone.

    Raises
    ------
    MachineError : the file cannot be written.
    """
    content, tensors = packed(deletions)
    write_sealed(path, {"tombstones_version": FORMAT_VERSION, **content}, tensors)


def load(run: str | os.PathLike[str]) -> dict[str, Deletions]:
    """Those of a run directory, by the paths of their shards; none where there is no file.

    Raises
    ------
    FileDamaged : not the bytes that were written, or no deletions.
    DataError : another version.
    MachineError : the file cannot be read.
    """
    path = os.path.join(run, NAME)
    if not os.path.exists(path):
        return {}
    content, tensors = read_sealed(path, "file of deletions")
    if content.get("tombstones_version") != FORMAT_VERSION:
        raise DataError(
            f"{path}: not deletions of version {FORMAT_VERSION}. Use the streamtron that wrote "
            "them."
        )
    return {deletion.path: deletion for deletion in unpacked(content, tensors, path)}


def packed(deletions: Sequence[Deletions]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What ``unpacked`` makes them of: JSON content and tensors."""
    table = [{"path": deletion.path, "fingerprint": deletion.fingerprint} for deletion in deletions]
    tensors = {_name(number): deletion.rows for number, deletion in enumerate(deletions)}
    return {"deletions": table} if table else {}, tensors


def unpacked(
    content: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], where: str | os.PathLike[str]
) -> list[Deletions]:
    """The deletions in a sealed file; none where its content does not speak of any.

    Raises
    ------
    FileDamaged : sealed, but not as ``packed`` makes it.
    """
    try:
        found = [
            Deletions(shard["path"], shard["fingerprint"], tensors[_name(number)])
            for number, shard in enumerate(content.get("deletions", ()))
        ]
        for deletion in found:
            _check(deletion)
    except (KeyError, TypeError, ValueError) as error:
        raise FileDamaged(
            f"{where}: sealed, but its deletions are none ({error}). Fit anew."
        ) from error
    return found


def _check(deletion: Deletions) -> None:
    if type(deletion.path) is not str or type(deletion.fingerprint) is not str:
        raise ValueError("a shard without a path and a fingerprint")
    rows = deletion.rows
    if rows.dtype != np.int64 or rows.ndim != 1 or (np.diff(rows, prepend=-1) <= 0).any():
        raise ValueError("rows that are not rising int64")


def _name(number: int) -> str:
    return f"{number:06d}.forgotten"


def total(deletions: Iterable[Deletions]) -> int:
    """Rows that are left out of all these shards."""
    return sum(map(len, deletions))
