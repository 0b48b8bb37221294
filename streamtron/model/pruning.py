"""Models without their small weights, and what that can change."""

from __future__ import annotations

import itertools
from numbers import Real
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import SettingsError
from streamtron.core.names import checks_keywords
from streamtron.model.linear_model import LinearModel

_ROUNDING = 2.0**-50
"""Above what a square, a sum's next term and a root are off by, relatively, for each term."""


class Pruned(NamedTuple):
    """A ``model`` without small weights; ``dropped`` : how many these were; ``changes`` : ‖d‖₂ of
    each of its rows of weights, float64, shape (K,), where d are the weights dropped."""

    model: LinearModel
    dropped: int
    changes: NDArray[np.float64]


@checks_keywords()
def prune(model: LinearModel, below: float) -> Pruned:
    """Drop the weights with |w_j| < ``below``, and prove what changes.

    The decision of a row x changes by |d·x| ≤ ‖d‖₂ ‖x‖₂ (Cauchy and Schwarz), d being the weights
    that are dropped, rounding of decisions apart; ``changes`` are these ‖d‖₂, rounded upward. The
    bias stays, a calibration too. Nothing is proven of the objective at the weights that are left:
    the model has no certificate. SettingsError: ``below`` is not a number above 0.

    Examples
    --------
    >>> model = LinearModel(np.array([3.0, 0.0, -0.5]), 0.5, (0, 1), {}, None, {"index_base": 0})
    >>> small = prune(model, 1.0)
    >>> small.model.weights, small.dropped, small.changes.round(6)
    (array([3., 0., 0.]), 1, array([0.5]))
    """
    if not (isinstance(below, Real) and 0.0 < below < np.inf):
        raise SettingsError(f"drop below {below!r:.40}: wanted a number above 0.")
    weights = model.sparse_weights
    small = np.abs(weights.data) < below
    kept = weights.copy()
    kept.data[small] = 0.0
    kept.eliminate_zeros()
    spans = itertools.pairwise(weights.indptr.tolist())
    lengths = np.array([_length(weights.data[a:z][small[a:z]]) for a, z in spans])
    pruned = model.but(weights=kept, certificate=None, offsets=None)
    return Pruned(pruned, int(small.sum()), lengths)


def _length(dropped: NDArray[np.float64]) -> float:
    """Return ‖d‖₂, rounded upward; scaled, so that no square under- or overflows."""
    largest = float(np.abs(dropped).max(initial=0.0))
    if not largest:
        return 0.0
    scaled = dropped / largest
    return largest * float(np.sqrt(scaled @ scaled)) * (1.0 + (len(dropped) + 8) * _ROUNDING)
