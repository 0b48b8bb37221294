"""Learners on rows in memory: plans to train by, the bits that training leaves, and the loss."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamtron.core.losses import SQUARED_HINGE, Loss
from streamtron.core.rows import Label, Rows, Vector
from streamtron.solver.held_loss import HeldLoss
from streamtron.solver.learner import Learner
from streamtron.solver.row_store import NarrowRows
from streamtron.solver.targets import Targets
from tests.helpers.oracle import Row
from tests.helpers.sources import ListData, csr, random_rows

COLUMNS, ROWS = 50, 240

PLANS = {
    "all held": {},
    "small active set": {"active_set": 2500, "max_epochs": 4},
    "few columns": {"active_set": 8000},
    "nothing held": {"active_set": 0, "max_epochs": 3},
    "margitron": {"stage": "1,0.1", "tol": 0.0, "max_epochs": 4, "mini_epochs": 5},
    "stages": {"stage": "1,0.1", "tol": 0.02, "max_epochs": 12},
}

plans = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())


def data_of(labels: Sequence[Label] | None = None) -> ListData:
    rows, two = random_rows(3, ROWS, COLUMNS)
    return ListData(csr(rows), labels or two, block_rows=16)


def drawn_data(
    seed: int, rows: int, columns: int = 6, density: float = 0.4, **options: Any
) -> ListData:
    """Random rows with the labels 1 and −1."""
    drawn, two = random_rows(seed, rows, columns, density)
    return ListData(csr(drawn), two, **options)


def plain_rows(rows: Rows) -> list[Row]:
    """Rows as lists of (column, value)."""
    pairs = list(zip(rows.indices.tolist(), rows.values.tolist(), strict=True))
    return [pairs[first:stop] for first, stop in pairwise(rows.indptr.tolist())]


def some_classes() -> list[Label]:
    """Labels of ROWS rows: b from row 0 on, a from row 40, d and c from near the end."""
    rng, since = np.random.default_rng(5), [0, 40, 41, 200]
    return ["badc"[rng.integers(sum(k >= first for first in since))] for k in range(ROWS)]


def bits(learner: Learner, rows: int = ROWS) -> tuple[object, ...]:
    """All that training left in it."""
    dual = learner.running
    return (
        dual.w.tobytes(),
        dual.scalars.tobytes(),
        dual.updates,
        learner.alphas.dense(rows).tobytes(),
        learner.best.w.tobytes(),
        learner.best.bias,
        learner.certificate,
        learner.progress.full_epochs,
        learner.progress.mini_epochs,
        learner.finished,
    )


def held_loss(
    rows: Rows, signs: NDArray[Any], cost: Vector, rho: float, loss: Loss = SQUARED_HINGE
) -> HeldLoss:
    """The loss of rows, of which those of cost 0 are left out."""
    targets = Targets(np.arange(len(signs)), signs, cost, np.zeros(len(signs)))
    return HeldLoss(loss, NarrowRows(rows, targets), rho)
