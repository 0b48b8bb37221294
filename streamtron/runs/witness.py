"""Witness files: dual variables by shard fingerprint and row, which prove a certificate again.

A sealed safetensors file. For every learner it holds the gaps between rows with α ≠ 0 (uint32)
and these α (float32): a few bytes a support row. Forgotten rows are not numbered; they
are listed beside them, so that a reading leaves them out.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, FileDamaged
from streamtron.core.rows import Label
from streamtron.core.sealed import Stored, Streamed, open_sealed, write_sealed
from streamtron.data import Manifest, ShardRecord, deletions
from streamtron.data.deletions import Deletions
from streamtron.runs.learners import codes_in_order, in_order, restored
from streamtron.runs.parts import take_saved_alphas
from streamtron.runs.store import Store
from streamtron.solver.alphas import Alphas, check_gaps
from streamtron.solver.learner import Learner

FORMAT_VERSION = 3

MOST_ROWS = 2**48
"""More rows than shards have: a row takes at least a byte."""


class Counted(NamedTuple):
    """A shard and how many rows it has."""

    fingerprint: str
    rows: int


class Witness(NamedTuple):
    """α of every learner, in the order of the model's classes, of the rows of some shards, and the
    rows that are left out. ``stored`` : gaps and α of each learner, which the file holds."""

    path: str | os.PathLike[str]
    shards: Sequence[Counted]
    deletions: Sequence[Deletions]
    stored: Sequence[tuple[Stored, Stored]]

    @property
    def shard_rows(self) -> tuple[int, ...]:
        """Rows of every shard."""
        return tuple(shard.rows for shard in self.shards)

    def order_of(self, shards: Sequence[ShardRecord]) -> list[int]:
        """Return the number in the witness of each of these shards. Of shards with one fingerprint
        the first given is the first written. Other shards, or another number of rows in one of
        them, are a DataError."""
        known = defaultdict[str, list[int]](list)
        for number, counted in enumerate(self.shards):
            known[counted.fingerprint].append(number)
        order = []
        for shard in shards:
            if not known[shard.fingerprint]:
                raise DataError(
                    f"{shard.name}: its content is not among the {len(self.shards)} shards of the "
                    f"witness {self.path}. Give the shards that the model was fitted on, unchanged."
                )
            order.append(known[shard.fingerprint].pop(0))
            if shard.rows != (rows := self.shards[order[-1]].rows):
                compared = "more" if shard.rows > rows else "fewer"
                raise DataError(
                    f"{shard.name}: it holds {shard.rows} rows, {compared} than the {rows} that "
                    "are known of it. Give the shards as the witness has them."
                )
        if missing := len(self.shards) - len(order):
            raise DataError(
                f"{self.path}: {missing} of its {len(self.shards)} shards are not among those "
                "given. Give all the shards that the model was fitted on."
            )
        return order

    def alphas(self, learner: int, order: Sequence[int], width: int = 1) -> Alphas:
        """Read the α of a learner, ``width`` a row, with the rows numbered in this order of the
        shards. FileDamaged: they are those of no run."""
        rows = width * np.array(self.shard_rows, dtype=np.int64)
        ends, moved = np.cumsum(rows), np.zeros(len(rows), dtype=np.int64)
        moved[order] = np.cumsum(rows[order]) - rows[order]
        moved -= ends - rows
        result, last = Alphas(), -1
        try:
            gaps_of, values_of = self.stored[learner]
            if gaps_of.shape != values_of.shape or len(gaps_of.shape) != 1:
                raise ValueError("another number of dual variables than of rows")
            for gaps, values in zip(gaps_of.pieces(), values_of.pieces(), strict=True):
                check_gaps(gaps, values)
                numbers = max(last, 0) + np.cumsum(gaps, dtype=np.int64)
                if numbers[0] == last:
                    raise ValueError("a row named twice")
                if (last := int(numbers[-1])) >= rows.sum():
                    raise ValueError(f"a dual variable beyond the {rows.sum()} rows that there are")
                result.put(numbers + moved[np.searchsorted(ends, numbers, side="right")], values)
        except ValueError as error:
            raise _damaged(self.path, error) from error
        result.width = width
        return result


def save(
    path: str | os.PathLike[str],
    alphas: Sequence[Alphas],
    manifest: Manifest,
    left_out: Sequence[Deletions] = (),
) -> None:
    """Write the α of all rows, in the row order of the manifest, and the deleted rows."""
    content, rows = deletions.encode([replace(deletion, path="") for deletion in left_out])
    tensors: dict[str, NDArray[Any] | Streamed] = {**rows}
    for number, of_learner in enumerate(alphas):
        tensors |= dict(zip(_names(number), of_learner.streamed(), strict=True))
    shards = [{"fingerprint": shard.fingerprint, "rows": shard.rows} for shard in manifest.shards]
    content |= {"witness_version": FORMAT_VERSION, "learners": len(alphas), "shards": shards}
    write_sealed(path, content, tensors)


def alphas_of(learners: Sequence[Learner], labels: Sequence[Label]) -> list[Alphas]:
    """Return the α of every learner; of softmax in the order of the model's classes."""
    if learners[0].outputs == 1:
        return [learner.alphas for learner in learners]
    return [learners[0].alphas.reordered(codes_in_order(labels))]


def export(store: Store, path: str | os.PathLike[str]) -> None:
    """Write the witness of a run that has ended, as its last state has the α."""
    settings, saved = Settings.from_dict(store.settings), store.state()
    if saved is None:
        raise DataError(f"{store.path}: the run has no state. Fit anew.")
    learners = restored(saved, settings)
    if settings.parts is not None:
        take_saved_alphas(store.parts, settings, learners)
    alphas = alphas_of(in_order(learners, saved.labels, settings), saved.labels)
    save(path, alphas, store.manifest, store.forgotten)


def load(path: str | os.PathLike[str]) -> Witness:
    """Open and check a witness file; its α are checked when they are read.

    A damaged file, or shards that no run writes, are a FileDamaged; another version a DataError.
    """
    content, tensors = open_sealed(path, "witness")
    if content.get("witness_version") != FORMAT_VERSION:
        raise DataError(f"{path}: not a witness of version {FORMAT_VERSION}. Fit with --witness.")
    try:
        shards = [Counted(shard["fingerprint"], shard["rows"]) for shard in content["shards"]]
        for shard in shards:
            known = type(shard.fingerprint) is str and type(shard.rows) is int
            if not known or not 0 <= shard.rows < MOST_ROWS:
                raise ValueError(f"a shard of {shard.rows!r} rows of {shard.fingerprint!r}")
        if (rows := sum(shard.rows for shard in shards)) >= MOST_ROWS:
            raise ValueError(f"{rows} rows")
        learners = map(_names, range(content["learners"]))
        stored = [(tensors.pop(gaps), tensors.pop(values)) for gaps, values in learners]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise _damaged(path, error) from error
    deleted = {
        name: tensor.read(0, tensor.length).reshape(tensor.shape)
        for name, tensor in tensors.items()
    }
    return Witness(path, shards, deletions.decode(content, deleted, path), stored)


def _damaged(path: str | os.PathLike[str], error: Exception) -> FileDamaged:
    return FileDamaged(
        f"{path}: sealed, but what it holds is no witness ({error}). Fit again with --witness."
    )


def _names(learner: int) -> tuple[str, str]:
    return f"{learner:06d}.gaps", f"{learner:06d}.alphas"
