"""Bounds of the Margitron (Panagiotakopoulos and Tsampouka, 2011) that a fit reports or plans by.

Two variants: ``steps`` (t-margitron, threshold b t^(1−ε)) and ``length`` (ℓ-margitron, threshold
b ‖a‖^(1−ε)); at ε = 1 they agree. All bounds follow from ‖a‖ ≥ γ_d t and from an upper bound on
‖a‖ that depends on the threshold. [ε] is 1 at ε = 1 and 0 below. A *fraction* is γ'_d / γ_d. A
bound on ‖a‖ after t updates also bounds γ_d, divided by t, and the fraction, put into the direct
fraction for ‖a‖. Nothing is checked here: settings are, and stages. The letters:

=============  ====================================================================================
``R``          largest length of an extended row, max ‖y_k‖ > 0
``b``          factor of the threshold, > 0, in units of R² (steps) or R^(1+ε) (length)
``epsilon``    ε, 0 < ε < 2 for steps, 0 < ε ≤ 1 for length
``gamma_d``    γ_d > 0, the maximum directional margin, or a bound on it; each function says which
``t``          number of updates, int ≥ 1; at convergence where a fraction is bounded
``delta``      δ > 0: the fraction promised is (δ + 1 + ε)⁻¹
``length``     ‖a‖ > 0
=============  ====================================================================================
"""

from __future__ import annotations

import math


def length_bound_steps(R: float, b: float, epsilon: float, t: int) -> float:
    """‖a‖ ≤ √(R² t + 2/(2−ε) b t^(2−ε)) after t updates of the steps variant (Theorem 1).

    Divided by t it bounds γ_d (Remark 1); for both variants at ε = 1.

    >>> length_bound_steps(1.0, 4.0, 1.0, 9)
    9.0
    """
    return math.sqrt(R * R * t + 2.0 / (2.0 - epsilon) * b * t ** (2.0 - epsilon))


def length_bound_length(R: float, b: float, epsilon: float, gamma_d: float, t: int) -> float:
    """Bound ‖a‖ from above after t updates of the length variant (Theorem 2).

    R {N^(1+ε) + (1+ε)/(2ε) (R/γ_d)^(1−ε) (t^ε − (N−ε+[ε])/N^(1−ε)) + (1+ε) b/R^(1+ε) t}^(1/(1+ε)).
    Any γ ≤ γ_d may be given for γ_d, such as γ'_d. It holds for any N from 1 to t; a nearly optimal
    one is taken: [½ (R/γ_d)^(1−ε)] + 1, at most t.

    >>> length_bound_length(1.0, 4.0, 1.0, 0.5, 9)
    9.0
    """
    ratio, integer_part = (R / gamma_d) ** (1.0 - epsilon), int(epsilon == 1.0)
    N = int(min(t, math.floor(0.5 * ratio) + 1))
    late = t**epsilon - (N - epsilon + integer_part) / N ** (1.0 - epsilon)
    power = (
        N ** (1.0 + epsilon)
        + (1.0 + epsilon) / (2.0 * epsilon) * ratio * late
        + (1.0 + epsilon) * b / R ** (1.0 + epsilon) * t
    )
    return float(R * power ** (1.0 / (1.0 + epsilon)))


def direct_fraction_steps(b: float, epsilon: float, t: int, length: float) -> float:
    """The fraction is at least b t^(2−ε) / ‖a‖² after convergence (steps).

    From γ'_d ‖a‖ > b t^(1−ε) and γ_d ≤ ‖a‖/t, after any warm start. At the longest possible a it
    is f_est (Theorems 1 and 5), for a run that began at a = 0.

    >>> direct_fraction_steps(4.0, 1.0, 9, 8.0)
    0.5625
    """
    return float(b * t ** (2.0 - epsilon) / (length * length))


def direct_fraction_length(b: float, epsilon: float, t: int, length: float) -> float:
    """The fraction is at least b t / ‖a‖^(1+ε) after convergence (length, 0 < ε < 2).

    From γ'_d ‖a‖ > b ‖a‖^(1−ε) and γ_d ≤ ‖a‖/t. At the longest possible a, with γ'_d for γ_d, it
    is f_est (Theorem 2).

    >>> direct_fraction_length(4.0, 1.0, 9, 8.0)
    0.5625
    """
    return float(b * t / length ** (1.0 + epsilon))


def b_length(R: float, epsilon: float, delta: float, gamma_d: float) -> float:
    """Choose b for the length variant from γ ≥ γ_d (Theorem 3).

    R^(1+ε) (1+ε)^(3ε−1−[ε]) (2εδ)^(−ε) (γ_d/R)^(1−ε); R²/δ at ε = 1. The paper's second stage has
    γ_up of the first stage for γ_d, and δ = 1. With a tight γ_up, as ‖a‖/t is, take a smaller δ.

    >>> b_length(3.0, 1.0, 1.0, 0.1)
    9.0
    >>> round(1e5 * b_length(15**0.5, 0.1, 1.0, 0.0113517) / 15**0.55, 1)  # Adult, Table 4
    577.1
    """
    factor = (1.0 + epsilon) ** (3.0 * epsilon - 1.0 - int(epsilon == 1.0))
    relative = factor / (2.0 * epsilon * delta) ** epsilon * (gamma_d / R) ** (1.0 - epsilon)
    return float(R ** (1.0 + epsilon) * relative)


def decision_radius(primal: float | None, dual: float | None, ratio: float = 0.0) -> float:
    """‖w − w*‖ ≤ √(2(P − D)), as P of any loss is strongly convex; ∞ where one is not proven.
    ``ratio`` : r of a penalty with a 1-norm: then it is √(2(P − D)/(1 − r)).

    Rounding is included. Every decision value of a row x is within ‖(x, ρ)‖ times this of the
    optimum's.

    >>> round(decision_radius(12.5, 8.0), 9), decision_radius(None, 8.0)
    (3.0, inf)
    >>> round(decision_radius(12.5, 8.0, 0.75), 9), decision_radius(12.5, 8.0, 1.0)
    (6.0, inf)
    >>> decision_radius(12.5, 12.5) > 0.0
    True
    """
    if ratio == 1.0:
        return math.inf
    radius = math.sqrt(2.0 / (1.0 - ratio)) * midpoint_radius(primal, dual, 0.0)
    return radius * (1.0 + 2.0**-49)


def midpoint_radius(primal: float | None, dual: float | None, apart: float) -> float:
    """‖(w + v)/2 − w*‖ ≤ √(P(w) − D(α) − ¼ ‖w − v‖²) with v = Σ α_k l_k (x_k, ρ); ∞ where P or D is
    not proven.

    The sum of P(w) − P* ≥ ½ ‖w − w*‖² and P* − D(α) ≥ ½ ‖v − w*‖², by the parallelogram law.
    ``apart`` : at most ‖w − v‖. Rounding is included.

    >>> round(midpoint_radius(12.5, 8.0, 3.0), 9)  # half of the radius around w
    1.5
    """
    if not primal or not dual or primal == math.inf:
        return math.inf
    rounding = 2.0**-49
    gap = primal * (1.0 + rounding) - dual * (1.0 - rounding)
    return math.sqrt(max(0.0, gap - 0.25 * apart * apart * (1.0 - rounding))) * (1.0 + rounding)
