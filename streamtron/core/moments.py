"""Mean and spread of numbers that come some at a time."""

from __future__ import annotations

from typing import Any


class Moments:
    """Mean, and sum of squares around it, of rows of numbers that come some at a time (Chan, Golub
    and LeVeque, 1979): of each column, or of numbers alone.

    >>> import numpy as np
    >>> moments = Moments()
    >>> for some in ([1.0, 2.0], [], [6.0]):
    ...     moments.add(np.array(some))
    >>> float(moments.mean), round(float(moments.deviation), 3)
    (3.0, 2.16)
    """

    def __init__(self) -> None:
        self.rows, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, numbers: Any) -> None:
        """Add rows."""
        if not len(numbers):
            return
        mean, share = numbers.mean(axis=0), len(numbers) / (self.rows + len(numbers))
        apart = mean - self.mean
        around = ((numbers - mean) ** 2).sum(axis=0)
        self.squares = self.squares + (around + apart**2 * self.rows * share)
        self.mean = self.mean + apart * share
        self.rows += len(numbers)

    @property
    def deviation(self) -> Any:
        """Standard deviation of the rows; there is one at least."""
        return (self.squares / self.rows) ** 0.5
