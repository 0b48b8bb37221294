"""Read AnnData files (``.h5ad``): cells are rows, genes are features.

X, CSR or dense, is read in blocks and never held whole. Columns of ``obs`` are columns of the
table, ``obs:NAME``; the names of ``var`` are the vocabulary, so that files whose genes stand in
another order agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.core.extras import library
from streamtron.core.feature_names import Vocabulary
from streamtron.core.text import some
from streamtron.data import storage
from streamtron.data.formats.layouts import Spot
from streamtron.data.formats.tables import BATCH_ROWS, Part, TableReader, table_errors
from streamtron.data.prefetch import run_in_thread
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import offsets_of

GENES, VALUES, OBS = "X", "X values", "obs:"
"""Columns of the table: the genes that a cell expresses, and how much; and what is before the names
of those of obs."""

BATCH_NONZEROS, MOST_GENES = 1 << 20, 1 << 24


class AnnDataReader(TableReader):
    """One AnnData shard, as anndata 0.8 and later write it."""

    KIND = "an AnnData file"

    def resolve(self) -> ReaderConfig:
        """Return the config with this file's genes as the vocabulary, if it has none."""
        if self.reading.layout is None:
            genes = Vocabulary(tuple(run_in_thread(self._genes)))
            self.reading = replace(
                self.reading, names=genes, features=(GENES,), values_column=VALUES
            )
        return super().resolve()

    def _genes(self) -> list[str]:
        with (
            table_errors(self.name, self.KIND),
            storage.open_arrow(self.path) as file,
            self._cells(file) as cells,
        ):
            return _names(cells["var"])

    def _schema(self, file: Any) -> pa.Schema:
        with self._cells(file) as cells:
            obs = cells["obs"]
            names = map(_text, obs.attrs["column-order"])
            types = {OBS + name: _column(obs, name, 0, 0).type for name in names}
        genes = pa.list_(pa.dictionary(pa.int32(), pa.string()))
        return pa.schema({GENES: genes, VALUES: pa.list_(pa.float64()), **types})

    def _parts(
        self, file: Any, columns: list[str], numbers: Collection[str] = ()
    ) -> Iterator[Part]:
        with self._cells(file) as cells:
            obs, genes, start = cells["obs"], pa.array(_names(cells["var"]), pa.string()), 0
            rows = len(_index(obs))
            while start < rows:
                offsets, indices, values = _block(cells["X"], start, rows, len(genes))
                stop, ends = start + len(offsets) - 1, pa.array(offsets, pa.int32())
                named = pa.DictionaryArray.from_arrays(pa.array(indices), genes)
                arrays = {
                    GENES: pa.ListArray.from_arrays(ends, named),
                    VALUES: pa.ListArray.from_arrays(ends, pa.array(values)),
                }
                for name in columns:
                    if name not in arrays:
                        arrays[name] = _column(obs, name.removeprefix(OBS), start, stop)
                batch = pa.record_batch({name: arrays[name] for name in columns})
                yield Part(batch, Spot(self.name, "", start), stop / rows)
                start = stop

    @contextmanager
    def _cells(self, file: Any) -> Iterator[Any]:
        """Open the file; a DataError tells what is missing in it, or of another kind."""
        h5py = library("h5py", "cells", f"{self.name}, a file of AnnData,")
        try:
            with h5py.File(file, "r") as cells:
                yield cells
        except (LookupError, ValueError, TypeError, RuntimeError, pa.ArrowInvalid) as error:
            raise DataError(
                f"{self.name}: not as anndata 0.8 or later writes cells ({error}). Read it with "
                "anndata, and write it again with X as a CSR matrix or an array."
            ) from error


def _block(
    X: Any, start: int, rows: int, genes: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[Any]]:
    """Return offsets, genes and values of some cells from ``start`` on, as CSR."""
    is_dense = not hasattr(X, "keys")
    if (*(X.shape if is_dense else X.attrs["shape"]),) != (rows, genes):
        raise ValueError("X is not of the size of obs and var")
    if is_dense:
        step = max(1, min(BATCH_ROWS, BATCH_NONZEROS // max(genes, 1)))
        cells = X[start : min(start + step, rows)]
        row, gene = np.nonzero(cells)
        offsets = offsets_of(np.bincount(row, minlength=len(cells)))
        return offsets, gene.astype(np.int32), cells[row, gene]
    if (kind := X.attrs["encoding-type"]) != "csr_matrix":
        raise ValueError(f"X is a {kind}")
    offsets = X["indptr"][start : min(start + BATCH_ROWS, rows) + 1].astype(np.int64)
    most = int(np.searchsorted(offsets, offsets[0] + BATCH_NONZEROS, side="right")) - 1
    offsets = offsets[: max(most, 1) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    indices, values = X["indices"][first:last], X["data"][first:last]
    if (np.diff(offsets) < 0).any() or not len(indices) == len(values) == last - first:
        raise ValueError("the offsets of X lead out of it")
    return offsets - first, indices.astype(np.int32), values


def _index(frame: Any) -> Any:
    return frame[frame.attrs["_index"]]


def _names(var: Any) -> list[str]:
    """Return the names of the genes, which are all different."""
    index = _index(var)
    if len(index) > MOST_GENES:
        raise ValueError(f"{len(index):,} genes, where {MOST_GENES:,} are the most that is read")
    names = [*map(_text, index[:])]
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"genes that occur twice: {some(twice)}; see var_names_make_unique()")
    return names


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _column(obs: Any, name: str, start: int, stop: int) -> pa.Array:
    """Return cells of a column of obs: numbers, text, or categories."""
    column = obs[name]
    if "codes" in (column if hasattr(column, "keys") else ()):
        codes = column["codes"][start:stop]
        categories = pa.array([*map(_text, column["categories"][:])], pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), categories)
    if hasattr(column, "keys"):  # numbers or booleans, some of them missing
        return pa.array(column["values"][start:stop], mask=column["mask"][start:stop])
    cells = column[start:stop]
    return (
        pa.array([*map(_text, cells)], pa.string()) if cells.dtype.kind in "OS" else pa.array(cells)
    )
