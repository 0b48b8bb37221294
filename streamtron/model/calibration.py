"""Probabilities of a model's decisions: Platt's sigmoid, isotonic regression, or σ or softmax.

Each direction of a model is calibrated by itself, by scikit-learn. Of a multiclass model the
probabilities of a row are divided by their sum (Zadrozny and Elkan, 2002), and are all 1/K where
that is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import SettingsError

if TYPE_CHECKING:
    from streamtron.model.linear_model import LinearModel

Floats = NDArray[np.float64]
Method = Literal["sigmoid", "isotonic"]
METHODS: tuple[Method, ...] = get_args(Method)


def fit_direction(
    method: Method, truth: NDArray[np.bool_], decisions: Floats, weights: Floats
) -> dict[str, Any]:
    """Fit probabilities to the decisions of one class, by scikit-learn on one thread.

    ``sigmoid`` : ``a`` and ``b`` of 1/(1 + exp(a f + b)), the logistic regression on Platt's
    targets (N₊ + 1)/(N₊ + 2) and 1/(N₋ + 2), where N are sums of weights (Platt, 1999, section
    2.2). ``isotonic`` : rising ``decisions`` and their ``probabilities``, linear in between and
    constant beyond.
    """
    from threadpoolctl import threadpool_limits

    fit = _fit_sigmoid if method == "sigmoid" else _fit_isotonic
    with threadpool_limits(limits=1):  # the order of a sum by BLAS depends on its threads
        return fit(truth, decisions, weights)


def _fit_sigmoid(truth: NDArray[np.bool_], decisions: Floats, weights: Floats) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression

    positives, negatives = float(weights[truth].sum()), float(weights[~truth].sum())
    targets = np.where(truth, (positives + 1.0) / (positives + 2.0), 1.0 / (negatives + 2.0))
    # centred, or decisions that are nearly equal would need an a and a b that almost cancel
    mean = (weights * decisions).sum() / weights.sum()
    center = float(np.clip(mean, decisions.min(), decisions.max()))  # of equal ones exactly theirs
    scale = float(np.abs(decisions - center).max()) or 1.0
    x = np.tile((decisions - center) / scale, 2)
    fitted = LogisticRegression(C=np.inf, solver="newton-cg", tol=1e-10, max_iter=1000).fit(
        x[:, None],
        np.repeat([1, 0], len(decisions)),
        np.concatenate([weights * targets, weights * (1.0 - targets)]),
    )
    a = -float(fitted.coef_[0, 0]) / scale
    return {"a": a, "b": -float(fitted.intercept_[0]) - a * center}


def _fit_isotonic(truth: NDArray[np.bool_], decisions: Floats, weights: Floats) -> dict[str, Any]:
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression(y_min=0.0, y_max=1.0).fit(decisions, truth, weights)
    return {
        "decisions": fitted.X_thresholds_.tolist(),
        "probabilities": fitted.y_thresholds_.tolist(),
    }


def probabilities(calibration: Mapping[str, Any], decisions: Floats, *, sum_to_one: bool) -> Floats:
    """Return the probability of each direction's positive class, of the shape of ``decisions``."""
    from scipy.special import expit, softmax  # 6 MB of memory that few need

    if calibration["method"] == "softmax":
        return np.asarray(softmax(decisions, axis=1))
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
    """Return a model's calibration; without one p = σ(f) of the logistic loss, of all decisions
    together of softmax, or None."""
    from streamtron.core.losses import loss_of  # loads numba

    if model.calibration is None and model.softmax:
        return {"method": "softmax", "directions": [{}] * len(model.classes)}
    if model.calibration is None and loss_of(model.settings).logistic:
        sigma = {"a": -1.0, "b": 0.0}
        return {"method": "sigmoid", "directions": [sigma] * model.sparse_weights.shape[0]}
    return model.calibration


def probabilities_of(model: LinearModel, decisions: Floats) -> Floats:
    """Return the probabilities of decisions, of two classes the larger one's."""
    if model.regression:
        raise SettingsError("the model predicts numbers, which have no probabilities.")
    if (mapping := probability_map(model)) is None:
        raise SettingsError(
            "the model is not calibrated, so its decisions have no probabilities. Use "
            "streamtron calibrate MODEL SHARDS, or fit with --loss log_loss or softmax."
        )
    return probabilities(mapping, decisions, sum_to_one=model.kind == "multiclass")


def check_calibration(calibration: Mapping[str, Any], directions: int) -> None:
    """Raise a SettingsError unless it is what ``probabilities`` takes for so many directions."""
    try:
        functions = calibration["directions"]
        good = len(functions) == directions and all(
            _is_function(calibration["method"], **function) for function in functions
        )
    except (LookupError, TypeError, ValueError):
        good = False
    if not good:
        raise SettingsError(
            "calibration: not the functions of a model of so many classes. Make them with "
            "streamtron.calibrate."
        )


def _is_function(
    method: str, a: Any = None, b: Any = None, decisions: Any = (), probabilities: Any = ()
) -> bool:
    x, y = map(np.array, ([a, b], [0, 1]) if method == "sigmoid" else (decisions, probabilities))
    if method not in METHODS or {x.dtype.kind, y.dtype.kind} - {*"if"} or x.shape != y.shape:
        return False
    rising = method == "sigmoid" or bool((np.diff(x) > 0).all() and (np.diff(y) >= 0).all())
    return rising and x.ndim == 1 and bool((np.abs(x) <= 1e308).all() and 0 <= y[0] <= y[-1] <= 1)
