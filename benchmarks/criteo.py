"""Click logs of Criteo's shape, more than memory holds: the logistic loss to a certified gap.

    python benchmarks/criteo.py [--rows 4584000] [--C 1 10] [--keep DIR]

Start it in a control group to limit its memory. The rows are a tenth of the 45.8 million of
Criteo's challenge of 2014 as the LIBSVM site has them: 39 nonzeros of 1/√39 a row, hashed into 10⁶
columns: those of ``streamtron generate --kind clicks``. See README.md here.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import measure
import numpy as np

from streamtron import Settings, run
from streamtron.core.limits import available_memory
from streamtron.data.row_batch import RowBatch, take_rows
from streamtron.data.writers.corpus import FIELDS, GROUP_ROWS, INTERCEPT, corpus_rows
from streamtron.data.writers.shards import ShardStyle, new_shards, write_shards

COLUMNS, SHARD_ROWS = 10**6, 1 << 18
DAYS, DRIFT = 30, 1.0
"""Where odds drift: days, and by how much the logarithm of the odds rises over all of them, while
as much of other effects is added to those of the columns."""


def click_logs(rows: int, skip: int = 0, drift: str | None = None) -> Iterator[RowBatch]:
    """Generate the rows, the same ones in every call, after those of ``skip`` groups.

    With ``drift`` a row is of one of ``DAYS``, and its odds are that day's: "sorted" by day, or
    "shuffled".
    """
    batches = corpus_rows(rows, COLUMNS, 0, skip * GROUP_ROWS, "clicks")
    if drift is None:
        yield from batches
        return
    effects, later = np.random.default_rng(0).normal(0.0, len(FIELDS) ** -0.5, (2, COLUMNS))
    for number, batch in enumerate(batches):
        size, starts = len(batch.codes), batch.indptr[:-1]
        day = np.full(size, DAYS * number * GROUP_ROWS // rows)
        if drift == "shuffled":
            day = np.random.default_rng([2, number]).integers(0, DAYS, size)
        odds = np.exp(
            INTERCEPT
            + np.add.reduceat(effects[batch.indices], starts)
            + day / DAYS * (DRIFT + np.add.reduceat(later[batch.indices], starts))
        )
        drawn = np.random.default_rng([1, number]).random(GROUP_ROWS * (len(FIELDS) + 1))
        missed = drawn[-GROUP_ROWS:][:size] > odds / (1.0 + odds)
        yield batch._replace(codes=missed.astype(np.int32))


def by_label(rows: int) -> Iterator[RowBatch]:
    """The same rows, sorted by label."""
    for code in (0, 1):
        for batch in click_logs(rows):
            yield take_rows(batch, np.flatnonzero(batch.codes == code))


def write(directory: str, batches: Iterable[RowBatch], shard_rows: int = SHARD_ROWS) -> None:
    """Write rows as Parquet."""
    with new_shards(directory, overwrite=False) as place:
        write_shards(batches, place, ShardStyle("parquet"), shard_rows)


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
            write(str(rows), click_logs(options.rows))
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
