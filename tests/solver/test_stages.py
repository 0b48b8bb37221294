"""Plans and the b of their stages."""

import math

import pytest

from streamtron.core.config import Settings
from streamtron.solver.stages import Stage, choose_b, plan


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["ascent"]),
        ({"tol": 0.3}, ["ascent"]),
        ({"loss": "log_loss"}, ["ascent"]),
        ({"faithful": True}, ["1", "0.1"]),
        ({"b": (5.0, 0.1)}, ["1", "0.1"]),
        ({"stage": "1.5,1,ascent"}, ["1.5", "1", "ascent"]),
        ({"stage": "1,0.1"}, ["1", "0.1"]),
    ],
    ids=str,
)
def test_the_papers_stages_are_made_only_where_they_are_asked_for(settings, names):
    stages = plan(Settings(**settings))
    assert [stage.name for stage in stages] == names
    assert [stage.ascent for stage in stages] == [name == "ascent" for name in names]
    assert all(stage.epsilon == 1.0 for stage in stages if stage.ascent)


@pytest.mark.parametrize("variant", ["length", "steps"])
def test_on_integer_rows_b_of_the_first_stage_is_5_times_R_squared_to_the_bit(variant):
    settings = Settings(variant=variant, faithful=True)
    wrong = [square for square in range(1, 2001) if 5.0 * math.sqrt(square) ** 2 < 5 * square]
    assert len(wrong) > 500  # what the square of R would have done
    for square in wrong:
        assert choose_b(Stage(1.0), settings, float(square), None) == 5 * square


ADULT, UP = 15.0, 0.0113517
"""R² of Adult, and the upper bound of its first stage."""

BL = 1.1 ** (3 * 0.1 - 1) * 0.2**-0.1 * (UP / math.sqrt(ADULT)) ** 0.9
"""The b of the paper's second stage, relative to R^1.1: 0.005771."""

BOUNDLESS = 1.1 ** (3 * 0.1 - 1) * 0.2**-0.1 * 0.05**-0.1

ASCENT = Stage(1.0, ascent=True)


@pytest.mark.parametrize(
    ("stage", "settings", "square", "upper", "price", "b"),
    [
        (Stage(1.0), {}, 4.0, 0.5, (), 5 * 4),
        (ASCENT, {}, 4.0, 0.5, (), 500 * 4),
        (ASCENT, {}, 1e4, None, (1e-3,), 2**27 * 1e-3),  # norms differ much: from the least price
        (ASCENT, {}, 1.0, None, (1e-3,), 500.0),
        (Stage(0.1), {"faithful": True}, ADULT, UP, (), BL * ADULT**0.55),
        (Stage(0.1), {}, ADULT, UP, (), 0.05**-0.1 * BL * ADULT**0.55),  # on a tighter bound
        (Stage(0.1), {"variant": "steps"}, 9.0, 0.3, (), 9 * (0.95 * 0.01) ** 0.9 * 0.05**-0.1),
        (Stage(0.1), {}, 4.0, None, (), BOUNDLESS * 2**1.1),
        (Stage(0.1), {}, 4.0, 50.0, (), BOUNDLESS * 2**1.1),  # above R it is none
        (Stage(0.1), {"variant": "steps"}, 4.0, 50.0, (), 4 * 0.95**0.9 * 0.05**-0.1),
        (Stage(1.5, b_relative=0.25), {}, 9.0, None, (), 0.25 * 3**2.5),  # given by hand
        (Stage(1.5, b_relative=0.25), {"variant": "steps"}, 9.0, None, (), 0.25 * 9),
    ],
    ids=str,
)
def test_b_is_the_papers_or_what_is_known_to_be_better(stage, settings, square, upper, price, b):
    assert choose_b(stage, Settings(**settings), square, upper, *price) == pytest.approx(b)
    assert abs(1e5 * BL - 577.1) < 0.05
