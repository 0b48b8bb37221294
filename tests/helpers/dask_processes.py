"""Schedulers and workers of Dask, started by hand as processes."""

from collections.abc import Iterator
from contextlib import contextmanager

import dask
import distributed  # noqa: F401 (else the end of a dask.config.set takes its defaults away)
import pytest

from streamtron.cluster.client import Workers
from tests.helpers.processes import ROOT, Process

LOCAL = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")


@contextmanager
def dask_scheduler(*words: object) -> Iterator[str]:
    """The address of a scheduler that was started by hand, without workers; ``words`` : options."""
    with _dask("scheduler", "", *LOCAL, *words) as found:
        yield found.line_with("Scheduler at:").split()[-1]


@contextmanager
def dask_worker(scheduler: str, before: str = "") -> Iterator[Process]:
    """A worker that was started by hand, and is not started again when it dies."""
    words = (scheduler, "--nthreads", "1", "--no-nanny", *LOCAL[:2])
    with _dask("worker", before, *words) as found:
        found.line_with("Registered to:")
        yield found


@contextmanager
def _dask(command: str, before: str, *words: object) -> Iterator[Process]:
    code = f"{before}\nfrom distributed.cli.dask_{command} import main; main()"
    process = Process(code, *words, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()  # a worker would wait for a task that never ends
        process.end()


@contextmanager
def trusted(workers: Workers) -> Iterator[None]:
    """The certificate of our own workers is in Dask's configuration, of this process and of those
    that it starts: the address of their scheduler is then enough to connect."""
    security = workers.client.security
    own = {
        "ca-file": security.tls_ca_file,
        "client.cert": security.tls_client_cert,
        "client.key": security.tls_client_key,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            name = name.replace(".", "__").replace("-", "_").upper()
            patch.setenv(f"DASK_DISTRIBUTED__COMM__TLS__{name}", value)
        with dask.config.set({f"distributed.comm.tls.{name}": own[name] for name in own}):
            yield
