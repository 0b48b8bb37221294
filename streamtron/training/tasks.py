"""What a learner does with the rows it holds: plain mini-epochs, or solving them, softened where
the margin is hard. Each goes on in steps, can be left between two, and is packed as it stands."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamtron.training import passes
from streamtron.training.active_set import ActiveSet
from streamtron.training.dual import Dual, Rule
from streamtron.training.solution import Solution, Vector
from streamtron.training.solve import Solver, Turns

SOFTNESS = (1e4, 1e3, 1e2, 1e1, 1.0)
"""Δ = 0: the small Δ² with which rows are solved is come to in these steps."""


class MiniEpochs:
    """Up to so many mini-epochs, ended by one that makes no update.

    Parameters
    ----------
    active, counts, dual, rule, turns : as ``Solver`` takes them.
    mini_epochs : how many at most.
    """

    GIVEN = ("active", "dual", "turns")

    def __init__(
        self,
        active: ActiveSet,
        counts: NDArray[np.int32],
        dual: Dual,
        rule: Rule,
        turns: Turns,
        mini_epochs: int,
    ) -> None:
        self.attach(active, dual, turns)
        self.counts, self.rule = counts, rule
        self.left, self.spent = mini_epochs, 0
        self.updates_before = -1
        self.waiting: list[NDArray[np.int64]] = []

    def attach(self, active: ActiveSet, dual: Dual, turns: Turns) -> None:
        """See ``Solver``."""
        self.active, self.dual, self.turns = active, dual, turns

    def step(self) -> bool:
        """A kernel call's worth of a mini-epoch; whether there is more to do."""
        active, dual = self.active, self.dual
        if not self.waiting:
            if not self.left or dual.updates == self.updates_before:
                return False
            self.updates_before = dual.updates
            self.waiting = passes.visits(active.rows, self.turns().all(len(active)))
        erred = np.zeros(len(active), dtype=np.uint8)
        dual.visit_some(
            self.rule, active.rows, self.waiting.pop(0), active.signs, active.delta2,
            active.squares, self.counts, erred,
        )  # fmt: skip
        if not self.waiting:
            self.left, self.spent = self.left - 1, self.spent + 1
        return True


class HardSolver:
    """The hard margin through ever smaller Δ, to one that costs a tenth of what is wanted: at the
    optimum slack_k = α_k Δ², and α_k ≤ 1/γ_d². The certificate is of Δ = 0 all the same.

    Parameters
    ----------
    active, counts, dual, rule, turns : as ``Solver`` takes them.
    target, mini_epochs : as ``Solver.solve`` does.
    hardest : the last Δ².
    """

    GIVEN = ("active", "dual", "turns")

    def __init__(
        self,
        active: ActiveSet,
        counts: NDArray[np.int32],
        dual: Dual,
        rule: Rule,
        turns: Turns,
        target: float,
        mini_epochs: int,
        hardest: float,
    ) -> None:
        self.solver: Solver | None = None
        self.attach(active, dual, turns)
        self.counts, self.rule, self.target = counts, rule, target
        self.mini_epochs = max(1, mini_epochs // len(SOFTNESS))
        self.left = [softness * hardest for softness in SOFTNESS]
        self.best: Vector | None = None
        self.spent = 0

    def attach(self, active: ActiveSet, dual: Dual, turns: Turns) -> None:
        """See ``Solver``."""
        self.active, self.dual, self.turns = active, dual, turns
        if self.solver is not None:
            self.solver.attach(active, dual, turns)

    @property
    def found(self) -> Solution:
        """What is known so far."""
        return Solution(self.rule.b, v=self.best, mini_epochs=self.spent)

    def step(self) -> bool:
        """A step of a solver; whether there is more to do."""
        if self.solver is None:
            self.solver = Solver(
                self.active, self.counts, self.dual, self.rule, self.turns,
                alone=True, best=self.best, exact=True, softness=self.left.pop(0),
            )  # fmt: skip
            self.solver.begin(self.target, self.mini_epochs)
            return True
        if self.solver.step():
            return True
        found, self.rule = self.solver.found, self.solver.rule
        self.best, self.spent = found.v, self.spent + found.mini_epochs
        self.solver = None
        if not self.left:
            dual = self.dual
            dual.settle(dual.w, dual.bias, 0.0, dual.steps)
        return bool(self.left)


Task = MiniEpochs | Solver | HardSolver
