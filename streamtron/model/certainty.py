"""What a certificate says about the optimum: a ball that holds its weights, and so bounds on its
decisions, probabilities and accuracy.

The ball is around the middle of the model's weights w and those of the dual point, v, see
``theory.midpoint_radius``; it holds w, too. With f(x) = w·x + ρ w_bias of the middle, the optimum's
decision is within ‖(x, ρ)‖ · radius of f(x).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamtron.core import theory
from streamtron.core.errors import SettingsError
from streamtron.core.penalty import ratio_of
from streamtron.core.rows import Rows
from streamtron.model.calibration import probabilities, probability_map
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import UNIT_ROUNDOFF, Floats
from streamtron.model.scoring import means_of


def ball_of(
    w: tuple[Floats, float],
    v: tuple[Floats, float],
    beyond: float,
    rounding: float,
    proven: Mapping[str, Any],
) -> tuple[NDArray[np.float16], dict[str, float]]:
    """Return the ball that the optimum's weights are in: the offsets of its middle from w, in units
    of ``unit``; and ``unit``, the offset of the bias weight, and the radius.

    The radius holds what the offsets are rounded by.

    Parameters
    ----------
    w : weights that are not 0, and the bias weight.
    v : those of the dual point, in the same columns.
    beyond : the length of what v has in other columns.
    rounding : at most the length of what v is off by.
    proven : the certificate.

    Examples
    --------
    >>> w, v = (np.array([1.0, 2.0]), 0.0), (np.array([1.0, 1.5]), 0.0)
    >>> proven = {"primal_objective": 2.5, "dual_objective": 2.375}
    >>> offsets, ball = ball_of(w, v, 0.0, 0.0, proven)
    >>> (offsets * ball["unit"]).tolist(), round(ball["radius"], 9)
    ([0.0, -0.25], 0.25)
    """
    half, half_bias = 0.5 * (v[0] - w[0]), 0.5 * (v[1] - w[1])
    largest = float(np.abs(half).max(initial=0.0))
    unit = math.ldexp(1.0, max(math.frexp(largest)[1] - 15, -1000))  # the largest is below 2¹⁵
    offsets = (half / unit).astype(np.float16)
    lost = math.hypot(_length(half - unit * offsets.astype(np.float64)), 0.5 * beyond)
    few = 1.01 * (len(half) + 16) * UNIT_ROUNDOFF
    apart = 2.0 * math.hypot(_length(half), half_bias, 0.5 * beyond) * (1.0 - few) - rounding
    lengths = math.hypot(_length(w[0]), w[1]) + math.hypot(_length(v[0]), v[1])
    primal, dual = map(proven.get, ("primal_objective", "dual_objective"))
    radius = theory.midpoint_radius(primal, dual, max(apart, 0.0))
    radius = (radius + lost + rounding) * (1.0 + few) + 4.0 * UNIT_ROUNDOFF * lengths
    return offsets, {"radius": radius, "unit": unit, "bias": half_bias}


def _length(vector: Floats) -> float:
    return math.sqrt(float(np.square(vector).sum()))  # no BLAS: its bits depend on threads


class AccuracyBounds:
    """Bounds of the optimum's accuracy on rows of two classes, by bounds on its decisions.

    >>> bounds = AccuracyBounds()
    >>> bounds.add([1, 1, -1], [0.5, -0.1, 0.1], [0.9, 0.3, 0.4], np.ones(3))
    >>> bounds.accuracy  # right, unknown, wrong
    (0.3333333333333333, 0.6666666666666667)
    """

    def __init__(self) -> None:
        self._least = self._most = self._weight = 0.0
        self._rows, self._exact = 0, True

    def add(self, signs: ArrayLike, least: ArrayLike, most: ArrayLike, weights: ArrayLike) -> None:
        """Add rows: the truth ±1, bounds on the optimum's decision, and the weight ≥ 0 of each."""
        positive, weight = np.asarray(signs) > 0, np.asarray(weights)
        lowest, highest = np.asarray(least) > 0.0, np.asarray(most) > 0.0
        self._rows += len(weight)
        self._exact = self._exact and bool((weight == np.floor(weight)).all())
        sure = lowest == highest
        self._least += float(weight[sure & (lowest == positive)].sum())
        self._most += float(weight[~sure | (lowest == positive)].sum())
        self._weight += float(weight.sum())

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """Bounds in [0, 1] on all rows so far; None if their weight is 0."""
        if not self._weight:
            return None
        # sums of whole numbers below 2⁵³ are exact, those of other weights are off by u a row
        exact = self._exact and self._weight < 2.0**53
        rounding = 0 if exact else Fraction(1.01 * (2 * self._rows + 2) * UNIT_ROUNDOFF)
        least, most, all_ = map(Fraction, (self._least, self._most, self._weight))
        highest = min(at_most(most / all_ * (1 + rounding)), 1.0)
        return at_least(least / all_ * (1 - rounding)), highest


def at_least(value: Fraction) -> float:
    """Return the largest float64 that is at most the value."""
    nearest = float(value)
    return nearest if nearest <= value else math.nextafter(nearest, -math.inf)


def at_most(value: Fraction) -> float:
    """Return the smallest float64 that is at least the value."""
    return -at_least(-value)


class OptimumBounds:
    """Bounds on the decisions of the best possible model of the same rows and settings.

    They contain the rounding of decisions: each is off by at most (columns + 8) u ‖(x, ρ)‖
    ‖(w, w_bias)‖, u = 2⁻⁵³ (Higham, 2002, eq. 3.5).

    ``model`` : one with a certificate, and a bias that is penalised or none, and no
        L1 penalty; else a SettingsError.
    """

    def __init__(self, model: LinearModel) -> None:
        gaps = [proven.get("relative_duality_gap") for proven in _certificates(model)]
        rho = model.settings.get("rho")
        if not isinstance(rho, float) or None in gaps:
            raise SettingsError(
                "the model has no certificate, so no label is certain. Give a model that "
                "streamtron fitted."
            )
        if (reason := why_unbounded(model)) is not None:
            raise SettingsError(reason)
        ratio = ratio_of(model.settings)
        self._middle, self._rho = middle(model), rho
        rounding, radii = 1.01 * (model.columns + 8) * UNIT_ROUNDOFF, []
        for direction, proven in zip(self._middle.directions(), _certificates(model), strict=True):
            primal, dual = map(proven.get, ("primal_objective", "dual_objective"))
            radius = theory.decision_radius(primal, dual, ratio)
            if model.offsets is not None:
                radius = proven["ball"]["radius"]
            bias = direction.bias / self._rho if self._rho else 0.0
            length = math.hypot(_length(direction.nonzero.data), bias)
            radii.append(radius * (1.0 + rounding) + rounding * length)
        self._radii = np.minimum(radii, 1e150)  # above any decision, and finite times any length

    def decisions(self, rows: Rows, squares: Floats) -> tuple[Floats, Floats]:
        """Return bounds of the shape of ``model.decision_rows``; ``squares`` : ‖x‖² of the rows."""
        decisions, _ = self._middle.decision_rows(rows)
        lengths = np.hypot(np.sqrt(squares), self._rho)
        slack = (lengths[:, None] * self._radii).reshape(decisions.shape)
        return decisions - slack, decisions + slack


def why_unbounded(model: LinearModel) -> str | None:
    """Return why a certificate of this model bounds no label of the optimum, or None."""
    if model.calibration is not None:
        return (
            "--certain of a calibrated model, whose labels are those of its probabilities: ask the "
            "model that streamtron fit wrote, before calibrate, or leave --certain out."
        )
    if model.softmax:
        return (
            "the certificate of softmax is of all classes together, and of no decision by itself. "
            "Fit the model with --loss log_loss."
        )
    if model.settings.get("intercept") == "free":
        return (
            "nothing bounds how far a bias that is not penalised is from the optimum's, so "
            "that no label is certain. Fit the model with --intercept penalised."
        )
    if ratio_of(model.settings) == 1.0:
        return (
            "nothing bounds how far the weights of an L1 penalty are from the optimum's, which may "
            "not be unique, so that no label is certain. Fit the model with another --penalty."
        )
    return None


def middle(model: LinearModel) -> LinearModel:
    """Return the model of the ball's middle: weights that are not 0 plus their offsets, if any."""
    if model.offsets is None:
        return model
    balls = [proven["ball"] for proven in _certificates(model)]
    units, biases = ([ball[name] for ball in balls] for name in ("unit", "bias"))
    moved = model.sparse_weights.copy()
    moved.data = moved.data + np.repeat(units, np.diff(moved.indptr)) * model.offsets
    bias = model.bias + np.reshape(biases, np.shape(model.bias))
    return model.but(weights=moved, bias=bias, offsets=None)


def _certificates(model: LinearModel) -> list[dict[str, Any]]:
    return list(model.certificate.get("learners", [model.certificate]))


def certain(model: LinearModel, least: Floats, most: Floats) -> NDArray[np.bool_]:
    """Return which rows, shape (rows,), the optimum labels as the model does, by bounds on its
    decisions. Of a multilabel model that holds for every class of the row.

    >>> model = LinearModel([1.0], 0.0, (-1.0, 1.0), {}, None, {"index_base": 0})
    >>> certain(model, np.array([0.1, -0.1, -0.2]), np.array([0.2, 0.1, -0.1])).tolist()
    [True, False, True]
    """
    if model.kind != "multiclass":
        sure = (least > 0.0) | (most < 0.0)
        return np.asarray(sure.reshape(len(least), -1).all(axis=1))
    chosen = np.argmax(least, axis=1, keepdims=True) == np.arange(least.shape[1])
    lowest = np.where(chosen, least, -np.inf).max(axis=1)
    return np.asarray(lowest > np.where(chosen, -np.inf, most).max(axis=1))


def mean_bounds(model: LinearModel, least: Floats, most: Floats) -> tuple[Floats, Floats]:
    """Bound what the optimum of a regression predicts by its decisions; e^z is off by some u."""
    off = 16.0 * UNIT_ROUNDOFF if model.log_link else 0.0
    return means_of(model, least) * (1.0 - off), means_of(model, most) * (1.0 + off)


def probability_bounds(model: LinearModel, least: Floats, most: Floats) -> tuple[Floats, Floats]:
    """Bound the optimum's probabilities of the logistic loss by its decisions: σ(f) rises, and is
    computed to some u; of many classes p_k = σ_k / Σ σ_j."""
    mapping = probability_map(model)
    assert mapping is not None
    low, high = (probabilities(mapping, f, sum_to_one=False) for f in (least, most))
    rounding = 64.0 * UNIT_ROUNDOFF
    if model.kind == "multiclass":
        low, high = np.maximum(low - rounding, 0.0), np.minimum(high + rounding, 1.0)
        low, high = _share(low, high), _share(high, low)
        rounding = 4.0 * (len(model.classes) + 16) * UNIT_ROUNDOFF
    return np.maximum(low - rounding, 0.0), np.minimum(high + rounding, 1.0)


def _share(p: Floats, q: Floats) -> Floats:
    """Return p_k / (p_k + Σ q_j), the sum being over the other classes; where it is 0, p_k."""
    rivals = np.zeros_like(q)
    rivals[:, 1:] = np.cumsum(q, axis=1)[:, :-1]
    rivals[:, :-1] += np.cumsum(q[:, ::-1], axis=1)[:, -2::-1]
    return np.divide(p, p + rivals, out=p.copy(), where=p + rivals > 0.0)
