"""Values that users give: each becomes its kind, or one sentence names it."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import streamtron
from streamtron.core.errors import SettingsError
from streamtron.core.files import parse_json
from streamtron.core.text import parse_duration, parse_size
from streamtron.sweeps.grid import values_of
from tests.helpers.models import refused
from tests.helpers.processes import COMMAND, Ended, command, here, one_sentence, succeeded

ROWS = "1 1:1\n-1 1:-1\n1 1:2\n-1 2:1\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "rows.svm").write_text(ROWS)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("C = [1]", "C is [1]: expected a number"),
        ("rho = true", "rho is True: expected a number"),
        ("tol = '0.1'", "tol is '0.1': expected a number"),
        ("multiclass = 'yes'", "multiclass is 'yes': expected true or false"),
        ("faithful = 1", "faithful is 1: expected true or false"),
        ("max_epochs = 2.5", "max-epochs is 2.5: expected a whole number"),
        ("seed = true", "seed is True: expected a whole number"),
        ("b = ['x']", "b is ['x']: expected numbers between commas"),
        ("label = 3", "label is 3: expected text"),
        ("stage = [1]", "stage is [1]: expected text or a number"),
        ("features = [1]", "features is [1]: expected names"),
        ("features = 'a,,b'", "features is 'a,,b': expected names of columns."),
        ("hash_bits = 0", "hash-bits is 0: expected 1 to 31."),
        ("hash_bits = 32", "hash-bits is 32: expected 1 to 31."),
        ("multilabel = true\nmulticlass = true", "multi"),
        ("multilabel = true\nweights_in_label = true", "weights-in-label with multilabel"),
        ("index_base = 1.0", "index-base is 1.0: expected auto, 0 or 1"),
        ("active_set = 1.5", "active-set is 1.5: expected a whole number of bytes"),
        ("class_weight = {1 = 'x'}", "class-weight is {'1': 'x'}: expected balanced, or a number"),
        (f"max_epochs = '{'9' * 5000}'", "(5,002 characters): expected a whole number"),
        ("delta = 1e-11", "delta is 1e-11: expected 0, or 1e-10 to 1e"),
        ("delta = 1e10", "delta is 10000000000.0: expected"),
        ("C = 1e21", "C is 1e+21: expected 1e-20 to 1e+20"),
        ("C = 1e-21", "C is 1e-21: expected 1e-20"),
        ("C = inf", "C is inf: expected 1e-20"),
        ("C = nan", "C is nan: expected 1e-20"),
        ("rho = 1e160", "rho is 1e+160: expected"),
        ("rho = 1e-160", "rho is 1e-160: expected"),
        ("class_weight = {1 = 1e300}", "class-weight of 1 is 1e+300: expected"),
        ("penalty = 'l1'\nloss = 'hinge'", "smooth"),
        ("penalty = 'l1'\ndelta = 0\nstage = '1'", "stage with --penalty l1: "),
        ("penalty = 'l1'\nfaithful = true", "l1"),
        ("intercept = 'free'\nrho = 0", "intercept free"),
        ("intercept = 'free'\ndelta = 0\nstage = '1'", "intercept free"),
        ("intercept = 'free'\nfaithful = true", "intercept free"),
    ],
)
def test_a_setting_of_the_wrong_kind_or_range_is_named_with_what_is_expected(line, sentence):
    said = refused(lambda: streamtron.Settings(**tomllib.loads(line)), SettingsError)
    assert sentence in said
    assert len(said) < 300


def test_scalars_and_arrays_of_numpy_are_the_numbers_that_they_hold(place):
    given: dict[str, Any] = {
        "C": np.float32(0.5),
        "tol": np.float64(0.1),
        "max_epochs": np.int64(3),
        "seed": np.uint8(7),
        "multiclass": np.bool_(True),
        "b": np.array([5.0, 0.5]),
        "stage": "1,0.1",
        "class_weight": {np.int64(1): np.float32(2.0)},
    }
    plain = {name: value.tolist() for name, value in given.items() if isinstance(value, np.generic)}
    plain |= {"b": [5.0, 0.5], "stage": "1,0.1", "class_weight": {1: 2.0}}
    made = streamtron.Settings.from_dict(given)
    assert made == streamtron.Settings.from_dict(plain)
    assert (type(made.C), type(made.seed)) == (float, int)
    assert streamtron.fit(place / "rows.svm", C=np.float32(1)).settings["C"] == 1.0


BAD_PATHS: list[Callable[[Any], Any]] = [
    lambda path: streamtron.fit("rows.svm", model=path),
    streamtron.load,
    lambda path: streamtron.load("m").save(path),
    lambda path: streamtron.export(streamtron.load("m"), path, "json"),
    lambda path: streamtron.update(path, "rows.svm"),
    lambda path: streamtron.update("m", path),
    lambda path: streamtron.forget(path, "rows.svm"),
    lambda path: streamtron.certify("m", "rows.svm", witness=path),
    lambda path: streamtron.report("m", path),
    lambda path: streamtron.convert("rows.svm", path),
    lambda path: streamtron.generate(path, rows=3, seed=1),
    lambda path: streamtron.log_events(path).__enter__(),
    lambda path: streamtron.Machine(cache_dir=path),
    lambda path: streamtron.Machine(run_dir=path),
]


@pytest.mark.parametrize("name", [b"model", "a\0b", "\ud800"], ids=["bytes", "NUL", "surrogate"])
def test_every_entry_of_python_refuses_what_is_no_name_of_a_file(place, monkeypatch, name):
    monkeypatch.chdir(place)
    streamtron.fit("rows.svm", model="m")
    for call in BAD_PATHS:
        with pytest.raises(SettingsError, match="is no name of a file"):
            call(name)


def test_names_of_files_that_are_not_utf8_do_not_end_a_command(place):
    (place / "a\udcff.svm").write_text(ROWS)
    (place / "b\udcff.svm").write_text("1 1:x\n")
    outputs = ("--model", "m\udcff", "--log", "l\udcff", "--report", "r\udcff")
    words = ("fit", "-v", "a\udcff.svm", *outputs)
    assert "b?.svm" in command(place, "fit", "b\udcff.svm", "--model", "n").stderr
    succeeded(command(place, *words))
    assert [json.loads(line) for line in (place / "l\udcff").read_text().splitlines()]
    succeeded(here(place, "report", "m\udcff", "-o", "page\udcff"))
    assert "a\\udcff.svm" in (place / "page\udcff").read_text()
    succeeded(here(place, "predict", "m\udcff", "a\udcff.svm", "-o", "labels\udcff"))


@pytest.mark.parametrize(
    ("name", "content", "options", "parts"),
    [
        ("rows.csv", "a" * 500_000 + ",b\n1,2\n", [], ("no column for the labels", "…")),
        (
            "rows.vw",
            "-1 |a y:1\n1 |a:1e300 x:1e300\n",
            ["--hash-bits=8"],
            ("line 2: ", "overflows"),
        ),
    ],
)
def test_what_is_too_large_is_told_in_a_sentence(place, name, content, options, parts):
    (place / name).write_text(content)
    done = here(place, "fit", name, "--model", "m", *options)
    one_sentence(done, 3, f"{name}", *parts)
    assert len(done.stderr) < 5000


OPTIONS = "C delta rho tol b max-epochs stage memory seed parts threads"


@pytest.mark.parametrize("text", ["1_0", "٣", "1i"])
def test_underscores_digits_beyond_ascii_and_half_a_unit_are_no_numbers(place, text):
    fit = partial(here, place, "fit", "rows.svm", "--model", "m")
    for option in OPTIONS.split():
        one_sentence(fit(f"--{option}", text), 2, text)
    one_sentence(fit("--class-weight", f"1={text}"), 2)
    for parse in (parse_size, parse_duration, partial(values_of, "C")):
        with pytest.raises(SettingsError):
            parse(text)


KINDS = [(["0", "1"], "1"), ([False, True], "True"), ([0, 1], "1"), ([0.0, 1.0], "1.0")]


def write(path: Path, labels: list[Any]) -> Path:
    columns = {"label": labels * 5, "a": [-1.0, 1.0] * 4 + [1.0, -1.0]}
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(("labels", "name"), KINDS, ids=["str", "bool", "int", "float"])
def test_a_class_weight_names_a_label_of_any_kind_by_its_text_and_by_itself(tmp_path, labels, name):
    shard = write(tmp_path / "rows.parquet", labels)
    fit = partial(streamtron.fit, shard, label="label", features="a")
    plain = fit()
    models = [fit(class_weight={key: 8.0}) for key in (name, labels[1])]
    assert models[0].weights == models[1].weights != plain.weights
    words = ("--label", "label", "--features", "a", "--class-weight", f"{name}=8")
    succeeded(here(tmp_path, "fit", "rows.parquet", "--model", "m", *words))
    model = streamtron.load(tmp_path / "m")
    assert model.weights == models[0].weights
    assert model.to_sklearn().class_weight == {labels[1]: 8.0}


@pytest.mark.parametrize("text", ["1=1,1=2", "1=1,1.0=2", "-1=1,1=1,-1e0=1"])
def test_a_label_with_two_weights_is_refused(place, text):
    one_sentence(here(place, "fit", "rows.svm", "--model", "m", "--class-weight", text), 2)
    with pytest.raises(SettingsError, match="a label has two weights"):
        streamtron.Settings(class_weight={"1": 1.0, 1: 2.0})


def test_json_that_is_nested_too_deep_is_a_value_error():
    with pytest.raises(ValueError, match="nested too deep"):
        parse_json("[" * 60_000)


@pytest.mark.parametrize("variable", ["NUMBA_DISABLE_JIT=1", "NUMBA_NUM_THREADS=0"])
def test_an_environment_in_which_numba_cannot_compile_is_refused(place, variable):
    name, value = variable.split("=")
    words = [sys.executable, "-c", COMMAND, "fit", "rows.svm", "--model", "m"]
    with_variable = {**os.environ, name: value}
    done = subprocess.run(words, cwd=place, env=with_variable, capture_output=True, text=True)
    one_sentence(Ended(done.returncode, done.stdout, done.stderr), 2, name)
