"""Events that a run sends to a listener. The library itself prints nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamtron.core.certificate import Certificate


@dataclass(frozen=True, slots=True)
class ReadingStarted:
    """A reading begins. ``rows``, ``nonzeros``: totals of the data, None until known."""

    reading: int
    purpose: str
    rows: int | None
    nonzeros: int | None


@dataclass(frozen=True, slots=True)
class ChunkDone:
    """A chunk has been processed. ``rows``, ``nonzeros``: totals of this reading so far."""

    reading: int
    rows: int
    nonzeros: int


@dataclass(frozen=True, slots=True)
class ReadingDone:
    """A learner has finished a reading and the mini-epochs after it."""

    reading: int
    stage: str
    mode: str
    updates: int
    mini_epochs: int
    active_rows: int
    certificate: Certificate | None
    upper_bound_estimate: float | None


@dataclass(frozen=True, slots=True)
class StageDone:
    """A stage has ended; ``stop_reason`` is a short clause."""

    stage: str
    stop_reason: str


Event = ReadingStarted | ChunkDone | ReadingDone | StageDone
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Ignore an event: the default listener."""
