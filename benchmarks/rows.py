"""What more rows cost: epoch time and peak memory at 1×, 4× and 16× the rows.

    python benchmarks/rows.py [--rows 160000] [--active-set 10%]

The active set is full at 1× already, so that memory may grow by the counts alone: 4 bytes a row.
Every size trains in processes of its own from a warm cache: without mini-epochs, for what a full
epoch takes, the sizes in turn and several times; and with them, for memory and for what they add.
See README.md here.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import measure
import ours

from streamtron.core.config import Settings
from streamtron.core.errors import StreamtronError
from streamtron.core.text import format_size, parse_size
from streamtron.data import open_shards
from streamtron.data.writers.corpus import generate
from streamtron.runs.memory import ROW_BYTES


def epochs(path: str, cache: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The task of a fresh process: train, and what every epoch but the first took and did. (The
    first reading alone holds rows as they come, in their order.)"""
    from streamtron.core.events import Event, ReadingDone, ReadingStarted
    from streamtron.solver import reading, working_set
    from streamtron.solver import train as training
    from streamtron.solver.learner import Learner
    from streamtron.solver.train import OnePart, train

    chosen = Settings.from_dict(settings)
    found: list[dict[str, float]] = []

    with open_shards([path], cache_dir=cache) as source:
        learner = Learner(chosen, source.labels)
        solved = _timed(reading, "take_solution")
        parts = [
            _timed(reading, "drive"),
            _timed(training, "drive"),
            _timed(working_set, "_keep_some"),
        ]
        start = 0.0

        def note(event: Event) -> None:
            nonlocal start
            if isinstance(event, ReadingStarted):
                ours.warm(cache)  # a system may drop pages that nobody has read for a while
                start = time.perf_counter()
                for calls in (solved, *parts):
                    calls.clear()
            elif isinstance(event, ReadingDone):
                seconds = time.perf_counter() - start
                of_parts = sum(map(sum, parts))
                found.append(
                    {
                        "seconds": seconds - of_parts,
                        "parts_seconds": of_parts,
                        "parts": len(solved),
                        "mini_epochs": event.mini_epochs,
                        "updates": event.updates,
                    }
                )

        train(OnePart(source, [learner], chosen, note))
        return {
            "rows": source.rows,
            "columns": source.width,
            "nonzeros": source.nonzeros,
            "readings": source.readings,
            "active_rows": len(learner.active),
            "active_bytes": learner.active.nbytes,
            "stop_reason": learner.progress.finished,
            "epochs": found[1:],
            "median": medians(found[1:]),
        }


def medians(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of everything that was measured of each epoch."""
    return {name: measure.median([epoch[name] for epoch in found]) for name in found[0]}


def _timed(owner: Any, name: str) -> list[float]:
    """The seconds of every call of a method, of an object or a class, from now on."""
    method, seconds = getattr(owner, name), list[float]()

    def call(*arguments: Any, **names: Any) -> Any:
        start = time.perf_counter()
        result = method(*arguments, **names)
        seconds.append(time.perf_counter() - start)
        return result

    setattr(owner, name, call)
    return seconds


@contextmanager
def corpus(rows: int, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """A generated corpus and its filled cache: those of an earlier run, if they were kept."""
    with ExitStack() as stack:
        home = options.keep
        if home is None:
            temporary = tempfile.TemporaryDirectory(prefix="streamtron-bench-")
            home = Path(stack.enter_context(temporary))
        path, cache = home / f"rows-{rows}-{options.columns}", home / f"cache-{rows}"
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            generate(str(unfinished), rows=rows, columns=options.columns, seed=0)
            unfinished.rename(path)
        ours.fill_cache([str(path)], str(cache))
        yield str(path), str(cache)


def size_up_all(options: argparse.Namespace, budget: int) -> list[dict[str, Any]]:
    """Every size: generated, cached, trained on in fresh processes."""
    settings = Settings(
        C=options.C,
        tol=options.tol,
        active_set=budget,
        max_epochs=options.epochs,
        mini_epochs=options.mini_epochs,
    )
    alone = replace(settings, mini_epochs=0).to_dict()
    with ExitStack() as stack:
        places, found = {}, dict[int, list[dict[str, Any]]]()
        for times in options.times:
            measure.note(f"{times}×: {options.rows * times:,} rows")
            places[times] = stack.enter_context(corpus(options.rows * times, options))
        for _ in range(options.rounds):
            for times, place in places.items():
                run, _ = measure.in_fresh_process(epochs, *place, alone)
                found.setdefault(times, []).append(run)
        return [size_up(times, place, found[times], settings) for times, place in places.items()]


def size_up(
    times: int, place: tuple[str, str], alone: Sequence[dict[str, Any]], settings: Settings
) -> dict[str, Any]:
    """One size, whose epochs without mini-epochs are known."""
    every = [epoch for run in alone for epoch in run["epochs"]]
    epoch = alone[0] | {"epochs": every, "median": medians(every)}
    whole, peak = measure.in_fresh_process(epochs, *place, settings.to_dict())
    return {
        "times": times,
        "rows": whole["rows"],
        "nonzeros": whole["nonzeros"],
        "without_mini_epochs": epoch,
        "with_mini_epochs": whole,
        "peak_bytes": peak,
        "peak_bytes_less_counts": peak - ROW_BYTES * whole["rows"],
    }


def budget_of(text: str, options: argparse.Namespace) -> int:
    """Bytes from a size, or from a part of the 1× rows such as ``10%``: 76 nonzeros a row."""
    if not text.endswith("%"):
        return int(parse_size(text))
    return int(float(text[:-1]) / 100 * options.rows * (8 * 76 + 24))


def show(sizes: Sequence[dict[str, Any]], budget: int) -> None:
    """Epochs, what mini-epochs add, and memory: each size against the first."""
    first = sizes[0]
    _show_epochs(first, sizes)
    _show_mini_epochs(first, sizes, budget)
    head = ["rows", "peak MB", "less counts", "/ 1×"]
    lines = []
    for one in sizes:
        peak, peak_first = one["peak_bytes_less_counts"], first["peak_bytes_less_counts"]
        lines.append(
            [
                f"{one['rows']:,}",
                f"{one['peak_bytes'] / 1e6:.1f}",
                f"{peak / 1e6:.1f}",
                f"{peak / peak_first:.3f}",
            ]
        )
    measure.print_table("memory", head, lines)


def _show_epochs(first: dict[str, Any], sizes: Sequence[dict[str, Any]]) -> None:
    head = [
        "rows",
        "nonzeros",
        "seconds",
        "M nonzeros/s",
        "/ 1×",
        "rows / 1×",
        "a row / 1×",
        "parts s",
    ]
    lines = []
    begun = first["without_mini_epochs"]["median"]["seconds"]
    for one in sizes:
        seconds, rows = one["without_mini_epochs"]["median"]["seconds"], one["rows"] / first["rows"]
        lines.append(
            [
                f"{one['rows']:,}",
                f"{one['nonzeros']:,}",
                f"{seconds:.3f}",
                f"{one['nonzeros'] / seconds / 1e6:.1f}",
                f"{seconds / begun:.2f}",
                f"{rows:g}",
                f"{seconds / begun / rows:.3f}",
                f"{one['without_mini_epochs']['median']['parts_seconds']:.3f}",
            ]
        )
    measure.print_table("a full epoch: rows read, checked, scanned, visited, held", head, lines)


def _show_mini_epochs(first: dict[str, Any], sizes: Sequence[dict[str, Any]], budget: int) -> None:
    head = [
        "rows",
        "epoch s",
        "parts s",
        "parts",
        "mini-epochs",
        "updates",
        "both / 1×",
        "active set",
        "readings",
    ]
    lines = []
    for one in sizes:
        found = one["with_mini_epochs"]
        now, begun = found["median"], first["with_mini_epochs"]["median"]
        both = now["seconds"] + now["parts_seconds"]
        lines.append(
            [
                f"{one['rows']:,}",
                f"{now['seconds']:.3f}",
                f"{now['parts_seconds']:.2f}",
                f"{now['parts']:g}",
                f"{now['mini_epochs']:g}",
                f"{now['updates']:,.0f}",
                f"{both / (begun['seconds'] + begun['parts_seconds']):.2f}",
                format_size(found["active_bytes"]),
                f"{found['readings']:g}",
            ]
        )
    title = f"with the mini-epochs of a training run, active set at most {format_size(budget)}"
    measure.print_table(title, head, lines)


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
    parser.add_argument("--rounds", type=int, default=3, help="of epochs of all sizes in turn")
    parser.add_argument("--mini-epochs", type=int, default=50)
    parser.add_argument("--keep", type=Path, help="a directory for corpora and caches: not removed")
    parser.add_argument("--results", type=Path, default=measure.RESULTS, help="where they go")
    parser.add_argument("--tiny", action="store_true", help="does it run at all? some seconds")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.columns, options.times, options.epochs = 200, 400, [1, 4], 3
        options.rounds = 2
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    options = parse(arguments)
    machine = measure.machine()
    measure.print_machine(machine)
    budget = budget_of(options.active_set, options)
    sizes = size_up_all(options, budget)
    show(sizes, budget)
    results = {"machine": machine, "active_set": budget, "sizes": sizes}
    print(f"\n{measure.save('rows', results, options.results)}")


if __name__ == "__main__":
    try:
        main()
    except StreamtronError as error:
        raise SystemExit(f"rows: {error}") from None
