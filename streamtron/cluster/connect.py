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
from streamtron.core.errors import MachineError, SettingsError
from streamtron.core.files import SMALL, at_most, parse_json
from streamtron.core.text import format_size

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

CONNECT_TIMEOUT = 30.0
"""Seconds to wait for a scheduler to answer, and for its first worker."""
WORKER_TIMEOUT = 300.0
"""Seconds without a heartbeat after which a worker is restarted."""
SILENT = logging.CRITICAL + 1
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
    # no page tells everybody on the machine what the tasks are
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}


@contextmanager
def connect(
    workers: int | Client | None = None,
    scheduler: str | None = None,
    *,
    machine: Machine | None = None,
    timeout: float = CONNECT_TIMEOUT,
    worker_timeout: float = WORKER_TIMEOUT,
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
    timeout : seconds to wait for the scheduler, and for the first worker.
    worker_timeout : seconds > 0 without a heartbeat after which one of N processes is restarted and
        its work given to another. For a running scheduler this is Dask's
        ``distributed.scheduler.worker-ttl``.
    """
    import dask
    from distributed import Client  # dask knows its settings by this import

    if (workers is None) == (scheduler is None):
        raise SettingsError("workers and a scheduler: give one of them, --workers or --scheduler.")
    is_number = isinstance(workers, int) and workers >= 1
    if not (workers is None or is_number or isinstance(workers, Client)):
        raise SettingsError(f"workers is {workers!r}: expected at least 1, as a whole number.")
    if not worker_timeout > 0:
        raise SettingsError(f"worker-timeout is {worker_timeout:g} s: expected more than 0.")
    settings = {**_DASK_SETTINGS, "distributed.scheduler.worker-ttl": worker_timeout}
    with dask.config.set(settings), ExitStack() as stack:
        for name in ("distributed", "distributed.client", "asyncio"):  # our errors say as much
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(SILENT)
        cluster, limit, client = None, None, workers
        if isinstance(workers, int):
            limit = _memory_each(workers, machine or Machine())
            cluster = stack.enter_context(_local(workers, limit))
            client = stack.enter_context(_client(cluster, timeout))
        elif scheduler is not None:
            client = stack.enter_context(_client(scheduler, timeout))
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
def _local(workers: int, limit: int) -> Iterator[LocalCluster]:
    """Start worker processes, which import nothing from the working directory: it holds data.

    Whoever can talk to Dask runs code in it, and every user of a machine reaches its ports. A key
    that exists in the memory of these processes alone keeps strangers out.
    """
    from distributed import LocalCluster, Security

    with ExitStack() as stack:
        if "PYTHONSAFEPATH" not in os.environ:  # with Dask's own setting it would stay set here
            os.environ["PYTHONSAFEPATH"] = "1"
            stack.callback(os.environ.pop, "PYTHONSAFEPATH")
        try:
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                security=Security.temporary(),
                memory_limit=limit,
                dashboard_address="127.0.0.1:0",  # None would be port 8787 of every address
                scheduler_kwargs={"dashboard": False},
                silence_logs=SILENT,
            )
        except (RuntimeError, OSError, ValueError, TimeoutError) as error:
            raise MachineError(
                f"{workers} workers could not be started ({first_line(error)}). Ask for fewer."
            ) from error
        yield stack.enter_context(cluster)


def _client(to: LocalCluster | str, timeout: float) -> Client:
    from distributed import Client, Security
    from distributed.utils import LoopRunner

    direct = None if isinstance(to, str) else True  # a scheduler's workers may be out of reach
    try:
        if isinstance(to, str):
            to = to if "://" in to else _address_in(to)
            how = Security().get_connection_args("client")
            LoopRunner().run_sync(_reach, to, timeout, how)
        return Client(to, timeout=timeout, set_as_default=False, direct_to_workers=direct)
    except FileNotFoundError as error:
        raise SettingsError(
            f"--scheduler {to}: certificates in Dask's configuration that cannot be used "
            f"({first_line(error)}). Correct DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …CLIENT__CERT "
            "and …CLIENT__KEY."
        ) from error
    except (OSError, TimeoutError, AssertionError) as error:  # the last on a machine too busy
        raise MachineError(
            f"{to}: no scheduler answered within {timeout:g} s ({first_line(error)}). Start one "
            "with dask scheduler, or let --workers start its own."
        ) from error
    except (ValueError, TypeError, RuntimeError, ImportError) as error:
        raise SettingsError(
            f"--scheduler {to}: not an address that dask can use ({first_line(error)}). Give "
            "tcp://host:8786, the file of dask scheduler --scheduler-file, or tls:// with the "
            "certificates that DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …CLIENT__CERT and "
            "…CLIENT__KEY name."
        ) from error


async def _reach(address: str, timeout: float, how: dict[str, Any]) -> None:
    """Connect once: a ``Client`` to which that is an error waits for itself for a minute."""
    from distributed.comm import connect

    await (await connect(address, timeout=timeout, **how)).close()


def _address_in(file: str) -> str:
    try:
        with open(file, encoding="utf-8", opener=at_most(SMALL)) as content:
            return str(parse_json(content.read())["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"--scheduler {file}: neither an address (tcp://host:8786) nor a file that dask "
            f"scheduler --scheduler-file has written ({first_line(error)})."
        ) from error


def _check_workers(client: Client, timeout: float) -> None:
    """Wait for a worker, and refuse workers with another version of streamtron, or none."""
    address, ours = address_of(client), version("streamtron")
    try:
        with asked(client):
            client.wait_for_workers(1, timeout=timeout)
            # a function of the standard library runs on a worker without streamtron too
            versions = client.sync(
                client.run, version, "streamtron", on_error="return", callback_timeout=timeout
            )
    except TimeoutError as error:
        raise MachineError(
            f"{address}: no worker has answered for {timeout:g} s. Start some with dask worker, or "
            "end those that hang."
        ) from error
    for worker, theirs in sorted(versions.items()):
        if theirs != ours and not isinstance(theirs, OSError):  # else it died meanwhile
            has = f"streamtron {theirs}" if isinstance(theirs, str) else "no streamtron"
            raise MachineError(
                f"{worker} has {has}, this is {ours}. Install the same version on every worker and "
                "start the workers again."
            )
