"""Events that a run sends to a listener, and a listener that writes them to a file. The library
itself prints nothing."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from streamtron.core.certificate import Certificate
from streamtron.core.errors import MachineError, SettingsError
from streamtron.core.files import as_path, is_stream, parse_json
from streamtron.core.limits import peak_memory
from streamtron.core.rows import Label
from streamtron.core.text import BOUNDS, label_text

_log = logging.getLogger(__name__)

CHUNK_SECONDS = 10.0
"""Seconds between two lines of a log that say how far a reading, or the rounds after it, are."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The two-class problem that an event is about: price, ρ, and of several classes the one that
    is trained against the rest."""

    C: float | None = None
    rho: float | None = None
    label: Label | None = None

    def __str__(self) -> str:
        """Return for example ``C 0.1, rho 1`` or ``C 1, rho 0, class ant``."""
        price = [] if self.C is None else [f"C {self.C:g}"]
        rho = [] if self.rho is None else [f"rho {self.rho:g}"]
        label = [] if self.label is None else [f"class {label_text(self.label)}"]
        return ", ".join(price + rho + label)


@dataclass(frozen=True, slots=True)
class ShardsPrepared:
    """So much of the shards has been prepared: ``bytes`` of ``total`` bytes, and the rows and
    nonzeros in them."""

    bytes: int
    total: int
    rows: int
    nonzeros: int


@dataclass(frozen=True, slots=True)
class ReadingStarted:
    """A reading begins. ``reading`` : its number, from 0. ``rows``, ``nonzeros`` : totals of the
    data, None until known. ``problems`` : how many are not finished, 0 until known."""

    reading: int
    purpose: str
    rows: int | None
    nonzeros: int | None
    problems: int = 1


@dataclass(frozen=True, slots=True)
class ChunkDone:
    """A chunk has been processed. ``rows``, ``nonzeros`` : totals of this reading so far."""

    reading: int
    rows: int
    nonzeros: int


@dataclass(frozen=True, slots=True)
class SolveStarted:
    """All rows of a reading have passed, and those in memory are solved next."""

    reading: int
    rows: int


@dataclass(frozen=True, slots=True)
class RoundDone:
    """All parts of the data have made a step, ``step``; it was round number ``rounds``, from 1.

    ``gap_estimate`` : the relative duality gap of the rows in memory where Newton's method last
    looked, of several problems the largest. No scan has proven it; None before there is one.
    """

    step: str
    rounds: int
    gap_estimate: float | None = None


@dataclass(frozen=True, slots=True)
class ReadingDone:
    """A problem has finished a reading and the mini-epochs after it.

    ``certificate`` : what is proven, if the reading was a scan. ``upper_bound_estimate`` : ‖a‖/t of
    the running weights, which is not proven. ``tol`` : the gap that ends the run. ``stop_reason`` :
    why the problem has ended; None while it goes on.
    """

    reading: int
    stage: str
    mode: str
    updates: int
    mini_epochs: int
    active_rows: int
    certificate: Certificate | None
    upper_bound_estimate: float | None
    rows: int | None = None
    tol: float | None = None
    stop_reason: str | None = None
    problem: Problem = Problem()


@dataclass(frozen=True, slots=True)
class StageDone:
    """A stage has ended; ``stop_reason`` is a short clause."""

    stage: str
    stop_reason: str
    problem: Problem = Problem()


@dataclass(frozen=True, slots=True)
class TrialsStarted:
    """An iteration of a sweep begins. ``trials`` : how many fits it has. ``later`` : fits after
    them; None = not known."""

    iteration: int
    trials: int
    later: int | None


@dataclass(frozen=True, slots=True)
class TrialDone:
    """A candidate of a sweep has been fitted and measured on the validation rows of ``fold`` (""
    without folds)."""

    candidate: str
    fold: str
    metrics: Mapping[str, float | None]
    gap: float
    stop_reason: str
    worker: str


Event = (
    ShardsPrepared
    | ReadingStarted
    | ChunkDone
    | SolveStarted
    | RoundDone
    | ReadingDone
    | StageDone
    | TrialsStarted
    | TrialDone
)
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Ignore an event: the default listener."""


@contextmanager
def log_events(path: str | os.PathLike[str], every: float = CHUNK_SECONDS) -> Iterator[Listener]:
    """Give a listener that appends every event to a file, as one line of JSON.

    A line has ``time`` (ISO 8601, of zone +00:00), ``event`` (``reading_done``), ``peak_rss_bytes``
    (the most memory that this process has used), and the fields of the event; readings count from
    1. What a scan has proven is named ``proven_gap``, ``proven_primal_objective`` and
    ``proven_dual_objective``; of the squared hinge also ``proven_lower_bound`` and
    ``proven_upper_bound``, the margins. ``estimated_upper_bound`` is not proven. If the file can no
    longer be written, a warning is logged and the run goes on.

    Parameters
    ----------
    path : a new file, an earlier log, which is continued, or a pipe.
    every : seconds between two lines ``shards_prepared``, ``chunk_done`` or ``round_done`` each, of
        which there are hundreds or thousands.

    Raises
    ------
    SettingsError : the file holds something else than a log.
    MachineError : it cannot be opened.

    Examples
    --------
    >>> import pathlib, tempfile, streamtron
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     shard, log = pathlib.Path(directory, "part-0.svm"), pathlib.Path(directory, "log")
    ...     _ = shard.write_text("1 1:1\\n-1 1:-1\\n1 1:2\\n-1 2:1\\n")
    ...     with streamtron.log_events(log) as listen:
    ...         model = streamtron.fit(shard, C=0.5, rho=0, listen=listen)
    ...     lines = [json.loads(line) for line in log.read_text().splitlines()]
    >>> done = [line for line in lines if line["event"] == "reading_done"]
    >>> done[-1]["proven_gap"] <= 0.001
    True
    """
    _check_log(as_path(path))
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        raise MachineError(f"{path}: the log cannot be written ({error.strerror}).") from error
    writing, next_line = True, dict[type, float]()

    def listen(event: Event) -> None:
        nonlocal writing
        if isinstance(event, ShardsPrepared | ChunkDone | RoundDone):
            if time.monotonic() < next_line.get(type(event), -math.inf):
                return
            next_line[type(event)] = time.monotonic() + every
        line = json.dumps(event_fields(event), allow_nan=False, ensure_ascii=False) + "\n"
        try:
            if writing:  # at once, so that lines of several processes are not mixed
                os.write(file, line.encode())
        except OSError as error:
            writing = False
            _log.warning("%s: the log ends here (%s); the run goes on.", path, error.strerror)

    try:
        yield listen
    finally:
        os.close(file)


def _check_log(path: str | os.PathLike[str]) -> None:
    """Refuse a file to which a log must not be appended: a model, a shard, a report."""
    if is_stream(path) or not os.path.isfile(path):
        return
    try:
        with open(path, "rb") as file:
            first = file.readline(1 << 16)
        if first and [*parse_json(first)][:2] != ["time", "event"]:
            raise ValueError("not an event")
    except (ValueError, TypeError) as error:
        raise SettingsError(
            f"{path}: not a log of events, so none is appended to it. Name another file."
        ) from error
    except OSError as error:
        raise MachineError(f"{path}: the log cannot be read ({error.strerror}).") from error


def event_fields(event: Event) -> dict[str, Any]:
    """Return an event as plain values for JSON, with the time and the peak of memory."""
    name = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(event).__name__).lstrip("_")
    line: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")}
    line["event"] = name
    for field in fields(event):
        value = getattr(event, field.name)
        if field.name == "reading":
            line["reading"] = value + 1
        elif isinstance(value, Problem):
            line |= {part.name: getattr(value, part.name) for part in fields(value)}
        elif field.name == "certificate":
            line |= _proven(value)
        elif field.name.endswith("_estimate"):
            line[f"estimated_{field.name.removesuffix('_estimate')}"] = value
        else:
            line[field.name] = dict(value) if isinstance(value, Mapping) else value
    line["peak_rss_bytes"] = peak_memory()
    return {  # JSON has no infinity
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.items()
    }


def _proven(certificate: Certificate | None) -> dict[str, float | None]:
    """Return the bounds of a certificate under names that say so; None where there is none."""
    names = ("lower_bound", "upper_bound", "gap", "primal_objective", "dual_objective")
    proven = {} if certificate is None else certificate.to_dict()
    values = map(proven.get, (*BOUNDS, *names[3:]))
    return {f"proven_{name}": value for name, value in zip(names, values, strict=True)}
