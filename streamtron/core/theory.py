"""The paper's bounds and choices of b as pure functions, each naming its equation.

Panagiotakopoulos and Tsampouka, *The Margitron: A Generalised Perceptron with Margin*. Two
variants: ``steps`` (the t-margitron, threshold b t^(1−ε)) and ``length`` (the ℓ-margitron,
threshold b ‖a‖^(1−ε)); at ε = 1 they are one. Everything follows from two facts about the weight
vector a after t updates: ‖a‖ ≥ γ_d t, and ‖a‖ ≤ a bound that depends on the threshold.

The letters, the same everywhere; all are floats unless said otherwise:

=============  ==============================================================================
``R``          largest length of an extended row, max ‖y_k‖; > 0; the unit of every margin
``b``          the threshold's factor; > 0; in units of R² (steps) or R^(1+ε) (length)
``epsilon``    ε, 0 < ε < 2, narrower where the function says so
``gamma_d``    γ_d, the maximum directional margin, > 0, or a bound on it. *Which side* counts:
               a choice of b and a promise before the run want γ ≥ γ_d (an upper bound), a
               bound on the updates wants γ ≤ γ_d (a lower bound)
``margin``     γ'_d, the directional margin a finished run has achieved, > 0
``t``, ``t_c`` number of updates, a warm start's counts included; at convergence; int ≥ 1
``delta``      δ > 0, how far a promised fraction may stay below its limit
``N``          integer, 1 ≤ N ≤ t_c, free in the bounds of the length variant
``length``     ‖a‖, > 0
=============  ==============================================================================

[ε] in the paper is the integer part: 1 at ε = 1 exactly, otherwise 0 (for ε ≤ 1). Updates may
come in any order, a row several times in a row. A *fraction* is γ'_d / γ_d. Every function raises
ValueError for arguments outside these ranges.
"""

from __future__ import annotations

import math

# --- ranges ---


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name} = {value!r}, but it must be positive and finite.")


def _epsilon(epsilon: float, holds: bool, wanted: str) -> None:
    if not holds:
        raise ValueError(f"epsilon = {epsilon!r}, but this formula holds for {wanted} only.")


def _updates(t: int) -> None:
    if not 1 <= t < math.inf:
        raise ValueError(f"t = {t!r}, but the bounds speak of at least one update.")


def _whole(epsilon: float) -> int:
    """[ε], the integer part, for ε ≤ 1."""
    return int(epsilon == 1.0)


def _power(base: float, exponent: float) -> float:
    """base ** exponent, infinite where a float cannot hold it (1/ε is a large exponent)."""
    try:
        return float(base**exponent)
    except OverflowError:
        return math.inf


def _kappa(epsilon: float) -> float:
    """2/(2 − ε), the inverse of the largest fraction the steps variant can promise."""
    return 2.0 / (2.0 - epsilon)


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


# --- how long a can be, and what follows after a run ---


def length_bound_steps(R: float, b: float, epsilon: float, t: int, excess: float = 0.0) -> float:
    """Upper bound on ‖a‖ after t updates of the steps variant, 0 < ε < 2. (tmarupbound).

    √(E + R² t + 2/(2−ε) b t^(2−ε)), E = ``excess`` ≥ 0 where a run was started warm
    (`warm_start_excess`), 0 otherwise.

    >>> length_bound_steps(1.0, 4.0, 1.0, 9)
    9.0
    """
    _positive(R=R, b=b)
    _epsilon(epsilon, 0.0 < epsilon < 2.0, "0 < ε < 2")
    _updates(t)
    return math.sqrt(excess + R * R * t + _kappa(epsilon) * b * t ** (2.0 - epsilon))


def warm_start_excess(R: float, b: float, epsilon: float, t_0: int, length: float) -> float:
    """By how much ‖a₀‖² exceeds what t₀ updates from a = 0 could have made it; ≥ 0.

    0: Theorem 1 and Remark 1 hold after the warm start as they stand, t₀ counted in t. Otherwise
    the excess belongs into `length_bound_steps` and `f_est_steps`. Not in the paper: its
    induction on (tmarupbound), begun at t₀. The same test serves Theorem 5.

    >>> warm_start_excess(1.0, 4.0, 1.0, 9, 10.0)
    19.0
    """
    return max(0.0, length * length - length_bound_steps(R, b, epsilon, t_0) ** 2)


def length_bound_length(
    R: float, b: float, epsilon: float, gamma_d: float, t: int, N: int = 1
) -> float:
    """L_N(t), upper bound on ‖a‖ after t ≥ N updates of the length variant, 0 < ε ≤ 1.

    R {N^(1+ε) + (1+ε)/(2ε) (R/γ_d)^(1−ε) (t^ε − (N−ε+[ε])/N^(1−ε)) + (1+ε) b/R^(1+ε) t}^(1/(1+ε)),
    (lmarupbound). γ ≤ γ_d may stand for γ_d. After a warm start it needs N ≥ t₀ and
    ‖a₀‖ ≤ L_N(t₀).

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
    """N_opt = [½ (R/γ'_d)^(1−ε)] + 1, near optimal in `f_est_length`; at most t_c. Theorem 2.

    >>> best_N(1.0, 0.5, 0.01, 1000), best_N(1.0, 0.5, 0.01, 3)
    (6, 3)
    """
    _positive(R=R, margin=margin)
    _epsilon(epsilon, 0.0 < epsilon <= 1.0, "0 < ε ≤ 1")
    _updates(t_c)
    return int(min(t_c, math.floor(0.5 * (R / margin) ** (1.0 - epsilon)) + 1))


def N_is_constrained(R: float, epsilon: float, margin: float, t_c: int, N: int) -> bool:
    """Whether N satisfies one of (lmarfrest3), 0 < ε < 1.

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


def direct_fraction_steps(b: float, epsilon: float, t: int, length: float) -> float:
    """γ'_d / γ_d ≥ b t^(2−ε) / ‖a‖² after convergence of the steps variant, 0 < ε < 2.

    From γ'_d ‖a‖ > b t^(1−ε) and γ_d ≤ ‖a‖/t; holds after any warm start. Not in the paper, free,
    and never below f_est. After unlearning (ε = 1) put b − R²/2 for b.

    >>> direct_fraction_steps(4.0, 1.0, 9, 8.0)
    0.5625
    """
    _positive(b=b, length=length)
    _epsilon(epsilon, 0.0 < epsilon < 2.0, "0 < ε < 2")
    _updates(t)
    return float(b * t ** (2.0 - epsilon) / (length * length))


def direct_fraction_length(b: float, epsilon: float, t: int, length: float) -> float:
    """γ'_d / γ_d ≥ b t / ‖a‖^(1+ε) after convergence of the length variant, 0 < ε < 2.

    As `direct_fraction_steps`, from γ'_d ‖a‖ > b ‖a‖^(1−ε).

    >>> direct_fraction_length(4.0, 1.0, 9, 8.0)
    0.5625
    """
    _positive(b=b, length=length)
    _epsilon(epsilon, 0.0 < epsilon < 2.0, "0 < ε < 2")
    _updates(t)
    return float(b * t / length ** (1.0 + epsilon))


def f_est_steps(R: float, b: float, epsilon: float, t_c: int, excess: float = 0.0) -> float:
    """The steps variant's fraction is at least (R²/b t_c^(ε−1) + 2/(2−ε))⁻¹. (tmarfrest).

    0 < ε < 2 (Theorem 5 carries it beyond 1). It is the direct fraction at the longest possible a;
    with a warm start's ``excess`` E it becomes (E/(b t_c^(2−ε)) + R²/b t_c^(ε−1) + 2/(2−ε))⁻¹.

    >>> round(f_est_steps(1.0, 5.0, 1.0, 1000), 6)  # 1/(1/5 + 2)
    0.454545
    """
    return direct_fraction_steps(b, epsilon, t_c, length_bound_steps(R, b, epsilon, t_c, excess))


def f_est_length(
    R: float, b: float, epsilon: float, t_c: int, margin: float, N: int | None = None
) -> float:
    """The length variant's fraction after convergence is at least f_est, 0 < ε ≤ 1. (lmarfrest).

    {R^(1+ε)/b (N^(1+ε) + (1+ε)/(2ε) (R/γ'_d)^(1−ε) (t_c^ε − (N−ε)/N^(1−ε)))/t_c + 1+ε}⁻¹ =
    b t_c / L_N(t_c)^(1+ε) with γ'_d for γ_d. The paper states it for ε < 1; here [ε] is kept, so
    that ε = 1 gives (R²/b + 2)⁻¹. Any 1 ≤ N ≤ t_c will do; None is `best_N`.

    >>> round(f_est_length(1.0, 5.0, 1.0, 1000, 0.1), 6)
    0.454545
    """
    chosen = best_N(R, epsilon, margin, t_c) if N is None else N
    longest = length_bound_length(R, b, epsilon, margin, t_c, chosen)
    return direct_fraction_length(b, epsilon, t_c, longest)


def upper_bound_after_run(R: float, b: float, epsilon: float, t_c: int) -> float:
    """γ_d ≤ γ_up = R √(1/t_c + 2/(2−ε) b/R² t_c^(−ε)) for the steps variant. Remark 1.

    0 < ε < 2; at ε = 1, where both variants are one, R √((1 + 2b/R²)/t_c). Never below ‖a‖/t_c.

    >>> upper_bound_after_run(1.0, 4.0, 1.0, 9)
    1.0
    """
    return length_bound_steps(R, b, epsilon, t_c) / t_c


def upper_bound_after_run_length(
    R: float, b: float, epsilon: float, t_c: int, margin: float, N: int | None = None
) -> float:
    """γ_d ≤ L_N(t_c)/t_c with γ'_d for γ_d, for the length variant, 0 < ε ≤ 1. (sq1).

    Never above the paper's γ'_d / f_est, since γ'_d > b/‖a‖^ε; never below ‖a‖/t_c. None is
    `best_N`.

    >>> upper_bound_after_run_length(1.0, 4.0, 1.0, 9, 0.1)
    1.0
    """
    chosen = best_N(R, epsilon, margin, t_c) if N is None else N
    return length_bound_length(R, b, epsilon, margin, t_c, chosen) / t_c


# --- how many updates ---


def updates_bound_steps(R: float, b: float, epsilon: float, gamma_d: float) -> float:
    """t_c ≤ R²/(ε γ_d²) + (2/(2−ε) b/γ_d²)^(1/ε). (tmartbound), Theorem 1; wants γ ≤ γ_d.

    For 1 < ε < 2 without the 1/ε: Theorem 5.

    >>> updates_bound_steps(1.0, 5.0, 1.0, 0.5)
    44.0
    """
    _positive(R=R, b=b, gamma_d=gamma_d)
    _epsilon(epsilon, 0.0 < epsilon < 2.0, "0 < ε < 2")
    return root_bounds((R / gamma_d) ** 2, _kappa(epsilon) * b / gamma_d**2, epsilon)[1]


def updates_bound_length(R: float, b: float, epsilon: float, gamma_d: float) -> float:
    """t_c ≤ (A/ε + B^(1/ε)) ln(A/ε + B^(1/ε))^(1−ε), 0 < ε ≤ 1. (lmartbound), Theorem 2.

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


# --- what a b promises before the run ---


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

    ε ≤ 1: (R²/b + 2/(2−ε))⁻¹, (tmarfrbound), for which γ_d is not needed and not used.
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

    ε ≤ 1: {(1+ε)^(2ε−[ε])/(2ε)^ε R^(1+ε)/b + 1+ε}⁻¹, (lmarfrbound); γ_d is not used.
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
    """t_⋆, where the lower bound on the normalised threshold (tfrac1) is largest, 0 < ε ≤ 1.

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

    It makes sure that C(1) ≥ γ_d; wants γ ≥ γ_d. Below it (tboundstr) and (bt) are false.

    >>> least_b_steps(1.0, 0.4, 0.2), least_b_steps(1.0, 0.5, 0.2)
    (0.25, 0.0)
    """
    _positive(R=R, gamma_d=gamma_d)
    _epsilon(epsilon, 0.0 < epsilon <= 1.0, "0 < ε ≤ 1")
    if epsilon >= 0.5:
        return 0.0
    return R * gamma_d * (1.0 + _kappa(epsilon) * gamma_d / R)


def strong_fraction_bound_steps(R: float, b: float, epsilon: float, gamma_d: float) -> float:
    """Before the run, (R²/b t_b^(ε−1) + 2/(2−ε))⁻¹, 0 < ε ≤ 1. (tboundstr), Remark 2.

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
    """Before the run, {K R^(1+ε)/b (R/γ_d)^(1−ε) t^(ε−1) + 1+ε}⁻¹, 0 < ε ≤ 1. (appr3).

    K = (1+ε)^(2−[ε])/(2ε); t is the lower bound of Lemma 1 on the root of (tbtilde). Wants
    γ ≥ γ_d. Never below `fraction_bound_length`, and what a b from (bl) really promises.

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


# --- the choice of b ---


def promised_fraction_steps(epsilon: float, delta: float) -> float:
    """(δ + 2/(2−ε))⁻¹, what `b_steps` promises, 0 < ε ≤ 1. Remark 2.

    >>> promised_fraction_steps(1.0, 0.5)
    0.4
    """
    _positive(delta=delta)
    _epsilon(epsilon, 0.0 < epsilon <= 1.0, "0 < ε ≤ 1")
    return 1.0 / (delta + _kappa(epsilon))


def promised_fraction_length(epsilon: float, delta: float) -> float:
    """(δ + 1 + ε)⁻¹, what `b_length` and its kin promise, 0 < ε ≤ 1. (blf), Theorem 3.

    >>> promised_fraction_length(1.0, 0.5)
    0.4
    """
    _positive(delta=delta)
    _epsilon(epsilon, 0.0 < epsilon <= 1.0, "0 < ε ≤ 1")
    return 1.0 / (delta + 1.0 + epsilon)


def b_steps(R: float, epsilon: float, delta: float, gamma_d: float) -> float:
    """b = R² (1−ε/2)^(1−ε) δ^(−ε) (γ_d²/R²)^(1−ε), 0 < ε ≤ 1. (bt), Remark 2; wants γ ≥ γ_d.

    For ε < ½ at least `least_b_steps`: the paper instead keeps δ below a limit, and without
    either its promise is false.

    >>> b_steps(1.0, 1.0, 0.5, 0.1)
    2.0
    """
    _positive(R=R, delta=delta, gamma_d=gamma_d)
    least = least_b_steps(R, epsilon, gamma_d)
    relative = ((1.0 - epsilon / 2.0) * (gamma_d / R) ** 2) ** (1.0 - epsilon) * delta**-epsilon
    return float(max(R * R * relative, least))


def b_length(R: float, epsilon: float, delta: float, gamma_d: float) -> float:
    """b = R^(1+ε) (1+ε)^(3ε−1−[ε]) (2εδ)^(−ε) (γ_d/R)^(1−ε), 0 < ε ≤ 1. (bl), Theorem 3.

    Wants γ ≥ γ_d. At ε = 1 it is R²/δ; without [ε] it would be twice that.

    >>> b_length(3.0, 1.0, 1.0, 0.1)
    9.0
    """
    _positive(R=R, delta=delta, gamma_d=gamma_d)
    _epsilon(epsilon, 0.0 < epsilon <= 1.0, "0 < ε ≤ 1")
    factor = (1.0 + epsilon) ** (3.0 * epsilon - 1.0 - _whole(epsilon))
    relative = factor / (2.0 * epsilon * delta) ** epsilon * (gamma_d / R) ** (1.0 - epsilon)
    return float(R ** (1.0 + epsilon) * relative)


def b_length_small_epsilon(R: float, epsilon: float, delta: float, gamma_d: float) -> float:
    """b = R^(1+ε) ω^ε (γ_d/R)^(1−ε), 0 < ε < 1, for ε ≪ 1. Remark 4; Theorem 4 with δ = ε.

    ω = κ ln(e^(1/(1−ε)) κ R²/γ_d²), κ = (1−ε)(1+e⁻¹)(2+ε)(1+ε)^((ε−1)/ε)/δ, for
    δ ≤ e⁻¹(1+e⁻¹)(2+ε) R²/γ_d². Wants γ ≥ γ_d (b rises with γ wherever ε ≤ ¼; beyond, it need
    not). Below (bl) only for ε under about .01: see `smaller_b_length`.

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
    """The smaller of (bl) and Remark 4, both of which promise (δ+1+ε)⁻¹, 0 < ε ≤ 1.

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
    """b for ε after a stage that gave γ_d ≤ γ_up, 0 < ε ≤ 1: (bl) at γ_up; the paper's section 4.

    δ = 1 is the paper's rule: b/R^(1+ε) = (1+ε)^(3ε−1−[ε]) (2ε)^(−ε) (γ_up/R)^(1−ε), that is (bl)
    at the unknown γ_d with δ = `delta_of_second_stage`. It lives on a loose γ_up. Where γ_up is
    tight, as ‖a‖/t is, choose δ: .05, say.

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


# --- unlearning at ε = 1 (not in the paper) ---


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


# --- primal and dual ---


def primal_from_margin(gamma_d: float) -> float:
    """P* = 1/(2 γ_d²), LIBLINEAR's objective (L2-loss SVM) at the optimum.

    >>> primal_from_margin(0.5)
    2.0
    """
    _positive(gamma_d=gamma_d)
    return 1.0 / (2.0 * gamma_d * gamma_d)


def margin_from_primal(primal: float) -> float:
    """γ = 1/√(2P): γ_d at P*; a lower bound on γ_d (the primal margin) at any other P.

    >>> margin_from_primal(2.0)
    0.5
    """
    _positive(primal=primal)
    return 1.0 / math.sqrt(2.0 * primal)


def weights_radius(primal: float, dual: float) -> float:
    """‖w − w*‖ ≤ √(2(P − D)), P being strongly convex; P and D LIBLINEAR's, of the same w.

    A decision value is then known within ‖(x, ρ)‖ times this. 0 where D exceeds P by rounding.

    >>> weights_radius(10.0, 2.0)
    4.0
    """
    return math.sqrt(2.0 * max(0.0, primal - dual))


def decision_radius(primal_margin: float, upper_bound: float | None) -> float:
    """‖w − w*‖ ≤ √(1/γ′² − 1/U²), γ′ the primal margin of w, U ≥ γ_d; ∞ where nothing is proven.

    Every decision value of a row x is within ‖(x, ρ)‖ times this of the optimum's. What rounding
    does here is added: P and D are known to a part of themselves, their difference is not.

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
