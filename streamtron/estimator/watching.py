"""What a fit tells while it goes on: lines of text, and scikit-learn's callbacks."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from streamtron.core.events import CHUNK_SECONDS, ChunkDone, Event, Listener, ReadingDone, ignore
from streamtron.core.rows import Label
from streamtron.core.text import up

try:
    from sklearn.callback import CallbackSupportMixin as Watched
    from sklearn.callback._callback_support import callback_management_context as torn_down
except ImportError:  # scikit-learn before 1.9 has no callbacks
    Watched, torn_down = type("Watched", (), {}), nullcontext

__all__ = ["Watched", "watched"]


@contextmanager
def watched(model: Any, name_of: Callable[[Any], str] | None, **rows: Any) -> Iterator[Listener]:
    """Give a listener that writes lines if ``model`` is verbose, and calls the callbacks that are
    set: the fit is their root task, and each reading of each class a task below it.

    ``name_of`` : what to call the label of a class, where there are more than two; ``rows`` : X and
    y, for the callbacks.
    """
    write = _lines(name_of) if model.verbose else ignore
    if not hasattr(model, "_skl_callbacks"):
        yield write
        return
    with torn_down(model):
        root = model._init_callback_context(max_subtasks=None)
        root.call_on_fit_task_begin(estimator=model, **rows)

        def listen(event: Event) -> None:
            write(event)
            if isinstance(event, ReadingDone):
                task = root.subcontext(task_name="reading")
                task.call_on_fit_task_begin(estimator=model, **rows)
                task.call_on_fit_task_end(estimator=model, **rows)

        yield listen
        root.call_on_fit_task_end(estimator=model, **rows)


def _lines(name_of: Callable[[Label], str] | None) -> Listener:
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
