"""Commands run in this process, and in processes of their own that need not start an interpreter
and import everything: a process that has done so, and does nothing else, forks them."""

import atexit
import importlib
import io
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import NamedTuple, NoReturn

import dask

from streamtron.cli import main as cli

ROOT = Path(__file__).parents[2]
EVERYTHING = "tests.helpers.everything"
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
    terminal : descriptor of a terminal for its stdout and stderr, which are then not kept.
    """

    def __init__(self, code: str, *words: object, cwd: Path, terminal: int | None = None) -> None:
        self._out = tempfile.TemporaryFile()  # noqa: SIM115, closed at the end
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        self._news, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps([code, [*map(str, words)], str(cwd), dict(os.environ)]).encode()
        with theirs:
            out, err = self._out.fileno(), self._err.fileno()
            if terminal is not None:
                out = err = terminal
            socket.send_fds(_forker(), [request], [out, err, theirs.fileno()])
        self.pid = int(self._news.recv(99))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._look(0.0)

    def wait(self, timeout: float = 900.0) -> int:
        """The exit code, in the end."""
        code = self._look(timeout)
        assert code is not None, "it does not end"
        return code

    def end(self, timeout: float = 900.0) -> Ended:
        """Wait, and take what it has said."""
        code = self.wait(timeout)
        said = []
        for file in (self._out, self._err):
            with file:
                file.seek(0)
                said.append(file.read().decode())
        self._news.close()
        return Ended(code, *said)

    def line_with(self, words: str) -> str:
        """Wait for a line with these words on its stderr."""
        found: list[str] = []

        def there() -> bool:
            text = os.pread(self._err.fileno(), 1 << 20, 0).decode()
            found[:] = [line for line in text.splitlines(True) if words in line and "\n" in line]
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

    def _look(self, timeout: float) -> int | None:
        if self.returncode is None:
            self._news.settimeout(timeout)
            try:
                self.returncode = int(self._news.recv(99))
            except (BlockingIOError, TimeoutError):
                return None
        return self.returncode


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


@contextmanager
def workers_forked() -> Iterator[None]:
    """Dask's workers that this process starts are forked from a process that has imported
    everything; those started by another process, or outside of the context, import it anew."""
    import distributed  # noqa: F401 (else the end of a dask.config.set takes its defaults away)

    multiprocessing.set_forkserver_preload([EVERYTHING, "distributed.nanny"])
    with chdir(ROOT):  # from where it imports
        forkserver.ensure_running()
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        yield


@cache
def _forker() -> socket.socket:
    """Where requests are sent to."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.processes", str(theirs.fileno())],
            cwd=ROOT,
            env={**os.environ, "PYTHONSAFEPATH": ""},  # which connect may have set
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    atexit.register(process.wait)
    atexit.register(mine.close)  # which ends it; done before it is waited for
    return mine


# --- in the process that forks -------------------------------------------------------------------


def _requests(requests: socket.socket) -> Iterator[tuple[str, list[int]]]:
    """Request and files of every process that is wanted, until no process is left."""
    while True:
        request, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not request:
            return
        yield request.decode(), files


def _next_code(requests: socket.socket) -> str | None:
    """The code that this process is to run, which is a fork; None in the one that forked."""
    for request, files in _requests(requests):
        if os.fork() == 0:
            requests.close()
            return _in_a_child(request, files)
        for file in files:
            os.close(file)
        _reap()
    return None


def _in_a_child(request: str, files: list[int]) -> str | None:
    """Fork once more, so that every process has one that waits for it and tells how it ended."""
    out, err, news = files
    child = os.fork()
    if child:
        os.write(news, str(child).encode())
        _, status = os.waitpid(child, 0)
        os.write(news, str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    os.close(news)
    code, words, directory, environment = json.loads(request)
    for file, number in ((out, 1), (err, 2)):
        os.dup2(file, number)
        os.close(file)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    dask.config.refresh()  # which has read another environment
    sys.argv[1:] = words
    return code


def _reap() -> None:
    """Take leave of those whose process has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _run(code: str) -> NoReturn:
    """Run it and leave, without the half second that Python takes to tidy up so much."""
    status = 0
    try:
        exec(compile(code, "<command>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # waits for threads, as the end of Python
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    importlib.import_module(EVERYTHING)
    code = _next_code(socket.socket(fileno=int(sys.argv[1])))
    if code is not None:
        _run(code)


def python(kernels: Path, *words: object) -> str:
    """What Python prints where compiled kernels lie in a directory of their own."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(kernels)}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout
