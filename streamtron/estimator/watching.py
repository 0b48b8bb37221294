"""The lines that a verbose fit prints."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

from streamtron.core.events import CHUNK_SECONDS, ChunkDone, Event, Listener, ReadingDone
from streamtron.core.rows import Label
from streamtron.core.text import up


def lines(name_of: Callable[[Label], str] | None) -> Listener:
    """Return a listener that prints a line for every reading, and every ten seconds of one."""
    began, due = time.perf_counter(), CHUNK_SECONDS

    def listen(event: Event) -> None:
        nonlocal due
        seconds = time.perf_counter() - began
        if isinstance(event, ReadingDone):
            label, certificate = event.problem.label, event.certificate
            of_class = "" if name_of is None or label is None else f", class {name_of(label)}"
            proven = math.inf if certificate is None else certificate.relative_duality_gap
            gap = "nothing proven yet" if proven == math.inf else f"gap {up(proven, 3)} proven"
            sys.stdout.write(f"reading {event.reading + 1}{of_class}: {gap}, {seconds:.1f} s\n")
        elif isinstance(event, ChunkDone) and seconds >= due:
            due = seconds + CHUNK_SECONDS
            sys.stdout.write(f"reading {event.reading + 1}: {event.rows:,} rows, {seconds:.0f} s\n")
        sys.stdout.flush()

    return listen
