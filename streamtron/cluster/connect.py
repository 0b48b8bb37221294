"""Connect to Dask workers: processes that are started here, or those of a running scheduler."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from streamtron.cluster.client import Workers, address_of, first_line, other_version
from streamtron.core.config import Machine, format_size
from streamtron.core.errors import MachineError, SettingsError, StreamtronError
from streamtron.core.files import SMALL, at_most

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

CONNECT_TIMEOUT = 30.0
"""Seconds to wait for a scheduler to answer, and for its first worker."""
WORKER_TIMEOUT = 300.0
"""Seconds without a heartbeat after which a worker is restarted; a busy one sends several a
second."""
LEAST_MEMORY = 1 << 26
"""Bytes that a worker needs to start."""


@contextmanager
def connect(
    workers: int | None = None,
    scheduler: str | None = None,
    *,
    machine: Machine | None = None,
    dashboard: str | None = None,
    timeout: float = CONNECT_TIMEOUT,
    worker_timeout: float = WORKER_TIMEOUT,
    verbose: bool = False,
) -> Iterator[Workers]:
    """Connect to workers for the ``with`` block: N new processes, or those of a scheduler.

    Parameters
    ----------
    workers : number of processes to start, ≥ 1, one thread each; they end with the block.
    scheduler : or the address of a running scheduler, ``tcp://host:8786``, or its scheduler file.
    machine : its ``memory_limit`` is shared equally by N processes; Dask ends one that uses more.
        A running scheduler's workers have limits of their own.
    dashboard : ``host:port`` of Dask's dashboard, which needs bokeh; None = none.
    timeout : seconds to wait for the scheduler, and for the first worker.
    worker_timeout : seconds > 0 without a heartbeat after which one of N processes is restarted and
        its work given to another. For a running scheduler this is Dask's
        ``distributed.scheduler.worker-ttl``.
    verbose : let Dask write its warnings to stderr.

    Raises
    ------
    SettingsError : neither or both of workers and scheduler, an invalid scheduler file, a
        worker_timeout of 0.
    MachineError : dask is not installed, no scheduler answers, it has no worker, or one that does
        not answer or has another version of streamtron.

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
    with ExitStack() as stack:
        ours = {**_DASK_SETTINGS, "distributed.scheduler.worker-ttl": worker_timeout}
        stack.enter_context(dask.config.set(ours))
        if not verbose:
            stack.enter_context(_without_logs())
        cluster = limit = None
        if workers is not None:
            limit = _memory_each(workers, machine or Machine())
            stack.enter_context(_safe_path())
            cluster = stack.enter_context(_local(workers, limit, dashboard, verbose))
        client = stack.enter_context(_client(cluster or scheduler, timeout))
        _await_workers(client, timeout)
        _check_versions(client, timeout)
        yield Workers(client, cluster, limit)


_DASK_SETTINGS = {
    # a task may carry a whole model without a warning
    "distributed.admin.large-graph-warning-threshold": "1 GiB",
    # how long a dead worker may take to restart: after Dask's 15 s, a busy machine would lose it,
    # and a cluster without workers waits for ever
    "distributed.deploy.lost-worker-timeout": "1000 days",
    # Dask has workers return freed memory at once, and a fit allocates it again in every
    # mini-epoch, which adds half to its time
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
}


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
def _safe_path() -> Iterator[None]:
    """Have workers import nothing from the working directory, which holds data.

    Dask's own setting of a worker's environment would stay in this process for good.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before


@contextmanager
def _without_logs() -> Iterator[None]:
    """Silence Dask's logs of dead workers and lost connections, which our errors report."""
    logger = logging.getLogger("distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _memory_each(workers: int, machine: Machine) -> int:
    each = machine.memory_limit // workers
    if each < LEAST_MEMORY:
        raise MachineError(
            f"{workers} workers would have {format_size(each)} of memory each, and none can start "
            f"with less than {format_size(LEAST_MEMORY)}. Ask for "
            f"{max(machine.memory_limit // LEAST_MEMORY, 1)} at most, or give a larger --memory."
        )
    return each


def _local(workers: int, limit: int, dashboard: str | None, verbose: bool) -> LocalCluster:
    from distributed import LocalCluster

    try:
        return LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            protocol="tcp",
            memory_limit=limit,
            # None would be port 8787 of every address
            dashboard_address=dashboard or "127.0.0.1:0",
            scheduler_kwargs={"dashboard": dashboard is not None},
            silence_logs=logging.WARNING if verbose else logging.CRITICAL + 1,
        )
    except (RuntimeError, OSError, ValueError, TimeoutError) as error:
        raise MachineError(
            f"{workers} workers could not be started ({first_line(error)}). Ask for fewer, or for "
            "another --dashboard if there is one."
        ) from error


def _client(to: LocalCluster | str | None, timeout: float) -> Client:
    from distributed import Client
    from distributed.comm.registry import get_backend

    if isinstance(to, str) and "://" not in to:
        to = _address_in(to)
    try:
        if isinstance(to, str):  # with some unknown protocols, Dask would wait for an answer
            get_backend(to.partition("://")[0])
        return Client(to, timeout=timeout, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise MachineError(
            f"{to}: no scheduler answered within {timeout:g} s ({first_line(error)}). Start one "
            "with dask scheduler, or let --workers start its own."
        ) from error
    except AssertionError as error:  # Dask's own thread has ten seconds to begin
        raise MachineError(
            f"{to}: this machine is too busy to ask the scheduler. Run the command again."
        ) from error
    except (ValueError, ImportError) as error:
        raise SettingsError(
            f"--scheduler {to}: not an address that dask knows ({first_line(error)}). Give "
            "tcp://host:8786, or the file of dask scheduler --scheduler-file."
        ) from error


def _address_in(file: str) -> str:
    """Return the address that a scheduler file gives."""
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


def _await_workers(client: Client, timeout: float) -> None:
    try:
        client.wait_for_workers(1, timeout=timeout)
    except TimeoutError as error:
        raise MachineError(
            f"{address_of(client)}: a scheduler without workers, for {timeout:g} s now. Start some "
            "with dask worker."
        ) from error


def _check_versions(client: Client, timeout: float) -> None:
    ours = version("streamtron")
    # a function of the standard library, which runs on a worker without streamtron too
    try:
        found = client.sync(
            client.run, version, "streamtron", on_error="return", callback_timeout=timeout
        )
    except TimeoutError as error:
        raise MachineError(
            f"{address_of(client)}: a worker there has not answered for {timeout:g} s. Look for "
            "one that is stopped or hangs, end it, and run the command again."
        ) from error
    for worker, theirs in sorted(found.items()):
        if theirs != ours:
            raise other_version(worker, theirs, ours)
