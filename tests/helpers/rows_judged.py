"""The metrics of rows in memory, of two classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from streamtron.model.metrics import Evaluation, Scores


def evaluate(
    signs: ArrayLike, decisions: ArrayLike, weights: ArrayLike | None = None
) -> Evaluation:
    """Those of all rows at once; ``signs`` > 0 is the larger class."""
    scores = Scores()
    given = None if weights is None else np.asarray(weights, np.float64)
    scores.add(np.asarray(signs) > 0, np.asarray(decisions, np.float64), given)
    return scores.evaluation()
