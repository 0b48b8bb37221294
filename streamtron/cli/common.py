"""What several commands share: workers, summaries of fits, and checks of where they may write."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli.summary import fit_lines, not_certified, place_lines
from streamtron.cli.terminal import complain, is_verbose, say
from streamtron.core.config import Machine
from streamtron.core.errors import MachineError
from streamtron.core.executor import Executor, serial
from streamtron.core.files import is_stream
from streamtron.core.text import format_size

if TYPE_CHECKING:
    from streamtron.cluster.client import Workers
    from streamtron.runs.report import Outcome

STOPPED = 4
"""Exit code: stopped before the tolerance was certified."""


def workers_of(
    *, workers: int | None, scheduler: str | None, memory: int | None, **_: Any
) -> AbstractContextManager[Workers | None]:
    """Connect to the workers that ``cluster_options`` ask for; None if they ask for none."""
    if workers is None and scheduler is None:
        return nullcontext()
    from streamtron.cluster.connect import connect

    return connect(workers, scheduler, machine=Machine(memory))


@contextmanager
def executor_of(**where: Any) -> Iterator[Executor]:
    """Give the workers that ``cluster_options`` ask for, or this process."""
    with workers_of(**where) as workers:
        yield workers or serial


@contextmanager
def training(given: Mapping[str, Any], machine: Machine) -> Iterator[dict[str, Any]]:
    """Give the arguments of a command that trains: its ``machine``, the listener that draws its
    progress, and the opener of parts on the workers that it asks for."""
    from streamtron.cli.progress import progress

    with workers_of(**given) as workers, progress(given["log"]) as listen:
        how: dict[str, Any] = {"machine": machine, "listen": listen}
        if workers is not None:
            from streamtron.cluster.parts import parts_on

            how["open_parts"] = parts_on(workers)
        yield how


def say_written(written: Any, where: str) -> None:
    """Print how many rows, nonzeros and bytes were written as shards."""
    size = format_size(written.bytes)
    click.echo(f"{where}: {written.rows:,} rows, {written.nonzeros:,} nonzeros, {size}")


def report_fit(outcome: Outcome, model: str, machine: Machine, first: Iterable[str] = ()) -> int:
    """Print the summary of a fit after the ``first`` lines, and return the exit code."""
    click.get_current_context().meta["report"] = outcome.report  # for --metrics
    say([*first, *fit_lines(outcome.report, verbose=is_verbose()), *place_lines(model, machine)])
    if outcome.exit_code == STOPPED:
        complain(not_certified(outcome.report, model))
    return outcome.exit_code


def check_files(
    written: Mapping[str, str | None],
    read: Iterable[str | None],
    fit: Machine | None = None,
    **how: Any,
) -> None:
    """Refuse outputs, of a ``fit`` on a machine or as ``how`` says, that ``check_outputs`` refuses,
    or that cannot be written, before any work."""
    from streamtron.runs.inputs import check_outputs, check_outputs_of_fit

    meta = click.get_current_context().meta
    written = {**written, "metrics": meta.pop("metrics", None)}
    if fit is None:
        check_outputs(written, read, **how)
    else:
        check_outputs_of_fit(written, read, fit)
    for path in filter(None, written.values()):
        directory = os.path.dirname(os.path.abspath(path))
        if is_stream(path):
            continue  # its directory need not be writable
        if not os.path.isdir(directory):
            raise MachineError(f"{path}: there is no directory {directory}. Make it first.")
        if not os.access(directory, os.W_OK) or os.path.isdir(path):
            reason = "it is a directory" if os.path.isdir(path) else "its directory is read-only"
            raise MachineError(f"{path}: cannot be written, {reason}. Name another place.")
    if written["metrics"]:
        meta["metrics"] = written["metrics"]  # which may be written in the end
