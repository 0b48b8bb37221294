"""One two-class problem in training: its state, and the parts of it, each with one job."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import Certificate
from streamtron.core.config import Settings
from streamtron.core.losses import SQUARED_HINGE
from streamtron.core.rows import Chunk, Label
from streamtron.core.text import BOUNDS
from streamtron.solver import order, stages
from streamtron.solver.duals import Counts
from streamtron.solver.history import ReadingBounds, StageReport
from streamtron.solver.rest_quadratic import Outside
from streamtron.solver.row_store import ActiveSet, Pool
from streamtron.solver.scan import Frozen
from streamtron.solver.stages import Regime, Stage
from streamtron.solver.targets import TargetRule, Targets
from streamtron.solver.vectors import SparseVector, dense
from streamtron.solver.weights import Rule, WeightState, consistent

Vector = NDArray[np.float64]


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


Mode = Literal["train", "scan"]


class Learner:
    """The state of one two-class problem.

    ``labels``, ``class_weights``, ``positive`` : see ``TargetRule``. ``pool`` : where all rows are
    held while they fit, shared by learners that read together; None = its own.
    """

    def __init__(
        self,
        settings: Settings,
        labels: Sequence[Label] = (),
        class_weights: Mapping[Label, float] | None = None,
        positive: Label | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.settings = settings
        self.loss = SQUARED_HINGE
        self.targets = TargetRule(settings.delta2, labels, class_weights, positive)
        self.pool = Pool() if pool is None else pool
        self.active = ActiveSet(settings.active_set_bytes)
        self.running = WeightState()  # a = Σ c_k y_k
        self.counts = Counts()  # the integer dual variables c_k
        self.extent = Extent()
        self.best = BestWeights()
        self.progress = Progress(stages.plan(settings))
        all_rows = self.progress.plan[-1].ascent
        self.regime = Regime.ALL_ROWS if all_rows else Regime.WORKING_SET
        self.frozen: Frozen | None = None  # the scan that the current reading makes
        self.outside: Outside | None = None  # rows of the current reading, where columns are few
        self.mode: Mode = "train"  # what the current reading, or the next one, does
        self.shuffles = 0  # orders drawn so far
        self.unsummed = False  # whether a may differ from the sum that the counts make
        self.elsewhere: int | None = None  # rows that many parts hold; None = they are held here

    @property
    def finished(self) -> str | None:
        """Why training has ended; None while it goes on."""
        return self.progress.finished

    @property
    def certificate(self) -> Certificate | None:
        """What is proven of the best weights; None before the first scan."""
        return self.best.certificate

    @property
    def weights(self) -> NDArray[np.float64]:
        """The best weights so far, float64, shape (columns,), at the scale that minimises P."""
        return self.best.weights

    @property
    def stage(self) -> Stage:
        """The current stage."""
        return self.progress.stage

    @property
    def rule(self) -> Rule:
        """The update rule of the current stage."""
        settings, stage = self.settings, self.stage
        by_length = settings.variant == "length"
        return Rule(
            self.progress.b, stage.epsilon, by_length, stage.ascent, settings.rho, self.loss
        )

    @property
    def threshold(self) -> float:
        """The threshold on y_k·a now: b t^(1−ε), b ‖a‖^(1−ε), or b."""
        running, exponent = self.running, 1.0 - self.stage.epsilon
        if running.steps == 0 and not self.stage.ascent:
            return 0.0
        if exponent == 0.0:
            return self.progress.b
        by_steps = self.settings.variant == "steps"
        size = running.steps if by_steps else math.sqrt(running.sq_norm)
        return float(self.progress.b * size**exponent)

    @property
    def complete(self) -> bool:
        """Whether memory holds every row of the data."""
        return self.regime == Regime.ALL_ROWS and self.progress.reading > 0

    @property
    def rows_held(self) -> int:
        """How many rows are in memory, here or in the parts."""
        return len(self.active) if self.elsewhere is None else self.elsewhere

    @property
    def valid(self) -> bool:
        """Whether the numbers kept from reading to reading are consistent and finite; of several
        parts, the counts are theirs."""
        alike = self.elsewhere is not None or self.running.steps == self.counts.total()
        return alike and consistent(self.running) and self.best.finite

    def widen(self, columns: int) -> None:
        """Make room for so many columns, and half as many again: growing often costs time."""
        there = len(self.running.w)
        if columns > there:
            columns = max(columns, there + there // 2)
            self.running.widen(columns)
            if self.frozen is not None:
                self.frozen.widen(columns)
            if self.outside is not None:
                self.outside.widen(columns)

    def drop_spare_columns(self) -> None:
        """Drop the columns beyond those observed, if none has a weight."""
        w, columns = self.running.w, self.extent.columns
        if self.frozen is None and not w[columns:].any():
            self.running.w = w[:columns]
            self.best.cut_candidate(columns)

    def observe(self, chunk: Chunk, targets: Targets) -> None:
        """Make room for the columns of rows not read before, and update R²."""
        self.widen(chunk.width)
        self.extent.columns = max(self.extent.columns, chunk.width)
        self.extent.add(targets, self.settings)

    def next_turn(self) -> order.Turn:
        """The turn of the next mini-epoch."""
        self.shuffles += 1
        settings = self.settings
        return order.Turn(settings.seed, self.progress.reading, self.shuffles, settings.random)

    def draw(self, weights: NDArray[np.float64]) -> NDArray[np.int64]:
        """Positions drawn with chances in proportion to ``weights``; by falling weight where the
        order is not random."""
        if not self.settings.random:
            return np.argsort(-weights, kind="stable")
        self.shuffles += 1
        return order.drawn_order(self.settings.seed, self.progress.reading, self.shuffles, weights)

    def copy_for(self, positive: Label) -> Learner:
        """A learner of another class that has read the same rows, all of them negative so far."""
        shared = (self.settings, self.pool, self.targets.labels)
        memo = {id(one): one for one in shared} | {id(self.active): self.active.copy()}
        made = copy.deepcopy(self, memo)
        made.targets.positive = positive
        return made
