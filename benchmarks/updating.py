"""Rows that are added to a run, against starting over with all of them.

    python benchmarks/updating.py rcv1.xz --generate 200000 --more 0.01 0.1 1 --C 0.5 50

A file's last rows are the new ones: of `--more 0.1` a part of 1/11, so that there is a tenth more
than there was. Both shards are packed if the file is. An update finds the old rows in the run's
cache and reads the new ones from their shard. Starting over makes a new run, which reads all rows
from their shards; or one whose cache holds them all already. Measured are the seconds to the
certificate, and the whole calls with the files that they write. What a side leaves behind is put
back before every repeat, off the clock. See README.md here.
"""

from __future__ import annotations

import argparse
import lzma
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
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import StreamtronError
from streamtron.runs.finished_run import run_directory
from streamtron.runs.report import Outcome


@dataclass(frozen=True)
class Case:
    """Old and new rows of one data set, and the run on the old ones.

    Parameters
    ----------
    directory : where everything below lies.
    old, new : shards.
    cache : holds all rows, for the side that has it.
    """

    directory: Path
    old: str
    new: str
    cache: str
    settings: Settings

    def fit(self, shards: list[str], name: str, machine: Machine) -> Outcome:
        """A fresh run."""
        return streamtron.run(
            shards, self.settings, model=self.directory / name, machine=machine, overwrite=True
        )

    def over(self) -> tuple[float, Outcome]:
        """Seconds of a new run on all rows, and what came of it."""
        shutil.rmtree(run_directory(self.directory / "over"), ignore_errors=True)
        return timed(lambda: self.fit([self.old, self.new], "over", Machine()))

    def fresh(self) -> tuple[float, Outcome]:
        """The same with all rows in the cache."""
        ours.warm(self.cache)
        machine = Machine(cache_dir=self.cache)
        return timed(lambda: self.fit([self.old, self.new], "fresh", machine))

    def updated(self) -> tuple[float, Outcome]:
        """Seconds of an update of the run on the old rows, and what came of it."""
        model = self.directory / "base"
        if not model.exists():
            self.fit([self.old], "base", Machine())
            shutil.copytree(run_directory(model), self.directory / "saved.run")
            shutil.copy(model, self.directory / "saved")
        shutil.rmtree(run_directory(model))
        shutil.copytree(self.directory / "saved.run", run_directory(model))
        shutil.copy(self.directory / "saved", model)
        return timed(lambda: streamtron.update(model, self.new))


def timed(change: Callable[[], Outcome]) -> tuple[float, Outcome]:
    """Seconds that it took, and what it gave."""
    start = time.perf_counter()
    outcome = change()
    return time.perf_counter() - start, outcome


def split(path: str, more: float, directory: Path) -> tuple[str, str]:
    """The rows of a file in two shards, packed as the file is: the last ones are ``more`` times as
    many as the first ones."""
    with plain_text(path) as plain:
        lines = Path(plain).read_bytes().splitlines(keepends=True)
    first = min(max(round(len(lines) / (1.0 + more)), 1), len(lines) - 1)
    shards = []
    for name, rows in (("old.svm", lines[:first]), ("new.svm", lines[first:])):
        if packed := path.endswith(".xz"):
            name += ".xz"
        shard = directory / name
        with lzma.open(shard, "wb") if packed else open(shard, "wb") as file:
            file.writelines(rows)
        shards.append(str(shard))
    return shards[0], shards[1]


def compare(case: Case, repeats: int) -> dict[str, Any]:
    """An update and both ways to start over in turn, after one of each that is not counted."""
    found: dict[str, Outcome] = {}
    proven: dict[str, list[float]] = {}

    def seconds_of(name: str, side: Callable[[], tuple[float, Outcome]]) -> float:
        seconds, found[name] = side()
        proven.setdefault(name, []).append(found[name].report["seconds"])
        return seconds

    sides = {
        "update": lambda: seconds_of("update", case.updated),
        "over": lambda: seconds_of("over", case.over),
        "fresh": lambda: seconds_of("fresh", case.fresh),
    }
    for side in sides.values():
        side()
    proven.clear()
    seconds = measure.alternate(sides, repeats)
    middle = {name: measure.median(values) for name, values in seconds.items()}
    to_proof = {name: measure.median(values) for name, values in proven.items()}
    return {
        "median_seconds": middle,
        "all_seconds": seconds,
        "median_seconds_to_certificate": to_proof,
        "ratio": middle["update"] / middle["over"],
        "ratio_to_certificate": to_proof["update"] / to_proof["over"],
        "ratio_cached": middle["update"] / middle["fresh"],
        "readings": {name: outcome.report["readings"] for name, outcome in found.items()},
        "endings": {name: outcome.stop_reason for name, outcome in found.items()},
        "proofs": {name: vars(proof_of(outcome)) for name, outcome in found.items()},
        "rows": found["fresh"].report["rows"],
        "nonzeros": found["fresh"].report["nonzeros"],
    }


def proof_of(outcome: Outcome) -> ours.Proof:
    """What a run of two classes proved at its end, as bounds on the least primal."""
    proven, report = outcome.report["certificate"], outcome.report
    return ours.Proof(
        report["readings"],
        report["seconds"],
        0.5 / proven["primal_margin"] ** 2,
        0.5 / proven["upper_bound"] ** 2,
    )


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
        "data, C, more rows",
        "update s",
        "over s",
        "ratio",
        "to the certificate",
        "cached s",
        "ratio",
        "update readings",
        "gap",
        "bounds",
    ]
    lines = []
    for case in cases:
        seconds, readings, proof = case["median_seconds"], case["readings"], case["proofs"]
        gap = 1.0 - proof["update"]["dual"] / proof["update"]["primal"]
        lines.append(
            [
                f"{case['data']}, {case['C']:g}, +{case['more']:.0%}",
                f"{seconds['update']:.3f}",
                f"{seconds['over']:.3f}",
                f"{case['ratio']:.2f}",
                f"{case['ratio_to_certificate']:.2f}",
                f"{seconds['fresh']:.3f}",
                f"{case['ratio_cached']:.2f}",
                f"{readings['update']:.3g}",
                f"{gap:.1e}",
                _verdict(case),
            ]
        )
    measure.print_table("an update, and starting over with all rows", head, lines)
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
