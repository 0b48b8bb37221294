"""Train an estimator's learners on shards, as ``streamtron.fit`` does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import Listener
from streamtron.core.rows import Label
from streamtron.data import ShardSource
from streamtron.data.profile import with_guesses
from streamtron.estimator.rows import sorted_labels
from streamtron.runs.fit import Job, opened
from streamtron.runs.inputs import cache_directory
from streamtron.runs.learners import Training
from streamtron.runs.report import in_order
from streamtron.solver.learner import Learner

if TYPE_CHECKING:
    from streamtron.cluster.client import Client


def train_on_shards(
    paths: list[str], settings: Settings, machine: Machine, classes: Sequence[Label] | None,
    workers: int | str | Client | None, listen: Listener,
) -> tuple[Training[ShardSource], list[Learner]]:  # fmt: skip
    """Return the training, which has ended, and its learners in the order of the sorted labels; see
    ``StreamtronEstimator.fit_shards``."""
    if settings.regression and classes is not None:
        raise SettingsError("classes: numbers are predicted, and there are none. Leave them out.")
    if settings.multilabel:
        raise SettingsError(
            "multilabel: an estimator predicts one label a row. Use streamtron.fit(…, "
            "multilabel=True), whose model predicts all."
        )
    known = None if classes is None else sorted_labels(classes)
    settings = with_guesses(settings, paths, machine.threads)
    with cache_directory(None, machine) as cache, ExitStack() as stack:
        open_parts = None
        if workers is not None:
            from streamtron.cluster.connect import connect
            from streamtron.cluster.parts import parts_on

            where = {"scheduler": workers} if isinstance(workers, str) else {"workers": workers}
            open_parts = parts_on(stack.enter_context(connect(**where, machine=machine)))
        job = Job(
            paths, [settings], machine, listen, cache, None, classes=known, open_parts=open_parts
        )
        fitting = stack.enter_context(opened(job))
        learners, _ = fitting.train()
        source, settings = fitting.training.source, fitting.training.settings
        if len(source.labels) < 2 and not settings.regression:
            raise DataError(
                f"all {source.rows} rows have one class, {sorted_labels(source.labels)[0]!r}: "
                "wanted two. Add shards that hold the other one, or check label."
            )
        return fitting.training, in_order(learners, source.labels, settings)
