"""Many learners on one scan, against as many runs one after another.

    python benchmarks/learners.py FILE --candidates 1 4 16 102 --repeats 5
    python benchmarks/learners.py TOPICS_FILE --multilabel

Candidates are prices C, logarithmically between .01 and 10. Both sides read from a warm cache and
are timed in turn; what is found is the same to the bit, and that is checked. A second table tells
what two learners with as much to do cost beside one: 2 on one processor, 1 at best on two.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np
import ours
from data import add_data_arguments, data_sets, need_data

from streamtron.core.config import Settings
from streamtron.core.errors import StreamtronError
from streamtron.solver.learner import Learner


@dataclass
class Scan:
    """Learners that were trained together."""

    seconds: float
    readings: float
    bytes_read: int
    learners: list[Learner]


def candidates_of(number: int, **settings: Any) -> list[Settings]:
    """So many prices, from .01 to 10; one alone is 1."""
    prices = np.geomspace(0.01, 10.0, number) if number > 1 else [1.0]
    return [Settings(C=float(price), **settings) for price in prices]


def scan(path: str, cache: str, candidates: list[Settings], threads: int | None = None) -> Scan:
    """All candidates on the same readings."""
    start = time.perf_counter()
    with ours.opened([path], cache, candidates, threads=threads) as fitting:
        found = fitting.train()
        seconds, data = time.perf_counter() - start, fitting.data
        learners = [learner for own in found for learner in own]
        return Scan(seconds, data.readings, data.bytes_read, learners)


def one_by_one(path: str, cache: str, candidates: list[Settings]) -> Scan:
    """A run each."""
    runs = [scan(path, cache, [settings]) for settings in candidates]
    return Scan(
        sum(run.seconds for run in runs),
        sum(run.readings for run in runs),
        sum(run.bytes_read for run in runs),
        [learner for run in runs for learner in run.learners],
    )


def fit_all(path: str, cache: str, plain: list[dict[str, Any]], together: bool) -> None:
    """For a process of its own, whose peak memory is measured; the candidates as plain values."""
    candidates = [Settings.from_dict(one) for one in plain]
    for group in [candidates] if together else [[one] for one in candidates]:
        scan(path, cache, group)


def compare_candidates(
    path: str, cache: str, number: int, repeats: int, **settings: Any
) -> dict[str, Any]:
    """So many candidates trained together, and each alone."""
    candidates = candidates_of(number, **settings)
    found: dict[str, Scan] = {}

    def timed(name: str, run: Scan) -> float:
        found[name] = run
        return run.seconds

    contenders = {
        "together": lambda: timed("together", scan(path, cache, candidates)),
        "one by one": lambda: timed("one by one", one_by_one(path, cache, candidates)),
    }
    seconds = serial(contenders, repeats)
    together, alone = found["together"], found["one by one"]
    for one, other in zip(together.learners, alone.learners, strict=True):
        assert one.best.w.tobytes() == other.best.w.tobytes(), "models differ"
    return {
        "learners": number,
        "seconds together": seconds["together"],
        "seconds one by one": seconds["one by one"],
        "ratio": seconds["together"] / seconds["one by one"],
        "MB read together": together.bytes_read / 1e6,
        "MB read one by one": alone.bytes_read / 1e6,
        "readings": together.readings,
        "peak MB together": _peak(path, cache, candidates, True),
        "peak MB one by one": _peak(path, cache, candidates, False),
    }


def compare_pair(path: str, cache: str, C: float, repeats: int, **settings: Any) -> dict[str, Any]:
    """Two learners that have as much to do, beside one."""
    alike = [Settings(C=price, **settings) for price in (C, 1.001 * C)]
    contenders = {
        "one": lambda: scan(path, cache, alike[:1]).seconds,
        "two": lambda: scan(path, cache, alike).seconds,
    }
    seconds = serial(contenders, repeats)
    one, two = seconds["one"], seconds["two"]
    return {"C": C, "seconds of one": one, "seconds of two": two, "ratio": two / one}


def serial(contenders: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The median of each, once everything is compiled and the cache warm."""
    for contender in contenders.values():
        contender()
    found = measure.alternate(contenders, repeats)
    return {name: measure.median(own) for name, own in found.items()}


def _peak(path: str, cache: str, candidates: list[Settings], together: bool) -> float:
    plain = [one.to_dict() for one in candidates]
    return measure.in_fresh_process(fit_all, path, cache, plain, together)[1] / 1e6


def compare_classes(path: str, cache: str, settings: Settings) -> dict[str, Any]:
    """A learner for every label, against the label that needs most readings, alone."""
    ours.fill_cache([path], cache, settings)
    scan(path, cache, [settings])
    together = scan(path, cache, [settings])
    most = max(learner.progress.readings for learner in together.learners)
    one_reading = together.bytes_read / together.readings
    return {
        "learners": len(together.learners),
        "seconds together": together.seconds,
        "readings": together.readings,
        "most readings of one": most,
        "MB read": together.bytes_read / 1e6,
        "bytes ratio": together.bytes_read / (most * one_reading),
        "peak MB": _peak(path, cache, [settings], True),
        "widest gap": max(_gap(learner) for learner in together.learners),
    }


def _gap(learner: Learner) -> float:
    assert learner.certificate is not None
    return learner.certificate.relative_duality_gap


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_data_arguments(parser)
    parser.add_argument("--candidates", type=int, nargs="+", default=[1, 2, 4, 16, 102])
    parser.add_argument("--pairs", type=float, nargs="*", default=[0.1, 1.0, 10.0], metavar="C")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--multilabel", action="store_true", help="a learner for every label")
    parser.add_argument("--C", type=float, default=1.0, help="with --multilabel")
    parser.add_argument("--tol", type=float, default=0.01)
    parser.add_argument("--results", type=Path, default=measure.RESULTS)
    options = parser.parse_args(arguments)
    need_data(parser, options)
    return options


Table = list[dict[str, Any]]


def measured(path: str, options: argparse.Namespace) -> tuple[Table, Table]:
    """The rows of one data set, in both tables."""
    with tempfile.TemporaryDirectory(prefix="streamtron-bench-") as cache:
        if options.multilabel:
            settings = Settings(C=options.C, tol=options.tol, multilabel=True)
            return [{"data": Path(path).name, **compare_classes(path, cache, settings)}], []
        ours.fill_cache([path], cache)
        common = {"repeats": options.repeats, "tol": options.tol}
        return [
            {"data": Path(path).name, **compare_candidates(path, cache, number, **common)}
            for number in options.candidates
        ], [
            {"data": Path(path).name, **compare_pair(path, cache, C, **common)}
            for C in options.pairs
        ]


def show(rows: Sequence[Mapping[str, Any]], title: str = "learners on one scan") -> None:
    """The table."""
    cells = [
        [f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()]
        for row in rows
    ]
    measure.print_table(title, list(rows[0]), cells)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    options = parse(arguments)
    machine = measure.machine()
    measure.print_machine(machine)
    rows: Table = []
    pairs: Table = []
    with ExitStack() as stack:
        for path in data_sets(options, stack):
            own_rows, own_pairs = measured(path, options)
            rows += own_rows
            pairs += own_pairs
    show(rows)
    if pairs:
        show(pairs, "two learners beside one")
    results = {"machine": machine, "rows": rows, "pairs": pairs}
    print(f"\n{measure.save('learners', results, options.results)}")


if __name__ == "__main__":
    try:
        main()
    except StreamtronError as error:
        raise SystemExit(f"learners: {error}") from None
