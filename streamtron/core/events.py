"""What a run tells whoever listens. The library itself prints nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamtron.core.certificate import Certificate


@dataclass(frozen=True, slots=True)
class ReadingStarted:
    """A reading of the data begins. ``rows``, ``nonzeros`` of the whole: None until known."""

    reading: int
    purpose: str
    rows: int | None
    nonzeros: int | None


@dataclass(frozen=True, slots=True)
class ChunkDone:
    """A chunk has been read and digested; totals of this reading so far."""

    reading: int
    rows: int
    nonzeros: int


@dataclass(frozen=True, slots=True)
class ReadingDone:
    """A learner has finished with a reading and the mini-epochs after it."""

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
    """A stage has ended; ``why`` is a short clause."""

    stage: str
    why: str


Event = ReadingStarted | ChunkDone | ReadingDone | StageDone
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The listener of those who do not listen."""
