"""Parts of one model on Dask's workers.

Each worker holds consecutive parts in its process from step to step, sums what they return as far
as the tree of all parts allows, and sends the sums. A step on files is a task for each worker,
pinned to it. The rounds of Newton's method are many and short, and a
task passes through the queues of client, scheduler and worker: a call of an actor takes a quarter
of the time.

A task that is pinned to a worker that has died would wait for ever in Dask (dask/distributed, issue
7346), so the workers are looked after here: when one is gone, its parts are opened again on those
that are there.
"""

from __future__ import annotations

import copy
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from streamtron.cluster.client import NO_WORKERS, Workers, asked, gone, usable_memory
from streamtron.core.errors import MachineError
from streamtron.core.executor import Parts, Scans, mapped, plus, sum_over_tree, trees_of
from streamtron.core.scan_sums import ScanSums
from streamtron.data.prepare import PrepareTask
from streamtron.runs.memory import check_worker
from streamtron.runs.parts import PartPlan, open_part
from streamtron.solver.part import Part

if TYPE_CHECKING:
    from distributed import Actor, Client, Future
    from distributed.actor import ActorFuture

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

LOOK_AFTER = 0.5
"""Seconds of waiting for a step after which it is looked whether its worker is still there."""

DROPPING = 10.0
"""Seconds to wait for workers to drop their parts: one that is stopped does not answer."""

MOST_LOSSES = 4
"""So many times in a row, without a step between, parts may be lost: then it is they that end
their workers, most likely by their memory."""

_held: dict[str, dict[int, Part]] = {}
"""The parts in this worker's process, by the token of their run and their number."""

_open = threading.Lock()


class PartsOn:
    """Opens the parts of a fit on workers, which also prepare its shards."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    @contextmanager
    def __call__(self, plans: Sequence[PartPlan], scans: Scans) -> Iterator[Parts]:
        """Open parts; see ``runs.parts.OpenParts``."""
        parts = WorkerParts(self._workers, plans, scans)
        try:
            parts.open()
            yield parts
        finally:
            parts.close()

    def executor(self, prepare: Any, tasks: Iterable[Any]) -> Iterator[Any]:
        """Prepare shards; see ``data.prepare``."""
        return self._workers(prepare_on_worker, tasks, prepare)


def parts_on(workers: Workers | Client) -> PartsOn:
    """Return what opens the parts of a fit on these workers, or those of an open Dask client."""
    return PartsOn(workers if isinstance(workers, Workers) else Workers(workers))


def prepare_on_worker(
    task: PrepareTask, prepare: Callable[[PrepareTask], Iterable[Result]]
) -> Iterator[Result]:
    """Prepare a shard where this worker sees it, and the directory of its prepared file."""
    from distributed import get_worker

    _check_seen((task.shard.path, task.directory), str(get_worker().name))
    yield from prepare(task)


class WorkerParts(Parts):
    """Parts on workers: consecutive ones on each, dealt evenly."""

    def __init__(self, workers: Workers, plans: Sequence[PartPlan], scans: Scans) -> None:
        super().__init__()
        self.scans = scans
        self._workers, self._plans = workers, plans
        self._token = secrets.token_hex(8)
        self._homes: list[str] = [""] * len(plans)
        self._actors: dict[str, tuple[Future, Actor]] = {}
        self._tasks_made = self._losses = 0
        self._most_homes = 1

    def open(self) -> set[int]:
        """Open the parts that have no home, evenly on the workers that are there, as they were when
        they were saved, and have them make the steps since again; return their numbers."""
        opened: set[int] = set()
        while numbers := [number for number, home in enumerate(self._homes) if not home]:
            self._find_homes(numbers)
            self._make_actors()  # first, for parts last no longer than they
            steps: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
                (_open_parts, (self._plans, self.scans)),
                *((_run_step, step) for step in self.log.steps),
            ]
            for function, arguments in steps:
                self._ask(numbers, function, *arguments)
                if not all(self._homes[number] for number in numbers):
                    for number in numbers:
                        self._homes[number] = ""
                    break
            opened.update(numbers)
        return opened

    def _find_homes(self, numbers: Sequence[int]) -> None:
        client = self._workers.client
        self._workers.wait_for(self._most_homes)
        with asked(client):
            workers = client.scheduler_info()["workers"]
        addresses = sorted(home for home, how in workers.items() if how["status"] == "running")
        if not addresses:
            raise gone(client, NO_WORKERS)
        idle = [address for address in addresses if address not in self._homes] or addresses
        for place, number in enumerate(numbers):
            self._homes[number] = idle[place * len(idle) // len(numbers)]
        self._most_homes = max(self._most_homes, len(set(self._homes)))

    def _make_actors(self) -> None:
        futures = {
            home: self._workers.client.submit(
                _Caller,
                self._token,
                actor=True,
                workers=[home],
                key=f"rounds-on-{home}-{secrets.token_hex(8)}",
            )
            for home in set(self._homes) - self._actors.keys()
        }
        for home, future in futures.items():
            actor = self._answer(home, future, future)
            if actor is not None:
                self._actors[home] = future, actor

    def close(self) -> None:
        """Drop the parts from their workers."""
        for future, _ in self._actors.values():
            future.release()
        with suppress(Exception):  # workers that are gone hold none
            client = self._workers.client
            client.sync(
                client.run, _drop, self._token, on_error="ignore", callback_timeout=DROPPING
            )

    def _map(self, step: Callable[..., Result], arguments: Sequence[Any]) -> Result:
        short = getattr(step, "short", False)
        answers: dict[int, list[Any]] = {}  # what each part's home returned, by the part's number
        while missing := [n for n, home in enumerate(self._homes) if not home or n not in answers]:
            for number in self.open():
                answers.pop(number, None)  # it was lost later than it answered
            answers |= self._ask(missing, _run_step, step, tuple(arguments), short=short)
        trees = {tree[0]: tree for answer in answers.values() for tree in answer}
        for home in set(self._homes):
            self.bytes_to[home] += array_bytes(arguments)
        for number, _, total in trees.values():
            self.bytes_from[self._homes[number]] += array_bytes(total)
        self._losses = 0
        _, heights, totals = zip(*(trees[number] for number in sorted(trees)), strict=True)
        if len(totals) == 1:
            totals = copy.deepcopy(totals)  # what was received is read-only
        return cast(Result, sum_over_tree(plus, totals, heights))

    def _ask(
        self,
        numbers: Sequence[int],
        function: Callable[..., list[Any] | None],
        *arguments: Any,
        short: bool = False,
    ) -> dict[int, list[Any]]:
        """Run a function on the homes of these parts, ``short`` : ``_run_step`` by their actors;
        return what each part's home returns. A home that is lost returns nothing, and its parts
        have no home any more."""
        parts_of: dict[str, list[int]] = {}
        for number in numbers:
            parts_of.setdefault(self._homes[number], []).append(number)
        if short:
            answers = self._calls(parts_of, arguments)
        else:
            answers = self._tasks(parts_of, function, arguments)
        lost = {home for home, answer in answers.items() if answer is None}
        if lost:
            self._losses += 1
            for _ in lost:
                _log.warning("Lost a worker; its parts begin the step again on another.")
            if self._losses > MOST_LOSSES:
                raise MachineError(
                    f"workers were lost {self._losses} times in a row, likely by their memory. "
                    "Give them more: fewer --workers, a larger --memory; or a smaller --active-set."
                )
        for home in lost & self._actors.keys():
            self._actors.pop(home)[0].release()
        self._homes = ["" if home in lost else home for home in self._homes]
        return {
            number: answer
            for home, answer in answers.items()
            if answer is not None
            for number in parts_of[home]
        }

    def _calls(
        self, parts_of: Mapping[str, list[int]], arguments: Sequence[Any]
    ) -> dict[str, list[Any] | None]:
        """Call the actor of each home and wait for all of them; None where the worker was lost."""
        calls: dict[str, ActorFuture[list[Any] | None]] = {}
        with self._workers.client.as_current():  # where an actor looks for its client
            for home, numbers in parts_of.items():
                with suppress(KeyError, RuntimeError):  # the latter if its worker was lost
                    actor = self._actors[home][1]
                    calls[home] = actor.run_step(self._token, numbers, *arguments)
            answers = {h: self._answer(h, self._actors[h][0], call) for h, call in calls.items()}
            return dict.fromkeys(parts_of) | answers

    def _answer(self, home: str, actor: Future, waiting: Future | ActorFuture[Any]) -> Any:
        """Wait for an actor, or what it returns, as long as it is there; None if it is lost."""
        while True:
            try:
                return waiting.result(timeout=LOOK_AFTER)
            except TimeoutError:
                there = self._is_there if actor.status == "finished" else self._takes_tasks
                if not there(home) or _lost(actor):
                    return None
            except OSError:
                return None
            except RuntimeError:  # Dask's too: its worker died before anybody asked for it
                if not _lost(actor):
                    raise
                return None

    def _tasks(
        self,
        parts_of: Mapping[str, list[int]],
        function: Callable[..., list[Any] | None],
        arguments: Sequence[Any],
    ) -> dict[str, list[Any] | None]:
        """Run a task on each home and wait for all of them; None where the worker was lost."""
        self._tasks_made += 1
        name = getattr(arguments[0], "__name__", function.__name__).strip("_")
        end = f"{self._token}-{self._tasks_made}"
        with self._workers.submitting() as submit:
            futures = {
                home: submit(
                    function,
                    self._token,
                    numbers,
                    *arguments,
                    workers=[home],
                    key=f"{name}-parts-{numbers[0]}-to-{numbers[-1]}-{end}",
                )
                for home, numbers in parts_of.items()
            }
            return {home: self._result(home, future) for home, future in futures.items()}

    def _result(self, home: str, future: Future) -> list[Any] | None:
        """Wait for a task as long as its worker is there; None if that is lost."""
        patience = LOOK_AFTER
        while True:
            try:
                answer: list[Any] | None = self._workers.result(future, timeout=patience)
                return answer
            except TimeoutError:
                if not (self._is_there if future.done() else self._takes_tasks)(home):
                    return None
                if future.status == "finished":
                    patience *= 2.0  # what it returns is large, or the network slow
            except MachineError:
                if self._is_there(home):
                    raise
                return None

    def _is_there(self, home: str) -> bool:
        client = self._workers.client
        if client.status != "running":
            raise gone(client, f"the scheduler is gone ({client.status}). Start it")
        with asked(client):
            return home in client.nthreads()

    def _takes_tasks(self, home: str) -> bool:
        """Whether a worker is there and has not used up its memory: Dask pauses such a one, which
        then ends the tasks that it has begun, and begins none."""
        client = self._workers.client
        if not self._is_there(home):
            return False
        with asked(client):
            if client.scheduler_info()["workers"].get(home, {}).get("status") != "paused":
                return True
            return any(client.run(_has_begun, workers=[home], on_error="ignore").values())


def _has_begun(dask_worker: Any) -> bool:
    return bool(dask_worker.state.executing_count)


def _lost(actor: Future) -> bool:
    """Whether the worker that held an actor is gone."""
    return actor.status not in ("pending", "finished")


def _open_parts(
    token: str, numbers: Sequence[int], plans: Sequence[PartPlan], scans: Scans
) -> list[Any]:
    from distributed import get_worker

    worker = get_worker()
    name = str(worker.name)
    with _open:
        held = _held.setdefault(token, {})
        of_other_runs = sum(len(parts) for parts in _held.values() if parts is not held)
    here = {*held, *numbers}
    check_worker(
        plans[0].settings,
        name,
        usable_memory(),
        parts=of_other_runs + len(here),
        at_once=worker.state.nthreads,
        columns=len(plans[0].numbers),
    )
    for number in numbers:
        plan = plans[number]
        _check_seen((*(shard.path for shard in plan.shards), os.path.dirname(plan.path)), name)
        if number in held:
            held.pop(number).close()
        try:
            held[number] = open_part(plan, scans)
        except MachineError as error:
            raise MachineError(f"worker {name}: {error}") from error
    if _held.get(token) is not held:  # the client has died meanwhile
        _close(held)
    return []


def _check_seen(paths: Iterable[str], worker: str) -> None:
    """Refuse a worker that does not see the shards, or the run directory."""
    for path in paths:
        if "://" not in path and not os.path.exists(path):
            raise MachineError(
                f"{path}: worker {worker} does not see it. Workers need the shards and the run "
                "directory under the paths that this command has: mount them there, or use an "
                "object store and --run-dir on a shared disk."
            )


def _run_step(
    token: str, numbers: Sequence[int], step: Callable[..., Any], arguments: Sequence[Any]
) -> list[tuple[int, int, Any]] | None:
    """Return (number, h, sum) of the trees that these parts make; None if they are not here."""
    from distributed import get_worker

    held = _held.get(token, {})
    if not all(number in held for number in numbers):
        return None
    parts, threads = [held[number] for number in numbers], get_worker().state.nthreads
    with mapped(step, parts, arguments, threads) as results:
        return [
            (first, height, sum_over_tree(plus, islice(results, 1 << height)))
            for run in _runs(numbers)
            for first, height in trees_of(run[0], run[-1] + 1)
        ]


class _Caller:
    """An actor that makes steps in its worker's process. Dask removes it when its client is gone,
    and the client's parts go with it."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __del__(self) -> None:
        _drop(self._token)

    run_step = staticmethod(_run_step)


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Split rising numbers where they are not consecutive."""
    runs = groupby(enumerate(numbers), lambda numbered: numbered[1] - numbered[0])
    return [[number for _, number in run] for _, run in runs]


def _drop(token: str) -> None:
    _close(_held.pop(token, {}))


def _close(held: dict[int, Part]) -> None:
    while held:
        held.popitem()[1].close()


def array_bytes(value: Any) -> int:
    """Count the bytes of the arrays in a value that a step takes or returns."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(map(array_bytes, value))
    return array_bytes(list(vars(value).values())) if isinstance(value, ScanSums) else 0
