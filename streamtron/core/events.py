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
from streamtron.core.text import BOUNDS, label_text, metric_words, up

_log = logging.getLogger(__name__)

EVERY = 10.0
"""Seconds between two lines that say how far a step is."""


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
class WorkDone:
    """Progress of a step: sent when it begins, after every chunk, after every round of parts, and
    after every fit of a sweep.

    Parameters
    ----------
    step : ``"preparing"``, the purpose of a reading (``"train"``, ``"scan"`` …), ``"solving"`` of
        the rows in memory, the last round, as in ``"round 34: product"``, or ``"fits"``.
    reading : its number, from 0; None of other steps.
    done, total : nonzeros, while shards are prepared bytes, of a sweep fits; 0 when the step
        begins, a total of 0 where it is not known.
    rows : rows of this step so far.
    problems : how many are not finished.
    estimated_gap : of a round, the relative duality gap of the rows in memory where Newton's method
        last looked, of several problems the largest. No scan has proven it.
    """

    step: str
    reading: int | None = None
    done: int = 0
    total: int = 0
    rows: int = 0
    problems: int = 1
    estimated_gap: float | None = None

    def __str__(self) -> str:
        number = "" if self.reading is None else f"reading {self.reading + 1}: "
        known = "" if self.estimated_gap is None else f", gap ~{self.estimated_gap:.1g} in memory"
        share = f"  {min(self.done / self.total, 1.0):.0%}" if self.total else ""
        return f"{number}{self.step}{known}{share}"


@dataclass(frozen=True, slots=True)
class ReadingDone:
    """A problem has finished a reading and the mini-epochs after it.

    ``certificate`` : what is proven, if the reading was a scan. ``estimated_upper_bound`` : ‖a‖/t
    of the running weights, which is not proven. ``tol`` : the gap that ends the run.
    ``stop_reason`` : why the problem has ended; None while it goes on.
    """

    reading: int
    stage: str
    mode: str
    updates: int
    mini_epochs: int
    active_rows: int
    certificate: Certificate | None
    estimated_upper_bound: float | None
    rows: int | None = None
    tol: float | None = None
    stop_reason: str | None = None
    problem: Problem = Problem()

    def __str__(self) -> str:
        proven, estimate = self.certificate, self.estimated_upper_bound
        words = [f"reading {self.reading + 1}: stage {self.stage}, {self.mode}"]
        words += [f"{self.updates:,} updates"] * bool(self.updates)
        words += [f"{self.mini_epochs:,} mini-epochs"] * bool(self.mini_epochs)
        words.append(f"{self.active_rows:,} active rows")
        if proven is not None and proven.dual:
            if proven.upper_bound is not None:
                words.append(f"upper bound {up(proven.upper_bound, 6)}")
            words.append(f"gap {up(proven.relative_duality_gap, 3)}")
        elif estimate is not None:
            words.append(f"upper bound ~{estimate:.6g}")
        return ", ".join(words)


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

    def __str__(self) -> str:
        fold = f", {self.fold}" if self.fold else ""
        worker = "" if self.worker == "local" else f" (worker {self.worker})"
        name, value = next(iter(self.metrics.items()))
        measured = f"{metric_words(name)} {'-' if value is None else f'{value:.5g}'}"
        return f"{self.candidate}{fold}: {measured}, gap {up(self.gap, 3)}{worker}"


Event = WorkDone | ReadingDone | TrialDone
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Ignore an event: the default listener."""


@contextmanager
def log_events(path: str | os.PathLike[str], every: float = EVERY) -> Iterator[Listener]:
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
    every : seconds between two lines ``work_done``.

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
    writing, is_due = True, now_and_then(every)

    def listen(event: Event) -> None:
        nonlocal writing
        if not is_due(event):
            return
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


def now_and_then(every: float = EVERY, *, begins: bool = True) -> Callable[[Event], bool]:
    """Return a function that tells whether an event is to be told: all but ``WorkDone`` are, and it
    where a reading ``begins``, or ``every`` so many seconds."""
    due = 0.0 if begins else time.monotonic() + every

    def is_due(event: Event) -> bool:
        nonlocal due
        moment = time.monotonic()
        is_new = isinstance(event, WorkDone) and event.reading is not None and not event.done
        if isinstance(event, WorkDone) and moment < due and not (begins and is_new):
            return False
        due = moment + every
        return True

    return is_due


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
    line |= {"event": name} | {field.name: getattr(event, field.name) for field in fields(event)}
    if line.get("reading") is not None:
        line["reading"] += 1
    if isinstance(event, ReadingDone):
        proven = {} if event.certificate is None else event.certificate.to_dict()
        names = ("lower_bound", "upper_bound", "gap", "primal_objective", "dual_objective")
        of_proof = zip(names, (*BOUNDS, *names[3:]), strict=True)
        del line["certificate"], line["problem"]
        line |= {f"proven_{name}": proven.get(key) for name, key in of_proof}
        line |= {field.name: getattr(event.problem, field.name) for field in fields(Problem)}
    line["peak_rss_bytes"] = peak_memory()
    return {  # JSON has no infinity
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.items()
    }
