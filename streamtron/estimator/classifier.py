"""StreamtronClassifier: a scikit-learn estimator with a certificate.

Rows in memory go through the same training loop as shards and give the same weights.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model._base import LinearClassifierMixin, SparseCoefMixin  # as all of them
from sklearn.utils.metaestimators import available_if

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import SettingsError
from streamtron.core.names import SharedNames, checks_keywords
from streamtron.core.rows import Label
from streamtron.core.text import label_text, up
from streamtron.estimator.parameters import accepts_keywords, machine_of, parameters_of, settings_of
from streamtron.estimator.partial import certificate_of_past, problem_of
from streamtron.estimator.rows import MatrixRows, check_labels, checked_matrix, row_weights
from streamtron.estimator.shards import train_on_shards
from streamtron.estimator.watching import Watched, watched
from streamtron.model.display import ModelCertificate, joint_certificate
from streamtron.model.linear_model import LinearModel
from streamtron.runs.inputs import as_model, as_paths
from streamtron.runs.learners import one_vs_rest_learners, train_learners
from streamtron.runs.outcome import certificate_of
from streamtron.runs.upper_bounds import resolution
from streamtron.solver.duals import Counts
from streamtron.solver.learner import Learner, set_resolution, set_weights
from streamtron.solver.partial_fit import EarlierData

if TYPE_CHECKING:
    from streamtron.cluster.client import Client

Method = TypeVar("Method")


def _only_with(loss: str, why: str) -> Callable[[Method], Method]:
    """Let a method exist with one loss only; else an AttributeError says why."""

    def has_loss(model: StreamtronClassifier) -> bool:
        if model.loss != loss:
            raise AttributeError(f"{why}, and loss is {model.loss!r}: wanted {loss!r}.")
        return True

    return cast(Callable[[Method], Method], available_if(has_loss))


class StreamtronClassifier(Watched, SparseCoefMixin, LinearClassifierMixin, BaseEstimator):  # type: ignore[misc]
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

    Keywords of ``LinearSVC``, ``LogisticRegression`` and ``SGDClassifier`` that say what is done
    anyway are accepted: ``dual``, ``solver="liblinear"``. Others are refused by a
    SettingsError that says what to do.

    Parameters
    ----------
    C : penalty of the loss, > 0.
    loss : ``"squared_hinge"``, ``"log_loss"`` or ``"hinge"``, φ of the objective. With
        ``"log_loss"`` there are ``predict_proba`` and ``predict_log_proba``.
    fit_intercept : whether to fit a bias.
    intercept_scaling : ρ > 0, the constant feature of the bias; a larger one penalises it less.
    intercept : ``"penalised"`` as a weight is, or ``"free"``, as scikit-learn's LogisticRegression
        has it but for ``solver="liblinear"``; ``"none"`` as without ``fit_intercept``.
    penalty : ``"l2"``, ½‖w‖²; ``"l1"``, ‖w‖₁; or ``"elasticnet"``, r‖w‖₁ + ½(1 − r)‖w‖². With the
        last two most weights are 0: see ``sparsify``. The bias is never in the 1-norm.
    l1_ratio : r of the elastic net, in [0, 1]; None is 0.5.
    class_weight : None, ``"balanced"`` (n / (classes · n_class), rows counted by their weights),
        or {label: weight > 0}; multiplies C.
    tol : relative duality gap in [0, 1) at which training ends; 0 = down to rounding. The gap is
        proven: the optimum is at least (1 − tol) times the objective reached.
    max_iter : full epochs at most, ≥ 1.
    random_state : seed of the order of rows, ≥ 0; None is seed 0.
    warm_start : begin ``fit`` at the weights of the previous fit, and with the squared hinge at its
        dual variables, if rows, columns and classes are as many. The optimum is the same.
    n_jobs : threads; None or -1 = all processors, -2 = all but one. The weights are the same bits.
    verbose : whether to print a line for every reading, and every ten seconds.

    Attributes
    ----------
    coef_ : float64, shape (1, columns), or (classes, columns) where there are more than two.
    intercept_ : float64, shape (1,) or (classes,): ρ w_bias, 0 without a bias.
    classes_ : the labels, sorted; of two, the larger is the positive one.
    certificate_ : dict of what is proven, see ``ModelCertificate``: ``relative_duality_gap`` (of
        more than two classes the widest), ``rows_scanned``; of two classes also
        ``primal_objective``, ``dual_objective`` …, and with the squared hinge ``primal_margin`` and
        ``upper_bound`` of the best margin; of more classes ``learners``, these of each class.
        ``partial_fit`` proves less.
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

    @accepts_keywords
    def __init__(
        self,
        *,
        C: float = 1.0,
        loss: str = "squared_hinge",
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        intercept: str = "penalised",
        penalty: str = "l2",
        l1_ratio: float | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        tol: float = 0.01,
        max_iter: int = 100,
        random_state: Any = None,
        warm_start: bool = False,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.C = C
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.intercept = intercept
        self.penalty = penalty
        self.l1_ratio = l1_ratio
        self.class_weight = class_weight
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.verbose = verbose

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
        settings = settings_of(self)
        X, y = checked_matrix(self, X, y, reset=True)
        classes, codes = np.unique(y, return_inverse=True)
        rows = MatrixRows(X, codes, classes, row_weights(sample_weight, X))
        rows.check_classes()
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
        settings = settings_of(self)
        if not first and not hasattr(self, "_past"):
            raise SettingsError(
                "partial_fit after from_model: a model keeps no dual variables of its rows. Call "
                "fit with all rows, or streamtron.update with the new shards."
            )
        if self.class_weight == "balanced":
            raise SettingsError(
                "class_weight='balanced' with partial_fit: the rows to come are not known. Give "
                "the weights as {label: weight}."
            )
        if settings.ratio:
            raise SettingsError(
                f"penalty={self.penalty!r} with partial_fit, which needs weights that are the sum "
                "of dual variables. Call fit with all rows, or give penalty='l2'."
            )
        if first and classes is None:
            raise SettingsError("classes must be passed on the first call to partial_fit.")
        X, y = checked_matrix(self, X, y, reset=first)
        known = np.unique(np.asarray(classes)) if first else self.classes_
        check_labels(y, known, classes)
        rows = MatrixRows(X, np.searchsorted(known, y), known, row_weights(sample_weight, X))
        if first:
            return self._fit_memory(rows, settings)
        source, learners = rows.source(), self._learners(rows, settings)
        for name, value in problem_of(learners, settings, rows.numbers).items():
            if value != self._problem[name]:  # of which the same counts prove less
                raise SettingsError(
                    f"{name}: {value}, but the earlier rows had {self._problem[name]}, and what "
                    "they prove holds for that alone. Keep it, or call fit with all rows."
                )
        for past, learner in zip(self._past, learners, strict=True):
            past.learn(source, learner)
        self.n_iter_ += 1
        self._publish([certificate_of_past(past) for past in self._past])
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
        settings, machine = settings_of(self, dict(names)), machine or machine_of(self.n_jobs)
        name_of = label_text if classes is not None and len(classes) > 2 else None
        with watched(self, name_of) as listen:
            fit = train_on_shards(as_paths(shards), settings, machine, classes, workers, listen)
        self.n_features_in_ = fit.columns.stop - fit.columns.start
        self._name_features(fit.names)
        self._rows = fit.rows
        self._problem = problem_of(fit.learners, fit.settings, fit.labels)
        labels = np.array(fit.labels)
        return self._conclude(labels, fit.learners, fit.columns, fit.settings, fit.sign)

    @classmethod
    def from_model(cls, model: LinearModel | str | os.PathLike[str]) -> Self:
        """Return a fitted classifier of a model's weights, classes and certificate.

        Parameters
        ----------
        model : a model or its file; its settings become parameters, as far as they are such.
            Column j of X is its ``weights[…, j]``: it takes no documents and no records.

        Raises
        ------
        SettingsError : a multilabel model; a model of the hard margin.
        """
        model = as_model(model)
        if model.kind == "multilabel":
            raise SettingsError(
                "a multilabel model, and a classifier gives a row one label. Use its own predict."
            )
        fitted = cls(**parameters_of(model))
        fitted.coef_ = np.atleast_2d(model.weights).copy()
        fitted.intercept_ = np.atleast_1d(model.bias).copy()
        fitted.classes_, fitted.n_iter_ = np.array(model.classes), 0
        fitted.n_features_in_ = model.columns
        fitted._name_features(model.feature_names[: model.columns])
        fitted.certificate_ = ModelCertificate(model.certificate)
        return fitted

    def _name_features(self, names: Sequence[str]) -> None:
        """Set or drop the names of the columns; they are kept where all have one."""
        self.__dict__.pop("feature_names_in_", None)
        if names and len(names) == self.n_features_in_:
            self.feature_names_in_ = np.array(names, dtype=object)

    def _fit_memory(self, rows: MatrixRows, settings: Settings) -> Self:
        machine = machine_of(self.n_jobs)
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

        if warm:
            self.densify()
        classes = [label_text(label) for label in rows.classes.tolist()]
        name_of = (lambda number: classes[int(number)]) if len(classes) > 2 else None
        with watched(self, name_of, X=rows.X, y=rows.classes[rows.codes]) as listen:
            learners = train_learners(rows.source(), begin, settings, machine, listen)
        self._rows = len(rows.codes)
        self._problem = problem_of(learners, settings, rows.numbers)
        return self._conclude(rows.classes, learners, slice(0, rows.X.shape[1]), settings)

    def _learners(self, rows: MatrixRows, settings: Settings) -> list[Learner]:
        """Create one learner for two classes, else one a class; classes are given by number."""
        return one_vs_rest_learners(settings, rows.numbers, rows.class_weights(self.class_weight))

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
        joint = joint_certificate(certificates) if len(certificates) > 1 else certificates[0]
        self.certificate_ = ModelCertificate(joint)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
