"""Turn numbers into features: scikit-learn's MaxAbsScaler, StandardScaler, KBinsDiscretizer and
SimpleImputer, entry by entry."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.core.splitmix import draw
from streamtron.data.formats import recipe_column
from streamtron.data.formats.layouts import Spot, float32, is_number
from streamtron.data.formats.recipe_column import REFUSED, Cells, Column, counted

SAMPLE = 1 << 16
"""Values of a column whose quantiles are taken; of more, those of this many rows, drawn by a hash
of their place."""


class Moments(NamedTuple):
    """Of numbers: their rows, how many nulls, mean, Σ (x - mean)², smallest and largest; and values
    with the hashes of their places, the smallest of which are drawn for the quantiles."""

    rows: int
    nulls: int
    mean: float
    squares: float
    low: float
    high: float
    places: NDArray[np.uint64]
    values: NDArray[np.float64]

    @classmethod
    def of(cls, numbers: NDArray[np.float64], nulls: int, spot: Spot | None = None) -> Moments:
        """Count numbers; draw them if their ``spot`` is given."""
        mean = float(numbers.mean()) if len(numbers) else 0.0
        squares = float(np.square(numbers - mean).sum())
        low, high = float(numbers.min(initial=np.inf)), float(numbers.max(initial=-np.inf))
        values = numbers if spot else numbers[:0]
        start = (zlib.crc32(spot.part.encode()) << 32) + spot.first_row if spot else 0
        places = draw(0, np.arange(len(values), dtype=np.uint64) + np.uint64(start))
        return cls(len(numbers), nulls, mean, squares, low, high, places, values)

    def plus(self, other: Moments) -> Moments:
        """Both together (Chan, Golub and LeVeque)."""
        rows, apart = self.rows + other.rows, other.mean - self.mean
        share = other.rows / rows if rows else 0.0
        together = Moments(
            rows,
            self.nulls + other.nulls,
            self.mean + apart * share,
            self.squares + other.squares + apart * apart * self.rows * share,
            min(self.low, other.low),
            max(self.high, other.high),
            np.concatenate([self.places, other.places]),
            np.concatenate([self.values, other.values]),
        )
        return together.drawn() if len(together.places) > 4 * SAMPLE else together

    def drawn(self) -> Moments:
        """Return the same with no more values than are drawn."""
        kept = np.argsort(self.places, kind="stable")[:SAMPLE]
        return self._replace(places=self.places[kept], values=self.values[kept])

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return float((self.squares / self.rows) ** 0.5)

    def described(self) -> dict[str, float] | None:
        """Return mean, standard deviation, least and largest; None where there are no numbers."""
        if not self.rows:
            return None
        known = {"mean": self.mean, "deviation": self.deviation}
        return {**known, "least": self.low, "largest": self.high}

    def filled(self, number: float) -> Moments:
        """Return the same with the nulls as this number."""
        nulls = Moments.of(np.full(min(self.nulls, 1), number), 0)._replace(rows=self.nulls)
        return self.plus(nulls)._replace(nulls=0)

    def edges(self, bins: int) -> tuple[float, ...]:
        """Return the edges of bins with as many values each; equal ones once."""
        edges = np.percentile(self.drawn().values, np.linspace(0, 100, bins + 1))
        kept = edges[np.ediff1d(edges, to_begin=np.inf) > 1e-8].tolist()
        return tuple(kept if len(kept) > 1 else [*kept, kept[0] + 1.0])


@dataclass(frozen=True)
class ScaledColumn(Column):
    """A column with a number that may be scaled.

    Parameters
    ----------
    scale : ``"none"``; ``"max_abs"``, by the largest absolute value, so that zeros stay zeros;
        ``"standard"``, to mean 0 and variance 1.
    """

    scale: str = "none"
    center: float = counted(0.0)
    divisor: float | None = counted()

    CHOICES: ClassVar = {"scale": ("none", "max_abs", "standard")}

    def _check(self) -> None:
        if self.divisor is not None and not self.divisor > 0:
            self.refuse("a divisor that is not above 0")

    def _wanted(self) -> bool:
        return self.scale != "none" and self.divisor is None

    def _scaled(self, numbers: NDArray[Any]) -> NDArray[Any]:
        return numbers if self.divisor is None else (numbers - self.center) / self.divisor

    def _scaling(self, moments: Moments) -> dict[str, Any]:
        """Return ``center`` and ``divisor``."""
        if not moments.rows:
            nothing = "nothing but nulls. Leave it out of --columns."
            raise DataError(f"column {self.name!r} has {nothing}")
        if self.scale == "none":
            return {}
        if self.scale == "max_abs":
            return {"divisor": max(abs(moments.low), abs(moments.high)) or 1.0}
        deviation = moments.deviation
        rounding = np.finfo(float).eps * moments.rows**0.5 * (abs(moments.mean) + deviation)
        is_constant = deviation <= max(rounding, 1e-150)
        return {"center": moments.mean, "divisor": 1.0 if is_constant else deviation}


@dataclass(frozen=True)
class NumberColumn(ScaledColumn):
    """A number or a boolean: one feature, or one for each of ``bins`` by quantiles; NaN is a null.

    Parameters
    ----------
    bins : number of bins; None = none.
    null : ``"0"`` or ``"mean"``, as if it were that number; ``"column"``, a feature of its own.
    """

    bins: int | None = None
    mean: float | None = counted()
    edges: tuple[float, ...] | None = counted()

    KIND = "number"
    TYPES = "numbers or booleans"
    NULLS = (REFUSED, "0", "column", "mean")

    def _check(self) -> None:
        super()._check()
        edges = list(self.edges or (0.0, 1.0))
        if self.bins is not None and not (2 <= self.bins <= 10_000 and self.scale == "none"):
            self.refuse("bins: expected 2 to 10,000, and no scale beside them")
        if len(edges) < 2 or edges != sorted(edges):
            self.refuse("edges that do not rise")

    @staticmethod
    def _fits(type_: pa.DataType) -> bool:
        return is_number(type_) or pa.types.is_boolean(type_) or pa.types.is_decimal(type_)

    def _wanted(self) -> bool:
        has_mean = self.null != "mean" or self.mean is not None
        return super()._wanted() or not has_mean or (self.bins is not None and self.edges is None)

    def _names(self) -> Iterable[str]:
        if self.edges is None:
            return [self.name]
        bounds = zip(self.edges, self.edges[1:], strict=False)
        return [f"{self.name}={low:.6g}…{high:.6g}" for low, high in bounds]

    def _numbers(self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot) -> NDArray[Any]:
        """Return finite numbers, 0 where they are missing."""
        if pa.types.is_decimal(array.type):
            array = array.cast(pa.float64())
        array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
        numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        if missing.any():
            numbers = np.where(missing, numbers.dtype.type(0), numbers)
        is_plain = self.scale == "none" and self.bins is None
        if is_plain or not np.isfinite(numbers).all():
            float32(np.arange(len(numbers) + 1), numbers, spot, self.name)  # refuses what it is not
        return numbers

    def _cells(self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot) -> Cells:
        numbers = self._numbers(array, missing, spot).astype(np.float64)
        if self.null == "mean" and missing.any():
            numbers[missing] = self.mean
        if self.edges is not None:
            codes = np.searchsorted(self.edges[1:-1], numbers, side="right")
            codes[missing & (self.null == "column")] = self.width - 1
            return Cells(recipe_column.one_hot(codes, self.width))
        numbers = self._scaled(numbers)
        if self.null == "column":
            numbers[missing] = 0.0
        values = float32(np.arange(len(numbers) + 1), numbers, spot, self.name)
        stacked = np.stack([values, missing][: self.width], axis=1)
        return Cells(recipe_column.dense_cells(np.arange(self.width), stacked, self.width))

    def _tally(self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot) -> Moments:
        numbers = self._numbers(array, missing, spot).astype(np.float64)
        return Moments.of(numbers[~missing], int(missing.sum()), spot if self.bins else None)

    def fitted(self, tally: Moments) -> Self:
        """Return the column with scale, mean and edges."""
        mean = tally.mean if self.null == "mean" else None
        filled = tally.filled(mean or 0.0) if self.null in ("0", "mean") else tally
        scaling = self._scaling(tally if self.bins else filled)  # edges are between numbers
        edges = None if self.bins is None else tally.edges(self.bins)
        return replace(self, mean=mean, edges=edges, **scaling)
