"""Rows of many classes for a sweep, and its table without what depends on machine and time."""

import csv
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from streamtron.cluster.client import Workers
from streamtron.cluster.sweep import SweepExecutor
from streamtron.core.executor import serial
from streamtron.sweeps.sweep import Sweep
from streamtron.sweeps.trial import COLUMNS, Trial
from tests.helpers.runs import kept, manifest_of

LAST_TWO = ("seconds", "worker")

Rows = list[dict[str, Any]]


NAMES, WIDTH = ("ant", "bee", "cow", "dog"), 30


def write_shard(path: Path, labels: Iterable[Sequence[str]], chance: random.Random) -> None:
    """Rows of five columns, and mostly of one more for each of their labels, which are NAMES."""
    lines = []
    for own in labels:
        there = {1 + NAMES.index(name) for name in own if chance.random() < 0.7}
        columns = sorted(there | set(chance.sample(range(1, WIDTH + 1), 5)))
        lines.append(" ".join([",".join(own), *(f"{column}:1" for column in columns)]) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))


def by(workers: Workers) -> dict[str, Any]:
    """Arguments of a sweep on workers."""
    return {"executor": SweepExecutor(workers)}


def as_if(change: Callable[[Trial], dict[str, Any]]) -> Callable[..., Iterator[Trial]]:
    """An executor after which some of every trial is something else."""
    return lambda *given: (replace(trial, **change(trial)) for trial in serial(*given))


def lasting(table: Sweep | Rows, *names: str) -> Rows:
    """The rows without their last two columns, which are about the machine, and these."""
    rows = table.rows() if isinstance(table, Sweep) else table
    left_out = {*LAST_TWO, *names}
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


def run_files(model: Path) -> list[Any]:
    """What a fit leaves behind, but for the cache."""
    return [*kept(model.parent, model.name), manifest_of(f"{model}.run")]
