"""Rows that are added to a run, against a fresh fit on all rows.

    python benchmarks/updating.py rcv1.xz --generate 200000 --more 0.01 0.1 1 --C 0.5 50

A file's last rows are the new ones: of `--more 0.1` a part of 1/11, so that there is a tenth more
than there was. Both sides are whole calls: shards opened, cache warm, files of the run written,
which a run that can be updated needs. The run to be updated is put back before every repeat, off
the clock. See README.md here.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import ours
from certified import misses, reference
from data import add_data_arguments, data_sets, load, need_data, plain_text
from problem import Problem

import streamtron
from streamtron.config import Machine, Settings
from streamtron.errors import StreamtronError
from streamtron.fitting import run_directory
from streamtron.outcome import Outcome


@dataclass(frozen=True)
class Case:
    """Old and new rows of one data set, and the run on the old ones.

    Parameters
    ----------
    directory : where everything below lies.
    old, new : shards.
    cache : holds all rows.
    """

    directory: Path
    old: str
    new: str
    cache: str
    settings: Settings

    @property
    def machine(self) -> Machine:
        """Both sides read from the same cache."""
        return Machine(cache_dir=self.cache)

    def fit(self, shards: list[str], model: Path) -> Outcome:
        """A fresh run."""
        return streamtron.run(
            shards, self.settings, model=model, machine=self.machine, overwrite=True
        )

    def fresh(self) -> tuple[float, Outcome]:
        """Seconds of a fit on all rows, and what came of it."""
        ours.warm(self.cache)
        return timed(lambda: self.fit([self.old, self.new], self.directory / "fresh"))

    def updated(self) -> tuple[float, Outcome]:
        """Seconds of an update of the run on the old rows, and what came of it."""
        model = self.directory / "base"
        if not model.exists():
            self.fit([self.old], model)
            shutil.copytree(run_directory(model), self.directory / "saved.run")
            shutil.copy(model, self.directory / "saved")
        shutil.rmtree(run_directory(model))
        shutil.copytree(self.directory / "saved.run", run_directory(model))
        shutil.copy(self.directory / "saved", model)
        ours.warm(self.cache)
        return timed(lambda: streamtron.update(model, self.new, machine=self.machine))


def timed(change: Callable[[], Outcome]) -> tuple[float, Outcome]:
    """Seconds that it took, and what it gave."""
    start = time.perf_counter()
    outcome = change()
    return time.perf_counter() - start, outcome


def split(path: str, more: float, directory: Path) -> tuple[str, str]:
    """The rows of a file in two: the last ones are ``more`` times as many as the first ones."""
    with plain_text(path) as plain:
        lines = Path(plain).read_bytes().splitlines(keepends=True)
    first = min(max(round(len(lines) / (1.0 + more)), 1), len(lines) - 1)
    old, new = directory / "old.svm", directory / "new.svm"
    old.write_bytes(b"".join(lines[:first]))
    new.write_bytes(b"".join(lines[first:]))
    return str(old), str(new)


def compare(case: Case, repeats: int) -> dict[str, Any]:
    """An update and a fresh fit in turn, after one of each that is not counted."""
    found: dict[str, Outcome] = {}

    def seconds_of(name: str, side: Callable[[], tuple[float, Outcome]]) -> float:
        seconds, found[name] = side()
        return seconds

    sides = {
        "update": lambda: seconds_of("update", case.updated),
        "fresh": lambda: seconds_of("fresh", case.fresh),
    }
    for side in sides.values():
        side()
    seconds = measure.alternate(sides, repeats)
    middle = {name: measure.median(values) for name, values in seconds.items()}
    return {
        "median_seconds": middle,
        "all_seconds": seconds,
        "ratio": middle["update"] / middle["fresh"],
        "readings": {name: outcome.report["readings"] for name, outcome in found.items()},
        "endings": {name: outcome.ending for name, outcome in found.items()},
        "proofs": {name: vars(proof_of(outcome)) for name, outcome in found.items()},
        "rows": found["fresh"].report["rows"],
        "nonzeros": found["fresh"].report["nonzeros"],
    }


def proof_of(outcome: Outcome) -> ours.Proof:
    """What a run of two classes proved at its end, as bounds on the least primal."""
    proven, report = outcome.report["certificate"], outcome.report
    return ours.Proof(
        report["readings"], report["seconds"],
        0.5 / proven["primal_margin"] ** 2, 0.5 / proven["upper_bound"] ** 2,
    )  # fmt: skip


def judged(found: dict[str, Any], optimum: float | None) -> dict[str, Any]:
    """With the optimum, and what is wrong with the bounds, in sentences: nothing, it is hoped."""
    wrong = [
        f"{name}: {proof['dual']!r} … {proof['primal']!r} does not hold LIBLINEAR's optimum "
        f"{optimum!r}"
        for name, proof in found["proofs"].items()
        if optimum is not None and misses(ours.Proof(**proof), optimum)
    ]
    return {**found, "optimum": optimum, "unbracketed": wrong}


def measured(path: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every C, and every part of new rows, of one data set."""
    found = []
    data = load([path])
    for C in options.C:
        settings = Settings(C=C, rho=options.rho, tol=options.tol)
        optimum = reference(Problem.of(data, C, options.rho))
        for more in options.more:
            measure.note(f"{Path(path).name}, C = {C:g}: {more:.0%} more rows")
            with tempfile.TemporaryDirectory(prefix="streamtron-bench-") as directory:
                old, new = split(path, more, Path(directory))
                case = Case(Path(directory), old, new, str(Path(directory) / "cache"), settings)
                ours.fill_cache([old, new], case.cache)
                one = judged(compare(case, options.repeats), optimum)
            found.append({"data": Path(path).name, "C": C, "more": more, **one})
    return found


def show(cases: Sequence[dict[str, Any]]) -> None:
    """The table."""
    head = [
        "data, C, more rows", "update s", "fresh s", "ratio", "update readings", "fresh readings",
        "gap", "bounds",
    ]  # fmt: skip
    lines = []
    for case in cases:
        seconds, readings, proof = case["median_seconds"], case["readings"], case["proofs"]
        gap = 1.0 - proof["update"]["dual"] / proof["update"]["primal"]
        lines.append([
            f"{case['data']}, {case['C']:g}, +{case['more']:.0%}", f"{seconds['update']:.3f}",
            f"{seconds['fresh']:.3f}", f"{case['ratio']:.2f}", f"{readings['update']:.3g}",
            f"{readings['fresh']:.3g}", f"{gap:.1e}", _verdict(case),
        ])  # fmt: skip
    measure.print_table("an update, and a fresh fit on all rows", head, lines)
    for case in cases:
        for sentence in case["unbracketed"]:
            print(f"{case['data']}, C = {case['C']:g}, +{case['more']:.0%}, {sentence}")


def _verdict(case: dict[str, Any]) -> str:
    if case["optimum"] is None:
        return "not judged"
    return "WRONG" if case["unbracketed"] else "hold"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_arguments(parser)
    parser.add_argument("--C", type=float, nargs="+", default=[1.0])
    parser.add_argument("--rho", type=float, default=1.0, help="the augmentation; 0 = no bias")
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument("--more", type=float, nargs="+", default=[0.01, 0.1, 1.0], help="new / old")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each, in turn")
    parser.add_argument("--results", type=Path, default=measure.RESULTS, help="where they go")
    parser.add_argument("--tiny", action="store_true", help="does it run at all? some seconds")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.generate, options.columns = 600, 400
        options.more, options.repeats = [0.1, 1.0], 1
    need_data(parser, options)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, save; 1 if a bound was wrong."""
    options = parse(arguments)
    machine = measure.machine()
    measure.print_machine(machine)
    cases: list[dict[str, Any]] = []
    with ExitStack() as stack:
        for path in data_sets(options, stack):
            cases += measured(path, options)
    show(cases)
    results = {"machine": machine, "tol": options.tol, "rho": options.rho, "cases": cases}
    print(f"\n{measure.save('updating', results, options.results)}")
    return int(any(case["unbracketed"] for case in cases))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except StreamtronError as error:
        raise SystemExit(f"updating: {error}") from None
