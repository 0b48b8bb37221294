"""Explanations of models and rows, and comparisons of two models."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

import streamtron
from streamtron import LinearModel, generate
from streamtron.core.errors import DataError, SettingsError
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
        {"column": 3, "weight": -2.0}, {"column": 1, "weight": 1.5}, {"column": 4, "weight": 0.1},
    ]  # fmt: skip
    [shorter] = streamtron.explain(model, most=1)["directions"]
    assert shorter["features"] == direction["features"][:1]


def test_the_command_names_features_as_the_shards_do_with_what_each_adds_to_a_row(run):
    lines = run("explain", "named").stdout.splitlines()
    assert lines[0].split() == ["class", "spam"]
    assert {line.split()[-1] for line in lines[3:-1]} == {"cheap", "length"}
    lines = run("explain", "named", "named.parquet", "--row", 1).stdout.splitlines()
    assert "label              spam" in lines
    assert lines[-1].split()[-1] == "bias"
    assert {line.split()[-1] for line in lines[-3:-1]} == {"cheap", "length"}


def test_of_many_classes_the_command_shows_those_of_the_highest_decisions(run):
    directions = json.loads(run("explain", "n", "--json", "--most", 3).stdout)["directions"]
    assert [each["positive"] for each in directions] == ["ant", "bee", "cow", "doe", "elk"]
    assert {len(each["features"]) for each in directions} == {3}
    out = run("explain", "n", "rows", "--row", 0).stdout
    assert out.count("\nclass ") == 3
    assert out.endswith("… and 2 more; --json has all classes\n")
    label, highest = (
        next(line.split()[1] for line in out.splitlines() if line.startswith(word))
        for word in ("label", "class")
    )
    assert highest == label


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


def _with(weights: Any, **more: Any) -> LinearModel:
    return make_model(weights, settings=more.pop("settings", {"C": 1.0}), **more)


def test_weights_are_compared_by_name_whatever_the_order_of_the_columns():
    first = _with((3.0, 4.0, 0.0), layout="columns", features=["a", "b", "zero"])
    second = _with((4.0, 3.0, 2.0, 0.0), layout="columns", features=["b", "a", "c", "zero"])
    [direction] = streamtron.diff(first, second)["directions"]
    assert direction["features"] == [{"name": "c", "weights": [0.0, 2.0]}]
    assert direction["distance"] == pytest.approx(2.0 / 5.0)
    assert direction["cosine"] == pytest.approx(25.0 / (5.0 * np.sqrt(29.0)))


def _fit(*columns: str, **of_rows: list[Any]) -> LinearModel:
    rows = {"label": [1, -1, -1, 1, -1] * 8, **{name: x * 8 for name, x in of_rows.items()}}
    return streamtron.fit(pa.table(rows), columns=columns)


def _named(model: LinearModel) -> dict[str, float]:
    [direction] = streamtron.explain(model, most=1000)["directions"]
    named = {feature.get("name"): feature["weight"] for feature in direction["features"]}
    return {name if ":" in str(name) else f"body:{name}": x for name, x in named.items()}


CITIES, BODIES = ["Oslo", "Rome", "Paris", "Rome", "Oslo"], ["bb cc", "cc dd", "dd dd", "bb", "dd"]
TABLE = {"city": CITIES, "body": BODIES, "n": [1.0, 2.0, 0.0, 5.0, 1.0]}
OTHER = {"city": ["Aachen", *CITIES[1:]], "body": ["aa bb", *BODIES[1:]], "n": TABLE["n"]}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("body:text", "body:text"), ("body:text", "city:category body:text"),
        ("city:category n:number", "n:number city:category"),
    ],
)  # fmt: skip
def test_models_of_tables_differ_as_the_weights_of_their_names_do(first, second):
    models = _fit(*first.split(), **TABLE), _fit(*second.split(), **OTHER)
    a, b = map(_named, models)
    [direction] = streamtron.diff(*models, most=1000)["directions"]
    pairs = {name: [a.get(name, 0.0), b.get(name, 0.0)] for name in {**a, **b}}
    listed = {feature["name"]: feature["weights"] for feature in direction["features"]}
    bare = [name if ":" in name else f"body:{name}" for name in listed]
    assert dict(zip(bare, listed.values(), strict=True)) == pairs
    lengths = [sum(x * x for x in weights.values()) ** 0.5 for weights in (a, b)]
    product = sum(x * y for x, y in pairs.values())
    assert direction["cosine"] == pytest.approx(product / lengths[0] / lengths[1], rel=1e-12)
    apart = sum((x - y) ** 2 for x, y in pairs.values()) ** 0.5
    assert direction["distance"] == pytest.approx(apart / lengths[0], rel=1e-12)


def test_hashed_features_are_compared_by_column_and_hash_and_numbers_with_no_names():
    first = _fit("city:category,hash_bits=4", city=CITIES)
    second = _fit("n:number", "city:category,hash_bits=4", city=CITIES, n=[0.0] * 4 + [1e-3])
    [direction] = streamtron.diff(first, second)["directions"]
    assert direction["cosine"] > 0.9  # by number it is 0
    assert {"n", "city:category, hash "} == {f["name"][:20] for f in direction["features"]}
    numbered = _with((1.0, 2.0), classes=(-1, 1))
    hashed = [_with((1.0,), layout="names", hash_bits=bits) for bits in (4, 5)]
    for models, sentence in (
        ((first, numbered), "only the first model has names"),
        ((numbered, second), "only the second"), (hashed, "Hashing(bits=4, seed=0), and by"),
    ):  # fmt: skip
        assert sentence in refused(lambda models=models: streamtron.diff(*models), SettingsError)


def test_columns_are_compared_as_the_shards_number_them_whatever_the_base():
    first = LinearModel(np.array([1.0, 2.0]), 0.0, (-1.0, 1.0), {}, None, {"index_base": 1})
    second = LinearModel(np.array([9.0, 1.0, 2.5]), 0.0, (-1.0, 1.0), {}, None, {"index_base": 0})
    [direction] = streamtron.diff(first, second)["directions"]
    assert direction["features"] == [
        {"column": 0, "weights": [0.0, 9.0]}, {"column": 2, "weights": [2.0, 2.5]},
    ]  # fmt: skip


def test_settings_gaps_and_classes_that_differ_are_told(place):
    first = _with((1.0,), settings={"C": 1.0, "rho": 1.0}, certificate={"relative_duality_gap": 1})
    found = streamtron.diff(first, _with((1.0,), settings={"C": 2.0, "rho": 1.0}, certificate=None))
    assert found["settings"] == {"C": [1.0, 2.0]}
    assert found["directions"][0]["relative_duality_gap"] == [1, None]
    many = streamtron.load(place / "n")
    fewer = LinearModel(many.weights[1:], np.zeros(4), many.classes[1:], {}, None, many.reading)
    found = streamtron.diff(many, fewer)
    assert (found["only_in_first"], found["only_in_second"]) == (["ant"], [])
    assert [each["positive"] for each in found["directions"]] == ["bee", "cow", "doe", "elk"]


def test_models_of_other_classes_are_refused(run):
    one_sentence(run("diff", "m", "n"), 2, "models of other classes: -1.0, 1.0, and ant, bee")
    numbers = {"classes": (), "settings": {"loss": "squared_error"}}
    for more, name in (({"classes": (0.0, 2.0)}, "0.0, 2.0"), (numbers, "numbers")):
        with pytest.raises(SettingsError, match=f"-1.0, 1.0, and {name}"):
            streamtron.diff(_with((1.0,)), _with((1.0,), **more))


def test_the_command_shows_the_weights_that_differ_most(run, place):
    model = streamtron.load(place / "m")
    weights = model.weights.copy()
    weights[[3, 7]] += (0.5, 2.0)
    LinearModel(weights, 0.5, model.classes, {"C": 3.0}, None, model.reading).save(place / "other")
    lines = run("diff", "m", "other").stdout.splitlines()
    assert [line.split()[-1] for line in lines[-2:]] == ["8", "4"]
    assert "C                  - → 3" in lines
    assert "bias               0.25 → 0.5" in lines
