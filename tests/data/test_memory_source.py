"""Rows in memory: whatever they come in, the chunks are those of the same rows in shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from streamtron.core.errors import DataError
from streamtron.data import MemorySource
from tests.helpers.shard_rows import bits, small_blocks

DENSE = np.array([[0, 2.5, 0, 1], [0, 0, 0, 0], [-1, 0, 0, 0.1], [0, 0, 3, 0]])


def all_bits(source: MemorySource) -> list[Any]:
    return [bits(chunk) for chunk in source.chunks()]


def of(X: Any, weights: Any = None) -> MemorySource:
    """The rows of X, with the labels of DENSE."""
    return MemorySource(X, np.array([0, 1, 1, 0]), [1.0, -1.0], weights)


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_a_sparse_matrix_gives_the_chunks_of_the_dense_array(kind: Any, index: Any) -> None:
    X = kind(DENSE)
    X.indices, X.indptr = X.indices.astype(index), X.indptr.astype(index)
    with small_blocks(3):
        assert all_bits(of(X)) == all_bits(of(DENSE))
        assert [len(chunk) for chunk in of(X).chunks()] == [3, 1]
    [chunk] = of(X).chunks()
    assert (chunk.codes.tolist(), chunk.codes.dtype) == ([0, 1, 1, 0], np.int32)
    assert chunk.rows.values.tolist() == np.float32([2.5, 1, -1, 0.1, 3]).tolist()


def test_zeros_stored_in_a_sparse_array_are_kept() -> None:
    X = sparse.csr_array(([0.0, 2.0], [1, 2], [0, 2]), shape=(1, 3))
    [chunk] = MemorySource(X, np.zeros(1, int), [1.0]).chunks()
    assert chunk.rows.indices.tolist() == [1, 2]


@pytest.mark.parametrize("column", [-1, 2**32 - 1])
def test_a_column_number_that_32_bits_cannot_hold_is_refused(column: int) -> None:
    X = sparse.csr_array(([1.0], np.array([0]), [0, 1]), shape=(1, 2**33))
    X.indices = np.array([column])
    with pytest.raises(DataError, match=f"X: columns from {column} to {column}"):
        MemorySource(X, np.zeros(1, int), [1.0])


def test_weights_are_left_out_of_blocks_where_all_are_one() -> None:
    with small_blocks(2):
        chunks = list(of(DENSE, np.array([1, 1, 0, 2.5])).chunks())
        assert chunks[0].weights is None
        assert chunks[1].weights is not None
        assert chunks[1].weights.tolist() == [0.0, 2.5]
        [both] = of(DENSE, np.array([1, 1, 0, 2.5])).chunks([[1, 0]])
        assert both.weights is not None
        assert both.weights.tolist() == [0.0, 2.5, 1.0, 1.0]


def test_what_the_caller_does_to_his_arrays_later_changes_nothing() -> None:
    X = sparse.csr_array(DENSE.astype(np.float32))
    X.indices = X.indices.astype(np.uint32).view(np.int32)
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    source = of(X, weights)
    before = all_bits(source)
    X.data[:] = 7
    weights[:] = 7
    assert all_bits(source) == before
    assert weights.flags.writeable
    assert X.data.flags.writeable


def test_readings_are_counted() -> None:
    with small_blocks(3):
        source = of(DENSE)
        next(source.chunks())
        assert source.nonzeros_read == 4
        list(source.chunks([[1], [1]]))
    assert (source.nonzeros_read, source.nonzeros, source.rows) == (6, 5, 4)
    assert source.readings == 6 / 5
