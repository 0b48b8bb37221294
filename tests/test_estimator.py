"""The scikit-learn face: its conventions, its estimators' problems, the command line's bits."""

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import joblib
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputRegressor
from sklearn.svm import LinearSVC, LinearSVR
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.estimator_checks import check_estimator

import streamtron
from streamtron import StreamtronClassifier, StreamtronRegressor
from streamtron.core.config import REGRESSION, SKLEARN_NAMES, Settings
from streamtron.core.errors import DataError, MachineError, SettingsError
from streamtron.core.text import up
from streamtron.estimator.parameters import machine_of, settings_of
from tests.helpers.examples import slow_but
from tests.helpers.svm_text import svm_lines, write_shards

Floats = NDArray[np.float64]

LOSSES: dict[str, Callable[[Any], Any]] = {
    "squared_hinge": lambda margins: np.maximum(0.0, 1.0 - margins) ** 2,
    "log_loss": lambda margins: np.logaddexp(0.0, -margins),
    "hinge": lambda margins: np.maximum(0.0, 1.0 - margins),
}


def _rows(
    n: int = 400, columns: int = 12, classes: int = 2, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Half-empty rows that float32 holds, of classes that overlap."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, columns)) * (rng.random((n, columns)) < 0.5)
    X = X.astype(np.float32).astype(np.float64)
    scores = X @ rng.normal(size=(columns, classes)) + 1.5 * rng.normal(size=(n, classes))
    return X, scores.argmax(axis=1)


def _rival(ours: StreamtronClassifier) -> LinearSVC | LogisticRegression:
    """LinearSVC or LogisticRegression with our parameters, solved to the last digits."""
    ours_alone = {"tol", "max_iter", "random_state", "intercept", "penalty", "l1_ratio"}
    shared = set(SKLEARN_NAMES) - ours_alone | {"fit_intercept"}
    parameters = {name: value for name, value in ours.get_params().items() if name in shared}
    exact = {"tol": 1e-8, "max_iter": 10**6, "random_state": 0}
    if parameters.pop("loss") == "log_loss":
        return LogisticRegression(solver="liblinear", **exact, **parameters)
    return LinearSVC(loss=ours.loss, dual="auto", **exact, **parameters)


def _objectives(
    model: Any, X: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64] | float = 1.0
) -> list[float]:
    """scikit-learn's objective of every row of ``coef_``; of many classes the own is weighted."""
    classes, weights = model.classes_, np.broadcast_to(weights, len(y))
    of_class = compute_class_weight(model.class_weight, classes=classes, y=y, sample_weight=weights)
    found, learners = [], len(model.coef_)
    intercepts = np.broadcast_to(model.intercept_, learners)
    parts = (model.coef_, intercepts, classes[-learners:], of_class[-learners:])
    for w, bias, label, of_own in zip(*parts, strict=True):
        positive = y == label
        cost = np.where(positive, of_own, of_class[0] if learners == 1 else 1.0)
        margins = np.where(positive, 1, -1) * (X @ w + bias)
        losses = LOSSES[getattr(model, "loss", "log_loss")](margins)
        bias_weight = bias / model.intercept_scaling if model.fit_intercept else 0.0
        regular = 0.5 * (w @ w + bias_weight**2)
        found.append(float(regular + model.C * np.sum(weights * cost * losses)))
    return found


def _gaps(model: StreamtronClassifier) -> list[float]:
    proven = model.certificate_.get("learners", [model.certificate_])
    return [float(one["relative_duality_gap"]) for one in proven]


FAST = ("squared_hinge", "log_loss", "squared_error")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", slow_but([*LOSSES, "softmax", *REGRESSION], *FAST))
def test_scikit_learn_checks_pass_with_no_exemption(loss):
    kind = StreamtronRegressor if loss in REGRESSION else StreamtronClassifier
    results = check_estimator(kind(loss=loss), on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 50
    assert {result["status"] for result in results} <= {"passed", "skipped"}


def test_the_parameters_have_the_defaults_of_the_settings_and_a_random_state_draws_a_seed():
    ours = {**asdict(Settings()), "C": 1.0}
    theirs = StreamtronClassifier().get_params()
    assert theirs.pop("random_state") is None
    assert settings_of(StreamtronClassifier()).seed == ours["seed"], "and not chance"
    drawn = StreamtronClassifier(random_state=np.random.RandomState(4))
    assert settings_of(drawn).seed != settings_of(drawn).seed
    assert {name: theirs[name] for name in SKLEARN_NAMES if name in theirs} == {
        name: ours[setting] for name, setting in SKLEARN_NAMES.items() if name in theirs
    }


@pytest.mark.parametrize(
    ("loss", "classes"),
    [("squared_hinge", 2), ("squared_hinge", 3), ("log_loss", 2), ("hinge", 2), ("hinge", 3)],
)
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"C": 0.01},
        {"C": 30.0},
        {"fit_intercept": False},
        {"intercept_scaling": 7.0},
        {"class_weight": "balanced"},
        {"class_weight": {0: 5.0, 1: 0.2}},
    ],
    ids=str,
)
def test_the_objective_is_scikit_learn_s_and_within_the_gap_of_its_least(loss, classes, parameters):
    X, y = _rows(classes=classes)
    weights = np.random.default_rng(1).choice([0.0, 0.5, 3.0], len(y))
    ours = StreamtronClassifier(loss=loss, **parameters).fit(X, y, sample_weight=weights)
    theirs = _rival(ours).fit(X, y, sample_weight=weights)
    assert ours.coef_.shape == theirs.coef_.shape
    pairs = zip(_objectives(ours, X, y, weights), _objectives(theirs, X, y, weights), strict=True)
    for (mine, least), gap in zip(pairs, _gaps(ours), strict=True):
        assert gap <= 0.01
        assert least <= mine * (1 + 1e-9), "theirs minimises the same objective"
        assert mine * (1 - gap) <= least * (1 + 1e-9)


def test_balancing_allows_a_class_whose_rows_all_weigh_zero():
    X, y = _rows(classes=3)
    model = StreamtronClassifier(class_weight="balanced").fit(X, y, sample_weight=1.0 * (y < 2))
    assert np.all(model.predict(X) < 2)


@pytest.mark.parametrize("loss", ["squared_hinge", "hinge"])
def test_only_the_logistic_loss_has_probabilities(loss):
    model = StreamtronClassifier(loss=loss).fit(*_rows())
    for name in ("predict_proba", "predict_log_proba"):
        with pytest.raises(AttributeError, match=name) as caught:
            getattr(model, name)
        assert f"loss is '{loss}': expected 'log_loss'" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("base", "class_weight", "loss"),
    [
        (0, None, "squared_hinge"),
        (0, "balanced", "log_loss"),
        (1, "balanced", "squared_hinge"),
        (1, None, "hinge"),
    ],
)
def test_weights_are_bit_for_bit_those_of_a_shard_of_these_rows(tmp_path, base, class_weight, loss):
    X, y = _rows(n=9000, columns=30)  # three blocks
    X[:, 0], X[0, 0] = 0.0, 1.0
    root = write_shards(tmp_path / "rows", svm_lines(X, y, base), 1)
    model = streamtron.fit(
        root, C=0.5, loss=loss, rho=2, tol=1e-4, seed=7, class_weight=class_weight
    )
    ours = StreamtronClassifier(
        C=0.5, loss=loss, intercept_scaling=2, tol=1e-4, random_state=7, class_weight=class_weight
    )
    proven = {name: value for name, value in model.certificate.items() if name != "ball"}
    for fitted in (clone(ours).fit(X, y), clone(ours).fit_shards(root)):
        assert np.array_equal(fitted.coef_[0], model.weights)
        assert fitted.intercept_[0] == model.bias
        if base == 0:  # a column more to number, 0, widens the bound on rounding by a hair
            assert fitted.certificate_ == proven
        known = {name for name, value in proven.items() if value is not None}
        of_all = {name: model.certificate[name] for name in known - {"history"}}
        assert {name: fitted.certificate_[name] for name in of_all} == pytest.approx(
            of_all, rel=1e-5
        )
    if loss == "squared_hinge":  # Newton's method does not draw
        assert not np.array_equal(ours.set_params(random_state=8).fit(X, y).coef_[0], model.weights)


@pytest.mark.parametrize(
    ("class_weight", "names"),
    [
        (None, {"classes": [3, 0, 1, 2]}),
        (None, {"multiclass": True}),
        ("balanced", {"classes": [3, 0, 1, 2]}),
        ({0: 3.0, 2: 0.5}, {"multiclass": True}),
    ],
)
def test_many_classes_in_a_shard_and_in_memory_are_the_same_bits(tmp_path, class_weight, names):
    X, y = _rows(classes=4)
    root = write_shards(tmp_path / "rows", svm_lines(X, y, 1), 1)
    ours = StreamtronClassifier(class_weight=class_weight)
    on_disk = clone(ours).fit_shards(root, **names)
    in_memory = ours.fit(X, y)
    assert on_disk.classes_.tolist() == [0.0, 1.0, 2.0, 3.0]
    if class_weight == "balanced":  # n / (2 n_class) · 2/4 rounds otherwise
        np.testing.assert_allclose(on_disk.coef_, in_memory.coef_, rtol=1e-6)
    else:
        assert np.array_equal(on_disk.coef_, in_memory.coef_)
    assert len(on_disk.certificate_["learners"]) == 4
    assert np.mean(on_disk.predict(X) == y) == np.mean(in_memory.predict(X) == y)


def test_settings_without_a_parameter_reach_the_shards_by_name(tmp_path):
    X, y = _rows(n=50)
    root = write_shards(tmp_path / "rows", svm_lines(X, y, 0), 1)
    wide = StreamtronClassifier().fit_shards(root, index_base=0)
    narrow = StreamtronClassifier().fit_shards(root, index_base=0, active_set=1000)
    assert wide.n_features_in_ == X.shape[1]
    assert not np.array_equal(wide.coef_, narrow.coef_)
    with pytest.raises(SettingsError, match="an estimator predicts one label a row"):
        StreamtronClassifier().fit_shards(root, multilabel=True)


def test_every_kind_of_matrix_gives_the_same_bits():
    X, y = _rows()
    wide = sparse.csr_array(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    halves = np.float32(wide.data).repeat(2) / 2, wide.indices.repeat(2), 2 * wide.indptr
    twice = sparse.csr_array(halves, shape=X.shape)
    twice.has_canonical_format = True  # as scipy believes where it is not told of a change
    expected = StreamtronClassifier().fit(X, y)
    kinds: list[Any] = [X.astype(">f8"), np.asfortranarray(X), X.tolist(), wide, twice]
    for kind in (*kinds, sparse.csr_matrix(X), sparse.coo_array(X)):
        fitted = StreamtronClassifier().fit(kind, y)
        assert np.array_equal(fitted.coef_, expected.coef_)
        np.testing.assert_allclose(
            fitted.decision_function(kind), expected.decision_function(X), rtol=1e-5, atol=1e-6
        )
    assert twice.nnz == 2 * wide.nnz, "the matrix is as it was"
    swapped = sparse.csr_array(X)
    swapped.data = swapped.data.astype(">f8")
    models = [streamtron.fit(kind, y) for kind in (X, X.astype(">f8"), swapped)]
    assert models[0] == models[1] == models[2]


@pytest.mark.parametrize(("classes", "needed"), [(2, "24.0 GB"), (3, "72.0 GB")])
def test_columns_whose_weights_do_not_fit_in_memory_are_refused_at_once(
    classes, needed, monkeypatch
):
    monkeypatch.setattr("streamtron.core.config.available_memory", lambda: 40 * 10**9)
    X = sparse.csr_array((np.ones(4), [0, 5, 10**9 - 1, 7], np.arange(5)), shape=(4, 10**9))
    with pytest.raises(MachineError, match=f"columns, .* take {needed}; the limit is 20.0 GB"):
        StreamtronClassifier().fit(X, np.arange(4) % classes)


def test_the_columns_of_shards_have_their_names_in_a_data_frame_too(tmp_path):
    X, y = _rows(columns=3)
    table = pa.table({name: X[:, j] for j, name in enumerate(("b", "a", "c"))})
    pq.write_table(table.append_column("label", pa.array(y.tolist())), tmp_path / "rows.parquet")
    model = StreamtronClassifier().fit_shards(tmp_path / "rows.parquet")
    assert model.feature_names_in_.tolist() == ["b", "a", "c"]
    names = pandas.Series(y).map({0: "no", 1: "yes"})
    decisions = model.predict(table) == 1
    assert np.array_equal(model.fit(table, names).predict(table), np.where(decisions, "yes", "no"))
    model.fit_shards(write_shards(tmp_path / "rows", svm_lines(X, y, 0), 1), index_base=0)
    assert not hasattr(model, "feature_names_in_")
    model.fit_shards(tmp_path / "rows.parquet", features="a,b,c")
    with pytest.raises(ValueError, match="must be in the same order"):
        model.predict(table)
    whole = streamtron.fit(tmp_path / "rows.parquet", columns="auto")
    model.fit_shards(tmp_path / "rows.parquet", columns="auto")
    assert np.array_equal(model.coef_[0], whole.weights)


def test_values_are_rounded_to_float32_and_refused_where_they_are_infinite_then():
    exact, rounded = (
        StreamtronClassifier().fit([[large], [-3.0], [-2.0], [1.5]], [0, 1, 1, 0])
        for large in (2.0**24 + 1, 2.0**24)
    )
    assert np.array_equal(exact.coef_, rounded.coef_)
    with pytest.raises(ValueError, match="too large for dtype\\('float32'\\)"):
        StreamtronClassifier().fit([[1e39], [1.0]], [0, 1])


CLASSES, NUMBERED = StreamtronClassifier, StreamtronRegressor


@pytest.mark.parametrize(
    ("kind", "parameters", "y", "weights", "sentence"),
    [
        (CLASSES, {"max_iter": 0}, None, None, "^max_iter is 0"),
        (CLASSES, {"max_iter": 2.5}, None, None, "^max_iter is 2.5: expected a whole number"),
        (CLASSES, {"intercept_scaling": 0}, None, None, "^intercept_scaling is 0: expected a num"),
        (CLASSES, {"intercept_scaling": np.inf}, None, None, "^intercept_scaling is inf"),
        (CLASSES, {"random_state": -1}, None, None, "^random_state is -1"),
        (CLASSES, {"class_weight": "even"}, None, None, "^class_weight is 'even'"),
        (CLASSES, {"class_weight": {0: -1.0}}, None, None, "^class_weight of 0 is -1.0"),
        (CLASSES, {"n_jobs": 0}, None, None, "^n_jobs is 0"),
        (CLASSES, {"n_jobs": "two"}, None, None, "^n_jobs is 'two'"),
        (CLASSES, {"loss": "huber"}, None, None, "StreamtronClassifier has no loss 'huber'"),
        (NUMBERED, {"loss": "hinge"}, None, None, "StreamtronRegressor has no loss 'hinge'"),
        (NUMBERED, {"penalty": "l1", "loss": "epsilon_insensitive"}, None, None, "a smooth loss"),
        (NUMBERED, {"epsilon": 0.5}, None, None, "has no epsilon"),
        (CLASSES, {}, [1, 1, 1, 1], None, "only one class"),
        (CLASSES, {}, None, [0.0, 1.0, 1.0, 0.0], "only one class, 1,"),
        (CLASSES, {}, None, [1.0, 1.0, 1.0, -0.5], "Negative values in data passed to `sample_w"),
        (CLASSES, {}, None, [1.0, 1.0, 1e31, 1.0], r"a weight above 1e\+30"),
        (CLASSES, {}, np.ma.masked_equal([0, 1, 1, 2], 2), None, "values that are masked"),
        (NUMBERED, {}, [1.0, None, 3.0, 4.0], None, "row 1 has nan"),
        (NUMBERED, {}, [1, 2, 2**53 + 1, 4], None, "row 2 has 9007199254740992.0: expected finite"),
        (
            NUMBERED,
            {},
            [1.0, 2.0, 1e200, 4.0],
            None,
            r"row 3 has the label 1e\+200: expected 0",
        ),
    ],
)
def test_what_cannot_be_fitted_is_a_value_error_by_its_own_name(
    kind, parameters, y, weights, sentence
):
    labels = [0, 1, 1, 0] if y is None else y
    with pytest.raises(ValueError, match=sentence):
        kind(**parameters).fit(np.eye(4), labels, sample_weight=weights)
    if kind is CLASSES and y is not None:
        with pytest.raises(DataError):
            streamtron.fit(np.eye(4), y)


def test_a_gap_not_reached_is_warned_of_with_its_size():
    X, y = _rows(n=3000)
    with pytest.warns(ConvergenceWarning, match="max_iter=1 full epochs proved") as caught:
        model = StreamtronClassifier(loss="log_loss", penalty="l1", tol=1e-11, max_iter=1).fit(X, y)
    gap = model.certificate_["relative_duality_gap"]
    assert gap > 1e-11
    assert f"{up(gap, 3)}" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert model.n_iter_ == 1


def test_a_second_fit_begins_from_nothing():
    X, y = _rows()
    fresh = StreamtronClassifier().fit(X[:100], y[:100])
    again = StreamtronClassifier().fit(X, y).fit(X[:100], y[:100])
    assert np.array_equal(again.coef_, fresh.coef_)
    assert again.n_iter_ == fresh.n_iter_ > 0


@pytest.mark.parametrize("intercept", ["penalised", "free"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_dual_after_partial_fits_is_one_of_all_rows_and_not_idle(loss, intercept):
    X, y = _rows(n=2000)
    weights = np.random.default_rng(2).choice([0.0, 1.0, 2.0], len(y))
    weights[:250] *= 8.0  # so that the dual variables of later rows are counted more finely
    parts = StreamtronClassifier(loss=loss, intercept=intercept)
    for rows in np.array_split(np.arange(len(y)), 8):
        parts.partial_fit(X[rows], y[rows], classes=[0, 1], sample_weight=weights[rows])
    whole = clone(parts).set_params(tol=1e-3).fit(X, y, sample_weight=weights).certificate_
    proven = parts.certificate_
    assert 0.8 * whole["primal_objective"] <= proven["dual_objective"] <= whole["primal_objective"]
    margins = loss == "squared_hinge" and intercept == "penalised"
    assert (proven["upper_bound"] is not None) == margins
    assert not margins or whole["primal_margin"] <= proven["upper_bound"]
    assert proven["rows_scanned"] == np.count_nonzero(weights)
    assert f"all {proven['rows_scanned']} rows" in proven["covers"]
    assert proven["primal_margin"] is proven["primal_objective"] is None, "those rows are gone"
    assert proven["relative_duality_gap"] is None
    assert parts.n_iter_ > 1


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("by_label", [False, True])
def test_weights_learned_in_parts_come_near_the_optimum_of_all_rows(by_label, loss):
    X, y = _rows(n=2000, classes=3)
    order = np.argsort(y, kind="stable") if by_label else np.arange(len(y))
    parts, whole = StreamtronClassifier(loss=loss), StreamtronClassifier(loss=loss).fit(X, y)
    for rows in np.array_split(order, 10):
        parts.partial_fit(X[rows], y[rows], classes=[2, 0, 1])
    excess = np.array(_objectives(parts, X, y)) / np.array(_objectives(whole, X, y)) - 1
    assert excess.max() < (1.0 if by_label else 0.02)


def test_a_call_of_few_rows_moves_the_weights_by_the_part_of_all_rows_that_they_are():
    X, y = _rows(n=1000)
    model = StreamtronClassifier().partial_fit(X[:990], y[:990], classes=[0, 1])
    before = model.coef_
    model.partial_fit(X[990:], 1 - y[990:])
    assert 0.0 < np.linalg.norm(model.coef_ - before) < 0.02 * np.linalg.norm(before)


@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss"])
@pytest.mark.parametrize("intercept", ["penalised", "free"])
def test_rows_after_those_on_disk_are_learned_with_the_signs_of_those(intercept, loss, tmp_path):
    X, y = _rows(n=400)
    for name, flipped in (("a", y), ("b", 1 - y)):  # another label comes first
        root = write_shards(tmp_path / name, svm_lines(X[:300], flipped[:300], 1), 1)
        model = StreamtronClassifier(loss=loss, intercept=intercept).fit_shards(root)
        assert model.score(X, flipped) > 0.7
        memory = clone(model).fit(X[:300], flipped[:300])
        for learner in (model, memory):
            learner.partial_fit(X[300:], flipped[300:])
        assert np.array_equal(model.coef_, memory.coef_)
        assert model.certificate_ == memory.certificate_


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"C": 2.0}, "C is 2.0, and was 1.0 for"),
        ({"class_weight": {0: 100.0}}, "class_weight is "),
        ({"fit_intercept": False}, "intercept_scaling is 0.0, and was 1.0 for"),
        ({"intercept_scaling": 3.0}, "intercept_scaling is 3.0, and was 1.0 for"),
        ({"intercept": "free"}, "intercept is free, and was penalised for"),
        ({"loss": "hinge"}, "loss is hinge, and was squared_hinge for"),
    ],
)
def test_rows_of_another_problem_are_refused_and_of_the_same_are_learned(classes, other, named):
    X, y = _rows(n=60, classes=classes)
    model = StreamtronClassifier().partial_fit(X[:40], y[:40], classes=range(classes))
    twin = clone(model).partial_fit(X[:40], y[:40], classes=range(classes))
    with pytest.raises(SettingsError, match=re.escape(named)):
        model.set_params(**other).partial_fit(X[40:], y[40:])
    model.set_params(**clone(twin).get_params()).partial_fit(X[40:], y[40:])
    assert model.certificate_ == twin.partial_fit(X[40:], y[40:]).certificate_
    same_problem = {"tol": 0.5, "max_iter": 7, "random_state": 3, "class_weight": {0: 1.0}}
    model.set_params(**same_problem).partial_fit(X, y)


@pytest.mark.parametrize("classes", [2, 3])
def test_rows_after_a_balanced_fit_are_refused_and_after_given_weights_have_them(classes, tmp_path):
    X, y = _rows(n=90, classes=classes)
    root = write_shards(tmp_path / "rows", svm_lines(X[:60], y[:60], 1), 2)
    names = range(classes) if classes > 2 else None
    balanced = StreamtronClassifier(class_weight="balanced")
    for model in (balanced.fit(X[:60], y[:60]), clone(balanced).fit_shards(root, classes=names)):
        with pytest.raises(SettingsError, match=r"class_weight is .* for the earlier rows"):
            model.set_params(class_weight=None).partial_fit(X[60:], y[60:])

    model = StreamtronClassifier().fit_shards(root, classes=names, class_weight={0: 5.0})
    model.set_params(class_weight={0: 5.0}).partial_fit(X[60:], y[60:])
    assert model.score(X, y) > 0.5


@pytest.mark.parametrize(
    ("parameters", "classes", "sentence"),
    [
        ({}, None, "classes must be passed"),
        ({"class_weight": "balanced"}, [0, 1], "balanced"),
        ({}, [0, 2], "label 1 is not one of the classes"),
    ],
)
def test_partial_fit_refuses_what_it_cannot_know(parameters, classes, sentence):
    X, y = _rows(n=20)
    with pytest.raises(ValueError, match=sentence):
        StreamtronClassifier(**parameters).partial_fit(X, y, classes=classes)
    model = StreamtronClassifier().partial_fit(X, y, classes=[0, 1])
    with pytest.raises(SettingsError, match="at the first call they were"):
        model.partial_fit(X, y, classes=[0, 1, 2])


@pytest.mark.parametrize("n_jobs", [None, 1, -1])
def test_n_jobs_counts_threads_as_scikit_learn_does(n_jobs):
    assert machine_of(n_jobs).thread_count == joblib.effective_n_jobs(n_jobs)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_verbose_fit_prints_a_line_for_every_reading_of_every_class(classes, capsys, tmp_path):
    X, y = _rows(n=900, classes=classes)
    root = write_shards(tmp_path / "rows", svm_lines(X, y, 0), 2)
    model = StreamtronClassifier(verbose=1)
    for last, fit in (
        ("cow", lambda: model.fit(X, np.array(["ant", "bee", "cow"])[y])),
        ("2", lambda: model.fit_shards(root, classes=range(classes))),
    ):
        learners = fit().certificate_.get("learners", [model.certificate_])
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == sum(len(one["history"]) for one in learners)
        of_class = f"class {last}: " if classes == 3 else ""
        assert lines[-1].startswith(f"{of_class}reading 2: ")
        assert lines[-1].endswith(f", gap {up(_gaps(model)[-1], 3)}")
    StreamtronClassifier().fit(X, y)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("classes", [2, 3])
def test_sparse_weights_decide_the_same_and_dense_ones_come_back(classes):
    X, y = _rows(classes=classes)
    model = StreamtronClassifier().fit(X, y)
    dense, decisions = model.coef_, model.decision_function(X)
    assert sparse.issparse(model.sparsify().coef_)
    assert model.decision_function(X) == pytest.approx(decisions, rel=1e-12)
    assert np.array_equal(model.densify().coef_, dense)
    model.sparsify().partial_fit(X, y)
    assert not sparse.issparse(model.coef_)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_model_becomes_a_classifier_of_scikit_learn(classes, loss, tmp_path):
    X, y = _rows(classes=classes)
    root = write_shards(tmp_path / "rows", svm_lines(X, y, 0), 1)
    names = {"loss": loss, "C": 0.5, "class_weight": {"0": 2.0}, "multiclass": classes > 2}
    model = streamtron.fit(root, **names)
    theirs = model.to_sklearn()
    assert np.array_equal(theirs.predict(X), model.predict(X))
    assert theirs.decision_function(X) == pytest.approx(model.decision_function(X), rel=1e-9)
    ours = StreamtronClassifier(loss=loss, C=0.5, class_weight={0.0: 2.0}).fit(X, y.astype(float))
    assert ours.coef_ == pytest.approx(np.atleast_2d(model.weights), rel=1e-6)
    if loss == "log_loss":
        proba = model.predict_proba(X)
        assert ours.predict_proba(X) == pytest.approx(proba, rel=1e-6)
        logarithms = pytest.approx(np.log(proba), rel=1e-6, abs=1e-12)
        assert ours.predict_log_proba(X) == logarithms


NUMBERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "squared_error": ("free", lambda r: 0.5 * r**2),
    "huber": ("free", lambda r: np.where(abs(r) <= 1.35, r**2 / 2, 1.35 * abs(r) - 1.35**2 / 2)),
    "epsilon_insensitive": ("penalised", lambda r: np.maximum(0.0, abs(r) - 0.1)),
    "squared_epsilon_insensitive": ("penalised", lambda r: np.maximum(0.0, abs(r) - 0.1) ** 2),
}
"""Loss → the intercept that scikit-learn has with it, and φ."""


def _numbers(n: int = 300, columns: int = 8) -> tuple[Floats, Floats, Floats]:
    """Rows that float32 holds, numbers with outliers, and weights."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, columns)).astype(np.float32).astype(np.float64)
    y = X @ rng.normal(size=columns) + 5.0 + rng.standard_t(2, size=n)
    return X, y, rng.choice([0.0, 0.5, 3.0], n)


@pytest.mark.parametrize("loss", NUMBERS)
@pytest.mark.parametrize("C", [0.01, 1.0, 30.0])
def test_the_optimum_is_that_of_ridge_linear_svr_and_huber_of_a_fixed_scale(loss, C):
    X, y, weights = _numbers()
    intercept, phi = NUMBERS[loss]

    def objective(w: Floats) -> float:
        penalty = w @ w - (intercept == "free") * w[-1] ** 2
        return float(0.5 * penalty + C * np.sum(weights * phi(X @ w[:-1] + w[-1] - y)))

    if loss == "squared_error":
        theirs = Ridge(alpha=1 / C, solver="cholesky").fit(X, y, weights)
    elif loss == "huber":
        tight = {"options": {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 10**4}}
        theirs = minimize(objective, np.zeros(9), method="L-BFGS-B", **tight).x
    else:
        theirs = LinearSVR(C=C, loss=loss, epsilon=0.1, tol=1e-10, max_iter=10**6)
        theirs.fit(X, y, weights)
    ours = StreamtronRegressor(loss=loss, C=C, intercept=intercept, tol=1e-6).fit(X, y, weights)
    mine, rival = (
        model if isinstance(model, np.ndarray) else np.append(model.coef_, model.intercept_)
        for model in (ours, theirs)
    )
    assert ours.certificate_["relative_duality_gap"] <= 1e-6
    assert ours.certificate_["dual_objective"] <= objective(rival)
    assert objective(mine) <= objective(rival) * (1 + 1.1e-6)
    assert ours.predict(X) == pytest.approx(X @ rival[:-1] + rival[-1], abs=0.02)


def test_several_numbers_a_row_are_refused():
    X, y, _ = _numbers()
    both = np.column_stack([y, -y])
    with pytest.raises(DataError, match=r"shape \(300, 2\): expected one number a row"):
        StreamtronRegressor().fit(X, both)
    predicted = MultiOutputRegressor(StreamtronRegressor()).fit(X, both).predict(X)
    assert np.array_equal(predicted[:, 0], StreamtronRegressor().fit(X, y).predict(X))
