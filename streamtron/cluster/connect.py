"""Connect to Dask workers: processes that are started here, or those of a running scheduler."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from streamtron.cluster.client import Workers, address_of, asked, first_line
from streamtron.core.config import Machine
from streamtron.core.errors import MachineError, SettingsError, StreamtronError
from streamtron.core.extras import library
from streamtron.core.files import SMALL, at_most, parse_json
from streamtron.core.text import format_size

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

CONNECT_TIMEOUT = 30.0
"""Seconds to wait for a scheduler to answer, and for its first worker."""
WORKER_TIMEOUT = 300.0
"""Seconds without a heartbeat after which a worker is restarted; a busy one sends several a
second."""
TLS = ("CA_FILE", "CLIENT__CERT", "CLIENT__KEY")
"""Files that a client needs, as Dask's configuration calls them in the environment."""
LEAST_MEMORY = 1 << 26
"""Bytes that a worker needs to start."""

_DASK_SETTINGS: dict[str, Any] = {
    # a task may carry a whole model without a warning
    "distributed.admin.large-graph-warning-threshold": "1 GiB",
    # how long a dead worker may take to restart: after Dask's 15 s, a busy machine would lose it,
    # and a cluster without workers waits for ever
    "distributed.deploy.lost-worker-timeout": "1000 days",
    # Dask has workers return freed memory at once, and a fit allocates it again in every
    # mini-epoch, which adds half to its time
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
    # a worker above 80 % of its limit would take no task until it has less: parts hold their rows
    "distributed.worker.memory.pause": False,
    "distributed.worker.http.routes": [],  # as for the scheduler
}


@contextmanager
def connect(
    workers: int | Client | None = None,
    scheduler: str | None = None,
    *,
    machine: Machine | None = None,
    dashboard: str | None = None,
    timeout: float = CONNECT_TIMEOUT,
    worker_timeout: float | None = None,
    verbose: bool = False,
) -> Iterator[Workers]:
    """Connect to workers for the ``with`` block: N new processes, or those of a scheduler or an
    open client.

    Parameters
    ----------
    workers : number of processes to start, ≥ 1, one thread each; they end with the block. Or a
        ``dask.distributed.Client``, which stays open.
    scheduler : or the address of a running scheduler, ``tcp://host:8786``, or its scheduler file.
        ``tls://`` takes the certificates in Dask's configuration.
    machine : its ``memory_limit`` is shared equally by N processes; Dask ends one that uses more.
        A running scheduler's workers have limits of their own.
    dashboard : ``host:port`` of Dask's dashboard; None = none.
    timeout : seconds to wait for the scheduler, and for the first worker.
    worker_timeout : seconds > 0 without a heartbeat after which one of N processes is restarted and
        its work given to another; None = WORKER_TIMEOUT. For a running scheduler this is Dask's
        ``distributed.scheduler.worker-ttl``.
    verbose : let Dask write its warnings to stderr.
    """
    import dask
    from distributed import Client  # dask knows its settings by this import

    if dashboard is not None:
        library("bokeh", "dashboard", f"--dashboard {dashboard}")
    if (workers is None) == (scheduler is None):
        raise SettingsError("workers and a scheduler: give one of them, --workers or --scheduler.")
    is_number = isinstance(workers, int) and workers >= 1
    if not (workers is None or is_number or isinstance(workers, Client)):
        raise SettingsError(f"workers is {workers!r}: wanted at least 1, as a whole number.")
    worker_timeout = WORKER_TIMEOUT if worker_timeout is None else worker_timeout
    if not worker_timeout > 0:
        raise SettingsError(f"worker-timeout is {worker_timeout:g} s: wanted more than 0.")
    settings = {**_DASK_SETTINGS, "distributed.scheduler.worker-ttl": worker_timeout}
    if dashboard is None:  # else the scheduler's page tells everybody its tasks
        settings["distributed.scheduler.http.routes"] = []
    with dask.config.set(settings), ExitStack() as stack:
        if not verbose:  # of dead workers and lost connections, which our errors report
            for name in ("distributed", "distributed.client", "asyncio"):
                logger = logging.getLogger(name)
                stack.callback(logger.setLevel, logger.level)
                logger.setLevel(logging.CRITICAL + 1)
        cluster = limit = None
        if isinstance(workers, int):
            limit = _memory_each(workers, machine or Machine())
            cluster = stack.enter_context(_local(workers, limit, dashboard, verbose))
        if workers is None or cluster is not None:
            client = stack.enter_context(_client(cluster or scheduler, timeout))
        else:
            client = workers
        _check_workers(client, timeout)
        yield Workers(client, cluster, limit)


def _memory_each(workers: int, machine: Machine) -> int:
    limit = machine.memory_limit // workers
    if limit < LEAST_MEMORY:
        raise MachineError(
            f"{workers} workers would have {format_size(limit)} of memory each, and none can start "
            f"with less than {format_size(LEAST_MEMORY)}. Ask for "
            f"{max(machine.memory_limit // LEAST_MEMORY, 1)} at most, or give a larger --memory."
        )
    return limit


@contextmanager
def _local(
    workers: int, limit: int, dashboard: str | None, verbose: bool
) -> Iterator[LocalCluster]:
    """Start worker processes, which import nothing from the working directory: it holds data.

    Who can talk to Dask runs code in it, and every user of a machine reaches its ports: they talk
    to those alone that have their key, which is in the memory of these processes.
    """
    from distributed import LocalCluster

    with ExitStack() as stack:
        if "PYTHONSAFEPATH" not in os.environ:  # with Dask's own setting it would stay set here
            os.environ["PYTHONSAFEPATH"] = "1"
            stack.callback(os.environ.pop, "PYTHONSAFEPATH")
        try:
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                security=True,
                memory_limit=limit,
                # None would be port 8787 of every address
                dashboard_address=dashboard or "127.0.0.1:0",
                scheduler_kwargs={"dashboard": dashboard is not None},
                silence_logs=logging.WARNING if verbose else logging.CRITICAL + 1,
            )
        except (RuntimeError, OSError, ValueError, TimeoutError) as error:
            raise MachineError(
                f"{workers} workers could not be started ({first_line(error)}). Ask for fewer, or "
                "for another --dashboard if there is one."
            ) from error
        yield stack.enter_context(cluster)


def _client(to: LocalCluster | str | None, timeout: float) -> Client:
    from distributed import Client
    from distributed.utils import LoopRunner

    if isinstance(to, str):
        to = to if "://" in to else _address_in(to)
        how = _certificates(to)
    try:
        if isinstance(to, str):
            LoopRunner().run_sync(_reach, to, timeout, how)
        direct = None if isinstance(to, str) else True  # a scheduler's workers may be out of reach
        return Client(to, timeout=timeout, set_as_default=False, direct_to_workers=direct)
    except (OSError, TimeoutError, AssertionError) as error:  # the last on a machine too busy
        raise MachineError(
            f"{to}: no scheduler answered within {timeout:g} s ({first_line(error)}). Start one "
            "with dask scheduler, or let --workers start its own."
        ) from error
    except (ValueError, TypeError, RuntimeError, ImportError) as error:
        raise SettingsError(
            f"--scheduler {to}: not an address that dask knows ({first_line(error)}). Give "
            "tcp://host:8786, or the file of dask scheduler --scheduler-file."
        ) from error


async def _reach(address: str, timeout: float, how: dict[str, Any]) -> None:
    """Connect once: a ``Client`` to which that is an error waits for itself for a minute."""
    from distributed.comm import connect

    await (await connect(address, timeout=timeout, **how)).close()


def _certificates(address: str) -> dict[str, Any]:
    """Return how Dask's configuration lets us connect to an address; tls needs certificates."""
    from distributed import Security

    reason = "there are none"
    try:
        how: dict[str, Any] = Security().get_connection_args("client")
        if how["ssl_context"] is not None or not address.startswith(("tls:", "wss:")):
            return how
    except (OSError, ValueError) as error:
        reason = first_line(error)
    names = ", ".join(f"DASK_DISTRIBUTED__COMM__TLS__{name}" for name in TLS)
    raise SettingsError(
        f"--scheduler {address}: the certificates in Dask's configuration cannot be used "
        f"({reason}). Name their files in the environment: {names}."
    )


def _address_in(file: str) -> str:
    try:
        with open(file, encoding="utf-8", opener=at_most(SMALL)) as content:
            return str(parse_json(content.read())["address"])
    except OSError as error:
        raise SettingsError(
            f"--scheduler {file}: neither an address (tcp://host:8786) nor a scheduler file that "
            f"can be read ({error.strerror})."
        ) from error
    except (StreamtronError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"--scheduler {file}: not a scheduler file ({first_line(error)}). Give one that dask "
            "scheduler --scheduler-file has written."
        ) from error


def _check_workers(client: Client, timeout: float) -> None:
    """Wait for a worker, and refuse workers with another version of streamtron, or none."""
    address, ours = address_of(client), version("streamtron")
    try:
        with asked(client):
            client.wait_for_workers(1, timeout=timeout)
    except TimeoutError as error:
        raise MachineError(
            f"{address}: a scheduler without workers, for {timeout:g} s now. Start some with dask "
            "worker."
        ) from error
    try:  # a function of the standard library, which runs on a worker without streamtron too
        with asked(client):
            versions = client.sync(
                client.run, version, "streamtron", on_error="return", callback_timeout=timeout
            )
    except TimeoutError as error:
        raise MachineError(
            f"{address}: a worker there has not answered for {timeout:g} s. Look for one that is "
            "stopped or hangs, end it, and run the command again."
        ) from error
    for worker, theirs in sorted(versions.items()):
        if theirs != ours and not isinstance(theirs, OSError):  # else it died meanwhile
            has = f"streamtron {theirs}" if isinstance(theirs, str) else "no streamtron"
            raise MachineError(
                f"{worker} has {has}, this is {ours}. Install the same version on every worker and "
                "start the workers again."
            )
