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
from sklearn.svm import LinearSVC
from sklearn.utils.class_weight import compute_sample_weight

from streamtron.core.certificate import Certificate

ROUNDING = 1e-7
"""The relative error of a margin that LIBLINEAR finds."""


def least_primal(
    X: Any, labels: NDArray[Any], C: float = 1.0, rho: float = 1.0, class_weight: Any = None
) -> float:
    """min ½(‖w‖² + w_bias²) + Σ C_k max(0, 1 − m_k)² over two classes, LIBLINEAR's.

    Parameters
    ----------
    class_weight : as scikit-learn has it; C_k is C times the weight of the row's class.
    """
    weights = compute_sample_weight(class_weight, labels)
    signs = np.where(labels == labels[0], 1.0, -1.0)
    rival = LinearSVC(
        C=C, dual=False, tol=1e-10, max_iter=100_000,
        fit_intercept=rho > 0.0, intercept_scaling=rho or 1.0,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the value is only ever too large
        rival.fit(X, signs, sample_weight=weights)
    w, offset = rival.coef_[0], float(rival.intercept_[0]) if rho > 0.0 else 0.0
    bias = offset / (rho or 1.0)
    slacks = np.maximum(0.0, 1.0 - signs * (X @ w + offset))
    return float(0.5 * (w @ w + bias * bias) + C * (weights * slacks) @ slacks)


def holds(report: Mapping[str, Any], primal: float) -> bool:
    """Whether the bounds of a report's certificate hold the best margin, 1/√(2P)."""
    margin = 1.0 / np.sqrt(2.0 * primal)
    certificate = report["certificate"]
    least, most = certificate["primal_margin"], certificate["upper_bound"]
    return bool(least <= margin * (1 + ROUNDING) and margin <= most * (1 + ROUNDING))


def holds_optimum(report: Mapping[str, Any], shards: Sequence[Path]) -> bool:
    """Whether the bounds hold the best margin over the rows of shards: text, the columns numbered
    from 0 or from 1, by the report's settings."""
    parts = load_svmlight_files(list(map(str, shards)), zero_based=True)
    settings = report["settings"]
    primal = least_primal(
        sparse.vstack(parts[::2]).tocsr().astype(np.float32).astype(np.float64),
        np.concatenate(parts[1::2]), settings["C"] or 1.0, settings["rho"],
        settings["class_weight"],
    )  # fmt: skip
    return holds(report, primal)


def of_margins(directional: float, margin: float, upper: float, rows: int = 10) -> Certificate:
    """The certificate of P and D that mean these margins."""
    primal = 0.5 / margin / margin if margin else math.inf
    return Certificate(directional, primal, 0.5 / upper / upper, rows, scale=1.0)
