"""Make fitted estimators of scikit-learn of a model: with its weights, and of raw rows a
pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from streamtron.core.config import Settings, label_weights, prices
from streamtron.core.errors import SettingsError
from streamtron.core.losses import loss_of
from streamtron.model.linear_model import LinearModel
from streamtron.model.scoring import stays_sparse


def to_sklearn(model: LinearModel) -> Any:
    """Return a fitted estimator of scikit-learn, within a ``CalibratedClassifierCV`` if the model
    is calibrated, and behind its transformer, within a ``Pipeline``, if it has one; see
    ``export``."""
    if model.transformer is not None:
        from sklearn.pipeline import Pipeline

        last = "regressor" if model.regression else "classifier"
        steps = [("features", model.transformer.estimator), (last, to_sklearn(on_features(model)))]
        return Pipeline(steps)
    if model.kind == "multilabel":
        raise SettingsError(
            "format sklearn: a multilabel model, and LinearSVC gives a row one label. Export as "
            "onnx or json."
        )
    if not model.columns:
        raise SettingsError(
            "format sklearn: a model without columns, and scikit-learn wants one. Export as json."
        )
    loss = loss_of(model.settings)
    if loss.logistic and model.kind == "multiclass" and not loss.softmax:
        linear = _one_vs_rest(model)
    else:
        linear = _fitted(model, model.sparse_weights, model.bias, _labels(model))
        if not model.regression:
            linear.class_weight = _class_weight(model)
    calibrated = model.calibration is not None
    classifier = _with_probabilities(linear, model.calibration or {}) if calibrated else linear
    names = model.feature_names[: model.columns]
    if len(names) == model.columns:
        linear.feature_names_in_ = classifier.feature_names_in_ = np.array(names, dtype=object)
    return classifier


def class_array(model: LinearModel) -> np.ndarray[Any, Any]:
    """Return the classes as an array: int64 if they are whole numbers."""
    is_text = isinstance(next(iter(model.classes), None), str)
    classes = np.array(model.classes, dtype=object if is_text else None)
    if classes.dtype.kind == "f" and not (classes % 1).any() and (np.abs(classes) < 2**53).all():
        return classes.astype(np.int64)
    return classes


def _labels(model: LinearModel) -> np.ndarray[Any, Any]:
    classes = class_array(model)
    return classes.astype(str) if classes.dtype == object else classes


def _fitted(
    model: LinearModel, weights: sparse.csr_array, bias: ArrayLike, classes: np.ndarray[Any, Any]
) -> Any:
    """Return an estimator of the model's problem with these weights."""
    fitted = _estimator(model)
    if stays_sparse(model):  # as LinearSVC.sparsify has it
        fitted.coef_ = sparse.csr_matrix(weights, copy=True)
    else:
        fitted.coef_ = weights.toarray(order="C")
    fitted.intercept_ = np.atleast_1d(np.array(bias, dtype=np.float64))
    if model.regression:
        fitted.coef_, fitted.intercept_ = fitted.coef_[0], float(bias)  # type: ignore[arg-type]
    else:
        fitted.classes_ = classes
    fitted.n_features_in_, fitted.n_iter_ = model.columns, 0
    return fitted


def _estimator(model: LinearModel) -> Any:
    """Return scikit-learn's estimator of the model's problem, not fitted."""
    from sklearn.linear_model import HuberRegressor, LogisticRegression, PoissonRegressor, Ridge
    from sklearn.svm import LinearSVC, LinearSVR

    settings, loss = model.settings, loss_of(model.settings)
    rho = float(settings.get("rho") or 0.0)
    price = prices(settings.get("C"), settings.get("delta"))["C"]
    has_bias = rho > 0.0 and settings.get("intercept") != "none"
    shrunk = {"alpha": 1.0 / (price or np.inf), "fit_intercept": has_bias}
    if loss.name == "squared_error":
        return Ridge(**shrunk)
    if model.log_link:
        shrunk["alpha"] /= max(int(model.certificate.get("rows_scanned") or 1), 1)
        poisson = PoissonRegressor(**shrunk)
        poisson._base_loss = poisson._get_loss()
        return poisson
    if loss.name == "huber":
        huber = HuberRegressor(epsilon=loss.epsilon, **shrunk)
        huber.scale_ = 1.0
        return huber
    problem: dict[str, Any] = {
        "C": np.inf if price is None else price,
        "fit_intercept": has_bias,
        "intercept_scaling": rho or 1.0,
    }
    if loss.softmax:
        return LogisticRegression(C=problem["C"], fit_intercept=has_bias)
    if loss.logistic:
        return LogisticRegression(solver="liblinear", **problem)
    if model.regression:
        return LinearSVR(loss=loss.name, epsilon=loss.epsilon, dual="auto", **problem)
    return LinearSVC(loss=loss.name, dual="auto", **problem)


def _one_vs_rest(model: LinearModel) -> Any:
    """Return a fitted ``OneVsRestClassifier``: of more than two classes, the probabilities of a
    ``LogisticRegression`` would be those of another problem, the multinomial one."""
    from sklearn.base import clone
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import LabelBinarizer

    linear = [
        _fitted(model, direction.nonzero, direction.bias, np.array([0, 1]))
        for direction in model.directions()
    ]
    fitted = OneVsRestClassifier(clone(linear[0]))
    fitted.label_binarizer_ = LabelBinarizer(sparse_output=True).fit(_labels(model))
    fitted.classes_, fitted.estimators_ = fitted.label_binarizer_.classes_, linear
    fitted.n_features_in_ = model.columns
    return fitted


def _with_probabilities(classifier: Any, calibration: Mapping[str, Any]) -> Any:
    """Return a fitted ``CalibratedClassifierCV`` of a classifier."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    calibrated = CalibratedClassifierCV(FrozenEstimator(classifier), method=calibration["method"])
    # fitted to empty rows, five of each class for its five folds; then its functions become ours
    labels = np.repeat(classifier.classes_, 5)
    calibrated.fit(sparse.csr_array((len(labels), classifier.n_features_in_)), labels)
    calibrators = calibrated.calibrated_classifiers_[0].calibrators
    for calibrator, direction in zip(calibrators, calibration["directions"], strict=True):
        if calibration["method"] == "sigmoid":
            calibrator.a_, calibrator.b_ = direction["a"], direction["b"]
        else:
            calibrator.fit(direction["decisions"], direction["probabilities"])
    return calibrated


def _class_weight(model: LinearModel) -> Any:
    """Return the class weights by label, as LinearSVC takes them."""
    by_name = model.settings.get("class_weight")
    if not isinstance(by_name, dict):
        return by_name
    weights = label_weights(Settings(class_weight=by_name))
    return {label: weights[label] for label in class_array(model).tolist() if label in weights}


def on_features(model: LinearModel) -> LinearModel:
    """Return the model of the features that its transformer makes."""
    reading = {"index_base": 0, "multilabel": model.reading.get("multilabel", False)}
    return model.but(reading=reading, transformer=None)
