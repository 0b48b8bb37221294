"""What one learner does with the chunks of a reading, and with the rows that it then holds."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import epoch_limit, mini_epoch_limit
from streamtron.core.events import Listener, Problem, ReadingDone
from streamtron.core.penalty import Penalty
from streamtron.core.rows import Chunk, Data, Vector
from streamtron.solver import few_columns, order, proximal
from streamtron.solver.alphas import Alphas
from streamtron.solver.ascent import solve, visit_while_it_pays
from streamtron.solver.held_loss import drive
from streamtron.solver.learner import (
    Learner,
    Memory,
    certify,
    choose_visits,
    freeze,
    hold_quadratic,
    loosen_bias,
    replace_alphas,
    start_reading,
    take_solution,
    take_visits,
)
from streamtron.solver.scan import Frozen
from streamtron.solver.stopping import (
    conclude,
    promises_tolerance,
    stop_at_limit,
    worthwhile_gap,
)
from streamtron.solver.subproblem import Solve, Subproblem
from streamtron.solver.targets import Targets
from streamtron.solver.weights import visit
from streamtron.solver.working_set import alphas_to_scan, keep


def begin_reading(learner: Learner, reading: int) -> None:
    """Prepare a reading: it visits rows as they pass, or scans them at fixed weights. Where the
    working set does not fit, both: rows are visited, and the weights of the reading before are
    certified."""
    if learner.in_buffers:
        loosen_bias(learner)
    scans = learner.in_buffers or not learner.visits
    start_reading(learner, reading, _freeze_best(learner) if scans else None)
    if learner.memory == Memory.FEW_COLUMNS:
        few_columns.begin(learner)


def _freeze_best(learner: Learner) -> Frozen:
    """Fix the best weights known for a scan: those of the last solve, or the running ones."""
    running, best = learner.running, learner.best
    candidate = best.take_candidate()
    if candidate is None and learner.settings.ratio and not learner.unsummed:
        candidate = _primal_weights(learner)
    if candidate is None:
        w, bias = running.w.copy() if learner.visits else running.w, running.bias
    else:
        candidate[best.zeros] = 0.0
        w, bias = candidate[:-1], float(candidate[-1])
    return freeze(learner, w, bias)


def _primal_weights(learner: Learner) -> Vector:
    """Return the augmented weights of the running v where the penalty has a 1-norm; the best ones
    if it is nothing else, for v does not tell w then."""
    ratio = learner.settings.ratio
    if ratio < 1.0:
        return Penalty.of(ratio).weights(learner.running.augmented)
    return learner.best.augmented


def chunks_in_order(
    data: Data, reading: int, learners: Sequence[Learner]
) -> Generator[Chunk, None, None]:
    """Deliver the data in the order of a reading: as it lies, if learners hold all rows."""
    mixed = not any(learner.complete for learner in learners)
    groups = order.block_groups(learners[0].settings.seed, reading, data.blocks) if mixed else None
    yield from data.chunks(groups)


Take = tuple[Learner, Callable[[], Iterator[None]]]
"""What a learner is to do with a chunk; see ``take_chunk``."""


def show_chunk(chunk: Chunk, learners: Sequence[Learner]) -> list[Take]:
    """Show a chunk to all learners of a reading; return what each of them is to do with it."""
    positions = None
    if any(learner.visits for learner in learners):
        positions = order.visiting_order(learners[0].settings, learners[0].progress.reading, chunk)
    return [(learner, partial(take_chunk, learner, chunk, positions)) for learner in learners]


def solve_blocks(take: Take) -> None:
    """Have a learner take a chunk, and solve the rows held wherever memory is full."""
    learner, begin = take
    with learner.progress.phase("scanning"):
        buffers = begin()
    with learner.progress.phase("solving"):
        for _ in buffers:
            drive(solve_in_memory(learner))


def take_chunk(
    learner: Learner, chunk: Chunk, positions: NDArray[np.int64] | None
) -> Iterator[None]:
    """Scan a chunk; return what visits its rows, where that is wanted, and keeps those that matter
    in memory: with an α, or at most at the margin. It yields where memory is full, for the
    rows held to be solved; most are dropped then. ``positions`` : the order of visits."""
    targets, frozen = learner.targets(chunk), learner.frozen
    if frozen is not None:
        alphas = alphas_to_scan(learner, frozen, chunk, targets)
        marks = frozen.scan(chunk.rows, targets, alphas, learner.augmentation)
        if not learner.visits:
            if learner.complete or (frozen.from_slacks and learner.in_buffers):
                return iter(())
            if learner.memory == Memory.FEW_COLUMNS:
                few_columns.take_rows(learner, chunk.rows, targets)
                return iter(())
            return keep(learner, chunk.rows, np.flatnonzero(marks), targets)
    assert positions is not None
    return visit_rows(learner, chunk, positions, targets)


def visit_rows(
    learner: Learner, chunk: Chunk, positions: NDArray[np.int64], targets: Targets
) -> Iterator[None]:
    """Update the running weights and α by a step of coordinate ascent a row. Yields where
    memory is full; see ``take_chunk``."""
    if learner.memory == Memory.FEW_COLUMNS:
        few_columns.take_rows(learner, chunk.rows, targets)
        return
    alphas = learner.alphas.take_ranges(chunk.ranges)
    if learner.settings.ratio:  # a block is solved at once
        marks = proximal.rows_that_matter(learner, chunk.rows, targets)
        marks |= alphas > 0
        yield from keep(learner, chunk.rows, positions[marks[positions]], targets)
        return
    moved, running = np.zeros(len(chunk), dtype=np.uint8), learner.running
    objective, how = running.objective, (learner.loss, learner.augmentation)
    visit(running, *how, chunk.rows, positions, targets, alphas, moved)
    learner.progress.count_first_visits(running.objective - objective, chunk.nonzeros)
    learner.alphas.put_ranges(chunk.ranges, alphas)
    marks = (alphas != 0).reshape(len(moved), -1).any(axis=1) | (moved != 0)
    yield from keep(learner, chunk.rows, np.flatnonzero(marks), targets)


def finish_reading(learner: Learner, solve_held: Callable[[Learner], Solve]) -> Solve:
    """Certify what was scanned, and end the run if that suffices; else solve the rows in memory."""
    learner.progress.end_reading(full_epoch=learner.visits and not learner.complete)
    if learner.frozen is not None:
        certify(learner, learner.frozen)
        conclude(learner)
    if not learner.finished:
        with learner.progress.phase("solving"):
            yield from continue_training(learner, solve_held)
    learner.progress.record(learner.proven, learner.upper_bound, learner.rows_held)


def continue_training(learner: Learner, solve_held: Callable[[Learner], Solve]) -> Solve:
    """Choose what the next reading does, and solve the rows in memory before it."""
    if learner.progress.full_epochs >= epoch_limit(learner.settings):
        stop_at_limit(learner)
        return
    if not learner.visits or learner.complete:
        learner.progress.count_full_epoch()
    few_columns.leave_if_stalled(learner)
    choose_visits(learner, learner.in_buffers and not promises_tolerance(learner))
    yield from solve_held(learner)
    hold_quadratic(learner, None)
    few_columns.follow_blocks(learner)


def solve_in_memory(learner: Learner) -> Solve:
    """Solve the rows in memory."""
    active, settings, blocks = learner.active, learner.settings, learner.in_buffers
    if learner.memory == Memory.FEW_COLUMNS:
        yield from few_columns.finish(learner)
        return
    if not len(active):
        return
    mini_epochs = mini_epoch_limit(settings)
    if blocks and _visit_buffer(learner):
        return
    known = learner.best if learner.certificate and not blocks else None
    alphas = learner.alphas.take(active.numbers)
    problem = _problem(learner, alphas, whole=not blocks)
    if settings.ratio:
        solution = proximal.solve_held(learner, problem, known)
    else:
        best = None if known is None else known.augmented
        how = {"exact": settings.free, "newton_only": learner.loose_bias}
        solution = solve(problem, worthwhile_gap(learner), mini_epochs, best=best, **how)
    learner.alphas.put(active.numbers, alphas)
    learner.progress.count_work(mini_epochs=solution.mini_epochs, visited=problem.visited)
    steps, primal = problem.newton_steps, solution.primal
    take_solution(learner, solution.v, newton_steps=steps, primal=primal)


def _problem(learner: Learner, alphas: NDArray[np.float32], *, whole: bool) -> Subproblem:
    """Return the problem of the rows held, of these α; see ``Subproblem``."""
    how = learner.running, learner.loss, learner.augmentation, learner.next_turn
    return Subproblem(learner.active, alphas, *how, whole=whole)


def _visit_buffer(learner: Learner) -> bool:
    """Visit the rows in memory again while it pays; return whether that is all that is to be done
    with them, and Newton's method has not to go on."""
    active, progress = learner.active, learner.progress
    if learner.settings.ratio or learner.loose_bias or progress.crawls:
        return False
    alphas = learner.alphas.take(active.numbers)
    problem = _problem(learner, alphas, whole=True)
    passes, crawls = visit_while_it_pays(problem, progress.fresh_gain)
    learner.alphas.put(active.numbers, alphas)
    take_visits(learner, passes, problem.visited, crawls=crawls)
    return not crawls


def start_from_slacks(learner: Learner) -> None:
    """Solve the rows in memory, from the weights just scanned and α made of their slacks; or from
    0, if these prove nothing, as those of weights at a wrong scale."""
    assert learner.frozen is not None
    certify(learner, learner.frozen)
    if learner.certificate is None or not learner.certificate.dual:
        replace_alphas(learner, Alphas(learner.outputs))
        learner.best.discard()
    drive(solve_in_memory(learner))


def tell_done(reading: int, rows: int, learner: Learner, listen: Listener) -> None:
    """Tell what a learner has done in a reading."""
    progress = learner.progress
    stages, updates, mini_epochs = progress.done_since(learner.running.updates)
    listen(
        ReadingDone(
            reading,
            ", ".join(stage.name for stage in stages),
            "train" if progress.visits else "scan",
            updates,
            mini_epochs,
            learner.rows_held,
            learner.proven,
            progress.history[-1].upper if progress.history else None,
            rows,
            learner.settings.tolerance,
            progress.finished,
            problem_of(learner),
        )
    )


def problem_of(learner: Learner) -> Problem:
    """Return the problem of a learner, as events name it."""
    settings = learner.settings
    price = None if settings.hard else settings.price
    rho = 0.0 if settings.intercept == "none" else settings.rho
    return Problem(price, rho, learner.targets.positive)
