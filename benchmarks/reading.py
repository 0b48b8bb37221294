"""How fast rows arrive: text parsed beside other parsers, our cache beside arrays in memory.

    python benchmarks/reading.py rcv1.xz [--repeats 5]

Millions of nonzeros a second, one data set after another. See README.md here.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np
import ours
import peers
from data import add_data_arguments, data_sets, load, need_data, plain_text

from streamtron.core.config import Settings
from streamtron.core.errors import StreamtronError
from streamtron.core.limits import available_processors
from streamtron.core.losses import SQUARED_HINGE
from streamtron.core.rows import Chunk
from streamtron.data import Dataset, ReaderConfig
from streamtron.data.formats.libsvm import LibsvmReader
from streamtron.solver import order
from streamtron.solver.scan import Frozen
from streamtron.solver.targets import TargetRule
from streamtron.solver.weights import WeightState, visit

Contender = Callable[[], float]

RHO = 1.0
DELTA2 = 1.0


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Seconds of a block, to be asked for after it."""
    start = time.perf_counter()
    seconds = [0.0]
    yield lambda: seconds[0]
    seconds[0] = time.perf_counter() - start


# --- text ---


def parse_ours(path: str, threads: int) -> float:
    """Every piece of the file, parsed and checked."""
    with timed() as seconds:
        for _ in LibsvmReader(path, Path(path).name, ReaderConfig(), threads=threads).batches():
            pass
    return seconds()


def parse_sklearn(path: str) -> float:
    """scikit-learn's reader, to float32."""
    from sklearn.datasets import load_svmlight_file

    with timed() as seconds:
        load_svmlight_file(path, dtype=np.float32)
    return seconds()


def parse_xgboost(path: str, threads: int) -> float:
    """XGBoost's DMatrix, on one thread or all."""
    import xgboost

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that reading text is deprecated
        with xgboost.config_context(verbosity=0), timed() as seconds:
            xgboost.DMatrix(f"{path}?format=libsvm", nthread=threads)
    return seconds()


def parse_liblinear(path: str) -> float:
    """LIBLINEAR's Python reader, to scipy."""
    from liblinear.commonutil import svm_read_problem

    with timed() as seconds:
        svm_read_problem(path, return_scipy=True)
    return seconds()


def parse_vowpal(path: str) -> float:
    """Vowpal Wabbit on text of its own with the same rows, learning nothing; it always has a
    thread that parses beside the one that would learn."""
    with timed() as seconds:
        peers.vowpal(f"-d {path} --noop").finish()
    return seconds()


def parsers(path: str, vowpal_text: str | None) -> dict[str, Contender]:
    """All whose library is installed."""
    found: dict[str, Contender] = {
        "streamtron": lambda: parse_ours(path, 1),
        "streamtron, all threads": lambda: parse_ours(path, available_processors()),
    }
    if peers.available("xgboost"):
        found["XGBoost, 1 thread"] = lambda: parse_xgboost(path, 1)
        found["XGBoost, all threads"] = lambda: parse_xgboost(path, 0)
    if peers.available("liblinear"):
        found["LIBLINEAR (Python)"] = lambda: parse_liblinear(path)
    if peers.available("sklearn"):
        found["scikit-learn"] = lambda: parse_sklearn(path)
    if vowpal_text is not None:
        found["VW, its own text"] = lambda: parse_vowpal(vowpal_text)
    return found


# --- epochs ---


@dataclass
class State:
    """A learner's weights and dual variables: every epoch begins from the same."""

    dual: WeightState
    alphas: np.ndarray[Any, np.dtype[np.float32]]

    def copy(self) -> State:
        """Its own arrays."""
        dual = WeightState(len(self.dual.w))
        dual.w, dual.scalars = self.dual.w.copy(), self.dual.scalars.copy()
        return State(dual, self.alphas.copy())


class Epochs:
    """Full epochs over prepared shards, and over the same chunks held in memory."""

    def __init__(self, data: Dataset) -> None:
        self.data = data
        self.groups = order.block_groups(0, 1, data.blocks)
        self.rule_of_targets = TargetRule(DELTA2, data.labels, None, None)
        self.held = list(data.chunks(self.groups))
        self.positions = [self._order(chunk) for chunk in self.held]
        self.targets = [self.rule_of_targets(chunk) for chunk in self.held]
        dual = WeightState(data.columns)
        self.state = State(dual, np.zeros(data.rows, dtype=np.float32))
        self._visit_all(self.state, self.held)  # from here on as in a second reading

    def _order(self, chunk: Chunk) -> np.ndarray[Any, np.dtype[np.int64]]:
        positions: np.ndarray[Any, np.dtype[np.int64]]
        positions = order.visiting_order(Settings(), 1, chunk)
        return positions

    def cache_alone(self) -> float:
        """Every chunk delivered, in groups of blocks, and dropped."""
        with timed() as seconds:
            for _ in self.data.chunks(self.groups):
                pass
        return seconds()

    def cache_scan(self) -> float:
        """Delivered and scanned at frozen weights."""
        with timed() as seconds:
            self._scan_all(self.data.chunks(self.groups))
        return seconds()

    def memory_scan(self) -> float:
        """The scan's kernel alone, rows, signs and prices at hand."""
        frozen = self._frozen()
        with timed() as seconds:
            for chunk, targets in zip(self.held, self.targets, strict=True):
                frozen.scan(chunk.rows, targets, self.state.alphas[targets.numbers], RHO)
        return seconds()

    def cache_visit(self) -> float:
        """Delivered and trained on: order, signs, prices and dual variables made on the way."""
        state = self.state.copy()
        with timed() as seconds:
            self._visit_all(state, self.data.chunks(self.groups))
        return seconds()

    def memory_visit(self) -> float:
        """The training kernel alone, everything at hand."""
        state = self.state.copy()
        parts = [state.alphas[targets.numbers] for targets in self.targets]
        moved = [np.zeros(len(part), dtype=np.uint8) for part in parts]
        everything = zip(self.held, self.positions, self.targets, parts, moved, strict=True)
        with timed() as seconds:
            for chunk, positions, targets, alphas, marks in everything:
                own = chunk.rows, positions, targets, alphas, marks
                visit(state.dual, SQUARED_HINGE, RHO, *own)
        return seconds()

    def _frozen(self) -> Frozen:
        dual = self.state.dual
        return Frozen(dual.w, dual.bias)

    def _scan_all(self, chunks: Iterable[Chunk]) -> None:
        frozen = self._frozen()
        for chunk in chunks:
            targets = self.rule_of_targets(chunk)
            frozen.scan(chunk.rows, targets, self.state.alphas[targets.numbers], RHO)

    def _visit_all(self, state: State, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            targets = self.rule_of_targets(chunk)
            alphas = state.alphas[targets.numbers]
            own = chunk.rows, self._order(chunk), targets, alphas, np.zeros(len(alphas), np.uint8)
            visit(state.dual, SQUARED_HINGE, RHO, *own)
            state.alphas[targets.numbers] = alphas

    def contenders(self, vowpal_cache: peers.VowpalCache | None) -> dict[str, Contender]:
        """The kernels alone first, then what the cache makes of them."""
        found: dict[str, Contender] = {
            "training kernel, memory": self.memory_visit,
            "training from our cache": self.cache_visit,
            "scan kernel, memory": self.memory_scan,
            "scan from our cache": self.cache_scan,
            "our cache alone": self.cache_alone,
        }
        if vowpal_cache is not None:
            found["VW, a cached pass"] = lambda: vowpal_pass(vowpal_cache)
            found["VW, on one processor"] = lambda: on_one_processor(vowpal_pass, vowpal_cache)
        return found


def vowpal_pass(cache: peers.VowpalCache) -> float:
    """One pass with learning from Vowpal Wabbit's cache, with its two threads."""
    with timed() as seconds:
        peers.vowpal(
            f"--cache_file {cache.path} --passes 1 -b {cache.bits} --noconstant "
            "--loss_function hinge --holdout_off"
        ).finish()
    return seconds()


def on_one_processor(run: Callable[[peers.VowpalCache], float], cache: peers.VowpalCache) -> float:
    """Vowpal Wabbit's threads hand over row by row, which may go faster where they share one."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})  # the threads started from here inherit it
    try:
        return run(cache)
    finally:
        os.sched_setaffinity(0, allowed)


# --- the command ---


def rates(
    seconds: Mapping[str, Sequence[float]], nonzeros: int, size: int | None, base: str
) -> dict[str, dict[str, Any]]:
    """Medians, nonzeros and bytes a second, and the ratio to one contender's rate."""
    middle = {name: measure.median(values) for name, values in seconds.items()}
    return {
        name: {
            "median_seconds": value,
            "all_seconds": list(seconds[name]),
            "nonzeros_per_second": nonzeros / value,
            "bytes_per_second": None if size is None else size / value,
            "ratio": middle[base] / value,
        }
        for name, value in middle.items()
    }


def show(title: str, base: str, found: Mapping[str, Mapping[str, Any]]) -> None:
    """One table."""
    head = ["", "M nonzeros/s", "MB/s of text", "seconds", f"rate / {base}"]
    lines = [
        [
            name,
            f"{one['nonzeros_per_second'] / 1e6:.1f}",
            "" if one["bytes_per_second"] is None else f"{one['bytes_per_second'] / 1e6:.0f}",
            f"{one['median_seconds']:.4f}",
            f"{one['ratio']:.3f}",
        ]
        for name, one in found.items()
    ]
    measure.print_table(title, head, lines)


def measure_file(path: str, repeats: int) -> dict[str, Any]:
    """Both comparisons on one data set."""
    data = load([path])
    with ExitStack() as stack:
        text = stack.enter_context(plain_text(path))
        vowpal = peers.VowpalCache(data) if peers.available("vowpalwabbit") else None
        measure.note(f"{Path(path).name}: text")
        own_text = str(vowpal.text) if vowpal else None
        parsed = measure.alternate(parsers(text, own_text), repeats)
        cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="streamtron-bench-"))
        settings = Settings(active_set=0)  # or all rows would be in memory
        fitting = stack.enter_context(ours.opened([path], cache, [settings]))
        measure.note(f"{Path(path).name}: epochs")
        epochs = measure.alternate(Epochs(fitting.data).contenders(vowpal), repeats)
        size = os.path.getsize(text)
    return {
        "data": Path(path).name,
        "rows": len(data.labels),
        "nonzeros": data.nonzeros,
        "text_bytes": size,
        "text": rates(parsed, data.nonzeros, size, "streamtron"),
        "epochs": rates(epochs, data.nonzeros, None, "training kernel, memory"),
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_arguments(parser)
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each, in turn")
    parser.add_argument("--results", type=Path, default=measure.RESULTS, help="where they go")
    parser.add_argument("--tiny", action="store_true", help="does it run at all? some seconds")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.generate, options.columns, options.repeats = 300, 400, 1
    need_data(parser, options)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, save."""
    options = parse(arguments)
    machine = measure.machine()
    measure.print_machine(machine)
    found = []
    with ExitStack() as stack:
        for path in data_sets(options, stack):
            one = measure_file(path, options.repeats)
            title = f"{one['data']}: {one['rows']:,} rows, {one['nonzeros']:,} nonzeros"
            show(f"{title}; text, parsed", "ours", one["text"])
            show(f"{title}; one epoch", "kernel", one["epochs"])
            found.append(one)
    results = {"machine": machine, "repeats": options.repeats, "sets": found}
    print(f"\n{measure.save('reading', results, options.results)}")


if __name__ == "__main__":
    try:
        main()
    except StreamtronError as error:
        raise SystemExit(f"reading: {error}") from None
