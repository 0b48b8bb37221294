"""The fitted model: weights, settings and certificate; its decisions and its file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from streamtron.core.errors import DataError, FileDamaged, SettingsError
from streamtron.core.files import write_atomically
from streamtron.core.rows import Label, Rows
from streamtron.core.sealed import read_sealed, sealed_bytes, write_sealed
from streamtron.model.validation import (
    Kind,
    check_feature_names,
    checked_bias,
    checked_certificate,
    checked_classes,
    checked_reading,
    checked_weights,
    feature_names,
    is_int32,
    plain,
)

FORMAT_VERSIONS = {"two classes": 1, "multiclass": 2, "multilabel": 2}
"""Kind of model → version of its file."""


class Decisions(NamedTuple):
    """Decisions for the rows of a chunk."""

    values: NDArray[np.float64]
    """shape (rows,), or (rows, K) of a model of many classes: w·x + bias"""
    out_of_range: int
    """nonzeros in columns beyond the model's width; they weigh 0"""


class Direction(NamedTuple):
    """Weights of one class against the rest."""

    positive: Label
    """the class where w·x + bias > 0"""
    weights: NDArray[np.float64]
    """shape (columns,)"""
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
    SettingsError
        Something not finite, not JSON, of another shape, or classes out of order.

    Examples
    --------
    >>> model = LinearModel(np.array([1.0, -2.0]), 0.5, (-1.0, 1.0), {}, None, {"index_base": 1})
    >>> model.decision_function(np.array([[1.0, 0.0], [0.0, 1.0]]))
    array([ 1.5, -1.5])
    >>> model.predict(np.array([[1.0, 0.0], [0.0, 1.0]]))
    array([ 1., -1.])
    >>> weights = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    >>> many = LinearModel(weights, np.zeros(3), ("a", "b", "c"), {}, None, {"index_base": 1})
    >>> many.kind, many.predict(np.array([[2.0, 1.0], [-1.0, -1.0]]))
    ('multiclass', array(['a', 'c'], dtype=object))
    """

    weights: NDArray[np.float64]
    bias: float | NDArray[np.float64]
    classes: tuple[Label, ...]
    settings: Mapping[str, Any] = field(repr=False)
    certificate: Mapping[str, Any] | None
    reading: Mapping[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        weights = checked_weights(self.weights)
        assign = object.__setattr__
        assign(self, "weights", weights)
        assign(self, "bias", checked_bias(self.bias, weights))
        assign(self, "settings", plain("settings", self.settings))
        assign(self, "reading", checked_reading(self.reading, weights))
        assign(self, "classes", checked_classes(self.classes, self.kind, weights))
        if self.certificate is not None:
            assign(self, "certificate", checked_certificate(self.certificate, weights))

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

    # --- decisions -------------------------------------------------------------------------------

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
        DataError
            X has another width, columns of other names or in another order, is not
            two-dimensional, or holds a value that is not finite.
        """
        matrix: Any = X if sparse.issparse(X) else np.asarray(X)
        if self.feature_names and hasattr(X, "columns"):
            check_feature_names(self.feature_names, X)
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

    def decision_rows(self, rows: Rows) -> Decisions:
        """Compute w·x + bias of a chunk's rows, whose columns are numbered as in the shards.

        Parameters
        ----------
        rows : CSR arrays; ``indptr[0]`` may be above 0. The base is removed here.

        Raises
        ------
        DataError
            A column below the model's index base.

        Examples
        --------
        >>> from streamtron.core.rows import make_rows
        >>> model = LinearModel(np.array([1.0, 2.0]), 0.5, (0.0, 1.0), {}, None, {"index_base": 1})
        >>> model.decision_rows(make_rows(np.array([0, 1, 1, 3]), np.array([2, 1, 9]), np.ones(3)))
        Decisions(values=array([2.5, 0.5, 1.5]), out_of_range=1)
        """
        start, stop = int(rows.indptr[0]), int(rows.indptr[-1])
        columns = rows.indices[start:stop].astype(np.int64) - self.index_base
        if len(columns) and columns.min() < 0:
            raise DataError(
                "column 0 in rows that the model reads as 1-based. "
                "Give rows numbered as those the model was fitted on."
            )
        known = columns < self.columns
        out_of_range = len(known) - int(np.count_nonzero(known))
        if out_of_range == len(known):
            return Decisions(
                np.full((len(rows.indptr) - 1, *np.shape(self.bias)), self.bias), out_of_range
            )
        values = rows.values[start:stop]
        if out_of_range:  # a value of 0 in column 0 adds nothing
            values, columns = values * known, columns * known
        shape = (len(rows.indptr) - 1, self.columns)
        matrix = sparse.csr_array((values, columns, rows.indptr - start), shape=shape)
        return Decisions(self._decided(matrix), out_of_range)

    def _decided(self, rows: sparse.csr_array) -> NDArray[np.float64]:
        # weights.T lies row by row, so that a nonzero adds K neighbours at once
        values: NDArray[np.float64] = rows @ self.weights.T
        values += self.bias
        return values

    def chosen(self, decisions: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which classes are predicted by a model of many classes.

        Parameters
        ----------
        decisions : shape (rows, K).

        Returns
        -------
        bool, shape (rows, K); of a multiclass model exactly one in a row.
        """
        if self.kind == "multilabel":
            return decisions > 0.0
        highest = np.argmax(decisions, axis=1, keepdims=True)
        chosen: NDArray[np.bool_] = highest == np.arange(len(self.classes))
        return chosen

    def labels(self, decisions: NDArray[np.float64]) -> NDArray[Any]:
        """Return the predicted class of every row, by the rules of the class docstring.

        Returns
        -------
        shape (rows,); float64, bool, or object where classes are strings. Of a multilabel model
        object: a tuple of classes, in their order, for each row.
        """
        if self.kind == "multilabel":
            sets = (tuple(compress(self.classes, row)) for row in (decisions > 0).tolist())
            return np.fromiter(sets, dtype=object, count=len(decisions))
        dtype = object if isinstance(self.classes[0], str) else None
        codes = decisions.argmax(axis=1) if decisions.ndim == 2 else (decisions > 0).astype(np.intp)
        labels: NDArray[Any] = np.array(self.classes, dtype=dtype)[codes]
        return labels

    def predict(self, X: ArrayLike | sparse.sparray) -> NDArray[Any]:
        """Return the class, or the classes, of every row of X."""
        return self.labels(self.decision_function(X))

    # --- the file --------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Return the bytes of the model's file."""
        return sealed_bytes(self._content(), self._tensors())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model; after an error ``path`` is as before.

        Raises
        ------
        MachineError
            The file cannot be written.
        """
        write_sealed(path, self._content(), self._tensors())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LinearModel:
        """Read a model that ``save`` wrote; every bit of the file is verified.

        Raises
        ------
        FileDamaged
            Not a streamtron model, or damaged.
        DataError
            An unknown format version.
        MachineError
            The file cannot be read.
        """
        content, tensors = read_sealed(path)
        version = content.get("format_version")
        if version not in FORMAT_VERSIONS.values():
            raise DataError(
                f"{path}: model format version {version}, this streamtron reads 1 and 2. "
                "Use the streamtron that wrote it, or fit again."
            )
        try:
            return cls(
                weights=tensors["weights"],
                bias=tensors["bias"],
                classes=content["classes"],
                settings=content["settings"],
                certificate=content["certificate"],
                reading=content["reading"],
            )
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FileDamaged(
                f"{path}: sealed, but what it holds is no model ({error}). Fit again."
            ) from error

    def export_liblinear(self, path: str | os.PathLike[str]) -> None:
        """Write LIBLINEAR's text model (L2R_L2LOSS_SVC); ``weights[…, j]`` is its feature j + 1.

        The bias is written as the weight of a feature of value 1, so LIBLINEAR's decision values
        are the same up to rounding; many classes are written in the order of ``classes``.

        Raises
        ------
        SettingsError
            A multilabel model, or classes that are not integers.
        MachineError
            The file cannot be written.
        """
        if self.kind == "multilabel":
            raise SettingsError(
                f"{path}: a multilabel model, and LIBLINEAR gives a row one label. Fit with "
                "--multiclass, or keep the streamtron model."
            )
        if odd := [label for label in self.classes if not is_int32(label)]:
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
        write_atomically(path, (head.encode(), *self._liblinear_lines()))

    def _liblinear_lines(self) -> Iterator[bytes]:
        """Yield a line with the weights of every class for each feature; the biases last."""
        for weights in (*self.weights.T, self.bias):
            yield "".join(f"{weight:.17g} " for weight in np.ravel(weights)).encode() + b"\n"

    def _content(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSIONS[self.kind],
            "classes": self.classes,
            "settings": self.settings,
            "certificate": self.certificate,
            "reading": self.reading,
        }

    def _tensors(self) -> dict[str, NDArray[np.float64]]:
        return {"bias": np.array(self.bias), "weights": self.weights}


def joint_certificate(learners: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the certificates of many classes.

    Parameters
    ----------
    learners : one certificate a class, in the order of the classes.

    Returns
    -------
    ``relative_duality_gap``, the largest of all; ``rows_scanned``, the fewest; ``learners``.

    Examples
    --------
    >>> gaps = [{"relative_duality_gap": gap, "rows_scanned": 9} for gap in (0.25, 0.5)]
    >>> joint = joint_certificate(gaps)
    >>> joint["relative_duality_gap"], joint["rows_scanned"], len(joint["learners"])
    (0.5, 9, 2)
    """
    return {
        "relative_duality_gap": max(each["relative_duality_gap"] for each in learners),
        "rows_scanned": min(each["rows_scanned"] for each in learners),
        "learners": [dict(each) for each in learners],
    }
