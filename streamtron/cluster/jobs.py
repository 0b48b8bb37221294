"""Run the jobs of a batch, one after the other or as tasks of Dask, and record their status.

Every job is a process of its own: its memory is given back when it ends, and it cannot harm another
job. It ends with its parent process, so a batch that was killed leaves no process that writes.
"""

from __future__ import annotations

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
from functools import partial
from pathlib import Path
from typing import IO, Literal

from streamtron.cluster.batch import Batch, Job, state_of
from streamtron.cluster.client import Workers, still_wanted
from streamtron.core.errors import DataError, MachineError
from streamtron.core.files import locked, reading_from, write_atomically

State = Literal["waiting", "running", "done", "failed", "skipped", "stopped"]

GRACE = 5.0
"""Seconds that a job has to end after SIGTERM."""
POLL = 0.5
"""Seconds between two checks whether a job on a worker is still wanted."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What has become of a job.

    Parameters
    ----------
    name, command, digest : the job's.
    state : ``"skipped"`` if a job that it comes after has failed, ``"stopped"`` if the batch was
        interrupted while it ran.
    exit_code : of its process, negative for a signal; None if none has ended.
    sentence : the last line on stderr of a process that failed.
    started, finished : UTC, ISO 8601.
    inputs : ``state_of`` its inputs when it began.
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


Tell = Callable[[JobStatus], None]
Runner = Callable[[Batch, Tell], None]
"""Function that runs jobs, each after those it depends on, and calls ``Tell`` at every change of
status. Jobs in ``after`` that it does not get are done already."""


def run_batch(batch: Batch, runner: Runner, *, again: bool = False, tell: Tell) -> list[JobStatus]:
    """Run the jobs that are not done yet and return the status of all jobs.

    A job is done if the status file says so of the same settings and the same inputs, its outputs
    exist, and all jobs that it comes after are done. The status file is rewritten at every change.

    Parameters
    ----------
    runner : ``run_serially`` or ``run_on_workers(…)``.
    again : run every job, whatever the status file says.
    tell : is called with every job's status as it changes.

    Raises
    ------
    DataError : the status file is damaged.
    MachineError : another process runs this batch, or a file cannot be written.
    """
    try:
        os.makedirs(batch.logs, exist_ok=True)
    except OSError as error:
        raise MachineError(f"{batch.logs}: cannot be made ({error.strerror}).") from error
    with locked(Path(batch.logs)):
        before = _read_status(batch.status_file)
        done = set() if again else _done(batch.jobs, before)
        status = _StatusFile(batch.status_file, tell)
        status.replace_all(
            before[job.name] if job.name in done else _status(job) for job in batch.jobs
        )
        wanted = [
            words_again(job, before.get(job.name), anew=again or not done.issuperset(job.after))
            for job in batch.jobs
            if job.name not in done
        ]
        try:
            runner(replace(batch, jobs=tuple(wanted)), status.update)
        except BaseException:
            status.stop()
            raise
        return status.all


def exit_code(statuses: Iterable[JobStatus]) -> int:
    """Return 0 if all jobs are done, else the exit code of the first that failed, 5 for a signal.

    Examples
    --------
    >>> exit_code([JobStatus("a", "fit", ""), JobStatus("b", "fit", "", "failed", 3)])
    3
    """
    failed = [status.exit_code or 0 for status in statuses if status.state == "failed"]
    return next((code if code > 0 else MachineError.exit_code for code in failed), 0)


def words_again(job: Job, before: JobStatus | None, *, anew: bool = False) -> Job:
    """Return the job with the option that its command needs where it has run before.

    A fit that was interrupted goes on from its checkpoint unless its settings or inputs changed, or
    ``anew`` is given. Any other fit or sweep overwrites its own run directory.

    Examples
    --------
    >>> fit = Job("a", ("fit", "--", "data"), (), (), (), "digest")
    >>> words_again(fit, JobStatus("a", "fit", "digest", "stopped", inputs=state_of([]))).words
    ('fit', '--resume', '--', 'data')
    >>> words_again(fit, JobStatus("a", "fit", "other", "stopped", inputs=state_of([]))).words
    ('fit', '--overwrite', '--', 'data')
    >>> words_again(fit, JobStatus("a", "fit", "digest", "stopped", inputs="others")).words
    ('fit', '--overwrite', '--', 'data')
    """
    command, *rest = job.words
    chosen = not {"--resume", "--overwrite"}.isdisjoint(rest)
    if before is None or command not in ("fit", "sweep") or chosen:
        return job
    interrupted = before.digest == job.digest and before.state in ("running", "stopped")
    unchanged = command == "fit" and not anew and before.inputs == state_of(job.inputs)
    option = "--resume" if interrupted and unchanged else "--overwrite"
    return replace(job, words=(command, option, *rest))


def _done(jobs: Iterable[Job], known: dict[str, JobStatus]) -> set[str]:
    done: set[str] = set()
    for job in jobs:
        status = known.get(job.name)
        if (
            status is not None
            and (status.state, status.digest) == ("done", job.digest)
            and all(map(os.path.exists, job.outputs))
            and done.issuperset(job.after)
            and status.inputs == state_of(job.inputs)
        ):
            done.add(job.name)
    return done


def _status(job: Job, state: State = "waiting") -> JobStatus:
    return JobStatus(job.name, job.words[0], job.digest, state)


def _read_status(path: str) -> dict[str, JobStatus]:
    if not os.path.exists(path):
        return {}
    try:
        with reading_from(path):
            statuses = json.loads(Path(path).read_text(encoding="utf-8"))["jobs"]
        return {status["name"]: JobStatus(**status) for status in statuses}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not a batch's status ({error}). Remove it, and every job runs anew."
        ) from error


class _StatusFile:
    """The status of every job in their order, on disk at every moment."""

    def __init__(self, path: str, tell: Tell) -> None:
        self._path, self._tell = path, tell
        self._statuses: dict[str, JobStatus] = {}

    @property
    def all(self) -> list[JobStatus]:
        return list(self._statuses.values())

    def replace_all(self, statuses: Iterable[JobStatus]) -> None:
        self._statuses = {status.name: status for status in statuses}
        content = {"jobs": [asdict(status) for status in self.all]}
        write_atomically(self._path, [(json.dumps(content, indent=1) + "\n").encode()])

    def update(self, status: JobStatus) -> None:
        self.replace_all({**self._statuses, status.name: status}.values())
        self._tell(status)

    def stop(self) -> None:
        self.replace_all(
            replace(status, state="stopped", finished=_now())
            if status.state == "running"
            else status
            for status in self.all
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- runners -------------------------------------------------------------------------------------


def run_serially(batch: Batch, tell: Tell) -> None:
    """Run the jobs one after the other; the Runner without workers."""
    missed: set[str] = set()
    for job in batch.jobs:
        if missed.isdisjoint(job.after):
            status = begin(job)
            tell(status)
            status = execute(batch, job, status)
        else:
            status = _status(job, "skipped")
        if status.state != "done":
            missed.add(job.name)
        tell(status)


def run_on_workers(workers: Workers, limited: Container[str] = ()) -> Runner:
    """Return the Runner that makes every job a task of Dask.

    Parameters
    ----------
    limited : the commands that have ``--memory``: a job without one gets that of its worker.
    """

    def with_limit(job: Job) -> Job:
        command, *rest = job.words
        if workers.memory_each is None or command not in limited:
            return job
        return replace(job, words=(command, f"--memory={workers.memory_each}", *rest))

    def run(batch: Batch, tell: Tell) -> None:
        names = [job.name for job in batch.jobs]
        after = [[names.index(name) for name in job.after if name in names] for job in batch.jobs]
        task = partial(_execute_after, replace(batch, jobs=()))
        missed: set[str] = set()
        for place, result in workers.graph(task, [*map(with_limit, batch.jobs)], names, after):
            job = batch.jobs[place]
            if isinstance(result, JobStatus):
                status = result
            elif missed.isdisjoint(job.after):
                status = _failed(_status(job), result)
            else:
                status = _status(job, "skipped")
            if status.state != "done":
                missed.add(job.name)
            tell(status)

    return run


def _execute_after(batch: Batch, job: Job, *before: JobStatus) -> JobStatus:
    """Run a job on a worker if the jobs before it are done."""
    if any(status.state != "done" for status in before):
        return _status(job, "skipped")
    return execute(batch, job, begin(job), still_wanted())


def begin(job: Job) -> JobStatus:
    """Return the status of a job that begins now."""
    status = _status(job, "running")
    return replace(status, started=_now(), inputs=state_of(job.inputs))


def _failed(status: JobStatus, error: MachineError) -> JobStatus:
    return replace(
        status, state="failed", exit_code=error.exit_code, sentence=str(error), finished=_now()
    )


def execute(
    batch: Batch, job: Job, status: JobStatus, wanted: Callable[[], bool] = lambda: True
) -> JobStatus:
    """Run one job to its end, or until it is no longer ``wanted``, and return its status.

    Its stdout and stderr go to ``NAME.out`` and ``NAME.err`` among the logs.
    """
    out, err = (os.path.join(batch.logs, f"{job.name}.{name}") for name in ("out", "err"))
    try:
        with (
            open(out, "wb") as output,
            open(err, "wb") as errors,
            _process(job.words, batch.directory, output, errors) as process,
        ):
            code = _wait(process, wanted)
        last = Path(err).read_bytes().decode(errors="replace").strip().splitlines()[-1:]
    except OSError as error:
        return _failed(status, MachineError(f"job {job.name!r} cannot be run: {error}."))
    state: State = "done" if code in job.accepted else "failed"
    sentence = "".join(last) if code else ""
    return replace(status, state=state, exit_code=code, sentence=sentence, finished=_now())


def _wait(process: subprocess.Popen[bytes], wanted: Callable[[], bool]) -> int:
    while True:
        try:
            return process.wait(POLL)
        except subprocess.TimeoutExpired:
            if not wanted():
                _end(process)


@contextmanager
def _process(
    words: Sequence[str], directory: str, out: IO[bytes], errors: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``streamtron`` with these arguments; it ends with the block."""
    # -P: the directory that it runs in holds data, and nothing is imported from there
    command = [sys.executable, "-P", "-c", _CHILD, *words]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=out, stderr=errors, cwd=directory
    )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe that keeps a job alive, and wait until it has ended."""
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
    """End this process when the pipe on its stdin closes, which happens also when its parent dies.

    It gets SIGTERM, and GRACE seconds later SIGKILL.
    """
    threading.Thread(target=_await_end_of_parent, daemon=True).start()


def _await_end_of_parent() -> None:
    with suppress(OSError):  # an stdin that cannot be read is no pipe of a parent
        os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)  # the exception is lost if it is raised in a destructor or callback
    os.kill(os.getpid(), signal.SIGKILL)
