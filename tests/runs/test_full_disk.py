"""Disks that are full: a file system of a few pages, and files that may not grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from streamtron import generate
from tests.helpers.processes import COMMAND, Ended, Process, command, here, one_sentence, succeeded
from tests.helpers.small_disks import PAGE, fill, mounted

Disk = Callable[..., Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Make small file systems: ``disk("name", size=…)`` in bytes, ``files=…`` at most."""
    with ExitStack() as stack:

        def make(name: str, size: int, files: int = 1000) -> Path:
            limits = f"size={size},nr_inodes={files + 1}"
            return stack.enter_context(mounted(tmp_path / name, limits))

        yield make


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards, a model fitted on them, and its cache."""
    directory = tmp_path_factory.mktemp("full")
    generate(str(directory / "train"), rows=1500, columns=500, seed=1, shards=2)
    succeeded(run(directory, "fit", "train", "--model", "wanted"))
    return directory


def run(place: Path, *words: object, largest_file: int | None = None) -> Ended:
    if largest_file is None:
        return here(place, *words)
    limits = (largest_file, largest_file)
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, {limits}); {COMMAND}"
    return Process(limited, *words, cwd=place).end()


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*")}


# The cache ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [0, 1, 2], ids=["none", "one", "two"])
def test_a_cache_disk_without_room_is_refused_and_what_is_whole_stays(place, disk, tmp_path, files):
    small = disk("small", size=1 << 26, files=files)
    done = run(place, "fit", "train", "--model", tmp_path / "m", "--cache-dir", small)
    one_sentence(done, 5, "(No space left on device)")
    whole = {path.name: path.read_bytes() for path in place.glob("wanted.run/cache/*.cache")}
    found = {path.name: path.read_bytes() for path in small.glob("*.cache")}
    assert found.items() <= whole.items()
    assert len(found) == min(files, 1), "the source takes the other place"
    assert names(small) == {*found, *(path.name for path in small.glob("*.source"))}
    assert not (tmp_path / "m").exists()


def test_a_cache_disk_that_is_full_behind_the_last_segment_is_refused(disk, tmp_path):
    # what is asked for beforehand is room for the segments: eighty of eight pages here, rows of
    # nothing but a label; the footer behind them takes more than the rest of the last page
    (tmp_path / "a.svm").write_bytes(b"1\n-1\n" * (40 * 4096))
    done = run(tmp_path, "fit", "a.svm", "--model", "m", "--cache-dir", disk("small", 641 * PAGE))
    one_sentence(done, 5, "small: the disk is full (No space left on device)", "--cache-dir")
    assert names(tmp_path / "small") == set()


def test_where_a_cache_has_no_room_a_fit_in_the_files_order_does_without(place, disk, tmp_path):
    (tmp_path / "m.run").mkdir()
    small = disk("m.run/cache", size=20 * PAGE)
    words = ("fit", "train", "--model", tmp_path / "m", "--tol", "1e-4")
    advice = "fit without a cache: --order sequential and no --cache-dir"
    one_sentence(run(place, *words), 5, "81.9 kB are free", advice)
    words = (*words, "--order", "sequential", "--active-set", "20kB", "--max-epochs", "5")
    done = run(place, *words)
    assert done.returncode in (0, 4), done.stderr
    assert "cache              none\n" in done.stdout
    assert names(small) == set()
    without = (tmp_path / "m").read_bytes()
    cached = run(place, *words, "--cache-dir", tmp_path / "cache", "--overwrite")
    assert cached.returncode == done.returncode
    assert list((tmp_path / "cache").glob("*.cache"))
    assert (tmp_path / "m").read_bytes() == without


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_a_cache_file_that_may_not_grow_is_refused_and_the_next_run_works(place, tmp_path, part):
    cache = tmp_path / "cache"
    limit = int(part * min(place.glob("wanted.run/cache/*.cache")).stat().st_size)
    words = ("fit", "train", "--model", tmp_path / "m", "--cache-dir", cache)
    one_sentence(run(place, *words, largest_file=limit), 5, "the disk is full (File too large)")
    assert names(cache) == set()
    succeeded(run(place, *words))
    assert (tmp_path / "m").read_bytes() == (place / "wanted").read_bytes()


def test_a_damaged_cache_file_stays_where_there_is_no_room_to_make_it_afresh(place, disk, tmp_path):
    small = disk("small", size=1 << 26, files=4)
    words = ("fit", "train", "--model", tmp_path / "m", "--cache-dir", small)
    assert run(place, *words).returncode == 0
    path = max(small.glob("*.cache"))
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 1
    path.write_bytes(damaged)
    done = command(place, *words, "--overwrite")  # pytest keeps what is logged here
    assert done.returncode == 5
    assert "the checksum differs" in done.stderr
    assert "the disk is full (No space left on device)" in done.stderr
    assert path.read_bytes() == damaged


# What is written at the end ----------------------------------------------------------------------


def test_a_disk_without_room_for_the_model_keeps_the_old_and_no_new_witness(place, disk, tmp_path):
    small = disk("small", size=1 << 20)
    words = ("fit", "train", "--model", small / "m", "--run-dir", tmp_path / "run")
    assert run(place, *words).returncode == 0
    old = (small / "m").read_bytes()
    fill(small / "ballast", leave=0)
    finer = (*words, "--tol", "0.001")
    for again in ("--resume", "--overwrite"):
        done = run(place, *finer, again)
        one_sentence(done, 5, "m: cannot be written (No space left on device)")
        assert (small / "m").read_bytes() == old
        assert names(small) == {"m", "ballast"}
        left = {path.name for path in (tmp_path / "run").iterdir()}
        assert "checkpoint" in left
        assert not {"witness", "manifest.json"} & left
    (small / "ballast").unlink()
    assert run(place, *finer, "--resume").returncode == 0
    assert (tmp_path / "run" / "witness").exists()
    assert run(place, *finer[:2], "--tol", "0.001", "--model", tmp_path / "m").returncode == 0
    assert (small / "m").read_bytes() == (tmp_path / "m").read_bytes() != old


def test_a_disk_without_room_for_the_run_keeps_the_model_that_is_there(place, disk):
    small = disk("small", size=1 << 20)
    words = ("fit", "train", "--cache-dir", place / "wanted.run" / "cache", "--model", small / "m")
    assert run(place, *words).returncode == 0
    old = (small / "m").read_bytes()
    for path in (small / "m.run").iterdir():
        path.unlink()
    fill(small / "ballast", leave=0)
    one_sentence(run(place, *words), 5, "cannot be written (No space left on device)")
    assert (small / "m").read_bytes() == old
    left = {path.name for path in small.rglob("*") if path.stat().st_size}
    assert left <= {"m", "m.run", "ballast"}


WRITES = [
    "fit train --model {tmp}/m --report {small}/out",
    "fit train --model {tmp}/m --witness {small}/out",
    *(f"predict wanted train -o {{small}}/out{suffix}" for suffix in ("", ".parquet")),
    *(f"convert train {{small}}/to --format {name}" for name in ("libsvm", "parquet")),
]


@pytest.mark.parametrize("words", WRITES)
def test_a_disk_without_room_for_an_output_keeps_the_one_before(words, place, disk, tmp_path):
    small = disk("small", size=3 * PAGE)
    (small / "out").write_text("the one before")
    fill(small / "ballast", leave=0 if "--report" in words else PAGE)
    done = run(place, *words.format(tmp=tmp_path, small=small).split())
    one_sentence(done, 5, "No space left on device")
    assert {path.name for path in small.rglob("*") if path.is_file()} == {"out", "ballast"}
    assert (small / "out").read_text() == "the one before"
    if "--model" in words:
        assert (tmp_path / "m").read_bytes() == (place / "wanted").read_bytes()
