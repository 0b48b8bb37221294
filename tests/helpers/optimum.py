"""The optimum of a set of rows, which LIBLINEAR finds from the rows alone; bounds that hold it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.datasets import load_svmlight_files
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.utils.class_weight import compute_sample_weight

from streamtron.core.certificate import Certificate

ROUNDING = 1e-7
"""The relative error of what LIBLINEAR finds."""


def least_primal(
    X: Any, labels: NDArray[Any], C: float = 1.0, rho: float = 1.0, class_weight: Any = None,
    *, loss: str = "squared_hinge", weights: Any = 1.0,
) -> float:  # fmt: skip
    """min ½(‖w‖² + w_bias²) + Σ C_k φ(m_k) over two classes: LIBLINEAR's, or for the logistic loss
    that of Newton's method.

    Parameters
    ----------
    class_weight : as scikit-learn has it; C_k is C times the weight of the row's class.
    weights : of each row.
    """
    cost = C * weights * compute_sample_weight(class_weight, labels)
    signs = np.where(labels == labels[0], 1.0, -1.0)
    X = sparse.hstack([sparse.csr_array(X), np.full((len(signs), 1), rho)]).tocsr()
    exact: dict[str, Any] = {"fit_intercept": False, "tol": 1e-10, "max_iter": 100_000}
    if loss == "log_loss":
        rival = LogisticRegression(solver="newton-cholesky", **exact)
    else:
        rival = LinearSVC(loss=loss, dual=loss == "hinge", random_state=0, **exact)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the value is only ever too large
        rival.fit(X, signs, sample_weight=cost)
    w = rival.coef_[0]
    margins = signs * (X @ w)
    slacks = np.maximum(0.0, 1.0 - margins)
    lost = {"log_loss": np.logaddexp(0.0, -margins), "hinge": slacks}.get(loss, slacks * slacks)
    return float(0.5 * w @ w + cost @ lost)


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
    parts = load_svmlight_files(list(map(str, shards)), zero_based=True)
    settings = report["settings"]
    primal = least_primal(
        sparse.vstack(parts[::2]).tocsr().astype(np.float32).astype(np.float64),
        np.concatenate(parts[1::2]), settings["C"] or 1.0, settings["rho"],
        settings["class_weight"], loss=settings["loss"],
    )  # fmt: skip
    return holds(report, primal)


def of_margins(directional: float, margin: float, upper: float, rows: int = 10) -> Certificate:
    """The certificate of P and D that mean these margins."""
    primal = 0.5 / margin / margin if margin else math.inf
    return Certificate(directional, primal, 0.5 / upper / upper, rows, scale=1.0)
