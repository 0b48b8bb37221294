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
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from streamtron.cluster.batch import Batch, Job, state_of
from streamtron.cluster.client import Workers, still_wanted
from streamtron.core.errors import DataError, MachineError
from streamtron.core.files import locked, reading_from, write_atomically

State = Literal["waiting", "running", "done", "failed", "skipped", "stopped"]
"""``skipped`` if a job that it comes after has failed, ``stopped`` if the batch was interrupted."""

GRACE = 5.0
"""Seconds that a job has to end after SIGTERM."""
POLL = 0.5
"""Seconds between two checks whether a job on a worker is still wanted."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What has become of a job: the exit code of its process, negative for a signal, and if that is
    not 0 the last line on its stderr; times in UTC, ISO 8601; ``state_of`` its inputs when it
    began."""

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


def run_batch(
    batch: Batch, workers: Workers | None = None, *, again: bool = False, tell: Tell
) -> list[JobStatus]:
    """Run the jobs that are not done yet, or with ``again`` all, and return the status of all.

    A job is done if the status file says so of the same settings and the same inputs, its outputs
    exist, and all jobs that it comes after are done. The status file is rewritten at every change,
    and ``tell`` called with the job's status; not when a job begins on a worker.
    """
    try:
        os.makedirs(batch.logs, exist_ok=True)
    except OSError as error:
        raise MachineError(f"{batch.logs}: cannot be made ({error.strerror}).") from error
    with locked(Path(batch.logs)):
        before = _read_status(batch.status_file)
        done = set() if again else _done(batch.jobs, before)
        statuses = {
            job.name: before[job.name] if job.name in done else _status(job) for job in batch.jobs
        }
        wanted = [
            words_again(job, before.get(job.name), anew=again or not done.issuperset(job.after))
            for job in batch.jobs
            if job.name not in done
        ]

        def record(status: JobStatus) -> None:
            statuses[status.name] = status
            _write_status(batch.status_file, statuses.values())
            tell(status)

        _write_status(batch.status_file, statuses.values())
        try:
            with closing(_run_all(replace(batch, jobs=()), wanted, workers, record)) as ended:
                for status in ended:
                    record(status)
        except BaseException:
            for name, status in statuses.items():
                if status.state == "running":
                    statuses[name] = replace(status, state="stopped", finished=_now())
            _write_status(batch.status_file, statuses.values())
            raise
        return list(statuses.values())


def exit_code(statuses: Iterable[JobStatus]) -> int:
    """Return 0 if all jobs are done, else the code of the first that failed, 5 for a signal."""
    failed = [status.exit_code or 0 for status in statuses if status.state == "failed"]
    return next((code if code > 0 else MachineError.exit_code for code in failed), 0)


def words_again(job: Job, before: JobStatus | None, *, anew: bool = False) -> Job:
    """Return the job with the option that its command needs where it has run before: a fit that
    was interrupted goes on from its checkpoint unless its settings or inputs changed, or ``anew``
    is given; any other fit or sweep overwrites its own run directory."""
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
        same = status is not None and (status.state, status.digest) == ("done", job.digest)
        there = done.issuperset(job.after) and all(map(os.path.exists, job.outputs))
        if status is not None and same and there and status.inputs == state_of(job.inputs):
            done.add(job.name)
    return done


def _status(job: Job, state: State = "waiting", **more: Any) -> JobStatus:
    return JobStatus(job.name, job.words[0], job.digest, state, **more)


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


def _write_status(path: str, statuses: Iterable[JobStatus]) -> None:
    content = {"jobs": [asdict(status) for status in statuses]}
    write_atomically(path, [(json.dumps(content, indent=1) + "\n").encode()])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _run_all(
    batch: Batch, jobs: Sequence[Job], workers: Workers | None, tell: Tell
) -> Generator[JobStatus, None, None]:
    """Yield the status of every job as it ends. Other jobs that they come after are done."""
    names = [job.name for job in jobs]
    after = [[names.index(name) for name in job.after if name in names] for job in jobs]
    if workers is None:
        ended: list[JobStatus] = []
        for job, earlier in zip(jobs, after, strict=True):
            ended.append(_run(batch, job, *(ended[place] for place in earlier), tell=tell))
            yield ended[-1]
        return
    if workers.memory_each is not None:  # a limit of the job's own comes later and wins
        memory = f"--memory={workers.memory_each}"
        jobs = [replace(job, words=(job.words[0], memory, *job.words[1:])) for job in jobs]
    yield from workers.graph(partial(_run, batch), jobs, after)


def _run(batch: Batch, job: Job, *before: JobStatus, tell: Tell | None = None) -> JobStatus:
    """Run a job if the jobs before it are done; without ``tell`` this is a task on a worker."""
    if any(status.state != "done" for status in before):
        return _status(job, "skipped")
    status = _status(job, "running", started=_now(), inputs=state_of(job.inputs))
    if tell is None:
        return execute(batch, job, status, still_wanted())
    tell(status)
    return execute(batch, job, status, lambda: True)


def execute(batch: Batch, job: Job, status: JobStatus, wanted: Callable[[], bool]) -> JobStatus:
    """Run one job to its end, or until it is no longer ``wanted``, and return its status. Its
    stdout and stderr go to ``NAME.out`` and ``NAME.err`` among the logs."""
    out, err = (os.path.join(batch.logs, f"{job.name}.{name}") for name in ("out", "err"))
    # -P: the directory that it runs in holds data, and nothing is imported from there
    command = [sys.executable, "-P", "-c", _CHILD, *job.words]
    try:
        with (
            open(out, "wb") as output,
            open(err, "wb") as errors,
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                cwd=os.path.dirname(batch.path),
            ) as process,  # it ends when its stdin is closed, at the latest with the block
        ):
            code = _wait(process, wanted)
        last = Path(err).read_bytes().decode(errors="replace").strip().splitlines()[-1:]
    except OSError as error:
        code, last = MachineError.exit_code, [f"job {job.name!r} cannot be run: {error}."]
    state: State = "done" if code in job.accepted else "failed"
    sentence = "".join(last) if code else ""
    return replace(status, state=state, exit_code=code, sentence=sentence, finished=_now())


def _wait(process: subprocess.Popen[bytes], wanted: Callable[[], bool]) -> int:
    while True:
        try:
            return process.wait(POLL)
        except subprocess.TimeoutExpired:
            if not wanted() and process.stdin is not None:
                process.stdin.close()


_CHILD = """
import sys
from streamtron.cluster.jobs import follow_parent
follow_parent()
from streamtron.cli.main import main
main(sys.argv[1:])
"""


def follow_parent() -> None:
    """End this process, by SIGTERM and GRACE seconds later by SIGKILL, when the pipe on its stdin
    closes, which happens also when its parent dies."""

    def follow() -> None:
        with suppress(OSError):  # an stdin that cannot be read is no pipe of a parent
            os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)  # the exception is lost if it is raised in a destructor or callback
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=follow, daemon=True).start()
