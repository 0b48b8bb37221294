"""Shards that cannot be read, and shards that do not stay as they are."""

from __future__ import annotations

import gzip
import json
import lzma
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamtron.core.errors import DataError, MachineError, SettingsError
from streamtron.core.events import ReadingDone
from streamtron.core.feature_names import Hashing
from streamtron.data import ReaderConfig, ShardSource, cache_files, find_shards, open_shards
from streamtron.model.linear_model import LinearModel
from streamtron.runs.fit import fit
from tests.helpers.processes import command, here
from tests.helpers.shard_rows import bits, small_blocks


@pytest.fixture(autouse=True)
def _blocks_are_small() -> Iterator[None]:
    with small_blocks(rows=7, nonzeros=1000):
        yield


# What is a bad shard -----------------------------------------------------------------------------


def text(first: int, rows: int = 40) -> bytes:
    """libsvm text; row k has the label ±1 and two columns, the second of them k."""
    return b"".join(
        b"%d 1:%d.5 %d:1\n" % (1 if k % 3 else -1, k % 7, k + 2) for k in range(first, first + rows)
    )


def table(first: int, rows: int = 40) -> pa.Table:
    """The same as a table."""
    ks = range(first, first + rows)
    return pa.table(
        {
            "indices": [[1, k + 2] for k in ks],
            "values": pa.array([[k % 7 + 0.5, 1.0] for k in ks], pa.list_(pa.float32())),
            "label": [1.0 if k % 3 else -1.0 for k in ks],
        }
    )


def write_parquet(path: Path, content: pa.Table) -> bytes:
    pq.write_table(content, path, row_group_size=16, write_page_checksum=True, use_dictionary=False)
    return path.read_bytes()


def write_arrow(path: Path, content: pa.Table) -> bytes:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, content.schema) as writer:
        writer.write_table(content, max_chunksize=16)
    return path.read_bytes()


def malformed(path: Path) -> None:
    path.write_bytes(text(40)[:-3] + b"x\n")


def cut_off(path: Path) -> None:
    path.write_bytes(gzip.compress(text(40), 0)[:-9])


def not_xz(path: Path) -> None:
    packed = bytearray(lzma.compress(np.random.default_rng(0).bytes(4000).hex().encode()))
    packed[len(packed) // 2] ^= 1
    path.write_bytes(packed)


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)))


def damaged_page(path: Path) -> None:
    good = bytearray(write_parquet(path, table(40)))
    group = pq.read_metadata(path).row_group(2).column(1)
    good[group.data_page_offset + group.total_compressed_size - 3] ^= 1
    path.write_bytes(good)


def short_parquet(path: Path) -> None:
    path.write_bytes(write_parquet(path, table(40))[:-1])


def other_layout(path: Path) -> None:
    write_parquet(path, table(40).drop_columns(["values", "indices"]))


def null_label(path: Path) -> None:
    labels = [*table(40)["label"].to_pylist()[:-1], None]
    write_parquet(path, table(40).set_column(2, "label", pa.array(labels)))


def short_arrow(path: Path) -> None:
    path.write_bytes(write_arrow(path, table(40))[:-60])


Spoil = Callable[[Path], None]
BAD: list[tuple[Spoil, str]] = [
    (malformed, "b.svm"),
    (binary, "b.svm"),
    (cut_off, "b.svm.gz"),
    (not_xz, "b.svm.xz"),
    (damaged_page, "b.parquet"),
    (short_parquet, "b.parquet"),
    (other_layout, "b.parquet"),
    (null_label, "b.parquet"),
    (short_arrow, "b.arrow"),
]
each_bad = pytest.mark.parametrize(("spoil", "name"), BAD, ids=[bad[0].__name__ for bad in BAD])


def write_good(directory: Path, like: str) -> None:
    """Two good shards of the format, before and behind the name."""
    directory.mkdir(exist_ok=True)
    if like.endswith("parquet"):
        write_parquet(directory / "a.parquet", table(0))
        write_parquet(directory / "c.parquet", table(80))
    elif like.endswith("arrow"):
        write_arrow(directory / "a.arrow", table(0))
        write_arrow(directory / "c.arrow", table(80))
    else:
        (directory / "a.svm").write_bytes(text(0))
        (directory / "c.svm").write_bytes(text(80))


def opened(directory: Path, cache: Path | None, **options: Any) -> ShardSource:
    return open_shards([str(directory)], cache_dir=None if cache is None else str(cache), **options)


def everything(source: ShardSource) -> list[Any]:
    """All that two readings tell, the second in another order where there is a cache."""
    first = [bits(chunk) for chunk in source.chunks()]
    assert source.manifest is not None
    again = [bits(chunk) for chunk in source.chunks()]
    names = [shard.name for shard in source.manifest.shards]
    return [first, again, source.labels, source.width, source.blocks, source.index_base, names]


@each_bad
@pytest.mark.parametrize("cached", [True, False], ids=["cache", "no cache"])
def test_a_bad_shard_that_is_skipped_leaves_what_there_would_be_without_it(
    tmp_path: Path, spoil: Spoil, name: str, cached: bool
) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache" if cached else None
    write_good(data, name)
    with opened(data, cache and tmp_path / "other") as source:
        wanted = everything(source)
    spoil(data / name)
    for _ in range(2):  # the second time the good ones come from the cache
        with opened(data, cache, on_bad_shard="skip") as source:
            assert everything(source) == wanted
            [(left_out, reason)] = source.skipped
            assert left_out == name
            assert reason.startswith(name)
            assert name not in [shard.name for shard in source.shards]
    if cache:
        assert len(list(cache.glob("*.cache"))) == 2
        assert not list(cache.glob("*.tmp"))


def test_the_rows_before_a_bad_line_are_delivered_where_it_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_bytes(text(0, 90_000)[:-3] + b"x\n")
    with small_blocks(rows=7000, nonzeros=1_000_000), opened(tmp_path, None) as source:
        chunks = source.chunks()
        assert len(next(chunks)) == 7000
        with pytest.raises(DataError, match=r"a\.svm, line 90000"):
            list(chunks)


def test_the_first_shard_that_can_be_read_settles_the_layout(tmp_path: Path) -> None:
    write_good(tmp_path, "parquet")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with opened(tmp_path, None, on_bad_shard="skip") as source:
        assert sum(len(chunk) for chunk in source.chunks()) == 40
        assert source.reading.layout == "lists"
    with opened(tmp_path, None) as source, pytest.raises(DataError, match=r"a\.parquet"):
        source.chunks()


@pytest.mark.parametrize("suffix", ["svm", "parquet"])
@pytest.mark.parametrize("cached", [True, False])
def test_shards_that_are_all_bad_are_an_error_that_says_why(
    tmp_path: Path, suffix: str, cached: bool
) -> None:
    (tmp_path / "data").mkdir()
    for name in "ab":
        (tmp_path / "data" / f"{name}.{suffix}").write_bytes(b"1 1:x\n")
    source = opened(tmp_path / "data", tmp_path / "c" if cached else None, on_bad_shard="skip")
    with source, pytest.raises(DataError, match=rf"^a\.{suffix}"):
        list(source.chunks())


def test_what_the_machine_the_settings_or_the_labels_refuse_is_not_skipped(tmp_path: Path) -> None:
    write_good(tmp_path / "t", "svm")
    gone = ShardSource(find_shards([str(tmp_path / "t")]), ReaderConfig(), cache_dir=None,
                       on_bad_shard="skip")  # fmt: skip
    (tmp_path / "t" / "c.svm").unlink()
    with gone, pytest.raises(MachineError, match=r"c\.svm: cannot be read \(No such file"):
        list(gone.chunks())
    (tmp_path / "t" / "c.svm").write_bytes(b"7 1:1\n8 1:1\n")
    with (
        opened(tmp_path / "t", None, on_bad_shard="skip") as source,
        pytest.raises(DataError, match=r"c\.svm, line 1: a third label"),
    ):
        list(source.chunks())
    with (
        opened(tmp_path / "t", None, on_bad_shard="skip", most_columns=30) as source,
        pytest.raises(MachineError, match=r"a\.svm, line 29: column 30"),
    ):
        list(source.chunks())
    write_good(tmp_path / "p", "parquet")
    with (
        opened(
            tmp_path / "p", None, reading=ReaderConfig(features=("indices",), names=Hashing(3)),
            on_bad_shard="skip",
        ) as source,
        pytest.raises(SettingsError),
    ):  # fmt: skip
        list(source.chunks())


def test_a_shard_being_rewritten_is_refused_and_not_skipped(tmp_path: Path) -> None:
    class Disturbed:
        """A reader of a file that is being written."""

        def __init__(self, shard: Any, reading: ReaderConfig) -> None:
            self.shard = shard

        def batches(self) -> Iterator[Any]:
            Path(self.shard.path).write_bytes(b"half of")
            raise DataError(f"{self.shard.name}, line 1: half of a line.")
            yield

        def fingerprint(self) -> str:
            return "0" * 32

    write_good(tmp_path, "svm")
    source = ShardSource(find_shards([str(tmp_path)]), ReaderConfig(), cache_dir=None,
                         on_bad_shard="skip", open_reader=Disturbed)  # fmt: skip
    with source, pytest.raises(DataError, match=r"a\.svm: changed while the run was going"):
        list(source.chunks())


def test_only_the_first_complete_reading_leaves_shards_out(tmp_path: Path) -> None:
    write_good(tmp_path, "svm")
    malformed(tmp_path / "b.svm")
    with opened(tmp_path, None, on_bad_shard="skip") as source:
        first = [bits(chunk) for chunk in source.chunks()]
        (tmp_path / "b.svm").unlink()  # without effect
        assert [bits(chunk) for chunk in source.chunks()] == first
        before = (tmp_path / "c.svm").stat()
        content = (tmp_path / "c.svm").read_bytes()
        (tmp_path / "c.svm").write_bytes(b"?" + content[1:])
        os.utime(tmp_path / "c.svm", ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(DataError, match=r"c\.svm, line 1"):
            list(source.chunks())


def test_proving_a_shard_costs_no_reading_with_a_cache_and_one_without(tmp_path: Path) -> None:
    write_good(tmp_path / "data", "svm")
    for cache, readings in ((tmp_path / "cache", 1.0), (None, 2.0)):
        with opened(tmp_path / "data", cache, on_bad_shard="skip") as source:
            list(source.chunks())
            assert source.readings == readings
            list(source.chunks())
            assert source.readings == readings + 1


def test_a_cache_file_is_the_same_whether_its_shard_was_proven_first_or_not(tmp_path: Path) -> None:
    write_good(tmp_path / "data", "svm")
    for how in ("skip", "error"):
        with opened(tmp_path / "data", tmp_path / how, on_bad_shard=how) as source:
            list(source.chunks())
    one, other = ([Path(f).read_bytes() for f in cache_files(str(tmp_path / d)) if ".cache" in f]
                  for d in ("skip", "error"))  # fmt: skip
    assert len(one) == 2
    assert one == other


# What a fit says of them -------------------------------------------------------------------------


def test_a_fit_that_skips_says_so_in_summary_report_model_and_certificate(tmp_path: Path) -> None:
    write_good(tmp_path / "good", "svm")
    write_good(tmp_path / "data", "svm")
    malformed(tmp_path / "data" / "b.svm")
    assert command(tmp_path, "fit", "good", "--model", "wanted").returncode == 0
    done = here(tmp_path, "fit", "data", "--model", "m", "--report", "r.json")
    assert done.returncode == 3
    assert "b.svm, line 40" in done.stderr
    assert not (tmp_path / "m").exists()
    skip = ("--on-bad-shard", "skip")
    done = command(tmp_path, "fit", "data", "--model", "m", "--report", "r.json", *skip)
    assert done.returncode == 0, done.stderr
    [entry] = json.loads((tmp_path / "r.json").read_text())["skipped"]
    assert entry["name"] == "b.svm"
    assert entry["reason"].startswith("b.svm, line 40: ")
    assert entry["reason"] in done.stderr, "said at once"
    assert f"  {entry['reason']}" in done.stdout.splitlines()
    assert "The proof covers the 80 rows that were read." in done.stdout
    model, wanted = LinearModel.load(tmp_path / "m"), LinearModel.load(tmp_path / "wanted")
    assert model.weights.tobytes() == wanted.weights.tobytes()
    assert model.certificate == {**(wanted.certificate or {}), "skipped": [entry]}
    assert "skipped" not in (wanted.certificate or {})
    assert entry["reason"] in here(tmp_path, "inspect", "m").stdout
    verified = here(tmp_path, "certify", "m", "--json")
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["certificate"]["rows_scanned"] == 80
    looked = here(tmp_path, "inspect", "data", *skip, "--json")
    assert json.loads(looked.stdout)["skipped"] == [entry]


def test_a_bad_shard_that_is_a_part_of_its_own_or_is_held_out_in_a_fold_is_left_out(
    tmp_path: Path,
) -> None:
    write_good(tmp_path / "data", "svm")
    malformed(tmp_path / "data" / "b.svm")
    (tmp_path / "data" / "d.svm").write_bytes(text(120))
    skip = ("--on-bad-shard", "skip", "--C", "0.1,1")
    done = here(tmp_path, "fit", "data", "--model", "m", "--parts", "4", *skip[:2])
    assert done.returncode == 0, done.stderr
    assert "The proof covers the 120 rows that were read." in done.stdout
    assert here(tmp_path, "certify", "m").returncode == 0
    done = here(tmp_path, "sweep", "data", "--folds", "2", "--table", "t.csv", *skip)
    assert done.returncode == 0, done.stderr
    done = here(tmp_path, "sweep", "data", "--valid", "data", "--table", "u.csv", *skip)
    assert done.returncode == 3


# Shards that change ------------------------------------------------------------------------------


def vanish(path: Path) -> None:
    path.unlink()


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 20)


def change(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b".5 ", b".4 "))


def replace(path: Path) -> None:
    path.with_name("_new").write_bytes(path.read_bytes())
    path.with_name("_new").replace(path)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (vanish, r"c\.svm: cannot be read \(No such file or directory\)"),
        *((harm, r"c\.svm: changed while the run was going") for harm in (shrink, change, replace)),
    ],
)
@pytest.mark.parametrize("order", ["random", "sequential"])
def test_a_shard_that_does_not_stay_as_it_is_between_readings_ends_the_fit_by_name(
    tmp_path: Path, harm: Spoil, words: str, order: Literal["random", "sequential"]
) -> None:
    write_good(tmp_path / "data", "svm")
    passes = 0

    def listen(event: Any) -> None:
        nonlocal passes
        passes += isinstance(event, ReadingDone)
        if passes == 2:
            passes += 1
            harm(tmp_path / "data" / "c.svm")

    with pytest.raises((DataError, MachineError), match=words):
        fit(tmp_path / "data", model=tmp_path / "m", tol=0, stage="0.01", max_epochs=100,
            mini_epochs=0, order=order, on_bad_shard="skip", listen=listen)  # fmt: skip
    assert passes == 3
    assert not (tmp_path / "m").exists()


def test_a_later_reading_from_the_cache_looks_at_every_shard_first(tmp_path: Path) -> None:
    write_good(tmp_path / "data", "svm")
    with opened(tmp_path / "data", tmp_path / "cache") as source:
        list(source.chunks())
        (tmp_path / "data" / "a.svm").touch()
        with pytest.raises(DataError, match=r"a\.svm: changed while the run was going"):
            next(source.chunks([[0]]))


@pytest.mark.parametrize("options", [(), ("--order", "sequential"), ("--on-bad-shard", "skip")])
def test_a_shard_without_a_last_newline_is_read_and_named_once(
    options: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1")
    assert here(tmp_path, "fit", "a.svm", "--model", "m", *options).returncode == 0
    assert caplog.text.count("a.svm: the last line ends without a newline") == 1


@pytest.mark.parametrize("bad", ["label", "when"])
def test_of_a_shard_that_is_left_out_nothing_is_counted_for_the_recipe(
    bad: str, tmp_path: Path
) -> None:
    rows = {"city": ["a", "b"] * 10, "age": [*range(20)], "when": ["2026-01-02"] * 20}
    pq.write_table(pa.table(rows | {"label": [1, 2] * 10}), tmp_path / "0.parquet")
    rows |= {"city": ["c", "d"] * 10, "age": [1000] * 20, "label": [1, 2] * 10}
    rows[bad] = [*rows[bad][1:], None]
    pq.write_table(pa.table(rows), tmp_path / "1.parquet")
    columns = ("city:category", "age:number,scale=standard", "when:date,parts=month")
    settings = {"columns": columns, "on_bad_shard": "skip"}
    left_out = fit(tmp_path, **settings)
    alone = fit(tmp_path / "0.parquet", **settings)
    assert left_out.recipe == alone.recipe
    assert left_out.weights.tolist() == alone.weights.tolist()
