"""Batches of learners that read the same rows together.

At most ``kernels.BATCH_WIDTH`` learners share a pass over rows in the same order: a row is fetched
once, and with each of its columns the weights of all, which are stored side by side. Each learner
finds, to the bit, what it finds by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Chunk
from streamtron.solver.in_memory import Solve
from streamtron.solver.learner import Learner
from streamtron.solver.subproblem import MiniEpoch
from streamtron.solver.threads import Threads

LEAST = 4
"""The least number of learners in a batch: fewer are as fast one by one, for storing weights side
by side takes time."""

DENSE = 4
"""Nonzeros a column, below which that takes longer than it saves."""

VISITS = 1 << 12
"""Visits of one kernel call: what the learners have beside the weights is put side by side for so
many at a time."""

NO_VECTOR = np.zeros(0)

LINE = 64
"""Bytes of a cache line, which the weights of one column fill."""

Vector = NDArray[np.float64]
T = TypeVar("T")


class PendingSolve:
    """A learner's solve and the mini-epoch that it wants next: ``epoch``; None before it has begun,
    and when it has ended.

    Parameters
    ----------
    begin : gives the solve.
    """

    def __init__(self, learner: Learner, begin: Callable[[Learner], Solve]) -> None:
        self.learner = learner
        self.epoch: MiniEpoch | None = None
        self._begin = begin
        self._solve: Solve | None = None

    @property
    def begun(self) -> bool:
        """Whether it has begun."""
        return self._solve is not None

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.begun and self.epoch is None

    def go_on(self) -> None:
        """Begin, or go on when ``epoch`` has been made, to the next mini-epoch or the end."""
        if self._solve is None:
            self._solve = self._begin(self.learner)
        self.epoch = next(self._solve, None)


def batches_of(learners: Sequence[T], threads: int) -> list[list[T]]:
    """Neighbours in batches of at most BATCH_WIDTH, a batch a thread as long as that is enough.

    Examples
    --------
    >>> batches_of(range(7), threads=2)
    [[0, 1, 2], [3, 4, 5, 6]]
    """
    found: list[list[T]] = []
    for first in range(0, len(learners), threads * kernels.BATCH_WIDTH):
        dealt = learners[first : first + threads * kernels.BATCH_WIDTH]
        number = min(threads, len(dealt))
        borders = [len(dealt) * k // number for k in range(number + 1)]
        found += [list(dealt[start:stop]) for start, stop in pairwise(borders)]
    return found


def regroup(batch: Sequence[T]) -> list[list[T]]:
    """Regroup what is left of a batch: a batch, or each by itself.

    Examples
    --------
    >>> regroup("abcd"), regroup("abc")
    ([['a', 'b', 'c', 'd']], [['a'], ['b'], ['c']])
    """
    return [list(batch)] if len(batch) >= LEAST else [[one] for one in batch]


# --- scans ---


def dots(chunk: Chunk, scanning: Sequence[Learner], threads: Threads) -> Mapping[Learner, Vector]:
    """x_k·w of a chunk's rows and every learner that scans them, where it pays to sum them
    together."""
    many = [batch for batch in batches_of(scanning, threads.number) if len(batch) >= LEAST]
    found: dict[Learner, Vector] = {}

    def sum_together(batch: Sequence[Learner]) -> None:
        w = _side_by_side([learner.frozen.w for learner in batch if learner.frozen is not None])
        sums = np.empty((len(chunk), kernels.BATCH_WIDTH))
        kernels.dot_batch(chunk.rows, w, sums)
        found.update(zip(batch, np.ascontiguousarray(sums.T[: len(batch)]), strict=True))

    threads.work(sum_together, [batch for batch in many if _fits(chunk, batch)])
    return found


def _fits(chunk: Chunk, batch: Sequence[Learner]) -> bool:
    """Whether there are weights for all columns, and few enough to be put side by side."""
    columns = max(len(learner.frozen.w) for learner in batch if learner.frozen is not None)
    return chunk.width <= columns <= chunk.nonzeros // DENSE


# --- visits of rows in memory ---


def step(solves: Sequence[PendingSolve]) -> None:
    """Go on with solves, none of which has ended: begin one that has not begun, or make the
    mini-epochs of those furthest behind, several at once where they are over the same rows."""
    for one in solves:
        if not one.begun:
            one.go_on()
            return
    wanted = [(one, one.epoch) for one in solves if one.epoch is not None]
    first = min(epoch.turn.when for _, epoch in wanted)
    behind = [(one, epoch) for one, epoch in wanted if epoch.turn.when == first]
    _make([epoch for _, epoch in behind])
    for one, _ in behind:
        one.go_on()


def _make(epochs: Sequence[MiniEpoch]) -> None:
    """Make mini-epochs of the same turn: those together that are over all of the same rows, and
    those that are over some of them."""
    crowds: dict[object, list[MiniEpoch]] = {}
    for epoch in epochs:
        crowds.setdefault((epoch.problem.active.place, epoch.live is None), []).append(epoch)
    for crowd in crowds.values():
        order = _common_order(crowd)
        if order is not None:
            _make_together(crowd, order)
            continue
        for epoch in crowd:
            epoch.make()


def _common_order(crowd: Sequence[MiniEpoch]) -> NDArray[np.int64] | None:
    """The positions of all rows that are to be visited, in the order of visits. None where one
    mini-epoch after another is faster: they are few, or there is no kernel for their rule, or
    columns are many beside the nonzeros visited, or most rows are visited by few of them."""
    if len(crowd) < LEAST or not all(epoch.problem.rule.ascent for epoch in crowd):
        return None
    columns = max(len(epoch.problem.running.w) for epoch in crowd)
    active, turn = crowd[0].problem.active, crowd[0].turn
    if DENSE * columns * len(active) > active.nonzeros * max(epoch.rows for epoch in crowd):
        return None
    if crowd[0].live is None:
        return turn.all(len(active))
    visited = np.zeros(len(active), dtype=bool)
    for epoch in crowd:
        visited[epoch.live] = True
    union = np.flatnonzero(visited)
    if sum(epoch.rows for epoch in crowd) < LEAST * len(union):
        return None
    return turn.some(union)


def _make_together(crowd: Sequence[MiniEpoch], order: NDArray[np.int64]) -> None:
    """Make at most BATCH_WIDTH mini-epochs at once."""
    problems = [epoch.problem for epoch in crowd]
    running = [problem.running for problem in problems]
    active, signs = problems[0].active, [_signs(epoch) for epoch in crowd]
    w = _side_by_side([each.w for each in running])
    of_lanes = np.zeros((3, kernels.BATCH_WIDTH))
    of_lanes[:, : len(crowd)] = np.transpose(
        [(one.rule.rho, one.rule.b, one.running.scale) for one in problems]
    )
    scalars = _padded([each.scalars for each in running])
    tallies = _padded([each.tallies for each in running])
    room = _empty(2, kernels.BATCH_WIDTH, np.float64)
    shape = (min(VISITS, len(order)), kernels.BATCH_WIDTH)
    own_signs, delta2 = np.zeros(shape, np.int8), np.zeros(shape)
    counts, erred = np.zeros(shape, np.int32), np.zeros(shape, np.uint8)
    for start in range(0, len(order), VISITS):
        some = order[start : start + VISITS]
        n = len(some)
        erred[:] = 0
        for k, one in enumerate(problems):
            kernels.pack_rows(some, k, signs[k], one.delta2, one.counts, own_signs, delta2, counts)
        kernels.visit_ascent_batch(
            active.rows, some, own_signs[:n], delta2[:n], *of_lanes, active.squares,
            counts[:n], w, scalars, tallies, erred[:n], room,
        )  # fmt: skip
        for k, one in enumerate(problems):
            kernels.unpack_rows(some, k, counts, erred, one.counts, one.moved)
    for k, each in enumerate(running):
        kernels.unpack_weights(w, k, each.w)
        each.scalars[:], each.tallies[:] = scalars[k], tallies[k]


def _signs(epoch: MiniEpoch) -> NDArray[np.int8]:
    """l_k of the rows that it visits, 0 of the others."""
    signs = epoch.problem.active.signs
    if epoch.live is None:
        return signs
    own = np.zeros(len(signs), np.int8)
    own[epoch.live] = signs[epoch.live]
    return own


def _side_by_side(vectors: Sequence[Vector]) -> NDArray[np.float64]:
    """Shape (columns, BATCH_WIDTH): a vector a lane, 0 where there is none; every row one cache
    line."""
    found: NDArray[np.float64] = _empty(max(map(len, vectors)), kernels.BATCH_WIDTH, np.float64)
    for k in range(kernels.BATCH_WIDTH):
        kernels.pack_weights(vectors[k] if k < len(vectors) else NO_VECTOR, k, found)
    return found


def _padded(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """One below the other, BATCH_WIDTH rows."""
    found = _empty(kernels.BATCH_WIDTH, len(arrays[0]), arrays[0].dtype.type)
    found[: len(arrays)] = arrays
    found[len(arrays) :] = 0
    return found


def _empty(rows: int, columns: int, dtype: type[np.generic]) -> NDArray[Any]:
    """An array that begins with a cache line, so that what one thread writes at every visit is in
    no line of another's."""
    size = rows * columns * np.dtype(dtype).itemsize
    place = np.empty(size + 2 * LINE, np.uint8)
    first = -place.ctypes.data % LINE
    return place[first : first + size].view(dtype).reshape(rows, columns)
