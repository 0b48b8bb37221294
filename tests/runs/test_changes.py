"""Changes of a run, update and forget: what they read and report, what they refuse, and that they
count all at once. That their bounds hold is proven in test_stories."""

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamtron
from streamtron import generate
from streamtron.core.errors import DataError
from streamtron.core.sealed import read_sealed, write_sealed
from streamtron.runs.change import EditableRun
from streamtron.runs.job import Call
from streamtron.runs.report import Outcome
from streamtron.runs.store import Store, changing, reading
from tests.helpers.optimum import holds_optimum
from tests.helpers.processes import here, one_sentence, succeeded
from tests.helpers.runs import (
    WAS_KILLED,
    content,
    fit,
    forgotten_of,
    gap,
    killed_at_call,
    manifest_of,
    state,
    state_file,
    witness_of,
)
from tests.helpers.svm_text import svm_lines, write_shards
from tests.helpers.user_rows import Corpus, list_rows

# --- what an update reads ------------------------------------------------------------------------


@pytest.mark.parametrize("as_numbered", [0, 1 << 16])  # columns so many are not ranked anew
def test_where_old_scans_and_one_of_new_rows_prove_enough_no_old_row_is_read(
    as_numbered, corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr("streamtron.data.dataset.AS_NUMBERED", as_numbered)
    few = tmp_path / "few.svm"  # so few that the proof of the others nearly suffices
    few.write_text("".join(corpus[9].read_text().splitlines(keepends=True)[:30]))
    before = fit(corpus[:9], tmp_path / "m", C=0.1, tol=0.05)
    weights = streamtron.load(tmp_path / "m").weights
    updated = streamtron.update(tmp_path / "m", few)
    report = updated.report
    new = report["nonzeros"] - before["nonzeros"]
    assert report["readings"] == pytest.approx(3.0 * new / report["nonzeros"], rel=1e-12)
    assert report["rows"] == report["certificate"]["rows_scanned"] == 2730
    assert report["radius"] == before["radius"]  # of old and new rows
    [stage] = report["stages"]
    assert 0 < stage["updates"] <= 30 * (1 + stage["mini_epochs"])  # none of the run before
    assert (updated.stop_reason, gap(report) <= 0.05) == ("certified", True)
    scale = np.linalg.norm(updated.model.weights) / np.linalg.norm(weights)
    assert updated.model.weights == pytest.approx(scale * weights, rel=1e-12)
    assert holds_optimum(report, [*corpus[:9], few])
    proof = streamtron.certify(tmp_path / "m").certificate
    for name in ("primal", "dual"):
        claimed = report["certificate"][f"{name}_objective"]
        assert getattr(proof, name) == pytest.approx(claimed, rel=1e-9)


def test_an_update_warns_where_little_of_the_tolerance_is_left(corpus, tmp_path, caplog):
    """Which tells nothing wrong of this night, and may make the next one dear."""
    few = tmp_path / "few.svm"
    few.write_text("".join(corpus[9].read_text().splitlines(keepends=True)[:30]))
    fit(corpus[:1], tmp_path / "m", C=0.1, tol=0.05)
    for name in ("m.run", "m"):
        (shutil.copytree if name == "m.run" else shutil.copy)(
            tmp_path / name, tmp_path / f"o{name}"
        )
    proven = gap(streamtron.update(tmp_path / "m", few, tol=0.9).report)
    assert "little room" not in caplog.text
    again = streamtron.update(tmp_path / "om", few, tol=1.1 * proven).report
    assert again["readings"] < 1.0
    assert f"the tolerance {1.1 * proven:g}: so little room is left" in caplog.text


def test_of_many_classes_those_whose_proof_suffices_read_no_more(tmp_path):
    source = random.Random(1)
    labels = [source.choice("xyz") for _ in range(404)]
    lines = [f"{y} {'xyz'.index(y)}:1 {source.randrange(3, 9)}:0.5\n" for y in labels]
    # at last what looks like a y is an x: nothing changes for z
    parts = {"a": lines[:400], "b": lines[400:], "c": ["x 1:1 3:2\n"] * 30}
    for name, rows in parts.items():
        (tmp_path / f"{name}.svm").write_text("".join(rows))
    fit([tmp_path / "a.svm"], tmp_path / "m", C=0.1, tol=0.05, multiclass=True)
    assert streamtron.update(tmp_path / "m", tmp_path / "b.svm").report["readings"] < 0.1
    report = streamtron.update(tmp_path / "m", tmp_path / "c.svm").report
    epochs = {learner["label"]: learner["full_epochs"] for learner in report["learners"]}
    assert report["readings"] > 1.0
    assert epochs["z"] == 0 < min(epochs["x"], epochs["y"])
    for learner in report["learners"]:
        assert learner["certificate"]["rows_scanned"] == 434
        assert gap(learner) <= 0.05


@pytest.mark.parametrize("tol", [0.2, 0.3])
@pytest.mark.parametrize("number", [10, 30])
def test_a_few_new_rows_of_the_rare_class_weigh_all_rows_anew(number, tol, tmp_path):
    """What the last scan saw of the old rows was by the weights that they had then: the tolerance
    is so wide that it would do as it is, and the upper bound would be below the optimum."""
    lines = []
    for seed, rows, share in ((1, 400, 0.05), (2, number, 1.0)):
        rng = np.random.default_rng(seed)
        for _ in range(rows):
            label = 1 if rng.random() < share else -1
            lines += svm_lines(np.round(rng.normal(size=(1, 6)) + 0.4 * label, 3), [label])
    old, new = write_shards(tmp_path, lines, [400])
    fit([old], tmp_path / "m", tol=tol, class_weight="balanced", C=0.1)
    assert holds_optimum(streamtron.update(tmp_path / "m", new).report, [old, new])


@pytest.mark.parametrize("machine", [{}, {"active_set": 2_000}, {"parts": 2}])
@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_dual_variables_above_what_new_class_weights_allow_are_cut(loss, machine, tmp_path):
    """α_k is at most C_k, which more rows of a class make less for all of them."""
    y = np.full(460, -1)
    y[:6] = y[200:206] = y[400:] = 1
    X = np.random.default_rng(3).normal(size=(len(y), 4)) + 0.3 * y[:, None]
    shards = write_shards(tmp_path, svm_lines(X, y), [200, 400])
    known = {"loss": loss, "class_weight": "balanced", "C": 0.01, "tol": 1e-3, **machine}
    fit(shards[:2], tmp_path / "m", **known)
    changed = streamtron.update(tmp_path / "m", shards[2]).report["certificate"]
    afresh = fit(shards, tmp_path / "n", **known | {"tol": 1e-6})["certificate"]
    assert changed["dual_objective"] <= afresh["primal_objective"]
    assert afresh["dual_objective"] <= changed["primal_objective"]
    assert changed["relative_duality_gap"] <= 1e-3


# --- what forgetting leaves ----------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"active_set": 2_000}, {"multiclass": True}])
def test_no_file_of_a_run_is_as_wide_as_a_row_that_it_has_forgotten(settings, tmp_path):
    lines = [
        f"{1 - 2 * (k % 2)} {k % 3}:1 {5 + (k + k // 60) % 7}:0.{k % 9 + 1}"
        + (" 12345:1\n" if k // 60 == 1 else "\n")
        for k in range(180)
    ]
    fit(write_shards(tmp_path, lines, 3), tmp_path / "m", **settings)
    assert streamtron.forget(tmp_path / "m", "1.svm").model.columns == 12
    opened = reading(tmp_path / "m.run")
    saved = opened.state()
    state = saved.state
    sizes = {len(array) for array in state.arrays.values()}
    assert max(sizes) <= 180  # of rows, not of columns
    assert state.columns == len(saved.numbers) == 10  # two of 12 never occur


def test_columns_keep_their_numbers_where_column_0_is_forgotten(tmp_path):
    texts = ("1 0:1 3:1\n-1 3:2\n", "1 2:1 3:1\n-1 2:-1 3:1\n1 2:2\n-1 2:-2 3:1\n")
    for name, text in zip("ab", texts, strict=True):
        (tmp_path / f"{name}.svm").write_text(text)
    fit([tmp_path / "a.svm", tmp_path / "b.svm"], tmp_path / "m", index_base="auto")
    left = streamtron.forget(tmp_path / "m", "a.svm").model
    assert (left.index_base, np.flatnonzero(left.weights).tolist()) == (0, [2, 3])


@pytest.mark.parametrize("how", ["more learners", "another model"])
def test_a_run_whose_state_is_not_the_models_is_not_changed(how, corpus, tmp_path):
    fit(corpus[:1], tmp_path / "m")
    if how == "more learners":
        path = state_file(tmp_path / "m.run")
        content, arrays = read_sealed(path, "state of a run")
        content["state"]["learners"] *= 2
        write_sealed(path, content, arrays)
    else:
        fit(corpus[:1], tmp_path / "other", C=2.0)
        os.replace(tmp_path / "other", tmp_path / "m")
    with pytest.raises(DataError, match=r"not the model's\. Put the run's own model back"):
        streamtron.update(tmp_path / "m", corpus[1])


def test_moved_shards_are_known_by_bytes_and_a_new_run_reads_all_rows(user_rows, tmp_path, caplog):
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
    shards = user_rows.shards("svm", tmp_path / "here")
    fit(shards, tmp_path / "m")
    streamtron.forget(tmp_path / "m", rows=list_rows(tmp_path / "l", {"1.svm": [3], "2.svm": [4]}))
    moved = [shard.rename(tmp_path / "there" / shard.name) for shard in shards]
    shutil.copy2(moved[2], shards[2])
    paths = [*moved[:2], shards[2], moved[3]]
    settings = streamtron.Settings(C=5.0, index_base=0, tol=1e-5)
    assert streamtron.run(paths, settings, model=tmp_path / "m", resume=True).report["rows"] == 798
    assert sorted(forgotten_of(tmp_path / "m.run")) == sorted(map(str, (moved[1], shards[2])))
    anew = streamtron.run(paths, settings, model=tmp_path / "m", overwrite=True)
    assert (anew.report["rows"], "forgotten_rows" in anew.report) == (800, False)
    assert "rows that were forgotten are read again" in caplog.text


def test_a_shard_is_known_by_its_bytes_and_counts_twice_if_that_is_wanted(user_rows, tmp_path):
    shards = user_rows.shards("svm", tmp_path)
    duplicate, other = (
        Path(shutil.copy2(shards[0], tmp_path / name)) for name in ("duplicate.svm", "other.svm")
    )
    fit(shards, tmp_path / "m")
    os.utime(shards[0], ns=(1, 1))
    assert streamtron.update(tmp_path / "m", shards[0]).report["already_in_run"] == ["0.svm"]
    for _ in range(2):
        updated = streamtron.update(tmp_path / "m", [duplicate, shards[0]], allow_duplicate=True)
        assert updated.report["rows"] == 1000
    found = streamtron.forget(tmp_path / "m", rows=list_rows(tmp_path / "l", {"0.svm": [9]}))
    deleted = {Path(k).name: d.rows.tolist() for k, d in forgotten_of(tmp_path / "m.run").items()}
    assert deleted == {"0.svm": [9], "duplicate.svm": [9]}
    assert (found.report["rows"], found.report["forgotten"]) == (998, {"0.svm": 2})
    assert streamtron.update(tmp_path / "m", [shards[0], duplicate]).report["rows"] == 998
    with pytest.raises(DataError, match=r"other.svm: the same bytes as 0.svm, but other rows"):
        streamtron.update(tmp_path / "m", other)


def test_a_witness_that_hides_rows_proves_nothing_unless_that_is_accepted(user_rows, tmp_path):
    """Those that the model is worst at, as if they were forgotten."""
    fit([user_rows.write(tmp_path / "0.svm", np.arange(800))], tmp_path / "m", index_base=1)
    decisions = streamtron.load(tmp_path / "m").decision_function(user_rows.rows)
    hardest = np.argsort(user_rows.labels * decisions)[:140]
    gone = list_rows(tmp_path / "gone.csv", {"0.svm": sorted(hardest.tolist())})
    streamtron.forget(tmp_path / "m", rows=gone)
    witness_of(tmp_path / "m.run", tmp_path / "w")
    words = ("certify", "m", "0.svm", "--witness", "w")
    one_sentence(here(tmp_path, *words), 3, "w", "140 rows", "--accept-exclusions")
    one_sentence(here(tmp_path, "certify", "m", "--witness", "w"), 3, "140 rows")
    for accepted in ((*words, "--accept-exclusions"), ("certify", "m.run")):
        *_, last = " ".join(succeeded(here(tmp_path, *accepted)).stdout.split()).split(". ")
        assert "140 rows of the shards left out" in last
        certificate = json.loads(here(tmp_path, *accepted, "--json").stdout)["certificate"]
        assert (certificate["rows_scanned"], certificate["rows_excluded"]) == (660, 140)


# --- the shards of a directory -------------------------------------------------------------------


def named(outcome: Outcome) -> list[str]:
    """The shards that a run has."""
    return [shard.name for shard in outcome.manifest.shards]


def test_a_shard_that_was_forgotten_stays_so_under_any_name_until_it_is_asked_for(
    user_rows, tmp_path
):
    shards = user_rows.shards("svm", tmp_path)
    fit(shards[:3], tmp_path / "m")
    streamtron.forget(tmp_path / "m", "1.svm")
    assert re.search(r"\nshards forgotten +1\n", here(tmp_path, "inspect", "m.run").stdout)
    shards[1].rename(tmp_path / "renamed.svm")
    words = ("update", "m", "renamed.svm", "3.svm", "--report", "r")
    done = succeeded(here(tmp_path, *words)).stdout
    report = json.loads((tmp_path / "r").read_text())
    assert (report["rows"], report["stays_forgotten"]) == (600, ["renamed.svm"])
    assert "forgotten before, and skipped: 1 of the shards (see --again)\n" in done
    again = streamtron.update(tmp_path / "m", tmp_path / "renamed.svm")
    assert (again.report["readings"], again.report["stays_forgotten"]) == (0.0, ["renamed.svm"])
    succeeded(here(tmp_path, *words, "--again"))
    assert json.loads((tmp_path / "r").read_text())["rows"] == 800
    known = streamtron.update(tmp_path / "m", tmp_path / "renamed.svm").report
    assert (known["already_in_run"], known["stays_forgotten"]) == (["renamed.svm"], [])
    done = succeeded(here(tmp_path, "update", "m", "renamed.svm", "--tol", "0.001"))
    assert "renamed.svm: in the run already; it is skipped" in done.stdout
    assert re.search(r"\nrows +800\n", done.stdout)


def test_a_run_mirrors_a_directory_whose_files_come_go_and_move(user_rows, tmp_path):
    """As rotated logs do: two names have the bytes of another day, and a third is new."""
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    shards = user_rows.shards("svm", inbox)
    (tmp_path / "later.svm").write_bytes(shards.pop().read_bytes())
    (inbox / "3.svm").unlink()
    fit([inbox], tmp_path / "m")
    shards[0].unlink()
    shards[1].rename(shards[0])
    shards[2].rename(shards[1])
    shutil.copy2(tmp_path / "later.svm", shards[2])
    done = succeeded(here(tmp_path, "update", "m", "inbox", "--mirror", "--report", "r")).stdout
    report = json.loads((tmp_path / "r").read_text())
    assert (report["added"], report["forgotten"]) == (["2.svm"], {"0.svm": 200})
    assert "0.svm: 200 rows forgotten" in done
    assert "2.svm: comes in" in done
    assert report["rows"] == report["certificate"]["rows_scanned"] == 600
    assert report["readings"] < 3.0
    assert holds_optimum(report, shards)
    assert streamtron.certify(tmp_path / "m").certificate.rows_scanned == 600
    assert streamtron.update(tmp_path / "m", inbox, mirror=True).report["readings"] == 0.0
    shards[0].rename(inbox / "9.svm")
    moved = streamtron.update(tmp_path / "m", inbox, mirror=True)
    assert named(moved) == ["9.svm", "1.svm", "2.svm"]
    with pytest.raises(DataError, match="no such file"):
        streamtron.update(tmp_path / "m", tmp_path / "nowhere", mirror=True)
    for shard in inbox.iterdir():
        shard.unlink()
    user_rows.write(inbox / "new.svm", np.arange(150))
    anew = streamtron.update(tmp_path / "m", inbox, mirror=True)
    assert (named(anew), anew.report["rows"]) == (["new.svm"], 150)
    assert holds_optimum(anew.report, [inbox / "new.svm"])


def test_a_window_is_the_last_shards_and_what_was_forgotten_of_them_stays_so(user_rows, tmp_path):
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    shards = user_rows.shards("svm", inbox)
    fit(shards[:2], tmp_path / "m")
    streamtron.forget(tmp_path / "m", rows=list_rows(tmp_path / "l", {"1.svm": [3, 4, 9]}))
    of_two = streamtron.update(tmp_path / "m", inbox, window=2)
    assert (named(of_two), of_two.report["rows"]) == (["2.svm", "3.svm"], 400)
    assert of_two.report["forgotten"] == {"0.svm": 200, "1.svm": 197}
    assert "forgotten_rows" not in of_two.report
    assert b"1.svm" not in (tmp_path / "m.run" / "run.sqlite").read_bytes()
    of_three = streamtron.update(tmp_path / "m", inbox, window=3)
    assert (named(of_three), of_three.report["rows"]) == (["2.svm", "3.svm", "1.svm"], 597)
    streamtron.forget(tmp_path / "m", "2.svm")
    of_four = streamtron.update(tmp_path / "m", inbox, window=4)
    assert (of_four.report["rows"], of_four.report["stays_forgotten"]) == (597, ["2.svm"])
    streamtron.update(tmp_path / "m", shards[3], mirror=True)
    every = streamtron.update(tmp_path / "m", inbox, window=4, again=True)
    assert (every.report["rows"], every.report["added"]) == (800, ["0.svm", "1.svm", "2.svm"])
    assert holds_optimum(every.report, shards)
    streamtron.forget(tmp_path / "m", [f"{k}.svm" for k in range(3)])
    with pytest.raises(DataError, match=r"all the shards given were forgotten.*--again"):
        streamtron.update(tmp_path / "m", shards[0], mirror=True)


def test_a_mirrored_shard_of_another_name_holds_out_other_rows_and_comes_in_anew(
    user_rows, tmp_path
):
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    shards = user_rows.shards("svm", inbox)
    fit([inbox], tmp_path / "m", held_out=0.3)
    shards[0].rename(inbox / "renamed.svm")
    found = streamtron.update(tmp_path / "m", inbox, mirror=True).report
    assert ([*found["forgotten"]], found["added"]) == (["0.svm"], ["renamed.svm"])
    afresh = fit([inbox], tmp_path / "n", held_out=0.3)
    assert found["rows"] == afresh["rows"]


# --- what is reported ----------------------------------------------------------------------------

FORGETS: dict[str, tuple[Callable[..., dict[str, Any]], dict[str, int], list[str]]] = {
    "a shard and none": (lambda *_: {"shards": ["nobody", "1.svm"]}, {"1.svm": 200}, ["nobody"]),
    "a path and a name": (lambda paths, _: {"shards": [paths[1], "1.svm"]}, {"1.svm": 200}, []),
    "rows of a shard and of none": (
        lambda _, at: {"rows": list_rows(at / "l", {"9.svm": [0], "1.svm": [3, 5], "2.svm": [9]})},
        {"1.svm": 2, "2.svm": 1},
        ["9.svm"],
    ),
    "a directory that is gone": (
        lambda shards, at: shutil.rmtree(at / "day") or {"shards": [f"{at}/day"]},
        {"day": 100},
        [],
    ),
    "nothing that the run has": (lambda *_: {"shards": ["x.svm", "da"]}, {}, ["x.svm", "da"]),
}


@pytest.mark.parametrize("way", FORGETS)
def test_forget_reports_the_rows_of_what_is_named_and_what_is_not_there(way, user_rows, tmp_path):
    shards = user_rows.shards("svm", tmp_path)
    fit(shards, tmp_path / "m", tol=1e-13, max_epochs=2)
    for day in ("day", "days"):  # a name begins with the other
        (tmp_path / day).mkdir()
        user_rows.write(tmp_path / day / f"{day}.svm", 7 * len(day) + np.arange(100))
        streamtron.update(tmp_path / "m", tmp_path / day)
    name, forgotten, missing = FORGETS[way]
    words = name(shards, tmp_path)
    first = streamtron.forget(tmp_path / "m", **words)
    shown = {Path(key).name: rows for key, rows in first.report["forgotten"].items()}
    assert (shown, first.report["not_in_run"]) == (forgotten, missing)
    assert sum(first.report["forgotten"].values()) == sum(forgotten.values())
    before = content(tmp_path / "m.run", tmp_path / "m")
    again = streamtron.forget(tmp_path / "m", **words, report=tmp_path / "r.json")
    assert again.report["forgotten"] == {}
    not_there = {Path(key).name for key in again.report["not_in_run"]}
    assert len(not_there) == len(forgotten) + len(missing)
    assert content(tmp_path / "m.run", tmp_path / "m") == before
    assert (again.exit_code, again.report["readings"]) == (first.exit_code, 0.0)
    assert json.loads((tmp_path / "r.json").read_text()) == again.report


def test_the_command_forgets_the_rows_of_users_and_can_be_called_again(user_rows, tmp_path):
    fit(user_rows.shards("parquet"), tmp_path / "m")
    words = ("forget", "m", "--key", "user", "--value=user-3", "--value=user-4", "--report", "r")
    words += ("--value=user-3",)
    rows = {f"user = {name}": sum(user_rows.users == name) for name in ("user-3", "user-4")}
    left = 800 - sum(rows.values())
    for forgotten in (rows, {}):
        done = here(tmp_path, *words)
        report = json.loads((tmp_path / "r").read_text())
        assert (done.returncode, report["rows"], report["forgotten_rows"]) == (0, left, 800 - left)
        assert report["readings"] == (1.0 if forgotten else 0.0)
        assert report["forgotten"] == forgotten
        assert report["not_in_run"] == ([] if forgotten else [*rows])
        for name, number in rows.items():
            assert (f"{name}: {number} rows forgotten\n" in done.stdout) == bool(forgotten)
        assert re.search(rf"rows left out +{800 - left}\n", done.stdout)
    assert "user = user-3: not in the run; there is nothing to forget" in done.stdout
    shown = here(tmp_path, "inspect", "m.run").stdout
    assert re.search(rf"rows +{left}\n(.*\n)?rows forgotten +{800 - left}\n", shown)


# --- what is refused -----------------------------------------------------------------------------


def grown(path: Path) -> None:
    path.write_text(path.read_text() + "1 3:1\n")


REFUSED = {
    # what is called, the sentence
    "no run": ("update nowhere 3.svm", "there is no run"),
    "a run of stages": ("update m 3.svm", "a run of stages"),
    "an old shard that grew": ("update m 3.svm", "1.svm: changed since .*m.run"),
    "an old shard that is gone": ("update m 3.svm", "1.svm: gone from .*streamtron forget"),
    "other bytes of a shard": (
        "update m 1.svm 3.svm",
        "its bytes differ from .* forget, .* --mirror",
    ),
    "a shard twice": ("update m 3.svm ./3.svm", "given twice"),
    "another format": ("update m t.parquet", "parquet, and the run's .* libsvm"),
    "another label": ("update m label.svm", "label 3.0. Known are .* fit anew on all shards"),
    "a column 0": ("update m zero.svm", "a column 0, and the run's columns are numbered from 1"),
    "a column 0 among many": ("update m zeros.svm", "column 0, and the run's columns are numbered"),
    "all shards": ("forget m 0.svm 1.svm 2.svm", "nothing would be left"),
    "all rows": ("forget m --rows all.csv", "these are all rows of the run"),
    "a key alone": ("forget m --key user", "give both"),
    "a value alone": ("forget m --value a", "give both"),
    "a key and a list": ("forget m --key user --value a --rows l", "exclude each other"),
    "shards and a list": ("forget m 0.svm --rows l", "names the shards itself"),
    "nothing": ("forget m", "nothing to forget"),
    "a key of text": ("forget m --key user --value a", "text has no column 'user'.*--rows FILE"),
    "another key": (
        "forget n --key name --value a",
        "0 columns of the name 'name': expected one",
    ),
    "another type": ("forget n --key y --value high", "holds double, .*Failed to parse string"),
    "a key of lists": ("forget n --key indices --value 1", "column 'indices' holds list"),
}

LISTS = {
    # what is in the list of rows to forget, the sentence
    "an empty list": ("", "begins with '': expected a CSV file whose first line is shard,row"),
    "a list without its first line": ("0.svm,3\n", "begins with '0.svm,3'"),
    "a list of nothing": ("shard,row\n", "no row in it"),
    "a row below 0": ("shard,row\n0.svm,-1\n", "line 2: shard '0.svm', row '-1'"),
    "no row": ("shard,row\n0.svm\n", "line 2: shard '0.svm', row None"),
    "a row beyond": ("shard,row\n0.svm,200\n", "row 200 of 0.svm, which has 200 rows"),
    "no CSV": ('shard,row\n"0.svm,0\n', "not CSV"),
}

OF_RUNS: dict[str, dict[str, Any]] = {
    "a run of stages": {"stage": "1", "rho": 0.0, "max_epochs": 3},
    "a column 0": {"index_base": "auto"},
    "a column 0 among many": {"index_base": "auto"},
}
"""The settings of these runs."""

SPOILT: dict[str, Callable[[Path], object]] = {
    "an old shard that grew": grown,
    "an old shard that is gone": Path.unlink,
    "other bytes of a shard": grown,
}
"""What is done to 1.svm before."""


@pytest.fixture(scope="module")
def fitted(user_rows: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run ``m`` of three shards of text, ``n`` of tables, and what is wrong for ``m``."""
    place = tmp_path_factory.mktemp("fitted")
    shards = user_rows.shards("svm", place)
    (place / "label.svm").write_text("3 1:1\n")
    (place / "zero.svm").write_text("1 0:1\n-1 2:1\n")
    (place / "zeros.svm").write_text("1 0:1\n-1 2:1\n" * 4000)
    pq.write_table(pa.table({"label": [1, -1], "a": [0.5, 1.5]}), place / "t.parquet")
    list_rows(place / "all.csv", {f"{k}.svm": range(200) for k in range(3)})
    fit(shards[:3], place / "m", index_base=1)
    fit(user_rows.shards("parquet", place), place / "n")
    return place


@pytest.mark.parametrize("case", [*REFUSED, *LISTS])
def test_a_change_that_cannot_be_made_is_a_sentence_and_changes_nothing(case, fitted, tmp_path):
    words, sentence = REFUSED.get(case) or ("forget m --rows l", LISTS[case][1])
    place = shutil.copytree(fitted, tmp_path / "place", copy_function=shutil.copy2)
    if case in LISTS:
        (place / "l").write_text(LISTS[case][0])
    settings, spoil = OF_RUNS.get(case, {}), SPOILT.get(case)
    if settings or spoil == Path.unlink:  # the copy would find the shard where it came from
        shutil.rmtree(place / "m.run")
        fit([place / f"{k}.svm" for k in range(3)], place / "m", **{"index_base": 1, **settings})
    if spoil:
        shutil.rmtree(place / "m.run" / "cache")
        spoil(place / "1.svm")
    before = content(place / "m.run", place / "m")
    done = here(place, *words.split())
    assert (done.returncode in (2, 3), done.stdout) == (True, ""), done
    assert re.search(sentence, done.stderr.replace("\n", " ")), done.stderr
    assert content(place / "m.run", place / "m") == before


@pytest.mark.parametrize("classes", [2, 3])
def test_a_class_that_would_lose_all_its_rows_is_named_and_nothing_is_forgotten(classes, tmp_path):
    for name, label in zip("abc"[:classes], ("-1", "1", "7"), strict=False):
        lines = [f"{label} {1 + k % 3}:1 {5 + ord(name)}:0.5\n" for k in range(20)]
        (tmp_path / f"{name}.svm").write_text("".join(lines))
    fit(sorted(tmp_path.glob("*.svm")), tmp_path / "m", multiclass=classes == 3)
    before = content(tmp_path / "m.run", tmp_path / "m")
    rows = list_rows(tmp_path / "l", {"b.svm": range(20)})
    for words in ({"rows": rows}, {"shards": "b.svm"}, {"rows": rows, "max_epochs": 1}):
        with pytest.raises(DataError, match=r"no remaining row has the label 1\.0|label 1,"):
            streamtron.forget(tmp_path / "m", **words)
        assert content(tmp_path / "m.run", tmp_path / "m") == before
    rows = list_rows(tmp_path / "l", {"b.svm": range(19)})
    assert streamtron.forget(tmp_path / "m", rows=rows).report["rows"] == 20 * classes - 19
    table = pa.table({"f0": [1.0, 2.0], "label": [1.0, 3.0], "w": [1.0, 0.0]})
    pq.write_table(table, tmp_path / "n.parquet")
    streamtron.fit(tmp_path / "n.parquet", model=tmp_path / "n", weight="w", loss="squared_error")
    with pytest.raises(DataError, match=r"no remaining row has a weight above 0\. Nothing was"):
        streamtron.forget(tmp_path / "n", key="w", values=[1.0])


# --- all or nothing ------------------------------------------------------------------------------


def test_a_change_killed_at_any_call_is_left_for_the_next_process_or_not_made(tmp_path):
    place, saved = tmp_path / "place", tmp_path / "saved"
    generate(str(place), rows=800, columns=100, seed=3, shards=4)
    shards = sorted(place.glob("*.svm"))
    fit(shards[:3], place / "m")
    streamtron.forget(place / "m", rows=list_rows(tmp_path / "l", {shards[0].name: [3]}))
    dies = Mock(side_effect=[None, KeyboardInterrupt])  # once it counts
    shutil.copytree(place, tmp_path / "first", copy_function=shutil.copy2)
    first = state(place)
    with patch.object(Store, "complete", dies), pytest.raises(KeyboardInterrupt):
        streamtron.forget(place / "m", shards[0].name)  # of all forgotten rows, too
    shutil.copytree(place, saved, copy_function=shutil.copy2)
    before = state(place)
    code, calls = killed_at_call(10**6, "recover", place / "m")
    assert (code, int(calls) >= 8) == (0, True)
    wanted = state(place)
    assert first["model"] == before["model"] != wanted["model"]
    assert (len(first["forgotten"]), wanted["forgotten"]) == (1, [])
    for number in range(int(calls)):
        shutil.rmtree(place)
        shutil.copytree(saved, place, copy_function=shutil.copy2)
        assert killed_at_call(number, "recover", place / "m")[0] == WAS_KILLED, number
        with changing(place / "m.run", place / "m"):
            pass
        assert state(place) == wanted, number
        assert len([*(place / "m.run").glob("[ms][to]*-0*")]) == 1
        assert not [*place.glob(".streamtron-*")]
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "first", place, copy_function=shutil.copy2)
    words = {"shards": shards[0].name}
    calls = killed_at_call(10**6, "forget", place / "m", words)[1]
    for number in range(max(0, int(calls) - 50), int(calls), 3):  # those about the commit
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "first", place, copy_function=shutil.copy2)
        assert killed_at_call(number, "forget", place / "m", words)[0] == WAS_KILLED, number
        with changing(place / "m.run", place / "m"):
            pass
        assert state(place) in (first, wanted), number


def test_the_rows_that_go_out_are_known_after_every_edit(user_rows, tmp_path):
    fit(user_rows.shards("svm", tmp_path), tmp_path / "m")
    with EditableRun.opened(tmp_path / "m", Call.begin(), None, []) as target:
        for edit, wanted in (
            (lambda: None, []),
            (lambda: target.leave_out(1, np.array([7])), [207]),
            (lambda: target.leave_out(1, np.array([5, 7])), [205, 207]),
            (lambda: target.leave_out(0), [*range(200), 205, 207]),
        ):
            edit()
            assert target.removed.tolist() == wanted


def test_no_cache_has_flat_files_of_forgotten_rows_also_if_a_change_fails(user_rows, tmp_path):
    shards = user_rows.shards("svm", tmp_path)
    elsewhere = streamtron.Machine(cache_dir=str(tmp_path / "n.run" / "cache"))
    for name in "mn":
        fit(shards, tmp_path / name)
    gone, *kept = manifest_of(tmp_path / "m.run").fingerprints.values()

    def cached() -> list[set[str]]:
        places = [(tmp_path / f"{name}.run" / "cache").glob("*-*") for name in "mn"]
        return [{path.name.split("-")[2] for path in files} for files in places]

    assert cached() == [{gone, *kept}] * 2
    dies = Mock(side_effect=KeyboardInterrupt)
    with patch.object(Store, "end", dies), pytest.raises(KeyboardInterrupt):
        streamtron.forget(tmp_path / "m", "0.svm", machine=elsewhere)
    assert cached() == [{*kept}] * 2
    assert streamtron.forget(tmp_path / "m", "0.svm", machine=elsewhere).report["rows"] == 600
    assert cached() == [{*kept}] * 2
