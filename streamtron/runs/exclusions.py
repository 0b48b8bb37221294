"""Which rows leave a run that is to forget: whole shards, rows by a key or by a list, or the rows
that a shard was written without."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError, SettingsError, StreamtronError
from streamtron.core.files import at_most
from streamtron.core.limits import available_memory
from streamtron.core.sealed import reading_from
from streamtron.data import Cache, ShardFile, ShardRecord, ShardSource, find_shards
from streamtron.data.deletions import Deletions
from streamtron.data.first_reading import check_unchanged
from streamtron.data.row_search import missing_rows, rows_with
from streamtron.runs.update import Kept

NOBODY = np.zeros(0, dtype=np.int64)


class Leaving(NamedTuple):
    """What a shard of the run loses.

    Parameters
    ----------
    shard : as the run has it.
    gone : int64, rising: the rows that leave, numbered among those that the run has of the shard.
    file : where the rest of it is read from now on; None = the whole shard leaves.
    """

    shard: ShardRecord
    gone: NDArray[np.int64]
    file: ShardFile | None

    @property
    def rows_left(self) -> int:
        """Rows that stay."""
        return 0 if self.file is None else self.shard.rows - len(self.gone)

    def changed(self, kept: Kept) -> bool:
        """Whether rows leave, or others than the run's file are read from now on."""
        return len(self.gone) > 0 or self.file != kept.file_of(self.shard)


class Choice(NamedTuple):
    """What a run is asked to forget.

    Parameters
    ----------
    leaving : of every shard of the run, in their order.
    missing : what was named, and is not in the run (any more).
    nonzeros_read : to tell which rows these are.
    """

    leaving: list[Leaving]
    missing: list[str]
    nonzeros_read: int = 0


def whole_shards(kept: Kept, names: Sequence[str]) -> Choice:
    """The shards of these names leave."""
    gone, missing = _numbers(kept, names)
    return Choice(
        [
            Leaving(shard, NOBODY, None if k in gone else kept.file_of(shard))
            for k, shard in enumerate(kept.manifest.shards)
        ],
        missing,
    )


def rows_by_key(kept: Kept, names: Sequence[str], column: str, values: Sequence[str]) -> Choice:
    """The rows leave whose column equals one of the values, in the shards of these names; in all
    shards if none is named.

    Raises
    ------
    SettingsError, DataError, MachineError : as ``rows_with``.
    """
    shards = kept.manifest.shards
    numbers, missing = _numbers(kept, names)
    where = numbers if names else range(len(shards))
    found = {k: rows_with(kept.file_of(shards[k]), column, values) for k in where}
    leaving = _buried(kept, found)
    if where and not any(len(each.gone) for each in leaving):
        missing += [f"{column} = {value}" for value in values]
    return Choice(leaving, missing)


def rows_by_list(kept: Kept, path: str) -> Choice:
    """The rows leave that a CSV file lists; those that left before may be listed again.

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
        numbers, not_there = _numbers(kept, [name])
        missing += not_there
        for number in numbers:
            shard = kept.manifest.shards[number]
            there = shard.rows + len(_left_out(kept.file_of(shard)))
            if max(rows) >= there:
                raise DataError(
                    f"{path}: row {max(rows)} of {name}, which has {there} rows, from 0 on. Check "
                    "the list."
                )
            own = np.array(rows, dtype=np.int64)
            found[number] = np.union1d(found.get(number, NOBODY), own)
            gone = np.intersect1d(own, _left_out(kept.file_of(shard)))
            if len(gone):
                missing.append(f"{len(gone):,} row(s) of {name}")
    return Choice(_buried(kept, found), missing)


def replaced(kept: Kept, names: Sequence[str], path: str, directory: str) -> Choice:
    """The rows of a shard leave that are not in the file that takes its place, which may have its
    very path. Where it has taken its place before, nothing leaves.

    Raises
    ------
    SettingsError : not one shard is named.
    DataError : a shard that the run does not have; the file has rows that the shard has not, or is
        another shard of the run; the rows as they were are neither on disk nor in the cache.
    """
    leaving = [Leaving(one, NOBODY, kept.file_of(one)) for one in kept.manifest.shards]
    if len(names) != 1:
        raise SettingsError(
            f"{len(names)} shards, and --replaced-by is about one. Name one shard and one file."
        )
    numbers, missing = _numbers(kept, names)
    before = _taken_by(kept, path)
    if before is not None and numbers in ([], [before]):
        return Choice(leaving, list(names))
    if missing:
        raise DataError(
            f"{names[0]}: none of the {len(kept.manifest.shards)} shards of the run. Name one of "
            f"those that streamtron inspect {kept.ended.path} lists."
        )
    [number] = numbers
    shard, file = kept.manifest.shards[number], _new_file(kept, number, path)
    cache = Cache(directory, kept.reading)
    left_out = kept.file_of(shard).without
    if cache.copy_of(shard.fingerprint, shard.name, left_out) is None:
        try:
            check_unchanged(kept.file_of(shard))
        except StreamtronError as error:
            raise DataError(
                f"{shard.name}: its rows as the run has them are neither on disk nor in the cache, "
                f"and {file.name} cannot be matched with them. Forget the shard whole, and add "
                "the file with streamtron update."
            ) from error
    elif file.path == shard.path:
        cache.hold(shard.fingerprint)  # there is no other copy of these rows until all is done
    with still_there(kept, shard, directory) as old, kept.alone(file) as new:
        gone = missing_rows(old.chunks(), new.chunks(), file.name)
        read = old.nonzeros_read + new.nonzeros_read
    leaving[number] = Leaving(shard, gone, file)
    return Choice(leaving, [], read)


def _taken_by(kept: Kept, path: str) -> int | None:
    """The number of the shard that the run reads from a file whole, as the file is now."""
    for file in find_shards([path]):
        for number, shard in enumerate(kept.manifest.shards):
            if shard.path == file.path and kept.file_of(shard).without is None:
                same = kept.fingerprints([file])[file.path] == shard.fingerprint
                return number if same else None
    return None


def still_there(kept: Kept, shard: ShardRecord, directory: str) -> ShardSource:
    """A shard by itself, as the run has it: its copy in the cache, or its file."""
    left_out = kept.file_of(shard).without
    copy = Cache(directory, kept.reading).copy_of(shard.fingerprint, shard.name, left_out)
    if copy is None:
        return kept.alone(kept.file_of(shard))
    there = os.stat(copy.path)
    file = ShardFile(copy.path, shard.name, "libsvm", there.st_size, there.st_mtime_ns)
    return kept.alone(file, lambda *_: copy)


def _numbers(kept: Kept, names: Sequence[str]) -> tuple[list[int], list[str]]:
    """The numbers of the shards of these names, rising; and the names that no shard has."""
    numbers: set[int] = set()
    missing = []
    for name in names:
        path = os.path.abspath(name)
        found = {
            k
            for k, shard in enumerate(kept.manifest.shards)
            if name in (shard.name, shard.path) or path == shard.path
        }
        numbers |= found
        if not found:
            missing.append(name)
    return sorted(numbers), missing


def _left_out(file: ShardFile) -> NDArray[np.int64]:
    """The rows that the run has forgotten of a shard, numbered as in the file."""
    return NOBODY if file.without is None else file.without.rows


def _buried(kept: Kept, rows: Mapping[int, NDArray[np.int64]]) -> list[Leaving]:
    """Rows of files get deletions, as do those of other shards with the same bytes."""
    shards = kept.manifest.shards
    wanted: dict[str, NDArray[np.int64]] = {}
    for number, own in rows.items():
        known = wanted.get(shards[number].fingerprint, NOBODY)
        wanted[shards[number].fingerprint] = np.union1d(known, own)
    return [_one_buried(kept, shard, wanted.get(shard.fingerprint, NOBODY)) for shard in shards]


def _one_buried(kept: Kept, shard: ShardRecord, rows: NDArray[np.int64]) -> Leaving:
    file = kept.file_of(shard)
    before = file.without or Deletions(shard.path, shard.fingerprint, NOBODY)
    new = np.setdiff1d(rows, before.rows, assume_unique=True)
    if not len(new):
        return Leaving(shard, NOBODY, file)
    now = Deletions(shard.path, shard.fingerprint, np.union1d(before.rows, new))
    return Leaving(shard, before.numbers_left(new), file._replace(without=now))


LIST_SHARE = 8
"""A list of rows may take this part of the memory that there is: read, it takes about six times its
length."""

_ROW = re.compile("[0-9]{1,18}")


def _listed(path: str) -> dict[str, list[int]]:
    """The rows of every shard that a CSV file names."""
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


def _new_file(kept: Kept, number: int, path: str) -> ShardFile:
    """The file that takes the place of a shard, under a name that no other shard has."""
    others = [shard for k, shard in enumerate(kept.manifest.shards) if k != number]
    old, files = kept.manifest.shards[number], find_shards([path])
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
