"""Change a finished run: rows come in, rows go out, and training goes on until all are certified.

α of rows that stay are kept, new rows start at 0, and the next reading sums v = Σ α_k l_k x_k
afresh. The change is committed at once: see ``store``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import Listener
from streamtron.core.files import nothing_empty
from streamtron.data import (
    Cache,
    Dataset,
    Manifest,
    ReaderConfig,
    ShardFile,
    ShardRecord,
    Skipped,
    drop_cached,
)
from streamtron.model.linear_model import LinearModel
from streamtron.runs.finished_run import check_as_read, locate, read_manifest, shards_of
from streamtron.runs.inputs import StrPath, check_outputs, expected_of, reading_from_model
from streamtron.runs.job import Clock, Fitting, Job, Saver, prepared
from streamtron.runs.learners import (
    class_weights,
    in_order,
    number_of_learners,
    restore_finished,
)
from streamtron.runs.memory import fits_in_memory, size_of
from streamtron.runs.parts import (
    OpenParts,
    plan_changed,
    take_saved_alphas,
    train_on,
    with_parts_after,
)
from streamtron.runs.report import Outcome, certificate_of, deletions_of, write_outcome
from streamtron.runs.store import CACHE, Absent, SavedState, Store, changing, is_run, no_run
from streamtron.solver.alphas import Pieces
from streamtron.solver.changes import add_rows, begin_change, take_alphas
from streamtron.solver.learner import Learner, renumber

_log = logging.getLogger("streamtron")

FEW = 0.25
"""New shards of at most this part of the run's bytes are first solved alone, the old α fixed.
With more of them the old α change so much that this does not pay."""


NO_ROWS = np.zeros(0, dtype=np.int64)


class RowChange(NamedTuple):
    """The rows of a run from its change on: some come in, some go out.

    ``kept`` : shards of the run that stay, with what is left out of them now, and their records.
    ``added`` : new shards, behind those. ``removed`` : rising numbers of the run's rows that go
    out. ``absent`` : what is forgotten of shards that the run does not have then.
    """

    kept: Sequence[tuple[ShardFile, ShardRecord]]
    added: Sequence[ShardFile]
    removed: NDArray[np.int64]
    absent: Sequence[Absent]

    @property
    def shards(self) -> list[ShardFile]:
        """All shards, in order."""
        return [*(file for file, _ in self.kept), *self.added]

    def remaining(self, pieces: Pieces) -> Pieces:
        """Yield the α of the run's rows that stay, by their new numbers."""
        for numbers, values in pieces:
            stays = ~np.isin(numbers, self.removed)
            staying = numbers[stays]
            yield staying - np.searchsorted(self.removed, staying), values[stays]


class EditableRun(NamedTuple):
    """A run that has ended and is to be changed, with its last state, and its settings from the
    change on; the model, how its shards were read, and their files, in the order of the manifest.
    """

    store: Store
    saved: SavedState
    machine: Machine
    listen: Listener
    open_parts: OpenParts | None
    clock: Clock
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
        time_limit: str | float | None = None,
        **changes: Any,
    ) -> Iterator[EditableRun]:
        """Open a run to change it, see ``store.changing``; ``changes`` of its settings, None = as
        they are. A DataError if there is no run, or it has not ended."""
        clock, machine = Clock.start(time_limit), machine or Machine()
        place = locate(run, machine.run_dir)
        if not is_run(place.directory):
            raise no_run(place.directory)
        with nothing_empty(machine.cache_dir), changing(place.directory, place.model) as store:
            recorded, saved = Settings.from_dict(store.settings), store.state()
            if saved is None or store.report is None or not saved.state.all_finished:
                raise DataError(
                    f"{store.path}: the run has not ended. End it with streamtron fit --resume, or "
                    "fit anew."
                )
            if recorded.paper:
                raise SettingsError(
                    f"{store.path}: a run of stages; the paper's procedure starts at 0 with all "
                    "rows. Fit anew with all shards."
                )
            given = {name: value for name, value in changes.items() if value is not None}
            settings, manifest = recorded.but(**given), read_manifest(store)
            model = LinearModel.load(place.model)
            _check_model(store.path, recorded, saved, model)
            # text is prepared with the columns' numbers in the file, before the base is removed
            reading = replace(reading_from_model(model), index_base=settings.index_base)
            run_as_it_is = store, saved, machine, listen, open_parts, clock, settings, place.model
            yield cls(*run_as_it_is, model, manifest, reading, shards_of(manifest, store))

    @property
    def certificates(self) -> list[dict[str, Any]]:
        """Those of the model, of many classes one a class."""
        certificate: Any = self.model.certificate or {}
        return list(certificate.get("learners", [certificate]))

    @property
    def kept(self) -> list[tuple[ShardFile, ShardRecord]]:
        """The run's shards and their records."""
        return [*zip(self.shards, self.manifest.shards, strict=True)]

    @property
    def cache_directory(self) -> str:
        """Where the prepared files of the shards are."""
        return self.machine.cache_dir or str(self.store.path / CACHE)

    def job(self, rows: RowChange) -> Job:
        """Return the job of training on with changed rows, read as the run's own were, with the
        labels that it has; a DataError if a shard is missing, or was changed after it was read."""
        check_as_read(rows.shards, str(self.store.path))
        expected = expected_of(self.settings, self.saved.labels)
        expected.fingerprints.update((file.name, record.fingerprint) for file, record in rows.kept)
        how = self.machine, self.listen, self.cache_directory, self.open_parts, self.clock
        return Job(rows.shards, self.reading, expected, [self.settings], *how)

    def restore(self, data: Dataset, settings: Settings) -> list[Learner]:
        """Restore the run's learners with the settings of the change, in the ranks of the data; of
        several parts, their α are read from the parts' states when they are used."""
        saved, weights = self.saved, class_weights(settings, data)
        learners = restore_finished(saved.state, settings, data.facts, saved.labels, weights)
        recorded = Settings.from_dict(self.store.settings)
        if recorded.parts is not None:
            take_saved_alphas(self.store.parts, recorded, learners)
        saved.state.arrays.clear()  # the learners hold what they need of them
        proofs = map(certificate_of, in_order(learners, data.labels, settings))
        _check_bounds(self.store.path, proofs, self.certificates)
        places = data.places_of(saved.numbers)
        for learner in learners:
            renumber(learner, places, data.columns)
        return learners

    def finish(
        self, rows: RowChange | None, report: StrPath | None, inputs: Sequence[str], **facts: Any
    ) -> Outcome:
        """Train on with changed rows (None = they are as they were), write the report with
        ``facts``, and commit; return the outcome. A SettingsError if the report would replace a
        file that is written, or read as ``inputs`` are."""
        path = self.store.path
        how: Any = {"runs": [path], "directories": {"run directory": path}}
        read = [self.model_path, *inputs]
        files = check_outputs({"report": report}, read, cache=self.machine.cache_dir, **how)
        if rows is None:
            outcome = self._unchanged()
            outcome.report.update(facts)
            write_outcome(outcome, report=files["report"])
            return outcome
        outcome = self._trained(rows, facts, files["report"])
        if self.model.calibration is not None:
            _log.warning("The model has lost its probabilities: give it new ones with calibrate.")
        return outcome

    def _unchanged(self) -> Outcome:
        """Return the outcome of the run as it is; no data is read."""
        report = {**(self.store.report or {}), "readings": 0.0, "seconds": 0.0, "bytes_read": 0}
        left_out = deletions_of(self.shards)
        return Outcome(self.model, report, report["stop_reason"], (), self.manifest, left_out)

    def _trained(self, rows: RowChange, facts: Mapping[str, Any], report: str | None) -> Outcome:
        """Train on, here or on parts, from the weights and α of the run, and commit it."""

        def decide(settings: Settings, data: Dataset) -> Settings:
            workers = bool(rows.added) and self.open_parts is not None
            return with_parts_after(settings, len(self.shards), data.shards, workers=workers)

        with prepared(self.job(rows), decide) as fitting:
            data, parts = fitting.data, None
            data.skipped = (*self._skipped_before(data), *data.skipped)
            _check_rows(rows, data, self)
            fitting.check_room(self.store)
            saver = Saver(fitting)
            learners = self.restore(data, fitting.settings)
            if fitting.settings.parts is None:
                _train_here(self, rows, fitting, saver, learners)
            else:
                parts = self.store.new_parts()
                _train_on_parts(rows, fitting, saver, learners, parts)
            reading, base = data.reading, self.model.index_base  # whichever columns are left
            data.reading = replace(reading, index_base=base)  # type: ignore[arg-type]
            outcome = fitting.outcome(learners)
            ended = fitting.ended(outcome, data.shards, rows.absent)
            outcome.report.update(facts)  # they may name what was forgotten, and the run has none
            write_outcome(outcome, report=report)  # a committed change has its report
            if len(rows.removed):
                _drop_stale(self, data, reading)
            self.store.end(ended, self.model_path, outcome.model.to_bytes(), saver.last, parts)
            return outcome

    def _skipped_before(self, data: Dataset) -> Iterator[Skipped]:
        """Yield the shards that the run left out before, and that are not among these."""
        first, *_ = self.certificates
        named = {shard.name for shard in data.shards} | {shard.name for shard in data.skipped}
        for shard in first.get("skipped", ()):
            if shard["name"] not in named:
                yield Skipped(shard["name"], shard["reason"])


def _train_here(
    target: EditableRun,
    rows: RowChange,
    fitting: Fitting,
    saver: Saver,
    learners: Sequence[Learner],
) -> None:
    """Train the learners on; few new rows, where no others go out, alone at first."""
    data, settings, old = fitting.data, fitting.settings, len(rows.kept)
    size = 0 if len(rows.removed) else sum(shard.size for shard in data.shards[old:])
    few = 0 < size <= FEW * target.manifest.bytes
    only_more = few and settings.class_weight != "balanced"
    with data.part(old, len(data.shards)) if few else nullcontext() as new:

        def begin(group: Sequence[Learner]) -> None:
            for learner in group:
                begin_change(learner, only_more=only_more)
                if len(rows.removed):
                    take_alphas(learner, rows.remaining(learner.alphas.nonzero()))
            if new is not None:
                add_rows(new, group, settings, target.manifest.rows, target.listen)
            left = any(learner.finished is None for learner in group)
            if left and fits_in_memory(settings, size_of(data)):
                data.load()

        fitting.training(saver).train(learners, begin=begin)
        if new is not None:
            fitting.readings = new.nonzeros_read / max(data.nonzeros, 1)
            fitting.bytes_read = new.bytes_read


def _train_on_parts(
    rows: RowChange, fitting: Fitting, saver: Saver, learners: list[Learner], directory: Path
) -> None:
    """Train the learners on in parts, whose states are in ``directory``."""
    for learner in learners:
        begin_change(learner, only_more=False)
        if len(rows.removed):
            learner.best.discard()  # no scan is to certify what the rows have made
    staying = [rows.remaining(learner.alphas.nonzero()) for learner in learners]
    parts = fitting.parts(saver, directory)
    fitting.facts = train_on(parts, plan_changed(parts, learners, staying))[1]


def _check_rows(rows: RowChange, data: Dataset, target: EditableRun) -> None:
    """Raise a DataError if shards that come in have a column below the model's base, or, where rows
    go out, no row that stays has one of the labels."""
    if rows.added and target.model.index_base == 1 and data.index_base == 0:
        raise DataError(
            f"{data.shards[-1].name} or a shard added with it has a column 0, and the run's "
            "columns are numbered from 1. Number them alike, or fit anew with --index-base 0."
        )
    if len(rows.removed) and (unseen := data.unseen_labels):
        known = f"the label {unseen[0]}, which the model has"
        raise DataError(
            f"no remaining row has {'a weight above 0' if data.reading.numbers else known}. "
            "Nothing was forgotten: fit anew on shards without these rows, to another model, and "
            "remove this one and its run directory."
        )


def _drop_stale(target: EditableRun, data: Dataset, reading: ReaderConfig) -> None:
    """Remove the prepared files that hold rows which go out; whoever needs them makes them anew."""
    fingerprints = [shard.fingerprint for shard in target.manifest.shards]
    for directory in {target.cache_directory, str(target.store.path / CACHE)}:
        if os.path.isdir(directory):
            files = filter(None, map(Cache(directory, reading).find, data.shards))
            drop_cached(os.path.abspath(directory), fingerprints, [file.path for file in files])


def _check_model(path: Path, settings: Settings, saved: SavedState, model: LinearModel) -> None:
    """Raise a DataError if settings or state of the run are not the model's."""
    for name in ("multiclass", "multilabel"):
        if (value := getattr(settings, name)) != model.settings.get(name):
            raise DataError(f"{path}: {name} is {value!r}, and not the model's. Fit anew.")
    learners, known = saved.state.content["learners"], {*saved.labels}
    if known != {*model.classes} or len(learners) != number_of_learners(settings, len(known)):
        raise DataError(_NOT_ITS_OWN.format(path))


def _check_bounds(
    path: Path, proofs: Iterable[Mapping[str, Any]], proven: Iterable[Mapping[str, Any]]
) -> None:
    """Raise a DataError if the proofs of the run's learners are not those of its model: they have
    no bound in common with another run's."""
    names = ("primal_objective", "dual_objective")
    bounds, known = ([[p.get(name) for name in names] for p in some] for some in (proofs, proven))
    if bounds != known:
        raise DataError(_NOT_ITS_OWN.format(path))


_NOT_ITS_OWN = "{}: the state is not the model's. Put the run's own model back, or fit anew."
