"""The optimum of a set of rows, which LIBLINEAR finds from the rows alone; bounds that hold it."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import logsumexp
from sklearn.datasets import load_svmlight_files
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.utils.class_weight import compute_sample_weight

from streamtron.core.certificate import Certificate

ROUNDING = 1e-7
"""The relative error of what LIBLINEAR finds."""


def least_primal(
    X: Any,
    labels: NDArray[Any],
    C: float = 1.0,
    rho: float = 1.0,
    class_weight: Any = None,
    *,
    loss: str = "squared_hinge",
    weights: Any = 1.0,
) -> float:
    """min ½(‖w‖² + w_bias²) + Σ C_k φ(m_k) over two classes, of softmax over more: LIBLINEAR's; for
    the logistic loss and softmax that of Newton's method, and for the hinge, where LIBLINEAR takes
    too long, an interior point's.

    Parameters
    ----------
    class_weight : as scikit-learn has it; C_k is C times the weight of the row's class.
    weights : of each row.
    """
    cost = C * weights * compute_sample_weight(class_weight, labels)
    signs = np.where(labels == labels[0], 1.0, -1.0)
    X = sparse.hstack([sparse.csr_array(X), np.full((len(signs), 1), rho)]).tocsr()
    exact: dict[str, Any] = {"fit_intercept": False, "tol": 1e-10, "max_iter": 100_000}
    if loss == "hinge":
        return _least_of_hinge(sparse.diags_array(signs) @ X, cost)
    if loss in ("log_loss", "softmax"):
        solver = "newton-cg" if loss == "softmax" else "newton-cholesky"
        rival = LogisticRegression(solver=solver, **exact)
    else:
        rival = LinearSVC(loss=loss, dual=False, random_state=0, **exact)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the value is only ever too large
        rival.fit(X, labels if loss == "softmax" else signs, sample_weight=cost)
    if loss == "softmax":
        scores = X @ rival.coef_.T
        own = scores[np.arange(len(labels)), np.searchsorted(rival.classes_, labels)]
        lost_of_all = cost @ (logsumexp(scores, axis=1) - own)
        return float(0.5 * np.square(rival.coef_).sum() + lost_of_all)
    w = rival.coef_[0]
    margins = signs * (X @ w)
    slacks = np.maximum(0.0, 1.0 - margins)
    lost = {"log_loss": np.logaddexp(0.0, -margins), "hinge": slacks}.get(loss, slacks * slacks)
    return float(0.5 * w @ w + cost @ lost)


def _least_of_hinge(patterns: Any, cost: NDArray[np.float64]) -> float:
    """min ½‖w‖² + Σ C_k max(0, 1 − y_k·w), by steps of an interior point in the dual."""
    Y, C = patterns.toarray()[cost > 0.0], cost[cost > 0.0]
    alpha, rest, low, high = 0.5 * C, 0.5 * C, np.ones(len(C)), np.ones(len(C))
    least = math.inf
    for _ in range(60):
        w = Y.T @ alpha
        primal = float(0.5 * w @ w + C @ np.maximum(0.0, 1.0 - Y @ w))
        least = min(least, primal)
        if primal - (alpha.sum() - 0.5 * w @ w) <= 1e-10 * primal:
            break
        mu = 0.1 * (alpha @ low + rest @ high) / (2 * len(C))
        scale = 1.0 / (low / alpha + high / rest)  # (D + Y Yᵀ)⁻¹ r by the matrix of its columns
        right = scale * (1.0 - Y @ w + mu / alpha - mu / rest)
        inner = np.eye(Y.shape[1]) + Y.T @ (scale[:, None] * Y)
        step = right - scale * (Y @ np.linalg.solve(inner, Y.T @ right))
        low_step = mu / alpha - low - low / alpha * step
        high_step = mu / rest - high + high / rest * step
        changes = ((alpha, step), (rest, -step), (low, low_step), (high, high_step))
        falls = [(x[d < 0.0] / -d[d < 0.0]).min(initial=np.inf) for x, d in changes]
        length = min(1.0, 0.99 * min(falls))
        alpha, rest, low, high = (x + length * d for x, d in changes)
    return least


def holds(report: Mapping[str, Any], primal: float) -> bool:
    """Whether the bounds of a report's certificate hold the least objective, and, where there are
    margins, the best one, 1/√(2P)."""
    certificate, margin = report["certificate"], 1.0 / np.sqrt(2.0 * primal)
    dual, own = certificate["dual_objective"] or 0.0, certificate["primal_objective"] or math.inf
    if not dual * (1 - 2 * ROUNDING) <= primal <= own * (1 + 2 * ROUNDING):
        return False
    least, most = certificate["primal_margin"], certificate["upper_bound"]
    return least is most is None or bool(
        least <= margin * (1 + ROUNDING) and margin <= most * (1 + ROUNDING)
    )


def holds_optimum(report: Mapping[str, Any], shards: Sequence[Path]) -> bool:
    """Whether the bounds hold the best margin over the rows of shards: text, the columns numbered
    from 0 or from 1, by the report's settings."""
    s, stamps = report["settings"], [(str(path), path.stat().st_mtime_ns) for path in shards]
    weights = json.dumps(s["class_weight"])
    return holds(
        report, _least_of_shards(tuple(stamps), s["C"] or 1.0, s["rho"], weights, s["loss"])
    )


@cache
def _least_of_shards(
    stamps: tuple[tuple[str, int], ...], C: float, rho: float, class_weight: str, loss: str
) -> float:
    """``least_primal`` over shards as they are now, which many tests ask for; weights as JSON."""
    parts = load_svmlight_files([path for path, _ in stamps], zero_based=True)
    X = sparse.vstack(parts[::2]).tocsr().astype(np.float32).astype(np.float64)
    return least_primal(X, np.concatenate(parts[1::2]), C, rho, json.loads(class_weight), loss=loss)


def of_margins(margin: float, upper: float, rows: int = 10) -> Certificate:
    """The certificate of P and D that mean these margins."""
    primal = 0.5 / margin / margin if margin else math.inf
    return Certificate(primal, 0.5 / upper / upper, rows)
