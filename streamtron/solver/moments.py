"""Ridge in one reading: where columns are few, the moments of the rows tell P and D of any weights.

With z_k = (x_k, ρ), G = Σ C_k z_k z_kᵀ, g = Σ C_k t_k z_k and c = Σ C_k t_k²,

    Σ C_k φ(z_k·v − t_k) = ½ (v·G v − 2 g·v + c),

and the dual variables α_k = C_k (t_k − z_k·v) that belong to v have Σ α_k z_k = g − G v and gains
½ (c − v·G v). So the weights of least P, which solve (I + G) v = g, are proven by the reading that
sums the moments; but for a factor these are the same for every C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.certificate import FEW, Certificate
from streamtron.core.config import Settings
from streamtron.core.kernels import UNIT_ROUNDOFF
from streamtron.core.losses import SQUARED_ERROR
from streamtron.core.rows import Chunk
from streamtron.solver.few_columns import worthwhile
from streamtron.solver.learner import (
    Learner,
    begin_quadratic,
    end_quadratic,
    enter,
    leave_scan,
    take_proof,
)
from streamtron.solver.preconditioner import HEAD
from streamtron.solver.rest_quadratic import Outside
from streamtron.solver.scan import Frozen
from streamtron.solver.stages import LARGEST_B, Regime
from streamtron.solver.stopping import conclude
from streamtron.solver.targets import Targets
from streamtron.solver.vectors import ColumnSubset

SOLVES = 3
"""Solves with one factor: the later ones refine what rounding has left of the first."""

SIZES = (1e-75, 1e150)
"""√G_jj and √c are 0 or in this range, so that nothing of the moments over- or underflows."""

STEPS = 40
"""Σ |c_k| of the dual variables c_k = b α_k that belong to the weights is up to 2 to this."""

Vector = NDArray[np.float64]


class Moments(Outside):
    """G, g and c of all rows of a reading at C = 1 and ρ = 1, once for all learners that read it.

    Each chunk is summed by itself. ``center`` : what has been taken off t_k. ``present`` : rows
    that are not left out. ``chunks`` so far, the ``longest`` of so many rows, and the first row of
    the ``last``.
    """

    def __init__(self, columns: int, center: float) -> None:
        super().__init__(np.zeros(columns + 1), math.inf)
        self.center, self.present, self.last = center, 0, -1
        self.chunks = self.longest = 0

    def joined_by(self, chunk: Chunk, center: float) -> bool:
        """Whether a chunk, with which a learner begins, is the only one so far."""
        return (self.chunks, self.last, self.center) == (1, chunk.ranges[0][0], center)

    def add_chunk(self, chunk: Chunk, targets: Targets) -> bool:
        """Add the rows of a chunk, if no other learner has; False: columns are no longer few."""
        if self.last == chunk.ranges[0][0]:
            return True
        if chunk.width >= len(self.v):
            self.widen(chunk.width)
        if not self.meet(chunk.rows, HEAD):
            return False
        gram, linear, constant = self.gram, self.linear, self.constant
        self.gram, self.linear, self.constant = np.zeros_like(gram), np.zeros_like(linear), 0.0
        ones, t = np.ones(len(chunk)), targets.t
        weights = ones if chunk.weights is None else chunk.weights
        self.add(chunk.rows, targets.signs, weights, 1.0, (ones, t, 0.5 * t * t))
        self.gram += gram
        self.linear += linear
        self.constant += constant
        self.present += int(np.count_nonzero(weights))
        self.chunks, self.longest = self.chunks + 1, max(self.longest, len(chunk))
        self.last = chunk.ranges[0][0]
        return True

    def of(self, settings: Settings) -> Ridge:
        """Return the moments at the C and ρ of a learner."""
        size, root = len(self.linear), math.sqrt(0.5 / settings.delta2)
        scales = root * np.append(np.ones(size - 1), settings.augmentation)
        gram = np.tril(self.gram)
        gram = (gram + np.tril(gram, -1).T) * scales * scales[:, None]
        linear, square = self.linear * scales * root, 2.0 * self.constant * root * root
        return Ridge(
            gram, linear, square, root * root * float(self.gram[-1, -1]), settings.augmentation,
            self.center, settings.free > 0.0, self.present, self.chunks + self.longest,
        )  # fmt: skip


@dataclass(frozen=True)
class Ridge:
    """½‖v‖² + ½ (v·G v − 2 g·v + c), ‖v‖ without a bias that is ``free``: ``gram`` is G, ``linear``
    g, ``square`` c, ``cost`` Σ C_k. The bias of the model is ρ w_bias + ``center``. ``rows`` have
    been summed with up to so many ``additions``.

    A sum of n products is off by at most (n + 3) u of Σ |product|, and Σ C_k |z_ki z_kj| ≤ r_i r_j,
    r_i = √G_ii, Σ C_k |z_ki t_k| ≤ r_i √c (Cauchy and Schwarz). So with ``off`` = (n + …) u, which
    allows also for C, ρ and products with G, loss and gains at v are off by at most
    off (Σ |v_i| r_i + √c)², and Σ α_k z_ki is by off r_i (Σ |v_i| r_i + √c).
    """

    gram: Vector
    linear: Vector
    square: float
    cost: float
    rho: float
    center: float
    free: bool
    rows: int
    additions: int

    @property
    def off(self) -> float:
        """Return the part of its terms by which a sum may be off."""
        return 1.01 * UNIT_ROUNDOFF * (self.additions + 2 * len(self.linear) + 64)

    @property
    def roots(self) -> Vector:
        """Return r_i at most, shape (columns + 1,), and √c."""
        squares: Vector = np.append(np.diagonal(self.gram), self.square)
        return np.sqrt(squares) * (1.0 + self.off)

    @property
    def penalties(self) -> Vector:
        """Return what ½ v_i² costs, shape (columns + 1,)."""
        return np.append(np.ones(len(self.linear) - 1), 0.0 if self.free else 1.0)

    @np.errstate(all="ignore")
    def minimum(self) -> Vector | None:
        """Return v of least P; None where numbers are too large or too small to prove it."""
        sizes = self.roots[self.roots != 0.0]
        if not (len(sizes) and SIZES[0] <= sizes.min() and sizes.max() <= SIZES[1]):
            return None
        factor, v = self.gram + np.diag(self.penalties), np.zeros(len(self.linear))
        if not self.square:  # all t_k are 0
            return v
        if not kernels.factorise(factor, np.empty(len(v))):
            return None
        for _ in range(SOLVES):
            residual = self.linear - self.penalties * v - self.product(v)
            kernels.solve_factorised(factor, residual)
            v += residual
        return v if math.isfinite(kernels.square_sum(v)) else None

    def product(self, v: Vector) -> Vector:
        """Return G v."""
        return np.array([kernels.dot(row, v) for row in self.gram])

    def spread(self, v: Vector) -> float:
        """Return Σ |v_i| r_i + √c."""
        return float(kernels.dot(np.abs(v), self.roots[:-1]) + self.roots[-1])

    def value(self, v: Vector) -> tuple[float, float, float]:
        """Return the loss at v, the gains of its dual variables, and what both may be off by."""
        along = kernels.dot(v, self.product(v))
        loss = 0.5 * (along + self.square) - kernels.dot(self.linear, v)
        return float(loss), 0.5 * (self.square - along), self.off * self.spread(v) ** 2

    def proof(self, v: Vector) -> Certificate:
        """Return the bounds that v proves.

        P(v) − P* ≤ ½‖∇P(v)‖², for the Hessian is at least I. Where the bias is free,
        Σ C_k q_k² ≥ (Σ C_k q_k)²/Σ C_k for any q_k: with h = ∇P(v), s = G_bb and m = G_·b the
        least of h·δ + ½‖δ_w‖² + ½ (m·δ_w + s δ_b)²/s is −½‖h_w − h_b m/s‖² − ½ h_b²/s.
        """
        off, roots, (loss, _, lost) = self.off, self.roots[:-1], self.value(v)
        size = 0.5 * kernels.dot(self.penalties * v, v)
        gradient = np.abs(self.penalties * v + self.product(v) - self.linear)
        gradient += off * (roots * self.spread(v) + np.abs(v))
        above = max(loss, 0.0) + lost + self.cost * kernels.UNDERFLOW
        if self.rho:  # the model's bias is rounded
            moved = 4.0 * UNIT_ROUNDOFF * (abs(v[-1]) + abs(self.center) / self.rho)
            above += moved * gradient[-1] + moved * moved * (1.0 + roots[-1] ** 2)
        last = 0.0
        if self.free:
            last = gradient[-1] / roots[-1] * (1.0 + 4.0 * off)
            gradient = gradient[:-1] + last * roots[:-1]
        excess = 0.5 * (kernels.square_sum(gradient) + last * last) * (1.0 + off)
        primal = (size * (1.0 + off) + above) * (1.0 + FEW)
        dual = size * (1.0 - off) + loss - lost - excess
        dual = max(dual - FEW * (size + abs(loss) + lost + excess), 0.0)
        return Certificate(-math.inf, primal, dual, self.rows, 1.0, None, lost, has_margins=False)

    def scanned(self, v: Vector, subset: ColumnSubset) -> Frozen:
        """Return v, on all columns, with sums that hold for its dual variables: bounds of what a
        scan of the rows sums."""
        loss, gains, lost = self.value(v)
        roots, fresh = self.roots, self.linear - self.product(v)
        steps = math.sqrt(2.0 * self.cost * (max(loss, 0.0) + lost))
        if self.free:
            steps += self.off * roots[-2] * self.spread(v) / (self.rho * FEW)
        b, wide = (
            min(2.0 ** (STEPS - math.ceil(math.log2(steps or 1.0))), LARGEST_B),
            subset.widen(v),
        )
        frozen = Frozen(
            wide[:-1], float(wide[-1]), 1.0, 0.0, None, SQUARED_ERROR, b, self.rho * self.free
        )
        sums, totals = frozen.scan_sums.sums, frozen.scan_sums.totals
        frozen.scan_sums.fresh = b * subset.widen(fresh)[:-1]
        errors = self.off * roots[:-1] * self.spread(v)
        lengths = math.sqrt(kernels.square_sum(errors)) / FEW + math.sqrt(kernels.square_sum(fresh))
        root = math.sqrt(self.cost)
        sums[kernels.LENGTHS], sums[kernels.FRESH_BIAS] = b * lengths, b * fresh[-1]
        sums[kernels.LOSSES], sums[kernels.GAINS] = max(loss, 0.0) + lost, gains
        sums[kernels.MAGNITUDES] = self.square + lost / FEW
        sums[kernels.COSTS + 2], sums[kernels.NORMS] = self.cost, root * roots[-1]
        sums[kernels.NORMS + 2] = root * math.sqrt(kernels.square_sum(roots[:-2].copy()))
        totals[kernels.ROWS] = totals[kernels.SUPPORT] = self.rows
        totals[kernels.STEPS_SCANNED] = math.ceil(b * steps)
        return frozen


def take(learner: Learner, chunk: Chunk, targets: Targets) -> bool:
    """Add the rows of a chunk to the moments, if the reading sums them; whether that is all that is
    done with them. The first chunk of the first reading tells whether it does."""
    pool = learner.pool
    with pool.lock:
        if _begins(learner, chunk):
            shared = pool.moments
            if not (isinstance(shared, Moments) and shared.joined_by(chunk, targets.center)):
                pool.moments = shared = Moments(len(learner.running.w), targets.center)
            leave_scan(learner)
            begin_quadratic(learner, shared)
            enter(learner, Regime.FEW_COLUMNS)
        if not isinstance(learner.outside, Moments):
            return learner.mode == "scan" and learner.frozen is None  # given up below
        if learner.outside.add_chunk(chunk, targets):
            return True
    end_quadratic(learner)
    enter(learner, Regime.BLOCKS)
    return learner.mode == "scan"


def _begins(learner: Learner, chunk: Chunk) -> bool:
    """Whether the first reading of all rows begins, and few columns have a squared error."""
    settings, progress = learner.settings, learner.progress
    begins = learner.regime == Regime.ALL_ROWS and not (progress.readings or len(learner.active))
    wanted = learner.loss == SQUARED_ERROR and settings.parts is None and progress.reports
    return bool(begins and wanted and len(chunk)) and worthwhile(learner, chunk.rows)


def prove(learner: Learner) -> None:
    """Take the weights that the moments of a reading make, with their proof, and end the run if
    that suffices. Where rounding leaves it too wide, the next reading scans the weights."""
    moments, pool = learner.outside, learner.pool
    if not isinstance(moments, Moments):
        return
    end_quadratic(learner)
    pool.moments = None
    ridge = moments.of(learner.settings)
    v = ridge.minimum()
    if v is None:
        enter(learner, Regime.BLOCKS)
        return
    learner.widen(1 + int(moments.columns.max(initial=-1)))
    subset = ColumnSubset(moments.columns, len(learner.running.w))
    take_proof(learner, ridge.scanned(v, subset), ridge.proof(v))
    conclude(learner, None)
