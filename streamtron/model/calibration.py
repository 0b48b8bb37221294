"""Probabilities of a model's decisions: Platt's sigmoid, or isotonic regression.

Each direction of a model is calibrated by itself, with scikit-learn's formulas. Of a multiclass
model the probabilities of a row are divided by their sum (Zadrozny and Elkan, 2002), and are all
1/K where that is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeGuard, get_args

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import SettingsError

Floats = NDArray[np.float64]
Method = Literal["sigmoid", "isotonic"]
METHODS: tuple[Method, ...] = get_args(Method)

Records = Callable[[], Iterable[Floats]]
"""Gives all rows anew, in blocks of shape (rows, 3): −decision, the weight as a positive row, the
weight as a negative one; see ``ScoreSpool.records``."""


def fit_sigmoid(records: Records) -> dict[str, float]:
    """Fit a and b of p = 1/(1 + exp(a f + b)) to decisions f.

    The log loss Σ w_k (−t_k log p_k − (1 − t_k) log(1 − p_k)) is minimised for the targets
    t = (N₊ + 1)/(N₊ + 2) of positive rows and 1/(N₋ + 2) of others, where N are sums of weights
    (Platt, 1999, section 2.2). The records are read some thirty times.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    positives = negatives = scale = 0.0
    for block in records():
        positives, negatives = positives + block[:, 1].sum(), negatives + block[:, 2].sum()
        scale = max(scale, np.abs(block[:, 0]).max())
    scale = scale or 1.0
    targets = np.array([(positives + 1.0) / (positives + 2.0), 1.0 / (negatives + 2.0)])

    @lru_cache(maxsize=2)
    def sums(a: float, b: float) -> Floats:
        """Return the loss, its two derivatives, and the three second ones."""
        found = np.zeros(6)
        for block in records():
            x, own, other = block[:, 0] / scale, block[:, 1], block[:, 2]
            logits, weights, wanted = a * x - b, own + other, own * targets[0] + other * targets[1]
            p = expit(logits)
            slope, curve = weights * p - wanted, weights * p * (1.0 - p)
            loss = weights * np.logaddexp(0.0, logits) - wanted * logits
            # sums without BLAS, whose order depends on its threads
            found += [each.sum() for each in
                      (loss, slope * x, -slope, curve * x * x, -curve * x, curve)]  # fmt: skip
        return found / (positives + negatives)

    a, b = minimize(
        lambda ab: sums(*ab)[0], [0.0, np.log((negatives + 1.0) / (positives + 1.0))],
        jac=lambda ab: sums(*ab)[1:3], hess=lambda ab: sums(*ab)[[[3, 4], [4, 5]]],
        method="trust-exact", options={"gtol": 1e-10},
    ).x.tolist()  # fmt: skip
    return {"a": a / float(scale), "b": b}


def fit_isotonic(ranked: Iterable[Floats]) -> dict[str, list[float]]:
    """Fit the rising function of least squares to truth 0 or 1; its values at some decisions, in
    rising order, between which it is linear and beyond which it is constant.

    Adjacent violators are pooled block by block: what is pooled in a part stays so in the whole.

    Parameters
    ----------
    ranked : blocks of records, falling in their decisions.
    """
    from scipy.optimize import isotonic_regression

    pools = np.empty((0, 4))  # −decision of the first and the last row, weights of both kinds
    for block in ranked:
        pools = np.concatenate([pools, block[:, [0, 0, 1, 2]]])
        shares = pools[:, 2] / (pools[:, 2] + pools[:, 3])
        weights = pools[:, 2] + pools[:, 3]
        starts = isotonic_regression(shares, weights=weights, increasing=False).blocks
        ends = pools[starts[1:] - 1, 1]
        sums = np.add.reduceat(pools[:, 2:], starts[:-1])
        pools = np.column_stack([pools[starts[:-1], 0], ends, sums])
    last, first, own, other = pools[::-1].T
    shares = np.maximum.accumulate(own / (own + other))  # equal ones up to rounding
    twice = np.column_stack(
        [np.column_stack([0.0 - first, 0.0 - last]).ravel(), np.repeat(shares, 2)]
    )
    kept = twice[np.append(True, twice[1:, 0] > twice[:-1, 0])]
    return {"decisions": kept[:, 0].tolist(), "probabilities": kept[:, 1].tolist()}


def probabilities(calibration: Mapping[str, Any], decisions: Floats, *, sum_to_one: bool) -> Floats:
    """Return the probability that a row has the positive class of each direction, of the shape of
    ``decisions``, (rows,) or (rows, K)."""
    from scipy.special import expit  # 6 MB of memory that few need

    columns = decisions.reshape(len(decisions), -1).T
    found = np.empty_like(columns)
    for own, direction, values in zip(found, calibration["directions"], columns, strict=True):
        if calibration["method"] == "sigmoid":
            own[:] = expit(-(direction["a"] * values + direction["b"]))
        else:
            own[:] = np.interp(values, direction["decisions"], direction["probabilities"])
    if sum_to_one:
        total = found.sum(axis=0)
        found = np.divide(found, total, out=np.full_like(found, 1.0 / len(found)), where=total > 0)
    return found.T.reshape(decisions.shape)


def check_calibration(calibration: Mapping[str, Any], directions: int) -> None:
    """Raise a SettingsError unless it is what ``probabilities`` takes for so many directions."""
    own = calibration.get("directions")
    if not (
        isinstance(own, list)
        and len(own) == directions
        and all(isinstance(each, dict) and _is_function(calibration, each) for each in own)
    ):
        raise SettingsError(
            "calibration: not the functions of a model of so many classes. Make them with "
            "streamtron.calibrate."
        )


def _is_function(calibration: Mapping[str, Any], direction: Mapping[str, Any]) -> bool:
    if calibration.get("method") == "sigmoid":
        return all(isinstance(direction.get(name), int | float) for name in "ab")
    x, y = direction.get("decisions"), direction.get("probabilities")
    if calibration.get("method") != "isotonic" or not (_are_numbers(x) and _are_numbers(y)):
        return False
    rising = sorted(set(x)) == x and sorted(y) == y
    return rising and len(x) == len(y) > 0 and 0 <= y[0] <= y[-1] <= 1


def _are_numbers(values: Any) -> TypeGuard[list[float]]:
    return isinstance(values, list) and all(isinstance(one, int | float) for one in values)
