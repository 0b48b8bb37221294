"""Matrices that scipy.sparse has saved."""

import numpy as np
import pytest
from scipy import sparse

import streamtron
from streamtron.core.errors import DataError

X = sparse.csr_array([[0.0, 1.5], [2.0, 0.25], [0.0, 3.0], [1.0, 0.0]])


def test_a_model_of_a_matrix_with_labels_predicts_one_that_scipy_saved(tmp_path):
    parts = {"data": X.data, "indices": X.indices, "indptr": X.indptr, "shape": X.shape}
    others = {"y": ["b", "a", "b", "a"], "label": [0, 0, 0, 1], "weight": np.ones(4)}
    np.savez(tmp_path / "train.npz", format="csr", **parts, **others)
    model = streamtron.fit(tmp_path / "train.npz", label="y", weight="weight")
    sparse.save_npz(tmp_path / "new.npz", X[::-1])
    [scores] = streamtron.predict(model, tmp_path / "new.npz")
    assert scores.labels.tolist() == ["a", "b", "a", "b"]
    in_memory = streamtron.StreamtronClassifier().fit(X, ["b", "a", "b", "a"])
    assert model.weights.tolist() == in_memory.coef_.ravel().tolist()


@pytest.mark.parametrize(
    ("matrix", "words"),
    [(X.tocsc(), "not a CSR matrix; write X.tocsr"), (X.toarray(), "format is not a file")],
    ids=["csc", "no matrix"],
)
def test_what_is_no_csr_matrix_is_refused(tmp_path, matrix, words):
    if sparse.issparse(matrix):
        sparse.save_npz(tmp_path / "x.npz", matrix)
    else:
        np.savez(tmp_path / "x.npz", matrix)
    with pytest.raises(DataError, match=f"x.npz: not a file of scipy.sparse.save_npz .*{words}"):
        streamtron.fit(tmp_path / "x.npz")


def test_a_file_that_is_no_archive_is_refused_and_nobody_is_told_to_unpickle_it(tmp_path):
    (tmp_path / "x.npz").write_text(100 * "1 1:1\n")
    with pytest.raises(DataError, match=r"save_npz \(File is not a zip file\)\. Write it again"):
        streamtron.fit(tmp_path / "x.npz")
