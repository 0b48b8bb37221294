"""Every numba loop but those of ``data.formats``, and the only ``import numba``.

Conventions: values float32, sums and weights float64, column numbers uint32, offsets int64, dual
variables α float32. The caller allocates; permutations come in as arrays; nothing is checked here
(a Chunk is checked by its reader). Loops over nonzeros count in ``uintp``: without negative-wrap
tests they are 1.8 times faster. Never ``fastmath``: a kernel equals its oracle bit for bit.

A row k has the label l_k, the features x_k, C_k = 1/(2 Δ_k²) and the dual variable α_k;
v = Σ α_k l_k (x_k, ρ). The weights are ``w`` (columns) and ``scalars[BIAS]`` (the weight at ρ).
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from streamtron.core.errors import SettingsError
from streamtron.core.rows import COLUMN_MAX as COLUMN_MAX
from streamtron.core.rows import Rows
from streamtron.core.splitmix import SPLITMIX64

try:
    from numba import config, njit
    from numba import types as types
    from numba.extending import intrinsic
except ValueError as error:  # of an environment variable
    raise SettingsError(f"numba: {error} Correct NUMBA_NUM_THREADS, or unset it.") from error
if config.DISABLE_JIT:
    raise SettingsError("NUMBA_DISABLE_JIT is set, and all loops are compiled ones. Unset it.")

BIAS, SQ_NORM, LOSS, GAINS, STEPS = 0, 1, 2, 3, 3
"""Places in ``scalars``: the bias weight; ‖v‖²; the loss summed while training (an estimate); and
−Σ C_k φ*(−α_k/C_k), so that D = GAINS − ½ SQ_NORM. In the paper's procedure SQ_NORM is ‖a‖², and in
the place of GAINS is t = Σ c_k."""

LEAST, LENGTHS, SIZES, COSTS, NORMS, MAGNITUDES = 0, 1, 2, 3, 4, 5
DUAL_BIAS, LOSSES, EARNED, SUMS = 6, 8, 10, 12
"""Places in a scan's ``sums``: a lower bound of min l (w·x + ρ w_bias); Σ |α_k| ‖x_k‖; Σ |α_k| ρ;
Σ C_k; Σ C_k ‖x_k‖; and the sum of |gains|. The others are compensated, the next place sums their
rounding errors: Σ α_k l_k ρ; Σ C_k φ(m_k), at least; and the gains −Σ C_k φ*(−α_k/C_k), at most.
And how many places there are."""

ROWS, SUPPORT, TOTALS = 0, 1, 2
"""Places in a scan's ``totals``: rows, rows with α_k ≠ 0; and how many places there are."""

UNIT_ROUNDOFF = 2.0**-53
"""u: a sum, product, quotient or square root of float64 is off by at most this part of itself."""

UNDERFLOW = 2.0**-1000
"""More than what of a loss can underflow."""

SURE = 2.0**-30
"""A sum of α below (1 − SURE) C is below C for certain, whatever it rounds."""

DOT_ROUNDINGS = 24.0
"""A margin is off by at most (nonzeros + 2) u ‖(x, ρ)‖ ‖(w, w_bias)‖ (Higham, 2002, eq. 3.5); the
rest allows for weights that were rounded when they were scaled, and for taking this off."""

LARGEST_COUNT = 2.0**24
"""Counts of the paper's procedure are whole numbers of float32, up to here."""


class Phi(NamedTuple):
    """A loss φ as kernels take it: its ``code``, η of one that is smoothed, and ε of one that has
    it; see the section on losses."""

    code: int
    zone: float = 0.0
    epsilon: float = 0.0


def readonly(dtype: types.Type) -> types.Array:
    """Return the type of a contiguous array that a kernel does not change."""
    return types.Array(dtype, 1, "C", readonly=True)


_ROWS = types.NamedTuple(
    [readonly(types.int64), readonly(types.uint32), readonly(types.float32), types.int64], Rows
)
_F8, _I8 = types.float64[::1], types.int64[::1]
_MATRIX, _TABLE = types.float64[:, ::1], types.float32[:, ::1]
_F4, _U1 = types.float32[::1], types.uint8[::1]
_ORDER, _SIGNS, _REALS = readonly(types.int64), readonly(types.int8), readonly(types.float64)
_DUALS = readonly(types.float32)
_PHI = types.NamedTuple([types.int64, types.float64, types.float64], Phi)


def _can_be_kept():
    """Tell whether numba has a directory for its cache; without one it would refuse to compile."""
    try:
        njit(cache=True)(_can_be_kept)
    except RuntimeError:
        logging.getLogger("streamtron").warning(
            "There is no place to keep compiled kernels: every process compiles them anew, for "
            "some seconds. Name a directory that can be written to in NUMBA_CACHE_DIR."
        )
        return False
    return True


_OPTIONS = {
    "cache": _can_be_kept(),
    "nogil": True,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
}
"""Options of all kernels. Wrappers for calls from C took a fifth of the compilation."""

_first_calls = threading.Lock()


class Kernel:
    """A function compiled for one signature, or loaded from disk, at its first call. Another dtype
    is a TypeError, not a second compilation."""

    def __init__(self, signature, function):
        functools.update_wrapper(self, function)
        self._signature = signature
        self._compiled = njit(**_OPTIONS)(function)
        self._call = self._first_call

    def __call__(self, *arguments):
        return self._call(*arguments)

    def compile(self):
        """Compile or load the function if needed."""
        with _first_calls:
            if self._call is not self._compiled:
                self._compiled.compile(self._signature)
                self._compiled.disable_compile()
                self._call = self._compiled

    def _first_call(self, *arguments):
        self.compile()
        return self._compiled(*arguments)


def kernel(signature):
    """Decorate a kernel with its signature."""
    return functools.partial(Kernel, signature)


def helper(function):
    """Decorate a function that kernels call; it is compiled with the first of them."""
    return njit(**_OPTIONS, no_cpython_wrapper=True)(function)


def inlined(function):
    """Decorate a small function of which every call costs: it becomes a part of its callers."""
    return njit(**_OPTIONS, no_cpython_wrapper=True, forceinline=True)(function)


AHEAD, WEIGHTS_AHEAD = 8, 2
"""How many rows ahead of the one visited nonzeros, and the weights of their columns, are
prefetched. In random order the processor's own prefetch fails: visits are 2.5 times faster with
this one (``benchmarks/reading.py``)."""

_LINE = 16
"""Column numbers, or values, in a cache line of 64 bytes."""


@intrinsic
def _fetch(typing_context, array, place):
    """Prefetch the cache line of ``array[place]``; no value changes."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.gep(data, [arguments[1]])
        number = ir.IntType(32)
        shape = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [address.type], shape)
        to_read, to_all_levels, of_data = number(0), number(3), number(1)
        builder.call(prefetch, [address, to_read, to_all_levels, of_data])
        return context.get_dummy_value()

    return types.void(array, place), generate


@inlined
def _fetch_ahead(rows, order, n, squares, costs, alphas, w):
    """Prefetch the row visited ``AHEAD`` visits after the n-th, the weights of a nearer one, and
    the offsets of later ones. A call would count references with locked instructions."""
    i = _fetch_row_ahead(rows, order, n)
    _fetch(squares, i)
    _fetch(costs, i)
    _fetch(alphas, i)
    _fetch_weights_ahead(rows, order, n, w)


@inlined
def _fetch_weights_ahead(rows, order, n, w):
    """Prefetch the weights of the row visited ``WEIGHTS_AHEAD`` visits after the n-th."""
    i = np.uintp(order[np.uintp(min(n + WEIGHTS_AHEAD, len(order) - 1))])
    for j in range(np.uintp(rows.indptr[i]), np.uintp(rows.indptr[i + np.uintp(1)])):
        _fetch(w, rows.indices[j])


@inlined
def _fetch_row_ahead(rows, order, n):
    """Prefetch the nonzeros of that row alone; return the row."""
    last = len(order) - 1
    _fetch(rows.indptr, np.uintp(order[np.uintp(min(n + 2 * AHEAD, last))]))
    i = np.uintp(order[np.uintp(min(n + AHEAD, last))])
    start, stop = np.uintp(rows.indptr[i]), np.uintp(rows.indptr[i + np.uintp(1)])
    for j in range(start, stop, np.uintp(_LINE)):
        _fetch(rows.indices, j)
        _fetch(rows.values, _place(rows, i, j))
    return i


@inlined
def _place(rows, i, j):
    """Where the value of nonzero j, of row i, is: at j; at first + i where each row has one."""
    by_nonzero = np.uintp(rows.first >> np.int64(63))  # all bits, or none
    return j & by_nonzero | (np.uintp(rows.first) + np.uintp(i)) & ~by_nonzero


@helper
def _dot(rows, i, w):
    """x_i · w, summed in row order."""
    total = 0.0
    for j in range(np.uintp(rows.indptr[i]), np.uintp(rows.indptr[i + np.uintp(1)])):
        total += rows.values[_place(rows, i, j)] * w[rows.indices[j]]
    return total


@helper
def _plus(rows, i, factor, w):
    """w ← w + factor x_i in place, where ‖x_i‖² is known."""
    for j in range(np.uintp(rows.indptr[i]), np.uintp(rows.indptr[i + np.uintp(1)])):
        w[rows.indices[j]] += factor * np.float64(rows.values[_place(rows, i, j)])


@helper
def _add_to(sums, place, value):
    """Add value to sums[place], and its rounding error to the next place: together they are off by
    u of themselves and n² u² of Σ |values| (Ogita, Rump and Oishi, 2005, Algorithm 4.3)."""
    old = sums[place]
    new = old + value
    grown = new - old
    sums[place] = new
    sums[place + np.uintp(1)] += (old - (new - grown)) + (value - grown)


@helper
def _threshold(t, sq_norm, b, epsilon, by_length):
    """Return the threshold: b t^(1−ε) (steps) or b ‖a‖^(1−ε) (length); 0 at t = 0."""
    if t == 0:
        return 0.0
    if epsilon == 1.0:
        return b
    if not by_length:
        return b * np.float64(t) ** (1.0 - epsilon)
    if sq_norm <= 0.0:
        return 0.0
    return b * math.sqrt(sq_norm) ** (1.0 - epsilon)


@kernel(types.void(_ROWS, _F8))
def squared_norms(rows, squares):
    """‖x_i‖² of every row into ``squares`` (float64, shape (rows,), changed in place)."""
    for i in range(len(squares)):
        square = 0.0
        for j in range(np.uintp(rows.indptr[i]), np.uintp(rows.indptr[i + np.uintp(1)])):
            value = np.float64(rows.values[_place(rows, i, j)])
            square += value * value
        squares[i] = square


# --- losses: φ of a margin m, of a residual m = z − t, or of both t and z, by the loss's code; see
# core/losses.py ---

SQUARED_HINGE, LOG_LOSS, HINGE = 0, 1, 2
SQUARED_ERROR, HUBER, EPSILON_INSENSITIVE, SQUARED_EPSILON_INSENSITIVE, POISSON = 3, 4, 5, 6, 7
SOFTMAX = 8
"""The codes of φ(m) = max(0, 1 − m)², ln(1 + e^−m) and max(0, 1 − m); of ½ m²; of the same for
|m| ≤ ε and ε |m| − ½ ε² beyond; with s = max(0, |m| − ε) of s and s²; and of φ(t, z) = e^z − t z +
t ln t − t.

Of HINGE and EPSILON_INSENSITIVE the slack s = max(0, 1 − m) or max(0, |m| − ε) costs s²/(2 η) below
the ``zone`` η ≥ 0, and s − η/2 above. With η = 0 they are the losses themselves."""

LARGEST_LOG, LARGEST_MEAN = 300.0, 1e15
"""Of POISSON z counts as 300 where it is above, so that no sum overflows while training, and −α/C
is no more than the largest label; a scan proves nothing where z may be above."""

LN2, _LN2_HIGH, _LN2_LOW = 0.6931471805599453, 0.693147180369123816490, 1.90821492927058770002e-10
"""ln 2, and as a sum; the product of its first term with a number below 2¹¹ is exact."""

_POWERS = np.ldexp(1.0, -np.arange(1100))
_FACTORIALS = np.array([1.0 / math.factorial(k) for k in range(13, -1, -1)])
_ODD = np.array([1.0 / (2 * k + 1) for k in range(17, -1, -1)])

# exp and ln are our own, so that models are the same on every machine. Both are off by at most 8 u
# of themselves: tests hold them against mpmath.


@helper
def _exp_minus(x):
    """Return e^−x, x ≥ 0, by Taylor's series around a multiple of ln 2; 0 from 2⁻¹⁰⁷⁵ on."""
    if not x < 746.0:
        return 0.0 if x == x else x
    k = np.floor(x * 1.4426950408889634 + 0.5)
    r = (k * _LN2_HIGH - x) + k * _LN2_LOW
    square, odd, even = r * r, _FACTORIALS[0], _FACTORIALS[1]
    for n in range(2, 14, 2):  # two sums at a time wait for each other half as long
        odd, even = odd * square + _FACTORIALS[n], even * square + _FACTORIALS[n + 1]
    return (odd * r + even) * _POWERS[np.intp(k)]


@helper
def _log_ratio(s, first=0):
    """Return ln((1 + s)/(1 − s)) = 2 (s + s³/3 + s⁵/5 + …), |s| ≤ 1/3. The ``first`` of the
    coefficients, those of the highest powers, are left out: six where |s| ≤ 1/5."""
    square = s * s
    fourth, odd, even = square * square, _ODD[first], _ODD[first + 1]
    for n in range(first + 2, 18, 2):
        odd, even = odd * fourth + _ODD[n], even * fourth + _ODD[n + 1]
    return 2.0 * s * (odd * square + even)


@helper
def _log(x):
    """Return ln x, x > 0."""
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    return exponent * LN2 + _log_ratio((mantissa - 1.0) / (mantissa + 1.0), 6)


@helper
def _exp(z):
    """Return e^z, off by at most 9 u of itself; of a z above LARGEST_LOG that of this one."""
    return _exp_minus(-z) if z < 0.0 else 1.0 / _exp_minus(min(z, LARGEST_LOG))


@helper
def _log_of(target):
    """Return ln t of a label t ≥ 0; 0 of 0, where it is multiplied by t."""
    return _log(target) if target > 0.0 else 0.0


@helper
def _smoothed(slack, zone):
    """Return the cost of a slack s ≥ 0: s²/(2 η) below the zone η, s − η/2 above."""
    return slack - 0.5 * zone if slack >= zone else 0.5 * slack * slack / zone


@helper
def _smoothed_slope(slack, zone):
    """Return the slope of ``_smoothed``; 0 at 0."""
    return slack / zone if slack < zone else np.float64(slack > 0.0)


@helper
def _logistic_value(m, q):
    """Return φ(m) of LOG_LOSS, q = exp(−|m|)."""
    return max(-m, 0.0) + _log_ratio(q / (2.0 + q))


@helper
def _logistic_slope(m, q):
    """Return −φ'(m) = σ(−m) of LOG_LOSS, q = exp(−|m|)."""
    return (q if m >= 0.0 else 1.0) / (1.0 + q)


@helper
def _logistic_curvature(q):
    """Return φ''(m) of LOG_LOSS, q = exp(−|m|)."""
    return q / ((1.0 + q) * (1.0 + q))


@helper
def _value(phi, target, z):
    """Return φ(t, z), z = l (x, ρ)·v: φ(z) for a loss of classes, φ(z − t) for other losses here
    except POISSON. A code that no branch takes is no number."""
    loss, m = phi.code, z - target
    if loss == POISSON:
        return _exp(z) - target * (z - _log_of(target) + 1.0)
    if loss == SQUARED_HINGE:
        slack = max(1.0 - m, 0.0)
        return slack * slack
    if loss == LOG_LOSS:
        return _logistic_value(m, _exp_minus(abs(m)))
    if loss == HINGE:
        return _smoothed(max(1.0 - m, 0.0), phi.zone)
    size = abs(m)
    if loss == SQUARED_ERROR or (loss == HUBER and size <= phi.epsilon):
        return 0.5 * (m * m)
    if loss == HUBER:
        return phi.epsilon * (size - 0.5 * phi.epsilon)
    slack = max(size - phi.epsilon, 0.0)
    if loss == EPSILON_INSENSITIVE:
        return _smoothed(slack, phi.zone)
    if loss == SQUARED_EPSILON_INSENSITIVE:
        return slack * slack
    return np.nan


@helper
def _slope(phi, target, z):
    """Return −∂φ(t, z)/∂z."""
    loss, m = phi.code, z - target
    if loss == POISSON:
        return target - _exp(z)
    if loss == SQUARED_HINGE:
        return 2.0 * max(1.0 - m, 0.0)
    if loss == LOG_LOSS:
        return _logistic_slope(m, _exp_minus(abs(m)))
    if loss == HINGE:
        return _smoothed_slope(max(1.0 - m, 0.0), phi.zone)
    if loss == SQUARED_ERROR:
        return -m
    if loss == HUBER:
        return -min(max(m, -phi.epsilon), phi.epsilon)
    slack = max(abs(m) - phi.epsilon, 0.0)
    if loss == EPSILON_INSENSITIVE:
        size = _smoothed_slope(slack, phi.zone)
    else:
        size = 2.0 * slack if loss == SQUARED_EPSILON_INSENSITIVE else np.nan
    return -size if m > 0.0 else size


@helper
def _curvature(phi, target, z):
    """Return ∂²φ(t, z)/∂z²."""
    loss, m = phi.code, z - target
    if loss == POISSON:
        return _exp(z)
    if loss == SQUARED_HINGE:
        return 2.0 if m < 1.0 else 0.0
    if loss == LOG_LOSS:
        return _logistic_curvature(_exp_minus(abs(m)))
    if loss == HINGE:
        return 1.0 / phi.zone if 0.0 < 1.0 - m < phi.zone else 0.0
    if loss == SQUARED_ERROR:
        return 1.0
    if loss == HUBER:
        return 1.0 if abs(m) <= phi.epsilon else 0.0
    slack = abs(m) - phi.epsilon
    if loss == SQUARED_EPSILON_INSENSITIVE:
        return 2.0 if slack > 0.0 else 0.0
    if loss == EPSILON_INSENSITIVE:
        return 1.0 / phi.zone if 0.0 < slack < phi.zone else 0.0
    return np.nan


@helper
def _domain(phi, target):
    """Return the least and the most that p = α/C can be: where φ*(−p) is finite."""
    if phi.code == POISSON:
        return -LARGEST_MEAN, target
    most = 1.0
    if phi.code == HUBER:
        most = phi.epsilon
    elif phi.code in (SQUARED_HINGE, SQUARED_ERROR, SQUARED_EPSILON_INSENSITIVE):
        most = math.inf
    return (0.0 if phi.code in (SQUARED_HINGE, LOG_LOSS, HINGE) else -most), most


@helper
def _gain(phi, p, target):
    """Return −φ*(−p), which a dual variable α = p C earns, over C: a lower bound of it for every p
    that is off by at most 8 u of itself, and −∞ where p is outside of the domain by more than that.
    ``target`` : t, where labels are numbers.

    A p just above the most stands for all α times 1 − 16 u: ‖v‖ only falls, and of these what is
    returned is a lower bound, too. So it holds from 24 u below p to 8 u above it.

    The entropy H(p) = −p ln p − (1 − p) ln(1 − p) has the slope ln((1 − p)/p), infinite at both
    ends: 16 u p (|ln p| + |ln(1 − p)| + 1) allows for a larger p, with 32 u H for a smaller one, as
    H ≥ p |ln p|; near 1 it counts as its least, 0. Of others the gain is p t less ε |p|, ½ p² or
    ¼ p²: 32 u of these."""
    loss = phi.code
    if p == 0.0:
        return 0.0
    (least, most), rounded = _domain(phi, target), 1.0 + 8.0 * UNIT_ROUNDOFF
    if not least * rounded <= p <= most * rounded:
        return -math.inf
    if loss == POISSON:
        return _poisson_gain(p, target)
    if loss == LOG_LOSS:
        if not UNDERFLOW < p < 1.0 - 128.0 * UNIT_ROUNDOFF:
            return 0.0
        part = min(p, 1.0 - p)
        first, second = -_log(part), _log_ratio(part / (2.0 - part))
        entropy = part * first + (1.0 - part) * second
        off = 16.0 * p * (first + second + 1.0) + 32.0 * entropy
        return max(entropy - UNIT_ROUNDOFF * off, 0.0)
    if loss == HINGE:
        return p * (1.0 - 32.0 * UNIT_ROUNDOFF)
    if loss == SQUARED_HINGE:
        target = 1.0
    linear, conjugate = p * target, _conjugate(phi, p)
    return linear - conjugate - (32.0 * UNIT_ROUNDOFF * (abs(linear) + conjugate) + UNDERFLOW)


@helper
def _poisson_gain(p, target):
    """Return ``_gain`` of POISSON, (t − p)(1 − ln(t − p)) + t ln t − t, p ≠ 0. With r = t − p and
    s = ln(r/t) that is p ln t − p − r s, whose terms are small where p is; of t = 0 ln t is 0 and s
    ln r.

    Its slope is ln r = ln t + s. While r is at least 128 u t, a p that is off by 24 u changes that
    by less than ¼, so the gain by 24 u |p| (|ln t| + |s| + ¼); the terms are off by at most
    10 u |p ln t| + 18 u |r s| + 3 u |p|: 48 u of all. Nearer to t the gain is t ln t − t + h with
    h = r' (1 − ln r') and 0 ≤ r' ≤ 160 u t: h is concave, so at least 0, or where 160 u t is above
    e −160 u t (ln t − 32.6), up to t = 10¹⁵ less than 24 u t ln t."""
    log, mean = _log_of(target), target - p
    if not mean > 128.0 * UNIT_ROUNDOFF * target:
        return target * log - target - 48.0 * UNIT_ROUNDOFF * (target * (abs(log) + 1.0))
    share = p / target if target > 0.0 else -math.inf
    if -1.0 <= share <= 0.5:
        ratio = _log_ratio(-share / (2.0 - share))
    else:
        ratio = _log(mean / target if target > 0.0 else mean)
    off = abs(p) * (abs(log) + abs(ratio) + 1.0) + mean * abs(ratio)
    return p * log - p - mean * ratio - (48.0 * UNIT_ROUNDOFF * off + UNDERFLOW)


@helper
def _conjugate(phi, p):
    """Return φ*(−p) of a loss of z, where t = 0."""
    if phi.code in (SQUARED_ERROR, HUBER):
        return 0.5 * (p * p)
    if phi.code == EPSILON_INSENSITIVE:
        return phi.epsilon * abs(p)
    if phi.code == SQUARED_EPSILON_INSENSITIVE:
        return phi.epsilon * abs(p) + 0.25 * (p * p)
    if phi.code == SQUARED_HINGE:
        return 0.25 * (p * p)
    return np.nan


@helper
def _float32_within(alpha, least, most):
    """Return the float32 nearest to α, or towards 0 where that is beyond ``least`` ≤ 0 or ``most``
    ≥ 0."""
    single = np.float32(min(max(alpha, least), most))
    if not least <= np.float64(single) <= most:
        return np.nextafter(single, np.float32(0.0))
    return single


@helper
def _new_alpha(phi, alpha, m, q, cost, price, target):
    """Return the dual variable after a step of dual coordinate ascent (Hsieh et al., ICML 2008), a
    float32, and what it earns over C, if that is known: of LOG_LOSS, else 0.

    It maximises C g(α'/C) − (α' − α) m − ½ (α' − α)² (q − Δ²), with g = −φ*(−p) and q = ‖(x, ρ)‖²,
    to which SQUARED_HINGE adds Δ² (``price``). Logistic loss: see ``_logistic_margin``; POISSON:
    ``_poisson_margin``. Where φ is of z − t, α may be negative: see ``_residual_alpha``."""
    if phi.code == SQUARED_HINGE:
        if q <= 0.0 or (alpha == 0.0 and m >= 1.0):
            return np.float32(alpha), 0.0
        return np.float32(max(alpha + (1.0 - (m + price * alpha)) / q, 0.0)), 0.0
    least, most = _domain(phi, target)
    least, most = least * cost, most * cost
    if phi.code == HINGE:
        best = max(alpha + (1.0 - m) / q, 0.0) if q > 0.0 else math.inf
        return _float32_within(best, least, most), 0.0
    if phi.code == LOG_LOSS:
        z = _logistic_margin(alpha, m, q, cost)
        e = _exp_minus(abs(z))
        slope = _logistic_slope(z, e)
        return _float32_within(cost * slope, least, most), slope * z + _logistic_value(z, e)
    if phi.code == POISSON:
        z = _poisson_margin(alpha, m, q, cost, target)
        return _float32_within(cost * (target - _exp(z)), least, most), 0.0
    return _float32_within(_residual_alpha(phi, alpha, m - target, q, cost), least, most), 0.0


@helper
def _residual_alpha(phi, alpha, residual, q, cost):
    """Return the α' that maximises C g(α'/C) − (α' − α) z − ½ (α' − α)² q, before it is cut to the
    most that it may be, with g = −φ*(−p) and z − t the ``residual``: soft-thresholding at ε (Ho and
    Lin, JMLR 2012)."""
    loss, pull = phi.code, alpha * q - residual
    if loss in (SQUARED_ERROR, HUBER):
        return pull / (q + 1.0 / cost) if cost > 0.0 else 0.0
    size = max(abs(pull) - phi.epsilon, 0.0)
    if loss == SQUARED_EPSILON_INSENSITIVE:
        size /= q + 0.5 / cost if cost > 0.0 else math.inf
    elif size > 0.0:
        size = size / q if q > 0.0 else math.inf
    return size if pull > 0.0 else -size


LOGISTIC_STEPS = 100
"""Steps of Newton's method for one dual variable at most: two or three are usual, thirty where
C q is large and most of them halve the bracket."""

NEARLY = 0.03
"""A step from where the margin is off by this much leaves about its square."""


@helper
def _logistic_margin(alpha, m, q, cost):
    """Return the margin z of a row after the step from α to the α' = C σ(−z) that maximises
    C H(α'/C) − (α' − α) m − ½ (α' − α)² q (Yu et al., 2011).

    As z is m + (α' − α) q, it is the root of an increasing function, by Newton's method from m
    within the bracket that 0 ≤ α' ≤ C makes, which is halved where a step leads out of it, or the
    step before has left more than half of the value."""
    low, high = m - alpha * q, m + (cost - alpha) * q
    z, last = m, math.inf
    for _ in range(LOGISTIC_STEPS):
        slope = _logistic_slope(z, _exp_minus(abs(z)))
        value = z - m - (cost * slope - alpha) * q
        low, high = (z, high) if value < 0.0 else (low, z)
        z -= value / (1.0 + cost * q * slope * (1.0 - slope))
        if abs(value) <= NEARLY:
            break
        if not low < z < high or abs(value) > 0.5 * last:
            z = 0.5 * (low + high)
        last = abs(value)
    return z


@helper
def _poisson_margin(alpha, m, q, cost, target):
    """Return the margin z of a row after the step from α to the α' = C (t − e^z) of POISSON.

    As z is m + (α' − α) q, it is the root of z + C q e^z = b with b = m + (C t − α) q. The left
    side rises and is convex, so from the right Newton's method comes down to it: from b, or where
    s = ln(C q) + b is above 1 from b − s + ln s (Hoorfar and Hassani, J. Inequal. Pure Appl. Math.
    9, 2008, Theorem 2.1 on Lambert's W)."""
    size, b = cost * q, m + (cost * target - alpha) * q
    if not size > 0.0:
        return m
    log = _log(size)
    z = _log(log + b) - log if log + b > 1.0 else b
    for _ in range(LOGISTIC_STEPS):
        grown = size * _exp(z)
        step = (z + grown - b) / (1.0 + grown)
        z -= step
        if not abs(step) > NEARLY * NEARLY:
            break
    return z


@helper
def _earned(phi, alpha, cost, price, target):
    """Return −C φ*(−α/C)."""
    if phi.code == SQUARED_HINGE:
        return alpha - 0.5 * price * (alpha * alpha)
    return cost * _gain(phi, alpha / cost, target) if cost > 0.0 else 0.0


@kernel(
    types.int64(
        _ROWS, _ORDER, _SIGNS, _REALS, types.float64, _PHI, _REALS, _REALS, _F4, _F8, _F8, _U1
    )
)
def visit(rows, order, signs, costs, rho, phi, targets, squares, alphas, w, scalars, moved):
    """Visit rows in order: each α_k is set by a step of dual coordinate ascent, and v moves along.

    Parameters
    ----------
    rows : the CSR rows.
    order : int64, row positions in the order of visits.
    signs : int8, shape (rows,): l_k; 0 leaves the row out.
    costs : float64, shape (rows,): C_k > 0.
    rho : ρ.
    phi : φ.
    targets : float64, shape (rows,): t_k, where labels are numbers; else (0,).
    squares : float64, shape (rows,): ‖x_k‖².
    alphas : float32, shape (rows,): α_k, changed in place.
    w, scalars : v, changed in place.
    moved : uint8, shape (rows,): set to 1 where α_k has changed.

    Returns how many have changed. Cost: one pass over the visited rows' nonzeros, two where α_k
    changes.
    """
    bias, sq_norm, lost, gains = scalars[BIAS], scalars[SQ_NORM], scalars[LOSS], scalars[GAINS]
    updates, numbers = 0, len(targets) > 0
    for n in range(len(order)):
        _fetch_ahead(rows, order, n, squares, costs, alphas, w)
        i = np.uintp(order[n])
        if signs[i] == 0:
            continue
        l = np.float64(signs[i])
        margin = l * (_dot(rows, i, w) + rho * bias)
        target = targets[i] if numbers else 0.0
        cost, price = costs[i], 0.5 / costs[i] if phi.code == SQUARED_HINGE else 0.0
        lost += cost * _value(phi, target, margin)
        q, alpha = squares[i] + rho * rho, np.float64(alphas[i])
        new, gain = _new_alpha(phi, alpha, margin, q + price, cost, price, target)
        step = np.float64(new) - alpha
        if step == 0.0:
            continue
        _plus(rows, i, step * l, w)
        bias += (step * l) * rho
        sq_norm = max(sq_norm + (2.0 * step * margin + step * step * q), 0.0)
        after = (
            cost * gain
            if phi.code == LOG_LOSS
            else _earned(phi, np.float64(new), cost, price, target)
        )
        gains += after - _earned(phi, alpha, cost, price, target)
        alphas[i] = new
        updates += 1
        moved[i] = 1
    scalars[BIAS], scalars[SQ_NORM], scalars[LOSS], scalars[GAINS] = bias, sq_norm, lost, gains
    return updates


@kernel(
    types.Tuple([types.int64, types.float64])(
        _ROWS, _SIGNS, _REALS, types.float64, _DUALS, types.float64, types.float64, _REALS, _U1
    )
)
def find_mistakes(rows, signs, delta2, rho, counts, threshold, bias, w, marks):
    """Return how many rows have y_k·a ≤ ``threshold``, as ``add_mistakes`` has it, and the least
    y_k·a; ``marks`` (uint8, shape (rows,)) becomes 1 there and where c_k > 0, else 0."""
    mistakes, least = 0, math.inf
    for i in range(len(signs)):
        marks[i] = 0
        if signs[i] == 0:
            continue
        l = np.float64(signs[i])
        y_a = l * (_dot(rows, i, w) + rho * bias) + delta2[i] * counts[i]
        if y_a <= threshold:
            mistakes += 1
        least = min(least, y_a)
        marks[i] = y_a <= threshold or counts[i] > 0.0
    return mistakes, least


@kernel(
    types.int64(
        _ROWS,
        _ORDER,
        _SIGNS,
        _REALS,
        types.float64,
        types.float64,
        types.float64,
        types.boolean,
        _REALS,
        _F4,
        _F8,
        _F8,
        _U1,
    )
)
def add_mistakes(
    rows, order, signs, delta2, rho, b, epsilon, by_length, squares, counts, w, scalars, moved
):
    """Visit rows in order: c_k ← c_k + 1 and a ← a + y_k where y_k·a is at most the threshold,
    b t^(1−ε) or, ``by_length``, b ‖a‖^(1−ε); 0 at t = 0. ``delta2`` : Δ_k²; ``counts`` : c_k,
    float32, LARGEST_COUNT at most; all else is as in ``visit``."""
    bias, sq_norm, t, updates = scalars[BIAS], scalars[SQ_NORM], scalars[STEPS], 0
    threshold = _threshold(t, sq_norm, b, epsilon, by_length)
    for n in range(len(order)):
        _fetch_ahead(rows, order, n, squares, delta2, counts, w)
        i = np.uintp(order[n])
        if signs[i] == 0:
            continue
        l = np.float64(signs[i])
        y_a = l * (_dot(rows, i, w) + rho * bias) + delta2[i] * counts[i]
        if not y_a <= threshold or counts[i] >= LARGEST_COUNT:
            continue
        _plus(rows, i, l, w)
        bias += l * rho
        sq_norm = max(sq_norm + (2.0 * y_a + (squares[i] + rho * rho + delta2[i])), 0.0)
        t += 1.0
        counts[i] += np.float32(1.0)
        updates += 1
        moved[i] = 1
        threshold = _threshold(t, sq_norm, b, epsilon, by_length)
    scalars[BIAS], scalars[SQ_NORM], scalars[STEPS] = bias, sq_norm, t
    return updates


@helper
def _most_lost(phi, z, off, target, origin):
    """Return the most that φ(t, z) is, z being off by ``off`` and t by what taking ``origin`` off
    it has rounded. φ of a class falls, that of a residual rises on both sides of t; POISSON is
    convex, and largest at an end, where it is off by 10 u e^z and 12 u of the other terms."""
    if phi.code in (SQUARED_HINGE, LOG_LOSS, HINGE):
        return _value(phi, 0.0, z - off)
    if phi.code == POISSON:
        low, high, size = z - off, z + off, abs(z) + off + abs(_log_of(target)) + 1.0
        if not high < LARGEST_LOG:
            return math.inf
        rounding = 32.0 * UNIT_ROUNDOFF * (_exp(high) + target * size)
        return max(_value(phi, target, low), _value(phi, target, high)) + rounding
    off += 4.0 * UNIT_ROUNDOFF * (abs(z) + abs(target) + abs(origin) + off)
    return _value(phi, 0.0, abs(z - target) + off)


@helper
def _least_target(target, center, alpha):
    """Return t less ``center``, where α earns no more of it than of the label from which taking the
    origin off has rounded t."""
    return (target - center) - math.copysign(2.0 * UNIT_ROUNDOFF * abs(target), alpha)


@helper
def _add_dual(sums, phi, cost, alpha, target):
    """Add what α earns at least to ``sums``, and the size of that; where C = ∞ α itself."""
    if cost < math.inf:
        earned = cost * _gain(phi, alpha / cost, target)
    else:
        earned = alpha if alpha > 0.0 else -math.inf
    sums[MAGNITUDES] += abs(earned)
    _add_to(sums, np.uintp(EARNED), earned)


@kernel(
    types.void(
        _ROWS,
        _SIGNS,
        _REALS,
        _REALS,
        _REALS,
        _DUALS,
        types.float64,
        types.float64,
        types.float64,
        _PHI,
        _REALS,
        types.float64,
        types.float64,
        types.float64,
        _F8,
        _I8,
        _U1,
    )
)
def scan(
    rows,
    signs,
    costs,
    squares,
    targets,
    alphas,
    rho,
    bias,
    threshold,
    phi,
    w,
    length,
    center,
    origin,
    sums,
    totals,
    marks,
):
    """Scan rows at fixed weights: add to the sums of a certificate, and mark the rows that matter.

    Of each row the most that C φ(m) can be is summed, the rounding of its margin considered, and
    the least that α earns. Σ α_k l_k x_k is summed by ``add_duals``.

    Parameters
    ----------
    rows, signs, costs, squares, targets, alphas, rho : as in ``visit``, C_k = ∞ for Δ = 0;
        ``alphas`` are not changed.
    bias, w, length : the fixed weights, and ‖w‖, which bounds the rounding of margins.
    phi : φ.
    center, origin : where φ is of z − t, the number taken off each t_k in D, and the number
        taken off it already: a bias that is not penalised may be moved by any number.
    sums, totals : float64 and int64, changed in place; places are named at the top of this file.
    threshold, marks : uint8, shape (rows,): 1 where l (w·x + ρ w_bias) ≤ ``threshold`` or α ≠ 0,
        else 0; of LOG_LOSS, and where t_k are numbers, always 1, except for rows that are left out.
    """
    numbers = len(targets) > 0
    rows_scanned, least = totals[ROWS], sums[LEAST]
    for i in range(len(signs)):
        marks[i] = 0
        if signs[i] == 0:
            continue
        rows_scanned += 1
        l = np.float64(signs[i])
        margin = l * (_dot(rows, i, w) + rho * bias)
        roundings = 1.01 * np.float64(rows.indptr[i + 1] - rows.indptr[i]) + DOT_ROUNDINGS
        norm = math.sqrt(squares[i])
        off = roundings * UNIT_ROUNDOFF * (norm * length + rho * abs(bias))
        cost = costs[i]
        sums[COSTS] += cost
        sums[NORMS] += cost * norm
        target = targets[i] if numbers else 0.0
        if cost < math.inf:
            most = _most_lost(phi, margin, off, target, origin)
            _add_to(sums, np.uintp(LOSSES), cost * (most + UNDERFLOW))
        alpha = np.float64(alphas[i])
        least = min(least, margin - off)
        if margin <= threshold or numbers or phi.code == LOG_LOSS:
            marks[i] = 1
        if alpha != 0.0:
            marks[i] = 1
            totals[SUPPORT] += 1
            _add_to(sums, np.uintp(DUAL_BIAS), alpha * l * rho)
            sums[SIZES] += abs(alpha) * rho
            sums[LENGTHS] += abs(alpha) * norm
            if numbers and phi.code != POISSON:
                target = _least_target(target, center, alpha)
            _add_dual(sums, phi, cost, alpha, target)
    sums[LEAST], totals[ROWS] = least, rows_scanned


# Softmax: φ = ln Σ_j exp z_kj − z_ky of the margins z_kj = (x_k, ρ)·w_j of K classes, y that of the
# row, in arrays of shape (K, rows). Its dual variables are α_kj = C_k q_kj ≥ 0 of the classes
# j ≠ y, with Σ_j q_kj = 1, and v_j = Σ ±α_kj (x_k, ρ): − of these, + of y with their sum as α_ky.


@helper
def _log_of_more(x):
    """Return ln(1 + x), x ≥ 0, off by at most 16 u of itself."""
    return _log_ratio(x / (2.0 + x)) if x <= 1.0 else _log(1.0 + x)


@kernel(types.void(_REALS, _REALS, _MATRIX, types.int64, types.int64, _MATRIX, _F8))
def softmax(classes, costs, margins, start, stop, shares, losses):
    """C_k p_kj, p_kj = exp z_kj / Σ_i exp z_ki, into ``shares`` (float64, shape (K, rows)), and
    C_k φ into ``losses`` (float64, shape (rows,)), of rows ``start`` … ``stop`` − 1.

    Parameters
    ----------
    classes, costs : float64, shape (rows,): y, a whole number, and C_k.
    margins : float64, shape (K, rows).
    """
    for i in range(start, stop):
        top = 0
        for j in range(1, len(margins)):
            if margins[j, i] > margins[top, i]:
                top = j
        powers = 0.0
        for j in range(len(margins)):
            shares[j, i] = _exp_minus(margins[top, i] - margins[j, i])
            powers += shares[j, i] if j != top else 0.0
        for j in range(len(margins)):
            shares[j, i] = costs[i] * (shares[j, i] / (1.0 + powers))
        above = margins[top, i] - margins[np.intp(classes[i]), i]
        losses[i] = costs[i] * (above + _log_of_more(powers))


@helper
def _softmax_gain(alphas, i, y, sum_of_others, cost):
    """Return the entropy −Σ q_j ln q_j of row i, q_j = α_j / C: a lower bound of it; −∞ unless
    q_y = 1 − Σ_{j≠y} q_j ≥ 0 for sure. ``sum_of_others`` : Σ_{j≠y} α_j, K u of itself off at most.

    C is off by 4 u of itself, q_j by 5 u: each term of another class by 14 u of itself and 5 u q_j;
    their sum by K u. S = 1 − q_y is off by (K + 5) u S. −r ln r of r = 1 − S has the slope
    −1 − ln r: −1 to −0.3 from r = 1 down to ½, at most 0 to 1/e, and ∞ at 0: below ½ it is taken
    of the least that r may be, from where it falls by 0.31 times what r is off, at most."""
    classes = alphas.shape[1]
    if sum_of_others > cost * (1.0 - 2.0 * (classes + 4) * UNIT_ROUNDOFF):
        return -math.inf
    entropy, s = 0.0, sum_of_others / cost
    for j in range(classes):
        q = np.float64(alphas[i, j]) / cost
        if j != y and q > UNDERFLOW:
            entropy -= q * _log(q)
    if s <= 0.5:
        entropy += (1.0 - s) * _log_of_more(s / (1.0 - s))
    else:
        least = (1.0 - s) - 2.0 * (classes + 4) * UNIT_ROUNDOFF
        entropy -= least * _log(least) if least > UNDERFLOW else 0.0
    off = (2.0 * classes + 32.0) * entropy + (4.0 * classes + 16.0) * s
    return max(entropy - UNIT_ROUNDOFF * off, 0.0)


@kernel(types.void(_REALS, _REALS, _TABLE, _REALS, _F8))
def softmax_gains(classes, costs, alphas, sums_of_others, found):
    """C_k times the entropy of q_kj into ``found`` (float64, shape (rows,)), of α as in
    ``scan_softmax``; 0 where C_k is."""
    for i in range(len(costs)):
        y = np.intp(classes[i])
        gain = 0.0
        if costs[i] > 0.0:
            gain = costs[i] * _softmax_gain(alphas, i, y, sums_of_others[i], costs[i])
        found[i] = gain


@helper
def _nearer_omega(x, w):
    """A step of Fritsch, Shafer and Crowley (Comm. ACM 16, 1973) to the ω with ω + ln ω = x."""
    r = x - w - _log(w)
    f = 2.0 * (1.0 + w) * (1.0 + w + 2.0 * r / 3.0)
    return w * (1.0 + r / (1.0 + w) * (f - r) / (f - 2.0 * r))


LARGE_OMEGA = 16.0
"""A larger ω is found to its last digits: a margin moves by as much as it is off."""


@helper
def _wright_omega(x):
    """Return the ω > 0 with ω + ln ω = x, off by 10⁻⁶ of itself at most, from where it is off by
    7 % at most."""
    if x <= -0.5:
        e = _exp_minus(-x)
        if x < -30.0:
            return e
        w = e / (1.0 + e)
    elif x <= 4.0:
        w = 1.0 + (x - 1.0) * (0.5 + (x - 1.0) / 16.0)
    else:
        log = _log(x)
        w = x - log + log / x
    w = _nearer_omega(x, w)
    return _nearer_omega(x, w) if w > LARGE_OMEGA else w


@helper
def _class_margins(rows, i, rho, weights, z):
    """z_j = (x_i, ρ)·w_j of every class into ``z``; w_j is column j of ``weights``."""
    number, last = np.uintp(len(z)), weights.shape[0] - 1
    z[:] = 0.0
    for p in range(np.uintp(rows.indptr[i]), np.uintp(rows.indptr[i + np.uintp(1)])):
        value, of_column = rows.values[_place(rows, i, p)], weights[rows.indices[p]]
        for j in range(number):
            z[j] += value * of_column[j]
    for j in range(number):
        z[j] += rho * weights[last, j]


@kernel(types.void(_ROWS, types.float64, _MATRIX, types.int64, types.int64, _F8, _MATRIX))
def class_margins(rows, rho, weights, start, stop, z, found):
    """(x_i, ρ)·w_j of rows ``start`` … ``stop`` − 1 into ``found`` (float64, shape (K, rows)).
    ``weights`` : w_j in column j, float64, shape (columns + 1, K). ``z`` : room for K numbers."""
    for i in range(start, stop):
        _class_margins(rows, np.uintp(i), rho, weights, z)
        for j in range(len(z)):
            found[j, i] = z[j]


@kernel(types.void(_ROWS, _MATRIX, types.int64, types.int64, types.float64, _MATRIX))
def combine_classes(rows, factors, first, stop, rho, total):
    """Σ f_ij (x_i, ρ) is added to column j of ``total`` (float64, shape (columns + 1, K)) in place,
    for the classes ``first`` … ``stop`` − 1. ``factors`` : f_ij, shape (rows, K)."""
    last, begin, end = total.shape[0] - 1, np.uintp(first), np.uintp(stop)
    for i in range(len(factors)):
        of_row = factors[i]
        for p in range(np.uintp(rows.indptr[i]), np.uintp(rows.indptr[i + 1])):
            value, of_column = rows.values[_place(rows, i, p)], total[rows.indices[p]]
            for j in range(begin, end):
                of_column[j] += of_row[j] * value
        for j in range(begin, end):
            total[last, j] += of_row[j] * rho


@kernel(types.void(_ROWS, _MATRIX, types.int64, types.int64, _MATRIX, _MATRIX))
def add_class_duals(rows, factors, first, stop, fresh, low):
    """Σ f_ij x_i is added to column j of ``fresh`` (float64, shape (columns, K)) in place, for the
    classes ``first`` … ``stop`` − 1, compensated: ``low``, of the same shape, sums the rounding
    errors of additions. ``factors`` : f_ij, shape (rows, K)."""
    begin, end = np.uintp(first), np.uintp(stop)
    for i in range(len(factors)):
        of_row = factors[i]
        for p in range(np.uintp(rows.indptr[i]), np.uintp(rows.indptr[i + 1])):
            column, x = rows.indices[p], np.float64(rows.values[_place(rows, i, p)])
            sums, errors = fresh[column], low[column]
            for j in range(begin, end):
                value, old = of_row[j] * x, sums[j]
                new = old + value
                grown = new - old
                sums[j] = new
                errors[j] += (old - (new - grown)) + (value - grown)


NEARLY_ALL = 1e-4
"""What the sum of a row's u may be off by, as a part of it if it is below 1, before all are
multiplied to make it up: as much a margin may."""

QUIET = 0.2
"""A row is left alone whose part of P − D is below this part of the mean of the rows before it:
20,000 cells of 50 types, most of them easy, are solved in a third of the time."""


@helper
def _log_sum(margins, sizes):
    """Return ln Σ_j exp z_j, and the sum of ``sizes``, which become exp z_j as parts of the
    largest."""
    top, total = margins[0], 0.0
    for j in range(len(margins)):
        top = max(top, margins[j])
    for j in range(len(margins)):
        sizes[j] = _exp_minus(top - margins[j])
        total += sizes[j]
    return top + _log(total), total


@helper
def _best_alphas(margins, logarithm, q, cost, alphas, sizes, total):
    """Set ``alphas``, of all classes, to the α' ≥ 0 of the sum C that maximise
    C H(α'/C) + Σ_j (α'_j − α_j) z_j − ½ q ‖α' − α‖². ``logarithm``, ``sizes``, ``total`` : see
    ``_log_sum``.

    There ln α'_j + q α'_j = z_j + q α_j − λ, so that u_j = q α'_j is Wright's ω of the right side
    + ln q. Newton's method finds the λ at which Σ u_j = q C, whose left side is convex, from where
    it is if α = C softmax(z)."""
    size = q * cost
    if size > UNDERFLOW:
        multiplier = logarithm - _log(size)
        for j in range(len(margins)):
            alphas[j] = margins[j] + q * alphas[j]
        for _ in range(LOGISTIC_STEPS):
            total, slope = 0.0, 0.0
            for j in range(len(margins)):
                u = _wright_omega(alphas[j] - multiplier)
                sizes[j] = u
                total += u
                slope += u / (1.0 + u)
            if abs(total - size) <= NEARLY_ALL * min(size, 1.0):
                break
            multiplier += (total - size) / slope
    for j in range(len(margins)):
        alphas[j] = cost * (sizes[j] / total)


@kernel(
    types.int64(
        _ROWS, _ORDER, _REALS, _REALS, _REALS, types.float64, _TABLE, _MATRIX, _MATRIX, _F8, _U1
    )
)
def visit_softmax(rows, order, classes, costs, squares, rho, alphas, weights, room, scalars, moved):
    """Visit rows in order: the α of each are set by a step of dual ascent in the simplex (Keerthi
    et al., KDD 2008; Yu, Huang and Lin, 2011), unless it is ``QUIET``, and v moves along.

    Parameters
    ----------
    rows, order, squares, rho : as in ``visit``.
    classes, costs : y and C_k, float64, shape (rows,); C_k = 0 leaves the row out.
    alphas : α_kj, float32, shape (rows, K), 0 of y, changed in place; their sums stay below C_k, as
        ``targets.to_table`` has it.
    weights : v_j and its bias in column j, float64, shape (columns + 1, K), changed in place.
    room : memory for the computations of a row, float64, shape (3, K).
    scalars : as in ``visit``, without the bias; in the place of the loss is the sum of the parts
        of rows in P − D, C KL(q ‖ p) with p = softmax(z).
    moved : uint8, shape (rows,): 1 where α has changed, else 0.

    Returns how many rows have changed. Cost: one pass over the visited rows' nonzeros for each
    class, two where α changes.
    """
    sq_norm, gains, gaps = scalars[SQ_NORM], scalars[GAINS], 0.0
    number, last, updates = np.uintp(weights.shape[1]), weights.shape[0] - 1, 0
    z, steps, sizes = room[0], room[1], room[2]
    for n in range(len(order)):
        _fetch_row_ahead(rows, order, n)
        i = np.uintp(order[n])
        y, cost, q = np.uintp(classes[i]), costs[i], squares[i] + rho * rho
        moved[i] = 0
        if cost == 0.0:
            continue
        _class_margins(rows, i, rho, weights, z)
        sum_of_others = 0.0
        for j in range(number):
            steps[j] = alphas[i, j]
            sum_of_others += steps[j]
        steps[y] = cost - sum_of_others
        logarithm, total = _log_sum(z, sizes)
        earned = cost * _softmax_gain(alphas, i, y, sum_of_others, cost)
        gap = cost * logarithm - earned
        for j in range(number):
            gap -= steps[j] * z[j]
        gaps += gap
        if gap * (n + 1) < QUIET * gaps:
            continue
        _best_alphas(z, logarithm, q, cost, steps, sizes, total)
        steps[y], total = 0.0, 0.0
        for j in range(number):
            total += np.float64(np.float32(steps[j]))
        scale = 1.0 if total <= cost * (1.0 - SURE) else cost / total * (1.0 - 2.0**-21)
        total, change = 0.0, 0.0
        for j in range(number):
            new = np.float32(scale * np.float64(np.float32(steps[j])))
            steps[j] = np.float64(alphas[i, j]) - np.float64(new)
            total += np.float64(new)
            change -= steps[j]
            moved[i] |= steps[j] != 0.0
            alphas[i, j] = new
        if not moved[i]:
            continue
        steps[y] = change
        for j in range(number):
            sq_norm += 2.0 * steps[j] * z[j] + q * (steps[j] * steps[j])
            weights[last, j] += rho * steps[j]
        for p in range(np.uintp(rows.indptr[i]), np.uintp(rows.indptr[i + np.uintp(1)])):
            value, of_column = rows.values[_place(rows, i, p)], weights[rows.indices[p]]
            for j in range(number):
                of_column[j] += value * steps[j]
        gains += cost * _softmax_gain(alphas, i, y, total, cost) - earned
        updates += 1
    scalars[SQ_NORM], scalars[GAINS] = max(sq_norm, 0.0), gains
    scalars[LOSS] += gaps
    return updates


@kernel(
    types.void(
        _ROWS,
        _SIGNS,
        _REALS,
        _REALS,
        _REALS,
        _TABLE,
        _REALS,
        types.float64,
        _MATRIX,
        _REALS,
        _F8,
        _F8,
        _F8,
        _I8,
    )
)
def scan_softmax(
    rows,
    signs,
    costs,
    squares,
    classes,
    alphas,
    sums_of_others,
    rho,
    margins,
    lengths,
    fresh,
    low,
    sums,
    totals,
):
    """Add to the sums of a certificate what ``scan`` adds, and the biases of v.

    Of φ, which rises with every z_kj but z_ky, the value where these are off by the most is summed.
    It is off by (2 K + 32) u of itself: a term of the sum by 8 u and by what x = z_top − z_kj
    rounds, x e^−x ≤ 0.37 where y is not the top; where it is, the margins allow for that.

    For ‖α_k‖ ¼ K + 10 times the sum of the others is taken: 4 u of that are more than 4 u ‖α_k‖
    and what the sum is off by, K u, and a product of it, u.

    Parameters
    ----------
    rows, signs, costs, squares, rho : as in ``scan``; signs of rows that count are 1.
    classes, alphas, sums_of_others : y; α_kj, float32, shape (rows, K), 0 of y; their sums.
    margins : z_kj; ``lengths`` : ‖w_j‖ and, after these, ρ |b_j|; float64.
    fresh, low : v of all columns and classes, and after them the biases of classes, the last of
        them in ``sums``; float64, changed in place at the biases.
    sums, totals : as in ``scan``.
    """
    number, biases = len(margins), len(fresh) + 1 - len(margins)
    at = np.empty(number)
    for i in range(len(signs)):
        if signs[i] == 0:
            continue
        totals[ROWS] += 1
        y, cost, norm = np.intp(classes[i]), costs[i], math.sqrt(squares[i])
        sums[COSTS] += cost
        sums[NORMS] += cost * norm
        roundings = 1.01 * np.float64(rows.indptr[i + 1] - rows.indptr[i]) + DOT_ROUNDINGS
        top, powers = y, 0.0
        for j in range(number):
            off = roundings * UNIT_ROUNDOFF * (norm * lengths[j] + lengths[number + j])
            at[j] = margins[j, i] + (off if j != y else -off)
        for j in range(number):
            top = j if at[j] > at[top] else top
        for j in range(number):
            powers += _exp_minus(at[top] - at[j]) if j != top else 0.0
        value = (at[top] - at[y]) + _log_of_more(powers)
        value *= 1.0 + (2.0 * number + 32.0) * UNIT_ROUNDOFF
        _add_to(sums, np.uintp(LOSSES), cost * (value + UNDERFLOW))
        alpha = sums_of_others[i]
        if alpha == 0.0:
            continue
        totals[SUPPORT] += 1
        for j in range(number):
            bias = (alpha if j == y else -np.float64(alphas[i, j])) * rho
            if j == number - 1:
                _add_to(sums, np.uintp(DUAL_BIAS), bias)
            else:
                place = biases + j
                old = fresh[place]
                new = old + bias
                grown = new - old
                fresh[place] = new
                low[place] += (old - (new - grown)) + (bias - grown)
        size = (0.25 * number + 10.0) * alpha
        sums[SIZES] += size * rho
        sums[LENGTHS] += size * norm
        earned = cost * _softmax_gain(alphas, i, y, alpha, cost)
        sums[MAGNITUDES] += abs(earned)
        _add_to(sums, np.uintp(EARNED), earned)


@kernel(types.void(_ROWS, _ORDER, _SIGNS, _DUALS, _F8, _F8, types.int64, types.int64))
def add_duals(rows, order, signs, alphas, fresh, low, first, stop):
    """Σ α_i l_i x_i of the rows at ``order`` is added to ``fresh`` in place, compensated: ``low``
    (both float64, shape (columns,)) sums the rounding errors. Only columns ``first`` … ``stop`` − 1
    are, in whatever order a row has them: the sum in one does not depend on others."""
    for n in range(len(order)):
        _fetch_row_ahead(rows, order, n)
        _fetch_weights_ahead(rows, order, n, fresh)
        _fetch_weights_ahead(rows, order, n, low)
        i = np.uintp(order[n])
        factor = np.float64(alphas[i]) * np.float64(signs[i])
        for j in range(np.uintp(rows.indptr[i]), np.uintp(rows.indptr[i + np.uintp(1)])):
            column = rows.indices[j]
            if column < first or column >= stop:
                continue
            value = factor * np.float64(rows.values[_place(rows, i, j)])
            old = fresh[column]
            new = old + value
            grown = new - old
            fresh[column] = new
            low[column] += (old - (new - grown)) + (value - grown)


@kernel(types.void(_REALS, _F8))
def sum_squares(vector, total):
    """Σ v_j² into ``total`` (float64, shape (2,), all 0), compensated."""
    for j in range(len(vector)):
        _add_to(total, np.uintp(0), vector[j] * vector[j])


@kernel(types.void(_REALS, types.float64, _F8))
def soft_sums(vector, threshold, sums):
    """With e_j = (|v_j| − threshold)₊: Σ e_j and Σ e_j², compensated, and max |v_j|, into
    ``sums`` (float64, shape (5,), all 0)."""
    largest = 0.0
    for j in range(len(vector)):
        size = abs(vector[j])
        largest = max(largest, size)
        excess = size - threshold
        if excess > 0.0:
            _add_to(sums, np.uintp(0), excess)
            _add_to(sums, np.uintp(2), excess * excess)
    sums[4] = largest


@kernel(types.float64(_REALS, _REALS))
def dot(u, v):
    """u·v, summed from the first to the last (no BLAS: the sum depends on nothing else)."""
    total = 0.0
    for j in range(len(u)):
        total += u[j] * v[j]
    return total


@kernel(types.void(_REALS, types.float64, _F8))
def add_scaled(vector, scale, total):
    """``scale`` times a vector is added to the first numbers of ``total`` in place."""
    for j in range(len(vector)):
        total[j] += vector[j] * scale


@kernel(types.float64(_REALS, _REALS))
def square_distance(u, v):
    """Σ (u_j − v_j)², summed from the first to the last, with no vector for the differences."""
    total = 0.0
    for j in range(len(u)):
        off = u[j] - v[j]
        total += off * off
    return total


def square_sum(vector: NDArray[np.float64]) -> float:
    """Σ v_j², summed from the first to the last."""
    return float(dot(vector, vector))


def compensated_square_sum(vector: NDArray[np.float64]) -> float:
    """Σ v_j², off by at most 3 u of itself however long the vector is: a compensated sum."""
    total = np.zeros(2)
    sum_squares(vector, total)
    return float(total[0] + total[1])


_GAMMA, _FIRST, _SECOND = SPLITMIX64
_HALF = np.uint64(32)


@kernel(types.void(types.uint64, _I8))
def shuffle(start, order):
    """0 … n − 1 in random order into ``order`` (int64, shape (n,), n < 2³²), by SplitMix64 from the
    state ``start`` (Fisher and Yates; a place is ⌊u n / 2⁶⁴⌋, so it is off even by n / 2⁶⁴)."""
    state = start
    for n in range(np.uint64(len(order))):
        state += _GAMMA
        drawn = (state ^ (state >> np.uint64(30))) * _FIRST
        drawn = (drawn ^ (drawn >> np.uint64(27))) * _SECOND
        drawn ^= drawn >> np.uint64(31)
        number = n + np.uint64(1)
        low = (drawn & np.uint64(0xFFFFFFFF)) * number
        place = ((drawn >> _HALF) * number + (low >> _HALF)) >> _HALF
        order[n] = order[place]
        order[place] = n


# Augmented vectors have the columns' numbers and, last, that of the bias: (x_i, ρ)·(w, w_bias).


@kernel(types.void(_ROWS, _SIGNS, types.float64, _REALS, _F8))
def margins(rows, signs, rho, v, found):
    """l_i (x_i, ρ)·v of every row into ``found`` (float64, shape (rows,), changed in place)."""
    bias = rho * v[len(v) - 1]
    for i in range(len(signs)):
        found[i] = np.float64(signs[i]) * (_dot(rows, i, v) + bias)


@kernel(types.void(_ROWS, _REALS, types.float64, _F8))
def combine(rows, factors, rho, total):
    """Σ f_i (x_i, ρ) is added to ``total`` in place; rows with f_i = 0 cost nothing."""
    for i in range(len(factors)):
        if factors[i] != 0.0:
            _plus(rows, i, factors[i], total)
            total[len(total) - 1] += factors[i] * rho


@kernel(types.void(_ROWS, _REALS, types.float64, _REALS, _F8))
def gram_product(rows, factors, rho, v, total):
    """Σ f_i ((x_i, ρ)·v) (x_i, ρ) is added to ``total`` in place: the rows' Hessian."""
    bias = rho * v[len(v) - 1]
    for i in range(len(factors)):
        if factors[i] != 0.0:
            weight = factors[i] * (_dot(rows, i, v) + bias)
            _plus(rows, i, weight, total)
            total[len(total) - 1] += weight * rho


@kernel(types.void(_ROWS, _REALS, types.float64, _F8))
def gram_diagonal(rows, factors, rho, total):
    """Σ f_i (x_i², ρ²), element by element, is added to ``total`` in place."""
    for i in range(len(factors)):
        if factors[i] != 0.0:
            for j in range(np.uintp(rows.indptr[i]), np.uintp(rows.indptr[i + np.uintp(1)])):
                value = np.float64(rows.values[_place(rows, i, j)])
                total[rows.indices[j]] += factors[i] * (value * value)
            total[len(total) - 1] += factors[i] * (rho * rho)


@helper
def _add_dense(tile, weights, number, begin, many, gram):
    """f_i z_i z_iᵀ of up to four rows of a tile, one after the other, whose ``many`` columns have
    places side by side from ``begin`` on, is added to the lower triangle of ``gram``."""
    first, second, third, fourth = tile[0], tile[1], tile[2], tile[3]
    for j in range(many):
        row = gram[begin + j, begin : begin + j + 1]
        if number == 4:
            a, b = weights[0] * first[j], weights[1] * second[j]
            c, d = weights[2] * third[j], weights[3] * fourth[j]
            for k in range(len(row)):
                total = (row[k] + a * first[k]) + b * second[k]
                row[k] = (total + c * third[k]) + d * fourth[k]
            continue
        for i in range(number):
            weight, values = weights[i] * tile[i, j], tile[i]
            for k in range(len(row)):
                row[k] += weight * values[k]


@kernel(types.void(_ROWS, _REALS, types.float64, _ORDER, _MATRIX))
def gram_block(rows, factors, rho, places, gram):
    """Σ f_i z_i z_iᵀ is added to the lower triangle of ``gram`` in place; z_i are the columns of
    (x_i, ρ) that have a place ≥ 0 there. Rows whose places rise one by one are summed faster."""
    held, tile, weights = np.empty(len(gram), np.int64), np.empty((5, len(gram))), np.empty(4)
    last, waiting, begin, many = places[len(places) - 1], np.uintp(0), np.int64(0), np.int64(0)
    for i in range(len(factors)):
        if factors[i] != 0.0:
            number, values, rises = np.uintp(0), tile[waiting], True
            for j in range(np.uintp(rows.indptr[i]), np.uintp(rows.indptr[i + np.uintp(1)])):
                place = places[rows.indices[j]]
                if place >= 0:
                    rises &= number == 0 or place > held[number - np.uintp(1)]
                    held[number] = place
                    values[number] = np.float64(rows.values[_place(rows, i, j)])
                    number += np.uintp(1)
            if last >= 0:
                held[number], values[number] = last, rho
                number += np.uintp(1)
            if number == 0:
                continue
            dense = rises and held[np.int64(number) - 1] - held[0] == np.int64(number) - 1
            fits = dense and held[0] == begin and number == many
            if waiting and not (fits and waiting < 4):
                _add_dense(tile, weights, waiting, begin, many, gram)
                for j in range(number):  # a slice would take 3 s to compile
                    tile[0, j] = values[j]
                waiting, values = np.uintp(0), tile[0]
            if dense:
                begin, many, weights[waiting] = held[0], np.int64(number), factors[i]
                waiting += np.uintp(1)
                continue
            for j in range(number):
                weight, row, place = factors[i] * values[j], gram[held[j]], held[j]
                for k in range(j + np.uintp(1)):
                    if held[k] <= place:
                        row[held[k]] += weight * values[k]
                    else:
                        gram[held[k], place] += factors[i] * values[k] * values[j]
    _add_dense(tile, weights, waiting, begin, many, gram)


@kernel(types.boolean(_MATRIX, _F8))
def factorise(matrix, column):
    """Cholesky's factor L of a symmetric matrix, whose lower triangle it takes the place of; Lᵀ
    comes into the upper one. Whether all pivots are positive and finite. ``column`` : room for a
    column."""
    size = np.uintp(len(matrix))
    for k in range(size):
        if not 0.0 < matrix[k, k] < math.inf:
            return False
        pivot = math.sqrt(matrix[k, k])
        matrix[k, k] = pivot
        for i in range(k + np.uintp(1), size):
            matrix[i, k] /= pivot
            column[i] = matrix[k, i] = matrix[i, k]
        for i in range(k + np.uintp(1), size):
            weight, row = column[i], matrix[i]
            for j in range(k + np.uintp(1), i + np.uintp(1)):
                row[j] -= weight * column[j]
    return True


@kernel(types.void(_MATRIX, _F8))
def solve_factorised(factor, x):
    """(L Lᵀ)⁻¹ x in place of x; ``factor`` as ``factorise`` leaves it."""
    size = np.uintp(len(x))
    for k in range(size):
        x[k] /= factor[k, k]
        weight, row = x[k], factor[k]
        for i in range(k + np.uintp(1), size):
            x[i] -= weight * row[i]
    for back in range(size):
        k = size - np.uintp(1) - back
        x[k] /= factor[k, k]
        weight, row = x[k], factor[k]
        for i in range(k):
            x[i] -= weight * row[i]


@kernel(types.void(_ROWS, _I8))
def count_columns(rows, numbers):
    """How often each column occurs is added to ``numbers`` (int64, shape (columns,)) in place."""
    for j in range(np.uintp(rows.indptr[0]), np.uintp(rows.indptr[len(rows.indptr) - 1])):
        numbers[rows.indices[j]] += 1


# Columns as a prepared shard numbers them: by first occurrence, from 0 on; see data.prepare.

_U8, _U4, _U2 = types.uint64[::1], types.uint32[::1], types.uint16[::1]
_READ_U4, _READ_U2 = readonly(types.uint32), readonly(types.uint16)

_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@helper
def _slot_of(table, column):
    """The slot of a column in a table of 2^k slots of column · 2³² + number + 1, or the free slot
    (0) where it would be."""
    mask = np.uint64(len(table) - 1)
    slot = ((np.uint64(column) * _SPREAD) >> _HALF) & mask
    while table[slot] != 0 and table[slot] >> _HALF != np.uint64(column):
        slot = (slot + np.uint64(1)) & mask
    return slot


@kernel(types.void(_READ_U4, _U8))
def fill_table(columns, table):
    """Enter columns, numbered by their places, in an empty table; see ``number_columns``."""
    for n in range(len(columns)):
        slot = _slot_of(table, columns[n])
        table[slot] = np.uint64(columns[n]) << _HALF | np.uint64(n + 1)


@kernel(types.UniTuple(types.int64, 2)(_READ_U4, types.int64, _U8, _U4, _I8, types.int64, _U4))
def number_columns(indices, start, table, columns, counts, known, found):
    """Number the columns of nonzeros by first occurrence into ``found``, from nonzero ``start`` on.

    Parameters
    ----------
    table : uint64, 2^k slots, at least twice as many as ``columns``; changed in place.
    columns, counts : uint32 and int64: the columns known, and how often each occurred, by their
        numbers; changed in place.
    known : how many are known.

    Returns how many columns are known, and the nonzero where there was no room for another; the
    number of nonzeros if there was.
    """
    for j in range(np.uint64(start), np.uint64(len(indices))):
        slot = _slot_of(table, indices[j])
        if table[slot] == 0:
            if known == len(columns):
                return known, np.int64(j)
            table[slot] = np.uint64(indices[j]) << _HALF | np.uint64(known + 1)
            columns[known] = indices[j]
            known += 1
        number = (table[slot] & np.uint64(0xFFFFFFFF)) - np.uint64(1)
        counts[number] += 1
        found[j] = np.uint32(number)
    return known, np.int64(len(indices))


def _renumbered(numbers, ranks, found):
    """``ranks[number]`` of every number into ``found`` (uint32, changed in place); False where a
    number is too large. Numbers are uint16 or uint32."""
    size = len(ranks)
    for j in range(np.uintp(len(numbers))):
        if numbers[j] >= size:
            return False
        found[j] = ranks[numbers[j]]
    return True


renumber_short = kernel(types.boolean(_READ_U2, _READ_U4, _U4))(_renumbered)
renumber = kernel(types.boolean(_READ_U4, _READ_U4, _U4))(_renumbered)


@kernel(types.void(_ROWS, _I8, types.uint32[::1], types.float32[::1]))
def transpose(rows, places, indices, values):
    """The nonzeros column by column: the row of each into ``indices``, its value into ``values``.
    ``places`` : int64, where each column begins; changed in place to where it ends."""
    for i in range(np.uintp(len(rows.indptr) - 1)):
        for j in range(np.uintp(rows.indptr[i]), np.uintp(rows.indptr[i + np.uintp(1)])):
            place = np.uintp(places[rows.indices[j]])
            indices[place], values[place] = np.uint32(i), rows.values[_place(rows, i, j)]
            places[rows.indices[j]] += 1


@helper
def _soft_threshold(x, threshold):
    """Return x nearer to 0 by the threshold, or 0."""
    return max(x - threshold, 0.0) + min(x + threshold, 0.0)


@kernel(
    types.float64(
        _ROWS,
        _ORDER,
        _REALS,
        types.float64,
        types.float64,
        types.float64,
        _REALS,
        _REALS,
        _REALS,
        _F8,
        _F8,
    )
)
def descend(columns, order, factors, rho, lasso, ridge, gradient, diagonal, v, step, images):
    """Lower g·d + ½ d·H d + r Σ |v_j + d_j| by one sweep of coordinate descent (Yuan, Ho and Lin,
    JMLR 13, 2012); H = Σ f_i (x_i, ρ)(x_i, ρ)ᵀ + ``ridge`` I, 1 for the bias, which is last and not
    in the sum. Returns Σ H_jj z_j² over the changes z_j, about twice what they have gained.

    Parameters
    ----------
    columns : the rows by their columns, see ``transpose``.
    order : int64, the columns to visit.
    factors, rho, lasso : f_i = C_i φ''(m_i), float64, shape (rows,); ρ and r.
    gradient, diagonal, v : g, H_jj and the weights, float64, augmented.
    step, images : d, and (x_i, ρ)·d of every row; float64, changed in place.
    """
    last, gained = len(v) - 1, 0.0
    for n in range(len(order)):
        column = order[n]
        start, stop = np.uintp(0), np.uintp(len(factors))
        slope = gradient[column] + step[column]
        threshold = 0.0
        if column == last:
            for i in range(start, stop):
                slope += rho * (factors[i] * images[i])
        else:
            slope += (ridge - 1.0) * step[column]
            threshold = lasso / diagonal[column]
            start = np.uintp(columns.indptr[column])
            stop = np.uintp(columns.indptr[column + 1])
            for j in range(start, stop):
                i = columns.indices[j]
                slope += columns.values[j] * (factors[i] * images[i])
        last_weight = v[column] + step[column]
        weight = _soft_threshold(last_weight - slope / diagonal[column], threshold)
        change = weight - last_weight
        if change == 0.0:
            continue
        gained += diagonal[column] * (change * change)
        step[column] = weight - v[column]
        for j in range(start, stop):
            if column == last:
                images[j] += rho * change
            else:
                images[columns.indices[j]] += columns.values[j] * change
    return gained


@kernel(types.float64(_MATRIX, _ORDER, types.float64, _REALS, _F8, _F8))
def descend_directly(hessian, order, lasso, v, step, slopes):
    """Make the sweep of ``descend`` with H as a matrix; ``slopes`` : g + H d, float64, augmented,
    changed in place."""
    last, gained = len(v) - 1, 0.0
    for n in range(len(order)):
        column = order[n]
        row = hessian[column]
        threshold = 0.0 if column == last else lasso / row[column]
        last_weight = v[column] + step[column]
        weight = _soft_threshold(last_weight - slopes[column] / row[column], threshold)
        change = weight - last_weight
        if change == 0.0:
            continue
        gained += row[column] * (change * change)
        step[column] = weight - v[column]
        for j in range(len(row)):
            slopes[j] += change * row[j]
    return gained


@kernel(types.void(_PHI, types.int64, _REALS, _REALS, _F8))
def loss_at(phi, order, places, targets, found):
    """φ(t, z), −∂φ/∂z, ∂²φ/∂z² or −φ*(t, −p), by ``order`` 0 to 3, at ``places`` z or p, into
    ``found`` (float64, shape (rows,)). ``targets`` : t; empty of classes, or where all are 0."""
    for i in range(len(places)):
        target = targets[i] if len(targets) else 0.0
        if order == 0:
            found[i] = _value(phi, target, places[i])
        elif order == 1:
            found[i] = _slope(phi, target, places[i])
        elif order == 2:
            found[i] = _curvature(phi, target, places[i])
        else:
            found[i] = _gain(phi, places[i], target)


BLOCK = 1 << 12
"""Rows of a block of ``loss_along``."""


@kernel(types.void(_PHI, _REALS, _REALS, _REALS, _REALS, types.float64, _MATRIX))
def loss_along(phi, targets, margins, slopes, cost, theta, found):
    """f(θ) = Σ C_i φ(t_i, z_i + θ d_i): f, f', f'' of each block of BLOCK rows are added to a row
    of ``found`` (float64, shape (blocks, 3)). ``targets`` : t_i; empty of classes."""
    numbers = len(targets) > 0
    for block in range(len(found)):
        value, first, second = 0.0, 0.0, 0.0
        for i in range(BLOCK * block, min(BLOCK * (block + 1), len(margins))):
            m, d = margins[i] + theta * slopes[i], slopes[i]
            if phi.code == LOG_LOSS:
                q = _exp_minus(abs(m))
                value += cost[i] * _logistic_value(m, q)
                first -= cost[i] * (_logistic_slope(m, q) * d)
                second += cost[i] * (_logistic_curvature(q) * (d * d))
            elif phi.code == SQUARED_HINGE:  # a fifth of the time of the general case
                slack = max(1.0 - m, 0.0)
                value += cost[i] * (slack * slack)
                first -= cost[i] * (2.0 * slack * d)
                second += cost[i] * ((2.0 if m < 1.0 else 0.0) * (d * d))
            else:
                t = targets[i] if numbers else 0.0
                value += cost[i] * _value(phi, t, m)
                first -= cost[i] * (_slope(phi, t, m) * d)
                second += cost[i] * (_curvature(phi, t, m) * (d * d))
        found[block, 0] += value
        found[block, 1] += first
        found[block, 2] += second


@kernel(types.void(_ROWS, _ORDER, types.int64[::1], types.uint32[::1], types.float32[::1]))
def copy_rows(rows, chosen, indptr, indices, values):
    """Copy the rows at positions ``chosen`` to ``indices`` and ``values``, one a nonzero or one a
    row as the rows have them; the offsets after the first of ``indptr`` (int64, shape
    (len(chosen) + 1,)) are written, each by a length more."""
    place = np.uintp(0)
    for n in range(len(chosen)):
        i = chosen[n]
        if rows.first >= 0:
            values[n] = rows.values[rows.first + i]
        for j in range(np.uintp(rows.indptr[i]), np.uintp(rows.indptr[i + np.uintp(1)])):
            indices[place] = rows.indices[j]
            if rows.first < 0:
                values[place] = rows.values[j]
            place += np.uintp(1)
        indptr[n + 1] = indptr[n] + (rows.indptr[i + 1] - rows.indptr[i])
