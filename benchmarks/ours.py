"""streamtron as a contender: training from a warm cache, timed, with what each reading proved."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from streamtron.core import kernels
from streamtron.core.config import Machine, Settings
from streamtron.core.events import Event, Listener, ReadingDone, WorkDone, ignore
from streamtron.runs.fit import opened as open_fit
from streamtron.runs.job import Call, Fitting


@dataclass
class Proof:
    """What was proven after some readings: D ≤ P* ≤ ``primal``."""

    readings: float
    seconds: float
    primal: float
    dual: float


@dataclass
class Fit:
    """One training run.

    Parameters
    ----------
    seconds : opening the shards and training; the shards were prepared.
    readings, mini_epochs, ending : as in a report.
    rows, columns, nonzeros : of the data.
    proofs : after every reading that certified.
    v : the augmented weights, those of columns before the first left out, at the certificate's
        scale.
    """

    seconds: float
    readings: float
    full_epochs: int
    mini_epochs: int
    stop_reason: str
    rows: int
    columns: int
    nonzeros: int
    v: NDArray[np.float64]
    proofs: list[Proof] = field(default_factory=list)

    @property
    def primal(self) -> float:
        """P of the model."""
        return self.proofs[-1].primal

    @property
    def dual(self) -> float:
        """D ≤ P*."""
        return self.proofs[-1].dual

    @property
    def gap(self) -> float:
        """The relative duality gap that was proven."""
        return max(0.0, 1.0 - self.dual / self.primal)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        plain = asdict(self) | {"gap": self.gap}
        del plain["v"]
        return plain


@contextmanager
def opened(
    paths: list[str],
    cache: str,
    candidates: Sequence[Settings],
    listen: Listener = ignore,
    threads: int | None = None,
) -> Iterator[Fitting]:
    """A fit of candidates whose data are prepared in the cache."""
    machine = Machine(cache_dir=cache, threads=threads)
    with open_fit(paths, candidates, Call.begin(machine, listen), cache) as fitting:
        yield fitting


def fill_cache(paths: list[str], cache: str, settings: Settings | None = None) -> None:
    """Prepare the shards, which writes the cache."""
    with opened(paths, cache, [settings or Settings()]):
        pass


def warm(cache: str) -> None:
    """Have the cache's bytes in memory before the clock starts."""
    for path in Path(cache).iterdir():
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 22):
                pass


def fit(paths: list[str], cache: str, settings: Settings) -> Fit:
    """Train from the cache."""
    proofs: list[Proof] = []
    start = last_chunk = time.perf_counter()

    def note_proof(event: Event) -> None:
        nonlocal last_chunk
        if isinstance(event, WorkDone) and event.rows:
            last_chunk = time.perf_counter()
        elif isinstance(event, ReadingDone) and event.certificate is not None:
            # the event comes after the mini-epochs; the proof was there with the last chunk
            proven = event.certificate
            seconds = last_chunk - start
            proofs.append(Proof(event.reading + 1, seconds, proven.primal, proven.dual))

    with opened(paths, cache, [settings], note_proof) as fitting:
        [[learner]] = fitting.train()
        seconds, data = time.perf_counter() - start, fitting.data
        v = np.zeros(data.width + 1)
        v[data.numbers], v[-1] = learner.best.w, learner.best.bias
        return Fit(
            seconds,
            data.readings,
            learner.progress.full_epochs,
            learner.progress.mini_epochs,
            str(learner.progress.finished),
            data.rows,
            data.width,
            data.nonzeros,
            v[data.index_base :],
            proofs,
        )


def fit_plainly(paths: list[str], cache: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The same with plain values in and out, for a process of its own."""
    return fit(paths, cache, Settings.from_dict(settings)).to_dict()


@contextmanager
def counting_nonzeros() -> Iterator[list[int]]:
    """Counts the nonzeros that kernels visit, in training, scans and Newton's method: the sum is
    in the list. It costs time: not for a timed run."""
    visited = [0]

    def counted(name: str) -> Any:
        original = getattr(kernels, name)

        def call(rows: Any, *arguments: Any) -> Any:
            by_order = name == "visit"
            visited[0] += _nonzeros(rows.indptr, arguments[0] if by_order else None)
            return original(rows, *arguments)

        return mock.patch.object(kernels, name, call)

    names = ("visit", "scan", "margins", "combine", "gram_product")
    patches = [counted(name) for name in names]
    for patch in patches:
        patch.start()
    try:
        yield visited
    finally:
        for patch in patches:
            patch.stop()


def _nonzeros(indptr: NDArray[np.int64], order: NDArray[np.int64] | None) -> int:
    if order is None:
        return int(indptr[-1] - indptr[0])
    return int((indptr[order + 1] - indptr[order]).sum())
