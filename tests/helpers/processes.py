"""Commands run in this process, and in processes of their own, which need not start an interpreter
and import everything: multiprocessing forks them from one that has done so."""

import atexit
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import dask
import distributed  # noqa: F401 (else the end of a dask.config.set takes its defaults away)

from streamtron.cli import main as cli

ROOT = Path(__file__).parents[2]
COMMAND = "from streamtron.cli.main import main; main()"
"""What the installed command does."""


class Ended(NamedTuple):
    """What became of a process."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Ended]
"""What ``run`` of tests/conftest.py is."""


def one_sentence(done: Ended, code: int, *parts: str) -> None:
    """Nothing on stdout, one line on stderr that holds the parts, and the exit code."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


def succeeded(done: Ended) -> Ended:
    """The same, which ended well, or else what it said."""
    assert done.returncode == 0, done.stderr
    return done


class Process:
    """Python code in a process of its own, as if by ``python -c CODE WORDS``.

    Parameters
    ----------
    cwd : its directory; the environment is this process's as it is now.
    terminal : the name of a terminal for its stdout and stderr, which are then not kept.
    """

    def __init__(self, code: str, *words: object, cwd: Path, terminal: str | None = None) -> None:
        self._said = [tempfile.NamedTemporaryFile() for _ in range(2)]  # noqa: SIM115
        names = [terminal or file.name for file in self._said]
        given = code, [*map(str, words)], str(cwd), dict(os.environ), names
        self._process = _forking().Process(target=_run, args=given)
        self._process.start()
        self.pid = int(self._process.pid or 0)

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same."""
        return self.returncode

    def wait(self, timeout: float = 900.0) -> int:
        """The exit code, in the end."""
        self._process.join(timeout)
        assert self.returncode is not None, "it does not end"
        return self.returncode

    def end(self, timeout: float = 900.0) -> Ended:
        """Wait, and take what it has said."""
        code, said = self.wait(timeout), []
        for file in self._said:
            with file:
                said.append(file.read().decode())
        return Ended(code, *said)

    def line_with(self, words: str) -> str:
        """Wait for a line with these words on its stderr."""
        found: list[str] = []

        def there() -> bool:
            lines = Path(self._said[1].name).read_text().splitlines(True)
            found[:] = [line for line in lines if words in line and "\n" in line]
            return bool(found) or self.poll() is not None

        until(there)
        return found[0]

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ends this very moment
                os.kill(self.pid, number)

    def stop(self) -> None:
        """Stop it where it is, and wait until every thread of it is."""
        os.kill(self.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        until(lambda: all(_state(task) in "TtZX" for task in tasks.iterdir()))

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)


def _state(task: Path) -> str:
    """What a thread does, as one letter; X = it is gone."""
    try:
        return (task / "stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return "X"


def until(condition: Callable[[], object]) -> None:
    """Wait for what another process does, at most two minutes."""
    pause, end = threading.Event(), time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < end, "what was waited for did not happen"
        pause.wait(0.001)


def command(place: Path, *words: object) -> Ended:
    """A command in a directory, to its end."""
    return Process(COMMAND, *words, cwd=place).end()


def here(place: Path, *words: object) -> Ended:
    """The same within this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with chdir(place), redirect_stdout(out), redirect_stderr(err):
        code = cli._run([*map(str, words)])
    return Ended(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


@cache
def _forking() -> Any:
    """What makes processes that are forked from one that has imported everything."""
    multiprocessing.set_forkserver_preload(["tests.helpers.everything", "distributed.nanny"])
    with chdir(ROOT), patch.dict(os.environ, PYTHONSAFEPATH=""):  # which connect may have set
        forkserver.ensure_running()
    return multiprocessing.get_context("forkserver")


@contextmanager
def workers_forked() -> Iterator[None]:
    """Dask's workers that this process starts are forked, too; those started by another process, or
    outside of the context, import everything anew."""
    _forking()
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        yield


def _run(
    code: str, words: list[str], directory: str, environment: dict[str, str], names: list[str]
) -> None:
    """Run code in this process, which has just been forked."""
    for number, name in enumerate([os.devnull, *names]):
        file = os.open(name, os.O_RDWR | os.O_NOCTTY)
        os.dup2(file, number)
        os.close(file)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    dask.config.refresh()  # which has read another environment
    sys.argv[1:] = words
    try:
        exec(compile(code, "<command>", "exec"), {"__name__": "__main__"})
    finally:
        threading._shutdown()  # waits for threads, as the end of Python
        atexit._run_exitfuncs()


def python(kernels: Path, *words: object) -> str:
    """What Python prints where compiled kernels lie in a directory of their own."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(kernels)}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout
