"""A chunk's rows as one learner sees them: its two classes and its prices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import PRICES
from streamtron.core.errors import DataError
from streamtron.core.kernels import LN2, SURE
from streamtron.core.losses import NO_NUMBERS, Domain, Loss, domain
from streamtron.core.rows import Chunk, Facts, Label

LEAST, MOST = 1e-15, 1e15
"""Labels that are numbers are 0, or so far from it at least and at most."""


def to_alphas(alpha: NDArray[np.float64], domain: Domain) -> NDArray[np.float32]:
    """Return α as float32, within the domain, which holds 0: rounded to nearest, or towards 0 where
    that is beyond.

    >>> to_alphas(np.array([0.5, 0.2]), (np.zeros(2), np.array([0.1, 1.0]))).tolist()
    [0.09999999403953552, 0.20000000298023224]
    """
    least, most = domain
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is cut
        rounded = np.clip(alpha, least, most).astype(np.float32)
    beyond = (rounded < least) | (rounded > most)
    rounded[beyond] = np.nextafter(rounded[beyond], np.float32(0.0))
    return rounded


Table = NDArray[np.float32]
"""α_kj of rows of softmax, shape (rows, K); 0 where j is the row's class."""


def to_table(others: NDArray[np.float64], costs: NDArray[np.float64]) -> Table:
    """Return the α of all classes but the row's as float32, shape (rows, K), made less where their
    sum may be above C_k: by rounding, it is not certain below (1 − SURE) C_k. ``others`` : of shape
    (K, rows), 0 of the row's class.

    >>> to_table(np.array([[0.0], [0.25], [0.75]]), np.ones(1)).tolist()
    [[0.0, 0.24999988079071045, 0.7499996423721313]]
    """
    table = np.ascontiguousarray(others.T, dtype=np.float32)
    total = sums_of_others(table)
    over = np.flatnonzero(total > (1.0 - SURE) * costs)
    factors = (1.0 - 2.0**-21) * costs[over] / total[over]
    table[over] = table[over] * factors[:, None]
    return table


def sums_of_others(table: Table) -> NDArray[np.float64]:
    """Return Σ_{j≠y} α_kj, summed from the first class to the last, shape (rows,)."""
    total = np.zeros(len(table))
    for alphas in table.T:
        total += alphas
    return total


def cut_alphas(alphas: NDArray[np.float32], targets: Targets, loss: Loss) -> bool:
    """Cut the α of a chunk, in place, to the most that C_k allows, which an update makes less where
    class weights are balanced; return whether any was above."""
    exact = alphas.astype(np.float64)
    if loss.softmax:
        cut = to_table(exact.T, targets.costs)
    else:
        cut = to_alphas(exact, domain(loss, targets.costs, targets.t))
    above = cut != alphas
    alphas[above] = cut[above]
    return bool(above.any())


def relaxed(
    alphas: NDArray[np.float32],
    solution: NDArray[np.float32],
    factor: float,
    domain: Domain,
) -> NDArray[np.float32]:
    """Return α moved ``factor`` times as far as to a solution, within their domain."""
    start = alphas.astype(np.float64)
    return to_alphas(start + factor * (solution - start), domain)


@dataclass(frozen=True, slots=True)
class Targets:
    """Of every row of a chunk: its number in the whole data (int64), l_k (int8; 0 = left out,
    weight 0), C_k (0 where that is; ∞ at Δ = 0) and ‖x_k‖² (float64); where labels are numbers t_k
    (float64), and l_k is 1; of softmax t_k is the code of the class."""

    numbers: NDArray[np.int64]
    signs: NDArray[np.int8]
    costs: NDArray[np.float64]
    squares: NDArray[np.float64]
    t: NDArray[np.float64] = field(default_factory=lambda: NO_NUMBERS)
    center: float = 0.0
    """what has been taken off the labels in t"""

    @classmethod
    def none(cls) -> Targets:
        """Return those of no rows."""
        none = np.zeros(0)
        return cls(none.astype(np.int64), none.astype(np.int8), none, none)

    def with_more(self, used: int, more: Targets) -> Targets:
        """Return those of the first ``used`` rows and more, in place if there is room."""

        def joined(array: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
            stop = used + len(values)
            if stop > len(array):
                array = grown(array, used, max(stop, 2 * len(array)))
            array[used:stop] = values
            return array

        return Targets(
            joined(self.numbers, more.numbers),
            joined(self.signs, more.signs),
            joined(self.costs, more.costs),
            joined(self.squares, more.squares),
            joined(self.t, more.t) if len(more.t) else self.t,
            more.center,
        )

    def take(self, at: NDArray[np.int64] | slice) -> Targets:
        """Return those of some rows."""
        t = self.t[at] if len(self.t) else self.t
        return Targets(
            self.numbers[at], self.signs[at], self.costs[at], self.squares[at], t, self.center
        )


def grown(array: NDArray[Any], used: int, room: int) -> NDArray[Any]:
    """Return an array with the first ``used`` elements and room for more."""
    new = np.empty(room, dtype=array.dtype)
    new[:used] = array[:used]
    return new


@dataclass(slots=True, eq=False)
class TargetRule:
    """What makes targets of chunks: C_k = C · row weight · class weight.

    Parameters
    ----------
    price : C of a row of weight 1; ∞ where Δ = 0.
    labels : of the data, by code.
    class_weights : weight of a label, 1 where it is not named; None = all 1. Where a row may have
        several labels, that of ``positive`` counts for the rows that have it, and all others are 1.
    positive : the label that is +1 (rows that have it among theirs, where there may be several).
        None = the first one.
    center : the bias is less by it: it is taken off labels that are numbers, and of ``rates`` t_k
        is divided by e^center and C_k multiplied, by a power of 2, which rounds nothing.
    rho : the feature of the bias: where it and Δ are 0, a row without features is refused.
    by_class : whether t_k is the code of the label, and l_k is 1.
    rates : whether labels are 0 or more, and e^z is predicted.
    """

    price: float
    labels: Sequence[Label]
    class_weights: Mapping[Label, float] | None
    positive: Label | None
    center: float = 0.0
    rho: float = 1.0
    by_class: bool = False
    rates: bool = False

    def sq_radius(self, facts: Facts) -> float:
        """Return a bound on R² = max (‖x_k‖² + ρ² + Δ_k²), from the facts of all rows."""
        weights = [(self.class_weights or {}).get(label, 1.0) for label in self.labels]
        present = [weight for weight in weights if weight > 0.0] or [1.0]
        least = facts.least_weight * min(present) or 1.0
        return facts.sq_norm + (self.rho**2 + 0.5 / self.price / least)

    def __call__(self, chunk: Chunk) -> Targets:
        """Return the chunk's targets; DataError where a row can have none."""
        signs = self._signs(chunk)
        costs = np.full(len(chunk), self.price)
        weights = chunk.weights
        if self.class_weights is not None:
            of_class = self._of_class(chunk, signs, self.class_weights)
            weights = of_class if weights is None else weights * of_class
        if weights is not None:
            signs[weights == 0.0] = 0
            with np.errstate(over="ignore", invalid="ignore"):
                costs = np.where(weights == 0.0, 0.0, costs * weights)
            self._check_prices(chunk, weights, costs)
        if self.price == math.inf and self.rho == 0.0:
            _check_features(chunk, signs)
        if self.by_class:
            return Targets(chunk.numbers, signs, costs, chunk.squares, chunk.codes.astype(float))
        if chunk.codes.dtype != np.float64:
            return Targets(chunk.numbers, signs, costs, chunk.squares)
        _check_sizes(chunk, signs, 0.0 if self.rates else -MOST)
        t = np.asarray(chunk.codes - self.center, np.float64)
        if self.rates:
            scale = 2.0 ** round(self.center / LN2)
            t, costs = np.asarray(chunk.codes / scale, np.float64), costs * scale
        return Targets(chunk.numbers, signs, costs, chunk.squares, t, self.center)

    def _check_prices(
        self, chunk: Chunk, weights: NDArray[np.float64], costs: NDArray[np.float64]
    ) -> None:
        """Refuse rows whose weight makes C_k too large or too small to compute with."""
        least, most = PRICES
        out = np.flatnonzero((weights != 0.0) & ~((costs >= least) & (costs <= most)))
        if len(out) and self.price < math.inf:
            row = int(out[0])
            weight = float(weights[row])
            place = f"row {int(chunk.numbers[row]) + 1}"
            if chunk.weights is None:
                place = f"the class of {place}"
            elif self.class_weights is not None:
                place += " and its class"
            raise DataError(
                f"the weight of {place} is {weight:g}, which times C is "
                f"{self.price * weight:g}: expected {PRICES[0]:g} to {PRICES[1]:g}, or a "
                "weight of 0, which leaves the row out. Give another weight, or another C."
            )

    def _signs(self, chunk: Chunk) -> NDArray[np.int8]:
        """+1 for the rows that have the positive label, -1 for the others; 1 for all of numbers and
        of softmax."""
        if self.by_class or chunk.codes.dtype == np.float64:
            return np.ones(len(chunk), np.int8)
        plus = 0
        if self.positive is not None:
            known = self.positive in self.labels
            plus = self.labels.index(self.positive) if known else -2  # no row has it
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


def _check_features(chunk: Chunk, signs: NDArray[np.int8]) -> None:
    """Refuse rows without features."""
    empty = np.flatnonzero((chunk.squares <= 0.0) & (signs != 0))
    if len(empty):
        raise DataError(
            f"row {int(chunk.numbers[empty[0]]) + 1} has no features, and delta and rho are 0: no "
            "classifier gives it a margin above 0. Remove the row, or give --rho or --delta above "
            "0."
        )


def _check_sizes(chunk: Chunk, signs: NDArray[np.int8], least: float) -> None:
    """Refuse labels so small that P* may be less than what keeps rounding from being nothing, and
    those so large that it overflows, or below ``least``."""
    sizes = np.abs(chunk.codes)
    small = (sizes != 0.0) & (sizes < LEAST) & (signs != 0)
    out = np.flatnonzero(small | (sizes > MOST) | (chunk.codes < least))
    if len(out):
        row = int(out[0])
        if chunk.codes[row] < least:
            raise DataError(
                f"row {int(chunk.numbers[row]) + 1} has the label {float(chunk.codes[row]):g}, and "
                "the loss poisson is of counts or rates: expected 0 or more. Correct the label, or "
                "choose another --loss."
            )
        raise DataError(
            f"row {int(chunk.numbers[row]) + 1} has the label {float(chunk.codes[row]):g}: "
            f"expected 0, or {LEAST:g} to {MOST:g} in size. Multiply all labels by the same number."
        )
