"""Find the words of documents as scikit-learn's vectorizers do.

A kernel finds them. Only documents with a letter whose lower case depends on its neighbours, and
patterns of one's own, in another process, go through Python's ``re``.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamtron.core.errors import DataError, MachineError
from streamtron.data.formats import text_kernels

TOKEN_PATTERN = r"(?u)\b\w\w+\b"
"""scikit-learn's own: two or more word letters."""

_FIND_ALL = """
import json, re, resource, sys
seconds, pattern, texts = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
json.dump([*map(re.compile(pattern).findall, texts)], sys.stdout)
"""
"""Finds words in a process of its own: some patterns would take years, and ``re`` has no limit."""

_CODE_POINTS = 0x110000
_BY_NEIGHBOURS = "İΣ"
"""The letters that ``str.lower`` turns into two, or into one that depends on where it stands."""


class Words(NamedTuple):
    """Words of documents: their UTF-8 in ``text``, from ``starts`` to ``stops``; those of document
    i are ``indptr[i]`` … ``indptr[i + 1] - 1``."""

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    indptr: NDArray[np.int64]


def split(documents: Sequence[str] | pa.Array, lowercase: bool, pattern: str) -> Words:
    """Find the words of documents."""
    array = documents if isinstance(documents, pa.Array) else pa.array(documents, pa.large_string())
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = array.cast(pa.large_string())
    if pattern != TOKEN_PATTERN:
        return _split_by(pattern, array.to_pylist(), lowercase)
    text, offsets = _bytes_of(array)
    if lowercase and any(_occurs(letter, text) for letter in _BY_NEIGHBOURS):
        text, offsets = _bytes_of(_lowered(array))
    size, count = len(text), len(offsets) - 1
    most = size // 3 + count
    words = np.empty(size * 3 // 2 + count, np.uint8)
    starts, stops = np.empty(most, np.int64), np.empty(most, np.int64)
    indptr = np.empty(count + 1, np.int64)
    text_kernels.split_words(text, offsets, _letters(lowercase), words, starts, stops, indptr)
    found = int(indptr[-1])
    return Words(words, starts[:found], stops[:found], indptr)


def _split_by(pattern: str, documents: Iterable[str], lowercase: bool) -> Words:
    """Find the words of documents by a pattern of one's own, in another process of Python."""
    texts = [text.lower() if lowercase else text for text in documents]
    seconds = 10 + sum(map(len, texts)) // 100_000
    command = [sys.executable, "-I", "-S", "-c", _FIND_ALL]
    job = json.dumps([seconds, pattern, texts]).encode()
    done = subprocess.run(command, input=job, capture_output=True)
    if done.returncode == -signal.SIGXCPU:
        raise DataError(
            f"token-pattern {pattern!r:.99} took over {seconds} seconds for {len(texts):,} "
            "documents. Convert them, and fit, with a pattern without nested repetitions."
        )
    if done.returncode:
        raise MachineError(f"the words of documents: {done.stderr.decode()[-200:]!r}. Try again.")
    found = json.loads(done.stdout)
    encoded = [word.encode() for words in found for word in words]
    text = b" ".join(encoded) + b" "
    ends = np.cumsum([0, *(len(word) + 1 for word in encoded)])
    indptr = np.cumsum([0, *map(len, found)])
    return Words(np.frombuffer(text, np.uint8), ends[:-1], ends[1:] - 1, indptr)


def _bytes_of(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the UTF-8 of strings, checked, and the offsets of each."""
    array.validate(full=True)
    _, offsets, text = array.buffers()
    ends = np.frombuffer(offsets, np.int64, len(array) + 1, 8 * array.offset)
    within = memoryview(text or b"")[ends[0] : ends[-1]]
    return np.frombuffer(within, np.uint8), ends - ends[0]


def _occurs(letter: str, text: NDArray[np.uint8]) -> bool:
    """Tell whether a letter of two bytes occurs in UTF-8."""
    first, second = letter.encode()
    return bool(((text[:-1] == first) & (text[1:] == second)).any())


def _lowered(array: pa.Array) -> pa.Array:
    """Return strings with those in lower case that have a letter of ``_BY_NEIGHBOURS``."""
    import pyarrow.compute as pc  # 4 MB of memory that few need

    have = pc.match_substring_regex(array, f"[{_BY_NEIGHBOURS}]")
    lowered = [text.lower() for text in array.filter(have).to_pylist()]
    return pc.replace_with_mask(array, have, pa.array(lowered, array.type))


@cache
def _letters(lowercase: bool) -> NDArray[np.uint32]:
    """Return what each code point becomes, marked with ``WORD`` where words are made of it."""
    every = "".join(map(chr, range(_CODE_POINTS)))
    table = np.arange(_CODE_POINTS, dtype=np.uint32)
    for code, letter in enumerate(every if lowercase else ""):
        if letter != (lowered := letter.lower()) and letter not in _BY_NEIGHBOURS:
            table[code] = ord(lowered)
    is_word = np.zeros(_CODE_POINTS, bool)
    for run in re.finditer(r"\w+", every):
        is_word[run.start() : run.end()] = True
    table |= np.where(is_word[table], text_kernels.WORD, np.uint32(0))
    table.setflags(write=False)
    return table
