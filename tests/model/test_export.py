"""Models that are exported, which programs decide by as streamtron does, and models of theirs."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import skops.io
from liblinear import liblinearutil
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

import streamtron
from streamtron.core.errors import FileDamaged, SettingsError, StreamtronError
from streamtron.model.calibration import METHODS
from streamtron.model.export import FORMATS, export
from streamtron.model.import_model import load_any
from streamtron.model.linear_model import LinearModel
from streamtron.model.scoring import chosen_classes
from tests.helpers.models import make_model, random_matrix, refused

ROUNDING = {"rel": 0, "abs": 1e-13}

CLASSES = {
    "whole numbers": (-1.0, 7.0),
    "numbers": (0.5, 1.0),
    "names": ("ham", "späm"),
    "booleans": (False, True),
    "many numbers": (-3.0, 2.0, 5.0, 11.0),
    "many names": ("ant", "bee", "cow"),
}


def _model(classes: tuple[Any, ...], **reading: Any) -> tuple[LinearModel, np.ndarray]:
    dense, weights = random_matrix(seed=len(classes))
    bias: Any = -0.125
    if len(classes) > 2 or reading:
        weights = np.random.default_rng(2).normal(size=(len(classes), 20))
        bias = np.linspace(-0.5, 0.5, len(classes))
    return make_model(weights, bias, classes, settings={}, certificate=None, **reading), dense


def _onnx(model: LinearModel, directory: Path, dense: np.ndarray) -> list[np.ndarray]:
    """What onnxruntime makes of rows."""
    export(model, directory / "onnx", "onnx")
    session = onnxruntime.InferenceSession(directory / "onnx", providers=["CPUExecutionProvider"])
    return session.run(None, {"X": dense.astype(np.float32)})


def _sklearn(model: LinearModel, directory: Path) -> Any:
    """The estimator, all of whose types are known to be safe but those of a calibration."""
    path = directory / "sklearn"
    export(model, path, "sklearn")
    strange = skops.io.get_untrusted_types(file=path) if model.calibration else None
    return skops.io.load(path, trusted=strange)


@pytest.mark.parametrize("classes", CLASSES.values(), ids=CLASSES)
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_programs_have_our_labels_and_decisions_for_any_classes_and_bias(tmp_path, classes, scale):
    model, dense = _model(classes)
    model = model.but(bias=scale * model.bias)
    dense[0] = 0.0
    wanted, decisions = model.predict(dense).tolist(), model.decision_function(dense)
    assert set(wanted) == set(classes)
    labels, scores = _onnx(model, tmp_path, dense)
    assert labels.tolist() == wanted
    assert scores == pytest.approx(decisions, **ROUNDING)
    export(model, tmp_path / "again", "onnx")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "onnx").read_bytes()
    theirs = _sklearn(model, tmp_path)
    assert theirs.predict(dense).tolist() == wanted
    assert theirs.decision_function(dense) == pytest.approx(decisions, **ROUNDING)
    if classes in (CLASSES["whole numbers"], CLASSES["many numbers"]):
        export(model, tmp_path / "liblinear", "liblinear")
        theirs = liblinearutil.load_model(str(tmp_path / "liblinear"))
        labels, _, values = liblinearutil.predict([], sparse.csr_matrix(dense), theirs, "-q")
        assert np.reshape(values, decisions.shape) == pytest.approx(decisions, rel=0, abs=1e-14)
        assert labels == wanted


@pytest.mark.parametrize(
    ("weights", "classes", "rows", "labels"),
    [
        (
            [1.0, -1.0],
            ("no", "yes"),
            [[2, 2], [2, 2 - 2**-20], [2, 2 + 2**-20]],
            ["no", "yes", "no"],
        ),
        ([[1], [1], [0]], ("ant", "bee", "cow"), [[0], [2], [-2]], ["ant", "ant", "cow"]),
    ],
)
def test_of_equals_the_smaller_class_wins_in_onnx_as_here(tmp_path, weights, classes, rows, labels):
    bias = np.zeros(np.shape(weights)[:-1])
    model, rows = make_model(weights, bias, classes, certificate=None), np.array(rows)
    assert _onnx(model, tmp_path, rows)[0].tolist() == labels == model.predict(rows).tolist()


SIGMOID = [{"a": -2.0 - k, "b": 0.5 * k} for k in range(3)]
ISOTONIC = [
    {"decisions": [-3.0, -0.25, 0.5, 0.75, 2.0], "probabilities": [0.0, 0.0, 0.25, 0.5, 1.0]},
    {"decisions": [-1.0, 0.125], "probabilities": [0.0, 0.75]},
    {"decisions": [1.5], "probabilities": [0.0]},
]


@pytest.mark.parametrize("functions", [SIGMOID, ISOTONIC], ids=METHODS)
@pytest.mark.parametrize("kind", ["two", "multiclass", "multilabel"])
def test_probabilities_of_any_kind_are_ours_at_between_and_beyond_knots(tmp_path, kind, functions):
    classes = ("ham", "spam") if kind == "two" else ("ant", "bee", "cow")
    weights = np.array([1.0, 0.0]) if kind == "two" else np.array([[1.0, 0], [0, 1], [1, 1]])
    bias: Any = 0.0 if kind == "two" else np.zeros(3)
    calibration = {
        "method": "sigmoid" if functions is SIGMOID else "isotonic",
        "rows": 9,
        "directions": functions[: 1 if kind == "two" else 3],
    }
    more = {"multilabel": True} if kind == "multilabel" else {}
    model = make_model(weights, bias, classes, certificate=None, settings={}, **more)
    model = model.but(calibration=calibration)
    places = [-9.0, -3.0, -1.0, -0.25, 0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 2.0, 7.0]
    dense = np.array([(x, y) for x in places for y in (-2.0, 0.0, 0.5, 3.0)])
    wanted = model.predict_proba(dense)
    assert 0.0 <= wanted.min() < wanted.max() <= 1.0
    labels, scores, found = _onnx(model, tmp_path, dense)
    assert found == pytest.approx(wanted, **ROUNDING)
    assert scores == pytest.approx(model.decision_function(dense), **ROUNDING)
    tied = np.abs(np.diff(np.sort(wanted)[:, -2:])[:, 0]) < 1e-9
    if kind == "multilabel":
        tied = (np.abs(wanted - 0.5) < 1e-9).any(axis=1)
        assert np.array_equal(labels[~tied], (wanted > 0.5)[~tied])
        assert np.array_equal(labels, chosen_classes(model, scores))
    else:
        most_probable = np.array(classes)[wanted.argmax(axis=1)]
        assert labels[~tied].tolist() == most_probable[~tied].tolist()
        assert model.predict(dense).tolist() == most_probable.tolist()
        theirs = _sklearn(model, tmp_path)
        assert theirs.predict(dense)[~tied].tolist() == most_probable[~tied].tolist()
        assert theirs.predict_proba(dense) == pytest.approx(wanted, **ROUNDING)
        assert theirs.classes_.tolist() == list(classes)


@pytest.mark.parametrize("classes", [(-1.0, 7.0), ("ant", "bee", "cow"), (1.0, 2.0, 5.0)], ids=str)
@pytest.mark.parametrize("multilabel", [False, True])
def test_probabilities_of_logistic_loss_are_those_of_every_format(tmp_path, classes, multilabel):
    model, dense = _model(classes, **({"multilabel": True} if multilabel else {}))
    model = model.but(settings={"loss": "log_loss", "C": 2.0, "rho": 3.0})
    decisions = model.decision_function(dense)
    wanted = 1.0 / (1.0 + np.exp(-decisions))
    if wanted.ndim == 1:
        wanted = np.column_stack([1.0 - wanted, wanted])
    elif not multilabel:  # as scikit-learn and LIBLINEAR normalise one against the rest
        wanted /= wanted.sum(axis=1, keepdims=True)
    labels, scores, shares = _onnx(model, tmp_path, dense)
    assert shares == pytest.approx(wanted, **ROUNDING)
    assert scores == pytest.approx(decisions, **ROUNDING)
    if multilabel:  # one boolean a class
        assert np.array_equal(labels, chosen_classes(model, decisions))
        return
    theirs = _sklearn(model, tmp_path)
    assert theirs.predict_proba(dense) == pytest.approx(wanted, **ROUNDING)
    assert theirs.predict(dense).tolist() == model.predict(dense).tolist()
    assert theirs.classes_.tolist() == list(classes)
    logistic = theirs if len(classes) == 2 else theirs.estimator
    assert (type(logistic), logistic.C) == (LogisticRegression, 2.0)
    assert (logistic.fit_intercept, logistic.intercept_scaling) == (True, 3.0)
    if not isinstance(classes[0], str):
        export(model, tmp_path / "liblinear", "liblinear")
        theirs = liblinearutil.load_model(str(tmp_path / "liblinear"))
        found = liblinearutil.predict([], sparse.csr_matrix(dense), theirs, "-b 1 -q")[2]
        order = np.argsort(theirs.get_labels())
        assert np.array(found)[:, order] == pytest.approx(wanted, **ROUNDING)


@pytest.mark.parametrize(
    ("loss", "solver", "kind"),
    [
        ("squared_hinge", "L2R_L2LOSS_SVC", LinearSVC),
        ("hinge", "L2R_L1LOSS_SVC_DUAL", LinearSVC),
        ("log_loss", "L2R_LR", LogisticRegression),
    ],
)
def test_an_exported_model_names_its_loss_and_is_read_with_it(tmp_path, loss, solver, kind):
    weights = np.random.default_rng(0).normal(size=500)
    model = make_model(weights, 1 / 3, settings={"loss": loss, "C": 1.0, "rho": 1.0})
    for format_ in FORMATS:
        export(model, tmp_path / format_, format_)
    assert (tmp_path / "liblinear").read_text().splitlines()[0] == f"solver_type {solver}"
    again = streamtron.load(tmp_path / "liblinear")
    assert again.weights.tobytes() == model.weights.tobytes()
    assert (again.bias, again.classes, again.settings["loss"]) == (1 / 3, model.classes, loss)
    theirs = skops.io.load(tmp_path / "sklearn")
    assert type(theirs) is kind
    assert getattr(theirs, "loss", "log_loss") == loss
    assert json.loads((tmp_path / "json").read_text())["settings"]["loss"] == loss


def test_the_exported_linear_svc_knows_the_names_of_the_columns_and_the_settings(tmp_path):
    model = make_model(
        settings={"C": 0.5, "rho": 2.0, "class_weight": {"1": 3.0, "-1": 0.5}},
        layout="columns",
        features=["a", "b", "c"],
    )
    theirs = _sklearn(model, tmp_path)
    assert theirs.feature_names_in_.tolist() == ["a", "b", "c"]
    assert (theirs.C, theirs.intercept_scaling) == (0.5, 2.0)
    assert theirs.class_weight == {1: 3.0, -1: 0.5}
    for settings, C in (({"delta": 0.5}, 2.0), ({"C": None}, 1.0)):
        assert _sklearn(make_model(settings={"rho": 1.0, **settings}), tmp_path).C == C


def test_json_holds_every_weight_that_is_not_zero_by_column_and_name(tmp_path, snapshot):
    weights, names = (0.1, 0.0, -1 / 3), ["ä", "b", "c"]
    model = make_model(weights, 0.25, ("ham", "spam"), layout="columns", features=names)
    export(model, tmp_path / "m", "json")
    found = json.loads((tmp_path / "m").read_text(encoding="utf-8"))
    assert found == snapshot
    many, _ = _model(("ant", "bee", "cow"))
    export(many, tmp_path / "m", "json")
    directions = json.loads((tmp_path / "m").read_text())["directions"]
    assert [each["positive"] for each in directions] == ["ant", "bee", "cow"]
    assert [each["weight"] for each in directions] == many.weights.tolist()


@pytest.mark.parametrize(
    ("classes", "more", "format_", "sentence"),
    [
        ((1.0, 2.0), {"multilabel": True}, "sklearn", "multilabel"),
        ((1.0, 2.0), {"multilabel": True}, "liblinear", "LIBLINEAR gives a row one label"),
        (("a", "b"), {}, "liblinear", "the class 'b'"),
        ((0.5, 1.0), {}, "liblinear", "the class 0.5"),
        ((0.0, 2.0**31), {}, "liblinear", "the class 2147483648.0"),
        ((0.0, 1.0), {}, ["pickle"], "liblinear, onnx, sklearn, json"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_unwritten(tmp_path, classes, more, format_, sentence):
    model, _ = _model(classes, **more)
    assert sentence in refused(lambda: export(model, tmp_path / "m", format_), SettingsError)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("format_", "library"), [("onnx", "onnx"), ("sklearn", "skops.io")])
def test_a_missing_library_is_named_with_how_to_install_it(tmp_path, monkeypatch, format_, library):
    monkeypatch.setitem(sys.modules, library, None)
    message = refused(lambda: export(make_model(), tmp_path / "m", format_), SettingsError)
    assert f"{library.split('.')[0]}, which is not installed. Install streamtron[export]" in message


@pytest.mark.parametrize("solver", range(8))
@pytest.mark.parametrize("bias", [-1, 0, 2.5])
@pytest.mark.parametrize("labels", [(3, -2), (-2, 3), (7, -2, 30, 4)])
def test_every_liblinear_classifier_is_read_and_decides_alike(tmp_path, solver, bias, labels):
    dense, weights = random_matrix(rows=80, seed=6)
    two, X = len(labels) == 2, sparse.csr_matrix(dense)
    # the label of the first row is the side that LIBLINEAR's weights point to
    code = np.where(dense @ weights > 0, 0, 1) if two else dense[:, :4].argmax(axis=1)
    theirs = liblinearutil.train(np.array(labels)[code], X, f"-s {solver} -B {bias} -q")
    liblinearutil.save_model(str(tmp_path / "m"), theirs)
    ours, rising = load_any(tmp_path / "m"), np.argsort(theirs.get_labels())
    assert two or theirs.get_labels() != sorted(labels)
    if two and solver == 4:
        # not Crammer and Singer's predict, which for two classes has room for one decision of both
        (low, b), (high, c) = (theirs.get_decfun(k) for k in rising)
        expected = dense @ np.subtract(high, low) + c - b
    else:
        found, _, values = liblinearutil.predict([], X, theirs, "-q")
        values = np.array(values)
        expected = values[:, 0] * (2 * rising[0] - 1) if two else values[:, rising]
        sure = (np.abs(expected) if two else np.diff(np.sort(expected)[:, -2:])[:, 0]) > 1e-12
        assert np.array_equal(ours.predict(dense)[sure], np.array(found)[sure])
        assert np.count_nonzero(sure) > 70
    assert ours.classes == tuple(sorted(map(float, labels)))
    assert ours.kind == ("two classes" if two else "multiclass")
    assert ours.decision_function(dense) == pytest.approx(expected, rel=0, abs=1e-12)
    assert ours.settings["rho"] == max(bias, 0)
    assert (ours.index_base, ours.columns, ours.certificate) == (1, 20, {})


LIBLINEAR = "solver_type L2R_LR\nnr_class 2\nlabel 1 -1\nnr_feature 2\nbias 1\nw\n.5 \n2 \n-1 \n"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("2\nlabel 1 -1", "1\nlabel 1", "with solver_type L2R_LR and nr_class 1"),
        ("L2R_LR", "ONECLASS_SVM", "m: a LIBLINEAR model with solver_type ONECLASS_SVM"),
        ("-1 \n", "", "shape (2, 1), expected 3 lines of 1 by nr_feature 2 and bias 1"),
        ("-1 \n", "-1\n4\n", "shape (4, 1), expected 3 lines"),
        ("2 \n", "nan\n", "m: holds nan or inf"),
        ("label 1 -1\n", "", "the head of a LIBLINEAR model is incomplete"),
        ("label 1 -1\n", "label 1 1\n", "the head"),
        ("label 1 -1\n", "label 1 -1 0\n", "the head"),
        ("nr_class 2\n", "nr_class three\n", "the head"),
        ("2 \n", "2 2\n", "the number of columns changed from 1 to 2 at row 2"),
        ("2 \n-1 \n", "2 \n-1", "a last line without its end"),
        ("2 \n", "1e300\n", "a coefficient beyond 1e+140"),
        ("label 1", "label 9007199254740993", "the head"),
        ("bias 1", "bias 1e300", "the head"),
        ("nr_feature 2", "nr_feature -2", "the head"),
        ("bias 1", "bias nan", "the head"),
        ("w\n", "", "the head"),
    ],
)
def test_a_broken_or_strange_liblinear_model_is_refused_with_why(tmp_path, old, new, sentence):
    (tmp_path / "m").write_text(LIBLINEAR.replace(old, new, 1))
    assert sentence in refused(lambda: load_any(tmp_path / "m"))


def test_a_liblinear_model_may_be_laid_on_shards_with_another_base(tmp_path):
    (tmp_path / "m").write_text(LIBLINEAR)
    assert load_any(tmp_path / "m", index_base=0).index_base == 0
    for names in ({"bias_last": True}, {"loss": "huber"}):
        message = refused(lambda names=names: load_any(tmp_path / "m", **names), SettingsError)
        assert "a LIBLINEAR model. --bias-last, classes and another loss are for coeff" in message


@pytest.mark.parametrize(
    "content",
    [
        "1\n-2e0\n.5\n",
        "1,-2,.5",
        "1\t-2\t.5\n",
        "# coef\n\n1 # one\n-2\n0.5",
        " 1 -2 .5 \r\n",
        np.array([1, -2, 0.5], "f4"),
        np.array([[1, -2, 0.5]], ">f8"),
        np.array([[2], [-4], [1]]) / 2,
    ],
)
def test_coefficients_are_one_vector_with_the_intercept_last_if_so_said(tmp_path, content):
    path = tmp_path / "m.npy"
    path.write_text(content) if isinstance(content, str) else np.save(path, content)
    plain = load_any(path, index_base=0)
    assert (plain.weights.tolist(), plain.bias) == ([1, -2, 0.5], 0)
    assert (plain.classes, plain.index_base) == ((-1.0, 1.0), 0)
    model = load_any(path, index_base=1, bias_last=True, classes=("a", "b"))
    assert (model.weights.tolist(), model.bias) == ([1, -2], 0.5)
    assert (model.classes, model.index_base) == (("a", "b"), 1)


@pytest.mark.parametrize("bias_last", [False, True])
def test_coefficients_of_many_classes_are_scikit_learns_coef_one_row_a_class(tmp_path, bias_last):
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(90, 6)), rng.choice(["ant", "bee", "cow"], 90)
    theirs = LogisticRegression(fit_intercept=bias_last).fit(X, y)
    coef = np.column_stack([theirs.coef_, theirs.intercept_]) if bias_last else theirs.coef_
    np.save(tmp_path / "m.npy", coef)
    given = {"index_base": 0, "bias_last": bias_last}
    ours = load_any(tmp_path / "m.npy", **given, classes=tuple(theirs.classes_))
    assert ours.decision_function(X) == pytest.approx(theirs.decision_function(X), abs=1e-12)
    assert ours.predict(X).tolist() == theirs.predict(X).tolist()
    message = refused(lambda: load_any(tmp_path / "m.npy", **given), SettingsError)
    assert "coefficients of 3 classes do not say which" in message


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("1 2\n3 4\n", "a table, expected one vector"),
        ("1 2\n3\n", "the number of columns changed from 2 to 1"),
        ("coef\n1\n", "could not convert string 'coef'"),
        ("1\n1_0\n", "could not convert string '1_0'"),
        ("inf\n", "holds nan or inf"),
        ("# nothing\n", "holds no number"),
        ("1\n2\n", "--index-base 0 or 1"),
        ("\x80\x04cos\nsystem\n(S'touch owned'\ntR.", "m: not a streamtron model"),  # a pickle
        (None, "m: cannot be read"),
        (np.ones((2, 2)), "shape (2, 2). Wanted one vector"),
        (np.array(["a"]), "an array of <U1"),
        (np.array([1.0, 1e141]), "or a coefficient beyond 1e+140"),
        (np.array([{}], dtype=object), "not a readable .npy array"),
        (np.array(1.0), "shape ()"),
    ],
)
def test_what_is_no_vector_is_refused_and_never_unpickled(tmp_path, content, sentence):
    path = tmp_path / "m"
    if isinstance(content, str):
        path.write_bytes(content.encode("latin-1"))
    elif content is not None:
        path = tmp_path / "m.npy"
        np.save(path, content)
    assert sentence in refused(lambda: load_any(path), StreamtronError)


def test_flipped_bits_of_a_streamtron_model_are_found_and_none_makes_it_another_kind(tmp_path):
    path, raw = tmp_path / "m", make_model().to_bytes()
    bits = [*range(8 * 9), *random.Random(0).sample(range(8 * len(raw)), 200)]
    for bit in bits:  # the first nine bytes tell ours from others
        path.write_bytes(
            raw[: bit // 8] + bytes([raw[bit // 8] ^ 1 << bit % 8]) + raw[bit // 8 + 1 :]
        )
        assert str(path) in refused(lambda: load_any(path), FileDamaged)


def test_our_own_file_is_known_though_it_be_ascii_and_what_it_says_cannot_be_overruled(tmp_path):
    settings, reading = {"C": 1.0, "source": "x" * 120}, {"index_base": 1}
    model = LinearModel(np.zeros(2), 0.0, ("a", "b"), settings, None, reading)
    assert model.to_bytes().isascii()
    model.save(tmp_path / "m")
    assert load_any(tmp_path / "m") == model
    for given_too in ({"index_base": 1}, {"bias_last": True}, {"classes": ("a", "b")}):
        refused(lambda more=given_too: load_any(tmp_path / "m", **more), SettingsError)
