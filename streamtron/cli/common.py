"""What the commands share: workers, what they print, and where they may write."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from streamtron.core.errors import MachineError, SettingsError

if TYPE_CHECKING:
    from streamtron.cluster.client import Workers
    from streamtron.core.executor import Executor

STOPPED = 4
"""Exit code: stopped before the tolerance was certified."""


@contextmanager
def workers_of(
    *, workers: int | None, scheduler: str | None, dashboard: str | None, memory: int | None,
    worker_timeout: float | None, **_: Any,
) -> Iterator[Workers | None]:  # fmt: skip
    """The workers that ``cluster_options`` ask for; None if they ask for none."""
    if workers is None and scheduler is None:
        yield None
        return
    from streamtron.cluster.client import WORKER_TIMEOUT, connect
    from streamtron.core.config import Machine

    with connect(
        workers, scheduler, machine=Machine(memory), dashboard=dashboard, loud=is_verbose(),
        worker_timeout=WORKER_TIMEOUT if worker_timeout is None else worker_timeout,
    ) as found:  # fmt: skip
        yield found


@contextmanager
def executor_of(**where: Any) -> Iterator[Executor]:
    """The workers that ``cluster_options`` ask for, or this process."""
    from streamtron.core.executor import serial

    with workers_of(**where) as found:
        yield found or serial


def is_verbose() -> bool:
    """Whether the command was given ``-v``."""
    return bool(click.get_current_context().meta.get("verbose"))


def say(lines: Iterable[str]) -> None:
    """Lines on stdout."""
    click.echo("\n".join(lines))


def say_written(written: Any, where: str) -> None:
    """How much was written, of shards."""
    from streamtron.core.config import format_size

    click.echo(
        f"{where}: {written.rows:,} rows, {written.nonzeros:,} nonzeros, "
        f"{format_size(written.bytes)}"
    )


def print_values(values: dict[str, Any], lines: Any, as_json: bool) -> None:
    """Values as JSON, or the lines that a function makes of them."""
    if as_json:
        click.echo(json.dumps(_finite(values), indent=2, allow_nan=False))
    else:
        say(lines(values))


def _finite(value: Any) -> Any:
    """JSON has no infinity: None in its place."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_writable(path: str) -> None:
    """Refuse now what would fail after hours.

    Raises
    ------
    SettingsError, MachineError : nothing can be written there.
    """
    if "://" in path:
        raise SettingsError(f"{path}: outputs are local files. Write here, and copy it there.")
    from streamtron.core.sealed import is_stream

    if is_stream(path):
        return  # it is there, and its directory need not take new files
    directory = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(directory):
        raise MachineError(f"{path}: there is no directory {directory}. Make it first.")
    if not os.access(directory, os.W_OK) or os.path.isdir(path):
        why = "it is a directory" if os.path.isdir(path) else "its directory is read-only"
        raise MachineError(f"{path}: cannot be written, {why}. Name another place.")
