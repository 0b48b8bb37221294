"""Options of the command line: one for every setting, and those that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import click

from streamtron.core.config import MACHINE, READING, SETTINGS, WORDS, Machine, Settings
from streamtron.core.errors import SettingsError
from streamtron.core.kinds import KINDS
from streamtron.core.text import short
from streamtron.sweeps.grid import first_loss, values_of

Command = TypeVar("Command", bound=Callable[..., Any])


class Read(click.Path):
    """The type of what a command reads: a job of a batch runs again when it changes."""


class Written(click.Path):
    """The type of what a command writes: a job of a batch runs again when it is missing."""


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """Text that a function parses; if it raises a ValueError, a message says what is expected."""

    def __init__(self, name: str, read: Callable[[str], Any], expected: str = "") -> None:
        self.name, self.read, self.expected = name, read, expected

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the text."""
        try:
            return self.read(str(value))
        except SettingsError:
            raise
        except (TypeError, ValueError, OverflowError):
            self.fail(f"{short(value)}: expected {self.expected}.", param, ctx)


METAVARS = {
    "whole": "integer",
    "duration": "time",
    "stage": "text",
    "name": "text",
    "columns": "text",
    "words": "text",
    "rows": "integer",
    "transformer": "path",
    "input": "path",
    "output": "path",
}
"""Kind → what help calls its values, if not so."""


def of_kind(kind: str) -> Parsed:
    """Return the click type of a kind of setting."""
    return Parsed(METAVARS.get(kind, kind), KINDS[kind].parse, KINDS[kind].words)


def whole_number(least: int = 0) -> Parsed:
    """Return the click type of a 64-bit integer that is at least ``least``."""

    def read(text: str) -> int:
        if (number := KINDS["whole"].parse(text)) < least:
            raise ValueError
        return int(number)

    return Parsed(METAVARS["whole"], read, f"{KINDS['whole'].words}, at least {least}")


SIZE = of_kind("size")

LISTS = {
    "loss": "Losses, as in squared_hinge,log_loss [squared_hinge].",
    "C": "Prices of a slack, as in 0.1,1,10, or with --random a range, 0.01..100 [1].",
    "delta": "Δ in place of C: a list, or with --random a range above 0.",
    "rho": "Constant features that carry the bias, as in 0,1; 0 = no bias [1].",
    "l1_ratio": "With --penalty elasticnet the parts that are ‖w‖₁, as in 0.1,0.5,0.9 [0.5].",
}
"""Settings of which a sweep takes several values → their help."""

PLACES = READING[3:-7]
"""Settings that say where things are in a shard."""


def option_name(setting: str) -> str:
    """Return the option of a setting: ``--max-epochs`` of ``max_epochs``."""
    return "--" + setting.replace("_", "-")


def _together(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Combine options into one decorator; the help lists them in this order."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def setting_options(*names: str, default: str | None = None) -> Callable[[Command], Command]:
    """Give a command the options of these settings, by default of all. One that is not given is
    None, so that a settings file can decide. ``default`` : what the help says in place of the
    settings' own defaults."""
    return _together(*(_setting_option(name, default) for name in names or SETTINGS))


def _setting_option(name: str, shown: str | None = None) -> Callable[[Command], Command]:
    entry, words, flag = (SETTINGS | MACHINE)[name], WORDS[name], option_name(name)
    kind, default = entry.metadata["kind"], entry.default
    if shown is not None:
        words = f"{words.removesuffix('.').removesuffix(' [1]')} [{shown}]."
    elif name in SETTINGS and default is not None and not isinstance(default, bool):
        words = f"{words} [{default}]"
    if kind == "flag":
        flag = f"{flag}/--no-{flag[2:]}"
        return click.option(flag, name, type=bool, default=None, help=words)
    choices = not isinstance(kind, str)
    return click.option(
        flag, name, type=click.Choice([*map(str, kind)]) if choices else of_kind(kind), help=words
    )


candidate_options = _together(
    *(
        click.option(
            option_name(name), name, type=Parsed("values", partial(values_of, name)), help=words
        )
        for name, words in LISTS.items()
    ),
    setting_options(*(name for name in SETTINGS if name not in LISTS)),
)
"""Options of all settings, where those of ``LISTS`` take lists."""

_workers_memory = click.option(
    "--memory", type=SIZE, help="Memory that --workers may use together [half of the machine's]."
)

machine_options = setting_options("threads", "memory", "cache_dir")
"""Options of the machine, which never change what is computed."""

reading_options = _together(
    setting_options("threads"), _workers_memory, setting_options("cache_dir")
)
"""Options of the machine for a command that only reads."""

run_dir_option = setting_options("run_dir")

run_options = _together(
    run_dir_option,
    click.option("--resume", is_flag=True, help="Go on with an existing run, if there is one."),
    click.option("--overwrite", is_flag=True, help="Replace an existing run."),
)
"""Options of the run directory."""

cluster_options = _together(
    click.option(
        "--workers",
        type=whole_number(1),
        metavar="N",
        help="Distribute the work over N processes of this machine, one thread each, to "
        "which no other user has access [this process alone].",
    ),
    click.option(
        "--scheduler",
        metavar="ADDRESS_OR_FILE",
        help="Distribute it over the workers of a running Dask scheduler, tcp://HOST:PORT "
        "or its scheduler file. They must have access to the same files; the scheduler "
        "can run code as you.",
    ),
)
"""Options that say where the work is done, which never change what is computed."""

distributed_options = _together(_workers_memory, cluster_options)
"""The same with ``--memory``, for commands that limit only their workers."""

report_option = click.option(
    "--report", type=Written(dir_okay=False), help="File for a JSON report."
)
time_limit_option = click.option(
    "--time-limit",
    type=of_kind("duration"),
    help="End after the reading in which this has passed, as in 40m, with the best model by then "
    "[none].",
)
log_option = click.option(
    "--log",
    type=click.Path(dir_okay=False),
    help="File to which every event is appended, one line of JSON each.",
)
config_option = click.option(
    "--config", type=Read(), help="TOML file of settings; options given here win."
)
shards_argument = click.argument("shards", nargs=-1, required=True, type=Read())
names_option = click.option(
    "--names",
    multiple=True,
    type=Read(),
    help="Directory in which convert --keep-names kept the names of columns; can be repeated [that "
    "of the shards of the model's run].",
)

change_options = _together(
    report_option, log_option, run_dir_option, machine_options, cluster_options
)
"""Options of the commands that change a run."""

calibration_option = click.option(
    "--calibration",
    default="sigmoid",
    show_default=True,
    type=click.Choice(["sigmoid", "isotonic"]),
    help="Platt's sigmoid, or isotonic regression, which needs thousands of rows.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _remember_verbose(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta["verbose"] = value


_verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_remember_verbose,
    is_eager=True,
    help="Print one line a reading to stderr, more in a summary, and a traceback with an error.",
)


def command(cls: type[click.Command] = click.Command) -> Callable[[Callable[..., Any]], Any]:
    """Make a function a command of the class, with ``-v`` behind its other options."""
    return lambda function: _verbose_option(click.command(cls=cls)(function))


class Grouped(click.Command):
    """A command whose help has its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those that most people need first."""
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in _GROUPS}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) and record[1]:
                titles = (title for title, names in _GROUPS.items() if parameter.name in names)
                groups[next(titles, "Common options")].append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


_GROUPS = {
    "Common options": ("C", "loss", "tol", "class_weight", "multiclass", "multilabel"),
    "Data options; tables are Parquet, Arrow, CSV and JSON lines": (*READING, "held_out"),
    "Machine options, which never change the model": (
        *MACHINE,
        "workers",
        "scheduler",
        "log",
        "witness",
    ),
    "Research options": tuple(SETTINGS),
}
"""Title → the names of its options, the first that has a name; all others are common."""


def split(given: Mapping[str, Any]) -> tuple[dict[str, Any], Machine]:
    """Split what was given into settings and the limits of the machine."""
    known = {name: value for name, value in given.items() if value not in (None, ())}
    settings = {name: known[name] for name in SETTINGS if name in known}
    if settings.get("index_base", "auto") != "auto":
        settings["index_base"] = int(settings["index_base"])
    return settings, Machine(**{name: known[name] for name in MACHINE if name in known})


def settings_of(given: Mapping[str, Any], file: str | None = None) -> Settings:
    """Make settings of a file, if there is one, and of what was given, which wins."""
    if file is None:
        return Settings.from_dict(given)
    return Settings.from_toml(file).but(**given)


def candidates_of(given: dict[str, Any], file: str | None) -> tuple[dict[str, Any], Settings]:
    """Take the values of ``LISTS`` out of what was given to a sweep, and return them and the
    settings of all candidates."""
    values = {name: given.pop(name) for name in LISTS if name in given}
    return values, settings_of({**first_loss(values.get("loss")), **given}, file)
