"""A chunk's rows as one learner sees them: its two classes and its prices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.config import PRICES, Settings
from streamtron.core.errors import DataError
from streamtron.core.losses import NO_NUMBERS, Loss, loss_of
from streamtron.core.rows import Chunk, Label

LEAST, MOST = 1e-50, 1e50
"""Labels that are numbers are 0, or so far from it at least and at most."""


def costs(signs: NDArray[np.int8], delta2: NDArray[np.float64]) -> NDArray[np.float64]:
    """C_k = 1/(2 Δ_k²), shape (rows,); 0 where a row is left out."""
    return np.divide(0.5, delta2, out=np.zeros(len(delta2)), where=signs != 0)


BELOW = 1.0 - 32.0 * kernels.UNIT_ROUNDOFF
"""α stays below this part of the most that it may be, for that is known with some roundings."""


def round_counts(
    alpha: NDArray[np.float64], b: float, most: NDArray[np.float64], *, balanced: bool = False
) -> NDArray[np.int32]:
    """c_k = ⌊b α_k + ½⌋, |c_k| 2³¹ − 1 and b ``most`` at most; see ``losses.Loss.most``.
    ``balanced`` : sums of consecutive α_k are rounded, so that Σ c_k is off by ½ at most: a bias
    that is not penalised wants it to be 0."""
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is cut too
        if balanced:
            counts = np.diff(np.floor(np.cumsum(b * alpha) + 0.5), prepend=0.0)
        else:
            counts = np.floor(b * alpha + 0.5)
    largest = largest_counts(b, most)
    return np.clip(counts, -largest, largest).astype(np.int32)


def largest_counts(b: float, most: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest c_k for which α_k = c_k/b is at most ``most``; 2³¹ − 1 at most."""
    with np.errstate(over="ignore"):
        return np.minimum(np.floor(b * most * BELOW), float(kernels.COUNT_MAX))


def cut_counts(counts: NDArray[np.int32], targets: Targets, loss: Loss, b: float) -> bool:
    """Cut the counts of a chunk, in place, to the most that C_k allows, which an update makes less
    where class weights are balanced; return whether any was above."""
    if loss.quadratic or loss.numbers:
        return False
    largest = largest_counts(b, loss.most * costs(targets.signs, targets.delta2))
    above = counts > largest
    counts[above] = largest[above]
    return bool(above.any())


def relax_counts(
    counts: NDArray[np.int32],
    solution: NDArray[np.int32],
    factor: float,
    largest: NDArray[np.float64],
    *,
    signed: bool,
) -> NDArray[np.int32]:
    """Return counts moved ``factor`` times as far as to those of a solution, rounded; not below 0,
    unless ``signed``."""
    start = counts.astype(np.float64)
    moved = start + np.floor(factor * (solution - start) + 0.5)
    return np.clip(moved, -largest if signed else 0.0, largest).astype(np.int32)


def less_t(products: NDArray[np.float64], t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return m_k of l_k (x_k, ρ)·v: the same, less t_k where labels are numbers."""
    return products - t if len(t) else products


@dataclass(frozen=True, slots=True)
class Targets:
    """Of every row of a chunk: its number in the whole data (int64), l_k (int8; 0 = left out,
    weight 0), Δ_k² and ‖x_k‖² (float64); where labels are numbers t_k (float64), and l_k is 1."""

    numbers: NDArray[np.int64]
    signs: NDArray[np.int8]
    delta2: NDArray[np.float64]
    squares: NDArray[np.float64]
    t: NDArray[np.float64] = field(default_factory=lambda: NO_NUMBERS)
    center: float = 0.0
    """what has been taken off the labels in t"""

    def take(self, at: NDArray[np.int64] | slice) -> Targets:
        """Return those of some rows."""
        t = self.t[at] if len(self.t) else self.t
        return Targets(
            self.numbers[at], self.signs[at], self.delta2[at], self.squares[at], t, self.center
        )

    @property
    def present(self) -> NDArray[np.bool_] | slice:
        """The rows that are not left out: an index for arrays of all of them."""
        return slice(None) if self.signs.all() else self.signs != 0

    def least_delta2(self, loss: Loss) -> float:
        """Return the least Δ_k² of the rows that are not left out; where labels are numbers over
        ``loss.shares``. ∞ without rows."""
        delta2 = self.delta2[self.present]
        if len(self.t):
            delta2 = delta2 / loss.shares(self.t[self.present])
        return float(delta2.min(initial=math.inf))

    def sq_lengths(self, rho: float) -> NDArray[np.float64]:
        """q_k = ‖x_k‖² + ρ² + Δ_k² of the rows that are not left out; DataError if one is 0."""
        lengths = (self.squares + (rho**2 + self.delta2))[self.present]
        if lengths.min(initial=np.inf) <= 0.0:
            row = int(self.numbers[self.present][lengths.argmin()])
            raise DataError(
                f"row {row + 1} has no features, and delta and rho are 0: no classifier gives it a "
                "margin above 0. Remove the row, or give --rho or --delta above 0."
            )
        return lengths


@dataclass(slots=True, eq=False)
class TargetRule:
    """What makes targets of chunks: Δ_k² = Δ² / (row weight · class weight).

    Parameters
    ----------
    delta2 : Δ² of a row of weight 1.
    labels : the source's labels by code, growing while the first reading runs.
    class_weights : weight of a label, 1 where it is not named; None = all 1. Where a row may have
        several labels, that of ``positive`` counts for the rows that have it, and all others are 1.
    positive : the label that is +1 (rows that have it among theirs, where there may be several);
        it may be one not met yet. None = the first one met. Turning all signs turns w exactly, so
        the data need not be read before it is known which label is the larger.
    """

    delta2: float
    labels: Sequence[Label]
    class_weights: Mapping[Label, float] | None
    positive: Label | None
    center: float = 0.0
    """is taken off labels that are numbers: the bias is less by it"""

    @property
    def least_delta2(self) -> float:
        """The least Δ_k² that class weights make of a row of weight 1."""
        return self.delta2 / max([1.0, *(self.class_weights or {}).values()])

    def __call__(self, chunk: Chunk) -> Targets:
        """The chunk's targets."""
        signs = self._signs(chunk)
        delta2 = np.full(len(chunk), self.delta2)
        weights = chunk.weights
        if self.class_weights is not None:
            of_class = self._of_class(chunk, signs, self.class_weights)
            weights = of_class if weights is None else weights * of_class
        if weights is not None:
            signs[weights == 0.0] = 0
            with np.errstate(over="ignore"):
                delta2 = delta2 / np.where(weights == 0.0, 1.0, weights)
            self._check_prices(chunk, weights, delta2)
        if chunk.codes.dtype != np.float64:
            return Targets(chunk.numbers, signs, delta2, chunk.squares)
        _check_sizes(chunk, signs)
        t = np.asarray(chunk.codes - self.center, np.float64)
        return Targets(chunk.numbers, signs, delta2, chunk.squares, t, self.center)

    def _check_prices(
        self, chunk: Chunk, weights: NDArray[np.float64], delta2: NDArray[np.float64]
    ) -> None:
        """Refuse rows whose weight makes C_k = 1/(2 Δ_k²) overflow what is computed with it."""
        least, most = 0.5 / PRICES[1], 0.5 / PRICES[0]
        out = np.flatnonzero((weights != 0.0) & ~((delta2 >= least) & (delta2 <= most)))
        if len(out) and self.delta2 > 0.0:
            row = int(out[0])
            weight = float(weights[row])
            place = f"row {int(chunk.numbers[row]) + 1}"
            if chunk.weights is None:
                place = f"the class of {place}"
            elif self.class_weights is not None:
                place += " and its class"
            raise DataError(
                f"the weight of {place} is {weight:g}, which times C is "
                f"{0.5 / self.delta2 * weight:g}: wanted {PRICES[0]:g} to {PRICES[1]:g}, or a "
                "weight of 0, which leaves the row out. Give another weight, or another C."
            )

    def _signs(self, chunk: Chunk) -> NDArray[np.int8]:
        """+1 for the rows that have the positive label, -1 for the others; 1 for all of numbers."""
        if chunk.codes.dtype == np.float64:
            return np.ones(len(chunk), np.int8)
        labels, label = self.labels, self.positive
        plus = 0
        if label is not None:
            plus = labels.index(label) if label in labels else -2  # not met yet: no row has it
        if chunk.code_offsets is None:
            ones: NDArray[np.int8] = (chunk.codes == plus).view(np.int8)
            return ones + ones - np.int8(1)
        signs = np.full(len(chunk), -1, np.int8)
        places = np.flatnonzero(chunk.codes == plus)
        signs[np.searchsorted(chunk.code_offsets, places, side="right") - 1] = 1
        return signs

    def _of_class(
        self, chunk: Chunk, signs: NDArray[np.int8], weights: Mapping[Label, float]
    ) -> NDArray[np.float64]:
        if chunk.code_offsets is None:
            return np.array([weights.get(label, 1.0) for label in self.labels])[chunk.codes]
        positive = self.positive if self.positive is not None else next(iter(self.labels), None)
        weight = 1.0 if positive is None else weights.get(positive, 1.0)
        return np.where(signs == 1, weight, 1.0)


@dataclass(slots=True)
class Extent:
    """What is known of the rows observed so far: width, R², the least Δ_k² > 0 (see ``Targets``),
    how many rows; and what is taken off labels that are numbers."""

    columns: int = 0
    sq_radius: float = 0.0
    least_delta2: float = math.inf
    rows: int = 0
    center: float | None = None

    def observe(self, sq_radius: float, least_delta2: float) -> None:
        """Update R² and the least Δ_k²."""
        self.sq_radius = max(self.sq_radius, sq_radius)
        self.least_delta2 = min(self.least_delta2, least_delta2)

    def join(self, extent: Extent) -> None:
        """Add rows of another part."""
        self.observe(extent.sq_radius, extent.least_delta2)
        self.center = extent.center if self.center is None else self.center
        self.rows += extent.rows
        self.columns = max(self.columns, extent.columns)

    def add(self, targets: Targets, settings: Settings, columns: int) -> None:
        """Add the rows of a chunk of so many columns, which have not been observed before."""
        self.columns = max(self.columns, columns)
        sq_lengths = targets.sq_lengths(settings.augmentation)
        if not len(sq_lengths):
            return
        self.observe(float(sq_lengths.max()), targets.least_delta2(loss_of(settings)))
        self.rows += len(sq_lengths)


def _check_sizes(chunk: Chunk, signs: NDArray[np.int8]) -> None:
    """Refuse labels so small that P* may be less than what keeps rounding from being nothing, and
    those so large that it overflows."""
    sizes = np.abs(chunk.codes)
    out = np.flatnonzero(((sizes != 0.0) & (sizes < LEAST) & (signs != 0)) | (sizes > MOST))
    if len(out):
        row = int(out[0])
        raise DataError(
            f"row {int(chunk.numbers[row]) + 1} has the label {float(chunk.codes[row]):g}: wanted "
            f"0, or {LEAST:g} to {MOST:g} in size. Multiply all labels by the same number."
        )
