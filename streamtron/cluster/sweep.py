"""Distributed sweep: its tasks on Dask's workers.

A trial whose worker died is fitted again, from its last checkpoint on if the workers share the disk
of the client's cache, and is the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamtron.cluster.client import Workers, still_wanted
from streamtron.core.config import Machine
from streamtron.core.errors import MachineError
from streamtron.core.events import Event
from streamtron.core.files import locked
from streamtron.sweeps.sweep import Task

SHARE = 0.7
"""Share of its worker's memory that a fit may use: Dask pauses a worker at 0.8, ends it at 0.95."""


class SweepExecutor:
    """The ``executor`` of a sweep that fits its tasks on workers, ``tasks`` at a time.

    Each task has ``machine.threads`` threads, by default 1, and of its worker's memory limit the
    part SHARE. Tasks on one disk share the flat copy of the shards. A cancelled task ends after its
    current chunk.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers, self.tasks = workers, workers.threads

    def __call__(self, function: Any, items: Iterable[Task], *shared: Any) -> Iterator[Any]:
        """Fit the tasks."""
        return self._workers(fit_on_worker, items, function, *shared)


def fit_on_worker(
    task: Task, fit: Callable[..., Iterable[Any]], machine: Machine, *shared: Any
) -> Iterable[Any]:
    """Return the trials of a task, which ``fit`` (``fit_task``) fits within the worker's memory."""
    from distributed import get_worker

    worker, wanted, memory = get_worker(), still_wanted(), machine.memory
    if (limit := worker.memory_manager.memory_limit) is not None:
        memory = min(int(SHARE * (limit // worker.state.nthreads)), machine.memory_limit)
    machine = replace(
        machine, cache_dir=task.cache_dir, run_dir=None, threads=machine.threads or 1, memory=memory
    )

    def listen(_: Event) -> None:
        if not wanted():
            raise MachineError(f"{task.name}: the task was cancelled.")

    where: Any = {"run_dir": checkpoints_of(task), "worker": str(worker.name)}
    return fit(task, machine, *shared, listen=listen, **where)


def checkpoints_of(task: Task) -> str | None:
    """Return the directory of a task's checkpoints; None if this worker does not share the client's
    disk, or if another worker, which only lost its connection, still runs the task."""
    if not os.path.isdir(os.path.dirname(task.run_dir)):
        return None
    try:
        os.makedirs(task.run_dir, exist_ok=True)
        with locked(Path(task.run_dir)):
            return task.run_dir
    except (MachineError, OSError):
        return None
