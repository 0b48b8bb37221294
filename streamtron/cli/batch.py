"""The command that runs others: ``batch``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import workers_of
from streamtron.cli.options import cluster_options, verbose_option, workers_memory_option
from streamtron.core.errors import SettingsError


@click.command(short_help="Run the jobs of a TOML file, each after those it needs.")
@click.argument("file", metavar="JOBS.TOML", type=click.Path())
@click.option("--again", is_flag=True, help="Run every job, also those that are done.")
@workers_memory_option
@cluster_options
@verbose_option
def batch(file: str, again: bool, **where: Any) -> int:
    """Run fits, predictions, conversions, … that wait for each other, as JOBS.toml lists them.

    JOBS.status.json says what became of each, JOBS.logs holds what they printed. Called again, it
    runs only what is not done. The exit code is 0, or that of the first job that failed.
    """
    from streamtron.cli.summary.batch import batch_verdict, fate_line
    from streamtron.cluster.batch import load_batch
    from streamtron.cluster.jobs import exit_code, on_workers, one_by_one, run_batch

    commands = _commands()
    jobs = load_batch(file, partial(command_line, commands))
    with workers_of(**where) as workers:
        if workers is None:
            runner = one_by_one
        else:
            runner = on_workers(workers, workers.memory_each, _with(commands, "memory"))
        fates = run_batch(
            jobs, runner, again=again, listen=lambda fate: click.echo(fate_line(asdict(fate)))
        )
    code = exit_code(fates)
    click.echo(batch_verdict(file, [asdict(fate) for fate in fates]), err=code != 0)
    return code


def command_line(
    commands: Mapping[str, click.Command], name: str, given: Mapping[str, Any]
) -> list[str]:
    """The words of a job: a command, and what it is given by the names of its parameters.

    Raises
    ------
    SettingsError : there is no such command, or it takes no such parameter.
    """
    if name not in commands:
        raise SettingsError(f"there is no command {name}.")
    return options.command_line(commands[name], given)


def _with(commands: Mapping[str, click.Command], option: str) -> list[str]:
    """The commands that have an option."""
    return [
        name
        for name, command in commands.items()
        if any(parameter.name == option for parameter in command.params)
    ]


def _commands() -> Mapping[str, click.Command]:
    """All that a job can be."""
    group = click.get_current_context().find_root().command
    assert isinstance(group, click.Group)
    return group.commands
