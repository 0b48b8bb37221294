"""Probabilities of a model's decisions: Platt's sigmoid, isotonic regression, or σ itself.

Each direction of a model is calibrated by itself, with scikit-learn's formulas. Of a multiclass
model the probabilities of a row are divided by their sum (Zadrozny and Elkan, 2002), and are all
1/K where that is 0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, get_args

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import SettingsError
from streamtron.core.extras import library

if TYPE_CHECKING:
    from streamtron.model.linear_model import LinearModel

Floats = NDArray[np.float64]
Method = Literal["sigmoid", "isotonic"]
METHODS: tuple[Method, ...] = get_args(Method)

_log = logging.getLogger(__name__)

FLAT = 1e-6
"""Slope of the mean log loss, of decisions in [−1, 1], above which a sigmoid has not converged: the
search ends at 1e-10, or where rounding hides a further descent."""


def fit_sigmoid(records: Floats) -> dict[str, float]:
    """Fit a and b of p = 1/(1 + exp(a f + b)) to decisions f.

    The log loss Σ w_k (−t_k log p_k − (1 − t_k) log(1 − p_k)) is minimised for the targets
    t = (N₊ + 1)/(N₊ + 2) of positive rows and 1/(N₋ + 2) of others, where N are sums of weights
    (Platt, 1999, section 2.2).

    Parameters
    ----------
    records : shape (decisions, 3): decision, weights of its positive and of its negative rows.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    decisions, positive, negative = records.T
    positives, negatives = positive.sum(), negative.sum()
    weights = positive + negative
    # centred, or decisions that are nearly equal would need an a and a b that almost cancel
    mean = (weights * decisions).sum() / weights.sum()
    center = float(np.clip(mean, decisions.min(), decisions.max()))  # of equal ones exactly theirs
    scale = float(np.abs(decisions - center).max()) or 1.0
    x = (center - decisions) / scale
    targets = positive * ((positives + 1.0) / (positives + 2.0)) + negative / (negatives + 2.0)

    @lru_cache(maxsize=2)
    def sums(a: float, b: float) -> Floats:
        """Return the loss, its two derivatives, and the three second ones."""
        logits = a * x - b
        p = expit(logits)
        slope, curve = weights * p - targets, weights * p * (1.0 - p)
        loss = weights * np.logaddexp(0.0, logits) - targets * logits
        # sums without BLAS, whose order depends on its threads
        terms = loss, slope * x, -slope, curve * x * x, -curve * x, curve
        return np.array([float(term.sum()) for term in terms]) / float(positives + negatives)

    least = minimize(
        lambda ab: sums(*ab)[0], [0.0, np.log((negatives + 1.0) / (positives + 1.0))],
        jac=lambda ab: sums(*ab)[1:3], hess=lambda ab: sums(*ab)[[[3, 4], [4, 5]]],
        method="trust-exact", options={"gtol": 1e-10, "max_trust_radius": 1e15},
    )  # fmt: skip
    if np.abs(least.jac).max() > FLAT:
        _log.warning(
            "the sigmoid does not reach the least log loss of these decisions, so that its "
            "probabilities are not the best (%s) Try --calibration isotonic.",
            least.message,
        )
    a, b = least.x.tolist()
    return {"a": a / scale, "b": b - a / scale * center}


def fit_isotonic(records: Floats) -> dict[str, list[float]]:
    """Fit the rising function of least squares to truth 0 or 1, by scikit-learn; its values at some
    decisions, in rising order, between which it is linear and beyond which it is constant.

    ``records`` : as in ``fit_sigmoid``.
    """
    isotonic = library("sklearn.isotonic", "sklearn", "--calibration isotonic")
    decisions, positive, negative = records.T
    weights = positive + negative
    unfitted = isotonic.IsotonicRegression(y_min=0.0, y_max=1.0)
    fitted = unfitted.fit(decisions, positive / weights, weights)
    points = {"decisions": fitted.X_thresholds_, "probabilities": fitted.y_thresholds_}
    return {name: values.tolist() for name, values in points.items()}


def probabilities(calibration: Mapping[str, Any], decisions: Floats, *, sum_to_one: bool) -> Floats:
    """Return the probability of each direction's positive class, of the shape of ``decisions``."""
    from scipy.special import expit  # 6 MB of memory that few need

    columns = decisions.reshape(len(decisions), -1).T
    shares = np.empty_like(columns)
    for share, direction, values in zip(shares, calibration["directions"], columns, strict=True):
        if calibration["method"] == "sigmoid":
            share[:] = expit(-(direction["a"] * values + direction["b"]))
        else:
            share[:] = np.interp(values, direction["decisions"], direction["probabilities"])
    if sum_to_one:
        total, uniform = shares.sum(axis=0), np.full_like(shares, 1.0 / len(shares))
        shares = np.divide(shares, total, out=uniform, where=total > 0)
    return shares.T.reshape(decisions.shape)


def probability_map(model: LinearModel) -> Mapping[str, Any] | None:
    """Return how decisions of a model become probabilities: as its calibration says; without one by
    p = σ(f) where the loss is logistic; None where it has no probabilities."""
    from streamtron.core.losses import loss_of  # loads numba

    if model.calibration is None and loss_of(model.settings).logistic:
        sigma = {"a": -1.0, "b": 0.0}
        return {"method": "sigmoid", "directions": [sigma] * model.sparse_weights.shape[0]}
    return model.calibration


def probabilities_of(model: LinearModel, decisions: Floats) -> Floats:
    """Return a model's probabilities by its decisions, of two classes the larger one's."""
    if model.regression:
        raise SettingsError("the model predicts numbers, which have no probabilities.")
    if (mapping := probability_map(model)) is None:
        raise SettingsError(
            "the model is not calibrated, so its decisions have no probabilities. Use "
            "streamtron calibrate MODEL SHARDS, or fit with --calibrate or --loss log_loss."
        )
    return probabilities(mapping, decisions, sum_to_one=model.kind == "multiclass")


class ProbabilityScores:
    """Collect what probabilities are worth: log loss, Brier score, reliability.

    ``sum_to_one`` : whether each row has one class; else each class is a problem of its own.

    >>> scores = ProbabilityScores(sum_to_one=False)
    >>> scores.add(np.array([[True], [False]]), np.array([0.75, 0.5]), np.ones(2), np.zeros(2))
    >>> scores.metrics()["brier_score"]
    0.15625
    """

    def __init__(self, *, sum_to_one: bool) -> None:
        self._sum_to_one = sum_to_one
        self._sums = np.zeros(3)  # weights, times log loss, times Brier score
        self._tenths = np.zeros((3, 10))  # weights, times probability, times truth

    def add(
        self, truth: NDArray[np.bool_], p: Floats, weights: Floats, others: NDArray[Any]
    ) -> None:
        """Add rows: their classes, shape (rows, K), the probabilities of these, the rows' weights,
        and which rows have another class."""
        p = p.reshape(len(p), -1)
        squares = (p - truth) ** 2
        if self._sum_to_one:
            log_loss, brier = _log_loss((p * truth).sum(axis=1)), squares.sum(axis=1) + others
        else:
            log_loss = _log_loss(np.where(truth, p, 1.0 - p)).mean(axis=1)
            brier = squares.mean(axis=1)
        self._sums += [float(sums.sum()) for sums in (weights, weights * log_loss, weights * brier)]
        tenths = np.searchsorted(np.linspace(0.0, 1.0, 11)[1:-1], p.ravel())
        weight = np.repeat(weights, p.shape[1])
        for row, values in enumerate((weight, weight * p.ravel(), weight * truth.ravel())):
            self._tenths[row] += np.bincount(tenths, values, 10)

    def metrics(self) -> dict[str, Any]:
        """Return the metrics by name, see ``Evaluation``."""
        weight, log_loss, brier = self._sums.tolist()
        names = ("weight", "probability", "share")
        tenths = [(w, p / w, share / w) for w, p, share in self._tenths.T.tolist() if w]
        return {
            "log_loss": log_loss / weight if weight else None,
            "brier_score": brier / weight if weight else None,
            "reliability": [dict(zip(names, values, strict=True)) for values in tenths],
        }


def _log_loss(p: Floats) -> Floats:
    """Return −ln p, with p at least 2⁻⁵² and at most 1 − 2⁻⁵², as scikit-learn does."""
    eps = np.finfo(np.float64).eps
    return np.asarray(-np.log(np.clip(p, eps, 1.0 - eps)))


def check_calibration(calibration: Mapping[str, Any], directions: int) -> None:
    """Raise a SettingsError unless it is what ``probabilities`` takes for so many directions."""
    functions = calibration.get("directions")
    entries: list[Any] = functions if isinstance(functions, list) else []
    known = (isinstance(entry, dict) and _is_function(calibration, entry) for entry in entries)
    if len(entries) != directions or not all(known):
        raise SettingsError(
            "calibration: not the functions of a model of so many classes. Make them with "
            "streamtron.calibrate."
        )


def _is_function(calibration: Mapping[str, Any], direction: Mapping[str, Any]) -> bool:
    if calibration.get("method") == "sigmoid":
        return _are_numbers([direction.get(name) for name in "ab"])
    x, y = direction.get("decisions"), direction.get("probabilities")
    if calibration.get("method") != "isotonic" or not (_are_numbers(x) and _are_numbers(y)):
        return False
    rising = sorted(set(x)) == x and sorted(y) == y
    return rising and len(x) == len(y) > 0 and 0 <= y[0] <= y[-1] <= 1


def _are_numbers(values: Any) -> TypeGuard[list[float]]:
    return isinstance(values, list) and all(
        isinstance(value, int | float) and abs(value) <= 1e308 for value in values
    )
