"""LinearSVC replaced in a line: in every workflow the decisions are its own, up to what is proven.

By strong convexity a decision is known within ‖(x, ρ)‖ √(2 (P − D)): the radius of its row. Where
LinearSVC's decision is further from a change of class than that, the prediction must be the same.
All at a gap that leaves most rows clear, and on rows too many to be finished to rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from sklearn.calibration import CalibratedClassifierCV
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from streamtron import StreamtronClassifier
from streamtron.solver import ascent

TOLERANCE = 1e-5

FLOAT32 = 1e-6
"""Of a decision, what rounding of values to float32 may move."""

Floats = NDArray[np.float64]


def _rows(classes: int, n: int = 1500, seed: int = 0) -> tuple[Floats, NDArray[np.str_]]:
    """Half-empty rows that float32 holds, of classes that overlap, named by strings."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 12)) * (rng.random((n, 12)) < 0.5)
    X = X.astype(np.float32).astype(np.float64)
    assert np.count_nonzero(X) > 2 * ascent.SMALL
    scores = X @ rng.normal(size=(12, classes)) + 1.5 * rng.normal(size=(n, classes))
    return X, np.array(["ham", "spam", "news"])[scores.argmax(axis=1)]


def _both(**parameters: Any) -> tuple[StreamtronClassifier, LinearSVC]:
    """Ours, and LinearSVC with the same parameters, solved to the last digits."""
    rival = LinearSVC(dual="auto", tol=1e-8, max_iter=10**6, random_state=0, **parameters)
    return StreamtronClassifier(tol=TOLERANCE, **parameters), rival


def _unclear(ours: StreamtronClassifier, theirs: LinearSVC, X: Any) -> NDArray[np.bool_]:
    """Rows whose class the proof does not decide; on all others both must predict the same, and on
    all rows decide the same up to the radius."""
    proven = ours.certificate_.get("learners", [ours.certificate_])
    excess = np.array([one["relative_duality_gap"] / one["primal_margin"] ** 2 for one in proven])
    assert max(one["relative_duality_gap"] for one in proven) <= ours.tol
    lengths = np.sqrt(sparse.csr_array(X).power(2).sum(axis=1) + ours.intercept_scaling**2)
    radii = np.sqrt(excess) * lengths[:, None]
    decisions = theirs.decision_function(X).reshape(len(lengths), -1)
    off = np.abs(ours.decision_function(X).reshape(decisions.shape) - decisions)
    assert np.all(off <= radii + FLOAT32 * (1.0 + np.abs(decisions)))
    if decisions.shape[1] == 1:
        clear = np.abs(decisions[:, 0]) > radii[:, 0] + FLOAT32
    else:
        best = decisions.argmax(axis=1)[:, None]
        lowest = np.take_along_axis(decisions - radii, best, axis=1)
        others = decisions + radii
        np.put_along_axis(others, best, -np.inf, axis=1)
        clear = lowest[:, 0] > others.max(axis=1) + FLOAT32
    assert clear.mean() > 0.5, "the proof decides most rows"
    assert np.array_equal(ours.predict(X)[clear], theirs.predict(X)[clear])
    return ~clear


@pytest.mark.parametrize("classes", [2, 3])
def test_fitted_directly_it_predicts_as_linear_svc_up_to_the_certified_gap(classes):
    X, y = _rows(classes)
    ours, theirs = (model.fit(X, y) for model in _both(C=0.3))
    _unclear(ours, theirs, X)
    assert set(ours.predict(X)) == set(y)
    assert not np.array_equal(ours.coef_, theirs.coef_), "a gap is left"


@pytest.mark.parametrize("classes", [2, 3])
def test_behind_tfidf_in_a_pipeline_it_predicts_as_linear_svc_up_to_the_certified_gap(classes):
    rng = np.random.default_rng(3)
    words = np.array([f"word{k}" for k in range(90)])
    y = rng.choice(["ham", "news", "spam"][:classes], 900)
    starts = {label: 20 * k for k, label in enumerate(("ham", "news", "spam"))}
    texts = [" ".join(rng.choice(words[starts[label] :][:50], 12)) for label in y]
    ours, theirs = (
        make_pipeline(TfidfVectorizer(dtype=np.float32), model).fit(texts[:700], y[:700])
        for model in _both()
    )
    unclear = _unclear(ours[-1], theirs[-1], ours[:-1].transform(texts[700:]))
    same = ours.predict(texts[700:]) == theirs.predict(texts[700:])
    assert np.all(same | unclear)


def test_every_classifier_inside_of_a_calibration_decides_as_linear_svc_up_to_the_gap():
    X, y = _rows(2)
    ours, theirs = (CalibratedClassifierCV(model, cv=3).fit(X, y) for model in _both())
    pairs = zip(ours.calibrated_classifiers_, theirs.calibrated_classifiers_, strict=True)
    for mine, rival in pairs:
        _unclear(mine.estimator, rival.estimator, X)
    # the sigmoid is fitted to decisions that the gap moves a little
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=0.01)
