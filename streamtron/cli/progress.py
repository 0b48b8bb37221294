"""Progress of a run: a bar with the reading, its speed and the gap, or one line a reading."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from streamtron.core.events import (
    ChunkDone,
    Event,
    Listener,
    ReadingDone,
    ReadingStarted,
    StageDone,
    ignore,
)

_WIDTHS = {
    "reading": 7, "stage": 12, "what": 6, "updates": 12, "mini-epochs": 11, "active rows": 12,
    "upper bound": 12, "gap": 9,
}  # fmt: skip


@contextmanager
def progress(*, verbose: bool = False) -> Iterator[Listener]:
    """Give a listener that draws a bar if stderr is a terminal, and prints one line a reading with
    ``verbose``."""
    with _bar() if sys.stderr.isatty() else nullcontext(ignore) as bar:
        lines = _lines() if verbose else ignore

        def listen(event: Event) -> None:
            lines(event)
            bar(event)

        yield listen


def _lines() -> Listener:
    """Return a listener that prints one line of constant width a reading, and one a stage."""
    lines = [reading_head()]

    def listen(event: Event) -> None:
        if isinstance(event, ReadingDone):
            lines.append(reading_line(event))
        elif isinstance(event, StageDone):
            lines.append(f"stage {event.stage} ended: {event.stop_reason}")
        else:
            return
        print(*lines, sep="\n", file=sys.stderr, flush=True)
        lines.clear()

    return listen


def reading_head() -> str:
    """Return the headings of the columns of ``reading_line``."""
    return " ".join(f"{name:>{width}}" for name, width in _WIDTHS.items())


def reading_line(event: ReadingDone) -> str:
    """Return the line of a reading. An upper bound marked ~ is an estimate, not proven."""
    certificate, estimate = event.certificate, event.upper_bound_estimate
    bound, gap = "-" if estimate is None else f"~{estimate:.6g}", "-"
    if certificate is not None and certificate.upper_bound is not None:
        bound, gap = f"{certificate.upper_bound:.6g}", f"{certificate.relative_duality_gap:.3g}"
    cells = (
        event.reading + 1, event.stage, event.mode, f"{event.updates:,}", event.mini_epochs,
        f"{event.active_rows:,}", bound, gap,
    )  # fmt: skip
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS.values(), strict=True))


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
                drawn.reset(task, description=f"reading {event.reading + 1}: {event.purpose}")
                drawn.tasks[0].total = event.nonzeros
            elif isinstance(event, ChunkDone):
                speed = event.nonzeros / 1e6 / max(time.perf_counter() - began, 1e-6)
                drawn.update(task, completed=event.nonzeros, speed=f"{speed:.1f}")
            elif isinstance(event, ReadingDone) and event.certificate is not None:
                drawn.update(task, gap=f"{event.certificate.relative_duality_gap:.3g}")

        yield listen
