"""The same work by workers of Dask and by one process with as many threads.

    python benchmarks/workers.py FILE... --workers 2 --candidates 8 --repeats 5
    python benchmarks/workers.py --generate 200000

A sweep (whose flat copy of the shards is made anew each time, or is there), a certificate proven
again, and an evaluation. Both sides are timed in turn, once all are warm; how long the workers
take to start is printed separately. The results
are the same to the bit, which is checked. CPU seconds are of all processes: on a machine that
others use too they say more than the clock.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import measure
from data import add_data_arguments, data_sets, need_data
from learners import candidates_of, show

from streamtron.cluster.client import Workers
from streamtron.cluster.connect import connect
from streamtron.cluster.sweep import SweepExecutor
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import StreamtronError
from streamtron.core.executor import serial
from streamtron.data import find_shards
from streamtron.model.linear_model import LinearModel
from streamtron.runs.certify import certify
from streamtron.runs.evaluate import evaluate
from streamtron.runs.fit import run
from streamtron.sweeps.sweep import sweep as run_sweep

LASTING = ("seconds", "worker", "started", "finished")
"""Columns of a sweep's table that depend on machine and time."""

Work = Callable[[Workers | None], Any]
"""Work by workers, or by this process; what it gives back is compared."""


@contextmanager
def started(count: int) -> Iterator[tuple[Workers, float]]:
    """Workers, and the seconds until they are there."""
    begin = time.perf_counter()
    with connect(count) as workers:
        workers.client.wait_for_workers(count)
        yield workers, time.perf_counter() - begin


def works(path: str, directory: Path, candidates: int, threads: int) -> Mapping[str, Work]:
    """What is done by both sides, by name."""
    shards = [shard.path for shard in find_shards([path])]
    kept = str(directory / "cache")
    machine, witness = Machine(cache_dir=kept), directory / "witness"
    run(shards, Settings(), model=directory / "model", witness=witness, machine=machine)
    model = LinearModel.load(directory / "model")
    tried = candidates_of(candidates)

    def sweep(cache: str | None) -> Work:
        def by(workers: Workers | None) -> Any:
            machine = Machine(threads=1 if workers else threads, cache_dir=cache)
            found = run_sweep(
                shards,
                C=[one.C for one in tried],
                valid=shards,
                machine=machine,
                executor=SweepExecutor(workers) if workers else serial,
            )
            return [{k: v for k, v in row.items() if k not in LASTING} for row in found.rows()]

        return by

    one = Machine(threads=threads)
    return {
        f"sweep of {candidates}": sweep(None),
        f"sweep of {candidates}, cache there": sweep(kept),
        "certify": lambda workers: certify(
            model, shards, witness=witness, machine=one, executor=workers or serial
        ),
        "evaluate": lambda workers: evaluate(model, shards, executor=workers or serial),
    }


def compare(name: str, work: Work, workers: Workers, repeats: int) -> dict[str, Any]:
    """One work by both sides."""
    found: dict[str, Any] = {}
    cpu: dict[str, list[float]] = {"one process": [], "workers": []}

    def timed(side: str, by: Workers | None) -> float:
        begin, worked = time.perf_counter(), cpu_seconds(workers)
        found[side] = work(by)
        cpu[side].append(cpu_seconds(workers) - worked)
        return time.perf_counter() - begin

    contenders = {
        "one process": lambda: timed("one process", None),
        "workers": lambda: timed("workers", workers),
    }
    for contender in contenders.values():
        contender()
    assert found["one process"] == found["workers"], f"{name}: workers found something else"
    seconds = {
        side: measure.median(own) for side, own in measure.alternate(contenders, repeats).items()
    }
    return {
        "work": name,
        "one process s": seconds["one process"],
        "workers s": seconds["workers"],
        "overhead": seconds["workers"] / seconds["one process"] - 1.0,
        **{f"{side} CPU s": measure.median(own[1:]) for side, own in cpu.items()},
    }


def cpu_seconds(workers: Workers) -> float:
    """What this process and the workers have taken so far."""
    return time.process_time() + sum(workers.client.run(time.process_time).values())


def measured(path: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one data set."""
    with (
        tempfile.TemporaryDirectory(prefix="streamtron-bench-") as directory,
        started(options.workers) as (workers, cold),
    ):
        measure.note(f"{options.workers} workers have started in {cold:.2f} s")
        todo = works(path, Path(directory), options.candidates, options.workers)
        return [
            {"data": Path(path).name, **compare(name, work, workers, options.repeats)}
            for name, work in todo.items()
            if options.only is None or name.startswith(options.only)
        ]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_data_arguments(parser)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", help="works whose names begin so")
    parser.add_argument("--results", type=Path, default=measure.RESULTS)
    options = parser.parse_args(arguments)
    need_data(parser, options)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    options = parse(arguments)
    machine = measure.machine()
    measure.print_machine(machine)
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        for path in data_sets(options, stack):
            rows += measured(path, options)
    show(rows, f"{options.workers} workers against one process with as many threads")
    print(f"\n{measure.save('workers', {'machine': machine, 'rows': rows}, options.results)}")


if __name__ == "__main__":
    try:
        main()
    except StreamtronError as error:
        raise SystemExit(f"workers: {error}") from None
