"""StreamtronClassifier: a scikit-learn estimator with a certificate.

Rows in memory go through the same training loop as shards and give the same weights.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model._base import LinearClassifierMixin  # as all its linear classifiers
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, validate_data

from streamtron.core.certificate import Certificate
from streamtron.core.config import SKLEARN_NAMES, Machine, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.names import SharedNames, checks_keywords
from streamtron.core.rows import LARGEST_WEIGHT, Label
from streamtron.core.text import label_text, up
from streamtron.data import MemorySource
from streamtron.model.display import ModelCertificate
from streamtron.model.scoring import namer_of
from streamtron.runs.inputs import as_paths, cache_directory, open_training_shards
from streamtron.runs.inspect import with_active_set
from streamtron.runs.learners import (
    Training,
    one_vs_rest_learners,
    train_candidates,
    train_learners,
)
from streamtron.runs.outcome import certificate_of
from streamtron.runs.parts import OpenParts, train_in_parts, with_parts
from streamtron.runs.upper_bounds import resolution
from streamtron.solver.duals import Counts
from streamtron.solver.learner import Learner, set_resolution, set_weights
from streamtron.solver.partial_fit import EarlierData

if TYPE_CHECKING:
    from streamtron.cluster.client import Client


class _Rows(NamedTuple):
    """Checked rows in memory; ``codes`` are their classes as positions in ``classes``."""

    X: Any
    codes: NDArray[np.intp]
    classes: NDArray[Any]
    weights: NDArray[np.float64] | None

    @property
    def numbers(self) -> list[Label]:
        # what learners take for labels
        return [float(number) for number in range(len(self.classes))]

    def source(self) -> MemorySource:
        return MemorySource(self.X, self.codes, self.numbers, self.weights)


Method = TypeVar("Method")


def _only_with(loss: str, why: str) -> Callable[[Method], Method]:
    """Let a method exist with one loss only; else an AttributeError says why."""

    def has_loss(model: StreamtronClassifier) -> bool:
        if model.loss != loss:
            raise AttributeError(f"{why}, and loss is {model.loss!r}: wanted {loss!r}.")
        return True

    return cast(Callable[[Method], Method], available_if(has_loss))


class StreamtronClassifier(LinearClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Linear classifier with a proven duality gap; a replacement of ``LinearSVC`` and of
    ``LogisticRegression``.

    Minimises ½(‖w‖² + w_bias²) + Σ C_k φ(l_k(w·x_k + ρ w_bias)), a sum and not a mean; C_k is C
    times the weights of row and class. By ``loss``, φ(m) is max(0, 1 − m)², ln(1 + e^−m) or
    max(0, 1 − m). That is the objective of ``LinearSVC(loss="squared_hinge")``,
    ``LogisticRegression(solver="liblinear")`` and ``LinearSVC(loss="hinge")``. More than two
    classes are trained one-vs-rest; a class weight then applies to the rows of that class only, as
    in LIBLINEAR.

    X is rounded to float32 for training; values that become infinite are an error. Decisions use X
    as given. Up to 4,096 nonzeros the weights of a smooth loss are refined by Newton's method
    whatever ``tol`` is.

    Parameters
    ----------
    C : penalty of the loss, > 0.
    loss : ``"squared_hinge"``, ``"log_loss"`` or ``"hinge"``, φ of the objective. With
        ``"log_loss"`` there are ``predict_proba`` and ``predict_log_proba``.
    fit_intercept : whether to fit a bias.
    intercept_scaling : ρ > 0, the constant feature of the bias; a larger one penalises it less.
    intercept : ``"penalised"`` as a weight is, or ``"free"``, as scikit-learn's LogisticRegression
        has it but for ``solver="liblinear"``; ``"none"`` as without ``fit_intercept``.
    class_weight : None, ``"balanced"`` (n / (classes · n_class), rows counted by their weights),
        or {label: weight > 0}; multiplies C.
    tol : relative duality gap in [0, 1) at which training ends; 0 = down to rounding. The gap is
        proven: the optimum is at least (1 − tol) times the objective reached.
    max_iter : full epochs at most, ≥ 1.
    random_state : seed of the order of rows, ≥ 0; None is seed 0.
    warm_start : begin ``fit`` at the weights of the previous fit, and with the squared hinge at its
        dual variables, if rows, columns and classes are as many. The optimum is the same.

    Attributes
    ----------
    coef_ : float64, shape (1, columns), or (classes, columns) where there are more than two.
    intercept_ : float64, shape (1,) or (classes,): ρ w_bias, 0 without a bias.
    classes_ : the labels, sorted; of two, the larger is the positive one.
    certificate_ : dict of what is proven, see ``ModelCertificate``: ``primal_objective``,
        ``dual_objective``, ``relative_duality_gap``, ``rows_scanned`` …; with the squared hinge
        also ``primal_margin`` and ``upper_bound`` of the best margin, else None. A list of one a
        class for more than two classes. ``partial_fit`` proves less.
    n_iter_ : full epochs, the largest number of any class.
    n_features_in_, feature_names_in_ : as in other scikit-learn estimators.

    Examples
    --------
    >>> model = StreamtronClassifier(C=0.5).fit([[1, 0], [2, 0], [-1, 0], [0, 1]], list("aabb"))
    >>> model.predict([[3, 0], [-3, 0]])
    array(['a', 'b'], dtype='<U1')
    >>> model.certificate_["relative_duality_gap"] <= 0.01
    True
    """

    def __init__(
        self,
        *,
        C: float = 1.0,
        loss: str = "squared_hinge",
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        intercept: str = "penalised",
        class_weight: Mapping[Any, float] | str | None = None,
        tol: float = 0.01,
        max_iter: int = 100,
        random_state: Any = None,
        warm_start: bool = False,
    ) -> None:
        self.C = C
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.intercept = intercept
        self.class_weight = class_weight
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.warm_start = warm_start

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on rows in memory until the gap is proven to be at most ``tol``.

        Parameters
        ----------
        X : shape (rows, columns): dense, scipy sparse (int32 or int64 indices) or a data frame.
        y : shape (rows,): labels of at least two classes.
        sample_weight : shape (rows,), ≥ 0; None = all 1; 0 leaves the row out.

        Raises
        ------
        SettingsError, DataError : both are ValueErrors.

        Warns
        -----
        ConvergenceWarning : ``max_iter`` full epochs did not prove the gap.
        """
        settings = self._settings()
        X, y = self._checked(X, y, reset=True)
        classes, codes = np.unique(y, return_inverse=True)
        rows = _Rows(X, codes, classes, _row_weights(sample_weight, X))
        labels = classes[np.unique(codes if rows.weights is None else codes[rows.weights > 0.0])]
        if len(labels) < 2:
            only = [f"only one class, {label_text(label, quote=True)}" for label in labels.tolist()]
            raise DataError(
                f"y: {only[0] if only else 'no row of a class'}, among the rows of a weight above "
                "0. Wanted are two classes at least."
            )
        return self._fit_memory(rows, settings)

    def partial_fit(
        self,
        X: Any,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train on more rows, without those of earlier calls or of ``fit``.

        The first call is ``fit``, except that classes may be without rows. Each later one maximises
        the dual over the dual variables of the new rows; those of earlier rows stay fixed, and only
        their sum, a vector as long as ``coef_``, is kept. One pass over all parts comes near the
        optimum of all rows, not to it.

        ``dual_objective`` of ``certificate_`` is then proven for all ``rows_scanned`` rows given so
        far, and with the squared hinge ``upper_bound``, which says the same. What the weights reach
        would need the earlier rows, so all else is None, and ``covers`` says so.

        Parameters
        ----------
        X, y, sample_weight : as in ``fit``.
        classes : all labels of all calls; required at the first.

        Raises
        ------
        SettingsError, DataError : class_weight="balanced"; no classes at the first call; a label
            that is not one of them; another problem than in earlier calls, for which their dual
            variables prove nothing: another ``C``, ``class_weight``, ``intercept_scaling``,
            ``intercept`` or loss.
        """
        first = not hasattr(self, "classes_")
        settings = self._settings()
        if self.class_weight == "balanced":
            raise SettingsError(
                "class_weight='balanced' with partial_fit: the rows to come are not known. Give "
                "the weights as {label: weight}."
            )
        if first and classes is None:
            raise SettingsError("classes must be passed on the first call to partial_fit.")
        X, y = self._checked(X, y, reset=first)
        known = np.unique(np.asarray(classes)) if first else self.classes_
        _check_labels(y, known, classes)
        rows = _Rows(X, np.searchsorted(known, y), known, _row_weights(sample_weight, X))
        if first:
            return self._fit_memory(rows, settings)
        source, learners = rows.source(), self._learners(rows, settings)
        for name, value in _problem_of(learners, settings, rows.numbers).items():
            if value != self._problem[name]:  # of which the same counts prove less
                raise SettingsError(
                    f"{name}: {value}, but the earlier rows had {self._problem[name]}, and what "
                    "they prove holds for that alone. Keep it, or call fit with all rows."
                )
        for past, learner in zip(self._past, learners, strict=True):
            past.learn(source, learner)
        self.n_iter_ += 1
        self._publish([_of_past(past) for past in self._past])
        return self

    @_only_with("log_loss", "only the logistic loss estimates probabilities")
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Compute the probability of every class, shape (rows, classes): σ(decision), of more than
        two classes divided by their sum. Only with ``loss="log_loss"``."""
        return np.asarray(self._predict_proba_lr(X))

    @_only_with("log_loss", "only the logistic loss estimates probabilities")
    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Compute the logarithm of ``predict_proba``."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))

    @checks_keywords(SharedNames)
    def fit_shards(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        classes: Sequence[Label] | None = None,
        machine: Machine | None = None,
        workers: int | str | Client | None = None,
        **names: Unpack[SharedNames],
    ) -> Self:
        """Train on shards on disk, as ``streamtron.fit`` does.

        Parameters
        ----------
        shards : files, directories or globs of libsvm text, Parquet or Arrow. Column j of X in
            ``predict`` is the shards' column j + index base.
        classes : the labels if there are more than two; None = two, found in the shards.
        machine : memory limit, threads, cache directory, which do not change the model.
        workers : where the parts of the data are trained on: a number of new processes, the address
            of a Dask scheduler or its file, or an open ``dask.distributed.Client``; None = here.
            Without ``parts`` among the settings there is then one for each shard, up to 64.
        names : other settings, such as ``weight="w", index_base=1, active_set=10**8``.
        """
        settings, machine = self._settings(dict(names)), machine or Machine()
        known = None if classes is None else _sorted_labels(classes)
        paths = as_paths(shards)
        with cache_directory(None, machine) as cache, ExitStack() as stack:
            [settings], _ = with_active_set(paths, [settings], machine, cache)
            opened = open_training_shards(paths, settings, machine, cache, classes=known)
            source = stack.enter_context(opened)
            several = known is not None and len(known) > 2
            settings = settings.but(multiclass=several)
            settings = with_parts(settings, source.shards, workers=workers is not None)
            training = Training(source, settings, machine)
            if settings.parts is None:
                [learners] = train_candidates(training, [settings])
            else:
                with _parts_opened(workers, machine) as open_parts:
                    learners, _ = train_in_parts(training, None, cache, None, open_parts)
            labels = _sorted_labels(source.labels)
            if len(labels) < 2:
                raise DataError(
                    f"all {source.rows} rows have one class, {labels[0]!r}: wanted two. Add shards "
                    "that hold the other one, or check label."
                )
            # of two classes the first label met was the positive one
            sign = -1.0 if not several and source.labels[0] == labels[0] else 1.0
            columns = slice(source.index_base or 0, max(source.width, source.index_base or 0))
            self.n_features_in_ = columns.stop - columns.start
            self._rows = source.rows or 0
            self.__dict__.pop("feature_names_in_", None)
            namer = namer_of(source.reading.contract())
            names_in = getattr(namer, "names", ())[: self.n_features_in_]
            if len(names_in) == self.n_features_in_:
                self.feature_names_in_ = np.array(names_in, dtype=object)
        self._problem = _problem_of(learners, settings, labels)
        return self._conclude(np.array(labels), learners, columns, settings, sign)

    def _fit_memory(self, rows: _Rows, settings: Settings) -> Self:
        warm = (
            self.warm_start
            and hasattr(self, "_counts")
            and np.array_equal(rows.classes, self.classes_)
            and (self._rows, self.coef_.shape[1]) == rows.X.shape
        )

        def begin() -> list[Learner]:
            learners = self._learners(rows, settings)
            for number, learner in enumerate(learners if warm else ()):
                bias = float(self.intercept_[number]) / self._rho if self._rho > 0.0 else 0.0
                b, counts = 1.0, copy.deepcopy(self._counts[number])
                if not learner.loss.quadratic:  # counts of another C prove nothing
                    heaviest = 1.0 if rows.weights is None else max(1.0, float(rows.weights.max()))
                    b, counts = resolution(learner) / heaviest, Counts()
                    set_resolution(learner, b)
                set_weights(learner, b * self.coef_[number], b * bias, counts)
            return learners

        learners = train_learners(rows.source(), begin, settings, Machine())
        self._rows = len(rows.codes)
        self._problem = _problem_of(learners, settings, rows.numbers)
        return self._conclude(rows.classes, learners, slice(0, rows.X.shape[1]), settings)

    def _learners(self, rows: _Rows, settings: Settings) -> list[Learner]:
        """Create one learner for two classes, else one a class; classes are given by number."""
        return one_vs_rest_learners(settings, rows.numbers, self._class_weights(rows))

    def _conclude(
        self,
        classes: NDArray[Any],
        learners: Sequence[Learner],
        columns: slice,
        settings: Settings,
        sign: float = 1.0,
    ) -> Self:
        """Set the fitted attributes, and warn if the tolerance was not reached."""
        self.classes_ = classes
        self.n_iter_ = max(learner.progress.full_epochs for learner in learners)
        self._rho = settings.augmentation
        self._counts = [learner.counts for learner in learners]
        self._past = [EarlierData.of(learner, columns, sign) for learner in learners]
        certificates = [certificate_of(learner) for learner in learners]
        self._publish(certificates)
        worst = max(certificate["relative_duality_gap"] for certificate in certificates)
        limited = any(learner.finished == "epoch limit" for learner in learners)
        if limited or worst > settings.tolerance > 0.0:
            how = f"max_iter={self.max_iter} full epochs" if limited else "a fit that converged"
            warnings.warn(
                f"{how} proved a relative duality gap of {up(worst, 3)}, tol={settings.tol} was "
                f"wanted. Increase {'max_iter or ' if limited else ''}tol.",
                ConvergenceWarning,
                stacklevel=4,
            )
        return self

    def _publish(self, certificates: list[dict[str, Any]]) -> None:
        """Set weights and certificates."""
        weights = np.array([past.average for past in self._past])
        self.coef_, self.intercept_ = weights[:, :-1].copy(), self._rho * weights[:, -1]
        proofs = [ModelCertificate(certificate) for certificate in certificates]
        self.certificate_ = proofs[0] if len(proofs) == 1 else proofs

    def _settings(self, names: Mapping[str, Any] | None = None) -> Settings:
        try:
            parameters = {name: getattr(self, key) for key, name in SKLEARN_NAMES.items()}
            parameters["seed"] = _seed(self.random_state)
            if not self.fit_intercept:
                parameters["rho"] = 0.0
            settings = Settings.from_dict({**parameters, **(names or {})})
        except SettingsError as error:
            raise SettingsError(_with_sklearn_names(str(error))) from error
        if self.fit_intercept and not settings.rho > 0:
            raise SettingsError(
                f"intercept_scaling is {self.intercept_scaling}: wanted a number above 0. For no "
                "bias give fit_intercept=False."
            )
        return settings

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, NDArray[Any]]:
        with np.errstate(over="ignore"):  # then refused as infinite
            X, y = validate_data(
                self, X, y, accept_sparse="csr", dtype=np.float32, order="C", reset=reset
            )
        check_classification_targets(y)
        if sparse.issparse(X) and not X.has_canonical_format:
            X = X.copy()
            X.sum_duplicates()
        return X, y

    def _class_weights(self, rows: _Rows) -> dict[Label, float] | None:
        """Return the weight of every class by its number."""
        if not self.class_weight:
            return None
        if self.class_weight == "balanced":
            sums = np.bincount(rows.codes, rows.weights, minlength=len(rows.classes)).astype(float)
            weights = sums.sum() / (len(sums) * np.where(sums > 0.0, sums, 1.0))
        else:
            weights = compute_class_weight(self.class_weight, classes=rows.classes, y=rows.classes)
        return dict(zip(rows.numbers, weights.tolist(), strict=True))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


@contextmanager
def _parts_opened(
    workers: int | str | Client | None, machine: Machine
) -> Iterator[OpenParts | None]:
    """Give what opens parts on these workers; None = in this process."""
    if workers is None:
        yield None
        return
    from streamtron.cluster.connect import connect
    from streamtron.cluster.parts import parts_on

    where = {"scheduler": workers} if isinstance(workers, str) else {"workers": workers}
    with connect(**where, machine=machine) as connected:
        yield parts_on(connected)


def _problem_of(
    learners: Sequence[Learner], settings: Settings, labels: Sequence[Label]
) -> dict[str, Any]:
    """Return by scikit-learn's names what makes the extended rows; a class weighs 1 if unnamed."""
    weights: dict[Label, float] = {}
    for learner in learners:
        weights |= learner.targets.class_weights or {}
    return {
        "loss": settings.loss,
        "intercept": settings.intercept,
        "C": 0.5 / settings.delta2,
        "intercept_scaling": settings.rho,
        "class_weight": [float(weights.get(label, 1.0)) for label in labels],
    }


def _of_past(past: EarlierData) -> dict[str, Any]:
    """Return a certificate of D alone, and of the upper bound where there are margins."""
    sums, (upper, rounding) = past.scan_sums, past.scan_sums.upper_bound()
    return {
        **dict.fromkeys(Certificate(0.0, 1.0, 0.0, 0, 1.0).to_dict()),
        "upper_bound": upper if sums.loss.quadratic and not sums.free else None,
        "dual_objective": past.dual or None,
        "rounding_bound": rounding,
        "rows_scanned": past.rows,
        "covers": f"this holds for all {past.rows} rows given so far; nothing is proven of the "
        "weights, for the earlier ones were not there to be scanned at them",
    }


def _check_labels(y: NDArray[Any], known: NDArray[Any], given: ArrayLike | None) -> None:
    """Refuse labels of ``partial_fit`` that are not the classes of its first call."""
    if given is not None and not np.array_equal(known, np.unique(given)):
        raise SettingsError(f"classes: {given}, at the first call they were {known}.")
    if len(known) < 2:
        raise DataError(f"classes: {known}. Wanted are at least two.")
    if unknown := sorted(set(np.unique(y).tolist()) - set(known.tolist()), key=repr):
        raise DataError(f"y: label {unknown[0]!r} is not one of the classes {known}.")


def _row_weights(sample_weight: ArrayLike | None, X: Any) -> NDArray[np.float64] | None:
    if sample_weight is None:
        return None
    weights: NDArray[np.float64] = _check_sample_weight(sample_weight, X, dtype=np.float64)
    for kind, wrong in (("Negative", weights < 0.0), ("Too large", ~(weights <= LARGEST_WEIGHT))):
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(
                f"{kind} values in data passed to `sample_weight`: row {row} has {weights[row]}. "
                "Weights are 0, or at most 1e30."
            )
    return weights


def _seed(random_state: Any) -> Any:
    if random_state is None:
        return Settings().seed
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    return random_state  # of a wrong kind it is refused with the settings


def _with_sklearn_names(message: str) -> str:
    """Replace the setting that a message begins with by scikit-learn's name."""
    for sklearn_name, name in SKLEARN_NAMES.items():
        for start in (f"{name} ".replace("_", "-"), f"{name}-of "):
            if message.startswith(start):
                return sklearn_name + message[len(start) - 1 :]
    return message


def _sorted_labels(labels: Sequence[Label]) -> list[Label]:
    """Sort labels; numbers become floats, as in shards."""
    array = np.unique(np.asarray(labels))
    return list((array.astype(float) if array.dtype.kind in "iu" else array).tolist())
