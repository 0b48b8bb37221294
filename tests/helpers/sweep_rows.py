"""The table of a sweep, without what depends on machine and time."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from streamtron.cluster.client import Workers
from streamtron.cluster.sweep import sweep_executor
from streamtron.sweeps.sweep import Sweep
from streamtron.sweeps.trial import COLUMNS

LAST_FOUR = ("seconds", "worker", "started", "finished")

Rows = list[dict[str, Any]]


def by(workers: Workers) -> dict[str, Any]:
    """Arguments of a sweep on workers."""
    return {"executor": sweep_executor(workers), "tasks": workers.threads}


def lasting(table: Sweep | Rows, *names: str) -> Rows:
    """The rows without their last four columns, which are about the machine, and these."""
    rows = table.rows() if isinstance(table, Sweep) else table
    left_out = {*LAST_FOUR, *names}
    return [{name: value for name, value in row.items() if name not in left_out} for row in rows]


def table(path: Path) -> Rows:
    """The rows of a table file, values of the types that the columns have."""
    if path.suffix == ".parquet":
        rows: Rows = pq.read_table(path).to_pylist()
        return rows
    with path.open(newline="") as file:
        return [
            {name: _read(name, text) for name, text in row.items()} for row in csv.DictReader(file)
        ]


def _read(name: str, text: str) -> Any:
    kind = COLUMNS[name]
    return None if text == "" else text == "True" if kind is bool else kind(text)


def run_files(model: Path) -> list[bytes]:
    """What a fit leaves behind, but for the cache."""
    paths = (model, Path(f"{model}.run/witness"), Path(f"{model}.run/manifest.json"))
    return [path.read_bytes() for path in paths]
