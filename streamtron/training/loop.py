"""The algorithm as one page: one scan of the data, shown to every unfinished learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamtron.chunk import Chunk, ChunkSource
from streamtron.config import Settings
from streamtron.events import ChunkDone, Listener, ReadingDone, ReadingStarted, StageDone, ignore
from streamtron.training import order
from streamtron.training.learner import Learner


def train(
    source: ChunkSource,
    learners: Sequence[Learner],
    settings: Settings,
    listen: Listener = ignore,
) -> None:
    """Read the data until every learner is finished.

    A reading either trains a learner, rows being visited as they pass, or scans for it: weights
    frozen, which certifies them and collects the rows that the mini-epochs afterwards visit in
    memory. Which of the two, and when to stop, each learner decides for itself at the end of a
    reading; the order of the rows is a function of (seed, reading) alone.

    Parameters
    ----------
    source : the data.
    learners : changed in place; all share ``settings``' order and seed.
    """
    if settings.faithful:
        for chunk in source.chunks():
            for learner in learners:
                learner.measure(chunk)
    reading = 0
    while unfinished := [learner for learner in learners if learner.finished is None]:
        _tell_start(source, reading, unfinished, listen)
        told = [_State.of(learner) for learner in unfinished]
        for learner in unfinished:
            learner.begin_reading(reading)
        rows = nonzeros = 0
        for chunk in source.chunks(_groups(source, settings, reading)):
            positions = _positions(chunk, settings, reading)
            for learner in unfinished:
                learner.take(chunk, positions)
            rows += len(chunk)
            nonzeros += chunk.nonzeros
            listen(ChunkDone(reading, rows, nonzeros))
        for learner, before in zip(unfinished, told, strict=True):
            certified = learner.frozen is not None
            learner.finish_reading()
            _tell_end(reading, learner, before, certified, listen)
        reading += 1


def _groups(source: ChunkSource, settings: Settings, reading: int) -> list[Sequence[int]] | None:
    """Blocks read together; None: as they come (there is no random access to text)."""
    if not settings.random or reading == 0:
        return None
    return order.block_groups(settings.seed, reading, len(source.blocks))


def _positions(chunk: Chunk, settings: Settings, reading: int) -> NDArray[np.int64]:
    """The order of visits within a chunk."""
    if not settings.random:
        return order.file_order(len(chunk))
    return order.row_order(settings.seed, reading, chunk.ranges[0][0], len(chunk))


@dataclass(frozen=True, slots=True)
class _State:
    """What a learner had done before a reading."""

    mode: str
    stage_number: int
    updates: int
    mini_epochs: int

    @classmethod
    def of(cls, learner: Learner) -> _State:
        return cls(learner.mode, learner.stage_number, learner.dual.updates, learner.mini_epochs)


def _tell_start(
    source: ChunkSource, reading: int, learners: Sequence[Learner], listen: Listener
) -> None:
    purpose = " and ".join(sorted({learner.mode for learner in learners}))
    rows = sum(block.rows for block in source.blocks) or None
    nonzeros = sum(block.nonzeros for block in source.blocks) or None
    listen(ReadingStarted(reading, purpose, rows, nonzeros))


def _tell_end(
    reading: int, learner: Learner, before: _State, certified: bool, listen: Listener
) -> None:
    first = max(before.stage_number, 0)
    worked_in = learner.plan[first : learner.stage_number + 1]
    listen(
        ReadingDone(
            reading,
            ", ".join(stage.name for stage in worked_in),
            before.mode,
            learner.dual.updates - before.updates,
            learner.mini_epochs - before.mini_epochs,
            len(learner.active),
            learner.certificate if certified else None,
            learner.dual.upper_bound,
        )
    )
    for report in learner.reports[first:]:
        if report.why:
            listen(StageDone(str(report.epsilon), report.why))
