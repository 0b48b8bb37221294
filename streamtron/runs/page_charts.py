"""Lines and axes of the charts on the page about a run, which its template draws as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamtron.core.config import meets
from streamtron.model.metrics import Floats

Points = Sequence[tuple[float, float]]
Rows = Sequence[Mapping[str, Any]]
Form = Callable[[float], str]


def brief(value: float) -> str:
    """Format a number in few characters: 12k, 0.25, 8.75e-4."""
    if 0.0 < abs(value) < 1e-3:
        digits, _, power = f"{value:e}".partition("e")
        return f"{float(digits):.4g}e{int(power)}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and value % size == 0):
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


class Line(NamedTuple):
    """A line of a chart, in the legend if it has a name. ``key`` : the number of its colour.
    ``marked`` : whether points are drawn, ``hollow`` : those whose inside is empty. ``form`` :
    formats the height of a point."""

    name: str
    points: Points
    key: int = 1
    marked: bool = False
    hollow: Points = ()
    form: Form = brief


def drawable(line: Line, log: str) -> Line:
    """Leave out points that are not finite, or not positive on the axis ``log``, x or y."""
    points = [
        (x, y)
        for x, y in line.points
        if math.isfinite(x + y) and (x > 0 or log != "x") and (y > 0 or log != "y")
    ]
    return line._replace(points=points)


def pairs(rows: Rows, x: str, y: str) -> Points:
    """Return the points that rows have in two of their fields."""
    return [(row[x], row[y]) for row in rows]


class Axis(NamedTuple):
    """Values from ``low`` to ``high``, which differ, drawn from ``start`` to ``end`` in units of
    the chart; ``integral`` : whether values and ticks are whole numbers."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    integral: bool = False

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, log: bool = False) -> Axis:
        """Return an axis of all values; values too close for a picture get room on both sides."""
        low, high = min(values), max(values)
        if high - low <= 1e-6 * max(abs(low), abs(high)):
            room = 0.001 * abs(low) or 0.5
            low, high = (low / 2, high * 2) if log else (low - room, high + room)
        return cls(low, high, start, end, log, all(float(v).is_integer() for v in values))

    def place(self, value: float) -> float:
        """Return where a value lies, in units of the chart."""
        scale = math.log if self.log else float
        value, low, high = scale(value), scale(self.low), scale(self.high)
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Return where some round values lie, and their labels."""
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            every = max(1, math.ceil((high - low) / 5))
            powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1, every)
            values = [10.0**power for power in powers] if len(powers) > 1 else [self.low, self.high]
            return [(self.place(value), brief(value)) for value in values]
        rough = (self.high - self.low) / 4
        power = math.floor(math.log10(rough))
        factor = next(k for k in (1.0, 2.0, 2.5, 5.0, 10.0) if k * 10.0**power >= 0.999 * rough)
        if self.integral and power < 0:
            factor, power = 1.0, 0
        step = factor * 10.0**power
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [step * k for k in range(first, last + 1)]
        digits = max(0, (factor == 2.5) - power - (factor == 10.0))
        form = f"{{:.{digits}f}}".format if 1e-3 <= max(map(abs, values)) < 1e3 else brief
        return [(self.place(value), form(value + 0.0)) for value in values]


def by_reading(history: Rows, y: str, name: str = "", key: int = 1, form: Form = brief) -> Line:
    """Return a line of what is known after each reading, hollow where it is not proven."""
    known = [row for row in history if row.get("reading") is not None and row.get(y) is not None]
    unproven = [row for row in known if not row.get("proven", True)]
    return Line(name, pairs(known, "reading", y), key, True, pairs(unproven, "reading", y), form)


def ranking(curves: Mapping[str, Floats]) -> tuple[list[Line], list[Line]]:
    """Return ROC curves and curves of precision by recall, both of each class where these are at
    most four; of several also the mean ROC curve. ``curves`` : see ``Scores.curve``."""
    roc, ranked, rates, grid = [], [], [], np.linspace(0.0, 1.0, 201)
    for key, (label, curve) in enumerate(curves.items(), 1):
        tp, fp = curve.T
        fpr, recall, precision = fp / fp[-1], tp / tp[-1], tp[1:] / (tp + fp)[1:]
        rates.append(np.interp(grid, fpr, recall))
        roc.append(Line(f"for {label}", np.column_stack([fpr, recall]).tolist(), key))
        ranked.append(Line(f"for {label}", np.column_stack([recall[1:], precision]).tolist(), key))
    if len(rates) > 4:
        roc, ranked = [], []
    if len(rates) > 1:
        mean = np.column_stack([grid, np.mean(rates, axis=0)]).tolist()
        roc.append(Line("mean of all classes", mean, len(roc) + 1))
    return roc, ranked


def by_price(rows: Rows, price: str, y: str) -> list[Line]:
    """Return lines over candidates of a sweep, which rise by price, one for each loss, ρ and r;
    hollow where they were dropped or are not certified."""
    kinds = [(row["loss"], row["rho"], row.get("l1_ratio", 0.0)) for row in rows]
    several, gap, drawn = len({loss for loss, *_ in kinds}) > 1, "relative_duality_gap", []
    for key, (loss, rho, ratio) in enumerate(sorted(set(kinds))):
        line = [row for row, kind in zip(rows, kinds, strict=True) if kind == (loss, rho, ratio)]
        hollow = [r for r in line if r["dropped"] or not meets(r, r[gap], r["stop_reason"])]
        words = [loss] * several + [f"ρ = {rho:g}"] + [f"l1_ratio = {ratio:g}"] * bool(ratio)
        points = pairs(line, price, y)
        drawn.append(Line(", ".join(words), points, key % 5 + 1, True, pairs(hollow, price, y)))
    return drawn
