"""Losses: values, slopes and curvatures agree with each other and with the oracle."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtron.core import kernels
from streamtron.core.losses import (
    HINGE,
    LOG_LOSS,
    LOSSES,
    Loss,
    curvatures,
    expansion,
    gains,
    slopes,
    solved,
    values,
)
from tests.helpers.losses import EPSILON, gain_of, loss_at, plain, plain_gain

U = kernels.UNIT_ROUNDOFF

margins = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)

numbers = st.floats(-1e6, 1e6)

near_one = st.integers(0, 150).map(lambda n: 1.0 - n * U)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
@given(drawn=margins)
def test_a_loss_equals_its_plain_oracle_bit_for_bit(loss: Loss, drawn: list[float]) -> None:
    loss = replace(loss, epsilon=EPSILON)
    for zone in (0.0, 0.25, 1.0) if solved(loss).zone else (0.0,):
        smoothed = replace(loss, zone=zone)
        at = [plain(loss.name, m, zone) for m in drawn]
        for number, of_loss in enumerate((values, slopes, curvatures)):
            assert of_loss(smoothed, np.array(drawn)).tolist() == [one[number] for one in at]


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
@given(st.lists(st.floats(0.0, 1.5) | st.floats(0.0, 1e-300) | near_one, min_size=1), numbers)
def test_a_gain_equals_its_plain_oracle_bit_for_bit(
    loss: Loss, drawn: list[float], t: float
) -> None:
    loss = replace(loss, epsilon=EPSILON)
    if loss.numbers:
        drawn = [*drawn, *(-p for p in drawn)]
    found = gains(loss, np.array(drawn), np.full(len(drawn) if loss.numbers else 0, t))
    assert found.tolist() == [plain_gain(loss.name, p, t) for p in drawn]


@given(st.lists(st.floats(-700.0, 700.0) | st.floats(-1.0, 1.0), min_size=1))
def test_the_logistic_loss_is_off_by_at_most_8_roundings(drawn: list[float]) -> None:
    with mpmath.workdps(60):
        for number, of_loss in enumerate((values, slopes, curvatures)):
            for m, found in zip(drawn, of_loss(LOG_LOSS, np.array(drawn)).tolist(), strict=True):
                wanted = loss_at("log_loss", mpmath.mpf(m))[number]
                assert abs(found - wanted) <= 8.0 * U * wanted


@given(st.floats(0.0, 1.0, exclude_min=True, exclude_max=True), st.floats(-8.0, 8.0))
def test_a_gain_is_never_above_the_entropy_of_what_8_roundings_make_of_p(p: float, off: float):
    with mpmath.workdps(60):
        q = p * (1 + mpmath.mpf(off) * U)
        found = gains(LOG_LOSS, np.array([p]))[0]
        assert found <= 0.0 or found <= gain_of("log_loss", q)


@pytest.mark.parametrize("loss", [LOG_LOSS, HINGE], ids=["log_loss", "hinge"])
def test_a_dual_variable_that_may_be_above_c_earns_minus_infinity(loss: Loss) -> None:
    above = np.array([1.0, 1.0 + U, 2.0, math.inf, 1.0 - 4.0 * U])
    assert (gains(loss, above) == -math.inf).all()


def test_the_dual_earns_what_the_loss_and_its_slope_leave() -> None:
    """Fenchel: φ(m) + φ*(−p) + m p = 0 at p = −φ'(m)."""
    m = np.linspace(-20.0, 20.0, 401)
    p = slopes(LOG_LOSS, m)
    assert gains(LOG_LOSS, p) == pytest.approx(values(LOG_LOSS, m) + m * p, abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_an_expansion_has_value_slope_and_curvature_of_the_loss(loss: Loss) -> None:
    m = np.array([-3.0, -0.5, 0.3, 0.95, 2.0])
    smoothed = replace(loss, zone=0.25 if solved(loss).zone else 0.0)
    smoothed = replace(smoothed, epsilon=EPSILON)
    curvature, slope, constant = expansion(smoothed, m)
    assert curvature.tolist() == curvatures(smoothed, m).tolist()
    assert slope - curvature * m == pytest.approx(slopes(smoothed, m))
    assert 0.5 * curvature * m * m - slope * m + constant == pytest.approx(values(smoothed, m))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_slopes_and_curvatures_are_those_of_the_values(loss: Loss) -> None:
    m, h = np.array([-7.3, -1.0, 0.2, 0.9, 1.1, 5.0]), 1e-4
    loss = replace(loss, zone=0.25 if solved(loss).zone else 0.0, epsilon=EPSILON)
    change = (values(loss, m + h) - values(loss, m - h)) / (2.0 * h)
    assert slopes(loss, m) == pytest.approx(-change, abs=1e-6)
    bend = (values(loss, m + h) - 2.0 * values(loss, m) + values(loss, m - h)) / h**2
    assert curvatures(loss, m) == pytest.approx(bend, abs=1e-4)
    assert (abs(slopes(loss, m)) <= (EPSILON if loss.name == "huber" else loss.most)).all()
    assert not loss.sparse or not values(loss, m[m >= 1.0]).any()


def test_a_code_that_no_loss_has_gives_no_number() -> None:
    for order in range(4):
        found, code = np.zeros(1), max(loss.code for loss in LOSSES.values()) + 1
        kernels.loss_at(kernels.Phi(code), order, np.zeros(1), np.zeros(0), found)
        assert np.isnan(found[0])
