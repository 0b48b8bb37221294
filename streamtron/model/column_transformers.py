"""Make fitted transformers of scikit-learn of the columns of a recipe."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from streamtron.core.errors import SettingsError
from streamtron.data.formats.category_column import BOOLEANS, CategoryColumn, is_whole
from streamtron.data.formats.date_column import PARTS, DateColumn
from streamtron.data.formats.list_column import ListColumn, VectorColumn
from streamtron.data.formats.number_column import NumberColumn
from streamtron.data.formats.recipe_column import REFUSED, Column
from streamtron.data.formats.text_column import TextColumn

Features = NDArray[np.int64]

TRUTHS = {"true": ["true", "True"], "false": ["false", "False"]}
"""How Python writes a boolean."""

WHOLE = (TextColumn, ListColumn, VectorColumn)
"""Columns of which a transformer takes the entries, and no frame of them."""

MISSING = ("None", "nan", "<NA>", "NaT")
"""How Python writes a null."""


def transformer(column: Column) -> tuple[Any, Features]:
    """Return a fitted transformer of a column, and which of our features each of its own is."""
    makers: dict[type[Column], Callable[[Any], tuple[Any, Features]]] = {
        NumberColumn: _number,
        CategoryColumn: _category,
        DateColumn: _date,
        TextColumn: _text,
        ListColumn: _list,
        VectorColumn: _vector,
    }
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
        is_alone = len(column.edges) == 2  # then an empty bin stands beside it: two are wanted
        edges = np.array([column.edges[0], np.inf, np.inf] if is_alone else column.edges)
        bins = len(edges) - 1
        binned = KBinsDiscretizer(bins, encode="onehot", strategy="uniform").fit([[0.0], [bins]])
        binned.bin_edges_[0] = edges
        return make_pipeline(*steps, binned), np.arange(bins) % column.width
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
    from sklearn.pipeline import make_pipeline

    if column.hash_bits is not None:
        return _hashed(column)
    if not column.width:
        raise _refuse(column, "no category")
    encoder, places = _one_hot(written(column, MISSING, _refuse))
    return make_pipeline(_as(str), encoder), places


def _one_hot(features: Mapping[str, int]) -> tuple[Any, Features]:
    """Return a fitted encoder of strings, and the feature of each of its columns."""
    from sklearn.preprocessing import OneHotEncoder

    names = sorted(features)
    encoder = OneHotEncoder(categories=[np.array(names)], handle_unknown="ignore")
    encoder.fit(np.array([[names[0]]]))
    return encoder, np.array([features[name] for name in names])


def _hashed(column: CategoryColumn) -> tuple[Any, Features]:
    """Return a hasher of ``name=value`` beside an encoder of truth values, which Python writes in
    another way: FeatureHasher takes no frame."""
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.preprocessing import FunctionTransformer

    if column.null != REFUSED:  # 7.0 is 7 beside a null, or itself a name
        raise _refuse(column, "categories that are hashed and may be null")
    codes = zip(column.codes(TRUTHS).tolist(), TRUTHS.values(), strict=True)
    encoder, places = _one_hot({way: code for code, ways in codes for way in ways})
    prefix, truths = f"{column.name}=", "|".join(chain.from_iterable(TRUTHS.values()))
    hashing = HashingVectorizer(
        token_pattern=rf"(?s)\A(?!{re.escape(prefix)}(?:{truths})\Z).*",
        lowercase=False,
        norm=None,
        alternate_sign=False,
        n_features=column.width,
    )
    named = FunctionTransformer(partial(np.add, prefix))
    rows = make_pipeline(named, FunctionTransformer(np.ravel), hashing)
    joined = make_pipeline(_as(str), make_union(encoder, rows))
    return joined, np.append(places, np.arange(column.width))


def _list(column: ListColumn) -> tuple[Any, Features]:
    """Return counters of strings and of whole numbers in lists; numpy's array of a map or of pairs
    stops them."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.pipeline import make_union

    if column.hash_bits is not None or column.null == "column":
        raise _refuse(column, "lists that are hashed or have a feature of their own for nulls")
    names, counters = _places(column), []
    numbers = {int(name): feature for name, feature in names.items() if is_whole(name)}
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


def _places(column: CategoryColumn) -> dict[str, int]:
    """Return the feature of each category that was counted."""
    known = [*(column.categories or ()), *column.rare]
    return dict(zip(known, column.codes(known).tolist(), strict=True))


def written(
    column: CategoryColumn, nulls: Sequence[str], refuse: Callable[[Column, str], SettingsError]
) -> dict[str, int]:
    """Return, of every way in which a category may be written, which feature it is; ``nulls`` are
    the ways of a null. Of 7 in a column with nulls pandas makes 7.0."""
    names = _places(column)
    taken = nulls if column.null != REFUSED else ()
    if odd := [name for name in names if name in taken or name.endswith("\0")]:
        raise refuse(column, f"the category {odd[0]!r} and a null or another written alike")
    places = dict.fromkeys(nulls, column.width - 1) if column.null == "column" else {}
    ways = [*BOOLEANS, *(f"{name}.0" for name in names)]
    places |= {way: names[name] for way in ways if (name := column.as_counted(way)) in names}
    return places | names


def _text(column: TextColumn) -> tuple[Any, Features]:
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer, TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    words: list[str] | str | None = list(column.stop_words) or None
    norm = None if column.norm == "none" else column.norm
    how: dict[str, Any] = {
        "analyzer": column.analyzer,
        "ngram_range": column.ngram_range,
        "lowercase": column.lowercase,
        "token_pattern": column.token_pattern,
        "strip_accents": None if column.strip_accents == "none" else column.strip_accents,
        "stop_words": "english" if words == ["english"] else words,
        "binary": column.binary,
    }
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
        n_features=column.width,
        alternate_sign=column.alternate_sign,
        norm=norm if plain else None,
        **how,
    )
    if plain:
        return hashed, features
    weights = TfidfTransformer(norm=norm, **weighted)
    weights.fit(sparse.csr_array((1, column.width), dtype=np.float64))
    if column.tfidf:
        weights.idf_ = column.idf
    return make_pipeline(hashed, weights), features
