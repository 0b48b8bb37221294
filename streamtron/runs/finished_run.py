"""Finished runs: find them, open them, and stage what update and forget change in them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import Listener, ignore
from streamtron.core.files import absolute, as_path, locked, nothing_empty, shared
from streamtron.core.rows import Label
from streamtron.data import Manifest, ReaderConfig, ShardFile, ShardRecord, ShardSource, Skipped
from streamtron.data import deletions as deleted_rows
from streamtron.data.storage import fingerprint
from streamtron.model.linear_model import LinearModel
from streamtron.runs import transaction
from streamtron.runs.directory import (
    PARTS,
    RUN_SUFFIX,
    Checkpoint,
    Run,
    last_checkpoint,
    read_record,
    remove_temporary,
    run_directory,
    stamps_of,
    write_record,
)
from streamtron.runs.inputs import check_outputs, reading_from_model
from streamtron.runs.learners import (
    ClassWeights,
    Known,
    Training,
    class_weights_of,
    restore_finished,
)
from streamtron.runs.memory import check_memory, columns_allowed, memory_needed
from streamtron.runs.outcome import (
    Outcome,
    build_outcome,
    deletions_of,
    in_order,
    outcome_of,
    write_outcome,
)
from streamtron.runs.parts import OpenParts, take_saved_counts, train_changed, with_parts_after
from streamtron.solver.checkpoint import State
from streamtron.solver.duals import Pieces, SavedCounts
from streamtron.solver.learner import Learner


class RunLocation(NamedTuple):
    """The directory of a run, and the path of its model."""

    directory: Path
    model: str


def locate(
    named: str | os.PathLike[str], run_dir: str | os.PathLike[str] | None = None
) -> RunLocation:
    """Find a run by its model, ``MODEL``, or by its directory, ``MODEL.run`` or ``run_dir``.

    The model's path is not read from the run directory, which may be a copy of another one; a model
    that is a link into another directory is refused.
    """
    path = absolute(named, "models").rstrip("/")
    if run_dir is not None:
        return RunLocation(Path(absolute(run_dir)), path)
    model = path.removesuffix(RUN_SUFFIX) if os.path.isdir(path) else path
    if os.path.isdir(model):
        raise DataError(
            f"{path}: neither MODEL nor MODEL{RUN_SUFFIX}. Name the model; give a run directory of "
            "another name by --run-dir."
        )
    there = os.path.dirname(os.path.realpath(model))
    if os.path.islink(model) and there != os.path.realpath(os.path.dirname(model) or "."):
        raise DataError(
            f"{model}: a symbolic link to {there}, and the run would change the file there. Name "
            "the model itself, and its run directory by --run-dir."
        )
    return RunLocation(Path(run_directory(model)), model)


class FinishedRun(NamedTuple):
    """A finished run, as its directory has it."""

    path: Path
    settings: Settings
    checkpoint: Checkpoint

    def learners(self) -> list[Learner]:
        """Restore the learners."""
        return self.restored(self.settings, self.checkpoint.labels, None)

    def restored(
        self, settings: Settings, labels: Sequence[Label], weights: ClassWeights | None
    ) -> list[Learner]:
        """Restore the learners with other settings; of several parts, their counts are read from
        the parts' states when they are used."""
        found = restore_finished(self.checkpoint.state, settings, labels, weights)
        if self.settings.parts is not None:
            take_saved_counts(self.path / PARTS, self.settings, found)
        return found


@contextmanager
def open_finished(
    place: RunLocation, cache: str | os.PathLike[str] | None = None
) -> Iterator[FinishedRun]:
    """Open a finished run to change it, locked until the context ends or the process dies; a
    DataError if it is not there or has not ended, a MachineError if another process has locked it.
    ``cache`` : directory of its flat files, if not in the run directory."""
    directory = place.directory
    _check_exists(directory)
    with nothing_empty(cache), locked(directory):
        remove_temporary(directory)
        transaction.recover(directory, place.model, cache)
        transaction.discard(directory)
        yield _finished(directory, Run(directory).load())


@contextmanager
def read_finished(path: str | os.PathLike[str]) -> Iterator[FinishedRun]:
    """Open a finished run to read it, while no process may change it; raises as ``open_finished``,
    and a DataError where a change was interrupted."""
    directory = Path(path)
    _check_exists(directory)
    with shared(directory):
        check_recovered(directory)
        yield _finished(directory, last_checkpoint(directory)[0])


def check_recovered(path: str | os.PathLike[str]) -> None:
    """Raise a DataError if a committed change of the run is not complete."""
    if transaction.pending(Path(path)):
        raise DataError(
            f"{path}: a change of the run was interrupted after it was committed. Call the same "
            "streamtron update or forget again to complete it."
        )


class RunInputs(NamedTuple):
    """Paths of what a certificate of a run is proven from."""

    directory: str
    model: str
    shards: list[str]
    witness: str


def inputs_of_run(
    named: str | os.PathLike[str] | LinearModel, witness: str | os.PathLike[str] | None = None
) -> RunInputs:
    """Return directory, model, shards and witness of a run, given its directory or its model; a
    DataError if there is no such run, or a change of it was interrupted."""
    if isinstance(named, LinearModel):
        raise SettingsError(
            "a model in memory does not say its shards. Give them, or the path of a model with its "
            "run beside it."
        )
    path = absolute(named, "models")
    is_run = os.path.isdir(path)
    directory = path.rstrip("/") if is_run else run_directory(path)
    check_recovered(directory)
    manifest = os.path.join(directory, "manifest.json")
    found = as_path(witness) if witness else os.path.join(directory, "witness")
    for needed in (manifest, found):
        if not os.path.isfile(needed):
            raise DataError(
                f"{path}: no shards are given, and there is no {needed} of a run. Name the shards: "
                "certify MODEL SHARDS."
            )
    records = Manifest.load(manifest).shards
    check_shards_exist(records)
    model = directory.removesuffix(RUN_SUFFIX) if is_run else path
    return RunInputs(directory, model, [shard.path for shard in records], found)


def _check_exists(directory: Path) -> None:
    if not directory.is_dir():
        raise DataError(f"{directory}: there is no run. Give a MODEL that streamtron fit wrote.")


def _finished(directory: Path, checkpoint: Checkpoint | None) -> FinishedRun:
    record = read_record(directory)
    written = (directory / "manifest.json").exists()
    if checkpoint is None or not written or not checkpoint.state.all_finished:
        raise DataError(
            f"{directory}: the run has not ended. End it with streamtron fit --resume, or fit anew."
        )
    return FinishedRun(directory, Settings.from_dict(record.settings), checkpoint)


def shards_of(manifest: Manifest, directory: Path) -> list[ShardFile]:
    """Return the files of a run's shards, without the rows that were deleted from them."""
    deleted = {one.fingerprint: one for one in deleted_rows.load(directory).values()}
    shards = []
    for one in manifest.shards:
        own = deleted.get(one.fingerprint)
        own = own and replace(own, path=one.path)
        file = ShardFile(one.path, one.name, one.format, one.bytes, one.mtime_ns, own)  # type: ignore[arg-type]
        shards.append(file)
    return shards


class Change(NamedTuple):
    """How a run is to be changed: what ``update`` and ``forget`` take, as ``fit`` does."""

    machine: Machine = Machine()
    tol: float | None = None
    max_epochs: int | None = None
    allow_duplicate: bool = False
    listen: Listener = ignore
    open_parts: OpenParts | None = None


class EditableRun(NamedTuple):
    """A finished run that update or forget changes, with its settings from the change on; the
    model, how its shards were read, and their files, in the order of the manifest."""

    ended: FinishedRun
    change: Change
    began: float
    settings: Settings
    model_path: str
    model: LinearModel
    manifest: Manifest
    reading: ReaderConfig
    shards: list[ShardFile]

    @classmethod
    @contextmanager
    def opened(cls, run: str | os.PathLike[str], change: Change) -> Iterator[EditableRun]:
        """Open a run to change it, see ``open_finished``."""
        began, cache = time.perf_counter(), change.machine.cache_dir
        place = locate(run, change.machine.run_dir)
        with open_finished(place, cache) as ended:
            settings = _new_settings(ended, change)
            manifest = with_current_times(Manifest.load(str(ended.path / "manifest.json")))
            model = LinearModel.load(place.model)
            for name in ("multiclass", "multilabel"):
                if (found := getattr(ended.settings, name)) != model.settings.get(name):
                    raise DataError(
                        f"{ended.path}: {name} is {found!r}, and not the model's. Fit anew."
                    )
            labels, kept = ended.checkpoint.labels, ended.checkpoint.state.content["learners"]
            number = len(labels) if ended.settings.one_vs_rest else 1
            if {*labels} != {*model.classes} or len(kept) != number:
                raise DataError(f"{ended.path}: the checkpoint is not the model's. Fit anew.")
            # text is cached with the columns' numbers in the file, before the base is removed
            reading = replace(reading_from_model(model), index_base=settings.index_base)
            shards = shards_of(manifest, ended.path)
            yield cls(ended, change, began, settings, place.model, model, manifest, reading, shards)

    @property
    def skipped(self) -> list[Skipped]:
        """Shards that were skipped."""
        found: Any = self.model.certificate or {}
        [first, *_] = found.get("learners", [found])
        return [Skipped(shard["name"], shard["reason"]) for shard in first.get("skipped", ())]

    def check_report(
        self, report: str | os.PathLike[str] | None, inputs: Sequence[str]
    ) -> str | None:
        """Return the report's absolute path; raise a SettingsError if it would replace a file that
        is read or written."""
        files = check_outputs(
            {"report": report},
            [self.model_path, *inputs],
            runs=[self.ended.path],
            directories={"run directory": self.ended.path},
            cache=self.change.machine.cache_dir,
        )
        return files["report"]

    def unchanged(self) -> Outcome:
        """Return the outcome of the run as it is; no data is read."""
        settings, checkpoint = self.ended.settings, self.ended.checkpoint
        learners = in_order(self.ended.learners(), checkpoint.labels, settings)
        read = {"readings": 0.0, "seconds": 0.0, "bytes_read": 0}
        rows = self.manifest, self.skipped, deletions_of(self.shards)
        return outcome_of(read, self.model, learners, settings, *rows)

    def fingerprints(self, files: Sequence[ShardFile]) -> dict[str, str]:
        """Return path → fingerprint of files, whose bytes are read."""
        with ShardSource(files, self.reading, cache_dir=None) as source:
            found = source.fingerprints()
        return {file.path: told for file, (_, told) in zip(files, found, strict=True)}

    @property
    def cache_directory(self) -> str:
        """Where the flat copies of the shards are."""
        return self.change.machine.cache_dir or str(self.ended.path / "cache")

    def with_parts(self, shards: Sequence[ShardFile], *, workers: bool) -> EditableRun:
        """Return the run with the number of parts that it has with these shards."""
        settings = with_parts_after(self.settings, len(self.shards), shards, workers=workers)
        return self._replace(settings=settings)

    def growth(self, shards: Sequence[ShardFile]) -> float:
        """Return how many times as many bytes as the run these shards have, about so many rows."""
        return sum(shard.size for shard in shards) / max(self.manifest.bytes, 1)

    def source(self, shards: Sequence[ShardFile]) -> ShardSource:
        """Open shards as the run's own were read, with the labels that it has; raise a DataError if
        one is missing, or was changed after the run read it."""
        check_shards_exist(shards)
        check_unchanged(shards, str(self.ended.path))
        machine = self.change.machine
        known, grown = self.manifest, self.growth(shards)
        needed = memory_needed(
            self.settings, rows=int(grown * known.rows), nonzeros=int(grown * known.nonzeros),
            columns=self.model.columns, occurring=0,
        )  # fmt: skip
        check_memory(needed, machine)
        return ShardSource(
            shards, self.reading, cache_dir=self.cache_directory,
            classes=self.ended.checkpoint.labels,
            most_columns=columns_allowed(self.settings, machine),
            allow_duplicate=self.settings.allow_duplicate, threads=machine.threads,
            on_bad_shard=self.settings.on_bad_shard, skipped=self.skipped,
        )  # fmt: skip

    def restore(self, source: ShardSource) -> list[Learner]:
        """Restore the run's learners with the settings of the change."""
        weights = None
        if self.settings.parts is None:
            [weights] = class_weights_of(source, [self.settings])
        learners = self.ended.restored(self.settings, source.labels, weights)
        self.ended.checkpoint.state.arrays.clear()  # the learners hold what they need of them
        return learners

    def stage(self, source: ShardSource, outcome: Outcome, state: State) -> None:
        """Write the changed run into ``change/``; ``transaction.commit`` makes it count."""
        staged, home = transaction.begin(self.ended.path), self.ended.path
        write_outcome(outcome, model=staged / transaction.MODEL, run=staged, home=home)
        read, seconds = (source.nonzeros_read, source.bytes_read), outcome.report["seconds"]
        Run(staged).save(Checkpoint(state, list(source.labels), *read, seconds))
        write_record(staged, self.settings, stamps_of(source.shards))


class FinalState:
    """A ``solver.train.Checkpointer`` that keeps the state at the end of training only."""

    state: State

    def checkpoint(self, state: Callable[[], State]) -> None:
        """Do nothing."""

    before_solves = checkpoint

    def checkpoint_due(self) -> bool:
        """Return False."""
        return False

    def end(self, state: Callable[[], State]) -> None:
        """Keep the state."""
        self.state = state()


def train_on(
    target: EditableRun,
    source: ShardSource,
    learners: list[Learner],
    final: FinalState,
    begin: Callable[[Sequence[Learner]], None],
    *,
    rows: Sequence[int],
    remaining: Callable[[Pieces], Pieces] = iter,
    before: ShardSource | None = None,
) -> Outcome:
    """Train the learners of a changed run on, here or on parts of the source, from their weights
    and counts.

    ``begin`` : see ``Training.in_groups``. ``rows`` : how many the source's first shards have, all
    that have a count; ``remaining`` : which of the counts are theirs. ``before`` : new rows, which
    ``begin`` may read alone.
    """
    settings, change = target.settings, target.change
    training = Training(source, settings, change.machine, change.listen, final)
    more: dict[str, Any] = {}
    if settings.parts is None:
        grown, old = max(1.0, target.growth(source.shards)), target.manifest
        rows_then, nonzeros = int(grown * old.rows), int(grown * old.nonzeros)
        known = Known(rows_then, nonzeros, target.model.sparse_weights.nnz)
        training.on(learners, begin, known)
    else:
        begin(learners)
        counted = [remaining(learner.counts.nonzero()) for learner in learners]
        directory = str(transaction.begin(target.ended.path) / PARTS)
        more = train_changed(
            training, learners, counted, rows, target.cache_directory, directory, change.open_parts
        )
        take_saved_counts(directory, settings, learners)
    seconds = time.perf_counter() - target.began
    if before is None or source.rows is not None:
        outcome = build_outcome(source, learners, settings, seconds)
    else:  # no old shard was read
        run = target.model, target.manifest, target.shards
        outcome = build_outcome(before, learners, settings, seconds, before=run)
    if before is not None:
        read = before.nonzeros_read + source.nonzeros_read
        more["readings"] = read / max(outcome.manifest.nonzeros, 1)
        more["bytes_read"] = before.bytes_read + source.bytes_read
    outcome.report.update(more)
    return outcome


def finish(
    target: EditableRun, outcome: Outcome, report: str | None, plan: transaction.Plan | None
) -> Outcome:
    """Write the report, and commit the staged change if there is one; return the outcome, with the
    counts of parts where they are now."""
    if report is not None:  # before the commit: a committed change has its report
        write_outcome(outcome, report=report)
    if plan is None:
        return outcome
    transaction.commit(target.ended.path, target.model_path, plan)
    home = target.ended.path / PARTS
    moved = (own.moved(home) if isinstance(own, SavedCounts) else own for own in outcome.counts)
    return replace(outcome, counts=tuple(moved))


def _new_settings(ended: FinishedRun, change: Change) -> Settings:
    """Return the settings of a run from its change on; raise a SettingsError if it is faithful."""
    settings = ended.settings
    if settings.faithful:
        raise SettingsError(
            f"{ended.path}: a faithful run; the paper's procedure starts at 0 with all rows. "
            "Fit anew with all shards."
        )
    return settings.but(
        tol=settings.tol if change.tol is None else change.tol,
        max_epochs=settings.max_epochs if change.max_epochs is None else change.max_epochs,
        allow_duplicate=settings.allow_duplicate or change.allow_duplicate,
    )


def check_shards_exist(shards: Iterable[ShardFile | ShardRecord]) -> None:
    """Raise a DataError if a local file is missing; object stores are not asked."""
    for shard in shards:
        if "://" not in shard.path and not os.path.exists(shard.path):
            raise DataError(
                f"{shard.name}: gone from {shard.path}. Put it back as it was, or take its rows "
                "out of the run with streamtron forget."
            )


def check_unchanged(shards: Iterable[ShardFile], run: str) -> None:
    """Raise a DataError if a local file has another size or time than when the run read it."""
    for shard in shards:
        now = None if "://" in shard.path else os.stat(shard.path)
        if now and (now.st_size, now.st_mtime_ns) != (shard.size, shard.mtime_ns):
            raise DataError(
                f"{shard.name}: changed since {run} was made of it ({shard.size} bytes then, "
                f"{now.st_size} now, or touched). Put it back as it was; or take it out with "
                f"streamtron forget {run} {shard.name}, and add it as it is now with streamtron "
                "update."
            )


def with_current_times(manifest: Manifest) -> Manifest:
    """Return the manifest with the current times of shards that were copied or touched."""
    shards = []
    for shard in manifest.shards:
        if "://" not in shard.path and os.path.isfile(shard.path):
            now = os.stat(shard.path)
            touched = now.st_size == shard.bytes and now.st_mtime_ns != shard.mtime_ns
            if touched and fingerprint(shard.path, shard.name) == shard.fingerprint:
                shard = replace(shard, mtime_ns=now.st_mtime_ns)
        shards.append(shard)
    return Manifest(tuple(shards))
