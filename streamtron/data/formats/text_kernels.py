"""The numba loops that read text: libsvm's, Vowpal Wabbit's, CSV's quotes, JSON's brackets; see
``core.kernels``.

They stand by themselves because numba's cache does not see an edit in another file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.kernels import helper, kernel, readonly, types
from streamtron.core.rows import COLUMN_MAX

_F8, _I8 = types.float64[::1], types.int64[::1]

NOTHING, BAD_LABEL, BAD_WEIGHT, BAD_QUERY, BAD_PAIR, BAD_END, NO_BAR, NAMELESS = range(8)
"""Kinds of invalid text that is found, the last two in Vowpal Wabbit's; the readers write the
messages."""

PARSED_ROWS, PARSED_LINES, DEFERRED, UNSORTED, TROUBLE, PLACE = 0, 1, 2, 3, 4, 5
"""Places in ``counts``: complete rows, complete lines, numbers deferred, whether the columns of
some row do not rise, what was wrong (``NOTHING``, ``BAD_LABEL``, …) and at which byte."""

PARSED_SPACES = UNSORTED
"""The place in ``counts`` of how many namespaces were read; lines are not counted with them."""

LABEL, WEIGHT, VALUE, NAMES, SCALE = np.arange(5)
"""Kinds of deferred tokens: label or weight of a row, value of a nonzero, all labels of a row, or
scale of a namespace.
numpy integers, because numba would compile ``_defer`` once for each Python integer."""

BEFORE, BARE, QUOTED, CLOSED = np.arange(4)
"""Places in a line of CSV: before a field, in one without quotes, within quotes, behind them."""

_TAB, _NEWLINE, _RETURN, _BLANK, _HASH = 9, 10, 13, 32, 35
_QUOTE, _BACKSLASH, _OPEN, _CLOSE = 34, 92, 0x7B, 0x7D
_PLUS, _MINUS, _POINT, _ZERO, _COLON, _SMALL_E = 43, 45, 46, 48, 58, 101
_APOSTROPHE, _BAR = 39, 124
_QID = (113, 105, 100, 58)

_NO_NUMBER, _EXACT, _WHOLE, _NEAR, _HARD = 0, 1, 2, 3, 4
_POWERS = np.array([float(f"1e{k}") for k in range(61)])
_EXACT_POWER, _EXACT_MANTISSA, _EXACT_INTEGER = 22, 2**53, 2**24
_WIDER, _NARROWER = 1.0 + 2.0**-50, 1.0 - 2.0**-50
_NEAR_MAX = 2.0**127
_SPLIT = 2.0**27 + 1.0
_SAFE_DIGITS = 18
_HUGE_EXPONENT = 10**_SAFE_DIGITS

_ONE_BYTE, _TWO_BYTES, _THREE_BYTES = np.uint64(8), np.uint64(16), np.uint64(24)
_FOUR_ZEROS, _OVER_NINE, _TOP_BITS = (
    np.uint64(number) for number in (0x30303030, 0x76767676, 0x80808080)
)
_TEN, _HUNDRED, _PAIRS, _LOW = (np.uint64(number) for number in (10, 100, 0xFF00FF, 0xFFFF))
_THREE, _FIVE = np.uint64(3), np.uint64(5)


_MURMUR = tuple(
    np.uint64(number) for number in (0xCC9E2D51, 0x1B873593, 0xE6546B64, 0x85EBCA6B, 0xC2B2AE35)
)
_32_BITS, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)

_PLAIN, _WHITE, _STOP = 0, 1, 2
_KINDS = np.zeros(256, np.uint8)
"""What a byte is in Vowpal Wabbit's text: of a name, white space, the end of a name."""
_KINDS[[_TAB, _RETURN, _BLANK]] = _WHITE
_KINDS[[_NEWLINE, _COLON, _BAR]] = _STOP

_GAPS = np.array([-((4 * 4**k - 9 * 9**k) // (5 * 4**k)) for k in range(22, -1, -1)], np.uintp)
"""Shell's, as Tokuda (1992) has them: …, 46, 20, 9, 4, 1."""

_CARETS = np.frombuffer(b"^", np.uint8)


class Libsvm(NamedTuple):
    """What ``parse_libsvm`` finds in a text of n bytes."""

    indptr: NDArray[np.int64]
    """shape (n//2 + 2,): CSR offsets"""
    indices: NDArray[np.uint32]
    """shape (n//4 + 1,): columns as numbered and in the order written"""
    values: NDArray[np.float32]
    """shape (n//4 + 1,): values rounded as float32(float(token))"""
    labels: NDArray[np.float64]
    """shape (n//2 + 1,): a row's label, NaN if it has none here"""
    weights: NDArray[np.float64]
    """shape (n//2 + 1,): a row's weight, 1 if it has none"""
    lines: NDArray[np.int64]
    """shape (n//2 + 1,): a row's line, the first of the text being 0"""
    deferred: NDArray[np.int64]
    """shape (n//2 + 1, 4): (LABEL, WEIGHT, VALUE or NAMES; its row or nonzero; its first byte; the
    byte after it) of each token that Python is to read"""
    counts: NDArray[np.int64]
    """shape (6,): what ``PARSED_ROWS`` … ``PLACE`` point at"""


class VowpalWabbit(NamedTuple):
    """What ``parse_vowpal_wabbit`` finds in a text of n bytes."""

    heads: NDArray[np.float64]
    """shape (n//2 + 1, 2): a row's label, NaN if it has none; its importance, 1 if it has none"""
    tags: NDArray[np.uint32]
    """shape (n//2 + 1, 2): its tag's first byte, and the byte after it, which is before the first
    where there is none"""
    indptr: NDArray[np.int64]
    """shape (n//2 + 2,): CSR offsets of names"""
    keys: NDArray[np.uint64]
    """shape (n//2 + 1,): a name's column and the other bits of its hash, from the highest bit on;
    in the lower 32 which of the names it is"""
    values: NDArray[np.float64]
    """shape (n//2 + 1,): a name's value, 1 if it has none, without the scale of its namespace"""
    names: NDArray[np.uint32]
    """shape (n//2 + 1, 3): its first byte, the byte after it, and its namespace"""
    spaces: NDArray[np.uint32]
    """shape (n, 2): the first byte of a namespace, and the byte after it"""
    scales: NDArray[np.float64]
    """shape (n,): its scale, 1 if it has none"""
    deferred: NDArray[np.int64]
    """shape (n//4 + 1, 4): (LABEL, WEIGHT, VALUE or SCALE; its row, nonzero or namespace; its first
    byte; the byte after it) of each number that Python is to read, for float64 may hold another"""
    counts: NDArray[np.int64]
    """shape (6,): what ``PARSED_ROWS``, ``DEFERRED``, ``TROUBLE`` and ``PLACE`` point at"""


_TOKENS, _SPANS, _U4 = types.int64[:, ::1], types.uint32[:, ::1], types.uint32[::1]
_LIBSVM = types.NamedTuple([_I8, _U4, types.float32[::1], _F8, _F8, _I8, _TOKENS, _I8], Libsvm)
_WABBIT = types.NamedTuple(
    [types.float64[:, ::1], _SPANS, _I8, types.uint64[::1], _F8, _SPANS, _SPANS, _F8, _TOKENS, _I8],
    VowpalWabbit,
)


@helper
def _times(a, b):
    """The product of two numbers of 32 bits, modulo 2³²."""
    return (a * b) & _32_BITS


@helper
def _rotated(number, by):
    """A number of 32 bits, rotated to the left."""
    return ((number << np.uint64(by)) | (number >> np.uint64(32 - by))) & _32_BITS


@helper
def _four_bytes(text, at):
    """Four bytes as a number, the first the lowest."""
    four = np.uint64(text[at]) | np.uint64(text[at + np.uintp(1)]) << _ONE_BYTE
    four |= np.uint64(text[at + np.uintp(2)]) << _TWO_BYTES
    return four | np.uint64(text[at + np.uintp(3)]) << _THREE_BYTES


@helper
def _scrambled(block):
    """Four bytes as MurmurHash3 takes them in."""
    return _times(_rotated(_times(block, _MURMUR[0]), 15), _MURMUR[1])


@helper
def _mixed(hashed, block):
    """The hash with four bytes more."""
    return (_times(_rotated(hashed ^ _scrambled(block), 13), _FIVE) + _MURMUR[2]) & _32_BITS


@helper
def _hash_on(text, start, stop, hashed, block, length):
    """MurmurHash3_x86_32 (Appleby, 2011) of some bytes more: the hash of all whole blocks of four,
    the bytes of the block begun, and how many bytes there were; at first 0, 0 and 0."""
    shift = (length & _THREE) * _ONE_BYTE
    length += np.uint64(stop - start)
    while stop - start >= np.uintp(4):
        block |= _four_bytes(text, start) << shift
        hashed = _mixed(hashed, block & _32_BITS)
        block >>= _32
        start += np.uintp(4)
    while start < stop:
        block |= np.uint64(text[start]) << shift
        shift += _ONE_BYTE
        start += np.uintp(1)
    if shift >= _32:
        hashed = _mixed(hashed, block & _32_BITS)
        block >>= _32
    return hashed, block, length


@helper
def _hash_end(hashed, block, length):
    """The hash of all bytes, 32 bits."""
    hashed ^= _scrambled(block) ^ length
    hashed = _times(hashed ^ (hashed >> np.uint64(16)), _MURMUR[3])
    hashed = _times(hashed ^ (hashed >> np.uint64(13)), _MURMUR[4])
    return hashed ^ (hashed >> np.uint64(16))


@helper
def _ends_token(byte):
    """Whether a token ends before this byte: blank, newline, tab, carriage return or ``#``."""
    return byte in (_BLANK, _NEWLINE, _TAB, _RETURN, _HASH)


@helper
def _skip_blanks(text, at):
    """Return the first place from ``at`` on that is neither blank nor tab."""
    while text[at] == _BLANK or text[at] == _TAB:
        at += np.uintp(1)
    return at


@helper
def _digits(text, at, number):
    """``number`` with the digits from ``at`` on appended, and the place after them. Overflows
    silently beyond 18 digits: the caller counts them."""
    digit = np.uint8(text[at] - _ZERO)
    while digit <= 9:
        number = number * 10 + np.int64(digit)
        at += np.uintp(1)
        digit = np.uint8(text[at] - _ZERO)
    return number, at


@helper
def _many_digits(text, at, number):
    """The same, the first four of them at once where there are as many."""
    if at + np.uintp(3) < np.uintp(len(text)):
        four = (
            _four_bytes(text, at) - _FOUR_ZEROS
        )  # a byte below "0" gets its top bit set, or borrows and has it
        if not ((four + _OVER_NINE) | four) & _TOP_BITS:
            pairs = (four * _TEN + (four >> _ONE_BYTE)) & _PAIRS
            number = number * 10000 + np.int64((pairs * _HUNDRED + (pairs >> _TWO_BYTES)) & _LOW)
            at += np.uintp(4)
    return _digits(text, at, number)


@helper
def _exponent(text, at):
    """The exponent whose ``e`` is at ``at``, and the place after it; ``at`` if it has no digit."""
    first = at + np.uintp(1)
    negative = text[first] == _MINUS
    if negative or text[first] == _PLUS:
        first += np.uintp(1)
    exponent, after = _digits(text, first, np.int64(0))
    if after == first:
        return np.int64(0), at
    if after - first > _SAFE_DIGITS:
        exponent = np.int64(_HUGE_EXPONENT)
    return -exponent if negative else exponent, after


@helper
def _halves(number):
    """Two numbers of 26 bits whose sum it is, so that their products are exact (Dekker, 1971)."""
    large = _SPLIT * number
    upper = large - (large - number)
    return upper, number - upper


@helper
def _divided(mantissa, power):
    """mantissa / 10^power for at most 18 digits and power ≤ 22, and whether it is correctly
    rounded: the quotient of doubles plus that of the remainder is, but near a tie."""
    dividend, divisor = np.float64(mantissa), _POWERS[power]
    quotient = dividend / divisor
    product = quotient * divisor
    a, b = _halves(quotient)
    c, d = _halves(divisor)
    remainder = dividend - product - (((a * c - product) + a * d + b * c) + b * d)
    remainder += np.float64(mantissa - np.int64(dividend))
    number = quotient + remainder / divisor * _WIDER
    return number, number == quotient + remainder / divisor * _NARROWER


@helper
def _number(text, at):
    """Return the decimal number at ``at`` as a double, its exactness, and the place after it.

    mantissa · 10^exponent is correctly rounded (_EXACT) where both factors are exact: mantissa
    ≤ 2⁵³, |exponent| ≤ 22 (Clinger, PLDI 1990); and where ``_divided`` says so. With at most 18
    digits and |exponent| ≤ 60 it is off by no more than three roundings of 2⁻⁵³ each (_NEAR). The
    rest is _HARD. An exact integer beyond 2²⁴ is _WHOLE: float32 may not hold it, and the reader
    has to know.
    """
    negative = text[at] == _MINUS
    if negative or text[at] == _PLUS:
        at += np.uintp(1)
    start = at
    mantissa, at = _digits(text, at, np.int64(0))
    digits = np.int64(at - start)
    exponent = np.int64(0)
    integer = True
    if text[at] == _POINT:
        integer = False
        point = at + np.uintp(1)
        mantissa, at = _digits(text, point, mantissa)
        exponent = -np.int64(at - point)
        digits -= exponent
    if digits == 0:
        return 0.0, _NO_NUMBER, at
    while text[start] == _ZERO or (text[start] == _POINT and digits > _SAFE_DIGITS):
        digits -= np.int64(text[start] == _ZERO)  # it leads, and overflows nothing
        start += np.uintp(1)
    if text[at] | 32 == _SMALL_E:
        integer = False
        shift, after = _exponent(text, at)
        if after == at:
            return 0.0, _NO_NUMBER, at
        exponent += shift
        at = after
    power = abs(exponent)
    wide = mantissa > _EXACT_MANTISSA
    if power >= len(_POWERS) or digits > _SAFE_DIGITS or (integer and wide):
        return 0.0, _HARD, at
    number = np.float64(mantissa)
    exact = not wide and power <= _EXACT_POWER
    if exponent < 0 and wide and power <= _EXACT_POWER:
        number, exact = _divided(mantissa, power)
    elif exponent < 0:
        number /= _POWERS[power]
    else:
        number *= _POWERS[power]
    sure = _EXACT if exact else _NEAR
    if integer and mantissa > _EXACT_INTEGER:
        sure = _WHOLE
    return -number if negative else number, sure, at


@helper
def _short_number(text, at):
    """A number of at most 15 digits, 7 of them before its point, exact as in ``_number``, and the
    place after it; or the place before, if it is none."""
    negative = text[at] == _MINUS
    first = at + np.uintp(negative)
    mantissa, after = _digits(text, first, np.int64(0))
    head, places = after - first, np.uintp(0)
    if text[after] == _POINT:
        point = after + np.uintp(1)
        mantissa, after = _many_digits(text, point, mantissa)
        places = after - point
    if head - np.uintp(1) >= np.uintp(7) or head + places > 15:
        return 0.0, at - np.uintp(1)
    number = np.float64(mantissa) / _POWERS[places]
    return -number if negative else number, after


@helper
def _fits_float32(number, sure):
    """Whether float32(number) is what the true number gives.

    A _NEAR number and Python's double of the token both lie within (1 ± 2⁻⁵⁰) number; rounding is
    monotone, so they round alike if the ends do. Near infinity Python decides.
    """
    if sure == _NEAR:
        alike = np.float32(number * _WIDER) == np.float32(number * _NARROWER)
        return alike and abs(number) < _NEAR_MAX
    return sure == _EXACT


@helper
def _defer(deferred, counts, what, which, at, after):
    """Add to ``deferred`` a token that Python is to parse."""
    token = deferred[counts[DEFERRED]]
    token[0], token[1], token[2], token[3] = what, which, at, after
    counts[DEFERRED] += 1


@helper
def _row_label(text, at, weighted, row, labels, weights, deferred, counts):
    """``label`` or, if ``weighted``, ``label:weight``; returns (trouble, place)."""
    number, sure, after = _number(text, at)
    if sure == _NO_NUMBER:
        return BAD_LABEL, at
    labels[row] = number
    if sure > _WHOLE:
        _defer(deferred, counts, LABEL, row, at, after)
    if weighted and text[after] == _COLON:
        start = after + np.uintp(1)
        weights[row], sure, after = _number(text, start)
        if sure == _NO_NUMBER or weights[row] < 0.0 or not _ends_token(text[after]):
            return BAD_WEIGHT, start
        if sure > _WHOLE:
            _defer(deferred, counts, WEIGHT, row, start, after)
    if not _ends_token(text[after]):
        return BAD_LABEL, at
    return NOTHING, _skip_blanks(text, after)


@helper
def _row_names(text, at, optional, row, deferred, counts):
    """Leave the first token to Python, or pass no label; returns (trouble, place)."""
    after = at
    while not _ends_token(text[after]) and text[after] != _COLON:
        after += np.uintp(1)
    if text[after] == _COLON:
        return NOTHING if optional else BAD_LABEL, at
    _defer(deferred, counts, NAMES, row, at, after)
    return NOTHING, _skip_blanks(text, after)


@helper
def _unlabelled(text, at):
    """Whether the row at ``at`` begins with a pair or a query id instead of a label."""
    _, _, after = _number(text, at)
    return text[after] == _COLON or text[at] == _QID[0]


@helper
def _row_query(text, at):
    """Pass ``qid:3`` if it is there; returns (trouble, place)."""
    if text[at] != _QID[0]:
        return NOTHING, at
    first = at
    for letter in _QID:
        if text[first] != letter:
            return BAD_QUERY, at
        first += np.uintp(1)
    _, after = _digits(text, first, np.int64(0))
    if after == first or not _ends_token(text[after]):
        return BAD_QUERY, at
    return NOTHING, _skip_blanks(text, after)


@helper
def _row_pairs(text, at, first_column, indices, values, nonzero, deferred, counts):
    """``column:value`` to the row's end; returns (trouble, place, nonzero)."""
    previous = np.int64(-1)
    while np.uint8(text[at] - _ZERO) <= 9:
        column, after = _many_digits(text, at, np.int64(0))
        if (
            text[after] != _COLON
            or after - at > _SAFE_DIGITS
            or column > COLUMN_MAX
            or column < first_column
        ):
            return BAD_PAIR, at, nonzero
        start = after + np.uintp(1)
        if column <= previous:
            counts[UNSORTED] = 1
        previous = column
        indices[nonzero] = column
        negative = text[start] == _MINUS
        first = start + np.uintp(negative)
        mantissa, after = _digits(text, first, np.int64(0))
        head = after - first
        places = np.uintp(0)
        if text[after] == _POINT:
            point = after + np.uintp(1)
            mantissa, after = _many_digits(text, point, mantissa)
            places = after - point
        if head - np.uintp(1) < np.uintp(7) and head + places <= 15 and _ends_token(text[after]):
            # Most numbers, as in _short_number, which would be slower here.
            number = np.float64(mantissa) / _POWERS[places]
            values[nonzero] = -number if negative else number
            nonzero += np.uintp(1)
            at = _skip_blanks(text, after)
            continue
        number, sure, after = _number(text, start)
        if sure == _NO_NUMBER or not _ends_token(text[after]):
            return BAD_PAIR, at, nonzero
        if not _fits_float32(number, sure):
            _defer(deferred, counts, VALUE, nonzero, start, after)
        values[nonzero] = number
        nonzero += np.uintp(1)
        at = _skip_blanks(text, after)
    return NOTHING if _ends_token(text[at]) else BAD_PAIR, at, nonzero


@helper
def _line_end(text, at):
    """Pass a comment and the line's end; returns (trouble, its place or the next line's)."""
    if text[at] == _HASH:
        while text[at] != _NEWLINE and text[at] != _RETURN and text[at] != 0:
            at += np.uintp(1)
    end = at
    while text[end] == _RETURN:
        end += np.uintp(1)
    if text[end] != _NEWLINE:
        return BAD_END, at
    return NOTHING, end + np.uintp(1)


@kernel(
    types.void(
        readonly(types.uint8), types.int64, types.boolean, types.boolean, types.boolean, _LIBSVM
    )
)
def parse_libsvm(text, first_column, optional, weighted, named, parsed):
    """Read whole lines of libsvm text into arrays, up to the first line that is wrong.

    Parameters
    ----------
    text : uint8, shape (n,); the last byte is a newline, which ends every inner loop.
    first_column : a column number below it is BAD_PAIR.
    optional : whether a row may begin with its first pair, having no label.
    weighted : whether a label may be written ``label:weight``.
    named : whether labels are left to Python, as they stand; not with ``weighted``.
    parsed : ``Libsvm``, changed in place.

    Cost: one reading of the text, some 40 cycles a nonzero.
    """
    indptr, indices, values, labels, weights, lines, deferred, counts = parsed
    at = row = nonzero = line = np.uintp(0)
    counts[:] = 0
    indptr[0] = 0
    trouble = NOTHING
    while at < np.uintp(len(text)):
        at = _skip_blanks(text, at)
        is_row = not _ends_token(text[at])
        if is_row:
            labels[row], weights[row], lines[row] = np.nan, 1.0, line
            if named:
                trouble, at = _row_names(text, at, optional, row, deferred, counts)
            elif not (optional and _unlabelled(text, at)):
                trouble, at = _row_label(text, at, weighted, row, labels, weights, deferred, counts)
            if trouble == NOTHING:
                trouble, at = _row_query(text, at)
            if trouble == NOTHING:
                trouble, at, nonzero = _row_pairs(
                    text, at, first_column, indices, values, nonzero, deferred, counts
                )
        if trouble == NOTHING:
            trouble, at = _line_end(text, at)
        if trouble != NOTHING:
            break
        row += np.uintp(is_row)
        indptr[row] = nonzero
        line += np.uintp(1)
    counts[PARSED_ROWS], counts[PARSED_LINES] = row, line
    counts[TROUBLE], counts[PLACE] = trouble, at


@helper
def _pass_white(text, at):
    """The first place from ``at`` on that is not white, and whether a carriage return is before."""
    returned = False
    while _KINDS[text[at]] == _WHITE:
        returned |= text[at] == _RETURN
        at += np.uintp(1)
    return at, returned


@helper
def _ends_word(byte):
    """Whether a word ends before this byte: white space, newline or ``|``."""
    return _KINDS[byte] != _PLAIN and byte != _COLON


@helper
def _head_number(text, start, stop, what, row, heads, deferred, counts):
    """A number before the ``|``; returns whether it is one, and all of its word."""
    heads[row, what], sure, after = _number(text, start)
    if sure > _WHOLE:
        _defer(deferred, counts, what, row, start, stop)
    return sure != _NO_NUMBER and after == stop


@helper
def _row_head(text, at, row, heads, tags, deferred, counts):
    """``label importance 'tag`` up to the ``|``; returns (trouble, place). The last word is a tag
    where a ``'`` is before it, or no white space behind."""
    words = 0
    first = second = last = first_stop = second_stop = last_stop = begin = at
    while text[at] != _BAR:
        last = at
        while not _ends_word(text[at]):
            at += np.uintp(1)
        last_stop = at
        if words == 0:
            first, first_stop = last, at
        elif words == 1:
            second, second_stop = last, at
        words += 1
        at, returned = _pass_white(text, at)
        if text[at] == _NEWLINE:
            return NO_BAR, begin
        if returned:
            return BAD_END, at
    heads[row, LABEL], heads[row, WEIGHT] = np.nan, 1.0
    tags[row, 0], tags[row, 1] = 1, 0
    if words and (text[last] == _APOSTROPHE or last_stop == at):
        words -= 1
        tags[row, 0], tags[row, 1] = last + np.uintp(text[last] == _APOSTROPHE), last_stop
    good = words <= 2
    if good and words >= 1:
        good = _head_number(text, first, first_stop, LABEL, row, heads, deferred, counts)
    if good and words == 2:
        good = _head_number(text, second, second_stop, WEIGHT, row, heads, deferred, counts)
    return NOTHING if good else BAD_LABEL, at if good else begin


@helper
def _row_features(text, at, bits, found, nonzero, space):
    """``|namespace:scale name:value name …`` to the row's end, hashed; returns (trouble, place,
    nonzero, namespaces)."""
    prefix = prefix_block = prefix_length = np.uint64(0)
    while text[at] != _NEWLINE:
        is_space = text[at] == _BAR
        start = at + np.uintp(is_space)
        stop = start
        while _KINDS[text[stop]] == _PLAIN:
            stop += np.uintp(1)
        number, sure, after = 1.0, _EXACT, stop
        if text[stop] == _COLON:
            number, after = _short_number(text, stop + np.uintp(1))
            if after == stop or not _ends_word(text[after]):
                number, sure, after = _number(text, stop + np.uintp(1))
            if sure == _NO_NUMBER or not _ends_word(text[after]):
                return BAD_PAIR, at, nonzero, space
        if is_space:
            prefix = prefix_block = prefix_length = np.uint64(0)
            prefix, prefix_block, prefix_length = _hash_on(
                text, start, stop, prefix, prefix_block, prefix_length
            )
            if stop != start:
                prefix, prefix_block, prefix_length = _hash_on(
                    _CARETS, np.uintp(0), np.uintp(1), prefix, prefix_block, prefix_length
                )
            found.spaces[space, 0], found.spaces[space, 1] = start, stop
            found.scales[space] = number
            if sure > _WHOLE:
                _defer(found.deferred, found.counts, SCALE, space, stop + np.uintp(1), after)
            space += np.uintp(1)
        else:
            if stop == start:
                return NAMELESS, at, nonzero, space
            hashed = _hash_end(*_hash_on(text, start, stop, prefix, prefix_block, prefix_length))
            found.keys[nonzero] = ((hashed << (_32 - bits) & _32_BITS) | hashed >> bits) << _32 | (
                np.uint64(nonzero)
            )
            found.values[nonzero] = number
            found.names[nonzero, 0], found.names[nonzero, 1] = start, stop
            found.names[nonzero, 2] = space - np.uintp(1)
            if sure > _WHOLE:
                _defer(found.deferred, found.counts, VALUE, nonzero, stop + np.uintp(1), after)
            nonzero += np.uintp(1)
        at = after + np.uintp(1)
        if text[after] != _BLANK or _KINDS[text[at]] != _PLAIN:  # as it is between most words
            at, returned = _pass_white(text, after)
            if returned and text[at] != _NEWLINE:
                return BAD_END, at, nonzero, space
    return NOTHING, at, nonzero, space


@kernel(types.void(readonly(types.uint8), types.uint64, _WABBIT))
def parse_vowpal_wabbit(text, bits, found):
    """Read lines of Vowpal Wabbit's text up to the first that is wrong; blank ones are passed over.

    Parameters
    ----------
    text : uint8, shape (n,), valid UTF-8; the last byte is a newline.
    bits : a name's column is its MurmurHash3_x86_32 modulo 2^bits, 1 ≤ bits ≤ 31.
    found : ``VowpalWabbit``, changed in place.
    """
    at = row = nonzero = space = np.uintp(0)
    trouble = NOTHING
    heads, tags, deferred, counts = found.heads, found.tags, found.deferred, found.counts
    counts[:] = 0
    found.indptr[0] = 0
    while at < np.uintp(len(text)):
        at, _ = _pass_white(text, at)
        if text[at] != _NEWLINE:
            trouble, at = _row_head(text, at, row, heads, tags, deferred, counts)
            if trouble == NOTHING:
                trouble, at, nonzero, space = _row_features(text, at, bits, found, nonzero, space)
            if trouble != NOTHING:
                break
            row += np.uintp(1)
            found.indptr[row] = nonzero
        at += np.uintp(1)
    counts[PARSED_ROWS], counts[PARSED_SPACES] = row, space
    counts[TROUBLE], counts[PLACE] = trouble, at


@helper
def _sort(keys, start, stop):
    """Sort a part of an array in place (Shell, 1959)."""
    for gap in _GAPS:
        if gap > np.uintp(1) and gap << np.uintp(4) > stop - start:
            continue  # few are sorted sooner by insertion
        for j in range(start + gap, stop):
            key, place = keys[j], j
            while place >= start + gap and keys[place - gap] > key:
                keys[place] = keys[place - gap]
                place -= gap
            keys[place] = key


@helper
def _put_row(keys, first, stop, bits, values, columns, sums):
    """Write the columns and values of a row's names; return how many there are so far. Only two
    names that share a column become one: the sum of more depends on their order."""
    end = at = first
    shift = np.uint64(64) - bits
    while at < stop:
        column, number = keys[at] >> shift, values[keys[at] & _32_BITS]
        at += np.uintp(1)
        ahead = np.uintp(0)
        while at + ahead < stop and keys[at + ahead] >> shift == column and ahead < 2:
            ahead += np.uintp(1)
        if ahead == 1 and (end == first or columns[end - np.uintp(1)] != column):
            addend = values[keys[at] & _32_BITS]
            if abs(number) < _NEAR_MAX and abs(addend) < _NEAR_MAX:
                number = np.float64(np.float32(number)) + np.float64(np.float32(addend))
                at += np.uintp(1)
        columns[end], sums[end] = column, number
        end += np.uintp(1)
    return end


@kernel(types.void(types.int64, types.uint64, _WABBIT, _U4, _F8))
def add_names(rows, bits, found, columns, sums):
    """Sort the names of each row by column and add up the values of a name that occurs again, in
    the order of its occurrences; and of two names that share a column, each rounded to float32.
    Names are equal where all 32 bits of their hashes are.

    Parameters
    ----------
    rows, bits : as in ``parse_vowpal_wabbit``.
    found : of ``parse_vowpal_wabbit``; changed in place are ``indptr``, the offsets of what is
        left, ``keys`` and ``values``.
    columns, sums : uint32, float64, shape (names,), changed in place: columns, each once in its
        row unless more than two names share it, and values.
    """
    indptr, keys, values = found.indptr, found.keys, found.values
    kept = start = np.uintp(0)
    for i in range(np.uintp(rows)):
        first, stop = kept, np.uintp(indptr[i + np.uintp(1)])
        _sort(keys, start, stop)
        for j in range(start, stop):
            last = kept - np.uintp(1)
            if kept > first and keys[last] >> _32 == keys[j] >> _32:
                values[keys[last] & _32_BITS] += values[keys[j] & _32_BITS]
            else:
                keys[kept] = keys[j]
                kept += np.uintp(1)
        start, kept = stop, _put_row(keys, first, kept, bits, values, columns, sums)
        indptr[i + np.uintp(1)] = kept


@kernel(types.int64(readonly(types.uint8), types.int64))
def too_deep(text, most):
    """Return where more than ``most`` brackets are open in JSON, outside strings; or the length."""
    depth, quoted, escaped = 0, False, False
    for at in range(len(text)):
        byte = text[at]
        if quoted:
            quoted = escaped or byte != _QUOTE
            escaped = not escaped and byte == _BACKSLASH
        elif byte == _QUOTE:
            quoted = True
        elif byte | 0x20 == _OPEN:
            depth += 1
            if depth > most:
                return at
        elif byte | 0x20 == _CLOSE:
            depth -= 1
    return len(text)


@kernel(types.UniTuple(types.int64, 2)(readonly(types.uint8), types.int64))
def csv_rows(text, separator):
    """Return where the last whole row of CSV ends, and where the quote is that is open at the end.

    The second is -1 where none is open. A quote that neither opens nor closes a field is returned
    as the second, with -1 as the first.
    """
    end, opened, where = 0, -1, BEFORE
    for at in range(len(text)):
        byte = text[at]
        ends = byte in (separator, _NEWLINE, _RETURN)
        if byte == _QUOTE:
            if where == BARE:
                return -1, at
            elif where == QUOTED:
                where = CLOSED
            else:  # behind a closing quote it stands for a quote
                opened = at if where == BEFORE else opened
                where = QUOTED
        elif where == CLOSED and not ends:
            return -1, at
        elif where != QUOTED:
            where = BEFORE if ends else BARE
            end = at + 1 if byte in (_NEWLINE, _RETURN) else end
    return end, opened if where == QUOTED else -1
