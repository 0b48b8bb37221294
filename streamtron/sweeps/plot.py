"""Plot of a sweep: the validation metric against C. Only this module imports matplotlib."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamtron.core.errors import SettingsError
from streamtron.core.files import write_atomically
from streamtron.core.text import metric_words

ENDINGS = (".png", ".svg")

SIZE = (6.4, 4.0)
"""Width and height in inches, at 150 dots each."""

MARKERS = "osD^v"
"""Markers of the lines in their order, so that both show where two lines meet."""

Row = Mapping[str, Any]


def check_plot(path: str | os.PathLike[str]) -> None:
    """Refuse a plot that is neither PNG nor SVG, or without matplotlib, by a SettingsError."""
    if not os.fspath(path).endswith(ENDINGS):
        raise SettingsError(f"{path}: a plot is PNG or SVG. Name it .png or .svg.")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise SettingsError(
            f"{path}: a plot needs matplotlib, which is not installed. Install streamtron[plot], "
            "or leave --plot out."
        ) from error


def plot_sweep(path: str | os.PathLike[str], rows: Sequence[Row], metric: str) -> None:
    """Draw the metric against C, one line a ρ, and mark the best.

    A hollow point is a candidate that was dropped, or whose tolerance was not certified. Candidates
    of the hard margin, which have no C, and those without the metric are left out. Equal tables
    give equal files.

    Parameters
    ----------
    path : ends with ``.png`` or ``.svg``.
    rows : of a sweep's table.
    metric : a column of it.
    """
    check_plot(path)
    import matplotlib
    from matplotlib.figure import Figure

    shown = [row for row in rows if row["C"] is not None and row[metric] is not None]
    with matplotlib.rc_context({"svg.hashsalt": "streamtron"}):
        figure = Figure(figsize=SIZE, dpi=150, layout="constrained")
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
    """Yield (ρ, its rows by rising C), the smallest ρ first."""
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
    # a filled point for the legend
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
