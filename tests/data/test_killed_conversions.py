"""Directories in which a conversion was killed."""

from itertools import count
from pathlib import Path

import pytest

import streamtron
from tests.helpers.runs import WAS_KILLED, killed_at_call

ROWS = "".join(f"{1 - 2 * (k % 2)} {k % 7 + 1}:{k + 1}\n" for k in range(12))


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*")}


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_conversion_killed_at_any_moment_leaves_all_shards_or_none(overwrite, tmp_path):
    (tmp_path / "a.svm").write_text(ROWS)

    def write(out, rows, **options):
        streamtron.convert(tmp_path / "a.svm", out, to="libsvm", rows_per_shard=rows, **options)
        return content(out)

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
        met.append(content(out))
        assert write(out, 4, overwrite=True) == new
        assert not [*tmp_path.glob(f".{moment}-*")], "what is left is removed"
    assert all(found in (old, {}, new) for found in met)
    assert {} in met
    assert (old in met, new in met) == (True, True)
