"""Newton's method on rows in memory, as one call."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from streamtron.core.losses import SQUARED_HINGE
from streamtron.core.rows import Rows
from streamtron.solver.newton import HeldLoss, Vector


def minimise(
    rows: Rows, signs: NDArray[Any], cost: Vector, rho: float, start: Vector, center: Vector,
    precision: float, *, proven: bool, outside: Any = None,
) -> tuple[Vector, Vector, int]:  # fmt: skip
    """The v of least P, the margins there, and how many steps that took."""
    best = HeldLoss(SQUARED_HINGE, rows, signs, cost, rho, center, outside).minimise(
        start, precision, proven=proven
    )
    return best.v, best.margins, best.steps
