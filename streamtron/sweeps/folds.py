"""What a sweep fits on and what it measures on: validation shards, or folds of the shards."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.rows import Label
from streamtron.data import Reading, find_shards, open_shards
from streamtron.runs.evaluate import Paths
from streamtron.runs.fit import as_paths, reading_of
from streamtron.runs.learners import several

FOLDS = 5
"""Folds at most, unless it is said how many."""


class Split(NamedTuple):
    """Shards to fit on and shards to measure on."""

    shards: list[str]
    valid: list[str]
    fold: str | None
    """what messages call it; None: all shards, and others to measure on"""


def splits_of(
    shards: Paths, valid: Paths | None, folds: int | None, settings: Settings
) -> list[Split]:
    """The one split that validation shards make, or as many as there are folds.

    Parameters
    ----------
    folds : from 2 to the number of shards; None = ``FOLDS``, or one a shard where there are fewer.
    settings : how the shards are read.

    Raises
    ------
    SettingsError : folds beside validation shards, more of them than shards, or a single shard.
    DataError : no shards; validation shards that begin with other labels, or have another layout.
    """
    paths = as_paths(shards)
    if valid is None:
        return _folds([shard.path for shard in find_shards(paths)], folds)
    if folds is not None:
        raise SettingsError("folds are for a sweep without validation shards: give one.")
    split = Split(paths, as_paths(valid), None)
    _check_alike(split, settings)
    return [split]


def _folds(paths: list[str], folds: int | None) -> list[Split]:
    """Shard k, in their order, is in fold k mod ``folds``: shards that come later move none, and
    shards in the order of their labels or days are in all folds alike."""
    if len(paths) < 2:
        raise SettingsError(
            f"{paths[0]}: a single shard has no folds. Name the rows to measure on with --valid, "
            "or cut it with streamtron convert --rows-per-shard."
        )
    count = min(FOLDS, len(paths)) if folds is None else folds
    if not 2 <= count <= len(paths):
        raise SettingsError(
            f"folds is {count}, and there are {len(paths)} shards: wanted 2 to {len(paths)}."
        )
    return [
        Split(
            [path for at, path in enumerate(paths) if at % count != fold],
            paths[fold::count],
            f"fold {fold + 1} of {count}",
        )
        for fold in range(count)
    ]


def _check_alike(split: Split, settings: Settings) -> None:
    """Refuse validation shards that no model of the others reads, or whose first rows already have
    other labels, where there are two: a block of each is read now, and the whole of them only when
    all candidates are fitted."""
    many = several(settings)
    known, reading = _beginning(split.shards, reading_of(settings), many)
    theirs = replace(reading, strangers="beyond", of_text=reading.layout is None)
    there, _ = _beginning(split.valid, theirs, many)
    others = [label for label in there if label not in known]
    if others and len(known) == 2 and not many:
        raise DataError(
            f"{split.valid[0]}: a row has the label {others[0]!r}, the rows to fit on have "
            f"{known[0]!r} and {known[1]!r}. Name validation shards with the same labels."
        )


def _beginning(paths: list[str], reading: Reading, many: bool) -> tuple[list[Label], Reading]:
    """The first labels, and the reading as the first shard has settled it."""
    with open_shards(
        paths, reading, cache_dir=None, most_labels=None if many else 2, allow_duplicate=True
    ) as source:
        next(source.chunks())
        return list(source.labels), source.reading
