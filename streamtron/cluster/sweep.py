"""Distributed sweep: candidates fitted on Dask's workers, several on one scan of each worker.

Results do not depend on the distribution: a candidate's trial is the same beside any others, on any
worker, and when it is fitted again because its first worker died. It goes on from its last
checkpoint then if the workers share the disk of the client's cache.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import xxhash

from streamtron.cluster.client import Workers, still_wanted, worker_memory, worker_name
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import MachineError
from streamtron.core.events import Event
from streamtron.core.files import locked, scratch_directory, write_atomically
from streamtron.core.sealed import canonical
from streamtron.data import TEMPORARY
from streamtron.sweeps.folds import Fold
from streamtron.sweeps.grid import describe_candidate
from streamtron.sweeps.sweep import KeepOutcomes, Trainer, fit_and_measure
from streamtron.sweeps.trial import Trial

SHARE = 0.7
"""Share of its worker's memory that a fit may use: Dask pauses a worker at 0.8, ends it at 0.95."""

Tell = Callable[[Trial, str], None]
"""Is called with every trial as soon as it is finished, and the name of its fold or ``""``."""


class Work(NamedTuple):
    """One task: candidates on one fold.

    Parameters
    ----------
    token : a file that exists for workers that share the client's disk; checkpoints lie beside it.
    """

    fold: Fold
    candidates: tuple[Settings, ...]
    cache_dir: str
    token: str = ""

    @property
    def run_dir(self) -> str:
        """The directory of its checkpoints, which no other task has."""
        what = [list(self.fold), [one.to_dict() for one in self.candidates]]
        digest = xxhash.xxh3_128_hexdigest(canonical(what).encode())
        return os.path.join(os.path.dirname(self.token), f"task-{digest}")

    @property
    def name(self) -> str:
        """Its name on the dashboard.

        Examples
        --------
        >>> Work(Fold([], [], "fold 1 of 2"), (Settings(C=1), Settings(C=2)), "").name
        'sweep fold 1 of 2: C 1, rho 1; C 2, rho 1'
        """
        where = "" if self.fold.name is None else f" {self.fold.name}"
        return f"sweep{where}: {'; '.join(map(describe_candidate, self.candidates))}"


def distributed_trainer(
    workers: Workers, *, machine: Machine, tell: Tell = lambda trial, fold: None
) -> Trainer:
    """Return the ``trainer`` with which ``run_sweep`` fits and measures on these workers.

    The candidates of every fold are distributed over as many tasks as there are workers for it.
    All tasks on one disk share the flat copy of the shards. A cancelled task ends after its current
    chunk.

    Parameters
    ----------
    machine : each task has ``machine.threads`` threads, by default 1, and of its worker's memory
        limit the part SHARE.
    tell : is called with every trial as its task finishes.
    """

    def train(
        folds: Sequence[Fold], candidates: Sequence[Settings], cache_dir: str, keep: KeepOutcomes
    ) -> list[list[Trial]]:
        groups = groups_of(len(candidates), -(-workers.threads // len(folds)))
        with _scratch(cache_dir, shared=machine.cache_dir is not None) as scratch:
            token = _token(scratch)
            works = [
                Work(
                    _absolute_paths(fold),
                    tuple(candidates[number] for number in group),
                    os.path.abspath(cache_dir if fold.name is None else scratch),
                    token,
                )
                for fold in folds
                for group in groups
            ]

            def done(place: int, trials: list[Trial]) -> None:
                for trial in trials:
                    tell(trial, works[place].fold.name or "")

            names = [work.name for work in works]
            found = iter(workers.submit_all(fit_work, works, names, machine, keep, done=done))
        return [_in_order(groups, [next(found) for _ in groups]) for _ in folds]

    return train


def groups_of(candidates: int, most: int) -> list[range]:
    """Distribute the numbers of the candidates over at most ``most`` groups.

    Neighbours, which cost about the same, go to different groups.

    Examples
    --------
    >>> [list(group) for group in groups_of(5, 2)], len(groups_of(2, 4))
    ([[0, 2, 4], [1, 3]], 2)
    """
    count = min(candidates, most)
    return [range(first, candidates, count) for first in range(count)]


def _in_order(groups: Sequence[range], found: Sequence[list[Trial]]) -> list[Trial]:
    """Return the groups' trials in the order of the candidates, with their numbers."""
    trials = {
        number: replace(trial, candidate=number)
        for group, own in zip(groups, found, strict=True)
        for number, trial in zip(group, own, strict=True)
    }
    return [trials[number] for number in sorted(trials)]


def _absolute_paths(fold: Fold) -> Fold:
    shards, valid = (
        [path if "://" in path else os.path.abspath(path) for path in paths]
        for paths in (fold.shards, fold.valid)
    )
    return fold._replace(shards=shards, valid=valid)


@contextmanager
def _scratch(cache_dir: str, *, shared: bool) -> Iterator[str]:
    """Make a directory for the folds' caches and for checkpoints, removed at the end.

    Unfinished files of killed workers are removed from the cache as well, unless it is ``shared``
    with other processes that may be writing there.
    """
    os.makedirs(cache_dir, exist_ok=True)
    before = set(os.listdir(cache_dir))
    try:
        with scratch_directory("sweep-", cache_dir) as directory:
            yield directory
    finally:
        for name in () if shared else set(os.listdir(cache_dir)) - before:
            if name.endswith(TEMPORARY):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(cache_dir, name))


def _token(directory: str) -> str:
    """Write a file whose name no other directory has."""
    path = os.path.join(os.path.abspath(directory), f"here-{secrets.token_hex(8)}")
    write_atomically(path, [])
    return path


# --- on a worker ---------------------------------------------------------------------------------


def fit_work(work: Work, machine: Machine, keep: KeepOutcomes) -> list[Trial]:
    """Return the trials of a task, fitted within the worker's memory."""
    limit = worker_memory()
    own = replace(
        machine,
        cache_dir=work.cache_dir,
        run_dir=None,
        threads=machine.threads or 1,
        memory=machine.memory if limit is None else min(int(SHARE * limit), machine.memory_limit),
    )
    wanted = still_wanted()

    def listen(_: Event) -> None:
        if not wanted():
            raise MachineError(f"{work.name}: the task was cancelled.")

    trials = fit_and_measure(
        work.fold, work.candidates, machine=own, listen=listen, cache_dir=work.cache_dir,
        run_dir=_run_directory(work), worker=worker_name(),
    )  # fmt: skip
    return keep(trials)


def _run_directory(work: Work) -> str | None:
    """Return the directory of the task's checkpoints; None if this worker does not share the
    client's disk, or another worker, which only lost its connection, still runs the task."""
    if not os.path.exists(work.token):
        return None
    try:
        os.makedirs(work.run_dir, exist_ok=True)
        with locked(Path(work.run_dir)):
            return work.run_dir
    except (MachineError, OSError):
        return None
