"""The command ``batch``."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from fnmatch import fnmatchcase
from itertools import product, starmap
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import STOPPED, workers_of
from streamtron.cluster.batch import Job, Status, run_batch, status_of
from streamtron.core.errors import MachineError, SettingsError
from streamtron.core.files import read_toml

KEYS = {"name": str, "command": str, "after": list, "accept_uncertified": bool}
CHANGING = ("update", "forget", "calibrate")
"""Commands that change the model or run that they name first."""


@options.command()
@click.argument("file", metavar="JOBS.TOML", type=click.Path())
@click.option("--status", is_flag=True, help="Print the status of every job, and run none.")
@click.option("--again", is_flag=True, help="Run every job, done or not.")
@options.distributed_options
def batch(file: str, status: bool, again: bool, **where: Any) -> int:
    """Run the commands that JOBS.toml lists, each after those whose outputs it reads.

    JOBS.logs holds the status and the output of every job. A second call runs only the jobs that
    are not done. The exit code is 0, or that of the first job that failed.
    """
    jobs = load_jobs(file, click.get_current_context().find_root().command)
    statuses: list[Status] = []
    with workers_of(**where) as workers:
        for told in map(status_of, jobs) if status else run_batch(jobs, workers, again):
            statuses.append(told)
            end = f": {told.sentence}" if told.sentence else ""
            click.echo(f"{told.name} ({told.command}): {told.state}{end}")
    failed = [known.exit_code or 0 for known in statuses if known.state == "failed"]
    code = next((code if code > 0 else MachineError.exit_code for code in failed), 0)
    done = sum(known.state == "done" for known in statuses)
    click.echo(f"{file}: {done} of {len(jobs)} jobs done", err=code != 0)
    return code


def load_jobs(path: str, group: Any) -> list[Job]:
    """Read a TOML file of jobs and check their command lines; SettingsError: one is wrong."""
    path, jobs = os.path.abspath(path), list[Any]()
    content = read_toml(path, "jobs")
    if [*content] != ["job"] or not isinstance(content["job"], list) or not content["job"]:
        raise SettingsError(f"{path}: expected [[job]] tables and nothing else.")
    for number, table in enumerate(content["job"], start=1):
        try:
            jobs.append(_job(path, table, jobs, group.commands))
        except (SettingsError, ValueError) as error:  # a quote that is not closed
            raise SettingsError(f"{path}, job number {number}: {error}") from error
    return jobs


def _job(path: str, table: Any, above: list[Job], commands: Mapping[str, click.Command]) -> Job:
    """Check a job. It comes after the jobs that it names, and after every job above it that writes
    a file that it reads or writes, or reads a file that it writes."""
    if not isinstance(table, dict) or not {"name", "command"} <= set(table) <= set(KEYS):
        raise SettingsError(f"expected name, command and no other key than {', '.join(KEYS)}.")
    for key, value in table.items():
        if not isinstance(value, KEYS[key]):
            raise SettingsError(f"{key} is {value!r}, expected a {KEYS[key].__name__}.")
    names, name, named = [job.name for job in above], table["name"], table.get("after", [])
    if name in names or not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise SettingsError(f"{name!r}: expected a new name of letters, digits, _, - and dots.")
    if unknown := [after for after in named if after not in names]:
        raise SettingsError(f"after names {unknown[0]!r}, which is no job above it.")
    words = shlex.split(table["command"])
    if not words or words[0] not in commands or words[0] == "batch":
        raise SettingsError(f"expected a command of streamtron, found {table['command']!r}.")
    command = commands[words[0]]
    inputs, outputs = _files(command, words[1:], os.path.dirname(path))
    after = []
    for job in above:
        pairs = [*product(inputs + outputs, job.outputs), *product(job.inputs, outputs)]
        if job.name in named or any(starmap(_meet, pairs)):
            after.append(job.name)
    accepted = (0, STOPPED) if table.get("accept_uncertified") else (0,)
    has_memory = any(parameter.name == "memory" for parameter in command.params)
    logs = path.removesuffix(".toml") + ".logs"
    return Job(name, words, after, inputs, outputs, logs, accepted, has_memory)


def _files(command: click.Command, words: list[str], start: str) -> tuple[list[str], list[str]]:
    """Parse a command line, and return the absolute paths that it reads and writes."""
    with click.Context(command, info_name=command.name) as context:
        try:
            command.parse_args(context, words)
        except click.UsageError as error:
            raise SettingsError(error.format_message()) from error
    inputs, outputs = list[str](), list[str]()
    for parameter in command.params:
        value = context.params.get(parameter.name or "") or ()
        changed = command.name in CHANGING and parameter is command.params[0]
        if changed or isinstance(parameter.type, options.Read | options.Written):
            written = changed or isinstance(parameter.type, options.Written)
            for file in [value] if isinstance(value, str) else value:
                if file == "-":
                    raise SettingsError("a job has no standard output: name a file.")
                place = file if "://" in file else os.path.normpath(os.path.join(start, file))
                place = place.removesuffix(".run") if changed else place
                (outputs if written else inputs).append(place)
    return inputs, outputs


def _meet(file: str, place: str) -> bool:
    """Return whether a path or glob is a place, in it or around it, or the run of a model there.

    >>> [_meet(file, "/a/m") for file in ("/a/m/*.svm", "/a/m.run", "/a/*", "/a", "/a/m2")]
    [True, True, True, True, False]
    """
    near = file == place or file.startswith((f"{place}/", f"{place}.run"))
    return near or place.startswith(f"{file}/") or fnmatchcase(place, file)
