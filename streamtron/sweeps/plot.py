"""A sweep as a picture: the validation metric against C. The only module that knows matplotlib."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamtron.core.errors import SettingsError
from streamtron.core.sealed import write_atomically
from streamtron.core.text import metric_words

ENDINGS = (".png", ".svg")

SIZE = (6.4, 4.0)
"""Inches, at 150 dots each."""

MARKERS = "osD^v"
"""Of the lines in their order: where two meet, both can be seen."""

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

    A hollow point is a candidate whose tolerance was not certified, or that was dropped before.
    Candidates of the hard margin have no C and are left out, as are those without the metric. Equal
    tables are equal pictures.

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
        _draw(figure.subplots(), shown, metric)
        if shown:  # above the axes, where it covers no point
            figure.legend(loc="outside upper left", ncols=3, fontsize="small", frameon=False)
        kind = os.fspath(path)[-3:]
        file = io.BytesIO()
        # a picture with a date in it would never be the same twice
        figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, [file.getvalue()])


def _draw(axes: Any, rows: Sequence[Row], metric: str) -> None:
    hollow = [row for row in rows if row["dropped"] or not _is_proven(row)]
    for number, (rho, line) in enumerate(_lines(rows)):
        _draw_line(axes, rho, line, metric, [row not in hollow for row in line], number)
    if hollow:
        axes.scatter([], [], s=26, c="white", edgecolors="gray", label="not to the tolerance")
    for row in rows:
        if row["best"]:
            _mark(axes, row, metric)
    axes.set_xscale("log")
    axes.set(xlabel="C", ylabel=metric_words(metric))
    axes.grid(alpha=0.3)
    axes.margins(y=0.12)


def _lines(rows: Sequence[Row]) -> Iterator[tuple[float, list[Row]]]:
    """(ρ, its rows by rising C), the smallest ρ first."""
    for rho in sorted({row["rho"] for row in rows}):
        yield rho, sorted((row for row in rows if row["rho"] == rho), key=lambda row: row["C"])


def _draw_line(
    axes: Any, rho: float, rows: Sequence[Row], metric: str, filled: Sequence[bool], number: int
) -> None:
    color, marker = f"C{number % 10}", MARKERS[number % len(MARKERS)]
    Cs, values = [row["C"] for row in rows], [row[metric] for row in rows]
    faces = [color if full else "white" for full in filled]
    axes.plot(Cs, values, color=color, linewidth=1.2)
    axes.scatter(
        Cs, values, s=26, c=faces, marker=marker, edgecolors=color, linewidths=1.2, zorder=3
    )
    # in the legend the point is full, whatever the first one is
    label = f"ρ = {rho:g}" if rho else "ρ = 0 (no bias)"
    axes.scatter([], [], s=26, c=color, marker=marker, label=label)


def _is_proven(row: Row) -> bool:
    return row["stop_reason"] in ("certified", "converged")


def _mark(axes: Any, row: Row, metric: str) -> None:
    widest = "largest " if "class" in row else ""
    proven = f"{widest}gap {row['relative_duality_gap']:.2g}"
    if not _is_proven(row):
        proven = f"NOT certified, {proven}"
    axes.set_title(
        f"best: {row[metric]:.4g} at C = {row['C']:g}, {proven}", loc="left", fontsize="small"
    )
    axes.scatter(
        [row["C"]], [row[metric]], s=130, facecolors="none", edgecolors="black", linewidths=1.4,
        zorder=4, label="best",
    )  # fmt: skip
