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
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import measure

from streamtron import Settings, run
from streamtron.core.limits import available_memory
from streamtron.data.writers.corpus import corpus_rows
from streamtron.data.writers.shards import ShardStyle, new_shards, write_shards

COLUMNS, SHARD_ROWS = 10**6, 1 << 18


def write(directory: str, rows: int) -> None:
    """Write the rows as Parquet."""
    batches = corpus_rows(rows, COLUMNS, seed=0, kind="clicks")
    with new_shards(directory, "parquet", False) as path:
        write_shards(batches, path, ShardStyle("parquet"), SHARD_ROWS)


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
