"""Data frames, tables, iterators of record batches and matrices in the place of shards."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import dask.dataframe
import numpy as np
import polars
import pyarrow as pa
import pyarrow.feather as feather
import pytest
from scipy import sparse

import streamtron
from streamtron.core.errors import DataError, SettingsError
from streamtron.data import ReaderConfig, find_shards, fingerprints
from streamtron.data.formats.given import standing
from tests.helpers.shard_rows import chunks_in

ROWS = 9000


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Three columns of numbers, one of labels in text."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 3)).astype(np.float32)
    label = np.where(x[:, 0] - x[:, 2] + rng.normal(size=ROWS) > 0, "yes", "no")
    return pa.table({"f0": x[:, 0], "f1": x[:, 1], "f2": x[:, 2], "answer": label})


@pytest.fixture(scope="module")
def of_shard(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> streamtron.LinearModel:
    """The model of the same rows in a file."""
    path = tmp_path_factory.mktemp("shard") / "rows.arrow"
    feather.write_feather(table, str(path), compression="uncompressed")
    return streamtron.fit(path, label="answer")


class Stream:
    """Has a stream of Arrow's record batches, and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.to_reader(max_chunksize=800).__arrow_c_stream__()


class Relation(Stream):
    """Streams as a relation of DuckDB does; all at once would be too much."""

    def to_arrow_reader(self, batch_size: int) -> pa.RecordBatchReader:
        return self._table.to_reader(max_chunksize=batch_size)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        raise MemoryError


class DataSet:
    """Has tables of Arrow as a data set of Hugging Face has them."""

    def __init__(self, table: pa.Table, format: str = "python") -> None:
        self._table, self._format = table, format

    def with_format(self, format: str) -> "DataSet":
        return DataSet(self._table, format)

    def iter(self, batch_size: int) -> Iterator[pa.Table]:
        assert self._format == "arrow"
        return (self._table.slice(k, 4000) for k in range(0, len(self._table), 4000))


MADE: dict[str, Callable[[Any], Any]] = {
    "table": lambda table: table,
    "batches": lambda table: iter(table.to_batches(max_chunksize=1000)),
    "reader": lambda table: table.to_reader(max_chunksize=700),
    "tables": lambda table: iter([table.slice(0, 10), table.slice(10)]),
    "polars": polars.from_arrow,
    "pandas": pa.Table.to_pandas,
    "LazyFrame": lambda table: polars.from_arrow(table).lazy(),
    "Dask": lambda table: dask.dataframe.from_pandas(table.to_pandas(), npartitions=3),
    "Hugging Face": DataSet,
    "DuckDB": Relation,
    "Arrow stream": Stream,
}


@pytest.mark.parametrize("made", MADE)
def test_a_table_in_memory_gives_the_model_of_the_same_rows_in_a_shard(made, table, of_shard):
    model = streamtron.fit(MADE[made](table), label="answer")
    assert model == of_shard
    assert model.predict(table)[:5].tolist() == of_shard.predict(table)[:5].tolist()


def test_features_are_named_as_in_shards_and_an_index_of_pandas_is_none(table):
    model = streamtron.fit(table, label="answer", features=["f2", "f0"])
    assert model.feature_names == ("f2", "f0")
    with pytest.raises(DataError, match="'f9'"):
        streamtron.fit(table, label="answer", features=["f9"])
    # what pandas says of an index that is a column, and of one that is a range
    for index in ("f1", {"kind": "range", "start": 0, "stop": ROWS, "step": 1}):
        told = {b"pandas": json.dumps({"index_columns": [index]}).encode()}
        model = streamtron.fit(table.replace_schema_metadata(told), label="answer")
        assert model.feature_names == (("f0", "f2") if index == "f1" else ("f0", "f1", "f2"))
    frame = table.to_pandas()  # the index of what pandas has filtered
    model = streamtron.fit(frame[frame["f1"] > 0], label="answer")
    assert model.feature_names == ("f0", "f1", "f2")


def test_categories_may_differ_from_batch_to_batch():
    def batches() -> Iterator[pa.RecordBatch]:
        for labels in (["a", "b"], ["b", "a"]):
            yield pa.record_batch(
                {
                    "label": pa.array(labels).dictionary_encode(),
                    "words": [["x"], ["y"]] if labels[0] == "a" else [["y"], ["x"]],
                }
            )

    assert streamtron.fit(batches(), hash_bits=8).predict([["x"], ["y"]]).tolist() == ["a", "b"]


def test_a_matrix_may_be_of_any_real_numbers_stored_twice_or_of_several_batches():
    wanted = streamtron.fit(np.eye(2), [1, 0])
    twice = sparse.csr_array(([0.5, 0.5, 1.0], [0, 0, 1], [0, 2, 3]), shape=(2, 2))
    kinds = (bool, np.int8, np.uint64, np.float16, np.longdouble, object)
    matrices = [np.eye(2).tolist(), sparse.csr_array(np.eye(2, dtype=bool)), twice]
    for matrix in (*matrices, *(np.eye(2).astype(kind) for kind in kinds)):
        assert streamtron.fit(matrix, [1, 0]) == wanted
    assert twice.nnz == 3  # the matrix is as it was
    rows = (1 << 16) + 3
    X = sparse.csr_array((np.ones(rows), np.arange(rows) % 4, np.arange(rows + 1)))
    model = streamtron.fit(X, (np.arange(rows) % 4 > 1).astype(int))
    assert model.certificate["rows_scanned"] == rows
    assert model.predict(np.eye(4)).tolist() == [0.0, 0.0, 1.0, 1.0]


def _labelled(name: str, kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"label": [0, 1], name: pa.array([1, 2], kind or pa.float64())})


@pytest.mark.parametrize(
    ("rows", "y", "sentence"),
    [
        (3, None, "a int: expected a pandas, polars or Dask data frame"),
        (iter([3]), None, "a int: expected a pandas, polars or Dask data frame"),
        (iter(()), None, "there are none"),
        (np.eye(2), None, "or a matrix with its labels, y"),
        (np.eye(2), [1, 0, 1], r"y of shape \(3,\)"),
        (np.ones(3), [1, 0, 1], r"X of shape \(3,\)"),
        (np.array([[np.nan], [1.0]]), [1, 0], "nan. Values must be finite"),
        (np.eye(2) + 1j, [1, 0], r"X of complex128 \(no real numbers\)"),
        (np.array([[{}], [1]]), [1, 0], r"X of object \(.*dict"),
        (np.eye(2), np.array([1, "a"], object), r"y of object \(.*labels of one kind"),
        (np.eye(2), np.array([2**64 - 1, 0], np.uint64), r"y of uint64 \("),
        (np.eye(2), [1, 1], "one label|only one|all 2 rows|expected two"),
        (pa.table({"label": [1, 0], "f0": [1.0, None]}), None, "null in column 'f0'"),
        (pa.table({"f0": [1.0]}), None, "^the rows given: no column for the labels"),
        (iter([_labelled("f0"), _labelled("f1")]), None, "f1 double after one with label"),
        (iter([_labelled("f0"), _labelled("f0", pa.int8())]), None, "the same columns and types"),
    ],
)
def test_rows_that_cannot_be_fitted_on_are_refused(rows, y, sentence):
    with pytest.raises(DataError, match=sentence):
        streamtron.fit(rows, y)


def test_rows_in_memory_have_no_run_and_leave_no_file(table, tmp_path, monkeypatch):
    with pytest.raises(TypeError, match="rows in memory: expected paths of shards"):
        streamtron.evaluate(streamtron.fit(table, label="answer", tol=0.5), table)
    with pytest.raises(SettingsError, match=r"write the model with fit\(…\)\.save\(path\)"):
        streamtron.fit(table, label="answer", model=tmp_path / "m.st")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    streamtron.fit(table, label="answer", tol=0.5).save(tmp_path / "m.st")
    assert [path.name for path in tmp_path.iterdir()] == ["m.st"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"class_weight": "balanced"},
        {"parts": 1},
        {"multiclass": True},
    ],
    ids=str,
)
def test_an_iterator_is_read_once_and_only_cached(settings, table, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    batches, written = table.to_batches(max_chunksize=1000), []

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            files = {path: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
            [cache] = {path.parent for path in files if "rows" not in str(path)} or {None}
            written.append(sum(size for path, size in files.items() if path.parent != cache))
            yield batch

    model = streamtron.fit(rows(), label="answer", tol=1e-6, **settings)
    assert model.predict(table).tolist().count("yes") > ROWS / 4
    assert model.certificate["relative_duality_gap"] <= 1e-6
    assert len(written) == len(batches)
    assert max(written) < 5000 < table.nbytes


def test_rows_that_are_needed_again_come_again_or_are_refused(table):
    reading = ReaderConfig(label_column="answer")

    def read_twice(rows: Any) -> list[int]:
        with standing(rows, None) as path:
            return [sum(map(len, chunks_in(path, reading=reading))) for _ in range(2)]

    assert read_twice(table) == read_twice(Stream(table)) == [ROWS, ROWS]
    with pytest.raises(DataError, match="an iterator, which can be read once"):
        read_twice(iter(table.to_batches()))


def test_rows_of_other_labels_have_another_fingerprint():
    found = set()
    for labels in ([["a", "b"], ["c"]], [["a"], ["b", "c"]]):
        rows, reading = pa.table({"label": labels, "f0": [1.0, 2.0]}), ReaderConfig(multilabel=True)
        with standing(rows, None) as path:
            found |= {*fingerprints(find_shards([path]), reading)}
    assert len(found) == 2


def test_rows_in_memory_are_not_those_of_another_process(table):
    with standing(table, None) as path:
        code = f"import streamtron; streamtron.fit({path!r}, label='answer')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "in the memory of another process. Give shards to workers." in done.stderr
