"""Prepared shards: found again, made again where damaged, never half, never larger than the disk;
and a shard that changes is never mixed."""

import fcntl
import gzip
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamtron.core.errors import DataError, FileDamaged, MachineError
from streamtron.core.executor import serial
from streamtron.data import clear_cache, find_shards, flat_file, manifest
from streamtron.data.flat_file import read_prepared
from streamtron.data.prepare import THREAD_NAME, Progress
from tests.helpers.models import refused
from tests.helpers.processes import ROOT
from tests.helpers.shard_rows import (
    ListReader,
    chunks_of,
    data_of,
    lists_are_read,
    small_blocks,
    write_shard,
)


@pytest.fixture(autouse=True)
def _shards_are_lists():
    with lists_are_read(), small_blocks():
        yield


@pytest.fixture
def shards(tmp_path):
    """Three shards: with values, with ones alone, with row weights; 7 + 9 + 6 rows."""
    directory = tmp_path / "shards"
    directory.mkdir()
    write_shard(directory / "a.svm", [(k % 2 + 0.0, 1.0, {k: k + 0.5, 9: -1.0}) for k in range(7)])
    write_shard(directory / "b.svm", [(k % 2 + 0.0, 1.0, {k: 1.0, 11: 1.0}) for k in range(9)])
    write_shard(directory / "c.svm", [(k % 2 + 0.0, k / 4, {k: 2.0}) for k in range(6)])
    return directory


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "_cache"


@pytest.fixture
def opened(monkeypatch):
    """The names of the shards whose batches were asked for."""
    monkeypatch.setattr(ListReader, "opened", names := [])
    return names


def read(shards: Path, cache: Path, **options: Any) -> tuple[Any, ...]:
    """All that one reading tells."""
    with data_of(shards, cache, **options) as data:
        numbers, facts = data.numbers.tolist(), data.facts
        return chunks_of(data), data.labels, numbers, data.blocks, data.manifest, facts


def flat_files(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.cache"))


def contents_of(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.iterdir()}


def test_a_later_run_opens_changed_shards_alone_and_the_time_of_one_tells(shards, cache, opened):
    first = read(shards, cache)
    assert opened == ["a.svm", "b.svm", "c.svm"]
    opened.clear()
    assert read(shards, cache) == first
    assert opened == []
    write_shard(shards / "b.svm", [(float(k % 2), 1.0, {k: 1.0, 12: 1.0}) for k in range(8)])
    assert read(shards, cache) == read(shards, cache.with_name("fresh"))
    assert opened[0] == "b.svm"
    assert len(opened) == 4
    assert len(flat_files(cache)) == 3, "the old file of b.svm is removed"
    status = (shards / "c.svm").stat()
    os.utime(shards / "c.svm", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    opened.clear()
    read(shards, cache)
    assert opened == ["c.svm"]


@pytest.mark.parametrize("threads", [1, 2])
def test_shards_that_take_the_names_of_others_are_prepared_side_by_side(shards, cache, threads):
    read(shards, cache)
    for old, new in (("c", "d"), ("b", "c"), ("a", "b")):
        (shards / f"{old}.svm").rename(shards / f"{new}.svm")
    write_shard(shards / "a.svm", [(0.0, 1.0, {1: 9.0})])
    found = read(shards, cache, how={"threads": threads})
    assert found == read(shards, cache.with_name("fresh"))
    assert len(flat_files(cache)) == 4


def test_shards_and_their_cache_moved_together_are_not_prepared_again(tmp_path, shards, opened):
    first = read(shards, shards / "_cache")
    shards.rename(tmp_path / "elsewhere")
    opened.clear()
    found = read(tmp_path / "elsewhere", tmp_path / "elsewhere" / "_cache")
    assert (found[:4], opened) == (first[:4], [])


@pytest.mark.parametrize("how", [{"threads": 2}, {"executor": serial}], ids=["threads", "workers"])
def test_the_same_files_are_made_whoever_makes_them_in_whatever_order(shards, cache, how):
    found = read(shards, cache)
    other = cache.with_name("other")
    (shards / "a.svm").rename(shards.with_name("a.svm"))
    read(shards, other, how=how)
    shards.with_name("a.svm").rename(shards / "a.svm")
    assert read(shards, other, how=how) == found
    assert contents_of(other) == contents_of(cache)


def test_two_runs_that_prepare_in_one_directory_keep_what_the_other_has_prepared(
    shards, cache, opened
):
    others = shards.with_name("others")
    others.mkdir()
    for name in "xyz":
        write_shard(others / f"{name}.svm", [(1.0, 1.0, {k: ord(name)}) for k in range(9)])
    runs = [
        threading.Thread(target=lambda d=directory: data_of(d, cache).close())
        for directory in (shards, others, shards)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    opened.clear()
    read(shards, cache)
    read(others, cache)
    assert opened == []


def test_another_version_is_made_afresh_with_a_warning(shards, cache, opened, monkeypatch, caplog):
    first = read(shards, cache)
    monkeypatch.setattr(flat_file, "FORMAT_VERSION", flat_file.FORMAT_VERSION + 1)
    with caplog.at_level(logging.WARNING, "streamtron"):
        assert read(shards, cache) == first
    assert len(opened) == 6
    assert caplog.text.count("another version") == 3


def flip(path: Path, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def read_all(path: Path) -> list[Any]:
    """All blocks and the table of a prepared file that nobody makes again."""
    shard = read_prepared(str(path))
    table = [column.tolist() for column in shard.table()]
    ranks, blocks = np.arange(len(table[0]), dtype=np.uint32), []
    ranks.setflags(write=False)
    for number, entry in enumerate(shard.entries):
        indices, values = np.empty(entry.nonzeros, np.uint32), np.empty(entry.nonzeros, np.float32)
        room = np.empty(entry.bytes, np.uint8)
        codes = np.arange(-1, len(shard.labels), dtype=np.int32)
        slot = flat_file.Slot(shard, number, codes, ranks)
        batch = slot.read(indices, values, room, by_row=False)
        blocks.append([array.tolist() for array in (batch.indptr, indices, values, batch.codes)])
    return [table, *blocks]


def test_any_byte_flipped_and_a_file_cut_off_anywhere_is_damaged(shards, cache):
    read(shards, cache)
    rng = random.Random(0)
    for path in flat_files(cache):
        whole, content = read_all(path), path.read_bytes()
        for byte in range(len(content)):
            flip(path, 8 * byte + rng.randrange(8))
            assert path.name in refused(lambda p=path: read_all(p), FileDamaged)
            path.write_bytes(content)
        assert read_all(path) == whole
    for length in reversed(range(len(content))):
        path.write_bytes(content[:length])
        assert path.name in refused(lambda p=path: read_all(p), FileDamaged)


def second_block(cache: Path, rows: int = 9) -> tuple[Path, int]:
    """The file of the one shard that has so many rows, and where its second block begins."""
    [path] = [f for f in flat_files(cache) if read_prepared(str(f)).rows == rows]
    return path, read_prepared(str(path)).entries[1].offset


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("in_memory", [False, True])
def test_damage_found_while_reading_is_refused_and_the_next_run_makes_the_file_anew(
    shards, cache, opened, is_cut, in_memory
):
    wanted = read(shards, cache)
    files = contents_of(cache)
    with data_of(shards, cache) as data:
        path, offset = second_block(cache)  # of b.svm
        flip(path, 8 * (offset + 1))
        if is_cut:
            os.truncate(path, offset + 3)
        opened.clear()
        message = refused(data.load if in_memory else lambda: [*data.chunks()], FileDamaged)
        assert message.startswith(f"{path}, block 1: the checksum differs")
    assert read(shards, cache) == wanted
    assert opened == ["b.svm"]
    assert contents_of(cache) == files


def test_a_shard_that_changed_since_it_was_found_is_refused_before_it_is_opened(
    shards, cache, opened, monkeypatch
):
    shard = shards / "b.svm"
    with data_of(shards, cache) as data:
        opened.clear()
        write_shard(shard, [(1.0, 1.0, {})] * 2)
        for action in (lambda: list(data.chunks()), data.load):
            message = refused(action)
            assert message.startswith("b.svm: changed while the run was going")
            assert "bytes when the run began" in message
    found = find_shards([str(shards)])
    shard.write_text(shard.read_text())
    monkeypatch.setattr("tests.helpers.shard_rows.find_shards", lambda _: found)
    for other in (cache, cache.with_name("other")):
        message = refused(lambda c=other: list(data_of(shards, c).chunks()))
        assert message.startswith("b.svm: changed while the run was going (written anew)")
    assert "b.svm" not in opened


def test_a_shard_that_changes_while_read_is_refused(tmp_path):
    class Disturbed(ListReader):
        def batches(self):
            yield from super().batches()
            write_shard(Path(self.path), [(1.0, 1.0, {})] * 2)

    write_shard(tmp_path / "a.svm", [(1.0, 1.0, {})])
    with lists_are_read(Disturbed):
        message = refused(lambda: data_of(tmp_path, tmp_path / "_c"))
    assert "a.svm: changed while the run was going" in message
    assert list((tmp_path / "_c").iterdir()) == []


def test_a_store_that_does_not_answer_is_waited_for_by_nobody(shards, cache, monkeypatch):
    waiting, done = threading.Event(), threading.Event()

    class Hanging(ListReader):
        def batches(self):
            if self.name == "c.svm":
                waiting.set()
                done.wait(60)
            assert waiting.wait(60)
            if self.name == "b.svm":
                raise DataError("b.svm: half.")
            return super().batches()

    monkeypatch.setattr("streamtron.data.prepare.PATIENCE", 0.1)
    with lists_are_read(Hanging):
        assert refused(lambda: data_of(shards, cache, how={"threads": 3})) == "b.svm: half."
    hanging = [t for t in threading.enumerate() if t.name == THREAD_NAME]
    assert [thread.daemon for thread in hanging] == [True]
    done.set()
    hanging[0].join()
    assert not list(cache.glob(".*")), "what it had begun is removed"


def test_preparing_tells_how_far_it_is(shards, cache):
    told = []

    def tell(progress: Progress) -> None:
        told.append((progress.bytes, progress.rows, progress.nonzeros))

    data_of(shards, cache, how={"tell": tell}).close()
    size = sum(shard.stat().st_size for shard in shards.iterdir())
    assert told[-1] == (size, 22, 38)


def test_an_error_leaves_whole_shards_and_no_part(shards, cache, opened):
    write_shard(shards / "b.svm", [(0.0, 1.0, {1: 1.0})] * 20 + [("x", 1.0, {})])
    assert refused(lambda: data_of(shards, cache)).startswith("b.svm, line 21: the string 'x'")
    assert [path.suffix for path in cache.iterdir()] == [".cache"]
    write_shard(shards / "b.svm", [(0.0, 1.0, {1: 1.0})] * 20)
    opened.clear()
    read(shards, cache)
    assert opened == ["b.svm", "c.svm"]


SLOWLY = """
import sys, time
from streamtron.data import Preparing, Dataset, ReaderConfig, find_shards
from tests.helpers.shard_rows import ListReader, lists_are_read, small_blocks

class Slow(ListReader):
    def batches(self):
        for batch in super().batches():
            yield batch
            if self.name == "b.svm":
                print("begun", flush=True)
                time.sleep(60)

with lists_are_read(Slow), small_blocks():
    Dataset.prepare(find_shards(sys.argv[1:2]), ReaderConfig(), Preparing(sys.argv[2]))
"""


def test_preparing_that_was_killed_goes_on_with_the_shards_that_are_whole(shards, cache, opened):
    write_shard(shards / "b.svm", [(0.0, 1.0, {k: 1.0}) for k in range(40)], [20, 20])
    command = [sys.executable, "-c", SLOWLY, str(shards), str(cache)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout.readline() == b"begun\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    left = list(cache.glob(".*"))
    assert len(left) == 1, "half of b.svm"
    found = read(shards, cache)
    assert opened == ["b.svm", "c.svm"]
    assert not left[0].exists()
    assert found == read(shards, cache.with_name("fresh"))


@small_blocks(500, 1500)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_huge_text_on_a_nearly_full_disk_is_refused_early(ending, tmp_path, cache, monkeypatch):
    text = b"".join(b"%d 1:0.5 7:1 %d:2\n" % (k % 2, k % 90 + 8) for k in range(20_000)) * 20
    path = tmp_path / f"huge.svm{ending}"
    path.write_bytes(gzip.compress(text, 1) if ending else text)
    with data_of(path, cache) as data:
        needed = data.bytes
    clear_cache(str(cache))
    usage, free = type(shutil.disk_usage("/")), needed * 9 // 10
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 0, free))
    written, write = [], flat_file.FlatWriter.write
    monkeypatch.setattr(
        flat_file.FlatWriter, "write", lambda *given: [written.append(1), write(*given)]
    )
    with pytest.raises(MachineError, match="still to be read needs about"):
        data_of(path, cache)
    assert list(cache.iterdir()) == []
    assert len(written) < 400, "of 800 chunks"
    free = needed * 11 // 10
    data_of(path, cache).close()


def test_a_directory_that_cannot_be_made_is_a_sentence(shards, cache):
    cache.write_text("a file")
    with pytest.raises(MachineError, match=r"cannot be written .*--cache-dir"):
        read(shards, cache)


def test_what_a_killed_run_left_is_removed_and_what_a_living_one_writes_is_not(shards, cache):
    cache.mkdir()
    dead, living = (cache / f".{name}.streamtron-cache" for name in ("dead0000", "living00"))
    dead.write_text("half a shard")
    with open(living, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        read(shards, cache)
    assert list(cache.glob(".*")) == [living]


def test_what_others_sweep_away_too_early_is_begun_anew(shards, cache, tmp_path, monkeypatch):
    wanted = read(shards, tmp_path / "other")
    real, swept = tempfile.mkstemp, []

    def mkstemp(*given, **named):
        """As a second process would come between, at the first two files."""
        descriptor, path = real(*given, **named)
        if path.endswith(".streamtron-cache") and len(swept) < 2:
            flat_file.remove_abandoned(str(cache))
            swept.append(path)
        return descriptor, path

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)
    assert read(shards, cache) == wanted
    assert len(swept) == 2
    assert contents_of(cache) == contents_of(tmp_path / "other")


def test_a_closed_data_set_stops_its_readings_and_their_threads(shards, cache):
    with data_of(shards, cache) as data:
        chunks = data.chunks()
        next(chunks)
    assert [*chunks] == []
    assert [t.name for t in threading.enumerate() if t.name.startswith("streamtron")] == []
    with pytest.raises(ValueError, match="The data set is closed"):
        next(data.chunks())


def test_a_store_that_does_not_answer_is_only_warned_of_where_shards_are_prepared(
    shards, cache, monkeypatch, caplog
):
    def silent(*_: Any) -> None:
        raise manifest.StoreError("s3://b/a: cannot be read.")

    with data_of(shards, cache) as data:
        monkeypatch.setattr(manifest, "stamp", silent)
        assert len(list(data.chunks())) == 6
    assert caplog.messages == ["s3://b/a: cannot be read. The reading goes on from the cache."]
