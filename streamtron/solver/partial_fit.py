"""What ``partial_fit`` keeps of earlier rows, and training on more: one buffer, solved with the
v = Σ α_k l_k (x_k, ρ) of all earlier rows fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import FEW, dual_of
from streamtron.core.losses import values
from streamtron.core.rows import Data, make_rows
from streamtron.core.scan_sums import ScanSums
from streamtron.solver.held_loss import drive
from streamtron.solver.learner import Learner, hold_last_buffer, renumber
from streamtron.solver.reading import solve_in_memory
from streamtron.solver.scan import Frozen
from streamtron.solver.weights import DualPoint
from streamtron.solver.working_set import hold_all


@dataclass(slots=True)
class EarlierData:
    """One learner's sums over rows that are gone, as the scan of each row made them: the D of all
    rows so far. ``average`` : the weights, augmented, each call's best ones averaged over the rows
    that it brought. ``rho`` : the feature of the bias in both, see ``IN_BUFFERS``."""

    scan_sums: ScanSums
    average: NDArray[np.float64]
    rho: float
    outputs: int

    @classmethod
    def of(
        cls, learner: Learner, numbers: NDArray[np.int64], columns: int, sign: float = 1.0
    ) -> Self:
        """Take the last scan and the weights of a finished learner. ``numbers`` : of each of its
        columns the number among all ``columns``; ``sign`` = −1 makes the other class positive."""
        renumber(learner, numbers, columns)
        assert learner.frozen is not None
        sums, labels, number = learner.frozen.scan_sums, learner.targets.labels, learner.outputs
        order = sorted(range(number), key=labels.__getitem__) if number > 1 else [0]
        v, average = (
            sign * w.reshape(-1, number)[:, order].ravel() + 0.0  # no −0
            for w in (np.append(sums.fresh, sums.dual_bias), learner.best.augmented)
        )
        sums.fresh, sums.sums[kernels.DUAL_BIAS :][:2] = v[:-1], (v[-1], 0.0)
        return cls(sums, average, learner.augmentation, number)

    @property
    def weights(self) -> NDArray[np.float64]:
        """The averaged weights, augmented, of softmax those of each class in a row."""
        return self.average.reshape(-1, self.outputs).T

    @property
    def dual(self) -> float:
        """A lower bound of P* over all the rows so far; where the bias is not penalised by that P*
        is at most P(0) = φ(0) Σ C_k."""
        sums, rounding = self.scan_sums, FEW + self.rows * kernels.UNIT_ROUNDOFF
        if not sums.free:
            return dual_of(sums)[0]
        cost = float(sums.sums[kernels.COSTS]) * (1.0 + rounding)
        return dual_of(sums, float(values(sums.loss, np.zeros(1))[0]) * cost, 0.0)[0]

    @property
    def rows(self) -> int:
        """Rows so far, those of weight 0 left out."""
        return int(self.scan_sums.totals[kernels.ROWS])

    def learn(self, data: Data, learner: Learner, numbers: NDArray[np.integer]) -> None:
        """Maximise the dual over the α of these rows, which are earlier ones thereafter. ``data`` :
        holds them in memory. ``learner`` : a new one, which says what the problem is.

        The weights that are best for them, the earlier rows being fixed, suit the last rows: on
        Adult in 50 parts their objective ends 31 % above the least, their average's 3 %.
        """
        hold_all([learner], data)
        rows, targets, sums = learner.active.rows, learner.active.targets, self.scan_sums
        if not targets.signs.any():
            return
        columns = numbers.astype(np.uint32)[rows.indices]
        rows = make_rows(rows.indptr, columns, rows.values, rows.first)
        earlier = DualPoint(np.append(sums.fresh, sums.dual_bias), sums.gains)
        hold_last_buffer(learner, rows, targets, earlier, self.rho)
        drive(solve_in_memory(learner))
        scan = Frozen(np.zeros(len(sums.fresh)), 0.0)  # sums v, and bounds the rounding
        scan.scan_sums = sums
        scan.scan(rows, targets, learner.alphas.take(targets.numbers), self.rho)
        sums.fold()
        best = learner.best.candidate
        assert best is not None
        self.average += np.count_nonzero(targets.signs) / self.rows * (best - self.average)
