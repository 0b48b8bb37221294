"""Plots of a certificate and of margins. Only this module imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.extras import library
from streamtron.core.losses import loss_of
from streamtron.core.rows import Label
from streamtron.model.mistakes import margins_by_code

if TYPE_CHECKING:
    from streamtron.model.linear_model import LinearModel

Row = Mapping[str, Any]

_HOLLOW = {"markerfacecolor": "white"}


def _points(rows: Sequence[Row], name: str) -> tuple[list[float], list[float]]:
    return [row["reading"] for row in rows], [row[name] for row in rows]


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
    if label is not None and label not in model.classes:
        raise SettingsError(f"label {label!r}: the model's classes are {model.classes}.")
    if "learners" not in model.certificate:
        return model.certificate
    learners = model.certificate["learners"]
    if label is None:
        return dict(max(learners, key=lambda learner: learner["relative_duality_gap"]))
    return dict(learners[model.classes.index(label)])


def _draw_history(history: Sequence[Row], tol: float | None, top: Any, bottom: Any) -> None:
    """Draw both bounds, if there are any, and the gap by reading; a hollow point is an estimate."""
    for name, color, marker in (("upper", "C1", "v"), ("lower", "C0", "^"), ("gap", "C7", "o")):
        panel = bottom if name == "gap" else top
        style = {"color": color, "marker": marker}
        known = [row for row in history if row[name] is not None]
        label = "gap" if name == "gap" else f"{name} bound"
        panel.plot(*_points(known, name), **style, linewidth=1.2, label=label)
        guessed = [row for row in known if not row["proven"]]
        panel.plot(*_points(guessed, name), **style, linestyle="", **_HOLLOW)
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
