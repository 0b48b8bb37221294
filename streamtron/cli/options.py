"""The options of the command line: one for every setting, and those that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple, TypeVar

import click

from streamtron.core.config import Machine, Settings, format_size, parse_duration, parse_size
from streamtron.core.errors import SettingsError
from streamtron.sweeps.grid import values_of

Command = TypeVar("Command", bound=Callable[..., Any])


class Kind(NamedTuple):
    """How an option is read from the command line."""

    type: Any
    metavar: str | None = None
    read: Callable[[str], Any] | None = None


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError as error:
        raise SettingsError(f"--b {text}: wanted numbers between commas, as in 5,0.1.") from error


def _class_weight(text: str) -> dict[str, float] | str:
    if text == "balanced":
        return text
    try:
        pairs = [word.rsplit("=", 1) for word in text.split(",")]
        return {label.strip(): float(weight) for label, weight in pairs}
    except ValueError as error:
        raise SettingsError(
            f"--class-weight {text}: wanted balanced, or label=weight pairs between commas, "
            "as in 1=2,-1=0.5."
        ) from error


def _base(text: str) -> int | str:
    return text if text == "auto" else int(text)


def whole_number(least: int = -(2**63)) -> Callable[[Any], int]:
    """What reads a whole number that 64 bits hold, from ``least`` on: a type for click."""

    def integer(value: Any) -> int:  # the help shows this name
        text = str(value)
        try:
            number = int(text)
        except ValueError:  # also where it has more than 4,300 digits
            number = None
        if number is None or not least <= number < 2**63:
            shown = repr(text) if len(text) <= 20 else f"{text[:17]!r}… ({len(text):,} characters)"
            start = f" from {least} on" if least > -(2**63) else ""
            raise click.BadParameter(f"{shown}: wanted a whole number{start}, below 2⁶³")
        return number

    return integer


FLOAT, INT, TEXT, FLAG = Kind(float), Kind(whole_number()), Kind(str), Kind(bool)
SIZE = Kind(str, "SIZE", parse_size)

SETTINGS: dict[str, tuple[Kind, str]] = {
    "C": (FLOAT, "Price of a slack, above 0 [1]; C = 1/(2 Δ²), as LIBLINEAR's -c."),
    "delta": (FLOAT, "Δ ≥ 0 in place of C; 0 is the hard margin, for separable rows."),
    "rho": (FLOAT, "ρ ≥ 0, the constant feature that carries the bias; 0 = no bias."),
    "stage": (TEXT, "auto, or stages in order: 0 < ε < 2, or ascent, as in 1,0.1."),
    "variant": (Kind(click.Choice(["length", "steps"])), "The ℓ-margitron or the t-margitron."),
    "b": (
        Kind(str, "NUMBERS", _numbers),
        "b/R^(1+ε) (length) or b/R² (steps), one number a stage [from the bounds].",
    ),
    "tol": (FLOAT, "Relative duality gap, 0 ≤ tol < 1, that ends the run; 0 = to convergence."),
    "max_epochs": (INT, "Full epochs at most, from 1 on."),
    "mini_epochs": (INT, "Mini-epochs at most after a reading, from 0 on."),
    "active_set": (SIZE, "Memory for the rows that mini-epochs visit; part of the model."),
    "class_weight": (
        Kind(str, "WEIGHTS", _class_weight),
        "balanced, or LABEL=W,LABEL=W: multiplies C.",
    ),
    "seed": (INT, "Of the order of rows, from 0 on."),
    "order": (
        Kind(click.Choice(["random", "sequential"])),
        "Of the rows; sequential is as in the files, without a cache if no --cache-dir is given.",
    ),
    "faithful": (FLAG, "The paper's procedure to the letter; needs many readings."),
    "index_base": (
        Kind(click.Choice(["auto", "0", "1"]), None, _base),
        "Number of the first column in text; auto: 1 if column 0 never occurs.",
    ),
    "weights_in_label": (FLAG, "Text labels are written label:weight."),
    "multiclass": (FLAG, "Any number of labels, one a row; in text they may be names."),
    "multilabel": (
        FLAG,
        "Several labels a row or none: 1,5,7 in text, numbers or names; in Parquet, Arrow a list.",
    ),
    "label": (TEXT, "Parquet, Arrow: the column of labels [found by the usual names]."),
    "weight": (TEXT, "Parquet, Arrow: the column of row weights, ≥ 0 [none]."),
    "features": (
        Kind(str, "NAMES"),
        "Parquet, Arrow: the list, map or vector column of features; or columns of numbers, "
        "NAME,NAME,… or a pattern as in f* [found by the usual names].",
    ),
    "values": (
        TEXT,
        "Parquet, Arrow: the list of values beside a list of features [found by the usual names].",
    ),
    "hash_bits": (INT, "Hash features that have names into 2^N columns, N from 1 to 31."),
    "hash_seed": (INT, "Of that hash, from 0 on."),
    "vocabulary": (TEXT, "Or a file of names, one a line: line 1 is column 0."),
    "allow_duplicate": (FLAG, "Let two shards have the same content."),
    "on_bad_shard": (
        Kind(click.Choice(["error", "skip"])),
        "Shards that are malformed, cut short or damaged: end the run, or leave them out and list "
        "them.",
    ),
}
"""Every setting: its type on the command line and what the help says of it."""

LISTS = {
    "C": "Prices of a slack, as in 0.1,1,10, or with --random a range, 0.01..100 [1].",
    "delta": "Δ in place of C: a list, or with --random a range above 0.",
    "rho": "Constants that carry the bias, as in 0,1; 0 = no bias [1].",
}
"""The settings of which a sweep takes many, and what its help says of them."""

PROBLEM = ("C", "delta", "rho", "class_weight")
READING = (
    "index_base", "weights_in_label", "multiclass", "multilabel", "label", "weight", "features",
    "values", "hash_bits", "hash_seed", "vocabulary", "allow_duplicate", "on_bad_shard",
)  # fmt: skip


def option_name(setting: str) -> str:
    """The option of a setting.

    Examples
    --------
    >>> option_name("max_epochs"), option_name("C")
    ('--max-epochs', '--C')
    """
    return "--" + setting.replace("_", "-")


def setting_options(*names: str) -> Callable[[Command], Command]:
    """Give a command the options of these settings, all of them if none is named. An option that
    is not given is None, so that a settings file can speak."""

    def decorate(command: Command) -> Command:
        for name in reversed(names or tuple(SETTINGS)):
            command = _setting_option(name)(command)
        return command

    return decorate


def _setting_option(name: str) -> Callable[[Command], Command]:
    kind, words = SETTINGS[name]
    default: Any = {field.name: field.default for field in fields(Settings)}[name]
    if default is not None and not isinstance(default, bool):
        shown = format_size(default) if name == "active_set" else default
        words = f"{words} [{shown}]"
    flag = option_name(name)
    if kind is FLAG:
        flag = f"{flag}/--no-{flag[2:]}"
    return _option(kind, flag, name, help=words, cls=_Setting)


class _Setting(click.Option):
    """An option that is a setting."""


def _option(
    kind: Kind, *names: str, help: str, cls: type[click.Option] = click.Option
) -> Callable[[Command], Command]:
    # a click type would swallow our sentence: it takes every ValueError for its own
    def read(_: click.Context, __: click.Parameter, value: Any) -> Any:
        return value if value is None or kind.read is None else kind.read(value)

    return click.option(
        *names, cls=cls, type=kind.type, metavar=kind.metavar, default=None, callback=read,
        help=help,
    )  # fmt: skip


def candidate_options(command: Command) -> Command:
    """The options of all settings, where ``--C``, ``--delta`` and ``--rho`` take lists."""
    command = setting_options(*(name for name in SETTINGS if name not in LISTS))(command)
    for name in reversed(LISTS):
        kind = Kind(str, "VALUES", partial(values_of, name))
        command = _option(kind, option_name(name), name, help=LISTS[name])(command)
    return command


def machine_options(command: Command) -> Command:
    """``--memory``, ``--cache-dir`` and ``--threads``: they never change what is computed."""
    words = "Refuse to run if more memory is needed [half of what is there]."
    threads = "Threads that read and train; never changes the model [all processors]."
    command = _place_option("MODEL.run/cache; without a MODEL temporary")(command)
    command = _option(SIZE, "--memory", help=words)(command)
    return _option(INT, "--threads", help=threads)(command)


def reading_options(command: Command) -> Command:
    """The same of a command that reads and writes nothing, where only workers keep to
    ``--memory``."""
    command = _place_option("temporary")(command)
    command = workers_memory_option(command)
    threads = "Threads that read, in this process; never changes what is found [all processors]."
    return _option(INT, "--threads", help=threads)(command)


def _place_option(where: str) -> Callable[[Command], Command]:
    words = f"Where a flat copy of the shards is kept for later readings [{where}]."
    return click.option("--cache-dir", type=click.Path(), help=words)


run_dir_option = click.option(
    "--run-dir", type=click.Path(),
    help="Where checkpoints, witness and cache are kept [MODEL.run].",
)  # fmt: skip


def run_options(command: Command) -> Command:
    """``--run-dir``, ``--resume``, ``--overwrite`` and ``--checkpoint-every``: what a run keeps so
    that it can be taken up again."""
    for option in (
        _option(
            Kind(str, "TIME", parse_duration),
            "--checkpoint-every",
            help="Time between checkpoints, as in 30s or 5m; 0s = as often as possible, which "
            "takes up to half of the time [5m].",
        ),
        click.option("--overwrite", is_flag=True, help="Begin anew where a run is there already."),
        click.option("--resume", is_flag=True, help="Go on with the run that is there, if any."),
        run_dir_option,
    ):  # fmt: skip
        command = option(command)
    return command


def cluster_options(command: Command) -> Command:
    """``--workers``, ``--scheduler``, ``--dashboard``, ``--worker-timeout``: where the work is
    done, which never changes what is computed. The command gets them by these names."""
    for option in (
        _option(Kind(str, "TIME", parse_duration), "--worker-timeout",
                help="Start one of --workers again that has been silent for so long, as in 30s; "
                "another one does its work [5m]. A running scheduler has its own limit."),
        click.option("--dashboard", metavar="HOST:PORT",
                     help="Show there, in a browser, what --workers are at [nowhere]."),
        click.option("--scheduler", metavar="ADDRESS_OR_FILE",
                     help="Or over the workers of a running Dask scheduler: tcp://HOST:PORT, or "
                     "its scheduler file. They must see the same files."),
        click.option("--workers", type=whole_number(1), metavar="N",
                     help="Spread the work over N processes of this machine, one thread each. What "
                     "comes out is the same [this process alone]."),
    ):  # fmt: skip
        command = option(command)
    return command


def workers_memory_option(command: Command) -> Command:
    """``--memory`` where only workers are limited by it."""
    words = "Memory that --workers may take together [half of what is there]."
    return _option(SIZE, "--memory", help=words)(command)


def verbose_option(command: Command) -> Command:
    """``-v``: one line a reading on stderr, and a traceback with an error."""
    return click.option(
        "-v", "--verbose", is_flag=True, expose_value=False, callback=_remember_verbose,
        is_eager=True, help="One line a reading on stderr; a traceback with an error.",
    )(command)  # fmt: skip


def _remember_verbose(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta["verbose"] = value


shards_argument = click.argument("shards", nargs=-1, required=True, type=click.Path())
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def split(given: Mapping[str, Any]) -> tuple[dict[str, Any], Machine]:
    """The settings that were given, and the machine's limits."""
    settings = {name: given[name] for name in SETTINGS if given.get(name) is not None}
    machine = {
        name: given[name]
        for name in ("memory", "cache_dir", "threads", "run_dir", "checkpoint_every")
        if given.get(name) is not None
    }
    return settings, Machine(**machine)


def settings_of(given: Mapping[str, Any], file: str | None = None) -> Settings:
    """Settings from a file, if there is one, and what was given by hand, which wins.

    Examples
    --------
    >>> settings_of({"tol": 0.1}).tol
    0.1
    """
    if file is None:
        return Settings.from_dict(given)
    base = Settings.from_toml(file)
    return base.but(**one_price(given))


def one_price(given: Mapping[str, Any]) -> dict[str, Any]:
    """C given by hand puts a delta of the file aside, and the other way round."""
    aside = {"C": {"delta": None}, "delta": {"C": None}}
    changes: dict[str, Any] = {}
    for name in ("C", "delta"):
        if name in given:
            changes |= aside[name]
    return changes | dict(given)


# --- settings of a command that stand in a file --------------------------------------------------


def command_line(command: click.Command, given: Mapping[str, Any]) -> list[str]:
    """The words of a command line from names and values as TOML has them, checked as the command
    itself would check them.

    Raises
    ------
    SettingsError : an unknown name, a value of the wrong kind, something that must be given.

    Examples
    --------
    >>> from streamtron.cli.main import streamtron
    >>> command_line(streamtron.commands["fit"], {"shards": "a", "model": "m", "b": [5, 0.1]})
    ['--b=5,0.1', '--model=m', '--', 'a']
    """
    known = {_name_of(parameter): parameter for parameter in command.params}
    hidden = {"help", "verbose"}
    if unknown := sorted(set(given) - (set(known) - hidden)):
        raise SettingsError(
            f"{command.name} has no {', '.join(unknown)}; it knows "
            f"{', '.join(sorted(set(known) - hidden))}."
        )
    words = [
        word
        for name in sorted(given)
        if isinstance(option := known[name], click.Option)
        for word in _option_words(option, name, given[name])
    ]
    words.append("--")  # an argument may begin with a dash
    for argument in command.params:
        if isinstance(argument, click.Argument) and argument.name in given:
            value = given[argument.name]
            words += map(_text, value if isinstance(value, list) else [value])
    _check(command, words)
    return words


def _name_of(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len).lstrip("-").replace("-", "_")
    return str(parameter.name)


def _option_words(option: click.Option, name: str, value: Any) -> list[str]:
    flag = max(option.opts, key=len)
    if not option.is_flag:
        several = value if option.multiple and isinstance(value, list) else [value]
        return [f"{flag}={_text(one)}" for one in several]
    if not isinstance(value, bool):
        raise SettingsError(f"{name} is {value!r}: wanted true or false.")
    return [flag] if value else option.secondary_opts[:1]


def _text(value: Any) -> str:
    """A TOML value as it is written on a command line."""
    if isinstance(value, list):
        return ",".join(map(_text, value))
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_text(weight)}" for name, weight in value.items())
    return str(value)


def _check(command: click.Command, words: list[str]) -> None:
    """Parse as the command would, and make the settings, but run nothing."""
    try:
        with click.Context(command, info_name=command.name) as context:
            command.parse_args(context, list(words))
            own = {option.name for option in command.params if isinstance(option, _Setting)}
            given = {name: context.params[name] for name in own if name is not None}
            settings_of(split(given)[0], context.params.get("config"))
    except click.UsageError as error:
        raise SettingsError(error.format_message()) from error
