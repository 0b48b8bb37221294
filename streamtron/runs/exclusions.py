"""Choose the rows that a run forgets: whole shards, by key, by list, or by a new file."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError, SettingsError, StreamtronError
from streamtron.core.files import at_most, reading_from
from streamtron.core.limits import available_memory
from streamtron.data import (
    Cache,
    Reading,
    ShardFile,
    ShardReader,
    ShardRecord,
    ShardSource,
    find_shards,
)
from streamtron.data.deletions import Deletions
from streamtron.data.first_reading import check_unchanged
from streamtron.data.row_search import missing_rows, rows_with
from streamtron.runs.finished import EditableRun

NO_ROWS = np.zeros(0, dtype=np.int64)

OpenReader = Callable[[ShardFile, Reading], ShardReader]


class RowsToDelete(NamedTuple):
    """What is deleted of one shard of the run.

    Parameters
    ----------
    gone : int64, rising: the deleted rows, numbered among the run's rows of the shard.
    file : where the remaining rows are read from now on; None = the whole shard is deleted.
    """

    shard: ShardRecord
    gone: NDArray[np.int64]
    file: ShardFile | None

    @property
    def rows_left(self) -> int:
        """Rows that remain."""
        return 0 if self.file is None else self.shard.rows - len(self.gone)

    def changes(self, target: EditableRun) -> bool:
        """Return whether rows are deleted, or read from another file."""
        return len(self.gone) > 0 or self.file != target.file_of(self.shard)


class Exclusions(NamedTuple):
    """What a call of forget deletes.

    Parameters
    ----------
    shards : one item for every shard of the run, in order.
    missing : named in the call, but not in the run (any more).
    nonzeros_read : to find the rows.
    """

    shards: list[RowsToDelete]
    missing: list[str]
    nonzeros_read: int = 0


def whole_shards(target: EditableRun, names: Sequence[str]) -> Exclusions:
    """Delete the shards of these names."""
    gone, missing = _numbers(target, names)
    return Exclusions(
        [
            RowsToDelete(shard, NO_ROWS, None if k in gone else target.file_of(shard))
            for k, shard in enumerate(target.manifest.shards)
        ],
        missing,
    )


def rows_by_key(
    target: EditableRun, names: Sequence[str], column: str, values: Sequence[str]
) -> Exclusions:
    """Delete the rows whose column equals one of the values, in the shards of these names; in all
    shards if none is named.

    Raises
    ------
    SettingsError, DataError, MachineError : as ``rows_with``.
    """
    shards = target.manifest.shards
    numbers, missing = _numbers(target, names)
    where = numbers if names else range(len(shards))
    found = {k: rows_with(target.file_of(shards[k]), column, values) for k in where}
    deleted = _with_deletions(target, found)
    if where and not any(len(each.gone) for each in deleted):
        missing += [f"{column} = {value}" for value in values]
    return Exclusions(deleted, missing)


def rows_by_list(target: EditableRun, path: str) -> Exclusions:
    """Delete the rows that a CSV file lists; it may list rows that were deleted before.

    Raises
    ------
    DataError : not such a file, a row that a shard does not have.
    MachineError : the file cannot be read.
    """
    found: dict[int, NDArray[np.int64]] = {}
    listed = _listed(path)
    if not listed:
        raise DataError(f"{path}: no row in it. List rows below the line shard,row.")
    missing: list[str] = []
    for name, rows in listed.items():
        numbers, not_there = _numbers(target, [name])
        missing += not_there
        for number in numbers:
            shard = target.manifest.shards[number]
            there = shard.rows + len(_left_out(target.file_of(shard)))
            if max(rows) >= there:
                raise DataError(
                    f"{path}: row {max(rows)} of {name}, which has {there} rows, from 0 on. Check "
                    "the list."
                )
            own = np.array(rows, dtype=np.int64)
            found[number] = np.union1d(found.get(number, NO_ROWS), own)
            gone = np.intersect1d(own, _left_out(target.file_of(shard)))
            if len(gone):
                missing.append(f"{len(gone):,} row(s) of {name}")
    return Exclusions(_with_deletions(target, found), missing)


def replaced(target: EditableRun, names: Sequence[str], path: str, directory: str) -> Exclusions:
    """Delete the rows of a shard that are not in the file that takes its place.

    The file may have the shard's own path. If it has taken the shard's place before, nothing is
    deleted.

    Raises
    ------
    SettingsError : several shards are named, or none.
    DataError : a shard that the run does not have; a file with rows that the shard does not have,
        or that is another shard of the run; the old rows are neither on disk nor in the cache.
    """
    deleted = [RowsToDelete(one, NO_ROWS, target.file_of(one)) for one in target.manifest.shards]
    if len(names) != 1:
        raise SettingsError(
            f"{len(names)} shards, and --replaced-by is about one. Name one shard and one file."
        )
    numbers, missing = _numbers(target, names)
    before = _taken_by(target, path)
    if before is not None and numbers in ([], [before]):
        return Exclusions(deleted, list(names))
    if missing:
        raise DataError(
            f"{names[0]}: none of the {len(target.manifest.shards)} shards of the run. Name one of "
            f"those that streamtron inspect {target.ended.path} lists."
        )
    [number] = numbers
    shard, file = target.manifest.shards[number], _new_file(target, number, path)
    cache = Cache(directory, target.reading)
    left_out = target.file_of(shard).without
    if cache.find_copy(shard.fingerprint, shard.name, left_out) is None:
        try:
            check_unchanged(target.file_of(shard))
        except StreamtronError as error:
            raise DataError(
                f"{shard.name}: its rows as the run has them are neither on disk nor in the cache, "
                f"and {file.name} cannot be matched with them. Forget the shard whole, and add "
                "the file with streamtron update."
            ) from error
    elif file.path == shard.path:
        cache.retain(shard.fingerprint)  # the only copy of these rows until the commit
    with known_rows(target, shard, directory) as old, _open_alone(target, file) as new:
        gone = missing_rows(old.chunks(), new.chunks(), file.name)
        read = old.nonzeros_read + new.nonzeros_read
    deleted[number] = RowsToDelete(shard, gone, file)
    return Exclusions(deleted, [], read)


def _taken_by(target: EditableRun, path: str) -> int | None:
    """Return the number of the shard that the run reads, whole, from this unchanged file."""
    for file in find_shards([path]):
        for number, shard in enumerate(target.manifest.shards):
            if shard.path == file.path and target.file_of(shard).without is None:
                same = target.fingerprints([file])[file.path] == shard.fingerprint
                return number if same else None
    return None


def known_rows(target: EditableRun, shard: ShardRecord, directory: str) -> ShardSource:
    """Open a shard by itself with the rows that the run has: its cached copy, or its file."""
    left_out = target.file_of(shard).without
    copy = Cache(directory, target.reading).find_copy(shard.fingerprint, shard.name, left_out)
    if copy is None:
        return _open_alone(target, target.file_of(shard))
    there = os.stat(copy.path)
    file = ShardFile(copy.path, shard.name, "libsvm", there.st_size, there.st_mtime_ns)
    return _open_alone(target, file, lambda *_: copy)


def _open_alone(
    target: EditableRun, shard: ShardFile, open_reader: OpenReader | None = None
) -> ShardSource:
    """Open one shard by itself, without a cache."""
    return ShardSource(
        [shard], target.reading, cache_dir=None, classes=target.ended.checkpoint.labels,
        open_reader=open_reader,
    )  # fmt: skip


def _numbers(target: EditableRun, names: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the rising numbers of the shards of these names, and the names that no shard has."""
    numbers: set[int] = set()
    missing = []
    for name in names:
        path = os.path.abspath(name)
        found = {
            k
            for k, shard in enumerate(target.manifest.shards)
            if name in (shard.name, shard.path) or path == shard.path
        }
        numbers |= found
        if not found:
            missing.append(name)
    return sorted(numbers), missing


def _left_out(file: ShardFile) -> NDArray[np.int64]:
    """Return the rows that were deleted of a shard before, numbered as in the file."""
    return NO_ROWS if file.without is None else file.without.rows


def _with_deletions(
    target: EditableRun, rows: Mapping[int, NDArray[np.int64]]
) -> list[RowsToDelete]:
    """Delete rows, numbered as in the files, of shards and of their duplicates."""
    shards = target.manifest.shards
    wanted: dict[str, NDArray[np.int64]] = {}
    for number, own in rows.items():
        known = wanted.get(shards[number].fingerprint, NO_ROWS)
        wanted[shards[number].fingerprint] = np.union1d(known, own)
    return [_delete_rows(target, shard, wanted.get(shard.fingerprint, NO_ROWS)) for shard in shards]


def _delete_rows(target: EditableRun, shard: ShardRecord, rows: NDArray[np.int64]) -> RowsToDelete:
    file = target.file_of(shard)
    before = file.without or Deletions(shard.path, shard.fingerprint, NO_ROWS)
    new = np.setdiff1d(rows, before.rows, assume_unique=True)
    if not len(new):
        return RowsToDelete(shard, NO_ROWS, file)
    now = Deletions(shard.path, shard.fingerprint, np.union1d(before.rows, new))
    return RowsToDelete(shard, before.renumbered(new), file._replace(without=now))


LIST_SHARE = 8
"""A list of rows may have 1/8 of the available memory: read, it takes about six times as much."""

_ROW = re.compile("[0-9]{1,18}")


def _listed(path: str) -> dict[str, list[int]]:
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
                if not line["shard"] or not _ROW.fullmatch(line["row"] or ""):
                    raise DataError(
                        f"{path}, line {lines.line_num}: shard {line['shard']!r:.99}, row "
                        f"{line['row']!r:.99}. Wanted are the name of a shard and a number from 0 "
                        "on."
                    )
                found.setdefault(line["shard"], []).append(int(line["row"]))
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(
                f"{path}: not CSV in UTF-8 ({error}). Its first line is shard,row."
            ) from error
    return found


def _new_file(target: EditableRun, number: int, path: str) -> ShardFile:
    """Find the file that takes the place of a shard, and give it a name of its own."""
    others = [shard for k, shard in enumerate(target.manifest.shards) if k != number]
    old, files = target.manifest.shards[number], find_shards([path])
    if len(files) != 1 or files[0].path in {shard.path for shard in others}:
        raise DataError(
            f"{path}: {len(files)} file(s), or another shard of the run. Name the one file that "
            f"takes the place of {old.name}."
        )
    [file] = files
    if file.format != old.format:
        raise DataError(
            f"{file.name}: {file.format}, and {old.name} is {old.format}. Convert it with "
            "streamtron convert."
        )
    if file.path == old.path:
        return file._replace(name=old.name)
    return file._replace(name=file.path) if file.name in {s.name for s in others} else file
