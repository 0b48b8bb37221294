"""Carry columns of a table along with what is made of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from streamtron.core.errors import DataError, SettingsError
from streamtron.data.discover import ShardFile
from streamtron.data.formats.category_column import CategoryColumn
from streamtron.data.formats.recipe import Recipe
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.readers import open_reader
from streamtron.data.writers.predictions import PREDICTED


def kept_columns(shard: ShardFile, names: Sequence[str]) -> Callable[[int], dict[str, pa.Array]]:
    """Return a function that gives the next so many cells of columns of a table, by name. Columns
    that predictions have, and shards without names, are refused."""
    clash = [name for name in names if name in (*PREDICTED, *names[: names.index(name)])]
    if clash or (names and shard.format in ("libsvm", "vw")):
        reason = "the output has that name already" if clash else "the rows have no such columns"
        raise SettingsError(
            f"{shard.name}: {(clash or names)[0]!r} cannot be kept: {reason}. Keep other columns "
            "of tables."
        )
    recipes = {name: Recipe((CategoryColumn(name),)) for name in names}  # as a CSV file has them
    columns = {
        name: open_reader(shard, ReaderConfig(recipe=recipe)).column(name)
        for name, recipe in recipes.items()
    }
    held: dict[str, list[pa.Array]] = {name: [] for name in names}

    def following(rows: int) -> dict[str, pa.Array]:
        cells = {}
        for name, arrays in columns.items():
            pieces = held[name]
            while sum(map(len, pieces)) < rows:
                pieces.append(next(arrays))
                if (later := pieces[-1].type) != (known := pieces[0].type):
                    raise DataError(
                        f"{shard.name}: {name!r} holds {known} at first and {later} later, and "
                        "cannot be kept. Write the column alike in all rows."
                    )
            joined = pa.concat_arrays(pieces)
            cells[name], held[name] = joined[:rows], [joined[rows:]]
        return cells

    return following
