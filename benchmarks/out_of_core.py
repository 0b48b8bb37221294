"""Fits with a part of the rows in memory, from shards to a certified model, trees in turn.

    python benchmarks/out_of_core.py --data DIR --trees OLD NEW --held 1 6 24
    python benchmarks/out_of_core.py a9a.xz ccat.xz --topic topics.xz C11 --sets text:160000

Every fit is a process of its own. A set is NAME or NAME:ROWS. See README.md here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import measure
import peers
from certified import Rival
from data import SETS, count, load, made, of_topic, plain_text
from problem import Problem
from startup import WARM

from streamtron.core.errors import StreamtronError
from streamtron.core.text import parse_size

HERE = Path(__file__).resolve().parents[1]
PHASES = ("seconds", "phases", "seconds_by_phase")
"""Where a report may have its seconds by phase."""
SAME = 1e-4
"""Relative: held-out losses that differ by no more are the same."""
FIGURES = ("seconds", "processor_seconds", "fit_seconds", "peak_bytes", "readings", "gap")
SHUFFLED = {"clicks-by-label": "clicks", "clicks-by-day": "clicks-any-day"}
"""The set to whose seconds those of another order are compared."""


# --- one fit ---


@dataclass(frozen=True)
class Case:
    """What is fitted, with one of ``held`` parts of the rows in memory.

    ``name`` is the set's, ``path`` its shards; ``rows`` and ``nonzeros`` are counted.
    """

    name: str
    path: str
    rows: int
    nonzeros: int
    loss: str
    C: float
    held: int

    @property
    def active_set(self) -> int:
        """Bytes that hold this part; a tenth more where it is all, so that it surely fits."""
        whole = 8 * self.nonzeros + 24 * self.rows
        return whole * 11 // 10 if self.held == 1 else whole // self.held


def started(tree: Path, words: Sequence[str], directory: str) -> dict[str, Any]:
    """The environment and the place of a process that uses the package of ``tree``."""
    environment = {**os.environ, **WARM, "PYTHONPATH": str(tree)}
    return {"args": words, "env": environment, "cwd": directory}


@contextmanager
def fitted(
    tree: Path, case: Case, options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A fit: the model's path, which lives as long as the block, and the figures."""
    with tempfile.TemporaryDirectory(prefix="streamtron-bench-") as directory:
        model, report = f"{directory}/model", Path(directory) / "report.json"
        words = [*options.before, sys.executable, "-m", "streamtron", "fit", case.path]
        words += ["--model", model, "--report", str(report), "--loss", case.loss]
        words += ["--C", repr(case.C), "--tol", repr(options.tol)]
        words += ["--active-set", str(case.active_set), *options.behind]
        with open(f"{directory}/said", "w+") as said:
            start = time.perf_counter()
            process = subprocess.Popen(
                **started(tree, words, directory), stdout=subprocess.DEVNULL, stderr=said
            )
            _, status, used = os.wait4(process.pid, 0)  # of this process, not of all before
            seconds = time.perf_counter() - start
            process.returncode = os.waitstatus_to_exitcode(status)
            if not report.exists():  # not certified is no failure here
                said.seek(0)
                raise SystemExit(f"out_of_core: {process.returncode} from {words}:\n{said.read()}")
        figures = read_report(json.loads(report.read_text()))
        figures |= {"seconds": seconds, "processor_seconds": used.ru_utime + used.ru_stime}
        yield model, figures | {"peak_bytes": used.ru_maxrss * 1024}


def read_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a report tells; seconds by phase and visits where it does."""
    proven = report.get("certificate") or {}
    whole, visits = report["seconds"], report.get("visits")
    phases = next((report[key] for key in PHASES if isinstance(report.get(key), dict)), {})
    return {
        "fit_seconds": sum(whole.values()) if isinstance(whole, dict) else whole,
        "readings": report["readings"],
        "gap": proven.get("relative_duality_gap"),
        "primal": proven.get("primal_objective"),
        "certified": report["stop_reason"] == "certified",
        "phases": phases,
        "visits": visits,
        "visits_a_row": visits,
    }


def compare(case: Case, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The medians of every tree, whose fits take turns; every fit is a line of the results."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for turn in range(-options.warm_ups, options.repeat):
        for letter, tree in zip(ascii_uppercase, options.trees, strict=False):
            measure.note(f"{case.name}, {case.loss}, C = {case.C:g}, 1/{case.held}: {letter}")
            with fitted(tree, case, options) as (_, figures):
                line = {**asdict(case), "active_set": case.active_set, "tree": letter, **figures}
            told = {"kind": "fit", "checkout": str(tree), "turn": turn, "tol": options.tol}
            told["limit"] = [*options.before, *options.behind]
            measure.append(told | line, options.results)
            if turn >= 0:
                runs[letter].append(line)
    found = [medians(lines) for lines in runs.values()]
    for line in found:
        measure.append({"kind": "medians", **line}, options.results)
    return found


def medians(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The last run, with the medians of what is measured."""
    found = runs[-1] | {"certified": all(run["certified"] for run in runs)}
    for name in FIGURES:
        if found[name] is not None:
            found[name] = measure.median([run[name] for run in runs])
    for name in found["phases"]:
        found["phases"][name] = measure.median([run["phases"][name] for run in runs])
    return found


# --- the rivals, all rows in memory ---


def race(case: Case, held: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rivals to the primal that the last tree certifies, Vowpal Wabbit to its held-out loss."""
    with fitted(options.trees[-1], case, options) as (model, figures):
        words = [sys.executable, "-m", "streamtron", "evaluate", model, held, "--json"]
        place = started(options.trees[-1], words, str(Path(model).parent))
        done = subprocess.run(**place, stdout=subprocess.PIPE, check=True)
    wanted = json.loads(done.stdout).get("log_loss") if case.loss == "log_loss" else None
    measure.note(f"{case.name}, {case.loss}, C = {case.C:g}: the rivals")
    task = (asdict(case), held, figures["primal"], wanted, options.repeat, options.time_limit)
    found, _ = measure.in_fresh_process(rivals, *task)
    own = {"name": "streamtron, what is to be reached", "held_out": wanted}
    own |= {name: figures[name] for name in ("seconds", "primal")}
    lines = [{**asdict(case), **one} for one in (own, *found)]
    for line in lines:
        measure.append({"kind": "rival", **line}, options.results)
    return lines


def rivals(
    case: dict[str, Any], held: str, target: float, wanted: float | None, *limits: int
) -> list[dict[str, Any]]:
    """The task of a fresh process; ``limits``: repeats, and the seconds of a rival's search."""
    (repeats, time_limit), start, loss = limits, time.perf_counter(), case["loss"]
    problem = Problem.of(load([case["path"]]), case["C"], 1.0, loss)
    loading, found = time.perf_counter() - start, []
    makers = {"liblinear": partial(peers.Liblinear, problem, peers.SOLVERS[loss][0])}
    if loss != "hinge":
        makers["cyanure"] = partial(peers.Cyanure, problem)
    for maker in (maker for library, maker in makers.items() if peers.available(library)):
        start = time.perf_counter()
        rival = Rival(maker())
        own_loading = time.perf_counter() - start
        rival.search(target, time_limit)
        one = rival.quickest(target) or rival.nearest
        runs = [one.seconds, *(rival.peer.run(one.setting).seconds for _ in range(repeats - 1))]
        figures = {"name": rival.peer.name, "seconds": measure.median(runs), "passes": one.passes}
        figures |= {"loading_seconds": loading + own_loading, "primal": one.primal}
        found.append(figures | {"setting": one.setting, "reached": one.primal <= target})
    if wanted is not None and peers.available("vowpalwabbit"):
        wanted *= 1.0 + SAME
        for run in peers.vowpal_to_loss(problem, load([held]), wanted, repeats):
            figures = {"name": "VW logistic", "reached": run.held_out <= wanted}
            found.append({**figures, **run._asdict(), "setting": run.rate})
    return found


# --- what is printed ---


def key(one: Mapping[str, Any], **other: Any) -> tuple[Any, ...]:
    """What tells fits apart, with some of it in the place of its own."""
    return tuple((one | other)[name] for name in ("name", "rows", "loss", "C", "held", "tree"))


def show(found: Sequence[dict[str, Any]]) -> None:
    """A line a case and tree, beside the first tree (A), all rows in memory, shuffled rows."""
    known = {key(one): one for one in found}

    def times(one: dict[str, Any], figure: str, **other: Any) -> str:
        base = known.get(key(one, **other))
        return "" if base is None else f"{one[figure] / base[figure]:.2f}"

    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "set": lambda one: one["name"],
        "rows": lambda one: f"{one['rows']:,}",
        "loss": lambda one: one["loss"],
        "C": lambda one: f"{one['C']:g}",
        "held": lambda one: "all" if one["held"] == 1 else f"1/{one['held']}",
        "tree": lambda one: one["tree"],
        "s": lambda one: f"{one['seconds']:.2f}",
        "s / A": lambda one: times(one, "seconds", tree="A"),
        "cpu s": lambda one: f"{one['processor_seconds']:.2f}",
        "cpu / A": lambda one: times(one, "processor_seconds", tree="A"),
        "s / all": lambda one: times(one, "seconds", held=1),
        "s / shuffled": lambda one: times(one, "seconds", name=SHUFFLED.get(one["name"])),
        "fit s": lambda one: f"{one['fit_seconds']:.2f}",
        "peak MB": lambda one: f"{one['peak_bytes'] / 1e6:.0f}",
        "readings": lambda one: f"{one['readings']:g}",
        "gap": lambda one: "" if one["gap"] is None else f"{one['gap']:.1e}",
        "certified": lambda one: "yes" if one["certified"] else "NO",
        "visits a row": lambda one: _number(one["visits_a_row"]),
        "s by phase": lambda one: ", ".join(f"{k} {v:.2f}" for k, v in one["phases"].items()),
    }
    print()
    measure.print_markdown([*columns], [[cell(one) for cell in columns.values()] for one in found])
    for tree in sorted({one["tree"] for one in found} - {"A"}):
        pairs = [(one, known[key(one, tree="A")]) for one in found if one["tree"] == tree]
        ratios = [one["seconds"] / first["seconds"] for one, first in pairs]
        told = f"median {measure.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
        print(f"\nseconds of {tree} / A in {len(ratios)} cases: {told}")


def show_rivals(found: Sequence[dict[str, Any]]) -> None:
    """A line a rival."""
    head = ["rows", "loss", "C", "rival", "s", "loading s", "passes", "setting", "P", "held out"]
    figures = ("seconds", "loading_seconds", "passes", "setting", "primal", "held_out")
    lines = []
    for one in found:
        line = [f"{one['rows']:,}", one["loss"], f"{one['C']:g}", one["name"]]
        line += [_number(one.get(figure)) for figure in figures]
        lines.append([*line, "yes" if one.get("reached", True) else "NO"])
    print()
    measure.print_markdown([*head, "reached"], lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


# --- the command ---


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("files", nargs="*", help="rows as libsvm text (.xz too), as well as --sets")
    add("--topic", nargs=2, metavar=("FILE", "NAME"), help="as in certified.py, of the last file")
    add("--sets", nargs="*", metavar="NAME[:ROWS]", help=f"{', '.join(SETS)} [clicks]")
    add("--data", type=Path, help="directory of the sets, which are made once [temporary]")
    add("--trees", type=Path, nargs="+", default=[HERE], help="checkouts, the first to compare to")
    add("--loss", nargs="+", default=["log_loss", "squared_hinge"])
    add("--C", type=float, nargs="+", default=[1.0])
    add("--held", type=int, nargs="+", default=[1, 6, 24], help="1 = all rows in memory, 6 = 1/6 …")
    add("--tol", type=float, default=1e-3)
    add("--repeat", type=int, default=3, help="timed fits of each tree, in turn")
    add("--warm-ups", type=int, default=1, help="fits before those, which compile the kernels")
    add("--rivals", action="store_true", help="LIBLINEAR, Cyanure, Vowpal Wabbit on click logs")
    add("--time-limit", type=int, default=600, help="seconds that a rival may search")
    add("--memory-limit", type=parse_size, metavar="SIZE", help="of a control group round each fit")
    add("--results", type=Path, default=measure.RESULTS / "out_of_core.jsonl", help="added to")
    add("--tiny", action="store_true", help="does it run at all? some seconds")
    options = parser.parse_args(arguments)
    if options.topic and not options.files:
        parser.error("--topic needs a file of rows")
    if options.sets is None:
        options.sets = [] if options.files else ["clicks"]
    if options.tiny:
        options.sets, options.held, options.repeat, options.warm_ups = ["clicks:500"], [1, 6], 1, 0
    for name in (text.partition(":")[0] for text in options.sets):
        if name not in SETS:
            parser.error(f"--sets: {name!r}; expected one of {', '.join(SETS)}")
    options.trees = [tree.resolve() for tree in options.trees]
    options.results = options.results.resolve()
    return options


def places(options: argparse.Namespace, home: Path, stack: ExitStack) -> Iterator[tuple[str, str]]:
    """The name and path of every set; files are unpacked."""
    for text in options.sets:
        name, _, rows = text.partition(":")
        yield name, made(name, int(rows or SETS[name][0]), home)
    for path in options.files:
        yield Path(path).name, str(Path(stack.enter_context(plain_text(path))).resolve())
    if options.topic:
        yield options.topic[1], stack.enter_context(of_topic(options.files[-1], *options.topic))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    options = parse(arguments)
    machine = measure.machine()
    measure.print_machine(machine)
    for letter, tree in zip(ascii_uppercase, options.trees, strict=False):
        print(f"{letter}: {tree}")
    measure.append({"kind": "machine", "at": time.time(), **machine}, options.results)
    found, raced, options.before, options.behind = [], [], [], []
    with ExitStack() as stack:
        if (size := options.memory_limit) is not None:
            options.before = stack.enter_context(measure.control_group(size)) or []
            options.behind = [] if options.before else ["--memory", str(size)]
            way = options.before[:1] or "--memory, since no control group was possible"
            print(f"memory limited to {size:,} bytes by {way}")
        home = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, path in places(options, home.resolve(), stack):
            rows, nonzeros = measure.in_fresh_process(count, path)[0]
            for loss, C in product(options.loss, options.C):
                cases = [Case(name, path, rows, nonzeros, loss, C, held) for held in options.held]
                for case in cases:
                    found += compare(case, options)
                if options.rivals and name in ("clicks", "clicks-one") and loss in peers.SOLVERS:
                    held = made("clicks-held-out", rows, home.resolve())
                    raced += race(cases[0], held, options)
    show(found)
    if raced:
        show_rivals(raced)
    print(f"\n{options.results}")


if __name__ == "__main__":
    try:
        main()
    except StreamtronError as error:
        raise SystemExit(f"out_of_core: {error}") from None
