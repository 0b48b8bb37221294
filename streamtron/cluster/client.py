"""Tasks on Dask workers, whose queues, retries and transfers are Dask's own."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from streamtron.core.errors import MachineError

if TYPE_CHECKING:
    from distributed import Client as Client
    from distributed import Future, LocalCluster

Result = TypeVar("Result")

AHEAD = 2
"""Items, for every thread of the workers, that are computed or wait to be consumed."""
RESTARTING, RESTARTING_OURS = 15.0, 300.0
"""Seconds to wait for a worker that may be started again, by others or here."""
NO_WORKERS = "no workers are left, or all have used up their memory. Start some"


class Workers:
    """An ``Executor`` on the workers of a scheduler; see ``connect``. If ``cluster`` was started
    here, each of its workers may use ``memory_each`` bytes, and an error ends them."""

    def __init__(self, client: Client, cluster: Any = None, memory_each: int | None = None) -> None:
        self.client, self.memory_each, self._cluster = client, memory_each, cluster

    @property
    def threads(self) -> int:
        """Number of tasks that can run at a time now; at least 1."""
        with asked(self.client):
            return max(int(sum(self.client.nthreads().values())), 1)

    def wait_for(self, number: int) -> None:
        """Wait for so many workers, as long as it is likely that they come."""
        patience = RESTARTING if self._cluster is None else RESTARTING_OURS
        with suppress(TimeoutError), asked(self.client):
            self.client.wait_for_workers(number, timeout=patience)

    def __call__(
        self, function: Callable[..., Iterable[Result]], items: Iterable[Any], *shared: Any
    ) -> Iterator[Result]:
        """Yield everything that ``function(item, *shared)`` yields for every item, in their order.

        An item is a task, named after the item's ``name`` if it has one. ``shared`` is sent once.
        """
        name, token = function.__name__, secrets.token_hex(4)
        with self.submitting() as submit:
            common = submit(lambda *values: values, *shared, key=f"{name}_shared-{token}")
            with suppress(Exception):  # any, if a worker dies; tasks prefer workers with copies
                self.client.replicate([common])
            pending = deque[Any]()
            for number, item in enumerate(items):
                if len(pending) >= AHEAD * self.threads:
                    yield from self.result(pending.popleft())
                key = f"{name}-{token}-{number}-{getattr(item, 'name', '')}"
                pending.append(submit(_results, function, item, common, key=key))
            while pending:
                yield from self.result(pending.popleft())

    @contextmanager
    def submitting(self) -> Iterator[Callable[..., Future]]:
        """Give a function that submits tasks; they are cancelled on an error, else released."""
        if self.client.status != "running":
            raise MachineError("these workers are gone since an error before. Connect again.")
        futures: list[Future] = []

        def submit(function: Callable[..., Any], *values: Any, **how: Any) -> Future:
            futures.append(self.client.submit(function, *values, **how))
            return futures[-1]

        try:
            yield submit
        except BaseException:
            self.end()
            if self.client.status == "running":
                self.client.cancel(futures)
            raise
        finally:
            for future in futures:
                future.release()

    def end(self) -> None:
        """End the workers if they were started here: a running task ends only with its worker."""
        if self._cluster is not None:
            self._cluster.sync(_end_now, self._cluster)
            self._cluster.close()

    def result(self, future: Future) -> Any:
        """Return the result of a task and release it, or it would run again if its worker dies."""
        from distributed import KilledWorker, wait

        while not future.done():
            with suppress(Exception), self.client.as_current():  # it is raised again below
                wait(future, RESTARTING)
                break
            self.wait_for(1)
            with asked(self.client):
                if not self.client.nthreads():
                    raise gone(self.client, NO_WORKERS)
        try:
            result = future.result()
        except KilledWorker as error:
            raise MachineError(
                f"{future.key}: {error.allowed_failures + 1} workers died one after the other on "
                "it, likely of its memory. Give fewer --workers, or a larger --memory."
            ) from error
        except Exception as error:
            if future.status == "error":
                raise  # the task's own
            raise gone(
                self.client, f"the scheduler is gone ({first_line(error)}). Start it"
            ) from error
        future.release()
        return result


def _results(function: Callable[..., Iterable[Any]], item: Any, shared: Iterable[Any]) -> list[Any]:
    return list(function(item, *shared))


async def _end_now(cluster: LocalCluster) -> None:
    """End worker processes in the middle of their tasks, within two seconds of a signal."""
    ends = (nanny.close(timeout=1.0) for nanny in cluster.workers.values())
    await asyncio.gather(*ends, return_exceptions=True)


def still_wanted() -> Callable[[], bool]:
    """Return a function that tells whether the running task, if it is one, is not cancelled."""
    from distributed import get_worker

    with suppress(ValueError):  # there is no worker
        state, key = get_worker().state, get_worker().get_current_task()
        return lambda: getattr(state.tasks.get(key), "state", "cancelled") != "cancelled"
    return lambda: True


def usable_memory() -> int | None:
    """Return the bytes that this worker may use before Dask pauses or ends it; None = no limit."""
    from distributed import get_worker

    manager = get_worker().memory_manager
    share = manager.memory_pause_fraction or 0.95  # at which its nanny ends it
    return manager.memory_limit and int(share * manager.memory_limit)


@contextmanager
def asked(client: Client) -> Iterator[None]:
    """Turn what Dask raises in the block if it does not reach the scheduler into a MachineError."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError as error:
        raise gone(client, f"the scheduler is gone ({first_line(error)}). Start it") from error


def gone(client: Client, what: str) -> MachineError:
    """Return the error that a scheduler, or all of its workers, do not answer any more."""
    address = getattr(client.scheduler, "address", "scheduler")
    return MachineError(f"{address}: {what}, and run the command again, a fit with --resume.")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
