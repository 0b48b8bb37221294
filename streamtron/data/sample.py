"""Fit the transformer of a table on its first rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.text import some
from streamtron.data import ReaderConfig, ShardFile
from streamtron.data.deletions import in_share
from streamtron.data.formats.columns import find_label
from streamtron.data.formats.layouts import Spot, decoded, is_list, is_number, is_string, plain
from streamtron.data.packed import load_transformer, loaded, pack
from streamtron.data.prefetch import prefetch, run_in_thread
from streamtron.data.readers import first_rows, table_reader
from streamtron.data.transform import (
    DOCUMENTS,
    Inputs,
    Transformer,
    first_step,
    frame_of,
    matrix_of,
    parts_of,
    refusing,
    takes_texts,
)

if TYPE_CHECKING:
    from streamtron.data.transformers import Spec

ENOUGH = 1_000
"""Rows of the sample that are transformed to see how many features there are."""


def has_transformer(settings: Settings) -> bool:
    """Return whether settings name columns, a text or a transformer."""
    given = settings.columns, settings.text, settings.transformer
    return any(value is not None for value in given)


def transformer_digest(settings: Settings, reading: ReaderConfig) -> str | None:
    """Return what tells the transformer from one that was fitted on other rows; None where
    the settings name none."""
    if has_transformer(settings) and reading.transformer is not None:
        return reading.transformer.digest
    return None


def with_transformer(
    shards: Sequence[ShardFile], reading: ReaderConfig, settings: Settings
) -> tuple[ReaderConfig, int]:
    """Return a reading with the transformer that settings name, fitted on the first rows of these
    shards, and the bytes that were read for it. What was fitted last is remembered."""
    if not has_transformer(settings) or reading.transformer is not None:
        return reading, 0
    from streamtron.data.transformers import specs_of

    estimator = settings.transformer
    if isinstance(estimator, str):
        estimator = load_transformer(estimator)
    named = tuple(specs_of(settings.columns, settings.text))
    made, read = _fitted(
        tuple(shards),
        reading,
        named if estimator is None else pack(estimator),
        inf if settings.sample_rows == "all" else int(settings.sample_rows),
        settings.text,
        settings.weight,
    )
    return replace(reading, transformer=made), read


@lru_cache(maxsize=2)
def _fitted(
    shards: tuple[ShardFile, ...],
    reading: ReaderConfig,
    given: bytes | tuple[Spec, ...],
    rows: float,
    text: str | None,
    weight: str | None,
) -> tuple[Transformer, int]:
    """Fit a transformer, given as bytes of skops or by columns, unless it is fitted; return it, and
    the bytes that were read."""
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    from streamtron.data.transformers import column_transformer

    estimator = loaded(given) if isinstance(given, bytes) else column_transformer(given)
    schema = run_in_thread(table_reader(shards[0], reading).schema)
    label = find_label(schema, reading, shards[0].name)
    if isinstance(given, bytes):
        inputs = _inputs_of(schema, estimator, {label, weight}, text)
    else:
        inputs = tuple((spec.name, spec.kind) for spec in given)
    transformer = Transformer(b"", inputs)
    sample = partial(_sample, shards, replace(reading, transformer=transformer), label)
    try:
        check_is_fitted(estimator)
        frame, _, read = sample(ENOUGH)
    except NotFittedError:
        estimator = clone(estimator)
        frame, labels, read = sample(rows)
        with refusing(shards[0].name, f"cannot be fitted on the first {len(frame):,} rows"):
            estimator.fit(frame, labels)
    with refusing(shards[0].name, "makes no matrix of the first rows"):
        width = matrix_of(estimator.transform(frame[:ENOUGH])).shape[1]
    return Transformer(pack(estimator), inputs, width), read


def first_rows_of(shards: Sequence[ShardFile], reading: ReaderConfig, most: int) -> pa.Table | None:
    """Return the columns that the transformer of a reading takes in the first rows; None where
    there are none."""
    parts = (_columns_of(shard, reading, []) for shard in shards)
    batches = [*first_rows(chain.from_iterable(parts), most)]
    return pa.Table.from_batches(batches) if batches else None


def _columns_of(
    shard: ShardFile, reading: ReaderConfig, more: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the columns that the transformer of a reading takes, and some more."""
    assert reading.transformer is not None
    names = list(dict.fromkeys((*reading.transformer.columns, *more)))
    numbers = [name for name, kind in reading.transformer.inputs if kind == "number"]
    return table_reader(shard, reading).rows(names, numbers)


def _sample(
    shards: Sequence[ShardFile], reading: ReaderConfig, label: str | None, most: float
) -> tuple[Any, Any, int]:
    """Return the first rows with a label, as a transformer takes them; their labels, None where
    there are none or several a row; and the bytes of both."""
    assert reading.transformer is not None
    labelled = (_labelled(shard, reading, label) for shard in shards)
    batches = [*first_rows(chain.from_iterable(labelled), most)]
    if not batches:
        raise DataError("no rows, on which a transformer could be fitted.")
    table = pa.Table.from_batches(batches).combine_chunks()
    [batch] = table.to_batches(max_chunksize=len(table))
    labels = None if label is None else _labels_of(batch.column(label))
    frame = frame_of(batch, reading.transformer.inputs, Spot(shards[0].name, "", 0))
    return frame, labels, batch.nbytes


def _labelled(
    shard: ShardFile, reading: ReaderConfig, label: str | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a shard that are read and have a label."""
    columns, start = partial(_columns_of, shard, reading, [] if label is None else [label]), 0
    with closing(prefetch(columns)) as parts:
        for batch in parts:
            places = np.arange(start, start := start + len(batch))
            kept = in_share(shard.name, places, reading.share)
            if shard.without is not None:
                kept &= ~np.isin(places, shard.without.rows)
            if label is not None:
                kept &= np.asarray(batch.column(label).is_valid())
            if kept.any():
                yield batch.filter(kept)


def _labels_of(array: pa.Array) -> Any:
    """Return labels as scikit-learn takes them; None where a row may have several."""
    array = decoded(array)
    if pa.types.is_nested(array.type):
        return None
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    return np.asarray(array.to_pylist())


def _inputs_of(
    schema: pa.Schema, estimator: Any, beside: set[str | None], text: str | None
) -> Inputs:
    """Return the columns that a transformer takes, all where it does not name them, with the kinds
    of their types; ``text`` : the one of a transformer of texts."""
    if takes_texts(estimator):
        texts = [f.name for f in schema if is_string(plain(f.type)) and f.name not in beside]
        texts = texts if text is None else [text]
        if len(texts) != 1:
            raise SettingsError(
                f"the transformer takes texts, and of these columns ({some(schema.names)}) "
                f"{len(texts)} could be them. Name the column with --text."
            )
        return ((texts[0], DOCUMENTS),)
    there = [name for name in schema.names if name not in beside]
    names = named_columns(estimator) or there
    times = Counter(schema.names)
    if missing := [name for name in names if times[name] != 1]:
        raise DataError(
            f"no column {some(missing)}, or several, which the transformer names (columns there: "
            f"{some(schema.names, most=40)})."
        )
    texts_of_parts = {
        of for _, part, of in parts_of(estimator) if isinstance(of, str) and takes_texts(part)
    }
    return tuple((name, kind_of(schema.field(name), name in texts_of_parts)) for name in names)


def named_columns(estimator: Any) -> list[str] | None:
    """Return the columns that a transformer names; None: it takes all."""
    first, parts = first_step(estimator), parts_of(estimator)
    known = getattr(first, "feature_names_in_", None)
    lists = [[of] if isinstance(of, str) else of for _, _, of in parts]
    are_names = all(isinstance(of, list) and all(type(x) is str for x in of) for of in lists)
    if parts and are_names and (getattr(first, "remainder", "drop") == "drop" or known is not None):
        return list(dict.fromkeys(name for of in lists for name in of))
    return None if known is None else [str(name) for name in known]


def kind_of(field: Any, is_text: bool = False) -> str:
    """Return the kind of a column by its type. DataError: no transformer takes it."""
    type_, types = plain(field.type), pa.types
    if is_number(type_) or types.is_boolean(type_) or types.is_decimal(type_):
        return "number"
    if is_string(type_) or types.is_null(type_):
        return "text" if is_text else "category"
    if types.is_timestamp(type_) or types.is_date(type_):
        return "date"
    if is_list(type_):
        return "list"
    raise DataError(
        f"column {field.name!r} of type {field.type}, which no transformer takes. Leave it out, or "
        "write it as numbers, text, dates or lists."
    )
