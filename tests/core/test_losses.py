"""Losses: values, slopes and curvatures agree with each other and with the oracle."""

from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamtron.core import kernels
from streamtron.core.losses import (
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
from streamtron.testing import LossTests
from tests.helpers.losses import EPSILON, ends, gain_of, loss_at, plain, plain_gain

U = kernels.UNIT_ROUNDOFF

numbers = st.just(0.0) | st.floats(-1e15, -1e-15) | st.floats(1e-15, 1e15)


def label_of(loss, t):
    """A label that the loss takes."""
    return abs(t) if loss == "poisson" else t


near_one = st.integers(0, 150).map(lambda n: 1.0 - n * U)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
@given(st.lists(st.floats(0.0, 1.5) | st.floats(0.0, 1e-300) | near_one, min_size=1), numbers)
def test_a_gain_equals_its_plain_oracle_bit_for_bit(loss, drawn, t):
    loss = replace(loss, epsilon=EPSILON)
    t = label_of(loss.name, t)
    drawn = [*drawn, *(-p for p in drawn), *(p * t for p in drawn)]
    found = gains(loss, np.array(drawn), np.full(len(drawn) if loss.numbers else 0, t))
    assert found.tolist() == [plain_gain(loss.name, p, t) for p in drawn]


@given(st.floats(-700.0, 700.0) | st.floats(-1.0, 1.0))
def test_the_logistic_loss_is_off_by_at_most_8_roundings(drawn):
    with mpmath.workdps(60):
        m = mpmath.mpf(drawn)
        slope = 1 / (1 + mpmath.exp(m))
        exact = loss_at("log_loss", m), slope, slope / (1 + mpmath.exp(-m))
        for of_loss, expected in zip((values, slopes, curvatures), exact, strict=True):
            [found] = of_loss(LOG_LOSS, np.array([drawn]))
            assert abs(found - expected) <= 8.0 * U * expected


@pytest.mark.parametrize("name", LOSSES)
@given(
    st.floats(-2.5, -1e-60) | st.floats(1e-60, 2.5) | near_one,
    st.floats(-24.0, 8.0),
    numbers,
    st.booleans(),
)
@example(EPSILON * (1.0 + 8.0 * U), -24.0, 3.0, False)
@example(1.0 + 8.0 * U, -24.0, 3.0, False)
@example(1.0, -24.0, 1e15, True)
@example(1.0 + 8.0 * U, -24.0, 1e15, True)
@example(1.0 - 127.0 * U, -24.0, 1e15, True)
@example(1.0 - 129.0 * U, -24.0, 1e15, True)
def test_a_gain_is_never_above_that_of_a_dual_variable_that_is_off_by_some_roundings(
    name, p, off, t, of_label
):
    """By 8 u, and where it is above the most also by the 16 u that all α are less by then."""
    loss, t = replace(LOSSES[name], epsilon=EPSILON), label_of(name, t)
    p = p * t if name == "poisson" and of_label and t else p
    with mpmath.workdps(200):
        q = p * (1 + mpmath.mpf(off) * U)
        found = gains(loss, np.array([p]), np.full(int(loss.numbers), t))[0]
        exact = gain_of(name, q, mpmath.mpf(t))
        assert found <= exact or exact == -mpmath.inf


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_an_expansion_has_value_slope_and_curvature_of_the_loss(loss):
    m = np.array([-3.0, -0.5, 0.3, 0.95, 2.0])
    smoothed = replace(loss, zone=0.25 if solved(loss).zone else 0.0)
    smoothed = replace(smoothed, epsilon=EPSILON)
    curvature, slope, constant = expansion(smoothed, m)
    assert curvature.tolist() == curvatures(smoothed, m).tolist()
    assert slope - curvature * m == pytest.approx(slopes(smoothed, m))
    assert 0.5 * curvature * m * m - slope * m + constant == pytest.approx(values(smoothed, m))


def test_a_code_that_no_loss_has_gives_no_number():
    for order in range(4):
        found, code = np.zeros(1), max(loss.code for loss in LOSSES.values()) + 1
        kernels.loss_at(kernels.Phi(code), order, np.full(1, 0.5), np.zeros(0), found)
        assert np.isnan(found[0])


def _tests_of(tested: Loss) -> type[LossTests]:
    class Tests(LossTests):
        loss = tested

        def oracle(self, z: float, t: float) -> tuple[float, float, float]:
            return plain(tested.name, z, tested.zone, t)

    return Tests


for _loss in LOSSES.values():
    for _zone in (0.0, 0.25, 1.0) if solved(_loss).zone else (0.0,):
        _tested = replace(_loss, zone=_zone, epsilon=EPSILON)
        globals()[f"Test_{_loss.name}_{_zone:g}"] = _tests_of(_tested)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_no_slope_is_above_the_most_and_a_sparse_loss_ends(loss):
    m, loss = np.array([-7.3, 0.2, 0.9, 1.1, 5.0]), replace(loss, epsilon=EPSILON)
    least, most = ends(loss.name, 3.0)
    slope = slopes(loss, m, np.full(len(m) if loss.numbers else 0, 3.0))
    assert ((least <= slope) & (slope <= most)).all()
    assert not loss.sparse or not values(loss, m[m >= 1.0]).any()
