"""The losses φ(t, z) in the objective ½ ‖w‖² + Σ C_k φ(t_k, z_k). Of classes z is the margin
l (w·x + ρ w_bias) and t is not used; where labels are numbers t, z is w·x + ρ w_bias.

A loss is a record here, and a branch in each of the helpers ``_value``, ``_slope``, ``_curvature``,
``_gain`` and ``_new_alpha`` of ``core.kernels``, which know it by its code. Conjugates: Mairal,
Cyanure (2019), Table 1; Yu, Huang and Lin, Machine Learning 85 (2011), for the logistic loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from streamtron.core import kernels
from streamtron.core.config import EPSILONS, LOG_LINK, Settings
from streamtron.core.kernels import Phi
from streamtron.core.rows import Vector
from streamtron.core.threads import opened_threads

Domain = tuple[Vector, Vector]
"""The least and the most that each α may be."""

NO_NUMBERS = np.zeros(0)
"""t of rows whose labels are classes."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What the solver has to know of a loss."""

    name: str
    """as scikit-learn has it"""
    code: int
    """what kernels branch on"""
    quadratic: bool
    """whether φ is a quadratic between bends, so that many rows together cost one quadratic"""
    sparse: bool
    """whether φ is 0 beyond a margin, so that rows there do not matter"""
    least: float
    most: float
    """least · C ≤ α ≤ most · C; not ∞, for ∞ times a C of 0 would be no number"""
    liblinear: tuple[str, ...]
    """LIBLINEAR's solver_type of the same problem, first the one that models are written with"""
    bend: float
    """the margin near which φ'' changes"""
    logistic: bool = False
    """whether σ(m) is the probability of a row's label"""
    numbers: bool = False
    """whether labels are numbers"""
    residual: bool = False
    """whether φ is of z − t, so that a bias may be taken off both"""
    zone: float = 0.0
    """η of a loss that is smoothed; see ``kernels.HINGE``"""
    epsilon: float = 0.0
    """ε of a loss that has it"""
    steepest: float = math.inf
    """the largest φ''; ∞ of a loss with a kink"""
    softmax: bool = False
    """whether φ is of the margins of all classes at once, see ``kernels.softmax``"""

    @property
    def log_link(self) -> bool:
        """Whether e^z is predicted, of labels t ≥ 0, and α is at most C t."""
        return self.name in LOG_LINK

    @property
    def phi(self) -> Phi:
        """The loss as kernels take it."""
        return Phi(self.code, self.zone, self.epsilon)

    @property
    def sharp(self) -> Phi:
        """The same without a zone: the loss of the objective."""
        return Phi(self.code, 0.0, self.epsilon)


SQUARED_HINGE = Loss(
    "squared_hinge",
    kernels.SQUARED_HINGE,
    quadratic=True,
    sparse=True,
    least=0.0,
    most=1e250,
    liblinear=("L2R_L2LOSS_SVC", "L2R_L2LOSS_SVC_DUAL"),
    bend=1.0,
    steepest=2.0,
)
"""max(0, 1 − m)²."""

LOG_LOSS = Loss(
    "log_loss",
    kernels.LOG_LOSS,
    quadratic=False,
    sparse=False,
    least=0.0,
    most=1.0,
    liblinear=("L2R_LR", "L2R_LR_DUAL"),
    bend=0.0,
    logistic=True,
    steepest=0.25,
)
"""ln(1 + e^−m)."""

HINGE = Loss(
    "hinge",
    kernels.HINGE,
    quadratic=False,
    sparse=True,
    least=0.0,
    most=1.0,
    liblinear=("L2R_L1LOSS_SVC_DUAL",),
    bend=1.0,
)
"""max(0, 1 − m)."""

_OF_NUMBERS = replace(
    SQUARED_HINGE,
    quadratic=False,
    sparse=False,
    least=-1e250,
    bend=0.0,
    numbers=True,
    residual=True,
)

SQUARED_ERROR = replace(
    _OF_NUMBERS,
    name="squared_error",
    code=kernels.SQUARED_ERROR,
    liblinear=("L2R_L2LOSS_SVR",),
    steepest=1.0,
)
"""½ m²; C is 1/α of scikit-learn's Ridge. LIBLINEAR has no solver of it."""

HUBER = replace(SQUARED_ERROR, name="huber", code=kernels.HUBER)
"""½ m² for |m| ≤ ε, ε |m| − ½ ε² beyond."""

EPSILON_INSENSITIVE = replace(
    _OF_NUMBERS,
    name="epsilon_insensitive",
    code=kernels.EPSILON_INSENSITIVE,
    least=-1.0,
    most=1.0,
    liblinear=("L2R_L1LOSS_SVR_DUAL",),
    steepest=math.inf,
)
"""max(0, |m| − ε)."""

SQUARED_EPSILON_INSENSITIVE = replace(
    _OF_NUMBERS,
    name="squared_epsilon_insensitive",
    code=kernels.SQUARED_EPSILON_INSENSITIVE,
    liblinear=("L2R_L2LOSS_SVR", "L2R_L2LOSS_SVR_DUAL"),
)
"""max(0, |m| − ε)²."""

POISSON = replace(
    _OF_NUMBERS,
    name="poisson",
    code=kernels.POISSON,
    least=-kernels.LARGEST_MEAN,
    liblinear=(),
    bend=kernels.LARGEST_LOG,
    residual=False,
    steepest=math.inf,
)
"""e^z − t z + t ln t − t, half the deviance of t whose mean is e^z; it curves most where z is."""

LOSSES = {
    loss.name: loss
    for loss in (
        SQUARED_HINGE,
        LOG_LOSS,
        HINGE,
        SQUARED_ERROR,
        HUBER,
        EPSILON_INSENSITIVE,
        SQUARED_EPSILON_INSENSITIVE,
        POISSON,
    )
}

SOFTMAX = replace(LOG_LOSS, name="softmax", code=kernels.SOFTMAX, liblinear=(), softmax=True)
"""ln Σ_j exp z_j − z_y of the margins of all classes, y that of the row; of them Σ_{j≠y} α_j ≤ C.
The functions below are of one margin, and not of this."""

FIRST_ZONE = 3.0
"""η of the first smooth loss in the place of the hinge, see ``HeldLoss.approach``. A zone of 1
takes up to twice as many products at C ≥ 5 (``benchmarks/parts.py --loss hinge``)."""


def loss_of(settings: Settings | Mapping[str, Any]) -> Loss:
    """Return the loss of a model with these settings; the squared hinge where they have none."""
    if isinstance(settings, Mapping):
        return _loss(str(settings.get("loss")), settings.get("epsilon"))
    return _loss(settings.loss, settings.epsilon)


@cache
def _loss(name: str | None, epsilon: float | None) -> Loss:
    loss = SOFTMAX if name == SOFTMAX.name else LOSSES.get(str(name), SQUARED_HINGE)
    if loss.name not in EPSILONS:
        return loss
    epsilon = EPSILONS[loss.name] if epsilon is None else epsilon
    loss = replace(loss, epsilon=epsilon)
    return replace(loss, least=-epsilon, most=epsilon) if loss.code == kernels.HUBER else loss


@cache
def solved(loss: Loss) -> Loss:
    """Return the loss as rows in memory are solved by it: smooth in place of one with a kink."""
    kinked = loss.code in (kernels.HINGE, kernels.EPSILON_INSENSITIVE)
    return replace(loss, zone=FIRST_ZONE) if kinked else loss


def values(loss: Loss, z: Vector, t: Vector = NO_NUMBERS) -> Vector:
    """Return φ(t, z), shape (rows,). ``t`` : the numbers that are labels; NO_NUMBERS: 0.

    >>> values(SQUARED_HINGE, np.array([-1.0, 0.5, 2.0]))
    array([4.  , 0.25, 0.  ])
    """
    return _at(loss, 0, z, t)


def slopes(loss: Loss, z: Vector, t: Vector = NO_NUMBERS) -> Vector:
    """Return −∂φ(t, z)/∂z, shape (rows,): α = C times it is the dual point that belongs to z.

    >>> slopes(SQUARED_HINGE, np.array([-1.0, 0.5, 2.0]))
    array([4., 1., 0.])
    """
    return _at(loss, 1, z, t)


def curvatures(loss: Loss, z: Vector, t: Vector = NO_NUMBERS) -> Vector:
    """Return ∂²φ(t, z)/∂z², shape (rows,).

    >>> curvatures(SQUARED_HINGE, np.array([-1.0, 0.5, 2.0]))
    array([2., 2., 0.])
    """
    return _at(loss, 2, z, t)


def slopes_expanded(loss: Loss, base: Vector, z: Vector, t: Vector = NO_NUMBERS) -> Vector:
    """Return −∂φ(t, z)/∂z, shape (rows,), expanded at z = ``base`` to first order, and cut to where
    φ* is finite.

    >>> slopes_expanded(SQUARED_HINGE, np.array([-1.0, 0.5, 2.0]), np.array([0.0, 3.0, 0.0]))
    array([2., 0., 0.])
    """
    linear = slopes(loss, base, t) + curvatures(loss, base, t) * (base - z)
    return np.clip(linear, *domain(loss, np.ones(len(z)), t))


def domain(loss: Loss, cost: Vector, t: Vector = NO_NUMBERS) -> Domain:
    """Return the least and the most that dual variables α may be, both of shape (rows,): between
    them −φ*(t, −α/C) is finite. ``cost`` : C.

    >>> domain(LOG_LOSS, np.array([0.5, 2.0]))
    (array([0., 0.]), array([0.5, 2. ]))
    """
    most = np.minimum(loss.most, t) if loss.log_link else loss.most
    return loss.least * cost if loss.least else np.zeros(len(cost)), most * cost


def expansion(loss: Loss, z: Vector, t: Vector = NO_NUMBERS) -> tuple[Vector, Vector, Vector]:
    """Return k, g and c, shape (rows,), of φ(t, z) ≈ ½ k z² − g z + c, Taylor's polynomial at z; on
    its side of the bend it is a quadratic loss itself.

    >>> [terms.tolist() for terms in expansion(SQUARED_HINGE, np.array([-1.0, 2.0]))]
    [[2.0, 0.0], [2.0, 0.0], [1.0, 0.0]]
    """
    curvature = curvatures(loss, z, t)
    if loss.quadratic:
        return curvature, loss.bend * curvature, 0.5 * loss.bend**2 * curvature
    slope = slopes(loss, z, t)
    constant = values(loss, z, t) + (slope + 0.5 * curvature * z) * z
    return curvature, slope + curvature * z, constant


def bends(loss: Loss, z: Vector, t: Vector = NO_NUMBERS) -> Vector:
    """Return how far z is from where φ'' changes, shape (rows,).

    >>> bends(SQUARED_HINGE, np.array([-1.0, 0.5, 2.0]))
    array([2. , 0.5, 1. ])
    """
    return np.abs(loss.bend - (z - t if loss.residual else z))


def gains(loss: Loss, p: Vector, t: Vector = NO_NUMBERS) -> Vector:
    """Return −φ*(t, −p), shape (rows,): what dual variables α = C p add to D, over C; −∞ beyond
    the domain.

    >>> gains(SQUARED_HINGE, np.array([0.0, 1.0, 2.0]))
    array([0.  , 0.75, 1.  ])
    """
    return _at(loss, 3, p, t)


def center_of(loss: Loss, mean: float) -> float:
    """Return what is taken off a free bias in training, where labels have this mean, so that it is
    about 0: the mean, or where e^z is predicted its logarithm, but as a multiple of ln 2.

    >>> center_of(SQUARED_ERROR, 9.0), center_of(HINGE, 0.0), center_of(POISSON, 9.0) / math.log(2)
    (9.0, 0.0, 3.0)
    """
    if loss.log_link and mean > 0.0:
        return round(math.log2(mean)) * kernels.LN2
    return mean if loss.residual else 0.0


def rows_to_share(loss: Loss) -> int:
    """Return of how many rows a thread is to look up the loss, at least: about a millisecond."""
    return 1 << (15 if loss.logistic or loss.log_link else 18)


def _at(loss: Loss, order: int, places: Vector, t: Vector) -> Vector:
    results, threads = np.empty(len(places)), opened_threads()

    def look_up(span: slice) -> None:
        kernels.loss_at(loss.phi, order, places[span], t[span], results[span])

    threads.work(look_up, threads.slices(len(places), rows_to_share(loss)))
    return results
