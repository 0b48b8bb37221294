"""Turn documents into features: scikit-learn's CountVectorizer, TfidfVectorizer and
HashingVectorizer, entry by entry.

Words are found (``words``) and hashed by kernels.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import sparse

from streamtron.core.errors import DataError
from streamtron.data.formats import text_kernels
from streamtron.data.formats.layouts import Spot, is_string
from streamtron.data.formats.recipe_column import REFUSED, Cells, Column, counted
from streamtron.data.formats.words import TOKEN_PATTERN, Grams, grams_of

COUNTED_BITS = 26
"""Hash bits with tf-idf, at most: it takes some 24 bytes a column while documents are counted."""

LONGEST_PATTERN = 1000
"""Characters of a pattern of words, which may come with a model from anywhere."""

MOST_WORDS = 1 << 19
"""Words of a vocabulary, unless ``most_features`` says another number. While words are counted, up
to twice as many are in memory, or twice ``most_features`` if that is more; of more the rarest so
far are dropped, and are counted anew if they come again."""


class WordCounts(NamedTuple):
    """How many documents; how often, and in how many of them, each word occurs, or each hash."""

    documents: int
    times: Counter[str]
    occurs_in: Counter[str]
    hashes: NDArray[np.int64]
    most: int
    left_out: bool = False
    """whether some were too many"""

    def plus(self, other: WordCounts) -> WordCounts:
        """Both together; the first one is changed."""
        self.hashes[:] += other.hashes
        self.times.update(other.times)
        self.occurs_in.update(other.occurs_in)
        counts = self._replace(documents=self.documents + other.documents)
        most = max(self.most, MOST_WORDS)
        return counts.frequent(most) if len(self.times) > 2 * most else counts

    def frequent(self, most: int) -> WordCounts:
        """Return the same with the words that occur most often, the first of equals first."""
        kept = sorted(self.times, key=lambda word: (-self.times[word], word))[:most]
        left_out = self.left_out or len(kept) < len(self.times)
        times, occurs_in = (
            Counter({word: known[word] for word in kept}) for known in (self.times, self.occurs_in)
        )
        return self._replace(times=times, occurs_in=occurs_in, left_out=left_out)


@dataclass(frozen=True)
class TextColumn(Column):
    """Documents as bags of words or of n-grams: a feature for each that occurred when they were
    counted, in order, or for each hash. Values are rounded to float32.

    With a vocabulary it is what ``CountVectorizer`` of scikit-learn makes, with ``tfidf``
    ``TfidfVectorizer``; with ``hash_bits`` ``HashingVectorizer(n_features=2**hash_bits)``, and with
    ``tfidf`` what ``TfidfTransformer`` makes of that.

    Parameters
    ----------
    analyzer : ``"word"``, ``"char"`` or ``"char_wb"``.
    ngram_range, lowercase, token_pattern, binary, sublinear_tf, alternate_sign : as there.
    strip_accents : ``"none"`` or ``"unicode"``.
    stop_words : words left out, or ``("english",)``, scikit-learn's.
    min_df, max_df : documents that a word must, and may, occur in: a number, or a share of all.
    most_features : words at most, those that occur most often; ``max_features`` there.
    norm : ``"l2"``, ``"l1"`` or ``"none"``.
    tfidf : whether counts are multiplied by ln((1 + documents) / (1 + documents with it)) + 1.
    hash_bits : 1 … 30; None = a vocabulary.
    null : ``"empty"``, a document without words.
    """

    analyzer: str = "word"
    ngram_range: tuple[int, int] = (1, 1)
    lowercase: bool = True
    strip_accents: str = "none"
    token_pattern: str = TOKEN_PATTERN
    stop_words: tuple[str, ...] = ()
    min_df: int | float = 1
    max_df: int | float = 1.0
    most_features: int = MOST_WORDS
    tfidf: bool = False
    sublinear_tf: bool = False
    binary: bool = False
    norm: str = "l2"
    hash_bits: int | None = None
    alternate_sign: bool = False
    vocabulary: tuple[str, ...] | None = counted()
    left_out: bool = counted(False)
    documents: int = counted(0)
    frequencies: str | None = counted()

    KIND = "text"
    TYPES = "strings"
    NULLS = (REFUSED, "empty")
    CHOICES: ClassVar = {
        "analyzer": ("word", "char", "char_wb"),
        "strip_accents": ("none", "unicode"),
        "norm": ("l2", "l1", "none"),
    }

    def _check(self) -> None:
        low, high = self.ngram_range
        most, what = (COUNTED_BITS, "tf-idf") if self.tfidf else (30, "text")
        hashes = self.hash_bits is not None
        counts = self.min_df != 1 or self.max_df != 1.0 or self.most_features != MOST_WORDS
        for wrong, words in (
            (not 1 <= low <= high <= 100, f"ngrams={low}-{high}: expected 1 ≤ LOW ≤ HIGH ≤ 100"),
            (
                hashes and not 1 <= (self.hash_bits or 0) <= most,
                f"hash_bits={self.hash_bits}: expected 1 to {most} for {what}",
            ),
            (hashes and counts, "min_df, max_df and most_features choose words: no hash_bits then"),
            (self.alternate_sign and not hashes, "alternate_sign without hash_bits"),
            (self.alternate_sign and self.sublinear_tf, "sublinear_tf of counts with signs"),
            (not 0 <= self.documents < 2**63, "documents is below 0 or beyond 2⁶³"),
            (self.min_df < 0 or self.max_df < 0, "min_df and max_df: expected 0 or more"),
            (self.most_features < 1, "most_features: expected 1 or more"),
        ):
            if wrong:
                self.refuse(words)
        self._check_pattern()

    def _check_pattern(self) -> None:
        try:
            if len(self.token_pattern) > LONGEST_PATTERN:
                raise ValueError(f"expected at most {LONGEST_PATTERN:,} characters")
            groups = re.compile(self.token_pattern).groups
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            pattern = f"token_pattern={self.token_pattern!r:.99}"
            self.refuse(f"{pattern}: no regular expression ({error})")
        if groups > 1:
            self.refuse(
                f"token_pattern={self.token_pattern!r}: {groups} groups. Wanted at most one, "
                "which is then the token; write (?:…) for the others"
            )

    @staticmethod
    def _fits(type_: pa.DataType) -> bool:
        return is_string(type_)

    def _wanted(self) -> bool:
        no_words = self.hash_bits is None and self.vocabulary is None
        return no_words or (self.tfidf and self.frequencies is None)

    def _names(self) -> Iterable[str]:
        return self.vocabulary or ()

    def _decoded(self, array: pa.Array) -> pa.Array:
        array = super()._decoded(array)
        return array.fill_null("") if self.null == "empty" and array.null_count else array

    def _cells(self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot) -> Cells:
        return Cells(self.rows(array))

    def rows(self, documents: Sequence[str] | pa.Array) -> sparse.csr_array:
        """Return the rows of documents, float32, without zeros, columns rising in every row."""
        counts = self.counts(grams_of(documents, self))
        rows = sparse.csr_array(self._weighted(counts), dtype=np.float32)
        rows.eliminate_zeros()
        return rows

    def words(self, array: pa.Array, spot: Spot) -> pa.Array:
        """Return the words of documents, n-grams with blanks, each as often as it occurs."""
        return grams_of(self._present(array, spot)[0], self).strings()

    def counts(self, grams: Grams) -> sparse.csr_array:
        """Return how often each column occurs in each document, float64, with its sign; entries
        that cancel are stored as 0, for tf-idf counts them."""
        if self.hash_bits is None:
            words, codes = grams.encoded()
            columns = np.array([self._places.get(word, -1) for word in words], np.int64)[codes]
            known = columns >= 0
            keys = grams.document[known] << 33 | columns[known] << 1
        else:
            columns, negative = self._hashed(grams, (1 << self.hash_bits) - 1)
            keys = grams.document << 33 | columns << 1 | (negative & self.alternate_sign)
        counts = _summed(keys, (grams.documents, self.width))
        if self.binary:
            counts.data.fill(1.0)
        return counts

    def _hashed(self, grams: Grams, mask: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the column of each n-gram, and whether its hash is negative."""
        columns, negative = (np.empty(len(grams.starts), kind) for kind in (np.int64, bool))
        text_kernels.hash_words(*grams[:3], mask, columns, negative)
        return columns, negative

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: k for k, word in enumerate(self.vocabulary or ())}

    def _weighted(self, counts: sparse.csr_array) -> sparse.csr_array:
        if self.sublinear_tf:
            counts.data = np.log(counts.data) + 1.0
        if self.tfidf:
            counts.data *= self.idf[counts.indices]
        if self.norm != "none":
            rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
            squares = self.norm == "l2"
            sums = np.bincount(rows, counts.data**2 if squares else np.abs(counts.data))
            sums[sums == 0.0] = 1.0  # signs that cancelled out
            counts.data /= (np.sqrt(sums) if squares else sums)[rows]
        return counts

    @cached_property
    def idf(self) -> NDArray[np.float64]:
        """The factor of each column."""
        packed = base64.b64decode(self.frequencies or "", validate=True)
        size = 4 * self.width
        unpacked = zlib.decompressobj().decompress(packed, size + 1)
        if len(unpacked) != size:
            raise ValueError("frequencies of another number of columns")
        # scikit-learn's steps in its order, for the same bits
        factors = np.full(self.width, self.documents + 1, np.float64)
        factors /= np.frombuffer(unpacked, "<u4").astype(np.float64) + 1.0
        return np.log(factors) + 1.0

    def _tally(self, array: pa.Array, missing: NDArray[np.bool_], spot: Spot) -> WordCounts:
        grams = grams_of(array, self)
        none = np.zeros(0, np.int64)
        if self.hash_bits is not None:
            present = replace(self, alternate_sign=False).counts(grams).indices
            hashes = np.bincount(present, minlength=self.width).astype(np.int64)
            return WordCounts(grams.documents, Counter(), Counter(), hashes, 1)
        words, codes = grams.encoded()
        times = np.bincount(codes, minlength=len(words)).tolist()
        once = np.unique(grams.document << 32 | codes) & 0xFFFFFFFF
        occurs_in = np.bincount(once, minlength=len(words)).tolist()
        counts = [Counter(dict(zip(words, of, strict=True))) for of in (times, occurs_in)]
        return WordCounts(grams.documents, counts[0], counts[1], none, self.most_features)

    def fitted(self, tally: WordCounts) -> Self:
        """Return the column with its words, and how many documents they occur in."""
        if self.hash_bits is not None:
            return self._with(tally.documents, None, tally.hashes)
        low, high = (
            limit if isinstance(limit, int) else limit * tally.documents
            for limit in (self.min_df, self.max_df)
        )
        kept = [word for word, count in tally.occurs_in.items() if low <= count <= high]
        if not kept:
            raise DataError(
                f"column {self.name!r}: no word is in the vocabulary, of {len(tally.occurs_in):,} "
                f"in {tally.documents:,} documents. Check it, min_df, max_df and stop_words."
            )
        times = Counter({word: tally.times[word] for word in kept})
        chosen = tally._replace(times=times).frequent(self.most_features)
        words = sorted(chosen.times)
        numbers = np.array([tally.occurs_in[word] for word in words])
        return replace(self._with(tally.documents, tuple(words), numbers), left_out=chosen.left_out)

    def _with(
        self, documents: int, vocabulary: tuple[str, ...] | None, frequencies: NDArray[np.integer]
    ) -> Self:
        packed = zlib.compress(frequencies.astype("<u4").tobytes()) if self.tfidf else None
        text = None if packed is None else base64.b64encode(packed).decode("ascii")
        return replace(self, documents=documents, vocabulary=vocabulary, frequencies=text)


def _summed(keys: NDArray[np.int64], shape: tuple[int, int]) -> sparse.csr_array:
    """Add up the signs of equal columns of each row, as ``sum_duplicates`` of scipy does, in half
    its time. A key is the row, from bit 33 on, the column, and in bit 0 whether the sign is -1."""
    keys.sort()
    cells = keys >> 1
    firsts = np.flatnonzero(np.append(cells[:1] >= 0, cells[1:] != cells[:-1]))
    sums = np.add.reduceat(1.0 - 2.0 * (keys & 1), firsts) if len(keys) else np.zeros(0)
    cells = cells[firsts]
    offsets = np.searchsorted(cells, np.arange(shape[0] + 1) << 32)
    return sparse.csr_array((sums, (cells & 0xFFFFFFFF).astype(np.int32), offsets), shape=shape)
