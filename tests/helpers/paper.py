"""Bounds and choices of b of Panagiotakopoulos and Tsampouka (2011) that only tests use.

Letters and ranges are those of ``streamtron.core.theory``.
"""

from __future__ import annotations

import math

from streamtron.core.theory import _whole, b_length, length_bound_steps


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


def _kappa(epsilon: float) -> float:
    """2/(2 − ε), the inverse of the largest fraction of the steps variant."""
    return 2.0 / (2.0 - epsilon)


def _power(base: float, exponent: float) -> float:
    """base ** exponent, infinite where a float cannot hold it (1/ε is a large exponent)."""
    try:
        return float(base**exponent)
    except OverflowError:
        return math.inf


def root_bounds(alpha: float, beta: float, epsilon: float) -> tuple[float, float]:
    """Lower and upper bound on the root t_b of t^ε − α t^(ε−1) − β. Lemma 1.

    Between α + β^(1/ε) and α/ε + β^(1/ε) (in the other order for ε > 1). The paper asks α ≥ 1;
    α > 0 is enough for the bounds themselves.

    >>> root_bounds(2.0, 3.0, 0.5)
    (11.0, 13.0)
    """
    _positive(alpha=alpha, beta=beta, epsilon=epsilon)
    last = _power(beta, 1.0 / epsilon)
    low, high = sorted((alpha + last, alpha / epsilon + last))
    return low, high


def warm_start_excess(R: float, b: float, epsilon: float, t_0: int, length: float) -> float:
    """By how much ‖a₀‖² exceeds what t₀ updates from a = 0 could have made it; ≥ 0.

    0: Theorem 1 and Remark 1 hold after the warm start as they stand, t₀ counted in t. Otherwise
    the excess is added to the square of `length_bound_steps`. Not in the paper: its
    induction on begun at t₀. The same test serves Theorem 5.

    >>> warm_start_excess(1.0, 4.0, 1.0, 9, 10.0)
    19.0
    """
    return max(0.0, length * length - length_bound_steps(R, b, epsilon, t_0) ** 2)


def N_is_constrained(R: float, epsilon: float, margin: float, t_c: int, N: int) -> bool:
    """Whether N satisfies one of the conditions of Theorem 2 on N, 0 < ε < 1.

    t_c ≥ N ≥ (1+ε)/2 (R/γ'_d)^(1−ε), or t_c ≥ N ((1−ε/N)/(1−ε))^(1/ε). The paper asks this of the
    N in f_est. It is not needed: `f_est_length` is a lower bound for every 1 ≤ N ≤ t_c.

    >>> N_is_constrained(1.0, 0.5, 0.01, 1000, 1), N_is_constrained(1.0, 0.5, 0.01, 5, 3)
    (True, False)
    """
    _positive(R=R, margin=margin)
    _epsilon(epsilon, 0.0 < epsilon < 1.0, "0 < ε < 1")
    _updates(t_c)
    least = 0.5 * (1.0 + epsilon) * (R / margin) ** (1.0 - epsilon)
    earliest = N * _power((1.0 - epsilon / N) / (1.0 - epsilon), 1.0 / epsilon)
    return least <= N <= t_c or t_c >= earliest


def updates_bound_steps(R: float, b: float, epsilon: float, gamma_d: float) -> float:
    """t_c ≤ R²/(ε γ_d²) + (2/(2−ε) b/γ_d²)^(1/ε). Theorem 1; wants γ ≤ γ_d.

    For 1 < ε < 2 without the 1/ε: Theorem 5.

    >>> updates_bound_steps(1.0, 5.0, 1.0, 0.5)
    44.0
    """
    _positive(R=R, b=b, gamma_d=gamma_d)
    _epsilon(epsilon, 0.0 < epsilon < 2.0, "0 < ε < 2")
    return root_bounds((R / gamma_d) ** 2, _kappa(epsilon) * b / gamma_d**2, epsilon)[1]


def updates_bound_length(R: float, b: float, epsilon: float, gamma_d: float) -> float:
    """t_c ≤ (A/ε + B^(1/ε)) ln(A/ε + B^(1/ε))^(1−ε), 0 < ε ≤ 1. Theorem 2.

    A = (2+ε−2[ε]) R²/γ_d², B = (1+ε) b/γ_d^(1+ε); wants γ ≤ γ_d. For 1 < ε < 2, Theorem 5:
    R²/γ_d² + (2/(2−ε) b/γ_d^(1+ε))^(1/ε). (In the proof of Lemma 4 a parenthesis is misplaced:
    read (1 + (1−ε) ln x/x)^(1−ε). The statement is right.)

    >>> updates_bound_length(1.0, 5.0, 1.0, 0.5)
    44.0
    """
    _positive(R=R, b=b, gamma_d=gamma_d)
    _epsilon(epsilon, 0.0 < epsilon < 2.0, "0 < ε < 2")
    if epsilon > 1.0:
        return updates_bound_steps(R, b * gamma_d ** (1.0 - epsilon), epsilon, gamma_d)
    A = (2.0 + epsilon - 2.0 * _whole(epsilon)) * (R / gamma_d) ** 2
    B = (1.0 + epsilon) * b / gamma_d ** (1.0 + epsilon)
    base = A / epsilon + _power(B, 1.0 / epsilon)
    return float(base * math.log(base) ** (1.0 - epsilon))


def limit_fraction_steps(epsilon: float) -> float:
    """1 − ε/2, the fraction the steps variant promises as b → ∞, 0 < ε < 2. Theorems 1 and 5.

    >>> limit_fraction_steps(1.0)
    0.5
    """
    _epsilon(epsilon, 0.0 < epsilon < 2.0, "0 < ε < 2")
    return 1.0 - epsilon / 2.0


def limit_fraction_length(epsilon: float) -> float:
    """1/(1+ε) for ε ≤ 1, 1 − ε/2 beyond: the length variant as b → ∞. Theorems 2 and 5.

    >>> limit_fraction_length(0.25), limit_fraction_length(1.5)
    (0.8, 0.25)
    """
    _epsilon(epsilon, 0.0 < epsilon < 2.0, "0 < ε < 2")
    return 1.0 / (1.0 + epsilon) if epsilon <= 1.0 else 1.0 - epsilon / 2.0


def fraction_bound_steps(R: float, b: float, epsilon: float, gamma_d: float | None = None) -> float:
    """The fraction the steps variant will reach at least, known before the run.

    ε ≤ 1: (R²/b + 2/(2−ε))⁻¹, for which γ_d is not needed and not used.
    1 < ε < 2, where that is false: (R²/b T^(ε−1) + 2/(2−ε))⁻¹, T the bound on t_c of Theorem 5,
    which wants γ ≤ γ_d.

    >>> round(fraction_bound_steps(1.0, 5.0, 1.0), 6)
    0.454545
    """
    _positive(R=R, b=b)
    _epsilon(epsilon, 0.0 < epsilon < 2.0, "0 < ε < 2")
    if epsilon <= 1.0:
        return 1.0 / (R * R / b + _kappa(epsilon))
    if gamma_d is None:
        raise ValueError(f"epsilon = {epsilon!r}: above 1 the promise needs gamma_d, a lower bound")
    last = updates_bound_steps(R, b, epsilon, gamma_d) ** (epsilon - 1.0)
    return float(1.0 / (R * R / b * last + _kappa(epsilon)))


def fraction_bound_length(
    R: float, b: float, epsilon: float, gamma_d: float | None = None
) -> float:
    """The fraction the length variant will reach at least, known before the run.

    ε ≤ 1: {(1+ε)^(2ε−[ε])/(2ε)^ε R^(1+ε)/b + 1+ε}⁻¹,; γ_d is not used.
    1 < ε < 2: Theorem 5, as `fraction_bound_steps` with b γ_d^(1−ε) for b; wants γ ≤ γ_d.

    >>> round(fraction_bound_length(1.0, 5.0, 1.0), 6)
    0.454545
    """
    _positive(R=R, b=b)
    _epsilon(epsilon, 0.0 < epsilon < 2.0, "0 < ε < 2")
    if epsilon <= 1.0:
        factor = (1.0 + epsilon) ** (2.0 * epsilon - _whole(epsilon)) / (2.0 * epsilon) ** epsilon
        return float(1.0 / (factor * R ** (1.0 + epsilon) / b + 1.0 + epsilon))
    if gamma_d is None:
        raise ValueError(f"epsilon = {epsilon!r}: above 1 the promise needs gamma_d, a lower bound")
    _positive(gamma_d=gamma_d)
    return fraction_bound_steps(R, b * gamma_d ** (1.0 - epsilon), epsilon, gamma_d)


def threshold_peak(R: float, b: float, epsilon: float) -> float:
    """t_⋆, where the lower bound on the normalised threshold of Remark 2 is largest, 0 < ε ≤ 1.

    ((1−2ε)(2−ε)/(2ε) R²/b)^(1/(1−ε)) for ε < ½, Remark 2; a maximum on t ≥ 1 only if t_⋆ ≥ 1.
    For ε ≥ ½ the bound only falls and 0 is returned (the paper's expression is ≤ 0 there, and
    undefined at ε = 1).

    >>> threshold_peak(1.0, 0.01, 0.25) > 1.0, threshold_peak(1.0, 0.01, 0.5)
    (True, 0.0)
    """
    _positive(R=R, b=b)
    _epsilon(epsilon, 0.0 < epsilon <= 1.0, "0 < ε ≤ 1")
    if epsilon >= 0.5:
        return 0.0
    base = (1.0 - 2.0 * epsilon) * (2.0 - epsilon) / (2.0 * epsilon) * R * R / b
    return float(base ** (1.0 / (1.0 - epsilon)))


def least_b_steps(R: float, epsilon: float, gamma_d: float) -> float:
    """The b from which on Remark 2 holds for ε < ½: R² (γ/R)(1 + 2/(2−ε) γ/R); 0 for ε ≥ ½.

    It makes sure that C(1) ≥ γ_d; wants γ ≥ γ_d. Below it the bounds of Remark 2 are false.

    >>> least_b_steps(1.0, 0.4, 0.2), least_b_steps(1.0, 0.5, 0.2)
    (0.25, 0.0)
    """
    _positive(R=R, gamma_d=gamma_d)
    _epsilon(epsilon, 0.0 < epsilon <= 1.0, "0 < ε ≤ 1")
    if epsilon >= 0.5:
        return 0.0
    return R * gamma_d * (1.0 + _kappa(epsilon) * gamma_d / R)


def strong_fraction_bound_steps(R: float, b: float, epsilon: float, gamma_d: float) -> float:
    """Before the run, (R²/b t_b^(ε−1) + 2/(2−ε))⁻¹, 0 < ε ≤ 1. Remark 2.

    t_b is put at its lower bound of Lemma 1, which promises no more. Wants γ ≥ γ_d and, for ε < ½,
    b ≥ `least_b_steps` (ValueError otherwise: the paper's bound is false there).

    >>> strong_fraction_bound_steps(1.0, 5.0, 0.5, 0.1) > fraction_bound_steps(1.0, 5.0, 0.5)
    True
    """
    _positive(R=R, b=b)
    least = least_b_steps(R, epsilon, gamma_d)
    if b < least:
        raise ValueError(f"b = {b!r}, but for ε < ½ Remark 2 needs b ≥ {least!r} (least_b_steps).")
    t_b, _ = root_bounds((R / gamma_d) ** 2, _kappa(epsilon) * b / gamma_d**2, epsilon)
    return float(1.0 / (R * R / b * t_b ** (epsilon - 1.0) + _kappa(epsilon)))


def strong_fraction_bound_length(R: float, b: float, epsilon: float, gamma_d: float) -> float:
    """Before the run, {K R^(1+ε)/b (R/γ_d)^(1−ε) t^(ε−1) + 1+ε}⁻¹, 0 < ε ≤ 1. Theorem 3.

    K = (1+ε)^(2−[ε])/(2ε); t is the lower bound of Lemma 1 on the root of its equation for t. Wants
    γ ≥ γ_d. Never below `fraction_bound_length`, and what a b from `b_length` really promises.

    >>> round(strong_fraction_bound_length(1.0, 5.0, 1.0, 0.1), 6)
    0.454545
    """
    _positive(R=R, b=b, gamma_d=gamma_d)
    _epsilon(epsilon, 0.0 < epsilon <= 1.0, "0 < ε ≤ 1")
    K = (1.0 + epsilon) ** (2 - _whole(epsilon)) / (2.0 * epsilon)
    B = (1.0 + epsilon) * b / gamma_d ** (1.0 + epsilon)
    t, _ = root_bounds(K * (R / gamma_d) ** 2, B, epsilon)
    tail = K * R * R / (b * gamma_d ** (1.0 - epsilon)) * t ** (epsilon - 1.0)
    return float(1.0 / (tail + 1.0 + epsilon))


def promised_fraction_steps(epsilon: float, delta: float) -> float:
    """(δ + 2/(2−ε))⁻¹, what `b_steps` promises, 0 < ε ≤ 1. Remark 2.

    >>> promised_fraction_steps(1.0, 0.5)
    0.4
    """
    _positive(delta=delta)
    _epsilon(epsilon, 0.0 < epsilon <= 1.0, "0 < ε ≤ 1")
    return 1.0 / (delta + _kappa(epsilon))


def b_steps(R: float, epsilon: float, delta: float, gamma_d: float) -> float:
    """b = R² (1−ε/2)^(1−ε) δ^(−ε) (γ_d²/R²)^(1−ε), 0 < ε ≤ 1. Remark 2; wants γ ≥ γ_d.

    For ε < ½ at least `least_b_steps`: the paper instead keeps δ below a limit, and without
    either its promise is false.

    >>> b_steps(1.0, 1.0, 0.5, 0.1)
    2.0
    """
    _positive(R=R, delta=delta, gamma_d=gamma_d)
    least = least_b_steps(R, epsilon, gamma_d)
    relative = ((1.0 - epsilon / 2.0) * (gamma_d / R) ** 2) ** (1.0 - epsilon) * delta**-epsilon
    return float(max(R * R * relative, least))


def b_length_small_epsilon(R: float, epsilon: float, delta: float, gamma_d: float) -> float:
    """b = R^(1+ε) ω^ε (γ_d/R)^(1−ε), 0 < ε < 1, for ε ≪ 1. Remark 4; Theorem 4 with δ = ε.

    ω = κ ln(e^(1/(1−ε)) κ R²/γ_d²), κ = (1−ε)(1+e⁻¹)(2+ε)(1+ε)^((ε−1)/ε)/δ, for
    δ ≤ e⁻¹(1+e⁻¹)(2+ε) R²/γ_d². Wants γ ≥ γ_d (b rises with γ wherever ε ≤ ¼; beyond, it need
    not). Below `b_length` only for ε under about .01: see `smaller_b_length`.

    >>> b_length_small_epsilon(1.0, 0.001, 0.1, 0.01) < b_length(1.0, 0.001, 0.1, 0.01)
    True
    """
    _positive(R=R, delta=delta, gamma_d=gamma_d)
    _epsilon(epsilon, 0.0 < epsilon < 1.0, "0 < ε < 1")
    common, ratio = (1.0 + math.exp(-1.0)) * (2.0 + epsilon), (R / gamma_d) ** 2
    if delta > math.exp(-1.0) * common * ratio:
        raise ValueError(f"delta = {delta!r}, but Remark 4 wants δ ≤ e⁻¹(1+e⁻¹)(2+ε) R²/γ_d².")
    kappa = (1.0 - epsilon) * common * (1.0 + epsilon) ** ((epsilon - 1.0) / epsilon) / delta
    omega = kappa * (1.0 / (1.0 - epsilon) + math.log(kappa * ratio))
    return float(R ** (1.0 + epsilon) * omega**epsilon * (gamma_d / R) ** (1.0 - epsilon))


def smaller_b_length(R: float, epsilon: float, delta: float, gamma_d: float) -> float:
    """The smaller of `b_length` and Remark 4, both of which promise (δ+1+ε)⁻¹, 0 < ε ≤ 1.

    Wants γ ≥ γ_d; Remark 4 is asked for ε ≤ ¼ only, where it rises with γ.

    >>> smaller_b_length(1.0, 0.1, 0.1, 0.01) == b_length(1.0, 0.1, 0.1, 0.01)
    True
    """
    b = b_length(R, epsilon, delta, gamma_d)
    allowed = math.exp(-1.0) * (1.0 + math.exp(-1.0)) * (2.0 + epsilon) * (R / gamma_d) ** 2
    if epsilon > 0.25 or delta > allowed:
        return b
    return min(b, b_length_small_epsilon(R, epsilon, delta, gamma_d))


def b_second_stage(R: float, epsilon: float, gamma_up: float, delta: float = 1.0) -> float:
    """b for ε after a stage that gave γ_d ≤ γ_up, 0 < ε ≤ 1: `b_length` at γ_up.

    δ = 1 is the paper's rule: b/R^(1+ε) = (1+ε)^(3ε−1−[ε]) (2ε)^(−ε) (γ_up/R)^(1−ε), that is
    `b_length` at the unknown γ_d with δ = `delta_of_second_stage`.

    >>> round(1e5 * b_second_stage(15**0.5, 0.1, 0.0113517) / 15**0.55, 1)  # Adult, Table 4
    577.1
    """
    return b_length(R, epsilon, delta, gamma_up)


def delta_of_second_stage(epsilon: float, gamma_d: float, gamma_up: float) -> float:
    """δ = (γ_d/γ_up)^((1−ε)/ε) ≤ 1, what the paper's second stage promises with, 0 < ε ≤ 1.

    It tends to 1, and the promise to 1/(2+ε), as γ_up → γ_d: a better bound makes a worse promise.

    >>> delta_of_second_stage(0.5, 0.25, 1.0)
    0.25
    """
    _positive(gamma_d=gamma_d, gamma_up=gamma_up)
    _epsilon(epsilon, 0.0 < epsilon <= 1.0, "0 < ε ≤ 1")
    return float((gamma_d / gamma_up) ** ((1.0 - epsilon) / epsilon))


def unlearning_fraction(R: float, b: float) -> float:
    """Where unlearning stalls, γ'_d/γ_d ≥ γ'_d t/‖a‖ ≥ (2β−1)/(2β+1), β = b/R² > ½.

    At a stall |y·a − b| ≤ R²/2 on rows with counts and y·a ≥ b − R²/2 on all.

    >>> unlearning_fraction(1.0, 4.5)
    0.8
    """
    _positive(R=R, b=b)
    beta = b / (R * R)
    if beta <= 0.5:
        raise ValueError(f"b/R² = {beta!r}, but unlearning needs b/R² > ½: take a larger b.")
    return (2.0 * beta - 1.0) / (2.0 * beta + 1.0)


def unlearning_updates_bound(b: float, gamma_d: float) -> float:
    """t = Σ c_k ≤ 2b/γ_d² at every moment of unlearning; wants γ ≤ γ_d.

    F = b t − ½‖a‖² starts at 0 and never falls, and ‖a‖ ≥ γ_d t. (The number of moves is not
    bounded by it.)

    >>> unlearning_updates_bound(2.0, 0.5)
    16.0
    """
    _positive(b=b, gamma_d=gamma_d)
    return 2.0 * b / gamma_d**2


def unlearning_gap(b: float, stall_sum: float) -> float:
    """P − D ≤ Σ_S q_k²/Δ_k² / (8 b²) where unlearning stalls, at the scale s = 1/b.

    ``stall_sum`` = Σ_S q_k²/Δ_k² over S = {c_k > 0 or s m_k < 1}, q_k = ‖y_k‖²; all rows for a
    bound before the run. P and D are LIBLINEAR's, with the ½.

    >>> unlearning_gap(10.0, 800.0)
    1.0
    """
    _positive(b=b, stall_sum=stall_sum)
    return stall_sum / (8.0 * b * b)


def b_unlearning(stall_sum: float, gap: float, primal: float) -> float:
    """The b that guarantees a relative duality gap: √(Σ_S q_k²/Δ_k² / (8 gap P)).

    ``gap`` = (P − D)/P wanted, in (0, 1); ``primal`` is LIBLINEAR's P* or anything positive below
    it, such as a dual value. 3 to 20 times pessimistic.

    >>> b_unlearning(800.0, 0.5, 2.0)
    10.0
    """
    _positive(stall_sum=stall_sum, gap=gap, primal=primal)
    return math.sqrt(stall_sum / (8.0 * gap * primal))


def margin_from_primal(primal: float) -> float:
    """γ = 1/√(2P): γ_d at P*; a lower bound on γ_d (the primal margin) at any other P.

    >>> margin_from_primal(2.0)
    0.5
    """
    _positive(primal=primal)
    return 1.0 / math.sqrt(2.0 * primal)
