"""Visits of rows, which of them a learner keeps in memory, and the solution of these.

``benchmarks/certified.py --active-set`` shows what the constants do to readings and seconds."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import format_size
from streamtron.core.errors import SettingsError
from streamtron.core.rows import Chunk, Rows
from streamtron.solver import few_columns, passes
from streamtron.solver.learner import Learner
from streamtron.solver.narrowing import Narrowed
from streamtron.solver.solve import solve, solve_hard, visit_until_still
from streamtron.solver.state import Regime
from streamtron.solver.stopping import ROUNDING_GAP, begin_stage, leave_brief_stage
from streamtron.solver.subproblem import MiniEpoch, Solution, Subproblem, run_mini_epochs
from streamtron.solver.targets import Targets
from streamtron.solver.weights import visit

NEAR = 1.25
"""Rows with y_k·a ≤ NEAR · threshold are kept when memory no longer holds all rows: more of them
cost memory, fewer come back as violators of the next scan."""

MARGIN_OF_TOLERANCE = 0.95
"""All rows in memory are solved to this part of the tolerance: rounding and the scan's other scale
then do not lift the certified gap above it."""

KEPT = 0.8
"""The part of the memory budget that rows keep after a block has been solved. At a tenth of the
rows in memory 0.5 takes one to two readings more at C = 50. The visits of a reading grow with
1/(1 − KEPT): 0.9 makes nearly twice as many, for no fewer readings
(``benchmarks/certified.py --active-set 10%``)."""

SOLVED = 0.003
"""A block is solved to no less than this part of the last certified gap: 0.01 takes a reading more,
0.001 half as many products again (``benchmarks/certified.py --active-set 10%``)."""

Solve = Generator[MiniEpoch, None, None]
"""A solve of the rows in memory: yields the mini-epochs that it wants, one after the other."""


def visit_rows(
    learner: Learner, chunk: Chunk, positions: NDArray[np.int64], targets: Targets
) -> None:
    """Update the running weights and the counts, row after row: one step of coordinate ascent each
    (before the ascent stage: c_k += 1 where y_k·a is at most the threshold)."""
    if learner.regime == Regime.FEW_COLUMNS and few_columns.take_rows(learner, chunk.rows, targets):
        return
    counts = learner.counts.take_ranges(chunk.ranges)
    moved = np.zeros(len(counts), dtype=np.uint8)
    visit(
        learner.running, learner.rule, chunk.rows, positions, targets.signs, targets.delta2,
        targets.squares, counts, moved,
    )  # fmt: skip
    learner.counts.put_ranges(chunk.ranges, counts)
    if not keep_all(learner, chunk.rows, targets):
        wanted = moved != 0 if learner.settings.faithful else (moved != 0) | (counts > 0)
        keep(learner, chunk.rows, np.flatnonzero(wanted), targets)


def keep_all(learner: Learner, rows: Rows, targets: Targets) -> bool:
    """Keep all rows of a chunk, if every row so far is in memory and these fit; or, where columns
    are few, what becomes of them in ``few_columns``."""
    if learner.regime == Regime.ALL_ROWS:
        if learner.complete or learner.active.share(learner.pool, rows, targets):
            return True
        _leave_all_rows(learner, rows)
    few = learner.regime == Regime.FEW_COLUMNS
    return few and few_columns.take_rows(learner, rows, targets)


def _leave_all_rows(learner: Learner, rows: Rows) -> None:
    """Make room where memory does not hold all rows so far and those of a chunk."""
    if few_columns.worthwhile(learner, rows):
        learner.regime = Regime.FEW_COLUMNS
        while learner.stage.brief:
            leave_brief_stage(learner)
        few_columns.begin(learner)
        if len(learner.active):
            few_columns.make_room(learner)
    else:
        learner.regime = Regime.WORKING_SET
        _drop_idle_rows(learner)


def counts_to_scan(learner: Learner, chunk: Chunk, targets: Targets) -> NDArray[np.int32]:
    """The counts of a chunk's rows: as they are, or, where columns are few, made of the slacks."""
    if learner.regime == Regime.FEW_COLUMNS:
        return few_columns.scanned_counts(learner, chunk, targets)
    return learner.counts.take_ranges(chunk.ranges)


def keep(learner: Learner, rows: Rows, chosen: NDArray[np.int64], targets: Targets) -> None:
    """Keep the rows at positions ``chosen``. Where memory is full, a reading that trains solves the
    block and drops most of it; after one that scans, the next reading trains."""
    while len(chosen) and not learner.complete:
        chosen = chosen[learner.active.add(rows, chosen, targets) :]
        if len(chosen) and not _make_room(learner):
            return


def release_rows(learner: Learner) -> None:
    """Keep no rows any more. If training continues, the next reading keeps those that matter."""
    learner.active.clear()
    if learner.regime == Regime.ALL_ROWS:
        learner.regime = Regime.WORKING_SET


def _make_room(learner: Learner) -> bool:
    """Solve the rows in memory and drop most of them; whether that made room."""
    active = learner.active
    if learner.settings.faithful:
        raise SettingsError(
            f"the active set is over its budget of {format_size(active.budget)}, and "
            "--faithful keeps every misclassified row. Give a larger --active-set."
        )
    learner.regime = Regime.BLOCKS
    if learner.mode == "scan" or not len(active):
        return False
    leave_brief_stage(learner)
    run_mini_epochs(solve_in_memory(learner))
    _keep_some(learner)
    return True


def _keep_some(learner: Learner) -> None:
    """Keep up to KEPT of the budget of the block just solved: drawn by c_k to the byte."""
    active, before = learner.active, len(learner.active)
    counts = learner.counts.take(active.numbers)
    live = np.flatnonzero(counts)
    drawn = learner.draw(counts[live] / active.sizes[live])
    active.keep(live[drawn], KEPT * active.budget)
    if len(active) == before:
        active.clear()  # the next row does not fit beside these


def _drop_idle_rows(learner: Learner) -> None:
    """Drop rows without a count whose margin is above NEAR · threshold."""
    active = learner.active
    if not len(active):
        return
    augmented = learner.running.augmented(1.0)
    found = passes.margins(active.rows, active.signs, learner.settings.rho, augmented)
    counts = learner.counts.take(active.numbers)
    found += active.delta2 * counts
    active.retain(np.flatnonzero((counts > 0) | (found <= NEAR * learner.threshold)))


def room(learner: Learner) -> int:
    """Bytes of rows that memory can still take; 0 once a row has not fitted."""
    return 0 if learner.regime == Regime.BLOCKS else learner.active.budget - learner.active.nbytes


def keep_violators(
    learner: Learner, rows: Rows, chosen: NDArray[np.int64], targets: Targets, number: int
) -> None:
    """Keep rows that a scan has found, those at positions ``chosen`` first of ``number``, up to one
    that does not fit; ``targets`` are those of all of ``rows``."""
    if learner.regime != Regime.BLOCKS and learner.active.add(rows, chosen, targets) < number:
        learner.regime = Regime.BLOCKS


def begin_search(learner: Learner) -> None:
    """Fix b after a scan of all rows, which has observed R and the columns."""
    assert learner.frozen is not None
    learner.running.widen(len(learner.frozen.w))
    begin_stage(learner)


def start_from_slacks(learner: Learner) -> None:
    """Solve the rows in memory, from counts that a scan has made of the slacks of its weights."""
    assert learner.frozen is not None
    learner.running.settle_scanned(learner.frozen.scan_sums)
    if learner.running.steps:
        learner.progress.b = 1.0 / learner.running.scale  # where D of these counts is largest
    run_mini_epochs(solve_in_memory(learner))


def solve_in_memory(learner: Learner) -> Solve:
    """Solve the rows in memory; before the ascent stage visit them for N_ep mini-epochs at most."""
    active, settings, regime = learner.active, learner.settings, learner.regime
    if regime == Regime.FEW_COLUMNS:
        few_columns.finish(learner)
        return
    if not len(active):
        return
    counts = learner.counts.take(active.numbers)
    mini_epochs, blocks = settings.mini_epochs, regime == Regime.BLOCKS
    known = learner.best if learner.certificate and not blocks else None
    if known is not None and len(known.w) > len(learner.running.w):
        learner.running.widen(len(known.w))  # by columns that only forgotten rows had
    narrowed = Narrowed(active, learner.running, None if known is None else known.w)
    of_rows = narrowed.held, counts, narrowed.running, learner.rule, learner.next_turn
    if not learner.stage.ascent or (settings.hard and blocks):
        spent = yield from visit_until_still(Subproblem(*of_rows, whole=True), mini_epochs)
        narrowed.settle()
        learner.counts.put(active.numbers, counts)
        learner.progress.count_mini_epochs(spent)
        return
    gap = worthwhile_gap(learner)
    if settings.hard:
        gamma = learner.running.upper_bound or math.sqrt(learner.extent.sq_radius)
        found = yield from solve_hard(*of_rows, gap, mini_epochs, 0.1 * gap * gamma * gamma)
    else:
        best = None
        if known is not None:
            best = np.append(known.scale * narrowed.narrow(known.w), known.bias)
        problem = Subproblem(*of_rows, whole=not blocks)
        found = yield from solve(problem, gap, mini_epochs, best=best)
    narrowed.settle()
    _take_solution(learner, counts, found, narrowed)


def _take_solution(
    learner: Learner, counts: NDArray[np.int32], found: Solution, narrowed: Narrowed
) -> None:
    """Take the counts, b, and the weights that the next scan certifies: of blocks their average."""
    progress, best = learner.progress, learner.best
    learner.counts.put(learner.active.numbers, counts)
    progress.count_mini_epochs(found.mini_epochs)
    progress.b = progress.reports[-1].b = found.b
    progress.reports[-1].newton_steps += found.newton_steps
    progress.primal = found.primal if learner.regime == Regime.ALL_ROWS else math.inf
    if learner.regime != Regime.BLOCKS:
        best.candidate = narrowed.widen(found.v)
    elif (a := narrowed.widen(found.a)) is not None:
        best.candidate = best.average.add(a)


def worthwhile_gap(learner: Learner) -> float:
    """The relative duality gap to which the rows in memory are worth solving: nearly the tolerance
    if they are all rows; half of it, or a tenth of the last certified gap, if all others have no
    count; a twentieth of it, or SOLVED times the last gap, if they are a block."""
    if learner.regime == Regime.ALL_ROWS:
        return max(MARGIN_OF_TOLERANCE * learner.settings.tolerance, ROUNDING_GAP)
    wanted = max(0.5 * learner.settings.tolerance, ROUNDING_GAP)
    left = 1.0 if learner.certificate is None else learner.certificate.relative_duality_gap
    if learner.regime == Regime.BLOCKS:
        return max(0.1 * wanted, SOLVED * left)
    return max(wanted, 0.1 * left)
