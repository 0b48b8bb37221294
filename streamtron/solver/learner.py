"""One two-class problem in training: the state that ``train`` and its neighbours work on."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from streamtron.core.certificate import Certificate
from streamtron.core.config import Settings
from streamtron.core.losses import SQUARED_HINGE
from streamtron.core.rows import Chunk, Label
from streamtron.solver import order, stages
from streamtron.solver.duals import Counts
from streamtron.solver.outside import Outside
from streamtron.solver.row_store import ActiveSet, Pool
from streamtron.solver.scan import Frozen
from streamtron.solver.stages import Stage
from streamtron.solver.state import BestWeights, Extent, Progress, Regime
from streamtron.solver.targets import TargetRule, Targets
from streamtron.solver.weights import Rule, WeightState, consistent

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
    def bias(self) -> float:
        """The best bias weight so far."""
        return self.best.bias

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
