"""The readers of Parquet and Arrow: what they accept, how they name what they refuse, what damage
they notice."""

import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from streamtron.core.errors import StreamtronError
from streamtron.core.feature_names import Hashing, Vocabulary
from streamtron.data import find_shards
from streamtron.data.deletions import in_share
from streamtron.data.formats import tables
from streamtron.data.formats.arrow import ArrowReader
from streamtron.data.formats.parquet import ParquetReader
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.readers import rows_with
from streamtron.data.row_batch import RowBatch
from streamtron.runs.fit import fit
from tests.helpers.layouts import LAYOUTS, NAMES, Row, write_table
from tests.helpers.models import refused
from tests.helpers.shard_rows import rows_of

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path):
    """Write columns as a Parquet file; gives its path."""
    return lambda columns, rows=None: write_table(tmp_path / "rows.parquet", columns, rows)


def read(path: Path, **reading: Any) -> list[RowBatch]:
    kind = ParquetReader if path.suffix == ".parquet" else ArrowReader
    return list(kind(str(path), path.name, ReaderConfig(**reading)).batches())


def refusal(path: Path, **reading: Any) -> str:
    return refused(lambda: read(path, **reading))


SAMPLE = {"indices": [[0, 3], [1]], "values": [[0.5, 2.0], [1.0]], "label": [1, -1]}


def test_named_columns_are_taken_dots_in_names_included_and_others_are_never_decoded(write):
    path = write(
        {
            "my.rows": pa.array([[5], [6]]),
            "my": pa.array([[0.25], [0.75]]),
            "label.x": ["a", "b"],
            "indices": pa.array([[None], [None]], pa.list_(pa.int64())),
            "struct": pa.array([{"label": 1}, {"label": 2}]),
            "weight": pa.array([3, 0], pa.int16()),
        }
    )
    columns = {"features": ("my.rows",), "values_column": "my", "label_column": "label.x"}
    assert read(path, **columns)[0].weights is None
    batches = read(path, **columns, weight_column="weight")
    assert rows_of(batches) == [("a", [5], [0.25], 3.0), ("b", [6], [0.75], 0.0)]
    assert batches[0].weights.dtype == np.float64


def test_with_optional_labels_a_missing_column_and_a_null_both_give_code_minus_1(write):
    for label in ("a", 7.0):
        path = write(SAMPLE | {"label": pa.array([None, label])})
        assert [row[0] for row in rows_of(read(path, labels="optional"))] == [None, label]
    [batch] = read(
        write({name: SAMPLE[name] for name in ("indices", "values")}),
        labels="optional",
        label_column="y",
    )
    assert (batch.codes.tolist(), batch.classes) == ([-1, -1], [])


def test_columns_come_as_numbered_whatever_the_base_and_0_is_refused_in_base_1(write):
    path = write({"indices": [[1, 2**32 - 2]], "values": [[1, -(2**24)]], "y": [0]})
    for base in ("auto", 0, 1):
        [row] = rows_of(read(path, index_base=base))
        assert row == (0.0, [1, 2**32 - 2], [1.0, -(2.0**24)], 1.0)
    path = write({"indices": [[1]] * 17 + [[0]], "y": [1] * 18})
    sentence = "row 17: column 0 in a file declared 1-based. Use --index-base 0."
    assert refusal(path, index_base=1) == f"rows.parquet, row group 0, {sentence}"


def _packed(open_: Any, compression: str) -> Callable[[pa.Table, Path], None]:
    def write(table: pa.Table, path: Path) -> None:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with open_(str(path), table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=3)

    return write


IPC: dict[str, Callable[[pa.Table, Path], Any]] = {
    "file": lambda table, path: write_table(path, table, 3),
    "stream": lambda table, path: write_table(path.with_suffix(".arrows"), table, 3).rename(path),
    "lz4 file": _packed(pa.ipc.new_file, "lz4"),
    "zstd stream": _packed(pa.ipc.new_stream, "zstd"),
    "feather": lambda table, path: pyarrow.feather.write_feather(table, path),
}

ROWS: list[Row] = [
    {0: 1.0, 3: -2.5},
    {},
    {5: 0.25},
    {1: 4.0},
    {0: 1e-3, 1: 2.0, 5: 7.0},
    {2: 9.0},
    {},
]


@pytest.mark.parametrize("kind", IPC)
def test_every_kind_of_arrow_file_gives_the_rows_of_parquet(tmp_path, kind):
    table = pa.table(LAYOUTS["map"](ROWS) | {"y": [*range(7)], "other": [{"a": [None]}] * 7})
    IPC[kind](table, tmp_path / "rows.arrow")
    wanted = rows_of(read(write_table(tmp_path / "rows.parquet", table)))
    assert rows_of(read(tmp_path / "rows.arrow")) == wanted


def test_the_views_that_polars_writes_are_text(tmp_path):
    table = pa.table({"words": [["u"], ["v", "w"]], "y": ["a", "b"]})
    views = pa.schema({"words": pa.list_(pa.string_view()), "y": pa.string_view()})
    wanted = rows_of(read(write_table(tmp_path / "plain.arrow", table), names=Hashing(8)))
    path = write_table(tmp_path / "views.arrow", table.cast(views))
    assert rows_of(read(path, names=Hashing(8))) == wanted
    [shard] = find_shards([str(path)])
    assert rows_with(shard, "y", ["b"])[0].tolist() == [1]


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_table_whose_name_is_not_utf_8_is_read(ending, tmp_path):
    plain = write_table(tmp_path / f"a.{ending}", {"label": [1, 2], "f1": [1.0, 2.0]})
    plain.rename(tmp_path / f"caf\udce9.{ending}")
    assert fit(tmp_path / f"caf\udce9.{ending}").weights.shape == (1,)
    assert in_share("caf\udce9", np.arange(9), (0.0, 1.0)).all()


@pytest.mark.parametrize(
    ("name", "part"),
    [("a.parquet", "row group"), ("a.arrow", "record batch"), ("a.arrows", "record batch")],
)
def test_a_row_is_named_by_its_group_and_its_place_in_it(name, part, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BATCH_ROWS", 3)
    indices = [[k] for k in range(20)]
    path = write_table(tmp_path / name, {"indices": indices, "y": list(range(20))}, 8)
    places = [batch.place(i) for batch in read(path) for i in range(len(batch.codes))]
    assert places == [f"{name}, {part} {k // 8}, row {k % 8}" for k in range(20)]
    indices[13] = [-4]
    write_table(path, {"indices": indices, "y": list(range(20))}, 8)
    assert (
        refusal(path)
        == f"{name}, {part} 1, row 5: column -4. Column numbers run from 0 to 4294967294."
    )


def test_one_giant_row_group_is_read_in_bounded_memory(write):
    rows, length = 40_000, 100
    offsets = pa.array(np.arange(0, rows * length + 1, length, dtype=np.int32))
    numbers = np.tile(np.arange(length, dtype=np.uint32), rows)
    indices = pa.ListArray.from_arrays(offsets, pa.array(numbers))
    values = pa.ListArray.from_arrays(
        offsets, pa.array(np.random.default_rng(0).random(len(numbers)))
    )
    path = write({"indices": indices, "values": values, "y": np.zeros(rows)}, rows)
    decoded = indices.nbytes + values.nbytes
    del indices, values, numbers
    before = pa.total_allocated_bytes()
    peak = 0
    tracemalloc.start()
    for _ in ParquetReader(str(path), "rows", ReaderConfig()).batches():
        peak = max(peak, pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert peak < decoded * 0.6


def test_what_pyarrow_cannot_read_is_not_called_damaged(tmp_path):
    path = tmp_path / "rows.parquet"
    polars.DataFrame({"f0": [1, 2]}, schema={"f0": polars.Int128}).write_parquet(path)
    assert refusal(path).startswith("rows.parquet: holds what pyarrow cannot read (Integers")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.parquet", "a Parquet"), ("a.arrow", "an Arrow"), ("a.arrows", "an Arrow")],
)
def test_what_is_no_table_or_a_part_of_one_is_refused_by_name(name, kind, tmp_path):
    path = write_table(tmp_path / name, SAMPLE)
    good = path.read_bytes()
    parts = [good[: len(good) // 2]] if name == "a.arrows" else [good[:-1], good[20:]]
    for content in (b"", b"1 1:1\n", *parts, b"FEA1" + bytes(20) + b"FEA1"):
        path.write_bytes(content)
        sentence = refusal(path)
        assert sentence.startswith(f"{name}: not {kind} file, or a damaged one (")
        assert sentence.endswith("). Write or fetch it again.")


def test_a_flipped_bit_anywhere_is_either_refused_or_changes_nothing(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(SAMPLE), path, compression="zstd", write_page_checksum=True)
    good, rows = path.read_bytes(), rows_of(read(path))
    footer = range(len(good) - 8 - int.from_bytes(good[-8:-4], "little"), len(good) - 8)
    masks = [(position, 1 << position % 8) for position in range(0, len(good), 3)]
    for batches in flipped(path, [*masks, *((position, 4) for position in footer)]):
        assert rows_of(batches) == rows


def flipped(
    path: Path, masks: Iterable[tuple[int, int]], **reading: Any
) -> Iterator[list[RowBatch]]:
    """What is read of a file where these bits of a byte are flipped, unless it is refused."""
    good = path.read_bytes()
    for position, mask in masks:
        bad = bytearray(good)
        bad[position] ^= mask
        path.write_bytes(bad)
        with suppress(StreamtronError):
            yield read(path, **reading)


@pytest.mark.slow
@pytest.mark.parametrize("kind", IPC)
def test_a_flipped_bit_never_ends_in_a_crash_or_a_traceback(tmp_path, kind):
    path, labels = tmp_path / "a.arrow", ["a", "b", "a", "b", "a", "b", "b"]
    IPC[kind](pa.table(LAYOUTS["map of names"](ROWS) | {"y": labels}), path)
    bits = np.random.default_rng(0).integers(8, size=path.stat().st_size)
    masks = [(position, 1 << int(bit)) for position, bit in enumerate(bits)]
    assert list(flipped(path, masks, names=Vocabulary(NAMES)))
