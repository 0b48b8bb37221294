"""Explanations of models and rows."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

import streamtron
from streamtron import LinearModel, generate
from streamtron.core.errors import DataError
from tests.helpers.models import make_model, refused
from tests.helpers.processes import COMMAND, Process, one_sentence, succeeded

COLUMNS = 90


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with shards of more than one block, a narrower model, and a table with names."""
    directory = tmp_path_factory.mktemp("place")
    generate(str(directory / "rows"), rows=9000, columns=COLUMNS, seed=3, shards=2)
    weights = np.random.default_rng(0).normal(size=COLUMNS - 5)
    LinearModel(weights, 0.25, (-1.0, 1.0), {}, None, {"index_base": 1}).save(directory / "m")
    many = np.random.default_rng(1).normal(size=(5, COLUMNS))
    classes = ("ant", "bee", "cow", "doe", "elk")
    LinearModel(many, np.arange(5.0), classes, {}, None, {"index_base": 1}).save(directory / "n")
    table = {"label": ["ham", "spam"] * 20, "cheap": [0.0, 1.0] * 20, "length": [1.0, 0.5] * 20}
    pq.write_table(pa.table(table), directory / "named.parquet")
    streamtron.fit(directory / "named.parquet", model=directory / "named", features="cheap,length")
    return directory


def test_the_heaviest_features_come_first_and_zeros_are_left_out():
    model = make_model((1.5, 0.0, -2.0, 0.1), classes=("ham", "spam"))
    [direction] = streamtron.explain(model)["directions"]
    assert (direction["positive"], direction["bias"]) == ("spam", 0.25)
    assert direction["features"] == [
        {"column": 3, "weight": -2.0},
        {"column": 1, "weight": 1.5},
        {"column": 4, "weight": 0.1},
    ]
    [shorter] = streamtron.explain(model, most=1)["directions"]
    assert shorter["features"] == direction["features"][:1]


@pytest.mark.parametrize("classes", [2, 3])
def test_a_small_model_of_all_columns_there_can_be_is_shown_in_little_memory(tmp_path, classes):
    width, rows = 1 << 32, 1 if classes == 2 else classes
    at = np.arange(rows), width - 1 - np.arange(rows)
    weights = sparse.csr_array((np.arange(1.0, rows + 1), at), shape=(rows, width))
    bias = 0.5 if classes == 2 else np.zeros(classes)
    names = tuple(map(float, range(classes)))
    LinearModel(weights, bias, names, {}, None, {"index_base": 0}).save(tmp_path / "m")
    bounded = f"""import resource
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30),) * 2)
{COMMAND}"""
    for words in (["explain", "m"], ["inspect", "m"]):
        assert str(width - 1) in succeeded(Process(bounded, *words, cwd=tmp_path).end()).stdout
    (tmp_path / "a.svm").write_text("1 0:1\n")
    one_sentence(
        Process(bounded, "explain", "m", "a.svm", "--row", 0, cwd=tmp_path).end(), 5, "memory"
    )


@pytest.mark.parametrize("row", [0, 4096, 4500, 8999])
@pytest.mark.parametrize("name", ["m", "n"])
def test_contributions_and_bias_add_up_to_what_predict_says_of_that_row(place, name, row):
    model = streamtron.load(place / name)
    scores = [*streamtron.predict(model, place / "rows")]
    labels, decisions = (
        np.concatenate([getattr(part, name) for part in scores])[row]
        for name in ("labels", "decisions")
    )
    found = streamtron.explain(model, place / "rows", row=row, most=4)
    assert found["label"] == labels
    assert found["shard"].startswith("part-00001" if row >= 4500 else "part-00000")
    assert [each["decision"] for each in found["directions"]] == np.ravel(decisions).tolist()
    for each in found["directions"]:
        listed = [one["contribution"] for one in each["features"]]
        assert listed == sorted(listed, key=abs, reverse=True)
        assert len(listed) == 4
        total = sum(listed) + each["other_contributions"] + each["bias"]
        assert total == pytest.approx(each["decision"], rel=0, abs=1e-12)
        for one in each["features"]:
            assert one["contribution"] == one["value"] * one["weight"]


def test_values_in_columns_beyond_the_models_width_are_counted_and_add_nothing(tmp_path, place):
    shard = tmp_path / "a.svm"
    shard.write_text(f"1 1:2 {COLUMNS}:1\n")
    model = streamtron.load(place / "m")
    found = streamtron.explain(model, shard, row=0)
    assert found["out_of_range"] == 1
    [direction] = found["directions"]
    assert [one["column"] for one in direction["features"]] == [1]
    assert direction["decision"] == 2 * model.weights[0] + 0.25


def test_a_row_that_is_not_there_or_without_shards_and_shards_without_one_are_refused(run, place):
    one_sentence(run("explain", "m", "rows", "--row", 9000), 3, "row 9000", "9,000 rows")
    one_sentence(run("explain", "m", "--row", 1), 2, "Give both")
    one_sentence(run("explain", "m", "rows"), 2, "Give both")
    empty = place / "empty.svm"
    empty.write_text("")
    model = streamtron.load(place / "m")
    assert "no rows" in refused(lambda: streamtron.explain(model, empty, row=0), DataError)
