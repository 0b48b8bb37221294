"""StreamtronClassifier: a scikit-learn estimator of classes with a certificate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model._base import LinearClassifierMixin, SparseCoefMixin  # as all of them
from sklearn.utils.metaestimators import available_if

from streamtron.core.certificate import Certificate
from streamtron.core.config import PROBABILITIES
from streamtron.core.errors import SettingsError
from streamtron.estimator.base import StreamtronEstimator, learners_of, problem_of
from streamtron.estimator.parameters import of_classes, settings_of
from streamtron.estimator.rows import MatrixRows, check_labels, checked_matrix, row_weights
from streamtron.solver.partial_fit import EarlierData


def _has_probabilities(model: StreamtronClassifier) -> bool:
    if model.loss not in PROBABILITIES:
        expected = "expected 'log_loss' or 'softmax' for probabilities."
        raise AttributeError(f"loss is {model.loss!r}: {expected}")
    return True


class StreamtronClassifier(SparseCoefMixin, LinearClassifierMixin, StreamtronEstimator):  # type: ignore[misc]
    """Linear classifier with a proven duality gap; it replaces ``LinearSVC`` and
    ``LogisticRegression``.

    Minimises ½(‖w‖² + w_bias²) + Σ C_k φ(l_k(w·x_k + ρ w_bias)), a sum and not a mean; C_k is C
    times the weights of row and class. By ``loss``, φ(m) is max(0, 1 − m)², ln(1 + e^−m) or
    max(0, 1 − m). That is the objective of ``LinearSVC(loss="squared_hinge")``,
    ``LogisticRegression(solver="liblinear")`` and ``LinearSVC(loss="hinge")``. More than two
    classes are trained one-vs-rest; a class weight then applies to the rows of that class only, as
    in LIBLINEAR. With ``loss="softmax"`` they are one problem, ½‖W‖² + Σ C_k (ln Σ_j exp z_kj −
    z_ky), that of scikit-learn's other solvers of ``LogisticRegression`` but for the bias, which is
    penalised; two classes are then ``"log_loss"``, as there.

    X is rounded to float32 for training: subtract an offset from a column of large numbers that
    differ by little, such as timestamps. Values that become infinite are an error. Decisions use X
    as given. Up to 4,096 nonzeros the weights of a smooth loss are refined by Newton's method
    whatever ``tol`` is.

    Parameters
    ----------
    C : penalty of the loss, > 0.
    loss : ``"squared_hinge"``, ``"log_loss"`` or ``"hinge"``, φ of the objective; or ``"softmax"``,
        all classes as one problem. With it and ``"log_loss"`` there are ``predict_proba`` and
        ``predict_log_proba``.
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
    n_jobs : threads; None = one, -1 = all processors, -2 = all but one. The weights are the same
        bits.
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
    >>> model.certificate_["relative_duality_gap"] <= 0.001
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
        penalty: str = "l2",
        l1_ratio: float | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        tol: float = 0.001,
        max_iter: int = 100,
        random_state: Any = None,
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
        settings_of(self)
        X, y = checked_matrix(self, X, y, reset=True)
        classes, codes = np.unique(y, return_inverse=True)
        settings = settings_of(self, of_classes(self, classes))
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
        if self.class_weight == "balanced":
            raise SettingsError("partial_fit with class_weight='balanced': give {label: weight}.")
        if first and classes is None:
            raise SettingsError("classes must be passed on the first call to partial_fit.")
        X, y = checked_matrix(self, X, y, reset=first)
        known = np.unique(np.asarray(classes)) if first else self.classes_
        settings = settings_of(self, of_classes(self, known))
        if settings.ratio:
            raise SettingsError(f"partial_fit with penalty={self.penalty!r}: give penalty='l2'.")
        check_labels(y, known, classes)
        rows = MatrixRows(X, np.searchsorted(known, y), known, row_weights(sample_weight, X))
        if first:
            return self._fit_memory(rows, settings)
        data = rows.data()
        learners = learners_of(rows, data, settings, self.class_weight)
        for name, value in problem_of(learners, settings, rows.numbers).items():
            if value != self._problem[name]:  # of which the same α prove less
                raise SettingsError(
                    f"{name} is {value}, and was {self._problem[name]} for the earlier rows: keep "
                    "it, or call fit with all rows."
                )
        for past, learner in zip(self._past, learners, strict=True):
            past.learn(data, learner, data.numbers)
        self.n_iter_ += 1
        self._publish([_certificate_of(past) for past in self._past])
        return self

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Compute the probability of every class, shape (rows, classes): σ(decision), of more than
        two classes divided by their sum, or the softmax of all decisions. Only with
        ``loss="log_loss"`` or ``"softmax"``."""
        if self.loss == "softmax" and (decisions := self.decision_function(X)).ndim == 2:
            from scipy.special import softmax

            return np.asarray(softmax(decisions, axis=1))
        return np.asarray(self._predict_proba_lr(X))

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Compute the logarithm of ``predict_proba``."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))


def _certificate_of(past: EarlierData) -> dict[str, Any]:
    """Return a certificate of D alone, and of the upper bound where there are margins."""
    dual, sums = past.dual, past.scan_sums
    has_margins = sums.loss.quadratic and not sums.free
    proof = Certificate(math.inf, dual, past.rows, has_margins=has_margins)
    return {
        **dict.fromkeys(proof.to_dict()),
        "upper_bound": proof.upper_bound,
        "dual_objective": dual or None,
        "rows_scanned": past.rows,
        "covers": f"this holds for all {past.rows} rows given so far; nothing is proven of the "
        "weights, for the earlier ones were not there to be scanned at them",
    }
