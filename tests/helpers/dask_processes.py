"""Schedulers and workers of Dask, started by hand as processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Where a worker finds the functions of these tests."""

BIN = Path(sys.executable).parent
LOCAL = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")


@contextmanager
def dask_scheduler(**environment: str) -> Iterator[str]:
    """The address of a scheduler that was started by hand, without workers."""
    with started(BIN / "dask", "scheduler", *LOCAL, **environment) as found:
        yield said(found, "Scheduler at:").split()[-1]


@contextmanager
def dask_worker(scheduler: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A worker that was started by hand, and is not started again when it dies."""
    words = [BIN / "dask", "worker", scheduler, "--nthreads", "1", "--no-nanny", *LOCAL[:2]]
    with started(*words, **environment) as found:
        said(found, "Registered to:")
        yield found


class started:
    """A process that is gone at the end of the block."""

    def __init__(self, *words: object, **environment: str) -> None:
        self.process = subprocess.Popen(
            list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        )  # fmt: skip

    def __enter__(self) -> subprocess.Popen[str]:
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # a worker would wait for a task that never ends
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process.wait()


def said(process: subprocess.Popen[str], words: str) -> str:
    """The first line with these words that a process prints."""
    assert process.stdout is not None
    return next(line for line in process.stdout if words in line)
