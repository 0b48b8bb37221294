"""Change a finished run: rows come in, rows go out, and training goes on until all are certified.

Counts of rows that stay are kept, new rows start at 0, and the next reading sums a = Σ c_k y_k
afresh. What is changed is staged beside the run and committed at once: see ``transaction``.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import Listener
from streamtron.core.files import nothing_empty, parse_json, reading_from
from streamtron.data import (
    Cache,
    Dataset,
    Manifest,
    ReaderConfig,
    ShardFile,
    Skipped,
    deletions,
    drop_cached,
)
from streamtron.data.recipes import recipe_digest
from streamtron.model.linear_model import LinearModel
from streamtron.runs import transaction, witness
from streamtron.runs.directory import PARTS, Checkpoint, Run, stamps_of, write_record
from streamtron.runs.finished_run import (
    FinishedRun,
    check_as_read,
    check_bounds,
    check_model,
    locate,
    read_manifest,
    shards_of,
)
from streamtron.runs.inputs import check_outputs, expected_of, open_dataset, reading_from_model
from streamtron.runs.learners import Training, class_weights
from streamtron.runs.memory import fits_in_memory, plan_memory, size_of
from streamtron.runs.parts import (
    OpenParts,
    PartsTraining,
    executor_of,
    plan_changed,
    train_on,
    with_parts_after,
)
from streamtron.runs.report import (
    REPORT,
    Outcome,
    build_outcome,
    certificate_of,
    deletions_of,
    in_order,
    write_outcome,
)
from streamtron.solver.changes import add_rows, begin_change, take_counts
from streamtron.solver.checkpoint import State
from streamtron.solver.duals import Pieces, SavedCounts
from streamtron.solver.learner import Learner, renumber

_log = logging.getLogger("streamtron")

FEW = 0.25
"""New shards of at most this part of the run's bytes are first solved alone, the old counts fixed.
With more of them the old counts change so much that this does not pay."""


class RowChange(NamedTuple):
    """The rows of a run from its change on: some come in, or some go out.

    ``shards`` : files of all rows, the new ones at the end. ``added`` : the new shards. ``removed``
    : rising numbers of the run's rows that go out.
    """

    shards: Sequence[ShardFile]
    added: Sequence[ShardFile] = ()
    removed: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def remaining(self, pieces: Pieces) -> Pieces:
        """Yield the counts of the run's rows that stay, by their new numbers."""
        for numbers, values in pieces:
            stays = ~np.isin(numbers, self.removed)
            staying = numbers[stays]
            yield staying - np.searchsorted(self.removed, staying), values[stays]


class EditableRun(NamedTuple):
    """A finished run that update or forget changes, with its settings from the change on; the
    model, how its shards were read, and their files, in the order of the manifest."""

    finished: FinishedRun
    machine: Machine
    listen: Listener
    open_parts: OpenParts | None
    began: float
    settings: Settings
    model_path: str
    model: LinearModel
    manifest: Manifest
    reading: ReaderConfig
    shards: list[ShardFile]

    @classmethod
    @contextmanager
    def opened(
        cls,
        run: str | os.PathLike[str],
        machine: Machine | None,
        listen: Listener,
        open_parts: OpenParts | None,
        **changes: Any,
    ) -> Iterator[EditableRun]:
        """Open a run to change it, see ``FinishedRun.to_change``; ``changes`` of its settings, None
        = as they are."""
        began, machine = time.perf_counter(), machine or Machine()
        place = locate(run, machine.run_dir)
        with nothing_empty(machine.cache_dir), FinishedRun.to_change(place) as finished:
            if finished.settings.paper:
                raise SettingsError(
                    f"{finished.path}: a run of stages; the paper's procedure starts at 0 with all "
                    "rows. Fit anew with all shards."
                )
            given = {name: value for name, value in changes.items() if value is not None}
            settings = finished.settings.but(**given)
            manifest = read_manifest(finished.path)
            model = LinearModel.load(place.model)
            check_model(finished, model)
            # text is prepared with the columns' numbers in the file, before the base is removed
            reading = replace(reading_from_model(model), index_base=settings.index_base)
            shards = shards_of(manifest, finished.path)
            yield cls(
                finished,
                machine,
                listen,
                open_parts,
                began,
                settings,
                place.model,
                model,
                manifest,
                reading,
                shards,
            )

    @property
    def certificates(self) -> list[dict[str, Any]]:
        """Those of the model, of many classes one a class."""
        certificate: Any = self.model.certificate or {}
        return list(certificate.get("learners", [certificate]))

    @property
    def cache_directory(self) -> str:
        """Where the prepared files of the shards are."""
        return self.machine.cache_dir or str(self.finished.path / transaction.CACHE)

    def check_report(
        self, report: str | os.PathLike[str] | None, inputs: Sequence[str]
    ) -> str | None:
        """Return the report's absolute path; raise a SettingsError if it would replace a file that
        is read or written."""
        path, cache = self.finished.path, self.machine.cache_dir
        files = check_outputs(
            {"report": report},
            [self.model_path, *inputs],
            runs=[path],
            directories={"run directory": path},
            cache=cache,
        )
        return files["report"]

    def data(self, shards: Sequence[ShardFile]) -> Dataset:
        """Prepare shards as the run's own were read, with the labels that it has, and open them;
        raise a DataError if one is missing, or was changed after the run read it."""
        check_as_read(shards, str(self.finished.path))
        expected = expected_of(self.settings, self.finished.checkpoint.labels)
        expected.fingerprints.update(self.manifest.fingerprints)
        data = open_dataset(
            shards,
            self.reading,
            self.settings,
            self.machine,
            self.cache_directory,
            expected=expected,
            listen=self.listen,
            executor=executor_of(self.open_parts),
        )
        first, *_ = self.certificates
        earlier = [Skipped(shard["name"], shard["reason"]) for shard in first.get("skipped", ())]
        named = {shard.name for shard in data.shards} | {shard.name for shard in data.skipped}
        data.skipped = (*(shard for shard in earlier if shard.name not in named), *data.skipped)
        return data

    def restore(self, data: Dataset) -> list[Learner]:
        """Restore the run's learners with the settings of the change, in the ranks of the data."""
        checkpoint, settings = self.finished.checkpoint, self.settings
        learners = self.finished.learners(data.facts, settings, class_weights(settings, data))
        checkpoint.state.arrays.clear()  # the learners hold what they need of them
        proofs = map(certificate_of, in_order(learners, data.labels, settings))
        check_bounds(self.finished, proofs, self.certificates)
        places = data.places_of(checkpoint.numbers)
        for learner in learners:
            renumber(learner, places, data.columns)
        return learners

    def finish(self, rows: RowChange | None, report: str | None, **facts: Any) -> Outcome:
        """Train on with changed rows (None = they are as they were), write the report with
        ``facts``, and commit; return the outcome."""
        outcome = self._unchanged() if rows is None else _train(self, rows)
        outcome.report.update(facts)
        if report is not None:  # before the commit: a committed change has its report
            write_outcome(outcome, report=report)
        if rows is None:
            return outcome
        remove = ["checkpoint.before"]
        if not rows.added:
            remove += [] if outcome.deletions else [deletions.NAME]
            remove += [] if "parts" in outcome.report["settings"] else [PARTS]
        transaction.commit(self.finished.path, self.model_path, remove)
        if self.model.calibration is not None:
            _log.warning("The model has lost its probabilities: give it new ones with calibrate.")
        home = self.finished.path / PARTS
        moved = (c.moved(home) if isinstance(c, SavedCounts) else c for c in outcome.counts)
        return replace(outcome, counts=tuple(moved))

    def _unchanged(self) -> Outcome:
        """Return the outcome of the run as it is; no data is read."""
        path = self.finished.path
        with reading_from(path / REPORT):
            report = dict(parse_json((path / REPORT).read_bytes()))
        report |= {"readings": 0.0, "seconds": 0.0, "bytes_read": 0}
        counts = tuple(witness.load(path / "witness").counts)
        left_out = deletions_of(self.shards)
        return Outcome(self.model, report, report["stop_reason"], counts, self.manifest, left_out)


class _FinalState:
    """A ``solver.train.Checkpointer`` that keeps the state at the end of training only."""

    state: State

    def save(self, state: Callable[[], State]) -> None:
        """Save nothing: a change is made as a whole."""

    def end(self, state: Callable[[], State]) -> None:
        """Keep the state."""
        self.state = state()


def _train(target: EditableRun, rows: RowChange) -> Outcome:
    """Train on, here or on parts, from the weights and counts of the run; stage the changed run."""
    with target.data(rows.shards) as data:
        preparing = time.perf_counter() - target.began
        if rows.added:
            _check_index_base(data, target)
        else:
            _check_labels(data)
        workers = bool(rows.added) and target.open_parts is not None
        settings = with_parts_after(
            target.settings, len(target.shards), data.shards, workers=workers
        )
        target, final = target._replace(settings=settings), _FinalState()
        learners = target.restore(data)
        plan = plan_memory(settings, target.machine, size_of(data), len(learners))
        training = Training(
            data, settings, target.machine, target.listen, final, at_once=plan.at_once
        )
        more_read, more_bytes, of_parts = 0.0, 0, dict[str, Any]()
        if settings.parts is None:
            more_read, more_bytes = _train_here(target, rows, data, training, learners)
        else:
            of_parts = _train_on_parts(target, rows, data, training, learners)
        reading = data.reading
        base: Any = target.model.index_base  # whichever columns are left
        data.reading = replace(reading, index_base=base)
        outcome = build_outcome(
            data,
            learners,
            settings,
            time.perf_counter() - target.began,
            readings=data.readings + more_read,
            preparing=preparing,
            more_bytes=more_bytes,
        )
        outcome.report.update(of_parts)
        _stage(target, data, outcome, final.state)
        if not rows.added:
            _drop_stale(target, data, reading)
        return outcome


def _train_here(
    target: EditableRun,
    rows: RowChange,
    data: Dataset,
    training: Training,
    learners: Sequence[Learner],
) -> tuple[float, int]:
    """Train the learners on, few new rows alone at first; return the readings of those alone, and
    their bytes."""
    settings, old = target.settings, len(target.shards)
    size = sum(shard.size for shard in data.shards[old:]) if rows.added else 0
    few = 0 < size <= FEW * target.manifest.bytes
    only_more = few and settings.class_weight != "balanced"
    with data.part(old, len(data.shards)) if few else nullcontext() as new:

        def begin(group: Sequence[Learner]) -> None:
            for learner in group:
                begin_change(learner, only_more=only_more)
                if not rows.added:
                    take_counts(learner, rows.remaining(learner.counts.nonzero()))
            if new is not None:
                add_rows(new, group, settings, target.manifest.rows, target.listen)
            left = any(learner.finished is None for learner in group)
            if left and fits_in_memory(settings, size_of(data)):
                data.load()

        training.train(learners, begin=begin)
        if new is None:
            return 0.0, 0
        return new.nonzeros_read / max(data.nonzeros, 1), new.bytes_read


def _train_on_parts(
    target: EditableRun,
    rows: RowChange,
    data: Dataset,
    training: Training,
    learners: list[Learner],
) -> dict[str, Any]:
    """Train the learners on in parts; return what the report has of these."""
    for learner in learners:
        begin_change(learner, only_more=False)
        if not rows.added:
            learner.best.discard()  # no scan is to certify what the rows have made
    counted = [rows.remaining(learner.counts.nonzero()) for learner in learners]
    directory = str(transaction.begin(target.finished.path) / PARTS)
    parts = PartsTraining(training, data, directory, target.open_parts)
    return train_on(parts, plan_changed(parts, learners, counted))[1]


def _check_index_base(data: Dataset, target: EditableRun) -> None:
    """Raise a DataError if shards that come in have a column below the model's base."""
    if target.model.index_base == 1 and data.index_base == 0:
        raise DataError(
            f"{data.shards[-1].name} or a shard added with it has a column 0, and the run's "
            "columns are numbered from 1. Number them alike, or fit anew with --index-base 0."
        )


def _check_labels(data: Dataset) -> None:
    """Raise a DataError if no row that stays has one of the labels."""
    if unseen := data.unseen_labels:
        known = f"the label {unseen[0]}, which the model has"
        raise DataError(
            f"no remaining row has {'a weight above 0' if data.reading.numbers else known}. "
            "Nothing was forgotten: fit anew on shards without these rows, to another model, and "
            "remove this one and its run directory."
        )


def _stage(target: EditableRun, data: Dataset, outcome: Outcome, state: State) -> None:
    """Write the changed run into ``change/``; ``transaction.commit`` makes it count."""
    home, stamps = target.finished.path, stamps_of(data.shards)
    staged = transaction.begin(home)
    write_outcome(outcome, model=staged / transaction.MODEL, run=staged, home=home)
    checkpoint = Checkpoint.of(state, data, outcome.report["seconds"])
    Run(staged, stamps, None).save(checkpoint)
    write_record(staged, target.settings, stamps, recipe_digest(target.settings, target.reading))


def _drop_stale(target: EditableRun, data: Dataset, reading: ReaderConfig) -> None:
    """Remove the prepared files that hold rows which go out; whoever needs them makes them anew."""
    fingerprints = [shard.fingerprint for shard in target.manifest.shards]
    for directory in {target.cache_directory, str(target.finished.path / transaction.CACHE)}:
        if os.path.isdir(directory):
            files = filter(None, map(Cache(directory, reading).find, data.shards))
            drop_cached(os.path.abspath(directory), fingerprints, [file.path for file in files])
