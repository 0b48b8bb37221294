"""Shards that a run forgets: the bounds hold the optimum of what is left, and no byte stays."""

from __future__ import annotations

import json
import lzma
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamtron
from streamtron.core.certificate import no_bins
from streamtron.core.errors import DataError
from streamtron.runs.finished_run import FinishedRun, locate
from streamtron.solver.vectors import dense
from tests.helpers.learners import restored_whole
from tests.helpers.optimum import holds_optimum
from tests.helpers.processes import here
from tests.helpers.runs import code, content, files_of, fit, gap


@pytest.mark.parametrize("numbers", [[9], [0], [2, 3, 7]])
def test_the_certificate_is_of_the_rows_that_are_left(
    numbers: list[int], corpus: list[Path], tmp_path: Path
) -> None:
    fit(corpus, tmp_path / "m")
    found = streamtron.forget(tmp_path / "m", [corpus[k] for k in numbers])
    left = [shard for k, shard in enumerate(corpus) if k not in numbers]
    assert found.report["rows"] == 300 * len(left)
    assert gap(found.report) <= 0.01
    assert holds_optimum(found.report, left)
    proof = streamtron.certify(
        streamtron.load(tmp_path / "m"), left, witness=tmp_path / "m.run" / "witness"
    )
    assert proof.to_dict()["certificate"]["upper_bound"] == pytest.approx(
        found.report["certificate"]["upper_bound"], rel=1e-12
    )


def test_after_a_tenth_of_the_shards_is_forgotten_the_bounds_hold_liblinears_optimum(
    shared_data: Path, tmp_path: Path
) -> None:
    with lzma.open(shared_data / "rcv1_27613.ccat.xz", "rt") as file:
        lines = list(islice(file, 6000))
    shards = [tmp_path / f"{k}.svm" for k in range(10)]
    for k, shard in enumerate(shards):
        shard.write_text("".join(lines[k::10]))
    fit(shards, tmp_path / "m", C=1.0, index_base="auto")
    found = streamtron.forget(tmp_path / "m", shards[4]).report
    assert holds_optimum(found, [*shards[:4], *shards[5:]])
    assert gap(found) <= 0.01


def test_nothing_of_a_forgotten_shard_is_left_in_any_file(tmp_path: Path) -> None:
    value = np.float32(0.7310559)
    for name, last in (("a", "2:0.5"), ("b", f"7:{value!s}"), ("c", "3:1")):
        (tmp_path / f"{name}.svm").write_text(f"1 1:1 {last}\n-1 2:1\n" * 30)
    shards = [tmp_path / f"{name}.svm" for name in "abc"]
    often = streamtron.Machine(checkpoint_every=0.0)
    streamtron.run(shards, streamtron.Settings(), model=tmp_path / "m", machine=often)
    older = tmp_path / "m.run" / "checkpoint.before"
    assert older.exists()
    secret = shards[1].read_bytes()
    traces = [value.tobytes(), b"b.svm"]
    before = b"".join(files_of(tmp_path))
    assert all(trace in before for trace in traces)
    streamtron.forget(tmp_path / "m", shards[1])
    assert shards[1].read_bytes() == secret  # the file itself is its owner's
    for written in files_of(tmp_path):
        assert not any(trace in written for trace in traces)
    assert not older.exists()
    assert streamtron.load(tmp_path / "m").columns == 3


@pytest.mark.parametrize("parts", [None, 2])
def test_a_column_that_only_forgotten_rows_had_weighs_nothing(
    parts: int | None, tmp_path: Path
) -> None:
    for name, column in (("a", 3), ("b", 5), ("c", 9)):
        lines = [f"{1 - 2 * (k % 2)} {k % 2}:1 {column}:{0.1 * (k + 1):.1f}\n" for k in range(40)]
        (tmp_path / f"{name}.svm").write_text("".join(lines))
    shards = [tmp_path / f"{name}.svm" for name in "abc"]
    fit(shards, tmp_path / "m", parts=parts, tol=0.3)  # the model before meets it on the rest, too
    assert streamtron.load(tmp_path / "m").weights[5] != 0.0
    found = streamtron.forget(tmp_path / "m", "b.svm").model
    assert found.weights[5] == 0.0
    assert found.weights[9] != 0.0


WIDE = 12_345
"""Columns of a shard that is forgotten; the others have far fewer."""


def write_few(place: Path) -> list[Path]:
    """Three shards, of which the second alone has columns 4 and WIDE; they weigh much."""
    shards = [place / f"{number}.svm" for number in range(3)]
    for number, shard in enumerate(shards):
        lines = [
            f"{1 - 2 * (k % 2)} {k % 3}:1 {5 + (k + number) % 7}:0.{k % 9 + 1}" for k in range(60)
        ]
        if number == 1:
            lines = [f"{line} {WIDE}:1" for line in lines]
            lines += [f"{label} 4:{9 * label}" for label in (-1, 1)]
        shard.write_text("\n".join(lines) + "\n")
    return shards


@pytest.mark.parametrize("gone", [False, True], ids=["from the cache", "gone and not cached"])
@pytest.mark.parametrize("settings", [{}, {"active_set": 2_000}, {"multiclass": True}])
def test_no_file_of_a_run_is_as_wide_as_a_row_that_it_has_forgotten(
    settings: dict[str, Any], gone: bool, tmp_path: Path
) -> None:
    shards = write_few(tmp_path)
    fit(shards, tmp_path / "m", **settings)
    if gone:
        shards[1].unlink()
        shutil.rmtree(tmp_path / "m.run" / "cache")
    found = streamtron.forget(tmp_path / "m", "1.svm")
    assert found.model.columns == 12
    with FinishedRun.to_change(locate(tmp_path / "m")) as ended:
        state = ended.checkpoint.state
        learners = restored_whole(state, ended.settings, ended.checkpoint.labels)
        vectors = [array for array in map(dense, state.arrays.values()) if array.ndim == 1]
        sizes = {len(vector) for vector in vectors} - {len(no_bins())}  # of a scan, not of columns
        assert max(sizes) <= 180
    assert {len(learner.running.w) for learner in learners} == {12}
    wanted = streamtron.Settings.from_dict({"C": 5.0, "index_base": 0, "tol": 1e-4, **settings})
    machine = streamtron.Machine()
    left = [shards[0], shards[2]]
    again = streamtron.run(left, wanted, model=tmp_path / "m", machine=machine, resume=True)
    assert gap(again.report) <= 1e-4, "and it goes on from there"


@pytest.mark.parametrize("active_set", [10**9, 2_000], ids=["all rows held", "few rows held"])
def test_rows_that_are_gone_and_not_cached_leave_nothing_in_the_weights_that_go_on(
    active_set: int, tmp_path: Path
) -> None:
    """The weights are those that the other rows' counts make, and no drift has to tell of the
    difference."""
    shards = write_few(tmp_path)
    fit(shards, tmp_path / "m", active_set=active_set)
    assert abs(streamtron.load(tmp_path / "m").weights[4]) > 0.05
    shards[1].unlink()
    shutil.rmtree(tmp_path / "m.run" / "cache")
    found = streamtron.forget(tmp_path / "m", "1.svm")
    assert found.report["drift_repaired"] == 0.0
    assert found.model.weights[4] == 0.0
    with FinishedRun.to_change(locate(tmp_path / "m")) as ended:
        state = ended.checkpoint.state
        [learner] = restored_whole(state, ended.settings, ended.checkpoint.labels)
    assert learner.running.w[4] == 0.0
    assert (found.stop_reason, gap(found.report) <= 0.01) == ("certified", True)
    assert found.report["readings"] <= 12
    assert here(tmp_path, "certify", "m").returncode == 0


@pytest.mark.parametrize("cached", [True, False])
def test_a_shard_that_is_gone_is_forgotten_whether_the_cache_has_it_or_not(
    cached: bool, corpus: list[Path], tmp_path: Path
) -> None:
    shards = [tmp_path / shard.name for shard in corpus[:4]]
    for ours, theirs in zip(shards, corpus, strict=False):
        shutil.copy(theirs, ours)
    fit(shards, tmp_path / "m")
    shards[2].unlink()
    if not cached:
        shutil.rmtree(tmp_path / "m.run" / "cache")
    found = streamtron.forget(tmp_path / "m", shards[2])
    left = [shard for shard in shards if shard != shards[2]]
    assert found.report["readings"] == 2.0
    assert gap(found.report) <= 0.01
    assert holds_optimum(found.report, left)


def test_what_was_forgotten_can_be_added_again(corpus: list[Path], tmp_path: Path) -> None:
    fit(corpus[:4], tmp_path / "m")
    streamtron.forget(tmp_path / "m", corpus[1])
    again = streamtron.update(tmp_path / "m", corpus[1])
    assert again.report["rows"] == 1200
    assert holds_optimum(again.report, corpus[:4])


@pytest.mark.parametrize("gone", [False, True], ids=["there", "gone"])
def test_a_directory_that_was_added_is_forgotten_as_its_shards(
    gone: bool, corpus: list[Path], tmp_path: Path
) -> None:
    fit(corpus[:2], tmp_path / "m")
    for day, shards in (("mon", corpus[2:4]), ("monday", corpus[4:5])):
        (tmp_path / day).mkdir()
        for shard in shards:
            shutil.copy(shard, tmp_path / day)
    streamtron.update(tmp_path / "m", [tmp_path / "mon", tmp_path / "monday"])
    (tmp_path / "rows.csv").write_text("shard,row\nmon,0\n")
    listed = here(tmp_path, "forget", "m", "--rows", "rows.csv")  # the row of which shard?
    assert "mon: not in the run; there is nothing to forget" in listed.stdout
    if gone:
        shutil.rmtree(tmp_path / "mon")
    found = here(tmp_path, "forget", "m", "mon")
    assert (found.returncode, "not in the run" in found.stdout) == (0, False)
    report = json.loads((tmp_path / "m.run" / "report.json").read_text())
    assert report["rows"] == 900
    assert holds_optimum(report, [*corpus[:2], corpus[4]])
    again = here(tmp_path, "forget", "m", "mon/")
    assert "mon/: not in the run; there is nothing to forget" in again.stdout


def test_all_shards_of_a_run_are_not_forgotten(
    corpus: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(corpus[:2], tmp_path / "m")
    before = content(tmp_path / "m.run", tmp_path / "m")
    with pytest.raises(DataError, match="nothing would be left"):
        streamtron.forget(tmp_path / "m", corpus[:2])
    assert content(tmp_path / "m.run", tmp_path / "m") == before
    for sentence in ("", f"{corpus[0].name}: not in the run; there is nothing to forget"):
        assert code("forget", str(tmp_path / "m"), corpus[0].name) == 0
        told = capsys.readouterr().out
        assert "300" in told
        assert sentence in told
