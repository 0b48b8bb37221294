"""Rows that are taken away from a run which has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from streamtron.core import kernels
from streamtron.core.errors import DataError
from streamtron.core.rows import Chunk
from streamtron.solver.learner import Learner


def subtract_rows(chunks: Iterable[Chunk], learners: Sequence[Learner]) -> None:
    """Take Σ c_k y_k over rows out of a: after ``Learner.begin_change``, the counts as they were.

    Parameters
    ----------
    chunks : the rows, by their numbers in the data as it was.
    """
    parts = [np.zeros(len(learner.dual.w) + 1) for learner in learners]
    extensions, steps = np.zeros(len(learners)), np.zeros(len(learners), dtype=np.int64)
    for chunk in chunks:
        for k, learner in enumerate(learners):
            if chunk.width > len(learner.dual.w):
                raise DataError(
                    f"row {chunk.ranges[0][0]} or one behind it has a column that the run never "
                    "met: the shard is not what it was. Take it away, and it is done without."
                )
            targets = learner.targets(chunk)
            counts = learner.counts.take_ranges(chunk.ranges)
            factors = counts.astype(np.float64)
            kernels.combine(chunk.rows, factors * targets.signs, learner.settings.rho, parts[k])
            extensions[k] += kernels.dot(targets.delta2 * factors, factors)
            steps[k] += counts.sum(dtype=np.int64)
    for k, learner in enumerate(learners):
        learner.take_away(parts[k], float(extensions[k]), int(steps[k]))
