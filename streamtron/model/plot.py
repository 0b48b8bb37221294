"""Plots of a sweep, of a certificate and of margins. Only this module imports matplotlib."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamtron.core.config import meets
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.extras import library
from streamtron.core.files import write_atomically
from streamtron.core.losses import loss_of
from streamtron.core.rows import Label
from streamtron.core.text import metric_words, up
from streamtron.model.mistakes import margins_by_code

if TYPE_CHECKING:
    from streamtron.model.linear_model import LinearModel

MARKERS = "osD^v"
"""Markers of the lines in their order, so that both show where two lines meet."""

Row = Mapping[str, Any]


def check_plot(path: str | os.PathLike[str]) -> None:
    """Refuse a plot that is neither PNG nor SVG, or without matplotlib, by a SettingsError."""
    if not os.fspath(path).endswith((".png", ".svg")):
        raise SettingsError(f"{path}: a plot is PNG or SVG. Name it .png or .svg.")
    library("matplotlib.figure", "plot", f"{path}: a plot", ", or leave --plot out")


def plot_sweep(path: str | os.PathLike[str], rows: Sequence[Row], metric: str) -> None:
    """Draw a metric of a sweep's table against C, one line a loss, ρ and r, and mark the best.
    Where the penalty has a 1-norm, a point has the number of weights that are not 0 beside it.

    A hollow point is a candidate that was dropped, or whose tolerance was not certified. Candidates
    of the hard margin, which have no C, and those without the metric are left out. Equal tables
    give equal files.
    """
    check_plot(path)
    import matplotlib
    from matplotlib.figure import Figure

    shown = [row for row in rows if row["C"] is not None and row[metric] is not None]
    with matplotlib.rc_context({"svg.hashsalt": "streamtron"}):
        figure = Figure(figsize=(6.4, 4.0), dpi=150, layout="constrained")  # inches
        _draw(figure.subplots(), shown, metric)
        if shown:  # above the axes, where it covers no point
            figure.legend(loc="outside upper left", ncols=3, fontsize="small", frameon=False)
        kind = os.fspath(path)[-3:]
        file = io.BytesIO()
        # a date would make every file different
        figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, [file.getvalue()])


def _draw(axes: Any, rows: Sequence[Row], metric: str) -> None:
    hollow = [row for row in rows if row["dropped"] or not _is_proven(row)]
    kinds = sorted(set(map(_kind, rows)))
    for number, (loss, rho, ratio) in enumerate(kinds):
        of_kind = [row for row in rows if _kind(row) == (loss, rho, ratio)]
        line = sorted(of_kind, key=lambda row: row["C"])
        style = {"color": f"C{number % 10}", "marker": MARKERS[number % len(MARKERS)]}
        label = f"ρ = {rho:g}" if rho else "ρ = 0 (no bias)"
        if kinds[0][0] != kinds[-1][0]:
            label = f"{loss}, {label}"
        label += f", l1_ratio = {ratio:g}" if ratio else ""
        axes.plot(*_points(line, metric), **style, linewidth=1.2, markersize=5, label=label)
        some = [row for row in line if row in hollow]
        axes.plot(*_points(some, metric), **style, linestyle="", markersize=5, **_HOLLOW)
    if hollow:
        axes.plot([], [], "o", color="gray", markersize=5, **_HOLLOW, label="not to the tolerance")
    for row in rows:
        if row["best"]:
            _mark(axes, row, metric)
        if "nonzero_weights" in row:
            text = f"{row['nonzero_weights']:,}"
            place = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center"}
            axes.annotate(text, (row["C"], row[metric]), fontsize="x-small", **place)
    axes.set_xscale("log")
    axes.set(xlabel="C", ylabel=metric_words(metric))
    axes.grid(alpha=0.3)
    axes.margins(y=0.12)


def _kind(row: Row) -> tuple[str, float, float]:
    return row["loss"], row["rho"], row.get("l1_ratio", 0.0)


_HOLLOW = {"markerfacecolor": "white"}


def _points(rows: Sequence[Row], y: str, x: str = "C") -> tuple[list[float], list[float]]:
    return [row[x] for row in rows], [row[y] for row in rows]


def _is_proven(row: Row) -> bool:
    return meets(row, row["relative_duality_gap"], row["stop_reason"])


def _mark(axes: Any, row: Row, metric: str) -> None:
    proven = f"{'largest ' if 'class' in row else ''}gap {up(row['relative_duality_gap'], 2)}"
    if not _is_proven(row):
        proven = f"NOT certified, {proven}"
    title = f"best: {row[metric]:.4g} at C = {row['C']:g}, {proven}"
    axes.set_title(title, loc="left", fontsize="small")
    axes.plot(
        *_points([row], metric), "o", color="black", markersize=11, markerfacecolor="none",
        label="best",
    )  # fmt: skip


def plot_certificate(model: LinearModel, label: Label | None = None, axes: Any = None) -> Any:
    """Draw the history of a model's certificate; see ``LinearModel.plot_certificate``."""
    history = _certificate_of(model, label).get("history")
    if not history:
        raise SettingsError(
            "the model has no history of its certificate: streamtron did not fit it, or an older "
            "version did. Fit again."
        )
    if axes is None:
        figure = library("matplotlib.pyplot", "plot", "a plot").figure(
            figsize=(6.4, 5.0), layout="constrained"
        )  # inches
        axes = figure.subplots(2, 1, sharex=True)
        if not loss_of(model.settings).quadratic:
            axes[1].set_subplotspec(axes[1].get_gridspec()[:, 0])  # in place of the margins
    _draw_history(history, model.settings.get("tol"), *axes)
    return axes


def _certificate_of(model: LinearModel, label: Label | None) -> Mapping[str, Any]:
    """Return the certificate of a class; of the one with the widest gap if there is no label."""
    if "learners" not in model.certificate:
        return model.certificate
    learners = model.certificate["learners"]
    if label is None:
        return dict(max(learners, key=lambda learner: learner["relative_duality_gap"]))
    if label not in model.classes:
        raise SettingsError(f"label {label!r}: the model's classes are {model.classes}.")
    return dict(learners[model.classes.index(label)])


def _draw_history(history: Sequence[Row], tol: float | None, top: Any, bottom: Any) -> None:
    """Draw both bounds, if there are any, and the gap by reading; a hollow point is an estimate."""
    for name, color, marker in (("upper", "C1", "v"), ("lower", "C0", "^"), ("gap", "C7", "o")):
        panel = bottom if name == "gap" else top
        style = {"color": color, "marker": marker}
        known = [row for row in history if row[name] is not None]
        label = "gap" if name == "gap" else f"{name} bound"
        panel.plot(*_points(known, name, "reading"), **style, linewidth=1.2, label=label)
        guessed = [row for row in known if not row["proven"]]
        panel.plot(*_points(guessed, name, "reading"), **style, linestyle="", **_HOLLOW)
    top.set_visible(any(row["upper"] is not None for row in history))
    if any(not row["proven"] for row in history):
        top.plot([], [], "o", color="gray", **_HOLLOW, label="estimate")
    if tol:
        bottom.axhline(tol, color="gray", linestyle=":", label=f"tol = {tol:g}")
    top.set(ylabel="best margin")
    bottom.set(xlabel="readings of the data", ylabel="relative duality gap", yscale="log")
    for panel in (top, bottom):
        panel.legend(frameon=False, fontsize="small")
        panel.grid(alpha=0.3)
    bottom.xaxis.get_major_locator().set_params(integer=True)


def plot_margins(
    model: LinearModel, decisions: NDArray[np.float64], y: ArrayLike, ax: Any = None
) -> Any:
    """Draw the histogram of margins; see ``LinearModel.plot_margins``."""
    margins = margins_of(model, decisions, y)
    if ax is None:
        _, ax = library("matplotlib.pyplot", "plot", "a plot").subplots(layout="constrained")
    wrong, bend = float(np.mean(margins <= 0.0)), loss_of(model.settings).bend
    ax.hist(margins, bins=50, color="C0", alpha=0.8)
    ax.axvline(0.0, color="C3", linestyle=":", label=f"{wrong:.1%} of the rows at 0 or below")
    if bend:
        share = float(np.mean(margins < bend))
        ax.axvline(bend, color="C7", linestyle=":", label=f"{share:.1%} of the rows below {bend:g}")
    ax.set(xlabel="margin", ylabel="rows")
    ax.legend(frameon=False, fontsize="small")
    ax.grid(alpha=0.3)
    return ax


def margins_of(model: LinearModel, decisions: NDArray[np.float64], y: ArrayLike) -> Any:
    """Return the margins of rows, shape (rows,), from their decisions and labels."""
    if model.kind in ("multilabel", "regression"):
        raise SettingsError(f"a {model.kind} model: a row has no margin, or one for each class.")
    labels = np.asarray(y)
    if labels.shape != (len(decisions),):
        raise DataError(f"y: shape {labels.shape}. Wanted one label a row: ({len(decisions)},).")
    codes = np.full(len(decisions), -1)
    for code, label in enumerate(model.classes):
        codes[labels == label] = code
    if (codes < 0).any():
        odd = labels[codes < 0].tolist()[0]
        raise DataError(f"y: the label {odd!r}. The model has the classes {model.classes}.")
    return margins_by_code(decisions, codes)
