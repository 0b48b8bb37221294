"""Rows and columns that are left out: held out by a share, deleted, no features. All is told."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamtron
from streamtron import Machine
from streamtron.core.errors import DataError, SettingsError
from streamtron.data import find_shards
from streamtron.data.deletions import in_share
from streamtron.data.readers import rows_with
from tests.helpers.layouts import write_table
from tests.helpers.processes import here, succeeded
from tests.helpers.runs import manifest_of
from tests.helpers.svm_text import svm_lines
from tests.helpers.user_rows import list_rows

ROWS = 600


def write(path: Path, kept: Any = slice(None), seed: int = 0) -> None:
    """Rows of two classes that overlap; some of them only."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([-1, 1], ROWS)
    lines = svm_lines(np.round(rng.normal(size=(ROWS, 3)) + labels[:, None], 6), labels)
    path.write_text("".join(np.array(lines)[kept]))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A shard, and the rows of it that are not held out, with another name for each."""
    write(tmp_path / "a.svm")
    (tmp_path / "kept").mkdir()
    write(tmp_path / "kept" / "k.svm", in_share("a.svm", np.arange(ROWS), (0.3, 1.0)))
    return tmp_path


def test_a_share_is_the_fit_without_these_rows_and_so_are_its_proof_and_its_changes(place):
    model = streamtron.fit(place / "a.svm", model=place / "m", held_out=0.3, tol=1e-6)
    other = streamtron.fit(place / "kept" / "k.svm", model=place / "k", tol=1e-6)
    assert np.array_equal(model.weights, other.weights)
    assert model.certificate == other.certificate
    proof = streamtron.certify(place / "m")
    assert proof.certificate.rows_scanned == round(other.certificate["rows_scanned"])
    held_out, used = (
        np.flatnonzero(in_share("a.svm", np.arange(ROWS), share)) for share in ((0, 0.3), (0.3, 1))
    )
    rows = [held_out[5], *used[[4, 90]]]
    gone = list_rows(place / "rows.csv", {"a.svm": rows, f"{place}/a.svm": rows})
    found = streamtron.forget(place / "m", rows=gone).report
    assert found["forgotten"] == {"a.svm": 2}
    assert found["not_in_run"] == ["1 row(s) of a.svm", f"1 row(s) of {place}/a.svm"]
    with pytest.raises(DataError, match=r"row 1000 of a.svm, which has fewer rows"):
        streamtron.forget(place / "m", rows=list_rows(place / "l", {"a.svm": [1000]}))
    streamtron.forget(place / "k", rows=list_rows(place / "k.csv", {"k.svm": [4, 90]}))
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


def test_fit_measures_on_a_share_and_says_on_how_many_rows(place, caplog):
    run = partial(here, place)
    words = ("fit", "a.svm", "--model", "m", "--valid", "20%")
    done = succeeded(run(*words))
    rows = int(in_share("a.svm", np.arange(ROWS), (0, 0.2)).sum())
    measured = done.stdout.partition("on rows held out (0.2 of all")[2]
    assert f" {rows}\n" in measured
    model = streamtron.load(place / "m")
    accuracy = streamtron.evaluate(model, place / "a.svm", share=(0.0, 0.2)).accuracy
    assert f"{accuracy:.4g}\n" in measured
    assert run("report", "m", "-o", "m.html", "--valid", "20%").returncode == 0
    right = f"Of {rows} held-out rows it gets {100 * float(f'{accuracy:.3g}'):.6g} % right"
    assert right in (place / "m.html").read_text()
    assert "the fit held out 20%" in run("report", "m", "-o", "m.html", "--valid", "40%").stderr
    assert run(*words, "--resume").returncode == 0
    assert "held_out is None, the run has 0.2" in run(*words[:4], "--resume").stderr
    write(place / "b.svm", seed=1)
    succeeded(run("calibrate", "m", "b.svm"))
    write(place / "c.svm", seed=2)
    assert run("update", "m", "c.svm").returncode == 0
    assert "The model has lost its probabilities" in caplog.text
    for bad, message in (
        ("100%", "below 100%"),
        ("0%", "above 0%"),
    ):
        done = run("fit", "a.svm", "--model", "x", "--valid", bad)
        assert (done.returncode, message in done.stderr) == (2, True)
    for bad in ("0.0000001%", "99.9999999%"):
        done = run("fit", "a.svm", "--model", "x", "--valid", bad, "--overwrite")
        assert done.returncode == 3
        assert "a.svm: no row, in 1 shard(s), is in the share of 1e-09 of the rows" in done.stderr


def test_evaluate_without_shards_measures_the_rows_that_the_fit_held_out(place):
    model = streamtron.fit(place / "a.svm", model=place / "m", held_out=0.3)
    expected = streamtron.evaluate(model, place / "a.svm", share=(0.0, 0.3)).to_dict()
    assert streamtron.evaluate(place / "m").to_dict() == expected
    told = json.loads(succeeded(here(place, "evaluate", "m", "--json")).stdout)
    assert told["accuracy"] == expected["accuracy"]
    streamtron.fit(place / "a.svm", model=place / "all")
    assert "the fit held no rows out" in here(place, "evaluate", "all").stderr


def test_calibrate_writes_the_model_anew_and_evaluate_warns_on_rows_that_the_model_knows(place):
    run = partial(here, place)
    streamtron.fit(place / "kept" / "k.svm", model=place / "m", held_out=0.1)
    trained = manifest_of(place / "m.run").rows
    (place / "copy.svm").write_bytes((place / "kept" / "k.svm").read_bytes())
    done = run("calibrate", "m", "a.svm", "--calibration", "isotonic")
    assert (done.returncode, done.stdout) == (0, f"m: calibrated on {ROWS} rows\n")
    assert streamtron.load(place / "m").calibration["method"] == "isotonic"
    warned = [run("evaluate", "m", name).stderr for name in ("a.svm", "kept/k.svm")]
    assert ["calibrated on rows of a.svm" in text for text in warned] == [True, False]
    told = f"trained on {trained} of the rows, in k.svm; it looks better there than on other"
    warned[0] = run("evaluate", "m", "copy.svm").stderr
    assert [told in text and "--valid 10%" in text for text in warned] == [True, True]
    assert "trained on" not in run("evaluate", "m", "a.svm").stderr
    with pytest.raises(SettingsError, match="held-out is 1"):
        streamtron.fit(place / "a.svm", held_out=1.0)


def test_a_transformer_is_not_fitted_on_rows_held_out(tmp_path):
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
    columns = ["x:number", "city:category", "note:text"]
    model = streamtron.fit(tmp_path / "a.parquet", columns=columns, held_out=0.3)
    other = streamtron.fit(tmp_path / "kept.parquet", columns=columns)
    assert model.transformer == other.transformer
    assert model.weights == pytest.approx(other.weights, abs=1e-12)


def test_every_command_says_which_columns_it_uses_and_a_missing_one_is_an_error(tmp_path):
    run, income = partial(here, tmp_path), [k % 7 + 0.5 for k in range(20)]
    cells = {"user_id": range(20), "income": income, "city": ["a", "b"] * 10, "note": ["x"] * 20}
    table = pa.table({**cells, "label": [0, 1] * 10})
    pq.write_table(table, tmp_path / "a.parquet")
    fit = ("fit", "a.parquet", "--C", 1e-3, "--report", "r", "--features")
    done = succeeded(run(*fit, "user_id,income", "--model", "all"))
    assert "features           user_id, income\n" in done.stdout
    assert "not used           city (string), note (string)\n" in done.stdout
    report = json.loads((tmp_path / "r").read_text())
    assert report["features"] == ["user_id", "income"]
    assert report["columns_not_used"] == {"city": "string", "note": "string"}
    succeeded(run(*fit, "income", "--model", "m"))
    wanted = "user_id (int64), city (string), note (string)"
    assert f"not used: {wanted}" in run("predict", "m", "a.parquet", "-o", "out").stderr
    for name in ("evaluate", "certify"):
        assert f"not used           {wanted}\n" in run(name, "m", "a.parquet").stdout
        report = json.loads(run(name, "m", "a.parquet", "--json").stdout)
        assert [*report["columns_not_used"]] == ["user_id", "city", "note"]
    pq.write_table(table.drop_columns("income"), tmp_path / "b.parquet")
    done = run("predict", "m", "b.parquet", "-o", "out")
    assert (done.returncode, "'income'" in done.stderr) == (3, True)


@pytest.mark.parametrize(
    ("cells", "value", "rows"),
    [
        (["a", None, "b", "a"], "a", [0, 3]),
        (pa.array(["a", "b", None, "a"]).dictionary_encode(), "b", [1]),
        ([7, 70, 7, None], "7", [0, 2]),
        ([0.5, 0.25, float("nan"), 0.5], "0.5", [0, 3]),
        ([True, False, None, True], "false", [1]),
        (pa.array([b"a", b"b", b"a", None]), "a", [0, 2]),
        (
            pa.array(["2026-01-02", "2026-01-03", None, "2026-01-02"]).cast("date32"),
            "2026-01-03",
            [1],
        ),
    ],
)
@pytest.mark.parametrize("suffix", ["parquet", "arrows"])
def test_a_value_is_looked_for_as_the_column_has_it(suffix, cells, value, rows, tmp_path):
    path = write_table(tmp_path / f"a.{suffix}", {"key": cells}, 2)
    [shard] = find_shards([str(path)])
    again = {"0.5": "0.50"}.get(value, value)  # another spelling
    hits, which, equal_to = rows_with(shard, "key", [value, again])
    assert (hits.tolist(), {*which}, equal_to.tolist()) == (rows, {0}, [0, 0])
    path.touch()
    with pytest.raises(DataError, match="changed"):
        rows_with(shard, "key", [value])
