"""What the page that reports a run says of rows that were measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from streamtron.core.text import label_text, number
from streamtron.model.charts import FEWEST, Series, histogram, line_chart
from streamtron.model.html import grid, shown
from streamtron.model.linear_model import LinearModel
from streamtron.model.residuals import Residuals


def worth_of(model: LinearModel, metrics: Mapping[str, Any]) -> str:
    """Say how good a model is on held-out rows, beside the share of the largest class, or beside
    how far the numbers to be predicted lie apart."""
    by_weight = "" if metrics["weight"] == metrics["rows"] else ", by weight,"
    held_out = f"{number(metrics['rows'])} held-out rows{by_weight}"
    if model.regression:
        r2, error, spread = (shown(metrics[name]) for name in ("r2", "rmse", "target_deviation"))
        return (
            f"On {held_out} its R² is {r2}: its predictions are off by {error} (RMSE), where the "
            f"numbers themselves lie {spread} around their mean (standard deviation)."
        )
    right = f"Of {held_out} it gets {_percent(metrics['accuracy'])}"
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


def residuals_section(measured: Mapping[str, Residuals], of_held_out: str) -> Iterator[str]:
    """Yield charts of residuals by the name of their rows, and for those ``of_held_out`` of
    predictions and what came true."""
    charts = []
    if of_held_out in measured:
        tenths = measured[of_held_out].metrics().get("calibration", ())
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
