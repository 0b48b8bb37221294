"""More shards for a run that has ended: what it knows is kept, and the certificate covers all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import Listener, ignore
from streamtron.data import (
    Manifest,
    Reading,
    ShardFile,
    ShardReader,
    ShardRecord,
    ShardSource,
    Skipped,
    check_twin,
    deletions,
    find_shards,
)
from streamtron.data.deletions import Deletions
from streamtron.data.storage import fingerprint
from streamtron.model.linear_model import LinearModel
from streamtron.runs import transaction
from streamtron.runs.directory import Checkpoint, Run, write_record
from streamtron.runs.ended import Ended, locate, open_ended
from streamtron.runs.fit import as_paths, reading_of_model
from streamtron.runs.learners import Room, class_weights, finished_learners
from streamtron.runs.memory import check_memory, columns_allowed, memory_needed
from streamtron.runs.outputs import check_outputs
from streamtron.runs.results import Outcome, as_it_stands, behind, conclude, write_outcome
from streamtron.solver.added_rows import add_rows
from streamtron.solver.checkpoint import State
from streamtron.solver.learner import Learner
from streamtron.solver.train import train

FEW = 0.25
"""New shards of at most this part of the old ones' bytes are solved by themselves first; more of
them move the old rows' counts so much that it does not pay."""

OpenReader = Callable[[ShardFile, Reading], ShardReader]


def update(
    run: str | os.PathLike[str],
    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    tol: float | None = None,
    max_epochs: int | None = None,
    allow_duplicate: bool = False,
    report: str | os.PathLike[str] | None = None,
    machine: Machine | None = None,
    listen: Listener = ignore,
) -> Outcome:
    """Add shards to a run that has ended, and go on from there to a certificate over all rows.

    The new shards come behind those of the run and begin a new block; counts are kept, new rows
    begin at 0. Where the new rows are few (FEW), they are first read alone and solved while all
    others stand still. What the run's last scan saw of the others still holds, so a second reading
    of the new ones makes it a scan of all rows: where that proves the weights that were there good
    enough for all of them, they stay, and no old shard is read. Else all rows are read, and solved
    together from there on if they fit; the next reading usually certifies: about 2 readings.

    A shard that the run has already, known by its bytes whatever it is called now, is skipped, and
    listed in the report as ``already_in_run``; if that are all, the run is left as it is. So a call
    that was cut off can be made again, whether or not it came to count.

    Whenever it is interrupted, the run is as it was before, or as it is to be.

    Parameters
    ----------
    run : the model, or its run directory.
    shards : files, directories or globs, read as the model's own rows were.
    tol, max_epochs : from now on; None = as the run has them.
    allow_duplicate : add shards with the bytes of another one, too, from now on; one that the run
        has by the same path is skipped all the same.
    report : also write the report there.

    Returns
    -------
    Outcome of the whole: model, report, witness.

    Raises
    ------
    SettingsError : a faithful run, whose procedure has no place for this.
    DataError : no run that has ended; a shard that was changed since the run has it; a label, an
        index base or columns that are not the model's; the old shards are not as they were.
    MachineError : no room, another process has the run.

    Examples
    --------
    >>> import tempfile, pathlib, streamtron
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     root = pathlib.Path(directory)
    ...     _ = (root / "0.svm").write_text("1 1:1\\n-1 1:-1\\n")
    ...     _ = (root / "1.svm").write_text("1 1:2\\n-1 2:1\\n")
    ...     _ = streamtron.fit(root / "0.svm", model=root / "m.st")
    ...     streamtron.update(root / "m.st", root / "1.svm").report["rows"]
    4
    """
    began, machine = time.perf_counter(), machine or Machine()
    place = locate(run, machine.run_dir)
    with open_ended(place, machine.cache_dir) as ended:
        settings = settings_now(ended, tol, max_epochs, allow_duplicate)
        kept = Kept.of(ended, settings, place.model)
        added, already = _sort_out(as_paths(shards), kept)
        kept.check_report(report, [shard.path for shard in added], machine)
        if added:
            with kept.source(added, machine) as new:
                outcome = _update(kept, new, machine, listen, began)
        else:
            outcome = kept.as_it_stands()
        outcome.report["already_in_run"] = already
        if report is not None:  # before the change counts: a run that has had it has this, too
            write_outcome(outcome, report=report)
        if added:
            transaction.finish(ended.path, kept.model_path, ["checkpoint.before"])
    return outcome


def settings_now(
    ended: Ended, tol: float | None, max_epochs: int | None, allow_duplicate: bool = False
) -> Settings:
    """The settings of a run from its change on.

    Raises
    ------
    SettingsError : a faithful run.
    """
    settings = ended.settings
    if settings.faithful:
        raise SettingsError(
            f"{ended.path}: a faithful run, and the paper's procedure begins at 0 with all rows. "
            "Fit anew with all shards."
        )
    return settings.but(
        tol=settings.tol if tol is None else tol,
        max_epochs=settings.max_epochs if max_epochs is None else max_epochs,
        allow_duplicate=settings.allow_duplicate or allow_duplicate,
    )


class Kept(NamedTuple):
    """A run that has ended, as a change of it needs it.

    Parameters
    ----------
    ended : what is in its directory.
    settings : those of the change.
    model_path : where its model is.
    model : that model.
    manifest : of its shards.
    reading : how they were read, so that the cache is still right.
    deletions : rows that are left out of them, by the fingerprints of their shards.
    """

    ended: Ended
    settings: Settings
    model_path: str
    model: LinearModel
    manifest: Manifest
    reading: Reading
    deletions: Mapping[str, Deletions]

    @classmethod
    def of(cls, ended: Ended, settings: Settings, path: str) -> Kept:
        """What lies in the run's directory, and its model, which is at ``path``."""
        manifest = _as_they_are(Manifest.load(str(ended.path / "manifest.json")))
        model = LinearModel.load(path)
        # text is cached as its columns are numbered, whatever the base turned out to be
        reading = replace(reading_of_model(model), index_base=settings.index_base)
        deleted = {one.fingerprint: one for one in deletions.load(ended.path).values()}
        return cls(ended, settings, path, model, manifest, reading, deleted)

    @property
    def shards(self) -> list[ShardFile]:
        """The run's shards."""
        return [self.file_of(shard) for shard in self.manifest.shards]

    @property
    def skipped(self) -> list[Skipped]:
        """The shards that were left out when the run was fitted, or changed."""
        found: Any = self.model.certificate or {}
        [first, *_] = found.get("learners", [found])
        return [Skipped(shard["name"], shard["reason"]) for shard in first.get("skipped", ())]

    @property
    def deleted(self) -> tuple[Deletions, ...]:
        """Of every shard of which rows are left out."""
        return tuple(file.without for file in self.shards if file.without)

    def file_of(self, shard: ShardRecord) -> ShardFile:
        """The file of a shard as it was read."""
        left_out = self.deletions.get(shard.fingerprint)
        if left_out is not None and left_out.path != shard.path:
            left_out = replace(left_out, path=shard.path)
        return ShardFile(
            shard.path, shard.name, shard.format, shard.bytes, shard.mtime_ns, left_out  # type: ignore[arg-type]
        )  # fmt: skip

    def check_report(
        self, report: str | os.PathLike[str] | None, inputs: Sequence[str], machine: Machine
    ) -> None:
        """Refuse a report that would replace what the change reads or writes.

        Raises
        ------
        SettingsError : see ``check_outputs``.
        """
        check_outputs(
            {"model": self.model_path, "report": report},
            [*inputs, *(shard.path for shard in self.shards)],
            directories={"run directory": self.ended.path},
            cache=machine.cache_dir,
        )

    def as_it_stands(self) -> Outcome:
        """The outcome of the run where nothing is to be done: nothing is read."""
        state, labels = self.ended.checkpoint.state, self.ended.checkpoint.labels
        learners = finished_learners(state, self.ended.settings, labels, None)
        return as_it_stands(
            self.model, learners, self.ended.settings, labels, self.manifest, self.skipped,
            self.deleted,
        )  # fmt: skip

    def fingerprints(self, files: Sequence[ShardFile]) -> dict[str, str]:
        """Path → fingerprint of files, whose bytes are read."""
        with ShardSource(files, self.reading, cache_dir=None) as source:
            found = [fingerprint for _, fingerprint in source.fingerprints()]
        return {file.path: one for file, one in zip(files, found, strict=True)}

    def cache_directory(self, machine: Machine) -> str:
        """Where the flat copies of the shards are."""
        return machine.cache_dir or str(self.ended.path / "cache")

    def alone(self, shard: ShardFile, open_reader: OpenReader | None = None) -> ShardSource:
        """One shard by itself, not copied anywhere."""
        labels = self.ended.checkpoint.labels
        return ShardSource(
            [shard], self.reading, cache_dir=None, classes=labels, open_reader=open_reader
        )

    def source(self, shards: Sequence[ShardFile], machine: Machine) -> ShardSource:
        """Shards read as the run's own were, with the labels that it has.

        Raises
        ------
        DataError : one of them is gone, or not as it was when the run read it.
        """
        check_there(shards)
        check_as_they_were(shards, str(self.ended.path))
        check_memory(memory_needed(self.settings, rows=0, columns=0), machine)
        return ShardSource(
            shards,
            self.reading,
            cache_dir=self.cache_directory(machine),
            classes=self.ended.checkpoint.labels,
            most_columns=columns_allowed(self.settings, machine),
            allow_duplicate=self.settings.allow_duplicate,
            threads=machine.threads,
            on_bad_shard=self.settings.on_bad_shard,
            skipped=self.skipped,
        )


def check_there(shards: Iterable[ShardFile | ShardRecord]) -> None:
    """Refuse to begin what needs all rows of a run where some are gone; stores are not asked.

    Raises
    ------
    DataError : a file is not there.
    """
    for shard in shards:
        if "://" not in shard.path and not os.path.exists(shard.path):
            raise DataError(
                f"{shard.name}: gone from {shard.path}. Put it back as it was; or take its rows "
                "out of the run with streamtron forget."
            )


def check_as_they_were(shards: Iterable[ShardFile], run: str) -> None:
    """Refuse to begin what needs the rows of shards as a run has read them; stores are not asked.

    Raises
    ------
    DataError : a file has another size or time than then.
    """
    for shard in shards:
        if "://" in shard.path:
            continue
        now = os.stat(shard.path)
        if (now.st_size, now.st_mtime_ns) != (shard.size, shard.mtime_ns):
            raise DataError(
                f"{shard.name}: changed since {run} was made of it ({shard.size} bytes then, "
                f"{now.st_size} now, or touched). Put it back as it was; or take it out with "
                f"streamtron forget {run} {shard.name}, and add it as it is now with streamtron "
                "update."
            )


def _sort_out(paths: list[str], kept: Kept) -> tuple[list[ShardFile], list[str]]:
    """The shards to add, with names that tell them from the run's; and the names of those that the
    run has, known by their bytes.

    Raises
    ------
    DataError : other bytes where the run has a shard; another format than the run's.
    """
    known = {shard.path: shard for shard in kept.manifest.shards}
    twins = {shard.fingerprint: shard for shard in reversed(kept.manifest.shards)}
    found = find_shards(paths)
    bytes_of = _fingerprints(found, kept)
    added: list[ShardFile] = []
    already: list[ShardFile] = []
    for shard in found:
        before, now = known.get(shard.path), bytes_of.get(shard.path)
        if before is not None and now != before.fingerprint:
            raise DataError(
                f"{shard.name}: its bytes are others than those that the run has of it. Take it "
                "out first, with streamtron forget, and add it then; or, if nothing but rows was "
                "taken out of it, name it by streamtron forget --replaced-by."
            )
        twin = None if now is None else twins.get(now)
        if before is not None or (twin is not None and not kept.settings.allow_duplicate):
            already.append(shard)
            continue
        if twin is not None:
            check_twin(kept.file_of(twin), shard, True)
        added.append(shard)
    _check_format(added, kept)
    names = {shard.name for shard in kept.manifest.shards}
    added = [s._replace(name=s.path) if s.name in names else s for s in added]
    return added, [shard.name for shard in already]


def _fingerprints(found: Sequence[ShardFile], kept: Kept) -> dict[str, str]:
    """Path → fingerprint of the shards that the run may have: those whose size one of its own has.
    Of a shard that was not touched since it was read, that is known; of others, it is read."""
    known = {(one.path, one.bytes, one.mtime_ns): one.fingerprint for one in kept.manifest.shards}
    sizes = {one.bytes for one in kept.manifest.shards}
    told = {
        shard.path: known[shard.path, shard.size, shard.mtime_ns]
        for shard in found
        if (shard.path, shard.size, shard.mtime_ns) in known
    }
    unsure = [shard for shard in found if shard.path not in told and shard.size in sizes]
    return told | kept.fingerprints(unsure)


def _check_format(added: Sequence[ShardFile], kept: Kept) -> None:
    """Refuse shards of another format than the run's."""
    wanted = kept.manifest.shards[0].format
    for shard in added:
        if shard.format != wanted:
            raise DataError(
                f"{shard.name}: {shard.format}, and the run's shards are {wanted}. Convert them "
                "with streamtron convert."
            )


def _update(
    kept: Kept, new: ShardSource, machine: Machine, listen: Listener, began: float
) -> Outcome:
    settings, manifest = kept.settings, kept.manifest
    with kept.source([*kept.shards, *new.shards], machine) as source:
        weights = class_weights(source, settings)
        state = kept.ended.checkpoint.state
        learners = finished_learners(state, settings, source.labels, weights)
        few = sum(shard.size for shard in new.shards) <= FEW * manifest.bytes
        only_more = few and settings.class_weight != "balanced" and _as_they_were(kept.shards)
        for learner in learners:
            learner.begin_change(only_more=only_more)
        if few:
            add_rows(new, learners, settings, manifest.rows)
            _check_new(new, kept)
        last = Last()
        room = Room(settings, machine, learners[0].pool)
        train(
            source, learners, settings, listen, threads=machine.thread_count, room=room,
            checkpointer=last, abreast=room.abreast,
        )  # fmt: skip
        if not few:
            _check_new(source, kept)
        outcome = _concluded(kept, new, source, learners, began)
        stage(kept, source, outcome, last.state)
    return outcome


def _as_they_are(manifest: Manifest) -> Manifest:
    """The manifest with the times that shards have now, where their bytes are the same: they were
    copied, or touched."""
    shards = []
    for shard in manifest.shards:
        there = "://" not in shard.path and os.path.isfile(shard.path)
        now = os.stat(shard.path) if there else None
        if (
            now is not None
            and (now.st_size == shard.bytes and now.st_mtime_ns != shard.mtime_ns)
            and fingerprint(shard.path, shard.name) == shard.fingerprint
        ):
            shard = replace(shard, mtime_ns=now.st_mtime_ns)
        shards.append(shard)
    return Manifest(tuple(shards))


def _as_they_were(shards: Sequence[ShardFile]) -> bool:
    """Whether shards have the sizes and times that they had when they were read."""
    now = find_shards([shard.path for shard in shards])
    stamps = {(shard.path, shard.size, shard.mtime_ns) for shard in now}
    return all((shard.path, shard.size, shard.mtime_ns) in stamps for shard in shards)


def _concluded(
    kept: Kept, new: ShardSource, source: ShardSource, learners: Sequence[Learner], began: float
) -> Outcome:
    """The outcome for all rows, whether or not the old ones had to be read."""
    manifest, settings = kept.manifest, kept.settings
    seconds = time.perf_counter() - began
    if source.rows is not None:
        outcome = conclude(source, learners, settings, seconds)
        rows, nonzeros = source.rows, source.nonzeros
    else:
        outcome = conclude(new, learners, settings, seconds, before=kept.model)
        outcome = behind(outcome, manifest, kept.deleted)
        rows, nonzeros = outcome.manifest.rows, outcome.manifest.nonzeros
    assert nonzeros is not None
    read = new.nonzeros_read + source.nonzeros_read
    outcome.report.update(
        rows=rows,
        nonzeros=nonzeros,
        readings=read / nonzeros,
        bytes_read=new.bytes_read + source.bytes_read,
    )
    if outcome.deletions:
        outcome.report["forgotten_rows"] = deletions.total(outcome.deletions)
    return outcome


def _check_new(new: ShardSource, kept: Kept) -> None:
    """Refuse what only a reading of the new shards, or of all, can tell."""
    if kept.model.index_base == 1 and new.index_base == 0:
        raise DataError(
            f"{new.shards[-1].name} or a shard added with it has a column 0, and the run's columns "
            "are numbered from 1. Number them alike, or fit anew with --index-base 0."
        )


class Last:
    """A ``solver.train.Checkpointer`` of the end alone."""

    state: State

    def border(self, state: Callable[[], State]) -> None:
        """Nothing is kept on the way."""

    def end(self, state: Callable[[], State]) -> None:
        """The end is."""
        self.state = state()

    def before_solves(self, state: Callable[[], State]) -> None:
        """Nothing is kept on the way."""

    def due(self) -> bool:
        """Nothing is kept on the way."""
        return False


def stage(kept: Kept, source: ShardSource, outcome: Outcome, state: State) -> None:
    """Write what the run is after the change, to count from ``transaction.finish`` on."""
    staged = transaction.begin(kept.ended.path)
    write_outcome(outcome, model=staged / transaction.MODEL, run=staged, home=kept.ended.path)
    read = source.nonzeros_read, source.bytes_read
    Run(staged).save(Checkpoint(state, list(source.labels), *read, outcome.report["seconds"]))
    stamps = [(shard.name, shard.size, shard.mtime_ns) for shard in source.shards]
    write_record(staged, kept.settings, stamps)
