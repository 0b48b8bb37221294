"""Find the words of documents, and n-grams of words or characters, as scikit-learn finds them.

A kernel finds the words. Only documents with a letter whose lower case depends on its neighbours,
accents and characters, and patterns of one's own, in another process, go through Python.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamtron.core.errors import DataError, MachineError
from streamtron.data.formats import text_kernels
from streamtron.data.row_batch import offsets_of

if TYPE_CHECKING:
    from streamtron.data.formats.text_column import TextColumn

TOKEN_PATTERN = r"(?u)\b\w\w+\b"
"""scikit-learn's own: two or more word letters."""

PATIENCE = 10
"""Seconds that a pattern of one's own may take, and 1 more for every 100,000 characters."""

_FIND_ALL = """
import json, re, resource, sys
seconds, pattern, texts = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
json.dump([*map(re.compile(pattern).findall, texts)], sys.stdout)
"""
"""Finds words in a process of its own: some patterns would take years, and ``re`` has no limit."""

_BLANKS = re.compile(r"\s\s+")
_CODE_POINTS = 0x110000
_BY_NEIGHBOURS = "İΣ"
"""The letters that ``str.lower`` turns into two, or into one that depends on where it stands."""


class Words(NamedTuple):
    """Words of documents, or characters: their UTF-8 in ``text``, from ``starts`` to ``stops``, one
    byte apart, or none. N-grams are of those of a run, ``indptr[i]`` … ``indptr[i + 1] - 1``."""

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    indptr: NDArray[np.int64]


class Grams(NamedTuple):
    """N-grams: their UTF-8 in ``text``, from ``starts`` to ``stops``, and their ``document``."""

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    document: NDArray[np.int64]
    documents: int

    def strings(self) -> pa.Array:
        """Return them as strings."""
        return _strings(*self[:3])

    def encoded(self) -> tuple[list[str], NDArray[np.int64]]:
        """Return the distinct ones as strings, and which one each is."""
        encoded = self.strings().dictionary_encode()
        # to_numpy of pyarrow would load pandas, where it is installed
        codes = np.frombuffer(encoded.indices.buffers()[1], np.int32, len(self.starts))
        return encoded.dictionary.to_pylist(), codes.astype(np.int64)


def strings_of(texts: Sequence[str]) -> pa.Array:
    """Return strings as an Arrow array."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)])
    buffers = (pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))
    return pa.LargeStringArray.from_buffers(len(encoded), *buffers)


def grams_of(documents: Sequence[str] | pa.Array, column: TextColumn) -> Grams:
    """Find the n-grams of documents as a column wants them."""
    array = documents if isinstance(documents, pa.Array) else pa.array(documents, pa.large_string())
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    array, lowercase = array.cast(pa.large_string()), column.lowercase
    if column.strip_accents == "unicode" or column.analyzer != "word":
        texts = [text.lower() if lowercase else text for text in array.to_pylist()]
        if column.strip_accents == "unicode":
            texts = list(map(_without_accents, texts))
        array, lowercase = pa.array(texts, pa.large_string()), False
    low, high = column.ngram_range
    document = np.arange(len(array))
    if column.analyzer == "word":
        words = _without(split(array, lowercase, column.token_pattern), column.stop_words)
        short = np.zeros(0, np.int64)
    else:
        words, document = _characters(texts, column.analyzer == "char_wb")
        # of a word that is shorter than any n-gram, scikit-learn takes the whole
        short = np.flatnonzero((np.diff(words.indptr) < low) & (column.analyzer == "char_wb"))
    run = np.repeat(np.arange(len(document)), np.diff(words.indptr))
    starts, stops = [words.starts[words.indptr[short]]], [words.stops[words.indptr[short + 1] - 1]]
    runs = [short]
    for n in range(low, high + 1):
        count = max(len(run) - n + 1, 0)
        within = slice(None) if n == 1 else run[:count] == run[n - 1 :]
        starts.append(words.starts[:count][within])
        stops.append(words.stops[n - 1 :][within])
        runs.append(run[:count][within])
    parts = (
        parts[1] if len(parts) == 2 and not len(short) else np.concatenate(parts)
        for parts in (starts, stops, runs)
    )
    first, end, of_run = parts
    return Grams(words.text, first, end, document[of_run], len(array))


def _without_accents(text: str) -> str:
    if text.isascii():
        return text
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def _characters(texts: Sequence[str], within_words: bool) -> tuple[Words, NDArray[np.int64]]:
    """Return the characters of documents as runs, each a document, or a word of it with a blank on
    either side, and the document of each run."""
    if within_words:
        split_texts = [text.split() for text in texts]
        runs = [f" {word} " for words in split_texts for word in words]
        document = np.repeat(np.arange(len(texts)), list(map(len, split_texts)))
    else:
        runs, document = [_BLANKS.sub(" ", text) for text in texts], np.arange(len(texts))
    text = np.frombuffer("".join(runs).encode() + b" ", np.uint8)
    starts = np.flatnonzero((text & 0xC0) != 0x80)  # the bytes that begin a character
    indptr = np.cumsum([0, *map(len, runs)])
    return Words(text, starts[:-1], starts[1:], indptr), document


def _without(words: Words, stop_words: Sequence[str]) -> Words:
    """Leave words out: n-grams are then of those that were not beside each other."""
    if not stop_words:
        return words
    if stop_words == ("english",):
        # scikit-learn's, which are those of the Glasgow Information Retrieval Group
        stop_words = Path(__file__).with_name("stop_words.txt").read_text("utf-8").split()
    strings, unwanted = _strings(*words[:3]), pa.array(stop_words, pa.large_string())
    kept = ~np.asarray(pc.is_in(strings, unwanted))
    text, ends = _gathered(words.text, words.starts[kept], words.stops[kept] + 1)
    indptr = np.append(0, np.cumsum(kept))[words.indptr]
    return Words(text, ends[:-1], ends[1:] - 1, indptr)


def _strings(
    text: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> pa.Array:
    text, ends = _gathered(text, starts, stops)
    return pa.LargeStringArray.from_buffers(len(starts), pa.py_buffer(ends), pa.py_buffer(text))


def _gathered(
    text: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return pieces of a text one behind the other, and their offsets."""
    ends = offsets_of(stops - starts)
    return text[np.arange(ends[-1]) + np.repeat(starts - ends[:-1], stops - starts)], ends


def split(array: pa.Array, lowercase: bool, pattern: str) -> Words:
    """Find the words of documents, each document a run."""
    if pattern != TOKEN_PATTERN:
        return _packed(_split_by(pattern, array.to_pylist(), lowercase))
    text, offsets = _bytes_of(array)
    pairs = [tuple(letter.encode()) for letter in _BY_NEIGHBOURS]
    if lowercase and any(((text[:-1] == a) & (text[1:] == b)).any() for a, b in pairs):
        have = pc.match_substring_regex(array, f"[{_BY_NEIGHBOURS}]")
        lowered = [text.lower() for text in array.filter(have).to_pylist()]
        lowered = pc.replace_with_mask(array, have, pa.array(lowered, array.type))
        text, offsets = _bytes_of(lowered)
    size, count = len(text), len(offsets) - 1
    most = size // 3 + count
    words = np.empty(size * 3 // 2 + count, np.uint8)
    starts, stops = np.empty(most, np.int64), np.empty(most, np.int64)
    indptr = np.empty(count + 1, np.int64)
    text_kernels.split_words(text, offsets, _letters(lowercase), words, starts, stops, indptr)
    return Words(words, starts[: indptr[-1]], stops[: indptr[-1]], indptr)


def _split_by(pattern: str, documents: Iterable[str], lowercase: bool) -> list[list[str]]:
    """Find the words of documents by a pattern of one's own, in another process of Python."""
    texts = [text.lower() if lowercase else text for text in documents]
    seconds = PATIENCE + sum(map(len, texts)) // 100_000
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
    return list(json.loads(done.stdout))


def _packed(documents: Sequence[Sequence[str]]) -> Words:
    """Put the words of documents one behind the other."""
    encoded = [word.encode() for words in documents for word in words]
    text = b" ".join(encoded) + b" "
    ends = np.cumsum([0, *(len(word) + 1 for word in encoded)])
    indptr = np.cumsum([0, *map(len, documents)])
    return Words(np.frombuffer(text, np.uint8), ends[:-1], ends[1:] - 1, indptr)


def _bytes_of(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the UTF-8 of strings, checked, and the offsets of each."""
    array.validate(full=True)
    _, offsets, text = array.buffers()
    ends = np.frombuffer(offsets, np.int64, len(array) + 1, 8 * array.offset)
    within = memoryview(text or b"")[ends[0] : ends[-1]]
    return np.frombuffer(within, np.uint8), ends - ends[0]


@cache
def _letters(lowercase: bool) -> NDArray[np.uint32]:
    """Return what each code point becomes, marked with ``WORD`` where words are made of it."""
    table = np.arange(_CODE_POINTS, dtype=np.uint32)
    every = table.tobytes().decode("utf-32", "surrogatepass")
    if lowercase:  # all at once: these alone become several letters, or another at a word's end
        lowered = re.sub(f"[{_BY_NEIGHBOURS}]", "_", every).lower()
        encoded = lowered.encode("utf-32-le", "surrogatepass")
        table = np.frombuffer(encoded, "<u4").astype(np.uint32)
        neighbours = [*map(ord, _BY_NEIGHBOURS)]
        table[neighbours] = neighbours
    is_word = np.zeros(_CODE_POINTS, bool)
    for run in re.finditer(r"\w+", every):
        is_word[run.start() : run.end()] = True
    table |= np.where(is_word[table], text_kernels.WORD, np.uint32(0))
    table.setflags(write=False)
    return table
