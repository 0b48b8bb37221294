"""Progress of a run: a bar on a terminal, a line for each reading with ``-v``, a log of all events;
and when it will end, about."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from streamtron.cli.terminal import SafeStream, columns_of
from streamtron.core.events import (
    ChunkDone,
    Event,
    Listener,
    Problem,
    ReadingDone,
    ReadingStarted,
    RoundDone,
    ShardsPrepared,
    SolveStarted,
    StageDone,
    TrialDone,
    TrialsStarted,
    ignore,
    log_events,
)
from streamtron.core.text import metric_words, up, visible

BAR = 70
"""Columns of a terminal from which a bar is drawn beside the text."""
FRAME = 0.1
"""Seconds between two pictures of the bar, at least, while rows pass."""
SILENCE = 10.0
"""Seconds of a reading after which -v says how far it is."""
ECHO = 4
"""Columns left free beside the bar: a terminal shows ^C there, and a line that it breaks cannot be
erased."""


@contextmanager
def progress(*, verbose: bool = False, log: str | None = None) -> Iterator[Listener]:
    """Give a listener that draws a bar if stderr is a terminal, prints lines with ``verbose``, and
    appends all events to a ``log``."""
    forecast = Forecast()
    with (
        log_events(log) if log else nullcontext(ignore) as write,
        _bar(forecast, verbose) if sys.stderr.isatty() else nullcontext(None) as draw,
    ):
        lines = lines_of(forecast) if verbose else None

        def listen(event: Event) -> None:
            write(event)
            forecast.observe(event)
            if draw is not None:
                draw(event)
            elif lines is not None:
                for line in lines(event):
                    print(line, file=sys.stderr, flush=True)

        yield listen


class _Warnings(logging.Handler):
    """Gives warnings to a function, which says them."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Say a warning."""
        self._say(record.getMessage())


@contextmanager
def _bar(forecast: Forecast, verbose: bool) -> Iterator[Listener]:
    """Give a listener that draws the bar on stderr, with lines above it, and erase it in the end:
    warnings; and those of ``lines_of`` with ``verbose``, else of the candidates of a sweep alone.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column
    from rich.text import Text

    def say_above(line: str) -> None:
        console.print(Text(visible(line)))

    status, lines, drawn = Status(forecast), lines_of(forecast), -math.inf
    width = partial(columns_of, sys.stderr)
    stream = SafeStream(2, sys.stderr, controls=True)
    console = Console(file=stream, width=(width() or 80) - ECHO)
    text = TextColumn(
        "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
    )
    columns = [BarColumn(20), text] if console.width + ECHO >= BAR else [text]
    warnings = _Warnings(say_above)
    logger = logging.getLogger("streamtron")
    how: Any = {"redirect_stdout": False, "redirect_stderr": False, "auto_refresh": False}
    with Progress(*columns, console=console, transient=True, **how) as drawing:
        task = drawing.add_task("starting", total=None)

        def listen(event: Event) -> None:
            nonlocal drawn
            status.observe(event)
            for line in lines(event) if verbose or isinstance(event, TrialDone) else ():
                say_above(line)
            is_one_of_many = isinstance(event, ShardsPrepared | ChunkDone | RoundDone)
            if is_one_of_many and time.monotonic() < drawn + FRAME:
                return
            drawn, console.width = time.monotonic(), (width() or 80) - ECHO
            drawing.update(
                task,
                description=visible(status.text()),
                completed=status.done,
                total=status.total,
                refresh=True,
            )

        logger.addHandler(warnings)
        try:
            yield listen
        finally:
            logger.removeHandler(warnings)


def lines_of(forecast: Forecast) -> Callable[[Event], Iterator[str]]:
    """Return a function that gives the lines with which ``-v`` tells an event."""
    spoke, several = time.monotonic(), False

    def lines(event: Event) -> Iterator[str]:
        nonlocal spoke, several
        if isinstance(event, ShardsPrepared) and time.monotonic() > spoke + SILENCE:
            spoke = time.monotonic()
            yield f"{_clock()} preparing: {event.rows:,} rows, {event.bytes / event.total:.0%}"
        elif isinstance(event, ReadingStarted):
            spoke, several = time.monotonic(), event.problems != 1
            yield f"{_clock()} reading {event.reading + 1} begins: {event.purpose}"
        elif isinstance(event, ChunkDone) and time.monotonic() > spoke + SILENCE:
            spoke = time.monotonic()
            yield f"{_clock()} reading {event.reading + 1}: {event.rows:,} rows"
        elif isinstance(event, RoundDone) and time.monotonic() > spoke + SILENCE:
            spoke = time.monotonic()
            yield f"{_clock()} {round_words(event)}"
        elif isinstance(event, ReadingDone):
            yield f"{_clock()} {reading_words(event, forecast.end(), several=several)}"
        elif isinstance(event, StageDone):
            problem = f"{event.problem}: " if several else ""
            yield f"{_clock()} {problem}stage {event.stage} ended: {event.stop_reason}"
        elif isinstance(event, TrialDone):
            yield f"{_clock()} {trial_words(event)}"

    return lines


def _clock(at: float | None = None) -> str:
    """Return a time of the day, with the day if it is more than a day ahead."""
    time_of_day = time.time()
    at = time_of_day if at is None else at
    is_near = at < time_of_day + 86400
    return time.strftime("%H:%M:%S" if is_near else "%d %b %H:%M", time.localtime(at))


def round_words(event: RoundDone) -> str:
    """Return how far the rounds of parts are. A gap marked ~ is an estimate, not proven."""
    estimate = event.gap_estimate
    known = "" if estimate is None else f", gap ~{estimate:.1g} in memory"
    return f"round {event.rounds}: {event.step.replace('_', ' ')}{known}"


def trial_words(event: TrialDone) -> str:
    """Return what became of a candidate in a few words."""
    fold = f", {event.fold}" if event.fold else ""
    worker = "" if event.worker == "local" else f" (worker {event.worker})"
    name, value = next(iter(event.metrics.items()))
    measured = f"{metric_words(name)} {'-' if value is None else f'{value:.5g}'}"
    return f"{event.candidate}{fold}: {measured}, gap {up(event.gap, 3)}{worker}"


def reading_words(event: ReadingDone, end: float | None = None, *, several: bool = False) -> str:
    """Return what a reading has reached. A bound marked ~ is an estimate, not proven."""
    certificate, estimate = event.certificate, event.upper_bound_estimate
    problem = f"{event.problem}: " if several else ""
    words = [f"{problem}reading {event.reading + 1}: stage {event.stage}, {event.mode}"]
    words += [f"{event.updates:,} updates"] * bool(event.updates)
    words += [f"{event.mini_epochs:,} mini-epochs"] * bool(event.mini_epochs)
    words.append(f"{event.active_rows:,} active rows")
    if certificate is not None and certificate.dual:
        if certificate.upper_bound is not None:
            words.append(f"upper bound {up(certificate.upper_bound, 6)}")
        words.append(f"gap {up(certificate.relative_duality_gap, 3)}")
    elif estimate is not None:
        words.append(f"upper bound ~{estimate:.6g}")
    words += [] if end is None else [f"ends about {_clock(end)}"]
    return ", ".join(words)


class Status:
    """What the bar says: what is done now, how far it is, and what is known. ``done`` of ``total``
    is in bytes, in nonzeros or in fits; None = not known."""

    def __init__(self, forecast: Forecast) -> None:
        self._forecast = forecast
        self._action, self._gap, self._speed = "starting", "", ""
        self._began = 0.0
        self._fits = self._trials = 0
        self.done = 0
        self.total: int | None = None

    def observe(self, event: Event) -> None:
        """Take an event into account."""
        if isinstance(event, ShardsPrepared):
            self._began = self._began or time.perf_counter()
            self._action, self.done, self.total = "preparing", event.bytes, event.total
            seconds = max(time.perf_counter() - self._began, 0.1)
            rate = event.bytes / 1e6 / seconds, event.rows / seconds
            self._speed = f"{rate[0]:.0f} MB/s, {rate[1]:,.0f} rows/s"
        elif isinstance(event, ReadingStarted):
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
            self._speed = round_words(event)
        elif isinstance(event, ReadingDone) and event.certificate is not None:
            self._gap = f"gap {up(event.certificate.relative_duality_gap, 3)}"
        elif isinstance(event, TrialsStarted | TrialDone):
            if isinstance(event, TrialsStarted):
                self._fits, self._trials = -1, event.trials
            self._fits, self._gap, self._speed = self._fits + 1, "", ""
            self._action = f"{self._fits} of {self._trials} fits"
            self.done, self.total = self._fits, self._trials

    def text(self) -> str:
        """Return it in words, the most important first."""
        end = self._forecast.end()
        share = f"{min(self.done / self.total, 1.0):.0%}" if self.total else ""
        ends = "" if end is None else f"ends about {_clock(end)}"
        return "  ".join(filter(None, (self._action, share, self._gap, ends, self._speed)))


def readings_left(event: ReadingDone, scans: Sequence[tuple[int, float]]) -> int | None:
    """Return how many readings a problem still needs, about, after those of its ``scans``, which
    proved gaps: 1 where all rows are in memory and solved to the tolerance; else as many as the gap
    takes if it goes on to fall as between the last two scans. None = not known."""
    if event.stop_reason is not None:
        return 0
    if not event.tol:
        return None  # it runs to convergence
    if event.stage.endswith("ascent") and event.active_rows == event.rows:
        return 1
    if len(scans) >= 2:
        (first, earlier), (last, gap) = scans[-2:]
        if event.tol < gap < earlier < 1.0:
            return math.ceil(math.log(gap / event.tol) / math.log(earlier / gap) * (last - first))
    return None


class Forecast:
    """Estimates when a whole run will end, from its events; ``clock`` gives seconds.

    A fit takes the readings left times the seconds of one; of several problems the one that needs
    most readings counts. A sweep takes the trials left times the seconds of one.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._scans = defaultdict[Problem, list[tuple[int, float]]](list)
        self._needed: dict[Problem, int | None] = {}
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
                self._scans.clear()
                self._needed.clear()
            self._before = None if event.reading == 0 else self._left
            self._began, self._told, self._problems = moment, 0, event.problems
            self._total = event.nonzeros
        elif isinstance(event, ChunkDone) and self._total and 10 * event.nonzeros >= self._total:
            self._pass = (moment - self._began) * self._total / event.nonzeros
        elif isinstance(event, SolveStarted):
            self._pass, self._passed = moment - self._began, moment
        elif isinstance(event, ReadingDone):
            self._told, self._solve = self._told + 1, moment - max(self._passed, self._began)
            scans = self._scans[event.problem]
            if event.certificate is not None:
                scans.append((event.reading, event.certificate.relative_duality_gap))
            self._needed[event.problem] = readings_left(event, scans)
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
        readings, start = self._before, self._began
        if self._told:
            readings, start = self._left, self._began + self._pass + self._solve
        if not readings:
            return None
        return max(start + readings * self._pass + (readings - 1) * self._solve, self._clock())

    @property
    def _left(self) -> int | None:
        """Readings left after the last one, if all unfinished problems have said so."""
        needed = [readings for readings in self._needed.values() if readings is not None]
        is_known = 0 < self._told == self._problems and len(needed) == len(self._needed)
        return max(needed) if is_known else None
