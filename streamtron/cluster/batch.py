"""Run the commands of a batch as a graph of Dask's delayed calls, and keep their status.

Every job is a process of its own: it returns its memory when it ends, and cannot harm another job.
It ends with its parent process, so a batch that was killed leaves no process that writes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import xxhash

from streamtron.cluster.client import Workers, still_wanted
from streamtron.core.errors import MachineError, StreamtronError
from streamtron.core.files import locked, write_atomically
from streamtron.core.sealed import canonical
from streamtron.data import find_shards

GRACE, POLL = 5.0, 0.5
"""Seconds that a job has to end after SIGTERM; seconds between checks whether it was cancelled."""


@dataclass(frozen=True, slots=True)
class Job:
    """A command line that runs in ``directory`` after other jobs.

    ``inputs``, ``outputs`` : absolute paths, globs and URIs. ``accepted`` : exit codes of success.
    ``logs`` : directory of NAME.json, its status, and of NAME.out and NAME.err, what it printed.
    """

    name: str
    words: tuple[str, ...]
    after: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    directory: str
    logs: str
    accepted: tuple[int, ...] = (0,)
    has_memory: bool = False

    def log(self, ending: str) -> str:
        """Return the path of one of its files."""
        return os.path.join(self.logs, f"{self.name}.{ending}")


@dataclass(frozen=True, slots=True)
class Status:
    """What became of a job: waiting, running, done, failed, stopped (the batch was interrupted) or
    skipped (a job before it is not done).

    ``sentence`` : the last line on its stderr, if it failed. ``digest`` : of its command line, its
    inputs' names, sizes and times, and the times at which the jobs before it ended.
    """

    name: str
    command: str
    state: str = "waiting"
    exit_code: int | None = None
    sentence: str = ""
    started: str | None = None
    finished: str | None = None
    digest: str = ""


def status_of(job: Job) -> Status:
    """Return the status of a job; a file that cannot be read counts as none."""
    with suppress(OSError, ValueError, TypeError):
        return Status(**json.loads(Path(job.log("json")).read_text(encoding="utf-8")))
    return Status(job.name, job.words[0])


def run_batch(
    jobs: Sequence[Job],
    workers: Workers | None = None,
    *,
    again: bool = False,
    tell: Callable[[Status], object] = lambda _: None,
) -> list[Status]:
    """Run the jobs that are not done, or with ``again`` all; return the status of all.

    ``tell`` is called with each status as its job ends. A job is done if it succeeded, its digest
    is the same and its outputs exist.
    """
    import dask
    from dask.callbacks import Callback

    os.makedirs(jobs[0].logs, exist_ok=True)
    with locked(Path(jobs[0].logs)):
        memory, calls = workers and workers.memory_each, dict[str, Any]()
        for job in jobs:
            awaited = [calls[name] for name in job.after]
            calls[job.name] = dask.delayed(run_job, pure=False)(job, again, memory, *awaited)
        if workers is not None:
            return workers.compute([*calls.values()], tell)
        with Callback(posttask=lambda key, status, *rest: tell(status)):
            return list(dask.compute(*calls.values(), scheduler="synchronous"))


def exit_code(statuses: Sequence[Status]) -> int:
    """Return 0 if no job failed, else the code of the first that did; of a signal 5."""
    failed = [status.exit_code or 0 for status in statuses if status.state == "failed"]
    return next((code if code > 0 else MachineError.exit_code for code in failed), 0)


def run_job(job: Job, again: bool, memory: int | None, *before: Status) -> Status:
    """Run a job, unless it is done or one before it is not, and write its status."""

    def written(**changes: Any) -> Status:
        changed = replace(status, **changes)
        write_atomically(job.log("json"), [json.dumps(asdict(changed)).encode()])
        return changed

    what = [job.words, *map(_stamps, job.inputs), *(status.finished for status in before)]
    digest = xxhash.xxh3_128_hexdigest(canonical(what).encode())
    earlier, status = status_of(job), Status(job.name, job.words[0], digest=digest)
    done = earlier.state == "done" and earlier.digest == digest
    if done and not again and all(map(os.path.exists, job.outputs)):
        return earlier
    if any(earlier.state != "done" for earlier in before):
        return written(state="skipped")
    status = written(state="running", started=_now())
    try:
        code, sentence = execute(job, command_line(job, earlier, digest, memory))
    except BaseException:
        written(state="stopped", finished=_now())
        raise
    state = "stopped" if code is None else "done" if code in job.accepted else "failed"
    return written(state=state, exit_code=code, sentence=sentence, finished=_now())


def command_line(job: Job, earlier: Status, digest: str, memory: int | None) -> list[str]:
    """Return the words of a job: a fit that was cut off resumes where nothing changed, any other
    fit or sweep replaces what it has left; a --memory of its own wins over the worker's."""
    command, *words = job.words
    if command in ("fit", "sweep") and earlier.digest and "--resume" not in words:
        cut_off = earlier.state in ("running", "stopped") and earlier.digest == digest
        words.insert(0, "--resume" if cut_off and command == "fit" else "--overwrite")
    if memory is not None and job.has_memory:
        words.insert(0, f"--memory={memory}")
    return [command, *words]


def _stamps(path: str) -> list[Any]:
    """Return names, sizes and times of the files that a path, glob or URI stands for."""
    try:
        if os.path.isfile(path):
            return [path, os.path.getsize(path), os.stat(path).st_mtime_ns]
        return [[shard.path, shard.size, shard.mtime_ns] for shard in find_shards([path])]
    except (StreamtronError, OSError) as error:
        return [str(error)]  # the job itself will report it


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def execute(job: Job, words: Sequence[str]) -> tuple[int | None, str]:
    """Run a command line; return its exit code (None if its task was cancelled), and the last line
    on its stderr if that is not 0."""
    # -P: the directory that it runs in holds data, and nothing is imported from there
    command = [sys.executable, "-P", "-c", _CHILD, *words]
    wanted, code, cancelled = still_wanted(), None, False
    with (
        open(job.log("out"), "wb") as out,
        open(job.log("err"), "wb") as err,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=err, cwd=job.directory
        ) as process,  # it ends when its stdin is closed, at the latest with the block
    ):
        while code is None:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(POLL)
            if code is None and process.stdin is not None and not wanted():
                cancelled = True
                process.stdin.close()
    last = Path(job.log("err")).read_bytes().decode(errors="replace").strip().splitlines()[-1:]
    return None if cancelled else code, "".join(last) if code else ""


_CHILD = """
import sys
from streamtron.cluster.batch import follow_parent
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
