"""Ridge in one reading: where columns are few, the moments of the rows tell P and D of any weights.

With z_k = (x_k, ρ), G = Σ C_k z_k z_kᵀ, g = Σ C_k t_k z_k and c = Σ C_k t_k²,

    Σ C_k φ(z_k·v − t_k) = ½ (v·G v − 2 g·v + c),

and the dual variables α_k = C_k (t_k − z_k·v) that belong to v have Σ α_k z_k = g − G v and gains
½ (c − v·G v). So the weights of least P, which solve (I + G) v = g, are proven by the reading that
sums the moments; but for a factor these are the same for every C. Where they predict t_k so well
that rounding hides how well, the next reading sums the moments of what is left, t_k − z_k·v.
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
from streamtron.solver.hessian import HEAD, Outside, multiply
from streamtron.solver.row_store import ColumnSubset
from streamtron.solver.scan import Frozen, margins_at
from streamtron.solver.stages import LARGEST_B
from streamtron.solver.targets import Targets
from streamtron.solver.vectors import resized

SOLVES = 3
"""Solves with one factor: the later ones refine what rounding has left of the first."""

SIZES = (1e-75, 1e150)
"""√G_jj and √c are 0 or in this range, so that nothing of the moments over- or underflows."""

STEPS = 40
"""Σ |c_k| of the dual variables c_k = b α_k that belong to the weights is up to 2 to this."""

Vector = NDArray[np.float64]


class Moments(Outside):
    """G, g and c of all rows of a reading at C = 1 and ρ = 1, once for all learners that read it.

    Each chunk is summed by itself. ``v``, where it is not 0: of one learner, with its ρ; t_k stands
    for t_k − z_k·v then. ``center`` : what has been taken off t_k. ``present`` : rows that are not
    left out. ``chunks`` so far, the ``longest`` of so many rows, and the first row of the ``last``.
    """

    def __init__(self, v: Vector, center: float) -> None:
        super().__init__(v, math.inf)
        self.center, self.present, self.last = center, 0, -1
        self.chunks = self.longest = 0

    def joined_by(self, chunk: Chunk, center: float) -> bool:
        """Whether a chunk, with which a learner begins, is the only one so far."""
        return (self.chunks, self.last, self.center) == (1, chunk.ranges[0][0], center)

    def add_chunk(self, chunk: Chunk, targets: Targets, rho: float) -> bool:
        """Add the rows of a chunk, if no other learner has; False: columns are no longer few."""
        if self.last == chunk.ranges[0][0]:
            return True
        if chunk.width >= len(self.v):
            self.v = resized(self.v, chunk.width)
        if not self.meet(chunk.rows, HEAD):
            return False
        gram, linear, constant = self.gram, self.linear, self.constant
        self.gram, self.linear, self.constant = np.zeros_like(gram), np.zeros_like(linear), 0.0
        ones, t = np.ones(len(chunk)), targets.t
        if self.v.any():
            t = -margins_at(chunk.rows, targets, rho, self.v)
        weights = ones if chunk.weights is None else chunk.weights
        self.add(chunk.rows, targets.signs, weights, 1.0, (ones, t, 0.5 * t * t))
        self.gram += gram
        self.linear += linear
        self.constant += constant
        self.present += int(np.count_nonzero(weights))
        self.chunks, self.longest = self.chunks + 1, max(self.longest, len(chunk))
        self.last = chunk.ranges[0][0]
        return True

    def of(self, settings: Settings, rho: float) -> Ridge:
        """Return the moments at the C and the ρ of a learner, which blocks have chosen."""
        size, root = len(self.linear), math.sqrt(0.5 / settings.delta2)
        scales = root * np.append(np.ones(size - 1), rho)
        gram = np.tril(self.gram)
        gram = (gram + np.tril(gram, -1).T) * scales * scales[:, None]
        linear, square = self.linear * scales * root, 2.0 * self.constant * root * root
        cost = root * root * float(self.gram[-1, -1])
        return Ridge(
            self.v[self.subset.places], gram, linear, square, cost, rho,
            self.center, settings.free, self.present, self.chunks + self.longest,
        )  # fmt: skip


@dataclass(frozen=True)
class Ridge:
    """½‖v + δ‖² + ½ (δ·G δ − 2 g·δ + c) of v = ``origin``, without a bias that is ``free`` in the
    first term: ``gram`` is G, ``linear`` g, ``square`` c, ``cost`` Σ C_k. The bias of the model is
    ρ w_bias + ``center``. ``rows`` have been summed with up to so many ``additions``.

    A sum of n products is off by at most (n + 3) u of Σ |product|, and Σ C_k |z_ki z_kj| ≤ r_i r_j,
    r_i = √G_ii, Σ C_k |z_ki t_k| ≤ r_i √c (Cauchy and Schwarz). So with ``off`` = (n + …) u, which
    allows also for C, ρ and products with G, loss and gains at δ are off by at most
    off (Σ |δ_i| r_i + √c)², and Σ α_k z_ki is by off r_i (Σ |δ_i| r_i + √c). Of t_k − z_k·v with
    v ≠ 0 a few u (2 Σ |v_i| r_i + √c) =: ``blur`` bounds √Σ C_k e_k², e_k their errors.
    """

    origin: Vector
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

    @property
    def blur(self) -> float:
        """Return what √Σ C_k e_k² is at most, see above."""
        if not self.origin.any():
            return 0.0
        along = float(kernels.dot(np.abs(self.origin), self.roots[:-1]))
        most = 2.0 * along + float(self.roots[-1])
        return 1.01 * UNIT_ROUNDOFF * (len(self.origin) + 8) * most

    @np.errstate(all="ignore")
    def minimum(self) -> Vector | None:
        """Return δ of least P; None where numbers are too large or too small to prove it."""
        sizes = self.roots[self.roots != 0.0]
        if not (len(sizes) and SIZES[0] <= sizes.min() and sizes.max() <= SIZES[1]):
            return None
        factor, delta = self.gram + np.diag(self.penalties), np.zeros(len(self.linear))
        if not self.square:  # all t_k are 0
            return delta
        if not kernels.factorise(factor, np.empty(len(delta))):
            return None
        for _ in range(SOLVES):
            residual = self.linear - multiply(self.gram, delta)
            residual -= self.penalties * (self.origin + delta)
            kernels.solve_factorised(factor, residual)
            delta += residual
        delta = (self.origin + delta) - self.origin  # that of the sum, rounded
        return delta if math.isfinite(kernels.square_sum(delta)) else None

    def spread(self, delta: Vector) -> float:
        """Return Σ |δ_i| r_i + √c."""
        return float(kernels.dot(np.abs(delta), self.roots[:-1]) + self.roots[-1])

    def value(self, delta: Vector) -> tuple[float, float]:
        """Return the loss at δ, and what it may be off by."""
        along = kernels.dot(delta, multiply(self.gram, delta))
        loss = 0.5 * (along + self.square) - kernels.dot(self.linear, delta)
        lost, blur = self.off * self.spread(delta) ** 2, self.blur
        return float(loss), lost + (math.sqrt(2.0 * (max(loss, 0.0) + lost)) + blur) * blur

    def errors(self, delta: Vector) -> Vector:
        """Return what Σ α_k z_ki are off by, shape (columns + 1,)."""
        return self.roots[:-1] * (self.off * self.spread(delta) + self.blur)

    def proof(self, delta: Vector) -> Certificate:
        """Return the bounds that v + δ proves.

        P(v) − P* ≤ ½‖∇P(v)‖², for the Hessian is at least I. Where the bias is free,
        Σ C_k q_k² ≥ (Σ C_k q_k)²/Σ C_k for any q_k: with h = ∇P(v), s = G_bb and m = G_·b the
        least of h·δ + ½‖δ_w‖² + ½ (m·δ_w + s δ_b)²/s is −½‖h_w − h_b m/s‖² − ½ h_b²/s.
        """
        off, roots, (loss, lost) = self.off, self.roots[:-1], self.value(delta)
        penalised = self.penalties * (self.origin + delta)
        size = 0.5 * kernels.dot(penalised, penalised)
        gradient = np.abs(penalised + multiply(self.gram, delta) - self.linear)
        gradient += self.errors(delta) + off * np.abs(penalised)
        above = max(loss, 0.0) + lost + self.cost * kernels.UNDERFLOW
        if self.rho:  # the model's bias is rounded
            moved = abs(self.origin[-1] + delta[-1]) + abs(self.center) / self.rho
            moved *= 4.0 * UNIT_ROUNDOFF
            above += moved * gradient[-1] + moved * moved * (1.0 + roots[-1] ** 2)
        last = 0.0
        if self.free:
            last = gradient[-1] / roots[-1] * (1.0 + 4.0 * off)
            gradient = gradient[:-1] + last * roots[:-1]
        excess = 0.5 * (kernels.square_sum(gradient) + last * last) * (1.0 + off)
        primal = (size * (1.0 + off) + above) * (1.0 + FEW)
        dual = size * (1.0 - off) + loss - lost - excess
        dual = max(dual - FEW * (size + abs(loss) + lost + excess), 0.0)
        bounds = float(primal), float(dual)
        return Certificate(-math.inf, *bounds, self.rows, 1.0, None, lost, has_margins=False)

    def scanned(self, delta: Vector, subset: ColumnSubset) -> Frozen:
        """Return v + δ, on all columns, with sums that hold for its dual variables: bounds of what
        a scan of the rows sums. Their gains are Σ α_k t_k − α_k²/(2 C_k) = (v + δ)·Σ α_k z_k + the
        loss."""
        (loss, lost), v = self.value(delta), self.origin + delta
        fresh, errors = self.linear - multiply(self.gram, delta), self.errors(delta)
        steps = math.sqrt(2.0 * self.cost * (max(loss, 0.0) + lost))
        if self.free:
            steps += errors[-1] / (self.rho * FEW)
        b = min(2.0 ** (STEPS - math.ceil(math.log2(steps or 1.0))), LARGEST_B)
        wide, free = subset.widen(v), self.rho * self.free
        frozen = Frozen(wide[:-1], float(wide[-1]), 1.0, 0.0, SQUARED_ERROR, b, free)
        sums, totals = frozen.scan_sums.sums, frozen.scan_sums.totals
        frozen.scan_sums.fresh = b * subset.widen(fresh)[:-1]
        root, roots = math.sqrt(self.cost), self.roots
        lengths = math.sqrt(kernels.square_sum(errors)) / FEW + math.sqrt(kernels.square_sum(fresh))
        earned = kernels.dot(np.abs(v), np.abs(fresh) + errors / FEW)
        sums[kernels.LENGTHS], sums[kernels.FRESH_BIAS] = b * lengths, b * fresh[-1]
        sums[kernels.LOSSES], sums[kernels.GAINS] = (
            max(loss, 0.0) + lost,
            kernels.dot(v, fresh) + loss,
        )
        sums[kernels.MAGNITUDES] = earned + abs(loss) + lost / FEW
        sums[kernels.COSTS] = self.cost
        sums[kernels.NORMS] = root * math.sqrt(kernels.square_sum(roots[:-2].copy()))
        totals[kernels.ROWS] = totals[kernels.SUPPORT] = self.rows
        totals[kernels.STEPS_SCANNED] = math.ceil(b * steps)
        return frozen
