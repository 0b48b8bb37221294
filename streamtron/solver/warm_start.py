"""Start from given weights: certify them, and search counts that bound their distance from the
optimum. Blocks of rows are scanned elsewhere (``block_scan``) and added here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Rows
from streamtron.solver.duals import Counts
from streamtron.solver.in_memory import solve_in_memory
from streamtron.solver.learner import Learner
from streamtron.solver.state import Regime
from streamtron.solver.stopping import begin_stage
from streamtron.solver.subproblem import run_mini_epochs
from streamtron.solver.targets import Targets


def set_weights(
    learner: Learner, w: NDArray[np.float64], bias: float, counts: Counts | None = None
) -> None:
    """Set the running weights (columns as the shards number them) and the bias weight, and counts
    if there are any, which need not make these weights; the next reading scans them."""
    learner.running.w = w
    learner.running.scalars[kernels.BIAS] = bias
    learner.mode, learner.unsummed = "scan", True
    if learner.regime == Regime.ALL_ROWS:
        learner.regime = Regime.WORKING_SET
    if counts is not None:
        learner.counts = counts


def begin_search(learner: Learner) -> None:
    """Fix b after a scan of all rows, which has observed R and the columns."""
    assert learner.frozen is not None
    learner.running.widen(len(learner.frozen.w))
    begin_stage(learner)


def room(learner: Learner) -> int:
    """Bytes of rows that memory can still take; 0 once a row has not fitted."""
    if learner.regime == Regime.BLOCKS:
        return 0
    return learner.active.budget - learner.active.nbytes


def keep_violators(
    learner: Learner, rows: Rows, chosen: NDArray[np.int64], targets: Targets, number: int
) -> None:
    """Keep rows that a scan has found, those at positions ``chosen`` first of ``number``, up to one
    that does not fit; ``targets`` are those of all of ``rows``."""
    if learner.regime != Regime.BLOCKS and learner.active.add(rows, chosen, targets) < number:
        learner.regime = Regime.BLOCKS


def start_from_slacks(learner: Learner) -> None:
    """Solve the rows in memory, from counts that a scan has made of the slacks of its weights."""
    assert learner.frozen is not None
    seen, running = learner.frozen.scan_sums, learner.running
    seen.fold()
    running.settle(seen.fresh, seen.fresh_bias, seen.sq_extension, seen.steps)
    if running.steps:
        learner.progress.b = 1.0 / running.scale  # where D of these counts is largest
    run_mini_epochs(solve_in_memory(learner))
