"""Plain data of small charts, which the template of the page draws as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LEFT, RIGHT, TOP, BOTTOM = 56, 386, 24, 212
"""Area within the axes of a chart of 400 × 250 units; further right where labels are long."""

FEWEST = 4
"""Points of a line, at least: fewer are read better in a table."""

Points = Sequence[tuple[float, float]]


def short(value: float) -> str:
    """Format a number in few characters: 12k, 0.25, 8.75e-4."""
    if 0.0 < abs(value) < 1e-3:
        digits, _, power = f"{value:e}".partition("e")
        return f"{float(digits):.4g}e{int(power)}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and value % size == 0):
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


class Line(NamedTuple):
    """A line; ``key`` is the number of its colour, ``marked`` whether points are drawn, ``hollow``
    the points whose inside is empty, and ``form`` formats the height of a point. Without a name it
    is not in the legend."""

    name: str
    points: Points
    key: int = 1
    marked: bool = False
    hollow: frozenset[int] = frozenset()
    form: Callable[[float], str] = short


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from ``low`` to ``high``, which are different, from ``start`` to ``end`` in units;
    ``integral`` : whether they are whole numbers, and ticks are too."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    integral: bool = False

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, *, log: bool = False) -> Axis:
        """Return an axis of all values; values too close for a picture get room on both sides."""
        low, high = min(values), max(values)
        if high - low <= 1e-6 * max(abs(low), abs(high)):
            room = 0.001 * abs(low) or 0.5
            low, high = (low / 2, high * 2) if log else (low - room, high + room)
        return cls(low, high, start, end, log, all(float(v).is_integer() for v in values))

    def place(self, value: float) -> float:
        """Return where a value lies, in units."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Return some round values."""
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            every = max(1, math.ceil((high - low) / 5))
            powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1, every)
            return [10.0**power for power in powers] if len(powers) > 1 else [self.low, self.high]
        rough = (self.high - self.low) / 4
        unit = math.pow(10.0, math.floor(math.log10(rough)))
        step = next(unit * k for k in (1.0, 2.0, 2.5, 5.0, 10.0) if unit * k >= 0.999 * rough)
        step = max(step, 1.0) if self.integral else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [step * k for k in range(first, last + 1)]

    def labels(self) -> list[tuple[float, str]]:
        """Return where the ticks lie, and their labels with the digits that all of them need."""
        ticks = self.ticks()
        if self.log or len(ticks) < 2 or not 1e-3 <= max(map(abs, ticks)) < 1e3:
            return [(self.place(tick), short(tick)) for tick in ticks]
        close = (ticks[1] - ticks[0]) / 1000
        digits = next((d for d in range(9) if all(abs(round(t, d) - t) < close for t in ticks)), 9)
        return [(self.place(t), f"{round(t, digits) + 0.0:.{digits}f}") for t in ticks]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: ``lines``, or ``bars`` as (low, high, rows, colour); the ``legend`` has the class of
    a colour and words."""

    title: str
    x_name: str
    y_name: str
    x: Axis
    y: Axis
    lines: Sequence[Line] = ()
    bars: Sequence[tuple[float, float, int, str]] = ()
    legend: Sequence[tuple[str, str]] = ()
    note: str = ""


def line_chart(
    title: str,
    lines: Sequence[Line],
    x_name: str,
    y_name: str,
    *,
    log: str = "",
    unit: bool = False,
    from_zero: str = "",
    hollow: str = "an estimate, not proven",
) -> Chart | None:
    """Return a chart of lines through points, or None where nothing can be drawn.

    ``log`` : which axis is logarithmic, "x" or "y"; points that are not positive on it are left
    out. ``unit`` : whether both axes go from 0 to 1. ``from_zero`` : which begin at 0 at the
    latest, "x" or "xy". ``hollow`` : the meaning of hollow points.
    """
    drawable = [
        [
            (a, b)
            for a, b in line.points
            if math.isfinite(a + b) and (a > 0 or log != "x") and (b > 0 or log != "y")
        ]
        for line in lines
    ]
    lines = [line._replace(points=points) for line, points in zip(lines, drawable, strict=True)]
    points = [point for line in lines for point in line.points]
    if not points:
        return None
    x, y = Axis(0.0, 1.0, LEFT, RIGHT), Axis(0.0, 1.0, BOTTOM, TOP)
    if not unit:
        xs, ys = zip(*points, *[(0.0, 0.0)] * bool(from_zero), strict=True)
        ys = ys if from_zero == "xy" else ys[: len(points)]
        y = Axis.over(ys, BOTTOM if "y" in from_zero else BOTTOM - 8, TOP, log=log == "y")
        widest = max((len(label) for _, label in y.labels()), default=0)
        x = Axis.over(xs, max(LEFT, 8 + 7.7 * widest), RIGHT, log=log == "x")
    legend = [(f"k{line.key}", line.name) for line in lines if line.name]
    note = f"Hollow: {hollow}." if any(line.hollow for line in lines) else ""
    return Chart(title, x_name, y_name, x, y, lines, (), legend, note)


def histogram(
    title: str,
    edges: Sequence[float],
    counts: Sequence[int],
    colours: Sequence[str],
    x_name: str,
    note: str,
    legend: Sequence[tuple[str, str]] = (),
) -> Chart:
    """Return a chart with a bar for each count, between its edges, of the colour that it has."""
    x, y = Axis(edges[0], edges[-1], LEFT, RIGHT), Axis(0, max(max(counts), 1), BOTTOM, TOP)
    bars = [*zip(edges, edges[1:], counts, colours, strict=False)]
    note += " The first and the last bar hold all rows beyond them."
    return Chart(title, x_name, "rows", x, y, (), bars, legend, note)
