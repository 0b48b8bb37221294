"""Tasks on Dask workers: ``Workers`` is an ``Executor``.

Queues, retries after the death of a worker and the transfer of results are Dask's own.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from streamtron.core.errors import MachineError

if TYPE_CHECKING:
    from distributed import Client as Client
    from distributed import Future, LocalCluster

Result = TypeVar("Result")

AHEAD = 2
"""Items that are computed, or finished and not yet consumed, for every thread of the workers."""
RESTARTING, RESTARTING_OURS = 15.0, 300.0
"""Seconds to wait for a worker that may be started again, by others or here."""
KILL_TIMEOUT = 1.0
"""Seconds that a worker has to end in the middle of a task that was cancelled."""


class Workers:
    """The workers of a scheduler; see ``connect``. After an error, workers started here are gone.

    If ``cluster`` was started here, each of its workers may use ``memory_each`` bytes.
    """

    def __init__(self, client: Client, cluster: LocalCluster | None, limit: int | None) -> None:
        self.client, self.memory_each, self._cluster = client, limit, cluster

    @property
    def threads(self) -> int:
        """Number of tasks that can run at a time now; at least 1."""
        with asked(self.client):
            threads: dict[str, int] = self.client.nthreads()
        return max(sum(threads.values()), 1)

    def wait_for(self, number: int) -> None:
        """Wait for so many workers, as long as it is likely that they come."""
        patience = RESTARTING if self._cluster is None else RESTARTING_OURS
        with suppress(TimeoutError), asked(self.client):
            self.client.wait_for_workers(number, timeout=patience)

    def __call__(
        self, function: Callable[..., Iterable[Result]], items: Iterable[Any], *shared: Any
    ) -> Iterator[Result]:
        """Yield everything that ``function(item, *shared)`` yields for every item, in their order.

        An item is a task, and its ``name``, if it has one, part of the task's. ``shared`` is sent
        once. Only a few items for every worker are computed ahead, which limits the memory that
        their results take. A task whose worker dies runs again on another one; if several die, or
        the scheduler is gone, that is a MachineError. Of several errors the first item's is raised.
        """
        name, token = function.__name__, secrets.token_hex(4)
        with self.submitting() as submit:
            common = [
                submit(_identity, value, key=f"{name}_shared-{token}-{place}")
                for place, value in enumerate(shared)
            ]
            with suppress(Exception):  # any, if a worker dies; tasks prefer workers with copies
                self.client.replicate(common)
            pending: deque[Future] = deque()
            for number, item in enumerate(items):
                if len(pending) >= AHEAD * self.threads:
                    yield from self._first([pending.popleft()])
                key = f"{name}-{token}-{number}-{getattr(item, 'name', '')}"
                pending.append(submit(_as_list, function, item, *common, key=key))
            while pending:
                yield from self._first([pending.popleft()])

    def compute(self, calls: Sequence[Any], tell: Callable[[Any], object]) -> list[Any]:
        """Return the results of Dask's delayed calls, in their order; ``tell`` each as it comes."""
        with self._cancelling() as futures:
            futures += self.client.compute([*calls])
            left, results = [*futures], dict[str, Any]()
            while left:
                keys = {future.key for future in left}
                result = self._first(left)
                [key] = keys - {future.key for future in left}
                results[key] = result
                tell(result)
            return [results[future.key] for future in futures]

    def _first(self, futures: list[Future]) -> Any:
        """Take the first task that ends out of some; return its result. MachineError: no worker."""
        from distributed import wait

        while not any(future.done() for future in futures):
            with suppress(Exception), self.client.as_current():  # ``result`` raises it
                wait(futures, RESTARTING, "FIRST_COMPLETED")
                continue
            self.wait_for(1)
            with asked(self.client):
                if not self.client.nthreads():
                    raise no_workers(self.client)
        return self.result(futures.pop([future.done() for future in futures].index(True)))

    @contextmanager
    def submitting(self) -> Iterator[Callable[..., Future]]:
        """Give a function that submits tasks; they are cancelled on an error, else released."""
        with self._cancelling() as futures:

            def submit(function: Callable[..., Any], *values: Any, key: str, **how: Any) -> Future:
                futures.append(self.client.submit(function, *values, key=key, **how))
                return futures[-1]

            yield submit

    @contextmanager
    def _cancelling(self) -> Iterator[list[Future]]:
        """Give a list; the futures in it are cancelled on an error, else released."""
        if self.client.status != "running":
            raise MachineError("these workers are gone since an error before. Connect again.")
        futures: list[Future] = []
        try:
            yield futures
        except BaseException:
            if self._cluster is not None:  # a running task ends only with its worker
                self._cluster.sync(_end_now, self._cluster)
                self._cluster.close()
            elif self.client.status == "running":
                self.client.cancel(futures)
            raise
        finally:
            for future in futures:
                future.release()

    def result(self, future: Future, timeout: float | None = None) -> Any:
        """Return the result of a task and release it, or it would run again if its worker dies;
        TimeoutError if it is not there after ``timeout`` seconds."""
        from distributed import KilledWorker

        try:
            result = future.result(timeout=timeout)
        except TimeoutError:
            raise
        except KilledWorker as error:
            raise MachineError(
                f"{future.key}: {error.allowed_failures + 1} workers died one after the other on "
                "this task, most likely of its memory. Give them more: fewer --workers, a larger "
                "--memory."
            ) from error
        except Exception as error:
            if future.status == "error":
                raise  # the task's own
            if timeout is not None and future.status in ("pending", "finished"):
                raise TimeoutError from error  # Dask loses it where the time ends amid a transfer
            raise scheduler_gone(self.client, first_line(error)) from error
        future.release()
        return result


def _as_list(function: Callable[..., Iterable[Result]], *values: Any) -> list[Result]:
    return list(function(*values))


def _identity(value: Result) -> Result:
    return value


def still_wanted() -> Callable[[], bool]:
    """Return a function that tells whether the running task is not cancelled; outside of a worker
    it always is not."""
    from distributed import get_worker

    try:
        worker = get_worker()
    except ValueError:
        return lambda: True
    key = worker.get_current_task()

    def wanted() -> bool:
        state = worker.state.tasks.get(key)
        return state is not None and state.state != "cancelled"

    return wanted


def usable_memory() -> int | None:
    """Return the bytes that this worker may use before Dask pauses or ends it; None = no limit."""
    import dask
    from distributed import get_worker

    manager = get_worker().memory_manager
    if manager.memory_limit is None:
        return None
    terminate = dask.config.get("distributed.worker.memory.terminate")
    share = min(manager.memory_pause_fraction or 1.0, terminate or 1.0)
    return int(share * manager.memory_limit)


async def _end_now(cluster: LocalCluster) -> None:
    """End worker processes in the middle of their tasks, within two seconds of a signal."""
    ends = (nanny.close(timeout=KILL_TIMEOUT) for nanny in cluster.workers.values())
    await asyncio.gather(*ends, return_exceptions=True)


@contextmanager
def asked(client: Client) -> Iterator[None]:
    """Turn what Dask raises in the block if it does not reach the scheduler into a MachineError."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError as error:
        raise scheduler_gone(client, first_line(error)) from error


def no_workers(client: Client) -> MachineError:
    """Return the error that a scheduler has no worker any more that takes tasks."""
    return MachineError(
        f"{address_of(client)}: no workers are left, or all have used up their memory. Start some "
        "with dask worker, and run the command again, a fit with --resume."
    )


def scheduler_gone(client: Client, reason: str) -> MachineError:
    """Return the error that a scheduler does not answer any more."""
    return MachineError(
        f"{address_of(client)}: the scheduler is gone ({reason}). Start it, and run the command "
        "again, a fit with --resume."
    )


def address_of(client: Client) -> str:
    """Return the address of a client's scheduler."""
    return str(client.scheduler.address if client.scheduler else "scheduler")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
