"""Counts of all rows as the parts of a run have saved them, and counts divided among parts."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.core.rows import Label
from streamtron.core.sealed import Streamed, read_sealed, write_sealed
from streamtron.solver.duals import Counts, check_gaps
from streamtron.solver.state import Regime

FORMAT_VERSION = 3

State = tuple[dict[str, Any], dict[str, NDArray[Any]]]


def saved_at(path: str, number: int | None, scans: int) -> str:
    """Return the file of a part's state after so many scans; ``number`` : of the class, if there is
    a learner for each."""
    return f"{path}{'' if number is None else f'.class-{number:04d}'}.scan-{scans:04d}"


def read_state(path: str) -> State:
    """Read the state of a part, its counts checked; FileDamaged, or a DataError for another
    version."""
    content, arrays = read_sealed(path, "part of a run")
    if content.get("part_version") != FORMAT_VERSION:
        raise DataError(f"{path}: not a part of version {FORMAT_VERSION}. Fit again.")
    check_gaps(arrays["gaps"], arrays["counts"])
    return content, arrays


SavedArrays = tuple[NDArray[np.uint32], NDArray[np.int32]]
"""Counts as ``Counts.gaps`` returns them."""


def write_state(
    path: str,
    counts: Counts,
    certified: SavedArrays | None,
    held: NDArray[np.int64],
    **content: Any,
) -> None:
    """Write the state of a part; ``certified`` : the counts that the last reading certified, if it
    has changed them. ``held`` : the rows in memory, in their order there."""
    gaps, own = counts.gaps()
    arrays: dict[str, NDArray[Any]] = {"gaps": gaps, "counts": own, "held": held}
    if certified is not None:
        arrays |= dict(zip(("certified.gaps", "certified.counts"), certified, strict=True))
    write_sealed(path, {"part_version": FORMAT_VERSION, **content}, arrays)


def write_first_state(
    path: str,
    counts: Counts,
    b: float,
    positive: Label,
    class_weights: Mapping[Label, float] | None,
) -> None:
    """Write the state of a part that has counts, in units of b, and has read no row."""
    write_state(
        path, counts, None, np.zeros(0, dtype=np.int64), b=b, positive=positive, width=0,
        shuffled=False, shuffles=0, regime=Regime.WORKING_SET, rows=0,
        class_weights=None if class_weights is None else [*class_weights.items()],
    )  # fmt: skip


class StreamedCounts(Counts, ABC):
    """Counts that are in files. ``nonzero`` and ``streamed`` have some of them in memory at a time;
    anything else reads them all."""

    @abstractmethod
    def nonzero(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """Row numbers that have a count, rising, and their counts: some at a time."""

    @cached_property
    def _pages(self) -> dict[int, NDArray[np.int32]]:  # type: ignore[override]
        found = Counts()
        for numbers, counts in self.nonzero():
            found.put(numbers, counts)
        return found._pages

    def streamed(self) -> tuple[Streamed, Streamed]:
        """Return ``gaps``, as many at a time as ``nonzero`` gives."""
        length = sum(len(counts) for _, counts in self.nonzero())

        def gaps() -> Iterator[NDArray[np.uint32]]:
            last = 0
            for numbers, _ in self.nonzero():
                yield np.diff(numbers, prepend=last).astype(np.uint32)
                last = int(numbers[-1]) if len(numbers) else last

        def counts() -> Iterator[NDArray[np.int32]]:
            return (own for _, own in self.nonzero())

        return (
            Streamed(np.dtype(np.uint32), length, gaps),
            Streamed(np.dtype(np.int32), length, counts),
        )


class SavedCounts(StreamedCounts):
    """Counts in the files of parts, in the order of the rows: those of a part at a time."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = list(files)

    def moved(self, directory: str | os.PathLike[str]) -> SavedCounts:
        """Return the same counts in files that were moved to another directory."""
        names = map(os.path.basename, self._files)
        return SavedCounts([os.path.join(directory, name) for name in names])

    def nonzero(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """Row numbers that have a count, rising, and their counts: a part at a time."""
        first = 0
        for file in self._files:
            content, arrays = read_state(file)
            yield first + np.cumsum(arrays["gaps"], dtype=np.int64), arrays["counts"]
            first += content["rows"]


Pieces = Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]
"""Row numbers that have a count, rising, and their counts: some at a time."""


def split(pieces: Pieces, rows: Sequence[int]) -> Iterator[Counts]:
    """Yield the counts of so many rows each, one after the other, numbered from 0 in each.

    Examples
    --------
    >>> counts = Counts()
    >>> counts.put(np.array([1, 4, 5]), np.array([3, 4, 9], dtype=np.int32))
    >>> [own.dense(3).tolist() for own in split(counts.nonzero(), [2, 3, 3])]
    [[0, 3, 0], [0, 0, 4], [9, 0, 0]]
    """
    numbers, values, first = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32), 0
    for own in rows:
        found = Counts()
        while True:
            here = int(np.searchsorted(numbers, first + own))
            found.put(numbers[:here] - first, values[:here])
            numbers, values = numbers[here:], values[here:]
            if len(numbers) or (piece := next(pieces, None)) is None:
                break
            numbers, values = piece
        yield found
        first += own
