"""A sweep's candidates on Dask's workers: each worker fits several of them on its own scan.

What comes out depends on nothing of this: a candidate's trial is the same in any company, on any
worker, and when it is fitted a second time because the first worker died: from its last checkpoint
if the workers share the disk that the client keeps the cache on, else anew.
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

from streamtron.cluster.client import Workers, memory_here, name_here, still_wanted
from streamtron.core.config import Machine, Settings
from streamtron.core.errors import MachineError
from streamtron.core.events import Event
from streamtron.core.locks import locked
from streamtron.core.scratch import scratch_directory
from streamtron.core.sealed import canonical, write_atomically
from streamtron.data import TEMPORARY
from streamtron.sweeps.folds import Split
from streamtron.sweeps.grid import candidate_words
from streamtron.sweeps.sweep import KeepOutcomes, Trainer, attempt
from streamtron.sweeps.trial import Trial

SHARE = 0.7
"""What a fit may take of its worker's memory: Dask pauses a worker at 80 %, and ends it at 95."""

Told = Callable[[Trial, str], None]
"""Is told of a candidate's trial as soon as it is there, and the fold or ``""``."""


class Work(NamedTuple):
    """One task: candidates on one split."""

    split: Split
    candidates: tuple[Settings, ...]
    cache_dir: str
    token: str = ""
    """a file that is there for whoever shares the client's disk: checkpoints go beside it"""

    @property
    def run_dir(self) -> str:
        """Where its checkpoints go: a directory that no other task has."""
        what = [list(self.split), [one.to_dict() for one in self.candidates]]
        digest = xxhash.xxh3_128_hexdigest(canonical(what).encode())
        return os.path.join(os.path.dirname(self.token), f"task-{digest}")

    @property
    def name(self) -> str:
        """What the dashboard calls it.

        Examples
        --------
        >>> Work(Split([], [], "fold 1 of 2"), (Settings(C=1), Settings(C=2)), "").name
        'sweep fold 1 of 2: C 1, rho 1; C 2, rho 1'
        """
        where = "" if self.split.fold is None else f" {self.split.fold}"
        return f"sweep{where}: {'; '.join(map(candidate_words, self.candidates))}"


def ignore(_: Trial, __: str) -> None:
    """Tell nobody."""


def on_workers(workers: Workers, *, machine: Machine, tell: Told = ignore) -> Trainer:
    """Fit and measure on these workers; ``run_sweep`` takes it as ``attempts``.

    Every split's candidates are dealt out to as many tasks as there are workers for it. The flat
    copy of the shards is shared by all that see the same disk; of a task whose worker dies nothing
    is lost but time. When nobody waits any more, a task ends with its next chunk.

    Parameters
    ----------
    machine : each task has ``machine.threads`` threads, 1 if nothing is said, and of its worker's
        memory limit SHARE.
    tell : is told every trial as its task finishes.

    Raises
    ------
    As ``Workers.submit_all`` and ``attempt``.
    """

    def attempts(
        splits: Sequence[Split], candidates: Sequence[Settings], cache_dir: str, lean: KeepOutcomes
    ) -> list[list[Trial]]:
        groups = groups_of(len(candidates), -(-workers.threads // len(splits)))
        with _scratch(cache_dir, shared=machine.cache_dir is not None) as scratch:
            token = _token(scratch)
            works = [
                Work(
                    _anywhere(split),
                    tuple(candidates[number] for number in group),
                    os.path.abspath(cache_dir if split.fold is None else scratch),
                    token,
                )
                for split in splits
                for group in groups
            ]

            def done(place: int, trials: list[Trial]) -> None:
                for trial in trials:
                    tell(trial, works[place].split.fold or "")

            names = [work.name for work in works]
            found = iter(workers.submit_all(fit_work, works, names, machine, lean, done=done))
        return [_in_order(groups, [next(found) for _ in groups]) for _ in splits]

    return attempts


def groups_of(candidates: int, most: int) -> list[range]:
    """The numbers of the candidates, dealt out like cards: neighbours, which cost about the same,
    go to different groups.

    Examples
    --------
    >>> [list(group) for group in groups_of(5, 2)], len(groups_of(2, 4))
    ([[0, 2, 4], [1, 3]], 2)
    """
    count = min(candidates, most)
    return [range(first, candidates, count) for first in range(count)]


def _in_order(groups: Sequence[range], found: Sequence[list[Trial]]) -> list[Trial]:
    """The groups' trials in the order of the candidates, numbered anew."""
    at = {
        number: trial
        for group, trials in zip(groups, found, strict=True)
        for number, trial in zip(group, trials, strict=True)
    }
    return [replace(at[number], candidate=number) for number in sorted(at)]


def _anywhere(split: Split) -> Split:
    """The split with paths that hold wherever a worker was started."""
    shards, valid = ([_absolute(path) for path in paths] for paths in (split.shards, split.valid))
    return split._replace(shards=shards, valid=valid)


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


@contextmanager
def _scratch(cache_dir: str, *, shared: bool) -> Iterator[str]:
    """A directory for the folds' caches and for checkpoints; at the end also what killed workers
    were writing goes, unless somebody else may be writing to the same cache."""
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
    """A file with a name that no other directory has."""
    path = os.path.join(os.path.abspath(directory), f"here-{secrets.token_hex(8)}")
    write_atomically(path, [])
    return path


# What runs on a worker ---------------------------------------------------------------------------


def fit_work(work: Work, machine: Machine, lean: KeepOutcomes) -> list[Trial]:
    """The trials of a task, within the worker's memory, with the outcomes that ``lean`` leaves."""
    limit = memory_here()
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
            raise MachineError(f"{work.name}: nobody waits for it any more.")

    trials = attempt(
        work.split, work.candidates, machine=own, listen=listen, cache_dir=work.cache_dir,
        run_dir=_run_directory(work), worker=name_here(),
    )  # fmt: skip
    return lean(trials)


def _run_directory(work: Work) -> str | None:
    """Where the task's checkpoints go, if this worker sees the client's disk, and nobody else is at
    the task: a worker that was only cut off may still be."""
    if not os.path.exists(work.token):
        return None
    try:
        os.makedirs(work.run_dir, exist_ok=True)
        with locked(Path(work.run_dir)):
            return work.run_dir
    except (MachineError, OSError):
        return None
