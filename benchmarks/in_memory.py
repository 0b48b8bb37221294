"""README's table: streamtron beside scikit-learn on rows in memory, in seconds of processor time.

    python benchmarks/in_memory.py [--rows 160000] [--columns 100000] [--C 1]

The same sparse matrix for all; a quarter as many rows more are held out for the accuracy. Ours ends
with a certified gap of 1 %, scikit-learn's with its own defaults, which certify nothing.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measure
from data import generated, load
from problem import Data
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from streamtron import StreamtronClassifier

LOSSES = ("squared_hinge", "log_loss", "hinge")


def contenders(C: float) -> dict[str, Callable[[], Any]]:
    """Name → what makes a classifier."""
    ours = {
        f"StreamtronClassifier, {loss}": lambda loss=loss: StreamtronClassifier(
            C=C, loss=loss, n_jobs=-1
        )
        for loss in LOSSES
    }
    return ours | {
        "LinearSVC": lambda: LinearSVC(C=C, dual=False),
        "LinearSVC, dual": lambda: LinearSVC(C=C, dual=True),
        "LogisticRegression": lambda: LogisticRegression(C=C),
    }


def judged(make: Callable[[], Any], train: Data, held_out: Data, repeats: int) -> dict[str, Any]:
    """Seconds of processor time and of the clock of the median fit, and its accuracy."""
    runs = []
    for _ in range(repeats):
        clock, processor = time.perf_counter(), time.process_time()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = make().fit(train.rows, train.labels)
        runs.append((time.process_time() - processor, time.perf_counter() - clock))
    processor, clock = sorted(runs)[len(runs) // 2]
    gap = getattr(model, "certificate_", {}).get("relative_duality_gap")
    return {
        "processor": processor,
        "clock": clock,
        "gap": gap,
        "accuracy": float(model.score(held_out.rows, held_out.labels)),
        "warned": sorted({type(warning.message).__name__ for warning in caught}),
    }


def show(found: dict[str, dict[str, Any]], title: str) -> None:
    """The table."""
    head = ["classifier", "processor s", "clock s", "accuracy", "proven gap", "warned"]
    measure.print_table(
        title,
        head,
        [
            [
                name,
                f"{one['processor']:.2f}",
                f"{one['clock']:.2f}",
                f"{one['accuracy']:.4f}",
                "none" if one["gap"] is None else f"{one['gap']:.2%}",
                " ".join(one["warned"]) or "-",
            ]
            for name, one in found.items()
        ],
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=160_000)
    parser.add_argument("--columns", type=int, default=100_000)
    parser.add_argument("--C", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3, help="fits of each; the median is shown")
    parser.add_argument("--results", type=Path, default=measure.RESULTS, help="where they go")
    parser.add_argument("--tiny", action="store_true", help="does it run at all? some seconds")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.columns, options.repeats = 400, 300, 1
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    options = parse(arguments)
    machine = measure.machine()
    measure.print_machine(machine)
    with generated(options.rows * 5 // 4, options.columns, seed=0) as path:
        data = load([path])
    train = Data(data.rows[: options.rows], data.labels[: options.rows])
    held_out = Data(data.rows[options.rows :], data.labels[options.rows :])
    StreamtronClassifier().fit(train.rows[:100], train.labels[:100])  # compiles, if nobody has yet
    found = {}
    for name, make in contenders(options.C).items():
        measure.note(name)
        found[name] = judged(make, train, held_out, options.repeats)
    show(found, f"{options.rows:,} rows, {options.columns:,} columns, C = {options.C:g}")
    results = {
        "machine": machine,
        "rows": options.rows,
        "columns": options.columns,
        "C": options.C,
        "classifiers": found,
    }
    print(f"\n{measure.save('in_memory', results, options.results)}")


if __name__ == "__main__":
    main()
