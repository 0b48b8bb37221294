"""Rows in memory as a model scores them: matrices by position; frames, records and tokens by name.

Values stay float64 as given, where shards are rounded to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, compress
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.feature_names import Hashing, Vocabulary
from streamtron.core.rows import Rows
from streamtron.core.text import some
from streamtron.model.calibration import probabilities_of
from streamtron.model.validation import HUGE

if TYPE_CHECKING:
    from streamtron.data.transform import Transformer
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
    if model.transformer is not None and (names is not None or kind in ("documents", "records")):
        return _transformed(model.transformer, X, names, rows, kind)
    if kind == "documents":
        raise DataError("X: text, and the model was not fitted on text. Give lists of tokens.")
    if named and model.reading.get("layout") != "columns":
        return _named(model, rows)
    is_frame = names is not None and (
        model.feature_names != () or any(isinstance(name, str) for name in names)
    )
    if named or is_frame:
        X = _table(model, X, names, rows, kind)
    return _checked(model, X)


def _checked(model: LinearModel, X: Any) -> sparse.csr_array:
    if np.ma.is_masked(X):
        raise DataError("X: values that are masked. Remove or fill them.")
    try:
        matrix: Any = X if sparse.issparse(X) else np.asarray(X)
    except ValueError as error:
        raise DataError(f"X: rows of unequal lengths ({error}). Give a matrix.") from error
    if matrix.ndim != 2 or matrix.shape[1] != model.columns or matrix.dtype.kind not in "biuf":
        raise DataError(
            f"X: {matrix.dtype} of shape {matrix.shape}, expected numbers of shape "
            f"(rows, {model.columns})."
        )
    # a CSR product sums in one thread and in one order: dense X must not go through BLAS
    csr = sparse.csr_array(matrix.astype(np.float64, copy=False))
    if not float(np.abs(csr.data).max(initial=0)) <= HUGE:  # as a nan is not
        raise DataError(f"X: holds nan or inf, or a value beyond {HUGE:g}. Remove or rescale it.")
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
    values, indptr = rows.spread(), rows.indptr - start
    if out_of_range:
        values, columns = values[known], columns[known]
        indptr = np.concatenate(([0], np.cumsum(known)))[indptr]
    shape = len(indptr) - 1, model.columns
    return sparse.csr_array((values, columns, indptr), shape=shape), out_of_range


def namer_of(reading: Mapping[str, Any]) -> Vocabulary | Hashing | None:
    """Return what maps names of features to columns; None where features are numbered."""
    key = "features" if reading.get("layout") == "columns" else "vocabulary"
    if names := reading.get(key):
        return Vocabulary(tuple(names))
    bits = reading.get("hash_bits")
    return None if bits is None else Hashing(bits)


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


def _frame_names(X: Any) -> list[Any] | None:
    """Return the columns' names of a data frame of pandas or polars, or a table of Arrow."""
    if hasattr(X, "column_names"):  # Arrow, whose ``columns`` are arrays
        return list(X.column_names)
    return list(X.columns) if hasattr(X, "columns") else None


def _columns(
    X: Any, names: list[Any] | None, rows: list[Any], wanted: Sequence[str]
) -> dict[str, Any]:
    """Return the wanted columns of a data frame, which has ``names``, or of records."""
    if names is not None:
        columns = {name: X[name] for name in wanted if name in names}
    else:
        here = (name for name in wanted if all(name in row for row in rows))
        columns = {name: [row[name] for row in rows] for name in here}
    if missing := [name for name in wanted if name not in columns]:
        raise DataError(f"X: no column {some(missing)}. Give each row {some(wanted)}.")
    return columns


def _transformed(
    transformer: Transformer, X: Any, names: list[Any] | None, rows: list[Any], kind: Kind
) -> sparse.csr_array:
    """Return documents, records or a data frame as the model's transformer makes rows of them."""
    from streamtron.data.formats.layouts import Spot

    return transformer.made(_batch(transformer, X, names, rows, kind), Spot("X", "", 0)).rows


def _batch(
    transformer: Transformer, X: Any, names: list[Any] | None, rows: list[Any], kind: Kind
) -> Any:
    """Return the columns that a transformer takes, as Arrow."""
    from streamtron.data.transform import batch_of

    if kind == "documents":
        texts = [name for name, kind in transformer.inputs if kind in ("text", "documents")]
        rows = [{texts[0] if texts else "": row} for row in rows]
    return batch_of(_columns(X, names, rows, transformer.columns))


def raw_columns(transformer: Transformer, X: Any) -> dict[str, Any]:
    """Return the columns that a transformer takes, in the types that it takes."""
    from streamtron.data.formats.layouts import Spot
    from streamtron.data.transform import frame_of

    names = _frame_names(X)
    kind, rows = _listed(X) if names is None else ("numbers", [])
    batch = _batch(transformer, X, names, rows, kind)
    frame = frame_of(batch, transformer.inputs, Spot("X", "", 0))
    return {transformer.columns[0]: frame} if transformer.takes_documents else dict(frame.items())


def _table(
    model: LinearModel, X: Any, names: list[Any] | None, rows: list[Any], kind: Kind
) -> NDArray[Any]:
    """Return a data frame or records, with the columns in the order of the model's features.

    The columns of labels and weights may be there too.
    """
    features = model.feature_names
    if not features:
        raise DataError(
            "X: named columns, and the model's features have no names of columns. Give a matrix, "
            "or where names are hashed records or lists of tokens."
        )
    if kind == "tokens":
        raise DataError("X: lists of names, and the model has columns of numbers. Give records.")
    given = list(dict.fromkeys(chain(*rows))) if names is None else names
    beside = {model.reading.get("label"), model.reading.get("weight")}
    unknown = [name for name in given if name not in features and name not in beside]
    if unknown or len(set(given)) < len(given):
        what = f"unknown columns {some(unknown)}" if unknown else "two columns of one name"
        raise DataError(f"X: {what}. Give those of model.feature_names, in any order.")
    columns, arrays = _columns(X, names, rows, features), []
    for name in features[: model.columns]:  # later ones never occurred, and weigh 0
        try:
            array = np.asarray(columns[name])
        except (ValueError, NotImplementedError, OverflowError) as error:
            raise DataError(f"X: column {name!r} ({error}), expected numbers.") from error
        if array.dtype.kind not in "biuf" or array.ndim != 1:
            raise DataError(f"X: column {name!r} holds {array.dtype}, expected numbers.")
        arrays.append(array.astype(np.float64))
    return np.column_stack(arrays) if arrays else np.empty((len(X), 0))


def _named(model: LinearModel, rows: Sequence[Any]) -> sparse.csr_array:
    """Return rows of tokens, each of which counts 1, or of records, {name: value}, by the model's
    vocabulary or hash. A name without a column weighs 0; values of one column are added up."""
    if model.namer is None:
        raise DataError(
            f"X: rows with names, and the model's features have none. Give a matrix of shape "
            f"(rows, {model.columns})."
        )
    pairs = [pair for row in rows for pair in _pairs(row)]
    of_row = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    names = [name for name, _ in pairs]
    if odd := [name for name in names if not isinstance(name, str)]:
        raise DataError(f"X: the name {odd[0]!r:.60}, expected text.")
    values = np.array([_number(value, name) for name, value in pairs], np.float64)
    columns = model.namer.columns(names)
    known = (columns >= 0) & (columns < model.columns)
    of_row, columns, values = of_row[known], columns[known], values[known]
    order = np.lexsort((values, columns, of_row))  # a sum does not depend on the order of names
    places, shape = (of_row[order], columns[order]), (len(rows), model.columns)
    cells = sparse.coo_array((values[order], places), shape=shape)
    return sparse.csr_array(cells)  # with sorted columns, those of one cell added up


def _pairs(row: Any) -> Iterable[tuple[Any, Any]]:
    return row.items() if isinstance(row, Mapping) else ((name, 1.0) for name in row)


def _number(value: Any, name: str) -> float:
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, bool | int | float) and abs(number) <= HUGE:
        return float(number)
    raise DataError(f"X: {name!r} is {value!r:.60}, expected a finite number of at most {HUGE:g}.")


SPARSE = 8
"""Columns a weight that is not 0, from which on the weights of many classes stay sparse in memory:
a product with rows is then as fast, and takes a fifth of the memory."""


def stays_sparse(model: LinearModel) -> bool:
    """Return whether a model multiplies rows by its nonzero weights alone."""
    kept = model.sparse_weights
    return np.ndim(model.bias) > 0 and SPARSE * kept.nnz <= kept.shape[0] * kept.shape[1]


def labels_of(model: LinearModel, decisions: NDArray[np.float64]) -> NDArray[Any]:
    """Return the class of every row by its decisions; of a multilabel model a tuple of classes, in
    order; of regression the number predicted: the decision z, or e^z."""
    if model.regression:
        return means_of(model, decisions)
    chosen = chosen_classes(model, decisions)
    if model.kind == "multilabel":
        sets = (tuple(compress(model.classes, row)) for row in chosen.tolist())
        return np.fromiter(sets, dtype=object, count=len(decisions))
    dtype = object if isinstance(model.classes[0], str) else None
    codes = chosen.argmax(axis=1) if decisions.ndim == 2 else chosen.astype(np.intp)
    return np.asarray(np.array(model.classes, dtype=dtype)[codes])


def means_of(model: LinearModel, decisions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the numbers that a model of regression predicts by its decisions."""
    if not model.log_link:
        return decisions
    with np.errstate(over="ignore", under="ignore"):  # who measures them refuses infinity
        return np.exp(decisions)


def chosen_classes(model: LinearModel, decisions: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which classes are predicted, bool of the shape of the decisions: of two classes
    whether it is the larger one. A calibrated model predicts the most probable class, and of
    several labels those whose probability is above ½."""
    values = _ranking(model, decisions)
    if model.kind == "multiclass":
        return np.asarray(values.argmax(axis=1)[:, None] == np.arange(len(model.classes)))
    return values > (0.0 if model.calibration is None else 0.5)


def _ranking(model: LinearModel, decisions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what ranks the classes of a row: of a calibrated model its probabilities."""
    return decisions if model.calibration is None else probabilities_of(model, decisions)


AT_ONCE = 1 << 20
"""Decisions in memory at a time, where only the highest of each row are wanted."""


def highest(
    model: LinearModel, X: sparse.csr_array, k: int, decide: Callable[[Any], NDArray[np.float64]]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the places of the k highest classes of every row, and their decisions; ``decide`` :
    computes those of some rows. See ``LinearModel.predict_top``."""
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
        codes[some] = np.argsort(-_ranking(model, every), axis=1, kind="stable")[:, :k]
        decisions[some] = np.take_along_axis(every, codes[some], axis=1)
    return codes, decisions
