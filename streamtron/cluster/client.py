"""Tasks on Dask workers: ``Workers`` is an ``Executor``, and takes tasks of other shapes too.

Queues, retries after the death of a worker, transfer of results and the dashboard are Dask's own.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

from streamtron.core.errors import MachineError

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster

Result = TypeVar("Result")

TASKS_PER_THREAD = 2
"""Items that are computed, or finished and not yet consumed, for every thread of the workers."""
KILL_TIMEOUT = 1.0
"""Seconds that a worker has to end in the middle of a task that is no longer wanted."""


class Workers:
    """The workers of a scheduler; see ``connect``. After an error, workers started here are gone.

    Parameters
    ----------
    client : Dask's client.
    cluster : the LocalCluster that was started here; None for a running scheduler.
    memory_each : bytes that each worker of that cluster may use.
    """

    def __init__(
        self,
        client: Client,
        cluster: LocalCluster | None = None,
        memory_each: int | None = None,
    ) -> None:
        self.client = client
        self.memory_each = memory_each
        self._cluster = cluster

    @property
    def threads(self) -> int:
        """Number of tasks that can run at a time now; at least 1."""
        threads: dict[str, int] = self.client.nthreads()
        return max(sum(threads.values()), 1)

    def __call__(
        self, function: Callable[..., Iterable[Result]], items: Iterable[Any], *shared: Any
    ) -> Iterator[Result]:
        """Yield everything that ``function(item, *shared)`` yields for every item, in their order.

        An item is a task, and its ``name``, if it has one, part of the task's. ``shared`` is sent
        once. Only a few items for every worker are computed ahead, which limits the memory that
        their results take. A task whose worker dies runs again on another one.

        Raises
        ------
        MachineError : the workers of a task died one after the other, or the scheduler is gone.
        Exception : what ``function`` raises.
        """
        name, token = function.__name__, secrets.token_hex(4)
        with self._submitting() as submit:
            common = [
                submit(_identity, value, key=f"{name}_shared-{token}-{place}")
                for place, value in enumerate(shared)
            ]
            if common:
                self._copy_to_all(common)
            pending: deque[Future] = deque()
            for number, item in enumerate(items):
                if len(pending) >= TASKS_PER_THREAD * self.threads:
                    yield from self._result(pending.popleft())
                key = f"{name}-{token}-{number}-{getattr(item, 'name', '')}"
                pending.append(submit(_as_list, function, item, *common, key=key))
            while pending:
                yield from self._result(pending.popleft())

    def submit_all(
        self,
        function: Callable[..., Result],
        items: Sequence[Any],
        names: Sequence[str],
        *shared: Any,
        done: Callable[[int, Result], None] | None = None,
    ) -> list[Result]:
        """Return ``[function(item, *shared) for item in items]``; every item is a task.

        Parameters
        ----------
        names : of the tasks on the dashboard, one an item.
        shared : small values, sent with every task.
        done : is called with the place and the result of every item as it finishes.

        Raises
        ------
        As ``__call__``; of several errors the first item's. Other tasks are cancelled then.
        """
        token = secrets.token_hex(4)
        with self._submitting() as submit:
            futures = [
                submit(function, item, *shared, key=f"{name}-{token}-{place}")
                for place, (name, item) in enumerate(zip(names, items, strict=True))
            ]
            results: dict[int, Result] = {}
            for place in self._as_completed(futures):
                if futures[place].status == "error":
                    for earlier in (one for one in range(place) if one not in results):
                        self._result(futures[earlier])
                results[place] = self._result(futures[place])
                if done is not None:
                    done(place, results[place])
            return [results[place] for place in range(len(futures))]

    def graph(
        self,
        function: Callable[..., Result],
        items: Sequence[Any],
        names: Sequence[str],
        after: Sequence[Sequence[int]],
    ) -> Iterator[tuple[int, Result | MachineError]]:
        """Yield (place, ``function(item, *results)``) of every item as it finishes.

        Parameters
        ----------
        names : of the tasks on the dashboard, one an item.
        after : for every item the places of earlier items, whose results it gets.

        Yields
        ------
        MachineError in place of a result if the workers of the item, or of one before it, died.

        Raises
        ------
        As ``__call__``.
        """
        token = secrets.token_hex(4)
        with self._submitting() as submit:
            futures: list[Future] = []
            for place, (name, item) in enumerate(zip(names, items, strict=True)):
                before = [futures[earlier] for earlier in after[place]]
                futures.append(submit(function, item, *before, key=f"{name}-{token}-{place}"))
            for place in self._as_completed(futures):
                try:
                    result: Result | MachineError = self._result(futures[place])
                except MachineError as error:
                    if futures[place].status != "error":
                        raise
                    result = error
                yield place, result

    def _as_completed(self, futures: Sequence[Future]) -> Iterator[int]:
        """Yield the places of tasks as they finish."""
        from distributed import as_completed

        place_of = {future.key: place for place, future in enumerate(futures)}
        for future in as_completed(futures, loop=self.client.loop):
            yield place_of[future.key]

    @contextmanager
    def _submitting(self) -> Iterator[Callable[..., Future]]:
        """Give a function that submits tasks; they are released at the end, and cancelled if the
        block fails."""
        if self.client.status != "running":
            raise MachineError("these workers are gone since an error before. Connect again.")
        futures: list[Future] = []

        def submit(function: Callable[..., Any], *values: Any, key: str) -> Future:
            future = self.client.submit(_checked, version("streamtron"), function, *values, key=key)
            futures.append(future)
            return future

        try:
            yield submit
        except BaseException:
            self._cancel(futures)
            raise
        finally:
            for future in futures:
                future.release()

    def _cancel(self, futures: Sequence[Future]) -> None:
        """Cancel tasks; a running one ends only with its worker, if that was started here."""
        if self._cluster is not None:
            self._cluster.sync(_end_now, self._cluster)
            self._cluster.close()
        elif self.client.status == "running":
            self.client.cancel(list(futures))

    def _copy_to_all(self, futures: Sequence[Future]) -> None:
        """Copy these to every worker, else the scheduler prefers workers that hold them.

        Dask raises errors of any type if a worker dies meanwhile; the tasks fetch them then.
        """
        with suppress(Exception):
            self.client.replicate(list(futures))

    def _result(self, future: Future) -> Any:
        """Return the result of a task and release it, or it would run again if its worker dies."""
        from distributed import KilledWorker

        try:
            result = future.result()
        except KilledWorker as error:
            raise MachineError(
                f"{future.key}: {error.allowed_failures + 1} workers died one after the other on "
                "this task, most likely of its memory. Give them more: fewer --workers, a larger "
                "--memory."
            ) from error
        except Exception as error:
            if future.status == "error":
                raise  # the task's own
            raise MachineError(
                f"{address_of(self.client)}: the scheduler is gone ({first_line(error)}). Start "
                "it, and run the command again."
            ) from error
        future.release()
        return result


# --- on a worker ---------------------------------------------------------------------------------


def _checked(wanted: str, function: Callable[..., Result], *values: Any) -> Result:
    """Call a function on a worker, which may have joined after the versions were compared."""
    if version("streamtron") != wanted:
        raise other_version("a worker", version("streamtron"), wanted)
    return function(*values)


def _as_list(function: Callable[..., Iterable[Result]], *values: Any) -> list[Result]:
    return list(function(*values))


def _identity(value: Result) -> Result:
    return value


def still_wanted() -> Callable[[], bool]:
    """Return a function that tells whether the running task is still wanted.

    It is not when it was cancelled or its client is gone.
    """
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def wanted() -> bool:
        state = worker.state.tasks.get(key)
        return state is not None and state.state != "cancelled"

    return wanted


def worker_name() -> str:
    """Return the name of the worker that runs this task."""
    from distributed import get_worker

    return str(get_worker().name)


def worker_memory() -> int | None:
    """Return the bytes that each thread of this worker may use; None = no limit."""
    from distributed import get_worker

    worker = get_worker()
    limit = worker.memory_manager.memory_limit
    return None if limit is None else int(limit) // worker.state.nthreads


async def _end_now(cluster: LocalCluster) -> None:
    """End worker processes in the middle of their tasks, within two seconds of a signal."""
    ends = (nanny.close(timeout=KILL_TIMEOUT) for nanny in cluster.workers.values())
    await asyncio.gather(*ends, return_exceptions=True)


# --- messages ------------------------------------------------------------------------------------


def other_version(worker: str, theirs: object, ours: str) -> MachineError:
    """Return the error of a worker with another version of streamtron, or none."""
    has = f"streamtron {theirs}" if isinstance(theirs, str) else "no streamtron"
    return MachineError(
        f"{worker} has {has}, this is {ours}. Install the same version on every worker and start "
        "the workers again."
    )


def address_of(client: Client) -> str:
    """Return the address of a client's scheduler."""
    return str(client.scheduler.address if client.scheduler else "scheduler")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
