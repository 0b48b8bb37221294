"""Finished runs: find one by its model or its directory, and open it to read or to change it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from streamtron.core.config import Settings
from streamtron.core.errors import DataError, MachineError, SettingsError
from streamtron.core.files import absolute, as_path, locked, reading_from
from streamtron.core.rows import Facts
from streamtron.data import Manifest, ShardFile, ShardRecord, deletions
from streamtron.data.storage import fingerprint
from streamtron.model.linear_model import LinearModel
from streamtron.runs import transaction
from streamtron.runs.directory import (
    PARTS,
    RUN_SUFFIX,
    Checkpoint,
    Run,
    read_record,
    remove_temporary,
    run_directory,
)
from streamtron.runs.learners import ClassWeights, restore_finished
from streamtron.runs.parts import take_saved_counts
from streamtron.solver.learner import Learner


class RunLocation(NamedTuple):
    """The directory of a run, and the path of its model."""

    directory: Path
    model: str


def locate(
    run: str | os.PathLike[str], run_dir: str | os.PathLike[str] | None = None
) -> RunLocation:
    """Find a run by its model, ``MODEL``, or by its directory, ``MODEL.run`` or ``run_dir``.

    The model's path is not read from the run directory, which may be a copy of another one; a model
    that is a link into another directory is refused.
    """
    path = absolute(run, "models").rstrip("/")
    if run_dir is not None:
        return RunLocation(Path(absolute(run_dir)), path)
    model = model_of(path)
    target = os.path.realpath(model)
    home = os.path.realpath(os.path.dirname(model) or ".")
    if os.path.islink(model) and os.path.dirname(target) != home:
        raise DataError(
            f"{model}: a symbolic link to {target}, and the run would change the file there. Name "
            "the model itself, and its run directory by --run-dir."
        )
    return RunLocation(Path(run_directory(model)), model)


def model_of(path: str) -> str:
    """Return the path of a run's model, given that or the run's directory."""
    path = path.rstrip("/")
    model = path.removesuffix(RUN_SUFFIX) if os.path.isdir(path) else path
    if os.path.isdir(model):
        raise DataError(
            f"{path}: neither MODEL nor MODEL{RUN_SUFFIX}. Name the model; give a run directory of "
            "another name by --run-dir."
        )
    return model


class FinishedRun(NamedTuple):
    """A finished run, as its directory has it."""

    path: Path
    settings: Settings
    checkpoint: Checkpoint

    @classmethod
    @contextmanager
    def to_change(cls, place: RunLocation) -> Iterator[FinishedRun]:
        """Open a run, locked until the context ends or the process dies, and complete a change that
        was interrupted; raise a DataError if it does not exist or has not ended, a MachineError if
        another process has locked it."""
        directory = _existing(place.directory)
        with locked(directory):
            remove_temporary(directory)
            transaction.recover(directory, place.model)
            transaction.discard(directory)
            record = read_record(directory)
            checkpoint = Run(directory, record.stamps, record).load()
            written = (directory / "manifest.json").exists()
            if checkpoint is None or not written or not checkpoint.state.all_finished:
                raise DataError(
                    f"{directory}: the run has not ended, or its last checkpoint is damaged. End "
                    "it with streamtron fit --resume, or fit anew."
                )
            yield cls(directory, Settings.from_dict(record.settings), checkpoint)

    def learners(
        self, facts: Facts, settings: Settings | None = None, weights: ClassWeights | None = None
    ) -> list[Learner]:
        """Restore the learners, with the run's settings if no others are given, in the ranks of the
        checkpoint; of several parts, their counts are read from the parts' states when they are
        used. ``facts`` : of the rows on which they train on."""
        state, labels = self.checkpoint.state, self.checkpoint.labels
        learners = restore_finished(state, settings or self.settings, facts, labels, weights)
        if self.settings.parts is not None:
            take_saved_counts(self.path / PARTS, self.settings, learners)
        return learners


def _existing(directory: Path) -> Path:
    if not directory.is_dir():
        raise DataError(f"{directory}: there is no run. Give a MODEL that streamtron fit wrote.")
    return directory


def check_recovered(path: str | os.PathLike[str]) -> None:
    """Raise a DataError if a committed change of the run is not complete."""
    if transaction.pending(Path(path)):
        raise DataError(
            f"{path}: a change of the run was interrupted after it was committed. Call the same "
            "streamtron update or forget again to complete it."
        )


class EditedModel(NamedTuple):
    """A model, the path of its file, and the bytes that this had when it was read."""

    model: LinearModel
    path: str
    read: bytes

    def save(self, model: LinearModel) -> None:
        """Write ``model`` in its place; raise a MachineError if it is not the one that was read."""
        with reading_from(self.path):
            current = Path(self.path).read_bytes()
        if current != self.read:
            raise MachineError(
                f"{self.path}: another process has changed the model meanwhile. It stays as it is "
                "now; repeat the command."
            )
        model.save(self.path)


@contextmanager
def editing_model(path: str) -> Iterator[EditedModel]:
    """Read a model to write another in its place; its run, if it has one beside it, is locked until
    the context ends. DataError: a change of the run is not complete; MachineError: another process
    changes it."""
    directory = Path(run_directory(path))
    with locked(directory) if directory.is_dir() else nullcontext():
        check_recovered(directory)
        with reading_from(path):
            read = Path(path).read_bytes()
        yield EditedModel(LinearModel.load(path), path, read)


def inputs_of_run(
    model: str | os.PathLike[str] | LinearModel,
    run: str | os.PathLike[str] | None = None,
    witness: str | os.PathLike[str] | None = None,
) -> tuple[str | LinearModel, list[str], str]:
    """Return the model of a run, and the paths of its shards and its witness, given its model, or
    its directory if that is ``MODEL.run``; ``run`` : its directory. A DataError if there is no such
    run, or a change of it was interrupted."""
    if not isinstance(model, LinearModel):
        model = model_of(absolute(model, "models"))
        run = run or run_directory(model)
    if run is None:
        raise SettingsError(
            "a model in memory does not say its shards. Give them, its run, or the path of a model "
            "with its run beside it."
        )
    directory = absolute(run)
    check_recovered(directory)
    manifest = os.path.join(directory, "manifest.json")
    witness_path = as_path(witness) if witness else os.path.join(directory, "witness")
    for needed in (manifest, witness_path):
        if not os.path.isfile(needed):
            raise DataError(
                f"no shards are given, and there is no {needed} of a run. Name the shards, certify "
                "MODEL SHARDS, or the run directory, --run-dir."
            )
    records = Manifest.load(manifest).shards
    check_shards_exist(records)
    return model, [shard.path for shard in records], witness_path


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a run, with the current times of shards that were copied or touched."""
    shards = []
    for shard in Manifest.load(str(directory / "manifest.json")).shards:
        if "://" not in shard.path and os.path.isfile(shard.path):
            stat = os.stat(shard.path)
            touched = stat.st_size == shard.bytes and stat.st_mtime_ns != shard.mtime_ns
            if touched and fingerprint(shard.path, shard.name) == shard.fingerprint:
                shard = replace(shard, mtime_ns=stat.st_mtime_ns)
        shards.append(shard)
    return Manifest(tuple(shards))


def shards_of(manifest: Manifest, directory: Path) -> list[ShardFile]:
    """Return the files of a run's shards, without the rows that were deleted from them."""
    deleted = {rows.fingerprint: rows for rows in deletions.load(directory).values()}
    shards = []
    for record in manifest.shards:
        rows = deleted.get(record.fingerprint)
        rows = rows and replace(rows, path=record.path)
        place = record.path, record.name, record.format, record.bytes, record.mtime_ns
        shards.append(ShardFile(*place, rows))  # type: ignore[arg-type]
    return shards


def check_shards_exist(shards: Iterable[ShardFile | ShardRecord]) -> None:
    """Raise a DataError if a local file is missing; object stores are not asked."""
    for shard in shards:
        if "://" not in shard.path and not os.path.exists(shard.path):
            raise DataError(
                f"{shard.name}: gone from {shard.path}. Put it back as it was, or take its rows "
                "out of the run with streamtron forget."
            )


def check_as_read(shards: Iterable[ShardFile], run: str) -> None:
    """Raise a DataError if a local file is missing, or has another size or time than when the run
    read it."""
    shards = list(shards)
    check_shards_exist(shards)
    for shard in shards:
        stat = None if "://" in shard.path else os.stat(shard.path)
        if stat and (stat.st_size, stat.st_mtime_ns) != (shard.size, shard.mtime_ns):
            raise DataError(
                f"{shard.name}: changed since {run} was made of it ({shard.size} bytes then, "
                f"{stat.st_size} now, or touched). Put it back as it was; or take it out with "
                f"streamtron forget {run} {shard.name}, and add it as it is now with streamtron "
                "update."
            )


def check_model(finished: FinishedRun, model: LinearModel) -> None:
    """Raise a DataError if settings or checkpoint of the run are not the model's."""
    settings, checkpoint = finished.settings, finished.checkpoint
    for name in ("multiclass", "multilabel"):
        if (value := getattr(settings, name)) != model.settings.get(name):
            raise DataError(f"{finished.path}: {name} is {value!r}, and not the model's. Fit anew.")
    learners, known = checkpoint.state.content["learners"], {*checkpoint.labels}
    if known != {*model.classes} or len(learners) != (len(known) if settings.one_vs_rest else 1):
        raise DataError(NOT_ITS_OWN.format(finished.path))


def check_bounds(
    finished: FinishedRun, proofs: Iterable[Mapping[str, Any]], proven: Iterable[Mapping[str, Any]]
) -> None:
    """Raise a DataError if the proofs of the run's learners are not those of its model: they have
    no bound in common with another run's."""
    names = ("primal_objective", "dual_objective")
    bounds, known = ([[p.get(name) for name in names] for p in some] for some in (proofs, proven))
    if bounds != known:
        raise DataError(NOT_ITS_OWN.format(finished.path))


NOT_ITS_OWN = "{}: the checkpoint is not the model's. Put the run's own model back, or fit anew."
