"""Learners that read the same rows together, in batches of at most ``kernels.BATCH_WIDTH``.

A row is fetched once, and with each of its columns the weights of all, which are stored side by
side. Each learner finds, to the bit, what it finds by itself. ``benchmarks/learners.py`` shows what
batches save, and what the constants do to that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.rows import Chunk, Rows
from streamtron.core.threads import ONE_THREAD, Threads
from streamtron.solver import passes
from streamtron.solver.learner import Learner
from streamtron.solver.subproblem import Look, MiniEpoch, Solve, Step

T = TypeVar("T")


LEAST = 4
"""The least number of learners in a batch: fewer are as fast one by one, for storing weights side
by side takes time."""

DENSE = 4
"""Nonzeros a column, below which that takes longer than it saves."""

VISITS = 1 << 12
"""Visits of one kernel call: what the learners have beside the weights is put side by side for so
many at a time, and weights too: what is not in the processor's cache takes twice as long."""

Vector = NDArray[np.float64]

Rooms = threading.local
"""Where each thread keeps the memory of weights side by side: new memory costs as much again."""


class PendingSolve:
    """A learner's solve, which ``begin`` gives, and the ``step`` that it wants next; None before it
    has begun, and when it has ended."""

    def __init__(self, learner: Learner, begin: Callable[[Learner], Solve]) -> None:
        self.learner = learner
        self.step: Step | None = None
        self._begin = begin
        self._solve: Solve | None = None

    @property
    def begun(self) -> bool:
        """Whether it has begun."""
        return self._solve is not None

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.begun and self.step is None

    def go_on(self) -> None:
        """Begin, or go on when ``step`` has been made, to the next one or the end."""
        if self._solve is None:
            self._solve = self._begin(self.learner)
        self.step = next(self._solve, None)


def batches_of(learners: Sequence[T], threads: int) -> list[list[T]]:
    """Neighbours in batches of at most BATCH_WIDTH, a batch a thread as long as that is enough."""
    batches: list[list[T]] = []
    for first in range(0, len(learners), threads * kernels.BATCH_WIDTH):
        dealt = learners[first : first + threads * kernels.BATCH_WIDTH]
        number = min(threads, len(dealt))
        borders = [len(dealt) * k // number for k in range(number + 1)]
        batches += [list(dealt[start:stop]) for start, stop in pairwise(borders)]
    return batches


def dots(
    chunk: Chunk,
    scanning: Sequence[Learner],
    threads: Threads = ONE_THREAD,
    rooms: Rooms | None = None,
) -> Mapping[Learner, Vector]:
    """x_k·w of a chunk's rows for learners that scan them, where summing together pays."""
    many = [batch for batch in batches_of(scanning, threads.number) if len(batch) >= LEAST]
    sums_of: dict[Learner, Vector] = {}

    def sum_together(batch: Sequence[Learner]) -> None:
        w = [learner.frozen.w for learner in batch if learner.frozen is not None]
        sums_of.update(zip(batch, _products(chunk.rows, w, rooms), strict=True))

    threads.work(sum_together, [batch for batch in many if _fits(chunk, batch)])
    return sums_of


def _products(rows: Rows, w: Sequence[Vector], rooms: Rooms | None) -> Vector:
    """x_k·w of every row with each of at most BATCH_WIDTH vectors, shape (vectors, rows)."""
    lanes, sums = _side_by_side(w, rooms), np.empty((len(rows.indptr) - 1, kernels.BATCH_WIDTH))
    for part in passes.parts(rows, sums, share=kernels.BATCH_WIDTH):
        kernels.dot_batch(part[0], lanes, part[1])
    return np.ascontiguousarray(sums.T[: len(w)])


def _fits(chunk: Chunk, batch: Sequence[Learner]) -> bool:
    """Whether all columns have weights, and are few enough to put these side by side."""
    columns = max(len(learner.frozen.w) for learner in batch if learner.frozen is not None)
    return chunk.width <= columns <= chunk.nonzeros // DENSE


def run(batch: Sequence[PendingSolve], rooms: Rooms) -> None:
    """Run a batch of solves until too few are left to share a pass."""
    least = min(len(batch), LEAST)
    while len(busy := [solve for solve in batch if not solve.ended]) >= least:
        _step(busy, rooms)


def _step(solves: Sequence[PendingSolve], rooms: Rooms) -> None:
    """Go on with solves, none of which has ended: begin one that has not begun, or make the
    mini-epochs of those furthest behind, several at once where they are over the same rows; where
    all wait for a look at the rows, these looks."""
    for pending in solves:
        if not pending.begun:
            pending.go_on()
            return
    turns = [pending.step.turn.when for pending in solves if isinstance(pending.step, MiniEpoch)]
    behind = [pending for pending in solves if _when(pending.step) == min(turns, default=None)]
    crowds: dict[object, list[Any]] = {}
    for pending in behind:
        crowds.setdefault(_kind(pending.step), []).append(pending.step)
    for crowd in crowds.values():
        _make(crowd, rooms)
    for pending in behind:
        pending.go_on()


def _when(step: Step | None) -> tuple[int, int] | None:
    return step.turn.when if isinstance(step, MiniEpoch) else None


def _kind(step: Step | None) -> object:
    """What is the same of steps that may share a pass."""
    assert step is not None
    problem = step.problem
    alike = type(step), problem.active.place, problem.rule.loss.sharp
    return (*alike, step.live is None) if isinstance(step, MiniEpoch) else alike


def _make(crowd: list[Any], rooms: Rooms) -> None:
    """Make steps of one kind, together where that is faster."""
    if isinstance(crowd[0], Look):
        _look(crowd, rooms)
    elif (order := _common_order(crowd)) is not None:
        _make_together(crowd, order, rooms)
    else:
        for epoch in crowd:
            epoch.make()


def _look(looks: Sequence[Look], rooms: Rooms) -> None:
    active, vectors = looks[0].problem.active, [look.v[:-1] for look in looks]
    if len(looks) < LEAST or DENSE * max(map(len, vectors)) > active.nonzeros:
        for look in looks:
            look.make()
        return
    for look, products in zip(looks, _products(active.rows, vectors, rooms), strict=True):
        look.take(products)


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


def _make_together(crowd: Sequence[MiniEpoch], order: NDArray[np.int64], rooms: Rooms) -> None:
    problems = [epoch.problem for epoch in crowd]
    running, targets = [problem.running for problem in problems], problems[0].targets
    signs = [_signs(epoch) for epoch in crowd]
    w = _side_by_side([state.w for state in running], rooms)
    rules = _side_by_side(
        [
            np.array((problem.rule.rho, problem.rule.b, problem.rule.scale(problem.running)))
            for problem in problems
        ]
    )
    scalars = _side_by_side([state.scalars for state in running])
    tallies = _side_by_side([state.tallies for state in running])
    room = np.empty((2, kernels.BATCH_WIDTH))
    for start in range(0, len(order), VISITS):
        some = order[start : start + VISITS]
        counts = _side_by_side([problem.counts[some] for problem in problems])
        moved = np.zeros(counts.shape, np.uint8)
        kernels.visit_ascent_batch(
            problems[0].active.rows, some,
            _side_by_side([signs_of[some] for signs_of in signs]),
            _side_by_side([problem.targets.delta2[some] for problem in problems]), *rules,
            problems[0].rule.loss.sharp, targets.t, targets.squares,
            counts, w, scalars, tallies, moved, room,
        )  # fmt: skip
        for k, problem in enumerate(problems):
            problem.counts[some] = counts[:, k]
            problem.moved[some] |= moved[:, k]
    _take_apart(w, [state.w for state in running])
    for k, state in enumerate(running):
        state.scalars[:], state.tallies[:] = scalars[:, k], tallies[:, k]


def _signs(epoch: MiniEpoch) -> NDArray[np.int8]:
    """l_k of the rows that it visits, 0 of the others."""
    signs = epoch.problem.targets.signs
    if epoch.live is None:
        return signs
    visited = np.zeros(len(signs), np.int8)
    visited[epoch.live] = signs[epoch.live]
    return visited


def _side_by_side(vectors: Sequence[NDArray[Any]], rooms: Rooms | None = None) -> NDArray[Any]:
    """Shape (longest, BATCH_WIDTH): a vector a lane, 0 where there is none. It begins with a cache
    line of 64 bytes, so that what one thread writes at every visit is in no line of another's.
    ``rooms`` : has the memory that was filled last, which is filled again."""
    shape, dtype = (max(map(len, vectors)), kernels.BATCH_WIDTH), vectors[0].dtype
    size = shape[0] * shape[1] * dtype.itemsize
    place = np.empty(0, np.uint8) if rooms is None else vars(rooms).get("place", np.empty(0, "u1"))
    if len(place) < size + 128:
        place = np.empty(size + 128, np.uint8)
    if rooms is not None:
        rooms.place = place
    first = -place.ctypes.data % 64
    lanes = place[first : first + size].view(dtype).reshape(shape)
    lanes[:, len(vectors) :] = 0
    for start in range(0, len(lanes), VISITS):
        for k, vector in enumerate(vectors):
            piece = vector[start : start + VISITS]
            lanes[start : start + len(piece), k] = piece
            lanes[start + len(piece) : start + VISITS, k] = 0
    return lanes


def _take_apart(lanes: NDArray[Any], vectors: Sequence[NDArray[Any]]) -> None:
    for start in range(0, len(lanes), VISITS):
        for k, vector in enumerate(vectors):
            piece = vector[start : start + VISITS]
            piece[:] = lanes[start : start + len(piece), k]
