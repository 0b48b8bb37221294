"""The command ``batch``."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli import options
from streamtron.cli.common import STOPPED, workers_of
from streamtron.core.errors import SettingsError
from streamtron.core.files import read_toml

if TYPE_CHECKING:
    from streamtron.cluster.batch import Job

KEYS = {"name": str, "command": str, "after": list, "accept_uncertified": bool}
CHANGING = ("update", "forget", "calibrate")
"""Commands that change the model or run that they name first."""


@options.command()
@click.argument("file", metavar="JOBS.TOML", type=click.Path())
@click.option("--status", is_flag=True, help="Print the status of every job, and run none.")
@click.option("--again", is_flag=True, help="Run every job, also those that are done.")
@options.distributed_options
def batch(file: str, status: bool, again: bool, **where: Any) -> int:
    """Run the commands that JOBS.toml lists, each after those whose outputs it reads.

    JOBS.logs holds the status of every job and what it printed. A second call runs only what is not
    done. The exit code is 0, or that of the first job that failed.
    """
    from streamtron.cluster.batch import exit_code, run_batch, status_of

    def tell(told: Any) -> None:
        end = f": {told.sentence}" if told.sentence else ""
        click.echo(f"{told.name} ({told.command}): {told.state}{end}")

    group = click.get_current_context().find_root().command
    assert isinstance(group, click.Group)
    jobs = load_jobs(file, group.commands)
    if status:
        statuses = [*map(status_of, jobs)]
        for known in statuses:
            tell(known)
    else:
        with workers_of(**where) as workers:
            statuses = run_batch(jobs, workers, again=again, tell=tell)
    code, done = exit_code(statuses), sum(known.state == "done" for known in statuses)
    click.echo(f"{file}: {done} of {len(jobs)} jobs done", err=code != 0)
    return code


def load_jobs(path: str, commands: Mapping[str, click.Command]) -> list[Job]:
    """Read a TOML file of jobs and check their command lines; what is wrong is a SettingsError.

    A job comes after those that it names, and after every job above it that writes what it reads
    or writes, or reads what it writes.
    """
    path, jobs = os.path.abspath(path), list[Any]()
    content = read_toml(path, "jobs")
    if [*content] != ["job"] or not isinstance(content["job"], list) or not content["job"]:
        raise SettingsError(f"{path}: expected [[job]] tables and nothing else.")
    for number, table in enumerate(content["job"], start=1):
        try:
            jobs.append(_job(path, table, jobs, commands))
        except (SettingsError, ValueError) as error:  # a quote that is not closed
            raise SettingsError(f"{path}, job number {number}: {error}") from error
    return jobs


def _job(path: str, table: Any, above: list[Job], commands: Mapping[str, click.Command]) -> Job:
    from streamtron.cluster.batch import Job

    if not isinstance(table, dict) or not {"name", "command"} <= set(table) <= set(KEYS):
        raise SettingsError(f"expected name, command and no other key than {', '.join(KEYS)}.")
    for key, value in table.items():
        if not isinstance(value, KEYS[key]):
            raise SettingsError(f"{key} is {value!r}, expected a {KEYS[key].__name__}.")
    names, name = [job.name for job in above], table["name"]
    if name in names or not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise SettingsError(f"{name!r}: expected a new name of letters, digits, _, - and dots.")
    if unknown := [after for after in table.get("after", []) if after not in names]:
        raise SettingsError(f"after names {unknown[0]!r}, which is no job above it.")
    words = shlex.split(table["command"])
    if not words or words[0] not in commands or words[0] == "batch":
        raise SettingsError(f"expected a command of streamtron, found {table['command']!r}.")
    command, directory = commands[words[0]], os.path.dirname(path)
    inputs, outputs = _files(command, words[1:], directory)
    after = [
        job.name
        for job in above
        if job.name in table.get("after", [])
        or any(_meet(file, place) for place in job.outputs for file in (*inputs, *outputs))
        or any(_meet(file, place) for place in outputs for file in job.inputs)
    ]
    return Job(
        name,
        tuple(words),
        tuple(after),
        tuple(inputs),
        tuple(outputs),
        directory,
        path.removesuffix(".toml") + ".logs",
        (0, STOPPED) if table.get("accept_uncertified") else (0,),
        any(parameter.name == "memory" for parameter in command.params),
    )


def _files(command: click.Command, words: list[str], start: str) -> tuple[list[str], list[str]]:
    """Parse a command line, and return the absolute paths that it reads and writes."""
    with click.Context(command, info_name=command.name) as context:
        try:
            command.parse_args(context, words)
        except click.UsageError as error:
            raise SettingsError(error.format_message()) from error
    inputs, outputs = list[str](), list[str]()
    for parameter in command.params:
        value = context.params.get(parameter.name or "")
        changed = command.name in CHANGING and parameter is command.params[0]
        if value and (changed or isinstance(parameter.type, options.Read | options.Written)):
            read = isinstance(parameter.type, options.Read) and not changed
            for file in value if isinstance(value, tuple) else [value]:
                if file == "-":
                    raise SettingsError("a job has no standard input or output: name a file.")
                place = file if "://" in file else os.path.normpath(os.path.join(start, file))
                (inputs if read else outputs).append(
                    place.removesuffix(".run") if changed else place
                )
    return inputs, outputs


def _meet(file: str, place: str) -> bool:
    """Return whether a path or glob is a place, in it or around it, or the run of a model there.

    >>> [_meet(file, "/a/m") for file in ("/a/m/*.svm", "/a/m.run", "/a/*", "/a", "/a/m2")]
    [True, True, True, True, False]
    """
    near = file == place or file.startswith((f"{place}/", f"{place}.run"))
    return near or place.startswith(f"{file}/") or fnmatchcase(place, file)
