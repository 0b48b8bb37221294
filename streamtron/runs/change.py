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
from streamtron.core.files import nothing_empty
from streamtron.data import (
    Cache,
    Manifest,
    ReaderConfig,
    ShardFile,
    ShardSource,
    Skipped,
    deletions,
    drop_cached,
)
from streamtron.data.recipes import recipe_digest
from streamtron.model.linear_model import LinearModel
from streamtron.runs import transaction
from streamtron.runs.directory import PARTS, Checkpoint, Run, stamps_of, write_record
from streamtron.runs.finished_run import (
    FinishedRun,
    are_unchanged,
    check_as_read,
    check_bounds,
    check_model,
    locate,
    read_manifest,
    shards_of,
)
from streamtron.runs.inputs import check_outputs, reading_from_model
from streamtron.runs.learners import Known, Training, class_weights_of
from streamtron.runs.memory import DataSize, check_memory, columns_allowed, memory_needed
from streamtron.runs.parts import OpenParts, PartsTraining, plan_changed, train_on, with_parts_after
from streamtron.runs.report import (
    Outcome,
    build_outcome,
    certificate_of,
    deletions_of,
    in_order,
    outcome_of,
    write_outcome,
)
from streamtron.solver.changes import add_rows, begin_change, narrow, take_counts
from streamtron.solver.checkpoint import State
from streamtron.solver.duals import Pieces, SavedCounts
from streamtron.solver.learner import Learner

_log = logging.getLogger("streamtron")

FEW = 0.25
"""New shards of at most this part of the run's bytes are first solved alone, the old counts fixed.
With more of them the old counts change so much that this does not pay."""


class RowChange(NamedTuple):
    """The rows of a run from its change on: some come in, or some go out.

    ``shards`` : files of all rows, the new ones at the end. ``rows`` : how many remain of each old
    shard that stays. ``added`` : the new shards. ``removed`` : rising numbers of the run's rows
    that go out.
    """

    shards: Sequence[ShardFile]
    rows: Sequence[int]
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
            if finished.settings.faithful:
                raise SettingsError(
                    f"{finished.path}: a faithful run; the paper's procedure starts at 0 with all "
                    "rows. Fit anew with all shards."
                )
            given = {name: value for name, value in changes.items() if value is not None}
            settings = finished.settings.but(**given)
            manifest = read_manifest(finished.path)
            model = LinearModel.load(place.model)
            check_model(finished, model)
            # text is cached with the columns' numbers in the file, before the base is removed
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
    def skipped(self) -> list[Skipped]:
        """Shards that were skipped."""
        first, *_ = self.certificates
        return [Skipped(shard["name"], shard["reason"]) for shard in first.get("skipped", ())]

    @property
    def certificates(self) -> list[dict[str, Any]]:
        """Those of the model, of many classes one a class."""
        certificate: Any = self.model.certificate or {}
        return list(certificate.get("learners", [certificate]))

    @property
    def cache_directory(self) -> str:
        """Where the flat copies of the shards are."""
        return self.machine.cache_dir or str(self.finished.path / "cache")

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

    def source(self, shards: Sequence[ShardFile]) -> ShardSource:
        """Open shards as the run's own were read, with the labels that it has; raise a DataError if
        one is missing, or was changed after the run read it."""
        check_as_read(shards, str(self.finished.path))
        machine, known = self.machine, self.known(shards)
        size = DataSize(known.rows, self.model.columns, known.nonzeros, occurring=0)
        check_memory(memory_needed(self.settings, size), machine)
        source = ShardSource(
            shards,
            self.reading,
            cache_dir=self.cache_directory,
            classes=self.finished.checkpoint.labels,
            most_columns=columns_allowed(self.settings, machine),
            allow_duplicate=self.settings.allow_duplicate,
            threads=machine.threads,
            on_bad_shard=self.settings.on_bad_shard,
            skipped=self.skipped,
        )
        source.expect(self.manifest.fingerprints)
        return source

    def restore(self, source: ShardSource) -> list[Learner]:
        """Restore the run's learners with the settings of the change."""
        weights = None
        if self.settings.parts is None:
            [weights] = class_weights_of(source, [self.settings])
        learners = self.finished.learners(self.settings, source.labels, weights)
        self.finished.checkpoint.state.arrays.clear()  # the learners hold what they need of them
        proofs = map(certificate_of, in_order(learners, source.labels, self.settings))
        check_bounds(self.finished, proofs, self.certificates)
        return learners

    def known(self, shards: Sequence[ShardFile]) -> Known:
        """Estimate rows and nonzeros of shards, at least those of the run, by their bytes."""
        run = self.manifest
        growth = max(1.0, sum(shard.size for shard in shards) / max(run.bytes, 1))
        rows, nonzeros = int(growth * run.rows), int(growth * run.nonzeros)
        return Known(rows, nonzeros, self.model.sparse_weights.nnz)

    def finish(self, rows: RowChange | None, report: str | None, **facts: Any) -> Outcome:
        """Train on with changed rows (None = they are as they were), write the report with
        ``facts``, and commit; return the outcome."""
        settings = self.settings
        if rows is None:
            outcome = self._unchanged()
        else:
            workers, old = bool(rows.added) and self.open_parts is not None, len(self.shards)
            settings = with_parts_after(settings, old, rows.shards, workers=workers)
            outcome = _train(self._replace(settings=settings), rows)
        outcome.report.update(facts)
        if report is not None:  # before the commit: a committed change has its report
            write_outcome(outcome, report=report)
        if rows is None:
            return outcome
        remove = ["checkpoint.before"]
        if not rows.added:
            remove += [] if outcome.deletions else [deletions.NAME]
            remove += [PARTS] if settings.parts is None else []
        transaction.commit(self.finished.path, self.model_path, remove)
        if self.model.calibration is not None:
            _log.warning("The model has lost its probabilities: give it new ones with calibrate.")
        home = self.finished.path / PARTS
        moved = (c.moved(home) if isinstance(c, SavedCounts) else c for c in outcome.counts)
        return replace(outcome, counts=tuple(moved))

    def _unchanged(self) -> Outcome:
        """Return the outcome of the run as it is; no data is read."""
        settings, checkpoint = self.finished.settings, self.finished.checkpoint
        learners = in_order(self.finished.learners(), checkpoint.labels, settings)
        read = {"readings": 0.0, "seconds": 0.0, "bytes_read": 0}
        rows = self.manifest, self.skipped, deletions_of(self.shards)
        return outcome_of(read, self.model, learners, settings, *rows)


class _FinalState:
    """A ``solver.train.Checkpointer`` that keeps the state at the end of training only.

    ``learners`` : of a run that forgets rows, whose vectors then have no column that no row has.
    """

    state: State

    def __init__(self, source: ShardSource, learners: Sequence[Learner] = ()) -> None:
        self.source, self.learners = source, learners

    def checkpoint(self, state: Callable[[], State]) -> None:
        """Raise a DataError if a run that forgets has lost a label by that."""
        info = self.source.info if self.learners else None
        if info and info.unseen_labels:
            of_numbers = self.learners[0].loss.numbers
            known = f"the label {info.unseen_labels[0]}, which the model has"
            raise DataError(
                f"no remaining row has {'a weight above 0' if of_numbers else known}. Nothing was "
                "forgotten: fit anew on shards without these rows, to another model, and remove "
                "this one and its run directory."
            )

    before_solves = checkpoint

    def checkpoint_due(self) -> bool:
        """Return False."""
        return False

    def end(self, state: Callable[[], State]) -> None:
        """Keep the state."""
        self.checkpoint(state)
        for learner in self.learners:
            narrow(learner, self.source.width)
        self.state = state()


def _train(target: EditableRun, rows: RowChange) -> Outcome:
    """Train on, here or on parts, from the weights and counts of the run; stage the changed run."""
    settings = target.settings
    size = sum(shard.size for shard in rows.added)
    few = settings.parts is None and 0 < size <= FEW * target.manifest.bytes
    only_more = few and settings.class_weight != "balanced" and are_unchanged(target.shards)
    new_source = target.source(rows.added) if rows.added else nullcontext()
    with new_source as new, target.source(rows.shards) as source:

        def begin(group: Sequence[Learner]) -> None:
            for learner in group:
                begin_change(learner, only_more=only_more)
                if rows.added:
                    continue
                if settings.parts is None:
                    take_counts(learner, rows.remaining(learner.counts.nonzero()))
                else:
                    learner.best.discard()  # no scan is to certify what the rows have made
            if few and new is not None:
                add_rows(new, group, settings, target.manifest.rows, target.listen)
                _check_index_base(new, target)

        learners = target.restore(source)
        final = _FinalState(source, () if rows.added else learners)
        known = target.known(rows.shards)
        training = Training(source, settings, target.machine, target.listen, final, known)
        facts = _train_learners(target, rows, training, learners, begin)
        if new is not None and not few:
            _check_index_base(source, target)
        outcome = _outcome(target, source, new, learners)
        outcome.report.update(facts)
        _stage(target, source, outcome, final.state)
        if not rows.added:
            _drop_stale(target, source)
        return outcome


def _train_learners(
    target: EditableRun,
    rows: RowChange,
    training: Training[ShardSource],
    learners: list[Learner],
    begin: Callable[[Sequence[Learner]], None],
) -> dict[str, Any]:
    """Train the learners on; return what the report has of parts."""
    settings = target.settings
    if settings.parts is None:
        training.on(learners, begin)
        return {}
    begin(learners)
    counted = [rows.remaining(learner.counts.nonzero()) for learner in learners]
    directory = str(transaction.begin(target.finished.path) / PARTS)
    parts = PartsTraining(training, target.cache_directory, directory, target.open_parts)
    return train_on(parts, plan_changed(parts, learners, counted, rows.rows))[1]


def _outcome(
    target: EditableRun, source: ShardSource, new: ShardSource | None, learners: Sequence[Learner]
) -> Outcome:
    """Build the outcome; ``new`` : source of the new rows, which may be all that was read."""
    settings, seconds = target.settings, time.perf_counter() - target.began
    run_before = None
    if new is not None and source.rows is None:  # no old shard was read
        run_before = target.model, target.manifest, target.shards
    outcome = build_outcome(
        new if new and run_before else source, learners, settings, seconds, before=run_before
    )
    if new is None:
        return outcome
    nonzeros = new.nonzeros_read + source.nonzeros_read
    outcome.report["readings"] = nonzeros / max(outcome.manifest.nonzeros, 1)
    outcome.report["bytes_read"] = new.bytes_read + source.bytes_read
    return outcome


def _check_index_base(source: ShardSource, target: EditableRun) -> None:
    """Raise a DataError if shards that were read have a column below the model's base."""
    if target.model.index_base == 1 and source.index_base == 0:
        raise DataError(
            f"{source.shards[-1].name} or a shard added with it has a column 0, and the run's "
            "columns are numbered from 1. Number them alike, or fit anew with --index-base 0."
        )


def _stage(target: EditableRun, source: ShardSource, outcome: Outcome, state: State) -> None:
    """Write the changed run into ``change/``; ``transaction.commit`` makes it count."""
    home = target.finished.path
    staged = transaction.begin(home)
    write_outcome(outcome, model=staged / transaction.MODEL, run=staged, home=home)
    Run(staged).save(Checkpoint.of(state, source, outcome.report["seconds"]))
    recipe = recipe_digest(target.settings, target.reading)
    write_record(staged, target.settings, stamps_of(source.shards), recipe)


def _drop_stale(target: EditableRun, source: ShardSource) -> None:
    """Remove the flat files that hold rows which go out; whoever needs them makes them anew."""
    fingerprints = [shard.fingerprint for shard in target.manifest.shards]
    for directory in {target.cache_directory, str(target.finished.path / transaction.CACHE)}:
        if os.path.isdir(directory):
            files = filter(None, map(Cache(directory, source.reading).find, source.shards))
            drop_cached(os.path.abspath(directory), fingerprints, [file.path for file in files])
