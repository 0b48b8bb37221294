"""Forget rows: delete them and their counts from a finished run, and train on.

The rows' counts are deleted, the next reading sums a = Σ c_k y_k afresh over the rows that stay,
and training goes on from there: two readings where memory holds the rows that matter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from streamtron.core.config import Machine
from streamtron.core.errors import DataError
from streamtron.core.events import Listener, ignore
from streamtron.core.names import checks_keywords
from streamtron.data import Cache, ShardSource, deletions
from streamtron.runs import transaction
from streamtron.runs.directory import PARTS
from streamtron.runs.exclusions import Request, RowsToDelete, find_exclusions
from streamtron.runs.finished_run import Change, EditableRun, FinalState, finish, train_on
from streamtron.runs.inputs import Paths, as_paths
from streamtron.runs.outcome import Outcome
from streamtron.runs.parts import OpenParts
from streamtron.solver.changes import begin_change, narrow, take_counts
from streamtron.solver.checkpoint import State
from streamtron.solver.duals import Pieces
from streamtron.solver.learner import Learner


@checks_keywords()
def forget(
    run: str | os.PathLike[str],
    shards: Paths = (),
    *,
    key: str | None = None,
    values: str | Sequence[str | int | float] = (),
    rows: str | os.PathLike[str] | None = None,
    tol: float | None = None,
    max_epochs: int | None = None,
    report: str | os.PathLike[str] | None = None,
    machine: Machine | None = None,
    listen: Listener = ignore,
    open_parts: OpenParts | None = None,
) -> Outcome:
    """Delete rows from a finished run, and train on until the remaining rows are certified.

    If a shard still holds deleted rows, they are recorded in the run's directory and in the
    witness, and every reading for this run leaves them out. Afterwards model, witness, checkpoint,
    manifest and cache of the run hold nothing of the rows; copies elsewhere are not looked for.

    An interrupted call leaves the run as it was (except cache files) or completely changed, and may
    be repeated. The report has the rows of each shard or value as ``forgotten``; as ``not_in_run``
    what the run does not have; and as ``forgotten_rows`` all that its shards still hold.

    Parameters
    ----------
    run : the model, or its run directory.
    shards : deleted whole, or with ``key`` where to look; none = in all shards. Names as in the
        manifest, paths, or directories, which stand for the run's shards below them; the files may
        be gone, unless only some of their rows are deleted.
    key, values : a column of the tables, which need not be a feature, and its values in the rows to
        delete, as text or numbers.
    rows : a CSV file whose first line is ``shard,row``: name or path of a shard, and the number of
        the row in its file, from 0, earlier deletions counted.
    tol, max_epochs : from now on; None = as the run has them.
    report : also write the report there.
    machine, listen : as in ``fit``.
    open_parts : as in ``fit``, for a run on several parts, which are dealt anew: as many, or one a
        shard.

    Raises
    ------
    SettingsError : a faithful run; ``key`` for text shards; options that exclude each other.
    DataError : no finished run; no row, or no row of a label, would remain; a remaining shard that
        changed.
    MachineError

    Examples
    --------
    >>> import tempfile, pathlib, streamtron
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     root = pathlib.Path(directory)
    ...     _ = (root / "0.svm").write_text("1 1:1\\n-1 1:-1\\n")
    ...     _ = (root / "1.svm").write_text("1 1:2\\n-1 2:1\\n")
    ...     _ = streamtron.fit([root / "0.svm", root / "1.svm"], model=root / "m.st")
    ...     streamtron.forget(root / "m.st", "1.svm").report["rows"]
    2
    """
    wanted = [values] if isinstance(values, str) else [str(value) for value in values]
    request = Request(as_paths(shards), key, wanted, None if rows is None else os.fspath(rows))
    request.check()
    change = Change(machine or Machine(), tol, max_epochs, listen=listen, open_parts=open_parts)
    with EditableRun.opened(run, change) as target:
        report = target.check_report(report, [request.rows] if request.rows else [])
        deleted, told = find_exclusions(target, request)
        outcome, plan = _train_without(target, deleted)
        outcome.report["forgotten"] = {name: rows for name, rows in told.items() if rows}
        outcome.report["not_in_run"] = [name for name, rows in told.items() if rows is None]
        return finish(target, outcome, report, plan)


def _train_without(
    target: EditableRun, shards: Sequence[RowsToDelete]
) -> tuple[Outcome, transaction.Plan | None]:
    """Train on without the rows, if there are some, and stage the changed run."""
    if not any(len(each.gone) or not each.file for each in shards):
        return target.unchanged(), None
    if not sum(each.rows_left for each in shards):
        raise DataError(
            f"{target.ended.path}: these are all rows of the run, and nothing would be left. "
            "Remove the model and its run directory."
        )
    files = [each.file for each in shards if each.file]
    target = target.with_parts(files, workers=False)
    remaining = partial(_remaining, shards=shards)
    with target.source(files) as source:
        learners = target.restore(source)
        final = _FinalState(source, learners)

        def begin(group: Sequence[Learner]) -> None:
            for learner in group:
                begin_change(learner)
                if target.settings.parts is None:
                    take_counts(learner, remaining(learner.counts.nonzero()))
                else:
                    learner.best.discard()  # no scan is to certify what the rows have made

        rows = [each.rows_left for each in shards if each.file]
        outcome = train_on(target, source, learners, final, begin, rows=rows, remaining=remaining)
        target.stage(source, outcome, final.state)
        return outcome, _plan(target, source, outcome)


def _plan(target: EditableRun, source: ShardSource, outcome: Outcome) -> transaction.Plan:
    """Return what the commit removes."""
    cache = os.path.abspath(target.cache_directory)
    known = [shard.fingerprint for shard in target.manifest.shards]
    remove = ["checkpoint.before", *([] if outcome.deletions else [deletions.NAME])]
    if target.settings.parts is None:
        remove.append(PARTS)
    assert source.info
    cached = [slot.shard for slot in source.info.slots]
    if target.settings.parts is not None:
        known_files = map(Cache(cache, source.reading).find, source.shards)
        cached = [found for found in known_files if found]
    used = sorted({os.path.basename(one.path) for one in cached})
    own = os.path.abspath(target.ended.path / transaction.CACHE)
    return transaction.Plan(remove, known, used, None if own == cache else cache)


def _remaining(pieces: Pieces, shards: Sequence[RowsToDelete]) -> Pieces:
    """Yield the counts of the remaining rows, by their new numbers."""
    gone = np.concatenate([each.shard.first_row + each.gone for each in shards])
    for numbers, values in pieces:
        stays = ~np.isin(numbers, gone)
        left = numbers[stays]
        yield left - np.searchsorted(gone, left), values[stays]


class _FinalState(FinalState):
    """Keep the final state, without columns that no remaining row has."""

    def __init__(self, source: ShardSource, learners: Sequence[Learner]) -> None:
        self.source, self.learners = source, learners

    def checkpoint(self, state: Callable[[], State]) -> None:
        """Raise a DataError after the first reading if a shard was skipped or a label is gone."""
        info = self.source.info
        if info and info.skipped:
            raise DataError(
                f"{info.skipped[0].reason} The run has counts of this shard's rows: put it back "
                "as it was, or forget it whole."
            )
        if info and info.unseen_labels:
            raise DataError(
                f"no remaining row has the label {info.unseen_labels[0]}, which the model has. "
                "Nothing was forgotten: fit anew on shards without these rows, to another model, "
                "and remove this one and its run directory."
            )

    def end(self, state: Callable[[], State]) -> None:
        self.checkpoint(state)
        for learner in self.learners:
            narrow(learner, self.source.width)
        super().end(state)
