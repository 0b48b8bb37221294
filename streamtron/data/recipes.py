"""Count what a recipe must know of all rows before the first is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache, partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from streamtron.core.config import Settings
from streamtron.core.errors import DataError
from streamtron.core.feature_names import Vocabulary
from streamtron.core.limits import available_processors
from streamtron.core.sealed import canonical
from streamtron.data import ReaderConfig, ShardFile, resolve_reading
from streamtron.data.deletions import in_share
from streamtron.data.prefetch import prefetch
from streamtron.data.readers import open_reader

if TYPE_CHECKING:
    from streamtron.data.formats.layouts import Columns, Spot
    from streamtron.data.formats.recipe import Recipe


def recipe_of(settings: Settings) -> Recipe | None:
    """Return the recipe that settings name by ``text`` and ``columns``; None where they do not."""
    if settings.text is None and settings.columns is None:
        return None
    from streamtron.data.formats.recipe import Recipe

    specs = list(settings.columns or ())
    if settings.text is not None:
        name, comma, options = settings.text.partition(",")
        specs.insert(0, f"{name}:text{comma}{options}")
    return replace(Recipe.of(*specs), label=settings.label, weight=settings.weight)


def recipe_digest(settings: Settings, reading: ReaderConfig) -> str | None:
    """Return what tells a vocabulary from one of other names, and a recipe from one that was
    counted in other rows; None where the settings name neither."""
    if isinstance(reading.names, Vocabulary):
        return reading.names.digest
    if reading.recipe is None or (settings.text is None and settings.columns is None):
        return None
    return xxhash.xxh3_128_hexdigest(canonical(reading.recipe.to_dict()).encode())


def counted_reading(
    shards: Sequence[ShardFile], reading: ReaderConfig, settings: Settings, threads: int | None
) -> tuple[ReaderConfig, int]:
    """Return a reading whose recipe knows what there is to know of these shards, and the bytes that
    were read for it: 0 where it needs nothing. What was counted last is remembered."""
    if reading.recipe is None:
        return reading, 0
    skips = settings.on_bad_shard == "skip"
    return _counted(tuple(shards), reading, skips, threads or available_processors())


@lru_cache(maxsize=2)
def _counted(
    shards: tuple[ShardFile, ...], reading: ReaderConfig, skips: bool, threads: int
) -> tuple[ReaderConfig, int]:
    resolved, total = None, None
    for shard in shards:
        try:
            resolved = resolved or resolve_reading(shard, reading)
            if resolved.recipe is None or resolved.recipe.is_fitted:
                return resolved, 0
            total = reduce(plus, count_columns(shard, resolved, threads, verified=skips), total)
        except DataError:
            if not skips:
                raise
    if resolved is None:  # none can be read, which the reading says
        return reading, 0
    return with_counts(resolved, [total] if total else []), sum(shard.size for shard in shards)


def count_columns(
    shard: ShardFile, reading: ReaderConfig, threads: int = 1, verified: bool = False
) -> Iterator[list[Any]]:
    """Read the columns of a shard for what their recipe must know of the rows in the share that is
    read; yield it, if there are any. ``verified`` : refuse the shard where a reading of its rows
    would, by their labels, weights and other columns too."""
    from streamtron.data.formats.category_column import Categories
    from streamtron.data.formats.tables import TableReader
    from streamtron.data.formats.text_tables import CsvReader

    reader = open_reader(shard, reading, threads)
    assert isinstance(reader, TableReader)  # nothing else has columns
    assert reading.recipe is not None
    counts = partial(_tallies, reading, verified)
    with closing(prefetch(lambda: reader.mapped(counts))) as parts:
        if total := reduce(plus, filter(None, parts), None):
            for k, tally in enumerate(total):
                if isinstance(tally, Categories) and isinstance(reader, CsvReader):
                    total[k] = tally._replace(of_csv=True)
            yield total


def plus(total: list[Any] | None, tallies: list[Any]) -> list[Any]:
    """Add what was counted in some rows to what was in those before; None = in none."""
    if total is None:
        return tallies
    pairs = zip(total, tallies, strict=True)
    return [None if known is None else known.plus(new) for known, new in pairs]


def _tallies(
    reading: ReaderConfig, verified: bool, batch: Any, columns: Columns, spot: Spot
) -> list[Any] | None:
    """Count the rows of a batch that are in the share; None: there are none."""
    assert columns.recipe is not None
    if verified:
        from streamtron.data.formats.table_rows import make_batch

        known = tuple(column for column in columns.recipe.columns if column.is_fitted)
        recipe = replace(columns.recipe, columns=known)
        checked = columns._replace(recipe=recipe, features=tuple(recipe.names))
        make_batch(batch, checked, spot, reading)
    kept = in_share(spot.name, spot.rows_before + np.arange(len(batch)), reading.share)
    if not kept.any():
        return None
    try:
        return columns.recipe.tallies(batch.filter(kept), spot)
    except DataError:
        columns.recipe.tallies(batch, spot)  # says at which of all rows it is
        raise


def with_counts(reading: ReaderConfig, tallies: Iterable[list[Any]]) -> ReaderConfig:
    """Return the reading with what was counted in all shards, in their order."""
    assert reading.recipe is not None
    total = reduce(plus, tallies, None)
    if total is None:
        raise DataError("no rows, from which the features of --columns or --text could be told.")
    return replace(reading, recipe=reading.recipe.fitted(total))
