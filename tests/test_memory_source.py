"""Rows in memory: whatever they come in, the chunks are those of the same rows in shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from streamtron.errors import DataError
from streamtron.shards import MemorySource, open_shards
from tests.test_source import bits, small_blocks

DENSE = np.array([[0, 2.5, 0, 1], [0, 0, 0, 0], [-1, 0, 0, 0.1], [0, 0, 3, 0]])
LABELS = [1, -1, -1, 1]


def all_bits(source: MemorySource) -> list[Any]:
    return [bits(chunk) for chunk in source.chunks()]


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr", "dia", "dok", "lil"])
@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix])
def test_every_sparse_format_gives_the_chunks_of_the_dense_array(format: str, kind: Any) -> None:
    X = kind(DENSE).asformat(format)
    before = X.toarray()
    if format == "bsr":
        X.eliminate_zeros()  # whole blocks are stored, and stored zeros stay
    with small_blocks(3):
        found = MemorySource(X, LABELS)
        if format != "bsr":
            assert all_bits(found) == all_bits(MemorySource(DENSE, LABELS))
        assert [len(chunk) for chunk in found.chunks()] == [3, 1]
    assert (X.toarray() == before).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint64, bool])
def test_values_of_every_type_become_float32(dtype: Any) -> None:
    X = np.array([[0, 1], [1, 0]], dtype)
    [chunk] = MemorySource(X, [0, 1]).chunks()
    assert chunk.rows.values.dtype == np.float32
    assert chunk.rows.values.tolist() == [1.0, 1.0]
    assert chunk.rows.indices.tolist() == [1, 0]


def test_the_chunks_are_bit_for_bit_those_of_a_shard(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    X = sparse.random_array((5000, 300), density=0.02, format="csr", rng=rng)
    y = rng.integers(0, 2, 5000)
    with (tmp_path / "a.svm").open("w") as file:
        for k in range(5000):
            here = slice(X.indptr[k], X.indptr[k + 1])
            pairs = zip(X.indices[here], X.data[here], strict=True)
            file.write(f"{y[k]} {' '.join(f'{c}:{float(v)!r}' for c, v in sorted(pairs))}\n")
    memory = MemorySource(X, y)
    with open_shards([str(tmp_path)], cache_dir=str(tmp_path / "_c")) as source:
        assert [bits(chunk) for chunk in source.chunks()] == all_bits(memory)
        order = [[1, 0]]
        wanted = [bits(chunk) for chunk in source.chunks(order)]
        assert [bits(chunk) for chunk in memory.chunks(order)] == wanted
    assert memory.labels == source.labels
    assert (memory.width, memory.blocks) == (source.width, source.blocks)


def test_unsorted_columns_are_sorted_in_a_copy() -> None:
    X = sparse.csr_array(([1.0, 2.0, 3.0], np.array([5, 2, 0], np.int64), [0, 2, 3]), shape=(2, 6))
    [chunk] = MemorySource(X, [0, 1]).chunks()
    assert chunk.rows.indices.tolist() == [2, 5, 0]
    assert chunk.rows.values.tolist() == [2.0, 1.0, 3.0]
    assert X.indices.tolist() == [5, 2, 0]


def test_zeros_stored_in_a_sparse_array_are_kept() -> None:
    X = sparse.csr_array(([0.0, 2.0], [1, 2], [0, 2]), shape=(1, 3))
    [chunk] = MemorySource(X, [1]).chunks()
    assert chunk.rows.indices.tolist() == [1, 2]


@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
def test_a_column_twice_in_a_row_is_refused(format: str) -> None:
    if format == "coo":
        X: Any = sparse.coo_array(([1.0, 2.0], ([0, 0], [3, 3])), shape=(1, 4))
    elif format == "csr":
        X = sparse.csr_array(([1.0, 9.0, 2.0], [3, 1, 3], [0, 3]), shape=(1, 4))
    else:
        X = sparse.csc_array(([1.0, 2.0], [0, 0], [0, 0, 0, 0, 2]), shape=(1, 4))
    with pytest.raises(DataError, match="twice"):
        MemorySource(X, [1])


@pytest.mark.parametrize(
    ("X", "words"),
    [
        ([[1.0], [np.nan]], "X, row 1: value nan is not finite"),
        ([[np.inf], [1.0]], "X, row 0: value inf is not finite"),
        ([[0.0], [1e39]], "X, row 1: value 1e+39 overflows float32"),
        ([[0], [2**24 + 1]], "X, row 1: value 16777217 is an integer beyond 2**24"),
        ([[-(2**24) - 1], [0]], "X, row 0: value -16777217 is an integer beyond 2**24"),
        ([1.0, 2.0], "X: 1 dimension(s)"),
        ([["a"], ["b"]], "X: values of type <U1"),
        ([[1j], [0]], "X: values of type complex128"),
        ([[1.0], [1.0, 2.0]], "X: not an array"),
        (np.zeros((0, 3)), "X: no rows"),
        (sparse.csr_array([[0.0, np.inf], [1.0, 0.0]]), "X, row 0: value inf"),
    ],
)
def test_values_that_float32_cannot_hold_are_refused_with_their_row(X: Any, words: str) -> None:
    with pytest.raises(DataError) as caught:
        MemorySource(X, [0, 1][: len(X) if isinstance(X, list) else None])
    assert str(caught.value).startswith(words)


def test_the_largest_integer_and_float_are_taken() -> None:
    [chunk] = MemorySource([[2**24], [-(2**24)]], [0, 1]).chunks()
    assert chunk.rows.values.tolist() == [2.0**24, -(2.0**24)]
    large = [[2**24 + 2], [-(2**63)], [2**40 + 2**20]]
    [chunk] = MemorySource(large, [0, 1, 0]).chunks()
    assert [int(value) for value in chunk.rows.values] == [row[0] for row in large]
    [chunk] = MemorySource(np.array([[2**63]], np.uint64), [0]).chunks()
    assert int(chunk.rows.values[0]) == 2**63
    [chunk] = MemorySource([[3.4e38]], [0]).chunks()
    assert np.isfinite(chunk.rows.values).all()


@pytest.mark.parametrize(
    ("y", "labels"),
    [
        (np.array([3, 1, 1, 3], np.int8), [3.0, 1.0]),
        (np.array([1.5, -1.5, -1.5, 1.5]), [1.5, -1.5]),
        (np.array([0.0, 1.0, 1.0, -0.0]), [0.0, 1.0]),
        (np.array([True, False, False, True]), [True, False]),
        (np.array(["spam", "ham", "ham", "spam"]), ["spam", "ham"]),
        (np.array(["spam", "ham", "ham", "spam"], object), ["spam", "ham"]),
        (np.array([2, 1.0, np.int64(1), 2], object), [2.0, 1.0]),
        ([True, False, False, True], [True, False]),
    ],
)
def test_labels_of_every_type_come_in_order_of_appearance(y: Any, labels: list[Any]) -> None:
    source = MemorySource(DENSE, y)
    [chunk] = source.chunks()
    assert source.labels == labels
    assert [type(label) for label in source.labels] == [type(label) for label in labels]
    assert chunk.codes.tolist() == [0, 1, 1, 0]
    assert chunk.codes.dtype == np.int32


def test_minus_zero_as_label_is_zero() -> None:
    for y in (np.array([-0.0, 1.0]), np.array([-0.0, 1], object)):
        assert repr(MemorySource(DENSE[:2], y).labels) == "[0.0, 1.0]"


def test_rows_without_labels_have_code_minus_one() -> None:
    source = MemorySource(DENSE)
    [chunk] = source.chunks()
    assert (chunk.codes.tolist(), source.labels) == ([-1] * 4, [])


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([1, 2, 3], "y: shape (3,). Wanted is (4,)"),
        ([[1], [2], [1], [2]], "y: shape (4, 1)"),
        ([1.0, np.nan, 2.0, 1.0], "y, row 1: label nan"),
        ([1, 2, 2**53, 1], "y, row 2: label 9007199254740992"),
        (np.array([1, "a", 1, "a"], object), "y, row 1: the string 'a' as label"),
        (np.array([1, True, 1, True], object), "y, row 1: the boolean True as label"),
        (np.array([1, None, 1, 1], object), "y, row 1: label None of type NoneType"),
        (np.array([b"a", b"b", b"a", b"b"]), "y, row 0: label b'a' of type bytes"),
        (np.array([1.0, np.inf, 1.0, 1.0], object), "y, row 1: label inf"),
    ],
)
def test_labels_that_are_none_are_refused_with_their_row(y: Any, words: str) -> None:
    with pytest.raises(DataError) as caught:
        MemorySource(DENSE, y)
    assert str(caught.value).startswith(words)


def test_weights_are_checked_and_left_out_of_blocks_where_all_are_one() -> None:
    with small_blocks(2):
        chunks = list(MemorySource(DENSE, LABELS, [1, 1, 0, 2.5]).chunks())
        assert chunks[0].weights is None
        assert chunks[1].weights is not None
        assert chunks[1].weights.tolist() == [0.0, 2.5]
        [both] = MemorySource(DENSE, LABELS, [1, 1, 0, 2.5]).chunks([[1, 0]])
        assert both.weights is not None
        assert both.weights.tolist() == [0.0, 2.5, 1.0, 1.0]
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(DataError, match="weights, row 2: weight"):
            MemorySource(DENSE, LABELS, [1, 1, bad, 1])
    with pytest.raises(DataError, match=r"weights: shape \(1,\)"):
        MemorySource(DENSE, LABELS, [1.0])


def test_what_the_caller_does_to_his_arrays_later_changes_nothing() -> None:
    X = sparse.csr_array(DENSE.astype(np.float32))
    X.indices = X.indices.astype(np.uint32).view(np.int32)
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    source = MemorySource(X, LABELS, weights)
    before = all_bits(source)
    X.data[:] = 7
    weights[:] = 7
    assert all_bits(source) == before
    assert weights.flags.writeable
    assert X.data.flags.writeable


def test_readings_are_counted() -> None:
    with small_blocks(3):
        source = MemorySource(DENSE, LABELS)
        next(source.chunks())
        assert source.nonzeros_read == 4
        list(source.chunks([[1], [1]]))
    assert (source.nonzeros_read, source.nonzeros, source.rows) == (6, 5, 4)
    assert source.readings == 6 / 5
