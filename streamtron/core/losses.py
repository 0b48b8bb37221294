"""The losses: φ of a row's margin m = l (w·x + ρ w_bias), in the objective ½ ‖w‖² + Σ C_k φ(m_k).

A loss is a record here, and a branch in each of the helpers ``_value``, ``_slope``, ``_curvature``,
``_gain`` and ``_step`` of ``core.kernels``, which know it by its code. Conjugates: Mairal, Cyanure
(2019), Table 1; Yu, Huang and Lin, Machine Learning 85 (2011), for the logistic loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Loss:
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
    """α ≤ most · C; not ∞, of which a part of C = 0 would be no number"""
    liblinear: tuple[str, ...]
    """LIBLINEAR's solver_type of the same problem, first the one of which models are written"""
    bend: float
    """the margin near which φ'' changes"""
    logistic: bool = False
    """whether σ(m) is the probability of a row's label"""
    zone: float = 0.0
    """η of a hinge that is smoothed; see ``kernels.HINGE``"""


SQUARED_HINGE = Loss(
    "squared_hinge",
    kernels.SQUARED_HINGE,
    quadratic=True,
    sparse=True,
    most=1e250,
    liblinear=("L2R_L2LOSS_SVC", "L2R_L2LOSS_SVC_DUAL"),
    bend=1.0,
)
"""max(0, 1 − m)²."""

LOG_LOSS = Loss(
    "log_loss",
    kernels.LOG_LOSS,
    quadratic=False,
    sparse=False,
    most=1.0,
    liblinear=("L2R_LR", "L2R_LR_DUAL"),
    bend=0.0,
    logistic=True,
)
"""ln(1 + e^−m)."""

HINGE = Loss(
    "hinge",
    kernels.HINGE,
    quadratic=False,
    sparse=True,
    most=1.0,
    liblinear=("L2R_L1LOSS_SVC_DUAL",),
    bend=1.0,
)
"""max(0, 1 − m)."""

SMOOTH_HINGE = replace(HINGE, zone=3.0)
"""The first smooth loss in the place of the hinge, see ``HeldLoss.approach``. A zone of 1 takes up
to twice as many products at C ≥ 5 (``benchmarks/parts.py --loss hinge``)."""

PENALISED = replace(SQUARED_HINGE, quadratic=False)
"""The squared hinge where the penalty has a 1-norm: P is no quadratic then."""

LOSSES = {loss.name: loss for loss in (SQUARED_HINGE, LOG_LOSS, HINGE)}

SOLVED = {**LOSSES, "hinge": SMOOTH_HINGE}
"""The losses as rows in memory are solved by them."""


def loss_of(settings: Mapping[str, Any]) -> Loss:
    """Return the loss of a model with these settings; the squared hinge where they have none."""
    return LOSSES.get(str(settings.get("loss")), SQUARED_HINGE)


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


def expansion(loss: Loss, margins: Vector) -> tuple[Vector, Vector, Vector]:
    """Return k, g and c, shape (rows,), of φ(m) ≈ ½ k m² − g m + c, Taylor's polynomial at the
    margins; on their side of the bend it is a quadratic loss itself.

    >>> [terms.tolist() for terms in expansion(SQUARED_HINGE, np.array([-1.0, 2.0]))]
    [[2.0, 0.0], [2.0, 0.0], [1.0, 0.0]]
    """
    curvature = curvatures(loss, margins)
    if loss.quadratic:
        return curvature, loss.bend * curvature, 0.5 * loss.bend**2 * curvature
    slope = slopes(loss, margins)
    constant = values(loss, margins) + (slope + 0.5 * curvature * margins) * margins
    return curvature, slope + curvature * margins, constant


def gains(loss: Loss, p: Vector) -> Vector:
    """Return −φ*(−p), shape (rows,): what dual variables α = C p add to D, over C; −∞ beyond
    ``most``.

    >>> gains(SQUARED_HINGE, np.array([0.0, 1.0, 2.0]))
    array([0.  , 0.75, 1.  ])
    """
    return _at(loss, 3, p)


def _at(loss: Loss, order: int, places: Vector) -> Vector:
    found = np.empty(len(places))
    kernels.loss_at(loss.code, loss.zone, order, places, found)
    return found
