"""Witness files: dual variables by shard fingerprint and row, which prove a certificate again.

A sealed safetensors file. For every learner it holds the gaps between rows with α ≠ 0 (uint32)
and these α (float32): a few bytes a support row. Forgotten rows are not numbered; they
are listed beside them, so that a reading leaves them out.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, FileDamaged
from streamtron.core.rows import NO_FACTS
from streamtron.core.sealed import Stored, Streamed, open_sealed, write_sealed
from streamtron.data import Manifest, deletions
from streamtron.data.deletions import Deletions
from streamtron.runs.learners import in_order, restore_finished
from streamtron.runs.parts import take_saved_alphas
from streamtron.runs.store import Store
from streamtron.solver.alphas import Alphas, Pieces, StreamedAlphas, check_gaps

FORMAT_VERSION = 3

MOST_ROWS = 2**48
"""More rows than shards have: a row takes at least a byte."""


class Counted(NamedTuple):
    """A shard and how many rows it has."""

    fingerprint: str
    rows: int


class WitnessAlphas(StreamedAlphas):
    """α of one learner in a witness file: those of a shard in memory at a time.

    ``rows`` : of every shard, as the file has them. ``order`` : shards by their numbers in the
    file, in the order in which their rows are numbered. A ValueError unless they
    are not 0, one a row at most, and of rows that there are.
    """

    def __init__(
        self, gaps: Stored, values: Stored, rows: Sequence[int], order: Sequence[int]
    ) -> None:
        self._gaps, self._alphas, self._rows = gaps, values, rows
        self._order = order
        self._first = np.cumsum([0, *rows])
        # entries before each shard, and the last row among them
        self._before, self._last_row = np.zeros((2, len(self._first)), dtype=np.int64)
        self._find_shards()

    def in_order(self, order: Sequence[int]) -> WitnessAlphas:
        """Return the same α with the rows numbered in another order of the shards."""
        reordered = copy(self)
        reordered._order = order
        return reordered

    def nonzero(self) -> Pieces:
        """Row numbers with α ≠ 0, rising, and these α: a shard at a time."""
        start = 0
        for number in self._order:
            entries = self._before[number : number + 2].tolist()
            gaps, values = self._gaps.read(*entries), self._alphas.read(*entries)
            offset = start - self._first[number] + self._last_row[number]
            yield offset + np.cumsum(gaps, dtype=np.int64), values
            start += self._rows[number]

    def _find_shards(self) -> None:
        """Check all entries, and find which are of which shard."""
        if self._gaps.shape != self._alphas.shape or len(self._gaps.shape) != 1:
            raise ValueError("another number of dual variables than of rows")
        last = 0
        for number, (gaps, values) in enumerate(
            zip(self._gaps.pieces(), self._alphas.pieces(), strict=True)
        ):
            check_gaps(gaps, values)
            if number and not gaps[0]:
                raise ValueError("a row named twice")
            numbers = last + np.cumsum(gaps, dtype=np.int64)
            places = np.searchsorted(numbers, self._first)
            self._before += places
            self._last_row = np.where(places, numbers[places - 1], self._last_row)
            last = int(numbers[-1])
        if self._gaps.length and last >= self._first[-1]:
            raise ValueError(f"a dual variable beyond the {self._first[-1]} rows that there are")


class Witness(NamedTuple):
    """α of every learner, in the order of the model's classes, of the rows of some shards, and the
    rows that are left out. The file holds the α; they are not in memory."""

    path: str | os.PathLike[str]
    shards: Sequence[Counted]
    deletions: Sequence[Deletions]
    alphas: Sequence[WitnessAlphas]

    @property
    def shard_rows(self) -> tuple[int, ...]:
        """Rows of every shard."""
        return tuple(shard.rows for shard in self.shards)

    def of(self, manifest: Manifest) -> Witness:
        """Return the same in the order of these shards, of which it is the witness; see
        ``ordered_as``. Another number of rows in one of them is a DataError."""
        known = self.ordered_as([(shard.name, shard.fingerprint) for shard in manifest.shards])
        for shard, rows in zip(manifest.shards, known.shard_rows, strict=True):
            if shard.rows != rows:
                compared = "more" if shard.rows > rows else "fewer"
                raise DataError(
                    f"{shard.name}: it holds {shard.rows} rows, {compared} than the {rows} that "
                    "are known of it. Give the shards as the witness has them."
                )
        return known

    def ordered_as(self, shards: Sequence[tuple[str, str]]) -> Witness:
        """Return the same with the shards in the order of these, (name, fingerprint). Of shards
        with one fingerprint the first given is the first written. Other shards are a DataError."""
        known = defaultdict[str, list[int]](list)
        for number, shard in enumerate(self.shards):
            known[shard.fingerprint].append(number)
        order = []
        for name, fingerprint in shards:
            if not known[fingerprint]:
                raise DataError(
                    f"{name}: its content is not among the {len(self.shards)} shards of the "
                    f"witness {self.path}. Give the shards that the model was fitted on, unchanged."
                )
            order.append(known[fingerprint].pop(0))
        if missing := len(self.shards) - len(order):
            raise DataError(
                f"{self.path}: {missing} of its {len(self.shards)} shards are not among those "
                "given. Give all the shards that the model was fitted on."
            )
        return self._replace(
            shards=[self.shards[number] for number in order],
            alphas=[alphas.in_order(order) for alphas in self.alphas],
        )


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


def export(store: Store, path: str | os.PathLike[str]) -> None:
    """Write the witness of a run that has ended, as its last state has the α."""
    settings, saved = Settings.from_dict(store.settings), store.state()
    if saved is None:
        raise DataError(f"{store.path}: the run has no state. Fit anew.")
    learners = restore_finished(saved.state, settings, NO_FACTS, saved.labels, None)
    if settings.parts is not None:
        take_saved_alphas(store.parts, settings, learners)
    manifest = store.manifest
    alphas = [learner.alphas for learner in in_order(learners, saved.labels, settings)]
    save(path, alphas, manifest, store.forgotten)


def load(path: str | os.PathLike[str]) -> Witness:
    """Open and check a witness file, in little memory.

    A damaged file, or dual variables that no run writes, are a FileDamaged; another version a
    DataError.
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
        rows = [shard.rows for shard in shards]
        if sum(rows) >= MOST_ROWS:
            raise ValueError(f"{sum(rows)} rows")
        alphas = [
            WitnessAlphas(tensors.pop(gaps), tensors.pop(values), rows, range(len(rows)))
            for gaps, values in map(_names, range(content["learners"]))
        ]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FileDamaged(
            f"{path}: sealed, but what it holds is no witness ({error}). Fit again with --witness."
        ) from error
    deleted = {
        name: tensor.read(0, tensor.length).reshape(tensor.shape)
        for name, tensor in tensors.items()
    }
    return Witness(path, shards, deletions.decode(content, deleted, path), alphas)


def _names(learner: int) -> tuple[str, str]:
    return f"{learner:06d}.gaps", f"{learner:06d}.alphas"
