"""A small table, held in memory, as a Parquet file."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


def parquet_table(columns: Mapping[str, type], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the bytes of a Parquet file with these columns, None as null, with page checksums.

    Parameters
    ----------
    columns : name → int, float, str or bool, in their order.
    rows : a value or None for every column.

    Examples
    --------
    >>> data = parquet_table({"C": float, "readings": int}, [{"C": None, "readings": 3}])
    >>> pq.read_table(io.BytesIO(data)).to_pydict()
    {'C': [None], 'readings': [3]}
    """
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
    table = pa.table({name: [row[name] for row in rows] for name in columns}, schema=schema)
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", write_page_checksum=True)
    return file.getvalue()
