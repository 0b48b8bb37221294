"""Forget rows: delete them and their counts from a finished run, and train on."""

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
from streamtron.runs.exclusions import (
    Exclusions,
    RowsToDelete,
    known_rows,
    replaced,
    rows_by_key,
    rows_by_list,
    whole_shards,
)
from streamtron.runs.finished import (
    EditableRun,
    FinalState,
    changed_settings,
    locate,
    open_finished,
)
from streamtron.runs.inputs import Paths, as_paths
from streamtron.runs.results import Outcome, build_outcome, write_outcome
from streamtron.solver.changes import begin_change, narrow, subtract_rows
from streamtron.solver.checkpoint import State
from streamtron.solver.duals import Counts
from streamtron.solver.learner import Learner
from streamtron.solver.proving import sum_afresh

_log = logging.getLogger(__name__)

WORTH = 0.5
"""Largest part of the nonzeros that is read once more to subtract the deleted rows. Beyond it, a is
summed afresh by the reading that follows anyway; on RCV1 that took at most as many readings."""


def forget(
    run: str | os.PathLike[str],
    shards: Paths = (),
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
    """Delete rows from a finished run, and train on until the remaining rows are certified.

    Deleted are whole shards; with ``key`` the rows of tables whose column has one of ``values``;
    with ``rows`` those that a file lists; with ``replaced_by`` the rows that a new file of the
    shard lacks. If a shard still holds deleted rows, its deletions are recorded in the run's
    directory and in the witness, and every reading for this run leaves them out; see
    ``data.deletions``.

    The rows' counts are deleted exactly. Their part of a = Σ c_k y_k is subtracted, which reads
    their shards, from the cache if possible; if a shard is gone, or the rows are scattered over
    most of the data, a is summed afresh. Then training continues from a. Afterwards model, witness,
    checkpoint, manifest and cache of the run hold nothing of the rows; copies elsewhere are not
    looked for.

    An interrupted call leaves the run as it was (except cache files) or completely changed, and may
    be repeated: what the run does not have is listed in the report as ``not_in_run``; if nothing
    is left to delete, the run stays as it is.

    Parameters
    ----------
    run : the model, or its run directory.
    shards : names as in the manifest, or paths; the files may be gone, unless only some of their
        rows are deleted. With ``key``: where to look; none = in all shards.
    key, values : a column of the tables, which need not be a feature, and its values in the rows to
        delete, as text or numbers.
    rows : a CSV file whose first line is ``shard,row``: name or path of a shard, and the number of
        the row in its file, from 0, earlier deletions counted.
    replaced_by : the file, perhaps at the shard's own path, that takes its place. Its rows are
        matched with the shard's, in their order; their counts carry over.
    tol, max_epochs : from now on; None = as the run has them.
    report : also write the report there.

    Returns
    -------
    Outcome of the remaining rows: model, report, witness.

    Raises
    ------
    SettingsError : a faithful run; ``key`` for text shards; options that exclude each other.
    DataError : no finished run; no row, or no row of a label, would remain; a new file with rows
        that the shard does not have, or for a shard that the run does not have; a remaining shard
        that changed.
    MachineError : memory, disk; the run is locked by another process.

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
    _check_options(bool(as_paths(shards)), key, values, rows, replaced_by)
    began, machine = time.perf_counter(), machine or Machine()
    place = locate(run, machine.run_dir)
    with open_finished(place, machine.cache_dir) as ended:
        target = EditableRun.of(ended, changed_settings(ended, tol, max_epochs), place.model)
        inputs = [os.fspath(path) for path in (rows, replaced_by) if path]
        target.check_report(report, inputs, machine)
        directory, names = target.cache_directory(machine), as_paths(shards)
        chosen = _choose(target, names, key, values, rows, replaced_by, directory)
        changed = any(each.changes(target) for each in chosen.shards)
        if changed:
            outcome, used = _forget(target, chosen, machine, listen, began)
        else:
            outcome = target.unchanged()
        outcome.report["not_in_run"] = chosen.missing
        if report is not None:  # before the commit: a committed change has its report
            write_outcome(outcome, report=report)
        if changed:
            known = [shard.fingerprint for shard in target.manifest.shards]
            remove = ["checkpoint.before", *([] if outcome.deletions else [deletions.NAME])]
            stale = transaction.Stale(directory, known, used)
            transaction.commit(ended.path, target.model_path, remove, stale)
    return outcome


def _check_options(
    named: bool,
    key: str | None,
    values: str | Sequence[str | int | float],
    rows: str | os.PathLike[str] | None,
    replaced_by: str | os.PathLike[str] | None,
) -> None:
    """Raise a SettingsError if options exclude each other, or none is given."""
    if sum(way is not None for way in (key, rows, replaced_by)) > 1:
        raise SettingsError("--key, --rows and --replaced-by exclude each other. Give one.")
    if (key is None) != (len(values) == 0):
        raise SettingsError("--key names a column and --value what is in it: give both.")
    if rows is not None and named:
        raise SettingsError("--rows FILE names the shards itself. Leave the shards out.")
    if key is rows is None and not named:
        raise SettingsError("nothing to forget. Name shards, or rows with --key or --rows.")


def _choose(
    target: EditableRun,
    names: Sequence[str],
    key: str | None,
    values: str | Sequence[str | int | float],
    rows: str | os.PathLike[str] | None,
    replaced_by: str | os.PathLike[str] | None,
    cache: str,
) -> Exclusions:
    """Find the rows to delete."""
    if key is not None:
        wanted = [values] if isinstance(values, str) else [str(value) for value in values]
        return rows_by_key(target, names, key, wanted)
    if rows is not None:
        return rows_by_list(target, os.fspath(rows))
    if replaced_by is not None:
        return replaced(target, names, os.fspath(replaced_by), cache)
    return whole_shards(target, names)


def _forget(
    target: EditableRun, chosen: Exclusions, machine: Machine, listen: Listener, began: float
) -> tuple[Outcome, list[str]]:
    """Train on without the rows, and stage the changed run.

    Returns
    -------
    The outcome, and the files of the cache that it uses.
    """
    shards = chosen.shards
    if not sum(each.rows_left for each in shards):
        raise DataError(
            f"{target.ended.path}: these are all rows of the run, and nothing would be left. "
            "Remove the model and its run directory."
        )
    with target.source([each.file for each in shards if each.file], machine) as source:
        learners = target.restore(source)
        remaining = []
        for learner in learners:
            begin_change(learner)
            stay, learner.counts = _split(learner.counts, shards)
            remaining.append(stay)
        read = chosen.nonzeros_read
        read += _subtract(target, shards, learners, target.cache_directory(machine))
        for learner, stay in zip(learners, remaining, strict=True):
            learner.counts = stay
        final = _FinalState(source, learners)
        target.train(source, learners, machine, listen, final)
        assert source.nonzeros is not None
        readings = (read + source.nonzeros_read) / source.nonzeros
        seconds = time.perf_counter() - began
        outcome = build_outcome(source, learners, target.settings, seconds, readings=readings)
        target.stage(source, outcome, final.state)
        assert source.info is not None
        return outcome, sorted(source.info.cache_paths)


def _split(counts: Counts, shards: Sequence[RowsToDelete]) -> tuple[Counts, Counts]:
    """Return the counts of the remaining rows, by their new numbers, and those of the deleted rows,
    by their old numbers."""
    stay, leave = Counts(), Counts()
    numbers, values = counts.entries()
    start = 0
    for shard, gone, file in shards:
        own = slice(*np.searchsorted(numbers, (shard.first_row, shard.first_row + shard.rows)))
        places, held = numbers[own] - shard.first_row, values[own]
        leaves = np.isin(places, gone) if file else np.ones(len(places), dtype=bool)
        leave.put(numbers[own][leaves], held[leaves])
        stays = places[~leaves]
        stay.put(start + stays - np.searchsorted(gone, stays), held[~leaves])
        start += shard.rows - len(gone) if file else 0
    return stay, leave


def _subtract(
    target: EditableRun, deleted: Sequence[RowsToDelete], learners: Sequence[Learner], cache: str
) -> int:
    """Subtract the rows, whose counts the learners hold, from a; return the nonzeros read.

    If rows cannot be read, or are scattered (WORTH), the next reading sums a afresh.
    """
    counted = [learner.counts.entries()[0] for learner in learners]
    shards = [each.shard for each in deleted if any(_any_in(own, each.shard) for own in counted)]
    scattered = sum(shard.nonzeros for shard in shards) > WORTH * target.manifest.nonzeros
    if scattered or any(learner.unsummed for learner in learners):
        for learner in learners:
            sum_afresh(learner)
        return 0
    with ExitStack() as stack:
        sources: list[ShardSource] = []
        try:
            for shard in shards:
                sources.append(stack.enter_context(known_rows(target, shard, cache)))
            subtract_rows(_renumbered(sources, shards), learners)
        except StreamtronError as error:
            _log.warning("%s The weights are summed afresh from the remaining shards.", error)
            for learner in learners:
                sum_afresh(learner)
        return sum(source.nonzeros_read for source in sources)


def _any_in(numbers: NDArray[np.int64], shard: ShardRecord) -> bool:
    """Return whether some of these rising row numbers are the shard's."""
    start, stop = np.searchsorted(numbers, (shard.first_row, shard.first_row + shard.rows))
    return bool(start < stop)


def _renumbered(sources: Sequence[ShardSource], shards: Sequence[ShardRecord]) -> Iterator[Chunk]:
    """Read the chunks of the sources with row numbers as in the run."""
    for source, shard in zip(sources, shards, strict=True):
        for chunk in source.chunks():
            [(start, stop)] = chunk.ranges
            yield replace(chunk, ranges=((shard.first_row + start, shard.first_row + stop),))


class _FinalState(FinalState):
    """Keep the final state, without columns that no remaining row has.

    Raises a DataError after the first reading if a shard was skipped or a label has no row left.
    """

    def __init__(self, source: ShardSource, learners: Sequence[Learner]) -> None:
        self.source, self.learners = source, learners
        self._names = {shard.name for shard in source.shards}
        self._checked = False

    def checkpoint(self, state: Callable[[], State]) -> None:
        """Check the shards and the labels once they are known."""
        if self._checked or self.source.manifest is None:
            return
        self._checked = True
        for shard in self.source.skipped:
            if shard.name in self._names:
                raise DataError(
                    f"{shard.reason} The run has counts of this shard's rows: put it back as it "
                    "was, or forget it whole."
                )
        if self.source.info and (unseen := self.source.info.unseen_labels):
            raise DataError(
                f"no remaining row has the label {unseen[0]}, which the model has. Nothing was "
                "forgotten: fit anew on shards without these rows, to another model, and remove "
                "this one and its run directory."
            )

    def end(self, state: Callable[[], State]) -> None:
        """Check, narrow the weights, and keep the state."""
        self.checkpoint(state)
        for learner in self.learners:
            narrow(learner, self.source.width)
        super().end(state)
