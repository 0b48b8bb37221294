"""Few columns and more rows than memory holds: one quadratic for all rows outside memory.

Inside the margin a row costs C (1 − y·v)², outside of it nothing. As long as no row crosses the
margin, any number of them together cost a quadratic in v, of (columns + 1)² numbers, as in Newton's
method for this loss (Keerthi and DeCoste, JMLR 2005); of other losses it is the expansion at the
weights known. The rows nearest the margin, which may cross it or curve most, are held with their
own loss. So the first reading ends with a solution for all rows, and each later one is a scan at
the solution before: it makes α from the slacks, and the sums anew.
``benchmarks/certified.py --active-set 10%`` shows the readings that are left. Of the squared error
the quadratic is the loss itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streamtron.core import losses
from streamtron.core.penalty import Penalty
from streamtron.core.rows import Chunk, Rows
from streamtron.solver import passes
from streamtron.solver.held_loss import HeldLoss, Rounds, drive
from streamtron.solver.hessian import (
    HEAD,
    Outside,
    even_lengths,
    mirror,
    solved_directly,
)
from streamtron.solver.learner import (
    Learner,
    Memory,
    choose_visits,
    enter,
    expand_at,
    hold_quadratic,
)
from streamtron.solver.newton import HeldObjective
from streamtron.solver.proximal_newton import HeldPenalised
from streamtron.solver.row_store import fitting
from streamtron.solver.stopping import ROUNDING_GAP
from streamtron.solver.targets import Targets, to_alphas

KEPT = (0.5, 0.8)
"""The part of the memory budget that the rows nearest the margin keep when memory is full; the
second where the penalty has a 1-norm: then one row that crosses the margin spoils D."""

SHARE = 0.01
"""The part of the tolerance to which the rows held and the quadratic are solved: it costs a Newton
step more, and a reading costs many."""

SPARSE = 3000
"""Columns at most in the quadratic where the penalty has a 1-norm, whose matrix then takes 72 MB: a
model has more than a preconditioner's head (``benchmarks/penalties.py``)."""

FULL = 0.98
"""A model of more than this part of them wants others too."""

STALLED = (4, 0.5)
"""After four readings a gap above a half shows that Newton's steps do not come near: on separable
rows at a large C each step crosses margins of rows outside memory. Blocks do then."""

CLOSE = 1e-9
"""Weights that differ by this part of the largest are the same."""


Minimise = Callable[[Learner, Outside, float], Rounds[tuple[NDArray[np.float64], int]]]
"""Returns the weights of least P to a precision, and how many steps that took."""


def worthwhile(learner: Learner, rows: int, nonzeros: int) -> bool:
    """Whether a quadratic of all columns costs no more than a head may, on so many rows."""
    settings = learner.settings
    if learner.loss.zone or learner.loss.softmax:
        return False
    if settings.ratio and settings.parts:
        return False  # of a 1-norm a scan proves the dual point of the quadratic of all rows
    return solved_directly(even_lengths(rows, nonzeros), learner.columns + 1)


def begin(learner: Learner) -> None:
    """Begin with no rows outside memory: in a scan judge them at its weights, else at the running
    ones."""
    running, frozen, known = learner.running, learner.frozen, learner.best.certificate
    v = running.augmented if frozen is None else frozen.augmented
    primal = math.inf if known is None else known.primal
    hold_quadratic(learner, Outside(v, primal, columns_that_matter(learner, v)))


def columns_that_matter(learner: Learner, v: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Return the columns, rising, that the quadratic covers where the penalty has a 1-norm and
    columns are many, or some are proven to weigh 0: columns with a weight in v, and the others with
    the largest |Σ α_k l_k x_kj|, which a weight needs to be r. None: all columns."""
    sizes, zeros = np.abs(learner.running.w), learner.best.zeros
    if not learner.settings.ratio or (len(sizes) < HEAD and not len(zeros)):
        return None
    sizes[v[:-1] != 0.0] = math.inf
    sizes[zeros] = -math.inf
    most = min(len(sizes) - len(zeros), SPARSE)
    return np.sort(np.argpartition(-sizes, most - 1)[:most])


def scanned_alphas(
    learner: Learner, v: NDArray[np.float64], chunk: Chunk, targets: Targets
) -> NDArray[np.float32]:
    """Return the α of the rows of a chunk: those of the slacks at the scanned weights v; where
    the penalty has a 1-norm, those of the quadratic of the reading before: its solution
    meets |Σ α_k l_k x_kj| ≤ r, which slopes at weights near the optimum miss by as much as they are
    off."""
    expansion, loss, rho = learner.expansion, learner.loss, learner.augmentation
    if expansion is None and learner.settings.ratio and learner.running.gains:
        return learner.alphas.take_ranges(chunk.ranges)  # those of blocks
    margins = passes.margins(chunk.rows, targets.signs, rho, v)
    slopes = losses.slopes(loss, margins, targets.t)
    if expansion is not None:
        base = passes.margins(chunk.rows, targets.signs, rho, expansion.v)
        held = np.isin(targets.numbers, expansion.held)
        slopes = np.where(held, slopes, losses.slopes_expanded(loss, base, margins, targets.t))
    alphas = to_alphas(targets.costs * slopes, losses.domain(loss, targets.costs, targets.t))
    learner.alphas.put_ranges(chunk.ranges, alphas)
    return alphas


def take_rows(learner: Learner, rows: Rows, targets: Targets) -> None:
    """Hold the rows of a chunk that are near the margin, and add the others to the quadratic."""
    outside, rho = learner.outside, learner.augmentation
    first, number = 0, len(targets.signs)
    loss = learner.loss
    assert outside is not None
    cost = targets.costs
    while first < number:
        margins = passes.margins(rows, targets.signs, rho, outside.v)
        near = (losses.bends(loss, margins, targets.t) <= outside.reach) & (targets.signs != 0)
        near[:first] = False
        chosen = np.flatnonzero(near)
        added = learner.active.add(rows, chosen, targets.take(chosen))
        stop = number if added == len(chosen) else int(chosen[added])
        if stop < number and not len(learner.active):
            near[stop] = False  # longer than memory
            stop += 1
        terms = losses.expansion(loss, margins[first:stop], targets.t[first:stop])
        part = rows.part(first, stop)
        far = np.where(near, 0.0, cost)[first:stop]
        outside.add(part, targets.signs[first:stop], far, rho, terms)
        if stop < number:
            make_room(learner)
        first = stop


def make_room(learner: Learner) -> None:
    """Hold only the rows nearest the margin, in a part of memory, and add the others to the
    quadratic; a reading that trains solves them first."""
    outside, active, targets = learner.outside, learner.active, learner.active.targets
    assert outside is not None
    scanning = learner.frozen is not None
    if not scanning:
        drive(solve(learner))
    margins = passes.margins(active.rows, targets.signs, learner.augmentation, outside.v)
    distances = losses.bends(learner.loss, margins, targets.t)
    nearest = np.argsort(distances, kind="stable")
    room = KEPT[learner.settings.ratio > 0.0] * active.budget
    fits = fitting(active.sizes[nearest], room)
    chosen = nearest[: fits if fits < len(nearest) else 0]
    cost = targets.costs.copy()
    cost[chosen] = 0.0
    terms = losses.expansion(learner.loss, margins, targets.t)
    outside.add(active.rows, targets.signs, cost, learner.augmentation, terms)
    if scanning:
        outside.reach = float(distances[chosen[-1]]) if len(chosen) else 0.0
    active.retain(np.sort(chosen))


def minimise_held(
    learner: Learner, outside: Outside, precision: float
) -> Rounds[tuple[NDArray[np.float64], int]]:
    """Minimise P of the rows that this process holds and the quadratic, on its columns."""
    subset, ratio = outside.subset, learner.settings.ratio
    held = subset.narrow(learner.active) if outside.fixed else learner.active
    loss = HeldLoss(learner.loss, held, learner.augmentation)
    start, none = outside.v[subset.places], np.zeros(len(subset.places))
    objective: HeldObjective | HeldPenalised
    if ratio:
        zeros = subset.find(learner.best.zeros)
        objective = HeldPenalised(loss, Penalty.of(ratio), none, zeros, outside=outside)
    else:
        objective = HeldObjective(loss, none, outside)
    best = objective.minimise(start, precision)
    return subset.widen(best.v), best.steps
    yield


def solve(learner: Learner, minimise: Minimise = minimise_held) -> Rounds[None]:
    """Minimise P of the rows held and the quadratic; rows are judged there from then on."""
    outside = learner.outside
    assert outside is not None
    mirror(outside.gram)
    precision = SHARE * max(learner.settings.tolerance, ROUNDING_GAP)
    outside.v, steps = yield from minimise(learner, outside, precision)
    learner.progress.count_work(newton_steps=steps)


def finish(learner: Learner, minimise: Minimise = minimise_held) -> Rounds[None]:
    """Choose the weights that the next scan certifies.
    ``minimise`` : of the rows held here, or in many parts.

    A step that has not lowered P is halved: P is convex, and falls at first on the way from the
    best weights to the solution of their quadratic. Weights that a changed run was given do not lie
    on such a way; if they are no better, the best ones are scanned for their quadratic.
    """
    outside, best, known = learner.outside, learner.best, learner.best.certificate
    if outside is None:  # the run had ended
        if best.candidate is None:
            best.propose(best.augmented)
        return
    lowered = known is None or known.primal < outside.known
    if not lowered and learner.progress.reading == 0:
        best.propose(best.augmented)
    elif not lowered and not _close(outside.v, best.augmented):
        best.propose(0.5 * (best.augmented + outside.v))
    else:
        if learner.settings.ratio and learner.frozen is not None:
            expand_at(learner, outside.v)
        yield from solve(learner, minimise)
        best.propose(outside.v)


def leave_if_stalled(learner: Learner) -> None:
    """Solve blocks instead of the quadratic where its steps have not come near the optimum; where
    the penalty has a 1-norm, if it has too few columns."""
    known, outside, (readings, gap) = learner.best.certificate, learner.outside, STALLED
    if learner.settings.ratio:
        stalled = outside is not None and outside.fixed and _fills(outside.v)
    else:
        near = known is None or known.relative_duality_gap <= gap
        near |= learner.memory != Memory.FEW_COLUMNS or learner.settings.parts is not None
        stalled = not near and learner.progress.reading >= readings
    if stalled:
        hold_quadratic(learner, None)
        expand_at(learner, None)
        enter(learner, Memory.BUFFERS)


def follow_blocks(learner: Learner) -> None:
    """Go on with the quadratic where blocks have left a model of few columns."""
    v = learner.best.candidate
    if not learner.settings.ratio or not learner.in_buffers or v is None:
        return
    if learner.certificate is not None and not _fills(v):
        enter(learner, Memory.FEW_COLUMNS)
        choose_visits(learner, False)


def _fills(v: NDArray[np.float64]) -> bool:
    """Tell whether a model has nearly as many columns as the quadratic may have."""
    return bool(np.count_nonzero(v) > FULL * SPARSE)


def _close(v: NDArray[np.float64], scanned: NDArray[np.float64]) -> bool:
    """Tell whether weights are the same but for rounding."""
    return bool(np.abs(v - scanned).max() <= CLOSE * np.abs(v).max())
