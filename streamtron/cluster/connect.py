"""Connect to Dask workers: processes that are started here, or those of a running scheduler."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from streamtron.cluster.client import Workers, asked, first_line
from streamtron.core.config import Machine
from streamtron.core.errors import MachineError, SettingsError
from streamtron.core.files import SMALL, at_most, parse_json
from streamtron.core.kinds import whole
from streamtron.core.text import format_size

if TYPE_CHECKING:
    from distributed import Client

LEAST_MEMORY, SILENT = 1 << 26, logging.CRITICAL + 1

_DASK: dict[str, Any] = {
    # a task may carry a whole model without a warning
    "distributed.admin.large-graph-warning-threshold": "1 GiB",
    # a worker that restarts later is closed, and a cluster without workers waits for ever
    "distributed.deploy.lost-worker-timeout": "1000 days",
    # to return memory at once, which is soon allocated again, adds half to the time of a fit
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
    # a worker whose parts hold their rows would never have less memory, and wait for ever
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
    timeout: float = 30.0,
) -> Iterator[Workers]:
    """Connect to workers for the ``with`` block, waiting ``timeout`` seconds at most.

    ``workers`` : number of processes to start, ≥ 1, one thread each, which end with the block and
    share the ``memory_limit`` of the ``machine``; or a ``dask.distributed.Client``, which stays
    open. ``scheduler`` : the address of a running scheduler, ``tcp://host:8786``, or its scheduler
    file; ``tls://`` takes the certificates in Dask's configuration.
    """
    import dask
    from distributed import Client, LocalCluster, Security  # dask knows its settings by this import
    from distributed.utils import LoopRunner

    if (workers is None) == (scheduler is None):
        raise SettingsError("workers and a scheduler: give one of them, --workers or --scheduler.")
    number = 0 if isinstance(workers, Client | None) else whole(workers, "workers", least=1)
    memory = (machine or Machine()).memory_limit
    limit = memory // number if number else None
    if limit is not None and limit < LEAST_MEMORY:
        size = f"{workers} workers would have {format_size(limit)} of memory each"
        most = f"Ask for {max(memory // LEAST_MEMORY, 1)} at most, or give a larger --memory"
        raise MachineError(f"{size}: expected {format_size(LEAST_MEMORY)} or more. {most}.")
    with dask.config.set(_DASK), ExitStack() as stack:
        for name in ("distributed", "distributed.client", "asyncio"):  # our errors say as much
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(SILENT)
        # workers import nothing from this directory; by Dask's own setting it would stay set here
        if "PYTHONSAFEPATH" not in os.environ:
            os.environ["PYTHONSAFEPATH"] = "1"
            stack.callback(os.environ.pop, "PYTHONSAFEPATH")
        client, cluster, where = workers, None, scheduler
        try:
            if number:
                where = cluster = LocalCluster(
                    n_workers=number,
                    threads_per_worker=1,
                    # who can talk to Dask runs code in it: only these processes have this key
                    security=Security.temporary(),
                    memory_limit=limit,
                    dashboard_address="127.0.0.1:0",  # None would be port 8787 of every address
                    scheduler_kwargs={"dashboard": False},
                    silence_logs=SILENT,
                )
                stack.enter_context(cluster)
            elif scheduler and "://" not in scheduler:
                with open(scheduler, encoding="utf-8", opener=at_most(SMALL)) as file:
                    where = str(parse_json(file.read())["address"])
            if isinstance(where, str):
                LoopRunner().run_sync(_reach, where, timeout)
            if where is not None:
                how = {"set_as_default": False, "direct_to_workers": cluster and True}
                client = stack.enter_context(Client(where, timeout=timeout, **how))
        except (OSError, ValueError, TypeError, LookupError, RuntimeError, ImportError) as error:
            kind = MachineError if number or isinstance(error, OSError) else SettingsError
            raise kind(
                f"{scheduler or f'{workers} workers'}: cannot be used ({first_line(error)}). Ask "
                "for fewer --workers; or start dask scheduler, and give tcp://host:8786, its "
                "--scheduler-file, or tls:// with certificates in Dask's configuration."
            ) from error
        _check_workers(client, timeout)
        yield Workers(client, cluster, limit)


async def _reach(address: str, timeout: float) -> None:
    """Connect once: a ``Client`` that cannot leaves a traceback behind."""
    from distributed import Security, comm

    how = Security().get_connection_args("client")
    await (await comm.connect(address, timeout=timeout, **how)).close()


def _check_workers(client: Any, timeout: float) -> None:
    """Wait for a worker, and refuse workers with another version of streamtron, or none."""
    ours, how = version("streamtron"), {"on_error": "return", "callback_timeout": timeout}
    try:
        with asked(client):
            client.wait_for_workers(1, timeout=timeout)
            # a function of the standard library runs on a worker without streamtron too
            versions = client.sync(client.run, version, "streamtron", **how)
    except TimeoutError as error:
        reason = f"no worker has answered for {timeout:g} s"
        raise MachineError(f"{reason}. Start dask worker, or end those that hang.") from error
    for worker, theirs in versions.items():
        if theirs != ours and not isinstance(theirs, OSError):  # else it died meanwhile
            raise MachineError(f"{worker} has streamtron {theirs}, this is {ours}. Make them one.")
