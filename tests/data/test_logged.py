"""Directories whose files are not the rows: tables with a log, and conversions that were killed."""

from itertools import count
from pathlib import Path

import fsspec
import pytest

import streamtron
from streamtron.core.errors import DataError
from streamtron.data import find_shards
from streamtron.data.discover import UNFINISHED
from tests.helpers.models import refused
from tests.helpers.processes import here, one_sentence
from tests.helpers.runs import WAS_KILLED, killed_at_call

ROWS = "".join(f"{1 - 2 * (k % 2)} {k % 7 + 1}:{k + 1}\n" for k in range(12))

TABLES = {
    "Delta Lake": ("_delta_log", "_delta_log/00000000000000000000.json"),
    "Apache Hudi": (".hoodie", ".hoodie/hoodie.properties"),
    "Apache Iceberg": ("metadata/*.metadata.json", "metadata/v2.metadata.json"),
}
"""The sign of a table, and a file of its log."""


@pytest.fixture(params=["disk", "store"])
def lake(request, tmp_path):
    """Where a lake lies, and the function that puts files of two rows into it."""
    memory, rows = fsspec.filesystem("memory"), "1 1:1\n-1 2:1\n"

    def put(*names):
        for name in names:
            if request.param == "store":
                memory.pipe(f"/lake/{name}", rows.encode())
                continue
            (tmp_path / "lake" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "lake" / name).write_text(rows)

    yield "memory://lake" if request.param == "store" else str(tmp_path / "lake"), put
    if request.param == "store":
        memory.rm("/lake", recursive=True)


def names(*paths: str) -> list[str]:
    return [shard.name for shard in find_shards(paths)]


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("root", ["", "/t", "/t/data", "/t/data/day=1", "/t/data/*.svm", "/*/*"])
def test_a_table_that_has_a_log_is_refused_by_the_name_of_the_log(kind, root, lake):
    (where, put), (sign, log) = lake, TABLES[kind]
    put(f"t/{log}", "t/data/a.svm", "t/data/day=1/removed.svm")
    sentence = refused(lambda: names(where + root))
    assert sentence.startswith(f"{where}/t: a table of {kind} ({sign}), where files of earl")
    assert "Write its current version out as plain Parquet" in sentence
    put("u/2026/.hoodie_partition_metadata", "u/2026/a.svm")
    of_partition = refused(lambda: names(f"{where}/u/2026"))
    assert "2026: a table of Apache Hudi (.hoodie_partition" in of_partition


def test_what_is_beside_a_table_and_its_files_one_by_one_are_read(lake):
    where, put = lake
    put("t/_delta_log/0.json", "t/a.svm", "day=1/a.svm", "data/b.svm", "metadata/c.svm")
    for root, wanted in (
        ("t/a.svm", ["a.svm"]), ("day=1", ["a.svm"]), ("data", ["b.svm"]),
        ("[dm]*/*", ["data/b.svm", "day=1/a.svm", "metadata/c.svm"]),
    ):  # fmt: skip
        assert names(f"{where}/{root}") == wanted


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
def test_a_conversion_killed_at_any_moment_leaves_all_shards_or_none(overwrite, tmp_path):
    (tmp_path / "a.svm").write_text(ROWS)

    def write(out, rows, **options):
        streamtron.convert(tmp_path / "a.svm", out, to="libsvm", rows_per_shard=rows, **options)
        return content(out)

    new, old = write(tmp_path / "wanted", 4), None
    if overwrite:
        old = write(tmp_path / "old", 2)
    met = set()
    for moment in count():
        out = tmp_path / str(moment)
        if overwrite:
            write(out, 2)
        words = {"to": "libsvm", "rows_per_shard": 4, "overwrite": overwrite}
        how = {"destination": str(out)} | words
        code, _ = killed_at_call(moment, "convert", tmp_path / "a.svm", how)
        if code == 0:
            break
        assert code == WAS_KILLED
        met.add(state := what_is_there(out, old, new))
        assert write(out, 4, overwrite=state in ("old", "new")) == new
    assert met == ({"old", "new", "unfinished"} if overwrite else {"none", "new", "unfinished"})


def test_an_unfinished_data_set_is_refused_however_it_is_named(tmp_path):
    (tmp_path / "a.svm").write_text(ROWS)
    assert here(tmp_path, "convert", "a.svm", "-o", "out", "--format", "parquet").returncode == 0
    assert not (tmp_path / "out" / UNFINISHED).exists()
    (tmp_path / "out" / UNFINISHED).touch()
    for name in ("out", "out/*.parquet", "out/part-00000.parquet", "."):
        done = here(tmp_path, "fit", name, "--model", "m")
        one_sentence(done, 3, "out: a part of a data set", f"({UNFINISHED}). Write it again.\n")
