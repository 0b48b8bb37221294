"""Choose the rows that a run forgets: whole shards, by key, or by list."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.files import at_most, reading_from
from streamtron.core.limits import available_memory
from streamtron.data import ShardFile, ShardRecord
from streamtron.data.deletions import Deletions
from streamtron.data.row_search import rows_with
from streamtron.data.storage import is_uri
from streamtron.runs.finished_run import EditableRun

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


class RowsToDelete(NamedTuple):
    """Rising numbers of the deleted rows, among the run's rows of the shard, and the file of the
    remaining ones; None = the whole shard is deleted."""

    shard: ShardRecord
    gone: NDArray[np.int64]
    file: ShardFile | None

    @property
    def rows_left(self) -> int:
        """Number of rows that remain."""
        return self.shard.rows - len(self.gone)


Exclusions = tuple[list[RowsToDelete], dict[str, int | None]]
"""One item for every shard of the run, in order; what is named in the call → its rows that are
deleted, None if the run does not have it."""


def find_exclusions(target: EditableRun, request: Request) -> Exclusions:
    """Find the rows that a checked request deletes."""
    if request.key is not None:
        return _rows_by_key(target, request.names, request.key, request.values)
    if request.rows is not None:
        return rows_by_list(target, request.rows)
    named = _numbers(target, request.names)
    whole, shards = _keep_all(target), target.manifest.shards
    for number in set[int]().union(*named.values()):
        whole[number] = RowsToDelete(shards[number], np.arange(shards[number].rows), None)
    return whole, {
        name: sum(shards[k].rows for k in numbers) if numbers else None
        for name, numbers in named.items()
    }


def _keep_all(target: EditableRun) -> list[RowsToDelete]:
    return [*map(RowsToDelete, target.manifest.shards, repeat(NO_ROWS), target.shards)]


def _rows_by_key(
    target: EditableRun, names: Sequence[str], column: str, values: Sequence[str]
) -> Exclusions:
    """Delete rows by a column's values, in the shards of these names; if none is named, in all."""
    named = _numbers(target, names)
    where = sorted(set[int]().union(*named.values())) if names else range(len(target.shards))
    found, counts = dict[int, NDArray[np.int64]](), np.zeros(len(values), np.int64)
    for number in where:
        found[number], which = rows_with(target.shards[number], column, values)
        new = ~np.isin(found[number], _left_out(target.shards[number]))
        counts += np.bincount(which[new], minlength=len(values))
    missing: dict[str, int | None] = {name: None for name, own in named.items() if not own}
    pairs = zip(values, counts.tolist(), strict=True) if where else ()
    told = missing | {f"{column} = {value}": n or None for value, n in pairs}
    return _with_deletions(target, found), told


def rows_by_list(target: EditableRun, path: str) -> Exclusions:
    """Delete the rows that a CSV file lists; it may list rows that were deleted before."""
    found: dict[int, NDArray[np.int64]] = {}
    listed = _listed(path)
    if not listed:
        raise DataError(f"{path}: no row in it. List rows below the line shard,row.")
    named = _numbers_by_name(target)
    told: dict[str, int | None] = dict.fromkeys(listed)
    for name, rows in listed.items():
        for number in named(name):
            left_out = _left_out(target.shards[number])
            there = target.manifest.shards[number].rows + len(left_out)
            if rows.max() >= there:
                raise DataError(
                    f"{path}: row {rows.max()} of {name}, which has {there} rows, from 0 on. Check "
                    "the list."
                )
            found[number] = np.union1d(found.get(number, NO_ROWS), rows)
            told[name] = len(np.setdiff1d(rows, left_out))
            if gone := len(np.intersect1d(rows, left_out)):
                told[f"{gone:,} row(s) of {name}"] = None
    return _with_deletions(target, found), told


def _numbers(target: EditableRun, names: Sequence[str]) -> dict[str, set[int]]:
    """Return name → the numbers of the shards of this name, or below the directory of this name."""
    named = _numbers_by_name(target)
    return {name: named(name) or _below(target, name) for name in names}


def _numbers_by_name(target: EditableRun) -> Callable[[str], set[int]]:
    """Return the function that finds the numbers of the shards of a name or a path."""
    known: dict[str, set[int]] = {}
    for number, shard in enumerate(target.manifest.shards):
        for name in (shard.name, shard.path):
            known.setdefault(name, set()).add(number)
    return lambda name: known.get(name, set()) | known.get(os.path.abspath(name), set())


def _below(target: EditableRun, directory: str) -> set[int]:
    """Return the numbers of the shards below a directory or a prefix, which may be gone."""
    root = directory if is_uri(directory) else os.path.abspath(directory)
    shards = enumerate(target.manifest.shards)
    return {number for number, one in shards if one.path.startswith(os.path.join(root, ""))}


def _left_out(file: ShardFile) -> NDArray[np.int64]:
    return NO_ROWS if file.without is None else file.without.rows


def _with_deletions(
    target: EditableRun, rows: Mapping[int, NDArray[np.int64]]
) -> list[RowsToDelete]:
    """Delete rows, numbered as in the files, of shards and of their duplicates."""
    wanted: dict[str, NDArray[np.int64]] = {}
    for number, own in rows.items():
        fingerprint = target.manifest.shards[number].fingerprint
        wanted[fingerprint] = np.union1d(wanted.get(fingerprint, NO_ROWS), own)
    deleted = _keep_all(target)
    for number, (shard, _, file) in enumerate(deleted):
        assert file is not None
        before = _left_out(file)
        new = np.setdiff1d(wanted.get(shard.fingerprint, NO_ROWS), before)
        if len(new):
            now = Deletions(shard.path, shard.fingerprint, np.union1d(before, new))
            left = file._replace(without=now)
            deleted[number] = RowsToDelete(shard, new - np.searchsorted(before, new), left)
    return deleted


LIST_SHARE = 8
"""A list of rows may have 1/8 of the available memory: read, it takes about six times as much."""


def _listed(path: str) -> dict[str, NDArray[np.int64]]:
    """Read shard → rows from a CSV file."""
    found: dict[str, list[int]] = {}
    opener = at_most(available_memory() // LIST_SHARE)
    with reading_from(path), open(path, newline="", encoding="utf-8-sig", opener=opener) as file:
        lines = csv.DictReader(file, strict=True)
        try:
            if not {"shard", "row"} <= set(lines.fieldnames or ()):
                raise DataError(
                    f"{path}: begins with {','.join(lines.fieldnames or ())[:60]!r}. Wanted is a "
                    "CSV file whose first line is shard,row."
                )
            for line in lines:
                shard, row = line["shard"], line["row"]
                if not shard or not re.fullmatch("[0-9]{1,18}", row or ""):
                    raise DataError(
                        f"{path}, line {lines.line_num}: shard {shard!r:.99}, row {row!r:.99}. "
                        "Wanted are the name of a shard and a number from 0 on."
                    )
                found.setdefault(shard, []).append(int(row))
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(
                f"{path}: not CSV in UTF-8 ({error}). Its first line is shard,row."
            ) from error
    return {name: np.array(rows, dtype=np.int64) for name, rows in found.items()}
