"""What more rows cost: epoch time and peak memory at 1×, 4× and 16× the rows.

    python benchmarks/rows.py [--rows 160000] [--active-set 10%]

The active set is full at 1× already, so that memory may grow by the counts alone: 4 bytes a row.
Every size trains in a process of its own from a warm cache. See README.md here.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import measure
import ours
from data import generated

from streamtron.config import Settings, format_size, parse_size
from streamtron.errors import StreamtronError
from streamtron.memory import ROW_BYTES
from streamtron.shards import open_shards


def epochs(path: str, cache: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The task of a fresh process: train, and the seconds of every reading but the first with
    the mini-epochs behind it. (The first reading alone holds rows as they come, in their order.)"""
    from streamtron.events import Event, ReadingDone
    from streamtron.training.learner import Learner
    from streamtron.training.loop import train

    chosen = Settings.from_dict(settings)
    ends = [time.perf_counter()]

    def note_end(event: Event) -> None:
        if isinstance(event, ReadingDone):
            ends.append(time.perf_counter())

    with open_shards([path], cache_dir=cache) as source:
        learner = Learner(chosen, source.labels)
        train(source, [learner], chosen, note_end)
        return {
            "rows": source.rows,
            "columns": source.width,
            "nonzeros": source.nonzeros,
            "readings": source.readings,
            "active_rows": len(learner.active),
            "active_bytes": learner.active.nbytes,
            "mini_epochs": learner.mini_epochs,
            "ending": learner.finished,
            "epoch_seconds": [b - a for a, b in pairwise(ends[1:])],
        }


def size_up(times: int, options: argparse.Namespace, budget: int) -> dict[str, Any]:
    """One size: generated, cached, trained on in a fresh process."""
    settings = Settings(
        C=options.C, tol=options.tol, active_set=budget, max_epochs=options.epochs,
        mini_epochs=options.mini_epochs,
    )  # fmt: skip
    rows = options.rows * times
    measure.note(f"{times}×: {rows:,} rows")
    with (
        generated(rows, options.columns, seed=0) as path,
        tempfile.TemporaryDirectory(prefix="streamtron-bench-") as cache,
    ):
        ours.fill_cache([path], cache)
        found, peak = measure.in_fresh_process(epochs, path, cache, settings.to_dict())
    return {
        **found,
        "times": times,
        "median_epoch_seconds": measure.median(found["epoch_seconds"]),
        "peak_bytes": peak,
        "peak_bytes_less_counts": peak - ROW_BYTES * found["rows"],
    }


def budget_of(text: str, options: argparse.Namespace) -> int:
    """Bytes from a size, or from a part of the 1× rows such as ``10%``: 76 nonzeros a row."""
    if not text.endswith("%"):
        return int(parse_size(text))
    return int(float(text[:-1]) / 100 * options.rows * (8 * 76 + 24))


def show(sizes: Sequence[dict[str, Any]], budget: int) -> None:
    """The table, each size against 1×."""
    head = [
        "rows", "nonzeros", "epoch s", "M nonzeros/s", "time a row / 1×", "peak MB",
        "less counts", "/ 1×", "active set", "readings",
    ]  # fmt: skip
    first = sizes[0]
    lines = []
    for one in sizes:
        a_row = one["median_epoch_seconds"] / one["rows"]
        a_row_first = first["median_epoch_seconds"] / first["rows"]
        peak, peak_first = one["peak_bytes_less_counts"], first["peak_bytes_less_counts"]
        lines.append([
            f"{one['rows']:,}", f"{one['nonzeros']:,}", f"{one['median_epoch_seconds']:.3f}",
            f"{one['nonzeros'] / one['median_epoch_seconds'] / 1e6:.1f}",
            f"{a_row / a_row_first:.2f}", f"{one['peak_bytes'] / 1e6:.1f}",
            f"{peak / 1e6:.1f}", f"{peak / peak_first:.3f}",
            format_size(one["active_bytes"]), f"{one['readings']:g}",
        ])  # fmt: skip
    measure.print_table(f"active set at most {format_size(budget)}", head, lines)
    print("an epoch is a reading with the mini-epochs that follow from it, median of them")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=160_000, help="at 1×")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--columns", type=int, default=30_000)
    parser.add_argument("--active-set", default="10%", help="a size, or a part of the 1× rows")
    parser.add_argument("--C", type=float, default=50.0)
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=6, help="readings that train, at most")
    parser.add_argument("--mini-epochs", type=int, default=50)
    parser.add_argument("--results", type=Path, default=measure.RESULTS, help="where they go")
    parser.add_argument("--tiny", action="store_true", help="does it run at all? some seconds")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.columns, options.times, options.epochs = 200, 400, [1, 4], 3
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    options = parse(arguments)
    machine = measure.machine()
    measure.print_machine(machine)
    budget = budget_of(options.active_set, options)
    sizes = [size_up(times, options, budget) for times in options.times]
    show(sizes, budget)
    results = {"machine": machine, "active_set": budget, "sizes": sizes}
    print(f"\n{measure.save('rows', results, options.results)}")


if __name__ == "__main__":
    try:
        main()
    except StreamtronError as error:
        raise SystemExit(f"rows: {error}") from None
