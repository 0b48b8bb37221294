"""Charts as inline SVG, whose colours are classes of the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 400, 250
"""Of a chart, in its own units: about the pixels that it takes on a page."""

LEFT, RIGHT, TOP, BOTTOM = 56, 386, 24, 212
"""The area within the axes; further right where labels are long."""

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
    """A line; ``key`` is the number of its colour, ``marked`` whether points are drawn, and
    ``hollow`` those points whose inside is empty. Without a name it is not in the legend."""

    name: str
    points: Points
    key: int = 1
    marked: bool = False
    hollow: frozenset[int] = frozenset()
    shown: Callable[[float], str] = short
    """formats the height of a point"""


class Axis(NamedTuple):
    """Values from ``low`` to ``high``, which are different, from ``start`` to ``end`` in units;
    ``whole`` : whether they are whole numbers, and ticks are too."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    whole: bool = False

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, *, log: bool = False) -> Axis:
        """Return an axis of all values; those that a picture cannot tell apart get room on both
        sides."""
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
            if len(powers) > 1:
                return [10.0**power for power in powers]
            return [self.low, self.high]
        rough = (self.high - self.low) / 4
        unit = math.pow(10.0, math.floor(math.log10(rough)))
        step = next(
            unit * each for each in (1.0, 2.0, 2.5, 5.0, 10.0) if unit * each >= 0.999 * rough
        )
        step = max(step, 1.0) if self.whole else step
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

    def room(self) -> float:
        """Return the units that the labels of a vertical axis take, on its left."""
        return max(
            LEFT, 8 + 7.7 * max((len(self.label(value)) for value in self.ticks()), default=0)
        )


def figure(title: str, drawing: str, legend: Sequence[tuple[str, str]] = (), note: str = "") -> str:
    """Return a figure with its title, the ``legend`` (class of a colour, words), and a note."""
    keys = "".join(f'<span><i class="{key}"></i>{escape(name)}</span>' for key, name in legend)
    below = f"<p>{escape(note)}</p>" if note else ""
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<div class="legend">{keys}</div>{drawing}{below}</figure>'
    )


def line_chart(
    title: str, series: Sequence[Series], x_name: str, y_name: str, *, log_x: bool = False,
    log_y: bool = False, unit: bool = False, from_zero: str = "", hollow: str = "",
) -> str:  # fmt: skip
    """Draw lines through points; ``unit`` : whether both axes go from 0 to 1; ``from_zero`` : which
    begin at 0 at the latest, "x" or "xy"; ``hollow`` : what hollow points mean. On logarithmic axes
    points that are not positive are left out."""
    series = [
        one._replace(points=[p for p in one.points if _shown(p, log_x, log_y)]) for one in series
    ]
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    if not xs:
        return ""
    x_axis, y_axis = Axis(0.0, 1.0, LEFT, RIGHT), Axis(0.0, 1.0, BOTTOM, TOP)
    if not unit:
        xs, ys = ([*([0] if name in from_zero else ()), *v] for name, v in (("x", xs), ("y", ys)))
        y_axis = Axis.over(ys, BOTTOM if "y" in from_zero else BOTTOM - 8, TOP, log=log_y)
        x_axis = Axis.over(xs, y_axis.room(), RIGHT, log=log_x)
    drawn = "".join(_line(one, x_axis, y_axis) for one in series)
    keys = [(f"k{one.key}", one.name) for one in series if one.name]
    note = f"Hollow: {hollow}." if any(one.hollow for one in series) else ""
    return figure(title, _svg(title, _axes(x_axis, y_axis, x_name, y_name) + drawn), keys, note)


def _shown(point: tuple[float, float], log_x: bool, log_y: bool) -> bool:
    x, y = point
    finite = math.isfinite(x) and math.isfinite(y)
    return finite and (x > 0 or not log_x) and (y > 0 or not log_y)


def _line(series: Series, x_axis: Axis, y_axis: Axis) -> str:
    places = [(x_axis.place(x), y_axis.place(y)) for x, y in series.points]
    path = " ".join(f"{x:g},{y:g}" for x, y in places)
    found = f'<polyline class="k{series.key}" points="{path}"/>'
    if series.marked or len(places) == 1:
        for at, ((x, y), (a, b)) in enumerate(zip(places, series.points, strict=True)):
            shape = "hollow " if at in series.hollow else ""
            found += (
                f'<circle class="{shape}k{series.key}" cx="{x:g}" cy="{y:g}" r="3">'
                f"<title>{escape(f'{series.name} {short(a)}: {series.shown(b)}'.strip())}</title>"
                "</circle>"
            )
    return found


def histogram(
    title: str, edges: Sequence[float], counts: Sequence[int], colours: Sequence[str],
    x_name: str, legend: Sequence[tuple[str, str]], note: str = "",
) -> str:  # fmt: skip
    """Draw a bar for each count, between its edges, of the class that ``colours`` has for it."""
    x_axis = Axis(edges[0], edges[-1], LEFT, RIGHT)
    y_axis = Axis(0, max(max(counts), 1), BOTTOM, TOP)
    bars = ""
    for at, (count, colour) in enumerate(zip(counts, colours, strict=True)):
        left, right = x_axis.place(edges[at]), x_axis.place(edges[at + 1])
        top = y_axis.place(count)
        bars += (
            f'<rect class="{colour}" x="{left:g}" y="{top:g}" width="{right - left - 0.5:.1f}" '
            f'height="{BOTTOM - top:.1f}"><title>{short(edges[at])} to {short(edges[at + 1])}: '
            f"{count:,}</title></rect>"
        )
    return figure(title, _svg(title, _axes(x_axis, y_axis, x_name, "rows") + bars), legend, note)


def heat_map(
    title: str, xs: Sequence[float], ys: Sequence[float], cells: dict[tuple[float, float], float],
    best: tuple[float, float], x_name: str, y_name: str,
) -> str:  # fmt: skip
    """Draw a cell for each (x, y) that has a value, the darker the higher, and frame the best."""
    wide, high = (RIGHT - LEFT) / len(xs), (BOTTOM - TOP) / len(ys)
    least, most = min(cells.values()), max(cells.values())
    drawn = ""
    for (x, y), value in cells.items():
        left, top = LEFT + wide * xs.index(x), BOTTOM - high * (ys.index(y) + 1)
        shade = 0.08 + 0.57 * ((value - least) / (most - least) if most > least else 1.0)
        frame = ' class="best"' if (x, y) == best else ""
        drawn += (
            f'<g{frame}><rect class="heat" x="{left + 1:.1f}" y="{top + 1:.1f}" '
            f'width="{wide - 2:.1f}" height="{high - 2:.1f}" '
            f'fill-opacity="{shade:.2f}"/><text class="cell" x="{left + wide / 2:.1f}" '
            f'y="{top + high / 2 + 4:.1f}">{short(value)}</text>'
            f"<title>{escape(f'{x_name} {short(x)}, {y_name} {short(y)}: {value:.6g}')}</title></g>"
        )
    for at, x in enumerate(xs):
        drawn += _tick(LEFT + wide * (at + 0.5), BOTTOM + 16, "middle", short(x))
    for at, y in enumerate(ys):
        drawn += _tick(LEFT - 6, BOTTOM - high * (at + 0.5) + 4, "end", short(y))
    return figure(title, _svg(title, drawn + _names(x_name, y_name)))


def _axes(x_axis: Axis, y_axis: Axis, x_name: str, y_name: str) -> str:
    return "".join([*_grid(x_axis, y_axis), _names(x_name, y_name)])


def _grid(x_axis: Axis, y_axis: Axis) -> Iterator[str]:
    across = f'x1="{x_axis.start:g}" x2="{x_axis.end:g}"'
    for value in y_axis.ticks():
        y = y_axis.place(value)
        yield f'<line class="grid" {across} y1="{y:g}" y2="{y:g}"/>'
        yield _tick(x_axis.start - 6, y + 4, "end", y_axis.label(value))
    for value in x_axis.ticks():
        yield _tick(x_axis.place(value), BOTTOM + 16, "middle", x_axis.label(value))
    yield f'<line class="axis" {across} y1="{BOTTOM}" y2="{BOTTOM}"/>'


def _tick(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _names(x_name: str, y_name: str) -> str:
    """Name the axes: below to the right, and above to the left."""
    return _tick(RIGHT, HEIGHT - 5, "end", x_name) + _tick(4, 12, "start", y_name)


def _svg(title: str, content: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{content}</svg>"
    )
