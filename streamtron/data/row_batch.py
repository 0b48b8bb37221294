"""Define what readers give: batches of rows of a shard."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.core.rows import Codes, Label, without_label
from streamtron.core.text import some
from streamtron.data import storage
from streamtron.data.deletions import Deletions, in_share
from streamtron.data.reader_config import ALL, ReaderConfig

_log = logging.getLogger("streamtron")

Offsets = NDArray[np.int64]
"""Of rows that may have several labels: row i has ``codes[offsets[i]:offsets[i + 1]]``. None where
every row has one, ``codes[i]``."""


Unknown = dict[str, NDArray[np.bool_]]
"""Columns with categories that a transformer does not know → the rows that have some."""


class RowBatch(NamedTuple):
    """Some consecutive rows of one shard, checked: columns rise strictly within a row, values are
    finite, weights are finite and ≥ 0. Cut anywhere the reader likes.

    ``codes`` point into ``classes`` (this batch's own table, in order of appearance), -1 = no
    label, or are targets (``Codes``), and then there are no classes; with ``code_offsets``
    (``Offsets``) a row's are all different and none is -1. ``values`` and ``weights`` are None
    where all are 1, ``squares`` where ‖x_k‖² is not known yet. ``by_row`` : each row has one value.
    ``place(i)`` names row i of the batch for a message: ``"part-0007.svm, line 1204"``.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.uint32]
    values: NDArray[np.float32] | None
    codes: Codes
    classes: list[Label]
    weights: NDArray[np.float64] | None
    place: Callable[[int], str]
    code_offsets: NDArray[np.int64] | None = None
    squares: NDArray[np.float64] | None = None
    by_row: bool = False
    unknown: Unknown | None = None

    @property
    def rows(self) -> int:
        """Rows in the batch."""
        return len(self.indptr) - 1

    @property
    def nonzeros(self) -> int:
        """Stored values in the batch."""
        return len(self.indices)


def take_rows(batch: RowBatch, rows: slice | NDArray[np.int64]) -> RowBatch:
    """Return some rows of a batch, in rising order, as views where they are a slice; its class
    table is kept whole."""
    place, numbers = batch.place, range(batch.rows)[rows] if isinstance(rows, slice) else rows
    indptr, stored = _part(batch.indptr, rows)
    offsets, labels = (None, rows) if (of := batch.code_offsets) is None else _part(of, rows)
    values = batch.values
    return RowBatch(
        indptr,
        batch.indices[stored],
        None if values is None else values[rows if batch.by_row else stored],
        batch.codes[labels],
        batch.classes,
        None if batch.weights is None else batch.weights[rows],
        lambda i: place(int(numbers[i])),
        offsets,
        None if batch.squares is None else batch.squares[rows],
        batch.by_row,
    )


def _part(offsets: Offsets, rows: slice | NDArray[np.int64]) -> tuple[Offsets, Any]:
    """Return the offsets of some rows by themselves, and the places of their entries."""
    if isinstance(rows, slice):
        start, stop = offsets[[rows.start, rows.stop]].tolist()
        return offsets[rows.start : rows.stop + 1] - start, slice(start, stop)
    lengths = np.diff(offsets)[rows]
    starts = offsets_of(lengths)
    return starts, np.repeat(offsets[rows] - starts[:-1], lengths) + np.arange(starts[-1])


class FileReader(ABC):
    """One shard: of its rows those that are not ``without``, and are in the share that is read, see
    ``in_share``. What the readers of all formats share."""

    def __init__(
        self,
        path: str,
        name: str,
        reading: ReaderConfig,
        scratch: str | None = None,
        threads: int = 1,
        without: Deletions | None = None,
    ) -> None:
        self.path, self.name, self.reading, self._without = path, name, reading, without
        self._scratch, self._threads = scratch, threads
        self._fingerprint: str | None = None
        self.bytes_read = 0
        """Bytes of the file, as stored, read for the rows delivered so far."""
        self.notes = set[str]()
        """What is odd about the file, once it has been read."""

    @abstractmethod
    def _batches_of_all(self) -> Iterator[RowBatch]:
        """Yield all rows in file order, checked; nothing for a file without rows."""

    def batches(self) -> Iterator[RowBatch]:
        """Yield the rows that are left, in file order; any number of times, from the start.

        DataError is raised for what is in the file, MachineError for one that cannot be read.
        """
        first, unlabelled, deleted, unknown = 0, 0, self._without, Counter[str]()
        reading = self.reading
        leaves_out = reading.null_labels == "left_out" and reading.labels == "required"
        for batch in self._batches_of_all():
            stays = np.ones(batch.rows, bool)
            if reading.share != ALL:
                stays = in_share(self.name, np.arange(first, first + batch.rows), reading.share)
            if reading.share[1] == 1.0:  # rows held out are not spoken of
                for name, has_unknown in (batch.unknown or {}).items():
                    unknown[name] += int(np.count_nonzero(has_unknown & stays))
            if deleted is not None:
                within = slice(*np.searchsorted(deleted.rows, (first, first + batch.rows)))
                stays[deleted.rows[within] - first] = False
            if leaves_out and batch.code_offsets is None:
                labelled = ~without_label(batch.codes)
                unlabelled += int(np.count_nonzero(stays & ~labelled))
                stays &= labelled
            if stays.any():
                yield batch if stays.all() else take_rows(batch, np.flatnonzero(stays))
            first += batch.rows
        if unlabelled:
            rows = f"{unlabelled:,} {'row' if unlabelled == 1 else 'rows'} without a label"
            self.notes.add(f"{self.name}: {rows} left out.")
        if unknown := +unknown:
            self.notes.add(
                f"{self.name}: {sum(unknown.values()):,} values in {some(sorted(unknown))} are "
                "categories that the transformer was not fitted on."
            )
        if deleted is not None and self.fingerprint() != deleted.fingerprint:
            raise DataError(
                f"{self.name}: its bytes changed since {len(deleted)} of its rows were "
                "forgotten. Put it back as it was; or take it out with streamtron forget RUN "
                "SHARD, and add it as it is now with streamtron update."
            )

    @abstractmethod
    def resolve(self) -> ReaderConfig:
        """Return the config completed by the columns of this file; refuse what does not suit it."""

    def unused(self) -> dict[str, str]:
        """Return the columns of a table that this config leaves aside, and their types."""
        return {}

    def note_end(self, how: str) -> None:
        """Note that the file ends as one that was cut off may end."""
        self.notes.add(
            f"{self.name}: {how}, and was read as it is. If the file was cut off, copy or write it "
            "again."
        )

    def warn(self) -> None:
        """Log what is odd about the file."""
        for note in sorted(self.notes):
            _log.warning("%s", note)

    def fingerprint(self) -> str:
        """xxh3-128 of the file's bytes as stored, 32 hex digits; free after ``batches()``."""
        if self._fingerprint is None:
            self._fingerprint = storage.fingerprint(self.path, self.name)
        return self._fingerprint


def beyond_float32(integers: NDArray[Any]) -> NDArray[np.bool_]:
    """Which integers float32 cannot hold: more than 24 bits from their first 1 to their last."""
    size = integers if integers.dtype.kind == "u" else np.abs(integers.astype(np.int64))
    size = size.astype(np.uint64)  # also right for -2⁶³, whose absolute value wraps onto itself
    last_one = size & (~size + np.uint64(1))
    return (size >> np.uint64(24) >= last_one) & (size > 0)


def offsets_of(lengths: NDArray[np.integer]) -> Offsets:
    """Compute offsets from 0 of rows of these lengths; int64, shape (rows + 1,)."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def row_of(offsets: Offsets | None, at: int) -> int:
    """Return the row of a nonzero, by ``indptr``, or of a code, by its offsets."""
    return at if offsets is None else int(np.searchsorted(offsets, at, side="right")) - 1


def sort_columns(
    indptr: Offsets, indices: NDArray[np.integer]
) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
    """Return the stable order of nonzeros by row and column, and the keys: row << 32 | column."""
    rows = np.repeat(np.arange(len(indptr) - 1, dtype=np.uint64), np.diff(indptr))
    keys = rows << np.uint64(32) | indices.astype(np.uint64)
    order = np.argsort(keys, kind="stable")
    return order, keys[order]


def repeated(codes: NDArray[np.int32], offsets: Offsets | None) -> tuple[int, int] | None:
    """Return the first row that has a label twice, and that label's code; None where no row has."""
    if offsets is None or np.diff(offsets).max(initial=0) <= 1:
        return None
    _, keys = sort_columns(offsets, codes)
    again = keys[1:][keys[1:] == keys[:-1]].tolist()
    return (again[0] >> 32, again[0] & 0xFFFFFFFF) if again else None
