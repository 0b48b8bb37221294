"""How things are measured: alternating runs, medians, fresh processes, and on which machine."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

TURN = 0.1
"""Seconds that a contender is at work, at least, before it is another one's turn."""
RESULTS = Path(__file__).resolve().parent / "results"
LIBRARIES = (
    "streamtron",
    "numpy",
    "scipy",
    "numba",
    "pyarrow",
    "scikit-learn",
    "liblinear-official",
    "vowpalwabbit",
    "cyanure",
    "xgboost-cpu",
    "matplotlib",
)


def alternate(
    contenders: Mapping[str, Callable[[], float]], repeats: int
) -> dict[str, list[float]]:
    """Seconds of every contender, which take turns, ``repeats`` rounds.

    Each contender times itself and returns seconds, so what it must prepare is not counted. A turn
    is one run, or as many as take ``TURN`` together, and then their mean: a few milliseconds would
    measure what the one before has left in the processor's caches. The round's first is another one
    each time: none always runs after the same one.

    Examples
    --------
    >>> calls = []
    >>> turns = {x: lambda x=x: float(calls.append(x) or len(calls)) for x in "abc"}
    >>> alternate(turns, repeats=3)
    {'a': [1.0, 6.0, 8.0], 'b': [2.0, 4.0, 9.0], 'c': [3.0, 5.0, 7.0]}
    >>> "".join(calls)
    'abcbcacab'
    """
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats):
        first = turn % max(len(names), 1)
        for name in names[first:] + names[:first]:
            seconds[name].append(_turn(contenders[name]))
    return seconds


def _turn(contender: Callable[[], float]) -> float:
    runs = [contender()]
    while sum(runs) < TURN:
        runs.append(contender())
    return statistics.fmean(runs)


def median(seconds: Sequence[float]) -> float:
    """The median, as a float."""
    return float(statistics.median(seconds))


def in_fresh_process(task: Callable[..., Result], *arguments: Any) -> tuple[Result, int]:
    """(what ``task`` returns, peak resident bytes) of a process that does nothing else.

    ``task`` is a function of a module beside this one; arguments and result go as JSON. Only that
    module is imported, so a peak holds no library of another contender.
    """
    module = Path(inspect.getfile(task)).stem  # not __module__: a script's own is __main__
    command = [sys.executable, str(Path(__file__).resolve()), module, task.__name__]
    done = subprocess.run(
        command, input=json.dumps(arguments), stdout=subprocess.PIPE, text=True, check=True
    )
    found, peak = json.loads(done.stdout.splitlines()[-1])
    return found, peak


def _perform(module: str, name: str) -> None:
    """What the fresh process does."""
    task = getattr(importlib.import_module(module), name)
    found = task(*json.load(sys.stdin))
    print(json.dumps([found, peak_memory()]))


def peak_memory() -> int:
    """Peak resident bytes of this program: ``ru_maxrss``, less what its parent had.

    Linux counts in ``ru_maxrss`` also the peak of the process that a program was started from;
    ``VmHWM`` is the same figure for the program alone.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no line VmHWM: the benchmarks need Linux.")


@contextmanager
def control_group(size: int) -> Iterator[list[str] | None]:
    """The words before a command that run it in a control group of ``size`` bytes; None where
    nothing permits one."""
    scope = ["--scope", "--quiet", "--no-ask-password", "--property=MemorySwapMax=0"]
    scope.append(f"--property=MemoryMax={size}")
    ways = [["systemd-run", *scope], ["systemd-run", "--user", *scope]]
    with ExitStack() as stack:
        root, own = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup").read_text().splitlines()[-1]
        if own.startswith("0::/") and (root / "cgroup.controllers").exists():
            beside = (root / own[4:]).parent if own[4:] else root
            group = beside / f"streamtron-bench-{os.getpid()}"
            try:
                group.mkdir()
                stack.callback(group.rmdir)
                (group / "memory.max").write_text(str(size))
                ways.append(["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"])
            except OSError as error:
                note(f"no control group by {group}: {error}")
        yield next((words for words in ways if _works(words)), None)


def _works(words: Sequence[str]) -> bool:
    """Whether these words before a command run it."""
    if shutil.which(words[0]) is None:
        return False
    return subprocess.run([*words, "true"], capture_output=True).returncode == 0


def machine() -> dict[str, Any]:
    """Processor, cores, load and versions: what a figure is worth nothing without."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "libraries": {name: version for name in LIBRARIES if (version := _version(name))},
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def print_machine(found: Mapping[str, Any]) -> None:
    """Two lines at the head of every benchmark."""
    print(
        f"{found['cpu']}, {found['cores']} cores, {found['memory_bytes'] / 2**30:.0f} GiB, load "
        f"{found['load']}, {found['system']}, Python {found['python']}"
    )
    print(", ".join(f"{name} {version}" for name, version in found["libraries"].items()))


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A plain table: the first column to the left, the others to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    print(f"\n{title}")
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())


def print_markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The same in Markdown."""
    for line in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(line)} |")


def note(text: str) -> None:
    """Progress, to stderr."""
    print(text, file=sys.stderr, flush=True)


def save(name: str, results: Any, directory: Path) -> Path:
    """Write ``directory/name.json``; numbers that are not finite become null."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    path.write_text(json.dumps(_finite(results), indent=2, allow_nan=False) + "\n")
    return path


def append(result: Mapping[str, Any], path: Path) -> None:
    """Add a line of JSON to a file; numbers that are not finite become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        file.write(json.dumps(_finite(result), allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    _perform(*sys.argv[1:])
