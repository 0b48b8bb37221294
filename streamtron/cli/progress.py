"""Progress of a run: a bar with the reading, its speed and the gap, or one line a reading."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from streamtron.core.events import (
    ChunkDone,
    Event,
    Listener,
    ReadingDone,
    ReadingStarted,
    StageDone,
    ignore,
)


@contextmanager
def progress(*, verbose: bool = False) -> Iterator[Listener]:
    """Give a listener that draws a bar if stderr is a terminal, and prints one line a reading with
    ``verbose``."""
    lines = _Lines() if verbose else ignore
    if not sys.stderr.isatty():
        yield lines
        return
    with _bar() as bar:

        def both(event: Event) -> None:
            lines(event)
            bar(event)

        yield both


class _Lines:
    """Print one line of constant width a reading, and one a stage."""

    def __init__(self) -> None:
        self._head = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, ReadingDone):
            if not self._head:
                print(reading_head(), file=sys.stderr)
                self._head = True
            print(reading_line(event), file=sys.stderr, flush=True)
        elif isinstance(event, StageDone):
            print(f"stage {event.stage} ended: {event.stop_reason}", file=sys.stderr, flush=True)


def reading_head() -> str:
    """Return the headings of the columns of ``reading_line``."""
    return (
        f"{'reading':>7} {'stage':>12} {'what':>6} {'updates':>12} {'mini-epochs':>11} "
        f"{'active rows':>12} {'upper bound':>12} {'gap':>9}"
    )


def reading_line(event: ReadingDone) -> str:
    """Return the line of a reading. An upper bound marked ~ is an estimate, not proven."""
    certificate = event.certificate
    if certificate is not None and certificate.upper_bound is not None:
        bound, gap = f"{certificate.upper_bound:.6g}", f"{certificate.relative_duality_gap:.3g}"
    else:
        estimate = event.upper_bound_estimate
        bound, gap = "-" if estimate is None else f"~{estimate:.6g}", "-"
    return (
        f"{event.reading + 1:>7} {event.stage:>12} {event.mode:>6} {event.updates:>12,} "
        f"{event.mini_epochs:>11} {event.active_rows:>12,} {bound:>12} {gap:>9}"
    )


@contextmanager
def _bar() -> Iterator[Listener]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[speed]:>6} M nonzeros/s"),
        TimeRemainingColumn(),
        TextColumn("gap {task.fields[gap]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("starting", total=None, speed="-", gap="not known yet")

        began = time.perf_counter()

        def listen(event: Event) -> None:
            nonlocal began
            if isinstance(event, ReadingStarted):
                began = time.perf_counter()
                words = f"reading {event.reading + 1}: {event.purpose}"
                drawn.reset(task, total=event.nonzeros, description=words)
                if event.nonzeros is None:
                    drawn.tasks[0].total = None
            elif isinstance(event, ChunkDone):
                speed = event.nonzeros / 1e6 / max(time.perf_counter() - began, 1e-6)
                drawn.update(task, completed=event.nonzeros, speed=f"{speed:.1f}")
            elif isinstance(event, ReadingDone) and event.certificate is not None:
                drawn.update(task, gap=f"{event.certificate.relative_duality_gap:.3g}")

        yield listen
