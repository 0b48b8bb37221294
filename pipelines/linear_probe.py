"""Linear probes on embeddings: what they know of a class and of a number, proven to be the optimum.

    python pipelines/linear_probe.py EMBEDDINGS HELD_OUT --class COLUMN --number COLUMN --to OUT
    python pipelines/linear_probe.py --tiny --to OUT

EMBEDDINGS and HELD_OUT are Parquet files, or directories of them, with a column ``embedding``, a
list of 768 (or any number of) float32, a column of classes and one of numbers. With ``--tiny`` the
embeddings are made: ten topics in 768 columns, and a number that some of the columns tell.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import streamtron

COLUMNS, TOPICS = 768, 10


def write_tiny(place: Path, rows: int, shards: int, seed: int) -> Path:
    """Write shards of made embeddings, of length about 1; the seed of the topics is fixed."""
    centers, says = np.random.default_rng(0).normal(size=(2, TOPICS, COLUMNS)) / COLUMNS**0.5
    place.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        rng = np.random.default_rng([seed, shard])
        topics = rng.integers(TOPICS, size=rows)
        noise = rng.normal(size=(rows, COLUMNS)) / COLUMNS**0.5
        embeddings = (0.15 * centers[topics] + noise).astype(np.float32)
        table = pa.table(
            {
                "embedding": pa.FixedSizeListArray.from_arrays(embeddings.ravel(), COLUMNS),
                "topic": [f"topic {topic}" for topic in topics],
                "length": 100.0 + 100.0 * embeddings @ says[0] + rng.normal(size=rows),
            }
        )
        pq.write_table(table, place / f"part-{shard}.parquet")
    return place


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("embeddings", nargs="?", type=Path)
    parser.add_argument("held_out", nargs="?", type=Path)
    parser.add_argument("--class", dest="topic", default="topic")
    parser.add_argument("--number", default="length")
    parser.add_argument("--C", default="1,10,100")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if given.tiny:
        given.embeddings = write_tiny(given.to / "embeddings", rows=400, shards=3, seed=1)
        given.held_out = write_tiny(given.to / "held-out", rows=400, shards=1, seed=2)
    elif given.held_out is None:
        parser.error("give EMBEDDINGS and HELD_OUT, or --tiny")
    probes = {
        given.topic: ("accuracy", {"loss": "log_loss", "multiclass": True}),
        given.number: ("r2", {"loss": "squared_error"}),
    }
    try:
        for label, (metric, how) in probes.items():
            result = streamtron.sweep(
                given.embeddings,
                valid=given.held_out,
                C=given.C,
                metric=metric,
                tol=1e-3,
                label=label,
                features="embedding",
                model=given.to / f"{label}.model",
                overwrite=True,
                **how,
            )
            gap = result.outcome.model.certificate["relative_duality_gap"]
            measured = result.best.metrics[metric]
            print(
                f"{label}: {metric} {measured:.4f} on rows held out at C = "
                f"{result.best.settings.C:g}, relative duality gap {gap:.2e}"
            )
    except streamtron.errors.StreamtronError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
