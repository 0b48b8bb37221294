"""Metrics of predicted numbers, of any number of rows: R², RMSE, MAE, and how residuals lie."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.model.metrics import Floats, Metrics, check_finite

DRAWN = 1_000_000
"""Rows held in memory for tenths and bars, at most; of more rows, each second, fourth … is held."""


class Residuals:
    """Collect targets t and predictions z of rows of weights w, for the metrics of scikit-learn.

    ``worst`` : how many rows of the largest |t − z| are listed. ``ranking`` : whether to keep what
    ``calibration`` and ``histogram`` tell.

    >>> residuals = Residuals()
    >>> residuals.add(np.array([3.0, 5.0]), np.array([3.5, 4.5]), np.ones(2), "a.svm", 0)
    >>> residuals.metrics()["r2"], residuals.metrics()["rmse"]
    (0.75, 0.5)
    """

    def __init__(self, worst: int = 0, *, ranking: bool = True) -> None:
        self._most, self._ranking = worst, ranking
        self._rows = 0
        self._sums = np.zeros(3)  # Σ w, Σ w (t − z)², Σ w |t − z|
        self._origin: float | None = None
        self._moments = np.zeros(2)  # mean of t − origin, Σ w (t − mean)²
        self._held = [np.empty((0, 3))]  # t, z, w of every row, or of every ``step``-th
        self._step = 1
        self._worst: list[dict[str, Any]] = []

    def add(
        self, targets: Floats, predictions: Floats, weights: Floats, shard: str, first: int
    ) -> None:
        """Add rows of a shard from its row ``first`` on."""
        check_finite(predictions, self._rows)
        residuals = targets - predictions
        self._add_moments(targets, weights)
        terms = np.ones(len(targets)), residuals**2, np.abs(residuals)
        self._sums += [float((weights * term).sum()) for term in terms]
        if self._ranking:
            rows = np.column_stack([targets, predictions, weights])
            rows = rows[-self._rows % self._step :: self._step]
            self._held.append(rows[rows[:, 2] > 0.0])
            if sum(map(len, self._held)) > DRAWN:
                self._held, self._step = [self._drawn[::2].copy()], 2 * self._step
        self._rows += len(targets)
        largest = np.argsort(-np.abs(residuals), kind="stable")[: self._most]
        self._worst += [
            {
                "shard": shard,
                "row": first + k,
                "label": float(targets[k]),
                "predicted": float(predictions[k]),
                "residual": float(residuals[k]),
            }
            for k in largest.tolist()
        ]
        self._worst = sorted(self._worst, key=lambda row: -abs(row["residual"]))[: self._most]

    @property
    def _drawn(self) -> Floats:
        return np.concatenate(self._held)

    def _add_moments(self, targets: Floats, weights: Floats) -> None:
        """Join the mean and the squares around it of more targets (Chan, Golub and LeVeque, 1983,
        eq. 1.5), counted from the first one: equal targets have none."""
        added, earlier = float(weights.sum()), float(self._sums[0])
        if not added:
            return
        if self._origin is None:
            self._origin = float(targets[weights > 0.0][0])
        shifted = targets - self._origin
        mean = float((weights * shifted).sum()) / added
        squares = float((weights * (shifted - mean) ** 2).sum())
        apart = mean - self._moments[0]
        share = added / (earlier + added)
        self._moments += [share * apart, squares + earlier * share * apart**2]

    def metrics(self) -> Metrics:
        """Return the metrics by name, see ``Evaluation``."""
        weight, squared, absolute = self._sums.tolist()
        mean, spread = self._moments.tolist()
        metrics: Metrics = {"rows": self._rows, "weight": weight}
        if not weight:
            names = ("r2", "rmse", "mae", "target_mean", "target_deviation")
            return metrics | dict.fromkeys(names)
        explained = 1.0 - squared / spread if spread else float(not squared)
        metrics |= {
            "r2": explained if self._rows > 1 else None,
            "rmse": math.sqrt(squared / weight),
            "mae": absolute / weight,
            "target_mean": (self._origin or 0.0) + mean,
            "target_deviation": math.sqrt(spread / weight),
        }
        metrics |= {"calibration": self._calibration()} if self._ranking else {}
        return metrics | ({"worst": self._worst} if self._most else {})

    def _calibration(self) -> list[dict[str, float]]:
        """Return tenths of the weight by rising prediction."""
        drawn = self._drawn
        t, z, w = drawn[np.argsort(drawn[:, 1], kind="stable")].T
        tenths = np.minimum(10.0 * (np.cumsum(w) - w) / w.sum(), 9.0).astype(np.intp)
        sums = np.column_stack([np.bincount(tenths, values, 10) for values in (w, w * z, w * t)])
        return [
            {"weight": self._step * w, "prediction": z / w, "target": t / w}
            for w, z, t in sums.tolist()
            if w
        ]

    def histogram(self, bars: int = 60) -> tuple[list[float], NDArray[np.int64]]:
        """Return the edges of bars within three RMSE of 0, and the rows whose t − z is between
        them; the first and the last bar hold those beyond, too. Needs a row of a weight above 0."""
        reach = 3.0 * math.sqrt(self._sums[1] / self._sums[0]) or 1.0
        t, z, _ = self._drawn.T
        counts, edges = np.histogram(np.clip(t - z, -reach, reach), bars, (-reach, reach))
        return edges.tolist(), self._step * counts
