"""Shards whose rows belong to users, and lists of rows to delete."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import sparse

from tests.helpers.svm_text import svm_lines

USERS = 20


def write_rows(path: Path, rows: Any, labels: Sequence[Any], users: Sequence[str]) -> None:
    """A shard of sparse rows: text, or a table that knows whose each row is."""
    if path.suffix == ".svm":
        path.write_text("".join(svm_lines(rows.toarray(), labels)))
        return
    lists = [pa.array(np.split(part, rows.indptr[1:-1])) for part in (1 + rows.indices, rows.data)]
    table = {"indices": lists[0], "values": lists[1], "y": labels, "user": users}
    pq.write_table(pa.table(table), path, row_group_size=70)


class Corpus:
    """Four shards of 200 noisy rows, in both formats; every row belongs to one of USERS."""

    def __init__(self, directory: Path) -> None:
        rng = np.random.default_rng(5)
        self.rows = sparse.random(800, 60, 0.1, "csr", np.float32, rng)
        noise = rng.normal(scale=0.5, size=800)
        self.truth = rng.normal(size=60)
        self.labels = np.where(self.rows @ self.truth + noise > 0, 1.0, -1.0)
        self.users = np.array([f"user-{k}" for k in rng.integers(USERS, size=800)])
        self.directory = directory
        for suffix in ("svm", "parquet"):
            for k in range(4):
                self.write(directory / f"{k}.{suffix}", np.arange(200 * k, 200 * (k + 1)))

    def write(self, path: Path, chosen: NDArray[np.int64]) -> Path:
        write_rows(path, self.rows[chosen], self.labels[chosen], self.users[chosen].tolist())
        return path

    def shards(self, suffix: str, place: Path | None = None) -> list[Path]:
        shards = sorted(self.directory.glob(f"*.{suffix}"))
        return shards if place is None else [Path(shutil.copy2(path, place)) for path in shards]


def list_rows(path: Path, rows: dict[str, Sequence[int]]) -> Path:
    lines = [f"{shard},{row}" for shard, numbers in rows.items() for row in numbers]
    path.write_text("\n".join(["shard,row", *lines]) + "\n")
    return path
