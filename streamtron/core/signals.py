"""SIGINT and SIGTERM: obeyed at once, or at the next border of a run so that nothing is lost."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

REPEATED = 0.3
"""Seconds within which a second signal is the first one again: shells and supervisors often send
it twice."""

CLEARING = 2.0
"""Seconds in which a process that is on its way out clears up and is not stopped once more."""

GRACE = 1.0
"""Seconds that a run may take to its next border; after that it ends where it is, as soon as the
kernel call that it is in returns, which takes less than another second."""


class Signalled(BaseException):
    """SIGINT or SIGTERM has arrived.

    Parameters
    ----------
    number : which.
    at_border : whether it waited for a border, so that nothing is lost.

    Attributes
    ----------
    run : the directory of the run that it ended, if that can be taken up.
    """

    def __init__(self, number: int, *, at_border: bool = False) -> None:
        self.number, self.at_border = number, at_border
        self.run: str | None = None


class _Signals:
    """What has arrived, and whether it may wait."""

    def __init__(self) -> None:
        self.last = -math.inf
        self.pending: int | None = None
        self.may_wait = False
        self.raised = -math.inf

    def stop(self, number: int, *, at_border: bool = False) -> Signalled:
        """What to raise now."""
        self.raised = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        return Signalled(number, at_border=at_border)


_now = _Signals()


@contextmanager
def signals() -> Iterator[None]:
    """SIGINT and SIGTERM raise ``Signalled`` inside."""
    handlers = {signal.SIGINT: _arrived, signal.SIGTERM: _arrived, signal.SIGALRM: _too_late}
    old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    global _now
    _now = _Signals()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in old.items():
            signal.signal(number, handler)
        _now = _Signals()  # what arrived here stops no later run of this process


@contextmanager
def waiting_for_a_border() -> Iterator[None]:
    """A signal waits for ``at_border``, GRACE seconds at most; a second one does not."""
    before, _now.may_wait = _now.may_wait, True
    try:
        yield
    finally:
        _now.may_wait = before
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def waits() -> bool:
    """Whether a signal waits for a border."""
    return _now.pending is not None


def at_border() -> Signalled | None:
    """What to raise, once all is in safety, if a signal waits; there is no hurry any more."""
    return None if _now.pending is None else _now.stop(_now.pending, at_border=True)


def _arrived(number: int, _: FrameType | None) -> None:
    before, _now.last = _now.last, time.monotonic()
    if _now.last - before <= REPEATED or _now.last - _now.raised <= CLEARING:
        return
    if not _now.may_wait or _now.pending is not None:
        raise _now.stop(number)
    _now.pending = number
    signal.setitimer(signal.ITIMER_REAL, GRACE)


def _too_late(_: int, __: FrameType | None) -> None:
    assert _now.pending is not None
    raise _now.stop(_now.pending)
