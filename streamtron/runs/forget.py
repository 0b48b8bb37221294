"""Forget rows: choose them, take them and their α out of a finished run, and train on."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Machine
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import Listener, ignore
from streamtron.data import ShardFile, ShardRecord
from streamtron.data.deletions import Deletions, in_share, listed_rows
from streamtron.data.reader_config import ALL
from streamtron.data.readers import rows_with
from streamtron.data.storage import is_uri
from streamtron.runs.change import NO_ROWS, EditableRun, RowChange
from streamtron.runs.inputs import Paths, as_paths
from streamtron.runs.parts import OpenParts
from streamtron.runs.report import Outcome
from streamtron.runs.store import Absent


def forget(
    run: str | os.PathLike[str],
    shards: Paths = (),
    *,
    key: str | None = None,
    values: str | float | Sequence[str | int | float] = (),
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
    manifest and cache of the run, and the cache that ``machine`` names, hold nothing of the rows;
    copies elsewhere are not looked for. What a transformer took from the rows it was fitted on
    stays until a new fit: names of categories, words, means.

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
    SettingsError : a run of the paper's stages; ``key`` for text shards; options that exclude each
        other.
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
    listed = [values] if isinstance(values, str | int | float | np.generic) else values
    texts = [*dict.fromkeys(map(str, listed))]
    names = as_paths(shards)
    _check(names, key, texts, rows)
    changes = {"tol": tol, "max_epochs": max_epochs}
    with EditableRun.opened(run, machine, listen, open_parts, **changes) as target:
        if key is not None:
            removed, deleted = _rows_by_key(target, names, key, texts)
        elif rows is not None:
            removed, deleted = _rows_by_list(target, os.fspath(rows))
        else:
            removed, deleted = _whole_shards(target, names)
        return target.finish(
            _without(target, removed),
            report,
            [] if rows is None else [os.fspath(rows)],
            forgotten={name: number for name, number in deleted.items() if number},
            not_in_run=[name for name, number in deleted.items() if number is None],
        )


def _check(
    names: Sequence[str], key: str | None, values: Sequence[str], rows: object | None
) -> None:
    if key is not None and rows is not None:
        raise SettingsError("--key and --rows exclude each other. Give one.")
    if (key is None) != (len(values) == 0):
        raise SettingsError("--key names a column and --value what is in it: give both.")
    if rows is not None and names:
        raise SettingsError("--rows FILE names the shards itself. Leave the shards out.")
    if key is rows is None and not names:
        raise SettingsError("nothing to forget. Name shards, or rows with --key or --rows.")


Exclusions = tuple[Mapping[int, NDArray[np.int64] | None], dict[str, int | None]]
"""Number of a shard → rising numbers of the rows that are deleted from its file, None = all; what
is named in the call → its rows that are deleted, each counted where it is named first, None if the
run does not have it."""


def _without(
    target: EditableRun, removed: Mapping[int, NDArray[np.int64] | None]
) -> RowChange | None:
    """Return the rows of the run without those that are removed; None if nothing is."""
    if all(rows is not None and not len(rows) for rows in removed.values()):
        return None
    kept, gone, left = list[tuple[ShardFile, ShardRecord]](), list[NDArray[np.int64]](), 0
    for number, (file, record) in enumerate(target.kept):
        if (rows := removed.get(number, NO_ROWS)) is None:
            gone.append(record.row_numbers)
            continue
        gone.append(record.first_row + rows - np.searchsorted(_not_read(target, file, rows), rows))
        left += record.rows - len(rows)
        if len(rows):
            known = np.union1d(_left_out(file), rows)
            file = file._replace(without=Deletions(record.path, record.fingerprint, known))
        kept.append((file, record))
    if not left:
        raise DataError(
            f"{target.store.path}: these are all rows of the run, and nothing would be left. "
            "Remove the model and its run directory."
        )
    left_over = {record.fingerprint for _, record in kept}
    absent = {known.fingerprint: known for known in target.store.absent}
    for record in target.manifest.shards:
        if record.fingerprint not in left_over:
            absent[record.fingerprint] = Absent(record.fingerprint, record.bytes, None)
    return RowChange(kept, (), np.concatenate(gone), [*absent.values()])


def _whole_shards(target: EditableRun, names: Sequence[str]) -> Exclusions:
    records = target.manifest.shards
    removed, deleted = dict[int, None](), dict[str, int | None]()
    for name, numbers in _numbers(target, names).items():
        new = numbers - removed.keys()
        removed |= dict.fromkeys(new)
        deleted[name] = sum(records[number].rows for number in new) if numbers else None
    return removed, deleted


def _rows_by_key(
    target: EditableRun, names: Sequence[str], column: str, values: Sequence[str]
) -> Exclusions:
    """Delete rows by a column's values, in the named shards; if none is named, in all."""
    numbers_of = _numbers(target, names)
    places = set[int]().union(*numbers_of.values()) if names else {*range(len(target.shards))}
    hits, counts = dict[int, NDArray[np.int64]](), np.zeros(len(values), np.int64)
    occurs = np.zeros(len(values), bool)
    for number in sorted(_with_duplicates(target, places)):
        shard = target.shards[number]
        rows, which, equal_to = rows_with(shard, column, values)
        new = ~np.isin(rows, _not_read(target, shard, rows))
        hits[number] = rows[new]
        counts_here = np.bincount(which[new], minlength=len(values))
        counts += counts_here
        occurs |= counts_here[equal_to] > 0
    deleted: dict[str, int | None] = {name: None for name in names if not numbers_of[name]}
    if places:
        for value, count, known in zip(values, counts.tolist(), occurs, strict=True):
            deleted[f"{column} = {value}"] = count if known else None
    return hits, deleted


def _rows_by_list(target: EditableRun, path: str) -> Exclusions:
    """Delete the rows that a CSV file lists; it may list rows that were deleted before."""
    listed = listed_rows(path)
    if not listed:
        raise DataError(f"{path}: no row in it. List rows below the line shard,row.")
    numbers_of, records = _numbers_by_name(target), target.manifest.shards
    hits = dict[int, NDArray[np.int64]]()
    deleted: dict[str, int | None] = dict.fromkeys(listed)
    for name, rows in listed.items():
        not_in_run, last = rows, rows.max()
        for number in _with_duplicates(target, numbers_of(name)):
            left_out, read = _not_read(target, target.shards[number], rows), records[number].rows
            if last + 1 - np.searchsorted(left_out, last, side="right") > read:
                total = f"{read + len(left_out)}" if target.reading.share == ALL else "fewer"
                raise DataError(
                    f"{path}: row {last} of {name}, which has {total} rows, from 0 on. Check the "
                    "list."
                )
            hit = hits.get(number, NO_ROWS)
            hits[number] = np.union1d(hit, np.setdiff1d(rows, left_out))
            deleted[name] = (deleted[name] or 0) + len(hits[number]) - len(hit)
            not_in_run = np.intersect1d(not_in_run, left_out)
        if deleted[name] is not None and len(not_in_run):
            deleted[f"{len(not_in_run):,} row(s) of {name}"] = None
    return hits, deleted


def _numbers(target: EditableRun, names: Sequence[str]) -> dict[str, set[int]]:
    """Return name → the numbers of the shards of this name, or below the directory of this name,
    which may be gone."""
    numbers_of = _numbers_by_name(target)
    return {name: numbers_of(name) or _below(target, name) for name in names}


def _numbers_by_name(target: EditableRun) -> Callable[[str], set[int]]:
    """Return the function that finds the numbers of the shards of a name or a path."""
    known = defaultdict[str, set[int]](set)
    for number, shard in enumerate(target.manifest.shards):
        known[shard.name].add(number)
        known[shard.path].add(number)
    return lambda name: known[name] | known[os.path.abspath(name)]


def _below(target: EditableRun, directory: str) -> set[int]:
    root = os.path.join(directory if is_uri(directory) else os.path.abspath(directory), "")
    shards = enumerate(target.manifest.shards)
    return {number for number, shard in shards if shard.path.startswith(root)}


def _left_out(file: ShardFile) -> NDArray[np.int64]:
    return NO_ROWS if file.without is None else file.without.rows


def _not_read(target: EditableRun, file: ShardFile, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of a file that the run does not read, up to the last of ``rows``: those that
    were deleted, and those held out."""
    share = target.reading.share
    numbers = np.arange(rows.max(initial=-1) + 1 if share != ALL else 0)
    return np.union1d(_left_out(file), numbers[~in_share(file.name, numbers, share)])


def _with_duplicates(target: EditableRun, numbers: set[int]) -> set[int]:
    """Return the numbers of shards, and of those with the same bytes."""
    prints = [record.fingerprint for record in target.manifest.shards]
    named = {prints[number] for number in numbers}
    return {number for number, fingerprint in enumerate(prints) if fingerprint in named}
