"""The losses in plain Python, with the bits of the kernels; and in as many digits as wished.

Nothing of the package is used.
"""

import math

import mpmath

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


def log_small(x: float) -> float:
    """ln x of x ≤ 1/2 as the kernels have it."""
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    return exponent * 0.6931471805599453 + log_ratio((mantissa - 1.0) / (mantissa + 1.0), 12)


REGRESSION = ("squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive")
EPSILON = 0.7
"""ε of those that have one."""


def plain(loss: str, m: float, zone: float = 0.0) -> tuple[float, float, float]:
    """φ, −φ' and φ'' of a margin or residual with the bits of the kernels."""
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


def plain_terms(loss: str, p: float, t: float) -> tuple[float, float]:
    """p t, and φ*(−p) where t = 0, with the bits of the kernel."""
    conjugate = {
        "squared_error": 0.5 * (p * p),
        "huber": 0.5 * (p * p),
        "epsilon_insensitive": EPSILON * abs(p),
        "squared_epsilon_insensitive": EPSILON * abs(p) + 0.25 * (p * p),
    }
    return p * t, conjugate[loss]


def plain_gain(loss: str, p: float, t: float = 0.0) -> float:
    """−φ*(−p) with the bits of the kernel, and what it takes off for rounding."""
    if loss == "squared_hinge":
        return p - 0.25 * (p * p)
    most = {"huber": EPSILON, "squared_error": math.inf, "squared_epsilon_insensitive": math.inf}
    if abs(p) > most.get(loss, 1.0) * (1.0 - 8.0 * U):
        return -math.inf
    if loss in REGRESSION:
        linear, conjugate = plain_terms(loss, p, t)
        return linear - conjugate - (32.0 * U * (abs(linear) + conjugate) + 2.0**-1000)
    if loss == "hinge":
        return p * (1.0 - 16.0 * U)
    if not 2.0**-1000 < p < 1.0 - 128.0 * U:
        return 0.0
    least = min(p, 1.0 - p)
    first, second = -log_small(least), log_ratio(least / (2.0 - least))
    entropy = least * first + (1.0 - least) * second
    return max(entropy - U * (16.0 * p * (first + second + 1.0) + 32.0 * entropy), 0.0)


def plain_step(loss: str, c: int, pull: float, q: float, b: float, cost: float) -> int:
    """The step of a count c of which α = c/b wants to be ``pull``/q but for φ, with the bits of the
    kernel: ``pull`` is α q − (z − t)."""
    if loss in ("squared_error", "huber"):
        alpha = pull / (q + 1.0 / cost)
    else:
        size = max(abs(pull) - EPSILON, 0.0)
        q += 0.5 / cost if loss == "squared_epsilon_insensitive" else 0.0
        size = size / q if q else (math.inf if size else 0.0)
        alpha = size if pull > 0.0 else -size
    largest = float(2**31 - 1)
    if loss in ("huber", "epsilon_insensitive"):
        most = EPSILON if loss == "huber" else 1.0
        largest = min(largest, math.floor(b * most * cost * (1.0 - 32.0 * U)))
    whole = math.floor(b * alpha + 0.5) if math.isfinite(alpha) else alpha
    return int(min(max(whole, -largest), largest)) - c


def loss_at(loss: str, m: Exact) -> tuple[Exact, Exact, Exact]:
    """φ, −φ' and φ'' of a margin."""
    if loss == "log_loss":
        q = mpmath.exp(-abs(m)) if abs(m) < 1e5 else mpmath.mpf(0)
        return max(-m, 0) + mpmath.log1p(q), (q if m >= 0 else 1) / (1 + q), q / (1 + q) ** 2
    slack = max(1 - m, mpmath.mpf(0))
    if loss == "squared_hinge":
        return slack * slack, 2 * slack, mpmath.mpf(2 * (slack > 0))
    return slack, mpmath.mpf(slack > 0), mpmath.mpf(0)


def gain_of(loss: str, p: Exact) -> Exact:
    """−φ*(−p); −∞ out of its domain."""
    if loss == "squared_hinge":
        return p - p * p / 4
    if not 0 <= p <= 1:
        return -mpmath.inf
    if loss == "hinge" or p in (0, 1):
        return p if loss == "hinge" else mpmath.mpf(0)
    return -p * mpmath.log(p) - (1 - p) * mpmath.log1p(-p)
