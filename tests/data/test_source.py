"""From shards, and from rows in memory, to chunks: discovery, blocks, labels, what a source knows
and when."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from streamtron.core.errors import DataError
from streamtron.data import (
    Manifest,
    MemoryData,
    ReaderConfig,
    find_shards,
    storage,
)
from streamtron.data.manifest import ShardRecord
from streamtron.data.prefetch import THREAD_NAME, in_order, prefetch
from streamtron.data.readers import open_reader, resolve_reading
from streamtron.runs import convert
from tests.helpers.layouts import write_table
from tests.helpers.models import refused
from tests.helpers.shard_rows import (
    ListReader,
    chunks_of,
    data_of,
    lists_are_read,
)


@pytest.fixture(autouse=True)
def _shards_may_be_lists(monkeypatch):
    monkeypatch.setattr(ListReader, "opened", [])
    with lists_are_read():
        yield


def reading_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == THREAD_NAME]


def test_a_chunk_ends_with_the_4096th_row_or_the_row_that_fills_a_million_nonzeros():
    lengths = [0] * 5000 + [2**19, 2**19 - 1, 0, 1, 2**20 + 9, 2]
    columns = np.concatenate([np.arange(length) for length in lengths])
    X = sparse.csr_array((np.ones(len(columns)), columns, np.cumsum([0, *lengths])))
    data = MemoryData(X, np.zeros(len(lengths), int), [1.0])
    sizes = [(len(chunk), chunk.nonzeros) for chunk in data.chunks()]
    assert sizes == [(4096, 0), (904 + 4, 2**20), (1, 2**20 + 9), (1, 2)]


def test_the_blocks_of_a_shard_are_short_at_its_start_and_long_further_on():
    rows = 12 * 4096 + 300
    X = sparse.csr_array((np.ones(rows), np.zeros(rows, int), np.arange(rows + 1)))
    blocks = MemoryData(X, np.zeros(rows, int), [1.0]).blocks
    sizes = [block.rows for block in blocks]
    assert sizes == 4 * 32 * [128] + 4 * 16 * [256] + 4 * 8 * [512] + [100, 100, 100]
    assert [block.first_row for block in blocks] == np.cumsum([0, *sizes])[:-1].tolist()


@pytest.mark.parametrize("base", ["auto", 1])  # auto reads the rows for it first
def test_a_shard_replaced_while_it_is_converted_is_refused(base, tmp_path, monkeypatch):
    path, other = tmp_path / "a.svm", tmp_path / "other"
    path.write_text("1 1:1\n-1 2:1\n")
    other.write_text("1 1:7\n-1 2:7\n")

    def replacing(*given):
        batches = list(open_reader(*given).batches())
        other.replace(path)
        return SimpleNamespace(batches=lambda: iter(batches))

    monkeypatch.setattr(convert, "open_reader", replacing)
    with pytest.raises(DataError, match=r"a\.svm: changed .* \(written anew\)"):
        convert.convert(path, tmp_path / "out", index_base=base)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda m: m["shards"][0].pop("rows"), "not a manifest"),
        (lambda m: m["shards"][0].update(rows="3"), "rows of shard 'a.svm' is '3'"),
        (lambda m: m["shards"][0].update(rows=-3), "rows of shard 'a.svm' is -3"),
        (lambda m: m["shards"][1].update(first_row=2), "where the one before ends"),
        (lambda m: m.clear(), "not a manifest"),
    ],
)
def test_a_spoilt_manifest_is_refused(spoil, words):
    records = [
        ShardRecord(f"{name}.svm", f"/{name}.svm", "libsvm", 9, 0, 32 * name, rows, 0, first_row)
        for name, rows, first_row in (("a", 3, 0), ("b", 2, 3))
    ]
    content = Manifest(tuple(records)).to_dict()
    assert Manifest.from_dict(content).shards == tuple(records)
    spoil(content)
    with pytest.raises(DataError, match=words):
        Manifest.from_dict(content)


@pytest.mark.parametrize("suffix", ["svm", "parquet", "arrow", "arrows"])
def test_bytes_read_of_a_shard_grow_with_its_rows_to_its_size(suffix, tmp_path):
    path = tmp_path / f"a.{suffix}"
    if suffix == "svm":
        lines = (f"{k % 2} {k % 70 + 1}:0.25".ljust(60) + "\n" for k in range(60_000))
        path.write_text("".join(lines))
    else:
        table = {"indices": [[k % 70 + 1] for k in range(60_000)], "label": [0, 1] * 30_000}
        write_table(path, table, 7_000 if suffix == "parquet" else 20_000)
    [shard] = find_shards([str(path)])
    reader, delivered = open_reader(shard, resolve_reading(shard, ReaderConfig())), 0
    assert reader.bytes_read == 0
    for batch in reader.batches():
        delivered += len(batch.codes)
        assert reader.bytes_read == pytest.approx(shard.size * delivered / 60_000, rel=0.03)
    assert delivered == 60_000
    assert reader.bytes_read == pytest.approx(shard.size, rel=0.03)
    with data_of(path, tmp_path / "_cache") as data:
        base, times = (1, 1) if suffix == "svm" else (0, 2)  # a table is read again to be hashed
        assert (data.index_base, data.bytes_read) == (base, times * shard.size)


def test_reading_ahead_keeps_the_order_and_at_most_depth_items_wait():
    made = []
    closed_in = []
    waiting = threading.Event()

    def numbers():
        try:
            for k in range(100):
                made.append(k)
                if k == 3:  # one taken, two waiting: this one is in the producer's hand
                    waiting.set()
                yield k
        finally:
            closed_in.append(threading.current_thread().name)

    items = prefetch(numbers, depth=2)
    assert next(items) == 0
    assert waiting.wait(30)
    assert made == [0, 1, 2, 3]
    assert list(items) == list(range(1, 100))
    items = prefetch(numbers)
    next(items)
    items.close()
    assert closed_in == [THREAD_NAME] * 2
    assert reading_threads() == []


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_ahead_or_among_items_made_in_order_is_raised_after_the_results_before_it(threads):
    def items():
        yield from range(7)
        raise DataError("cut off")

    for results in (in_order(str, items(), threads), prefetch(lambda: map(str, items()))):
        assert [next(results) for _ in range(7)] == list("0123456")
        with pytest.raises(DataError, match="cut off"):
            next(results)
    assert reading_threads() == []
    results = in_order(lambda k: 1 // (3 - k), items(), threads)
    assert [next(results) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_items_made_in_order_are_asked_for_only_as_far_ahead_as_there_are_threads():
    asked = []

    def items():
        for k in range(100):
            asked.append(k)
            yield k

    results = in_order(str, items(), 3)
    assert next(results) == "0"
    assert asked == [0, 1, 2, 3]
    before = threading.active_count()
    results.close()
    assert threading.active_count() < before
    assert asked == [0, 1, 2, 3]


def test_a_reading_ahead_stops_in_the_midst_of_hashing_an_endless_file():
    def hashing():
        yield "begun"
        yield storage.fingerprint("/dev/zero", "zero")

    items = prefetch(hashing)
    next(items)
    items.close()
    assert reading_threads() == []


def plant(root: Path, *names: str) -> None:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"1 {number + 1}:1\n")


def names_in(*paths: Path | str) -> list[str]:
    return [shard.name for shard in find_shards([str(path) for path in paths])]


@pytest.mark.parametrize(
    ("there", "roots", "wanted"),
    [
        (
            "b.svm a/z.svm a-b/x.svm B.svm é.svm 10.svm 9.svm",
            "",
            "10.svm 9.svm B.svm a-b/x.svm a/z.svm b.svm é.svm",
        ),
        ("_x/a.svm _x/_SUCCESS _x/.crc _x/_t/b.svm _x/.t/c.svm", "_x", "a.svm"),
        ("_x/a.svm _x/_SUCCESS _x/.crc", "_x/_SUCCESS", "_SUCCESS"),
        ("_x/a.svm _x/_SUCCESS _x/.crc _x/_t/b.svm", "_x/*", "a.svm"),
        ("day-2/b.svm day-1/a.svm night/c.svm x[1].svm", "day-*", "day-1/a.svm day-2/b.svm"),
        ("day-2/b.svm x1.svm x[1].svm", "**/*.svm", "day-2/b.svm x1.svm x[1].svm"),
        ("x1.svm x[1].svm", "x[1].svm", "x[1].svm"),
        ("b/1.svm a/1.svm a/2.svm", "b a", "{}/b/1.svm {}/a/1.svm 2.svm"),
    ],
    ids=["byte order", "hidden", "a root", "below a pattern", "pattern", "all", "a name", "roots"],
)
def test_roots_and_patterns_stand_for_their_files_in_byte_order(there, roots, wanted, tmp_path):
    plant(tmp_path, *there.split())
    paths = [tmp_path / root for root in roots.split() or [""]]
    assert names_in(*paths) == wanted.replace("{}", str(tmp_path)).split()


def test_links_to_directories_are_followed_and_circles_end(tmp_path):
    plant(tmp_path, "far/a.svm", "near/b.svm")
    (tmp_path / "near" / "link").symlink_to(tmp_path / "far")
    for name in ("circle", "circus"):  # two, for one alone ends by itself, after forty rounds
        (tmp_path / "near" / name).symlink_to(tmp_path / "near")
    assert names_in(tmp_path / "near") == ["b.svm", "link/a.svm"]


def test_what_is_refused_is_named_by_the_path_that_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plant(tmp_path, "a.svm", "t/notes.md", "mixed/a.svm", "mixed/b.parquet", "mixed/c.parquet")
    (tmp_path / "b.svm").symlink_to(tmp_path / "a.svm")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for paths, words in (
        ([], "No shards: no path was given"),
        (["nowhere"], "nowhere: no such file or directory"),
        (["empty"], "empty: no shards there"),
        (["pipe"], "pipe: not a file"),
        (["mixed"], "a.svm is libsvm text and b.parquet is Parquet"),
        (["t/*.svm"], "t/*.svm: no shards there"),
        (["a.svm", f"{tmp_path}/a.svm"], f"{tmp_path}/a.svm: the same file as a.svm, given twice"),
        (["a.svm", "b.svm"], "b.svm: the same file as a.svm, given twice"),
    ):
        assert refused(lambda paths=paths: names_in(*paths)).startswith(words)


def test_where_no_thread_can_be_started_the_reason_is_a_sentence():
    code = (
        "import resource\n"
        "from streamtron.core.errors import MachineError\n"
        "from streamtron.data.prefetch import prefetch\n"
        "now = 4096 * int(open('/proc/self/statm').read().split()[0])\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + 2**20,) * 2)\n"
        "try:\n    next(prefetch(lambda: iter([1])))\n"
        "except MachineError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == ""
    assert "a thread for reading ahead cannot be started" in done.stdout


DENSE = np.array([[0, 2.5, 0, 1], [0, 0, 0, 0], [-1, 0, 0, 0.1], [0, 0, 3, 0]])


def of(X: Any, weights: Any = None) -> MemoryData:
    """The rows of X in memory, with the labels of DENSE."""
    return MemoryData(X, np.array([0, 1, 1, 0]), [1.0, -1.0], weights)


@pytest.mark.parametrize("column", [-1, 2**32 - 1])
def test_a_column_number_that_32_bits_cannot_hold_is_refused_and_a_zero_is_kept(column):
    X = sparse.csr_array(([0.0, 2.0], [1, 2], [0, 2]), shape=(1, 3))
    data = MemoryData(X, np.zeros(1, int), [1.0])
    [chunk] = data.chunks()
    assert data.numbers[chunk.rows.indices].tolist() == [1, 2]
    X = sparse.csr_array(([1.0], np.array([0]), [0, 1]), shape=(1, 2**33))
    X.indices = np.array([column])
    with pytest.raises(DataError, match=f"X: columns from {column} to {column}"):
        MemoryData(X, np.zeros(1, int), [1.0])


def test_what_the_caller_does_to_his_arrays_later_changes_nothing():
    X = sparse.csr_array(DENSE.astype(np.float32))
    X.indices = X.indices.astype(np.uint32).view(np.int32)
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    source = of(X, weights)
    before = chunks_of(source)
    X.data[:] = 7
    weights[:] = 7
    assert chunks_of(source) == before
    assert weights.flags.writeable
    assert X.data.flags.writeable
