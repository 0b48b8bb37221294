"""Bounds of the Margitron (Panagiotakopoulos and Tsampouka, 2011) as pure functions.

Two variants: ``steps`` (t-margitron, threshold b t^(1−ε)) and ``length`` (ℓ-margitron, threshold
b ‖a‖^(1−ε)); at ε = 1 they agree. All bounds follow from ‖a‖ ≥ γ_d t and from an upper bound on
‖a‖ that depends on the threshold. [ε] is 1 at ε = 1 and 0 below. The letters:

=============  ====================================================================================
``R``          largest length of an extended row, max ‖y_k‖ > 0
``b``          factor of the threshold, > 0, in units of R² (steps) or R^(1+ε) (length)
``epsilon``    ε, 0 < ε < 2 for steps, 0 < ε ≤ 1 for length
``gamma_d``    γ_d > 0, the maximum directional margin, or a bound on it; each function says which
``margin``     γ'_d > 0, the directional margin that a finished run has reached
``t``, ``t_c`` number of updates, and that at convergence; int ≥ 1
``delta``      δ > 0, how far a promised fraction may stay below its limit
``N``          integer, 1 ≤ N ≤ t_c, free in the bounds of the length variant
``length``     ‖a‖ > 0
=============  ====================================================================================

A *fraction* is γ'_d / γ_d. Every function raises ValueError for arguments outside these ranges.
"""

from __future__ import annotations

import math


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name} = {value!r}, but it must be positive and finite.")


def _epsilon(epsilon: float, holds: bool, wanted: str) -> None:
    if not holds:
        raise ValueError(f"epsilon = {epsilon!r}, but this formula holds for {wanted} only.")


def _updates(t: int) -> None:
    if not 1 <= t < math.inf:
        raise ValueError(f"t = {t!r}, but the bounds need at least one update.")


def _whole(epsilon: float) -> int:
    """Return [ε], the integer part, for ε ≤ 1."""
    return int(epsilon == 1.0)


def _kappa(epsilon: float) -> float:
    """Return 2/(2 − ε), the inverse of the largest fraction of the steps variant."""
    return 2.0 / (2.0 - epsilon)


# --- the length of a, and what follows from it after a run ---


def length_bound_steps(R: float, b: float, epsilon: float, t: int, excess: float = 0.0) -> float:
    """Bound ‖a‖ from above after t updates of the steps variant, 0 < ε < 2 (Theorem 1).

    √(E + R² t + 2/(2−ε) b t^(2−ε)), where E = ``excess`` is 0 for a run that began at a = 0.

    >>> length_bound_steps(1.0, 4.0, 1.0, 9)
    9.0
    """
    _positive(R=R, b=b)
    _epsilon(epsilon, 0.0 < epsilon < 2.0, "0 < ε < 2")
    _updates(t)
    return math.sqrt(excess + R * R * t + _kappa(epsilon) * b * t ** (2.0 - epsilon))


def length_bound_length(
    R: float, b: float, epsilon: float, gamma_d: float, t: int, N: int = 1
) -> float:
    """Bound ‖a‖ from above after t ≥ N updates of the length variant, 0 < ε ≤ 1 (Theorem 2).

    R {N^(1+ε) + (1+ε)/(2ε) (R/γ_d)^(1−ε) (t^ε − (N−ε+[ε])/N^(1−ε)) + (1+ε) b/R^(1+ε) t}^(1/(1+ε)).
    Any γ ≤ γ_d may be given for γ_d.

    >>> length_bound_length(1.0, 4.0, 1.0, 0.5, 9)
    9.0
    """
    _positive(R=R, b=b, gamma_d=gamma_d)
    _epsilon(epsilon, 0.0 < epsilon <= 1.0, "0 < ε ≤ 1")
    _updates(t)
    if not 1 <= N <= t:
        raise ValueError(f"N = {N!r}, but it must lie between 1 and t = {t}.")
    late = t**epsilon - (N - epsilon + _whole(epsilon)) / N ** (1.0 - epsilon)
    power = (
        N ** (1.0 + epsilon)
        + (1.0 + epsilon) / (2.0 * epsilon) * (R / gamma_d) ** (1.0 - epsilon) * late
        + (1.0 + epsilon) * b / R ** (1.0 + epsilon) * t
    )
    return float(R * power ** (1.0 / (1.0 + epsilon)))


def best_N(R: float, epsilon: float, margin: float, t_c: int) -> int:
    """Return a nearly optimal N for ``f_est_length``, [½ (R/γ'_d)^(1−ε)] + 1, at most t_c.

    >>> best_N(1.0, 0.5, 0.01, 1000), best_N(1.0, 0.5, 0.01, 3)
    (6, 3)
    """
    _positive(R=R, margin=margin)
    _epsilon(epsilon, 0.0 < epsilon <= 1.0, "0 < ε ≤ 1")
    _updates(t_c)
    return int(min(t_c, math.floor(0.5 * (R / margin) ** (1.0 - epsilon)) + 1))


def direct_fraction_steps(b: float, epsilon: float, t: int, length: float) -> float:
    """Bound the fraction from below by b t^(2−ε) / ‖a‖² after convergence (steps, 0 < ε < 2).

    From γ'_d ‖a‖ > b t^(1−ε) and γ_d ≤ ‖a‖/t; holds after any warm start and is never below f_est.

    >>> direct_fraction_steps(4.0, 1.0, 9, 8.0)
    0.5625
    """
    _positive(b=b, length=length)
    _epsilon(epsilon, 0.0 < epsilon < 2.0, "0 < ε < 2")
    _updates(t)
    return float(b * t ** (2.0 - epsilon) / (length * length))


def direct_fraction_length(b: float, epsilon: float, t: int, length: float) -> float:
    """Bound the fraction from below by b t / ‖a‖^(1+ε) after convergence (length, 0 < ε < 2).

    From γ'_d ‖a‖ > b ‖a‖^(1−ε) and γ_d ≤ ‖a‖/t.

    >>> direct_fraction_length(4.0, 1.0, 9, 8.0)
    0.5625
    """
    _positive(b=b, length=length)
    _epsilon(epsilon, 0.0 < epsilon < 2.0, "0 < ε < 2")
    _updates(t)
    return float(b * t / length ** (1.0 + epsilon))


def f_est_steps(R: float, b: float, epsilon: float, t_c: int, excess: float = 0.0) -> float:
    """Return the after-run estimate f_est of the steps variant, 0 < ε < 2 (Theorems 1 and 5).

    The fraction is at least (E/(b t_c^(2−ε)) + R²/b t_c^(ε−1) + 2/(2−ε))⁻¹, E = ``excess``: the
    direct fraction at the longest possible a.

    >>> round(f_est_steps(1.0, 5.0, 1.0, 1000), 6)  # 1/(1/5 + 2)
    0.454545
    """
    return direct_fraction_steps(b, epsilon, t_c, length_bound_steps(R, b, epsilon, t_c, excess))


def f_est_length(
    R: float, b: float, epsilon: float, t_c: int, margin: float, N: int | None = None
) -> float:
    """Return the after-run estimate f_est of the length variant, 0 < ε ≤ 1 (Theorem 2).

    The fraction is at least b t_c / L^(1+ε), L the bound on ‖a‖ with γ'_d for γ_d. Any N holds;
    None is ``best_N``.

    >>> round(f_est_length(1.0, 5.0, 1.0, 1000, 0.1), 6)
    0.454545
    """
    chosen = best_N(R, epsilon, margin, t_c) if N is None else N
    longest = length_bound_length(R, b, epsilon, margin, t_c, chosen)
    return direct_fraction_length(b, epsilon, t_c, longest)


def upper_bound_after_run(R: float, b: float, epsilon: float, t_c: int) -> float:
    """Bound γ_d from above by R √(1/t_c + 2/(2−ε) b/R² t_c^(−ε)) (steps; Remark 1).

    0 < ε < 2. At ε = 1, where both variants agree, it is R √((1 + 2b/R²)/t_c).

    >>> upper_bound_after_run(1.0, 4.0, 1.0, 9)
    1.0
    """
    return length_bound_steps(R, b, epsilon, t_c) / t_c


def upper_bound_after_run_length(
    R: float, b: float, epsilon: float, t_c: int, margin: float, N: int | None = None
) -> float:
    """Bound γ_d from above by L/t_c, L the bound on ‖a‖ with γ'_d for γ_d (length, 0 < ε ≤ 1).

    Never above γ'_d / f_est and never below ‖a‖/t_c. None is ``best_N``.

    >>> upper_bound_after_run_length(1.0, 4.0, 1.0, 9, 0.1)
    1.0
    """
    chosen = best_N(R, epsilon, margin, t_c) if N is None else N
    return length_bound_length(R, b, epsilon, margin, t_c, chosen) / t_c


# --- the choice of b ---


def promised_fraction_length(epsilon: float, delta: float) -> float:
    """Return (δ + 1 + ε)⁻¹, the fraction that ``b_length`` promises, 0 < ε ≤ 1 (Theorem 3).

    >>> promised_fraction_length(1.0, 0.5)
    0.4
    """
    _positive(delta=delta)
    _epsilon(epsilon, 0.0 < epsilon <= 1.0, "0 < ε ≤ 1")
    return 1.0 / (delta + 1.0 + epsilon)


def b_length(R: float, epsilon: float, delta: float, gamma_d: float) -> float:
    """Choose b for the length variant from γ ≥ γ_d, 0 < ε ≤ 1 (Theorem 3).

    R^(1+ε) (1+ε)^(3ε−1−[ε]) (2εδ)^(−ε) (γ_d/R)^(1−ε); R²/δ at ε = 1. The paper's second stage has
    γ_up of the first stage for γ_d, and δ = 1. With a tight γ_up, as ‖a‖/t is, take a smaller δ.

    >>> b_length(3.0, 1.0, 1.0, 0.1)
    9.0
    >>> round(1e5 * b_length(15**0.5, 0.1, 1.0, 0.0113517) / 15**0.55, 1)  # Adult, Table 4
    577.1
    """
    _positive(R=R, delta=delta, gamma_d=gamma_d)
    _epsilon(epsilon, 0.0 < epsilon <= 1.0, "0 < ε ≤ 1")
    factor = (1.0 + epsilon) ** (3.0 * epsilon - 1.0 - _whole(epsilon))
    relative = factor / (2.0 * epsilon * delta) ** epsilon * (gamma_d / R) ** (1.0 - epsilon)
    return float(R ** (1.0 + epsilon) * relative)


# --- primal and dual ---


def primal_from_margin(gamma_d: float) -> float:
    """Return P* = 1/(2 γ_d²), the optimum of LIBLINEAR's objective (L2-loss SVM).

    >>> primal_from_margin(0.5)
    2.0
    """
    _positive(gamma_d=gamma_d)
    return 1.0 / (2.0 * gamma_d * gamma_d)


def weights_radius(primal: float, dual: float) -> float:
    """Bound ‖w − w*‖ by √(2(P − D)), as P is strongly convex; 0 if rounding puts D above P.

    >>> weights_radius(10.0, 2.0)
    4.0
    """
    return math.sqrt(2.0 * max(0.0, primal - dual))


def decision_radius(primal_margin: float, upper_bound: float | None) -> float:
    """Bound ‖w − w*‖ by √(1/γ′² − 1/U²), rounding included; ∞ where nothing is proven.

    γ′ is the primal margin of w and U ≥ γ_d. Every decision value of a row x is within ‖(x, ρ)‖
    times this of the optimum's.

    >>> round(decision_radius(0.2, 0.25), 9)
    3.0
    >>> decision_radius(0.0, 0.25)
    inf
    >>> decision_radius(0.2, 0.2) > 0.0
    True
    """
    if upper_bound is None or primal_margin <= 0.0:
        return math.inf
    primal, dual = primal_from_margin(primal_margin), primal_from_margin(upper_bound)
    rounding = 2.0**-49
    return weights_radius(primal * (1.0 + rounding), dual * (1.0 - rounding)) * (1.0 + rounding)
