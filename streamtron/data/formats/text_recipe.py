"""Turn documents into rows: scikit-learn's HashingVectorizer, TfidfTransformer and FeatureHasher,
entry by entry.

Words are found (``words``) and hashed by kernels.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import sparse

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.files import parse_json
from streamtron.data.formats import text_kernels
from streamtron.data.formats.words import TOKEN_PATTERN, split

Norm = Literal["l2", "l1"] | None

RECIPE_KEY = b"streamtron.text"
"""The key of a recipe, as JSON, among the metadata of a table's schema."""

TFIDF_BITS = 26
"""Hash bits with tf-idf, at most: it takes some 24 bytes a column while documents are counted."""

LONGEST_PATTERN = 1000
"""Characters of a pattern of words, which may come with a model from anywhere."""


@dataclass(frozen=True)
class TextRecipe:
    """How documents, and columns beside them, become rows of numbers.

    A document becomes what ``HashingVectorizer(n_features=2**hash_bits, …)`` of scikit-learn makes
    of it, in columns 0 … 2^hash_bits - 1; with ``frequencies``, what ``TfidfTransformer`` makes of
    its counts: each is multiplied by ln((1 + documents) / (1 + documents with it)) + 1, and the row
    is then normed. The ``columns`` beside it become what ``FeatureHasher(2**hash_bits)`` makes of
    a dictionary of their names and values, in the next 2^hash_bits columns: a number keeps its
    value, a string is one-hot, and neither is normed. Values are rounded to float32.

    Parameters
    ----------
    text : the column of the documents.
    columns : columns of numbers, booleans or strings beside it.
    categories : those of them that hold strings, as the first shard has it.
    label, weight : the columns of labels and row weights where the documents are; None = the usual
        name, no weights.
    hash_bits : 1 … 30.
    lowercase, token_pattern, ngram_range, alternate_sign, binary, norm : as in scikit-learn;
        n-grams are of words, ``norm`` is ``"l2"``, ``"l1"`` or None.
    documents, frequencies : what ``fitted`` has counted; 0 and None without tf-idf.

    Raises
    ------
    SettingsError : a value out of range, a pattern that is none or has several groups.

    Examples
    --------
    >>> rows = TextRecipe("body", hash_bits=10, norm=None).rows(["cheap pills", "cheap, cheap"])
    >>> rows.shape, rows.indices.tolist(), rows.data.tolist()
    ((2, 1024), [57, 955, 955], [1.0, -1.0, -2.0])
    """

    text: str
    columns: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    label: str | None = None
    weight: str | None = None
    hash_bits: int = 20
    lowercase: bool = True
    token_pattern: str = TOKEN_PATTERN
    ngram_range: tuple[int, int] = (1, 1)
    alternate_sign: bool = True
    binary: bool = False
    norm: Norm = "l2"
    documents: int = 0
    frequencies: str | None = None

    def __post_init__(self) -> None:
        for name in ("columns", "categories", "ngram_range"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        low, high = self.ngram_range
        if not 1 <= low <= high <= 100:
            raise SettingsError(f"ngrams {low},{high}: wanted LOW,HIGH with 1 ≤ LOW ≤ HIGH ≤ 100.")
        most, what = (30, "text") if self.frequencies is None else (TFIDF_BITS, "tf-idf")
        if not 1 <= self.hash_bits <= most:
            raise SettingsError(f"hash-bits is {self.hash_bits}: wanted 1 to {most} for {what}.")
        if not 0 <= self.documents < 2**63:
            raise SettingsError("documents is below 0 or beyond 2⁶³: wanted a count.")
        if self.norm not in ("l2", "l1", None):
            raise SettingsError(f"norm is {self.norm!r}: wanted l2, l1 or none.")
        if "" in self.columns:
            raise SettingsError("columns: an empty name. Name columns of the shards.")
        if self.text in self.columns or len(set(self.columns)) < len(self.columns):
            raise SettingsError("columns: a column twice, or that of the text. Name each once.")
        try:
            if len(self.token_pattern) > LONGEST_PATTERN:
                raise ValueError(f"wanted at most {LONGEST_PATTERN:,} characters")
            groups = re.compile(self.token_pattern).groups
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise SettingsError(
                f"token-pattern {self.token_pattern!r:.99}: no regular expression ({error})."
            ) from error
        if groups > 1:
            raise SettingsError(
                f"token-pattern {self.token_pattern!r}: {groups} groups. Wanted at most one, "
                "which is then the token; write (?:…) for the others."
            )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out, on the way to workers, what they compute themselves."""
        return {name: value for name, value in vars(self).items() if name != "idf"}

    @property
    def strings(self) -> tuple[str, ...]:
        """The columns that hold strings."""
        return (self.text, *self.categories)

    @property
    def width(self) -> int:
        """The number of columns."""
        return 1 << (self.hash_bits + bool(self.columns))

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {k: [*x] if isinstance(x, tuple) else x for k, x in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Any) -> TextRecipe:
        """Make a recipe of JSON values, which may come from anywhere; a DataError if it is none."""
        kinds = {field.name: field.type for field in fields(cls)}
        try:
            fields_ = {name: _CHECKS[str(kinds[name])](x) for name, x in values.items()}
            recipe = cls(**fields_)
            if not recipe.text:
                raise ValueError("documents in a column without a name")
            _ = recipe.idf
        except (KeyError, TypeError, ValueError, AttributeError, zlib.error, SettingsError) as e:
            raise DataError(f"the recipe of the text is damaged ({e}). Convert again.") from e
        return recipe

    def rows(self, documents: Sequence[str] | pa.Array) -> sparse.csr_array:
        """Return the rows of documents without ``columns`` beside them, float32, shape (documents,
        width); zeros are not stored and columns rise in every row."""
        return self.weighted(self.counts(documents))

    def rows_of(self, table: pa.RecordBatch) -> sparse.csr_array:
        """Return the rows of a table that has the text and all ``columns``, without nulls."""
        rows = self.rows(table.column(self.text))
        if not self.columns:
            return rows
        beside = self._beside({name: table.column(name) for name in self.columns}, len(table))
        return sparse.hstack([rows[:, : 1 << self.hash_bits], beside], format="csr")

    def rows_of_columns(self, given: Mapping[str, Sequence[Any]]) -> sparse.csr_array:
        """Return the rows of the text and all ``columns``, each by its name as a sequence of
        strings or numbers; others are ignored. DataError: a value that is missing or of another
        kind."""
        arrays = []
        for name in (self.text, *self.columns):
            kind = "strings" if name in self.strings else "finite numbers"
            try:
                if name in self.strings:
                    array = pa.array(given[name], pa.large_string())
                else:
                    array = pa.array(np.asarray(given[name], np.float64))
                if array.null_count or (name not in self.strings and not _are_finite(array)):
                    raise ValueError("a value is missing or not finite")
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise DataError(
                    f"X: {name!r} ({error}). Wanted are {kind} by that name."
                ) from error
            arrays.append(array)
        names = [self.text, *self.columns]
        return self.rows_of(pa.RecordBatch.from_arrays(arrays, names))

    def counts(self, documents: Sequence[str] | pa.Array) -> sparse.csr_array:
        """Return how often each column occurs in each document, float64, with its sign; entries
        that cancel are stored as 0, for tf-idf counts them."""
        words = split(documents, self.lowercase, self.token_pattern)
        low, high = self.ngram_range
        most = len(words.starts) * (high - low + 1)
        columns, values = np.empty(most, np.int32), np.empty(most)
        indptr = np.empty(len(words.indptr), np.int64)
        text_kernels.hash_words(
            *words, low, high, (1 << self.hash_bits) - 1, self.alternate_sign, columns, values,
            indptr,
        )  # fmt: skip
        sums = _summed(columns, values, indptr, (len(indptr) - 1, 1 << self.hash_bits))
        if self.binary:
            sums.data.fill(1.0)
        return sums

    def words(self, documents: Sequence[str] | pa.Array) -> pa.Array:
        """Return the words of documents, with blanks between those of an n-gram, each as often as
        it occurs."""
        import pyarrow.compute as pc

        text, starts, stops, indptr = split(documents, self.lowercase, self.token_pattern)
        ends = pa.py_buffer(np.append(starts, stops[-1:] + 1))  # each with the blank behind it
        single = pa.LargeStringArray.from_buffers(len(starts), ends, pa.py_buffer(text))
        document = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        grams = []
        for n in range(self.ngram_range[0], self.ngram_range[1] + 1):
            count = max(len(single) - n + 1, 0)
            within = document[:count] == document[n - 1 :]
            parts = [single.slice(k, count).filter(within) for k in range(n)]
            grams.append(pc.binary_join_element_wise(*parts, pa.scalar("", pa.large_string())))
        return pc.utf8_slice_codeunits(pa.concat_arrays(grams), 0, -1)

    def weighted(self, counts: sparse.csr_array) -> sparse.csr_array:
        """Return rows of counts times their idf, normed, float32."""
        from sklearn.preprocessing import normalize

        if self.idf is not None:
            counts.data *= self.idf[counts.indices]
        if self.norm is not None:
            counts = normalize(counts, norm=self.norm, copy=False)
        rows = sparse.csr_array(counts, dtype=np.float32, shape=(counts.shape[0], self.width))
        rows.eliminate_zeros()
        return rows

    def hashed(self, names: Iterable[str]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the columns and the signs of words, or of names of columns beside documents."""
        from sklearn.utils import murmurhash3_32

        hashes = np.array([murmurhash3_32(name.encode()) for name in names], np.int64)
        signs = np.where(self.alternate_sign & (hashes < 0), -1.0, 1.0)
        return np.abs(hashes) & ((1 << self.hash_bits) - 1), signs

    def counting(self, words: bool) -> TextRecipe:
        """Return a recipe for a reading that only counts: rows, and ``words`` without their signs,
        or none of them."""
        if not words:
            return replace(self, columns=(), categories=(), text="")
        return replace(self, columns=(), categories=(), alternate_sign=False, norm=None)

    def fitted(self, documents: int, frequencies: NDArray[np.int64]) -> TextRecipe:
        """Return the recipe with tf-idf, of how many documents each column occurs in."""
        packed = zlib.compress(frequencies.astype("<u4").tobytes())
        return replace(
            self, documents=documents, frequencies=base64.b64encode(packed).decode("ascii")
        )

    @cached_property
    def idf(self) -> NDArray[np.float64] | None:
        """The factor of each column; None without tf-idf."""
        if self.frequencies is None:
            return None
        packed = base64.b64decode(self.frequencies, validate=True)
        size = 4 << self.hash_bits
        unpacked = zlib.decompressobj().decompress(packed, size + 1)
        if len(unpacked) != size:
            raise ValueError("frequencies of another number of columns")
        # scikit-learn's steps in its order, for the same bits
        factors = np.full(1 << self.hash_bits, self.documents + 1, np.float64)
        factors /= np.frombuffer(unpacked, "<u4").astype(np.float64) + 1.0
        return np.log(factors) + 1.0

    def _beside(self, columns: Mapping[str, pa.Array], rows: int) -> sparse.csr_array:
        """Return the rows of the columns beside the text."""
        parts = [self._one(name, array) for name, array in columns.items()]
        numbers, values = (np.stack(arrays, axis=1).ravel() for arrays in zip(*parts, strict=True))
        indptr = np.arange(0, len(values) + 1, len(parts))
        shape = (rows, 1 << self.hash_bits)
        sums = sparse.csr_array((values.astype(np.float32), numbers, indptr), shape=shape)
        sums.sum_duplicates()
        sums.eliminate_zeros()
        return sums

    def _one(self, name: str, array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the column number and the value of one column in each row."""
        if not pa.types.is_dictionary(array.type):
            if not is_string(array.type):
                [column], [sign] = self.hashed([name])
                values = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
                return np.full(len(array), column), sign * values
            array = array.dictionary_encode()
        columns, signs = self.hashed([f"{name}={value}" for value in array.dictionary.to_pylist()])
        chosen = array.indices.to_numpy(zero_copy_only=False)
        return columns[chosen], signs[chosen]


def _summed(
    columns: NDArray[np.int32], signs: NDArray[np.float64], indptr: NDArray[np.int64],
    shape: tuple[int, int],
) -> sparse.csr_array:  # fmt: skip
    """Add up the signs of equal columns of each row, as ``sum_duplicates`` of scipy does, in half
    its time: row, column and sign are sorted as one number."""
    end = int(indptr[-1])
    keys = np.repeat(np.arange(shape[0]) << 33, np.diff(indptr))
    keys |= columns[:end].astype(np.int64) << 1
    keys |= signs[:end] < 0
    keys.sort()
    cells = keys >> 1
    firsts = np.flatnonzero(np.append(cells[:1] >= 0, cells[1:] != cells[:-1]))
    sums = np.add.reduceat(1.0 - 2.0 * (keys & 1), firsts) if end else np.zeros(0)
    cells = cells[firsts]
    offsets = np.searchsorted(cells, np.arange(shape[0] + 1) << 32)
    return sparse.csr_array((sums, (cells & 0xFFFFFFFF).astype(np.int32), offsets), shape=shape)


def _are_finite(array: pa.Array) -> bool:
    return bool(np.isfinite(array.to_numpy(zero_copy_only=False)).all())


def recipe_in(schema: pa.Schema, name: str) -> TextRecipe | None:
    """Return the recipe by which documents became the rows of a table, if it names one."""
    packed = (schema.metadata or {}).get(RECIPE_KEY)
    if packed is None:
        return None
    try:
        return TextRecipe.from_dict(parse_json(packed))
    except ValueError as error:  # a DataError is one
        raise DataError(f"{name}: its text recipe is damaged ({error}). Convert anew.") from error


def is_string(type_: pa.DataType) -> bool:
    """Tell whether a type is text."""
    types = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_type(type_) for is_type in types)


def _of(*kinds: type) -> Any:
    def check(value: Any) -> Any:
        if type(value) not in kinds:
            raise TypeError(f"{value!r:.40}")
        return value

    return check


def _names(values: Any) -> tuple[str, ...]:
    return tuple(map(_of(str), _of(list)(values)))


_CHECKS: dict[str, Any] = {
    "str": _of(str),
    "str | None": _of(str, type(None)),
    "Norm": _of(str, type(None)),
    "int": _of(int),
    "bool": _of(bool),
    "tuple[str, ...]": _names,
    "tuple[int, int]": lambda values: tuple(map(_of(int), _of(list)(values))),
}
"""Type of a field → a function that returns a value of it, or raises a TypeError."""
