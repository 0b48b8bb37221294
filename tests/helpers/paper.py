"""What Panagiotakopoulos and Tsampouka (2011) promise before a run, which only tests use.

Letters and ranges are those of ``streamtron.core.theory``; γ ≤ γ_d wherever ``gamma_d`` is asked.
"""

from __future__ import annotations

import math


def _power(base: float, exponent: float) -> float:
    """base ** exponent, infinite where a float cannot hold it (1/ε is a large exponent)."""
    try:
        return float(base**exponent)
    except OverflowError:
        return math.inf


def root_bounds(alpha: float, beta: float, epsilon: float) -> tuple[float, float]:
    """Lower and upper bound on the root of t^ε − α t^(ε−1) − β. Lemma 1.

    Between α + β^(1/ε) and α/ε + β^(1/ε) (in the other order for ε > 1).

    >>> root_bounds(2.0, 3.0, 0.5)
    (11.0, 13.0)
    """
    last = _power(beta, 1.0 / epsilon)
    low, high = sorted((alpha + last, alpha / epsilon + last))
    return low, high


def updates_bound_steps(R: float, b: float, epsilon: float, gamma_d: float) -> float:
    """t_c ≤ R²/(ε γ_d²) + (2/(2−ε) b/γ_d²)^(1/ε). Theorem 1; for ε > 1 without the 1/ε: Theorem 5.

    >>> updates_bound_steps(1.0, 5.0, 1.0, 0.5)
    44.0
    """
    return root_bounds((R / gamma_d) ** 2, 2.0 / (2.0 - epsilon) * b / gamma_d**2, epsilon)[1]


def updates_bound_length(R: float, b: float, epsilon: float, gamma_d: float) -> float:
    """t_c ≤ (A/ε + B^(1/ε)) ln(A/ε + B^(1/ε))^(1−ε), 0 < ε ≤ 1. Theorem 2; ε > 1: Theorem 5.

    A = (2+ε−2[ε]) R²/γ_d², B = (1+ε) b/γ_d^(1+ε). (In the proof of Lemma 4 a parenthesis is
    misplaced: read (1 + (1−ε) ln x/x)^(1−ε). The statement is right.)

    >>> updates_bound_length(1.0, 5.0, 1.0, 0.5)
    44.0
    """
    if epsilon > 1.0:
        return updates_bound_steps(R, b * gamma_d ** (1.0 - epsilon), epsilon, gamma_d)
    A = (2.0 + epsilon - 2.0 * int(epsilon == 1.0)) * (R / gamma_d) ** 2
    B = (1.0 + epsilon) * b / gamma_d ** (1.0 + epsilon)
    base = A / epsilon + _power(B, 1.0 / epsilon)
    return float(base * math.log(base) ** (1.0 - epsilon))


def fraction_bound_steps(R: float, b: float, epsilon: float, gamma_d: float) -> float:
    """The fraction that the steps variant reaches at least: (R²/b + 2/(2−ε))⁻¹ for ε ≤ 1.

    For ε > 1 (R²/b T^(ε−1) + 2/(2−ε))⁻¹, T the bound on t_c of Theorem 5.

    >>> round(fraction_bound_steps(1.0, 5.0, 1.0, 0.5), 6)
    0.454545
    """
    last = 1.0
    if epsilon > 1.0:
        last = updates_bound_steps(R, b, epsilon, gamma_d) ** (epsilon - 1.0)
    return float(1.0 / (R * R / b * last + 2.0 / (2.0 - epsilon)))


def fraction_bound_length(R: float, b: float, epsilon: float, gamma_d: float) -> float:
    """The fraction that the length variant reaches at least, Theorems 3 and 5.

    {(1+ε)^(2ε−[ε])/(2ε)^ε R^(1+ε)/b + 1+ε}⁻¹ for ε ≤ 1; beyond, that of steps with b γ_d^(1−ε).

    >>> round(fraction_bound_length(1.0, 5.0, 1.0, 0.5), 6)
    0.454545
    """
    if epsilon > 1.0:
        return fraction_bound_steps(R, b * gamma_d ** (1.0 - epsilon), epsilon, gamma_d)
    power = 2.0 * epsilon - int(epsilon == 1.0)
    factor = (1.0 + epsilon) ** power / (2.0 * epsilon) ** epsilon
    return float(1.0 / (factor * R ** (1.0 + epsilon) / b + 1.0 + epsilon))
