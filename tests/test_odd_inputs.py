"""Odd input that used to end in a traceback, a hang or a model of nothing: each is refused in one
sentence, which says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from streamtron.model import LinearModel
from tests.processes import here, one_sentence

# --- rows that weigh nothing ---------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["first", "from the cache"])
def test_rows_that_all_weigh_nothing_are_refused(tmp_path: Path, again: bool) -> None:
    (tmp_path / "rows.svm").write_text("1:0 1:1\n-1:0 2:1\n")
    words = ["fit", "rows.svm", "--model", "m", "--weights-in-label", "--cache-dir", "cache"]
    for _ in range(1 + again):
        done = here(tmp_path, *words)
        one_sentence(done, 3, "none of the 2 rows has a label and a weight above 0")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("options", [(), ("--multiclass",), ("--on-bad-shard", "skip")])
def test_a_label_whose_rows_all_weigh_nothing_is_no_second_label(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "rows.svm").write_text("1:1 1:1\n1:2 2:1\n-1:0 2:1\n")
    done = here(tmp_path, "fit", "rows.svm", "--model", "m", "--weights-in-label", *options)
    one_sentence(done, 3, "all rows of a weight above 0 have the label 1.0: wanted two labels")
    assert not (tmp_path / "m").exists()


def test_with_several_labels_a_row_one_of_them_must_weigh_something(tmp_path: Path) -> None:
    table = pa.table({
        "label": [["a", "b"], ["b"], []], "weight": [0.0, 0.0, 1.0],
        "indices": [[0], [1], [2]], "values": [[1.0], [1.0], [1.0]],
    })  # fmt: skip
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    words = ["fit", "rows.parquet", "--model", "m", "--multilabel", "--weight", "weight"]
    done = here(tmp_path, *words)
    one_sentence(done, 3, "none of the 3 rows has a label and a weight above 0")


def test_rows_of_one_label_are_refused_after_the_first_reading(tmp_path: Path) -> None:
    (tmp_path / "rows.svm").write_text("1 1:1\n1 2:1\n")
    done = here(tmp_path, "fit", "rows.svm", "--model", "m")
    one_sentence(done, 3, "all 2 rows have the label 1.0: wanted two labels. Check --label")


# --- models from elsewhere -----------------------------------------------------------------------


@pytest.mark.parametrize("certificate", [{}, {"upper_bound": 1.0}, {"relative_duality_gap": "x"}])
def test_inspect_says_of_a_certificate_without_its_bounds_that_there_is_none(
    tmp_path: Path, certificate: dict[str, object]
) -> None:
    two = LinearModel(np.ones(2), 0.0, (-1.0, 1.0), {}, certificate, {"index_base": 1})
    many = LinearModel(
        np.ones((3, 2)), np.zeros(3), ("a", "b", "c"), {},
        {**certificate, "learners": [certificate, None, 7]}, {"index_base": 1},
    )  # fmt: skip
    for model in (two, many):
        model.save(tmp_path / "m")
        done = here(tmp_path, "inspect", "m")
        assert done.returncode == 0
        assert "no certificate: use streamtron certify" in done.stdout
