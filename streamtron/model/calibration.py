"""Probabilities of a model's decisions: Platt's sigmoid, or isotonic regression.

Each direction of a model is calibrated by itself, with scikit-learn's formulas. Of a multiclass
model the probabilities of a row are divided by their sum (Zadrozny and Elkan, 2002), and are all
1/K where that is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeGuard, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from streamtron.core.errors import SettingsError

Floats = NDArray[np.float64]
Method = Literal["sigmoid", "isotonic"]
METHODS: tuple[Method, ...] = get_args(Method)


def fit_sigmoid(decisions: Floats, positive: NDArray[np.bool_], weights: Floats) -> dict[str, Any]:
    """Fit a and b of p = 1/(1 + exp(a f + b)) to decisions f, all arrays of shape (rows,).

    The log loss Σ w_k (−t_k log p_k − (1 − t_k) log(1 − p_k)) is minimised for the targets
    t = (N₊ + 1)/(N₊ + 2) of positive rows and 1/(N₋ + 2) of others, where N are sums of weights
    (Platt, 1999, section 2.2).
    """
    from scipy.optimize import minimize

    positives = float(weights[positive].sum())
    negatives = float(weights[~positive].sum())
    targets = np.where(positive, (positives + 1.0) / (positives + 2.0), 1.0 / (negatives + 2.0))
    weights = weights / (positives + negatives)
    scale = float(np.abs(decisions).max()) or 1.0
    scaled = decisions / scale

    # sums without BLAS, whose order depends on its threads
    def loss(ab: Floats) -> tuple[float, Floats]:
        logits = -(ab[0] * scaled + ab[1])
        slope = weights * (targets - expit(logits))
        value = float((weights * (np.logaddexp(0.0, logits) - targets * logits)).sum())
        return value, np.array([(slope * scaled).sum(), slope.sum()])

    def hessian(ab: Floats) -> Floats:
        p = expit(-(ab[0] * scaled + ab[1]))
        curved = weights * p * (1.0 - p)
        mixed = (curved * scaled).sum()
        return np.array([[(curved * scaled * scaled).sum(), mixed], [mixed, curved.sum()]])

    start = np.array([0.0, np.log((negatives + 1.0) / (positives + 1.0))])
    found = minimize(
        loss, start, jac=True, hess=hessian, method="trust-exact", options={"gtol": 1e-10}
    ).x
    return {"a": float(found[0]) / scale, "b": float(found[1])}


def fit_isotonic(decisions: Floats, positive: NDArray[np.bool_], weights: Floats) -> dict[str, Any]:
    """Fit the rising function of least squares to truth 0 or 1; its values at some decisions, in
    rising order, between which it is linear and beyond which it is constant."""
    from sklearn.isotonic import IsotonicRegression

    found = IsotonicRegression(out_of_bounds="clip").fit(decisions, positive, weights)
    return {
        "decisions": found.X_thresholds_.tolist(),
        "probabilities": found.y_thresholds_.tolist(),
    }


def probabilities(calibration: Mapping[str, Any], decisions: Floats, *, sum_to_one: bool) -> Floats:
    """Return the probability that a row has the positive class of each direction, of the shape of
    ``decisions``, (rows,) or (rows, K)."""
    columns = decisions.reshape(len(decisions), -1).T
    found = np.empty_like(columns)
    for own, direction, values in zip(found, calibration["directions"], columns, strict=True):
        if calibration["method"] == "sigmoid":
            own[:] = expit(-(direction["a"] * values + direction["b"]))
        else:
            own[:] = np.interp(values, direction["decisions"], direction["probabilities"])
    if sum_to_one:
        total = found.sum(axis=0)
        found = np.divide(found, total, out=np.full_like(found, 1.0 / len(found)), where=total > 0)
    return found.T.reshape(decisions.shape)


def check_calibration(calibration: Mapping[str, Any], directions: int) -> None:
    """Raise a SettingsError unless it is what ``probabilities`` takes for so many directions."""
    own = calibration.get("directions")
    if not (
        isinstance(own, list)
        and len(own) == directions
        and all(isinstance(each, dict) and _is_function(calibration, each) for each in own)
    ):
        raise SettingsError(
            "calibration: not the functions of a model of so many classes. Make them with "
            "streamtron.calibrate."
        )


def _is_function(calibration: Mapping[str, Any], direction: Mapping[str, Any]) -> bool:
    if calibration.get("method") == "sigmoid":
        return all(isinstance(direction.get(name), int | float) for name in "ab")
    x, y = direction.get("decisions"), direction.get("probabilities")
    if calibration.get("method") != "isotonic" or not (_are_numbers(x) and _are_numbers(y)):
        return False
    return len(x) == len(y) > 0 and sorted(x) == x and 0 <= min(y) <= max(y) <= 1


def _are_numbers(values: Any) -> TypeGuard[list[float]]:
    return isinstance(values, list) and all(isinstance(one, int | float) for one in values)
