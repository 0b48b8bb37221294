"""Generate corpora of any size, for benchmarks and tests: text, dense rows, click logs.

``text`` : tf-idf vectors of unit norm. Columns follow Zipf's law with exponent 1.05; a row has a
leading and a second topic of 40, whose own columns hold a part of its words; its number of nonzeros
is log-normal with mean 76; the label is the leading topic's sign, 3 % of labels flipped.
``dense`` : 5 factors make 0.9 of the columns' variance; the mean of ‖x‖² is 1. The label is the
side of a random hyperplane, after noise; 3 % are flipped. One row of 500 is an outlier: ten times
as long, its label drawn by chance.
``clicks`` : the shape of Criteo's challenge of 2014: 39 nonzeros of 1/√39 a row, 13 binned numbers
and 26 categories, drawn by Zipf's law and hashed. The logarithm of the odds of a click is the sum
of the effects of a row's columns.
Numbers to be predicted in place of labels are the rows' scores, with noise and six decimals.

A corpus is infinite. Rows come in groups of 4,096, each from its own random numbers, and what
groups share depends on seed and number of columns alone. So row i is the same whatever the number
of rows or shards, and any range of rows is made without those before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from streamtron.core.errors import SettingsError
from streamtron.core.executor import Executor, serial, sum_over_tree
from streamtron.core.rows import are_targets
from streamtron.data.row_batch import RowBatch, offsets_of, slice_batch, sort_columns
from streamtron.data.writers.shards import Format, ShardStyle, Written, new_shards, write_shards

GROUP_ROWS, FLIPPED, TARGET_NOISE = 4096, 0.03, 0.5
ZIPF, TOPICS, MEAN_NONZEROS, LENGTH_SIGMA = 1.05, 40, 76.0, 0.6
TOPIC_SHARE, LEADING_SHARE = 0.6, (0.7, 1.0)
"""The part of a row's words, stop words apart, from its topics; of these from the leading one."""
FACTORS, FACTORS_SHARE, NOISE = 5, 0.9, 0.1
OUTLIERS, OUTLIER_LENGTH = 0.002, 10.0
FIELDS = np.array(
    [60] * 13
    + [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992]
    + [5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572],
    dtype=np.float64,
)
"""Numbers of values of the fields of a click."""
FIELD_ZIPF, INTERCEPT, SCRAMBLE = 1.1, -1.3, np.uint64(0x9E3779B97F4A7C15)


class RowRange(NamedTuple):
    """The rows of a corpus that make one shard, whose path is ``name``."""

    name: str
    first_row: int
    rows: int


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
    are those after the training rows: ``first_row=rows`` in another directory.

    Parameters
    ----------
    rows, shards : at least 1; a shard has ⌈rows / shards⌉ rows, the last one what remains.
    columns : at least 80 of a text, at most 1,000 of dense rows. None = 30,000, 50, or 10⁶.
    seed : at least 0.
    kind : ``"text"``, ``"dense"`` or ``"clicks"``.
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
    if kind not in KINDS or target not in ("class", "number"):
        raise SettingsError(
            f"kind {kind!r}, target {target!r}: expected {', '.join(KINDS)}; class, number."
        )
    fewest, most, usual, _ = KINDS[kind]
    columns = usual if columns is None else columns
    if not fewest <= columns <= most:
        raise SettingsError(f"columns is {columns}: {kind} has {fewest:,} to {most:,}.")
    if min(rows, shards) < 1 or min(seed, first_row) < 0:
        raise SettingsError(
            f"rows {rows}, shards {shards}, seed {seed}, first row {first_row}: expected at least "
            "1 row and shard, and no negative number."
        )
    a_shard, end = -(-rows // shards), first_row + rows
    with new_shards(directory, format, overwrite) as shard_path:
        parts = [
            RowRange(shard_path(number), first, min(a_shard, end - first))
            for number, first in enumerate(range(first_row, end, a_shard))
        ]
        return sum_over_tree(
            Written.plus, executor(write_range, parts, columns, seed, format, kind, target)
        )


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
        indptr, indices, values, labels = KINDS[kind][3](columns, seed, group, target == "number")
        number = are_targets(labels)
        batch = RowBatch(
            indptr.astype(np.int64),
            indices.astype(np.uint32),
            values.astype(np.float32),
            labels if number else np.where(labels, 0, 1).astype(np.int32),
            [] if number else [1.0, -1.0],
            None,
            partial(_place, group * GROUP_ROWS),
        )
        yield slice_batch(batch, start, stop)
        row += stop - start


def _place(first: int, row: int) -> str:
    return f"generated corpus, row {first + row}"


def _random(seed: int, stream: str, number: int) -> np.random.Generator:
    """Make a random generator for each (seed, stream, number); a stream is one of three."""
    key = np.random.SeedSequence([seed, ("model", "rows", "weights").index(stream), number])
    return np.random.Generator(np.random.Philox(key))


def _numbers(scores: Any, random: np.random.Generator) -> Any:
    """Draw the numbers to be predicted of rows with these scores."""
    return np.round(scores + TARGET_NOISE * random.standard_normal(GROUP_ROWS), 6) + 0.0  # no -0


class _Text(NamedTuple):
    """What seed and number of columns fix of a text.

    Columns are ranked by frequency and cut into bundles of 40 ranks, one for each topic. A word
    drawn at rank r from topic k moves to k's rank in r's bundle. The first bundle, stop words,
    belongs to no topic. ``cumulated`` is Zipf's distribution function over ranks, ``column`` a
    permutation from rank to column number, ``idf`` 1 + ln(1 / expected part of the rows that hold
    the rank). Among ``words`` (a rising grid) words ``distinct`` different columns are expected.
    """

    cumulated: Any
    column: Any
    idf: Any
    words: Any
    distinct: Any


@lru_cache(maxsize=1)
def _model(columns: int, seed: int) -> _Text:
    part = np.arange(1, columns + 1, dtype=np.float64)
    np.power(part, -ZIPF, out=part)
    part /= part.sum()
    words = np.unique(np.geomspace(1, 64 * columns, 48).round())
    distinct = np.array([_rows_with(part, n).sum() for n in words])
    normal = np.linspace(-2, 2, 9)
    weights, frequency = np.exp(-0.5 * normal**2), np.zeros(columns)
    lengths = np.interp(_lengths(columns, normal), distinct, words)
    for n, weight in zip(lengths, weights, strict=True):
        frequency += weight * _rows_with(part, n)
    frequency /= weights[:, None].sum(axis=0)
    idf = np.subtract(1.0, np.log(frequency, out=frequency), out=frequency)
    cumulated = np.cumsum(part, out=part)
    cumulated /= cumulated[-1]
    column = _random(seed, "model", columns).permutation(columns).astype(np.uint32)
    return _Text(cumulated, column, idf, words, distinct)


def _rows_with(part: Any, words: float) -> Any:
    """Return, for every rank, the probability that a row of so many words holds it: a row of
    another topic than the rank's, of the rank's as second topic, or as leading one."""
    chances, leading = np.empty(len(part)), sum(LEADING_SHARE) / 2

    def held(share: Any) -> Any:
        return -np.expm1(words * np.log1p(-share))

    for start in range(0, len(part), TOPICS << 8):  # so few ranks that they stay in the cache
        stretch = part[start : start + (TOPICS << 8)]
        bundle = np.arange(len(stretch)) // TOPICS
        plain, moved = (
            (1 - TOPIC_SHARE) * stretch,
            TOPIC_SHARE * np.bincount(bundle, stretch)[bundle],
        )
        if start == 0:
            plain[:TOPICS], moved[:TOPICS] = stretch[:TOPICS], 0
        of_topic = held(plain + leading * moved), held(plain + (1 - leading) * moved)
        chances[start : start + len(stretch)] = (
            (TOPICS - 2) * held(plain) + of_topic[0] + of_topic[1]
        ) / TOPICS
    return chances


def _lengths(columns: int, normal: Any) -> Any:
    """Compute log-normal numbers of nonzeros from standard normal ones; at most columns / 4."""
    mu = np.log(MEAN_NONZEROS) - 0.5 * LENGTH_SIGMA**2
    return np.clip(np.exp(mu + LENGTH_SIGMA * normal), 1, columns / 4)


def _text_group(columns: int, seed: int, group: int, number: bool) -> tuple[Any, ...]:
    model, random = _model(columns, seed), _random(seed, "rows", group)
    lengths = _lengths(columns, random.standard_normal(GROUP_ROWS))
    words = np.maximum(np.interp(lengths, model.distinct, model.words).round().astype(np.int64), 1)
    topics = random.integers(TOPICS, size=(GROUP_ROWS, 2))
    flipped = random.random(GROUP_ROWS) < FLIPPED
    row = np.repeat(np.arange(GROUP_ROWS), words)

    rank = np.searchsorted(model.cumulated, random.random(len(row)), side="right")
    which = random.random(len(row))
    leading = random.uniform(*LEADING_SHARE, len(topics))[row]
    topic = np.where(which < TOPIC_SHARE * leading, topics[row, 0], topics[row, 1])
    moved = rank // TOPICS * TOPICS + topic
    rank = np.where((which < TOPIC_SHARE) & (rank >= TOPICS) & (moved < columns), moved, rank)

    # A nonzero is a run of equal (row, column); the run's length is the term frequency.
    order, keys = sort_columns(offsets_of(words), model.column[rank])
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    frequency = np.diff(np.append(first, len(keys)))
    values = (1 + np.log(frequency)) * model.idf[rank[order[first]]]
    starts = np.arange(GROUP_ROWS + 1, dtype=np.uint64) << np.uint64(32)
    indptr = np.searchsorted(keys[first], starts)
    values /= np.repeat(np.sqrt(np.add.reduceat(values**2, indptr[:-1])), np.diff(indptr))
    indices, labels = keys[first].astype(np.uint32), (topics[:, 0] % 2 == 0) != flipped
    if number:
        weights = _random(seed, "weights", columns).standard_normal(columns)
        labels = _numbers(np.add.reduceat(values * weights[indices], indptr[:-1]), random)
    return indptr, indices, values, labels


def _dense_group(columns: int, seed: int, group: int, number: bool) -> tuple[Any, ...]:
    model, random = _random(seed, "model", columns), _random(seed, "rows", group)
    loads = model.standard_normal((FACTORS, columns))
    loads *= np.sqrt(FACTORS_SHARE / (loads**2).sum(axis=0))
    normal = model.standard_normal(columns)
    variance = ((loads * normal).sum(axis=1) ** 2).sum() + (1 - FACTORS_SHARE) * (normal**2).sum()
    normal = normal / np.sqrt(variance)  # scores have a deviation of 1
    factors = random.standard_normal((GROUP_ROWS, FACTORS))
    values = np.sqrt(1 - FACTORS_SHARE) * random.standard_normal((GROUP_ROWS, columns))
    for factor, load in zip(factors.T, loads, strict=True):
        values += factor[:, None] * load  # no matrix product: it would add in an order of its own
    scores = (values * normal).sum(axis=1)
    noisy = scores + NOISE * random.standard_normal(GROUP_ROWS)
    outlier = random.random(GROUP_ROWS) < OUTLIERS
    labels = (noisy > 0.0) != (random.random(GROUP_ROWS) < np.where(outlier, 0.5, FLIPPED))
    if number:
        chance = OUTLIER_LENGTH * random.standard_normal(GROUP_ROWS)
        labels = _numbers(np.where(outlier, chance, scores), random)
    values *= np.where(outlier, OUTLIER_LENGTH, 1.0)[:, None] / np.sqrt(columns)
    every = np.tile(np.arange(columns), GROUP_ROWS)
    return columns * np.arange(GROUP_ROWS + 1), every, values.ravel(), labels


@lru_cache(maxsize=1)
def _effects(columns: int, seed: int) -> Any:
    return np.random.default_rng(seed).normal(0.0, len(FIELDS) ** -0.5, columns)


def _clicks_group(columns: int, seed: int, group: int, number: bool) -> tuple[Any, ...]:
    random, power = np.random.default_rng([seed + 1, group]), 1.0 - FIELD_ZIPF
    uniform = random.random((GROUP_ROWS, len(FIELDS)))  # of a continuous law, by its inverse
    ranks = np.floor((1.0 + uniform * ((FIELDS + 1.0) ** power - 1.0)) ** (1.0 / power))
    fields = np.arange(1, len(FIELDS) + 1, dtype=np.uint64)
    hashed = (ranks.astype(np.uint64) * np.uint64(len(FIELDS) + 1) + fields) * SCRAMBLE
    indices = ((hashed >> np.uint64(32)) % np.uint64(columns)).astype(np.uint32)
    indices.sort(axis=1)
    new = np.append(np.ones((GROUP_ROWS, 1), bool), indices[:, 1:] != indices[:, :-1], axis=1)
    scores = INTERCEPT + (_effects(columns, seed)[indices] * new).sum(axis=1)
    odds = np.exp(scores)
    labels = random.random(GROUP_ROWS) <= odds / (1.0 + odds)
    if number:
        labels = _numbers(scores, random)
    indptr = np.append(0, np.cumsum(new.sum(axis=1)))
    return indptr, indices[new], np.full(indptr[-1], len(FIELDS) ** -0.5), labels


KINDS: dict[str, tuple[int, int, int, Any]] = {
    "text": (2 * TOPICS, 2**32 - 1, 30_000, _text_group),
    "dense": (1, 1000, 50, _dense_group),
    "clicks": (1, 2**32 - 1, 10**6, _clicks_group),
}
"""Kind → fewest, most and usual columns, and what makes rows 4,096·group … 4,096·group + 4,095:
function of (columns, seed, group, whether numbers are predicted) that returns the offsets of the
rows, column numbers, values, and whether each row is positive, or the numbers."""
