"""Click logs of Criteo's shape, more than memory holds: the logistic loss to a certified gap.

    python benchmarks/criteo.py [--rows 4584000] [--C 1 10] [--keep DIR]

Start it in a control group to limit its memory. The rows are a tenth of the 45.8 million of
Criteo's challenge of 2014 as the LIBSVM site has them: 39 nonzeros of 1/√39 a row, hashed into 10⁶
columns. 13 of the fields are binned numbers, 26 are categories with the challenge's numbers of
values, drawn by Zipf's law. The logarithm of the odds of a click is the sum of the effects of a
row's columns. See README.md here.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import measure
import numpy as np
from numpy.typing import NDArray

from streamtron import Settings, run
from streamtron.core.limits import available_memory
from streamtron.data.row_batch import RowBatch
from streamtron.data.writers.shards import ShardStyle, new_shards, write_shards

COLUMNS, GROUP_ROWS, SHARD_ROWS = 10**6, 4096, 1 << 18
NUMBERS = [60] * 13
CATEGORIES = [
    1460,
    583,
    10131227,
    2202608,
    305,
    24,
    12517,
    633,
    3,
    93145,
    5683,
    8351593,
    3194,
    27,
    14992,
    5461306,
    10,
    5652,
    2173,
    4,
    7046547,
    18,
    15,
    286181,
    105,
    142572,
]
FIELDS = np.array(NUMBERS + CATEGORIES, dtype=np.float64)
ZIPF, INTERCEPT, DEVIATION = 1.1, -1.3, 1.0
"""The exponent; the mean logarithm of the odds, and its deviation from row to row."""
SCRAMBLE = np.uint64(0x9E3779B97F4A7C15)


def click_logs(rows: int) -> Iterator[RowBatch]:
    """Generate the rows, the same ones in every call."""
    fields = np.arange(1, len(FIELDS) + 1, dtype=np.uint64)
    effects = np.random.default_rng(0).normal(0.0, DEVIATION / len(FIELDS) ** 0.5, COLUMNS)
    for number, first in enumerate(range(0, rows, GROUP_ROWS)):
        random, size = np.random.default_rng([1, number]), min(GROUP_ROWS, rows - first)
        values = _zipf(random.random((size, len(FIELDS)))).astype(np.uint64)
        hashed = (values * np.uint64(len(FIELDS) + 1) + fields) * SCRAMBLE
        columns = ((hashed >> np.uint64(32)) % np.uint64(COLUMNS)).astype(np.uint32)
        columns.sort(axis=1)
        new = np.append(np.ones((size, 1), bool), columns[:, 1:] != columns[:, :-1], axis=1)
        odds = np.exp(INTERCEPT + (effects[columns] * new).sum(axis=1))
        indptr = np.append(0, np.cumsum(new.sum(axis=1)))
        nonzeros = np.full(indptr[-1], len(FIELDS) ** -0.5, dtype=np.float32)
        missed = (random.random(size) > odds / (1.0 + odds)).astype(np.int32)
        yield RowBatch(indptr, columns[new], nonzeros, missed, [1.0, -1.0], None, str)


def _zipf(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each field's value, from 1, by the inverse of a continuous law."""
    power = 1.0 - ZIPF
    return np.floor((1.0 + uniform * ((FIELDS + 1.0) ** power - 1.0)) ** (1.0 / power))


def write(directory: str, rows: int) -> None:
    """Write the rows as Parquet."""
    with new_shards(directory, "parquet", False) as path:
        write_shards(click_logs(rows), path, ShardStyle("parquet"), SHARD_ROWS)


def fit(directory: str, C: float, tol: float) -> dict[str, Any]:
    """Fit in this process: what is told of it."""
    beside = Path(directory).parent
    with tempfile.TemporaryDirectory(prefix="streamtron-bench-", dir=beside) as place:
        settings = Settings(C=C, tol=tol, loss="log_loss")
        before = time.process_time()
        outcome = run(directory, settings, model=f"{place}/model")
        processor = time.process_time() - before
    report, proven = outcome.report, outcome.report["certificate"]
    return {
        "C": C,
        "tol": tol,
        "stop_reason": outcome.stop_reason,
        "readings": report["readings"],
        "seconds": report["seconds"],
        "processor_seconds": processor,
        "gap": proven["relative_duality_gap"],
        "primal": proven["primal_objective"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_584_000)
    parser.add_argument("--C", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--tol", type=float, nargs="+", default=[1e-3])
    parser.add_argument("--keep", help="directory of the rows, which are made once")
    parser.add_argument("--results", type=Path, default=measure.RESULTS, help="where they go")
    parser.add_argument("--tiny", action="store_true", help="does it run at all? some seconds")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.C = 500, [1.0]
    machine = measure.machine()
    measure.print_machine(machine)
    fits = []
    with ExitStack() as stack:
        keep = options.keep or stack.enter_context(tempfile.TemporaryDirectory())
        rows = Path(keep) / f"clicks-{options.rows}"
        if not rows.exists():
            write(str(rows), options.rows)
        for C in options.C:
            for tol in options.tol:
                report, peak = measure.in_fresh_process(fit, str(rows), C, tol)
                fits.append({**report, "peak_bytes": peak})
    lines = [
        [
            f"{one['C']:g}",
            f"{one['tol']:g}",
            f"{one['readings']:g}",
            f"{one['seconds']:.1f}",
            f"{one['processor_seconds']:.1f}",
            f"{one['peak_bytes'] / 1e6:.0f}",
            f"{one['gap']:.1e}",
            one["stop_reason"],
        ]
        for one in fits
    ]
    limit = available_memory()
    title = f"{options.rows:,} rows, {COLUMNS:,} columns, memory {limit / 1e6:,.0f} MB"
    head = ["C", "tol", "readings", "seconds", "of processor", "peak MB", "gap", "ending"]
    measure.print_table(title, head, lines)
    results = {"machine": machine, "rows": options.rows, "memory": limit, "fits": fits}
    print(f"\n{measure.save('criteo', results, options.results)}")


if __name__ == "__main__":
    main()
