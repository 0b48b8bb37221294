"""Find rows by the value of a column, or by their absence in a file written again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.rows import Chunk
from streamtron.data.discover import ShardFile
from streamtron.data.first_reading import check_unchanged
from streamtron.data.formats.layouts import decoded
from streamtron.data.row_batch import Reading
from streamtron.data.source import table_reader


def rows_with(shard: ShardFile, column: str, values: Sequence[str]) -> NDArray[np.int64]:
    """Return the numbers of the rows of a table, rising, whose column equals one of the values.

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
    found = [np.zeros(0, dtype=np.int64)]
    for array in table_reader(shard, Reading()).column(column):
        cells = decoded(array)
        found.append(first + np.flatnonzero(_hits(cells, values, shard, column)))
        first += len(array)
    check_unchanged(shard)
    return np.concatenate(found)


def _hits(
    cells: pa.Array, values: Sequence[str], shard: ShardFile, column: str
) -> NDArray[np.bool_]:
    """Tell which cells are one of the values."""
    try:
        wanted = pa.array(values, pa.string()).cast(cells.type)
        hits: NDArray[np.bool_] = pc.is_in(cells, value_set=wanted).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise SettingsError(
            f"{shard.name}: column {column!r} holds {cells.type}, and --value is none ({reason}). "
            "Give a value as the column has it, or name the rows with --rows FILE."
        ) from error
    return hits


def missing_rows(old: Iterable[Chunk], new: Iterable[Chunk], name: str) -> NDArray[np.int64]:
    """Return the numbers, rising, of the rows of a shard that are not in the file that takes its
    place.

    Both come as chunks, in order, with codes of the same labels; ``name`` is the file's. Rows are
    matched in their order, by all that is in them: columns, values, labels, weight.
    """
    gone: list[int] = []
    ahead = enumerate(_contents(old))
    for at, row in enumerate(_contents(new)):
        for number, other in ahead:
            if other == row:
                break
            gone.append(number)
        else:
            raise DataError(
                f"{name}, row {at} (from 0): not among the rows that the run has of the shard it "
                "is to replace, or not in their order. Write the shard without the rows to forget, "
                "and nothing else changed."
            )
    gone += (number for number, _ in ahead)
    return np.array(gone, dtype=np.int64)


def _contents(chunks: Iterable[Chunk]) -> Iterator[tuple[bytes, bytes, bytes, float]]:
    """Yield what is in every row: equal where rows are."""
    for chunk in chunks:
        indptr, indices, values = chunk.rows
        codes, offsets = chunk.codes, chunk.code_offsets
        for k in range(len(chunk)):
            stored = slice(indptr[k], indptr[k + 1])
            labels = codes[k : k + 1] if offsets is None else codes[offsets[k] : offsets[k + 1]]
            weight = 1.0 if chunk.weights is None else float(chunk.weights[k])
            yield indices[stored].tobytes(), values[stored].tobytes(), labels.tobytes(), weight
