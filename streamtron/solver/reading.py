"""What one learner does with the chunks of a reading, and with the rows that it then holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.config import epoch_limit, mini_epoch_limit
from streamtron.core.rows import Chunk
from streamtron.solver import few_columns, proximal
from streamtron.solver.ascent import solve, solve_hard, visit_until_still
from streamtron.solver.joint import minimise_jointly, solve_jointly
from streamtron.solver.learner import (
    Learner,
    begin_stage,
    choose_mode,
    choose_resolution_again,
    leave_brief_stage,
    leave_scan,
    take_solution,
)
from streamtron.solver.learner import begin_reading as start_reading
from streamtron.solver.stages import Regime
from streamtron.solver.stopping import certify, conclude, stop_at_limit, worthwhile_gap
from streamtron.solver.subproblem import Narrowed, Solve, Subproblem, run_mini_epochs
from streamtron.solver.targets import Targets
from streamtron.solver.weights import visit
from streamtron.solver.working_set import counts_to_scan, keep, keep_all


def begin_reading(learner: Learner, reading: int, scale: float | None = None) -> None:
    """Prepare a reading, see ``learner.begin_reading``; where columns are few, also the quadratic
    of the rows outside memory."""
    start_reading(learner, reading, scale)
    if learner.regime == Regime.FEW_COLUMNS:
        few_columns.begin(learner)


def take_chunk(
    learner: Learner,
    chunk: Chunk,
    positions: NDArray[np.int64] | None,
    dots: NDArray[np.float64] = kernels.NO_DOTS,
    chosen: NDArray[np.int64] | None = None,
) -> Iterator[None]:
    """Scan or visit the rows of a chunk, and keep those that matter in memory: with a count, or at
    most at the threshold. Yields where memory is full, for the rows held to be solved; most of them
    are dropped then. ``positions`` : the order of visits. ``dots`` : see ``Frozen.scan``.
    ``chosen`` : positions of rows to keep whatever a scan finds."""
    targets, frozen = learner.targets_of(chunk), learner.frozen
    if learner.progress.reading == 0:
        learner.observe(chunk, targets)
        if learner.progress.stage_number < 0 and learner.extent.sq_radius > 0.0:
            begin_stage(learner)  # fix b
    if few_columns.take_chunk(learner, chunk, targets):
        return
    if frozen is not None:
        counts = counts_to_scan(learner, chunk, targets)
        marks = frozen.scan(chunk.rows, targets, counts, learner.augmentation, dots)
        if learner.mode == "scan" or not (frozen.beside_training or frozen.has_violators):
            if chosen is not None:
                marks[chosen] = 1
            if not keep_all(learner, chunk.rows, targets) and not learner.settings.faithful:
                yield from keep(learner, chunk.rows, np.flatnonzero(marks), targets)
            return
        if not frozen.beside_training:
            leave_scan(learner)
    assert positions is not None
    yield from visit_rows(learner, chunk, positions, targets)


def take_and_solve(
    learner: Learner,
    chunk: Chunk,
    positions: NDArray[np.int64] | None,
    dots: Mapping[Learner, NDArray[np.float64]] = MappingProxyType({}),
) -> None:
    """Take a chunk, see ``take_chunk``, and solve the rows held wherever memory is full. ``dots`` :
    of the learners for which they are known."""
    for _ in take_chunk(learner, chunk, positions, dots.get(learner, kernels.NO_DOTS)):
        run_mini_epochs(solve_block(learner))


def visit_rows(
    learner: Learner, chunk: Chunk, positions: NDArray[np.int64], targets: Targets
) -> Iterator[None]:
    """Update the running weights and the counts, row after row: one step of coordinate ascent each
    (before the ascent stage: c_k += 1 where y_k·a is at most the threshold). Yields as
    ``take_chunk`` does."""
    if learner.regime == Regime.FEW_COLUMNS and few_columns.take_rows(learner, chunk.rows, targets):
        return
    counts = learner.counts.take_ranges(chunk.ranges)
    if learner.settings.ratio:  # a block is solved at once
        if not keep_all(learner, chunk.rows, targets):
            marks = proximal.rows_that_matter(learner, chunk.rows, targets) | (counts > 0)
            yield from keep(learner, chunk.rows, positions[marks[positions]], targets)
        return
    moved = np.zeros(len(counts), dtype=np.uint8)
    visit(
        learner.running, learner.rule, chunk.rows, positions, targets.signs, targets.delta2,
        targets.t, targets.squares, counts, moved,
    )  # fmt: skip
    learner.counts.put_ranges(chunk.ranges, counts)
    if not keep_all(learner, chunk.rows, targets):
        marks = moved != 0 if learner.settings.faithful else (moved != 0) | (counts != 0)
        yield from keep(learner, chunk.rows, np.flatnonzero(marks), targets)


def solve_block(learner: Learner) -> Solve:
    """Solve the rows that fill memory, the dual variables of all others fixed."""
    leave_brief_stage(learner)
    yield from solve_in_memory(learner)


def finish_reading(learner: Learner) -> Solve:
    """Certify what was scanned, and end the run if that suffices; else solve the rows in memory."""
    learner.drop_spare_columns()
    choose_resolution_again(learner)
    learner.progress.end_reading(full_epoch=learner.mode == "train")
    if learner.frozen is not None:
        certify(learner, learner.frozen)
        conclude(learner, learner.frozen)
    elif few_columns.prove(learner):
        assert learner.frozen is not None
        conclude(learner, learner.frozen)
    proven = learner.certificate if learner.frozen is not None else None
    if not learner.finished:
        yield from continue_training(learner)
    learner.progress.record(proven, learner.upper_bound, learner.rows_held)


def continue_training(learner: Learner) -> Solve:
    """Choose what the next reading does, and solve the rows in memory before it."""
    if learner.progress.full_epochs >= epoch_limit(learner.settings):
        stop_at_limit(learner, learner.frozen)
        return
    if learner.mode == "scan":
        learner.progress.count_full_epoch()
    leave_brief_stage(learner)
    few_columns.leave_if_stalled(learner)
    blocks = learner.settings.faithful or learner.regime == Regime.BLOCKS
    choose_mode(learner, "train" if blocks else "scan")
    yield from solve_in_memory(learner)
    few_columns.follow_blocks(learner)


def solve_in_memory(learner: Learner) -> Solve:
    """Solve the rows in memory; before the ascent stage visit them for N_ep mini-epochs at most."""
    active, settings, regime = learner.active, learner.settings, learner.regime
    parts = learner.elsewhere is not None
    if regime == Regime.FEW_COLUMNS:
        minimise = minimise_jointly if parts else few_columns.minimise_held
        yield from few_columns.finish(learner, minimise)
        return
    if parts:
        yield from solve_jointly(learner)
        return
    if not len(active):
        return
    mini_epochs, blocks = mini_epoch_limit(settings), regime == Regime.BLOCKS
    known = learner.best if learner.certificate and not blocks else None
    if known is not None and len(known.w) > len(learner.running.w):
        learner.running.widen(len(known.w))  # by columns that only forgotten rows had
    if settings.ratio:
        proximal.solve_held(learner, known, blocks=blocks)
        return
    counts = learner.counts.take(active.numbers)
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
        solution = yield from solve_hard(*of_rows, gap, mini_epochs, 0.1 * gap * gamma * gamma)
    else:
        best = None if known is None else narrowed.narrow(known)
        problem = Subproblem(*of_rows, whole=not blocks)
        free = settings.free > 0.0  # visits of rows with a large ρ hardly move a
        solution = yield from solve(problem, gap, mini_epochs, best=best, newton_only=free)
    narrowed.settle()
    learner.counts.put(active.numbers, counts)
    learner.progress.count_mini_epochs(solution.mini_epochs)
    take_solution(
        learner, solution.b, narrowed.widen(solution.a if blocks else solution.v),
        newton_steps=solution.newton_steps, primal=solution.primal,
    )  # fmt: skip


def begin_search(learner: Learner) -> None:
    """Fix b after a scan of all rows, which has observed R and the columns."""
    assert learner.frozen is not None
    learner.running.widen(len(learner.frozen.w))
    begin_stage(learner)


def start_from_slacks(learner: Learner) -> None:
    """Solve the rows in memory, from counts that a scan has made of the slacks of its weights; of a
    loss that is not quadratic from these weights."""
    assert learner.frozen is not None
    if not learner.loss.quadratic:
        certify(learner, learner.frozen)
    learner.running.settle_scanned(learner.frozen.scan_sums)
    if learner.running.steps and learner.loss.quadratic:
        learner.progress.refine(1.0 / learner.running.scale)  # where D of these counts is largest
    run_mini_epochs(solve_in_memory(learner))
