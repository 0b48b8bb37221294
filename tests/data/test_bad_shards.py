"""Shards that cannot be read, and shards that do not stay as they are."""

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamtron.core.errors import DataError, MachineError, SettingsError
from streamtron.core.executor import serial
from streamtron.core.feature_names import Hashing
from streamtron.data import Dataset, ReaderConfig, ShardRows, find_shards
from streamtron.model.linear_model import LinearModel
from streamtron.runs.fit import fit
from tests.helpers.layouts import write_table
from tests.helpers.models import refused
from tests.helpers.processes import here, one_sentence, succeeded
from tests.helpers.shard_rows import PLAIN, chunks_of, data_of, small_blocks


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


SKIP = {"on_bad_shard": "skip"}


def everything(data: Dataset) -> list[Any]:
    """All that a reading tells."""
    names = [shard.name for shard in data.manifest.shards]
    return [chunks_of(data), data.labels, data.numbers.tolist(), data.index_base, names]


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_shard_that_is_skipped_leaves_what_would_be_without_it(tmp_path, kind, caplog):
    name, content = BAD[kind]
    write_good(tmp_path, name)
    with data_of(tmp_path, tmp_path / "_good") as data:
        expected = everything(data)
    (tmp_path / name).write_bytes(content(tmp_path / name))
    cache = tmp_path / "_skipped"
    for how in ({"threads": 2}, {"executor": serial}):  # the second time the others are prepared
        caplog.clear()
        with data_of(tmp_path, cache, how=SKIP | how) as data:
            assert everything(data) == expected
            [(left_out, reason)] = data.skipped
            assert (left_out, reason[: len(name)]) == (name, name)
            assert caplog.messages == [f"{reason} The shard is left out."]
            assert data.seen == data.manifest.fingerprints | {name: ""}
    assert sorted(path.suffix for path in cache.iterdir()) == 2 * [".cache"]
    assert refused(lambda: data_of(tmp_path, cache)) == reason
    seen = data.seen | {name: "1"}
    message = refused(lambda: data_of(tmp_path, cache, how=SKIP, fingerprints=seen))
    assert message == f"{reason} Put it back as it was, forget it whole, or fit anew."
    [file] = find_shards([str(tmp_path / name)])
    with ShardRows(file, data.reading, on_bad_shard="skip") as shard:
        assert [*shard.chunks()] == []
        assert shard.refusal == reason


def test_the_first_shard_that_can_be_read_settles_the_layout(tmp_path):
    write_good(tmp_path, "parquet")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with data_of(tmp_path, tmp_path / "_cache", how=SKIP) as data:
        assert (data.rows, data.reading.layout, data.readings) == (40, "lists", 1.0)
    with pytest.raises(DataError, match=r"a\.parquet"):
        data_of(tmp_path, tmp_path / "_cache")


@pytest.mark.parametrize("suffix", ["svm", "parquet"])
def test_shards_that_are_all_bad_are_an_error_that_says_why(tmp_path, suffix):
    for name in "ab":
        (tmp_path / f"{name}.{suffix}").write_bytes(b"1 1:x\n")
    with pytest.raises(DataError, match=rf"^a\.{suffix}"):
        data_of(tmp_path, tmp_path / "_cache", how=SKIP)


def test_what_the_machine_or_the_settings_refuse_is_not_skipped(tmp_path):
    def refused_by(path, kind, reading=PLAIN, **expected):
        return refused(lambda: data_of(path, tmp_path / "_cache", reading, SKIP, **expected), kind)

    write_good(tmp_path / "t")
    [file] = find_shards([str(tmp_path / "t" / "c.svm")])
    (tmp_path / "t" / "c.svm").unlink()
    with ShardRows(file, PLAIN, on_bad_shard="skip") as shard:
        words = refused(lambda: list(shard.chunks()), MachineError)
    assert "c.svm: cannot be read (No such file" in words
    write_good(tmp_path / "p", "parquet")
    refused_by(tmp_path / "p", SettingsError, ReaderConfig(features=("indices",), names=Hashing(3)))


def test_a_fit_that_skips_says_so_in_summary_report_model_and_certificate(tmp_path, caplog):
    write_good(tmp_path / "good")
    write_good(tmp_path / "data")
    (tmp_path / "data" / "b.svm").write_bytes(MALFORMED)
    wanted, skip = fit(tmp_path / "good"), ("--on-bad-shard", "skip")
    done = here(tmp_path, "fit", "data", "--model", "m")
    one_sentence(done, 3, "b.svm, line 40")
    assert not (tmp_path / "m").exists()
    done = succeeded(here(tmp_path, "fit", "data", "--model", "m", "--report", "r.json", *skip))
    [entry] = json.loads((tmp_path / "r.json").read_text())["skipped"]
    assert entry["name"] == "b.svm"
    assert entry["reason"].startswith("b.svm, line 40: ")
    assert entry["reason"] in caplog.text, "said at once"
    assert f"  {entry['reason']}" in done.stdout.splitlines()
    assert "The proof covers the 80 rows that were read." in done.stdout
    model = LinearModel.load(tmp_path / "m")
    assert model.weights.tobytes() == wanted.weights.tobytes()
    assert model.certificate == {**wanted.certificate, "skipped": [entry]}
    assert "skipped" not in wanted.certificate
    assert entry["reason"] in here(tmp_path, "inspect", "m").stdout
    proof = json.loads(here(tmp_path, "certify", "m", "--json").stdout)
    assert proof["certificate"]["rows_scanned"] == 80
    seen = json.loads(here(tmp_path, "inspect", "data", *skip, "--json").stdout)
    assert seen["skipped"] == [entry]


def test_a_bad_shard_that_is_a_part_of_its_own_or_is_held_out_in_a_fold_is_left_out(tmp_path):
    write_good(tmp_path / "data")
    (tmp_path / "data" / "b.svm").write_bytes(MALFORMED)
    (tmp_path / "data" / "d.svm").write_bytes(text(120))
    skip = ("--on-bad-shard", "skip", "--C", "0.1,1")
    done = succeeded(here(tmp_path, "fit", "data", "--model", "m", "--parts", "3", *skip[:2]))
    assert "The proof covers the 120 rows that were read." in done.stdout
    assert here(tmp_path, "certify", "m").returncode == 0
    succeeded(here(tmp_path, "sweep", "data", "--folds", "2", "--table", "t.csv", *skip))
    done = here(tmp_path, "sweep", "data", "--valid", "data", "--table", "u.csv", *skip)
    assert done.returncode == 3


@pytest.mark.parametrize("bad", ["age", "when"])
def test_a_transformer_is_not_fitted_on_a_shard_that_is_left_out(bad, tmp_path):
    rows = {"city": ["a", "b"] * 10, "age": [*range(20)], "when": ["2026-01-02"] * 20}
    pq.write_table(pa.table(rows | {"label": [1, 2] * 10}), tmp_path / "0.parquet")
    rows |= {"city": ["c", "d"] * 10, "age": [1000] * 20, "label": [1, 2] * 10}
    rows[bad] = ["what"] * 20
    pq.write_table(pa.table(rows), tmp_path / "1.parquet")
    columns = ("city:category", "age:number", "when:date")
    settings = {"columns": columns, "on_bad_shard": "skip"}
    left_out = fit(tmp_path, **settings)
    alone = fit(tmp_path / "0.parquet", **settings)
    assert left_out.transformer == alone.transformer
    assert left_out.weights.tolist() == alone.weights.tolist()
