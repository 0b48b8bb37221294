"""Shards that are added to a run: the same bounds as from a fresh fit, and a run that is whole at
every moment."""

from __future__ import annotations

import json
import lzma
import os
import random
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamtron
from streamtron.core.errors import DataError, SettingsError
from streamtron.solver.changes import add_rows, begin_change
from streamtron.solver.learner import Learner
from streamtron.solver.one_part import train_here as train
from tests.helpers.learners import source_of
from tests.helpers.optimum import holds_optimum
from tests.helpers.runs import TOL, code, content, fit, gap
from tests.helpers.sources import ListSource

Corpus = Callable[..., list[Path]]


@pytest.mark.parametrize("number", [1, 3, 9])
def test_an_updated_run_is_certified_over_old_and_new_rows(
    number: int, corpus: list[Path], tmp_path: Path
) -> None:
    model = tmp_path / "m"
    fit(corpus[:-number], model)
    updated = streamtron.update(model, corpus[-number:])
    assert updated.report["rows"] == 3000
    assert updated.stop_reason == "certified"
    assert gap(updated.report) <= TOL
    assert holds_optimum(updated.report, corpus)
    proof = streamtron.certify(
        streamtron.load(model), corpus, witness=tmp_path / "m.run" / "witness"
    )
    assert proof.certificate.upper_bound == updated.report["certificate"]["upper_bound"]
    assert proof.certificate.primal_margin == pytest.approx(
        updated.report["certificate"]["primal_margin"], rel=1e-3
    )


@pytest.fixture
def night(corpus: list[Path], tmp_path: Path) -> tuple[list[Path], Path]:
    """Nine shards, and a tenth of 30 rows: so few that the proof of the others nearly suffices."""
    few = tmp_path / "few.svm"
    few.write_text("".join(corpus[9].read_text().splitlines(keepends=True)[:30]))
    return corpus[:9], few


def fit_loosely(shards: list[Path], model: Path, **settings: Any) -> dict[str, Any]:
    return fit(shards, model, **{"C": 0.1, "tol": 0.05, **settings})


def test_where_the_last_scan_of_the_old_rows_and_one_of_the_new_prove_enough_no_old_shard_is_read(
    night: tuple[list[Path], Path], tmp_path: Path
) -> None:
    old, few = night
    before = fit_loosely(old, tmp_path / "m")
    weights = streamtron.load(tmp_path / "m").weights
    updated = streamtron.update(tmp_path / "m", few)
    report = updated.report
    new = report["nonzeros"] - before["nonzeros"]
    assert report["readings"] == pytest.approx(2.0 * new / report["nonzeros"], rel=1e-12)
    assert report["rows"] == report["certificate"]["rows_scanned"] == 2730
    assert report["radius"] == before["radius"]  # of old and new rows
    assert (updated.stop_reason, gap(report) <= 0.05) == ("certified", True)
    assert report["certificate"]["drift"] < 1e-12
    assert report["drift_repaired"] == 0.0
    scale = np.linalg.norm(updated.model.weights) / np.linalg.norm(weights)
    assert updated.model.weights == pytest.approx(scale * weights, rel=1e-12)
    assert holds_optimum(report, [*old, few])
    proof = streamtron.certify(
        streamtron.load(tmp_path / "m"), [*old, few], witness=tmp_path / "m.run" / "witness"
    )
    assert proof.certificate.rows_scanned == 2730
    for name in ("upper_bound", "primal_margin", "directional_margin"):
        assert getattr(proof.certificate, name) == pytest.approx(
            report["certificate"][name], rel=1e-9
        )


def test_night_after_night_the_proof_goes_on_until_it_no_longer_suffices(
    corpus: list[Path], tmp_path: Path
) -> None:
    tol = gap(fit_loosely(corpus[:9], tmp_path / "m")) + 0.008  # a night costs some thousandths
    lines = corpus[9].read_text().splitlines(keepends=True)
    shards, readings = list(corpus[:9]), []
    for night in range(10):
        shards.append(tmp_path / f"night-{night}.svm")
        shards[-1].write_text("".join(lines[30 * night : 30 * (night + 1)]))
        updated = streamtron.update(tmp_path / "m", shards[-1], tol=tol)
        readings.append(updated.report["readings"])
        assert updated.stop_reason == "certified"
        assert gap(updated.report) <= tol
    assert min(readings) < 0.03
    assert max(readings) > 1.0
    assert holds_optimum(updated.report, shards)


def test_a_proof_that_was_gone_on_with_can_be_taken_further(
    night: tuple[list[Path], Path], tmp_path: Path
) -> None:
    old, few = night
    fit_loosely(old, tmp_path / "m")
    streamtron.update(tmp_path / "m", few)
    settings = streamtron.Settings(C=0.1, index_base=0, tol=1e-5)
    again = streamtron.run(
        [*old, few], settings, model=tmp_path / "m", machine=streamtron.Machine(), resume=True
    )
    assert (again.stop_reason, again.report["rows"]) == ("certified", 2730)
    assert gap(again.report) <= 1e-5
    assert holds_optimum(again.report, [*old, few])
    gone = streamtron.forget(tmp_path / "m", few)
    assert holds_optimum(gone.report, old)


def test_an_old_shard_that_was_touched_is_read_even_if_the_proof_would_do(
    night: tuple[list[Path], Path], tmp_path: Path
) -> None:
    old, few = night
    mine = [Path(shutil.copy2(shard, tmp_path)) for shard in old]
    fit_loosely(mine, tmp_path / "m")
    text = mine[3].read_text()
    mine[3].write_text(text.replace(":0.", ":1.", 1))
    with pytest.raises(DataError, match=mine[3].name):
        streamtron.update(tmp_path / "m", few)


def test_of_many_classes_those_whose_proof_suffices_read_no_more(tmp_path: Path) -> None:
    source = random.Random(1)

    def shard(name: str, rows: int) -> Path:
        labels = [source.choice("xyz") for _ in range(rows)]
        lines = [f"{y} {'xyz'.index(y)}:1 {source.randrange(3, 9)}:0.5\n" for y in labels]
        (tmp_path / name).write_text("".join(lines))
        return tmp_path / name

    old, usual, odd = shard("a.svm", 400), shard("b.svm", 4), tmp_path / "c.svm"
    fit_loosely([old], tmp_path / "m", multiclass=True)
    updated = streamtron.update(tmp_path / "m", usual)
    assert updated.report["readings"] < 0.1
    odd.write_text("x 1:1 3:2\n" * 30)  # what looks like a y is an x: nothing changes for z
    updated = streamtron.update(tmp_path / "m", odd)
    epochs = {each["label"]: each["full_epochs"] for each in updated.report["learners"]}
    assert updated.report["readings"] > 1.0
    assert epochs["z"] == 0 < min(epochs["x"], epochs["y"])
    for each in updated.report["learners"]:
        assert each["certificate"]["rows_scanned"] == 434
        assert gap(each) <= 0.05


def test_new_rows_are_counted_and_no_other_count_changes() -> None:
    settings, whole = streamtron.Settings(C=5.0), source_of()
    rows = len(whole.codes)
    old = ListSource(whole.rows, [whole.labels[code] for code in whole.codes], block_rows=16)
    learner = Learner(settings, old.labels)
    train(old, [learner], settings)
    before, upper = learner.counts.dense(rows), learner.running.objective
    begin_change(learner)
    add_rows(whole, [learner], settings, first_row=rows)
    after = learner.counts.dense(2 * rows)
    assert after[:rows].tolist() == before.tolist()
    assert after[rows:].any()
    assert learner.running.steps == int(after.sum())
    assert learner.running.objective > upper


def test_a_run_that_was_updated_can_be_resumed_with_a_smaller_tolerance(
    corpus: list[Path], tmp_path: Path
) -> None:
    model = tmp_path / "m"
    fit(corpus[:-1], model)
    streamtron.update(model, corpus[-1:])
    settings = streamtron.Settings(C=5.0, index_base=0, tol=1e-4)
    again = streamtron.run(corpus, settings, model=model, machine=streamtron.Machine(), resume=True)
    assert gap(again.report) <= 1e-4


def test_new_columns_are_learned(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n" * 20)
    (tmp_path / "b.svm").write_text("1 1:1 9:1\n-1 2:1 9:-1\n" * 5)
    fit([tmp_path / "a.svm"], tmp_path / "m", index_base=1)
    updated = streamtron.update(tmp_path / "m", tmp_path / "b.svm", tol=1e-6)
    assert updated.model.columns == 9
    assert updated.model.weights[8] > 0.0


def test_a_run_of_many_classes_is_updated(tmp_path: Path) -> None:
    source = random.Random(1)
    for name, rows in (("a", 200), ("b", 40)):
        lines = []
        for _ in range(rows):
            label = source.choice("xyz")
            lines.append(f"{label} {'xyz'.index(label)}:1 {source.randrange(3, 9)}:0.5\n")
        (tmp_path / f"{name}.svm").write_text("".join(lines))
    fit([tmp_path / "a.svm"], tmp_path / "m", multiclass=True)
    updated = streamtron.update(tmp_path / "m", tmp_path / "b.svm")
    assert updated.model.classes == ("x", "y", "z")
    assert updated.report["rows"] == 240
    assert gap(updated.report) <= TOL
    (tmp_path / "c.svm").write_text("new 0:1\n")
    with pytest.raises(DataError, match=r"c.svm, line 1: label 'new'. Known are"):
        streamtron.update(tmp_path / "m", tmp_path / "c.svm")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "3 1:1\n",
            r"b.svm, line 1: label 3.0. Known are 1.0 and -1.0; .* fit anew on all shards",
        ),
        ("1 0:1\n-1 2:1\n", "has a column 0, and the run's columns are numbered from 1"),
    ],
)
def test_rows_of_another_kind_are_refused_and_nothing_is_changed(
    line: str, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    (tmp_path / "b.svm").write_text(line)
    fit([tmp_path / "a.svm"], tmp_path / "m", index_base="auto")
    before = content(tmp_path / "m.run", tmp_path / "m")
    with pytest.raises(DataError, match=sentence):
        streamtron.update(tmp_path / "m", tmp_path / "b.svm")
    assert content(tmp_path / "m.run", tmp_path / "m") == before


def test_shards_that_the_run_has_are_skipped_and_named_whatever_they_are_called_now(
    corpus: list[Path], tmp_path: Path
) -> None:
    duplicate = tmp_path / "renamed.svm"
    shutil.copy(corpus[0], duplicate)
    fit(corpus[:5], tmp_path / "m")
    updated = streamtron.update(tmp_path / "m", [corpus[1], duplicate, corpus[5]])
    assert updated.report["already_in_run"] == [corpus[1].name, "renamed.svm"]
    assert updated.report["rows"] == 1800
    assert shards_of(tmp_path / "m") == [shard.name for shard in corpus[:6]]


def shards_of(model: Path) -> list[str]:
    """The shards of a model's run, by name."""
    manifest = json.loads(Path(f"{model}.run", "manifest.json").read_text())
    return [shard["name"] for shard in manifest["shards"]]


@pytest.mark.parametrize("settings", [{}, {"C": 2.0, "tol": 1e-13, "max_epochs": 1}])
def test_an_update_that_is_called_again_changes_nothing_and_tells_the_same(
    settings: dict[str, Any], corpus: list[Path], tmp_path: Path
) -> None:
    model, shards = tmp_path / "m", corpus[3:5]
    fit(corpus[:3], model, **settings)
    first = streamtron.update(model, shards)
    before = content(tmp_path / "m.run", model)
    again = streamtron.update(model, shards, report=tmp_path / "r.json")
    assert again.report["already_in_run"] == [shard.name for shard in shards]
    assert content(tmp_path / "m.run", model) == before
    assert (again.stop_reason, again.exit_code) == (first.stop_reason, first.exit_code)
    assert again.report["readings"] == 0.0
    for name in ("rows", "nonzeros", "columns", "certificate", "settings"):
        assert again.report[name] == first.report[name]
    assert json.loads((tmp_path / "r.json").read_text()) == again.report


def test_a_run_of_many_classes_that_has_the_shard_tells_what_it_told(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("x 1:1\ny 2:1\nz 3:1\n" * 30)
    (tmp_path / "b.svm").write_text("z 1:1 3:1\ny 2:2\n" * 9)
    fit([tmp_path / "a.svm"], tmp_path / "m", multiclass=True)
    first = streamtron.update(tmp_path / "m", tmp_path / "b.svm")
    again = streamtron.update(tmp_path / "m", tmp_path / "b.svm")
    assert [each["label"] for each in again.report["learners"]] == ["x", "y", "z"]
    for one, other in zip(first.report["learners"], again.report["learners"], strict=True):
        assert one["certificate"] == other["certificate"]


def test_a_shard_that_was_touched_is_known_by_its_bytes(corpus: list[Path], tmp_path: Path) -> None:
    mine = Path(shutil.copy(corpus[0], tmp_path))
    fit([mine, corpus[1]], tmp_path / "m")
    os.utime(mine, ns=(1, 1))
    updated = streamtron.update(tmp_path / "m", mine)
    assert updated.report["already_in_run"] == [mine.name]


def test_a_shard_that_was_changed_since_is_refused_and_nothing_is_changed(
    corpus: list[Path], tmp_path: Path
) -> None:
    mine = Path(shutil.copy(corpus[0], tmp_path))
    fit([mine, corpus[1]], tmp_path / "m")
    before = content(tmp_path / "m.run", tmp_path / "m")
    text = mine.read_text()
    for other in (text + "1 3:1\n", text.replace("1:", "2:", 1)):
        mine.write_text(other)
        with pytest.raises(DataError, match=r"its bytes are others .* streamtron forget"):
            streamtron.update(tmp_path / "m", [mine, corpus[2]])
        assert content(tmp_path / "m.run", tmp_path / "m") == before


def test_rows_of_a_shard_count_twice_if_that_is_wanted_and_a_path_counts_once(
    corpus: list[Path], tmp_path: Path
) -> None:
    model, duplicate = tmp_path / "m", tmp_path / "duplicate.svm"
    shutil.copy(corpus[0], duplicate)
    fit(corpus[:5], model)
    with pytest.raises(DataError, match="given twice"):
        streamtron.update(model, [corpus[6], corpus[6]])
    for _ in range(2):
        updated = streamtron.update(model, [duplicate, corpus[0]], allow_duplicate=True)
        assert updated.report["rows"] == 1800
    assert updated.report["already_in_run"] == ["duplicate.svm", corpus[0].name]


def test_a_shard_of_which_rows_were_forgotten_is_not_added_once_more_with_them(
    corpus: list[Path], tmp_path: Path
) -> None:
    shutil.copy(corpus[0], tmp_path / "duplicate.svm")
    fit(corpus[:5], tmp_path / "m")
    (tmp_path / "gone.csv").write_text(f"shard,row\n{corpus[0].name},7\n")
    streamtron.forget(tmp_path / "m", rows=tmp_path / "gone.csv")
    updated = streamtron.update(tmp_path / "m", [corpus[0], tmp_path / "duplicate.svm"])
    assert updated.report["rows"] == updated.report["certificate"]["rows_scanned"] == 1499
    with pytest.raises(DataError, match="other rows of them were forgotten"):
        streamtron.update(tmp_path / "m", tmp_path / "duplicate.svm", allow_duplicate=True)


def test_what_is_no_run_that_has_ended_is_refused(corpus: list[Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no run"):
        streamtron.update(tmp_path / "m", corpus[0])
    fit(corpus[:1], tmp_path / "m")
    for name in ("checkpoint", "checkpoint.before"):
        (tmp_path / "m.run" / name).unlink(missing_ok=True)
    with pytest.raises(DataError, match="the run has not ended"):
        streamtron.update(tmp_path / "m", corpus[1])
    fit(corpus[:1], tmp_path / "f", faithful=True, stage="1", rho=0.0, max_epochs=3)
    with pytest.raises(SettingsError, match="a faithful run"):
        streamtron.update(tmp_path / "f", corpus[1])


def test_an_old_shard_that_was_changed_is_refused(corpus: list[Path], tmp_path: Path) -> None:
    old = tmp_path / "old.svm"
    shutil.copy(corpus[0], old)
    fit([old], tmp_path / "m")
    old.write_text(old.read_text() + "1 3:1\n")
    with pytest.raises(DataError, match=r"old.svm: changed"):
        streamtron.update(tmp_path / "m", corpus[1])


def test_a_run_whose_active_set_is_small_is_updated(corpus: list[Path], tmp_path: Path) -> None:
    fit(corpus[:7], tmp_path / "m", active_set=100_000)
    updated = streamtron.update(tmp_path / "m", corpus[7:])
    assert gap(updated.report) <= TOL
    assert holds_optimum(updated.report, corpus)


def test_balanced_weights_are_those_of_all_rows(corpus: list[Path], tmp_path: Path) -> None:
    fit(corpus[:7], tmp_path / "m", class_weight="balanced")
    updated = streamtron.update(tmp_path / "m", corpus[7:])
    assert gap(updated.report) <= TOL
    assert holds_optimum(updated.report, corpus)


@pytest.mark.parametrize("tol", [0.2, 0.3])
@pytest.mark.parametrize("number", [10, 30])
def test_a_few_new_rows_of_the_rare_class_weigh_all_rows_anew(
    number: int, tol: float, tmp_path: Path
) -> None:
    """What the last scan saw of the old rows was by the weights that they had then: the tolerance
    is so wide that it would do as it is, and the upper bound would be below the optimum."""

    def shard(seed: int, rows: int, share: float) -> Path:
        """So many rows, of which this share is of the rare class."""
        rng, path = np.random.default_rng(seed), tmp_path / f"{seed}.svm"
        lines = []
        for _ in range(rows):
            label = 1 if rng.random() < share else -1
            row = np.round(rng.normal(size=6) + 0.4 * label, 3)
            lines.append(f"{label} " + " ".join(f"{j + 1}:{value}" for j, value in enumerate(row)))
        path.write_text("\n".join(lines) + "\n")
        return path

    old, new = shard(1, 400, 0.05), shard(2, number, 1.0)
    settings = {"class_weight": "balanced", "C": 0.1}
    fit([old], tmp_path / "m", tol=tol, **settings)
    updated = streamtron.update(tmp_path / "m", new).report["certificate"]
    whole = fit([old, new], tmp_path / "whole", tol=1e-8, **settings)["certificate"]
    assert whole["primal_margin"] <= updated["upper_bound"] * (1 + 1e-12)
    assert updated["primal_margin"] <= whole["upper_bound"] * (1 + 1e-12)


def test_an_update_leaves_no_checkpoint_of_the_run_as_it_was(
    corpus: list[Path], tmp_path: Path
) -> None:
    """A damaged checkpoint would fall back on it: the counts of other rows."""
    often, settings = streamtron.Machine(checkpoint_every=0.0), streamtron.Settings(index_base=0)
    streamtron.run(corpus[:3], settings, model=tmp_path / "m", machine=often)
    assert (tmp_path / "m.run" / "checkpoint.before").exists()
    streamtron.update(tmp_path / "m", corpus[3])
    assert (tmp_path / "m.run" / "checkpoint").exists()
    assert not (tmp_path / "m.run" / "checkpoint.before").exists()


def test_the_command_says_what_came_of_it(
    corpus: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(corpus[:7], tmp_path / "m")
    arguments = [str(tmp_path / "m"), *map(str, corpus[7:]), "--tol", "0.001"]
    assert code("update", *arguments, "--report", str(tmp_path / "r.json")) == 0
    assert "3,000" in capsys.readouterr().out
    assert gap(json.loads((tmp_path / "r.json").read_text())) <= 0.001
    assert code("update", *arguments) == 0
    told = capsys.readouterr().out
    assert f"{corpus[7].name}: in the run already; it is skipped" in told
    assert "3,000" in told
    assert code("update", str(tmp_path / "none"), str(corpus[0])) == 3
    assert "there is no run" in capsys.readouterr().err


def test_rcv1_with_one_part_in_a_hundred_more_needs_two_readings_and_a_fraction_of_the_visits(
    shared_data: Path, tmp_path: Path
) -> None:
    with lzma.open(shared_data / "rcv1_27613.ccat.xz", "rt") as file:
        lines = list(islice(file, 2020))
    old, new = tmp_path / "old.svm", tmp_path / "new.svm"
    old.write_text("".join(lines[:2000]))
    new.write_text("".join(lines[2000:]))
    fit([old], tmp_path / "m", C=50.0, index_base="auto")
    updated = streamtron.update(tmp_path / "m", new).report
    assert gap(updated) <= TOL
    assert updated["readings"] == pytest.approx(2.02, abs=0.005)  # two of the new rows, two of all
    assert holds_optimum(updated, [old, new])
    assert np.isfinite(updated["seconds"])
