"""The losses in plain Python, with the bits of the kernels; and in as many digits as wished.

Nothing of the package is used.
"""

import math
from typing import Any

import mpmath
import numpy as np

U = 2.0**-53

Exact = mpmath.mpf


def exp_minus(x: float) -> float:
    """e^−x as the kernels have it."""
    if x >= 746.0:
        return 0.0
    k = math.floor(x * 1.4426950408889634 + 0.5)
    r = (k * 0.693147180369123816490 - x) + k * 1.90821492927058770002e-10
    odd, even = 1.0 / math.factorial(13), 1.0 / math.factorial(12)
    for n in range(10, -1, -2):
        odd = odd * (r * r) + 1.0 / math.factorial(n + 1)
        even = even * (r * r) + 1.0 / math.factorial(n)
    return (odd * r + even) * math.ldexp(1.0, -k)


def log_ratio(s: float, terms: int = 18) -> float:
    """ln((1 + s)/(1 − s)) as the kernels have it."""
    odd, even = 1.0 / (2 * terms - 1), 1.0 / (2 * terms - 3)
    for n in range(terms - 4, -1, -2):
        odd = odd * (s * s * (s * s)) + 1.0 / (2 * n + 3)
        even = even * (s * s * (s * s)) + 1.0 / (2 * n + 1)
    return 2.0 * s * (odd * (s * s) + even)


def log(x: float) -> float:
    """ln x as the kernels have it."""
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    return exponent * 0.6931471805599453 + log_ratio((mantissa - 1.0) / (mantissa + 1.0), 12)


def exp(z: float) -> float:
    """e^z as the kernels have it."""
    return exp_minus(-z) if z < 0.0 else 1.0 / exp_minus(min(z, 300.0))


def log_of(t: float) -> float:
    """ln t of a label, 0 of 0."""
    return log(t) if t > 0.0 else 0.0


REGRESSION = (
    *("squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive"),
    "poisson",
)
EPSILON = 0.7
"""ε of those that have one."""


def plain(loss: str, z: float, zone: float = 0.0, t: float = 0.0) -> tuple[float, float, float]:
    """φ(t, z), −∂φ/∂z and ∂²φ/∂z² with the bits of the kernels."""
    m = z - t
    if loss == "poisson":
        return exp(z) - t * (z - log_of(t) + 1.0), t - exp(z), exp(z)
    if loss == "log_loss":
        q = exp_minus(abs(m))
        slope = (q if m >= 0.0 else 1.0) / (1.0 + q)
        return max(-m, 0.0) + log_ratio(q / (2.0 + q)), slope, q / ((1.0 + q) * (1.0 + q))
    sign, size = (-1.0 if m > 0.0 else 1.0), abs(m)
    if loss == "squared_error" or (loss == "huber" and size <= EPSILON):
        return 0.5 * (m * m), -m, 1.0
    if loss == "huber":
        return EPSILON * (size - 0.5 * EPSILON), sign * EPSILON, 0.0
    sign, slack = (sign, size - EPSILON) if loss in REGRESSION else (1.0, 1.0 - m)
    slack, inside = max(slack, 0.0), 1.0 if slack > 0.0 else 0.0
    if loss.startswith("squared"):
        return slack * slack, sign * (2.0 * slack), 2.0 * inside
    if slack < zone:
        return 0.5 * slack * slack / zone, sign * (slack / zone), inside / zone
    return slack - 0.5 * zone, sign * inside, 0.0


def ends(loss: str, t: float) -> tuple[float, float]:
    """The least and the most that α/C may be."""
    if loss == "poisson":
        return -1e15, t
    most = {"huber": EPSILON, "hinge": 1.0, "log_loss": 1.0, "epsilon_insensitive": 1.0}
    end = most.get(loss, math.inf)
    return (-end if loss in REGRESSION else 0.0), end


def plain_gain(loss: str, p: float, t: float = 0.0) -> float:
    """−φ*(−p) with the bits of the kernel, and what it takes off for rounding."""
    if p == 0.0:
        return 0.0
    least, most = ends(loss, t)
    if not least * (1.0 + 8.0 * U) <= p <= most * (1.0 + 8.0 * U):
        return -math.inf
    if loss == "poisson":
        return _poisson_gain(p, t)
    if loss == "hinge":
        return p * (1.0 - 32.0 * U)
    if loss == "log_loss":
        if not 2.0**-1000 < p < 1.0 - 128.0 * U:
            return 0.0
        least = min(p, 1.0 - p)
        first, second = -log(least), log_ratio(least / (2.0 - least))
        entropy = least * first + (1.0 - least) * second
        return max(entropy - U * (16.0 * p * (first + second + 1.0) + 32.0 * entropy), 0.0)
    linear, conjugate = p * (t if loss in REGRESSION else 1.0), conjugate_at(loss, p)
    return linear - conjugate - (32.0 * U * (abs(linear) + conjugate) + 2.0**-1000)


def _poisson_gain(p: float, t: float) -> float:
    ln, rest = log_of(t), t - p
    if rest <= 128.0 * U * t:
        return t * ln - t - 48.0 * U * (t * (abs(ln) + 1.0))
    share = p / t if t else -math.inf
    if -1.0 <= share <= 0.5:
        ratio = log_ratio(-share / (2.0 - share))
    else:
        ratio = log(rest / t if t else rest)
    off = abs(p) * (abs(ln) + abs(ratio) + 1.0) + rest * abs(ratio)
    return p * ln - p - rest * ratio - (48.0 * U * off + 2.0**-1000)


def conjugate_at(loss: str, p: Any, epsilon: Any = EPSILON) -> Any:
    """φ*(−p) where t = 0, of losses whose gains have terms of both signs; numbers of any kind."""
    if loss in ("squared_error", "huber"):
        return (p * p) / 2
    if loss == "squared_hinge":
        return (p * p) / 4
    return epsilon * abs(p) + ((p * p) / 4 if loss == "squared_epsilon_insensitive" else 0)


def plain_earned(loss: str, alpha: float, cost: float, t: float) -> float:
    """−C φ*(−α/C) with the bits of a visit, which estimates it."""
    if loss == "squared_hinge":
        return alpha - 0.5 * (0.5 / cost) * (alpha * alpha)
    return cost * plain_gain(loss, alpha / cost, t)


def within(alpha: float, least: float, most: float) -> float:
    """α as a float32 between ends, with the bits of the kernel."""
    single = np.float32(min(max(alpha, least), most))
    beyond = not least <= float(single) <= most
    return float(np.nextafter(single, np.float32(0.0)) if beyond else single)


def plain_step(
    loss: str, alpha: float, m: float, q: float, cost: float, t: float
) -> tuple[float, float]:
    """The dual variable after a visit of a row with the margin m and q = ‖(x, ρ)‖², and what it
    earns, with the bits of the kernel."""
    delta2, (least, most) = 0.5 / cost, ends(loss, t)
    least, most = least * cost, most * cost
    if loss == "poisson":
        z = _poisson_margin(alpha, m, q, cost, t)
        best = within(cost * (t - exp(z)), least, most)
    elif loss == "log_loss":
        z = _logistic_margin(alpha, m, q, cost)
        value, slope, _ = plain(loss, z)
        return within(cost * slope, least, most), cost * (slope * z + value)
    elif loss == "squared_hinge":
        best = alpha
        if alpha != 0.0 or m < 1.0:
            best = float(np.float32(max(alpha + (1.0 - (m + delta2 * alpha)) / (q + delta2), 0.0)))
    elif loss == "hinge":
        best = within(max(alpha + (1.0 - m) / q, 0.0) if q else math.inf, least, most)
    else:
        pull = alpha * q - (m - t)
        size = max(abs(pull) - EPSILON, 0.0)
        if loss in ("squared_error", "huber"):
            best = pull / (q + 1.0 / cost)
        elif loss == "squared_epsilon_insensitive":
            best = math.copysign(size / (q + 0.5 / cost), pull)
        else:
            best = math.copysign(size / q if q else (math.inf if size else 0.0), pull)
        best = within(best, least, most)
    return best, plain_earned(loss, best, cost, t)


def _logistic_margin(alpha: float, m: float, q: float, cost: float) -> float:
    """The root z of z = m + (C σ(−z) − α) q, with the bits of the kernel."""
    low, high, z, last = m - alpha * q, m + (cost - alpha) * q, m, math.inf
    for _ in range(100):
        slope = plain("log_loss", z)[1]
        value = z - m - (cost * slope - alpha) * q
        low, high = (z, high) if value < 0.0 else (low, z)
        z -= value / (1.0 + cost * q * slope * (1.0 - slope))
        if abs(value) <= 0.03:
            break
        if not low < z < high or abs(value) > 0.5 * last:
            z = 0.5 * (low + high)
        last = abs(value)
    return z


def _poisson_margin(alpha: float, m: float, q: float, cost: float, t: float) -> float:
    """The root z of z = m + (C (t − e^z) − α) q, with the bits of the kernel."""
    size, b = cost * q, m + (cost * t - alpha) * q
    if size == 0.0:
        return m
    ln = log(size)
    z = log(ln + b) - ln if ln + b > 1.0 else b
    for _ in range(100):
        step = (z + size * exp(z) - b) / (1.0 + size * exp(z))
        z -= step
        if abs(step) <= 0.03 * 0.03:
            break
    return z


def loss_at(loss: str, z: Exact, epsilon: Exact = EPSILON, t: Exact = 0) -> Exact:
    """φ(t, z)."""
    m = z - t
    if loss == "poisson":
        power = mpmath.exp(z) if z < 1000 else mpmath.inf
        return power - t * (z + 1 - (mpmath.log(t) if t else 0))
    if loss == "log_loss":
        return max(-m, 0) + mpmath.log1p(mpmath.exp(-abs(m)) if abs(m) < 1e5 else mpmath.mpf(0))
    if loss == "squared_error" or (loss == "huber" and abs(m) <= epsilon):
        return m * m / 2
    if loss == "huber":
        return epsilon * (abs(m) - epsilon / 2)
    slack = max(abs(m) - epsilon if loss in REGRESSION else 1 - m, mpmath.mpf(0))
    return slack * slack if loss.startswith("squared") else slack


def gain_of(loss: str, p: Exact, t: Exact = 0, epsilon: Exact = EPSILON) -> Exact:
    """−φ*(−p); −∞ out of its domain."""
    most = {"huber": epsilon, "hinge": 1, "log_loss": 1, "epsilon_insensitive": 1}
    if loss == "poisson":
        if p >= t:
            return -mpmath.inf if p > t else (t * mpmath.log(t) - t if t else mpmath.mpf(0))
        return (t - p) * (1 - mpmath.log(t - p)) + (t * mpmath.log(t) - t if t else 0)
    if abs(p) > most.get(loss, mpmath.inf) or (loss not in REGRESSION and p < 0):
        return -mpmath.inf
    if loss == "hinge":
        return p
    if loss == "log_loss":
        return mpmath.mpf(0) if p in (0, 1) else -p * mpmath.log(p) - (1 - p) * mpmath.log1p(-p)
    return p * (t if loss in REGRESSION else 1) - conjugate_at(loss, p, epsilon)
