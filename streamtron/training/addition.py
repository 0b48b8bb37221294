"""Rows that are added to a run which has ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from streamtron.chunk import Chunk, ChunkSource
from streamtron.config import Settings
from streamtron.training.frozen import Frozen
from streamtron.training.learner import Learner
from streamtron.training.loop import positions_in


def add_rows(
    source: ChunkSource, learners: Sequence[Learner], settings: Settings, first_row: int
) -> None:
    """Maximise the dual over the counts of new rows, those of all others being fixed: one reading
    of the new rows alone. Where the last scan of the others stands, another one goes on with it:
    a learner has ended if that proves the weights that were best before good enough for all rows.

    The others have else still to give way; but what is left for the readings of all rows is less by
    a third (measured on RCV1 at C = 50).

    Parameters
    ----------
    source : the new rows, numbered from 0.
    learners : after ``Learner.begin_change``.
    first_row : the number that the first of them has in the whole data.
    """
    for chunk in _behind(source, first_row):
        positions = positions_in(chunk, settings, 0)
        for learner in learners:
            learner.add(chunk, positions)
    for learner in learners:
        learner.end_adding()
    proving = [learner for learner in learners if learner.frozen is not None]
    for chunk in _behind(source, first_row) if proving else ():
        for learner in proving:
            learner.prove(chunk)
    for learner in proving:
        learner.end_proving()


def add_alone(
    source: ChunkSource, learners: Sequence[Learner], settings: Settings, first_row: int
) -> None:
    """Maximise the dual over the counts of new rows, those of all others being fixed for good: they
    are gone. Two readings of the new rows if they fit in the active set, one that solves and one
    that proves; else both again, until they are solved together, or parts get no further, or
    ``max_epochs`` are spent.

    Parameters
    ----------
    source, first_row : as ``add_rows`` has them.
    learners : after ``Learner.begin_change``; they have ended when this returns.
    """
    learning = list(learners)
    while learning:
        for chunk in _behind(source, first_row):
            for learner in learning:
                learner.add_alone(chunk)
        for learner in learning:
            learner.end_adding()
        scans = _scan(source, learning, first_row)
        for learner, frozen in zip(learning, scans, strict=True):
            if learner.added(frozen) or learner.full_epochs >= settings.epoch_limit:
                learner.end_alone(frozen)
        learning = [learner for learner in learning if not learner.finished]


def _scan(source: ChunkSource, learners: Sequence[Learner], first_row: int) -> list[Frozen]:
    """The learners' weights at rest, scanned on new rows."""
    scans = [learner.at_rest() for learner in learners]
    for chunk in _behind(source, first_row):
        for learner, frozen in zip(learners, scans, strict=True):
            learner.measure(chunk)
            targets = learner.targets(chunk)
            counts = learner.counts.take_ranges(chunk.ranges)
            frozen.scan(chunk.rows, targets, counts, learner.settings.rho)
    return scans


def _behind(source: ChunkSource, first_row: int) -> Iterator[Chunk]:
    """The chunks, numbered behind all other rows."""
    for chunk in source.chunks():
        ranges = tuple((first_row + start, first_row + stop) for start, stop in chunk.ranges)
        yield replace(chunk, ranges=ranges)
