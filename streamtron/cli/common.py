"""What several commands share: workers, output, and checks of where they may write."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli.options import split
from streamtron.core.errors import MachineError, SettingsError

if TYPE_CHECKING:
    from streamtron.cluster.client import Workers
    from streamtron.core.executor import Executor
    from streamtron.runs.results import Outcome

STOPPED = 4
"""Exit code: stopped before the tolerance was certified."""


@contextmanager
def workers_of(
    *, workers: int | None, scheduler: str | None, dashboard: str | None, memory: int | None,
    worker_timeout: float | None, **_: Any,
) -> Iterator[Workers | None]:  # fmt: skip
    """Connect to the workers that ``cluster_options`` ask for; None if they ask for none."""
    if workers is None and scheduler is None:
        yield None
        return
    from streamtron.cluster.connect import WORKER_TIMEOUT, connect
    from streamtron.core.config import Machine

    with connect(
        workers, scheduler, machine=Machine(memory), dashboard=dashboard, verbose=is_verbose(),
        worker_timeout=WORKER_TIMEOUT if worker_timeout is None else worker_timeout,
    ) as found:  # fmt: skip
        yield found


@contextmanager
def executor_of(**where: Any) -> Iterator[Executor]:
    """Connect to the workers that ``cluster_options`` ask for, or use this process."""
    from streamtron.core.executor import serial

    with workers_of(**where) as found:
        yield found or serial


def is_verbose() -> bool:
    """Return whether the command was given ``-v``."""
    return bool(click.get_current_context().meta.get("verbose"))


def say(lines: Iterable[str]) -> None:
    """Print lines to stdout."""
    click.echo("\n".join(lines))


def say_written(written: Any, where: str) -> None:
    """Print how many rows, nonzeros and bytes were written as shards."""
    from streamtron.core.config import format_size

    click.echo(
        f"{where}: {written.rows:,} rows, {written.nonzeros:,} nonzeros, "
        f"{format_size(written.bytes)}"
    )


def print_values(
    values: dict[str, Any], lines: Callable[[dict[str, Any]], Iterable[str]], as_json: bool
) -> None:
    """Print values as JSON, or the lines that a function makes of them."""
    if as_json:
        click.echo(json.dumps(_finite(values), indent=2, allow_nan=False))
    else:
        say(lines(values))


def _finite(value: Any) -> Any:
    """Replace infinities, which JSON does not have, by None."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def report_fit(outcome: Outcome, model: str, cache: str, first: Iterable[str] = ()) -> int:
    """Print the summary of a fit after the ``first`` lines, and return the exit code."""
    from streamtron.cli.summary.fit import fit_summary, not_certified
    from streamtron.runs.inspect import directory_bytes

    say([*first, *fit_summary(outcome.report, model, cache, directory_bytes(cache))])
    if outcome.exit_code == STOPPED:
        click.echo(not_certified(outcome.report, model), err=True)
    return outcome.exit_code


def change_run(
    change: Callable[..., Outcome],
    run: str,
    shards: tuple[str, ...],
    report: str | None,
    given: Mapping[str, Any],
) -> int:
    """Update a run that has ended, or forget rows of it, and print the summary."""
    wanted, machine = split(given)
    if report is not None:
        check_writable(report)
    from streamtron.cli.progress import progress
    from streamtron.cli.summary.fit import nothing_done
    from streamtron.runs.finished import locate

    with progress(verbose=is_verbose()) as listen:
        outcome = change(run, shards, report=report, machine=machine, listen=listen, **wanted)
    cache = machine.cache_dir or str(locate(run, machine.run_dir).directory / "cache")
    return report_fit(outcome, run, cache, nothing_done(outcome.report))


def check_writable(path: str) -> None:
    """Refuse a path that cannot be written, before hours of work.

    Raises
    ------
    SettingsError, MachineError : nothing can be written there.
    """
    if "://" in path:
        raise SettingsError(f"{path}: outputs are local files. Write here, and copy it there.")
    from streamtron.core.files import is_stream

    if is_stream(path):
        return  # its directory need not be writable
    directory = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(directory):
        raise MachineError(f"{path}: there is no directory {directory}. Make it first.")
    if not os.access(directory, os.W_OK) or os.path.isdir(path):
        reason = "it is a directory" if os.path.isdir(path) else "its directory is read-only"
        raise MachineError(f"{path}: cannot be written, {reason}. Name another place.")
