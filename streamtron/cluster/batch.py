"""Run the commands of a batch, each as a task of Dask that waits for those before it.

A job is a process of its own, which returns its memory when it ends and cannot harm another job.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from streamtron.cluster.client import Workers, still_wanted
from streamtron.core.files import locked, write_atomically
from streamtron.core.sealed import canonical

POLL = 0.5
"""Seconds between checks whether a job was cancelled."""


class Job(NamedTuple):
    """A command line that runs after other jobs, where ``logs`` is: a directory of NAME.json, its
    status, NAME.out and NAME.err. ``accepted`` : exit codes of success."""

    name: str
    words: list[str]
    after: list[str]
    logs: str
    accepted: tuple[int, ...]
    has_memory: bool

    def log(self, ending: str) -> Path:
        """Return the path of one of its files."""
        return Path(self.logs, f"{self.name}.{ending}")


class Status(NamedTuple):
    """What became of a job: waiting, running, done, failed, stopped or, if one before it is not
    done, skipped. ``sentence`` : the last line on its stderr, if it failed. ``digest`` : of its
    command line, and of when the jobs before it ended."""

    name: str
    command: str
    state: str = "waiting"
    exit_code: int | None = None
    sentence: str = ""
    finished: float | None = None
    digest: str = ""


def status_of(job: Job) -> Status:
    """Return the status of a job; a file that cannot be read counts as none."""
    with suppress(OSError, ValueError, TypeError):
        return Status(**json.loads(job.log("json").read_text(encoding="utf-8")))
    return Status(job.name, job.words[0])


def run_batch(
    jobs: Sequence[Job], workers: Workers | None = None, again: bool = False
) -> Iterator[Status]:
    """Run the jobs that are not done, or with ``again`` all; yield the status of each."""
    calls: dict[str, Any] = {}
    os.makedirs(jobs[0].logs, exist_ok=True)
    with locked(Path(jobs[0].logs)):
        if workers is None:
            for job in jobs:
                calls[job.name] = run_job(job, again, None, *(calls[name] for name in job.after))
                yield calls[job.name]
            return
        with workers.submitting() as submit:
            for job in jobs:
                how = job, again, workers.memory_each, *(calls[name] for name in job.after)
                calls[job.name] = submit(run_job, *how, key=f"{job.name}-{secrets.token_hex(4)}")
            yield from map(workers.result, calls.values())


def run_job(job: Job, again: bool, memory: int | None, *before: Status) -> Status:
    """Run a job, unless it is done or one before it is not, and write its status."""
    what = [job.words, *(status.finished for status in before)]
    digest = xxhash.xxh3_128_hexdigest(canonical(what).encode())
    earlier = status_of(job)
    if earlier.state == "done" and earlier.digest == digest and not again:
        return earlier

    def written(state: str, code: int | None = None, sentence: str = "") -> Status:
        new = Status(job.name, job.words[0], state, code, sentence, time.time(), digest)
        write_atomically(job.log("json"), [json.dumps(new._asdict()).encode()])
        return new

    if any(status.state != "done" for status in before):
        return written("skipped")
    written("running")
    try:
        code, sentence = execute(job, command_line(job, earlier, digest, memory))
    except BaseException:
        written("stopped")
        raise
    state = "stopped" if code is None else "done" if code in job.accepted else "failed"
    return written(state, code, sentence)


def command_line(job: Job, earlier: Status, digest: str, memory: int | None) -> list[str]:
    """Return the words of a job: a fit that was cut off resumes where nothing changed, any other
    fit or sweep replaces what it has left; a --memory of its own wins over the worker's."""
    command, *words = job.words
    if command in ("fit", "sweep") and earlier.digest and "--resume" not in words:
        cut_off = earlier.state in ("running", "stopped") and earlier.digest == digest
        words.insert(0, "--resume" if cut_off and command == "fit" else "--overwrite")
    return [command, *[f"--memory={memory}"] * (job.has_memory and memory is not None), *words]


CHILD = """
import os, signal, sys, threading
from streamtron.cli.main import main

def follow_parent():  # its pipe on stdin closes when it cancels the job, or dies
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=follow_parent, daemon=True).start()
main(sys.argv[1:])
"""


def execute(job: Job, words: Sequence[str]) -> tuple[int | None, str]:
    """Run a command line; return its exit code (None if its task was cancelled), and the last line
    on its stderr if that is not 0."""
    # -P: the directory that it runs in holds data, and nothing is imported from there
    command, wanted, code = [sys.executable, "-P", "-c", CHILD, *words], still_wanted(), None
    how: dict[str, Any] = {"stdin": subprocess.PIPE, "cwd": os.path.dirname(job.logs)}
    with (
        open(job.log("out"), "wb") as out,
        open(job.log("err"), "wb") as err,
        subprocess.Popen(command, stdout=out, stderr=err, **how) as process,
    ):
        while code is None and wanted():
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(POLL)
    last = job.log("err").read_bytes().decode(errors="replace").strip().splitlines()[-1:]
    return code, "".join(last) if code else ""
