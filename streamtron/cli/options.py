"""Options of the command line: one for every setting, and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

import click

from streamtron.cli.metrics import checked_metrics
from streamtron.core.config import MACHINE, PAPER, READING, SETTINGS, WORDS, Machine, Settings
from streamtron.core.errors import SettingsError
from streamtron.core.kinds import KINDS
from streamtron.core.text import short
from streamtron.sweeps.grid import first_loss, values_of

Command = TypeVar("Command", bound=Callable[..., Any])


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """Text that a function parses; if it raises a ValueError, a message has ``expected``."""

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


def of_kind(kind: str) -> Parsed:
    """Return the click type of a kind of setting."""
    return Parsed(KINDS[kind].shown, KINDS[kind].parse, KINDS[kind].words)


def whole_number(least: int = 0) -> Parsed:
    """Return the click type of a 64-bit integer that is at least ``least``."""

    def read(text: str) -> int:
        if (number := KINDS["whole"].parse(text)) < least:
            raise ValueError
        return int(number)

    return Parsed(KINDS["whole"].shown, read, f"{KINDS['whole'].words}, at least {least}")


def written(*names: str, help: str, **how: Any) -> Callable[[Command], Command]:
    """Return an option of a file to write."""
    return click.option(*names, type=click.Path(dir_okay=False), help=help, **how)


def flag(*names: str, help: str) -> Callable[[Command], Command]:
    """Return an option without a value."""
    return click.option(*names, is_flag=True, help=help)


def several(*names: str, help: str, **how: Any) -> Callable[[Command], Command]:
    """Return an option of files to read that can be repeated."""
    return click.option(
        *names, multiple=True, type=click.Path(), help=f"{help} Can be repeated.", **how
    )


def number(*names: str, help: str, least: int = 1, **how: Any) -> Callable[[Command], Command]:
    """Return an option of a whole number."""
    return click.option(*names, type=whole_number(least), help=help, **how)


WIDE = 22
"""Columns of help before its words."""

LISTS = {
    "loss": "Losses, as in squared_hinge,log_loss [squared_hinge].",
    "C": "Prices of a slack, as in 0.1,1,10, or with --random a range, 0.01..100 [1].",
    "delta": "Δ in place of C: a list, or with --random a range above 0.",
    "rho": "Constant features that carry the bias, as in 0,1; 0 = no bias [1].",
    "l1_ratio": "With --penalty elasticnet the parts that are ‖w‖₁, as in 0.1,0.5,0.9 [0.5].",
}
"""Settings that may have several values in a sweep → their help."""


OPTIONS = [name for name in SETTINGS if name != "held_out"]  # --valid 20% sets that one
"""Settings that have an option."""


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
    None, so that a file of columns can decide. ``default`` : what the help says in place of the
    settings' own defaults."""
    return _together(*(_setting_option(name, default) for name in names or OPTIONS))


def _setting_option(name: str, shown: str | None = None) -> Callable[[Command], Command]:
    entry, words, option = (SETTINGS | MACHINE)[name], WORDS[name], option_name(name)
    kind, default = entry.metadata["kind"], entry.default
    if shown is not None:
        words = f"{words.removesuffix('.').removesuffix(' [1]')} [{shown}]."
    elif name in SETTINGS and default is not None and not isinstance(default, bool):
        words = f"{words} [{default}]"
    if kind == "flag":
        pair = f"{option}/--no-{option[2:]}"
        return click.option(pair, name, type=bool, default=None, help=words)
    if isinstance(kind, str):
        return click.option(option, name, type=of_kind(kind), help=words)
    choices = [*map(str, kind)]
    metavar = "NAME" if len(f"{option} [{'|'.join(choices)}]") > WIDE else None
    return click.option(option, name, type=click.Choice(choices), metavar=metavar, help=words)


candidate_options = _together(
    *(
        click.option(
            option_name(name), name, type=Parsed("values", partial(values_of, name)), help=words
        )
        for name, words in LISTS.items()
    ),
    setting_options(*(name for name in OPTIONS if name not in LISTS)),
)
"""Options of all settings, where those of ``LISTS`` take lists."""

_workers_memory = click.option(
    "--memory",
    type=of_kind("size"),
    help="Memory that --workers may use together [half of the machine's].",
)

machine_options = setting_options("threads", "memory", "cache_dir")
"""Options of the machine, which never change a result."""

reading_options = _together(
    setting_options("threads"), _workers_memory, setting_options("cache_dir")
)
"""Options of the machine for a command that only reads."""

run_dir_option = setting_options("run_dir")

cluster_options = _together(
    number(
        "--workers",
        help="Spread the work over N processes of this machine, one thread each, to which no "
        "other user has access.",
    ),
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Spread it over the workers of a Dask scheduler, tcp://HOST:PORT or its file. They "
        "need the same files; it can run code as you.",
    ),
)
"""Options that say where the work is done, which never change a result."""

distributed_options = _together(_workers_memory, cluster_options)
"""The same with ``--memory``, for commands that limit only their workers."""

report_option = written("--report", help="File for a JSON report.")
time_limit_option = click.option(
    "--time-limit",
    type=of_kind("duration"),
    help="End after the reading in which this has passed, as in 40m, with the best model by then "
    "[none].",
)
log_option = click.option(
    "--log",
    type=click.Path(dir_okay=False),
    help="File that gets every event as a line of JSON.",
)


def _remembered(
    name: str, *names: str, read: Callable[[Any], Any] = lambda value: value, **how: Any
) -> Callable[[Command], Command]:
    """Return an option whose value is in the context's ``meta`` by name, and is no argument."""

    def remember(context: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None:
            context.meta[name] = read(value)

    return click.option(*names, expose_value=False, callback=remember, is_eager=True, **how)


metrics_option = _remembered(
    "metrics",
    "--metrics",
    type=click.Path(dir_okay=False),
    read=checked_metrics,
    help="File for metrics, in Prometheus' text format.",
)
shards_argument = click.argument("shards", nargs=-1, required=True, type=click.Path())

run_options = _together(
    run_dir_option,
    flag("--resume", help="Go on with an existing run, if there is one."),
    flag("--overwrite", help="Replace an existing run."),
    metrics_option,
)
"""Options of the run directory."""

change_options = _together(
    report_option, log_option, metrics_option, run_dir_option, machine_options, cluster_options
)
"""Options of the commands that change a run."""

calibration_option = click.option(
    "--calibration",
    default="sigmoid",
    type=click.Choice(["sigmoid", "isotonic"]),
    metavar="NAME",
    help="sigmoid, or isotonic for thousands of rows [sigmoid].",
)
json_option = flag("--json", "as_json", help="Print JSON.")


_verbose_option = _remembered(
    "verbose", "-v", "--verbose", is_flag=True, help="Print each reading, and more in a summary."
)


def command(cls: type[click.Command] = click.Command) -> Callable[[Callable[..., Any]], Any]:
    """Make a function a command of the class, with ``-v`` behind its other options."""
    return lambda function: _verbose_option(click.command(cls=cls)(function))


class Grouped(click.Command):
    """A command whose help has its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, common ones first."""
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in _GROUPS}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) and record[1]:
                titles = (title for title, names in _GROUPS.items() if parameter.name in names)
                option, words = record
                groups[next(titles, COMMON)].append((option.split(" / ")[0], words))
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=WIDE, col_spacing=2)


COMMON = "Common options"
_GROUPS: dict[str, Collection[str]] = {
    COMMON: (),
    "Data; tables are Parquet, Arrow, CSV and JSON lines": (*READING[3:], "index_base"),
    "Machine, which never changes the model": (
        *MACHINE,
        *("workers", "scheduler", "log", "metrics", "witness"),
    ),
    "The paper's procedure": PAPER,
}
"""Title → the names of its options; all others are common. A flag is also --no-flag."""


def split(given: Mapping[str, Any]) -> tuple[dict[str, Any], Machine]:
    """Split what was given into settings and the limits of the machine."""
    known = {name: value for name, value in given.items() if value not in (None, ())}
    settings = {name: known[name] for name in SETTINGS if name in known}
    if settings.get("index_base", "auto") != "auto":
        settings["index_base"] = int(settings["index_base"])
    return settings, Machine(**{name: known[name] for name in MACHINE if name in known})


def candidates_of(given: dict[str, Any]) -> tuple[dict[str, Any], Settings]:
    """Take the values of ``LISTS`` out of what was given to a sweep, and return them and the
    settings of all candidates."""
    values = {name: given.pop(name) for name in LISTS if name in given}
    return values, Settings.from_dict({**first_loss(values.get("loss")), **given})
