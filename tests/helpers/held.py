"""Newton's method on rows in memory, as one call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.losses import SQUARED_HINGE
from streamtron.core.rows import Rows
from streamtron.solver.held_loss import HeldLoss, Vector
from streamtron.solver.newton import HeldObjective
from streamtron.solver.row_store import NarrowRows


def held_loss(rows: Rows, signs: NDArray[Any], cost: Vector, rho: float) -> HeldLoss:
    """The loss of rows, of which those of cost 0 are left out."""
    with np.errstate(divide="ignore"):
        held = NarrowRows(rows, signs, 0.5 / cost, np.zeros(len(signs)))
    return HeldLoss(SQUARED_HINGE, held, rho)


def minimise(
    rows: Rows, signs: NDArray[Any], cost: Vector, rho: float, start: Vector, center: Vector,
    precision: float, *, proven: bool, outside: Any = None,
) -> tuple[Vector, Vector, int]:  # fmt: skip
    """The v of least P, the margins there, and how many steps that took."""
    objective = HeldObjective(held_loss(rows, signs, cost, rho), center, outside)
    best = objective.minimise(start, precision, proven=proven)
    return best.v, best.margins, best.steps
