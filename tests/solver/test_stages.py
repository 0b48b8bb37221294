"""Plans and the b of their stages."""

from __future__ import annotations

import math

import pytest

from streamtron.core.config import Settings
from streamtron.solver.stages import Stage, b_scale, choose_b, plan, promised_gap


def names(**settings: object) -> list[str]:
    return [stage.name for stage in plan(Settings(**settings))]  # type: ignore[arg-type]


def test_the_papers_procedure_is_two_stages_that_both_run_to_convergence() -> None:
    stages = plan(Settings(faithful=True))
    assert stages == (Stage(1.0), Stage(0.1))
    assert not any(stage.brief or stage.ascent for stage in stages)


def test_auto_ends_with_unlearning_and_hands_over_what_comes_before_it_early() -> None:
    stages = plan(Settings())
    assert stages[0].epsilon == 1.0
    assert stages[-1] == Stage(1.0, ascent=True)
    assert all(stage.brief for stage in stages[:-1])


def test_auto_visits_a_small_epsilon_only_where_its_promise_can_meet_the_tolerance() -> None:
    loose = math.nextafter(promised_gap(0.1), 1.0)
    assert names(tol=loose) == ["1", "0.1", "ascent"]
    assert names(tol=promised_gap(0.1)) == ["1", "0.1", "ascent"]
    assert names(tol=promised_gap(0.1) - 1e-9) == ["1", "ascent"]


def test_the_promised_gap_follows_from_the_promised_fraction() -> None:
    assert promised_gap(0.1) == pytest.approx(1 - 1 / 1.15**2)


def test_stages_asked_for_are_taken_as_they_are() -> None:
    assert names(stage="1.5,1,ascent") == ["1.5", "1", "ascent"]
    assert not any(stage.brief for stage in plan(Settings(stage="1,0.1")))


def test_a_b_given_by_hand_goes_to_its_stage() -> None:
    stages = plan(Settings(stage="1,0.1,ascent", b=(2.0, 0.01, 300.0)))
    assert [stage.b_relative for stage in stages] == [2.0, 0.01, 300.0]
    auto = plan(Settings(b=(2.0, 0.01)))
    assert [stage.b_relative for stage in auto] == [2.0, 0.01, None]


@pytest.mark.parametrize("variant", ["length", "steps"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 1.5])
def test_b_by_hand_is_relative_to_the_radius_in_the_power_of_the_variant(
    variant: str, epsilon: float
) -> None:
    chosen = Settings(variant=variant)  # type: ignore[arg-type]
    power = 1.0 + epsilon if variant == "length" else 2.0
    assert b_scale(epsilon, chosen, 9.0) == pytest.approx(3.0**power)
    stage = Stage(epsilon, b_relative=0.25)
    assert choose_b(stage, chosen, 9.0, None) == pytest.approx(0.25 * 3.0**power)


def test_the_first_stage_takes_the_papers_5_and_unlearning_a_resolution_of_500() -> None:
    assert choose_b(Stage(1.0), Settings(), 4.0, 0.5) == pytest.approx(5 * 4)
    assert choose_b(Stage(1.0, ascent=True), Settings(), 4.0, 0.5) == pytest.approx(500 * 4)


@pytest.mark.parametrize("variant", ["length", "steps"])
def test_on_integer_rows_b_of_the_first_stage_is_5_times_R_squared_to_the_bit(variant: str) -> None:
    chosen = Settings(variant=variant, faithful=True)  # type: ignore[arg-type]
    wrong = [square for square in range(1, 2001) if 5.0 * math.sqrt(square) ** 2 < 5 * square]
    assert len(wrong) > 500  # what the square of R would have done
    for square in wrong:
        assert choose_b(Stage(1.0), chosen, float(square), None) == 5 * square


def test_where_norms_differ_much_unlearning_takes_b_from_the_least_price() -> None:
    stage, least = Stage(1.0, ascent=True), 1e-3
    assert choose_b(stage, Settings(), 1e4, None, least) == 2**27 * least < 500 * 1e8
    assert choose_b(stage, Settings(), 1.0, None, least) == 500.0


def test_b_of_auto_counts_on_a_tighter_upper_bound_than_the_papers() -> None:
    radius, gamma_up = math.sqrt(15.0), 0.0113517
    ours, theirs = (
        choose_b(Stage(0.1), Settings(faithful=faithful), radius, gamma_up)
        for faithful in (False, True)
    )
    assert ours / theirs == pytest.approx(0.05**-0.1)


def test_b_of_steps_is_bt_without_its_guard() -> None:
    b = choose_b(Stage(0.1), Settings(variant="steps"), 9.0, 0.3)
    assert b / 9.0 == pytest.approx((0.95 * 0.01) ** 0.9 * 0.05**-0.1)


def test_the_second_stage_of_the_paper_takes_b_from_bl_at_its_upper_bound() -> None:
    radius, gamma_up = math.sqrt(15.0), 0.0113517  # Adult
    b = choose_b(Stage(0.1), Settings(faithful=True), 15.0, gamma_up)
    relative = 1.1 ** (3 * 0.1 - 1) * 0.2**-0.1 * (gamma_up / radius) ** 0.9
    assert b / radius**1.1 == pytest.approx(relative)
    assert 1e5 * relative == pytest.approx(577.1, abs=0.05)


@pytest.mark.parametrize("variant", ["length", "steps"])
def test_a_tighter_upper_bound_means_a_smaller_b(variant: str) -> None:
    chosen = Settings(variant=variant)  # type: ignore[arg-type]
    tight, loose, none = (choose_b(Stage(0.1), chosen, 4.0, up) for up in (0.1, 0.2, None))
    assert 0 < tight < loose < none


def test_an_upper_bound_above_the_radius_is_no_better_than_the_radius() -> None:
    stage, chosen = Stage(0.1), Settings()
    assert choose_b(stage, chosen, 4.0, 50.0) == choose_b(stage, chosen, 4.0, None)
