"""The jobs of a batch, run: here one after the other, or as tasks of Dask; and what became of them.

Every job is a process of its own, so its memory is given back and no job can hurt another. It ends
when whoever started it is gone, so a batch that was killed leaves nobody who still writes.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Protocol

from streamtron.cluster.batch import Batch, Job, state_of
from streamtron.cluster.client import Workers, still_wanted
from streamtron.core.errors import DataError, MachineError
from streamtron.core.sealed import reading_from, write_atomically

State = Literal["waiting", "running", "done", "failed", "skipped", "stopped"]

GRACE = 5.0
"""Seconds that a job has to end after it was told to."""
RUNS = ("fit", "sweep")
"""Commands that refuse a run directory that is there."""
POLL = 0.5
"""Seconds between two looks whether a job on a worker is still wanted."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What became of a job.

    Parameters
    ----------
    name, command, digest : the job's.
    state : ``"waiting"``, ``"running"``, ``"done"``, ``"failed"``, ``"skipped"`` (one that it comes
        after has failed) or ``"stopped"``.
    exit_code : the process's, negative for a signal; None where none has ended.
    sentence : the last line that it said on stderr.
    started, finished : UTC, ISO 8601.
    inputs : the ``state_of`` its inputs when it began.
    """

    name: str
    command: str
    digest: str
    state: State = "waiting"
    exit_code: int | None = None
    sentence: str = ""
    started: str | None = None
    finished: str | None = None
    inputs: str | None = None


class Ended(NamedTuple):
    """How a job's process ended."""

    exit_code: int
    sentence: str
    started: str
    finished: str
    well: bool
    """whether the jobs behind it may run"""
    inputs: str | None = None
    """the state of its inputs when it began; None = when it was told to be running"""


class Order(NamedTuple):
    """What it takes to start a job, anywhere that sees its directory."""

    name: str
    words: tuple[str, ...]
    directory: str
    logs: str
    accepted: tuple[int, ...] = (0,)
    inputs: tuple[str, ...] = ()

    def limited_to(self, memory: int, commands: Container[str]) -> Order:
        """The same with so much memory, where the command is one of these and does not say."""
        if self.words[0] not in commands:
            return self
        return self._replace(words=(self.words[0], f"--memory={memory}", *self.words[1:]))


class Runner(Protocol):
    """Runs orders, each when those before it have ended well; tells what happens."""

    def __call__(
        self, jobs: Sequence[Job], orders: Sequence[Order], tell: Callable[[str, Any], None]
    ) -> None:
        """``tell(name, "running")`` where that is known, ``tell(name, Ended)`` or an exception."""
        ...


def paths_of(batch: Batch) -> tuple[str, str]:
    """(status file, directory of the jobs' stdout and stderr).

    Examples
    --------
    >>> paths_of(Batch("/data/night.toml", ()))
    ('/data/night.status.json', '/data/night.logs')
    """
    stem = batch.path.removesuffix(".toml")
    return f"{stem}.status.json", f"{stem}.logs"


def run_batch(
    batch: Batch, runner: Runner, *, again: bool = False, listen: Callable[[JobStatus], None]
) -> list[JobStatus]:
    """Run the jobs that are not done yet; what became of all of them.

    A job is done if the status file says so of the same settings and the same inputs, its outputs
    are there, and all jobs that it comes after are done. One that changes a run in place, and was
    cut off, can be called again: the run tells what it has already. The status file is rewritten,
    whole, at every change.

    Parameters
    ----------
    runner : ``one_by_one``, or ``on_workers(…)``.
    again : run every job, whatever the status file says.
    listen : is told every job's fate as it changes.

    Raises
    ------
    DataError : the status file is not one.
    MachineError : another process runs this batch; what cannot be written.
    """
    status, logs = paths_of(batch)
    with _alone(logs, batch.path):
        board = _StatusFile(status, batch.jobs, listen)
        before = _known(status)
        known = {} if again else before
        done = _done(batch.jobs, known)
        wanted = [job for job in batch.jobs if job.name not in done]
        fates = {
            job.name: known[job.name] if job.name in done else _fresh(job) for job in batch.jobs
        }
        board.set(fates.values())
        orders = [
            Order(
                job.name,
                words_again(
                    job, before.get(job.name), anew=again or not done.issuperset(job.after)
                ),
                batch.directory,
                logs,
                job.accepted,
                job.inputs,
            )
            for job in wanted
        ]
        try:
            runner(wanted, orders, board.tell)
        except BaseException:
            board.stop()
            raise
        return board.fates


def exit_code(fates: Iterable[JobStatus]) -> int:
    """0 if all jobs are done, else the exit code of the first that failed, 5 if a signal ended it.

    Examples
    --------
    >>> exit_code([JobStatus("a", "fit", ""), JobStatus("b", "fit", "", "failed", 3)])
    3
    """
    failed = [fate.exit_code or 0 for fate in fates if fate.state == "failed"]
    return next((code if code > 0 else MachineError.exit_code for code in failed), 0)


def words_again(job: Job, before: JobStatus | None, *, anew: bool = False) -> tuple[str, ...]:
    """A job's command line where it may have run before: a run directory that it left is its own.

    A fit that was cut off goes on from its checkpoint unless its settings or its inputs changed, or
    it is to begin ``anew``; else what is there is overwritten.

    Examples
    --------
    >>> fit = Job("a", ("fit", "--", "data"), (), (), (), "digest")
    >>> words_again(fit, JobStatus("a", "fit", "digest", "stopped", inputs=state_of([])))
    ('fit', '--resume', '--', 'data')
    >>> words_again(fit, JobStatus("a", "fit", "other", "stopped", inputs=state_of([])))
    ('fit', '--overwrite', '--', 'data')
    >>> words_again(fit, JobStatus("a", "fit", "digest", "stopped", inputs=state_of(["more"])))
    ('fit', '--overwrite', '--', 'data')
    """
    command, *rest = job.words
    if before is None or command not in RUNS or not {"--resume", "--overwrite"}.isdisjoint(rest):
        return job.words
    cut_off = before.digest == job.digest and before.state in ("running", "stopped")
    resumed = command == "fit" and cut_off and not anew and before.inputs == state_of(job.inputs)
    return (command, "--resume" if resumed else "--overwrite", *rest)


def _done(jobs: Iterable[Job], known: dict[str, JobStatus]) -> set[str]:
    done: set[str] = set()
    for job in jobs:
        fate = known.get(job.name)
        if (
            fate is not None
            and (fate.state, fate.digest) == ("done", job.digest)
            and all(map(os.path.exists, job.outputs))
            and done.issuperset(job.after)
            and fate.inputs == state_of(job.inputs)
        ):
            done.add(job.name)
    return done


def _fresh(job: Job) -> JobStatus:
    """The fate of a job that is to run."""
    return JobStatus(job.name, job.words[0], job.digest)


def _known(status: str) -> dict[str, JobStatus]:
    """What an earlier run has left in the status file."""
    if not os.path.exists(status):
        return {}
    try:
        with reading_from(status):
            fates = json.loads(Path(status).read_text(encoding="utf-8"))["jobs"]
        return {fate["name"]: JobStatus(**fate) for fate in fates}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{status}: not a batch's status ({error}). Remove it, and every job runs anew."
        ) from error


class _StatusFile:
    """The fates, and the status file that always shows them."""

    def __init__(self, path: str, jobs: Iterable[Job], listen: Callable[[JobStatus], None]) -> None:
        self._path, self._listen = path, listen
        self._fates: dict[str, JobStatus] = {}
        self._inputs = {job.name: job.inputs for job in jobs}

    @property
    def fates(self) -> list[JobStatus]:
        return list(self._fates.values())

    def set(self, fates: Iterable[JobStatus]) -> None:
        self._fates = {fate.name: fate for fate in fates}
        self._save()

    def tell(self, name: str, what: Any) -> None:
        """A job runs, has ended, was skipped, or could not be run: an exception."""
        fate = self._fates[name]
        if isinstance(what, Ended):
            known = what._asdict()
            state: State = "done" if known.pop("well") else "failed"
            known["inputs"] = known["inputs"] or fate.inputs
            fate = replace(fate, state=state, **known)
        elif isinstance(what, MachineError):
            fate = replace(
                fate, state="failed", exit_code=what.exit_code, sentence=str(what), finished=_now()
            )
        elif what == "running":
            inputs = state_of(self._inputs[name])
            fate = replace(fate, state="running", started=_now(), inputs=inputs)
        else:
            fate = replace(fate, state=what, started=None)
        self._fates[name] = fate
        self._save()
        self._listen(fate)

    def stop(self) -> None:
        """What runs is stopped."""
        for name, fate in self._fates.items():
            if fate.state == "running":
                self._fates[name] = replace(fate, state="stopped", finished=_now())
        self._save()

    def _save(self) -> None:
        content = {"jobs": [asdict(fate) for fate in self.fates]}
        write_atomically(self._path, [(json.dumps(content, indent=1) + "\n").encode()])


@contextmanager
def _alone(logs: str, path: str) -> Iterator[None]:
    """One process at a time runs a batch; the directory of its logs is the lock."""
    try:
        os.makedirs(logs, exist_ok=True)
        descriptor = os.open(logs, os.O_RDONLY)
    except OSError as error:
        raise MachineError(
            f"{logs}: cannot be made ({error.strerror}). Make room for it."
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MachineError(f"{path}: this batch is running already. Wait for it.") from error
        yield
    finally:
        os.close(descriptor)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- who runs them -------------------------------------------------------------------------------


def one_by_one(
    jobs: Sequence[Job], orders: Sequence[Order], tell: Callable[[str, Any], None]
) -> None:
    """The Runner of this process."""
    missed: set[str] = set()
    for job, order in zip(jobs, orders, strict=True):
        if not missed.isdisjoint(job.after):
            missed.add(job.name)
            tell(job.name, "skipped")
            continue
        tell(job.name, "running")
        ended = execute(order)
        if not ended.well:
            missed.add(job.name)
        tell(job.name, ended)


def on_workers(workers: Workers, memory: int | None = None, limited: Container[str] = ()) -> Runner:
    """The Runner that makes every job a task of Dask; jobs that wait for nothing run side by side.

    Parameters
    ----------
    memory : bytes that a job of a ``limited`` command may take unless it says so itself.
    limited : the commands that have ``--memory``.
    """

    def run(jobs: Sequence[Job], orders: Sequence[Order], tell: Callable[[str, Any], None]) -> None:
        place = {job.name: number for number, job in enumerate(jobs)}
        after = [[place[name] for name in job.after if name in place] for job in jobs]
        if memory is not None:
            orders = [order.limited_to(memory, limited) for order in orders]
        missed: set[int] = set()
        for number, result in workers.graph(
            _execute_after, orders, [job.name for job in jobs], after
        ):
            if not isinstance(result, Ended) or not result.well:
                missed.add(number)
            skipped = result is None or not missed.isdisjoint(after[number])
            tell(jobs[number].name, "skipped" if skipped else result)

    return run


def _execute_after(order: Order, *before: Ended | None) -> Ended | None:
    """None where a job before has not ended well."""
    if not all(ended is not None and ended.well for ended in before):
        return None
    inputs = state_of(order.inputs)
    return execute(order, still_wanted())._replace(inputs=inputs)


def execute(order: Order, wanted: Callable[[], bool] = lambda: True) -> Ended:
    """Run one job to its end, or until it is no longer ``wanted``; stdout and stderr go to
    ``NAME.out`` and ``NAME.err`` among the logs.

    Raises
    ------
    MachineError : the process cannot be started.
    """
    started = _now()
    said = os.path.join(order.logs, f"{order.name}.err")
    try:
        with (
            open(os.path.join(order.logs, f"{order.name}.out"), "wb") as out,
            open(said, "wb") as errors,
            _child(order, out, errors) as process,
        ):
            code = _wait(process, wanted)
        last = Path(said).read_bytes().decode(errors="replace").strip().splitlines()[-1:]
    except OSError as error:
        raise MachineError(f"job {order.name!r} cannot be run: {error}.") from error
    said_last = "".join(last) if code else ""
    return Ended(code, said_last, started, _now(), code in order.accepted)


def _wait(process: subprocess.Popen[bytes], wanted: Callable[[], bool]) -> int:
    while True:
        try:
            return process.wait(POLL)
        except subprocess.TimeoutExpired:
            if not wanted():
                _end(process)


@contextmanager
def _child(order: Order, out: IO[bytes], errors: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    # -P: the directory it runs in is the user's, and no place to import from
    words = [sys.executable, "-P", "-c", _CHILD, *order.words]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=out, stderr=errors, cwd=order.directory
    )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe that keeps a job alive, and see it go."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_CHILD = """
import sys
from streamtron.cluster.jobs import follow_parent
follow_parent()
from streamtron.cli.main import main
main(sys.argv[1:])
"""


def follow_parent() -> None:
    """End this process when the pipe on its stdin closes, which it also does when the parent dies,
    whichever of its threads has started us and however early: by SIGTERM, and if that is not
    obeyed within GRACE, by SIGKILL."""
    threading.Thread(target=_await_parents_end, daemon=True).start()


def _await_parents_end() -> None:
    with suppress(OSError):  # a stdin that cannot be read has no parent behind it
        os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)  # an exception raised in a destructor or a callback goes unheard
    os.kill(os.getpid(), signal.SIGKILL)
