"""Schedulers and workers of Dask, started by hand as processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dask
import distributed  # noqa: F401 (else the end of a dask.config.set takes its defaults away)
import pytest

from streamtron.cluster.client import Workers
from tests.helpers.processes import ROOT, Process

BIN = Path(sys.executable).parent
LOCAL = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")


@contextmanager
def dask_scheduler(before: str = "") -> Iterator[str]:
    """The address of a scheduler that was started by hand, without workers; ``before`` : code that
    it runs first."""
    with _dask("scheduler", before, *LOCAL) as found:
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


class started:
    """A process that is gone at the end of the block."""

    def __init__(self, *words: object) -> None:
        self.process = subprocess.Popen(
            list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def __enter__(self) -> subprocess.Popen[str]:
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process.wait()


def said(process: subprocess.Popen[str], words: str) -> str:
    """The first line with these words that a process prints."""
    assert process.stdout is not None
    return next(line for line in process.stdout if words in line)
