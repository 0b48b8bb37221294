"""The algorithm as one page: one scan of the data, shown to every unfinished learner."""

from __future__ import annotations

from collections.abc import Sequence

from streamtron.chunk import ChunkSource
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
    reading = 0
    while unfinished := [learner for learner in learners if learner.finished is None]:
        purposes = sorted({learner.mode for learner in unfinished})
        rows = sum(block.rows for block in source.blocks) or None
        nonzeros = sum(block.nonzeros for block in source.blocks) or None
        listen(ReadingStarted(reading, " and ".join(purposes), rows, nonzeros))
        for learner in unfinished:
            learner.begin_reading(reading)
        groups = None
        if settings.random and reading > 0:
            groups = order.block_groups(settings.seed, reading, len(source.blocks))
        rows_done = nonzeros_done = 0
        for chunk in source.chunks(groups):
            positions = order.file_order(len(chunk))
            if settings.random:
                positions = order.row_order(settings.seed, reading, chunk.ranges[0][0], len(chunk))
            for learner in unfinished:
                learner.take(chunk, positions)
            rows_done += len(chunk)
            nonzeros_done += chunk.nonzeros
            listen(ChunkDone(reading, rows_done, nonzeros_done))
        for learner in unfinished:
            stages_before, mode = len(learner.reports), learner.mode
            updates, minis, stage = learner.dual.updates, learner.mini_epochs, learner.stage.name
            scanned = learner.frozen is not None
            learner.finish_reading()
            listen(
                ReadingDone(
                    reading,
                    stage,
                    mode,
                    learner.dual.updates - updates,
                    learner.mini_epochs - minis,
                    len(learner.active),
                    learner.certificate if scanned else None,
                    learner.dual.upper_bound,
                )
            )
            for report in learner.reports[stages_before - 1 :]:
                if report.why:
                    listen(StageDone(str(report.epsilon), report.why))
        reading += 1
