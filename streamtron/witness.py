"""The witness: counts by shard fingerprint and row, from which anybody re-proves an upper bound.

A sealed safetensors file; for every shard, the gaps between the rows that have a positive count
(uint32) and those counts (int32): a few bytes a support row.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamtron.errors import DataError, FileDamaged
from streamtron.sealed import read_sealed, write_sealed

if TYPE_CHECKING:
    from streamtron.shards import Manifest

FORMAT_VERSION = 1


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
    content, tensors = read_sealed(path, "witness")
    if content.get("witness_version") != FORMAT_VERSION:
        raise DataError(f"{path}: not a witness of version {FORMAT_VERSION}. Fit with --witness.")
    try:
        fingerprints = [str(shard["fingerprint"]) for shard in content["shards"]]
        parts = [_unpacked(n, shard["rows"], tensors) for n, shard in enumerate(content["shards"])]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FileDamaged(
            f"{path}: sealed, but what it holds is no witness ({error}). Fit again with --witness."
        ) from error
    order = _matched(path, fingerprints, shards)
    return np.concatenate([np.zeros(0, dtype=np.int32), *(parts[number] for number in order)])


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


def _unpacked(number: int, rows: int, tensors: Mapping[str, NDArray[Any]]) -> NDArray[np.int32]:
    """The counts of all rows of one shard."""
    gaps, counts = tensors[_gaps(number)], tensors[_counts(number)]
    right = gaps.dtype == np.uint32 and counts.dtype == np.int32 and gaps.shape == counts.shape
    # the upper bound holds for counts ≥ 0 alone: one negative count would prove what is false
    if not right or (counts <= 0).any():
        raise ValueError(f"counts of shard {number} that are not positive int32, one a gap")
    own = np.zeros(rows, dtype=np.int32)
    own[np.cumsum(gaps, dtype=np.int64)] = counts
    return own


def _gaps(number: int) -> str:
    return f"{number:06d}.gaps"


def _counts(number: int) -> str:
    return f"{number:06d}.counts"
