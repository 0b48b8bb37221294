"""Processor time of a whole process, start included: the help, a small fit, the first fit on a
machine, a first prediction.

    python benchmarks/startup.py [--repeats 5]

An interpreter that does nothing takes its turn too. See README.md here.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import measure
from data import generated

import streamtron
from streamtron.data.writers.corpus import generate

WANTED = {
    "import streamtron": 0.06,
    "streamtron --help": 0.12,
    "fit": 1.5,
    "first fit": 6.0,
    "predict 100 rows": 0.6,
    "model.predict of a text": 0.3,
}
"""Seconds that each may take."""

PREDICT = "import sys, streamtron; streamtron.load(sys.argv[1]).predict(['the second words'])"

COMMAND = "import sys; from streamtron.cli.main import main; sys.exit(main())"
"""What the installed command does; so it is the same package that the rest here measures."""


WARM = {"PYTHONDONTWRITEBYTECODE": ""}
"""Modules are compiled once, as on machines that do not forbid it."""


def seconds_of(*words: str, **environment: str) -> float:
    """Processor time of one Python process from start to end; it must succeed."""
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **WARM, **environment},
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime


def fit(rows: str, **environment: str) -> float:
    """A fit with a run directory of its own: nothing is cached but, perhaps, the kernels."""
    with tempfile.TemporaryDirectory(prefix="streamtron-bench-") as directory:
        model = str(Path(directory) / "model")
        return seconds_of("-c", COMMAND, "fit", rows, "--model", model, **environment)


def first_fit(rows: str) -> float:
    """A fit that finds no compiled kernel."""
    with tempfile.TemporaryDirectory(prefix="streamtron-bench-") as kernels:
        return fit(rows, NUMBA_CACHE_DIR=kernels)


def models(rows: str, directory: Path) -> tuple[str, str, str]:
    """A model of the rows, 100 more, and a model of texts."""
    streamtron.fit(rows, model=directory / "model")
    generate(str(directory / "new"), rows=100, columns=400, seed=1)
    (directory / "texts.csv").write_text("label,text\na,the first words\nb,the second words\n")
    streamtron.fit(directory / "texts.csv", text="text", model=directory / "words")
    return str(directory / "model"), str(directory / "new"), str(directory / "words")


def starts(rows: str, repeats: int) -> dict[str, list[float]]:
    """Seconds of all of them, in turn, after one round that is not counted."""
    contenders = {
        "python, nothing": lambda: seconds_of("-c", "pass"),
        "import streamtron": lambda: seconds_of("-c", "import streamtron"),
        "streamtron --help": lambda: seconds_of("-c", COMMAND, "--help"),
        "fit": lambda: fit(rows),
        "first fit": lambda: first_fit(rows),
    }
    fit(rows)  # compiles the kernels, if nobody has yet
    with tempfile.TemporaryDirectory(prefix="streamtron-bench-") as directory:
        model, new, words = models(rows, Path(directory))
        labels = str(Path(directory) / "labels.tsv")
        contenders["predict 100 rows"] = lambda: seconds_of(
            "-c", COMMAND, "predict", model, new, "-o", labels
        )
        contenders["model.predict of a text"] = lambda: seconds_of("-c", PREDICT, words)
        return measure.alternate(contenders, repeats)


def show(found: Mapping[str, Sequence[float]], rows: int) -> None:
    """The table."""
    lines = []
    for name, seconds in found.items():
        wanted = WANTED.get(name)
        lines.append(
            [
                name,
                f"{measure.median(seconds):.3f}",
                f"{min(seconds):.3f}",
                "" if wanted is None else f"{wanted:g}",
                "" if wanted is None else f"{measure.median(seconds) / wanted:.2f}",
            ]
        )
    head = ["whole process", "seconds", "least", "wanted", "/ wanted"]
    measure.print_table(f"fits of {rows:,} rows, run directory and model included", head, lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--columns", type=int, default=30_000)
    parser.add_argument("--repeats", type=int, default=5, help="processes of each, in turn")
    parser.add_argument("--results", type=Path, default=measure.RESULTS, help="where they go")
    parser.add_argument("--tiny", action="store_true", help="does it run at all? some seconds")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.columns, options.repeats = 200, 400, 1
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    options = parse(arguments)
    machine = measure.machine()
    measure.print_machine(machine)
    with generated(options.rows, options.columns, seed=0) as rows:
        found = starts(rows, options.repeats)
    show(found, options.rows)
    middle = {name: measure.median(seconds) for name, seconds in found.items()}
    results: dict[str, Any] = {
        "machine": machine,
        "rows": options.rows,
        "wanted": WANTED,
        "median_seconds": middle,
        "all_seconds": found,
    }
    print(f"\n{measure.save('startup', results, options.results)}")


if __name__ == "__main__":
    main()
