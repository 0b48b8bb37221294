"""The fitted model: weights, settings and certificate; its decisions and its file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from streamtron.core.errors import DataError, FileDamaged, SettingsError
from streamtron.core.files import write_atomically
from streamtron.core.rows import Label, Rows
from streamtron.core.sealed import canonical, read_sealed, sealed_bytes, write_sealed

Kind = Literal["two classes", "multiclass", "multilabel"]

_CONTENT = ("classes", "settings", "certificate", "reading")
"""Attributes that are written as JSON."""


class Direction(NamedTuple):
    """Weights, shape (columns,), of one class against the rest: where w·x + bias > 0."""

    positive: Label
    weights: NDArray[np.float64]
    bias: float
    certificate: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, eq=False)
class LinearModel:
    """A linear classifier of two classes, or of many.

    * **Two classes:** ``classes[1]`` where w·x + bias > 0, else ``classes[0]``.
    * **Multiclass:** K ≥ 3 classes, each with weights against the rest; a row gets the class with
      the highest decision, the first of equals.
    * **Multilabel** (``reading["multilabel"]``): K ≥ 1 classes; a row gets every class whose
      decision is above 0.

    Two models are equal if their files are equal, byte for byte.

    Parameters
    ----------
    weights : float64, finite, shape (columns,) for two classes, else (K, columns);
        ``weights[…, j]`` belongs to the column that the shards number ``j + index_base``. Copied,
        made read-only, −0 becomes 0.
    bias : what is added to w·x: ρ w_bias, in the unit of a decision value; float64, shape (K,),
        where there are K rows of weights.
    classes : in rising order, all numbers, all strings or all booleans; K of them where there are
        K rows of weights.
    settings : JSON; all that determines the model besides the data.
    certificate : JSON; what is proven (``directional_margin``, ``primal_margin``, ``upper_bound``,
        ``relative_duality_gap``, ``rows_scanned`` …); None if nothing is. Of many classes see
        ``joint_certificate``.
    reading : JSON; the reader's contract. ``index_base`` (0 or 1) must be there; ``columns`` is
        filled in.

    Raises
    ------
    SettingsError : something not finite, not JSON, of another shape, or classes out of order.

    Examples
    --------
    >>> model = LinearModel(np.array([1.0, -2.0]), 0.5, (-1.0, 1.0), {}, None, {"index_base": 1})
    >>> X = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> model.decision_function(X), model.predict(X)
    (array([ 1.5, -1.5]), array([ 1., -1.]))
    """

    weights: NDArray[np.float64]
    bias: float | NDArray[np.float64]
    classes: tuple[Label, ...]
    settings: Mapping[str, Any] = field(repr=False)
    certificate: Mapping[str, Any] | None
    reading: Mapping[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        weights = _checked_weights(self.weights)
        assign = object.__setattr__
        assign(self, "weights", weights)
        assign(self, "bias", _checked_bias(self.bias, weights))
        assign(self, "settings", _plain("settings", self.settings))
        assign(self, "reading", _checked_reading(self.reading, weights))
        assign(self, "classes", _checked_classes(self.classes, self.kind, weights))
        if self.certificate is not None:
            assign(self, "certificate", _checked_certificate(self.certificate, weights))

    @property
    def kind(self) -> Kind:
        """``"two classes"``, ``"multiclass"`` or ``"multilabel"``."""
        if self.weights.ndim == 1:
            return "two classes"
        return "multilabel" if self.reading.get("multilabel") else "multiclass"

    @property
    def columns(self) -> int:
        """The model's width."""
        return int(self.weights.shape[-1])

    @property
    def index_base(self) -> int:
        """The number (0 or 1) that the shards give the column of ``weights[0]``."""
        return int(self.reading["index_base"])

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the columns, in the order of their numbers; () if they have none. The last
        ones may be beyond the model's width."""
        return feature_names(self.reading)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LinearModel):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    def directions(self) -> Iterator[Direction]:
        """Yield one direction for two classes, else one a class, in the order of ``classes``."""
        if self.weights.ndim == 1:
            yield Direction(self.classes[1], self.weights, float(self.bias), self.certificate)
            return
        proven = self.certificate["learners"] if self.certificate else [None] * len(self.classes)
        for k, positive in enumerate(self.classes):
            weights = np.ascontiguousarray(self.weights[k])
            yield Direction(positive, weights, float(np.asarray(self.bias)[k]), proven[k])

    def decision_function(self, X: ArrayLike | sparse.sparray) -> NDArray[np.float64]:
        """Compute w·x + bias of every row, in float64.

        Parameters
        ----------
        X : dense or scipy.sparse, shape (rows, columns), finite; matrix column j meets
            ``weights[j]``, there is no base to remove. Or a data frame: if the model has
            ``feature_names``, its columns are those, in that order.

        Returns
        -------
        float64, shape (rows,) for two classes, else (rows, K). The same bits from dense and from
        sparse X with sorted columns.

        Raises
        ------
        DataError : X has another width, columns of other names or in another order, is not
            two-dimensional, or holds a value that is not finite.
        """
        matrix: Any = X if sparse.issparse(X) else np.asarray(X)
        if self.feature_names and hasattr(X, "columns"):
            _check_feature_names(self.feature_names, X)
            matrix = matrix[:, : self.columns]  # the last ones may never have occurred
        if matrix.ndim != 2 or matrix.shape[1] != self.columns or matrix.dtype.kind not in "biuf":
            raise DataError(
                f"X: {matrix.dtype} of shape {matrix.shape}, but the model wants numbers of shape "
                f"(rows, {self.columns}). Give a matrix with one column a weight."
            )
        # a CSR product sums in one thread and in one order: dense X must not go through BLAS
        rows = sparse.csr_array(matrix)
        if not np.isfinite(rows.data).all():
            raise DataError("X: holds nan or inf. Values must be finite; remove or fill them.")
        return self._decided(rows)

    def decision_rows(self, rows: Rows) -> tuple[NDArray[np.float64], int]:
        """Compute w·x + bias of a chunk's rows, whose columns are numbered as in the shards, and
        count the nonzeros in columns beyond the model's width, which weigh 0."""
        start, stop = int(rows.indptr[0]), int(rows.indptr[-1])
        columns = rows.indices[start:stop].astype(np.int64) - self.index_base
        if len(columns) and columns.min() < 0:
            raise DataError(
                "column 0 in rows that the model reads as 1-based. "
                "Give rows numbered as those the model was fitted on."
            )
        known = columns < self.columns
        out_of_range = len(known) - int(np.count_nonzero(known))
        values, indptr = rows.values[start:stop], rows.indptr - start
        if out_of_range:
            values, columns = values[known], columns[known]
            indptr = np.concatenate(([0], np.cumsum(known)))[indptr]
        matrix = sparse.csr_array((values, columns, indptr), shape=(len(indptr) - 1, self.columns))
        return self._decided(matrix), out_of_range

    def _decided(self, rows: sparse.csr_array) -> NDArray[np.float64]:
        # weights.T lies row by row, so that a nonzero adds K neighbours at once
        values: NDArray[np.float64] = rows @ self.weights.T
        values += self.bias
        return values

    def chosen(self, decisions: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which of many classes are predicted, bool of shape (rows, K)."""
        if self.kind == "multilabel":
            return decisions > 0.0
        highest = np.argmax(decisions, axis=1, keepdims=True)
        return np.asarray(highest == np.arange(len(self.classes)))

    def labels(self, decisions: NDArray[np.float64]) -> NDArray[Any]:
        """Return the class of every row; of a multilabel model a tuple of classes, in order."""
        if self.kind == "multilabel":
            sets = (tuple(compress(self.classes, row)) for row in (decisions > 0).tolist())
            return np.fromiter(sets, dtype=object, count=len(decisions))
        dtype = object if isinstance(self.classes[0], str) else None
        codes = decisions.argmax(axis=1) if decisions.ndim == 2 else (decisions > 0).astype(np.intp)
        return np.asarray(np.array(self.classes, dtype=dtype)[codes])

    def predict(self, X: ArrayLike | sparse.sparray) -> NDArray[Any]:
        """Return the class, or the classes, of every row of X."""
        return self.labels(self.decision_function(X))

    def to_bytes(self) -> bytes:
        """Return the bytes of the model's file."""
        return sealed_bytes(*self._parts())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model; after a MachineError ``path`` is as before."""
        write_sealed(path, *self._parts())

    def _parts(self) -> tuple[dict[str, Any], dict[str, NDArray[np.float64]]]:
        content = {name: getattr(self, name) for name in _CONTENT}
        content["format_version"] = 1 if self.kind == "two classes" else 2
        return content, {"bias": np.array(self.bias), "weights": self.weights}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LinearModel:
        """Read a model that ``save`` wrote; a DataError unless every bit of it is intact."""
        content, tensors = read_sealed(path)
        version = content.get("format_version")
        if version not in (1, 2):
            raise DataError(
                f"{path}: model format version {version}, this streamtron reads 1 and 2. "
                "Use the streamtron that wrote it, or fit again."
            )
        try:
            parts = {name: content[name] for name in _CONTENT}
            return cls(weights=tensors["weights"], bias=tensors["bias"], **parts)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FileDamaged(
                f"{path}: sealed, but what it holds is no model ({error}). Fit again."
            ) from error

    def export_liblinear(self, path: str | os.PathLike[str]) -> None:
        """Write LIBLINEAR's text model (L2R_L2LOSS_SVC); ``weights[…, j]`` is its feature j + 1.

        The bias is written as the weight of a feature of value 1, so LIBLINEAR's decision values
        are the same up to rounding. A multilabel model, or classes that are not integers, are a
        SettingsError.
        """
        if self.kind == "multilabel":
            raise SettingsError(
                f"{path}: a multilabel model, and LIBLINEAR gives a row one label. Fit with "
                "--multiclass, or keep the streamtron model."
            )
        # LIBLINEAR's labels are int in C
        if odd := [a for a in self.classes if isinstance(a, str) or a % 1 or abs(a) >= 2**31]:
            raise SettingsError(
                f"{path}: the class {odd[-1]!r}; a LIBLINEAR model holds integers only. Fit on "
                "integer labels, or keep the streamtron model."
            )
        # LIBLINEAR's weights of two classes point to the label that it names first
        named = self.classes[::-1] if self.kind == "two classes" else self.classes
        head = (
            f"solver_type L2R_L2LOSS_SVC\nnr_class {len(named)}\n"
            f"label {' '.join(str(int(label)) for label in named)}\n"
            f"nr_feature {self.columns}\nbias 1\nw\n"
        )
        lines = (
            "".join(f"{weight:.17g} " for weight in np.ravel(weights)) + "\n"
            for weights in (*self.weights.T, self.bias)
        )
        write_atomically(path, (part.encode() for part in chain([head], lines)))


def joint_certificate(learners: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the certificates of many classes, in their order: widest gap, fewest rows, and all."""
    return {
        "relative_duality_gap": max(each["relative_duality_gap"] for each in learners),
        "rows_scanned": min(each["rows_scanned"] for each in learners),
        "learners": [dict(each) for each in learners],
    }


def _checked_weights(weights: ArrayLike) -> NDArray[np.float64]:
    """Return a read-only copy, (columns,) or (K, columns), whose transpose is contiguous."""
    checked = _checked_numbers("weights", weights)
    if checked.ndim not in (1, 2) or (checked.ndim == 2 and not len(checked)):
        raise SettingsError(
            f"weights: shape {checked.shape}. Give one number a column, or a row of them a class."
        )
    return checked


def _checked_bias(bias: ArrayLike, weights: NDArray[np.float64]) -> float | NDArray[np.float64]:
    """Return one number, or a read-only array of one for each row of weights."""
    checked = _checked_numbers("bias", bias)
    if checked.shape != weights.shape[:-1]:
        raise SettingsError(
            f"bias: shape {checked.shape}, but weights of shape {weights.shape}. Give one number "
            "for each row of weights."
        )
    return checked if checked.ndim else float(checked)


def _checked_numbers(name: str, numbers: ArrayLike) -> NDArray[np.float64]:
    """Return a finite, read-only copy without −0: equal models are equal files."""
    checked = np.asarray(numbers, dtype=np.float64, order="F") + 0.0
    if not np.isfinite(checked).all():
        bad = np.argwhere(~np.isfinite(checked))[0].tolist()
        where = f" at position {', '.join(map(str, bad))}" if bad else ""
        raise SettingsError(f"{name}: {checked[tuple(bad)]}{where}. It must be finite.")
    checked = np.asarray(checked)  # a number plus 0 is no array
    checked.setflags(write=False)
    return checked


def _checked_classes(
    classes: Iterable[Label], kind: Kind, weights: NDArray[np.float64]
) -> tuple[Label, ...]:
    """Return the labels, rising and all of one kind, as Python values, numbers as floats."""
    labels = tuple(_checked_label(label) for label in classes)
    wanted = 2 if kind == "two classes" else len(weights)
    if kind == "multiclass" and wanted < 3:
        raise SettingsError(
            f"weights: shape {weights.shape}. Give one row a class, for three classes or more; of "
            "two classes, one number a column."
        )
    alike = len(labels) == wanted and len({type(label) for label in labels}) == 1
    if not alike or any(a >= b for a, b in pairwise(labels)):  # type: ignore[operator]
        which = "two of one kind, the smaller first: a positive decision means the second"
        if kind != "two classes":
            which = f"{wanted} of one kind, in rising order, one for each row of weights"
        raise SettingsError(f"classes: {labels}. Give {which}.")
    return labels


def _checked_reading(reading: Mapping[str, Any], weights: NDArray[np.float64]) -> dict[str, Any]:
    """Return the reader's contract, with ``columns`` filled in."""
    columns = weights.shape[-1]
    checked = _plain("reading", {"columns": columns, **reading})
    if checked["columns"] != columns:
        raise SettingsError(f"reading: columns = {checked['columns']}, but {columns} weights.")
    if checked.get("index_base") not in (0, 1):
        raise SettingsError(f"reading: index_base = {checked.get('index_base')!r}. Give 0 or 1.")
    if checked.get("multilabel") and weights.ndim == 1:
        raise SettingsError("reading: multilabel, but one row of weights. Give one row a class.")
    return checked


def _checked_certificate(
    certificate: Mapping[str, Any], weights: NDArray[np.float64]
) -> dict[str, Any]:
    """Return the certificate; of many classes one that has ``learners``."""
    checked = _plain("certificate", certificate)
    learners = checked.get("learners")
    if weights.ndim == 2 and not (isinstance(learners, list) and len(learners) == len(weights)):
        raise SettingsError(
            f"certificate: no learners for {len(weights)} classes. Give the certificate of each, "
            "as joint_certificate does."
        )
    for each in learners if isinstance(learners, list) else [checked]:
        upper = each.get("upper_bound") if isinstance(each, dict) else None
        if upper is not None and not (
            isinstance(upper, float | int) and upper > 0 and upper * upper
        ):
            raise SettingsError(
                f"certificate: upper_bound = {upper!r}. It bounds the best margin from above: give "
                "a number above 0, or none. Of a model file: train again, or have it certified."
            )
    return checked


def _plain(name: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping as JSON reads it back, so that a model equals its file."""
    try:
        return dict(json.loads(canonical(dict(mapping))))
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"{name}: {error}. A model holds finite numbers, text, booleans, None, lists, mappings."
        ) from error


def _checked_label(label: Label) -> Label:
    if isinstance(label, str):
        return str(label)
    if isinstance(label, bool | np.bool_):
        return bool(label)
    return float(_checked_numbers("classes", label))


def feature_names(reading: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the columns in the order of their numbers; () if they have none."""
    key = "features" if reading.get("layout") == "columns" else "vocabulary"
    return tuple(reading.get(key) or ())


def _check_feature_names(names: tuple[str, ...], X: Any) -> None:
    """Raise a DataError if a data frame has columns of other names, or in another order.

    By scikit-learn's rule, which also warns of a data frame whose columns have no names."""
    from sklearn.utils import validation

    # its warnings name the class
    fitted = type("LinearModel", (), {"feature_names_in_": np.array(names, dtype=object)})()
    try:
        validation._check_feature_names(fitted, X, reset=False)
    except (TypeError, ValueError) as error:
        sentence = " ".join(str(error).split())
        raise DataError(f"X: {sentence} Give X[list(model.feature_names)].") from error
