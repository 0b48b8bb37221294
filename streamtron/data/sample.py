"""Fit the transformer of a table on its first rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.text import some
from streamtron.data import ReaderConfig, ShardFile
from streamtron.data.column_specs import Spec, specs_of
from streamtron.data.deletions import in_share
from streamtron.data.packed import load_transformer, loaded, pack
from streamtron.data.prefetch import prefetch
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
    import pyarrow as pa


ENOUGH = 1_000
"""Rows of the sample that are transformed to see how many features there are."""


@dataclass(frozen=True)
class _Wanted:
    """What settings say of a transformer; equal ones are fitted once."""

    specs: tuple[Spec, ...]
    packed: bytes | None
    rows: int | None
    text: str | None
    weight: str | None
    skips: bool


def has_transformer(settings: Settings) -> bool:
    """Return whether settings name columns, a text or a transformer."""
    given = settings.columns, settings.text, settings.transformer
    return any(value is not None for value in given)


def transformer_digest(settings: Settings, reading: ReaderConfig) -> str | None:
    """Return what tells the transformer from one that was fitted on other rows, and a vocabulary
    from one of other names; None where the settings name neither."""
    if has_transformer(settings) and reading.transformer is not None:
        return reading.transformer.digest
    return getattr(reading.names, "digest", None)


def with_transformer(
    shards: Sequence[ShardFile], reading: ReaderConfig, settings: Settings
) -> tuple[ReaderConfig, int]:
    """Return a reading with the transformer that settings name, fitted on the first rows of these
    shards, and the bytes that were read for it. What was fitted last is remembered."""
    if not has_transformer(settings) or reading.transformer is not None:
        return reading, 0
    estimator = settings.transformer
    if isinstance(estimator, str):
        estimator = load_transformer(estimator)
    packed = None if estimator is None else pack(estimator)
    rows = None if settings.sample_rows == "all" else int(settings.sample_rows)
    wanted = _Wanted(
        () if packed else tuple(specs_of(settings.columns, settings.text)),
        packed,
        rows,
        settings.text,
        settings.weight,
        settings.on_bad_shard == "skip",
    )
    made, read = _fitted(tuple(shards), reading, wanted)
    return replace(reading, transformer=made), read


@lru_cache(maxsize=2)
def _fitted(
    shards: tuple[ShardFile, ...], reading: ReaderConfig, wanted: _Wanted
) -> tuple[Transformer, int]:
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    if wanted.packed is not None:
        estimator, inputs = loaded(wanted.packed), None
    else:
        from streamtron.data.transformers import column_transformer

        estimator = column_transformer(wanted.specs)
        inputs = tuple((spec.name, spec.kind) for spec in wanted.specs)
    sample = _Sample(shards, reading, wanted, estimator, inputs)
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        estimator = clone(estimator)
        frame, labels = sample.frame()
        with refusing(shards[0].name, f"cannot be fitted on the first {len(frame):,} rows"):
            estimator.fit(frame, labels)
    few, _ = sample.frame(min(ENOUGH, wanted.rows or ENOUGH))
    with refusing(shards[0].name, "makes no matrix of the first rows"):
        width = matrix_of(estimator.transform(few)).shape[1]
    return Transformer(pack(estimator), sample.inputs, width), sample.bytes_read


def first_rows_of(shards: Sequence[ShardFile], reading: ReaderConfig, most: int) -> pa.Table | None:
    """Return the columns that the transformer of a reading takes in the first rows; None where
    there are none."""
    import pyarrow as pa

    assert reading.transformer is not None
    names = [*reading.transformer.columns]
    numbers = [name for name, kind in reading.transformer.inputs if kind == "number"]
    parts = (table_reader(shard, reading).rows(names, numbers) for shard in shards)
    batches = [*first_rows(chain.from_iterable(parts), most)]
    return pa.Table.from_batches(batches) if batches else None


class _Sample:
    """The first rows of shards, as a transformer takes them."""

    def __init__(
        self,
        shards: tuple[ShardFile, ...],
        reading: ReaderConfig,
        wanted: _Wanted,
        estimator: Any,
        inputs: Inputs | None,
    ) -> None:
        self._shards, self._wanted, self.bytes_read = shards, wanted, 0
        self._labels: str | None = None
        for shard in shards:
            reader = table_reader(shard, reading)
            try:
                self._labels = reader.label_column()
                beside = {self._labels, wanted.weight}
                self.inputs = inputs or _inputs_of(reader.schema(), estimator, beside, wanted.text)
                break
            except DataError:
                if not wanted.skips or shard is shards[-1]:
                    raise
        self._reading = replace(reading, transformer=Transformer(b"", self.inputs))

    def frame(self, most: int | None = None) -> tuple[Any, Any]:
        """Return the rows and their labels, None where there are none or several a row."""
        import pyarrow as pa

        batches = [*first_rows(self._batches(), most or self._wanted.rows or inf)]
        rows = sum(map(len, batches))
        if not rows:
            raise DataError("no rows, on which a transformer could be fitted.")
        table = pa.Table.from_batches(batches).combine_chunks()
        from streamtron.data.formats.layouts import Spot

        [batch] = table.to_batches(max_chunksize=rows)
        labels = None if self._labels is None else _labels_of(batch.column(self._labels))
        return frame_of(batch, self.inputs, Spot(self._shards[0].name, "", 0)), labels

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are read, of those with a label; a shard that is left out whole."""
        for shard in self._shards:
            try:
                yield from [*self._rows(shard)] if self._wanted.skips else self._rows(shard)
            except DataError:
                if not self._wanted.skips:
                    raise

    def _rows(self, shard: ShardFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a shard, as many as are wanted."""
        from streamtron.data.formats.layouts import Spot

        names = [name for name, _ in self.inputs]
        names += [self._labels] if self._labels is not None and self._labels not in names else []
        numbers = {name for name, kind in self.inputs if kind == "number"}
        reader, start, left = table_reader(shard, self._reading), 0, self._wanted.rows
        with closing(prefetch(partial(reader.rows, names, numbers))) as parts:
            for batch in parts:
                places = np.arange(start, start := start + len(batch))
                kept = in_share(shard.name, places, self._reading.share)
                if shard.without is not None:
                    kept &= ~np.isin(places, shard.without.rows)
                if self._labels is not None:
                    kept &= np.asarray(batch.column(self._labels).is_valid())
                self.bytes_read += batch.nbytes
                rows = batch.filter(kept)
                if self._wanted.skips:
                    frame_of(rows, self.inputs, Spot(shard.name, "", 0))  # which may refuse it
                if len(rows):
                    yield rows
                if left is not None and (left := left - len(rows)) <= 0:
                    break


def _labels_of(array: pa.Array) -> Any:
    """Return labels as scikit-learn takes them; None where a row may have several."""
    import pyarrow as pa

    from streamtron.data.formats.layouts import decoded

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
        from streamtron.data.formats.layouts import is_string, plain

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
    import pyarrow as pa

    from streamtron.data.formats.layouts import is_list, is_number, is_string, plain

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
