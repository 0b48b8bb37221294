"""The numba loops that find words in documents and hash them; see ``core.kernels``."""

from __future__ import annotations

import numpy as np

from streamtron.core.kernels import helper, kernel, readonly, types

_I8, _U1 = types.int64[::1], types.uint8[::1]
_OFFSETS = readonly(types.int64)

_BLANK = 32

WORD = np.uint32(1 << 31)
"""Marks, in a table of letters, those that words are made of."""

_MURMUR = tuple(
    np.uint64(number) for number in (0xCC9E2D51, 0x1B873593, 0xE6546B64, 0x85EBCA6B, 0xC2B2AE35)
)
_32_BITS = np.uint64(0xFFFFFFFF)


@helper
def _times(a, b):
    """The product of two numbers of 32 bits, modulo 2³²."""
    return (a * b) & _32_BITS


@helper
def _rotated(number, by):
    """A number of 32 bits, rotated to the left."""
    return ((number << np.uint64(by)) | (number >> np.uint64(32 - by))) & _32_BITS


@helper
def _murmur_hash(text, start, stop):
    """MurmurHash3_x86_32 of some bytes, seed 0, as a signed number (Appleby, 2011)."""
    hashed = np.uint64(0)
    block = np.uint64(0)
    for at in range(start, stop):
        within = np.uint64(at - start) & np.uint64(3)
        block |= np.uint64(text[at]) << (within * np.uint64(8))
        last = np.uintp(at) + np.uintp(1) == stop
        if within == 3 or last:
            block = _times(_rotated(_times(block, _MURMUR[0]), 15), _MURMUR[1])
            hashed ^= block
            if within == 3:
                hashed = (_times(_rotated(hashed, 13), np.uint64(5)) + _MURMUR[2]) & _32_BITS
            block = np.uint64(0)
    hashed ^= np.uint64(stop - start)
    hashed = _times(hashed ^ (hashed >> np.uint64(16)), _MURMUR[3])
    hashed = _times(hashed ^ (hashed >> np.uint64(13)), _MURMUR[4])
    return np.int64(np.int32(np.uint32(hashed ^ (hashed >> np.uint64(16)))))


@helper
def _letter_at(text, at):
    """The code point of valid UTF-8 at ``at``, and the place after it."""
    first = np.uint32(text[at])
    if first < 0x80:
        return first, at + np.uintp(1)
    if first < 0xE0:
        length, letter = 2, first & np.uint32(0x1F)
    elif first < 0xF0:
        length, letter = 3, first & np.uint32(0x0F)
    else:
        length, letter = 4, first & np.uint32(0x07)
    for k in range(1, length):
        letter = (letter << np.uint32(6)) | np.uint32(text[at + np.uintp(k)] & 0x3F)
    return np.uint32(letter), at + np.uintp(length)


@helper
def _put_letter(letter, text, at):
    """Write a code point as UTF-8; return the place after it."""
    if letter < 0x80:
        text[at] = letter
        return at + np.uintp(1)
    length = 2 if letter < 0x800 else 3 if letter < 0x10000 else 4
    text[at] = (0xF00 >> length & 0xFF) | (letter >> np.uint32(6 * (length - 1)))
    for k in range(1, length):
        text[at + np.uintp(k)] = 0x80 | (letter >> np.uint32(6 * (length - 1 - k)) & 0x3F)
    return at + np.uintp(length)


@kernel(types.void(readonly(types.uint8), _OFFSETS, readonly(types.uint32), _U1, _I8, _I8, _I8))
def split_words(text, offsets, letters, words, starts, stops, indptr):
    """Find the words of documents: the longest runs of word letters, two of them at least.

    Parameters
    ----------
    text, offsets : uint8, int64, shape (documents + 1,): document i is ``text[offsets[i]:
        offsets[i + 1]]``, valid UTF-8.
    letters : uint32, shape (0x110000,): what each code point becomes, with ``WORD`` added where
        that is a letter of words.
    words : uint8, shape (3/2 bytes + documents,), changed in place: the words as UTF-8, each with
        a blank behind it.
    starts, stops : int64, shape (bytes // 3 + documents,), changed in place: where words lie.
    indptr : int64, shape (documents + 1,), changed in place: document i has the words
        ``indptr[i]`` … ``indptr[i + 1] - 1``.
    """
    end = count = np.uintp(0)
    indptr[0] = 0
    for i in range(len(offsets) - 1):
        at, stop = np.uintp(offsets[i]), np.uintp(offsets[i + 1])
        start, length = end, 0
        while at < stop:
            letter, at = _letter_at(text, at)
            letter = letters[letter]
            if letter & WORD:
                end = _put_letter(letter ^ WORD, words, end)
                length += 1
            if length and (at == stop or not letter & WORD):
                if length > 1:
                    starts[count], stops[count] = start, end
                    count += np.uintp(1)
                    words[end] = _BLANK
                    start = end + np.uintp(1)
                end, length = start, 0
        indptr[i + 1] = count


@kernel(types.void(readonly(types.uint8), _OFFSETS, _OFFSETS, types.int64, _I8, types.boolean[::1]))
def hash_words(text, starts, stops, mask, columns, negative):
    """Hash pieces of a text: words, or n-grams.

    A column is |h| modulo 2^bits, and the sign of h may be that of its value: the hash trick of
    Weinberger et al. (ICML 2009) as scikit-learn's FeatureHasher has it.

    Parameters
    ----------
    text, starts, stops : uint8, int64, int64: UTF-8, and where pieces lie in it.
    mask : 2^bits - 1.
    columns, negative : int64, bool, changed in place: of each piece, and whether h < 0.
    """
    for k in range(len(starts)):
        h = _murmur_hash(text, np.uintp(starts[k]), np.uintp(stops[k]))
        columns[k] = abs(h) & mask
        negative[k] = h < 0
