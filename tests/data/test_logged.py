"""Directories whose files are not the rows: tables with a log, and conversions that were killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import fsspec
import pytest

import streamtron
from streamtron.core.errors import DataError
from streamtron.data import find_shards
from streamtron.data.discover import UNFINISHED
from tests.helpers.processes import here, one_sentence
from tests.helpers.runs import WAS_KILLED, killed_at_call

ROWS = "".join(f"{1 - 2 * (k % 2)} {k % 7 + 1}:{k + 1}\n" for k in range(12))

TABLES = {
    "Delta Lake": "_delta_log/00000000000000000000.json",
    "Apache Hudi": ".hoodie/hoodie.properties",
    "Apache Iceberg": "metadata/v2.metadata.json",
}
SIGNS = {
    "Delta Lake": "_delta_log",
    "Apache Hudi": ".hoodie",
    "Apache Iceberg": "metadata/*.metadata.json",
}

Put = Callable[[str], None]


@pytest.fixture(params=["disk", "store"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Put]]:
    """Where a lake lies, and the function that puts a file of two rows into it."""
    memory = fsspec.filesystem("memory")

    def on_disk(name: str) -> None:
        (tmp_path / "lake" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lake" / name).write_text("1 1:1\n-1 2:1\n")

    def in_store(name: str) -> None:
        memory.pipe(f"/lake/{name}", b"1 1:1\n-1 2:1\n")

    if request.param == "disk":
        yield str(tmp_path / "lake"), on_disk
        return
    yield "memory://lake", in_store
    memory.rm("/lake", recursive=True)


# Tables ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("root", ["", "/t", "/t/data", "/t/data/day=1", "/t/data/*.svm", "/*/*"])
def test_a_table_that_has_a_log_is_refused_by_the_name_of_the_log(
    kind: str, root: str, lake: tuple[str, Put]
) -> None:
    where, put = lake
    for name in (f"t/{TABLES[kind]}", "t/data/a.svm", "t/data/day=1/removed.svm"):
        put(name)
    with pytest.raises(DataError) as caught:
        find_shards([where + root])
    sentence = str(caught.value)
    assert sentence.startswith(f"{where}/t: a table of {kind} ({SIGNS[kind]}), where files of earl")
    assert "Write its current version out as plain Parquet" in sentence


def test_a_partition_of_hudi_tells_of_itself(lake: tuple[str, Put]) -> None:
    where, put = lake
    for name in ("t/2026/.hoodie_partition_metadata", "t/2026/a.svm"):
        put(name)
    with pytest.raises(DataError, match=r"2026: a table of Apache Hudi \(\.hoodie_partition"):
        find_shards([f"{where}/t/2026"])


def test_the_files_of_the_current_version_may_be_named_one_by_one(lake: tuple[str, Put]) -> None:
    where, put = lake
    for name in ("t/_delta_log/0.json", "t/kept.svm", "t/removed.svm"):
        put(name)
    assert [shard.name for shard in find_shards([f"{where}/t/kept.svm"])] == ["kept.svm"]


def test_what_is_beside_a_table_is_read(lake: tuple[str, Put]) -> None:
    where, put = lake
    for name in ("t/_delta_log/0.json", "t/a.svm", "day=1/a.svm", "data/b.svm", "metadata/c.svm"):
        put(name)
    for root, names in (("day=1", ["a.svm"]), ("data", ["b.svm"]), ("[dm]*/*", None)):
        found = [shard.name for shard in find_shards([f"{where}/{root}"])]
        assert found == (names or ["data/b.svm", "day=1/a.svm", "metadata/c.svm"])


def test_a_command_that_is_given_a_table_says_one_sentence_and_exits_3(tmp_path: Path) -> None:
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)
    (tmp_path / "t" / "a.svm").write_text(ROWS)
    for words in (("fit", "t", "--model", "m"), ("convert", "t", "out", "--format", "parquet")):
        one_sentence(here(tmp_path, *words), 3, "t: a table of Delta Lake (_delta_log)")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t"]


# Conversions that were killed --------------------------------------------------------------------


def content(directory: Path) -> dict[str, bytes]:
    """What a reader finds there."""
    return {shard.name: Path(shard.path).read_bytes() for shard in find_shards([str(directory)])}


def what_is_there(directory: Path, old: dict[str, bytes] | None, new: dict[str, bytes]) -> str:
    """Which of two data sets is there and whole, or why none is."""
    try:
        found = content(directory)
    except DataError as error:
        return "unfinished" if UNFINISHED in str(error) else "none"
    assert found in (old, new)
    return "new" if found == new else "old"


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_conversion_killed_at_any_moment_leaves_all_shards_or_none_that_are_read(
    overwrite: bool, tmp_path: Path
) -> None:
    (tmp_path / "a.svm").write_text(ROWS)
    words = {"to": "libsvm", "rows_per_shard": 4}
    streamtron.convert(tmp_path / "a.svm", tmp_path / "wanted", **words)
    new, old = content(tmp_path / "wanted"), None
    if overwrite:
        streamtron.convert(tmp_path / "a.svm", tmp_path / "old", to="libsvm", rows_per_shard=2)
        old = content(tmp_path / "old")
    met = set()
    for moment in count():
        out = tmp_path / str(moment)
        if overwrite:
            streamtron.convert(tmp_path / "a.svm", out, to="libsvm", rows_per_shard=2)
        how = {"destination": str(out), "overwrite": overwrite} | words
        code, _ = killed_at_call(moment, "convert", tmp_path / "a.svm", how)
        if code == 0:
            break
        assert code == WAS_KILLED
        state = what_is_there(out, old, new)
        met.add(state)
        again = state in ("old", "new")
        streamtron.convert(tmp_path / "a.svm", out, overwrite=again, **words)
        assert content(out) == new
    assert met == ({"old", "new", "unfinished"} if overwrite else {"none", "new", "unfinished"})


def test_an_unfinished_data_set_is_refused_however_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text(ROWS)
    done = here(tmp_path, "convert", "a.svm", "out", "--format", "parquet")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "out" / UNFINISHED).exists()
    (tmp_path / "out" / UNFINISHED).touch()
    for name in ("out", "out/*.parquet", "out/part-00000.parquet", "."):
        ended = here(tmp_path, "fit", name, "--model", "m")
        assert ended.returncode == 3, ended
        assert "out: a part of a data set" in ended.stderr
        assert ended.stderr.endswith(f"({UNFINISHED}). Write it again.\n")


@pytest.mark.slow
def test_a_corpus_whose_writer_was_killed_is_refused_and_written_again(tmp_path: Path) -> None:
    words = {"rows": 40, "columns": 100, "seed": 1, "shards": 3}
    streamtron.generate(str(tmp_path / "wanted"), **words)
    wanted, met = content(tmp_path / "wanted"), set()
    for moment in count():
        out = tmp_path / str(moment)
        code, _ = killed_at_call(moment, "generate", out, words)
        if code == 0:
            break
        assert code == WAS_KILLED
        state = what_is_there(out, None, wanted)
        met.add(state)
        streamtron.generate(str(out), overwrite=state == "new", **words)
        assert content(out) == wanted
    assert met == {"none", "unfinished", "new"}
