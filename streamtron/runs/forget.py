"""Forget rows: delete them and their counts from a finished run, and train on.

The rows' counts are deleted, the next reading sums a = Σ c_k y_k afresh over the rows that stay,
and training goes on from there: two readings where memory holds the rows that matter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Machine
from streamtron.core.errors import DataError
from streamtron.core.events import Listener, ignore
from streamtron.core.names import checks_keywords
from streamtron.data import ShardFile
from streamtron.runs.change import Change, EditableRun, RowChange
from streamtron.runs.exclusions import NO_ROWS, Removed, Request, find_exclusions
from streamtron.runs.inputs import Paths, as_paths
from streamtron.runs.outcome import Outcome
from streamtron.runs.parts import OpenParts


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
    texts = [values] if isinstance(values, str) else [str(value) for value in values]
    request = Request(as_paths(shards), key, texts, None if rows is None else os.fspath(rows))
    request.check()
    change = Change(machine or Machine(), tol, max_epochs, listen=listen, open_parts=open_parts)
    with EditableRun.opened(run, change) as target:
        report = target.check_report(report, [request.rows] if request.rows else [])
        removed, deleted = find_exclusions(target, request)
        return target.finish(
            _without(target, removed),
            report,
            forgotten={name: number for name, number in deleted.items() if number},
            not_in_run=[name for name, number in deleted.items() if number is None],
        )


def _without(target: EditableRun, removed: Mapping[int, Removed]) -> RowChange | None:
    """Return the rows of the run without those that are removed; None if nothing is."""
    if not removed:
        return None
    shards, rows, gone = list[ShardFile](), list[int](), list[NDArray[np.int64]]()
    for number, record in enumerate(target.manifest.shards):
        numbers, file = removed.get(number, Removed(NO_ROWS, target.shards[number]))
        gone.append(record.first_row + numbers)
        if file is not None:
            shards.append(file)
            rows.append(record.rows - len(numbers))
    if not sum(rows):
        raise DataError(
            f"{target.finished.path}: these are all rows of the run, and nothing would be left. "
            "Remove the model and its run directory."
        )
    return RowChange(shards, rows, removed=np.concatenate(gone))
