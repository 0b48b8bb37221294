"""Conversion: the rows that went in come out, all shards or none; the rest is refused."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamtron
from streamtron.core.errors import DataError, MachineError, SettingsError
from streamtron.core.rows import Label
from streamtron.data.formats.libsvm import LibsvmReader
from streamtron.data.formats.parquet import ParquetReader
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.row_batch import RowBatch
from streamtron.data.writers import shards as convert_module
from streamtron.data.writers.shards import (
    ROWS_PER_SHARD,
    Format,
    ShardStyle,
    Written,
    new_shards,
    write_shards,
)
from tests.helpers import shard_rows
from tests.helpers.examples import examples
from tests.helpers.models import refused
from tests.helpers.runs import WAS_KILLED, killed_at_call

Row = tuple[Label | None, dict[int, float], float]
"""label, values by column, weight"""


def batch_of(rows: list[Row], weighted: bool = False, place: str = "row {}") -> RowBatch:
    of_json = [(label, weight, values) for label, values, weight in rows]
    batch = shard_rows.make_batch(of_json, "", 0)
    ones = np.ones(batch.nonzeros, np.float32)
    return batch._replace(
        values=ones if batch.values is None else batch.values,
        weights=np.array([weight for _, _, weight in rows]) if weighted else None,
        place=place.format,
    )


def convert(
    batches: Iterable[RowBatch],
    destination: Path,
    to: Format,
    index_base: int = 0,
    text_base: int = 1,
    weights: bool = False,
    rows_per_shard: int = ROWS_PER_SHARD,
    overwrite: bool = False,
) -> Written:
    style = ShardStyle(to, (text_base if to == "libsvm" else 0) - index_base, weights)
    with new_shards(destination, overwrite) as place:
        return write_shards(batches, place, style, rows_per_shard)


def rows_of(batches: Iterable[RowBatch]) -> list[Row]:
    return [
        (label, dict(zip(columns, values, strict=True)), weight)
        for label, columns, values, weight in shard_rows.rows_of(batches)
    ]


def shards(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def batches_in(directory: Path, **reading: Any) -> Iterator[RowBatch]:
    for path in shards(directory):
        kind = ParquetReader if path.suffix == ".parquet" else LibsvmReader
        yield from kind(str(path), path.name, ReaderConfig(**reading)).batches()


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in shards(directory)}


SOME: list[Row] = [
    (1.0, {0: 0.5, 7: -2.0}, 1.0),
    (-1.0, {}, 1.0),
    (1.0, {3: 0.1}, 1.0),
    (2.5, {2**32 - 3: 1.0}, 1.0),
]

labels = st.floats(allow_nan=False, allow_infinity=False)
values = st.floats(width=32, allow_nan=False, allow_infinity=False)
rows_of_json = st.tuples(
    labels, st.dictionaries(st.integers(0, 2**32 - 3), values, max_size=5), st.floats(0, 1e9)
)
numbers = st.integers(0, 20), st.integers(1, 21), st.integers(0, 1)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(rows_of_json, min_size=1, max_size=20), *numbers)
def test_text_to_parquet_to_text_is_the_same_text(tmp_path_factory, rows, cut, most, base):
    root = tmp_path_factory.mktemp("round")
    first, second, third = root / "text", root / "parquet", root / "again"
    batches = [batch_of(part, weighted=True) for part in (rows[:cut], rows[cut:])]
    common = {"weights": True, "rows_per_shard": most}
    convert(batches, first, "libsvm", 0, base, **common)
    text = {"weights_in_label": True, "index_base": base}
    shifted = [(label, {c + base: v for c, v in row.items()}, w) for label, row, w in rows]
    assert rows_of(batches_in(first, **text)) == shifted
    written = convert(batches_in(first, **text), second, "parquet", base, **common)
    assert rows_of(batches_in(second, weight_column="weight")) == rows
    assert written[:2] == (len(rows), sum(len(row) for _, row, _ in rows))
    assert written.bytes == sum(path.stat().st_size for path in shards(second))
    convert(batches_in(second, weight_column="weight"), third, "libsvm", 0, base, **common)
    assert contents(third) == contents(first)


def test_every_kind_of_float32_is_written_so_that_float64_readers_get_it_back(tmp_path):
    floats = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    floats = floats[np.isfinite(floats)]
    # 7.038531e-26 read as float64 and rounded to float32 is the neighbour of the float it names.
    twice_rounded = np.float32(float.fromhex("0x1.5c87fap-84"))
    special = [twice_rounded, 2**24 + 2, 123456792, 3.4028235e38, 1e-45, 0.1, 1.0, -0.0]
    floats = np.concatenate([np.array(special, np.float32), floats])
    texts = convert_module._value_text(pa.array(floats)).to_pylist()
    assert np.array_equal(np.array(texts, np.float64).astype(np.float32), floats)
    assert texts[1:3] == ["16777218", "123456792"]
    assert texts[5:8] == ["0.1", "1", "-0"]
    assert np.float32(float(str(twice_rounded))) != twice_rounded, "the shortest is another float"
    assert len(texts[0]) > len(str(twice_rounded))


@pytest.mark.parametrize("labels", [("spam", "ham", ""), (True, False, True), (None, 2.0, None)])
def test_parquet_keeps_labels_of_every_kind(tmp_path, labels):
    rows = [(label, {1: 0.5}, 1.0) for label in labels]
    convert([batch_of(rows)], tmp_path, "parquet")
    back = rows_of(batches_in(tmp_path, labels="optional"))
    assert back == rows
    assert [type(row[0]) for row in back] == [type(label) for label in labels]


def test_text_is_plain_libsvm_in_the_base_asked_for_with_weights_behind_labels(tmp_path):
    convert([batch_of(SOME)], tmp_path / "1", "libsvm")
    convert([batch_of(SOME)], tmp_path / "0", "libsvm", text_base=0)
    assert [(tmp_path / base / "part-00000.svm").read_text() for base in "10"] == [
        "1 1:0.5 8:-2\n-1\n1 4:0.1\n2.5 4294967294:1\n",
        "1 0:0.5 7:-2\n-1\n1 3:0.1\n2.5 4294967293:1\n",
    ]
    rows = [(True, {1: 1.0}, 0.25), (False, {}, 3.0)]
    convert([batch_of(rows, weighted=True)], tmp_path / "w", "libsvm", 1, weights=True)
    assert (tmp_path / "w" / "part-00000.svm").read_text() == "1:0.25 1:1\n0:3\n"
    convert([batch_of(SOME)._replace(values=None)], tmp_path / "ones", "libsvm", weights=True)
    text = (tmp_path / "ones" / "part-00000.svm").read_text()
    assert text == "1:1 1:1 8:1\n-1:1\n1:1 4:1\n2.5:1 4294967294:1\n"


def test_shards_have_the_rows_asked_for_however_the_batches_were_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(convert_module, "GROUP_ROWS", 4)
    monkeypatch.setattr(convert_module, "GROUP_NONZEROS", 6)
    random = np.random.default_rng(1)
    rows = [
        (float(k % 3), {int(c): float(k) for c in random.choice(40, k % 9, replace=False)}, 1.0)
        for k in range(50)
    ]
    for to in ("parquet", "libsvm"):
        written = []
        for number, cuts in enumerate(([50], [1] * 50, [7, 0, 20, 23])):
            ends = np.cumsum(cuts)
            batches = [batch_of(rows[end - n : end]) for end, n in zip(ends, cuts, strict=True)]
            convert(batches, tmp_path / f"{to}{number}", to, rows_per_shard=15)
            written.append(contents(tmp_path / f"{to}{number}"))
        assert written[0] == written[1] == written[2]
    assert [len(text.splitlines()) for text in written[0].values()] == [15, 15, 15, 5]
    groups = [
        [len(row) for row in pq.ParquetFile(path).read_row_group(g)["indices"].to_pylist()]
        for path in shards(tmp_path / "parquet0")
        for g in range(pq.read_metadata(path).num_row_groups)
    ]
    assert all(len(group) <= 4 for group in groups)
    assert all(sum(group[:-1]) < 6 for group in groups), "the row that fills a group is its last"
    assert rows_of(batches_in(tmp_path / "parquet0")) == rows


def test_rows_wait_in_memory_for_no_more_than_a_row_group(tmp_path, monkeypatch):
    monkeypatch.setattr(convert_module, "GROUP_ROWS", 10)
    delivered, written, waiting = 0, 0, []
    text = convert_module._text

    def counting(group):
        nonlocal written
        waiting.append(delivered - written)
        written += len(group)
        return text(group)

    def source():
        nonlocal delivered
        for _ in range(500):
            delivered += len(SOME)
            numbers = np.ones(len(SOME))  # as labels, of which there are no classes
            yield batch_of(SOME)._replace(codes=numbers, classes=[])

    monkeypatch.setattr(convert_module, "_text", counting)
    assert convert(source(), tmp_path, "libsvm", rows_per_shard=700).rows == written == 2000
    assert max(waiting) < 10 + len(SOME) + 1


def test_every_page_is_written_with_a_checksum(tmp_path):
    convert([batch_of([(1.0, {k: k / 7 for k in range(30)}, 1.0)] * 50)], tmp_path, "parquet")
    [path] = shards(tmp_path)
    good = path.read_bytes()
    column = pq.read_metadata(path).row_group(0).column(1)
    end = column.dictionary_page_offset + column.total_compressed_size
    for position in (column.data_page_offset - 3, end - 3):  # dictionary page, data page
        bad = bytearray(good)
        bad[position] ^= 1
        path.write_bytes(bad)
        with pytest.raises(DataError, match="damaged"):
            rows_of(batches_in(tmp_path))


@pytest.mark.parametrize("error", [DataError("bad row"), KeyboardInterrupt()])
def test_a_conversion_that_fails_leaves_the_directory_as_it_was(tmp_path, error):
    def failing():
        yield batch_of(SOME)
        yield batch_of(SOME)
        raise error

    convert([batch_of(SOME)], tmp_path, "libsvm", rows_per_shard=1)
    before = contents(tmp_path)
    with pytest.raises(type(error)):
        convert(failing(), tmp_path, "libsvm", rows_per_shard=2, overwrite=True)
    assert contents(tmp_path) == before


def test_overwriting_replaces_all_shards_of_an_earlier_conversion_and_nothing_else(tmp_path):
    out = tmp_path / "out"
    convert([batch_of(SOME)], out, "libsvm", rows_per_shard=1)
    out.chmod(0o750)
    with pytest.raises(SettingsError, match=r"not empty, holds 4 shards from 'part-00000\.svm'"):
        convert([batch_of(SOME)], out, "parquet")
    convert([batch_of(SOME)], out, "parquet", overwrite=True)
    assert [path.name for path in shards(out)] == ["part-00000.parquet"]
    assert out.stat().st_mode & 0o777 == 0o750
    (out / "thesis.tex").write_text("mine")
    before = contents(out)
    for overwrite in (False, True):
        with pytest.raises(SettingsError, match=r"not empty, holds 'thesis\.tex'"):
            convert([batch_of(SOME)], out, "parquet", overwrite=overwrite)
    assert contents(out) == before
    assert [*tmp_path.iterdir()] == [out]


def test_a_destination_that_cannot_be_replaced_is_refused_before_any_row(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no directory")
    for place in (tmp_path / "file" / "x", tmp_path / "file"):
        with pytest.raises(MachineError, match=r"file(/x)?: cannot be written \("):
            convert(iter(()), place, "libsvm")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for place in (Path("."), tmp_path, Path("/proc")):
        with pytest.raises(SettingsError, match=r"cannot be replaced\. Name a new directory in it"):
            convert(iter(()), place, "libsvm", overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_writers_each_is_whole_and_only_one_that_may_replaces_the_other(tmp_path, overwrite):
    out = tmp_path / "out"
    with ExitStack() as stack:
        if not overwrite:
            stack.enter_context(pytest.raises(SettingsError, match=r"not empty, holds 1 shards"))
        place = Path(stack.enter_context(new_shards(out, overwrite)))
        (place / "part-00000.svm").write_text("1 9:9\n")
        convert([batch_of(SOME)], out, "libsvm")
        first = contents(out)
    assert (contents(out) == first) is not overwrite
    assert len(contents(out)) == 1
    assert [*tmp_path.iterdir()] == [out]


SINGLE = batch_of([(1.0, {}, 1.0)])


@pytest.mark.parametrize(
    ("before", "rows", "to", "sentence"),
    [
        ([], [("CCAT", {1: 1.0}, 1.0)], "libsvm", "0: label 'CCAT' is a string, and libsvm text"),
        (
            [SINGLE],
            [(1.0, {}, 1.0), (None, {}, 1.0)],
            "libsvm",
            "1: no label, and libsvm text needs",
        ),
        *(
            ([SINGLE], [(label, {1: 1.0}, 1.0)], "parquet", f"0: the {kind} {label!r} as label")
            for kind, label in (("string", "x"), ("boolean", True))
        ),
        ([], [(1.0, {}, 0.5)], "parquet", "0: row weights that would be lost. Ask for weights to"),
    ],
    ids=["string", "unlabelled", "mixed", "bool is no float", "weights"],
)
def test_what_cannot_be_written_is_refused_with_the_row(tmp_path, before, rows, to, sentence):
    batches = [*before, batch_of(rows, weighted=rows[0][2] != 1.0, place="a, row {}")]
    message = refused(lambda: convert(batches, tmp_path / "out", to))
    assert message.startswith(f"a, row {sentence}")
    assert not (tmp_path / "out").exists()


LINES = "".join(f"{1 - 2 * (k % 2)} {k % 7 + 1}:{k + 1}\n" for k in range(12))


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_conversion_killed_at_any_moment_leaves_all_shards_or_none(overwrite, tmp_path):
    (tmp_path / "a.svm").write_text(LINES)

    def write(out, rows, **options):
        streamtron.convert(tmp_path / "a.svm", out, to="libsvm", rows_per_shard=rows, **options)
        return contents(out)

    new, old = write(tmp_path / "wanted", 4), write(tmp_path / "old", 2) if overwrite else {}
    met = []
    for moment in count():
        out = tmp_path / str(moment)
        if overwrite:
            write(out, 2)
        how = {"to": "libsvm", "rows_per_shard": 4, "overwrite": overwrite}
        code, _ = killed_at_call(
            moment, "convert", tmp_path / "a.svm", {"destination": str(out), **how}
        )
        if code == 0:
            break
        assert code == WAS_KILLED
        met.append(contents(out) if out.exists() else {})
        assert write(out, 4, overwrite=True) == new
        assert not [*tmp_path.glob(f".{moment}.*")], "what is left is removed"
    assert all(found in (old, {}, new) for found in met)
    assert {} in met
    assert (old in met, new in met) == (True, True)
