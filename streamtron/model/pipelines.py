"""Make fitted estimators of scikit-learn of a model: with its weights, and of raw rows a
pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from streamtron.core.config import Settings, prices
from streamtron.core.errors import SettingsError
from streamtron.core.losses import loss_of
from streamtron.data.formats.category_column import CategoryColumn
from streamtron.data.formats.date_column import PARTS, DateColumn
from streamtron.data.formats.list_column import ListColumn, VectorColumn
from streamtron.data.formats.number_column import NumberColumn
from streamtron.data.formats.recipe import Recipe
from streamtron.data.formats.recipe_column import REFUSED, Column
from streamtron.data.formats.text_column import TextColumn
from streamtron.model.export import class_array
from streamtron.model.linear_model import LinearModel
from streamtron.model.scoring import stays_sparse

Features = NDArray[np.int64]

WRITTEN = {"true": ["true", "True"], "false": ["false", "False"]}
"""How Python writes a category that is none of strings."""

WHOLE = (TextColumn, ListColumn, VectorColumn)
"""Columns of which a transformer takes the entries, and no frame of them."""

MISSING = ("None", "nan", "<NA>", "NaT")
"""How Python writes a null."""


def to_sklearn(model: LinearModel) -> Any:
    """Return a fitted estimator of scikit-learn, within a ``CalibratedClassifierCV`` if the model
    is calibrated, and of raw rows, within a ``Pipeline``, if it has a recipe; see ``export``."""
    if (recipe := model.recipe) is not None:
        from sklearn.pipeline import Pipeline

        features, model = on_features(model, recipe)
        last = "regressor" if model.regression else "classifier"
        return Pipeline([("features", features), (last, to_sklearn(model))])
    if model.kind == "multilabel":
        raise SettingsError(
            "format sklearn: a multilabel model, and LinearSVC gives a row one label. Export as "
            "onnx or json."
        )
    if not model.columns:
        raise SettingsError(
            "format sklearn: a model without columns, and scikit-learn wants one. Export as json."
        )
    if loss_of(model.settings).logistic and model.kind == "multiclass":
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


def _labels(model: LinearModel) -> np.ndarray[Any, Any]:
    """Return the classes as scikit-learn has them."""
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
    from sklearn.linear_model import HuberRegressor, LogisticRegression, Ridge
    from sklearn.svm import LinearSVC, LinearSVR

    settings, loss = model.settings, loss_of(model.settings)
    rho, price = (
        float(settings.get("rho") or 0.0),
        prices(settings.get("C"), settings.get("delta"))["C"],
    )
    has_bias = rho > 0.0 and settings.get("intercept") != "none"
    shrunk = {"alpha": 1.0 / (price or np.inf), "fit_intercept": has_bias}
    if loss.name == "squared_error":
        return Ridge(**shrunk)
    if loss.name == "huber":
        huber = HuberRegressor(epsilon=loss.epsilon, **shrunk)
        huber.scale_ = 1.0
        return huber
    problem: dict[str, Any] = {
        "C": np.inf if price is None else price, "fit_intercept": has_bias,
        "intercept_scaling": rho or 1.0,
    }  # fmt: skip
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
    weights = Settings(class_weight=by_name).label_weights
    return {label: weights[label] for label in class_array(model).tolist() if label in weights}


def on_features(model: LinearModel, recipe: Recipe) -> tuple[Any, LinearModel]:
    """Return a fitted transformer of raw rows, and the model of its features, in their order.

    Rows are a data frame with the columns of the recipe, or a list of documents where it has no
    other column. A feature may come several times, of which one is not 0. SettingsError: a column
    for which scikit-learn has no transformer.
    """
    made = [_transformer(column) for column in recipe.columns]
    places = np.concatenate([
        start + features for start, (_, features) in zip(recipe.starts, made, strict=False)
    ])  # fmt: skip
    weights = recipe_weights(model, recipe).tocsc()[:, places].tocsr()
    reading = {"index_base": 0, "multilabel": model.reading.get("multilabel", False)}
    moved = model.but(weights=weights, reading=reading, certificate=None, offsets=None)
    transformers = [transformer for transformer, _ in made]
    [first, *others] = recipe.columns
    if isinstance(first, TextColumn) and not others:
        return transformers[0], moved
    return _side_by_side(recipe, transformers), moved


def recipe_weights(model: LinearModel, recipe: Recipe) -> sparse.csr_array:
    """Return the weights of the features of a recipe, shape (K, width): those behind the last
    column of the model are 0."""
    wide = sparse.csr_array(model.sparse_weights, copy=True)
    wide.resize((wide.shape[0], recipe.width))
    return wide


def _side_by_side(recipe: Recipe, transformers: list[Any]) -> Any:
    """Return a fitted ``ColumnTransformer`` of fitted transformers, one a column."""
    from sklearn.compose import ColumnTransformer
    from sklearn.frozen import FrozenEstimator

    try:
        frame = import_module("pandas").DataFrame
    except ImportError as error:
        raise SettingsError(
            "format sklearn: a ColumnTransformer needs pandas, which is not installed. Install it, "
            "or export as json."
        ) from error
    columns = [
        (column.name, FrozenEstimator(transformer),
         column.name if isinstance(column, WHOLE) else [column.name])
        for column, transformer in zip(recipe.columns, transformers, strict=True)
    ]  # fmt: skip
    values = {NumberColumn: 0.0, DateColumn: "1970-01-01", ListColumn: [], VectorColumn: [0.0]}
    example = {column.name: [values.get(type(column), "")] for column in recipe.columns}
    return ColumnTransformer(columns).fit(frame(example))


def _transformer(column: Column) -> tuple[Any, Features]:
    """Return a fitted transformer of a column, and which of our features each of its own is."""
    makers: dict[type[Column], Callable[[Any], tuple[Any, Features]]] = {
        NumberColumn: _number, CategoryColumn: _category, DateColumn: _date, TextColumn: _text,
        ListColumn: _list, VectorColumn: _vector,
    }  # fmt: skip
    return makers[type(column)](column)


def _refuse(column: Column, what: str) -> SettingsError:
    return SettingsError(
        f"format sklearn: column {column.name!r} has {what}, for which scikit-learn has no "
        "transformer of one column. Export as json, or keep the streamtron model."
    )


def _number(column: NumberColumn) -> tuple[Any, Features]:
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer

    steps: list[Any] = [_as(float)]
    if column.null in ("0", "mean"):
        filled = SimpleImputer(strategy="constant", fill_value=float(column.mean or 0.0))
        steps.append(filled.fit([[0.0]]))
    if column.edges is not None:
        if column.null == "column":
            raise _refuse(column, "bins and a feature of its own for nulls")
        bins = len(column.edges) - 1
        binned = KBinsDiscretizer(bins, encode="onehot", strategy="uniform").fit([[0.0], [bins]])
        binned.bin_edges_[0] = np.array(column.edges)
        steps.append(binned)
    else:
        steps.append(_scaler(column.center, column.divisor or 1.0))
    if column.null == "column":
        known = SimpleImputer(strategy="constant", fill_value=0.0, add_indicator=True)
        steps.append(known.fit([[0.0], [np.nan]]))
    return make_pipeline(*steps), np.arange(column.width)


def _scaler(center: float, divisor: float) -> Any:
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit([[0.0], [1.0]])
    scaler.mean_, scaler.scale_ = np.array([center]), np.array([divisor])
    scaler.var_ = scaler.scale_**2
    return scaler


def _date(column: DateColumn) -> tuple[Any, Features]:
    """Return functions of numpy, one behind the other; numbers since 1970 are NaN of a null."""
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

    ends, day, parts = [-(2.0**52), 2.0**52], 86_400_000.0, []
    finite = FunctionTransformer(np.interp, kw_args={"xp": ends, "fp": ends, "left": np.nan})
    unknown = "error" if column.null == REFUSED else "ignore"
    for part in column.parts:
        unit = {"age": "ms", "weekday": "D", "hour": "h", "month": "M"}[part]
        steps = [_as(f"datetime64[{unit}]"), _as(float), finite]
        if part == "age":
            today = np.datetime64(column.at or column.last or "1970-01-01", "D").astype(float)
            steps.append(_scaler((today - column.center) * day, -(column.divisor or 1.0) * day))
            if unknown == "ignore":
                steps.append(SimpleImputer(strategy="constant", fill_value=0.0).fit([[0.0]]))
        else:
            places = np.arange(len(PARTS[part]))  # the first of 1970 was a Thursday
            turn = (places + 3 * (part == "weekday")) % len(places)
            how = {"xp": places, "fp": turn, "period": len(places)}
            encoder = OneHotEncoder(categories=[places.astype(float)], handle_unknown=unknown)
            steps += [FunctionTransformer(np.interp, kw_args=how), encoder.fit([[0.0]])]
        parts.append(make_pipeline(*steps))
    if column.null == "column":
        parts.append(make_pipeline(_as("datetime64[ms]"), FunctionTransformer(np.isnat)))
    return make_union(*parts), np.arange(column.width)


def _category(column: CategoryColumn) -> tuple[Any, Features]:
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

    if column.hash_bits is None:
        features = written(column, null=column.width - 1 if column.null == "column" else None)
    elif column.null == REFUSED:
        codes = column.codes(WRITTEN).tolist()
        pairs = zip(codes, WRITTEN.values(), strict=True)
        features = {way: code for code, ways in pairs for way in ways}
    else:  # 7.0 is 7 beside a null, or itself a name
        raise _refuse(column, "categories that are hashed and may be null")
    names = sorted(features)
    encoder = OneHotEncoder(categories=[np.array(names)], handle_unknown="ignore")
    encoder.fit(np.array([[names[0]]]))
    places = np.array([features[name] for name in names])
    if column.hash_bits is None:
        return make_pipeline(_as(str), encoder), places
    hashing = HashingVectorizer(  # FeatureHasher takes no frame
        token_pattern=rf"(?s)\A(?!.*=(?:{'|'.join(names)})\Z).*", lowercase=False, norm=None,
        alternate_sign=False, n_features=column.width,
    )  # fmt: skip
    named = FunctionTransformer(partial(np.add, f"{column.name}="))
    rows = make_pipeline(named, FunctionTransformer(np.ravel), hashing)
    both = make_pipeline(_as(str), make_union(encoder, rows))
    return both, np.append(places, np.arange(column.width))


def _list(column: ListColumn) -> tuple[Any, Features]:
    """Return counters of strings and of whole numbers in lists; numpy's array of a map or of pairs
    stops them."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.pipeline import make_union

    if column.hash_bits is not None or column.null == "column":
        raise _refuse(column, "lists that are hashed or have a feature of their own for nulls")
    names, counters = written(column, null=None), []
    numbers = {int(name): feature for name, feature in names.items() if _whole(name)}
    for entries in (list(names), list(numbers)):
        places = {name: place for place, name in enumerate(entries)}
        counter = CountVectorizer(vocabulary=places, analyzer=np.atleast_1d, lowercase=False)
        counters += [counter.fit([[]])] if entries else []
    return make_union(*counters), np.array([*names.values(), *numbers.values()])


def _vector(column: VectorColumn) -> tuple[Any, Features]:
    from sklearn.preprocessing import FunctionTransformer

    if column.null != REFUSED:
        raise _refuse(column, "lists of numbers that may be missing")
    return FunctionTransformer(np.vstack), np.arange(column.width)


def _as(kind: type | str) -> Any:
    """Return a transformer of a frame to an array of this kind."""
    from sklearn.preprocessing import FunctionTransformer

    return FunctionTransformer(np.asarray, kw_args={"dtype": kind})


def written(column: CategoryColumn, null: int | None) -> dict[str, int]:
    """Return, of every way in which Python may write a category, which feature it is; ``null`` is
    that of a null, None = none. Of 7 in a column with nulls pandas makes 7.0."""
    places = {} if null is None else dict.fromkeys(MISSING, null)
    known = column.categories or ()
    for k, value in [*enumerate(known), *((len(known), value) for value in column.rare)]:
        ways = WRITTEN.get(value, [value, f"{value}.0"] if _whole(value) else [value])
        places |= dict.fromkeys(ways, k)
    return places


def _whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def _text(column: TextColumn) -> tuple[Any, Features]:
    from sklearn.feature_extraction.text import (
        HashingVectorizer,
        TfidfTransformer,
        TfidfVectorizer,
    )
    from sklearn.pipeline import make_pipeline

    words: list[str] | str | None = list(column.stop_words) or None
    norm = None if column.norm == "none" else column.norm
    how: dict[str, Any] = {
        "analyzer": column.analyzer, "ngram_range": column.ngram_range,
        "lowercase": column.lowercase, "token_pattern": column.token_pattern,
        "strip_accents": None if column.strip_accents == "none" else column.strip_accents,
        "stop_words": "english" if words == ["english"] else words, "binary": column.binary,
    }  # fmt: skip
    weighted: dict[str, Any] = {"use_idf": column.tfidf, "sublinear_tf": column.sublinear_tf}
    features = np.arange(column.width)
    if column.hash_bits is None:
        vocabulary = list(column.vocabulary or ())
        vectors = TfidfVectorizer(vocabulary=vocabulary, norm=norm, **how, **weighted).fit([""])
        vectors.vocabulary = None  # once is enough
        if column.tfidf:
            vectors.idf_ = column.idf
        return vectors, features
    plain = not (column.tfidf or column.sublinear_tf)
    hashed = HashingVectorizer(
        n_features=column.width, alternate_sign=column.alternate_sign,
        norm=norm if plain else None, **how,
    )  # fmt: skip
    if plain:
        return hashed, features
    weights = TfidfTransformer(norm=norm, **weighted)
    weights.fit(sparse.csr_array((1, column.width), dtype=np.float64))
    if column.tfidf:
        weights.idf_ = column.idf
    return make_pipeline(hashed, weights), features
