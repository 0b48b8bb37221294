"""Plans and the b of their stages."""

import math

import pytest

from streamtron.core.config import Settings
from streamtron.solver.stages import Stage, b_scale, choose_b, plan, promised_gap

PROMISED = promised_gap(0.1)
assert math.isclose(PROMISED, 1 - 1 / 1.15**2)


@pytest.mark.parametrize(
    ("settings", "names", "brief"),
    [
        ({"faithful": True}, ["1", "0.1"], []),
        ({"tol": math.nextafter(PROMISED, 1.0)}, ["1", "0.1", "ascent"], ["1", "0.1"]),
        ({"tol": PROMISED}, ["1", "0.1", "ascent"], ["1", "0.1"]),
        ({"tol": PROMISED - 1e-9}, ["1", "ascent"], ["1"]),
        ({"stage": "1.5,1,ascent"}, ["1.5", "1", "ascent"], []),
        ({"stage": "1,0.1"}, ["1", "0.1"], []),
    ],
    ids=str,
)
def test_auto_hands_over_early_and_visits_a_small_epsilon_where_it_helps(settings, names, brief):
    """The paper's two stages, and those asked for by name, run to convergence."""
    stages = plan(Settings(**settings))
    assert [stage.name for stage in stages] == names
    assert [stage.name for stage in stages if stage.brief] == brief
    assert [stage.ascent for stage in stages] == [name == "ascent" for name in names]
    assert all(stage.epsilon == 1.0 for stage in stages if stage.ascent)


def test_a_b_given_by_hand_goes_to_its_stage():
    stages = plan(Settings(stage="1,0.1,ascent", b=(2.0, 0.01, 300.0)))
    assert [stage.b_relative for stage in stages] == [2.0, 0.01, 300.0]
    auto = plan(Settings(b=(2.0, 0.01)))
    assert [stage.b_relative for stage in auto] == [2.0, 0.01, None]


@pytest.mark.parametrize("variant", ["length", "steps"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 1.5])
def test_b_by_hand_is_relative_to_the_radius_in_the_power_of_the_variant(variant, epsilon):
    settings = Settings(variant=variant)
    power = 1.0 + epsilon if variant == "length" else 2.0
    assert b_scale(epsilon, settings, 9.0) == pytest.approx(3.0**power)
    stage = Stage(epsilon, b_relative=0.25)
    assert choose_b(stage, settings, 9.0, None) == pytest.approx(0.25 * 3.0**power)


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
    ],
    ids=str,
)
def test_b_is_the_papers_or_what_is_known_to_be_better(stage, settings, square, upper, price, b):
    assert choose_b(stage, Settings(**settings), square, upper, *price) == pytest.approx(b)
    assert abs(1e5 * BL - 577.1) < 0.05


@pytest.mark.parametrize("variant", ["length", "steps"])
def test_a_tighter_upper_bound_means_a_smaller_b_and_one_above_the_radius_is_none(variant):
    settings = Settings(variant=variant)
    tight, loose, none = (choose_b(Stage(0.1), settings, 4.0, up) for up in (0.1, 0.2, None))
    assert 0 < tight < loose < none
    assert choose_b(Stage(0.1), settings, 4.0, 50.0) == none
