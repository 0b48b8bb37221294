"""Which columns of a table became features, and which were left aside."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamtron
from streamtron.core.errors import DataError
from tests.helpers.processes import here

TABLE = pa.table({
    "user_id": range(20), "income": [k % 7 + 0.5 for k in range(20)], "city": ["a", "b"] * 10,
    "note": ["x"] * 20, "label": [0, 1] * 10,
})  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a table and a model of one of its columns."""
    directory = tmp_path_factory.mktemp("told")
    pq.write_table(TABLE, directory / "a.parquet")
    streamtron.fit(directory / "a.parquet", model=directory / "m", features="income", C=1e-3)
    return directory


def test_a_fit_says_which_columns_became_features_and_which_did_not(
    place: Path, tmp_path: Path
) -> None:
    words = ("--features", "*", "--C", 1e-3, "--model", tmp_path / "m", "--report", tmp_path / "r")
    done = here(place, "fit", "a.parquet", *words)
    assert done.returncode == 0, done.stderr
    assert "features           user_id, income\n" in done.stdout
    assert "not used           city (string), note (string)\n" in done.stdout
    report = json.loads((tmp_path / "r").read_text())
    assert report["features"] == ["user_id", "income"]
    assert report["columns_not_used"] == {"city": "string", "note": "string"}


def test_predict_evaluate_and_certify_say_which_columns_they_leave_aside(place: Path) -> None:
    wanted = "user_id (int64), city (string), note (string)"
    assert f"not used: {wanted}" in here(place, "predict", "m", "a.parquet", "-o", "out").stderr
    for name in ("evaluate", "certify"):
        assert f"not used           {wanted}\n" in here(place, name, "m", "a.parquet").stdout
        told = json.loads(here(place, name, "m", "a.parquet", "--json").stdout)
        assert [*told["columns_not_used"]] == ["user_id", "city", "note"]


def test_a_column_of_the_model_that_is_missing_is_an_error(place: Path, tmp_path: Path) -> None:
    pq.write_table(TABLE.drop_columns("income"), tmp_path / "b.parquet")
    done = here(place, "predict", "m", tmp_path / "b.parquet", "-o", "out")
    assert done.returncode == 3
    assert "'income'" in done.stderr


def test_messages_about_rows_in_memory_name_no_file() -> None:
    with pytest.raises(DataError, match=r"^the rows given: no column for the labels"):
        streamtron.fit(TABLE.drop_columns("label"), features="income")
