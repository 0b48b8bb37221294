"""Rows held out of a fit by a share: never trained on, measured in the end, known to changes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamtron
from streamtron.core.config import Machine
from streamtron.core.errors import DataError, SettingsError
from streamtron.data.deletions import in_share
from tests.helpers.processes import here

ROWS = 600


def write(path: Path, kept: slice | np.ndarray = slice(None), seed: int = 0) -> None:
    """Rows of two classes that overlap; some of them only."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([-1, 1], ROWS)
    x = rng.normal(size=(ROWS, 3)) + labels[:, None]
    lines = [
        f"{label} " + " ".join(f"{j}:{value:.6g}" for j, value in enumerate(row, 1)) + "\n"
        for label, row in zip(labels.tolist(), x.tolist(), strict=True)
    ]
    path.write_text("".join(np.array(lines)[kept]))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A shard, and the rows of it that are not held out, with another name for each."""
    write(tmp_path / "a.svm")
    (tmp_path / "kept").mkdir()
    write(tmp_path / "kept" / "k.svm", in_share("a.svm", np.arange(ROWS), (0.3, 1.0)))
    return tmp_path


def test_a_share_is_the_fit_without_these_rows_and_so_are_its_proof_and_its_changes(
    place: Path,
) -> None:
    model = streamtron.fit(place / "a.svm", model=place / "m", held_out=0.3, tol=1e-6)
    other = streamtron.fit(place / "kept" / "k.svm", model=place / "k", tol=1e-6)
    assert np.array_equal(model.weights, other.weights)
    assert model.certificate == other.certificate
    proof = streamtron.certify(place / "m")
    assert proof.certificate.rows_scanned == round(other.certificate["rows_scanned"])
    held_out, used = (
        np.flatnonzero(in_share("a.svm", np.arange(ROWS), share)) for share in ((0, 0.3), (0.3, 1))
    )
    first, last = held_out[5], used[[4, 90]]
    (place / "rows.csv").write_text(
        f"shard,row\na.svm,{first}\n" + "".join(f"a.svm,{n}\n" for n in last)
    )
    streamtron.forget(place / "m", rows=place / "rows.csv")
    (place / "k.csv").write_text("shard,row\nk.svm,4\nk.svm,90\n")
    streamtron.forget(place / "k", rows=place / "k.csv")
    write(place / "b.svm", seed=1)
    write(place / "kept" / "l.svm", in_share("b.svm", np.arange(ROWS), (0.3, 1.0)), seed=1)
    streamtron.update(place / "m", place / "b.svm")
    streamtron.update(place / "k", place / "kept" / "l.svm")
    changed = [streamtron.load(place / name) for name in "mk"]
    assert np.array_equal(changed[0].weights, changed[1].weights)
    assert changed[0].certificate["rows_scanned"] == changed[1].certificate["rows_scanned"]
    again = streamtron.fit(
        [place / "a.svm"], model=place / "n", held_out=0.3, tol=1e-6, machine=Machine(threads=1)
    )
    assert np.array_equal(again.weights, model.weights)


def test_fit_measures_and_calibrates_on_shares_and_says_on_how_many_rows(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = partial(here, place)
    (place / "bad.svm").write_text("no row\n")
    words = ("--on-bad-shard", "skip", "--valid", "20%", "--calibrate", "10%")
    done = run("fit", "a.svm", "bad.svm", "--model", "m", *words)
    assert done.returncode == 0, done.stderr
    rows = [
        int(in_share("a.svm", np.arange(ROWS), share).sum()) for share in ((0, 0.2), (0.2, 0.3))
    ]
    assert f"calibrated on {rows[1]} rows held out (0.1 of all" in done.stdout
    measured = done.stdout.partition("on rows held out (0.2 of all")[2]
    assert f" {rows[0]}\n" in measured
    model = streamtron.load(place / "m")
    accuracy = streamtron.evaluate(model, place / "a.svm", share=(0.0, 0.2)).accuracy
    assert f"{accuracy:.4g}\n" in measured
    assert model.calibration["rows"] == rows[1]
    again = ("fit", "a.svm", "bad.svm", "--model", "m", "--resume", *words)
    assert run(*again).returncode == 0
    assert "held_out is None, the run has 0.3" in run(*again[:-4]).stderr
    write(place / "c.svm", seed=2)
    assert run("update", "m", "c.svm").returncode == 0
    assert "The model has lost its probabilities" in caplog.text
    for bad, message in (("100%", "below 100%"), ("0%", "above 0%"), ("90%", "hold out all rows")):
        done = run("fit", "a.svm", "--model", "x", "--valid", bad, "--calibrate", "10%")
        assert (done.returncode, message in done.stderr) == (2, True)
    for bad in ("0.0000001%", "99.9999999%"):
        done = run("fit", "a.svm", "--model", "x", "--valid", bad, "--overwrite")
        assert done.returncode == 3
        assert "a.svm: no row, in 1 shard(s), is in the share of 1e-09 of the rows" in done.stderr


def test_calibrate_writes_the_model_anew_and_evaluate_warns_on_the_same_rows(place: Path) -> None:
    run = partial(here, place)
    streamtron.fit(place / "kept" / "k.svm", model=place / "m")
    done = run("calibrate", "m", "a.svm", "--calibration", "isotonic")
    assert (done.returncode, done.stdout) == (0, f"m: calibrated on {ROWS} rows\n")
    assert streamtron.load(place / "m").calibration["method"] == "isotonic"
    warned = [run("evaluate", "m", name).stderr for name in ("a.svm", "kept/k.svm")]
    assert ["calibrated on rows of a.svm" in text for text in warned] == [True, False]
    with pytest.raises(SettingsError, match="held-out is 1"):
        streamtron.fit(place / "a.svm", held_out=1.0)


def test_rows_held_out_have_no_part_in_what_a_recipe_knows(tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(0), 40_000  # of several batches
    used = in_share("a.parquet", np.arange(rows), (0.3, 1.0))
    cells: dict[str, np.ndarray] = {
        "x": np.where(used, rng.normal(size=rows), 1e6),
        "city": np.where(used, rng.choice(["Rome", "Oslo"], rows), "Atlantis"),
        "note": np.where(used, rng.choice(["a call", "no answer"], rows), "secret"),
        "label": rng.integers(0, 2, rows),
    }
    table = pa.table(cells)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=9999)
    pq.write_table(table.filter(used), tmp_path / "kept.parquet")
    columns = ["x:number,scale=standard", "city:category", "note:text,tfidf"]
    model = streamtron.fit(tmp_path / "a.parquet", columns=columns, held_out=0.3)
    other = streamtron.fit(tmp_path / "kept.parquet", columns=columns)
    known, wanted = model.recipe, other.recipe
    assert known is not None
    assert wanted is not None
    assert known.columns[1:] == wanted.columns[1:]  # categories, words and their frequencies
    assert model.weights == pytest.approx(other.weights, abs=1e-12)


def test_a_null_is_named_by_its_row_among_all(tmp_path: Path) -> None:
    at = np.flatnonzero(in_share("a.csv", np.arange(100), (0.3, 1.0)))[50]
    lines = ["x,label", *(f"{k * (k - 1 != at) or ''},{k % 2}" for k in range(1, 101))]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=f"a.csv, line {at + 2}: null in column 'x'"):
        streamtron.fit(tmp_path / "a.csv", columns=["x:number,scale=standard"], held_out=0.3)
