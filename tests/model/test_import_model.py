"""Models of other programs: what is read from them, and what is refused."""

import random

import numpy as np
import pytest
from liblinear import liblinearutil
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from streamtron.core.errors import FileDamaged, SettingsError, StreamtronError
from streamtron.model.import_model import load_any
from streamtron.model.linear_model import LinearModel
from tests.helpers.models import make_model, random_matrix, refused


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
