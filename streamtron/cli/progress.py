"""Progress of a run: a bar on a terminal, one line a reading with ``-v``, a log of all events; and
when it will end, about."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from streamtron.cli.terminal import CLEAR, columns_of, fitted
from streamtron.core.events import (
    ChunkDone,
    Event,
    Listener,
    Problem,
    ReadingDone,
    ReadingStarted,
    RoundDone,
    SolveStarted,
    StageDone,
    TrialDone,
    TrialsStarted,
    ignore,
    log_events,
)
from streamtron.core.text import metric_words, up

_WIDTHS = {
    "time": 8, "reading": 7, "stage": 12, "what": 5, "updates": 12, "mini-epochs": 11,
    "active rows": 12, "upper bound": 12, "gap": 8, "ends about": 10,
}  # fmt: skip
_LEFT_OUT = ("mini-epochs", "updates", "active rows", "stage", "upper bound", "what", "ends about")
"""Columns that a narrow terminal does not show, the first to go first."""
_NAME = 16
"""Width that the name of one of several problems needs, about; it comes last."""
BAR = 70
"""Columns of a terminal from which a bar is drawn beside the text."""
BAR_WIDTH = 20
FRAME = 0.1
"""Seconds between two pictures of the bar, at least."""
SILENCE = 10.0
"""Seconds of a reading after which -v says how far it is."""
ECHO = 4
"""Columns left free beside the bar: a terminal shows ^C there, and a line that it breaks cannot be
erased."""


@contextmanager
def progress(*, verbose: bool = False, log: str | None = None) -> Iterator[Listener]:
    """Give a listener that draws a bar if stderr is a terminal, prints whole lines with
    ``verbose``, and appends all events to a ``log``."""
    forecast, terminal = Forecast(), sys.stderr.isatty()
    with (
        log_events(log) if log else nullcontext(ignore) as write,
        _bar(forecast) if terminal else nullcontext(ignore) as bar,
    ):
        lines = _lines(forecast, columns_of(sys.stderr), readings=verbose)

        def listen(event: Event) -> None:
            write(event)
            forecast.observe(event)
            lines(event)
            bar(event)

        yield listen


def _lines(forecast: Forecast, width: int | None, *, readings: bool) -> Listener:
    """Return a listener that prints a line for every candidate of a sweep, on a terminal or with
    ``readings``; and with these a line a reading and a stage."""
    several, headed, spoke = False, False, time.monotonic()

    def lines_of(event: Event) -> Iterator[str]:
        nonlocal several, headed, spoke
        if isinstance(event, ReadingStarted):
            several, spoke = event.problems != 1, time.monotonic()
            if readings and not headed:
                headed = True
                yield reading_head(width, several=several)
                yield fitted(
                    f"{_clock()} reading {event.reading + 1} begins: {event.purpose}", width
                )
        elif isinstance(event, ChunkDone) and readings and time.monotonic() > spoke + SILENCE:
            spoke = time.monotonic()
            yield fitted(f"{_clock()} reading {event.reading + 1}: {event.rows:,} rows", width)
        elif isinstance(event, TrialDone) and (readings or width):
            yield fitted(f"{_clock()} {trial_words(event)}", width)
        elif isinstance(event, ReadingDone) and readings:
            yield reading_line(event, forecast.end(), width, several=several)
        elif isinstance(event, StageDone) and readings:
            problem = f"{event.problem}: " if several else ""
            stage = f"stage {event.stage} ended: {event.stop_reason}"
            yield fitted(f"{_clock()} {problem}{stage}", width)

    def listen(event: Event) -> None:
        for line in lines_of(event):
            print(f"{CLEAR if width else ''}{line}", file=sys.stderr, flush=True)

    return listen


def _clock(at: float | None = None) -> str:
    """Return a time of the day, with the day if it is more than a day ahead."""
    time_of_day = time.time()
    at = time_of_day if at is None else at
    is_near = at < time_of_day + 86400
    return time.strftime("%H:%M:%S" if is_near else "%d %b %H", time.localtime(at))


def trial_words(event: TrialDone) -> str:
    """Return what became of a candidate in a few words."""
    fold = f", {event.fold}" if event.fold else ""
    worker = "" if event.worker == "local" else f" (worker {event.worker})"
    name, value = next(iter(event.metrics.items()))
    measured = f"{metric_words(name)} {'-' if value is None else f'{value:.5g}'}"
    return f"{event.candidate}{fold}: {measured}, gap {up(event.gap, 3)}{worker}"


def _shown(width: int | None, *, several: bool) -> list[str]:
    """Return the columns that fit a terminal; None = all."""
    columns = list(_WIDTHS)
    for name in _LEFT_OUT:
        used = sum(_WIDTHS[column] + 1 for column in columns) - 1 + several * (_NAME + 2)
        if width is not None and used > width:
            columns.remove(name)
    return columns


def reading_head(width: int | None = None, *, several: bool = False) -> str:
    """Return the headings of the columns of ``reading_line``."""
    heads = " ".join(f"{name:>{_WIDTHS[name]}}" for name in _shown(width, several=several))
    return f"{heads}  problem" if several else heads


def reading_line(
    event: ReadingDone, end: float | None = None, width: int | None = None, *, several: bool = False
) -> str:
    """Return the line of a reading. An upper bound marked ~ is an estimate, not proven."""
    certificate, estimate = event.certificate, event.upper_bound_estimate
    bound, gap = "-" if estimate is None else f"~{estimate:.6g}", "-"
    if certificate is not None and certificate.dual:
        bound, gap = up(certificate.upper_bound, 6), up(certificate.relative_duality_gap, 3)
    cells = {
        "time": _clock(), "reading": event.reading + 1, "stage": event.stage, "what": event.mode,
        "updates": f"{event.updates:,}", "mini-epochs": event.mini_epochs,
        "active rows": f"{event.active_rows:,}", "upper bound": bound, "gap": gap,
        "ends about": "-" if end is None else _clock(end),
    }  # fmt: skip
    shown = _shown(width, several=several)
    line = " ".join(f"{cells[name]:>{_WIDTHS[name]}}" for name in shown)
    return f"{line}  {event.problem}" if several else line


class Status:
    """What the bar says: what is done now, how far it is, and what is known. ``done`` of ``total``
    is in nonzeros or in fits; None = not known."""

    def __init__(self, forecast: Forecast) -> None:
        self._forecast = forecast
        self._action, self._gap, self._speed = "starting", "", ""
        self._began = 0.0
        self._fits = self._trials = 0
        self.done = 0
        self.total: int | None = None

    def observe(self, event: Event) -> None:
        """Take an event into account."""
        if isinstance(event, ReadingStarted):
            self._action, self._speed = f"reading {event.reading + 1}: {event.purpose}", ""
            self.done, self.total, self._began = 0, event.nonzeros, time.perf_counter()
        elif isinstance(event, ChunkDone):
            self.done = event.nonzeros
            speed = event.nonzeros / 1e6 / max(time.perf_counter() - self._began, 1e-6)
            self._speed = f"{speed:.1f} M nonzeros/s"
        elif isinstance(event, SolveStarted):
            self._action, self._speed = f"reading {event.reading + 1}: solving", ""
            self.total = None
        elif isinstance(event, RoundDone):
            estimate = event.gap_estimate
            known = "" if estimate is None else f", gap ~{estimate:.1g} in memory"
            self._speed = f"round {event.rounds}: {event.step.replace('_', ' ')}{known}"
        elif isinstance(event, ReadingDone) and event.certificate is not None:
            self._gap = f"gap {up(event.certificate.relative_duality_gap, 3)}"
        elif isinstance(event, TrialsStarted):
            self._trials = event.trials
            self._count_fits(0)
        elif isinstance(event, TrialDone):
            self._count_fits(self._fits + 1)

    def _count_fits(self, fits: int) -> None:
        self._fits, self._gap, self._speed = fits, "", ""
        self._action, self.done, self.total = f"{fits} of {self._trials} fits", fits, self._trials

    def text(self, width: int) -> str:
        """Return as much of it as fits, the most important first."""
        end = self._forecast.end()
        share = f"{min(self.done / self.total, 1.0):.0%}" if self.total else ""
        parts = (share, self._gap, "" if end is None else f"ends about {_clock(end)}", self._speed)
        text = self._action
        for part in parts:
            if part and len(text) + len(part) + 2 <= width:
                text += f"  {part}"
        return text


@contextmanager
def _bar(forecast: Forecast) -> Iterator[Listener]:
    """Give a listener that draws the bar on stderr, and erase it in the end."""
    status, drawn = Status(forecast), -math.inf

    def listen(event: Event) -> None:
        nonlocal drawn
        status.observe(event)
        if isinstance(event, ChunkDone | RoundDone) and time.monotonic() < drawn + FRAME:
            return
        drawn, width = time.monotonic(), columns_of(sys.stderr) or 80
        bar = ""
        if width >= BAR:
            filled = round(BAR_WIDTH * min(status.done / status.total, 1.0)) if status.total else 0
            bar = f"{'━' * filled:{BAR_WIDTH}} "
        sys.stderr.write(f"{CLEAR}{bar}{status.text(width - ECHO - len(bar))}")
        sys.stderr.flush()

    try:
        yield listen
    finally:
        sys.stderr.write(CLEAR)
        sys.stderr.flush()


@dataclass(slots=True)
class _Gaps:
    """The proven gaps of a problem as (reading, gap), and the readings that it still needs."""

    known: list[tuple[int, float]] = field(default_factory=list)
    left: int | None = None

    def observe(self, event: ReadingDone) -> None:
        """Estimate the readings left: 1 where all rows are in memory and solved to the tolerance;
        else as many as the gap takes if it goes on to fall as between the last two scans."""
        if event.certificate is not None:
            self.known.append((event.reading, event.certificate.relative_duality_gap))
        self.left = None
        if event.stop_reason is not None:
            self.left = 0
        elif not event.tol:
            return  # it runs to convergence
        elif event.stage.endswith("ascent") and event.active_rows == event.rows:
            self.left = 1
        elif len(self.known) >= 2:
            (first, earlier), (last, gap) = self.known[-2:]
            if event.tol < gap < earlier < 1.0:
                readings = math.log(gap / event.tol) / math.log(earlier / gap) * (last - first)
                self.left = math.ceil(readings)


class Forecast:
    """Estimates when a whole run will end, from its events; ``clock`` gives seconds.

    A fit takes the readings left times the seconds of one; of several problems the one that needs
    most readings counts. A sweep takes the trials left times the seconds of one.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._gaps: dict[Problem, _Gaps] = {}
        self._problems = self._told = 0  # unfinished before the reading; done with it
        self._before: int | None = None  # readings left when the current one began, this included
        self._began = self._passed = 0.0  # when the reading began; when its rows had passed
        self._pass = self._solve = 0.0  # seconds for the rows, and for the solves after them
        self._trials: TrialsStarted | None = None
        self._first_trial = self._last_trial = 0.0
        self._trials_done = 0

    def observe(self, event: Event) -> None:
        """Take an event into account."""
        moment = self._clock()
        if isinstance(event, ReadingStarted):
            if event.reading == 0:
                self._gaps.clear()
            self._before = None if event.reading == 0 else self._left
            self._began, self._told, self._problems = moment, 0, event.problems
            self._total = event.nonzeros
        elif isinstance(event, ChunkDone) and self._total and 10 * event.nonzeros >= self._total:
            self._pass = (moment - self._began) * self._total / event.nonzeros
        elif isinstance(event, SolveStarted):
            self._pass, self._passed = moment - self._began, moment
        elif isinstance(event, ReadingDone):
            self._told, self._solve = self._told + 1, moment - max(self._passed, self._began)
            self._gaps.setdefault(event.problem, _Gaps()).observe(event)
        elif isinstance(event, TrialsStarted):
            self._trials, self._trials_done, self._first_trial = event, 0, moment
        elif isinstance(event, TrialDone):
            self._trials_done, self._last_trial = self._trials_done + 1, moment

    def end(self) -> float | None:
        """Return the time of the end, about; None where nothing is known, or nothing is left."""
        trials, done = self._trials, self._trials_done
        if trials is not None and done < trials.trials:
            if done and trials.later is not None:
                seconds = (self._last_trial - self._first_trial) / done
                return self._last_trial + seconds * (trials.trials - done + trials.later)
            if done or trials.later != 0 or trials.trials != self._problems:
                return None
        if self._told:
            readings, start = self._left, self._began + self._pass + self._solve
        else:
            readings, start = self._before, self._began
        if not readings:
            return None
        return max(start + readings * self._pass + (readings - 1) * self._solve, self._clock())

    @property
    def _left(self) -> int | None:
        """Readings left after the last one, if all unfinished problems have said so."""
        if not self._told or self._told != self._problems:
            return None
        left = [gaps.left for gaps in self._gaps.values() if gaps.left is not None]
        return max(left) if len(left) == len(self._gaps) else None
