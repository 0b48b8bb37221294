"""The parts of one learner's state, each with one job."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import Certificate
from streamtron.core.config import Settings
from streamtron.core.text import BOUNDS
from streamtron.solver.nonzeros import SparseVector, dense
from streamtron.solver.report import ReadingBounds, StageReport
from streamtron.solver.stages import Stage
from streamtron.solver.targets import Targets

Vector = NDArray[np.float64]


class Regime(StrEnum):
    """What a learner's memory holds."""

    ALL_ROWS = "all rows"
    """Every row read so far: the first reading trains, the later ones scan."""
    WORKING_SET = "working set"
    """The rows with a count and those near or below the threshold, all of which fit."""
    BLOCKS = "blocks"
    """A part of the working set at a time: each block is solved when memory is full."""
    FEW_COLUMNS = "few columns"
    """The rows nearest the margin; all others are one quadratic (see ``few_columns``)."""


@dataclass(slots=True)
class Extent:
    """What is known of the rows observed so far: width, R², the least Δ_k² > 0, how many rows,
    and (hard margin only) the sum of their lengths."""

    columns: int = 0
    sq_radius: float = 0.0
    least_delta2: float = math.inf
    rows: int = 0
    lengths: float = 0.0

    def observe(self, sq_radius: float, least_delta2: float) -> None:
        """Update R² and the least Δ_k²."""
        self.sq_radius = max(self.sq_radius, sq_radius)
        self.least_delta2 = min(self.least_delta2, least_delta2)

    def add(self, targets: Targets, settings: Settings) -> None:
        """Add the rows of a chunk that have not been observed before."""
        sq_lengths = targets.sq_lengths(settings.rho)
        if not len(sq_lengths):
            return
        present = targets.delta2[targets.present]
        least = math.inf if settings.hard else float(present.min())
        self.observe(float(sq_lengths.max()), least)
        self.rows += len(sq_lengths)
        if settings.hard:
            self.lengths += math.fsum(np.sqrt(sq_lengths))


@dataclass(slots=True)
class Progress:
    """Where a learner is in its plan of stages, and what it has done so far."""

    plan: tuple[Stage, ...]
    stage_number: int = -1
    """the stage's place in the plan; −1 before the first row"""
    b: float = 0.0
    """the stage's threshold: the resolution of the integer dual variables"""
    from_zero: bool = True
    """whether the stage began at a = 0, as the bounds of the paper assume"""
    reports: list[StageReport] = field(default_factory=list)
    finished: str | None = None
    """why the run has ended; None while it goes on"""
    reading: int = 0
    """the number of the current reading"""
    readings: int = 0
    """readings completed"""
    concluded: bool = False
    """whether the current reading has been concluded"""
    full_epochs: int = 0
    mini_epochs: int = 0
    primal: float = math.inf
    """P over all rows, as the last solve in memory left it; ∞ where not all are in memory"""
    history: list[ReadingBounds] = field(default_factory=list)
    """of every reading, in order"""
    seconds: float = 0.0
    """since training began, when the clock was last read"""
    _began: float = field(default_factory=time.perf_counter)

    @property
    def stage(self) -> Stage:
        """The current stage; the first one before any row."""
        return self.plan[max(self.stage_number, 0)]

    @property
    def last_stage(self) -> bool:
        """Whether no stage follows."""
        return self.stage_number + 1 == len(self.plan)

    def read_clock(self) -> float:
        """Update ``seconds`` and return them."""
        self.seconds = time.perf_counter() - self._began
        return self.seconds

    def restart_clock(self, seconds: float) -> None:
        """Count on from so many seconds: the state comes from another process or run."""
        self._began = time.perf_counter() - seconds

    def record(
        self, certificate: Certificate | None, upper: float | None, active_rows: int
    ) -> None:
        """Add the reading to the history, with the bounds of a certificate, or estimates."""
        seconds = self.read_clock()
        bounds = ReadingBounds.estimated(self.readings, self.primal, upper, seconds)
        if certificate is not None:
            proven = certificate.to_dict()
            lower, upper, gap = (proven[name] for name in BOUNDS)
            bounds = ReadingBounds(self.readings, lower, upper, gap, True, seconds)
        steps = sum(report.newton_steps for report in self.reports)
        before = sum(each.newton_steps for each in self.history)
        self.history.append(
            replace(bounds, active_rows=active_rows, newton_steps=max(0, steps - before))
        )

    def count_full_epoch(self) -> None:
        """Count a full epoch."""
        self.full_epochs += 1
        self.reports[-1].full_epochs += 1

    def count_mini_epochs(self, number: int) -> None:
        """Count mini-epochs."""
        self.mini_epochs += number
        self.reports[-1].mini_epochs += number


class Average:
    """The mean of augmented vectors that may grow wider, the k-th weighted by k: later ones are
    nearer the optimum, as in averaged gradient descent (Shamir and Zhang, ICML 2013)."""

    def __init__(self) -> None:
        self.total = np.zeros(0)
        self.number = 0

    def add(self, v: Vector) -> Vector:
        """Add a vector; returns the mean so far."""
        missing = np.zeros(len(v) - len(self.total))
        self.number += 1
        wider = np.concatenate((self.total[:-1], missing, self.total[-1:]))
        self.total = wider + self.number * v
        return self.total / (self.number * (self.number + 1) // 2)


@dataclass(slots=True)
class BestWeights:
    """The weights of the least primal so far, at the scale that minimises P, and their proof."""

    w: Vector = field(default_factory=lambda: np.zeros(0))
    """as they were scanned: the scan's own array; by its nonzeros while out of training"""
    scale: float = 1.0
    bias: float = 0.0
    """at that scale"""
    certificate: Certificate | None = None
    """the best lower bound so far with the last upper bound; None before a scan"""
    candidate: Vector | None = None
    """augmented weights, at the scale 1/b, that the next scan certifies; None = the running ones"""
    average: Average = field(default_factory=Average)
    """of what blocks of rows left since the last scan"""
    gap_before: float = math.inf
    """the relative duality gap of the scan before the last"""
    drift_repaired: float = 0.0
    """the largest drift of the running weights that was repaired"""

    @property
    def weights(self) -> Vector:
        """scale · w, shape (columns,)."""
        return self.scale * dense(self.w)

    def discard(self) -> None:
        """Set the weights to 0, of which nothing is proven."""
        self.w, self.scale, self.bias, self.certificate = np.zeros(len(self.w)), 1.0, 0.0, None

    @property
    def augmented(self) -> Vector:
        """scale · (w, w_bias), shape (columns + 1,)."""
        return np.append(self.weights, self.bias)

    def nonzero(self, first: int, columns: int) -> tuple[NDArray[np.uint32], Vector]:
        """Which of so many columns from ``first`` on, numbered from there, have a weight; these."""
        kept = SparseVector.of(self.w) if isinstance(self.w, np.ndarray) else self.w
        inside = slice(*np.searchsorted(kept.columns, (first, first + columns)))
        return kept.columns[inside] - np.uint32(first), self.scale * kept.values[inside]

    def cut_candidate(self, columns: int) -> None:
        """Cut what the next scan certifies to so many columns: the others have no weight."""
        total = self.average.total
        self.average.total = np.append(total[:-1][:columns], total[-1:])
        if self.candidate is not None:
            self.candidate = np.append(self.candidate[:-1][:columns], self.candidate[-1:])

    @property
    def finite(self) -> bool:
        """Whether all weights are finite."""
        return math.isfinite(kernels.square_sum(self.weights) + self.bias * self.bias)
