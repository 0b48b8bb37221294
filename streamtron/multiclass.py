"""Two classes are one learner; more are one a class, against the rest, on the same readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.certificate import Certificate
from streamtron.chunk import Label
from streamtron.config import Machine, Settings
from streamtron.errors import DataError
from streamtron.fitting import class_weights
from streamtron.memory import memory_needed
from streamtron.shards import ShardSource
from streamtron.training.learner import Learner
from streamtron.training.loop import train
from streamtron.training.past import Past

ClassWeights = Mapping[Label, float]


class Found(NamedTuple):
    """What a learner found, without the rows it held."""

    past: Past
    certificate: Certificate
    counts: NDArray[np.int32]
    full_epochs: int
    ending: str

    @classmethod
    def of(cls, learner: Learner, rows: int, columns: slice, sign: float = 1.0) -> Found:
        """From a finished learner; ``columns`` and ``sign`` as in ``Past.of``."""
        assert learner.certificate is not None
        assert learner.finished is not None
        past = Past.of(learner, columns, sign)
        counts = learner.counts.dense(rows)
        return cls(past, learner.certificate, counts, learner.full_epochs, learner.finished)


def problems(
    labels: Sequence[Label], weights: ClassWeights | None
) -> list[tuple[Label, ClassWeights | None]]:
    """(positive label, class weights) of every learner: one for two labels, else one a label, in
    which all others are the rest, of weight 1."""
    if len(labels) == 2:
        return [(labels[1], weights)]
    return [(label, weights and {label: weights.get(label, 1.0)}) for label in labels]


def learned(
    source: ShardSource, known: Sequence[Label] | None, settings: Settings, at_once: int
) -> list[Found]:
    """What is found in shards of two labels, as they come, or of those known."""
    weights = class_weights(source, settings)
    wanted: Sequence[tuple[Label | None, ClassWeights | None]] = [(None, weights)]
    if known is not None:
        wanted = problems(known, weights)
    found = []
    for start in range(0, len(wanted), at_once):
        learners = [
            Learner(settings, source.labels, own, positive)
            for positive, own in wanted[start : start + at_once]
        ]
        train(source, learners, settings)
        labels, base = source.labels, source.index_base or 0
        if len(labels) < 2:
            raise DataError(
                f"all {source.rows} rows have one class, {labels[0]!r}: wanted two. Add shards "
                "that hold the other one, or check label."
            )
        # the first label met was the positive one, unless it was said which
        sign = -1.0 if known is None and labels[0] == min(labels, key=_key) else 1.0
        columns = slice(base, max(source.width, base))
        found += [Found.of(one, source.rows or 0, columns, sign) for one in learners]
    return found


def together(settings: Settings, machine: Machine) -> int:
    """Learners that fit in memory side by side; what each finds does not depend on it."""
    one = sum(need.size for need in memory_needed(settings, rows=0, columns=0))
    fixed = sum(need.size for need in memory_needed(settings.but(active_set=0), rows=0, columns=0))
    return max(1, (machine.memory_limit - fixed) // max(one - fixed, 1))


def _key(label: Label) -> Any:
    return label
