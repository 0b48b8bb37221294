"""The command line: all commands, and the process that runs one of them.

Every failure is one sentence on stderr and an exit code: 0 done; 2 settings; 3 data; 4 stopped
before the tolerance was certified; 5 machine; 6 in use by another process; 130 SIGINT, 143 SIGTERM;
141 stdout was closed by its reader. A command whose summary cannot be printed does its work all the
same, and ends with 5 or 141 where it would have ended with 0.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import click

from streamtron.cli.terminal import SafeStream, complain
from streamtron.core.errors import MachineError, StreamtronError
from streamtron.core.limits import out_of_memory
from streamtron.core.signals import Signalled, signals

BROKEN_PIPE = 128 + signal.SIGPIPE
ARROW_POOL = "ARROW_DEFAULT_MEMORY_POOL", "system"
"""Arrow's memory comes from the same pool as all other, unless the environment says otherwise: its
own one keeps 90 MB more of what it has freed (2 million click logs)."""

COMPLETE = "_STREAMTRON_COMPLETE"
"""Environment variable with which a shell asks for its completion script, and for completions."""


_COMMANDS = {
    "fit": ("fit", "Train on shards and write a certified model."),
    "update": ("change", "Add shards to the run of a model."),
    "forget": ("change", "Remove shards or rows from the run of a model."),
    "sweep": ("sweep", "Fit many settings and keep the best on other rows."),
    "predict": ("predict", "Write label and decision of every row."),
    "evaluate": ("evaluate", "Measure a model on labelled shards."),
    "calibrate": ("calibrate", "Turn a model's decisions into probabilities."),
    "certify": ("certify", "Prove how far a model is from the best one."),
    "inspect": ("inspect", "Describe a model, a witness, a run or shards."),
    "report": ("report", "Write a page about a run."),
    "explain": ("explain", "Show a model's heaviest features, or why a row got its label."),
    "export": ("export", "Write a model for LIBLINEAR, ONNX, scikit-learn or as JSON."),
    "convert": ("convert", "Convert shards to another format."),
    "generate": ("generate", "Generate a corpus of any size."),
    "cache": ("cache", "Show the size of a cache, or remove it."),
    "batch": ("batch", "Run the jobs of a TOML file in the order of their dependencies."),
}
"""Command → its module in ``streamtron.cli``, and what it does in a line."""


class _Commands(Mapping[str, click.Command]):
    """The commands, each imported when it is asked for: the help alone needs none of them."""

    def __getitem__(self, name: str) -> click.Command:
        module, words = _COMMANDS[name]
        command: click.Command = getattr(import_module(f"streamtron.cli.{module}"), name)
        command.short_help = words
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


class _Group(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in _COMMANDS.items()])


@click.group(
    cls=_Group,
    commands=_Commands(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="streamtron", message="%(prog)s %(version)s")
def streamtron() -> None:
    """Train linear models from shards that do not fit in memory, and prove how good they are.

    Exit codes: 0 done, 2 settings, 3 data, 4 stopped before the tolerance was certified, 5 machine
    (disk, memory), 6 the run is in use, 130 and 143 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and end the process with its exit code."""
    _open_standard_streams()
    os.environ.setdefault(*ARROW_POOL)
    if sys.stdout is sys.__stdout__:  # else it is captured in this process
        sys.stdout = SafeStream(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = SafeStream(2, sys.stderr)
    code: int
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        code = shell_complete(streamtron, {}, "streamtron", COMPLETE, instruction)
    else:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
    sys.stdout.flush()
    error = getattr(sys.stdout, "error", None)
    if error is not None and code == 0:
        code = BROKEN_PIPE if error.errno == errno.EPIPE else _complain(*_sentence(error, None))
    if any(thread.name.startswith("streamtron-") for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # sys.exit would wait for threads that read a store or train
    sys.exit(code)


def _open_standard_streams() -> None:
    """Open /dev/null in place of a closed stdin, stdout or stderr, whose number a file that is
    opened later would get: messages would be written into it. In place of stdout it cannot be
    written to, so that a command does not end well whose results go nowhere."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_RDWR)  # the lowest free number


def _run(arguments: list[str]) -> int:
    """Run a command, and return its exit code, which its metrics have, too."""
    meta: dict[str, Any] = {}
    code = _ended(arguments, meta)
    if "metrics" in meta:
        from streamtron.cli.metrics import write_metrics

        try:
            write_metrics(meta["metrics"], meta["command"], code, meta.get("report"))
        except MachineError as error:
            return code or _complain(*_sentence(error, None))
    return code


def _ended(arguments: list[str], meta: dict[str, Any]) -> int:
    """Run a command, say in a sentence how it failed, and return its exit code; put what its
    context holds into ``meta``."""
    context = None
    try:
        with signals():
            context = streamtron.make_context("streamtron", arguments)
            try:
                with context:
                    code = streamtron.invoke(context)
            finally:  # its own context shares it
                meta |= {**context.meta, "command": context.invoked_subcommand}
            sys.stdout.flush()
            return code or 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        sentence = error.format_message()
        if arguments:  # otherwise the message is the help
            stop = "" if sentence.endswith(("?", ".")) else "."
            command = error.ctx.command_path if error.ctx else "streamtron"
            sentence = f"{sentence}{stop} See {command} --help."
        return _complain(sentence, error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
        return BROKEN_PIPE
    except BaseException as error:
        if meta.get("verbose") and not isinstance(error, StreamtronError | Signalled):
            import traceback

            traceback.print_exc()
        return _complain(*_sentence(error, meta.get("command")))


def _sentence(error: BaseException, command: str | None) -> tuple[str, int]:
    """Return the sentence for an error of a command, and the exit code."""
    if isinstance(error, StreamtronError):
        return str(error), error.exit_code
    if isinstance(error, Signalled):
        name = signal.Signals(error.number).name
        kept = ", and the last state is kept" if error.run and not error.at_checkpoint else ""
        advice = f" Go on from {error.run} with --resume." if error.run else ""
        return f"stopped by {name}; nothing half-written is left{kept}.{advice}", 128 + error.number
    if isinstance(error, OSError) and error.errno == errno.EBADF:
        return "stdout is closed, and nothing can be written to it.", MachineError.exit_code
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}.", MachineError.exit_code
    if isinstance(error, MemoryError) or "failed to map segment" in str(error):  # of a library
        smaller = ", or give a smaller --active-set" if command in ("fit", "sweep") else ""
        return f"{out_of_memory()}{smaller}.", MachineError.exit_code
    what = f"internal error ({type(error).__name__}: {error})"
    return f"{what}. Run the command with -v, and report the traceback that it prints.", 1


def _complain(sentence: str, code: int) -> int:
    """Print the sentence, paths below the working directory as they are typed; return the code."""
    with suppress(OSError):
        here = re.escape(os.path.join(os.getcwd(), ""))
        sentence = sentence if here == "/" else re.sub(rf"(?<!\S){here}", "", sentence)
    complain(sentence)
    return code
