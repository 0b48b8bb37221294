"""Learners in company: the same rows, looked at once for all of them.

Where ``kernels.LANES`` learners or fewer look at the same rows in the same order, a row is fetched
once, and of each of its columns the weights of all, which lie side by side. What each finds is, to
the bit, what it finds alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron import kernels
from streamtron.chunk import Chunk
from streamtron.training.learner import Learner
from streamtron.training.solve import Solver
from streamtron.training.threads import Threads

LEAST = 4
"""Fewer learners a row look as fast by themselves: putting weights side by side takes time, and so
does fetching a line for a weight or two of it."""

DENSE = 4
"""Nonzeros a column, below which that takes longer than it saves."""

VISITS = 1 << 12
"""Visits of one kernel call: what the learners have beside the weights is put side by side for so
many at a time."""

NO_VECTOR = np.zeros(0)

LINE = 64
"""Bytes of a cache line, which the weights of one column fill."""

Vector = NDArray[np.float64]


def teams(learners: Sequence[Learner], threads: int) -> list[list[Learner]]:
    """Neighbours in teams of at most LANES, a team a thread as long as that is enough.

    Examples
    --------
    >>> teams(range(7), threads=2)
    [[0, 1, 2], [3, 4, 5, 6]]
    """
    found: list[list[Learner]] = []
    for first in range(0, len(learners), threads * kernels.LANES):
        dealt = learners[first : first + threads * kernels.LANES]
        number = min(threads, len(dealt))
        borders = [len(dealt) * k // number for k in range(number + 1)]
        found += [list(dealt[start:stop]) for start, stop in pairwise(borders)]
    return found


def while_it_pays(team: Sequence[Learner]) -> list[list[Learner]]:
    """What is left of a team: a team, or everybody alone.

    Examples
    --------
    >>> while_it_pays("abcd"), while_it_pays("abc")
    ([['a', 'b', 'c', 'd']], [['a'], ['b'], ['c']])
    """
    return [list(team)] if len(team) >= LEAST else [[learner] for learner in team]


# --- scans ---


def dots(chunk: Chunk, scanning: Sequence[Learner], threads: Threads) -> Mapping[Learner, Vector]:
    """x_k·w of a chunk's rows and every learner that scans them, where it pays to sum them
    together."""
    many = [team for team in teams(scanning, threads.number) if len(team) >= LEAST]
    found: dict[Learner, Vector] = {}

    def sum_together(team: Sequence[Learner]) -> None:
        w = _side_by_side([learner.frozen.w for learner in team if learner.frozen is not None])
        sums = np.empty((len(chunk), kernels.LANES))
        kernels.dot_lanes(chunk.rows, w, sums)
        found.update(zip(team, np.ascontiguousarray(sums.T[: len(team)]), strict=True))

    threads.work(sum_together, [team for team in many if _fits(chunk, team)])
    return found


def _fits(chunk: Chunk, team: Sequence[Learner]) -> bool:
    """Whether there are weights for all columns, and few enough to be put side by side."""
    columns = max(len(learner.frozen.w) for learner in team if learner.frozen is not None)
    return chunk.width <= columns <= chunk.nonzeros // DENSE


# --- visits of rows in memory ---


def step(learners: Sequence[Learner]) -> None:
    """Go on with training on rows in memory, all being busy: a step of those furthest behind, and
    where these are about to visit the same rows, that at once."""
    behind = [learner for learner in learners if learner.about_to_visit is None]
    if not behind:
        behind = _first_in_turn(learners)
        _visit_in_crowds(behind)
    for learner in behind:
        learner.step()


def _first_in_turn(learners: Sequence[Learner]) -> list[Learner]:
    when = [solver.turn.when for solver in _solvers(learners) if solver.turn is not None]
    first = min(when)
    return [one for one, its in zip(learners, when, strict=True) if its == first]


def _solvers(learners: Iterable[Learner]) -> list[Solver]:
    found = (learner.about_to_visit for learner in learners)
    return [solver for solver in found if solver is not None]


def _visit_in_crowds(learners: Sequence[Learner]) -> None:
    """Learners in the same turn: those together who visit all of the same rows, and those who visit
    some of them."""
    crowds: dict[object, list[Solver]] = {}
    for solver in _solvers(learners):
        crowds.setdefault((solver.active.place, solver.live is None), []).append(solver)
    for crowd in crowds.values():
        if len(crowd) >= LEAST and _dense(crowd):
            _visit(crowd)


def _dense(crowd: Sequence[Solver]) -> bool:
    """Whether columns are few beside the nonzeros that are going to be visited."""
    columns = max(len(solver.dual.w) for solver in crowd)
    active = crowd[0].active
    return DENSE * columns * len(active) <= active.nonzeros * max(map(_rows, crowd))


def _rows(solver: Solver) -> int:
    """How many rows it visits."""
    return len(solver.active if solver.live is None else solver.live)


def _visit(crowd: Sequence[Solver]) -> None:
    """A mini-epoch of at most LANES solvers, of rows that they share; nothing where most rows are
    visited by few of them."""
    first = crowd[0]
    active, turn = first.active, first.turn
    assert turn is not None
    signs = [_signs(solver) for solver in crowd]
    if first.live is None:
        order = turn.all(len(active))
    else:
        union = np.flatnonzero(np.logical_or.reduce(signs))
        if sum(_rows(solver) for solver in crowd) < LEAST * len(union):
            return
        order = turn.some(union)
    w = _side_by_side([solver.dual.w for solver in crowd])
    of_lanes = np.zeros((3, kernels.LANES))
    of_lanes[:, : len(crowd)] = np.transpose(
        [(solver.rule.rho, solver.rule.b, solver.dual.scale) for solver in crowd]
    )
    scalars = _padded([solver.dual.scalars for solver in crowd])
    tallies = _padded([solver.dual.tallies for solver in crowd])
    room = _empty(2, kernels.LANES, np.float64)
    shape = (min(VISITS, len(order)), kernels.LANES)
    own_signs, delta2 = np.zeros(shape, np.int8), np.zeros(shape)
    counts, erred = np.zeros(shape, np.int32), np.zeros(shape, np.uint8)
    for start in range(0, len(order), VISITS):
        some = order[start : start + VISITS]
        n = len(some)
        erred[:] = 0
        for k, solver in enumerate(crowd):
            kernels.deal_lane(
                some, k, signs[k], solver.delta2, solver.counts, own_signs, delta2, counts
            )
        kernels.visit_unlearn_lanes(
            active.rows, some, own_signs[:n], delta2[:n], *of_lanes, active.squares,
            counts[:n], w, scalars, tallies, erred[:n], room,
        )  # fmt: skip
        for k, solver in enumerate(crowd):
            kernels.collect_lane(some, k, counts, erred, solver.counts, solver.erred)
    for k, solver in enumerate(crowd):
        dual = solver.dual
        kernels.take_lane(w, k, dual.w)
        dual.scalars[:], dual.tallies[:] = scalars[k], tallies[k]
        solver.has_visited()


def _signs(solver: Solver) -> NDArray[np.int8]:
    """l_k of the rows that it visits, 0 of the others."""
    signs = solver.active.signs
    if solver.live is None:
        return signs
    own = np.zeros(len(signs), np.int8)
    own[solver.live] = signs[solver.live]
    return own


def _side_by_side(vectors: Sequence[Vector]) -> NDArray[np.float64]:
    """Shape (columns, LANES): a vector a lane, 0 where there is none; every row one cache line."""
    found: NDArray[np.float64] = _empty(max(map(len, vectors)), kernels.LANES, np.float64)
    for k in range(kernels.LANES):
        kernels.put_lane(vectors[k] if k < len(vectors) else NO_VECTOR, k, found)
    return found


def _padded(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """One below the other, LANES rows."""
    found = _empty(kernels.LANES, len(arrays[0]), arrays[0].dtype.type)
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
