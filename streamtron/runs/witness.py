"""The witness: counts by shard fingerprint and row, from which anybody re-proves an upper bound.

A sealed safetensors file; for every learner, the gaps between the rows that have a positive count
(uint32) and those counts (int32): a few bytes a support row. Rows that were forgotten have no
number; which rows of a shard they are stands beside the counts, so that a reading leaves them out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError, FileDamaged
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.data import deletions
from streamtron.solver.duals import Counts, check_gaps

if TYPE_CHECKING:
    from streamtron.data import Manifest
    from streamtron.data.deletions import Deletions

FORMAT_VERSION = 2

MOST_ROWS = 2**48
"""No shard has as many rows: a row takes a byte at least."""


class Counted(NamedTuple):
    """A shard as a witness knows it."""

    fingerprint: str
    rows: int


class Contents(NamedTuple):
    """What a witness file holds, checked: the shards, the rows that are left out of them, and gaps
    and counts of so many learners."""

    shards: list[Counted]
    deletions: list[Deletions]
    learners: int
    tensors: Mapping[str, NDArray[Any]]

    @property
    def counts(self) -> list[NDArray[np.int32]]:
        """The counts above 0 of every learner."""
        return [self.tensors[_counts(number)] for number in range(self.learners)]

    def gaps(self, number: int) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        """Of one learner, as ``Counts.gaps``, by the rows of the shards in the file's order."""
        return self.tensors[_gaps(number)], self.tensors[_counts(number)]


class Witness(NamedTuple):
    """Counts, one learner after another: of two classes there is one, else one a class in the order
    of the model's classes; and how many rows every shard has."""

    counts: tuple[Counts, ...]
    shard_rows: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows of all shards."""
        return sum(self.shard_rows)


def save(
    path: str | os.PathLike[str],
    counts: Sequence[Counts],
    manifest: Manifest,
    left_out: Sequence[Deletions] = (),
) -> None:
    """Write the counts of all rows, in the row order of the manifest, and which rows were left out.

    Raises
    ------
    MachineError : the file cannot be written.
    """
    content, tensors = deletions.packed([replace(deletion, path="") for deletion in left_out])
    for number, own in enumerate(counts):
        tensors[_gaps(number)], tensors[_counts(number)] = own.gaps()
    shards = [{"fingerprint": one.fingerprint, "rows": one.rows} for one in manifest.shards]
    content |= {"witness_version": FORMAT_VERSION, "learners": len(counts), "shards": shards}
    write_sealed(path, content, tensors)


def load(path: str | os.PathLike[str], shards: Sequence[tuple[str, str]]) -> Witness:
    """The counts of the shards given, matched by fingerprint whatever their names and order.

    Parameters
    ----------
    shards : (name, fingerprint) in the order of the rows. Of shards with one fingerprint the
        first given gets the counts of the first written.

    Raises
    ------
    FileDamaged : not the bytes that were written, or counts that no run writes.
    DataError : no witness, or a witness of other shards.
    MachineError : the file cannot be read.
    """
    found = contents(path)
    order = _matched(path, [shard.fingerprint for shard in found.shards], shards)
    rows = [shard.rows for shard in found.shards]
    learners = [Counts.of_gaps(*found.gaps(number)) for number in range(found.learners)]
    if order != list(range(len(rows))):
        learners = [reordered(own, rows, order) for own in learners]
    return Witness(tuple(learners), tuple(rows[number] for number in order))


def contents(path: str | os.PathLike[str]) -> Contents:
    """What is in the file, in little memory.

    Raises
    ------
    FileDamaged, DataError, MachineError : as ``load``.
    """
    content, tensors = read_sealed(path, "witness")
    if content.get("witness_version") != FORMAT_VERSION:
        raise DataError(f"{path}: not a witness of version {FORMAT_VERSION}. Fit with --witness.")
    try:
        table = [Counted(shard["fingerprint"], shard["rows"]) for shard in content["shards"]]
        for shard in table:
            _check(shard)
        rows = sum(shard.rows for shard in table)
        for number in range(content["learners"]):
            _check_counts(number, rows, tensors)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FileDamaged(
            f"{path}: sealed, but what it holds is no witness ({error}). Fit again with --witness."
        ) from error
    deleted = deletions.unpacked(content, tensors, path)
    return Contents(table, deleted, content["learners"], tensors)


def _matched(
    path: str | os.PathLike[str], fingerprints: Sequence[str], shards: Sequence[tuple[str, str]]
) -> list[int]:
    """For each of the shards given, the number that it has in the witness."""
    known: dict[str, list[int]] = {}
    for number, fingerprint in enumerate(fingerprints):
        known.setdefault(fingerprint, []).append(number)
    order = []
    for name, fingerprint in shards:
        if not known.get(fingerprint):
            raise DataError(
                f"{name}: its content is not among the {len(fingerprints)} shards of the "
                f"witness {path}. Give the shards that the model was fitted on, unchanged."
            )
        order.append(known[fingerprint].pop(0))
    if missing := len(fingerprints) - len(order):
        raise DataError(
            f"{path}: {missing} of its {len(fingerprints)} shards are not among those given. "
            "Give all the shards that the model was fitted on."
        )
    return order


def _check(shard: Counted) -> None:
    known = type(shard.fingerprint) is str and type(shard.rows) is int
    if not known or not 0 <= shard.rows < MOST_ROWS:
        raise ValueError(f"a shard of {shard.rows!r} rows of {shard.fingerprint!r}")


def _check_counts(number: int, rows: int, tensors: Mapping[str, NDArray[Any]]) -> None:
    """ValueError unless these are positive counts of rows that there are."""
    gaps, counts = tensors[_gaps(number)], tensors[_counts(number)]
    check_gaps(gaps, counts)
    if len(gaps) and int(gaps.sum(dtype=np.uint64)) >= rows:
        raise ValueError(f"a count beyond the {rows} rows that there are")


def reordered(counts: Counts, rows: Sequence[int], order: Sequence[int]) -> Counts:
    """The counts with the shards in another order, or with some of them left out.

    Parameters
    ----------
    rows : of every shard.
    order : the numbers of those that stay, in their new order.
    """
    first = np.concatenate(([0], np.cumsum(rows)))
    moved, start = Counts(), 0
    numbers, values = counts.entries()
    for number in order:
        own = slice(*np.searchsorted(numbers, first[number : number + 2]))
        moved.put(numbers[own] - first[number] + start, values[own])
        start += rows[number]
    return moved


def _gaps(number: int) -> str:
    return f"{number:06d}.gaps"


def _counts(number: int) -> str:
    return f"{number:06d}.counts"
