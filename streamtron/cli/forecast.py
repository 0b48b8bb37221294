"""When a run will end, about: from its readings so far, and how fast the gaps fell."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from streamtron.core.events import (
    ChunkDone,
    Event,
    Problem,
    ReadingDone,
    ReadingStarted,
    SolveStarted,
    TrialDone,
    TrialsStarted,
)


@dataclass(slots=True)
class _Gaps:
    """The proven gaps of a problem as (reading, gap), and the readings that it still needs."""

    known: list[tuple[int, float]] = field(default_factory=list)
    left: int | None = None

    def observe(self, event: ReadingDone) -> None:
        """Estimate the readings left: 1 where all rows are in memory and solved to the tolerance;
        else as many as the gap takes if it goes on to fall as between the last two scans."""
        if event.certificate is not None:
            self.known.append((event.reading, event.certificate.relative_duality_gap))
        self.left = None
        if event.stop_reason is not None:
            self.left = 0
        elif not event.tol:
            return  # it runs to convergence
        elif event.stage.endswith("ascent") and event.active_rows == event.rows:
            self.left = 1
        elif len(self.known) >= 2:
            (first, earlier), (last, gap) = self.known[-2:]
            if event.tol < gap < earlier < 1.0:
                readings = math.log(gap / event.tol) / math.log(earlier / gap) * (last - first)
                self.left = math.ceil(readings)


class Forecast:
    """Estimates when a whole run will end, from its events; ``clock`` gives seconds.

    A fit takes the readings left times the seconds of one; of several problems the one that needs
    most readings counts. A sweep takes the trials left times the seconds of one.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._gaps: dict[Problem, _Gaps] = {}
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
                self._gaps.clear()
            self._before = None if event.reading == 0 else self._left
            self._began, self._told, self._problems = moment, 0, event.problems
            self._total = event.nonzeros
        elif isinstance(event, ChunkDone) and self._total and 10 * event.nonzeros >= self._total:
            self._pass = (moment - self._began) * self._total / event.nonzeros
        elif isinstance(event, SolveStarted):
            self._pass, self._passed = moment - self._began, moment
        elif isinstance(event, ReadingDone):
            self._told, self._solve = self._told + 1, moment - max(self._passed, self._began)
            self._gaps.setdefault(event.problem, _Gaps()).observe(event)
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
        if self._told:
            readings, start = self._left, self._began + self._pass + self._solve
        else:
            readings, start = self._before, self._began
        if not readings:
            return None
        return max(start + readings * self._pass + (readings - 1) * self._solve, self._clock())

    @property
    def _left(self) -> int | None:
        """Readings left after the last one, if all unfinished problems have said so."""
        if not self._told or self._told != self._problems:
            return None
        left = [gaps.left for gaps in self._gaps.values() if gaps.left is not None]
        return max(left) if len(left) == len(self._gaps) else None
