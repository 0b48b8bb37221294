"""What several commands share: workers, output, and checks of where they may write."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from streamtron.cli.options import split
from streamtron.cli.summary import fit_lines, not_certified, place_lines
from streamtron.cli.terminal import columns_of, complain, fitted
from streamtron.cli.terminal import wrapped as wrapped
from streamtron.core.config import Machine
from streamtron.core.errors import MachineError
from streamtron.core.executor import Executor, serial
from streamtron.core.files import is_stream
from streamtron.core.text import MANY, Lines, and_more, format_size

if TYPE_CHECKING:
    from streamtron.cluster.client import Workers
    from streamtron.runs.outcome import Outcome
    from streamtron.runs.parts import OpenParts

STOPPED = 4
"""Exit code: stopped before the tolerance was certified."""


@contextmanager
def executor_of(**where: Any) -> Iterator[Executor]:
    """Give the workers that ``cluster_options`` ask for, or this process."""
    with workers_of(**where) as workers:
        yield workers or serial


@contextmanager
def workers_of(
    *, workers: int | None, scheduler: str | None, dashboard: str | None, memory: int | None,
    worker_timeout: float | None, **_: Any,
) -> Iterator[Workers | None]:  # fmt: skip
    """Connect to the workers that ``cluster_options`` ask for; None if they ask for none."""
    if workers is None and scheduler is None:
        yield None
        return
    from streamtron.cluster.connect import connect

    with connect(
        workers, scheduler, machine=Machine(memory), dashboard=dashboard, verbose=is_verbose(),
        worker_timeout=worker_timeout,
    ) as found:  # fmt: skip
        if workers is not None and dashboard is not None:
            click.echo(f"dashboard: {found.client.dashboard_link}", err=True)
        yield found


def parts_of(workers: Workers | None) -> OpenParts | None:
    """Return what opens parts on the workers, if there are any."""
    if workers is None:
        return None
    from streamtron.cluster.parts import parts_on

    return parts_on(workers)


def is_verbose() -> bool:
    """Return whether the command was given ``-v``."""
    return bool(click.get_current_context().meta.get("verbose"))


def say(lines: Iterable[str]) -> None:
    """Print lines to stdout; on a terminal no line is wider than it."""
    width = columns_of()
    click.echo("\n".join(fitted(line, width) for line in lines))


def say_written(written: Any, where: str) -> None:
    """Print how many rows, nonzeros and bytes were written as shards."""
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


def report_fit(outcome: Outcome, model: str, machine: Machine, first: Iterable[str] = ()) -> int:
    """Print the summary of a fit after the ``first`` lines, and return the exit code."""
    say([*first, *fit_lines(outcome.report, verbose=is_verbose()), *place_lines(model, machine)])
    if outcome.exit_code == STOPPED:
        complain(not_certified(outcome.report, model))
    return outcome.exit_code


def change_run(
    change: Callable[..., Outcome], run: str, shards: tuple[str, ...], report: str | None,
    log: str | None, given: Mapping[str, Any],
) -> int:  # fmt: skip
    """Update a run that has ended, or forget rows of it, and print the summary."""
    wanted, machine = split(given)
    from streamtron.cli.progress import progress
    from streamtron.runs.finished_run import locate

    place = locate(run, machine.run_dir)
    check_files(
        {"report": report, "log": log},
        [place.model, *shards, given.get("rows"), given["scheduler"]],
        runs=[place.directory], directories={"run directory": place.directory},
        cache=machine.cache_dir,
    )  # fmt: skip
    with workers_of(**given) as workers, progress(verbose=is_verbose(), log=log) as listen:
        outcome = change(
            run, shards, report=report, machine=machine, listen=listen,
            open_parts=parts_of(workers), **wanted,
        )  # fmt: skip
    found = replace(machine, run_dir=str(place.directory))
    return report_fit(outcome, run, found, _what_was_done(outcome.report))


def _what_was_done(report: Mapping[str, Any]) -> Lines:
    """Yield what a forget removed, and what an update or a forget skipped."""
    forgotten = [f"{name}: {n:,} rows forgotten" for name, n in report.get("forgotten", {}).items()]
    yield from (*forgotten[:MANY], *and_more(forgotten))
    for name, reason in (
        ("already_in_run", "in the run already; it is skipped"),
        ("not_in_run", "not in the run; there is nothing to forget"),
    ):
        shards = report.get(name, ())
        yield from (f"{shard}: {reason}" for shard in shards[:MANY])
        yield from and_more(shards)


def check_files(written: Mapping[str, str | None], read: Iterable[str | None], **how: Any) -> None:
    """Refuse outputs that would replace what is read, as ``check_outputs`` does, or that cannot be
    written, before hours of work."""
    from streamtron.runs.inputs import check_outputs

    check_outputs(written, read, **how)
    for path in filter(None, written.values()):
        directory = os.path.dirname(os.path.abspath(path))
        if is_stream(path):
            continue  # its directory need not be writable
        if not os.path.isdir(directory):
            raise MachineError(f"{path}: there is no directory {directory}. Make it first.")
        if not os.access(directory, os.W_OK) or os.path.isdir(path):
            reason = "it is a directory" if os.path.isdir(path) else "its directory is read-only"
            raise MachineError(f"{path}: cannot be written, {reason}. Name another place.")
