"""Generate corpora of any size, for benchmarks and tests.

``text`` : a row imitates a tf-idf vector of a document. Ranks of columns follow Zipf's law with
exponent 1.05; a row has a leading and a second topic of 40, and a part of its words is drawn from
those topics' own columns; its number of nonzeros is log-normal with mean 76; values are
(1 + ln tf) · idf, scaled to unit norm; the label is the leading topic's sign (even +1, odd -1),
3 % of labels flipped.

``dense`` : a row has a value in every column. Columns are correlated: 0.9 of their variance comes
from 5 factors, normally distributed as is the rest; the mean of ‖x‖² is 1. The label is the side of
a random hyperplane that the row lies on, after noise of a tenth of the scores' deviation; 3 % of
labels are flipped. One row of 500 is an outlier: ten times as long, its label drawn by chance.

With numbers to be predicted in the place of labels the rows have the same features. The number is
w·x of normally distributed weights, with a deviation of about 1, plus noise of half that; of an
outlier it is drawn by chance, ten times as large. It has six decimals.

A corpus is infinite. Rows come in groups of 4,096, each from its own random numbers (a
counter-based generator keyed by seed and group), and what groups share depends on seed and number
of columns alone. So row i is the same whatever the number of rows or shards, and any range of rows
is made without those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import SettingsError
from streamtron.core.executor import Executor, serial, sum_over_tree
from streamtron.core.names import checks_keywords
from streamtron.core.rows import are_targets
from streamtron.data.row_batch import RowBatch, offsets_of, slice_batch, sort_columns
from streamtron.data.writers.shards import Format, ShardStyle, Written, new_shards, write_shards

GROUP_ROWS = 4096
ZIPF = 1.05
TOPICS = 40
MEAN_NONZEROS = 76.0
LENGTH_SIGMA = 0.6
"""Standard deviation of the logarithm of a row's number of nonzeros."""
TOPIC_SHARE = 0.6
"""The part of a row's words, stop words apart, that comes from its two topics."""
LEADING_SHARE = (0.7, 1.0)
"""Of these, the leading topic's part: uniform in a range, the lower end makes rows hard to tell."""
FLIPPED = 0.03
FACTORS = 5
FACTORS_SHARE = 0.9
"""The part of a dense column's variance that comes from the factors."""
NOISE = 0.1
TARGET_NOISE = 0.5
TARGET_DECIMALS = 6
OUTLIERS, OUTLIER_LENGTH = 0.002, 10.0


class _Model(NamedTuple):
    """What seed and number of columns fix of a text; every array O(columns) or smaller.

    Columns are ranked by frequency and cut into bundles of 40 neighbouring ranks, one for each
    topic. A word drawn at rank r from topic k moves to k's rank in r's bundle, so a topic's words
    follow Zipf's law as well. The first bundle, stop words, belongs to no topic.

    ``cumulated`` is Zipf's distribution function over ranks, ``column`` a permutation from rank to
    column number, ``idf`` 1 + ln(1 / expected part of the rows that hold the rank). Among
    ``words`` (a rising grid) words there are ``distinct`` different columns, as expected.
    """

    cumulated: NDArray[np.float64]
    column: NDArray[np.uint32]
    idf: NDArray[np.float64]
    words: NDArray[np.float64]
    distinct: NDArray[np.float64]


@checks_keywords()
def generate(
    directory: str,
    *,
    rows: int,
    columns: int | None = None,
    seed: int,
    kind: str = "text",
    target: str = "class",
    shards: int = 8,
    format: Format = "libsvm",
    first_row: int = 0,
    overwrite: bool = False,
    executor: Executor = serial,
) -> Written:
    """Write rows ``first_row`` … ``first_row + rows - 1`` of a corpus as shards of equal size.

    Text is 1-based, Parquet 0-based; both hold the same float32 values. Rows held out for a test
    are those behind the training rows: ``first_row=rows`` in another directory.

    Parameters
    ----------
    rows, shards : at least 1; a shard has ⌈rows / shards⌉ rows, the last one what remains.
    columns : of a text at least 80, and from about 2,000 on the mean length is 76; of dense rows 1
        to 1,000. None = 30,000 or 50.
    seed : at least 0.
    kind : ``"text"`` or ``"dense"``.
    target : ``"class"``, labels ±1, or ``"number"``.
    format : ``"libsvm"`` or ``"parquet"``.
    overwrite : replace the shards of an earlier corpus.
    executor : where the shards are made and written: here, or on workers that see the directory.

    Raises
    ------
    SettingsError : a number out of its range, a directory that is not empty.
    MachineError : the disk is full or not writable.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     generate(directory, rows=10, columns=2000, seed=1, shards=2).rows
    10
    """
    columns = _check(kind, target, rows, shards, columns, seed, first_row)
    a_shard = -(-rows // shards)
    end = first_row + rows
    with new_shards(directory, format, overwrite) as shard_path:
        parts = [
            RowRange(shard_path(number), first, min(a_shard, end - first))
            for number, first in enumerate(range(first_row, end, a_shard))
        ]
        written = executor(write_range, parts, columns, seed, format, kind, target)
        return sum_over_tree(Written.plus, written)


class RowRange(NamedTuple):
    """The rows of a corpus that make one shard, whose path is ``name``."""

    name: str
    first_row: int
    rows: int


def write_range(
    part: RowRange, columns: int, seed: int, format: Format, kind: str, target: str
) -> Iterator[Written]:
    """Write one shard of a corpus."""
    batches = corpus_rows(part.rows, columns, seed, part.first_row, kind, target)
    style = ShardStyle(format, shift=1 if format == "libsvm" else 0)
    yield write_shards(batches, lambda _: part.name, style, part.rows)


def corpus_rows(
    rows: int,
    columns: int,
    seed: int,
    first_row: int = 0,
    kind: str = "text",
    target: str = "class",
) -> Iterator[RowBatch]:
    """Generate the rows as batches of at most 4,096, columns counted from 0."""
    row, end = first_row, first_row + rows
    while row < end:
        group, start = divmod(row, GROUP_ROWS)
        stop = min(GROUP_ROWS, start + end - row)
        batch = KINDS[kind].group(columns, seed, group, target == "number")
        yield slice_batch(batch, start, stop)
        row += stop - start


def _check(
    kind: str, target: str, rows: int, shards: int, columns: int | None, seed: int, first_row: int
) -> int:
    """Return the number of columns, once all numbers are in their ranges."""
    if kind not in KINDS:
        raise SettingsError(f"kind {kind!r}. A corpus is one of {', '.join(KINDS)}.")
    if target not in ("class", "number"):
        raise SettingsError(f"target {target!r}. The rows of a corpus have a class or a number.")
    if rows < 1 or shards < 1:
        raise SettingsError(f"rows {rows}, shards {shards}. Both must be at least 1.")
    fewest, most, usual, _ = KINDS[kind]
    columns = usual if columns is None else columns
    if not fewest <= columns <= most:
        wanted = f"A corpus of kind {kind} has {fewest:,} to {most:,} columns."
        raise SettingsError(f"columns {columns}. {wanted}")
    if min(seed, first_row) < 0:
        given = f"rows {rows}, seed {seed}, first row {first_row}"
        raise SettingsError(f"{given}. None may be negative.")
    return columns


def _random(seed: int, stream: str, number: int) -> np.random.Generator:
    """Make a random generator for each (seed, stream, number); a stream is one of three."""
    key = np.random.SeedSequence([seed, ("model", "rows", "weights").index(stream), number])
    return np.random.Generator(np.random.Philox(key))


@lru_cache(maxsize=1)
def _model(columns: int, seed: int) -> _Model:
    part = np.arange(1, columns + 1, dtype=np.float64)
    np.power(part, -ZIPF, out=part)
    part /= part.sum()
    held = _Held(part)
    words = np.unique(np.geomspace(1, 64 * columns, 48).round())
    distinct = np.array([held.among(n).sum() for n in words])
    normal = np.linspace(-2, 2, 9)
    lengths = np.interp(_lengths(columns, normal), distinct, words)
    weights, frequency = np.exp(-0.5 * normal**2), np.zeros(columns)
    for n, weight in zip(lengths, weights, strict=True):
        held.among(n)
        held.found *= weight
        frequency += held.found
    del held
    frequency /= weights[:, None].sum(axis=0)
    idf = np.subtract(1.0, np.log(frequency, out=frequency), out=frequency)
    cumulated = np.cumsum(part, out=part)
    cumulated /= cumulated[-1]
    column = _random(seed, "model", columns).permutation(columns).astype(np.uint32)
    return _Model(cumulated, column, idf, words, distinct)


class _Held:
    """The probability that a row of so many words holds a rank, for every rank: in ``found``, which
    the next call overwrites. With its parts it has 24 bytes a column."""

    AT_A_TIME = TOPICS << 8
    """Ranks, of whole bundles: so few that what is computed of them stays in the cache."""

    def __init__(self, part: NDArray[np.float64]) -> None:
        self.part, self.moved, self.found = part, np.empty(len(part)), np.empty(len(part))
        for some in self._stretches():
            bundle = np.arange(len(part[some])) // TOPICS
            self.moved[some] = TOPIC_SHARE * np.bincount(bundle, part[some])[bundle]
        self.moved[:TOPICS] = 0

    def among(self, words: float) -> NDArray[np.float64]:
        """Return ``found`` for so many words, which can be of another topic than a rank's, of the
        second one, or of the leading one."""
        leading = sum(LEADING_SHARE) / 2
        for some in self._stretches():
            untopical, moved = (1 - TOPIC_SHARE) * self.part[some], self.moved[some]
            if some.start == 0:
                untopical[:TOPICS] = self.part[:TOPICS]
            self.found[some] = (
                (TOPICS - 2) * _held(untopical, words)
                + _held(untopical + leading * moved, words)
                + _held(untopical + (1 - leading) * moved, words)
            ) / TOPICS
        return self.found

    def _stretches(self) -> list[slice]:
        starts = range(0, len(self.part), self.AT_A_TIME)
        return [slice(start, start + self.AT_A_TIME) for start in starts]


def _held(part: NDArray[np.float64], words: float) -> NDArray[np.float64]:
    """Probability that something with this part of all words is among so many words."""
    return -np.expm1(words * np.log1p(-part))


def _lengths(columns: int, normal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute log-normal numbers of nonzeros from standard normal ones; at most columns / 4."""
    mu = np.log(MEAN_NONZEROS) - 0.5 * LENGTH_SIGMA**2
    lengths: NDArray[np.float64] = np.clip(np.exp(mu + LENGTH_SIGMA * normal), 1, columns / 4)
    return lengths


@lru_cache(maxsize=1)
def _weights(columns: int, seed: int) -> NDArray[np.float64]:
    """Draw the weights of the numbers that go with texts, at which scores have a deviation of 1."""
    return _random(seed, "weights", columns).standard_normal(columns)


def _numbers(scores: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """Draw the numbers to be predicted of rows with these scores w·x."""
    noise = TARGET_NOISE * random.standard_normal(GROUP_ROWS)
    return np.round(scores + noise, TARGET_DECIMALS) + 0.0  # -0 is 0


def _text_group(columns: int, seed: int, group: int, number: bool) -> RowBatch:
    """Generate rows 4,096·group … 4,096·group + 4,095 of a text."""
    model, random = _model(columns, seed), _random(seed, "rows", group)
    lengths = _lengths(columns, random.standard_normal(GROUP_ROWS))
    words = np.maximum(np.interp(lengths, model.distinct, model.words).round().astype(np.int64), 1)
    topics = random.integers(TOPICS, size=(GROUP_ROWS, 2))
    flipped = random.random(GROUP_ROWS) < FLIPPED
    row = np.repeat(np.arange(GROUP_ROWS), words)
    rank = _ranks(model, random, topics, row)

    # A nonzero is a run of equal (row, column); the run's length is the term frequency.
    order, keys = sort_columns(offsets_of(words), model.column[rank])
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    frequency = np.diff(np.append(first, len(keys)))
    values = (1 + np.log(frequency)) * model.idf[rank[order[first]]]
    starts = np.arange(GROUP_ROWS + 1, dtype=np.uint64) << np.uint64(32)
    indptr = np.searchsorted(keys[first], starts)
    norms = np.sqrt(np.add.reduceat(values**2, indptr[:-1]))
    values /= np.repeat(norms, np.diff(indptr))
    labels = (topics[:, 0] % 2 == 0) != flipped
    columns_held = keys[first].astype(np.uint32)  # the low half
    if number:
        products = values * _weights(columns, seed)[columns_held]
        labels = _numbers(np.add.reduceat(products, indptr[:-1]), random)
    return _batch(indptr.astype(np.int64), columns_held, values, labels, group)


def _batch(
    indptr: NDArray[np.int64],
    columns: NDArray[np.uint32],
    values: NDArray[np.float64],
    labels: NDArray[np.bool_] | NDArray[np.float64],
    group: int,
) -> RowBatch:
    """Make a batch of a group's rows; ``labels`` : whether they are positive, or numbers."""
    number = are_targets(labels)
    return RowBatch(
        indptr,
        columns,
        values.astype(np.float32),
        labels if number else np.where(labels, 0, 1).astype(np.int32),
        [] if number else [1.0, -1.0],
        None,
        lambda i: f"generated corpus, row {group * GROUP_ROWS + i}",
    )


def _ranks(
    model: _Model,
    random: np.random.Generator,
    topics: NDArray[np.int64],
    row: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Draw a rank for every word; ``row`` has the row of each word."""
    columns = len(model.column)
    rank = np.searchsorted(model.cumulated, random.random(len(row)), side="right")
    which = random.random(len(row))
    leading = random.uniform(*LEADING_SHARE, len(topics))[row]
    topic = np.where(which < TOPIC_SHARE * leading, topics[row, 0], topics[row, 1])
    moved = rank // TOPICS * TOPICS + topic
    topical = (which < TOPIC_SHARE) & (rank >= TOPICS) & (moved < columns)
    return np.where(topical, moved, rank)


@lru_cache(maxsize=1)
def _dense_model(columns: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw what each factor adds to a column, (factors, columns), and the hyperplane, (columns,),
    at which scores have a deviation of 1."""
    random = _random(seed, "model", columns)
    loads = random.standard_normal((FACTORS, columns))
    loads *= np.sqrt(FACTORS_SHARE / (loads**2).sum(axis=0))
    normal = random.standard_normal(columns)
    variance = ((loads * normal).sum(axis=1) ** 2).sum() + (1 - FACTORS_SHARE) * (normal**2).sum()
    return loads, normal / np.sqrt(variance)


def _dense_group(columns: int, seed: int, group: int, number: bool) -> RowBatch:
    """Generate rows 4,096·group … 4,096·group + 4,095 of dense rows."""
    (loads, normal), random = _dense_model(columns, seed), _random(seed, "rows", group)
    factors = random.standard_normal((GROUP_ROWS, FACTORS))
    values = np.sqrt(1 - FACTORS_SHARE) * random.standard_normal((GROUP_ROWS, columns))
    for factor, load in zip(factors.T, loads, strict=True):
        values += factor[:, None] * load  # no matrix product: it would add in an order of its own
    scores = (values * normal).sum(axis=1)
    noisy = scores + NOISE * random.standard_normal(GROUP_ROWS)
    outlier = random.random(GROUP_ROWS) < OUTLIERS
    flipped = random.random(GROUP_ROWS) < np.where(outlier, 0.5, FLIPPED)
    labels = (noisy > 0.0) != flipped
    if number:
        chance = OUTLIER_LENGTH * random.standard_normal(GROUP_ROWS)
        labels = _numbers(np.where(outlier, chance, scores), random)
    values *= np.where(outlier, OUTLIER_LENGTH, 1.0)[:, None] / np.sqrt(columns)
    indptr = columns * np.arange(GROUP_ROWS + 1, dtype=np.int64)
    every = np.tile(np.arange(columns, dtype=np.uint32), GROUP_ROWS)
    return _batch(indptr, every, values.ravel(), labels, group)


class Kind(NamedTuple):
    """How many columns a kind of corpus has, at least, at most and usually; ``group`` makes rows,
    of (columns, seed, number of the group, whether they have numbers)."""

    fewest: int
    most: int
    usual: int
    group: Callable[[int, int, int, bool], RowBatch]


KINDS = {
    "text": Kind(2 * TOPICS, 2**32 - 1, 30_000, _text_group),
    "dense": Kind(1, 1000, 50, _dense_group),
}
