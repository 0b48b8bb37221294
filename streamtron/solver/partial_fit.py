"""The summary of earlier data that ``partial_fit`` keeps, and training on more rows."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import count
from typing import Self

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import FEW, dual_of
from streamtron.core.config import mini_epoch_limit
from streamtron.core.losses import values
from streamtron.core.rows import Data, make_rows
from streamtron.core.scan_sums import ScanSums
from streamtron.solver.ascent import solve
from streamtron.solver.learner import Learner
from streamtron.solver.memory import ROUNDING_GAP
from streamtron.solver.order import Turn
from streamtron.solver.row_store import ActiveSet
from streamtron.solver.scan import Frozen
from streamtron.solver.subproblem import Subproblem
from streamtron.solver.weights import WeightState
from streamtron.solver.working_set import hold_all


@dataclass(slots=True)
class EarlierData:
    """One learner's v = Σ α_k l_k (x_k, ρ) over rows that are gone, as the scan of every row summed
    it (see ``ScanSums``), and its weights: vectors as long as a row is wide. Every row keeps the α
    that it got when it was there."""

    scan_sums: ScanSums
    """The D that these prove is that of all the rows so far. What they say of P and of margins
    means nothing, for the weights have moved."""
    average: NDArray[np.float64]
    """the weights, augmented: each call's best ones, averaged over the rows that it brought"""
    rho: float
    """the feature of the bias in both, which a fit may have chosen: see ``IN_BUFFERS``"""
    calls: int = 1

    @classmethod
    def of(
        cls, learner: Learner, numbers: NDArray[np.integer], columns: int, sign: float = 1.0
    ) -> Self:
        """What a finished learner leaves: its last scan and its weights. ``numbers`` : of each of
        its columns the number among all ``columns``; ``sign`` = −1 makes the other class positive.
        """
        assert learner.frozen is not None
        scan_sums = learner.frozen.scan_sums
        scan_sums.fold()
        scan_sums.sums[[kernels.DUAL_BIAS, kernels.DUAL_BIAS + 1]] *= sign
        average, fresh = np.zeros(columns + 1), np.zeros(columns)
        average[numbers], average[-1] = sign * learner.best.w, sign * learner.best.bias
        fresh[numbers] = sign * scan_sums.fresh
        scan_sums.fresh = fresh
        return cls(scan_sums, average + 0.0, learner.augmentation)  # no −0

    @property
    def dual(self) -> float:
        """A lower bound of P* over all the rows so far, which is at most P(0) = φ(0) Σ C_k."""
        scan_sums, rounding = self.scan_sums, FEW + self.rows * kernels.UNIT_ROUNDOFF
        cost = float(scan_sums.sums[kernels.COSTS]) * (1.0 + rounding)
        return dual_of(scan_sums, float(values(scan_sums.loss, np.zeros(1))[0]) * cost, 0.0)[0]

    @property
    def rows(self) -> int:
        """Rows so far, those of weight 0 left out."""
        return int(self.scan_sums.totals[kernels.ROWS])

    def learn(self, data: Data, learner: Learner, numbers: NDArray[np.integer]) -> None:
        """Maximise the dual over the α of these rows, which are the past thereafter.
        ``data`` : holds them in memory. ``learner`` : a new one, which says what the problem is.
        ``numbers`` : of each column of the data the number among all.

        The weights that are best for them, the past being fixed, suit the last rows: on Adult in
        50 parts their objective ends 31 % above the least, their average's 3 %.
        """
        settings, rho = learner.settings, self.rho
        hold_all([learner], data)
        rows, targets = learner.active.rows, learner.active.targets
        present = np.flatnonzero(targets.signs)
        active = ActiveSet(sys.maxsize)
        rows = make_rows(
            rows.indptr, numbers.astype(np.uint32)[rows.indices], rows.values, rows.first
        )
        active.add(rows, present, targets.take(present))
        if not len(active):
            return
        alphas, running, turns = np.zeros(len(active), dtype=np.float32), WeightState(0), count()
        running.settle_scanned(self.scan_sums)
        running.w = running.w.copy()

        def next_turn() -> Turn:
            return Turn(settings.seed, self.calls, next(turns))

        problem = Subproblem(active, alphas, running, learner.loss, rho, next_turn, whole=False)
        target = max(0.1 * settings.tol, ROUNDING_GAP)
        limit = mini_epoch_limit(settings)
        best = solve(problem, target, limit, newton_only=settings.free).v
        assert best is not None
        self._add(active, alphas, rho)
        self.average += len(active) / self.rows * (best - self.average)
        self.calls += 1

    def _add(self, active: ActiveSet, alphas: NDArray[np.float32], rho: float) -> None:
        """Add these rows' part of v to that of the earlier ones, by a scan, which bounds the
        rounding; it scans at weights of 0."""
        scan = Frozen(np.zeros(len(self.scan_sums.fresh)), 0.0)
        scan.scan_sums = self.scan_sums
        scan.scan(active.rows, active.targets, alphas, rho)
        scan.scan_sums.fold()
