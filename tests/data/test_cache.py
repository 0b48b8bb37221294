"""The cache: found again, never wrong, never half, never larger than the disk."""

import fcntl
import gzip
import logging
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, FileDamaged, MachineError
from streamtron.data import cache_files, clear_cache, open_shards
from streamtron.data.blocks import Buffers
from streamtron.data.cache import flat_file
from streamtron.data.cache.flat_file import CachedShard, GroupReader, read_contents
from streamtron.solver.learner import Learner
from tests.helpers.shard_rows import (
    ListReader,
    bits,
    chunks_in,
    chunks_of,
    small_blocks,
    source_of,
    write_shard,
)
from tests.helpers.sources import train


@pytest.fixture(autouse=True)
def _blocks_are_small():
    with small_blocks():
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
    return tmp_path / "cache"


@pytest.fixture
def opened(monkeypatch):
    """The names of the shards whose batches were asked for."""
    monkeypatch.setattr(ListReader, "opened", names := [])
    return names


def read(shards: Path, cache: Path, **options: Any) -> tuple[Any, ...]:
    """All that one reading tells."""
    with source_of(shards, cache, **options) as source:
        return chunks_of(source), source.labels, source.width, source.blocks, source.manifest


def flat_files(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.cache"))


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


def test_two_runs_that_write_one_cache_keep_what_the_other_has_cached(shards, cache, opened):
    others = shards.with_name("others")
    others.mkdir()
    for name in "xyz":
        write_shard(others / f"{name}.svm", [(1.0, 1.0, {k: ord(name)}) for k in range(9)])
    with source_of(shards, cache) as one, source_of(others, cache) as two:
        first, second = one.chunks(), two.chunks()
        next(first)
        next(second)
        for chunks in (first, second):  # neither has got to its last shard
            list(chunks)
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


@contextmanager
def flipped(path: Path, bit: int) -> Iterator[None]:
    """One bit of a file is the other way round for a while."""
    flip(path, bit)
    yield
    flip(path, bit)


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def read_all(path: Path) -> list[Any]:
    return list(CachedShard(str(path), "a.svm", read_contents(str(path))).batches())


def test_a_bit_flipped_anywhere_or_a_file_cut_off_anywhere_is_damaged(shards, cache):
    read(shards, cache)
    path, *others = flat_files(cache)
    contents = read_contents(str(path))
    footer = contents.entries[-1].offset + contents.entries[-1].bytes
    for byte in [*range(len(flat_file._HEAD)), *range(footer, path.stat().st_size)]:
        with flipped(path, 8 * byte + byte % 8), pytest.raises(FileDamaged, match=path.name):
            read_contents(str(path))
    assert read_contents(str(path)) == contents
    rng = random.Random(0)
    for file in (path, *others):
        for _ in range(200):
            bit = rng.randrange(8 * file.stat().st_size)
            with flipped(file, bit), pytest.raises(FileDamaged, match=file.name):
                read_all(file)
        assert read_all(file)
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(FileDamaged):
            read_all(path)


def second_block(cache: Path, rows: int = 9) -> tuple[Path, int]:
    """The file of the one shard that has so many rows, and where its second block begins."""
    [path] = [f for f in flat_files(cache) if sum(len(p.codes) for p in read_all(f)) == rows]
    return path, read_contents(str(path)).entries[1].offset


@pytest.mark.parametrize(("is_known", "is_cut"), [(False, True), (True, False)])
def test_damage_found_later_costs_a_warning(shards, cache, opened, caplog, is_known, is_cut):
    first = read(shards, cache)[0]
    cache = cache if is_known else cache.with_name("own")
    with source_of(shards, cache) as source:
        assert chunks_of(source) == first
        path, offset = second_block(cache)  # of b.svm
        size = path.stat().st_size
        flip(path, 8 * (offset + 5))
        if is_cut:
            os.truncate(path, offset + 3)
        opened.clear()
        for order in (None, [[0], [1], [2], [3], [4], [5]]):
            assert [bits(chunk) for chunk in source.chunks(order)] == first
    assert opened == ["b.svm"], "made afresh once, and whole from then on"
    [warning] = caplog.messages
    assert warning.startswith(f"{path}, {'it is cut off' if is_cut else 'block 1: the checksum'}")
    assert warning.endswith("It is rebuilt from b.svm.")
    assert path.stat().st_size == size
    assert read_all(path)


@pytest.mark.parametrize("byte", [0, -1, -60, "second segment", "of another shard"])
def test_a_later_run_makes_a_damaged_file_afresh(byte, shards, cache, opened, caplog):
    first = read(shards, cache)
    files = [(path, path.read_bytes()) for path in flat_files(cache)]
    path, offset = second_block(cache)  # of b.svm
    if byte == "of another shard":
        shutil.copy(next(other for other, _ in files if other != path), path)
    else:
        flip(path, 8 * ((offset if isinstance(byte, str) else byte) % path.stat().st_size))
    opened.clear()
    assert read(shards, cache) == first
    assert opened == ["b.svm"]
    [warning] = caplog.messages
    assert str(path) in warning
    assert "It is rebuilt from b.svm." in warning
    assert [(path, path.read_bytes()) for path in flat_files(cache)] == files


def test_a_damaged_file_whose_source_has_other_bytes_now_is_refused_and_stays(shards, cache):
    with source_of(shards, cache) as source:
        list(source.chunks())
        path, offset = second_block(cache)
        flip(path, 8 * (offset + 5))
        shard = shards / "b.svm"
        before = shard.stat()
        text = shard.read_text()
        shard.write_text(text.replace('"11": 1.0', '"12": 1.0'))
        os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))  # only the bytes tell
        with pytest.raises(DataError, match=r"b\.svm: changed .*what the cache was made of"):
            list(source.chunks())
        assert path.exists()
        shard.write_text(text)
        os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert len(list(source.chunks())) == 6


def test_a_damaged_file_whose_source_reads_otherwise_now_is_refused(shards, cache):
    class Fickle(ListReader):
        """Of the same bytes it makes other rows each time."""

        def batches(self):
            for batch in super().batches():
                yield batch._replace(indices=batch.indices + np.uint32(len(self.opened)))

    with source_of(shards, cache, open_reader=Fickle) as source:
        list(source.chunks())
        path, offset = second_block(cache)
        flip(path, 8 * (offset + 5))
        with pytest.raises(FileDamaged, match="rebuilt it holds other rows than before"):
            list(source.chunks())


def test_a_reading_left_early_keeps_whole_shards_and_no_part(shards, cache, opened):
    with source_of(shards, cache) as source:
        chunks = source.chunks()
        next(chunks), next(chunks)
        source.close()
    names = sorted(path.name for path in cache.iterdir())
    assert all(name.endswith((".cache", ".source")) for name in names), names
    made = len(flat_files(cache))
    assert made < 3
    opened.clear()
    read(shards, cache)
    assert opened == ["a.svm", "b.svm", "c.svm"][made:]


@small_blocks(500, 1500)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_huge_text_on_a_nearly_full_disk_is_refused_early(ending, tmp_path, cache, monkeypatch):
    text = b"".join(b"%d 1:0.5 7:1 %d:2\n" % (k % 2, k % 90 + 8) for k in range(20_000)) * 20
    path = tmp_path / f"huge.svm{ending}"
    path.write_bytes(gzip.compress(text, 1) if ending else text)
    with open_shards([str(path)], cache_dir=str(cache)) as source:
        needed = sum(16 * len(chunk) + 8 * chunk.nonzeros for chunk in source.chunks())
    clear_cache(str(cache))
    written, usage = [], type(shutil.disk_usage("/"))
    monkeypatch.setattr(flat_file.FlatWriter, "write", lambda _, segment: written.append(segment))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 0, needed * 9 // 10))
    with pytest.raises(MachineError, match="still to be read needs about"):
        chunks_in(path, cache_dir=str(cache))
    assert written == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 0, needed * 11 // 10))
    with open_shards([str(path)], cache_dir=str(cache)) as source:
        next(source.chunks())
    assert written


def test_a_cache_directory_that_cannot_be_made_is_a_sentence(shards, cache):
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
    names = [sorted(path.name for path in place.iterdir()) for place in (cache, tmp_path / "other")]
    assert names[0] == names[1]


def test_reading_and_clearing_remove_what_is_ours_and_nothing_else(shards, cache):
    cache.mkdir()
    theirs = {"mine.txt", "important.tmp", "k.cache", "k.source", ".k.streamtron-cache"}
    for name in {*theirs, "sources.sealed"}:  # the list that the sources were once in
        (cache / name).write_text("keep")
    read(shards, cache)
    size = sum(os.stat(path).st_size for path in cache_files(str(cache)))
    assert clear_cache(str(cache)) == size > 0
    assert {path.name for path in cache.iterdir()} == theirs
    assert clear_cache(str(cache / "nowhere")) == 0


def test_kept_chunks_keep_their_rows_and_others_share_few_buffers(shards, cache, monkeypatch):
    readers = []

    class Watched(GroupReader):
        def __init__(self):
            super().__init__()
            readers.append(self)

    monkeypatch.setattr("streamtron.data.source.GroupReader", Watched)
    with source_of(shards, cache) as source:
        first = chunks_of(source)
        for _ in range(3):
            for _ in source.chunks([[k % 6] for k in range(200)]):
                # One here, and the last one until then; one waits, one is in the reader's hand.
                assert len(readers[0].buffers) <= 4
        assert len(readers) == 1, "the next reading goes on with the same buffers"
        kept = list(source.chunks([[k] for k in range(6)] * 4))
        assert [bits(chunk) for chunk in kept] == first * 4


def test_a_first_reading_uses_its_memory_again(tmp_path, cache, monkeypatch):
    write_shard(tmp_path / "long.svm", [(float(k % 2), 1.0, {k: k + 0.5}) for k in range(500)])
    for at_once in (8, 4):  # text has its columns and its values apart
        buffers = Buffers()
        for module in ("blocks", "cache.flat_file"):
            monkeypatch.setattr(f"streamtron.data.{module}.spare", buffers.take)
        with source_of(tmp_path / "long.svm", cache) as source:
            assert sum(len(chunk) for chunk in source.chunks()) == 500
            assert len(source.blocks) > 50
        assert 0 < len(buffers) <= at_once


def test_training_holds_no_chunk_while_it_waits_for_the_next(shards, cache, monkeypatch):
    reader = GroupReader()
    monkeypatch.setattr("streamtron.data.source.GroupReader", lambda: reader)
    monkeypatch.setattr("streamtron.data.source.prefetch", lambda factory, depth: factory())
    settings = Settings(active_set=64, tol=1e-6, max_epochs=4)
    with source_of(shards, cache) as source:
        train(source, [Learner(settings, source.labels) for _ in range(3)], settings, threads=2)
        assert source.readings > 2
    assert len(reader.buffers) == 1, "reading ahead would need one more"
