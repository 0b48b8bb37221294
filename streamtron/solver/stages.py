"""The resolution b of the integer dual variables, and what memory holds."""

from __future__ import annotations

import math
from enum import StrEnum

from streamtron.core.config import Settings
from streamtron.core.losses import SQUARED_HINGE, Loss

ASCENT_B = 500.0
"""b/R² of training, the resolution of the integer grid: 5 stalls between gaps of 10⁻² and
10⁻³, from 50 on 10⁻³ is reached (``benchmarks/certified.py``); more leaves less room to 2³¹."""

LARGEST_COUNT = float(1 << 29)
"""Counts that Newton's method makes stay below this: visits then have room to 2³¹."""

COUNT_OF_ONE = float(1 << 27)
"""The largest count that a slack of 1 may come to: slacks are rarely above 16."""

COUNT_OF_C = float(1 << 27) * (1.0 + 2.0**-45)
"""The count of α = C where α is at most C: rows of 16 times the weight still have room to 2³¹. The
little more is what ``targets.largest_counts`` takes off: it rounds down to 2²⁷, not one less."""

LARGEST_B = 1e50
"""b at most: b times weights must be lengths that a scan takes (``scan.LONGEST``)."""

COARSE = float(1 << 16)
"""Where the largest count is below this, rounding counts may be seen in the gap."""

ROUNDING_GAP = 1e-12
"""A relative duality gap 1 − D/P that counts as 0; no smaller one is asked of the rows in memory.
``benchmarks/rounding.py`` prints by how far rounding widens the bounds."""

IN_BLOCKS = 4.0
"""ρ of a bias that is not penalised, of rows solved in blocks, beside that of one that is."""


class Regime(StrEnum):
    """What a learner's memory holds."""

    ALL_ROWS = "all rows"
    """Every row of the data: they are solved, then scanned."""
    WORKING_SET = "working set"
    """The rows with a count and those near or below the threshold, all of which fit."""
    BLOCKS = "blocks"
    """A part of the working set at a time: each block is solved when memory is full."""
    FEW_COLUMNS = "few columns"
    """The rows nearest the margin; all others are one quadratic (see ``few_columns``)."""

    def needs_blocks(self, loss: Loss) -> bool:
        """Whether memory does not hold the rows that matter, which may be all of them."""
        return self == Regime.BLOCKS or (self == Regime.WORKING_SET and not loss.sparse)


def choose_b(settings: Settings, sq_radius: float, least_delta2: float) -> float:
    """Return b in absolute terms: 500 R². ``least_delta2`` : the least Δ_k². Counts come to
    b slack_k / Δ_k², which must stay below 2³¹: where norms differ by orders of magnitude, 500 R²
    would be too much."""
    if settings.loss != SQUARED_HINGE.name:
        return resolution_of_c(least_delta2)
    finest = COUNT_OF_ONE * least_delta2
    return finest if settings.ratio else min(ASCENT_B * sq_radius, finest)


def resolution_of_c(least_delta2: float) -> float:
    """Return the b at which the count of α = C of the heaviest row, of the least Δ², is
    COUNT_OF_C."""
    return 2.0 * least_delta2 * COUNT_OF_C


def finer_resolution(
    b: float, sq_lengths: float, error: float, largest: float, *, quadratic: bool = True
) -> float:
    """Return a resolution, at least b, that is fine enough for rounding counts b α to cost D under
    a tenth of ``error``: ‖Σ δ_k y_k‖² is about Σ q_k / 12, with Σ q_k the ``sq_lengths`` of the
    rows with α > 0. But counts b α, of which α ≤ ``largest``, are at most LARGEST_COUNT. Of a loss
    that is not ``quadratic`` C has chosen b: a finer one, where the largest α is far below C.

    >>> finer_resolution(5.0, 240.0, 1.0, 0.5), finer_resolution(5.0, 240.0, 1.0, 1e9)
    (10.0, 0.536870912)
    >>> [finer_resolution(1e6, 240.0, 1.0, largest, quadratic=False) for largest in (1.0, 1e-6)]
    [1000000.0, 536870912000000.0]
    """
    if not quadratic:
        return min(LARGEST_COUNT / largest, LARGEST_B) if 0.0 < b * largest < COARSE else b
    b = max(b, math.sqrt(10.0 * (sq_lengths / 24.0) / error))
    return LARGEST_COUNT / largest if b * largest > LARGEST_COUNT else b
