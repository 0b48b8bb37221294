"""Cells of AnnData, written here by h5py as anndata writes them."""

import numpy as np
import pytest
from scipy import sparse

import streamtron
from streamtron.core.errors import DataError
from streamtron.data import ReaderConfig, find_shards
from streamtron.data.formats.anndata import AnnDataReader
from streamtron.data.readers import resolve_reading
from streamtron.data.shard_rows import ShardRows
from streamtron.testing import ReaderTests
from tests.helpers.cells import write_cells

X = sparse.csr_array([[0.0, 1.5, 0.0], [2.0, 0.0, 0.25], [0.0, 0.0, 0.0], [1.0, 3.0, 0.0]])
TYPES = ["T", "B", "B", "T"]


def read(path, **how):
    [shard] = find_shards([str(path)])
    reading = resolve_reading(shard, ReaderConfig(label_column="obs:type", **how))
    with ShardRows(shard, reading) as rows:
        chunks = [*rows.chunks()]
    matrix = sparse.vstack(
        [
            sparse.csr_array((c.rows.spread(), c.rows.indices, c.rows.indptr), shape=(len(c), 3))
            for c in chunks
        ]
    )
    codes = np.concatenate([chunk.codes for chunk in chunks])
    return matrix.toarray(), [rows.labels[code] for code in codes], chunks, reading


class TestReader(ReaderTests):
    """What every format owes."""

    def write(self, path, rows):
        cells = sparse.lil_array((len(rows), 99))
        for k, (_, row) in enumerate(rows):
            for column, value in row.items():
                cells[k, column] = value
        write_cells(path, cells.tocsr(), [label for label, _ in rows])

    def open(self, path, threads):
        reading = ReaderConfig(label_column="obs:type")
        reader = AnnDataReader(str(path), path.name, reading, threads=threads)
        reader.resolve()
        return reader


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("labels", ["categorical", "text"])
def test_cells_are_rows_and_obs_has_labels_and_weights(tmp_path, dense, labels):
    write_cells(tmp_path / "a.h5ad", X.toarray() if dense else X, TYPES, labels=labels)
    matrix, found, chunks, reading = read(tmp_path / "a.h5ad", weight_column="obs:w")
    assert matrix.tolist() == X.toarray().tolist()
    assert found == TYPES
    assert chunks[0].weights.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert reading.names.names == ("g0", "g1", "g2")


def test_a_model_names_genes_and_reads_files_whose_genes_stand_in_another_order(tmp_path):
    write_cells(tmp_path / "a.h5ad", X, TYPES)
    write_cells(tmp_path / "b.h5ad", X[:, [2, 0, 1]], TYPES, genes=["g2", "g0", "g1"])
    model = streamtron.fit(tmp_path / "a.h5ad", label="obs:type")
    assert model.feature_names == ("g0", "g1", "g2")
    assert streamtron.evaluate(model, tmp_path / "b.h5ad").accuracy == 1.0


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"kind": "csc_matrix"}, "X is a csc_matrix"),
        ({"offsets": [0, 1, 3, 3, 9]}, "the offsets of X lead out of it"),
        ({"offsets": [0, 3, 1, 3, 5]}, "the offsets of X lead out of it"),
        ({"shape": (4, 9)}, "X is not of the size of obs and var"),
        ({"genes": ["g0", "g0", "g1"]}, "genes that occur twice: 'g0'"),
        ({"indices": [1, 0, 7, 0, 1]}, "7"),
    ],
    ids=str,
)
def test_what_is_no_cells_is_refused(tmp_path, how, what):
    write_cells(tmp_path / "a.h5ad", X, TYPES, **how)
    with pytest.raises(DataError, match=rf"a\.h5ad: not as anndata .*{what}"):
        read(tmp_path / "a.h5ad")


def test_another_file_of_that_name_is_refused(tmp_path):
    (tmp_path / "a.h5ad").write_text("1 1:1\n")
    with pytest.raises(DataError, match=r"a\.h5ad: not an AnnData file"):
        read(tmp_path / "a.h5ad")
