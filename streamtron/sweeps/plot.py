"""Plot of a sweep: the validation metric against C. Only this module imports matplotlib."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

from streamtron.core.errors import SettingsError
from streamtron.core.files import write_atomically
from streamtron.core.text import metric_words

MARKERS = "osD^v"
"""Markers of the lines in their order, so that both show where two lines meet."""

Row = Mapping[str, Any]


def check_plot(path: str | os.PathLike[str]) -> None:
    """Refuse a plot that is neither PNG nor SVG, or without matplotlib, by a SettingsError."""
    if not os.fspath(path).endswith((".png", ".svg")):
        raise SettingsError(f"{path}: a plot is PNG or SVG. Name it .png or .svg.")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise SettingsError(
            f"{path}: a plot needs matplotlib, which is not installed. Install streamtron[plot], "
            "or leave --plot out."
        ) from error


def plot_sweep(path: str | os.PathLike[str], rows: Sequence[Row], metric: str) -> None:
    """Draw a metric of a sweep's table against C, one line a ρ, and mark the best.

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
    for number, rho in enumerate(sorted({row["rho"] for row in rows})):
        line = sorted((row for row in rows if row["rho"] == rho), key=lambda row: row["C"])
        style = {"color": f"C{number % 10}", "marker": MARKERS[number % len(MARKERS)]}
        label = f"ρ = {rho:g}" if rho else "ρ = 0 (no bias)"
        axes.plot(*_points(line, metric), **style, linewidth=1.2, markersize=5, label=label)
        some = [row for row in line if row in hollow]
        axes.plot(*_points(some, metric), **style, linestyle="", markersize=5, **_HOLLOW)
    if hollow:
        axes.plot([], [], "o", color="gray", markersize=5, **_HOLLOW, label="not to the tolerance")
    for row in rows:
        if row["best"]:
            _mark(axes, row, metric)
    axes.set_xscale("log")
    axes.set(xlabel="C", ylabel=metric_words(metric))
    axes.grid(alpha=0.3)
    axes.margins(y=0.12)


_HOLLOW = {"markerfacecolor": "white"}


def _points(rows: Sequence[Row], metric: str) -> tuple[list[float], list[float]]:
    return [row["C"] for row in rows], [row[metric] for row in rows]


def _is_proven(row: Row) -> bool:
    return row["stop_reason"] in ("certified", "converged")


def _mark(axes: Any, row: Row, metric: str) -> None:
    proven = f"{'largest ' if 'class' in row else ''}gap {row['relative_duality_gap']:.2g}"
    if not _is_proven(row):
        proven = f"NOT certified, {proven}"
    title = f"best: {row[metric]:.4g} at C = {row['C']:g}, {proven}"
    axes.set_title(title, loc="left", fontsize="small")
    axes.plot(
        *_points([row], metric), "o", color="black", markersize=11, markerfacecolor="none",
        label="best",
    )  # fmt: skip
