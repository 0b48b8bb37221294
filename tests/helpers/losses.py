"""The losses in plain Python, with the bits of the kernels; and in as many digits as wished.

Nothing of the package is used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

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
    """φ, −φ' and φ'' with the bits of the kernels."""
    if loss in REGRESSION:
        return plain_of_residual(loss, m, zone)
    if loss == "log_loss":
        q = exp_minus(abs(m))
        slope = (q if m >= 0.0 else 1.0) / (1.0 + q)
        return max(-m, 0.0) + log_ratio(q / (2.0 + q)), slope, q / ((1.0 + q) * (1.0 + q))
    slack = max(1.0 - m, 0.0)
    if loss == "hinge":
        if slack < zone:
            return 0.5 * slack * slack / zone, slack / zone, 1.0 / zone if slack > 0.0 else 0.0
        return slack - 0.5 * zone, 1.0 if slack > 0.0 else 0.0, 0.0
    return slack * slack, 2.0 * slack, 2.0 if m < 1.0 else 0.0


def plain_of_residual(loss: str, r: float, zone: float = 0.0) -> tuple[float, float, float]:
    """φ, −φ' and φ'' of a residual with the bits of the kernels."""
    sign, size = (-1.0 if r > 0.0 else 1.0), abs(r)
    if loss == "squared_error" or (loss == "huber" and size <= EPSILON):
        return 0.5 * (r * r), -r, 1.0
    if loss == "huber":
        return EPSILON * (size - 0.5 * EPSILON), sign * EPSILON, 0.0
    slack = max(size - EPSILON, 0.0)
    if loss == "squared_epsilon_insensitive":
        return slack * slack, sign * (2.0 * slack), 2.0 if slack > 0.0 else 0.0
    if slack < zone:
        bend = 1.0 / zone if slack > 0.0 else 0.0
        return 0.5 * slack * slack / zone, sign * (slack / zone), bend
    return slack - 0.5 * zone, sign * (1.0 if slack > 0.0 else 0.0), 0.0


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


# --- in as many digits as mpmath is told to have --------------------------------------------------


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
        slope = (q if m >= 0 else 1) / (1 + q)
        return max(-m, 0) + mpmath.log1p(q), slope, q / (1 + q) ** 2
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


class Rows:
    """½‖v‖² + Σ C_k φ(y_k·v) of patterns y_k = l_k (x_k, ρ), and its dual."""

    def __init__(
        self, loss: str, patterns: Sequence[Sequence[float]], costs: Sequence[Exact]
    ) -> None:
        self.loss, self.costs = loss, list(costs)
        self.patterns = [[mpmath.mpf(value) for value in pattern] for pattern in patterns]

    def margins(self, v: Sequence[Exact]) -> list[Exact]:
        return [mpmath.fdot(pattern, v) for pattern in self.patterns]

    def primal(self, v: Sequence[Exact]) -> Exact:
        terms = (loss_at(self.loss, m)[0] for m in self.margins(v))
        return mpmath.fdot(v, v) / 2 + mpmath.fdot(self.costs, terms)

    def dual(self, alpha: Sequence[Exact]) -> Exact:
        a, pairs = self.weights(alpha), zip(alpha, self.costs, strict=True)
        return mpmath.fsum(c * gain_of(self.loss, x / c) for x, c in pairs) - mpmath.fdot(a, a) / 2

    def weights(self, alpha: Sequence[Exact]) -> list[Exact]:
        """Σ α_k y_k."""
        return [mpmath.fdot(alpha, column) for column in zip(*self.patterns, strict=True)]

    def optimum(self) -> tuple[list[Exact], list[Exact]]:
        """v and α, whose P and D are the same to 20 digits."""
        with mpmath.workdps(250 if self.loss == "hinge" else 90):
            v, alpha = self._hinge() if self.loss == "hinge" else self._log_loss()
            assert self.primal(v) - self.dual(alpha) <= 1e-20 * self.primal(v)
            return v, alpha

    def _log_loss(self) -> tuple[list[Exact], list[Exact]]:
        """Newton's method, with steps of a length at which P' is nearly 0."""
        v = [mpmath.mpf(0)] * len(self.patterns[0])
        for _ in range(1000):
            terms = [loss_at(self.loss, m) for m in self.margins(v)]
            alpha = [c * slope for c, (_, slope, _) in zip(self.costs, terms, strict=True)]
            gradient = [x - a for x, a in zip(v, self.weights(alpha), strict=True)]
            if mpmath.fdot(gradient, gradient) <= 1e-22 * self.primal(v):
                break
            hessian = mpmath.eye(len(v))
            for y, c, (_, _, bend) in zip(self.patterns, self.costs, terms, strict=True):
                for i, j in itertools.product(range(len(v)), repeat=2):
                    hessian[i, j] += c * bend * y[i] * y[j]
            step = [*mpmath.lu_solve(hessian, [-x for x in gradient])]
            v = self._along(v, step, -mpmath.fdot(gradient, step) / 10)
        return v, alpha

    def _along(self, v: list[Exact], step: list[Exact], flat: Exact) -> list[Exact]:
        slopes, low, high, theta = self.margins(step), mpmath.mpf(0), mpmath.mpf(1), mpmath.mpf(1)
        for _ in range(99):
            there = [x + theta * s for x, s in zip(v, step, strict=True)]
            pairs = zip(self.costs, self.margins(there), strict=True)
            alpha = [c * loss_at(self.loss, m)[1] for c, m in pairs]
            slope = mpmath.fdot(there, step) - mpmath.fdot(alpha, slopes)
            if abs(slope) <= flat or (slope < 0 and theta == 1):
                break
            low, high = (low, theta) if slope > 0 else (theta, high)
            theta = (low + high) / 2
        return there

    def _hinge(self) -> tuple[list[Exact], list[Exact]]:
        """The dual, whose Hessian is lifted a little: rows leave and reach 0 and C one by one."""
        n = len(self.costs)
        gram = [[mpmath.fdot(y, z) for z in self.patterns] for y in self.patterns]
        for k, c in enumerate(self.costs):
            gram[k][k] += mpmath.mpf(10) ** -70 / c
        alpha, free = [mpmath.mpf(0)] * n, []
        for _ in range(500):
            pull = [1 - mpmath.fdot(row, alpha) for row in gram]
            if free:
                system = mpmath.matrix([[gram[i][j] for j in free] for i in free])
                step = mpmath.lu_solve(system, [pull[i] for i in free])
                room = [
                    ((self.costs[i] if s > 0 else 0) - alpha[i]) / s if s else mpmath.inf
                    for i, s in zip(free, step, strict=True)
                ]
                theta = min(1, *room)
                for i, s in zip(free, step, strict=True):
                    alpha[i] += theta * s
                stopped = room.index(theta) if theta < 1 else None
                if stopped is not None:
                    i = free.pop(stopped)
                    alpha[i] = self.costs[i] if step[stopped] > 0 else mpmath.mpf(0)
                    continue
                pull = [1 - mpmath.fdot(row, alpha) for row in gram]
            wanting = {
                k: abs(g) for k, g in enumerate(pull)
                if k not in free and (g > 0 if not alpha[k] else g < 0)
            }  # fmt: skip
            if not wanting:
                break
            free.append(max(wanting, key=wanting.__getitem__))
        return self.weights(alpha), alpha
