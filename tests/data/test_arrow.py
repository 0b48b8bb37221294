"""The Arrow reader: IPC files, streams and Feather, compressed or not, and what damage may do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from streamtron.core.errors import DataError
from streamtron.core.feature_names import Vocabulary
from streamtron.data import open_shards
from streamtron.data.formats import tables
from streamtron.data.formats.arrow import ArrowReader
from streamtron.data.formats.parquet import ParquetReader
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import RowBatch
from streamtron.runs.fit import fit
from tests.helpers.layouts import LAYOUTS, NAMES, named
from tests.helpers.processes import Process
from tests.helpers.shard_rows import rows_of

Rows = list[dict[int, float]]
Write = Callable[[pa.Table, Path], None]


def _ipc(open_: Any, **options: Any) -> Write:
    def write(table: pa.Table, path: Path) -> None:
        chosen = pa.ipc.IpcWriteOptions(**options)
        with (
            pa.OSFile(str(path), "wb") as sink,
            open_(sink, table.schema, options=chosen) as writer,
        ):
            writer.write_table(table, max_chunksize=3)

    return write


FORMATS: dict[str, Write] = {
    "file": _ipc(pa.ipc.new_file),
    "stream": _ipc(pa.ipc.new_stream),
    "lz4 file": _ipc(pa.ipc.new_file, compression="lz4"),
    "zstd stream": _ipc(pa.ipc.new_stream, compression="zstd"),
    "feather": lambda table, path: pyarrow.feather.write_feather(table, path),
}

ROWS: Rows = [{0: 1.0, 3: -2.5}, {}, {5: 0.25}, {1: 4.0}, {0: 1e-3, 1: 2.0, 5: 7.0}, {2: 9.0}, {}]


def table_of(layout: str, rows: Rows = ROWS) -> pa.Table:
    extra = {"y": list(range(len(rows))), "other": [{"a": [None]}] * len(rows)}
    return pa.table(LAYOUTS[layout](rows) | extra)


def read(path: Path, **reading: Any) -> list[RowBatch]:
    return list(ArrowReader(str(path), "rows.arrow", ReaderConfig(**reading)).batches())


@pytest.mark.parametrize(
    ("layout", "format_"),
    [*((layout, "file") for layout in LAYOUTS), *(("map", format_) for format_ in FORMATS)],
)
def test_every_layout_gives_the_same_rows_as_in_parquet(
    tmp_path: Path, layout: str, format_: str
) -> None:
    table = table_of(layout)
    FORMATS[format_](table, tmp_path / "rows.arrow")
    pq.write_table(table, tmp_path / "rows.parquet")
    names = named({name: table[name] for name in table.schema.names})
    reading = ReaderConfig(names=Vocabulary(NAMES) if names else None)
    path = str(tmp_path / "rows.parquet")
    wanted = rows_of(list(ParquetReader(path, "rows.parquet", reading).batches()))
    assert rows_of(read(tmp_path / "rows.arrow", names=reading.names)) == wanted


@pytest.mark.parametrize("format_", ["file", "zstd stream"])
def test_a_row_is_named_by_its_record_batch_and_its_place_in_it(
    tmp_path: Path, format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BATCH_ROWS", 2)
    FORMATS[format_](table_of("map"), tmp_path / "rows.arrow")
    places = [p.place(i) for p in read(tmp_path / "rows.arrow") for i in range(len(p.codes))]
    assert places == [f"rows.arrow, record batch {k // 3}, row {k % 3}" for k in range(7)]
    bad = [*ROWS[:5], {2: float("nan")}]
    FORMATS[format_](table_of("map", bad), tmp_path / "rows.arrow")
    with pytest.raises(DataError, match=r"^rows\.arrow, record batch 1, row 2: value nan\."):
        read(tmp_path / "rows.arrow")


def test_arrow_columns_are_numbered_from_0_and_the_second_reading_comes_from_the_cache(
    tmp_path: Path,
) -> None:
    FORMATS["file"](table_of("map"), tmp_path / "a.arrow")
    with open_shards([str(tmp_path / "a.arrow")], most_labels=None,
                     cache_dir=str(tmp_path / "_cache")) as source:  # fmt: skip
        [first] = source.chunks()
        size = (tmp_path / "a.arrow").stat().st_size
        assert (source.index_base, source.bytes_read) == (0, 2 * size)
        [second] = source.chunks()
    assert first.rows.values.tolist() == second.rows.values.tolist()


def test_what_is_no_arrow_file_or_a_part_of_one_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrow"
    FORMATS["file"](table_of("map"), path)
    whole = path.read_bytes()
    feather_1 = b"FEA1" + bytes(20) + b"FEA1"
    for content in (b"", b"1 1:1\n", whole[:-1], whole[: len(whole) // 2], feather_1):
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            read(path)
        assert str(caught.value).startswith("rows.arrow: not an Arrow file, or a damaged one (")
    FORMATS["stream"](table_of("map"), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="damaged"):
        read(path)


FLIP = """
import sys, pathlib
import numpy as np
from streamtron.core.errors import StreamtronError
from streamtron.data.formats.arrow import ArrowReader
from streamtron.core.feature_names import Vocabulary
from streamtron.data.reader_config import ReaderConfig
path, names = pathlib.Path(sys.argv[1]), tuple(sys.argv[2].split(","))
good, random = path.read_bytes(), np.random.default_rng(0)
for position in range(len(good)):
    bad = bytearray(good)
    bad[position] ^= 1 << int(random.integers(8))
    path.write_bytes(bad)
    try:
        list(ArrowReader(str(path), "a", ReaderConfig(names=Vocabulary(names))).batches())
    except StreamtronError:
        pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "format_",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != "feather")) for name in FORMATS],
)
def test_a_flipped_bit_never_ends_in_a_crash_or_a_traceback(tmp_path: Path, format_: str) -> None:
    path = tmp_path / "a.arrow"
    labels = ["a", "b", "a", "b", "a", "b", "b"]
    FORMATS[format_](pa.table(LAYOUTS["map of names"](ROWS) | {"y": labels}), path)
    done = Process(FLIP, path, ",".join(NAMES), cwd=tmp_path).end()
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_table_whose_name_is_not_utf_8_is_read(ending: str, tmp_path: Path) -> None:
    table, plain = pa.table({"label": [1, 2], "f1": [1.0, 2.0]}), tmp_path / f"a.{ending}"
    (pq.write_table if ending == "parquet" else pyarrow.feather.write_feather)(table, plain)
    plain.rename(tmp_path / f"caf\udce9.{ending}")
    assert fit(tmp_path / f"caf\udce9.{ending}").weights.shape == (1,)
