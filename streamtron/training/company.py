"""Learners in company: the same rows, looked at once for all of them.

Where ``kernels.LANES`` learners or fewer look at the same rows in the same order, a row is fetched
once, and of each of its columns the weights of all, which lie side by side. What each finds is, to
the bit, what it finds alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from streamtron import kernels
from streamtron.chunk import Chunk
from streamtron.training.learner import Learner
from streamtron.training.solve import Solver

LEAST = 3
"""Fewer learners look as fast by themselves: putting weights side by side takes time."""

DENSE = 4
"""Nonzeros a column, below which that takes longer than it saves."""

VISITS = 1 << 13
"""Visits of one kernel call: what the learners have beside the weights is put side by side for so
many at a time."""

LINE = 64
"""Bytes of a cache line, which the weights of one column fill."""

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def teams(learners: Sequence[Learner], threads: int) -> list[list[Learner]]:
    """Learners dealt out in teams of at most LANES, a team a thread as long as that is enough;
    those that follow one another are dealt to different threads.

    Examples
    --------
    >>> [[*map(str, team)] for team in teams(range(7), threads=2)]
    [['0', '2', '4', '6'], ['1', '3', '5']]
    """
    found: list[list[Learner]] = []
    for first in range(0, len(learners), threads * kernels.LANES):
        dealt = learners[first : first + threads * kernels.LANES]
        found += [list(dealt[k::threads]) for k in range(min(threads, len(dealt)))]
    return found


# --- scans ---


def dots(
    chunk: Chunk, learners: Iterable[Learner], threads: int, work: Callable[..., None]
) -> Mapping[Learner, Vector]:
    """x_k·w of a chunk's rows and every learner that scans them, where it pays to sum them
    together."""
    scanning = [learner for learner in learners if learner.frozen is not None]
    crews = [team for team in teams(scanning, threads) if len(team) >= LEAST and _fits(chunk, team)]
    found: dict[Learner, Vector] = {}

    def sum_together(team: Sequence[Learner]) -> None:
        w = _side_by_side([learner.frozen.w for learner in team if learner.frozen is not None])
        sums = np.empty((len(chunk), kernels.LANES))
        kernels.dot_lanes(chunk.rows, w, sums)
        found.update(zip(team, np.ascontiguousarray(sums.T[: len(team)]), strict=True))

    work(sum_together, crews)
    return found


def _fits(chunk: Chunk, team: Sequence[Learner]) -> bool:
    """Whether there are weights for all columns, and few enough to be put side by side."""
    columns = max(len(learner.frozen.w) for learner in team if learner.frozen is not None)
    return chunk.width <= columns <= chunk.nonzeros // DENSE


# --- visits of rows in memory ---


def step(learners: Sequence[Learner]) -> None:
    """Go on training on rows in memory: a step of those that are furthest behind, and where these
    are about to visit the same rows, that at once."""
    busy = [learner for learner in learners if learner.busy]
    behind = [learner for learner in busy if learner.about_to_visit is None]
    if not behind:
        behind = _first_in_turn(busy)
        _visit_in_crowds(behind)
    for learner in behind:
        learner.step()


def _first_in_turn(learners: Sequence[Learner]) -> list[Learner]:
    when = [solver.turn.when for solver in _solvers(learners) if solver.turn is not None]
    return [one for one, its in zip(learners, when, strict=True) if its == min(when)]


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
    rows = max(len(active) if solver.live is None else len(solver.live) for solver in crowd)
    return DENSE * columns * len(active) <= active.nonzeros * rows


def _visit(crowd: Sequence[Solver]) -> None:
    """A mini-epoch of at most LANES solvers, of rows that they share."""
    first, lanes = crowd[0], range(len(crowd))
    active, turn = first.active, first.turn
    assert turn is not None
    signs = [_signs(solver) for solver in crowd]
    if first.live is None:
        order = turn.all(len(active))
    else:
        order = turn.some(np.flatnonzero(np.logical_or.reduce(signs)))
    w = _side_by_side([solver.dual.w for solver in crowd])
    of_lanes = np.zeros((3, kernels.LANES))
    of_lanes[:, : len(crowd)] = np.transpose(
        [(solver.rule.rho, solver.rule.b, solver.dual.scale) for solver in crowd]
    )
    scalars = _padded([solver.dual.scalars for solver in crowd])
    tallies = _padded([solver.dual.tallies for solver in crowd])
    room = np.empty((2, kernels.LANES))
    for start in range(0, len(order), VISITS):
        some = order[start : start + VISITS]
        shape = (len(some), kernels.LANES)
        own_signs, delta2 = np.zeros(shape, np.int8), np.zeros(shape)
        counts, erred = np.zeros(shape, np.int32), np.zeros(shape, np.uint8)
        for k in lanes:
            own_signs[:, k], delta2[:, k] = signs[k][some], crowd[k].delta2[some]
            counts[:, k] = crowd[k].counts[some]
        kernels.visit_unlearn_lanes(
            active.rows, some, own_signs, delta2, *of_lanes, active.squares,
            counts, w, scalars, tallies, erred, room,
        )  # fmt: skip
        for k in lanes:
            crowd[k].counts[some] = counts[:, k]
            if first.live is None:  # else nobody will ask
                crowd[k].erred[some] = erred[:, k]
    for k, solver in enumerate(crowd):
        dual = solver.dual
        dual.w[:], dual.scalars[:], dual.tallies[:] = w[: len(dual.w), k], scalars[k], tallies[k]
        solver.has_visited()


def _signs(solver: Solver) -> NDArray[np.int8]:
    """l_k of the rows that it visits, 0 of the others."""
    signs = solver.active.signs
    if solver.live is None:
        return signs
    own = np.zeros(len(signs), np.int8)
    own[solver.live] = signs[solver.live]
    return own


def _side_by_side(vectors: Sequence[Vector]) -> Matrix:
    """Shape (columns, LANES): a vector a lane, 0 where there is none; every row one cache line."""
    columns = max(map(len, vectors))
    place = np.empty(8 * columns * kernels.LANES + LINE, np.uint8)
    first = -place.ctypes.data % LINE
    found = place[first : first + 8 * columns * kernels.LANES].view(np.float64)
    found = found.reshape(columns, kernels.LANES)
    for k in range(kernels.LANES):
        own = vectors[k] if k < len(vectors) else vectors[0][:0]
        found[: len(own), k] = own
        found[len(own) :, k] = 0.0
    return found


def _padded(arrays: Sequence[NDArray]) -> NDArray:  # type: ignore[type-arg]
    """One below the other, LANES rows."""
    found = np.zeros((kernels.LANES, len(arrays[0])), arrays[0].dtype)
    found[: len(arrays)] = arrays
    return found
