"""What one model in parts costs in rounds and bytes, by data set and C.

    python benchmarks/parts.py a9a.xz rcv1.xz --generate 40000 --C 0.5 50
    python benchmarks/parts.py a9a.xz --sorted

A data set is cut into ``--parts`` shards of consecutive rows, a part each, and fitted to a gap of
``--tol``. With ``--sorted`` its rows are sorted by label first, so that parts are not alike. Bytes
are what a worker that holds all parts would be sent and would send, a round, in units of a number
of 8 bytes a column; the bins of a scan, which are as many whatever the columns, are left out.
The constants of ``streamtron/solver/joint.py``, and START_GAP of ``part.py``, were chosen by
these counts: change one there, and compare.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import measure
import numpy as np
from data import add_data_arguments, data_sets, load, need_data, write_libsvm
from problem import Data

from streamtron.cluster.parts import array_bytes
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import StreamtronError
from streamtron.core.executor import LocalParts, Parts, Scans
from streamtron.runs.fit import run
from streamtron.runs.parts import PartPlan, open_part


class CountedParts(LocalParts):
    """Parts in this process, and the bytes of arrays given to them and returned."""

    def __init__(self, plans: Sequence[PartPlan], scans: Scans) -> None:
        super().__init__([open_part(plan, scans) for plan in plans])
        self.bytes: Counter[str] = Counter()

    def _map(self, step: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        found = super()._map(step, arguments)
        self.bytes["to"] += array_bytes(arguments)
        self.bytes["from"] += array_bytes(found)
        return found


def cut(data: Data, parts: int, directory: Path) -> list[Path]:
    """Write the rows to so many shards."""
    found = []
    for number, own in enumerate(np.array_split(np.arange(len(data.labels)), parts)):
        found.append(directory / f"{number:03d}.svm")
        write_libsvm(Data(data.rows[own], data.labels[own]), found[-1])
    return found


def fitted(shards: Sequence[Path], settings: Settings) -> dict[str, Any]:
    """A fit: what it took."""
    opened: list[CountedParts] = []

    @contextmanager
    def counted(plans: Sequence[PartPlan], scans: Scans) -> Iterator[Parts]:
        opened.append(CountedParts(plans, scans))
        yield opened[-1]

    report = run(shards, settings, machine=Machine(), open_parts=counted).report
    a_round = 8.0 * report["columns"] * report["rounds"]
    return {
        "C": settings.C,
        "rounds": report["rounds"],
        "to": opened[-1].bytes["to"] / a_round,
        "from": opened[-1].bytes["from"] / a_round,
        "readings": report["readings"],
        "gap": report["certificate"]["relative_duality_gap"],
        "steps": {name: step["rounds"] for name, step in report["steps"].items()},
    }


def measured(path: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The fits of one data set."""
    data = load([path])
    if options.sorted:
        order = np.argsort(data.labels, kind="stable")
        data = Data(data.rows[order], data.labels[order])
    with tempfile.TemporaryDirectory(prefix="streamtron-bench-") as directory:
        shards, found = cut(data, options.parts, Path(directory)), []
        for C in options.C:
            settings = Settings(C=C, tol=options.tol, parts=options.parts)
            found.append({"data": Path(path).name, **fitted(shards, settings)})
    return found


def show(rows: Sequence[dict[str, Any]], title: str) -> None:
    """The table."""
    lines = [
        [
            row["data"],
            f"{row['C']:g}",
            f"{row['rounds']}",
            f"{row['to']:.2f}",
            f"{row['from']:.2f}",
            f"{row['readings']:g}",
            f"{row['gap']:.1e}",
            ", ".join(f"{name} {count}" for name, count in row["steps"].items()),
        ]
        for row in rows
    ]
    head = ["", "C", "rounds", "to", "from", "readings", "gap", "rounds by step"]
    measure.print_table(title, head, lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_data_arguments(parser)
    parser.add_argument("--C", type=float, nargs="+", default=[0.5, 1.0, 50.0])
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--sorted", action="store_true", help="sort the rows by label first")
    parser.add_argument("--results", type=Path, default=measure.RESULTS, help="where they go")
    parser.add_argument("--tiny", action="store_true", help="does it run at all? some seconds")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.generate, options.kind, options.columns, options.C = 2000, ["dense"], 20, [0.5]
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
    show(rows, f"{options.parts} parts to a gap of {options.tol:g}; bytes a round / (8 · columns)")
    print(f"\n{measure.save('parts', {'machine': machine, 'rows': rows}, options.results)}")


if __name__ == "__main__":
    try:
        main()
    except StreamtronError as error:
        raise SystemExit(f"parts: {error}") from None
