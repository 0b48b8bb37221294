"""Rows that a run is to forget: their counts, their part of the weights, all that was kept."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Machine
from streamtron.core.errors import DataError, SettingsError, StreamtronError
from streamtron.core.events import Listener, ignore
from streamtron.core.rows import Chunk
from streamtron.data import ShardRecord, ShardSource, deletions
from streamtron.runs import transaction
from streamtron.runs.ended import locate, open_ended
from streamtron.runs.exclusions import (
    Choice,
    Leaving,
    replaced,
    rows_by_key,
    rows_by_list,
    still_there,
    whole_shards,
)
from streamtron.runs.fit import as_paths
from streamtron.runs.learners import Room, class_weights, finished_learners
from streamtron.runs.results import Outcome, conclude, write_outcome
from streamtron.runs.update import Kept, Last, settings_now, stage
from streamtron.solver.checkpoint import State
from streamtron.solver.duals import Counts
from streamtron.solver.learner import Learner
from streamtron.solver.removed_rows import subtract_rows
from streamtron.solver.train import train

_log = logging.getLogger(__name__)

WORTH = 0.5
"""Shards with at most this part of the nonzeros are read once more to subtract the rows that leave.
Of more, a is summed by the reading that comes anyway: it ends as well, and on RCV1 took at most as
many readings, all rows or a tenth of them held."""


def forget(
    run: str | os.PathLike[str],
    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    *,
    key: str | None = None,
    values: str | Sequence[str | int | float] = (),
    rows: str | os.PathLike[str] | None = None,
    replaced_by: str | os.PathLike[str] | None = None,
    tol: float | None = None,
    max_epochs: int | None = None,
    report: str | os.PathLike[str] | None = None,
    machine: Machine | None = None,
    listen: Listener = ignore,
) -> Outcome:
    """Take rows out of a run that has ended, and go on from there to a certificate over the rows
    that are left.

    What is forgotten: whole shards; with ``key`` the rows of tables whose column has one of
    ``values``; with ``rows`` those that a file lists; with ``replaced_by`` the rows that a shard
    was written anew without. Rows of a shard that still holds them get deletions, in the run's
    directory and in the witness, and are not there for whoever reads for this run, now or later;
    see ``data.deletions``.

    The rows' counts are gone exactly. a = Σ c_k y_k loses their part by subtraction, which reads
    their shards alone, from the cache if they are there; where a shard is gone everywhere, or the
    rows are scattered over most of the data, a is summed afresh from what is left. Then training
    goes on from a. Model, witness, checkpoint, manifest and cache of the run hold nothing of the
    rows when this returns; what was written elsewhere, a witness or a copy of the model, is not
    looked for.

    Whenever it is interrupted, the run is as it was before, but for cache files; or it is as it is
    to be, as soon as it is opened. This can be called again in either case: what is not in the run,
    or not any more, is listed in the report as ``not_in_run``, and where there is nothing else to
    forget the run is left as it is.

    Parameters
    ----------
    run : the model, or its run directory.
    shards : names as the manifest has them, or paths; the files may be gone already, unless only
        rows of them are to be forgotten. With ``key``: where to look; none = in all shards.
    key, values : a column of the tables, whether or not features are in it, and the values in it
        of the rows to forget, as text or numbers.
    rows : a CSV file whose first line is ``shard,row``: name or path of a shard, and the number
        that the row has in its file, from 0, those counted that were forgotten before.
    replaced_by : the file, perhaps of the shard's own path, that takes its place. Its rows are
        matched with the shard's, in their order; their counts carry over.
    tol, max_epochs : from now on; None = as the run has them.
    report : also write the report there.

    Returns
    -------
    Outcome of the rows that are left: model, report, witness.

    Raises
    ------
    SettingsError : a faithful run; ``key`` for text shards; ways to name rows that do not go
        together.
    DataError : no run that has ended; all of its rows, or all that have one of the labels; a file
        that has other rows than the shard that it replaces, or one that the run does not have; the
        shards that are left are not as they were.
    MachineError : no room, another process has the run.

    Examples
    --------
    >>> import tempfile, pathlib, streamtron
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     root = pathlib.Path(directory)
    ...     _ = (root / "0.svm").write_text("1 1:1\\n-1 1:-1\\n")
    ...     _ = (root / "1.svm").write_text("1 1:2\\n-1 2:1\\n")
    ...     _ = streamtron.fit([root / "0.svm", root / "1.svm"], model=root / "m.st")
    ...     _ = (root / "gone.csv").write_text("shard,row\\n1.svm,1\\n")
    ...     one = streamtron.forget(root / "m.st", rows=root / "gone.csv").report["rows"]
    ...     one, streamtron.forget(root / "m.st", "1.svm").report["rows"]
    (3, 2)
    """
    _check_ways(bool(as_paths(shards)), key, values, rows, replaced_by)
    began, machine = time.perf_counter(), machine or Machine()
    place = locate(run, machine.run_dir)
    with open_ended(place, machine.cache_dir) as ended:
        kept = Kept.of(ended, settings_now(ended, tol, max_epochs), place.model)
        kept.check_report(
            report, [os.fspath(path) for path in (rows, replaced_by) if path], machine
        )
        directory, names = kept.cache_directory(machine), as_paths(shards)
        if key is not None:
            wanted = [values] if isinstance(values, str) else [str(value) for value in values]
            choice = rows_by_key(kept, names, key, wanted)
        elif rows is not None:
            choice = rows_by_list(kept, os.fspath(rows))
        elif replaced_by is not None:
            choice = replaced(kept, names, os.fspath(replaced_by), directory)
        else:
            choice = whole_shards(kept, names)
        changed = any(each.changed(kept) for each in choice.leaving)
        if changed:
            outcome, used = _forget(kept, choice, machine, listen, began)
        else:
            outcome = kept.as_it_stands()
        outcome.report["not_in_run"] = choice.missing
        if report is not None:  # before the change counts: a run that has had it has this, too
            write_outcome(outcome, report=report)
        if changed:
            known = [shard.fingerprint for shard in kept.manifest.shards]
            remove = ["checkpoint.before", *([] if outcome.deletions else [deletions.NAME])]
            stale = transaction.Stale(directory, known, used)
            transaction.finish(ended.path, kept.model_path, remove, stale)
    return outcome


def _check_ways(
    named: bool,
    key: str | None,
    values: str | Sequence[str | int | float],
    rows: str | os.PathLike[str] | None,
    replaced_by: str | os.PathLike[str] | None,
) -> None:
    """Refuse ways to name rows that do not go together."""
    if sum(way is not None for way in (key, rows, replaced_by)) > 1:
        raise SettingsError("--key, --rows and --replaced-by name rows each in its own way: one.")
    if (key is None) != (len(values) == 0):
        raise SettingsError("--key names a column and --value what is in it: give both.")
    if rows is not None and named:
        raise SettingsError("--rows FILE names the shards itself. Leave the shards out.")
    if key is rows is None and not named:
        raise SettingsError("nothing to forget. Name shards, or rows with --key or --rows.")


def _forget(
    kept: Kept,
    choice: Choice,
    machine: Machine,
    listen: Listener,
    began: float,
) -> tuple[Outcome, list[str]]:
    """The outcome of what is left, staged, and the cache's files that it uses."""
    leaving = choice.leaving
    if not sum(each.rows_left for each in leaving):
        raise DataError(
            f"{kept.ended.path}: these are all rows of the run, and nothing would be left. Remove "
            "the model and its run directory."
        )
    settings = kept.settings
    with kept.source([each.file for each in leaving if each.file], machine) as source:
        weights = class_weights(source, settings)
        state = kept.ended.checkpoint.state
        learners = finished_learners(state, settings, source.labels, weights)
        staying = []
        for learner in learners:
            learner.begin_change()
            stay, learner.counts = _parted(learner.counts, leaving)
            staying.append(stay)
        read = choice.nonzeros_read
        read += _subtract(kept, leaving, learners, kept.cache_directory(machine))
        for learner, stay in zip(learners, staying, strict=True):
            learner.counts = stay
        last = _Last(source, learners)
        room = Room(settings, machine, learners[0].pool)
        train(
            source, learners, settings, listen, threads=machine.thread_count, room=room,
            checkpointer=last, abreast=room.abreast,
        )  # fmt: skip
        assert source.nonzeros is not None
        readings = (read + source.nonzeros_read) / source.nonzeros
        seconds = time.perf_counter() - began
        outcome = conclude(source, learners, settings, seconds, readings=readings)
        stage(kept, source, outcome, last.state)
        return outcome, sorted(source.cached_at)


def _parted(counts: Counts, leaving: Sequence[Leaving]) -> tuple[Counts, Counts]:
    """The counts of the rows that stay, by the numbers that they are going to have, and of those
    that leave, by the numbers that they had."""
    stay, leave = Counts(), Counts()
    numbers, values = counts.entries()
    start = 0
    for shard, gone, file in leaving:
        own = slice(*np.searchsorted(numbers, (shard.first_row, shard.first_row + shard.rows)))
        places, held = numbers[own] - shard.first_row, values[own]
        leaves = np.isin(places, gone) if file else np.ones(len(places), dtype=bool)
        leave.put(numbers[own][leaves], held[leaves])
        stays = places[~leaves]
        stay.put(start + stays - np.searchsorted(gone, stays), held[~leaves])
        start += shard.rows - len(gone) if file else 0
    return stay, leave


def _subtract(
    kept: Kept, leaving: Sequence[Leaving], learners: Sequence[Learner], directory: str
) -> int:
    """Take the part of the rows that leave, whose counts the learners hold, out of a; where they
    are gone, or scattered (WORTH), a is summed by the next reading. Returns the nonzeros read."""
    counted = [learner.counts.entries()[0] for learner in learners]
    shards = [each.shard for each in leaving if any(_some(own, each.shard) for own in counted)]
    scattered = sum(shard.nonzeros for shard in shards) > WORTH * kept.manifest.nonzeros
    if scattered or not all(learner.carries for learner in learners):
        _sum_afresh(learners)
        return 0
    with ExitStack() as stack:
        sources: list[ShardSource] = []
        try:
            for shard in shards:
                sources.append(stack.enter_context(still_there(kept, shard, directory)))
            subtract_rows(_rows(sources, shards), learners)
        except StreamtronError as error:
            _log.warning("%s The weights are summed afresh from the shards that are left.", error)
            _sum_afresh(learners)
        return sum(source.nonzeros_read for source in sources)


def _sum_afresh(learners: Sequence[Learner]) -> None:
    for learner in learners:
        learner.sum_afresh()


def _some(numbers: NDArray[np.int64], shard: ShardRecord) -> bool:
    """Whether some of these rows, rising, are the shard's."""
    start, stop = np.searchsorted(numbers, (shard.first_row, shard.first_row + shard.rows))
    return bool(start < stop)


def _rows(sources: Sequence[ShardSource], shards: Sequence[ShardRecord]) -> Iterator[Chunk]:
    for source, shard in zip(sources, shards, strict=True):
        for chunk in source.chunks():
            [(start, stop)] = chunk.ranges
            yield replace(chunk, ranges=((shard.first_row + start, shard.first_row + stop),))


class _Last(Last):
    """Keeps the end, of a run whose shards are all there and in which every label has a row, and
    nothing of columns that no row has any more."""

    def __init__(self, source: ShardSource, learners: Sequence[Learner]) -> None:
        self.source, self.learners = source, learners
        self._names = {shard.name for shard in source.shards}
        self._known = False

    def border(self, state: Callable[[], State]) -> None:
        """Refuse as soon as it is known, which is after the first reading."""
        if self._known or self.source.manifest is None:
            return
        self._known = True
        for shard in self.source.skipped:
            if shard.name in self._names:
                raise DataError(
                    f"{shard.reason} The run has counts of this shard's rows: put it back as it "
                    "was, or forget it whole."
                )
        if self.source.unmet:
            raise DataError(
                f"no row that is left has the label {self.source.unmet[0]}, which the model has. "
                "Nothing was forgotten: fit anew on shards without these rows, to another model, "
                "and remove this one and its run directory."
            )

    def end(self, state: Callable[[], State]) -> None:
        """The end is kept."""
        self.border(state)
        for learner in self.learners:
            learner.narrow(self.source.width)
        super().end(state)
