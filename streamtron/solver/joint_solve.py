"""The rows in memory of all parts, solved together by Newton's method."""

from __future__ import annotations

import numpy as np

from streamtron.solver import joint_loss, local
from streamtron.solver.joint_loss import JointLoss
from streamtron.solver.learner import Learner
from streamtron.solver.local import Moved
from streamtron.solver.newton import Rounds
from streamtron.solver.solve import RELAXATION
from streamtron.solver.state import Regime, Vector
from streamtron.solver.stopping import worthwhile_gap
from streamtron.solver.subproblem import finer_resolution
from streamtron.solver.weights import WeightState


def solve_jointly(learner: Learner) -> Rounds[None]:
    """Solve the rows in memory of all parts: all that matter, and choose the resolution b of the
    counts that the next scan makes of the slacks; or a block, the dual variables of all other rows
    fixed."""
    if learner.regime == Regime.BLOCKS:
        yield from _solve_block(learner)
        return
    progress, precision, v = learner.progress, worthwhile_gap(learner), _start(learner)
    if progress.reading == 0:
        v = (yield from joint_loss.best_scale(v)) * v
    alike = learner.regime in (Regime.ALL_ROWS, Regime.WORKING_SET)
    loss = JointLoss(np.zeros(len(v)), alike=alike)
    solved = yield from loss.minimise(v, precision)
    learner.best.candidate = solved.v
    progress.reports[-1].newton_steps += solved.steps
    error, rounding = precision * solved.primal, solved.seen.lengths / 24.0
    b = finer_resolution(progress.b, rounding, error, max(solved.seen.largest))
    progress.b = progress.reports[-1].b = b


def _start(learner: Learner) -> Vector:
    """The weights from which to solve, at scale 1: those that were scanned, if there are any."""
    best, frozen, running = learner.best, learner.frozen, learner.running
    if best.candidate is not None:
        return best.candidate
    if frozen is not None and frozen.w.any():
        return frozen.scan_sums.scale * np.append(frozen.w, frozen.bias)
    return running.augmented(running.scale)


def _solve_block(learner: Learner) -> Rounds[None]:
    """Solve the rows in memory, and move the counts RELAXATION times as far as to the solution, or
    just as far if D would fall."""
    progress, running, b = learner.progress, learner.running, learner.progress.b
    held: Moved = yield local.sum_held, (len(running.w),)
    rest = WeightState()
    shift(rest, Moved(running.augmented(1.0), running.extension, running.steps))
    shift(rest, Moved(-held.a, -held.extension, -held.steps))
    loss = JointLoss(rest.augmented(1.0 / b), alike=False, constant=rest.objective_at(b))
    solved = yield from loss.minimise(running.augmented(1.0 / b), worthwhile_gap(learner))
    progress.reports[-1].newton_steps += solved.steps
    objective = running.objective_at(b)
    for relaxation in (RELAXATION, 1.0):
        shift(running, (yield local.move, (solved.v, b, relaxation)))
        if running.objective_at(b) >= objective:
            break
    learner.best.candidate = learner.best.average.add(solved.v)


def shift(running: WeightState, moved: Moved) -> None:
    """Add a change of the dual point to the running weights."""
    w = np.zeros(max(len(running.w), len(moved.a) - 1))
    w[: len(running.w)] = running.w
    w[: len(moved.a) - 1] += moved.a[:-1]
    running.settle(
        w, running.bias + float(moved.a[-1]), running.extension + moved.extension,
        running.steps + moved.steps,
    )  # fmt: skip
