"""Charts of the page about a run, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import meets
from streamtron.core.losses import loss_of
from streamtron.core.text import BOUNDS, down, label_text, metric_words, shown, up
from streamtron.model.charts import FEWEST, Chart, Line, Points, histogram, line_chart
from streamtron.model.linear_model import LinearModel
from streamtron.model.metrics import Floats
from streamtron.model.residuals import Residuals

EDGES = np.linspace(-2.0, 4.0, 61)
"""Bounds of the bars of a histogram of margins."""

FALSE_POSITIVES = np.linspace(0.0, 1.0, 201)
"""Rates at which the ROC curves of many classes are averaged."""

Values = Mapping[str, Any]
Charts = list[Chart | None]
"""Of a section; None for one that has too little to show."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Metrics of labelled rows; of classes the rows by margin, between ``EDGES``, where rows have
    one class each, and by class true and false positives, see ``Scores.curve``; of numbers the
    residuals."""

    metrics: Values
    margins: NDArray[np.int64] | None
    curves: Mapping[str, Floats]
    residuals: Residuals | None


def page_charts(
    model: LinearModel, report: Values, measured: Mapping[str, Measured], kind: str
) -> dict[str, Charts]:
    """Return the charts of each section of the page."""
    return {
        "Margins": _margins(model, measured),
        "Residuals": _residuals(measured, kind),
        "Ranking and probabilities": _curves(measured[kind]) if kind in measured else [],
        "The proof": _proof(model, report),
        "Training": _training(report.get("history", [])),
        "The sweep": _sweep(report["sweep"]) if report.get("sweep") else [],
    }


def _margins(model: LinearModel, measured: Mapping[str, Measured]) -> Charts:
    two = model.kind == "two classes"
    bend = loss_of(model.settings).bend if two else 0.0
    legend = [("k2", "wrong side"), ("k1", "right side")]
    if bend:
        legend[1:] = [("k5", "right, within the margin"), ("k1", "beyond the margin")]
    middles = (EDGES[1:] + EDGES[:-1]) / 2
    colours = ["k2" if m < 0 else "k5" if m < bend else "k1" for m in middles.tolist()]
    note = "Label times decision." if two else "Decision of the row's class minus the next one."
    return [
        histogram(
            f"Margins of the {kind} rows",
            EDGES.tolist(),
            rows.margins.tolist(),
            colours,
            "margin",
            note,
            legend,
        )
        for kind, rows in measured.items()
        if rows.margins is not None
    ]


def _residuals(measured: Mapping[str, Measured], valid: str) -> Charts:
    residuals = {kind: rows.residuals for kind, rows in measured.items() if rows.residuals}
    charts: Charts = []
    tenths = measured[valid].metrics["calibration"] if valid in residuals else ()
    points = [(tenth["prediction"], tenth["target"]) for tenth in tenths]
    if len(points) >= FEWEST:
        ends = min(map(min, points)), max(map(max, points))
        lines = [
            Line("this model", points, marked=True),
            Line("as predicted", [(end, end) for end in ends], 6),
        ]
        names = "mean prediction of a tenth", "mean of the true numbers"
        charts.append(line_chart("Predicted and true", lines, *names))
    for kind, of_rows in residuals.items():
        edges, rows = of_rows.histogram()
        title, note = f"Residuals of the {kind} rows", "True number minus prediction."
        charts.append(histogram(title, edges, rows.tolist(), ["k1"] * len(rows), "residual", note))
    return charts


def _curves(valid: Measured) -> Charts:
    """Return the ROC and precision-recall curves of each class where these are few, of many the
    mean ROC curve; and how reliable probabilities are."""
    roc, ranked, rates = [], [], []
    for key, (label, curve) in enumerate(valid.curves.items(), 1):
        tp, fp = curve.T
        recall, precision = tp / tp[-1], tp[1:] / (tp + fp)[1:]
        rates.append(np.interp(FALSE_POSITIVES, fp / fp[-1], recall))
        roc.append(Line(f"for {label}", _pairs(fp / fp[-1], recall), key))
        ranked.append(Line(f"for {label}", _pairs(recall[1:], precision), key))
    if len(roc) > 4:
        roc, ranked = [], []
    chance = Line("by chance", [(0.0, 0.0), (1.0, 1.0)], 6)
    charts: Charts = []
    if rates:
        several, macro, prefix = "", "", ""
        if len(rates) > 1:
            several, macro, prefix = "s", "macro ", "macro_"
            mean = _pairs(FALSE_POSITIVES, np.mean(rates, axis=0))
            roc.append(Line("mean of all classes", mean, len(roc) + 1))
        area, average = (
            shown(valid.metrics[prefix + name]) for name in ("roc_auc", "average_precision")
        )
        title = f"ROC curve{several}, {macro}area {area}"
        axes = "false positive rate", "true positive rate"
        charts.append(line_chart(title, [*roc, chance], *axes, unit=True))
        title = f"Precision and recall, {macro}average precision {average}"
        charts.append(line_chart(title, ranked, "recall", "precision", unit=True))
    points = [
        (tenth["probability"], tenth["share"]) for tenth in valid.metrics.get("reliability") or ()
    ]
    if len(points) >= FEWEST:
        lines = [Line("this model", points, marked=True), chance._replace(name="reliable")]
        axes = "probability", "share that has the class"
        charts.append(line_chart("Reliability", lines, *axes, unit=True))
    return charts


def _pairs(xs: NDArray[Any], ys: NDArray[Any]) -> Points:
    return [*zip(xs.tolist(), ys.tolist(), strict=True)]


def _by_reading(title: str, lines: Sequence[Line], y: str, **how: Any) -> Chart | None:
    """Return a chart of lines by reading, if one has enough points to be one."""
    if max(len(line.points) for line in lines) < FEWEST:
        return None
    return line_chart(f"{title} by reading", lines, "reading", y, **how)


def _line(history: Sequence[Values], y: str, name: str = "", key: int = 1, **how: Any) -> Line:
    """Return a line of what is known after each reading, hollow where it is not proven."""
    known = [row for row in history if row.get("reading") is not None and row.get(y) is not None]
    hollow = frozenset(k for k, row in enumerate(known) if not row.get("proven", True))
    points = [(row["reading"], row[y]) for row in known]
    return Line(name, points, key, hollow=hollow, **how)


def _proof(model: LinearModel, report: Values) -> Charts:
    histories = [learner["history"] for learner in report.get("learners", [report])]
    charts: Charts = []
    gaps = [_line(histories[0], "gap", "gap", marked=True, form=up)]
    if "learners" not in report:
        bounds = [
            _line(histories[0], "upper", "upper bound", 2, marked=True, form=up),
            _line(histories[0], "lower", "lower bound", 1, marked=True, form=down),
        ]
        charts.append(_by_reading("Bounds on the margin", bounds, "margin", from_zero="x"))
    elif len(histories) <= 5:
        labels = map(label_text, model.classes)
        gaps = [
            _line(history, "gap", label, key, marked=True)
            for key, (label, history) in enumerate(zip(labels, histories, strict=True), 1)
        ]
    else:
        gaps = [_line(history, "gap", key=0) for history in histories]
        gaps[0] = gaps[0]._replace(name="each class")
    if (tol := report["settings"]["tol"]) > 0:
        last = max((x for line in gaps for x, _ in line.points), default=0.0)
        gaps.append(Line("tolerance", [(0.0, tol), (last, tol)], 6))
    return [*charts, _by_reading("Gap", gaps, "gap", log="y", from_zero="x")]


def _training(history: Sequence[Values]) -> Charts:
    lines = {
        title: _line(history, key, marked=True)._replace(hollow=frozenset())
        for title, key in (("Rows in memory", "active_rows"), ("Newton steps", "newton_steps"))
    }
    return [
        _by_reading(title, [line], "", from_zero="xy")
        for title, line in lines.items()
        if any(y for _, y in line.points)
    ]


def _sweep(sweep: Values) -> Charts:
    """Return the metric, and of a 1-norm the weights that are not 0, by price: a line for each
    loss, ρ and r."""
    metric, rows = sweep["metric"], sweep["candidates"]
    price = "delta" if any(row["C"] is None for row in rows) else "C"
    known = sorted((row for row in rows if row[metric] is not None), key=lambda row: row[price])
    if len({row[price] for row in known}) < FEWEST:
        return []
    losses = {row["loss"] for row in known}

    def kind(row: Values) -> tuple[str, float, float]:
        return row["loss"], row["rho"], row.get("l1_ratio", 0.0)

    def chart(title: str, name: str, y: str) -> Chart | None:
        lines = []
        for key, (loss, rho, ratio) in enumerate(sorted(set(map(kind, known)))):
            line = [row for row in known if kind(row) == (loss, rho, ratio)]
            words = [loss] * (len(losses) > 1) + [f"ρ = {rho:g}"]
            words += [f"l1_ratio = {ratio:g}"] if ratio else []
            hollow = frozenset(
                k
                for k, row in enumerate(line)
                if row["dropped"] or not meets(row, row[BOUNDS[2]], row["stop_reason"])
            )
            points = [(row[price], row[name]) for row in line]
            lines.append(Line(", ".join(words), points, key % 5 + 1, True, hollow))
        log, hollow_words = "x" * (price == "C"), "dropped, or not certified"
        return line_chart(f"{title} by {price}", lines, price, y, log=log, hollow=hollow_words)

    words = metric_words(metric)
    charts = [chart(f"{words[0].upper()}{words[1:]}", metric, words)]
    if "nonzero_weights" in rows[0]:
        charts.append(chart("Weights that are not 0", "nonzero_weights", "weights"))
    return charts
