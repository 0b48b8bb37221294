"""Read CSR matrices as ``scipy.sparse.save_npz`` writes them. Each is held in memory while it is
read, for the file may be compressed.

Other arrays of the file that have an entry for every row are columns, such as labels:
``np.savez(path, label=y, format="csr", shape=X.shape, indptr=X.indptr, indices=X.indices,
data=X.data)``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any
from zipfile import BadZipFile

import pyarrow as pa
from numpy.lib.npyio import NpzFile
from scipy import sparse

from streamtron.core.errors import DataError
from streamtron.data.formats.layouts import Spot
from streamtron.data.formats.tables import BATCH_BYTES, Part, TableReader, batch_rows

OWN = {"format", "shape", "data", "indices", "indptr"}
"""The arrays that are the matrix."""


class NpzReader(TableReader):
    """One shard that is a matrix."""

    KIND = "a file of scipy.sparse.save_npz"

    def _parts(
        self, file: Any, columns: list[str], numbers: Collection[str] = ()
    ) -> Iterator[Part]:
        table, start = self._table(file), 0
        step = batch_rows(len(table), table.nbytes, BATCH_BYTES)
        for rows in table.select(columns).to_batches(step):
            yield Part(rows, Spot(self.name, "", start), (start + len(rows)) / len(table))
            start += len(rows)

    def _schema(self, file: Any) -> pa.Schema:
        return self._table(file).schema

    def _table(self, file: Any) -> pa.Table:
        try:
            file.seek(0)
            with NpzFile(file) as arrays:  # np.load would advise to unpickle what is no archive
                if arrays["format"].item() not in ("csr", b"csr"):
                    raise ValueError("not a CSR matrix; write X.tocsr()")
                parts = arrays["data"], arrays["indices"], arrays["indptr"]
                matrix = sparse.csr_array(parts, shape=tuple(arrays["shape"]))
                matrix.check_format()
                columns = {name: arrays[name] for name in arrays.files if name not in OWN}
        except (BadZipFile, LookupError, ValueError, TypeError, EOFError) as error:
            raise DataError(f"{self.name}: not {self.KIND} ({error}). Write it again.") from error
        ends = pa.array(matrix.indptr, pa.int64())
        table = {
            "indices": pa.LargeListArray.from_arrays(ends, pa.array(matrix.indices)),
            "values": pa.LargeListArray.from_arrays(ends, pa.array(matrix.data)),
        }
        rows = (matrix.shape[0],)
        table |= {name: pa.array(array) for name, array in columns.items() if array.shape == rows}
        return pa.table(table)
