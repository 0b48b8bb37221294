"""Which rows a learner keeps in memory.

``benchmarks/certified.py --active-set`` shows what the constants do to readings and seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import SettingsError
from streamtron.core.losses import domain
from streamtron.core.rows import Chunk, Data, Rows
from streamtron.core.text import format_size
from streamtron.solver import few_columns
from streamtron.solver.learner import Learner, Memory, enter, hold_rows
from streamtron.solver.row_store import fitting
from streamtron.solver.scan import Frozen
from streamtron.solver.softmax import table_of_slacks
from streamtron.solver.targets import Targets, cut_alphas, sums_of_others

NEAR = 1.25
"""Rows with y_k·w ≤ NEAR are kept when memory no longer holds all rows: more of them
cost memory, fewer come back as violators of the next scan."""


NONE = np.zeros(0)


def choose_memory(learner: Learner, rows: int, nonzeros: int) -> None:
    """Choose what memory is to hold of data that does not fit as a whole."""
    few = few_columns.worthwhile(learner, rows, nonzeros)
    enter(learner, Memory.FEW_COLUMNS if few else Memory.WORKING_SET)


def hold_all(learners: Sequence[Learner], data: Data) -> None:
    """Have learners hold all rows of the data, which are in memory."""
    if data.held is None or not learners:
        return
    rows, squares = data.held
    numbers = np.arange(len(squares))
    targets: list[list[Targets]] = [[] for _ in learners]
    for chunk in data.chunks():
        for of_chunks, learner in zip(targets, learners, strict=True):
            of_chunks.append(learner.targets(chunk))
    for of_chunks, learner in zip(targets, learners, strict=True):
        signs = np.concatenate([NONE.astype(np.int8), *(some.signs for some in of_chunks)])
        costs = np.concatenate([NONE, *(some.costs for some in of_chunks)])
        t = np.concatenate([NONE, *(some.t for some in of_chunks)])
        hold_rows(learner, rows, Targets(numbers, signs, costs, squares, t, learner.targets.center))


def alphas_to_scan(
    learner: Learner, frozen: Frozen, chunk: Chunk, targets: Targets
) -> NDArray[np.float32]:
    """The α of a chunk's rows: as they are, or made of the slacks, as where columns are few."""
    if frozen.from_slacks and learner.loss.softmax:
        how = learner.augmentation, frozen.augmented, learner.outputs
        table = table_of_slacks(chunk.rows, targets, *how)
        learner.alphas.put_ranges(chunk.ranges, table)
        return table
    if frozen.from_slacks or learner.memory == Memory.FEW_COLUMNS:
        return few_columns.scanned_alphas(learner, frozen.augmented, chunk, targets)
    alphas = learner.alphas.take_ranges(chunk.ranges)
    balanced = learner.settings.class_weight == "balanced"
    if balanced and cut_alphas(alphas, targets, learner.loss):
        learner.alphas.put_ranges(chunk.ranges, alphas)
    return alphas


def keep(
    learner: Learner, rows: Rows, chosen: NDArray[np.int64], targets: Targets
) -> Iterator[None]:
    """Keep the rows at positions ``chosen``. Where memory is full, a reading that trains yields,
    for the rows held to be solved, and then drops most of them; one that scans keeps no more."""
    active = learner.active
    while len(chosen):
        chosen = chosen[active.add(rows, chosen, targets.take(chosen)) :]
        if not len(chosen):
            return
        settings = learner.settings
        if settings.ratio and settings.parts:
            raise SettingsError(
                f"the active set is over its budget of {format_size(active.budget)}, and parts "
                f"keep every row that matters with the penalty {settings.penalty}. Give --parts 1, "
                "more workers, or a larger --active-set."
            )
        enter(learner, Memory.BUFFERS)
        if not learner.visits or not len(active):
            return
        yield
        _keep_some(learner)


def alike(weights: NDArray[np.float64]) -> float:
    """Return (Σ s)²/(n Σ s²) of n weights s ≥ 0, not all 0: 1 where all rows matter alike, 1/n
    where one alone does: the effective size of a weighted sample (Kish, 1965), for each row of it.

    >>> [round(alike(np.array(weights)), 2) for weights in ([2.0, 2.0], [1.0, 0.1, 0.1], [0, 1])]
    [1.0, 0.47, 0.5]
    """
    return float(weights.sum() ** 2 / (len(weights) * np.square(weights).sum()))


def _keep_some(learner: Learner) -> None:
    """Keep a part of the buffer just solved: drawn by |α_k| to the byte; or, where every row has an
    α, by the curvature there, α (1 − α/C). Visits alone keep less where rows matter alike: those
    of the next buffer are as good then."""
    kept = learner.progress.kept
    if not kept:
        learner.active.clear()
        return
    active, rows_before = learner.active, len(learner.active)
    taken, loss = learner.alphas.take(active.numbers), learner.loss
    alphas = sums_of_others(taken) if loss.softmax else taken
    sizes = np.abs(alphas).astype(np.float64)
    if not loss.sparse:
        least, most = domain(loss, active.targets.costs, active.targets.t)
        end = np.where(alphas < 0.0, -least, most)
        sizes *= 1.0 - np.divide(sizes, end, out=np.zeros(len(end)), where=end > 0.0)
    live = np.flatnonzero(sizes > 0.0)
    if len(live) and not learner.progress.crawls:
        kept = min(kept, 1.0 - alike(sizes))
    drawn = live[learner.next_turn().drawn(sizes[live] / active.sizes[live])]
    active.retain(np.sort(drawn[: fitting(active.sizes[drawn], kept * active.budget)]))
    if len(active) == rows_before:
        active.clear()  # the next row does not fit beside these
