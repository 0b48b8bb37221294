"""What the page that reports a run says of rows that were measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from streamtron.core.text import label_text, number
from streamtron.model.charts import FEWEST, Series, histogram, line_chart
from streamtron.model.html import grid, shown
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import Floats
from streamtron.model.residuals import Residuals

MOST_LINES = 4
"""Classes of which each has a line of its own."""


def worth_of(model: LinearModel, metrics: Mapping[str, Any], kind: str) -> str:
    """Say how good a model is on ``kind`` rows, beside the share of the largest class, or beside
    how far the numbers to be predicted lie apart."""
    by_weight = "" if metrics["weight"] == metrics["rows"] else ", by weight,"
    rows = f"{number(metrics['rows'])} {kind} rows{by_weight}"
    if model.regression:
        r2, error, spread = (shown(metrics[name]) for name in ("r2", "rmse", "target_deviation"))
        return (
            f"On {rows} its R² is {r2}: its predictions are off by {error} (RMSE), where the "
            f"numbers themselves lie {spread} around their mean (standard deviation)."
        )
    right = f"Of {rows} it gets {_percent(metrics['accuracy'])}"
    if model.kind == "multilabel":
        return f"{right} right in all their classes."
    if "classes" in metrics:
        supports = [row["support"] for row in metrics["classes"]]
    else:
        positive = metrics["true_positives"] + metrics["false_negatives"]
        supports = [metrics["weight"] - positive, positive]
    largest = int(np.argmax(supports))
    share = supports[largest] / metrics["weight"] if metrics["weight"] else None
    label = label_text(model.classes[largest])
    return f"{right} right; the largest class, {label}, is {_percent(share)} of them."


def _percent(share: float | None) -> str:
    """Format a share, of which 100 % are all."""
    return "-" if share is None else f"{100.0 * float(shown(share)):.6g} %"


CHANCE = Series("by chance", [(0, 0), (1, 1)], 6)
GRID = np.linspace(0.0, 1.0, 201)
"""False positive rates at which the curves of many classes are averaged."""


def ranking_charts(metrics: Mapping[str, Any], curves: Mapping[str, Floats]) -> list[str]:
    """Return the ROC and precision-recall curves, see ``Scores.curve``, of each class where they
    are few, and of many the mean ROC curve."""
    if not curves:
        return []
    roc, ranked, heights, single = [], [], [], len(curves) == 1
    for key, (label, curve) in enumerate(curves.items(), 1):
        tp, fp = curve.T
        rate, recall, precision = fp / fp[-1], tp / tp[-1], tp[1:] / (tp + fp)[1:]
        heights.append(np.interp(GRID, rate, recall))
        roc.append(Series(f"for {label}", [*zip(rate.tolist(), recall.tolist(), strict=True)], key))
        pairs = zip(recall[1:].tolist(), precision.tolist(), strict=True)
        ranked.append(Series(f"for {label}", [*pairs], key))
    if len(curves) > MOST_LINES:
        roc, ranked = [], []
    if not single:
        mean = zip(GRID.tolist(), np.mean(heights, axis=0).tolist(), strict=True)
        roc.append(Series("mean of all classes", [*mean], len(roc) + 1))
    area, average = ("roc_auc", "average_precision") if single else (
        "macro_roc_auc", "macro_average_precision")  # fmt: skip
    words = "" if single else "macro "
    values = [shown(metrics[name]) for name in (area, average)]
    return [
        line_chart(f"ROC curve{'' if single else 's'}, {words}area {values[0]}",
                   [*roc, CHANCE], "false positive rate", "true positive rate", unit=True),
        line_chart(f"Precision and recall, {words}average precision {values[1]}",
                   ranked, "recall", "precision", unit=True),
    ]  # fmt: skip


def residuals_section(measured: Mapping[str, Residuals], validation: str) -> Iterator[str]:
    """Yield charts of residuals by the name of their rows; of those of the ``validation``
    calibration too."""
    charts = []
    if validation in measured:
        tenths = measured[validation].metrics().get("calibration", ())
        points = [(tenth["prediction"], tenth["target"]) for tenth in tenths]
        if len(points) >= FEWEST:
            ends = min(map(min, points)), max(map(max, points))
            lines = [Series("this model", points, marked=True),
                     Series("as predicted", [(end, end) for end in ends], 6)]  # fmt: skip
            charts.append(line_chart("Predicted and true", lines, "mean prediction of a tenth",
                                     "mean of the true numbers"))  # fmt: skip
    for name, residuals in measured.items():
        edges, rows = residuals.histogram()
        note = "True number minus prediction. The first and the last bar hold all rows beyond them."
        charts.append(
            histogram(f"Residuals of the {name} rows", edges, rows.tolist(), ["k1"] * len(rows),
                      "residual", (), note)
        )  # fmt: skip
    yield grid(charts)
