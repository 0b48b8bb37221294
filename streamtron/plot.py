"""A sweep as a picture: the validation metric against C. The only module that knows matplotlib."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamtron.errors import SettingsError
from streamtron.sealed import write_atomically

ENDINGS = (".png", ".svg")

SIZE = (6.4, 4.0)
"""Inches, at 150 dots each."""

WORDS = {"f1": "F1", "roc_auc": "ROC AUC"}
"""How a metric is written on an axis; the others by their names."""

Row = Mapping[str, Any]


def check_plot(path: str | os.PathLike[str]) -> None:
    """Refuse at once a plot that could not be drawn at the end.

    Raises
    ------
    SettingsError : neither ``.png`` nor ``.svg``, or no matplotlib.
    """
    if not os.fspath(path).endswith(ENDINGS):
        raise SettingsError(f"{path}: a plot is PNG or SVG. Name it .png or .svg.")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise SettingsError(
            f"{path}: a plot needs matplotlib, which is not installed. Install streamtron[plot], "
            "or leave --plot out."
        ) from error


def plot_sweep(
    path: str | os.PathLike[str],
    rows: Sequence[Row],
    metric: str,
    size: tuple[float, float] = SIZE,
) -> None:
    """Draw the metric against C, one line a ρ, and mark the best.

    A hollow point is a candidate whose tolerance was not certified, or that successive halving
    left behind at a looser one. Candidates of the hard margin have no C and are left out, as are
    those without the metric. Equal tables are equal pictures.

    Parameters
    ----------
    path : ends with ``.png`` or ``.svg``.
    rows : of a sweep's table.
    metric : the column to draw.
    size : width and height in inches, at 150 dots each.

    Raises
    ------
    SettingsError, MachineError
    """
    check_plot(path)
    import matplotlib
    from matplotlib.figure import Figure

    shown = [row for row in rows if row["C"] is not None and row[metric] is not None]
    with matplotlib.rc_context({"svg.hashsalt": "streamtron"}):
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        axes = figure.subplots()
        axes.set_xscale("log")
        for number, (rho, line) in enumerate(_lines(shown)):
            _draw_line(axes, rho, line, metric, f"C{number % 10}", max(row["rung"] for row in rows))
        for row in shown:
            if row["best"]:
                _mark(axes, row, metric)
        axes.set(xlabel="C", ylabel=WORDS.get(metric, metric.replace("_", " ")))
        axes.grid(alpha=0.3)
        axes.margins(y=0.12)
        if shown:
            axes.legend(fontsize="small", loc="best")
        kind = os.fspath(path)[-3:]
        file = io.BytesIO()
        # a picture with a date in it would never be the same twice
        figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, [file.getvalue()])


def _lines(rows: Sequence[Row]) -> Iterator[tuple[float, list[Row]]]:
    """(ρ, its rows by rising C), the smallest ρ first."""
    for rho in sorted({row["rho"] for row in rows}):
        yield rho, sorted((row for row in rows if row["rho"] == rho), key=lambda row: row["C"])


def _draw_line(
    axes: Any, rho: float, rows: Sequence[Row], metric: str, color: str, last_rung: int
) -> None:
    Cs, values = [row["C"] for row in rows], [row[metric] for row in rows]
    label = f"ρ = {rho:g}" if rho else "ρ = 0 (no bias)"
    axes.plot(Cs, values, color=color, linewidth=1.2, label=label)
    faces = [color if _is_final(row, last_rung) else "white" for row in rows]
    axes.scatter(Cs, values, s=22, c=faces, edgecolors=color, linewidths=1.2, zorder=3)


def _is_final(row: Row, last_rung: int) -> bool:
    return row["rung"] == last_rung and row["ending"] in ("certified", "converged")


def _mark(axes: Any, row: Row, metric: str) -> None:
    proven = f"gap {row['relative_duality_gap']:.2g}"
    if row["ending"] not in ("certified", "converged"):
        proven = f"NOT certified, {proven}"
    axes.scatter(
        [row["C"]], [row[metric]], s=130, facecolors="none", edgecolors="black", linewidths=1.4,
        zorder=4, label=f"best: C = {row['C']:g}, ρ = {row['rho']:g}; {row[metric]:.4g}, {proven}",
    )  # fmt: skip
