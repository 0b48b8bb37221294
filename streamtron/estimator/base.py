"""What the estimators of scikit-learn share: training in memory and on shards, and their results.

Rows in memory go through the same training loop as shards and give the same weights.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, MachineError, SettingsError
from streamtron.core.events import Event, Listener, ReadingDone, ignore, now_and_then
from streamtron.core.rows import Data, Label
from streamtron.core.text import format_size, label_text, up
from streamtron.data.profile import with_guesses
from streamtron.estimator.parameters import machine_of, settings_of
from streamtron.estimator.rows import MatrixRows, sorted_labels
from streamtron.model.display import ModelCertificate, joint_certificate
from streamtron.model.scoring import namer_of
from streamtron.runs.fit import opened
from streamtron.runs.inputs import as_paths, cache_directory
from streamtron.runs.job import Call
from streamtron.runs.learners import against_rest, in_order, train_in_groups, vector_length
from streamtron.runs.memory import fits_in_memory, plan_memory, size_of
from streamtron.runs.report import certificate_of, sign_of_learner
from streamtron.solver.learner import Learner
from streamtron.solver.partial_fit import EarlierData

if TYPE_CHECKING:
    from streamtron.cluster.client import Client


def learners_of(
    rows: MatrixRows, data: Data, settings: Settings, class_weight: Any
) -> list[Learner]:
    """Create one learner for two classes, for numbers or for softmax, else one a class; classes are
    given by number."""
    weights, labels = rows.class_weights(class_weight), data.labels
    several = len(labels) > 2 and not (settings.regression or settings.softmax)
    positives: Sequence[Label | None] = labels if several else [labels[1] if labels else None]
    return [
        Learner(
            settings,
            vector_length(settings, data.columns, len(labels)),
            data.facts,
            labels,
            against_rest(weights, label) if several else weights,
            label,
        )
        for label in positives
    ]


def check_width(columns: int, classes: int, machine: Machine) -> None:
    """Refuse columns whose weights do not fit in memory, where an estimator holds all: as
    ``coef_``, and as the weights and the dual sums from which ``partial_fit`` goes on."""
    needed = 3 * 8 * columns * (classes if classes > 2 else 1)
    if needed > machine.memory_limit:
        raise MachineError(
            f"X: {columns:,} columns, whose coef_ and the like take {format_size(needed)}; the "
            f"limit is {format_size(machine.memory_limit)}. Use streamtron.fit, whose model holds "
            "the weights that are not 0 alone."
        )


def problem_of(
    learners: Sequence[Learner], settings: Settings, labels: Sequence[Label]
) -> dict[str, Any]:
    """Return by scikit-learn's names what makes the extended rows; a class weighs 1 if unnamed."""
    weights: dict[Label, float] = {}
    for learner in learners:
        weights |= learner.targets.class_weights or {}
    return {
        "loss": settings.loss,
        "epsilon": settings.epsilon,
        "intercept": settings.intercept,
        "C": settings.price,
        "intercept_scaling": settings.rho,
        "penalty": settings.penalty,
        "class_weight": [float(weights.get(label, 1.0)) for label in labels],
    }


def _lines(name_of: Callable[[Label], str] | None) -> Listener:
    """Return a listener that prints a line for every reading, and every ten seconds of one."""
    is_due = now_and_then(begins=False)

    def listen(event: Event) -> None:
        label = event.problem.label if isinstance(event, ReadingDone) else None
        of_class = "" if name_of is None or label is None else f"class {name_of(label)}: "
        if is_due(event):
            sys.stdout.write(f"{of_class}{event}\n")
            sys.stdout.flush()

    return listen


class StreamtronEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of ``StreamtronClassifier`` and ``StreamtronRegressor``, which have the parameters."""

    C: float
    loss: str
    fit_intercept: bool
    intercept_scaling: float
    intercept: str
    tol: float
    max_iter: int
    random_state: Any
    n_jobs: int | None
    verbose: int
    class_weight: Mapping[Any, float] | str | None = None

    coef_: Any
    intercept_: Any

    def fit_shards(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        classes: Sequence[Label] | None = None,
        machine: Machine | None = None,
        workers: int | str | Client | None = None,
        **names: Any,
    ) -> Self:
        """Train on shards on disk, as ``streamtron.fit`` does.

        Parameters
        ----------
        shards : files, directories or globs of libsvm text, Parquet or Arrow. Column j of X in
            ``predict`` is the shards' column j + index base.
        classes : the labels if there are more than two; None = found in the shards, two, or any
            number with ``multiclass=True``.
        machine : memory limit, threads, cache directory, which do not change the model.
        workers : where the parts of the data are trained on: a number of new processes, the address
            of a Dask scheduler or its file, or an open ``dask.distributed.Client``; None = here.
            Without ``parts`` among the settings there is then one for each shard, up to 64.
        names : other settings, such as ``weight="w", index_base=1, active_set=10**8``.
        """
        settings, machine = settings_of(self, dict(names)), machine or machine_of(self.n_jobs)
        several = settings.multiclass or (classes is not None and len(classes) > 2)
        name_of = label_text if several else None
        listen = _lines(name_of) if self.verbose else ignore
        if settings.multilabel or (settings.regression and classes is not None):
            reason = "one label a row" if settings.multilabel else "numbers, which have no classes"
            raise SettingsError(f"an estimator predicts {reason}. Use streamtron.fit.")
        known, paths = None if classes is None else sorted_labels(classes), as_paths(shards)
        settings = with_guesses(settings, paths, machine.threads)
        with cache_directory(None, machine) as cache, ExitStack() as stack:
            open_parts = None
            if workers is not None:
                from streamtron.cluster.connect import connect
                from streamtron.cluster.parts import parts_on

                where = {"scheduler": workers} if isinstance(workers, str) else {"workers": workers}
                open_parts = parts_on(stack.enter_context(connect(**where, machine=machine)))
            call = Call.begin(machine, listen, open_parts)
            fitting = stack.enter_context(opened(paths, [settings], call, cache, classes=known))
            data = fitting.data
            check_width(data.width, len(data.labels), machine)
            [learners] = fitting.train()
        settings = fitting.settings
        if len(data.labels) < 2 and not settings.regression:
            raise DataError(
                f"all {data.rows} rows have one class, {sorted_labels(data.labels)[0]!r}: "
                "expected two. Add shards that hold the other one, or check label."
            )
        learners = in_order(learners, data.labels, settings)
        labels, base = sorted_labels(data.labels), data.index_base
        transformer = data.reading.transformer
        self.n_features_in_ = transformer.width if transformer else max(data.width - base, 0)
        namer = namer_of(data.reading.contract())
        self._name_features(getattr(namer, "names", ())[: self.n_features_in_])
        self.transformer_ = None if transformer is None else transformer.estimator
        self._problem = problem_of(learners, settings, labels)
        sign = sign_of_learner(data.labels, labels, settings)
        numbers = data.numbers.astype(np.int64) - base
        return self._conclude(np.array(labels), learners, numbers, settings, sign)

    def _name_features(self, names: Sequence[str]) -> None:
        """Set or drop the names of the columns; they are kept where all have one."""
        self.__dict__.pop("feature_names_in_", None)
        if names and len(names) == self.n_features_in_:
            self.feature_names_in_ = np.array(names, dtype=object)

    def _fit_memory(self, rows: MatrixRows, settings: Settings) -> Self:
        machine = machine_of(self.n_jobs)
        check_width(rows.X.shape[1], len(rows.classes), machine)
        data = rows.data()
        size = size_of(data, settings)
        if not fits_in_memory(settings, size):
            data.held = None
        learners = learners_of(rows, data, settings, self.class_weight)
        classes = [label_text(label) for label in rows.classes.tolist()]
        name_of = (lambda number: classes[int(number)]) if len(classes) > 2 else None
        listen = _lines(name_of) if self.verbose else ignore
        plan = plan_memory(settings, machine, size, len(learners))
        plan.check(settings)
        train_in_groups(data, learners, settings, machine, listen, at_once=plan.at_once)
        self._problem = problem_of(learners, settings, rows.numbers)
        return self._conclude(rows.classes, learners, data.numbers.astype(np.int64), settings)

    def _conclude(
        self,
        classes: NDArray[Any],
        learners: Sequence[Learner],
        numbers: NDArray[np.int64],
        settings: Settings,
        sign: float = 1.0,
    ) -> Self:
        """Set the fitted attributes, and warn if the tolerance was not reached. ``numbers`` : of
        the columns, by rank."""
        if len(classes):
            self.classes_ = classes
        self.n_iter_ = max(learner.progress.full_epochs for learner in learners)
        self._centers = np.array([learner.targets.center for learner in learners])
        columns = self.n_features_in_
        self._past = [EarlierData.of(learner, numbers, columns, sign) for learner in learners]
        certificates = [certificate_of(learner) for learner in learners]
        self._publish(certificates)
        worst = max(certificate["relative_duality_gap"] for certificate in certificates)
        limited = any(learner.finished == "epoch limit" for learner in learners)
        if limited or worst > settings.tolerance > 0.0:
            how = f"max_iter={self.max_iter} full epochs" if limited else "a fit that converged"
            warnings.warn(
                f"{how} proved a relative duality gap of {up(worst, 3)}, expected "
                f"tol={settings.tol}. Increase {'max_iter or ' if limited else ''}tol.",
                ConvergenceWarning,
                stacklevel=4,
            )
        return self

    def _publish(self, certificates: list[dict[str, Any]]) -> None:
        weights = np.concatenate([past.weights for past in self._past])
        rhos = np.array([past.rho for past in self._past])
        self._set_weights(weights[:, :-1].copy(), rhos * weights[:, -1] + self._centers)
        joint = joint_certificate(certificates) if len(certificates) > 1 else certificates[0]
        self.certificate_ = ModelCertificate(joint)

    def _set_weights(self, weights: NDArray[np.float64], bias: NDArray[np.float64]) -> None:
        """Set the weights, shape (K, columns), and the bias, shape (K,), of K learners."""
        self.coef_, self.intercept_ = weights, bias

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
