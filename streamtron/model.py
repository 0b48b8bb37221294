"""LinearModel: weights, what made them and what is proven of them; its decisions and its file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from streamtron.chunk import Label, Rows
from streamtron.errors import DataError, FileDamaged, SettingsError
from streamtron.sealed import canonical, read_sealed, sealed_bytes, write_atomically, write_sealed

FORMAT_VERSION = 1


class Decisions(NamedTuple):
    """What a model says of a chunk's rows."""

    values: NDArray[np.float64]
    """shape (rows,), w·x + bias"""
    beyond: int
    """nonzeros in columns beyond the model's width; they weigh 0"""


@dataclass(frozen=True, slots=True, eq=False)
class LinearModel:
    """A linear classifier of two classes: ``classes[1]`` where w·x + bias > 0, else ``classes[0]``.

    Two models are equal if their files are, byte for byte.

    Parameters
    ----------
    weights : float64, shape (columns,), finite; ``weights[j]`` belongs to the column that the
        shards number ``j + index_base``. Copied, made read-only, −0 becomes 0.
    bias : what is added to w·x: ρ w_bias, in the unit of a decision value.
    classes : (smaller, larger), both numbers, both strings or both booleans.
    settings : JSON; what changed the model.
    certificate : JSON; what is proven (``directional_margin``, ``primal_margin``, ``upper_bound``,
        ``relative_duality_gap``, ``rows_scanned`` …); None if nothing is.
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
    """

    weights: NDArray[np.float64]
    bias: float
    classes: tuple[Label, Label]
    settings: Mapping[str, Any] = field(repr=False)
    certificate: Mapping[str, Any] | None
    reading: Mapping[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        weights = _checked_weights(self.weights)
        settle = object.__setattr__
        settle(self, "weights", weights)
        settle(self, "bias", _checked_number("bias", self.bias))
        settle(self, "classes", _checked_classes(self.classes))
        settle(self, "settings", _plain("settings", self.settings))
        if self.certificate is not None:
            settle(self, "certificate", _plain("certificate", self.certificate))
        settle(self, "reading", _checked_reading(self.reading, len(weights)))

    @property
    def columns(self) -> int:
        """The model's width: columns that have a weight."""
        return len(self.weights)

    @property
    def index_base(self) -> int:
        """The number (0 or 1) that the shards give the column of ``weights[0]``."""
        return int(self.reading["index_base"])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LinearModel):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    # --- decisions -------------------------------------------------------------------------------

    def decision_function(self, X: ArrayLike | sparse.sparray) -> NDArray[np.float64]:
        """w·x + bias of every row, summed in float64 column by column.

        Parameters
        ----------
        X : dense or scipy.sparse, shape (rows, columns), finite; matrix column j meets
            ``weights[j]``, there is no base to remove.

        Returns
        -------
        float64, shape (rows,). The same bits from dense and from sparse X with sorted columns.

        Raises
        ------
        DataError
            X has another width, is not two-dimensional, or holds a value that is not finite.
        """
        matrix: Any = X if sparse.issparse(X) else np.asarray(X)
        if matrix.ndim != 2 or matrix.shape[1] != self.columns or matrix.dtype.kind not in "biuf":
            raise DataError(
                f"X: {matrix.dtype} of shape {matrix.shape}, but the model wants numbers of shape "
                f"(rows, {self.columns}). Give a matrix with one column a weight."
            )
        # a CSR product sums in one thread and in one order: dense X must not go through BLAS
        rows = sparse.csr_array(matrix)
        if not np.isfinite(rows.data).all():
            raise DataError("X: holds nan or inf. Values must be finite; remove or fill them.")
        values: NDArray[np.float64] = rows @ self.weights + self.bias
        return values

    def decision_rows(self, rows: Rows) -> Decisions:
        """w·x + bias of a chunk's rows, whose columns are numbered as in the shards.

        Parameters
        ----------
        rows : CSR arrays; ``indptr[0]`` may be above 0. The base is removed here.

        Raises
        ------
        DataError
            A column below the model's index base.

        Examples
        --------
        >>> from streamtron.chunk import make_rows
        >>> model = LinearModel(np.array([1.0, 2.0]), 0.5, (0.0, 1.0), {}, None, {"index_base": 1})
        >>> model.decision_rows(make_rows(np.array([0, 1, 1, 3]), np.array([2, 1, 9]), np.ones(3)))
        Decisions(values=array([2.5, 0.5, 1.5]), beyond=1)
        """
        start, stop = int(rows.indptr[0]), int(rows.indptr[-1])
        columns = rows.indices[start:stop].astype(np.int64) - self.index_base
        if len(columns) and columns.min() < 0:
            raise DataError(
                "column 0 in rows that the model reads as 1-based. "
                "Give rows numbered as those the model was fitted on."
            )
        known = columns < self.columns
        beyond = len(known) - int(np.count_nonzero(known))
        if beyond == len(known):
            return Decisions(np.full(len(rows.indptr) - 1, self.bias), beyond)
        values = rows.values[start:stop]
        if beyond:  # a value of 0 in column 0 adds nothing
            values, columns = values * known, columns * known
        shape = (len(rows.indptr) - 1, self.columns)
        matrix = sparse.csr_array((values, columns, rows.indptr - start), shape=shape)
        return Decisions(matrix @ self.weights + self.bias, beyond)

    def labels(self, decisions: NDArray[np.float64]) -> NDArray[Any]:
        """The class of each decision value: ``classes[1]`` where it is > 0, else ``classes[0]``.

        Returns
        -------
        shape of ``decisions``; float64, bool, or object where classes are strings.
        """
        dtype = object if isinstance(self.classes[0], str) else None
        return np.array(self.classes, dtype=dtype)[(decisions > 0).astype(np.intp)]

    def predict(self, X: ArrayLike | sparse.sparray) -> NDArray[Any]:
        """The class of every row of X: ``labels(decision_function(X))``."""
        return self.labels(self.decision_function(X))

    # --- the file --------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The model's file: a function of the model alone."""
        return sealed_bytes(self._content(), self._tensors())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model; on an error ``path`` still holds what it held before.

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
            Not a streamtron model, or not the bytes that were written.
        DataError
            A format version that this streamtron does not know.
        MachineError
            The file cannot be read.
        """
        content, tensors = read_sealed(path)
        version = content.get("format_version")
        if version != FORMAT_VERSION:
            raise DataError(
                f"{path}: model format version {version}, this streamtron reads {FORMAT_VERSION}. "
                "Use the streamtron that wrote it, or fit again."
            )
        try:
            return cls(
                weights=tensors["weights"],
                bias=tensors["bias"].item(),
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
        """Write LIBLINEAR's text model (L2R_L2LOSS_SVC); ``weights[j]`` is its feature j + 1.

        The bias is written as the weight of a feature of value 1, so LIBLINEAR's decision values
        are ours up to rounding, with the sign of the larger class.

        Raises
        ------
        SettingsError
            Classes that are not integers: LIBLINEAR's model can hold no others.
        MachineError
            The file cannot be written.
        """
        if not all(_is_int32(label) for label in self.classes):
            raise SettingsError(
                f"{path}: classes {self.classes[0]!r} and {self.classes[1]!r}; a LIBLINEAR model "
                "holds integers only. Fit on integer labels, or keep the streamtron model."
            )
        smaller, larger = (int(label) for label in self.classes)
        head = (
            f"solver_type L2R_L2LOSS_SVC\nnr_class 2\nlabel {larger} {smaller}\n"
            f"nr_feature {self.columns}\nbias 1\nw\n"
        )
        numbers = (f"{weight:.17g} \n".encode() for weight in (*self.weights, self.bias))
        write_atomically(path, (head.encode(), *numbers))

    def _content(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "classes": self.classes,
            "settings": self.settings,
            "certificate": self.certificate,
            "reading": self.reading,
        }

    def _tensors(self) -> dict[str, NDArray[np.float64]]:
        return {"bias": np.array(self.bias), "weights": self.weights}


# --- what a model may hold -----------------------------------------------------------------------


def _checked_weights(weights: ArrayLike) -> NDArray[np.float64]:
    checked: NDArray[np.float64] = np.ascontiguousarray(weights, dtype=np.float64) + 0.0  # no −0
    if np.ndim(weights) != 1:
        raise SettingsError(f"weights: shape {np.shape(weights)}. Give one number a column.")
    if not np.isfinite(checked).all():
        bad = int(np.flatnonzero(~np.isfinite(checked))[0])
        raise SettingsError(f"weights: {checked[bad]} at position {bad}. Weights must be finite.")
    checked.setflags(write=False)
    return checked


def _checked_number(name: str, number: float) -> float:
    if not math.isfinite(number):
        raise SettingsError(f"{name}: {number}. It must be finite.")
    return float(number) + 0.0  # no −0: equal models are equal files


def _checked_classes(classes: Iterable[Label]) -> tuple[Label, Label]:
    labels = tuple(_checked_label(label) for label in classes)
    if len(labels) != 2 or type(labels[0]) is not type(labels[1]) or not labels[0] < labels[1]:  # type: ignore[operator]
        raise SettingsError(
            f"classes: {labels}. Give two of one kind, the smaller first: a positive decision "
            "means the second."
        )
    return labels


def _checked_label(label: Label) -> Label:
    if isinstance(label, bool | np.bool_):
        return bool(label)
    if isinstance(label, str):
        return str(label)
    return _checked_number("classes", label)


def _checked_reading(reading: Mapping[str, Any], columns: int) -> dict[str, Any]:
    plain = _plain("reading", {"columns": columns, **reading})
    if plain["columns"] != columns:
        raise SettingsError(f"reading: columns = {plain['columns']}, but {columns} weights.")
    if plain.get("index_base") not in (0, 1):
        raise SettingsError(f"reading: index_base = {plain.get('index_base')!r}. Give 0 or 1.")
    return plain


def _plain(name: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping as JSON would give it back, so that a model equals its file read again."""
    try:
        plain: dict[str, Any] = json.loads(canonical(dict(mapping)))
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"{name}: {error}. A model holds finite numbers, text, booleans, None, lists, mappings."
        ) from error
    return plain


def _is_int32(label: Label) -> bool:
    return not isinstance(label, str) and float(label).is_integer() and abs(label) < 2**31
