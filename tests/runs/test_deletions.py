"""Rows that are left out of their shard, and rows found by a value: what a reader makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamtron.core.errors import DataError, FileDamaged
from streamtron.core.sealed import write_sealed
from streamtron.data import ReaderConfig, deletions, find_shards, open_shards
from streamtron.data.deletions import Deletions
from streamtron.data.readers import rows_with


def test_rows_with_weights_and_several_labels_are_left_out_with_all_that_is_theirs(
    tmp_path: Path,
) -> None:
    rows = {"indices": [[1], [2], [3], [4]], "values": [[1.0], [2.0], [3.0], [4.0]]}
    labels = [["a"], ["b", "c"], [], ["a", "c"]]
    pq.write_table(pa.table({**rows, "labels": labels, "w": [1.0, 2, 3, 4]}), tmp_path / "a.pq")
    reading = ReaderConfig(multilabel=True, label_column="labels", weight_column="w")
    path = str(tmp_path / "a.pq")
    with open_shards([path], reading, cache_dir=None, most_labels=None) as source:
        [(_, fingerprint)] = source.fingerprints()
        source.exclude([Deletions(path, fingerprint, np.array([1, 2]))])
        [chunk] = source.chunks()
        assert source.labels == ["a", "c"]
    assert chunk.rows.indices.tolist() == [1, 4]
    assert chunk.rows.values.tolist() == [1.0, 4.0]
    assert chunk.codes.tolist() == [0, 0, 1]
    assert chunk.code_offsets.tolist() == [0, 1, 3]
    assert chunk.weights.tolist() == [1.0, 4.0]


@pytest.mark.parametrize(
    ("cells", "value", "rows"),
    [
        (["a", None, "b", "a"], "a", [0, 3]),
        (pa.array(["a", "b", None, "a"]).dictionary_encode(), "b", [1]),
        ([7, 70, 7, None], "7", [0, 2]),
        ([0.5, 0.25, float("nan"), 0.5], "0.5", [0, 3]),
        ([True, False, None, True], "false", [1]),
        (pa.array([b"a", b"b", b"a", None]), "a", [0, 2]),
        (pa.array(["2026-01-02", "2026-01-03", None, "2026-01-02"]).cast("date32"), "2026-01-03",
         [1]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_value_is_looked_for_as_the_column_has_it(
    suffix: str, cells: Any, value: str, rows: list[int], tmp_path: Path
) -> None:
    table = pa.table({"key": cells})
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            for batch in table.to_batches(max_chunksize=2):
                writer.write_batch(batch)
    [shard] = find_shards([str(path)])
    assert rows_with(shard, "key", [value, value])[0].tolist() == rows
    path.touch()
    with pytest.raises(DataError, match="changed"):
        rows_with(shard, "key", [value])


def test_deletions_that_are_damaged_or_none_of_ours_are_refused(tmp_path: Path) -> None:
    deletion = Deletions("/data/a.svm", "0" * 32, np.array([1, 5]))
    deletions.save(tmp_path / "deletions", [deletion])
    [found] = deletions.load(tmp_path).values()
    assert (found.path, found.fingerprint, found.rows.tolist()) == ("/data/a.svm", "0" * 32, [1, 5])
    written = bytearray((tmp_path / "deletions").read_bytes())
    written[-1] ^= 1
    (tmp_path / "deletions").write_bytes(written)
    with pytest.raises(FileDamaged, match="checksum"):
        deletions.load(tmp_path)
    table = [{"path": "a", "fingerprint": "b"}]
    for rows in (np.array([3, 3]), np.array([-1]), np.array([1.0]), np.zeros((1, 1), np.int64)):
        content = {"deletions_version": 1, "deletions": table}
        write_sealed(tmp_path / "deletions", content, {"000000.forgotten": rows})
        with pytest.raises(FileDamaged, match="rows that are not rising"):
            deletions.load(tmp_path)
    write_sealed(tmp_path / "deletions", {"deletions_version": 2}, {})
    with pytest.raises(DataError, match="not deletions of version 1"):
        deletions.load(tmp_path)
