"""Shards that cannot be read, and shards that do not stay as they are."""

import gzip
import lzma
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.layouts import write_table
from tests.helpers.models import refused
from tests.helpers.processes import here, one_sentence
from tests.helpers.shard_rows import data_of, small_blocks


@pytest.fixture(autouse=True)
def _blocks_are_small():
    with small_blocks(rows=7, nonzeros=1000):
        yield


def text(first: int, rows: int = 40) -> bytes:
    """libsvm text; row k has the label ±1 and two columns, the second of them k."""
    return b"".join(
        b"%d 1:%d.5 %d:1\n" % (1 if k % 3 else -1, k % 7, k + 2) for k in range(first, first + rows)
    )


def table(first: int, rows: int = 40) -> pa.Table:
    """The same as a table."""
    ks = range(first, first + rows)
    values = pa.array([[k % 7 + 0.5, 1.0] for k in ks], pa.list_(pa.float32()))
    labels = [1.0 if k % 3 else -1.0 for k in ks]
    return pa.table({"indices": [[1, k + 2] for k in ks], "values": values, "label": labels})


def table_bytes(path, columns):
    """A table as stored, in small groups."""
    write_table(path, columns, 16)
    return path.read_bytes()


def flipped(content, position):
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


def damaged_page(path):
    pq.write_table(
        table(40), path, row_group_size=16, write_page_checksum=True, use_dictionary=False
    )
    group = pq.read_metadata(path).row_group(2).column(1)
    return flipped(path.read_bytes(), group.data_page_offset + group.total_compressed_size - 3)


def null_label(path):
    labels = [*table(40)["label"].to_pylist()[:-1], None]
    return table_bytes(path, table(40).set_column(2, "label", pa.array(labels)))


MALFORMED = text(40)[:-3] + b"x\n"
NOISE = lzma.compress(np.random.default_rng(0).bytes(4000).hex().encode())
BAD = {
    "malformed": ("b.svm", lambda path: MALFORMED),
    "binary": ("b.svm", lambda path: bytes(range(256))),
    "cut off": ("b.svm.gz", lambda path: gzip.compress(text(40), 0)[:-9]),
    "not xz": ("b.svm.xz", lambda path: flipped(NOISE, len(NOISE) // 2)),
    "damaged page": ("b.parquet", damaged_page),
    "short parquet": ("b.parquet", lambda path: table_bytes(path, table(40))[:-1]),
    "other layout": ("b.parquet", lambda path: table_bytes(path, table(40).select(["label"]))),
    "null label": ("b.parquet", null_label),
    "short arrow": ("b.arrow", lambda path: table_bytes(path, table(40))[:-60]),
}
"""The name of a bad shard, and its content, by a path that may be written to."""


def write_good(directory: Path, like: str = "svm") -> None:
    """Two good shards of the format, before and behind the name."""
    directory.mkdir(exist_ok=True)
    for name, first in (("a", 0), ("c", 80)):
        if like.endswith(("parquet", "arrow")):
            write_table(directory / f"{name}.{like.rpartition('.')[2]}", table(first), 16)
        else:
            (directory / f"{name}.svm").write_bytes(text(first))


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_shard_ends_the_run_by_its_name_and_the_good_ones_before_it_stay_prepared(
    tmp_path, kind
):
    name, content = BAD[kind]
    write_good(tmp_path, name)
    (tmp_path / name).write_bytes(content(tmp_path / name))
    cache = tmp_path / "_cache"
    sentences = {refused(lambda: data_of(tmp_path, cache)) for _ in range(2)}
    assert [sentence[: len(name)] for sentence in sentences] == [name]
    assert [path.suffix for path in cache.iterdir()] == [".cache"]
    (tmp_path / name).unlink()
    with data_of(tmp_path, cache) as data:
        assert (data.rows, data.readings) == (80, 0.5)


def test_a_command_says_which_shard_is_bad_and_writes_nothing(tmp_path):
    write_good(tmp_path / "data")
    (tmp_path / "data" / "b.svm").write_bytes(MALFORMED)
    one_sentence(here(tmp_path, "fit", "data", "--model", "m"), 3, "b.svm, line 40")
    assert not (tmp_path / "m").exists()
