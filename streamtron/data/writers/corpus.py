"""Generate corpora of any size, for benchmarks and tests: text, dense rows, click logs.

``text`` : tf-idf vectors of unit norm. Columns follow Zipf's law with exponent 1.05; a row has a
leading and a second topic of 40, whose own columns hold a part of its words; its number of nonzeros
is log-normal with mean 76; the label is the leading topic's sign, 3 % of labels flipped.
``dense`` : 5 factors make 0.9 of the columns' variance; the mean of ‖x‖² is 1. The label is the
side of a random hyperplane, after noise; 3 % are flipped. One row of 500 is ten times as long.
``clicks`` : the shape of Criteo's challenge of 2014: 39 nonzeros of 1/√39 a row, 13 binned numbers
and 26 categories, drawn by Zipf's law and hashed. The logarithm of the odds of a click is the sum
of the effects of a row's columns.

Rows come in groups of 4,096, each from its own random numbers, and what groups share depends on
seed and number of columns alone. So row i is the same in every corpus of that seed and width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from streamtron.core.kinds import Range, checked, whole
from streamtron.core.limits import available_processors
from streamtron.core.rows import Label
from streamtron.data.prefetch import in_order
from streamtron.data.row_batch import RowBatch, offsets_of, sort_columns, take_rows
from streamtron.data.writers.shards import ShardStyle, Written, new_shards, write_shards

GROUP_ROWS, FLIPPED = 4096, 0.03
ZIPF, TOPICS, MEAN_NONZEROS, LENGTH_SIGMA = 1.05, 40, 76.0, 0.6
TOPIC_SHARE, LEADING_SHARE = 0.6, (0.7, 1.0)
"""The part of a row's words, stop words apart, from its topics; of these from the leading one."""
FACTORS, FACTORS_SHARE, NOISE, OUTLIERS, OUTLIER_LENGTH = 5, 0.9, 0.1, 0.002, 10.0
_CATEGORIES = (
    "1460 583 10131227 2202608 305 24 12517 633 3 93145 5683 8351593 3194 27 14992 5461306 10 5652 "
    "2173 4 7046547 18 15 286181 105 142572"
)
FIELDS = np.array([60] * 13 + _CATEGORIES.split(), np.float64)
"""Numbers of values of the fields of a click."""
FIELD_ZIPF, INTERCEPT, SCRAMBLE = 1.1, -1.3, np.uint64(0x9E3779B97F4A7C15)


def generate(
    directory: str,
    *,
    rows: int,
    columns: int | None = None,
    seed: int,
    kind: str = "text",
    shards: int = 8,
    first_row: int = 0,
    overwrite: bool = False,
) -> Written:
    """Write rows ``first_row`` … ``first_row + rows - 1`` of a corpus as shards of equal size, of
    libsvm text with columns from 1.

    Rows held out for a test are those after the training rows: ``first_row=rows`` in another
    directory.

    Parameters
    ----------
    rows, shards : at least 1; a shard has ⌈rows / shards⌉ rows, the last one what remains.
    columns : at least 80 of a text, at most 1,000 of dense rows. None = 30,000, 50, or 10⁶.
    kind : ``"text"``, ``"dense"`` or ``"clicks"``.
    overwrite : replace the shards of an earlier corpus.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     generate(f"{directory}/made", rows=10, columns=2000, seed=1, shards=2).rows
    10
    """
    fewest, most, usual, _ = KINDS[checked(kind, "kind", (*KINDS,))]
    columns = usual if columns is None else columns
    checked(columns, f"columns of {kind}", "whole", Range(fewest, most))
    whole(rows, "rows", least=1)
    whole(shards, "shards", least=1)
    batches = corpus_rows(rows, columns, whole(seed, "seed"), whole(first_row, "first-row"), kind)
    with new_shards(directory, overwrite) as place:
        return write_shards(batches, place, ShardStyle("libsvm", shift=1), -(-rows // shards))


def corpus_rows(
    rows: int, columns: int, seed: int, first_row: int = 0, kind: str = "text"
) -> Iterator[RowBatch]:
    """Generate the rows as batches of at most 4,096, columns counted from 0."""
    make, end = KINDS[kind][3](columns, seed), first_row + rows
    groups = range(first_row // GROUP_ROWS, -(-end // GROUP_ROWS))
    made = in_order(partial(_batch, make), groups, available_processors())
    for group, batch in zip(groups, made, strict=True):
        first = group * GROUP_ROWS
        yield take_rows(batch, slice(max(first_row - first, 0), min(end - first, GROUP_ROWS)))


def _batch(make: Group, group: int) -> RowBatch:
    indptr, indices, values, positive = make(group)
    arrays = indptr.astype(np.int64), indices.astype(np.uint32), values.astype(np.float32)
    codes, first = np.where(positive, 0, 1).astype(np.int32), group * GROUP_ROWS
    classes: list[Label] = [1.0, -1.0]
    return RowBatch(*arrays, codes, classes, None, lambda i: f"generated corpus, row {first + i}")


def _random(seed: int, stream: int, number: int) -> np.random.Generator:
    """Make the random numbers of what all rows share (stream 0), or of a group (1)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, stream, number])))


def _model(columns: int, seed: int) -> tuple[Any, ...]:
    """Return what seed and number of columns fix of a text.

    Columns are ranked by frequency and cut into bundles of 40 ranks, one for each topic. A word
    drawn at rank r from topic k moves to k's rank in r's bundle; stop words, the first bundle, have
    no topic. Returned are Zipf's distribution function; the column of each rank; its idf, 1 +
    ln(1 / expected part of the rows that hold it); a rising grid of numbers of words, and how many
    different columns are expected among so many.
    """
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
    column = _random(seed, 0, columns).permutation(columns).astype(np.uint32)
    return cumulated, column, idf, words, distinct


def _rows_with(part: Any, words: float) -> Any:
    """Return, for every rank, the probability that a row of so many words holds it: a row of
    another topic than the rank's, of the rank's as second topic, or as leading one."""
    chances, leading = np.empty(len(part)), sum(LEADING_SHARE) / 2
    for start in range(0, len(part), TOPICS << 8):  # so few ranks that they stay in the cache
        stretch = part[start : start + (TOPICS << 8)]
        bundle = np.arange(len(stretch)) // TOPICS
        plain = (1 - TOPIC_SHARE) * stretch
        moved = TOPIC_SHARE * np.bincount(bundle, stretch)[bundle]
        if start == 0:
            plain[:TOPICS], moved[:TOPICS] = stretch[:TOPICS], 0
        shares = plain, plain + leading * moved, plain + (1 - leading) * moved
        apart, first, second = (-np.expm1(words * np.log1p(-share)) for share in shares)
        chances[start : start + len(stretch)] = ((TOPICS - 2) * apart + first + second) / TOPICS
    return chances


def _lengths(columns: int, normal: Any) -> Any:
    """Compute log-normal numbers of nonzeros from standard normal ones; at most columns / 4."""
    mu = np.log(MEAN_NONZEROS) - 0.5 * LENGTH_SIGMA**2
    return np.clip(np.exp(mu + LENGTH_SIGMA * normal), 1, columns / 4)


def _text(columns: int, seed: int) -> Group:
    cumulated, column, idf, grid, distinct = _model(columns, seed)

    def group(k: int) -> tuple[Any, ...]:
        random = _random(seed, 1, k)
        lengths = _lengths(columns, random.standard_normal(GROUP_ROWS))
        words = np.maximum(np.interp(lengths, distinct, grid).round().astype(np.int64), 1)
        topics = random.integers(TOPICS, size=(GROUP_ROWS, 2))
        flipped = random.random(GROUP_ROWS) < FLIPPED
        row = np.repeat(np.arange(GROUP_ROWS), words)

        rank = np.searchsorted(cumulated, random.random(len(row)), side="right")
        which = random.random(len(row))
        leading = random.uniform(*LEADING_SHARE, len(topics))[row]
        topic = np.where(which < TOPIC_SHARE * leading, topics[row, 0], topics[row, 1])
        moved = rank // TOPICS * TOPICS + topic
        rank = np.where((which < TOPIC_SHARE) & (rank >= TOPICS) & (moved < columns), moved, rank)

        # A nonzero is a run of equal (row, column); the run's length is the term frequency.
        order, keys = sort_columns(offsets_of(words), column[rank])
        first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        frequency = np.diff(np.append(first, len(keys)))
        values = (1 + np.log(frequency)) * idf[rank[order[first]]]
        starts = np.arange(GROUP_ROWS + 1, dtype=np.uint64) << np.uint64(32)
        indptr = np.searchsorted(keys[first], starts)
        values /= np.repeat(np.sqrt(np.add.reduceat(values**2, indptr[:-1])), np.diff(indptr))
        indices, labels = keys[first].astype(np.uint32), (topics[:, 0] % 2 == 0) != flipped
        return indptr, indices, values, labels

    return group


def _dense(columns: int, seed: int) -> Group:
    model = _random(seed, 0, columns)
    loads = model.standard_normal((FACTORS, columns))
    loads *= np.sqrt(FACTORS_SHARE / (loads**2).sum(axis=0))
    normal = model.standard_normal(columns)
    variance = ((loads * normal).sum(axis=1) ** 2).sum() + (1 - FACTORS_SHARE) * (normal**2).sum()
    normal /= np.sqrt(variance)  # scores have a deviation of 1

    def group(k: int) -> tuple[Any, ...]:
        random = _random(seed, 1, k)
        factors = random.standard_normal((GROUP_ROWS, FACTORS))
        values = np.sqrt(1 - FACTORS_SHARE) * random.standard_normal((GROUP_ROWS, columns))
        for factor, load in zip(factors.T, loads, strict=True):
            values += factor[:, None] * load  # no matrix product: it would add in an order its own
        scores = (values * normal).sum(axis=1)
        noisy = scores + NOISE * random.standard_normal(GROUP_ROWS)
        outlier = random.random(GROUP_ROWS) < OUTLIERS
        labels = (noisy > 0.0) != (random.random(GROUP_ROWS) < np.where(outlier, 0.5, FLIPPED))
        values *= np.where(outlier, OUTLIER_LENGTH, 1.0)[:, None] / np.sqrt(columns)
        every = np.tile(np.arange(columns), GROUP_ROWS)
        return columns * np.arange(GROUP_ROWS + 1), every, values.ravel(), labels

    return group


def _clicks(columns: int, seed: int) -> Group:
    effects = np.random.default_rng(seed).normal(0.0, len(FIELDS) ** -0.5, columns)
    fields, power = np.arange(1, len(FIELDS) + 1, dtype=np.uint64), 1.0 - FIELD_ZIPF

    def group(k: int) -> tuple[Any, ...]:
        random = np.random.default_rng([seed + 1, k])
        uniform = random.random((GROUP_ROWS, len(FIELDS)))  # of a continuous law, by its inverse
        ranks = np.floor((1.0 + uniform * ((FIELDS + 1.0) ** power - 1.0)) ** (1.0 / power))
        hashed = (ranks.astype(np.uint64) * np.uint64(len(FIELDS) + 1) + fields) * SCRAMBLE
        indices = ((hashed >> np.uint64(32)) % np.uint64(columns)).astype(np.uint32)
        indices.sort(axis=1)
        new = np.append(np.ones((GROUP_ROWS, 1), bool), indices[:, 1:] != indices[:, :-1], axis=1)
        scores = INTERCEPT + (effects[indices] * new).sum(axis=1)
        odds = np.exp(scores)
        labels = random.random(GROUP_ROWS) <= odds / (1.0 + odds)
        indptr = np.append(0, np.cumsum(new.sum(axis=1)))
        return indptr, indices[new], np.full(indptr[-1], len(FIELDS) ** -0.5), labels

    return group


Group = Callable[[int], tuple[Any, ...]]
"""What makes rows 4,096·k … 4,096·k + 4,095: their offsets, column numbers, values, and whether
each is positive."""

KINDS: dict[str, tuple[int, int, int, Callable[[int, int], Group]]] = {
    "text": (2 * TOPICS, 2**32 - 1, 30_000, _text),
    "dense": (1, 1000, 50, _dense),
    "clicks": (1, 2**32 - 1, 10**6, _clicks),
}
"""Kind → fewest, most and usual columns, and what makes a ``Group`` of columns and seed."""
