"""Rows that memory does not hold all of are visited in buffers, again while that pays."""

from types import SimpleNamespace

import numpy as np
import pytest

from streamtron.core.config import Settings
from streamtron.solver import ascent
from streamtron.solver.progress import PHASES
from tests.helpers.learners import drawn_data
from tests.helpers.sources import trained

NONZEROS = 10


class Buffer:
    """A buffer of which each pass over the rows gains so much dual for a nonzero."""

    def __init__(self, gains: list[float]) -> None:
        self.gains, self.objective = gains, 0.0
        rows = SimpleNamespace(indptr=np.array([0, NONZEROS]))
        self.active = SimpleNamespace(nonzeros=NONZEROS, rows=rows)
        self.running, self.alphas = SimpleNamespace(w=np.ones(3)), np.ones(1, np.float32)

    def mini_epoch(self) -> None:
        self.objective += NONZEROS * self.gains.pop(0)


@pytest.mark.parametrize(
    ("fresh", "gains", "passes"),
    [
        (1.0, [0.29, 9.0], 1),
        (1.0, [2.0, 0.5, 0.31, 0.29, 9.0], 4),
        (10.0, [2.0, 9.0], 1),
        (0.0, [1.0, 0.2, 0.1, 9.0], 3),  # half of the first gain stands for that of fresh rows
    ],
)
def test_a_buffer_is_visited_until_a_pass_gains_less_than_a_part_of_what_fresh_rows_do(
    fresh, gains, passes
):
    assert ascent.PAYS == 0.3
    assert ascent.visit_while_it_pays(Buffer(gains), fresh) == (passes, False)


def test_a_buffer_is_left_to_newtons_method_where_visits_would_cost_more(monkeypatch):
    monkeypatch.setattr(ascent, "of_newton", lambda *_: 7.9)
    assert ascent.visit_while_it_pays(Buffer([1.0] * 20), 1.0) == (7, True)


def test_visits_and_seconds_of_each_phase_are_counted_wherever_rows_are_held():
    source = drawn_data(13, 600, 2000, 0.004, block_rows=32)
    for part in (2.0, 0.2):
        settings = Settings(loss="log_loss", tol=1e-3, active_set=int(part * source.nbytes))
        progress = trained(source, settings).progress
        assert progress.finished == "certified"
        assert progress.visited >= len(source.rows.indices)
        assert tuple(progress.phases) == PHASES
        assert progress.phases["solving"] > 0.0
        assert progress.phases["scanning"] > 0.0
