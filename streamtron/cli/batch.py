"""The command ``batch``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli import options
from streamtron.cli.common import workers_of
from streamtron.core.errors import SettingsError

if TYPE_CHECKING:
    from streamtron.cluster.batch import CommandLine
    from streamtron.cluster.jobs import JobStatus
    from streamtron.core.config import Settings


@options.command()
@click.argument("file", metavar="JOBS.TOML", type=click.Path())
@click.option("--again", is_flag=True, help="Run every job, also those that are done.")
@options.distributed_options
def batch(file: str, again: bool, **where: Any) -> int:
    """Run the commands that JOBS.toml lists, each after those it depends on.

    JOBS.status.json holds the status of every job, JOBS.logs what they printed. A second call runs
    only what is not done. The exit code is 0, or that of the first job that failed.
    """
    from streamtron.cluster.batch import load_batch
    from streamtron.cluster.jobs import exit_code, run_batch

    group = click.get_current_context().find_root().command
    assert isinstance(group, click.Group)
    jobs = load_batch(file, partial(command_line, group.commands))
    with workers_of(**where) as workers:
        statuses = run_batch(jobs, workers, again=again, tell=_print_status)
    code = exit_code(statuses)
    click.echo(_verdict(file, statuses), err=code != 0)
    return code


def _print_status(status: JobStatus) -> None:
    sentence = f": {status.sentence}" if status.sentence else ""
    click.echo(f"{status.name} ({status.command}): {status.state}{sentence}")


def _verdict(path: str, statuses: Sequence[JobStatus]) -> str:
    done = sum(status.state == "done" for status in statuses)
    text = f"{path}: {done} of {len(statuses)} jobs done"
    for state in ("failed", "skipped"):
        if names := [status.name for status in statuses if status.state == state]:
            text += f"; {state}: {', '.join(names)}"
    return text if done == len(statuses) else f"{text}. Correct what they say, and call it again."


def command_line(
    commands: Mapping[str, click.Command], name: str, values: Mapping[str, Any]
) -> CommandLine:
    """Return the command line of a command, given names and values as TOML has them, or refuse an
    unknown name, a value of the wrong kind, a missing value by a SettingsError.

    >>> from streamtron.cli.main import streamtron
    >>> values = {"shards": "a", "model": "m", "b": [5, 0.1]}
    >>> command_line(streamtron.commands, "fit", values).words
    ['--b=5,0.1', '--model=m', '--', 'a']
    """
    from streamtron.cluster.batch import CommandLine

    command = commands[name]
    known = [parameter for parameter in command.params if parameter.name != "help"]
    names = (max(parameter.opts, key=len).lstrip("-").replace("-", "_") for parameter in known)
    parameters = dict(zip(names, known, strict=True))
    if unknown := sorted(set(values) - set(parameters)):
        listed = ", ".join(sorted(parameters))
        raise SettingsError(f"{name} has no {', '.join(unknown)}; it knows {listed}.")
    words = []
    for key, value in sorted(values.items()):
        if isinstance(option := parameters[key], click.Option):
            words += _option_words(option, key, value)
    words.append("--")  # an argument may begin with a dash
    for key, parameter in parameters.items():
        if key in values and isinstance(parameter, click.Argument):
            words += map(_text, _listed(values[key]))
    settings = _checked(command, words)
    read, written = (
        [
            str(file)
            for key in values
            if isinstance(parameters[key].type, files)
            for file in _listed(values[key])
        ]
        for files in (options.Read, options.Written)
    )
    if "-" in (*read, *written):
        raise SettingsError("- is standard input or output, and a job has none: name a file.")
    read += [] if settings.vocabulary is None else [settings.vocabulary]
    return CommandLine(words, read, written, settings.to_dict())


def _option_words(option: click.Option, name: str, value: Any) -> list[str]:
    flag = max(option.opts, key=len)
    if not option.is_flag:
        items = _listed(value) if option.multiple else [value]
        return [f"{flag}={_text(item)}" for item in items]
    if not isinstance(value, bool):
        raise SettingsError(f"{name} is {value!r}: wanted true or false.")
    return [flag] if value else option.secondary_opts[:1]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_text(weight)}" for name, weight in value.items())
    return str(value)


def _checked(command: click.Command, words: list[str]) -> Settings:
    """Parse as the command would and return its settings, but run nothing."""
    try:
        with click.Context(command, info_name=command.name) as context:
            command.parse_args(context, list(words))
            settings, _ = options.split(context.params)
    except click.UsageError as error:
        raise SettingsError(error.format_message()) from error
    if command.name == "generate":  # whose columns are a number
        return options.settings_of({})
    file = context.params.get("config")
    if command.name == "sweep":
        return options.candidates_of(settings, file)[1]
    return options.settings_of(settings, file)
