"""The losses: φ of a row's margin m = l (w·x + ρ w_bias), in the objective ½ ‖w‖² + Σ C_k φ(m_k).

A loss is a record here, and a branch in each of the helpers ``_value``, ``_slope``, ``_curvature``
and ``_step`` of ``core.kernels``, which know it by its code.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels

Vector = NDArray[np.float64]


class Loss(NamedTuple):
    """What the solver has to know of a loss."""

    name: str
    """as scikit-learn has it"""
    code: int
    """what kernels branch on"""
    quadratic: bool
    """whether φ is a quadratic between bends: its sums by bins give P at any scale, and many rows
    together cost one quadratic"""
    sparse: bool
    """whether φ is 0 beyond a margin, so that rows there do not matter"""
    most: float
    """α ≤ most · C"""
    liblinear: int
    """LIBLINEAR's -s for the same problem"""


SQUARED_HINGE = Loss(
    "squared_hinge", kernels.SQUARED_HINGE, quadratic=True, sparse=True, most=np.inf, liblinear=1
)
"""max(0, 1 − m)²."""

LOSSES = {loss.name: loss for loss in (SQUARED_HINGE,)}


def values(loss: Loss, margins: Vector) -> Vector:
    """Return φ(m), shape (rows,).

    >>> values(SQUARED_HINGE, np.array([-1.0, 0.5, 2.0]))
    array([4.  , 0.25, 0.  ])
    """
    return _at(loss, 0, margins)


def slopes(loss: Loss, margins: Vector) -> Vector:
    """Return −φ'(m), shape (rows,): α = C times it is the dual point that belongs to margins.

    >>> slopes(SQUARED_HINGE, np.array([-1.0, 0.5, 2.0]))
    array([4., 1., 0.])
    """
    return _at(loss, 1, margins)


def curvatures(loss: Loss, margins: Vector) -> Vector:
    """Return φ''(m), shape (rows,).

    >>> curvatures(SQUARED_HINGE, np.array([-1.0, 0.5, 2.0]))
    array([2., 2., 0.])
    """
    return _at(loss, 2, margins)


def _at(loss: Loss, order: int, margins: Vector) -> Vector:
    found = np.empty(len(margins))
    kernels.loss_at(loss.code, order, margins, found)
    return found
