"""Rows in memory as a model scores them: matrices by position; frames, records and tokens by name.

Values stay float64 as given, where shards are rounded to float32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.feature_names import Hashing, Vocabulary
from streamtron.core.rows import Rows
from streamtron.core.text import some
from streamtron.model.validation import HUGE

if TYPE_CHECKING:
    from streamtron.data.formats.recipe import Recipe
    from streamtron.model.linear_model import LinearModel

Kind = Literal["numbers", "records", "tokens", "documents", "empty"]
"""What the rows of a list are; "empty" where no row says it."""


def rows_of(model: LinearModel, X: Any) -> sparse.csr_array:
    """Return rows as a CSR matrix whose column j meets ``weights[j]``: ``decision_function``."""
    if hasattr(X, "collect_batches"):  # a LazyFrame of polars
        X = X.collect()
    names = _frame_names(X)
    kind, rows = _listed(X) if names is None else ("numbers", [])
    named = kind in ("records", "tokens") or (kind == "empty" and model.namer is not None)
    if model.recipe is not None and (names is not None or kind in ("documents", "records")):
        return _by_recipe(model, model.recipe, X if names is not None else rows, kind, names)
    if kind == "documents":
        raise DataError(
            f"X: text, {rows[0]!r:.40}. The model does not say how text becomes features. Give "
            "lists of tokens, as the rows that it was fitted on had them."
        )
    if named and model.reading.get("layout") != "columns":
        return _named(model, rows)
    if named:
        return _checked(model, _records(model, rows))
    return _checked(model, X if names is None else _frame(model, X, names))


def _checked(model: LinearModel, X: Any) -> sparse.csr_array:
    if np.ma.is_masked(X):
        raise DataError("X: values that are masked. Remove or fill them.")
    try:
        matrix: Any = X if sparse.issparse(X) else np.asarray(X)
    except ValueError as error:
        raise DataError(f"X: rows of unequal lengths ({error}). Give a matrix.") from error
    if matrix.ndim != 2 or matrix.shape[1] != model.columns or matrix.dtype.kind not in "biuf":
        raise DataError(
            f"X: {matrix.dtype} of shape {matrix.shape}, but the model wants numbers of shape "
            f"(rows, {model.columns}). Give a matrix with one column a weight."
        )
    # a CSR product sums in one thread and in one order: dense X must not go through BLAS
    csr = sparse.csr_array(matrix.astype(np.float64, copy=False))
    if not float(np.abs(csr.data).max(initial=0)) <= HUGE:  # as a nan is not
        raise DataError(
            f"X: holds nan or inf, or a value beyond {HUGE:g}. Values must be finite; remove, fill "
            "or rescale them."
        )
    return csr


def matrix_of(model: LinearModel, rows: Rows) -> tuple[sparse.csr_array, int]:
    """Return rows of shards, and count the nonzeros beyond the model's width, which are lost."""
    start, stop = int(rows.indptr[0]), int(rows.indptr[-1])
    columns = rows.indices[start:stop].astype(np.int64) - model.index_base
    if len(columns) and columns.min() < 0:
        raise DataError(
            "column 0 in rows that the model reads as 1-based. "
            "Give rows numbered as those the model was fitted on."
        )
    known = columns < model.columns
    out_of_range = len(known) - int(np.count_nonzero(known))
    values, indptr = rows.values[start:stop], rows.indptr - start
    if out_of_range:
        values, columns = values[known], columns[known]
        indptr = np.concatenate(([0], np.cumsum(known)))[indptr]
    shape = len(indptr) - 1, model.columns
    return sparse.csr_array((values, columns, indptr), shape=shape), out_of_range


def unseen_columns(model: LinearModel, rows: Rows) -> tuple[str, ...]:
    """Return the columns of a table in which rows of shards have categories that the model's recipe
    has not counted; see ``Recipe.rows_of``."""
    if model.recipe is None:
        return ()
    columns = rows.indices[rows.indptr[0] : rows.indptr[-1]]
    unseen = np.unique(columns[columns >= model.recipe.width]) - model.recipe.width
    return tuple(model.recipe.names[k] for k in unseen.tolist())


def namer_of(reading: Mapping[str, Any]) -> Vocabulary | Hashing | None:
    """Return what maps names of features to columns; None where features are numbered."""
    key = "features" if reading.get("layout") == "columns" else "vocabulary"
    if names := reading.get(key):
        return Vocabulary(tuple(names))
    bits = reading.get("hash_bits")
    return None if bits is None else Hashing(bits, reading.get("hash_seed", 0))


def _listed(X: Any) -> tuple[Kind, list[Any]]:
    """Return the kind of rows that a list holds, and the rows."""
    if isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1:
        rows = X.tolist()
    elif isinstance(X, list | tuple):
        rows = list(X)
    elif hasattr(X, "to_list") or hasattr(X, "to_pylist"):  # a column of a data frame
        rows = X.to_list() if hasattr(X, "to_list") else X.to_pylist()
    else:
        return "numbers", []
    kinds = sorted({_kind(row) for row in rows} - {"empty"})
    if len(kinds) > 1:
        raise DataError(f"X: rows of {' and '.join(kinds)}. Give rows of one kind.")
    return kinds[0] if kinds else "empty" if rows else "numbers", rows


def _kind(row: Any) -> Kind:
    if isinstance(row, str):
        return "documents"
    if isinstance(row, Mapping):
        return "records"
    if isinstance(row, list | tuple | set | frozenset | np.ndarray):
        first = next(iter(row), None)
        return "empty" if first is None else "tokens" if isinstance(first, str) else "numbers"
    return "numbers"


def _by_recipe(
    model: LinearModel, recipe: Recipe, rows: Any, kind: Kind, names: list[Any] | None
) -> sparse.csr_array:
    """Return documents, records or a data frame as the model's recipe makes rows of them."""
    columns, documents = recipe.names, [c.name for c in recipe.columns if c.KIND == "text"]
    if names is not None:
        by_name = {name: rows[name] for name in columns if name in names}
    elif kind == "documents":
        by_name = {documents[0]: rows} if documents else {}
    else:
        by_name = {name: [row[name] for row in rows if name in row] for name in columns}
    for name in columns:
        if name not in by_name or len(by_name[name]) < len(rows):
            raise DataError(
                f"X: a row has no {name!r}. The model's features are made of {some(columns)}: give "
                "records, {name: value}, or a data frame with these columns."
            )
    made = recipe.rows(by_name)[:, : model.columns]  # later ones weigh 0
    return sparse.csr_array(made, dtype=np.float64)


def _frame_names(X: Any) -> list[Any] | None:
    """Return the columns' names of a data frame of pandas or polars, or a table of Arrow."""
    if hasattr(X, "column_names"):  # Arrow, whose ``columns`` are arrays
        return list(X.column_names)
    return list(X.columns) if hasattr(X, "columns") else None


def _frame(model: LinearModel, X: Any, given: list[Any]) -> NDArray[Any]:
    """Return the columns of a data frame in the order of the model's features."""
    if not model.feature_names:
        if model.reading.get("hash_bits") is not None:
            raise DataError(
                "X: a data frame, and the model hashes names of features. Give a list of records, "
                "{name: value}, or of lists of tokens."
            )
        if any(isinstance(name, str) for name in given):
            raise DataError(
                f"X: a data frame with columns {some(given)}, and the model's features have no "
                "names. Give a matrix whose column j is the feature of weights[j]."
            )
        return np.asarray(X)
    _check_names(model, given, "X")
    features = model.feature_names[: model.columns]  # later ones never occurred, and weigh 0
    columns = []
    for name in features:
        try:
            column = np.asarray(X[name])
        except (ValueError, NotImplementedError, OverflowError, LookupError) as error:
            raise DataError(f"X: column {name!r} ({error}). Wanted are numbers.") from error
        if column.dtype.kind not in "biuf":
            raise DataError(f"X: column {name!r} holds {column.dtype}. Wanted are numbers.")
        columns.append(column.astype(np.float64))
    return np.column_stack(columns) if columns else np.empty((len(X), 0))


def _records(model: LinearModel, rows: Sequence[Any]) -> NDArray[np.float64]:
    """Return records of a model whose features are columns of a table: each has all of them."""
    features, names = model.feature_names[: model.columns], set(model.feature_names)
    beside = _beside(model)
    matrix = np.empty((len(rows), len(features)))
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(
                f"X, row {number}: {row!r:.60}. The model's features are columns of numbers. Give "
                "records, {name: value}."
            )
        if row.keys() - beside != names:
            _check_names(model, row, f"X, row {number}")
        matrix[number] = [_number(row[name], name, number) for name in features]
    return matrix


def _beside(model: LinearModel) -> set[Any]:
    """Return the names of the columns of labels and weights, which are no features."""
    return {model.reading.get("label"), model.reading.get("weight")} - {*model.feature_names}


def _check_names(model: LinearModel, given: Iterable[Any], where: str) -> None:
    """Refuse names that are not, each once, those of the model's features. Those of its columns of
    labels and weights may be there too."""
    features, counts = model.feature_names, Counter(iter(given))
    known = {*features, *_beside(model)}
    for wrong, names in (
        ("has not", [name for name in features if name not in counts]),
        ("has, and the model does not know,", [name for name in counts if name not in known]),
        ("has twice", [name for name in counts if counts[name] > 1]),
    ):
        if names:
            raise DataError(
                f"{where}: {wrong} {some(names)}. Give the features of the model, as "
                "model.feature_names lists them, in any order."
            )


def _named(model: LinearModel, rows: Sequence[Any]) -> sparse.csr_array:
    """Return rows of tokens, each of which counts 1, or of records, {name: value}, by the model's
    vocabulary or hash. A name without a column weighs 0; values of one column are added up."""
    namer = model.namer
    if namer is None:
        raise DataError(
            f"X: rows with names, {rows[0]!r:.60}, and the model's features have none. Give a "
            f"matrix of shape (rows, {model.columns})."
        )
    lengths = [len(row) for row in rows]
    names = [name for row in rows for name in row]
    values = np.ones(len(names))
    of_row = np.repeat(np.arange(len(rows)), lengths)
    for at, name in enumerate(names):
        if not isinstance(name, str):
            raise DataError(f"X, row {of_row[at]}: the name {name!r:.60}. A name is text.")
    if any(isinstance(row, Mapping) for row in rows):
        pairs = enumerate(row.items() if isinstance(row, Mapping) else () for row in rows)
        values[:] = [_number(value, name, k) for k, row in pairs for name, value in row]
    columns = namer.columns(names)
    known = (columns >= 0) & (columns < model.columns)
    of_row, columns, values = of_row[known], columns[known], values[known]
    order = np.lexsort((values, columns, of_row))  # a sum does not depend on the order of names
    places, shape = (of_row[order], columns[order]), (len(rows), model.columns)
    cells = sparse.coo_array((values[order], places), shape=shape)
    return sparse.csr_array(cells)  # with sorted columns, those of one cell added up


def _number(value: Any, name: str, row: int) -> float:
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, bool | int | float) and abs(number) <= HUGE:
        return float(number)
    raise DataError(
        f"X, row {row}: {name!r} is {value!r:.60}. Wanted is a finite number, at most {HUGE:g} "
        "in size."
    )


SPARSE = 8
"""Columns a weight that is not 0, from which on the weights of many classes stay sparse in memory:
a product with rows is then as fast, and takes a fifth of the memory."""


def stays_sparse(model: LinearModel) -> bool:
    """Return whether a model multiplies rows by its nonzero weights alone."""
    kept = model.sparse_weights
    return np.ndim(model.bias) > 0 and SPARSE * kept.nnz <= kept.shape[0] * kept.shape[1]


def labels_of(model: LinearModel, decisions: NDArray[np.float64]) -> NDArray[Any]:
    """Return the class of every row by its decisions; of a multilabel model a tuple of classes, in
    order; of regression the decisions, which are the numbers predicted."""
    if model.regression:
        return decisions
    if model.kind == "multilabel":
        sets = (tuple(compress(model.classes, row)) for row in (decisions > 0).tolist())
        return np.fromiter(sets, dtype=object, count=len(decisions))
    dtype = object if isinstance(model.classes[0], str) else None
    codes = decisions.argmax(axis=1) if decisions.ndim == 2 else (decisions > 0).astype(np.intp)
    return np.asarray(np.array(model.classes, dtype=dtype)[codes])


def chosen_classes(model: LinearModel, decisions: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which of many classes are predicted, bool of shape (rows, K)."""
    if model.kind == "multilabel":
        return decisions > 0.0
    highest = np.argmax(decisions, axis=1, keepdims=True)
    return np.asarray(highest == np.arange(len(model.classes)))


AT_ONCE = 1 << 20
"""Decisions in memory at a time, where only the highest of each row are wanted."""


def highest(
    model: LinearModel, X: sparse.csr_array, k: int, decide: Callable[[Any], NDArray[np.float64]]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the places of the k highest decisions of every row, and these; ``decide`` : computes
    those of some rows. See ``LinearModel.predict_top``."""
    most = len(model.classes)
    if model.kind not in ("multiclass", "multilabel"):
        raise SettingsError(
            f"the model is of {'numbers' if model.regression else 'two classes'}, and has one "
            "decision a row: there are no highest ones. Leave top out."
        )
    if type(k) is bool or not isinstance(k, (int, np.integer)) or not 1 <= k <= most:
        raise SettingsError(f"top is {k!r}, and the model has {most} classes: give 1 to {most}.")
    codes, decisions = np.empty((X.shape[0], k), np.intp), np.empty((X.shape[0], k))
    step = max(1, AT_ONCE // most)
    for start in range(0, X.shape[0], step):
        some = slice(start, start + step)
        every = decide(X[some])
        codes[some] = np.argsort(-every, axis=1, kind="stable")[:, :k]
        decisions[some] = np.take_along_axis(every, codes[some], axis=1)
    return codes, decisions
