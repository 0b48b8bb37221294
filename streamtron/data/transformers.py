"""Transformers of scikit-learn for the columns of a table: two of our own, and the
``ColumnTransformer`` that ``--columns`` and ``--text`` name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from streamtron.core.errors import SettingsError
from streamtron.data.transform import KINDS, Kind

_DAY = 86_400.0

_HASHED_WORDS, _HASHED_CATEGORIES = 1 << 20, 1 << 18

_MOST_CATEGORIES = 10_000


class _Features(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Take a table of cells of any type, of which some may be missing."""

    def _cells(self, X: Any, *, reset: bool = False) -> NDArray[Any]:
        """Return the cells; ``reset`` : it is fitted to them."""
        if not reset:
            check_is_fitted(self)
        cells = validate_data(self, X, dtype=None, ensure_all_finite="allow-nan", reset=reset)
        return np.asarray(cells)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class DateFeatures(_Features):
    """Turn dates into features: year, month, weekday and hour one-hot, and the days since 1970.

    Years and hours are those of the dates that it is fitted to; the days have mean 0 and variance 1
    there. A date that is missing has a feature of its own.

    Parameters
    ----------
    X : in ``fit`` and ``transform``: datetime64, text such as 2026-01-31, or seconds since 1970;
        shape (rows, columns).

    Examples
    --------
    >>> dates = np.array([["2026-01-30"], ["2026-02-01"]], "datetime64[s]")
    >>> DateFeatures().fit(dates).get_feature_names_out(["when"]).tolist()[:3]
    ['when_days', 'when_missing', 'when_year_2026']
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn years, hours and the scale of the days."""
        seconds = _seconds(self._cells(X, reset=True))
        self.mean_, self.scale_, self.levels_ = [], [], []
        for column in seconds.T:
            known = column[~np.isnan(column)]
            days = known / _DAY
            deviation = float(days.std()) if len(days) else 0.0
            self.mean_.append(float(days.mean()) if len(days) else 0.0)
            self.scale_.append(deviation if deviation > 1e-9 else 1.0)
            self.levels_.append({name: sorted(set(x)) for name, x in _parts(known).items()})
        return self

    def transform(self, X: Any) -> sparse.csr_array:
        """Return the features, float64, sparse."""
        blocks = []
        for j, column in enumerate(_seconds(self._cells(X)).T):
            missing = np.isnan(column)
            filled = np.where(missing, 0.0, column)
            days = np.where(missing, 0.0, (filled / _DAY - self.mean_[j]) / self.scale_[j])
            blocks.append(sparse.csr_array(np.stack([days, missing], axis=1)))
            for name, values in _parts(filled).items():
                at = np.array([[*self.levels_[j][name]]], np.int64)
                blocks.append(sparse.csr_array((values[:, None] == at) & ~missing[:, None]))
        return sparse.csr_array(sparse.hstack(blocks, format="csr"), dtype=np.float64)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return ``when_days``, ``when_year_2026`` and so on."""
        check_is_fitted(self)
        names = []
        for column, levels in zip(
            _check_feature_names_in(self, input_features), self.levels_, strict=True
        ):
            names += [f"{column}_days", f"{column}_missing"]
            names += [f"{column}_{part}_{x}" for part, values in levels.items() for x in values]
        return np.array(names, dtype=object)


class TagFeatures(_Features):
    """Turn lists of tags into one feature a tag, 1 where the list has it.

    A tag that none of the lists had to which it is fitted weighs nothing.

    Parameters
    ----------
    min_frequency : lists that a tag occurs in, at least.
    X : in ``fit`` and ``transform``: cells that are lists of tags, or text in which they stand
        between commas, semicolons, bars or blanks; shape (rows, columns).

    Examples
    --------
    >>> lists = np.empty((2, 1), object)
    >>> lists[:, 0] = [["red", "new"], ["new"]]
    >>> TagFeatures().fit_transform(lists).toarray().tolist()
    [[1.0, 1.0], [1.0, 0.0]]
    """

    def __init__(self, min_frequency: int = 1) -> None:
        self.min_frequency = min_frequency

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the tags."""
        X, self.tags_ = self._cells(X, reset=True), []
        for j in range(X.shape[1]):
            counts = Counter(tag for cell in X[:, j] for tag in _tags(cell))
            self.tags_.append(sorted(t for t in counts if counts[t] >= self.min_frequency))
        return self

    def transform(self, X: Any) -> sparse.csr_array:
        """Return the features, float64, sparse."""
        X = self._cells(X)
        rows, places, start = list[int](), list[int](), 0  # as 32-bit numbers: LinearSVC asks so
        for j, tags in enumerate(self.tags_):
            place = {tag: start + k for k, tag in enumerate(tags)}
            for row, cell in enumerate(X[:, j]):
                known = [place[tag] for tag in _tags(cell) if tag in place]
                rows += [row] * len(known)
                places += known
            start += len(tags)
        at = np.array(rows, np.int32), np.array(places, np.int32)
        return sparse.csr_array((np.ones(len(rows)), at), (len(X), start))

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return ``tags_red`` and so on."""
        check_is_fitted(self)
        columns = _check_feature_names_in(self, input_features)
        pairs = zip(columns, self.tags_, strict=True)
        return np.array([f"{column}_{tag}" for column, tags in pairs for tag in tags], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        return tags


def _seconds(X: NDArray[Any]) -> NDArray[np.float64]:
    """Return dates as seconds since 1970; nan where there is none."""
    if X.dtype.kind == "O" and (odd := [x for x in X.ravel() if isinstance(x, dict | list)]):
        raise TypeError(f"argument must be a date, a string or a number, not {odd[0]!r:.60}")
    if X.dtype.kind == "O" and not any(isinstance(x, str) for x in X.ravel()):
        X = X.astype(np.float64)
    if X.dtype.kind in "iufb":
        return X.astype(np.float64)
    dates = X.astype("datetime64[us]")
    seconds: NDArray[np.float64] = dates.astype(np.int64) / 1e6
    seconds[np.isnat(dates)] = np.nan
    return seconds


def _parts(seconds: NDArray[np.float64]) -> dict[str, NDArray[np.int64]]:
    """Return year, month, weekday (0 is Monday) and hour."""
    most = 9e9  # within the years that datetime64 of seconds has, and leaves room for
    dates = np.clip(seconds, -most * 6, most * 20).astype(np.int64).astype("datetime64[s]")
    months = dates.astype("datetime64[M]").astype(np.int64)
    days = dates.astype("datetime64[D]").astype(np.int64)
    return {
        "year": months // 12 + 1970,
        "month": months % 12 + 1,
        "weekday": (days + 3) % 7,
        "hour": dates.astype("datetime64[h]").astype(np.int64) % 24,
    }


def _tags(cell: Any) -> set[str]:
    if isinstance(cell, str):
        return {*re.split(r"[\s,;|]+", cell)} - {""}
    if cell is None or (isinstance(cell, float) and np.isnan(cell)):
        return set()
    if isinstance(cell, dict):
        raise TypeError(f"argument must be a list, a string or a number, not {cell!r:.60}")
    is_list = isinstance(cell, Iterable)
    return {str(tag) for tag in cell if tag is not None} if is_list else {str(cell)}


class Spec(NamedTuple):
    """A column and its kind; ``hashed`` : of a category or a text, no names are kept."""

    name: str
    kind: Kind
    hashed: bool = False

    def __str__(self) -> str:
        return f"{self.name}:{self.kind}{':hash' * self.hashed}"


def parse_spec(words: str) -> Spec:
    """Parse ``NAME:KIND`` or ``NAME:KIND:hash``. SettingsError: it is none.

    Examples
    --------
    >>> parse_spec("note:text:hash")
    Spec(name='note', kind='text', hashed=True)
    """
    named = words.removesuffix(":hash")
    name, _, kind = named.rpartition(":")
    hashed = named != words
    if not name or kind not in KINDS or (hashed and kind not in ("category", "text")):
        raise SettingsError(
            f"columns: {words!r:.80}: expected NAME:KIND, where KIND is {', '.join(KINDS)}, "
            "category:hash or text:hash."
        )
    return Spec(name, kind, hashed)


def specs_of(columns: Iterable[str] | None, text: str | None) -> list[Spec]:
    """Return the columns that settings name, each once; [] where they name none."""
    name = None if text is None else text.removesuffix(":hash")
    specs = [] if name is None else [Spec(name, "text", name != text)]
    specs += map(parse_spec, columns or ())
    times = Counter(spec.name for spec in specs)
    if twice := [name for name in times if times[name] > 1]:
        raise SettingsError(f"columns: {twice[0]!r:.60} twice. Name each column once.")
    return specs


def column_transformer(specs: Sequence[Spec]) -> ColumnTransformer:
    """Build what turns columns into features: of numbers and of categories one part each, of
    the others one a column."""
    parts: list[tuple[str, Any, Any]] = []
    for kind, part in (("number", _of_numbers()), ("category", _of_categories())):
        if names := [spec.name for spec in specs if spec.kind == kind and not spec.hashed]:
            parts.append((kind, part, names))
    for spec in specs:
        name = f"{spec.kind}:{spec.name.replace('__', '_')}"
        if spec.kind == "date":
            parts.append((name, DateFeatures(), [spec.name]))
        elif spec.kind == "list":
            parts.append((name, TagFeatures(), [spec.name]))
        elif spec.kind == "text":
            words = HashingVectorizer(n_features=_HASHED_WORDS)
            parts.append((name, words if spec.hashed else TfidfVectorizer(), spec.name))
        elif spec.kind == "category" and spec.hashed:
            parts.append((name, _of_hashed_categories(), spec.name))
    return ColumnTransformer(parts, sparse_threshold=1.0)


def _of_numbers() -> Pipeline:
    imputer = SimpleImputer(add_indicator=True, keep_empty_features=True)
    return Pipeline([("impute", imputer), ("scale", StandardScaler())])


def _of_categories() -> OneHotEncoder:
    return OneHotEncoder(
        handle_unknown="infrequent_if_exist", min_frequency=2, max_categories=_MOST_CATEGORIES
    )


def _of_hashed_categories() -> HashingVectorizer:
    """Return what hashes a whole cell as one word."""
    return HashingVectorizer(
        n_features=_HASHED_CATEGORIES,
        token_pattern=r"(?s)^.+$",
        lowercase=False,
        norm=None,
        alternate_sign=False,
    )
