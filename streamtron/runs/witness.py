"""Witness files: counts by shard fingerprint and row, which re-prove an upper bound.

A sealed safetensors file. For every learner it holds the gaps between rows with a positive count
(uint32) and these counts (int32): a few bytes a support row. Forgotten rows are not numbered; they
are listed beside the counts, so that a reading leaves them out.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError, FileDamaged
from streamtron.core.sealed import Streamed, read_sealed, write_sealed
from streamtron.data import Manifest, deletions
from streamtron.data.deletions import Deletions
from streamtron.solver.duals import Counts, check_gaps
from streamtron.solver.saved_counts import SavedCounts

FORMAT_VERSION = 2

MOST_ROWS = 2**48
"""More rows than any shard has: a row takes at least a byte."""


class Counted(NamedTuple):
    """A shard."""

    fingerprint: str
    rows: int


class Contents(NamedTuple):
    """Validated contents of a witness file: shards, deleted rows, gaps and counts of learners."""

    shards: list[Counted]
    deletions: list[Deletions]
    learners: int
    tensors: Mapping[str, NDArray[Any]]

    @property
    def counts(self) -> list[NDArray[np.int32]]:
        """The positive counts of every learner."""
        return [self.gaps(number)[1] for number in range(self.learners)]

    def gaps(self, number: int) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        """Return ``Counts.gaps`` of one learner, with the shards in the file's order."""
        return self.tensors[f"{number:06d}.gaps"], self.tensors[f"{number:06d}.counts"]


class Witness(NamedTuple):
    """Counts of every learner, in the order of the model's classes, and rows of every shard."""

    counts: tuple[Counts, ...]
    shard_rows: tuple[int, ...]


def save(
    path: str | os.PathLike[str],
    counts: Sequence[Counts],
    manifest: Manifest,
    left_out: Sequence[Deletions] = (),
) -> None:
    """Write the counts of all rows, in the row order of the manifest, and the deleted rows."""
    content, rows = deletions.encode([replace(deletion, path="") for deletion in left_out])
    tensors: dict[str, NDArray[Any] | Streamed] = {**rows}
    for number, own in enumerate(counts):
        names = f"{number:06d}.gaps", f"{number:06d}.counts"
        found = own.streamed() if isinstance(own, SavedCounts) else own.gaps()
        tensors |= dict(zip(names, found, strict=True))
    shards = [{"fingerprint": one.fingerprint, "rows": one.rows} for one in manifest.shards]
    content |= {"witness_version": FORMAT_VERSION, "learners": len(counts), "shards": shards}
    write_sealed(path, content, tensors)


def load(path: str | os.PathLike[str], shards: Sequence[tuple[str, str]]) -> Witness:
    """Load the counts of shards, (name, fingerprint) in the order of the rows. Of shards with one
    fingerprint the first given gets the counts of the first written.

    A damaged file, or counts that no run writes, are a FileDamaged; other shards a DataError.
    """
    found = contents(path)
    order = _matched(path, [shard.fingerprint for shard in found.shards], shards)
    rows = [shard.rows for shard in found.shards]
    learners = [Counts.of_gaps(*found.gaps(number)) for number in range(found.learners)]
    if order != sorted(order):
        learners = [reordered(own, rows, order) for own in learners]
    return Witness(tuple(learners), tuple(rows[number] for number in order))


def contents(path: str | os.PathLike[str]) -> Contents:
    """Read and validate a witness file, in little memory; raises as ``load``."""
    content, tensors = read_sealed(path, "witness")
    if content.get("witness_version") != FORMAT_VERSION:
        raise DataError(f"{path}: not a witness of version {FORMAT_VERSION}. Fit with --witness.")
    try:
        table = [Counted(shard["fingerprint"], shard["rows"]) for shard in content["shards"]]
        found = Contents(table, [], content["learners"], tensors)
        for shard in table:
            known = type(shard.fingerprint) is str and type(shard.rows) is int
            if not known or not 0 <= shard.rows < MOST_ROWS:
                raise ValueError(f"a shard of {shard.rows!r} rows of {shard.fingerprint!r}")
        rows = sum(shard.rows for shard in table)
        for number in range(found.learners):
            gaps, counts = found.gaps(number)
            check_gaps(gaps, counts)
            if len(gaps) and int(gaps.sum(dtype=np.uint64)) >= rows:
                raise ValueError(f"a count beyond the {rows} rows that there are")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FileDamaged(
            f"{path}: sealed, but what it holds is no witness ({error}). Fit again with --witness."
        ) from error
    return found._replace(deletions=deletions.decode(content, tensors, path))


def _matched(
    path: str | os.PathLike[str], fingerprints: Sequence[str], shards: Sequence[tuple[str, str]]
) -> list[int]:
    """Return the number that each of the given shards has in the witness."""
    known = defaultdict[str, list[int]](list)
    for number, fingerprint in enumerate(fingerprints):
        known[fingerprint].append(number)
    order = []
    for name, fingerprint in shards:
        if not known[fingerprint]:
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


def reordered(counts: Counts, rows: Sequence[int], order: Sequence[int]) -> Counts:
    """Return the counts of some of the shards, by their numbers in a new ``order``; ``rows`` are
    those of every shard."""
    first = np.concatenate(([0], np.cumsum(rows)))
    moved, start = Counts(), 0
    numbers, values = counts.entries()
    for number in order:
        own = slice(*np.searchsorted(numbers, first[number : number + 2]))
        moved.put(numbers[own] - first[number] + start, values[own])
        start += rows[number]
    return moved
