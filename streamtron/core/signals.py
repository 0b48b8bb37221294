"""SIGINT and SIGTERM: raised at once, or at a run's next checkpoint so that nothing is lost."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

REPEATED = 0.3
"""Seconds within which a second signal counts as the first: shells and supervisors send twice."""

CLEARING = 2.0
"""Seconds after a stop in which further signals are ignored, so that clean-up can finish."""

GRACE = 1.0
"""Seconds that a run has to reach its next checkpoint. It then stops as soon as the current kernel
call returns, which takes less than another second."""


class Signalled(BaseException):
    """SIGINT or SIGTERM has arrived.

    ``at_checkpoint``: it was deferred to a checkpoint, so that nothing is lost. ``run``: directory
    of the stopped run, if that run can be resumed.
    """

    def __init__(self, number: int, *, at_checkpoint: bool = False) -> None:
        self.number, self.at_checkpoint = number, at_checkpoint
        self.run: str | None = None


class _State:
    """The signals that have arrived, and whether one may be deferred."""

    def __init__(self) -> None:
        self.last = -math.inf
        self.pending: int | None = None
        self.may_defer = False
        self.raised = -math.inf

    def stop(self, number: int, *, at_checkpoint: bool = False) -> Signalled:
        """Return the exception to raise now."""
        self.raised = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        return Signalled(number, at_checkpoint=at_checkpoint)


_state = _State()


@contextmanager
def signals() -> Iterator[None]:
    """Raise ``Signalled`` inside the context on SIGINT and SIGTERM."""
    handlers = {signal.SIGINT: _arrived, signal.SIGTERM: _arrived, signal.SIGALRM: _too_late}
    old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    global _state
    _state = _State()
    report = sys.unraisablehook
    sys.unraisablehook = partial(_again, report)
    try:
        yield
    finally:
        sys.unraisablehook = report
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in old.items():
            signal.signal(number, handler)
        _state = _State()  # a signal of this run must not stop a later one of the process


@contextmanager
def defer_to_checkpoint() -> Iterator[None]:
    """Defer the first signal to ``pending_stop``, for at most GRACE seconds."""
    may_defer, _state.may_defer = _state.may_defer, True
    try:
        yield
    finally:
        _state.may_defer = may_defer
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def is_pending() -> bool:
    """Tell whether a signal is deferred to the next checkpoint."""
    return _state.pending is not None


def pending_stop() -> Signalled | None:
    """Return what to raise once the checkpoint is written, and end its time limit; None = go on."""
    return None if _state.pending is None else _state.stop(_state.pending, at_checkpoint=True)


def _arrived(number: int, _: FrameType | None) -> None:
    previous, _state.last = _state.last, time.monotonic()
    if _state.last - previous <= REPEATED or _state.last - _state.raised <= CLEARING:
        return
    if not _state.may_defer or _state.pending is not None:
        raise _state.stop(number)
    _state.pending = number
    signal.setitimer(signal.ITIMER_REAL, GRACE)


def _again(report: Callable[[Any], object], lost: Any) -> None:
    """Raise a ``Signalled`` again, in a millisecond, that met a ``__del__`` or a callback of a
    library: Python drops what is raised there, and calls this in place of ``report``."""
    if isinstance(lost.exc_value, Signalled):
        _state.pending = lost.exc_value.number
        signal.setitimer(signal.ITIMER_REAL, 0.001)
    else:
        report(lost)


def _too_late(_: int, __: FrameType | None) -> None:
    assert _state.pending is not None
    raise _state.stop(_state.pending)
