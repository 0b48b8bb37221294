"""Losses: values, slopes and curvatures agree with each other and with the oracle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtron.core import kernels
from streamtron.core.losses import LOSSES, Loss, curvatures, slopes, values

margins = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@dataclass(frozen=True)
class Plain:
    """φ, −φ' and φ'' in plain Python."""

    loss: Loss

    def at(self, m: float) -> tuple[float, float, float]:
        assert self.loss.name == "squared_hinge"
        slack = max(1.0 - m, 0.0)
        return slack * slack, 2.0 * slack, 2.0 if m < 1.0 else 0.0


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
@given(drawn=margins)
def test_a_loss_equals_its_plain_oracle_bit_for_bit(loss: Loss, drawn: list[float]) -> None:
    at = [Plain(loss).at(m) for m in drawn]
    for number, of_loss in enumerate((values, slopes, curvatures)):
        assert of_loss(loss, np.array(drawn)).tolist() == [one[number] for one in at]


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_slopes_and_curvatures_are_those_of_the_values(loss: Loss) -> None:
    m, h = np.array([-7.3, -1.0, 0.2, 0.9, 1.1, 5.0]), 1e-4
    change = (values(loss, m + h) - values(loss, m - h)) / (2.0 * h)
    assert slopes(loss, m) == pytest.approx(-change, abs=1e-6)
    bend = (values(loss, m + h) - 2.0 * values(loss, m) + values(loss, m - h)) / h**2
    assert curvatures(loss, m) == pytest.approx(bend, abs=1e-4)
    assert (slopes(loss, m) <= loss.most).all()
    assert not loss.sparse or not values(loss, m[m >= 1.0]).any()


def test_a_code_that_no_loss_has_gives_no_number() -> None:
    for order in range(3):
        found = np.zeros(1)
        kernels.loss_at(max(loss.code for loss in LOSSES.values()) + 1, order, np.zeros(1), found)
        assert np.isnan(found[0])
