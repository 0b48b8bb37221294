"""The algorithm in plain lists: the slow oracle that the package is held against.

It imports nothing of the package. `Oracle` performs the same floating-point operations in the same
order as the kernels, so that the two can be compared with ``==``. `Oracle.certificate` is a
reference instead: its sums are correctly rounded.

A row is a list of (column, value) with a label ±1; ``delta2`` holds Δ_k² per row; the reflected
extended pattern is y_k = l_k (x_k, ρ, Δ_k e_k) and a = Σ c_k y_k.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from tests.helpers import losses

Row = Sequence[tuple[int, float]]
Order = Callable[[int, list[int]], list[int]]

LARGEST_COUNT = 2**24


class Certificate(NamedTuple):
    """What counts prove: directional margin ≤ γ_d ≤ upper bound; and ‖a‖."""

    directional_margin: float
    upper_bound: float
    length: float


class Run(NamedTuple):
    """What a run took."""

    full_epochs: int
    mini_epochs: int
    updates: int


def splitmix64(state: int) -> Iterator[int]:
    """The numbers of SplitMix64, as Steele, Lea and Flood print it (OOPSLA 2014, figure 17)."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        yield z ^ (z >> 31)


def shuffled(start: int, rows: int) -> list[int]:
    """0 … rows − 1 by Fisher and Yates, inside out: row n goes to a place among the first n + 1,
    and what lay there to the end."""
    order: list[int] = []
    for n, drawn in zip(range(rows), splitmix64(start), strict=False):
        place = drawn * (n + 1) // 2**64
        order.append(n)
        order[n], order[place] = order[place], n
    return order


class Oracle:
    """One learner over rows held in lists; ``variant`` is "steps" or "length"."""

    def __init__(
        self,
        rows: Sequence[Row],
        labels: Sequence[int],
        delta2: Sequence[float],
        rho: float = 0.0,
        *,
        b: float = 1.0,
        epsilon: float = 1.0,
        variant: str = "length",
        width: int | None = None,
    ) -> None:
        assert len(rows) == len(labels) == len(delta2)
        assert variant in ("steps", "length")
        self.rows, self.labels, self.delta2, self.rho = rows, labels, delta2, rho
        self.b, self.epsilon, self.variant = b, epsilon, variant
        columns = 1 + max((column for row in rows for column, _ in row), default=-1)
        self.w = [0.0] * (columns if width is None else width)
        self.bias = 0.0
        self.counts = [0] * len(rows)
        self.t = 0
        self.sq_norm = 0.0

    def margin(self, k: int) -> float:
        """l (w·x + ρ w_bias), the nonzeros added in row order."""
        dot = 0.0
        for column, value in self.rows[k]:
            dot += float(value) * self.w[column]
        return self.labels[k] * (dot + self.rho * self.bias)

    def extended_margin(self, k: int) -> float:
        """y·a = l (w·x + ρ w_bias) + Δ² c."""
        return self.margin(k) + self.delta2[k] * self.counts[k]

    def sq_length(self, k: int) -> float:
        """‖(x, ρ)‖²."""
        total = 0.0
        for _, value in self.rows[k]:
            total += float(value) * float(value)
        return total + self.rho * self.rho

    def threshold(self) -> float:
        """b t^(1−ε) or b ‖a‖^(1−ε); 0 at t = 0, and at ‖a‖ = 0 for the length variant."""
        if self.t == 0:
            return 0.0
        if self.epsilon == 1.0:
            return self.b
        if self.variant == "steps":
            return self.b * float(self.t) ** (1.0 - self.epsilon)
        norm = math.sqrt(self.sq_norm)
        return 0.0 if norm == 0.0 else self.b * norm ** (1.0 - self.epsilon)

    def _add(self, k: int, step: float, margin: float, q: float) -> None:
        """``step`` times l (x, ρ) is added to the weights, of which the margin is known, and to the
        square of the length, q being that of the row."""
        factor = step * self.labels[k]
        for column, value in self.rows[k]:
            self.w[column] += factor * float(value)
        self.bias += factor * self.rho
        self.sq_norm = max(0.0, self.sq_norm + (2.0 * step * margin + step * step * q))

    def add(self, k: int, times: int = 1) -> None:
        """a ← a + y so many times."""
        q = self.sq_length(k) + self.delta2[k]
        self._add(k, float(times), self.extended_margin(k), q)
        self.counts[k] += times
        self.t += times

    def visit(self, k: int) -> bool:
        """a ← a + y if y·a ≤ threshold, and the count can be higher; whether it was."""
        mistake = self.extended_margin(k) <= self.threshold() and self.counts[k] < LARGEST_COUNT
        if mistake:
            self.add(k)
        return mistake

    def run(self, order: Order = lambda _, rows: rows, n_ep: int = 50) -> Run:
        """The paper's procedure, up to a full epoch without an update, by default in file order.

        The active set is the rows found misclassified in this full epoch. Up to ``n_ep``
        mini-epochs visit it, or until one makes no update. ``order(full epoch, rows)`` orders full
        and mini-epochs alike.
        """
        started, everything = self.t, list(range(len(self.rows)))
        mini = 0
        for full in itertools.count():
            erred = [k for k in order(full, everything) if self.visit(k)]
            if not erred:
                return Run(full + 1, mini, self.t - started)
            active = list(dict.fromkeys(erred))
            for _ in range(n_ep):
                mini += 1
                if not sum(self.visit(k) for k in order(full, active)):
                    break
        raise AssertionError

    def rebuilt(self) -> tuple[list[float], float]:
        """w and the bias weight summed afresh from the counts, correctly rounded."""
        terms: list[list[float]] = [[] for _ in self.w]
        for row, label, count in zip(self.rows, self.labels, self.counts, strict=True):
            for column, value in row:
                terms[column].append(count * label * float(value))
        bias = math.fsum(
            count * label * self.rho for label, count in zip(self.labels, self.counts, strict=True)
        )
        return [math.fsum(column) for column in terms], bias

    def margins(self, w: Sequence[float], bias: float) -> list[float]:
        """l (w·x + ρ w_bias) of every row for the weights given, correctly rounded."""
        return [
            label * math.fsum([*(float(v) * w[j] for j, v in row), self.rho * bias])
            for row, label in zip(self.rows, self.labels, strict=True)
        ]

    def certificate(self) -> Certificate:
        """The bounds that the counts prove. Needs t > 0 and ‖a‖ > 0."""
        w, bias = self.rebuilt()
        sq_weights = math.fsum([*(x * x for x in w), bias * bias])
        extra = (d2 * c * c for d2, c in zip(self.delta2, self.counts, strict=True))
        length = math.sqrt(math.fsum([sq_weights, *extra]))
        margins = self.margins(w, bias)
        extended = [m + d2 * c for m, d2, c in zip(margins, self.delta2, self.counts, strict=True)]
        return Certificate(min(extended) / length, length / self.t, length)


class DualOracle(Oracle):
    """Dual coordinate ascent: the weights are v = Σ α_k l_k (x_k, ρ), the square of their length is
    ``sq_norm``. ``t`` : the labels, where these are numbers."""

    def __init__(
        self,
        loss: str,
        rows: Sequence[Row],
        labels: Sequence[int],
        costs: Sequence[float],
        rho: float,
        alphas: Sequence[float],
        numbers: Sequence[float] = (),
        width: int | None = None,
    ) -> None:
        super().__init__(rows, labels, [0.0] * len(rows), rho, width=width)
        self.costs = costs
        self.loss, self.numbers, self.alphas = loss, numbers, list(alphas)
        self.lost = self.gains = 0.0
        for k, alpha in enumerate(alphas):
            self._add(k, alpha, self.margin(k), self.sq_length(k))

    def visit(self, k: int) -> bool:
        """The best step of α_k alone; whether it has changed."""
        margin, alpha, q = self.margin(k), self.alphas[k], self.sq_length(k)
        cost, t = self.costs[k], self.numbers[k] if self.numbers else 0.0
        self.lost += cost * losses.plain(self.loss, margin, t=t)[0]
        new, earned = losses.plain_step(self.loss, alpha, margin, q, cost, t)
        if new == alpha:
            return False
        self._add(k, new - alpha, margin, q)
        self.gains += earned - losses.plain_earned(self.loss, alpha, cost, t)
        self.alphas[k] = new
        return True


def gamma_d(
    rows: Sequence[Row], labels: Sequence[int], delta2: Sequence[float], rho: float = 0.0
) -> tuple[float, float]:
    """A bracket, tight to rounding, around the maximum directional margin of a small set.

    γ_d = min ‖Σ α_k y_k‖ over α ≥ 0, Σ α = 1: non-negative least squares on ‖Yᵀc‖² + (Σc − 1)²
    finds the direction. The lower end is proven by the direction it gives, the upper by its
    convex combination, so neither leans on the solver.
    """
    width = 1 + max((column for row in rows for column, _ in row), default=-1)
    Y = np.zeros((len(rows), width + 1 + len(rows)))  # the reflected extended patterns
    for k, (row, label, d2) in enumerate(zip(rows, labels, delta2, strict=True)):
        for column, value in row:
            Y[k, column] = label * float(value)
        Y[k, width], Y[k, width + 1 + k] = label * rho, math.sqrt(d2)
    system = np.vstack([Y.T / float(np.sqrt((Y * Y).sum(axis=1).max())), np.ones(len(Y))])
    target = np.zeros(len(system))
    target[-1] = 1.0
    c, _ = nnls(system, target)
    a = Y.T @ c
    length = float(np.linalg.norm(a))
    return float((Y @ a).min()) / length, length / float(c.sum())


def log_of_more(rest: float) -> float:
    """ln(1 + r) as the kernels have it."""
    return losses.log_ratio(rest / (2.0 + rest)) if rest <= 1.0 else losses.log(1.0 + rest)


def softmax(z: Sequence[float], y: int, cost: float) -> tuple[list[float], float]:
    """C p_j and C (ln Σ exp z_j − z_y) of a row's margins."""
    top = z.index(max(z))
    powers, rest = [losses.exp_minus(z[top] - a) for a in z], 0.0
    for j, power in enumerate(powers):
        rest += 0.0 if j == top else power
    shares = [cost * (power / (1.0 + rest)) for power in powers]
    return shares, cost * ((z[top] - z[y]) + log_of_more(rest))


class SoftmaxScan:
    """The sums of a scan of all classes. ``lengths``: ‖w_j‖, and behind these ρ |b_j|."""

    def __init__(self, classes: int, width: int, rho: float, lengths: Sequence[float]) -> None:
        self.classes, self.width, self.rho = classes, width, rho
        self.lengths, self.offsets = lengths[:classes], lengths[classes:]
        self.fresh, self.low = [0.0] * (classes * width - 1), [0.0] * (classes * width - 1)
        self.sums, self.totals = [math.inf, *[0.0] * 11], [0, 0]

    def add(
        self,
        z: Sequence[float],
        y: int,
        cost: float,
        sq_norm: float,
        nonzeros: int,
        alphas: Sequence[float],
    ) -> None:
        """Add a row."""
        K, u, norm = self.classes, losses.U, math.sqrt(sq_norm)
        self.totals[0] += 1
        self.sums[3] += cost
        self.sums[4] += cost * norm
        part = (1.01 * nonzeros + 24.0) * u
        at = [
            a + part * (norm * length + offset)
            for a, length, offset in zip(z, self.lengths, self.offsets, strict=True)
        ]
        at[y] = z[y] - part * (norm * self.lengths[y] + self.offsets[y])
        top, rest = at.index(max(at)), 0.0
        for j, a in enumerate(at):
            rest += 0.0 if j == top else losses.exp_minus(at[top] - a)
        value = ((at[top] - at[y]) + log_of_more(rest)) * (1.0 + (2.0 * K + 32.0) * u)
        self.add_to(self.sums, 8, 9, cost * (value + 2.0**-1000))
        others = 0.0
        for alpha in alphas:
            others += alpha
        if others == 0.0:
            return
        self.totals[1] += 1
        for j, alpha in enumerate(alphas):
            bias = (others if j == y else -alpha) * self.rho
            if j == K - 1:
                self.add_to(self.sums, 6, 7, bias)
                continue
            place = (self.width - 1) * K + j
            pair = [self.fresh[place], self.low[place]]
            self.add_to(pair, 0, 1, bias)
            self.fresh[place], self.low[place] = pair
        weight = (0.25 * K + 10.0) * others
        self.sums[2] += weight * self.rho
        self.sums[1] += weight * norm
        earned = cost * self.gain(alphas, y, others, cost)
        self.sums[5] += abs(earned)
        self.add_to(self.sums, 10, 11, earned)

    @staticmethod
    def add_to(sums: list[float], place: int, rounded: int, value: float) -> None:
        old = sums[place]
        new = old + value
        grown = new - old
        sums[place] = new
        sums[rounded] += (old - (new - grown)) + (value - grown)

    def gain(self, alphas: Sequence[float], y: int, others: float, cost: float) -> float:
        """A lower bound of the entropy of a row's q_j, with the bits of the kernel."""
        K, u, entropy, s = self.classes, losses.U, 0.0, others / cost
        if others > cost * (1.0 - 2.0 * (K + 4) * u):
            return -math.inf
        for j, alpha in enumerate(alphas):
            if j != y and alpha / cost > 2.0**-1000:
                entropy -= alpha / cost * losses.log(alpha / cost)
        if s <= 0.5:
            entropy += (1.0 - s) * log_of_more(s / (1.0 - s))
        elif (least := (1.0 - s) - 2.0 * (K + 4) * u) > 2.0**-1000:
            entropy -= least * losses.log(least)
        return max(entropy - u * ((2.0 * K + 32.0) * entropy + (4.0 * K + 16.0) * s), 0.0)


class SoftmaxAscent(SoftmaxScan):
    """Dual ascent by row of K classes, with the bits of the kernel. ``weights``: v_j and its bias
    in column j; ``alphas``: 0 of the row's class; both are changed in place."""

    def __init__(
        self, rho: float, weights: list[list[float]], alphas: list[list[float]], sq_norm: float
    ) -> None:
        super().__init__(len(weights[0]), len(weights), rho, ())
        self.weights, self.alphas = weights, alphas
        self.sq_norm, self.gains, self.lost, self.visited = sq_norm, 0.0, 0.0, 0

    def visit(self, k: int, row: Row, y: int, cost: float, square: float) -> bool:
        """The best step of the α of a row, unless it is quiet; whether they have changed."""
        q, others, top = square + self.rho * self.rho, 0.0, 0.0
        self.visited += 1
        if cost == 0.0:
            return False
        z = [0.0] * self.classes
        for column, value in row:
            z = [a + float(value) * w for a, w in zip(z, self.weights[column], strict=True)]
        z = [a + self.rho * w for a, w in zip(z, self.weights[-1], strict=True)]
        before = self.alphas[k]
        for alpha in before:
            others += alpha
        shares = [cost - others if j == y else alpha for j, alpha in enumerate(before)]
        top, total = max(z), 0.0
        powers = [losses.exp_minus(top - a) for a in z]
        for power in powers:
            total += power
        logarithm = top + losses.log(total)
        earned = cost * self.gain(before, y, others, cost)
        gap = cost * logarithm - earned
        for share, a in zip(shares, z, strict=True):
            gap -= share * a
        self.lost += gap
        if gap * self.visited < 0.2 * self.lost:
            return False
        new = _best_alphas(z, logarithm, q, cost, shares, powers, total)
        new[y], total = 0.0, 0.0
        new = [float(np.float32(alpha)) for alpha in new]
        for alpha in new:
            total += alpha
        sure = total <= cost * (1.0 - 2.0**-30)
        scale = 1.0 if sure else cost / total * (1.0 - 2.0**-21)
        new = [float(np.float32(scale * alpha)) for alpha in new]
        steps, change, total = [a - b for a, b in zip(before, new, strict=True)], 0.0, 0.0
        for alpha, step in zip(new, steps, strict=True):
            total += alpha
            change -= step
        self.alphas[k] = new
        if not any(steps):
            return False
        steps[y] = change
        for step, a in zip(steps, z, strict=True):
            self.sq_norm += 2.0 * step * a + q * (step * step)
        for column, value in [*row, (-1, self.rho)]:
            moved = zip(self.weights[column], steps, strict=True)
            self.weights[column] = [w + float(value) * step for w, step in moved]
        self.gains += cost * self.gain(new, y, total, cost) - earned
        return True


def _best_alphas(
    z: Sequence[float],
    logarithm: float,
    q: float,
    cost: float,
    alphas: Sequence[float],
    sizes: list[float],
    total: float,
) -> list[float]:
    """The α' that maximise C H(α'/C) + Σ (α'_j − α_j) z_j − ½ q ‖α' − α‖²."""
    if q * cost > 2.0**-1000:
        sides = [a + q * alpha for a, alpha in zip(z, alphas, strict=True)]
        multiplier = logarithm - losses.log(q * cost)
        for _ in range(100):
            total, slope = 0.0, 0.0
            sizes = [wright_omega(side - multiplier) for side in sides]
            for u in sizes:
                total += u
                slope += u / (1.0 + u)
            if abs(total - q * cost) <= 1e-4 * min(q * cost, 1.0):
                break
            multiplier += (total - q * cost) / slope
    return [cost * (u / total) for u in sizes]


def wright_omega(x: float) -> float:
    """The ω with ω + ln ω = x, about."""
    if x < -30.0:
        return losses.exp_minus(-x)
    if x <= -0.5:
        w = losses.exp_minus(-x) / (1.0 + losses.exp_minus(-x))
    elif x <= 4.0:
        w = 1.0 + (x - 1.0) * (0.5 + (x - 1.0) / 16.0)
    else:
        w = x - losses.log(x) + losses.log(x) / x
    w = nearer_omega(x, w)
    return nearer_omega(x, w) if w > 16.0 else w


def nearer_omega(x: float, w: float) -> float:
    """A step to that ω."""
    r = x - w - losses.log(w)
    f = 2.0 * (1.0 + w) * (1.0 + w + 2.0 * r / 3.0)
    return w * (1.0 + r / (1.0 + w) * (f - r) / (f - 2.0 * r))
