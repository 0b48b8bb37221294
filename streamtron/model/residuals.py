"""Metrics of predicted numbers by scikit-learn: R², RMSE, MAE, and how residuals lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.model.metrics import HELD, Floats, Metrics, check_finite

_OF_DEVIANCE = ("d2", "deviance")
_OF_NUMBERS = ("r2", "rmse", "mae", "target_mean", "target_deviation")


class Residuals:
    """Collect targets t and predictions z of rows of weights w, for the metrics of scikit-learn;
    with ``deviance`` also those of Poisson's distribution, whose means the predictions are.

    ``worst`` : how many rows of the largest |t − z| are listed. ``ranking`` : whether to tell the
    ``calibration``. ``held`` : rows in memory at most, 24 bytes each; of more, every second, fourth
    … row is measured.

    >>> residuals = Residuals()
    >>> residuals.add(np.array([3.0, 5.0]), np.array([3.5, 4.5]), np.ones(2), "a.svm", 0)
    >>> residuals.metrics()["r2"], residuals.metrics()["rmse"]
    (0.75, 0.5)
    """

    def __init__(
        self, worst: int = 0, *, ranking: bool = True, held: int = HELD, deviance: bool = False
    ) -> None:
        self._worst_rows, self._ranking, self._most = worst, ranking, held
        self._deviance = deviance
        self._rows, self._weight, self._step = 0, 0.0, 1
        self._held = [np.empty((0, 3))]  # t, z, w of every ``step``-th row
        self._count = 0
        self._worst: list[dict[str, Any]] = []

    def add(
        self, targets: Floats, predictions: Floats, weights: Floats, shard: str, first: int
    ) -> None:
        """Add rows of a shard from its row ``first`` on."""
        check_finite(predictions, self._rows)
        if self._deviance and (below := np.flatnonzero((targets < 0.0) & (weights > 0.0))).size:
            raise DataError(
                f"{shard}: row {first + below[0]} has the label {targets[below[0]]:g}, and the "
                "model predicts counts or rates: expected 0 or more. Correct the label."
            )
        rows = np.column_stack([targets, predictions, weights])[
            -self._rows % self._step :: self._step
        ]
        self._held.append(rows)
        self._rows, self._count = self._rows + len(targets), self._count + len(rows)
        self._weight += float(weights.sum())
        if self._count > self._most:
            self._held, self._step = [np.concatenate(self._held)[::2].copy()], 2 * self._step
            self._count = len(self._held[0])
        residuals = targets - predictions
        for k in np.argsort(-np.abs(residuals), kind="stable")[: self._worst_rows].tolist():
            row = {"shard": shard, "row": first + k, "label": float(targets[k])}
            row |= {"predicted": float(predictions[k]), "residual": float(residuals[k])}
            self._worst.append(row)
        by_size = sorted(self._worst, key=lambda row: -abs(row["residual"]))
        self._worst = by_size[: self._worst_rows]

    def _measured(self) -> Floats:
        rows = np.concatenate(self._held)
        return rows[rows[:, 2] > 0.0]

    def metrics(self) -> Metrics:
        """Return the metrics by name, see ``Evaluation``."""
        from sklearn import metrics as of

        metrics: Metrics = {"rows": self._rows, "weight": self._weight}
        t, z, w = self._measured().T
        if not len(t):
            names = (*_OF_DEVIANCE, *_OF_NUMBERS) if self._deviance else _OF_NUMBERS
            return metrics | dict.fromkeys(names)
        mean = float(np.average(t, weights=w))
        if self._deviance:
            positive = np.maximum(z, np.finfo(np.float64).tiny)
            several = len(t) > 1 and t.any()
            d2 = of.d2_tweedie_score(t, positive, sample_weight=w, power=1) if several else None
            mean_deviance = of.mean_poisson_deviance(t, positive, sample_weight=w)
            metrics |= {"d2": None if d2 is None else float(d2), "deviance": float(mean_deviance)}
        metrics |= {
            "r2": float(of.r2_score(t, z, sample_weight=w)) if len(t) > 1 else None,
            "rmse": float(of.root_mean_squared_error(t, z, sample_weight=w)),
            "mae": float(of.mean_absolute_error(t, z, sample_weight=w)),
            "target_mean": mean,
            "target_deviation": float(np.sqrt(np.average((t - mean) ** 2, weights=w))),
        }
        metrics |= {"every": self._step} if self._step > 1 else {}
        metrics |= {"calibration": self._calibration()} if self._ranking else {}
        return metrics | ({"worst": self._worst} if self._worst_rows else {})

    def _calibration(self) -> list[dict[str, float]]:
        """Return tenths of the weight by rising prediction."""
        rows = self._measured()
        t, z, w = rows[np.argsort(rows[:, 1], kind="stable")].T
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
        t, z, _ = self._measured().T
        reach = 3.0 * self.metrics()["rmse"] or 1.0
        counts, edges = np.histogram(np.clip(t - z, -reach, reach), bars, (-reach, reach))
        return edges.tolist(), self._step * counts
