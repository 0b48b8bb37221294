"""All that the rest of a run depends on, taken at a border between chunks and put back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import ScanSums
from streamtron.core.errors import DataError, FileDamaged
from streamtron.core.rows import Chunk, Label
from streamtron.solver.encoding import Arrays, Packer, unpack
from streamtron.solver.learner import Learner

_NOT_STATE = ("settings", "targets", "pool", "active")
"""What a learner is made from, and rows: those are read again."""


NOT_BEGUN = -1
"""Chunks digested of a reading that has not begun."""


@dataclass(frozen=True, slots=True)
class State:
    """A run at a border: ``chunks`` of reading ``reading`` have been digested by all learners, and
    each knows whether it has finished the reading.

    Parameters
    ----------
    reading, chunks : where it is; ``NOT_BEGUN`` chunks between two readings.
    content, arrays : the learners, as JSON and arrays.
    """

    reading: int
    chunks: int
    content: dict[str, Any]
    arrays: Arrays

    @classmethod
    def of(
        cls,
        reading: int,
        chunks: int,
        learners: Sequence[Learner],
        waiting: Sequence[Learner] = (),
        *,
        at_once: int = 0,
    ) -> State:
        """The state of learners, those of one class in the order of the candidates, until they go
        on: their arrays are not copied.

        ``at_once``: of how many a group is, where they learn in groups; 0 = all together."""
        packer = Packer()
        content = {
            "learners": [_packed(learner, packer) for learner in learners],
            "waiting": [_packed(learner, packer) for learner in waiting],
            "at_once": at_once,
        }
        return cls(reading, chunks, content, packer.arrays)

    @property
    def at_once(self) -> int:
        """See ``of``."""
        return int(self.content["at_once"])

    def learners(
        self, make: Callable[[Label | None], Learner], group: str
    ) -> list[RestoredLearner]:
        """The learners of a group, ``"learners"`` or ``"waiting"``, with the rows they are to
        hold again; ``make`` gives a new one for a positive label.

        Raises
        ------
        FileDamaged : the content is no state.
        """
        try:
            return [self._held(packed, make) for packed in self.content[group]]
        except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:
            raise FileDamaged(
                f"a checkpoint that is whole, but no state of a run ({error!r}). "
                "Begin anew with --overwrite."
            ) from error

    def _held(self, packed: Any, make: Callable[[Label | None], Learner]) -> RestoredLearner:
        learner = make(packed["positive"])
        fields = unpack(packed["fields"], self.arrays)
        held = _numbers(packed["held"], self.arrays)
        _check(learner, fields)
        vars(learner).update(fields)
        for report in learner.reports:
            report.restart_clock()
        return RestoredLearner(learner, held)


def _packed(learner: Learner, packer: Packer) -> dict[str, Any]:
    fields = {name: value for name, value in vars(learner).items() if name not in _NOT_STATE}
    positive = learner.targets.positive
    return {
        "positive": positive if isinstance(positive, float | str | bool) else None,
        # of those who hold all rows, how many there were
        "held": len(learner.active) if learner.holding_all else packer.pack(learner.active.numbers),
        "fields": packer.pack(fields),
    }


def _check(learner: Learner, fields: dict[str, Any]) -> None:
    """Raise ValueError where fields are missing, or arrays are not what kernels take unchecked."""
    if fields.keys() != vars(learner).keys() - set(_NOT_STATE):
        raise ValueError("other fields than a learner has")
    dual, frozen = fields["dual"], fields["frozen"]
    alike = [(dual.scalars, np.zeros(4)), (dual.tallies, np.zeros(3, dtype=np.int64))]
    wide = [dual.w]
    if frozen is not None:
        fresh = ScanSums(1.0, 0)
        found = frozen.scan_sums
        alike += [
            (getattr(found, name), getattr(fresh, name)) for name in ("bins", "sums", "totals")
        ]
        wide += [frozen.w, found.fresh] + ([] if frozen.carried is None else [frozen.carried])
    alike += [(one, np.zeros(len(dual.w))) for one in wide]
    if any(one.dtype != other.dtype or one.shape != other.shape for one, other in alike):
        raise ValueError("arrays of another kind or length")
    if fields["finished"] is None and not math.isfinite(kernels.square_sum(dual.w)):
        raise ValueError("weights that are no numbers")


def _numbers(held: Any, arrays: Arrays) -> NDArray[np.int64]:
    if isinstance(held, int):
        return np.arange(held, dtype=np.int64)
    return arrays[held["array"]].astype(np.int64)


class RestoredLearner:
    """A learner whose rows are still to be read again, in the order in which it held them."""

    def __init__(self, learner: Learner, numbers: NDArray[np.int64]) -> None:
        self.learner = learner
        self._missing = numbers

    @property
    def complete(self) -> bool:
        """Whether every row is there."""
        return not len(self._missing)

    def take(self, chunk: Chunk) -> None:
        """Hold those rows of a chunk whose turn it is."""
        learner = self.learner
        if learner.finished is None and chunk.width > len(learner.dual.w):
            raise DataError(
                f"the checkpoint knows {len(learner.dual.w)} columns, the shards have column "
                f"{chunk.width - 1}. Begin anew with --overwrite."
            )
        if self.complete:
            return
        targets = learner.targets(chunk)
        places = _places(chunk, self._missing)
        chosen = places[: int(np.argmin(places >= 0)) if (places < 0).any() else None]
        if not len(chosen):
            return
        if learner.holding_all:
            learner.active.share(learner.pool, chunk.rows, targets)
        else:
            learner.active.add(chunk.rows, chosen, targets)
        self._missing = self._missing[len(chosen) :]


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a run is taken up, and what its learners are to hold again.

    Parameters
    ----------
    reading, chunks : see ``State``.
    held : every learner with its rows.
    reopened : learners that had finished, but by other settings than now.
    """

    reading: int
    chunks: int
    held: Sequence[RestoredLearner]
    reopened: Sequence[Learner] = ()

    @property
    def first(self) -> bool:
        """Whether it is taken up within the first reading, which then begins anew, and those
        chunks that have been digested are only held again."""
        return self.reading == 0 and self.chunks != NOT_BEGUN

    @property
    def incomplete(self) -> list[RestoredLearner]:
        """Those who go on, and whose rows are not all held again."""
        return [
            held
            for held in self.held
            if not held.complete
            and (held.learner.finished is None or held.learner in self.reopened)
        ]

    def take_again(self, chunk: Chunk) -> None:
        """A chunk of the first reading that had been digested."""
        for held in self.held:
            held.take(chunk)


def _places(chunk: Chunk, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where in a chunk rows are, by their numbers; −1 where they are not."""
    places = np.full(min(len(numbers), len(chunk)), -1, dtype=np.int64)
    before = 0
    for start, stop in chunk.ranges:
        inside = (numbers[: len(places)] >= start) & (numbers[: len(places)] < stop)
        places[inside] = numbers[: len(places)][inside] - start + before
        before += stop - start
    return places
