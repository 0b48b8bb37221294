"""Progress of a command on stderr: a bar on a terminal, and with -v a line for every reading."""

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

from streamtron.cli.terminal import SafeStream, columns_of, is_verbose
from streamtron.core.events import (
    Event,
    Listener,
    Problem,
    ReadingDone,
    TrialDone,
    WorkDone,
    ignore,
    log_events,
    now_and_then,
)
from streamtron.core.text import up, visible

BAR = 70
"""Columns of a terminal from which a bar is drawn beside the text."""
FRAME = 0.1
"""Seconds between two pictures of the bar, at least, while rows pass."""
ECHO = 4
"""Columns left free beside the bar: a terminal shows ^C there, and a line that it breaks cannot be
erased."""

Say = Callable[[str], object]


@contextmanager
def progress(log: str | None = None) -> Iterator[Listener]:
    """Give a listener that draws a bar if stderr is a terminal, prints lines with ``-v``, and
    appends all events to a ``log``."""
    watch, is_due, verbose = Watch(), now_and_then(begins=False), is_verbose()
    plain: tuple[Listener, Say] = ignore, partial(print, file=sys.stderr, flush=True)
    with (
        log_events(log) if log else nullcontext(ignore) as write,
        _bar(watch) if sys.stderr.isatty() else nullcontext(plain) as (draw, say),
    ):

        def listen(event: Event) -> None:
            write(event)
            watch.observe(event)
            if is_due(event) if verbose else draw is not ignore and isinstance(event, TrialDone):
                say(f"{clock_time()} {watch.line(event)}")
            draw(event)

        yield listen


class _Warnings(logging.Handler):
    """Gives warnings to a function, which says them."""

    def __init__(self, say: Say) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Say a warning."""
        self._say(record.getMessage())


@contextmanager
def _bar(watch: Watch) -> Iterator[tuple[Listener, Say]]:
    """Give a listener that draws the bar on stderr, and a function that prints a line above it, as
    warnings are; erase the bar in the end."""
    from rich import progress as bars
    from rich.console import Console
    from rich.table import Column
    from rich.text import Text

    drawn = -math.inf
    width = partial(columns_of, sys.stderr)
    stream = SafeStream(2, sys.stderr, controls=True)
    console = Console(file=stream, width=(width() or 80) - ECHO)
    column = Column(no_wrap=True, overflow="ellipsis")
    text = bars.TextColumn("{task.description}", markup=False, table_column=column)
    columns = [bars.BarColumn(20), text] if console.width + ECHO >= BAR else [text]
    how: Any = {"redirect_stdout": False, "redirect_stderr": False, "auto_refresh": False}
    logger = logging.getLogger("streamtron")
    with bars.Progress(*columns, console=console, transient=True, **how) as drawing:
        task = drawing.add_task("starting", total=None)

        def say_above(line: str) -> None:
            console.print(Text(visible(line)))

        def draw(event: Event) -> None:
            nonlocal drawn
            goes_on = isinstance(event, WorkDone) and (event.done or event.reading is None)
            if goes_on and time.monotonic() < drawn + FRAME:
                return
            drawn, console.width = time.monotonic(), (width() or 80) - ECHO
            done, total = watch.step.done, watch.step.total or None
            words = visible(watch.text())
            drawing.update(task, description=words, completed=done, total=total, refresh=True)

        warnings = _Warnings(say_above)
        logger.addHandler(warnings)
        try:
            yield draw, say_above
        finally:
            logger.removeHandler(warnings)


def clock_time(at: float | None = None) -> str:
    """Return a time of the day, with the day if it is more than a day ahead."""
    moment = time.time()
    at = moment if at is None else at
    return time.strftime("%H:%M:%S" if at < moment + 86400 else "%d %b %H:%M", time.localtime(at))


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


class Watch:
    """What a command does, how far it is, and when it will end, about; ``clock`` gives seconds.

    A fit takes the readings left times the seconds of one; of several problems the one that needs
    most readings counts. A sweep takes the fits left times the seconds of one.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.step = WorkDone("starting")
        self._clock = clock
        self._gap = self._speed = ""
        self._problems = 1
        self._scans = defaultdict[Problem, list[tuple[int, float]]](list)
        self._left: dict[Problem, int | None] = {}  # readings
        self._began = self._passed = 0.0  # when the reading began, and when its rows had passed
        self._pass = self._solve = 0.0  # seconds for the rows, and for the solve after them
        self._fits: WorkDone | None = None
        self._first_fit = self._last_fit = 0.0

    def observe(self, event: Event) -> None:
        """Take an event into account."""
        if isinstance(event, WorkDone):
            self._observe_step(event, self._clock())
        elif isinstance(event, ReadingDone):
            moment, proven, scans = self._clock(), event.certificate, self._scans[event.problem]
            self._began, self._solve = moment, moment - (self._passed or moment)
            if proven is not None:
                self._gap = f"gap {up(proven.relative_duality_gap, 3)}"
                scans.append((event.reading, proven.relative_duality_gap))
            self._left[event.problem] = readings_left(event, scans)

    def _observe_step(self, event: WorkDone, moment: float) -> None:
        self.step, self._speed = event, ""
        if event.step == "fits":
            self._fits, self._last_fit, self._gap = event, moment, ""
            if not event.done:
                self._first_fit = moment
        elif event.reading is None:
            return
        elif event.step == "solving":
            self._pass, self._passed = moment - self._began, moment
        elif not event.done:
            self._began, self._passed = moment, 0.0
            if event.reading == 0:
                self._problems = event.problems
                self._scans.clear()
                self._left.clear()
        else:
            seconds = max(moment - self._began, 1e-6)
            self._speed = f"{event.done / 1e6 / seconds:.1f} M nonzeros/s"
            if 10 * event.done >= event.total > 0:
                self._pass = seconds * event.total / event.done

    def end(self) -> float | None:
        """Return the time of the end, about; None where nothing is known, or nothing is left."""
        if (fits := self._fits) is not None:
            if not 0 < fits.done < fits.total:
                return None
            seconds = (self._last_fit - self._first_fit) / fits.done
            return self._last_fit + seconds * (fits.total - fits.done)
        known = [left for left in self._left.values() if left is not None]
        if not len(known) == len(self._left) >= self._problems or not (left := max(known)):
            return None
        return max(self._began + left * self._pass + (left - 1) * self._solve, self._clock())

    def line(self, event: Event) -> str:
        """Return the line with which ``-v`` tells an event."""
        if not isinstance(event, ReadingDone):
            return str(event)
        problem = f"{event.problem}: " if self._problems > 1 else ""
        end = self.end()
        return f"{problem}{event}" + ("" if end is None else f", ends about {clock_time(end)}")

    def text(self) -> str:
        """Return what the bar says, the most important first."""
        end = self.end()
        ends = "" if end is None else f"ends about {clock_time(end)}"
        return "  ".join(filter(None, (str(self.step), self._gap, ends, self._speed)))
