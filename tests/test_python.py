"""The functions of the package: keywords, paths, sizes, and what is refused by name."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.svm import LinearSVC

import streamtron
from streamtron.core.errors import DataError, SettingsError
from tests.helpers.processes import here
from tests.helpers.svm_text import svm_lines, write_shards


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with shards of training, of other rows, and a model with its run."""
    place = tmp_path_factory.mktemp("python")
    streamtron.generate(str(place / "train"), rows=600, columns=300, seed=3, shards=2)
    streamtron.generate(str(place / "more"), rows=100, columns=300, seed=3, first_row=600)
    streamtron.fit(place / "train", model=place / "m.st", tol=0.05)
    return place


@pytest.mark.parametrize(
    ("call", "known"),
    [
        (streamtron.fit, "max_epochs"),
        (streamtron.sweep, "max_epochs"),
        (streamtron.StreamtronClassifier().fit_shards, "max_epochs"),
        (partial(streamtron.convert, destination="d"), "label"),
        (streamtron.certify, "rho"),
    ],
)
def test_an_unknown_setting_is_a_type_error_that_names_similar_ones(call, known, place):
    for error in (TypeError, SettingsError):
        with pytest.raises(error, match=rf"unknown setting {known}x: did you mean .*{known}"):
            call(place / "train", **{f"{known}x": 1})
    with pytest.raises(TypeError, match="unknown setting qqqqqq: known: "):
        call(place / "train", qqqqqq=1)


def test_settings_are_given_at_once_or_by_name_but_not_both_and_a_size_as_text_or_a_number(place):
    both: Any = {"settings": streamtron.Settings(C=0.1), "tol": 0.5}
    for call in (streamtron.fit, streamtron.sweep):
        with pytest.raises(TypeError, match="not both"):
            call(place / "train", **both)
    assert streamtron.Machine(memory="1.5GB").memory == 1_500_000_000
    with pytest.raises(SettingsError, match="size 'much'"):
        streamtron.Machine(memory="much")
    fits = [streamtron.fit(place / "train", active_set=size) for size in ("20kB", 20_000)]
    assert fits[0] == fits[1]
    found = streamtron.sweep(place / "train", valid=place / "more", C=[0.1, 1], tol=0.5, seed=7)
    assert {trial.settings.seed for trial in found.trials} == {7}


def test_what_is_of_another_kind_is_refused_in_a_sentence(place):
    model, shards = place / "m.st", place / "more"
    for call, sentence in (
        (partial(streamtron.fit, []), "No shards"),
        (partial(streamtron.Machine, memory=-1), "memory is -1: expected 0 or more"),
        (partial(streamtron.Settings.from_dict, {1: 2}), "unknown setting 1"),
        (partial(streamtron.fit, shards, resume=True), "no model is named: leave one out"),
        (partial(streamtron.fit, shards, model=model, resume=True, overwrite=True), "begins it"),
        (partial(streamtron.explain, model, most=-1), "most is -1: expected 0 or more"),
        (partial(streamtron.evaluate, model, shards, worst=-1), "worst is -1: expected 0 or more"),
        (partial(streamtron.sweep, shards, folds=2.0), "folds is 2.0: expected a whole number"),
        (partial(streamtron.convert, shards, place / "c", rows_per_shard=0), "is 0: expected 1 or"),
        (partial(streamtron.forget, model, key="user", values=5), "libsvm text has no column"),
        (partial(streamtron.certify, streamtron.load(model)), "does not say its shards"),
        (partial(streamtron.certify, place / "train" / "part-0.svm"), "no shards are given"),
    ):
        with pytest.raises((DataError, SettingsError), match=sentence):
            call()


def test_functions_of_a_model_take_its_path_too(place):
    path, shards = place / "m.st", place / "more"
    model = streamtron.load(path)
    assert streamtron.certify(path, shards) == streamtron.certify(model, shards)
    assert streamtron.evaluate(str(path), shards) == streamtron.evaluate(model, shards)
    assert streamtron.explain(path) == streamtron.explain(model)
    assert streamtron.calibrate(path, shards) == streamtron.calibrate(model, shards)
    ours, theirs = (
        np.concatenate([scores.decisions for scores in streamtron.predict(one, shards)])
        for one in (path, model)
    )
    assert np.array_equal(ours, theirs)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with scikit-learn's coefficients, and their rows with three kinds of labels."""
    place = tmp_path_factory.mktemp("theirs")
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 6)), rng.integers(0, 2, 200)
    X[:, 0] += y
    model = LinearSVC(C=1.0, tol=1e-6, max_iter=10_000, random_state=0).fit(X, y)
    np.save(place / "theirs.npy", np.append(model.coef_, model.intercept_))
    falling = np.argsort(y)[::-1]  # one class first, so that the second one comes late
    for name, labels in (("01", y), ("pm", 2 * y - 1), ("57", 5 + 2 * y)):
        (place / f"{name}.svm").write_text("".join(svm_lines(X[falling], labels[falling])))
    write_shards(place / "apart", svm_lines(X[falling], y[falling]), [y.sum()])  # one class in each
    return place


def test_coefficients_are_certified_and_evaluated_whatever_the_two_labels_are(theirs):
    words = ("--C", 1, "--rho", 1, "--index-base", 1, "--bias-last", "--json")
    printed = [
        here(theirs, "certify", "theirs.npy", f"{k}.svm", *words) for k in ("pm", "01", "57")
    ]
    assert [done.returncode for done in printed] == [0, 0, 0], printed[1].stderr
    assert printed[0].stdout == printed[1].stdout == printed[2].stdout
    how: Any = {"index_base": 1, "bias_last": True}
    model = streamtron.load(theirs / "theirs.npy", **how)
    proof = streamtron.certify(model, theirs / "01.svm", C=1.0, rho=1.0)
    assert proof.certificate.relative_duality_gap < 1e-3
    shards = [theirs / name for name in ("pm.svm", "01.svm", "apart")]
    accuracies = {streamtron.evaluate(model, path).accuracy for path in shards}
    assert len(accuracies) == 1
    assert accuracies.pop() > 0.5
    named = streamtron.load(theirs / "theirs.npy", classes=(-1, 1), **how)
    with pytest.raises(DataError):  # which are not those of the rows
        streamtron.certify(named, theirs / "01.svm", C=1.0, rho=1.0)
