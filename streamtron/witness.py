"""The witness: counts by shard fingerprint and row, from which anybody re-proves an upper bound.

A sealed safetensors file; for every shard, the gaps between the rows that have a positive count
(uint32) and those counts (int32): a few bytes a support row.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.errors import DataError, FileDamaged
from streamtron.sealed import read_sealed, write_sealed

if TYPE_CHECKING:
    from streamtron.shards import Manifest

FORMAT_VERSION = 1


class Counted(NamedTuple):
    """A shard as a witness knows it."""

    fingerprint: str
    rows: int


def save(path: str | os.PathLike[str], counts: NDArray[np.int32], manifest: Manifest) -> None:
    """Write the counts of all rows (int32, shape (rows,), row order of the manifest).

    Raises
    ------
    MachineError : the file cannot be written.
    """
    tensors: dict[str, NDArray[Any]] = {}
    shards = []
    for number, shard in enumerate(manifest.shards):
        own = counts[shard.first_row : shard.first_row + shard.rows]
        support = np.flatnonzero(own)
        tensors[_gaps(number)] = np.diff(support, prepend=0).astype(np.uint32)
        tensors[_counts(number)] = own[support].astype(np.int32)
        shards.append({"fingerprint": shard.fingerprint, "rows": shard.rows})
    write_sealed(path, {"witness_version": FORMAT_VERSION, "shards": shards}, tensors)


def load(path: str | os.PathLike[str], shards: Sequence[tuple[str, str]]) -> NDArray[np.int32]:
    """The counts of the shards given, matched by fingerprint whatever their names and order.

    Parameters
    ----------
    shards : (name, fingerprint) in the order of the rows. Of shards with one fingerprint the
        first given gets the counts of the first written.

    Returns
    -------
    int32, shape (rows,), ≥ 0.

    Raises
    ------
    FileDamaged : not the bytes that were written, or counts that no run writes.
    DataError : no witness, or a witness of other shards.
    MachineError : the file cannot be read.
    """
    table, tensors = contents(path)
    order = _matched(path, [shard.fingerprint for shard in table], shards)
    try:
        counts = np.zeros(sum(shard.rows for shard in table), dtype=np.int32)
    except (ValueError, MemoryError) as error:
        raise FileDamaged(
            f"{path}: counts of {sum(shard.rows for shard in table)} rows, more than memory holds. "
            "Give the witness of these shards."
        ) from error
    first = 0
    for number in order:
        gaps, own = tensors[_gaps(number)], tensors[_counts(number)]
        counts[first + np.cumsum(gaps, dtype=np.int64)] = own  # pages without a count stay unused
        first += table[number].rows
    return counts


def contents(path: str | os.PathLike[str]) -> tuple[list[Counted], dict[str, NDArray[Any]]]:
    """The shards that a witness speaks of, and the gaps and counts of each, checked.

    Raises
    ------
    FileDamaged, DataError, MachineError : as ``load``.
    """
    content, tensors = read_sealed(path, "witness")
    if content.get("witness_version") != FORMAT_VERSION:
        raise DataError(f"{path}: not a witness of version {FORMAT_VERSION}. Fit with --witness.")
    try:
        table = [Counted(shard["fingerprint"], shard["rows"]) for shard in content["shards"]]
        for number, shard in enumerate(table):
            _check(number, shard, tensors)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FileDamaged(
            f"{path}: sealed, but what it holds is no witness ({error}). Fit again with --witness."
        ) from error
    return table, tensors


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


def _check(number: int, shard: Counted, tensors: Mapping[str, NDArray[Any]]) -> None:
    """ValueError unless these are positive counts of rows that the shard has."""
    gaps, counts = tensors[_gaps(number)], tensors[_counts(number)]
    if type(shard.fingerprint) is not str or type(shard.rows) is not int or shard.rows < 0:
        raise ValueError(f"shard {number} is {shard.rows!r} rows of {shard.fingerprint!r}")
    right = gaps.dtype == np.uint32 and counts.dtype == np.int32
    # the upper bound holds for counts ≥ 0 alone: one negative count would prove what is false
    if not right or gaps.shape != counts.shape or gaps.ndim != 1 or (counts <= 0).any():
        raise ValueError(f"counts of shard {number} that are not positive int32, one a gap")
    if len(gaps) and int(gaps.sum(dtype=np.uint64)) >= shard.rows:
        raise ValueError(f"a count beyond the {shard.rows} rows of shard {number}")


def _gaps(number: int) -> str:
    return f"{number:06d}.gaps"


def _counts(number: int) -> str:
    return f"{number:06d}.counts"
