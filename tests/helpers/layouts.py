"""Every layout in which a table may hold features, and tables in files."""

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[int, float]

WIDTH = 6

NAMES = tuple(f"name {j}" for j in range(WIDTH))

PAIR = pa.struct({"index": pa.int16(), "value": pa.float64()})


def parallel(
    rows: list[Row], list_type: Any, key: Any, value: Any, key_of: Any = int
) -> dict[str, pa.Array]:
    keys = pa.array([[key_of(j) for j in row] for row in rows], list_type(key))
    values = pa.array([list(row.values()) for row in rows], list_type(value))
    return {"features": keys, "values": values}


def pairs(rows: list[Row], type_: pa.DataType, key_of: Any = int) -> dict[str, pa.Array]:
    return one(pa.array([[(key_of(j), x) for j, x in row.items()] for row in rows], type_))


def dictionary_lists(rows: list[Row]) -> dict[str, pa.Array]:
    table = parallel(rows, pa.list_, pa.string(), pa.float64(), NAMES.__getitem__)
    names = table["features"]
    table["features"] = pa.ListArray.from_arrays(names.offsets, names.values.dictionary_encode())
    return table


def _vectors(rows: list[Row]) -> list[list[float]]:
    return [[row.get(j, 0.0) for j in range(WIDTH)] for row in rows]


def one(array: pa.Array) -> dict[str, pa.Array]:
    return {"features": array}


NAME = NAMES.__getitem__
LAYOUTS: dict[str, Callable[[list[Row]], dict[str, pa.Array]]] = {
    "lists": lambda rows: parallel(rows, pa.list_, pa.uint8(), pa.float32()),
    "large lists": lambda rows: parallel(rows, pa.large_list, pa.int64(), pa.float64()),
    "pairs": lambda rows: pairs(rows, pa.list_(PAIR)),
    "large list of pairs": lambda rows: pairs(rows, pa.large_list(PAIR)),
    "pairs the other way round": lambda rows: one(
        pa.array(
            [[{"v": value, "i": j} for j, value in row.items()] for row in rows],
            pa.list_(pa.struct({"v": pa.float32(), "i": pa.uint64()})),
        )
    ),
    "map": lambda rows: pairs(rows, pa.map_(pa.int32(), pa.float32())),
    "map of names": lambda rows: pairs(rows, pa.map_(pa.string(), pa.float64()), NAME),
    "lists of names": lambda rows: parallel(rows, pa.list_, pa.large_string(), pa.float64(), NAME),
    "lists of names, dictionary-encoded": dictionary_lists,
    "vectors": lambda rows: one(pa.array(_vectors(rows), pa.list_(pa.float32(), WIDTH))),
    "lists as vectors": lambda rows: one(pa.array(_vectors(rows), pa.list_(pa.float64()))),
    "columns of numbers": lambda rows: {
        f"f{j}": pa.array([row.get(j, 0.0) for row in rows], pa.float64()) for j in range(WIDTH)
    },
    "columns of numbers, dictionary-encoded": lambda rows: {
        f"f{j}": pa.array([row.get(j, 0.0) for row in rows]).dictionary_encode()
        for j in range(WIDTH)
    },
}


def named(columns: dict[str, Any]) -> bool:
    return "features" in columns and "string" in str(columns["features"].type)


def write_table(
    path: Path, table: pa.Table | dict[str, Any] | list[dict[str, Any]], rows: int | None = None
) -> Path:
    """Write a table as Parquet, as an Arrow file or stream, CSV or JSON lines, as its name says.

    ``rows`` are those of a row group or record batch at most.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".csv", ".jsonl"):
        cells = table if isinstance(table, list) else table.to_pylist()
        with path.open("w", encoding="utf-8", newline="") as file:
            (_write_csv if path.suffix == ".csv" else _write_json)(file, cells)
        return path
    if not isinstance(table, pa.Table):
        table = pa.table(table) if isinstance(table, dict) else pa.Table.from_pylist(table)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows, write_page_checksum=True)
        return path
    new = pa.ipc.new_stream if path.suffix == ".arrows" else pa.ipc.new_file
    with pa.OSFile(os.fsencode(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def _write_csv(file: TextIO, rows: list[dict[str, Any]]) -> None:
    writer = csv.writer(file)
    writer.writerow(rows[0])
    for row in rows:
        writer.writerow(str(x).lower() if isinstance(x, bool) else x for x in row.values())


def _write_json(file: TextIO, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        cells = {name: cell for name, cell in row.items() if cell is not None}
        file.write(json.dumps(cells, default=str, ensure_ascii=False) + "\n")
