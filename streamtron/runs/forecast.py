"""Forecast the disk and the seconds that a fit needs, from counted costs; nothing is timed.

Seconds of a phase are nonzeros times what a kernel takes for one. How often a fit reads and visits
its rows depends on the data: here are the readings and visits of click logs, text and dense rows at
the default C and tolerance (``benchmarks/forecast.py``), so a forecast is an estimate.
"""

from __future__ import annotations

from typing import NamedTuple

from streamtron.core.config import Settings
from streamtron.data.flat_file import SHORT
from streamtron.runs.memory import DataSize, fits_in_memory
from streamtron.solver.hessian import HEAD

DECODED = {"parquet": 22e6, "arrow": 22e6, "libsvm": 18e6, "vw": 12e6}
"""Format → nonzeros that two threads decode, check and write in a second."""

DECODED_OF_TABLES = 10e6
"""The same of CSV, JSON lines and other formats."""

VISITED, SCANNED = 100e6, 90e6
"""Nonzeros that a thread visits, and that two threads decode and scan, in a second."""

MULTIPLIED = 4e9
"""Products of two values of a row that are summed in a second, where columns are few."""

BEGUN = 0.8
"""Seconds before anything is read."""

VISITS = {"log_loss": (4.0, 6.5), "poisson": (4.0, 6.5)}
"""Loss → visits of each row where all rows are in memory, and where they are not."""

VISITS_OF_OTHERS = 12.0, 19.0
"""The same of losses without an exponential."""

READINGS, NEWTON_STEPS = 5, 3
"""Readings where not all rows are in memory; and steps of Newton's method where columns are few,
each of which is a reading then."""

ROW_BYTES, COLUMN_BYTES = 9, 12
"""Of the prepared data, beside what nonzeros take: a row, and a column that occurs."""


class Forecast(NamedTuple):
    """Bytes of the prepared data, and seconds of each phase."""

    disk: int
    preparing: float
    scanning: float
    solving: float


def forecast(settings: Settings, size: DataSize, format: str) -> Forecast:
    """Forecast a fit of one learner at the default C and tolerance.

    Examples
    --------
    >>> clicks = DataSize(10**6, 10**6, 39 * 10**6, by_row=True)
    >>> forecast(Settings(loss="log_loss"), clicks, "parquet").disk
    177000000
    """
    rows, columns, nonzeros, by_row, classes = size
    of_column = 0 if nonzeros == rows * columns else 2 if columns <= SHORT else 4
    disk = nonzeros * (of_column + (0 if by_row else 4)) + ROW_BYTES * rows + COLUMN_BYTES * columns
    scan, holds_all = nonzeros / SCANNED, fits_in_memory(settings, size)
    if columns <= HEAD:
        step = nonzeros * nonzeros / max(rows, 1) / MULTIPLIED
        readings, solving = 1 if holds_all else NEWTON_STEPS, NEWTON_STEPS * step
    else:
        in_memory, in_buffers = VISITS.get(settings.loss, VISITS_OF_OTHERS)
        readings, visits = (1, in_memory) if holds_all else (READINGS, in_buffers)
        solving = visits * nonzeros / VISITED
    decoded = nonzeros / DECODED.get(format, DECODED_OF_TABLES)
    return Forecast(disk, BEGUN + decoded, readings * scan, classes * solving)
