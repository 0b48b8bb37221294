"""The weights that a run carried to its end, to be held against those that its counts make."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError, StreamtronError
from streamtron.model.linear_model import LinearModel
from streamtron.runs import witness as witness_file
from streamtron.runs.ended import Ended, look_at_ended
from streamtron.runs.learners import finished_learners, several
from streamtron.runs.results import in_order, turn
from streamtron.solver.learner import Learner

_log = logging.getLogger(__name__)


def carried_by(
    run: str | os.PathLike[str], model: LinearModel, witness: str | os.PathLike[str]
) -> list[NDArray[np.float64]] | None:
    """w = Σ c_k l_k x_k as training carried it to the end of a run, of every direction of its
    model; not the weights of the model, which are those of the least primal, scaled.

    Parameters
    ----------
    run : its directory.
    model : the run's.
    witness : with the counts that the weights are to be held against.

    Returns
    -------
    float64 vectors, one a direction, by the columns' numbers in the shards. None, after a warning
    that says why, if the last checkpoint is not of the model's end: a certificate needs none.
    """
    try:
        with look_at_ended(run) as ended:
            found = _learners(ended, model, witness)
    except StreamtronError as error:
        _log.warning("%s The drift of the carried weights is not told.", error)
        return None
    sign = turn(ended.checkpoint.labels, model.classes, ended.settings)
    return [sign * learner.dual.w for learner in found]


def _learners(
    ended: Ended, model: LinearModel, witness: str | os.PathLike[str]
) -> Sequence[Learner]:
    """The run's learners, in the order of the model's directions."""
    labels, settings = ended.checkpoint.labels, ended.settings
    learners = finished_learners(ended.checkpoint.state, settings, labels, None)
    counts = witness_file.contents(witness)
    wanted = len(labels) if several(settings) else 1
    at_end = len(learners) == wanted and all(learner.finished for learner in learners)
    alike = len(labels) == len(model.classes) and all(own in labels for own in model.classes)
    if at_end and alike:
        found = in_order(learners, labels, settings)
        if len(found) == counts.learners and all(
            _same(learner, *counts.gaps(number)) for number, learner in enumerate(found)
        ):
            return found
    raise DataError(f"{ended.path}: its last checkpoint has other counts than {witness}.")


def _same(learner: Learner, gaps: NDArray[np.uint32], counts: NDArray[np.int32]) -> bool:
    ours = learner.counts.gaps()
    return np.array_equal(ours[0], gaps) and np.array_equal(ours[1], counts)
