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
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, Literal, NamedTuple

from streamtron.cluster.batch import Batch, Job, state_of
from streamtron.cluster.client import Workers, still_wanted
from streamtron.core.errors import DataError, MachineError
from streamtron.core.files import locked, parse_json, reading_from, write_atomically

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


class Ended(NamedTuple):
    """How the process of a job ended; ``sentence`` as in ``JobStatus``."""

    name: str
    exit_code: int
    sentence: str


Tell = Callable[[JobStatus], None]


def run_batch(
    batch: Batch, workers: Workers | None = None, *, again: bool = False, tell: Tell
) -> list[JobStatus]:
    """Run the jobs that are not done yet, or with ``again`` all, and return the status of all.

    A job is done if the status file says so of the same settings and the same inputs, its outputs
    exist, and all jobs that it comes after are done. The status file is rewritten at every change,
    and ``tell`` called with the job's status. On workers a job is said to run from when it is
    handed to them, though it may wait for a free one.
    """
    try:
        os.makedirs(batch.logs, exist_ok=True)
    except OSError as error:
        raise MachineError(f"{batch.logs}: cannot be made ({error.strerror}).") from error
    with locked(Path(batch.logs)):
        earlier = _read_status(batch.status_file)
        done = set() if again else _done(batch.jobs, earlier)
        jobs = {job.name: job for job in batch.jobs}
        new = {job.name: JobStatus(job.name, job.words[0], job.digest) for job in batch.jobs}
        statuses = new | {name: earlier[name] for name in done}
        order = TopologicalSorter({job.name: job.after for job in batch.jobs})

        def record(name: str, state: State, **changes: Any) -> None:
            statuses[name] = replace(statuses[name], state=state, **changes)
            _write_status(batch.status_file, statuses.values())
            tell(statuses[name])

        def ready() -> Iterator[Job]:
            """Yield the jobs that can begin, those that ended meanwhile make ready included."""
            while names := order.get_ready():
                for job in map(jobs.__getitem__, names):
                    if job.name in done:
                        order.done(job.name)
                    elif any(statuses[name].state != "done" for name in job.after):
                        record(job.name, "skipped")
                        order.done(job.name)
                    else:
                        record(job.name, "running", started=_now(), inputs=state_of(job.inputs))
                        anew = again or not done.issuperset(job.after)
                        yield words_again(job, earlier.get(job.name), anew=anew)

        _write_status(batch.status_file, statuses.values())
        order.prepare()
        try:
            with closing(_run_all(replace(batch, jobs=()), ready, workers)) as ends:
                for name, code, sentence in ends:
                    state: State = "done" if code in jobs[name].accepted else "failed"
                    record(name, state, exit_code=code, sentence=sentence, finished=_now())
                    order.done(name)
        finally:
            for status in [status for status in statuses.values() if status.state == "running"]:
                record(status.name, "stopped", finished=_now())
        return list(statuses.values())


def exit_code(statuses: Iterable[JobStatus]) -> int:
    """Return 0 if all jobs are done, else the code of the first that failed, 5 for a signal."""
    failed = [status.exit_code or 0 for status in statuses if status.state == "failed"]
    return next((code if code > 0 else MachineError.exit_code for code in failed), 0)


def words_again(job: Job, earlier: JobStatus | None, *, anew: bool = False) -> Job:
    """Return the job with the option that its command needs where it has run before: a fit that
    was interrupted goes on from its checkpoint unless its settings or inputs changed, or ``anew``
    is given; any other fit or sweep overwrites its own run directory."""
    command, *words = job.words
    chosen = not {"--resume", "--overwrite"}.isdisjoint(words)
    if earlier is None or command not in ("fit", "sweep") or chosen:
        return job
    interrupted = earlier.digest == job.digest and earlier.state in ("running", "stopped")
    unchanged = command == "fit" and not anew and earlier.inputs == state_of(job.inputs)
    option = "--resume" if interrupted and unchanged else "--overwrite"
    return replace(job, words=(command, option, *words))


def _done(jobs: Iterable[Job], known: dict[str, JobStatus]) -> set[str]:
    done: set[str] = set()
    for job in jobs:
        status = known.get(job.name)
        if status is None or (status.state, status.digest) != ("done", job.digest):
            continue
        complete = done.issuperset(job.after) and all(map(os.path.exists, job.outputs))
        if complete and status.inputs == state_of(job.inputs):
            done.add(job.name)
    return done


def _read_status(path: str) -> dict[str, JobStatus]:
    if not os.path.exists(path):
        return {}
    try:
        with reading_from(path):
            statuses = parse_json(Path(path).read_text(encoding="utf-8"))["jobs"]
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
    batch: Batch, ready: Callable[[], Iterator[Job]], workers: Workers | None
) -> Generator[Ended, None, None]:
    """Run the jobs that are ``ready``, now and after each that ended, and yield how each ends."""
    if workers is None:
        yield from (execute(batch, job, lambda: True) for job in ready())
    else:
        yield from workers.as_ready(partial(_on_worker, batch, workers.memory_each), ready)


def _on_worker(batch: Batch, memory: int | None, job: Job) -> Ended:
    """Run a job as a task; a --memory of its own comes later and wins."""
    command, *words = job.words
    limit = [] if memory is None else [f"--memory={memory}"]
    return execute(batch, replace(job, words=(command, *limit, *words)), still_wanted())


def execute(batch: Batch, job: Job, wanted: Callable[[], bool]) -> Ended:
    """Run a job to its end, or until it is not ``wanted``; it writes NAME.out and NAME.err."""
    out, err = (os.path.join(batch.logs, f"{job.name}.{name}") for name in ("out", "err"))
    # -P: the directory that it runs in holds data, and nothing is imported from there
    command = [sys.executable, "-P", "-c", _CHILD, *job.words]
    directory = os.path.dirname(batch.path)
    code: int | None = None
    try:
        with (
            open(out, "wb") as output,
            open(err, "wb") as errors,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=errors, cwd=directory
            ) as process,  # it ends when its stdin is closed, at the latest with the block
        ):
            while code is None:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(POLL)
                if code is None and process.stdin is not None and not wanted():
                    process.stdin.close()
        last = Path(err).read_bytes().decode(errors="replace").strip().splitlines()[-1:]
    except OSError as error:
        code, last = MachineError.exit_code, [f"job {job.name!r} cannot be run: {error}."]
    return Ended(job.name, code, "".join(last) if code else "")


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
