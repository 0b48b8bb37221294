"""The command ``batch``."""

from __future__ import annotations

import os
import re
import shlex
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import STOPPED, workers_of
from streamtron.cluster.batch import Job, Status, run_batch, status_of
from streamtron.core.errors import MachineError, SettingsError
from streamtron.core.files import read_toml

KEYS = {"name": str, "command": str, "after": list, "accept_uncertified": bool}


@options.command()
@click.argument("file", metavar="JOBS.TOML", type=click.Path())
@click.option("--status", is_flag=True, help="Print the status of every job, and run none.")
@click.option("--again", is_flag=True, help="Run every job, done or not.")
@options.distributed_options
def batch(file: str, status: bool, again: bool, **where: Any) -> int:
    """Run the commands that JOBS.toml lists, each after those above it.

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
    path, jobs = os.path.abspath(path), list[Job]()
    content = read_toml(path, "jobs")
    if [*content] != ["job"] or not isinstance(content["job"], list) or not content["job"]:
        raise SettingsError(f"{path}: expected [[job]] tables and nothing else.")
    logs = path.removesuffix(".toml") + ".logs"
    for number, table in enumerate(content["job"], start=1):
        try:
            jobs.append(_job(table, [job.name for job in jobs], group, logs))
        except (SettingsError, ValueError) as error:  # a quote that is not closed
            raise SettingsError(f"{path}, job number {number}: {error}") from error
    return jobs


def _job(table: Any, above: list[str], group: click.Group, logs: str) -> Job:
    """Check a job. It comes after the jobs that it names, by default all above it."""
    if not isinstance(table, dict) or not {"name", "command"} <= set(table) <= set(KEYS):
        raise SettingsError(f"expected name, command and no other key than {', '.join(KEYS)}.")
    for key, value in table.items():
        if not isinstance(value, KEYS[key]):
            raise SettingsError(f"{key} is {value!r}, expected a {KEYS[key].__name__}.")
    name, after = table["name"], table.get("after", above)
    if name in above or not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise SettingsError(f"{name!r}: expected a new name of letters, digits, _, - and dots.")
    if unknown := [earlier for earlier in after if earlier not in above]:
        raise SettingsError(f"after names {unknown[0]!r}, which is no job above it.")
    words = shlex.split(table["command"])
    if not words or words[0] not in group.commands or words[0] == "batch":
        raise SettingsError(f"expected a command of streamtron, found {table['command']!r}.")
    command = group.commands[words[0]]
    with click.Context(command, click.Context(group, **group.context_settings)) as context:
        try:
            command.parse_args(context, words[1:])
        except click.UsageError as error:
            raise SettingsError(error.format_message()) from error
    accepted = (0, STOPPED) if table.get("accept_uncertified") else (0,)
    has_memory = any(parameter.name == "memory" for parameter in command.params)
    return Job(name, words, after, logs, accepted, has_memory)
