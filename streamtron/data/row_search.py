"""Find rows by the value of a column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamtron.core.errors import SettingsError
from streamtron.data.discover import ShardFile
from streamtron.data.first_reading import check_unchanged
from streamtron.data.formats.layouts import decoded
from streamtron.data.row_batch import ReaderConfig
from streamtron.data.source import table_reader


def rows_with(
    shard: ShardFile, column: str, values: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the rows of a table, rising, whose column equals one of the values, and
    which of the values that is.

    Only that column is read, whether or not the run reads it. The values are text, and are turned
    into what it holds; a null equals nothing. A shard that is not as it was read is refused.
    """
    if shard.format == "libsvm":
        raise SettingsError(
            f"{shard.name}: libsvm text has no column {column!r} to look in. Name the rows with "
            "--rows FILE."
        )
    check_unchanged(shard)
    first = 0
    found = [np.zeros((2, 0), dtype=np.int64)]
    for array in table_reader(shard, ReaderConfig()).column(column):
        cells = decoded(array)
        try:
            wanted = pa.array(values, pa.string()).cast(cells.type)
            which = pc.fill_null(pc.index_in(cells, value_set=wanted), -1).to_numpy()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise SettingsError(
                f"{shard.name}: column {column!r} holds {cells.type}, and --value is none "
                f"({reason}). Give a value as the column has it, or name the rows with --rows FILE."
            ) from error
        hits = np.flatnonzero(which >= 0)
        found.append(np.array([first + hits, which[hits]]))
        first += len(array)
    check_unchanged(shard)
    rows, places = np.concatenate(found, axis=1)
    return rows, places
