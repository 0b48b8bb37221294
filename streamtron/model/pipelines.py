"""Make a pipeline of scikit-learn of a recipe: raw rows in, the features of the model out."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from streamtron.core.errors import SettingsError
from streamtron.data.formats.category_column import CategoryColumn
from streamtron.data.formats.number_column import NumberColumn
from streamtron.data.formats.recipe import Recipe
from streamtron.data.formats.recipe_column import Column
from streamtron.data.formats.text_column import TextColumn

if TYPE_CHECKING:
    from streamtron.model.linear_model import LinearModel

Features = NDArray[np.int64]

WRITTEN = {"true": ["true", "True"], "false": ["false", "False"]}
"""How Python writes a category that is none of strings."""

MISSING = ("None", "nan", "<NA>", "NaT")
"""How Python writes a null."""


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
    wide = sparse.csr_array(model.sparse_weights, copy=True)
    wide.resize((wide.shape[0], max(recipe.width, wide.shape[1])))
    weights = wide.tocsc()[:, places].tocsr()
    reading = {"index_base": 0, "multilabel": model.reading.get("multilabel", False)}
    moved = model.but(weights=weights, reading=reading, certificate=None, offsets=None)
    transformers = [transformer for transformer, _ in made]
    [first, *others] = recipe.columns
    if isinstance(first, TextColumn) and not others:
        return transformers[0], moved
    return _side_by_side(recipe, transformers), moved


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
         column.name if isinstance(column, TextColumn) else [column.name])
        for column, transformer in zip(recipe.columns, transformers, strict=True)
    ]  # fmt: skip
    example = {c.name: [0.0 if isinstance(c, NumberColumn) else ""] for c in recipe.columns}
    return ColumnTransformer(columns).fit(frame(example))


def _transformer(column: Column) -> tuple[Any, Features]:
    """Return a fitted transformer of a column, and which of our features each of its own is."""
    makers: dict[type[Column], Callable[[Any], tuple[Any, Features]]] = {
        NumberColumn: _number, CategoryColumn: _category, TextColumn: _text
    }  # fmt: skip
    if type(column) not in makers:
        raise SettingsError(
            f"format sklearn: column {column.name!r} is a {column.KIND}, and scikit-learn has no "
            "transformer of these. Make its numbers columns of the table, or export as json."
        )
    return makers[type(column)](column)


def _refuse(column: Column, what: str) -> SettingsError:
    return SettingsError(
        f"format sklearn: column {column.name!r} has {what}, for which scikit-learn has no "
        "transformer of one column. Export as json, or keep the streamtron model."
    )


def _number(column: NumberColumn) -> tuple[Any, Features]:
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer, StandardScaler

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
        scaled = StandardScaler().fit([[0.0], [1.0]])
        divisor = column.divisor or 1.0
        scaled.mean_, scaled.scale_ = np.array([column.center]), np.array([divisor])
        scaled.var_ = scaled.scale_**2
        steps.append(scaled)
    if column.null == "column":
        known = SimpleImputer(strategy="constant", fill_value=0.0, add_indicator=True)
        steps.append(known.fit([[0.0], [np.nan]]))
    return make_pipeline(*steps), np.arange(column.width)


def _category(column: CategoryColumn) -> tuple[Any, Features]:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    if column.hash_bits is not None:
        raise _refuse(column, "categories that are hashed")
    known = column.categories or ()
    features = {name: k for k, value in enumerate(known) for name in _written(value)}
    features |= {name: len(known) for value in column.rare for name in _written(value)}
    if column.null == "column":
        features = dict.fromkeys(MISSING, column.width - 1) | features
    names = sorted(features)
    encoder = OneHotEncoder(categories=[np.array(names)], handle_unknown="ignore")
    encoder.fit(np.array([[names[0]]]))
    return make_pipeline(_as(str), encoder), np.array([features[name] for name in names])


def _as(kind: type) -> Any:
    """Return a transformer of a frame to an array of this kind."""
    from sklearn.preprocessing import FunctionTransformer

    return FunctionTransformer(np.asarray, kw_args={"dtype": kind})


def _written(category: str) -> list[str]:
    """Return how Python may write a category: of a column with nulls, pandas makes 7 of 7.0."""
    is_number = category.removeprefix("-").isdecimal()
    return WRITTEN.get(category, [category, f"{category}.0"] if is_number else [category])


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
