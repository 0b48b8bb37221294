"""Choose the rows that a run forgets: whole shards, by key, or by list."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError, SettingsError
from streamtron.data import ShardFile
from streamtron.data.deletions import Deletions, in_share, listed_rows
from streamtron.data.reader_config import ALL
from streamtron.data.readers import rows_with
from streamtron.data.storage import is_uri
from streamtron.runs.change import EditableRun

NO_ROWS = np.zeros(0, dtype=np.int64)


class Request(NamedTuple):
    """Arguments of ``forget``: shards, and perhaps rows of them in one of two ways."""

    names: list[str]
    key: str | None = None
    values: Sequence[str] = ()
    rows: str | None = None

    def check(self) -> None:
        """Raise a SettingsError if options exclude each other, or none is given."""
        if self.key is not None and self.rows is not None:
            raise SettingsError("--key and --rows exclude each other. Give one.")
        if (self.key is None) != (len(self.values) == 0):
            raise SettingsError("--key names a column and --value what is in it: give both.")
        if self.rows is not None and self.names:
            raise SettingsError("--rows FILE names the shards itself. Leave the shards out.")
        if self.key is self.rows is None and not self.names:
            raise SettingsError("nothing to forget. Name shards, or rows with --key or --rows.")


class Removed(NamedTuple):
    """Rising numbers of the rows that are deleted from a shard, among the run's rows of it, and the
    file without them; None = the whole shard is deleted."""

    rows: NDArray[np.int64]
    file: ShardFile | None


Exclusions = tuple[dict[int, Removed], dict[str, int | None]]
"""Number of a shard → what is deleted from it; what is named in the call → its rows that are
deleted, None if the run does not have it."""


def find_exclusions(target: EditableRun, request: Request) -> Exclusions:
    """Find the rows that a checked request deletes."""
    if request.key is not None:
        return _rows_by_key(target, request.names, request.key, request.values)
    if request.rows is not None:
        return rows_by_list(target, request.rows)
    numbers_of, records = _numbers(target, request.names), target.manifest.shards
    removed = {
        number: Removed(np.arange(records[number].rows), None)
        for number in set[int]().union(*numbers_of.values())
    }
    return removed, {
        name: sum(records[number].rows for number in numbers) if numbers else None
        for name, numbers in numbers_of.items()
    }


def _rows_by_key(
    target: EditableRun, names: Sequence[str], column: str, values: Sequence[str]
) -> Exclusions:
    """Delete rows by a column's values, in the named shards; if none is named, in all."""
    numbers_of = _numbers(target, names)
    places = set[int]().union(*numbers_of.values()) if names else {*range(len(target.shards))}
    hits, counts = dict[int, NDArray[np.int64]](), np.zeros(len(values), np.int64)
    for number in sorted(places):
        shard = target.shards[number]
        hits[number], which = rows_with(shard, column, values)
        new = ~np.isin(hits[number], _not_read(target, shard, hits[number]))
        counts += np.bincount(which[new], minlength=len(values))
    deleted: dict[str, int | None] = {name: None for name in names if not numbers_of[name]}
    if places:
        pairs = zip(values, counts.tolist(), strict=True)
        deleted |= {f"{column} = {value}": count or None for value, count in pairs}
    return _with_deletions(target, hits), deleted


def rows_by_list(target: EditableRun, path: str) -> Exclusions:
    """Delete the rows that a CSV file lists; it may list rows that were deleted before."""
    hits = dict[int, NDArray[np.int64]]()
    listed = listed_rows(path)
    if not listed:
        raise DataError(f"{path}: no row in it. List rows below the line shard,row.")
    numbers_of = _numbers_by_name(target)
    deleted: dict[str, int | None] = dict.fromkeys(listed)
    for name, rows in listed.items():
        for number in numbers_of(name):
            shard, read = target.shards[number], target.manifest.shards[number].rows
            left_out = _not_read(target, shard, rows)
            last = rows.max()
            if last + 1 - np.searchsorted(left_out, last, side="right") > read:
                total = read + len(left_out)
                raise DataError(
                    f"{path}: row {rows.max()} of {name}, which has {total} rows, from 0 on. Check "
                    "the list."
                )
            hits[number] = np.union1d(hits.get(number, NO_ROWS), rows)
            deleted[name] = len(np.setdiff1d(rows, left_out))
            if gone := len(np.intersect1d(rows, left_out)):
                deleted[f"{gone:,} row(s) of {name}"] = None
    return _with_deletions(target, hits), deleted


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


def _with_deletions(
    target: EditableRun, rows: Mapping[int, NDArray[np.int64]]
) -> dict[int, Removed]:
    """Delete rows, numbered as in the files, of shards and of their duplicates."""
    by_fingerprint: dict[str, NDArray[np.int64]] = {}
    for number, numbers in rows.items():
        digest = target.manifest.shards[number].fingerprint
        by_fingerprint[digest] = np.union1d(by_fingerprint.get(digest, NO_ROWS), numbers)
    removed = {}
    for number, (record, file) in enumerate(
        zip(target.manifest.shards, target.shards, strict=True)
    ):
        listed = by_fingerprint.get(record.fingerprint, NO_ROWS)
        not_read = _not_read(target, file, listed)
        new = np.setdiff1d(listed, not_read)
        if len(new):
            without = Deletions(record.path, record.fingerprint, np.union1d(_left_out(file), new))
            gone = new - np.searchsorted(not_read, new)
            removed[number] = Removed(gone, file._replace(without=without))
    return removed
