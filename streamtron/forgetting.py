"""Shards that a run is to forget: their counts, their part of the weights, all that was kept."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from streamtron import changes
from streamtron.chunk import Chunk
from streamtron.config import Machine
from streamtron.errors import DataError, StreamtronError
from streamtron.events import Listener, ignore
from streamtron.fitting import as_paths
from streamtron.learning import Room, class_weights, finished_learners
from streamtron.outcome import Outcome, conclude, write_outcome
from streamtron.runs import open_ended
from streamtron.shards import Cache, ShardFile, ShardRecord, ShardSource, drop_cached
from streamtron.training.learner import Learner
from streamtron.training.loop import train
from streamtron.training.removal import subtract_rows
from streamtron.updating import Kept, Last, directory_of, file_of, settings_now, stage
from streamtron.witness import reordered

_log = logging.getLogger(__name__)


def forget(
    run: str | os.PathLike[str],
    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    tol: float | None = None,
    max_epochs: int | None = None,
    report: str | os.PathLike[str] | None = None,
    machine: Machine | None = None,
    listen: Listener = ignore,
) -> Outcome:
    """Take shards out of a run that has ended, and go on from there to a certificate over the rows
    that are left.

    The shards' counts are gone exactly. a = Σ c_k y_k loses their part by subtraction, which reads
    those shards alone, from the cache if they are there; where a shard is gone everywhere, a is
    summed afresh from the shards that are left. Then training goes on from a. Model, witness,
    checkpoint, manifest and cache of the run hold nothing of the shards when this returns; what
    was written elsewhere, a witness or a copy of the model, is not looked for.

    Whenever it is interrupted, the run is as it was before, but for cache files, and this can be
    called again.

    Parameters
    ----------
    run : the model, or its run directory.
    shards : names as the manifest has them, or paths; the files may be gone already.
    tol, max_epochs : from now on; None = as the run has them.
    report : also write the report there.

    Returns
    -------
    Outcome of the rows that are left: model, report, witness.

    Raises
    ------
    SettingsError : a faithful run.
    DataError : no run that has ended; a shard that it does not have; all of its shards; the shards
        that are left are not as they were.
    MachineError : no room, another process has the run.

    Examples
    --------
    >>> import tempfile, pathlib, streamtron
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     root = pathlib.Path(directory)
    ...     _ = (root / "0.svm").write_text("1 1:1\\n-1 1:-1\\n")
    ...     _ = (root / "1.svm").write_text("1 1:2\\n-1 2:1\\n")
    ...     _ = streamtron.fit([root / "0.svm", root / "1.svm"], model=root / "m.st")
    ...     streamtron.forget(root / "m.st", "0.svm").report["rows"]
    2
    """
    began, machine = time.perf_counter(), machine or Machine()
    with open_ended(directory_of(run)) as ended:
        kept = Kept.of(ended, settings_now(ended, tol, max_epochs))
        gone = _named(as_paths(shards), kept)
        outcome = _forget(kept, gone, machine, listen, began)
        if report is not None:  # before the change counts: a run that has had it has this, too
            write_outcome(outcome, report=report)
        changes.finish(ended.path, kept.model_path, ["checkpoint.before"])
    return outcome


def _named(names: Sequence[str], kept: Kept) -> list[int]:
    """The numbers of the shards to forget, rising."""
    shards = kept.manifest.shards
    gone: set[int] = set()
    for name in names:
        path = os.path.abspath(name)
        found = {
            k
            for k, shard in enumerate(shards)
            if name in (shard.name, shard.path) or path == shard.path
        }
        if not found:
            raise DataError(
                f"{name}: none of the {len(shards)} shards of the run, which begin with "
                f"{shards[0].name}. Name one of those that streamtron inspect {kept.ended.path} "
                "lists."
            )
        gone |= found
    if len(gone) == len(shards):
        raise DataError(
            f"{kept.ended.path}: these are all shards of the run, and nothing would be left. "
            "Remove the model and its run directory."
        )
    return sorted(gone)


def _forget(
    kept: Kept, gone: Sequence[int], machine: Machine, listen: Listener, began: float
) -> Outcome:
    settings, shards = kept.settings, kept.manifest.shards
    left = [k for k in range(len(shards)) if k not in gone]
    borders = _borders(kept, left)
    directory = kept.cache_directory(machine)
    with kept.source([file_of(shards[k]) for k in left], machine, borders) as source:
        weights = class_weights(source, settings)
        state = kept.ended.checkpoint.state
        learners = finished_learners(state, settings, source.labels, weights)
        for learner in learners:
            learner.begin_change()
        extra = _subtract(kept, [shards[k] for k in gone], learners, directory)
        for learner in learners:
            learner.counts = reordered(learner.counts, [shard.rows for shard in shards], left)
        last = Last()
        train(
            source, learners, settings, listen, threads=machine.thread_count,
            room=Room(settings, machine, learners[0].pool), keeper=last,
        )  # fmt: skip
        assert source.nonzeros is not None
        readings = (extra + source.nonzeros_read) / source.nonzeros
        seconds = time.perf_counter() - began
        outcome = conclude(source, learners, settings, seconds, readings=readings)
        stage(kept, source, outcome, last.state, borders)
        stale = {shard.fingerprint for shard in shards}
        drop_cached(directory, stale, source.cached_at)
    return outcome


def _borders(kept: Kept, left: Sequence[int]) -> list[str]:
    """Where blocks begin now: a border whose shard is gone is that of the first one behind it."""
    paths = [shard.path for shard in kept.manifest.shards]
    moved = []
    for border in kept.ended.record.borders:
        behind = [k for k in left if k >= paths.index(border)]
        moved += [paths[k] for k in behind[:1]]
    return list(dict.fromkeys(moved))


def _subtract(
    kept: Kept, gone: Sequence[ShardRecord], learners: Sequence[Learner], directory: str
) -> int:
    """Take the shards' part out of a; without them a is 0 until the next reading has summed it.
    Returns the nonzeros read."""
    with ExitStack() as stack:
        sources = [stack.enter_context(_still_there(kept, shard, directory)) for shard in gone]
        try:
            subtract_rows(_rows(sources, gone), learners)
        except StreamtronError as error:
            _log.warning("%s The weights are summed afresh from the shards that are left.", error)
            for learner in learners:
                learner.dual.restart()
        return sum(source.nonzeros_read for source in sources)


def _rows(sources: Sequence[ShardSource], gone: Sequence[ShardRecord]) -> Iterator[Chunk]:
    for source, shard in zip(sources, gone, strict=True):
        for chunk in source.chunks():
            [(start, stop)] = chunk.ranges
            yield replace(chunk, ranges=((shard.first_row + start, shard.first_row + stop),))


def _still_there(kept: Kept, shard: ShardRecord, directory: str) -> ShardSource:
    """A shard by itself: its copy in the cache, or its file."""
    copy = Cache(directory, kept.reading).copy_of(shard.fingerprint, shard.name)
    if copy is None:
        return kept.alone(file_of(shard))
    there = os.stat(copy.path)
    file = ShardFile(copy.path, shard.name, "libsvm", there.st_size, there.st_mtime_ns)
    return kept.alone(file, lambda *_: copy)
