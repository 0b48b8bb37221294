"""Workers of Dask: a cluster of this machine's own processes, or one that exists.

``connect`` gives ``Workers``. They are a ``Executor`` (shards scored, converted, generated
side by side), and ``submit_all`` and ``submit`` hand them work of other shapes. What is Dask's is
left to Dask: queues, retries after a worker's death, transfer of results, the dashboard.

The only module that imports dask, and only where it is used.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

from streamtron.core.config import Machine, format_size
from streamtron.core.errors import MachineError, SettingsError, StreamtronError
from streamtron.core.files import SMALL, at_most

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster

Result = TypeVar("Result")

PATIENCE = 30.0
"""Seconds to wait for a scheduler to answer, and for its first worker."""
WORKER_TIMEOUT = 300.0
"""Seconds after which a worker that is silent is started again; a busy one says several times a
second that it lives."""
AHEAD = 2
"""Items under way or finished and not yet asked for, to every thread of the workers."""
NOTICE = 1.0
"""Seconds, about, until a worker is killed that is in the midst of a task that nobody wants."""
NEVER = "1000 days"
"""A worker that died is started again, however long that takes: Dask would give it up after 15 s,
which a busy machine needs, and a cluster without workers waits for ever."""
LEAST_MEMORY = 1 << 26
"""Bytes without which a worker of ours does not even start."""
LARGE = "1 GiB"
"""What travels with a task, a model say, may be so large before Dask warns."""


@contextmanager
def connect(
    workers: int | None = None,
    scheduler: str | None = None,
    *,
    machine: Machine | None = None,
    dashboard: str | None = None,
    patience: float = PATIENCE,
    worker_timeout: float = WORKER_TIMEOUT,
    loud: bool = False,
) -> Iterator[Workers]:
    """Workers for the ``with`` block: N processes of this machine, or those of a scheduler.

    Parameters
    ----------
    workers : processes to start, ≥ 1, one thread each; they end with the block.
    scheduler : or else a running scheduler's address, ``tcp://host:8786``, or its scheduler file.
    machine : each of N processes may take an N-th of ``machine.memory_limit`` bytes; beyond that
        Dask ends it. A running scheduler's workers have limits of their own.
    dashboard : ``host:port`` of Dask's dashboard, which needs bokeh; None = none.
    patience : seconds to wait for the scheduler, and for the first worker.
    worker_timeout : seconds > 0 after which one of N processes that is silent, but not dead, is
        started again and another one does its work. A running scheduler has its own limit, Dask's
        ``distributed.scheduler.worker-ttl``.
    loud : let Dask write its warnings to stderr.

    Raises
    ------
    SettingsError : neither or both of workers and scheduler, a scheduler file that is none, a
        worker_timeout of 0.
    MachineError : dask is not installed, no scheduler answers, it has no worker, one that does not
        answer, or one of another version of streamtron.

    Examples
    --------
    >>> with connect(0):
    ...     pass
    Traceback (most recent call last):
    ...
    streamtron.core.errors.SettingsError: workers is 0: wanted at least 1.
    """
    if (workers is None) == (scheduler is None):
        raise SettingsError("workers and a scheduler: give one of them, --workers or --scheduler.")
    if workers is not None and workers < 1:
        raise SettingsError(f"workers is {workers}: wanted at least 1.")
    if not worker_timeout > 0:
        raise SettingsError(f"worker-timeout is {worker_timeout:g} s: wanted more than 0.")
    dask = _dask()
    ours = {_LARGE_KEY: LARGE, _LOST_KEY: NEVER, _TRIM_KEY: None, _SILENT_KEY: worker_timeout}
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(ours))
        if not loud:
            stack.enter_context(_quiet())
        cluster = limit = None
        if workers is not None:
            limit = _memory_each(workers, machine or Machine())
            stack.enter_context(_importing_nothing_from_here())
            cluster = stack.enter_context(_local(workers, limit, dashboard, loud))
        client = stack.enter_context(_client(cluster or scheduler, patience))
        _await_workers(client, patience)
        _check_versions(client, patience)
        yield Workers(client, cluster, limit)


_LARGE_KEY = "distributed.admin.large-graph-warning-threshold"
_LOST_KEY = "distributed.deploy.lost-worker-timeout"
_SILENT_KEY = "distributed.scheduler.worker-ttl"
_TRIM_KEY = "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_"
"""Dask has workers give memory back as soon as an array is freed, and a fit asks for it again with
every mini-epoch: half again its time."""


class Workers:
    """The workers of a scheduler; see ``connect``. After an error our own ones are gone.

    Parameters
    ----------
    client : Dask's client.
    cluster : the LocalCluster that is ours to end; None where the scheduler is somebody else's.
    memory_each : bytes that each of our workers may take; None where they are somebody else's.
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
        """Tasks that run at a time, of all workers there are now; at least 1."""
        threads: dict[str, int] = self.client.nthreads()
        return max(sum(threads.values()), 1)

    def __call__(
        self, function: Callable[..., Iterable[Result]], items: Iterable[Any], *shared: Any
    ) -> Iterator[Result]:
        """Everything that ``function(item, *shared)`` yields for every item, in the items' order.

        An item is a task, named for it where it has a ``name``. What is shared travels once. A few
        items for every worker are under way or done at a time, so the results that wait here and
        there are those of few items. A task whose worker dies starts again on another one.

        Raises
        ------
        MachineError : a task's workers died one after the other, the scheduler is gone; and what
            ``function`` raises.
        """
        name, token = function.__name__, secrets.token_hex(4)
        with self._submitting() as submit:
            common = [
                submit(_itself, value, key=f"{name}_shared-{token}-{place}")
                for place, value in enumerate(shared)
            ]
            if common:
                self._copy_to_all(common)
            under_way: deque[Future] = deque()
            for number, item in enumerate(items):
                if len(under_way) >= self._most():
                    yield from self._result(under_way.popleft())
                key = f"{name}-{token}-{number}-{getattr(item, 'name', '')}"
                under_way.append(submit(_listed, function, item, *common, key=key))
            while under_way:
                yield from self._result(under_way.popleft())

    def submit_all(
        self,
        function: Callable[..., Result],
        items: Sequence[Any],
        names: Sequence[str],
        *shared: Any,
        done: Callable[[int, Result], None] | None = None,
    ) -> list[Result]:
        """``[function(item, *shared) for item in items]``, every item a task.

        Parameters
        ----------
        names : what the tasks are called on the dashboard, one an item.
        shared : small: it travels with every task.
        done : is told the place and the result of every item as it finishes.

        Raises
        ------
        As ``__call__``; what is under way is cancelled then.
        """
        from distributed import as_completed

        token = secrets.token_hex(4)
        with self._submitting() as submit:
            futures = [
                submit(function, item, *shared, key=f"{name}-{token}-{place}")
                for place, (name, item) in enumerate(zip(names, items, strict=True))
            ]
            place_of = {future.key: place for place, future in enumerate(futures)}
            results: dict[int, Result] = {}
            for future in as_completed(futures, loop=self.client.loop):
                place = place_of[future.key]
                if future.status == "error":  # the first item's counts, not the first to come
                    for earlier in (one for one in range(place) if one not in results):
                        self._result(futures[earlier])
                results[place] = self._result(future)
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
        """(place, ``function(item, *results)``) of every item as it finishes; the results are
        those of the items that it comes after.

        Parameters
        ----------
        names : what the tasks are called on the dashboard, one an item.
        after : for every item the places of earlier ones.

        Yields
        ------
        A MachineError in place of a result where the workers died, or where those of an item
        before it did.

        Raises
        ------
        As ``__call__``.
        """
        from distributed import as_completed

        token = secrets.token_hex(4)
        with self._submitting() as submit:
            futures: list[Future] = []
            for place, (name, item) in enumerate(zip(names, items, strict=True)):
                before = [futures[earlier] for earlier in after[place]]
                key = f"{name}-{token}-{place}"
                futures.append(submit(function, item, *before, key=key))
            place_of = {future.key: place for place, future in enumerate(futures)}
            for future in as_completed(futures, loop=self.client.loop):
                try:
                    result: Result | MachineError = self._result(future)
                except MachineError as error:
                    if future.status != "error":
                        raise
                    result = error
                yield place_of[future.key], result

    @contextmanager
    def _submitting(self) -> Iterator[Callable[..., Future]]:
        """Submit tasks that are let go at the end; if the block fails, those under way end too."""
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
            self._abandon(futures)
            raise
        finally:
            for future in futures:
                future.release()

    def _abandon(self, futures: Sequence[Future]) -> None:
        """A running task cannot be interrupted: it is left alone, or its worker is ended."""
        if self._cluster is not None:
            self._cluster.sync(_end_now, self._cluster)
            self._cluster.close()
        elif self.client.status == "running":
            self.client.cancel(list(futures))

    def _copy_to_all(self, futures: Sequence[Future]) -> None:
        """Have every worker hold these: else the scheduler gives each task to one that does. Dask
        fails at it where a worker dies meanwhile; then some fetch them when they need them."""
        with suppress(Exception):  # of whatever type: what is wrong with a task, its result says
            self.client.replicate(list(futures))

    def _most(self) -> int:
        return AHEAD * self.threads

    def _result(self, future: Future) -> Any:
        """The result of a task, which is let go: else it would run again when its worker dies."""
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
                f"{_address(self.client)}: the scheduler is gone ({_words(error)}). Start it, and "
                "run the command again."
            ) from error
        future.release()
        return result


# What runs on a worker ---------------------------------------------------------------------------


def _checked(wanted: str, function: Callable[..., Result], *values: Any) -> Result:
    """A worker may have come after the versions were compared."""
    if version("streamtron") != wanted:
        raise _other_version("a worker", version("streamtron"), wanted)
    return function(*values)


def _listed(function: Callable[..., Iterable[Result]], *values: Any) -> list[Result]:
    return list(function(*values))


def _itself(value: Result) -> Result:
    return value


def still_wanted() -> Callable[[], bool]:
    """Within a task: a function that tells whether anybody still waits for it. Nobody does when
    it was cancelled, or the client is gone."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def wanted() -> bool:
        state = worker.state.tasks.get(key)
        return state is not None and state.state != "cancelled"

    return wanted


def name_here() -> str:
    """Within a task: what its worker is called."""
    from distributed import get_worker

    return str(get_worker().name)


def memory_here() -> int | None:
    """Within a task: bytes that its worker may take, to every thread; None = no limit."""
    from distributed import get_worker

    worker = get_worker()
    limit = worker.memory_manager.memory_limit
    return None if limit is None else int(limit) // worker.state.nthreads


async def _end_now(cluster: LocalCluster) -> None:
    """End worker processes in the midst of their tasks: a signal is obeyed within two seconds."""
    ends = (nanny.close(timeout=NOTICE) for nanny in cluster.workers.values())
    await asyncio.gather(*ends, return_exceptions=True)


# Getting there -----------------------------------------------------------------------------------


def _dask() -> Any:
    try:
        import dask
        import distributed  # noqa: F401
    except ImportError as error:
        raise MachineError(
            f"dask is not installed ({error}). Install streamtron[cluster], or leave --workers and "
            "--scheduler out."
        ) from error
    return dask


@contextmanager
def _quiet() -> Iterator[None]:
    """What Dask would log of a worker's death or a lost line, we say in our own sentence."""
    logger = logging.getLogger("distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _importing_nothing_from_here() -> Iterator[None]:
    """Have the interpreters that are started meanwhile leave the working directory, where the data
    may be somebody else's, out of their path."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        del os.environ[_SAFE_PATH]
        if before is not None:
            os.environ[_SAFE_PATH] = before


_SAFE_PATH = "PYTHONSAFEPATH"


def _memory_each(workers: int, machine: Machine) -> int:
    """Bytes that each of so many workers may take."""
    each = machine.memory_limit // workers
    if each < LEAST_MEMORY:
        raise MachineError(
            f"{workers} workers would have {format_size(each)} of memory each, and none can start "
            f"with less than {format_size(LEAST_MEMORY)}. Ask for "
            f"{max(machine.memory_limit // LEAST_MEMORY, 1)} at most, or give a larger --memory."
        )
    return each


def _local(workers: int, limit: int, dashboard: str | None, loud: bool) -> LocalCluster:
    from distributed import LocalCluster

    try:
        return LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            protocol="tcp",
            memory_limit=limit,
            dashboard_address=dashboard
            or "127.0.0.1:0",  # None would be port 8787 of every address
            scheduler_kwargs={"dashboard": dashboard is not None},
            silence_logs=logging.WARNING if loud else logging.CRITICAL + 1,
        )
    except (RuntimeError, OSError, ValueError, TimeoutError) as error:
        raise MachineError(
            f"{workers} workers could not be started ({_words(error)}). Ask for fewer, or for "
            "another --dashboard if there is one."
        ) from error


def _client(to: LocalCluster | str | None, patience: float) -> Client:
    from distributed import Client
    from distributed.comm.registry import get_backend

    if isinstance(to, str) and "://" not in to:
        to = _address_in(to)
    try:
        if isinstance(to, str):  # for some that it does not know, Dask would wait for an answer
            get_backend(to.partition("://")[0])
        return Client(to, timeout=patience, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise MachineError(
            f"{to}: no scheduler answered within {patience:g} s ({_words(error)}). Start one with "
            "dask scheduler, or let --workers start its own."
        ) from error
    except AssertionError as error:  # Dask's own thread has ten seconds to begin
        raise MachineError(
            f"{to}: this machine is too busy to ask the scheduler. Run the command again."
        ) from error
    except (ValueError, ImportError) as error:
        raise SettingsError(
            f"--scheduler {to}: not an address that dask knows ({_words(error)}). Give "
            "tcp://host:8786, or the file of dask scheduler --scheduler-file."
        ) from error


def _address_in(file: str) -> str:
    """The address that a scheduler file gives."""
    try:
        with open(file, encoding="utf-8", opener=at_most(SMALL)) as content:
            return str(json.load(content)["address"])
    except StreamtronError as error:
        raise SettingsError(f"--scheduler {error}") from error
    except OSError as error:
        raise SettingsError(
            f"--scheduler {file}: neither an address (tcp://host:8786) nor a scheduler file that "
            f"can be read ({error.strerror})."
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SettingsError(
            f"--scheduler {file}: not a scheduler file. Give one that dask scheduler "
            "--scheduler-file has written."
        ) from error


def _await_workers(client: Client, patience: float) -> None:
    try:
        client.wait_for_workers(1, timeout=patience)
    except TimeoutError as error:
        raise MachineError(
            f"{_address(client)}: a scheduler without workers, for {patience:g} s now. Start some "
            "with dask worker."
        ) from error


def _check_versions(client: Client, patience: float) -> None:
    ours = version("streamtron")
    # a function of the standard library: a worker without streamtron could not run one of ours
    try:
        found = client.sync(
            client.run, version, "streamtron", on_error="return", callback_timeout=patience
        )
    except TimeoutError as error:
        raise MachineError(
            f"{_address(client)}: a worker there has not answered for {patience:g} s. Look for one "
            "that is stopped or hangs, end it, and run the command again."
        ) from error
    for worker, theirs in sorted(found.items()):
        if theirs != ours:
            raise _other_version(worker, theirs, ours)


def _other_version(worker: str, theirs: object, ours: str) -> MachineError:
    has = f"streamtron {theirs}" if isinstance(theirs, str) else "no streamtron"
    return MachineError(
        f"{worker} has {has}, this is {ours}. Install the same version on every worker and start "
        "the workers again."
    )


def _address(client: Client) -> str:
    return str(client.scheduler.address if client.scheduler else "scheduler")


def _words(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
