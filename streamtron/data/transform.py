"""Apply a fitted transformer of scikit-learn to the rows of a table.

A batch of rows becomes the data frame that the transformer takes, in the same types from every
file, and what it makes becomes a matrix.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray
from scipy import sparse

from streamtron.core.errors import DataError, MachineError
from streamtron.core.text import reason_of, some
from streamtron.data.formats.layouts import Spot, decoded, without_views
from streamtron.data.packed import loaded
from streamtron.data.row_batch import Unknown

Kind = Literal["number", "category", "date", "list", "text"]
"""The kinds of columns that ``--columns`` names."""

KINDS: tuple[Kind, ...] = get_args(Kind)

Inputs = tuple[tuple[str, str], ...]
"""Name and kind of each column of a table that a transformer takes."""

DOCUMENTS = "documents"
"""The kind of a column that a transformer takes alone, as a list of texts."""

_LARGEST = float(np.finfo(np.float32).max)


class Made(NamedTuple):
    """Rows that a transformer made, and of columns with categories that it does not know, in how
    many rows they are: bool, shape (rows,)."""

    rows: sparse.csr_array
    unknown: Unknown


@dataclass(frozen=True)
class Transformer:
    """A fitted transformer: its bytes, the columns that it takes, and how many features it makes.

    Before it is fitted it has no bytes: then the columns say how a table is read.
    """

    packed: bytes
    inputs: Inputs
    width: int = 0

    def __reduce__(self) -> Any:
        return Transformer, (self.packed, self.inputs, self.width)

    @cached_property
    def digest(self) -> str:
        """Tell it from other transformers, and other columns."""
        text = f"{self.inputs!r} {self.width}".encode()
        return xxhash.xxh3_128_hexdigest(self.packed + text)

    @property
    def estimator(self) -> Any:
        """Return scikit-learn's object. DataError: damaged, or with types of other packages."""
        return loaded(self.packed)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns that it takes."""
        return tuple(name for name, _ in self.inputs)

    @property
    def takes_documents(self) -> bool:
        """Return whether it takes a list of texts, and no table."""
        return _are_documents(self.inputs)

    @cached_property
    def names(self) -> tuple[str | None, ...]:
        """Return the names of the features; None for those that have none, as hashed ones."""
        names = _names(self.estimator)
        return tuple(names) if len(names) == self.width else (None,) * self.width

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Return the column that each feature is made of, or the part of the transformer where that
        is not known."""
        if self.takes_documents:
            return self.columns * self.width
        made = [*_sources(self.estimator, self.columns, self.names)]
        return tuple(made) if len(made) == self.width else ("all columns",) * self.width

    def made(self, batch: pa.RecordBatch, spot: Spot) -> Made:
        """Return the features of the rows of a table. DataError: a cell of another kind, or rows
        that the transformer refuses."""
        frame, where = frame_of(batch, self.inputs, spot), f"{spot.row(0)} and after"
        with refusing(where, "refuses the rows"):
            made = matrix_of(self.estimator.transform(frame))
        if made.shape != (expected := (len(frame), self.width)):
            what = f"the transformer makes a matrix of shape {made.shape}, expected {expected}."
            raise DataError(f"{where}: {what}")
        return Made(made, _unknown_in(self.estimator, frame))

    def to_contract(self) -> dict[str, Any]:
        """Return what a model keeps of it beside its bytes, as JSON values."""
        return {"inputs": [*map(list, self.inputs)], "width": self.width, "digest": self.digest}

    @classmethod
    def from_contract(cls, values: Any, packed: bytes) -> Transformer:
        """Return the transformer of a model, which may come from anywhere; DataError: it is
        none."""
        try:
            inputs, width, digest = values["inputs"], values["width"], values["digest"]
            pairs = tuple((name, kind) for name, kind in inputs)
            alike = all(type(x) is str and k in (*KINDS, DOCUMENTS) for x, k in pairs)
            made = cls(packed, pairs, width)
            if not (alike and pairs and type(width) is int and width >= 0):
                raise ValueError("its columns or its width")
            if made.digest != digest:
                raise ValueError("its bytes")
        except (LookupError, TypeError, ValueError) as error:
            raise DataError(f"the transformer is damaged ({error}). Fit again.") from error
        return made


@contextmanager
def quiet() -> Iterator[None]:
    """Let scikit-learn compute without warnings, on one thread: what BLAS sums must not depend on
    how many there are."""
    from threadpoolctl import threadpool_limits

    with np.errstate(all="ignore"), warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def refusing(where: str, what: str) -> Iterator[None]:
    """Let a transformer compute, see ``quiet``; turn what it raises into a DataError."""
    try:
        with quiet():
            yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise DataError(f"{where}: the transformer {what} ({reason_of(error):.300}).") from error


def matrix_of(made: Any) -> sparse.csr_array:
    """Return what a transformer made as a matrix, columns rising; a TypeError if it is none."""
    matrix = made if sparse.issparse(made) else np.asarray(made)
    if matrix.ndim != 2:
        raise TypeError(f"its output has shape {matrix.shape}, expected (rows, features)")
    rows = sparse.csr_array(matrix.astype(np.float64, copy=False))
    rows.sum_duplicates()
    return rows


# -- the frame that a transformer takes ----------------------------------------------------------


def frame_of(batch: pa.RecordBatch, inputs: Inputs, spot: Spot) -> Any:
    """Return columns of a table as a transformer takes them, in the same types from every file:
    float64, text as objects, datetime64[us], and lists; NaN and NaT where there is none, in texts
    ''."""
    there = {*batch.schema.names}
    if missing := [name for name, _ in inputs if name not in there]:
        raise DataError(f"{spot.name}: no column {some(missing)}, which the transformer takes.")
    cells = dict[str, NDArray[Any]]()
    for name, kind in inputs:
        array = decoded(batch.column(name))
        try:
            cells[name] = _cells(array, kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason, read = reason_of(error), kind if kind in ("number", "date") else "text"
            raise DataError(
                f"{spot.row(0)} and after: column {name!r} is {array.type}, and is read as a "
                f"{read} ({reason:.200}). Write it as in the rows that the model was fitted on, or "
                "give it another kind."
            ) from error
        if kind == "number" and (large := np.abs(cells[name]) > _LARGEST).any():
            value = cells[name][at := int(np.argmax(large))]
            spot.refuse(at, f"value {value:g} in column {name!r} is beyond float32. Rescale it.")
    if _are_documents(inputs):
        return cells[inputs[0][0]]
    from pandas import DataFrame, Series

    # as they are: pandas would make its own strings of text
    return DataFrame({name: Series(x, dtype=x.dtype) for name, x in cells.items()}, copy=False)


def _are_documents(inputs: Inputs) -> bool:
    return len(inputs) == 1 and inputs[0][1] == DOCUMENTS


def batch_of(columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Return sequences, or columns of a data frame, as Arrow. DataError: values of several
    kinds."""
    arrays = []
    for name, values in columns.items():
        values = values.to_arrow() if hasattr(values, "to_arrow") else values
        try:
            if isinstance(values, pa.ChunkedArray):
                values = values.combine_chunks()
            is_array = isinstance(values, pa.Array)
            arrays.append(values if is_array else pa.array(values, from_pandas=True))
        except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
            raise DataError(f"X: {name!r} ({error}): expected values of one kind.") from error
    return without_views(pa.RecordBatch.from_arrays(arrays, [*columns]))


def _cells(array: pa.Array, kind: str) -> NDArray[Any]:
    """Return a column as a transformer takes it, see ``frame_of``."""
    if kind == "number":
        numbers = array.cast(pa.uint8()) if pa.types.is_boolean(array.type) else array
        return np.asarray(numbers.cast(pa.float64()).to_numpy(zero_copy_only=False))
    if kind == "date":
        has_zone = pa.types.is_timestamp(array.type) and array.type.tz
        dates = pc.local_timestamp(array) if has_zone else array
        return np.asarray(dates.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False))
    if kind == "list":
        cells = np.empty(len(array), object)
        cells[:] = [[] if cell is None else cell for cell in array.to_pylist()]
        return cells
    encoded = array.cast(pa.large_string()).dictionary_encode()
    missing = np.nan if kind == "category" else ""
    values = np.array([*encoded.dictionary.to_pylist(), missing], dtype=object)
    codes = encoded.indices.fill_null(len(values) - 1).to_numpy()
    return np.asarray(values[codes])  # equal texts are one object, for few are different


# -- what scikit-learn's object says of itself ---------------------------------------------------


def first_step(estimator: Any) -> Any:
    """Return what takes the input: of a Pipeline its first step."""
    while hasattr(estimator, "steps"):
        estimator = estimator.steps[0][1]
    return estimator


def parts_of(estimator: Any) -> list[tuple[str, Any, Any]]:
    """Return name, transformer and columns of the parts of a ColumnTransformer that are not
    dropped; [] of another transformer."""
    first = first_step(estimator)
    if not hasattr(first, "transformers"):
        return []
    parts = getattr(first, "transformers_", first.transformers)
    return [part for part in parts if not (isinstance(part[1], str) and part[1] == "drop")]


def takes_texts(estimator: Any) -> bool:
    """Return whether a transformer takes a list of texts."""
    from sklearn.utils import get_tags

    first = first_step(estimator)
    if isinstance(first, str) or not hasattr(first, "__sklearn_tags__"):
        return False
    tags = get_tags(first).input_tags
    return bool(tags.string and not tags.two_d_array)


def _columns_of(part: Any, columns: Sequence[str]) -> list[str]:
    """Return the names of the columns of a part, which are names or places."""
    if isinstance(part, str):
        return [part]
    by_name = not isinstance(part, slice) and (not len(part) or isinstance(part[0], str))
    return [str(name) for name in (part if by_name else np.array(columns, dtype=object)[part])]


def _names(estimator: Any) -> list[str | None]:
    """Return the names of features; of a ColumnTransformer also where some parts have none."""
    try:
        return [*map(str, estimator.get_feature_names_out(None))]
    except (AttributeError, ValueError, TypeError):
        if not hasattr(estimator, "transformers_"):
            return []
    names = list[str | None]()
    for name, part, _ in parts_of(estimator):
        place, known = estimator.output_indices_[name], _names(part)
        length = place.stop - place.start
        known = known if len(known) == length else [None] * length
        names += [None if feature is None else f"{name}__{feature}" for feature in known]
    return names


def _sources(estimator: Any, columns: Sequence[str], names: Sequence[str | None]) -> Iterator[str]:
    if not hasattr(estimator, "transformers_"):
        known = {*columns}
        for name in names:
            yield _source((name or "").rpartition("__")[2], known, "all columns")
        return
    for part, _, of in parts_of(estimator):
        known = {*_columns_of(of, columns)}
        for name in names[estimator.output_indices_[part]]:
            feature = (name or "").removeprefix(f"{part}__")
            yield min(known) if len(known) == 1 else _source(feature, known, part)


def _source(feature: str, columns: set[str], otherwise: str) -> str:
    """Return the longest name of a column with which the name of a feature begins."""
    feature = feature.removeprefix("missingindicator_")
    while feature and feature not in columns:
        feature = feature.rpartition("_")[0]
    return feature or otherwise


def _unknown_in(estimator: Any, frame: Any) -> Unknown:
    """Return which rows have categories that a OneHotEncoder of a ColumnTransformer was not fitted
    on, by column, where there are any."""
    unknown = {}
    for _, part, of in parts_of(estimator):
        last = part.steps[-1][1] if hasattr(part, "steps") else part
        if not hasattr(last, "categories_") or isinstance(of, str):
            continue
        for column, known in zip(_columns_of(of, [*frame.columns]), last.categories_, strict=False):
            missing = ~frame[column].isin(known).to_numpy() & frame[column].notna().to_numpy()
            if missing.any():
                unknown[column] = missing
    return unknown


# -- processes -----------------------------------------------------------------------------------


def in_processes(transformer: Transformer, number: int) -> Callable[[pa.RecordBatch, Spot], Made]:
    """Return what ``made`` returns, made in other processes: Python runs one thread at a time."""
    from joblib.externals.loky import get_reusable_executor

    pool = get_reusable_executor(
        max_workers=number, timeout=60, initializer=_begin_process, initargs=(os.getpid(),)
    )

    def made(batch: pa.RecordBatch, spot: Spot) -> Made:
        try:
            result: Made = pool.submit(transformer.made, batch, spot).result()
        except BrokenExecutor as error:
            raise MachineError(
                f"{spot.name}: a process that transforms rows was killed, or has no memory. Free "
                "some, or give --threads 1."
            ) from error
        return result

    return made


def _begin_process(parent: int) -> None:
    """Leave interrupts from the keyboard to the process that waits, and end when it has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
