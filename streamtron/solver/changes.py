"""Add rows to a run that has ended, or take rows away, before it is trained further.

First ``renumber``, after which no two arrays of the learner are one; then ``begin_change``; then
``add_rows`` or ``replace_alphas``; then training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from streamtron.core.config import Settings
from streamtron.core.events import Listener, WorkDone
from streamtron.core.rows import Chunk, Data, size_of
from streamtron.solver import order
from streamtron.solver.held_loss import drive
from streamtron.solver.learner import (
    Learner,
    Memory,
    begin_again,
    certify,
    choose_visits,
    enter,
    leave_scan,
    release_rows,
)
from streamtron.solver.reading import solve_in_memory, tell_done, visit_rows
from streamtron.solver.stopping import conclude


def begin_change(learner: Learner, *, only_more: bool) -> None:
    """Prepare a finished learner for more rows, or fewer: nothing is proven any more, and no rows
    are in memory. ``only_more`` : rows are only added, and no weight of a row changes, so that the
    last scan still holds for the rows that it read."""
    begin_again(learner, keep_scan=only_more and _scan_holds(learner))


def _scan_holds(learner: Learner) -> bool:
    """Whether the last scan was of the best weights, and of the α as they are now."""
    frozen, running, known = learner.frozen, learner.running, learner.best.certificate
    if frozen is None or known is None or frozen.certificate().primal != known.primal:
        return False
    sums = frozen.scan_sums
    return sums.gains == running.gains and np.array_equal(sums.fresh, running.w)


def add_rows(
    data: Data,
    learners: Sequence[Learner],
    settings: Settings,
    first_row: int,
    listen: Listener,
) -> None:
    """Maximise the dual over the α of new rows, those of all others being fixed: one reading
    of the new rows alone. Where the last scan of the others holds, a second one continues it: a
    learner has finished if that certifies the best weights for all rows.

    The α of the others are not optimal any more; but the readings of all rows that follow are
    fewer by a third (measured on RCV1 at C = 50). ``data`` numbers its rows from 0; its first row
    is row ``first_row`` of all.
    """
    for learner in learners:
        choose_visits(learner, True)
        enter(learner, Memory.BUFFERS)
        learner.progress.begin_reading(0, visits=True)
    for chunk in _read(data, first_row, listen, 0, "new rows", len(learners)):
        positions = order.visiting_order(settings, 0, chunk)
        for learner in learners:
            for _ in visit_rows(learner, chunk, positions, learner.targets(chunk)):
                drive(solve_in_memory(learner))
    rows, _ = size_of(data.blocks)
    for learner in learners:
        drive(solve_in_memory(learner))
        release_rows(learner)
        choose_visits(learner, False)
        # the running weights suit the new rows, until the α of the others have been solved again
        learner.best.take_candidate()
        if learner.frozen is None:  # else its scan goes on, and certifies the best ones
            learner.best.propose(learner.best.augmented)
        tell_done(0, rows, learner, listen)
    scans = [(learner, frozen) for learner in learners if (frozen := learner.frozen)]
    for chunk in _read(data, first_row, listen, 1, "scan new rows", len(scans)) if scans else ():
        for learner, frozen in scans:
            alphas = learner.alphas.take_ranges(chunk.ranges)
            frozen.scan(chunk.rows, learner.targets(chunk), alphas, learner.augmentation)
    for learner, frozen in scans:
        learner.progress.begin_reading(1, visits=True)
        certify(learner, frozen)
        conclude(learner)
        tell_done(1, rows, learner, listen)
        learner.progress.record(learner.certificate, None, learner.rows_held)
        if learner.finished:
            release_rows(learner)
        else:
            leave_scan(learner)
            choose_visits(learner, True)


def _read(
    data: Data, first_row: int, listen: Listener, reading: int, purpose: str, problems: int
) -> Iterator[Chunk]:
    """Yield the chunks of new rows, numbered as in the whole data, and tell how far it is."""
    listen(WorkDone(purpose, reading, problems=problems))
    rows = nonzeros = 0
    for chunk in data.chunks():
        ranges = tuple((first_row + start, first_row + stop) for start, stop in chunk.ranges)
        yield replace(chunk, ranges=ranges)
        rows, nonzeros = rows + len(chunk), nonzeros + chunk.nonzeros
        listen(WorkDone(purpose, reading, nonzeros, rows=rows, problems=problems))
    listen(WorkDone("solving", reading, problems=problems))
