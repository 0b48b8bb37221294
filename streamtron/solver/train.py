"""Train one linear classifier out of core, with a certificate: the whole algorithm.

    minimise  P(w) = ½ ‖w‖² + Σ C_k max(0, 1 − y_k·w)²                 (LIBLINEAR -s 1)
    maximise  D(α) = Σ α_k − ½ ‖Σ α_k y_k‖² − Σ α_k²/(4 C_k),   α_k ≥ 0

with y_k = l_k (x_k, ρ). Dual coordinate ascent for the L2-regularised squared-hinge SVM (Hsieh et
al., ICML 2008) on an integer grid α = c/b, with a working set and block minimisation (Yu et al.,
KDD 2010; Chang and Roth, KDD 2011) and a Newton finish; at ε = 1, without negative steps, it is the
Margitron. P ≥ D for any w and any c ≥ 0: one scan of the data at fixed weights, which also sums
w = Σ c_k y_k afresh, proves how far from the optimum they are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Chunk
from streamtron.solver import few_columns
from streamtron.solver.in_memory import (
    Solve,
    counts_to_scan,
    keep,
    keep_all,
    solve_in_memory,
    visit_rows,
)
from streamtron.solver.learner import Learner
from streamtron.solver.proving import certify, freeze
from streamtron.solver.scan import Frozen
from streamtron.solver.state import Regime
from streamtron.solver.stopping import begin_stage, conclude, leave_brief_stage, stop_at_limit


def begin_reading(learner: Learner, reading: int, scale: float | None = None) -> None:
    """Prepare a reading: it visits rows as they pass ("train"), or scans them at fixed weights
    ("scan"). Where the working set does not fit, both: rows are visited, and the weights of the
    reading before are certified. ``scale`` : around which a scan looks for the least P."""
    learner.progress.reading, learner.progress.concluded = reading, False
    beside = learner.regime == Regime.BLOCKS and learner.mode == "train" and learner.stage.ascent
    if learner.regime == Regime.BLOCKS:
        learner.regime = Regime.WORKING_SET
    if not learner.complete:
        learner.active.clear()
    running, learner.frozen = learner.running, None
    if learner.mode == "scan" or beside:
        learner.frozen = freeze(learner, scale, beside_training=beside)
    elif reading > 0:  # it certifies a reading in which no row is updated
        learner.frozen = Frozen(running.w, running.bias, running.scale, learner.threshold)
    if learner.regime == Regime.FEW_COLUMNS:
        few_columns.begin(learner)


def take_chunk(
    learner: Learner,
    chunk: Chunk,
    positions: NDArray[np.int64] | None,
    dots: NDArray[np.float64] = kernels.NO_DOTS,
) -> None:
    """Scan or visit the rows of a chunk, and keep those that matter in memory: with a count, or at
    most at the threshold. ``positions`` : the order of visits. ``dots`` : see ``Frozen.scan``."""
    targets, frozen = learner.targets(chunk), learner.frozen
    if learner.progress.reading == 0:
        learner.observe(chunk, targets)
        if learner.progress.stage_number < 0 and learner.extent.sq_radius > 0.0:
            begin_stage(learner)  # fix b
    if frozen is not None:
        counts = counts_to_scan(learner, chunk, targets)
        violators = frozen.scan(chunk.rows, targets, counts, learner.settings.rho, dots)
        if learner.mode == "scan" or not (frozen.beside_training or frozen.has_violators):
            if not keep_all(learner, chunk.rows, targets) and not learner.settings.faithful:
                keep(learner, chunk.rows, np.flatnonzero(violators), targets)
            return
        if not frozen.beside_training:
            learner.frozen = None  # the weights are about to change: the scan proves nothing
    assert positions is not None
    visit_rows(learner, chunk, positions, targets)


def finish_reading(learner: Learner) -> Solve:
    """Certify what was scanned, and end the run if that suffices; else solve the rows in memory, by
    ascent and Newton's method. Yields the mini-epochs that are to be made."""
    learner.progress.readings += 1
    learner.drop_spare_columns()
    learner.progress.concluded = True
    if learner.mode == "train":
        learner.progress.count_full_epoch()
    if learner.frozen is not None:
        certify(learner, learner.frozen)
        conclude(learner, learner.frozen)
    proven = learner.certificate if learner.frozen is not None else None
    if not learner.finished:
        yield from continue_training(learner)
    learner.progress.record(proven, learner.running.upper_bound, len(learner.active))


def continue_training(learner: Learner) -> Solve:
    """Choose what the next reading does, and solve the rows in memory before it."""
    if learner.progress.full_epochs >= learner.settings.epoch_limit:
        stop_at_limit(learner, learner.frozen)
        return
    if learner.mode == "scan":
        learner.progress.count_full_epoch()
    leave_brief_stage(learner)
    blocks = learner.settings.faithful or learner.regime == Regime.BLOCKS
    learner.mode = "train" if blocks else "scan"
    yield from solve_in_memory(learner)
