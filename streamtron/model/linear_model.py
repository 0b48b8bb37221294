"""The fitted model: weights, settings and certificate; its decisions and its file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from streamtron.core.config import LOG_LINK
from streamtron.core.errors import DataError, FileDamaged, SettingsError
from streamtron.core.feature_names import Hashing, Vocabulary
from streamtron.core.rows import Label, Rows
from streamtron.core.sealed import read_sealed, sealed_bytes, write_sealed
from streamtron.model import validation
from streamtron.model.calibration import check_calibration, probabilities_of
from streamtron.model.display import model_text
from streamtron.model.scoring import highest, labels_of, matrix_of, namer_of, rows_of, stays_sparse

if TYPE_CHECKING:
    from streamtron.data.transform import Transformer

_CONTENT = ("classes", "settings", "certificate", "reading")
"""Attributes that are written as JSON."""

FORMAT_VERSION = 3

_NO_MODEL = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
"""Errors that content raises which is not that of a model."""


class Direction(NamedTuple):
    """Weights of one class against the rest: where w·x + bias > 0; of regression there is no class.
    ``nonzero`` are those that are not 0, shape (1, columns)."""

    positive: Label | None
    nonzero: sparse.csr_array
    bias: float
    certificate: Mapping[str, Any] | None

    @property
    def weights(self) -> NDArray[np.float64]:
        """All weights, shape (columns,), made anew each time."""
        return np.asarray(self.nonzero.toarray()[0])


@dataclass(frozen=True, eq=False, init=False, repr=False)
class LinearModel:
    """A linear model for two classes, for more, or for numbers.

    * **Two classes:** ``classes[1]`` where w·x + bias > 0, else ``classes[0]``.
    * **Multiclass:** K ≥ 3 classes, each with weights against the rest; a row gets the class with
      the highest decision, the first of equals.
    * **Multilabel** (``reading["multilabel"]``): K ≥ 1 classes; a row gets every class whose
      decision is above 0.
    * **Calibrated**: a row gets the most probable class, the first of equals; of several labels
      those whose probability is above ½.
    * **Regression** (a loss of numbers): no class; w·x + bias is predicted, of ``poisson``
      e^(w·x + bias).

    Two models are equal if their files are equal, byte for byte.

    Parameters
    ----------
    weights : float64, finite, shape (columns,), of many classes (K, columns), or scipy.sparse,
        (1, columns) for (columns,); copied. ``weights[…, j]`` belongs to the column that the
        shards number ``j + index_base``.
    bias : what is added to w·x: ρ w_bias, in the unit of a decision value; float64, shape (K,),
        where there are K rows of weights.
    classes : in rising order, all numbers, all strings or all booleans; K of them where there are
        K rows of weights; () of regression.
    settings : JSON; all that determines the model besides the data.
    certificate : JSON; what is proven (``primal_margin``, ``upper_bound``,
        ``relative_duality_gap``, ``rows_scanned`` …), see ``ModelCertificate``; empty, or given as
        None, if nothing is.
    reading : JSON; the reader's contract. ``index_base`` (0 or 1) must be there; ``columns`` is
        filled in.
    calibration : JSON; what ``streamtron.calibrate`` makes, or None; see ``predict_proba``.
    offsets : float16, one a weight that is not 0, or None; see ``model.certainty.middle``.
    transformer : what makes the features of tables or texts, or None.

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

    sparse_weights: sparse.csr_array = field(repr=False)
    """the weights that are not 0, shape (K, columns), (1, columns) for two classes; read-only"""
    bias: float | NDArray[np.float64]
    classes: tuple[Label, ...]
    settings: Mapping[str, Any]
    certificate: Mapping[str, Any]
    reading: Mapping[str, Any]
    calibration: Mapping[str, Any] | None
    offsets: NDArray[np.float16] | None = field(repr=False)
    kind: validation.Kind
    """``"two classes"``, ``"multiclass"``, ``"multilabel"`` or ``"regression"``"""
    regression: bool
    """whether a number is to be predicted: its loss is one of these"""
    log_link: bool
    """whether that is e^(w·x + bias), not w·x + bias"""
    softmax: bool
    """whether all classes are one problem, with one certificate"""
    columns: int
    """the model's width"""
    index_base: int
    """the number (0 or 1) that the shards give the column of ``weights[0]``"""
    namer: Vocabulary | Hashing | None
    """what maps the names of features to columns; None where they are numbers"""
    transformer: Transformer | None = field(repr=False)
    """what makes the features of tables or texts; ``transformer.estimator`` is scikit-learn's"""

    def __init__(
        self,
        weights: ArrayLike | sparse.sparray,
        bias: ArrayLike,
        classes: Iterable[Label],
        settings: Mapping[str, Any],
        certificate: Mapping[str, Any] | None,
        reading: Mapping[str, Any],
        calibration: Mapping[str, Any] | None = None,
        offsets: NDArray[np.float16] | None = None,
        transformer: Transformer | None = None,
    ) -> None:
        assign = object.__setattr__
        kept, shape = validation.checked_weights(weights, np.ndim(bias))
        assign(self, "sparse_weights", kept)
        assign(self, "bias", validation.checked_bias(bias, shape))
        assign(self, "settings", validation.checked_settings(settings))
        assign(self, "reading", validation.checked_reading(reading, shape))
        assign(self, "kind", validation.kind_of(self.settings, self.reading, self.bias))
        assign(self, "regression", self.kind == "regression")
        assign(self, "log_link", self.settings.get("loss") in LOG_LINK)
        assign(self, "softmax", self.settings.get("loss") == "softmax")
        assign(self, "columns", shape[-1])
        assign(self, "index_base", int(self.reading["index_base"]))
        assign(self, "namer", namer_of(self.reading))
        assign(self, "transformer", transformer)
        if transformer is not None and transformer.width != self.columns:
            width = f"{transformer.width} features and {self.columns} weights"
            raise SettingsError(f"transformer: {width}. Fit again.")
        if 0 < (number := len(getattr(self.namer, "names", ()))) < self.columns:
            raise SettingsError(f"reading: {number} names, {self.columns} columns. Fit again.")
        assign(self, "classes", validation.checked_classes(classes, self.kind, shape))
        of_shape = shape[-1:] if self.softmax else shape
        assign(self, "certificate", validation.checked_certificate(certificate, of_shape))
        if calibration is not None:
            calibration = validation.plain("calibration", calibration)
            check_calibration(calibration, directions=kept.shape[0])
        assign(self, "calibration", calibration)
        assign(self, "offsets", validation.checked_offsets(offsets, kept, self.certificate))

    def but(self, **changes: Any) -> LinearModel:
        """Return a model in which these arguments differ."""
        names = (*_CONTENT, "bias", "calibration", "offsets", "transformer")
        arguments = {name: getattr(self, name) for name in names}
        return LinearModel(**{"weights": self.sparse_weights, **arguments, **changes})

    @property
    def weights(self) -> NDArray[np.float64]:
        """All weights, float64, shape (columns,), of many classes (K, columns); read-only.
        Where ``sparse_weights`` are few, they are made anew each time."""
        by_column = self._by_column
        if sparse.issparse(by_column):
            by_column = validation.read_only(by_column.toarray())
        return np.asarray(by_column if by_column.ndim == 1 else by_column.T)

    @cached_property
    def _by_column(self) -> Any:
        """The weights as rows are multiplied by them, shape (columns,), of many classes
        (columns, K), where a nonzero of a row meets K neighbours; sparse where few are not 0."""
        kept = self.sparse_weights
        if isinstance(self.bias, float):
            return validation.read_only(kept.toarray()[0])
        if stays_sparse(self):
            return kept.T.tocsr()
        return validation.read_only(kept.toarray(order="F")).T

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the columns, in the order of their numbers; () if some have none, as hashed
        ones; the last ones may be beyond the model's width."""
        if self.transformer is None:
            return getattr(self.namer, "names", ())
        names = tuple(name for name in self.transformer.names if name is not None)
        return names if len(names) == self.columns else ()

    @property
    def has_names(self) -> bool:
        """Whether some columns have names."""
        if self.transformer is not None:
            return any(self.transformer.names)
        return bool(self.feature_names)

    def name_of(self, j: int) -> str | None:
        """Return the name of the column of ``weights[…, j]``, if it has one."""
        if self.transformer is not None:
            return self.transformer.names[j]
        return self.feature_names[j] if j < len(self.feature_names) else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LinearModel):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    def __repr__(self) -> str:
        return model_text(self)

    def directions(self) -> Iterator[Direction]:
        """Yield one direction, or with more than two classes one per class, in their order."""
        kept, certificate = self.sparse_weights, self.certificate
        if isinstance(self.bias, float):
            positive = None if self.regression else self.classes[1]
            yield Direction(positive, kept, self.bias, certificate or None)
            return
        learners = certificate.get("learners", [certificate or None] * len(self.classes))
        for k, positive in enumerate(self.classes):
            yield Direction(positive, kept[[k]], float(self.bias[k]), learners[k])

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Compute w·x + bias of every row, in float64.

        Parameters
        ----------
        X : rows in one of these forms:

            * a matrix, dense or scipy.sparse, shape (rows, columns), finite; its column j meets
              ``weights[j]``, there is no base to remove;
            * a pandas or polars data frame, or an Arrow table: its columns are found by the names
              of ``feature_names``, in any order, and those of labels and weights are ignored;
            * a list of records, {name: value}. Where features are columns of numbers, each has all
              of them; else by the vocabulary or the hash, what is absent being 0;
            * a list of lists of tokens, for a vocabulary or a hash: each occurrence counts 1;
            * what the model's transformer takes: a data frame, a list of records or of documents.

            A name that the vocabulary does not have weighs 0.

        Returns
        -------
        float64, shape (rows,), of many classes (rows, K). The same bits from dense and from
        sparse X with sorted columns.

        Raises
        ------
        DataError : X has another width or other names, or holds a value that is not finite.
        """
        return self._decided(rows_of(self, X))

    def decision_rows(self, rows: Rows) -> tuple[NDArray[np.float64], int]:
        """Compute w·x + bias of a chunk's rows, whose columns are numbered as in the shards, and
        count the nonzeros in columns beyond the model's width, which weigh 0."""
        matrix, out_of_range = matrix_of(self, rows)
        return self._decided(matrix), out_of_range

    def _decided(self, rows: sparse.csr_array) -> NDArray[np.float64]:
        products: Any = rows @ self._by_column
        decisions = np.asarray(products.toarray() if sparse.issparse(products) else products)
        decisions += self.bias
        return decisions

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class, classes or number of every row of X; see ``decision_function``."""
        return labels_of(self, self.decision_function(X))

    def predict_top(self, X: Any, k: int) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the k classes with the highest decisions of every row, of a calibrated model the
        most probable ones, the highest first and of equals the first class; and their decisions;
        both of shape (rows, k). No more decisions are in memory than of some rows. SettingsError:
        a model of two classes or of numbers, or another k than 1 to the number of classes."""
        codes, decisions = highest(self, rows_of(self, X), k, self._decided)
        return np.array(self.classes, object)[codes], decisions

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Compute the probability of every class, shape (rows, classes); they sum to 1 unless the
        model is multilabel. A SettingsError unless it is calibrated, or its loss log_loss or
        softmax."""
        shares = probabilities_of(self, self.decision_function(X))
        return shares if shares.ndim == 2 else np.column_stack([1.0 - shares, shares])

    def to_sklearn(self) -> Any:
        """Return a fitted ``LinearSVC`` or ``LogisticRegression`` with these weights, calibrated if
        the model is; a SettingsError for a multilabel model. See ``streamtron.export``."""
        from streamtron.model.pipelines import to_sklearn

        return to_sklearn(self)

    def to_bytes(self) -> bytes:
        """Return the bytes of the model's file."""
        return sealed_bytes(*self._parts())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model; after a MachineError ``path`` is as before."""
        write_sealed(path, *self._parts())

    def _parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        content = {name: getattr(self, name) for name in _CONTENT}
        content |= {"certificate": self.certificate or None, "format_version": FORMAT_VERSION}
        if self.calibration is not None:
            content["calibration"] = self.calibration
        kept = self.sparse_weights
        tensors = {"bias": np.array(self.bias), "values": kept.data}
        tensors["columns"] = kept.indices.astype(np.uint32)
        if not isinstance(self.bias, float):
            tensors["starts"] = kept.indptr.astype(np.int64)
        if self.offsets is not None:
            tensors["offsets"] = self.offsets
        if self.transformer is not None:
            tensors["transformer"] = np.frombuffer(self.transformer.packed, np.uint8)
        return content, tensors

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LinearModel:
        """Read a model that ``save`` wrote; a DataError unless every bit of it is intact."""
        content, tensors = read_sealed(path)
        version = content.get("format_version")
        if version != FORMAT_VERSION:
            raise DataError(
                f"{path}: model format version {version}, this streamtron reads {FORMAT_VERSION}. "
                "Use the streamtron that wrote it, or fit again."
            )
        try:
            parts = {name: content[name] for name in _CONTENT}
            parts |= {"calibration": content.get("calibration"), "bias": tensors["bias"]}
            parts["offsets"] = tensors.get("offsets")
            parts["transformer"] = _transformer_of(parts["reading"], tensors.get("transformer"))
            return cls(validation.kept_weights(tensors, parts["reading"]["columns"]), **parts)
        except _NO_MODEL as error:
            reason = f"sealed, but what it holds is no model ({error}). Fit again."
            raise FileDamaged(f"{path}: {reason}") from error


def _transformer_of(
    reading: Mapping[str, Any], packed: NDArray[np.uint8] | None
) -> Transformer | None:
    """Return the transformer of a model's file; it is loaded where it is used."""
    if reading.get("transformer") is None:
        return None
    from streamtron.data.transform import Transformer

    return Transformer.from_contract(
        reading["transformer"], b"" if packed is None else bytes(packed)
    )
