"""The numba loops that parse libsvm text and look into JSON; see ``core.kernels``.

They stand by themselves because numba's cache does not see an edit in another file.
"""

from __future__ import annotations

import numpy as np

from streamtron.core.kernels import helper, kernel, readonly, types
from streamtron.core.rows import COLUMN_MAX

_F8, _I8 = types.float64[::1], types.int64[::1]
_U1 = types.uint8[::1]
_ORDER = readonly(types.int64)

NOTHING, BAD_LABEL, BAD_WEIGHT, BAD_QUERY, BAD_PAIR, BAD_END = 0, 1, 2, 3, 4, 5
"""Kinds of invalid text that ``parse_libsvm`` finds; the reader writes the message."""

PARSED_ROWS, PARSED_LINES, DEFERRED, UNSORTED, TROUBLE, PLACE = 0, 1, 2, 3, 4, 5
"""Places in ``counts``: complete rows, complete lines, numbers deferred, whether the columns of
some row do not rise, what was wrong (``NOTHING``, ``BAD_LABEL``, …) and at which byte."""

LABEL, WEIGHT, VALUE, NAMES = np.arange(4)
"""Kinds of deferred tokens: label or weight of a row, value of a nonzero, or all labels of a row.
numpy integers, because numba would compile ``_defer`` once for each Python integer."""

BEFORE, BARE, QUOTED, CLOSED = np.arange(4)
"""Places in a line of CSV: before a field, in one without quotes, within quotes, behind them."""

_TAB, _NEWLINE, _RETURN, _BLANK, _HASH = 9, 10, 13, 32, 35
_QUOTE, _BACKSLASH, _OPEN, _CLOSE = 34, 92, 0x7B, 0x7D
_PLUS, _MINUS, _POINT, _ZERO, _COLON, _SMALL_E = 43, 45, 46, 48, 58, 101
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
        four = np.uint64(text[at])
        four |= np.uint64(text[at + np.uintp(1)]) << _ONE_BYTE
        four |= np.uint64(text[at + np.uintp(2)]) << _TWO_BYTES
        four |= np.uint64(text[at + np.uintp(3)]) << _THREE_BYTES
        four -= _FOUR_ZEROS  # a byte below "0" gets its top bit set, or borrows and has it
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
def _defer(deferred, count, what, which, at, after):
    """Add to ``deferred`` a token that Python is to parse; return the new count."""
    deferred[count, 0] = what
    deferred[count, 1] = which
    deferred[count, 2] = at
    deferred[count, 3] = after
    return count + np.uintp(1)


@helper
def _row_label(text, at, weighted, row, labels, weights, deferred, count):
    """``label`` or, if ``weighted``, ``label:weight``; returns (trouble, place, deferred)."""
    number, sure, after = _number(text, at)
    if sure == _NO_NUMBER:
        return BAD_LABEL, at, count
    labels[row] = number
    if sure > _WHOLE:
        count = _defer(deferred, count, LABEL, row, at, after)
    if weighted and text[after] == _COLON:
        start = after + np.uintp(1)
        weights[row], sure, after = _number(text, start)
        if sure == _NO_NUMBER or weights[row] < 0.0 or not _ends_token(text[after]):
            return BAD_WEIGHT, start, count
        if sure > _WHOLE:
            count = _defer(deferred, count, WEIGHT, row, start, after)
    if not _ends_token(text[after]):
        return BAD_LABEL, at, count
    return NOTHING, _skip_blanks(text, after), count


@helper
def _row_names(text, at, optional, row, deferred, count):
    """Leave the first token to Python, or pass no label; returns (trouble, place, deferred)."""
    after = at
    while not _ends_token(text[after]) and text[after] != _COLON:
        after += np.uintp(1)
    if text[after] == _COLON:
        return NOTHING if optional else BAD_LABEL, at, count
    return NOTHING, _skip_blanks(text, after), _defer(deferred, count, NAMES, row, at, after)


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
def _row_pairs(text, at, first_column, indices, values, nonzero, deferred, count):
    """``column:value`` to the row's end; returns (trouble, place, nonzero, deferred, unsorted)."""
    previous = np.int64(-1)
    unsorted = False
    while np.uint8(text[at] - _ZERO) <= 9:
        column, after = _many_digits(text, at, np.int64(0))
        if (
            text[after] != _COLON
            or after - at > _SAFE_DIGITS
            or column > COLUMN_MAX
            or column < first_column
        ):
            return BAD_PAIR, at, nonzero, count, unsorted
        start = after + np.uintp(1)
        unsorted |= column <= previous
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
            # Most numbers: exact, as in _number. Its own way to the loop's head doubles the speed.
            number = np.float64(mantissa) / _POWERS[places]
            values[nonzero] = -number if negative else number
            nonzero += np.uintp(1)
            at = _skip_blanks(text, after)
            continue
        number, sure, after = _number(text, start)
        if sure == _NO_NUMBER or not _ends_token(text[after]):
            return BAD_PAIR, at, nonzero, count, unsorted
        if not _fits_float32(number, sure):
            count = _defer(deferred, count, VALUE, nonzero, start, after)
        values[nonzero] = number
        nonzero += np.uintp(1)
        at = _skip_blanks(text, after)
    return NOTHING if _ends_token(text[at]) else BAD_PAIR, at, nonzero, count, unsorted


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
        readonly(types.uint8),
        types.int64,
        types.boolean,
        types.boolean,
        types.boolean,
        _I8,
        types.uint32[::1],
        types.float32[::1],
        _F8,
        _F8,
        _I8,
        types.int64[:, ::1],
        _I8,
    )
)
def parse_libsvm(
    text,
    first_column,
    optional,
    weighted,
    named,
    indptr,
    indices,
    values,
    labels,
    weights,
    lines,
    deferred,
    counts,
):
    """Read whole lines of libsvm text into arrays, up to the first line that is wrong.

    Parameters
    ----------
    text : uint8, shape (n,); the last byte is a newline, which ends every inner loop.
    first_column : a column number below it is BAD_PAIR.
    optional : whether a row may begin with its first pair, having no label.
    weighted : whether a label may be written ``label:weight``.
    named : whether labels are left to Python, as they stand; not with ``weighted``.
    indptr, labels, weights, lines : int64 (n//2 + 2,), float64, float64, int64 (n//2 + 1,), changed
        in place: CSR offsets; a row's label, NaN if it has none here; its weight, 1 if it has none;
        its line, the first of ``text`` being 0.
    indices, values : uint32, float32, shape (n//4 + 1,), changed in place: columns as numbered
        and in the order written, values rounded as float32(float(token)).
    deferred : int64, shape (n//2 + 1, 4), changed in place: (LABEL, WEIGHT, VALUE or NAMES; its
        row or nonzero; its first byte; the byte after it) of each token that Python is to read.
    counts : int64, shape (6,), changed in place: what ``PARSED_ROWS`` … ``PLACE`` point at.

    Cost: one reading of the text, some 40 cycles a nonzero.
    """
    at = row = nonzero = count = line = np.uintp(0)
    counts[:] = 0
    indptr[0] = 0
    trouble = NOTHING
    while at < np.uintp(len(text)):
        at = _skip_blanks(text, at)
        is_row = not _ends_token(text[at])
        if is_row:
            labels[row], weights[row], lines[row] = np.nan, 1.0, line
            if named:
                trouble, at, count = _row_names(text, at, optional, row, deferred, count)
            elif not (optional and _unlabelled(text, at)):
                trouble, at, count = _row_label(
                    text, at, weighted, row, labels, weights, deferred, count
                )
            if trouble == NOTHING:
                trouble, at = _row_query(text, at)
            if trouble == NOTHING:
                trouble, at, nonzero, count, unsorted = _row_pairs(
                    text, at, first_column, indices, values, nonzero, deferred, count
                )
                counts[UNSORTED] |= unsorted
        if trouble == NOTHING:
            trouble, at = _line_end(text, at)
        if trouble != NOTHING:
            break
        row += np.uintp(is_row)
        indptr[row] = nonzero
        line += np.uintp(1)
    counts[PARSED_ROWS], counts[PARSED_LINES], counts[DEFERRED] = row, line, count
    counts[TROUBLE], counts[PLACE] = trouble, at


@kernel(types.int64(readonly(types.uint8), types.int64, types.int64[::1]))
def too_deep(text, most, state):
    """Return where more than ``most`` brackets are open in JSON, outside strings; or the length.

    state : int64, shape (3,), changed in place: open brackets, whether within a string, whether
        behind a backslash; 0 at the start of the file.
    """
    depth, quoted, escaped = state[0], state[1] != 0, state[2] != 0
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
    state[0], state[1], state[2] = depth, quoted, escaped
    return len(text)


@kernel(types.int64(readonly(types.uint8), types.int64, types.int64, types.int64[::1]))
def odd_quote(text, separator, line, state):
    """Return where CSV has a quote that neither opens nor closes a field; or the length.

    line : the line of the first byte.
    state : int64, shape (3,), changed in place: BEFORE, BARE, QUOTED or CLOSED; the line on which
        the last quote opened; the last byte. All 0 at the start of the file.
    """
    where = state[0]
    for at in range(len(text)):
        byte = text[at]
        ends = byte in (separator, _NEWLINE, _RETURN)
        if byte == _QUOTE:
            if where == BARE:
                return at
            elif where == QUOTED:
                where = CLOSED
            else:  # behind a closing quote it stands for a quote
                state[1] = line if where == BEFORE else state[1]
                where = QUOTED
        elif where == CLOSED and not ends:
            return at
        elif where != QUOTED:
            where = BEFORE if ends else BARE
        line += byte == _NEWLINE
    state[0], state[2] = where, text[-1]
    return len(text)
