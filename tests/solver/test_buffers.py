"""Rows that memory does not hold all of are visited in buffers, again while that pays."""

from types import SimpleNamespace

import numpy as np
import pytest

from streamtron.core.config import Settings
from streamtron.solver import ascent
from streamtron.solver.learner import take_visits
from streamtron.solver.progress import KEPT_BY_NEWTON, KEPT_BY_VISITS, PHASES
from streamtron.solver.stopping import promises_tolerance
from streamtron.solver.working_set import keep
from tests.helpers.learners import data_of, drawn_data
from tests.helpers.sources import learner_of, trained

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


@pytest.mark.parametrize(
    ("passes", "crawls", "kept"),
    [(1, False, 0.0), (2, False, KEPT_BY_VISITS), (9, True, KEPT_BY_NEWTON)],
)
def test_rows_stay_for_the_next_buffer_where_a_second_pass_paid_or_visits_crawl(
    passes, crawls, kept
):
    learner = learner_of(data_of(), Settings(loss="log_loss"))
    take_visits(learner, passes, 40, crawls=crawls)
    assert learner.progress.kept == kept
    assert learner.progress.visited == 40


@pytest.mark.parametrize(
    ("alphas", "crawls", "buffers"),
    [
        (np.ones(80), False, 1),  # nothing stays, and the other half fits
        (np.arange(80) % 8 == 0, False, 2),
        (np.ones(80), True, 5),  # four fifths stay each time
    ],
)
def test_rows_that_matter_alike_make_room_for_others_unless_visits_crawl(alphas, crawls, buffers):
    source = drawn_data(13, 80, 40, 1.0)
    learner = learner_of(source, Settings(active_set=source.nbytes // 2))
    (chunk,) = source.chunks()
    learner.alphas.put_ranges(chunk.ranges, alphas.astype(np.float32))
    take_visits(learner, 2, 40, crawls=crawls)
    kept = keep(learner, chunk.rows, np.arange(80), learner.targets(chunk))
    assert len(list(kept)) == buffers


@pytest.mark.parametrize(
    ("before", "gap", "promised"),
    [(None, 1e-3, False), (0.1, 7e-3, True), (0.1, 8e-3, False), (1e-2, 9e-3, False)],
)
def test_a_gap_is_promised_if_one_more_fall_as_the_last_one_meets_half_of_the_tolerance(
    before, gap, promised
):
    learner = learner_of(data_of(), Settings(tol=1e-3))
    learner.best.certificate = SimpleNamespace(relative_duality_gap=gap)
    learner.best.gap_before = np.inf if before is None else before
    assert promises_tolerance(learner) == promised


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
