"""Parts of one model on Dask's workers.

Each worker holds consecutive parts in its process, as an actor: a call of it takes a quarter of the
time of a task. It sums what its parts return as far as the tree of all parts allows, and the sums
are sent. Actors are pinned to their workers; Dask waits for a worker that has died for ever
(dask/distributed, issue 7346), so the workers are looked after here.
"""

from __future__ import annotations

import copy
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from weakref import WeakSet

import numpy as np

from streamtron.cluster.client import NO_WORKERS, Workers, asked, gone, usable_memory
from streamtron.core.errors import MachineError
from streamtron.core.executor import (
    Parts,
    PartsLost,
    Scans,
    mapped,
    plus,
    sum_over_tree,
    trees_of,
)
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


class PartsOn:
    """Opens the parts of a fit on workers, which also prepare its shards."""

    def __init__(self, workers: Workers) -> None:
        self._workers, self._most = workers, 1

    @contextmanager
    def __call__(self, plans: Sequence[PartPlan], scans: Scans) -> Iterator[Parts]:
        """Open parts, on as many workers as the last time, if they come; see ``OpenParts``."""
        self._workers.wait_for(self._most)
        parts = WorkerParts(self._workers)
        try:
            parts.open(plans, scans)
            self._most = len(parts.homes)
            yield parts
        except PartsLost:
            _log.warning("Lost a worker; the reading begins again, on those that are there.")
            raise
        except BaseException:
            self._workers.end()
            raise
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


class Home(NamedTuple):
    """A worker that holds parts: its address, and the actor that holds them."""

    address: str
    future: Future
    actor: Actor


class WorkerParts(Parts):
    """Parts on workers: consecutive ones on each, dealt evenly."""

    may_be_lost = True

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers, self._token = workers, secrets.token_hex(8)
        self.homes: list[Home] = []

    def open(self, plans: Sequence[PartPlan], scans: Scans) -> None:
        """Open parts on the workers that are there, new or restored after so many scans."""
        client = self._workers.client
        with asked(client):
            workers = client.scheduler_info()["workers"]
        there = sorted(home for home, how in workers.items() if how["status"] == "running")
        if not there:
            raise gone(client, NO_WORKERS)
        addresses = there[: len(plans)]
        futures = [
            client.submit(
                Holder,
                self._token,
                actor=True,
                workers=[address],
                key=f"parts-on-{address}-{secrets.token_hex(8)}",
            )
            for address in addresses
        ]
        for address, future in zip(addresses, futures, strict=True):
            self.homes.append(Home(address, future, self._answer(address, future, future)))
        borders = [k * len(plans) // len(addresses) for k in range(len(addresses) + 1)]
        self._ask("open", [(plans[a:z], a, scans) for a, z in pairwise(borders)])

    def close(self) -> None:
        """Drop the parts from their workers."""
        for home in self.homes:
            home.future.release()
        with suppress(Exception):  # workers that are gone hold none
            client = self._workers.client
            client.sync(
                client.run, _drop, self._token, on_error="ignore", callback_timeout=DROPPING
            )

    def _map(self, step: Callable[..., Result], arguments: Sequence[Any]) -> Result:
        answers = self._ask("map", [(step, tuple(arguments))] * len(self.homes))
        for home, trees in zip(self.homes, answers, strict=True):
            self.work.bytes_to[home.address] += array_bytes(arguments)
            self.work.bytes_from[home.address] += array_bytes([total for _, total in trees])
        heights, totals = zip(*(tree for trees in answers for tree in trees), strict=True)
        if len(totals) == 1:
            totals = copy.deepcopy(totals)  # what was received is read-only
        return cast(Result, sum_over_tree(plus, totals, heights))

    def _ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of every home's holder, and return what they return; PartsLost if one of
        them is gone."""
        with self._workers.client.as_current():  # where an actor looks for its client
            try:
                calls = [
                    getattr(home.actor, method)(*given)
                    for home, given in zip(self.homes, arguments, strict=True)
                ]
            except RuntimeError as error:
                raise PartsLost from error
            answers = [
                self._answer(home.address, home.future, call)
                for home, call in zip(self.homes, calls, strict=True)
            ]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _answer(self, address: str, actor: Future, waiting: Future | ActorFuture[Any]) -> Any:
        """Wait for an actor, or what it returns, as long as it is there."""
        while True:
            try:
                return waiting.result(timeout=LOOK_AFTER)
            except TimeoutError:
                lost = actor.status not in ("pending", "finished")
                if lost or not self._is_there(address, idle=actor.status == "pending"):
                    raise PartsLost from None
            except (OSError, RuntimeError) as error:  # Dask's: a holder returns its own
                self._is_there(address)  # or the scheduler is gone
                raise PartsLost from error

    def _is_there(self, address: str, *, idle: bool = False) -> bool:
        """Whether a worker is there; ``idle`` : and not paused by Dask, so that it begins tasks."""
        client = self._workers.client
        if client.status != "running":
            raise gone(client, f"the scheduler is gone ({client.status}). Start it")
        with asked(client):
            worker = client.scheduler_info()["workers"].get(address)
        return worker is not None and not (idle and worker["status"] == "paused")


def _returning_errors(method: Callable[..., Result]) -> Callable[..., Result | Exception]:
    """Return its errors from a method of an actor: what Dask raises then says that the worker is
    lost, and its connection breaks before its scheduler knows."""

    @wraps(method)
    def answered(*arguments: Any) -> Result | Exception:
        try:
            return method(*arguments)
        except Exception as error:
            return error

    return answered


class Holder:
    """The parts that a worker holds for a run. Dask removes it when its client is gone."""

    def __init__(self, token: str) -> None:
        self.token, self.parts, self._first = token, list[Part](), 0
        _holders.add(self)

    def __del__(self) -> None:
        self.close()

    @_returning_errors
    def open(self, plans: Sequence[PartPlan], first: int, scans: Scans) -> None:
        """Open parts; ``first`` : the number of the first one."""
        from distributed import get_worker

        worker, self._first = get_worker(), first
        name = str(worker.name)
        check_worker(
            plans[0].settings,
            name,
            usable_memory(),
            parts=len(plans) + sum(len(holder.parts) for holder in _holders),
            at_once=worker.state.nthreads,
            columns=len(plans[0].numbers),
        )
        for plan in plans:
            _check_seen((*(shard.path for shard in plan.shards), os.path.dirname(plan.path)), name)
            try:
                self.parts.append(open_part(plan, scans))
            except MachineError as error:
                raise MachineError(f"worker {name}: {error}") from error

    @_returning_errors
    def map(self, step: Callable[..., Any], arguments: Sequence[Any]) -> list[tuple[int, Any]]:
        """Return (h, sum) of the trees that these parts make."""
        from distributed import get_worker

        stop, threads = self._first + len(self.parts), get_worker().state.nthreads
        with mapped(step, self.parts, arguments, threads) as results:
            return [
                (height, sum_over_tree(plus, islice(results, 1 << height)))
                for _, height in trees_of(self._first, stop)
            ]

    def close(self) -> None:
        """Close the parts."""
        while self.parts:
            self.parts.pop().close()


_holders: WeakSet[Holder] = WeakSet()
"""Those in this worker's process."""


def _drop(token: str) -> None:
    for holder in list(_holders):
        if holder.token == token:
            holder.close()


def _check_seen(paths: Iterable[str], worker: str) -> None:
    """Refuse a worker that does not see the shards, or the run directory."""
    for path in paths:
        if "://" not in path and not os.path.exists(path):
            raise MachineError(
                f"{path}: worker {worker} does not see it. Workers need the shards and the run "
                "directory under the paths that this command has: mount them there, or use an "
                "object store and --run-dir on a shared disk."
            )


def array_bytes(value: Any) -> int:
    """Count the bytes of the arrays in a value that a step takes or returns."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(map(array_bytes, value))
    return array_bytes(list(vars(value).values())) if isinstance(value, ScanSums) else 0
