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
    """The task of a fresh process: train, and what every epoch but the first took and did. (The
    first reading alone holds rows as they come, in their order.)"""
    from streamtron.events import Event, ReadingDone
    from streamtron.training.learner import Learner
    from streamtron.training.loop import train

    chosen = Settings.from_dict(settings)
    found: list[dict[str, float]] = []
    start, solving, parts = time.perf_counter(), 0.0, 0

    with open_shards([path], cache_dir=cache) as source:
        learner = Learner(chosen, source.labels)
        solve = learner._train_in_memory

        def timed_solve() -> None:
            nonlocal solving, parts
            begun = time.perf_counter()
            solve()
            solving += time.perf_counter() - begun
            parts += 1

        def note_end(event: Event) -> None:
            nonlocal start, solving, parts
            if isinstance(event, ReadingDone):
                seconds = time.perf_counter() - start
                found.append({
                    "seconds": seconds - solving, "solving_seconds": solving, "parts": parts,
                    "mini_epochs": event.mini_epochs, "updates": event.updates,
                })  # fmt: skip
                start, solving, parts = time.perf_counter(), 0.0, 0

        learner._train_in_memory = timed_solve  # type: ignore[method-assign]
        train(source, [learner], chosen, note_end)
        return {
            "rows": source.rows,
            "columns": source.width,
            "nonzeros": source.nonzeros,
            "readings": source.readings,
            "active_rows": len(learner.active),
            "active_bytes": learner.active.nbytes,
            "ending": learner.finished,
            "epochs": found[1:],
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
        "median_epoch": {
            name: measure.median([epoch[name] for epoch in found["epochs"]])
            for name in found["epochs"][0]
        },
        "peak_bytes": peak,
        "peak_bytes_less_counts": peak - ROW_BYTES * found["rows"],
    }


def budget_of(text: str, options: argparse.Namespace) -> int:
    """Bytes from a size, or from a part of the 1× rows such as ``10%``: 76 nonzeros a row."""
    if not text.endswith("%"):
        return int(parse_size(text))
    return int(float(text[:-1]) / 100 * options.rows * (8 * 76 + 24))


def show(sizes: Sequence[dict[str, Any]], budget: int) -> None:
    """Epochs and memory, each size against the first."""
    head = [
        "rows", "nonzeros", "epoch s", "M nonzeros/s", "a row / 1×", "mini-epochs s", "parts",
        "mini-epochs", "updates", "all a row / 1×",
    ]  # fmt: skip
    first = sizes[0]
    lines = []
    for one in sizes:
        epoch, begun = one["median_epoch"], first["median_epoch"]
        rows = one["rows"] / first["rows"]
        both = epoch["seconds"] + epoch["solving_seconds"]
        both_begun = begun["seconds"] + begun["solving_seconds"]
        lines.append([
            f"{one['rows']:,}", f"{one['nonzeros']:,}", f"{epoch['seconds']:.3f}",
            f"{one['nonzeros'] / epoch['seconds'] / 1e6:.1f}",
            f"{epoch['seconds'] / begun['seconds'] / rows:.2f}",
            f"{epoch['solving_seconds']:.2f}", f"{epoch['parts']:g}",
            f"{epoch['mini_epochs']:g}", f"{epoch['updates']:,.0f}",
            f"{both / both_begun / rows:.2f}",
        ])  # fmt: skip
    measure.print_table(f"epochs, active set at most {format_size(budget)}", head, lines)
    print("an epoch: every row read, checked, scanned and visited; the mini-epochs beside it are")
    print("of the parts of the active set that the budget allows, one more for half a budget")
    head = ["rows", "peak MB", "less counts", "/ 1×", "active set", "readings"]
    lines = []
    for one in sizes:
        peak, peak_first = one["peak_bytes_less_counts"], first["peak_bytes_less_counts"]
        lines.append([
            f"{one['rows']:,}", f"{one['peak_bytes'] / 1e6:.1f}", f"{peak / 1e6:.1f}",
            f"{peak / peak_first:.3f}", format_size(one["active_bytes"]), f"{one['readings']:g}",
        ])  # fmt: skip
    measure.print_table("memory", head, lines)


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
