"""What columns cost: memory and time of a fit of rows with many columns, and its files.

    python benchmarks/wide.py [--rows 200000] [--columns 20000000]

The fit is a process of its own, with a run directory. See README.md here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import measure
from data import generated
from startup import COMMAND

from streamtron.core.config import Machine, Settings
from streamtron.model.linear_model import LinearModel
from streamtron.runs.inspect import describe_shards

FIXED = 450e6
"""Bytes of the peak that are not for columns, at most."""

WANTED = {
    "a column": 40.0,
    "of the plan": 1.25,
    "of processor": 1.6,
    "model": 14.1,
    "state": 24.0,
}
"""Bytes a column at the peak, beyond FIXED; the peak as a part of what is planned; seconds to one
of processor; bytes in a file for each weight that is not 0: of a model a float64, a uint32 and a
float16, the weight, its column and how far the middle of its ball is."""


def fitted(rows: str, columns: int) -> dict[str, float]:
    """A fit by one process: all that is told of it."""
    plan = describe_shards([rows], Settings(), Machine())["plan"]["total"]
    with tempfile.TemporaryDirectory(prefix="streamtron-bench-") as directory:
        model = Path(directory) / "model"
        command = [sys.executable, "-c", COMMAND, "fit", rows, "--model", str(model)]
        start = time.perf_counter()
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
            _, status, used = os.wait4(process.pid, 0)  # of this process, not of all before
            process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        weights = LinearModel.load(model).sparse_weights.nnz
        checkpoint = sum(map(os.path.getsize, Path(directory).glob("model.run/state-*")))
        model_bytes = os.path.getsize(model)
    peak = used.ru_maxrss * 1024.0
    return {
        "peak": peak,
        "weights": weights,
        "seconds": seconds,
        "a column": (peak - FIXED) / columns,
        "of the plan": peak / plan,
        "of processor": seconds / (used.ru_utime + used.ru_stime),
        "model": model_bytes / weights,
        "state": checkpoint / weights,
    }


def show(found: Mapping[str, float], rows: int, columns: int) -> None:
    """The table."""
    lines = [
        [name, f"{number:,.2f}", f"{WANTED[name]:g}" if name in WANTED else ""]
        for name, number in found.items()
    ]
    measure.print_table(f"{rows:,} rows, {columns:,} columns", ["", "found", "at most"], lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=20_000_000)
    parser.add_argument("--results", type=Path, default=measure.RESULTS, help="where they go")
    parser.add_argument("--tiny", action="store_true", help="does it run at all? some seconds")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.columns = 200, 100_000
    machine = measure.machine()
    measure.print_machine(machine)
    with generated(options.rows, options.columns, seed=0) as rows:
        found = fitted(rows, options.columns)
    show(found, options.rows, options.columns)
    results = {"machine": machine, "rows": options.rows, "columns": options.columns, **found}
    print(f"\n{measure.save('wide', results, options.results)}")


if __name__ == "__main__":
    main()
