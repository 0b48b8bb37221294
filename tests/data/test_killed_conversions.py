"""Directories in which a conversion was killed."""

from itertools import count
from pathlib import Path

import pytest

import streamtron
from streamtron.core.errors import DataError
from streamtron.data import find_shards
from streamtron.data.discover import UNFINISHED
from tests.helpers.processes import here, one_sentence
from tests.helpers.runs import WAS_KILLED, killed_at_call

ROWS = "".join(f"{1 - 2 * (k % 2)} {k % 7 + 1}:{k + 1}\n" for k in range(12))


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
