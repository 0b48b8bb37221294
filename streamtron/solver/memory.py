"""What memory holds of the data: all rows, or some of them, and which."""

from __future__ import annotations

from enum import StrEnum

ROUNDING_GAP = 1e-12
"""A relative duality gap 1 − D/P that counts as 0; no smaller one is asked of the rows in memory.
``benchmarks/rounding.py`` prints by how far rounding widens the bounds."""

IN_BUFFERS = 4.0
"""ρ of a bias that is not penalised, of rows solved in buffers, beside that of one that is."""


class Memory(StrEnum):
    """What a learner's memory holds."""

    ALL_ROWS = "all rows"
    """Every row of the data: they are solved, then scanned."""
    WORKING_SET = "working set"
    """The rows with α ≠ 0 and the rows up to the margin, which all fit."""
    BUFFERS = "buffers"
    """A part of the working set at a time: each buffer is solved when memory is full."""
    FEW_COLUMNS = "few columns"
    """The rows nearest the margin; all others are one quadratic (see ``few_columns``)."""
