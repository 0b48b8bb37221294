"""Penalties with a 1-norm: the rows in memory are solved by the proximal Newton method.

    minimise  R(v) − t·v + Σ C_i φ(m_i(v)),   R of ``core.penalty``

over the rows held, t the sum Σ α_k l_k (x_k, ρ) of the dual variables of all other rows, which stay
fixed (``proximal_newton``). It ends when P − D of these rows is small, and leaves
α_i = −C_i φ'(m_i) as their dual variables.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamtron.core.penalty import Penalty
from streamtron.core.rows import Rows, Vector
from streamtron.solver import passes
from streamtron.solver.learner import Learner
from streamtron.solver.progress import BestWeights
from streamtron.solver.proximal_newton import HeldPenalised
from streamtron.solver.stopping import worthwhile_gap
from streamtron.solver.subproblem import Solution, Subproblem
from streamtron.solver.targets import Targets

PROXIMAL = 1e-3
"""τ of the proximal term that stands beside L1, or a ridge below τ, where all rows are not in
memory: the blocks' dual variables prove nothing without a ridge."""


def solve_held(learner: Learner, problem: Subproblem, known: BestWeights | None) -> Solution:
    """Solve the rows in memory. ``known`` : the best weights so far, where the rows held are all
    that matter."""
    penalty, pull = _penalty_of(learner, blocks=not problem.whole)
    center, gains = problem.remainder
    if known is not None:
        start = known.augmented
    elif penalty.ridge:
        start = penalty.weights(problem.running.augmented + pull)
    else:
        start = np.zeros(len(center))
    zeros = learner.best.zeros
    objective = HeldPenalised(problem.loss, penalty, center + pull, zeros, gains)
    best = objective.minimise(start, worthwhile_gap(learner))
    problem.take_alpha(problem.loss.alpha(best.known))
    problem.newton_steps += best.steps
    return Solution(best.v)


def _penalty_of(learner: Learner, *, blocks: bool) -> tuple[Penalty, Vector]:
    """Return R, and 0: with next to no ridge and of a block, with the proximal term ½ τ ‖w − w₀‖²
    (w₀ the weights that this reading scans), and τ w₀, augmented, by which that tilts P."""
    penalty, pull = Penalty.of(learner.settings.ratio), np.zeros(len(learner.running.w) + 1)
    if penalty.ridge > PROXIMAL or not blocks:
        return penalty, pull
    if (frozen := learner.frozen) is not None:
        pull[:-1] = PROXIMAL * frozen.w
    return Penalty(penalty.lasso, penalty.ridge + PROXIMAL), pull


def rows_that_matter(learner: Learner, rows: Rows, targets: Targets) -> NDArray[np.bool_]:
    """Return which rows are to be held, shape (rows,): all but those of which the loss is 0 at the
    weights of the running v, beyond the margin."""
    present: NDArray[np.bool_] = targets.signs != 0
    if not learner.loss.sparse:
        return present
    penalty, pull = _penalty_of(learner, blocks=True)
    v = penalty.weights(learner.running.augmented + pull)
    present &= passes.margins(rows, targets.signs, learner.augmentation, v) < learner.loss.bend
    return present
