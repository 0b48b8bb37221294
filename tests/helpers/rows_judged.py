"""The metrics of rows in memory, of two classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from streamtron.model.metrics import Evaluation, ScoreSpool


def evaluate(
    signs: ArrayLike, decisions: ArrayLike, weights: ArrayLike | None = None
) -> Evaluation:
    """Those of all rows at once, none of them on disk; ``signs`` > 0 is the larger class."""
    truth = np.asarray(signs) > 0
    own = None if weights is None else np.asarray(weights, np.float64)
    with ScoreSpool(limit_rows=max(len(truth), 1)) as spool:
        spool.add(truth, np.asarray(decisions, np.float64), own)
        return spool.evaluation()
