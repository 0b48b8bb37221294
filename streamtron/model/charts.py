"""Charts as inline SVG, whose colours are classes of the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 400, 250
"""Of a chart, in its own units: about the pixels that it takes on a page."""

LEFT, RIGHT, TOP, BOTTOM = 56, 386, 24, 212
"""The area within the axes; further right where labels are long."""

FEWEST = 4
"""Points of a line, at least: fewer are said better in a table."""

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


class Series(NamedTuple):
    """A line; ``key`` is the number of its colour, ``marked`` whether points are drawn, ``hollow``
    those points whose inside is empty, and ``form`` formats the height of a point. Without a name
    it is not in the legend."""

    name: str
    points: Points
    key: int = 1
    marked: bool = False
    hollow: frozenset[int] = frozenset()
    form: Callable[[float], str] = short


class Axis(NamedTuple):
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

    def label(self, value: float) -> str:
        """Format the value of a tick with the digits that all ticks need."""
        ticks = self.ticks()
        if self.log or len(ticks) < 2 or not 1e-3 <= max(map(abs, ticks)) < 1e3:
            return short(value)
        close = (ticks[1] - ticks[0]) / 1000
        digits = next((d for d in range(9) if all(abs(round(t, d) - t) < close for t in ticks)), 9)
        return f"{round(value, digits) + 0.0:.{digits}f}" if digits else f"{value:.0f}"

    def labels(self) -> list[tuple[float, str]]:
        """Return where the ticks lie, and their labels."""
        return [(self.place(value), self.label(value)) for value in self.ticks()]


def line_chart(
    title: str, series: Sequence[Series], x_name: str, y_name: str, *, log: str = "",
    unit: bool = False, from_zero: str = "", hollow: str = "an estimate, not proven",
) -> str:  # fmt: skip
    """Draw lines through points; ``log`` : which axes are logarithmic, "x" or "y", on which points
    that are not positive are left out; ``unit`` : whether both go from 0 to 1; ``from_zero`` :
    which begin at 0 at the latest, "x" or "xy"; ``hollow`` : what hollow points mean."""

    def can_be_drawn(x: float, y: float) -> bool:
        finite = math.isfinite(x) and math.isfinite(y)
        return finite and (x > 0 or log != "x") and (y > 0 or log != "y")

    drawn = ([point for point in line.points if can_be_drawn(*point)] for line in series)
    series = [line._replace(points=points) for line, points in zip(series, drawn, strict=True)]
    points = [point for line in series for point in line.points]
    if not points:
        return ""
    x_axis, y_axis = Axis(0.0, 1.0, LEFT, RIGHT), Axis(0.0, 1.0, BOTTOM, TOP)
    if not unit:
        xs, ys = zip(*points, *[(0.0, 0.0)] * bool(from_zero), strict=True)
        ys = ys if from_zero == "xy" else ys[: len(points)]
        y_axis = Axis.over(ys, BOTTOM if "y" in from_zero else BOTTOM - 8, TOP, log=log == "y")
        widest = max((len(label) for _, label in y_axis.labels()), default=0)
        x_axis = Axis.over(xs, max(LEFT, 8 + 7.7 * widest), RIGHT, log=log == "x")
    drawing = "".join(_line(line, x_axis, y_axis) for line in series)
    legend = [(f"k{line.key}", line.name) for line in series if line.name]
    note = f"Hollow: {hollow}." if any(line.hollow for line in series) else ""
    return _figure(title, _axes(x_axis, y_axis, x_name, y_name) + drawing, legend, note)


def _line(series: Series, x_axis: Axis, y_axis: Axis) -> str:
    places = [(x_axis.place(x), y_axis.place(y)) for x, y in series.points]
    path = " ".join(f"{x:g},{y:g}" for x, y in places)
    drawing = f'<polyline class="k{series.key}" points="{path}"/>'
    if series.marked or len(places) == 1:
        for number, ((x, y), (a, b)) in enumerate(zip(places, series.points, strict=True)):
            shape = "hollow " if number in series.hollow else ""
            words = escape(f"{series.name} {short(a)}: {series.form(b)}".strip())
            drawing += f'<circle class="{shape}k{series.key}" cx="{x:g}" cy="{y:g}" r="3">'
            drawing += f"<title>{words}</title></circle>"
    return drawing


def histogram(
    title: str, edges: Sequence[float], counts: Sequence[int], colours: Sequence[str],
    x_name: str, legend: Sequence[tuple[str, str]], note: str = "",
) -> str:  # fmt: skip
    """Draw a bar for each count, between its edges, of the class that ``colours`` has for it."""
    x_axis = Axis(edges[0], edges[-1], LEFT, RIGHT)
    y_axis = Axis(0, max(max(counts), 1), BOTTOM, TOP)
    bars = ""
    for low, high, count, colour in zip(edges, edges[1:], counts, colours, strict=False):
        left, right, top = x_axis.place(low), x_axis.place(high), y_axis.place(count)
        place = f'x="{left:.1f}" y="{top:.1f}"'
        size = f'width="{right - left - 0.5:.1f}" height="{BOTTOM - top:.1f}"'
        bars += f'<rect class="{colour}" {place} {size}>'
        bars += f"<title>{short(low)} to {short(high)}: {count:,}</title></rect>"
    return _figure(title, _axes(x_axis, y_axis, x_name, "rows") + bars, legend, note)


def _axes(x_axis: Axis, y_axis: Axis, x_name: str, y_name: str) -> str:
    """Draw axes with names, right below and left above, ticks, and a grid of horizontal lines."""
    across = f'x1="{x_axis.start:g}" x2="{x_axis.end:g}"'
    drawing = _text(RIGHT, HEIGHT - 5, "end", x_name) + _text(4, 12, "start", y_name)
    for y, label in y_axis.labels():
        drawing += f'<line class="grid" {across} y1="{y:g}" y2="{y:g}"/>'
        drawing += _text(x_axis.start - 6, y + 4, "end", label)
    for x, label in x_axis.labels():
        drawing += _text(x, BOTTOM + 16, "middle", label)
    return f'{drawing}<line class="axis" {across} y1="{BOTTOM}" y2="{BOTTOM}"/>'


def _text(x: float, y: float, anchor: str, words: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def _figure(
    title: str, drawing: str, legend: Sequence[tuple[str, str]] = (), note: str = ""
) -> str:
    """Return a figure with its title, the ``legend`` (class of a colour, words), and a note."""
    keys = "".join(f'<span><i class="{key}"></i>{escape(name)}</span>' for key, name in legend)
    name, below = escape(title), f"<p>{escape(note)}</p>" if note else ""
    return (
        f'<figure><figcaption>{name}</figcaption><div class="legend">{keys}</div>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">{drawing}</svg>'
        f"{below}</figure>"
    )
