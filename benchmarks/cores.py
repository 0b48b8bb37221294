"""What threads save in one model: fits with 1 thread and with all, alternating.

    python benchmarks/cores.py rcv1.xz --generate 160000 --kind text dense --C 0.5 50

For every data set, loss and C: median seconds of the estimator with either, their ratio, the
ratio's spread, and what the ratio would be with more threads if all of a fit that is not shared
stays as it is (Amdahl). See README.md here.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import measure
import numpy as np
from data import add_data_arguments, data_sets, load, need_data
from problem import Data

from streamtron import StreamtronClassifier

MORE = (8, 16, 64)


def fit(data: Data, loss: str, C: float, threads: int) -> tuple[float, bytes]:
    """Seconds of a fit, and the bits of its weights."""
    model = StreamtronClassifier(loss=loss, C=C, tol=1e-3, n_jobs=threads)
    started = time.perf_counter()
    model.fit(data.rows, data.labels)
    return time.perf_counter() - started, model.coef_.tobytes()


def row_of(name: str, data: Data, loss: str, C: float, threads: int, repeats: int) -> list[str]:
    """Measure one fit with 1 thread and with so many, in turn; the bits must be the same."""
    bits = set()

    def seconds_with(number: int) -> float:
        seconds, weights = fit(data, loss, C, number)
        bits.add(weights)
        return seconds

    contenders = {str(number): partial(seconds_with, number) for number in (1, threads)}
    measure.alternate(contenders, 1)
    alone, shared_out = measure.alternate(contenders, repeats).values()
    assert len(bits) == 1, f"{name}: other bits with other threads"
    ratios = np.array(alone) / np.array(shared_out)
    ratio = float(np.median(ratios))
    shared = min(max((1.0 - 1.0 / ratio) / (1.0 - 1.0 / threads), 0.0), 1.0)
    return [
        name,
        loss,
        f"{C:g}",
        f"{np.median(alone):.3f}",
        f"{np.median(shared_out):.3f}",
        f"{ratio:.2f} ({ratios.min():.2f} to {ratios.max():.2f})",
        f"{100 * shared:.0f} %",
        *(f"{1.0 / (1.0 - shared + shared / more):.1f}" for more in MORE),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_data_arguments(parser)
    parser.add_argument("--C", type=float, nargs="+", default=[0.5, 50.0])
    parser.add_argument("--losses", nargs="+", default=["squared_hinge", "log_loss"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--results", type=Path, default=measure.RESULTS)
    options = parser.parse_args()
    need_data(parser, options)
    warnings.simplefilter("ignore")
    found = measure.machine()
    measure.print_machine(found)
    head = ["data", "loss", "C", "1 thread", f"{options.threads} threads", "ratio", "shared"]
    with ExitStack() as stack:
        rows = [
            row_of(Path(path).name, data, loss, C, options.threads, options.repeats)
            for path in data_sets(options, stack)
            for data in [load([path])]
            for loss in options.losses
            for C in options.C
        ]
    head += [f"with {more}" for more in MORE]
    measure.print_table("seconds of a fit", head, rows)
    measure.save("cores", {"machine": found, "rows": rows}, options.results)


if __name__ == "__main__":
    main()
