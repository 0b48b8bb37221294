"""What a sweep fits on and measures on: validation shards, or folds of the shards."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.kinds import whole
from streamtron.core.rows import Label, are_targets
from streamtron.data import ReaderConfig, ShardRows, find_shards, no_rows
from streamtron.data.labels import MOST_NUMBERS, LabelTable
from streamtron.data.reader_config import ALL
from streamtron.data.readers import resolve_reading
from streamtron.data.sample import with_transformer
from streamtron.runs.inputs import Paths, as_paths, reading_from_settings

_log = logging.getLogger("streamtron")

FOLDS = 5
"""Default number of folds; fewer if there are fewer shards."""


class Fold(NamedTuple):
    """Shards to fit on, and shards to measure on, of whose rows in a ``share``; no name if these
    are for validation alone."""

    shards: list[str]
    valid: list[str]
    name: str | None
    share: tuple[float, float] = ALL


def folds_of(
    shards: Paths,
    valid: Paths | None,
    count: int | None,
    settings: Settings,
    share: float | None = None,
) -> list[Fold]:
    """Return the one fold that validation shards make, or a ``share`` of the rows that the settings
    hold out, or ``count`` folds of the shards.

    A ``count`` of None is ``FOLDS``, or the number of shards if that is smaller. Shard k is held
    out in fold k mod ``count``: later shards leave the folds of earlier ones as they were, and
    shards in the order of their labels or days are spread over all folds.
    """
    paths = as_paths(shards)
    if valid is not None:
        if count is not None:
            raise SettingsError("folds are for a sweep without validation shards: give one.")
        if share is not None:
            return [Fold(paths, paths, None, (0.0, share))]
        fold = Fold(paths, as_paths(valid), None)
        _check_alike(fold, settings)
        return [fold]
    paths = [shard.path for shard in find_shards(paths)]
    if len(paths) < 2:
        raise SettingsError(
            f"{paths[0]}: a single shard has no folds. Name the rows to measure on with --valid, "
            "as in --valid 20%."
        )
    folds = min(FOLDS, len(paths)) if count is None else whole(count, "folds")
    if not 2 <= folds <= len(paths):
        raise SettingsError(
            f"folds is {folds}, and there are {len(paths)} shards: expected 2 to {len(paths)}."
        )
    return [
        Fold(
            [path for number, path in enumerate(paths) if number % folds != fold],
            paths[fold::folds],
            f"fold {fold + 1} of {folds}",
        )
        for fold in range(folds)
    ]


def _check_alike(fold: Fold, settings: Settings) -> None:
    """Refuse validation shards that the models will not read, or with other labels.

    Only the first block of each is read now; the rest is checked when all candidates are fitted.
    """
    many = settings.many_labels
    known, reader = _labels(fold.shards, settings, most=None if many else 2)
    reader = replace(reader, unknown_features="out_of_range", of_text=reader.layout is None)
    labels, _ = _beginning(fold.valid, reader, None if many else 2)
    strange = [label for label in labels if label not in known]
    if strange and len(known) == 2 and not many:
        raise DataError(
            f"{fold.valid[0]}: a row has the label {strange[0]!r}, the rows to fit on have "
            f"{known[0]!r} and {known[1]!r}. Name validation shards with the same labels."
        )


def with_classes(settings: Settings, paths: list[str]) -> Settings:
    """Return settings that take any number of classes, as a fit does, where the first block has
    more than two; say it."""
    if settings.regression or settings.many_labels:
        return settings
    try:
        labels, _ = _labels(paths, settings, most=MOST_NUMBERS)
    except DataError:  # which says more where all shards are read
        return settings
    if len(labels) <= 2:
        return settings
    how = "one softmax" if settings.softmax else "each is trained against the rest"
    _log.warning(f"More than two classes: {how}, as with --multiclass.")
    return settings.but(multiclass=True)


def _labels(
    paths: list[str], settings: Settings, most: int | None
) -> tuple[list[Label], ReaderConfig]:
    reader = reading_from_settings(settings)
    reader, _ = with_transformer(find_shards(paths), reader, settings)
    return _beginning(paths, reader, most)


def _beginning(
    paths: list[str], reader: ReaderConfig, most: int | None
) -> tuple[list[Label], ReaderConfig]:
    """Return the labels of the first block, and the reader as the first shard decides it."""
    shards = find_shards(paths)
    reader = resolve_reading(shards[0], reader)
    for shard in shards:
        with ShardRows(shard, reader, LabelTable(most)) as rows:
            for chunk in rows.chunks():
                codes = [] if are_targets(chunk.codes) else np.unique(chunk.codes).tolist()
                return [rows.labels[code] for code in codes if code >= 0], reader
    raise no_rows(shards)
