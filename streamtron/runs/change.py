"""Change a finished run: rows come in, rows go out, and training goes on until all are certified.

α of rows that stay are kept, new rows start at 0, and the next reading sums v = Σ α_k l_k x_k
afresh. The change is committed at once: see ``store``.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import Listener, ignore
from streamtron.core.files import nothing_empty
from streamtron.core.kinds import whole
from streamtron.core.text import up
from streamtron.data import (
    Cache,
    Dataset,
    Manifest,
    ReaderConfig,
    ShardFile,
    ShardRecord,
    check_duplicate,
    drop_cached,
    find_shards,
)
from streamtron.data import fingerprints as read_fingerprints
from streamtron.data.deletions import Deletions, in_share, listed_rows
from streamtron.data.reader_config import ALL
from streamtron.data.readers import rows_with
from streamtron.data.storage import is_uri
from streamtron.model.linear_model import LinearModel
from streamtron.runs.finished_run import check_as_read, locate, read_shards
from streamtron.runs.inputs import Paths, StrPath, as_paths, check_outputs, reading_from_model
from streamtron.runs.job import Call, Fitting, prepared
from streamtron.runs.learners import class_weights, in_order, number_of_learners, restored
from streamtron.runs.parts import OpenParts, take_saved_alphas, with_parts
from streamtron.runs.report import Outcome, certificate_of, deletions_of
from streamtron.runs.store import CACHE, Absent, SavedState, Store, changing, there
from streamtron.solver.alphas import Alphas, Pieces
from streamtron.solver.changes import add_rows, begin_change
from streamtron.solver.learner import Learner, renumber, replace_alphas

_log = logging.getLogger("streamtron")

FEW = 0.25
"""New shards of at most this part of the run's bytes are first solved alone, the old α fixed.
With more of them the old α change so much that this does not pay."""

ROOM = 0.2
"""The part of the tolerance, at least, that an update should leave between it and the gap: the next
one then seldom costs much more."""

NO_ROWS = np.zeros(0, dtype=np.int64)

Rows = NDArray[np.int64]


def update(
    run: str | os.PathLike[str],
    shards: Paths,
    *,
    mirror: bool = False,
    window: int | None = None,
    again: bool = False,
    tol: float | None = None,
    max_epochs: int | None = None,
    allow_duplicate: bool = False,
    report: str | os.PathLike[str] | None = None,
    machine: Machine | None = None,
    listen: Listener = ignore,
    open_parts: OpenParts | None = None,
    time_limit: str | float | None = None,
) -> Outcome:
    """Add shards to a finished run, or make its shards these, and train on until all rows are
    certified.

    The new shards are appended; old dual variables are kept, new ones start at 0. Few new rows (a
    quarter of the bytes at most) are first read alone and solved with all others fixed: if a scan
    of them certifies the weights, no old row is read. Otherwise all are: about 2 readings, or one
    where memory holds all rows. A run on several parts gets one more for each new shard, up to 64,
    and reads all rows. A shard whose bytes the run has is skipped and listed in the report as
    ``already_in_run``; one that was forgotten as ``stays_forgotten``. An interrupted call leaves
    the run as it was or completely changed, and may be repeated.

    Parameters
    ----------
    run : the model, or its run directory.
    shards : files, directories or globs, read as the model's own rows were.
    mirror : whether shards of the run that are not among these go out, in the same training. They
        are told by their bytes, wherever they are now; the report lists ``added`` and, with their
        rows, ``forgotten``. What goes out so comes in again where it is given again.
    window : mirror the last N of the shards, in their order.
    again : take in shards that were forgotten, too, and all rows of shards that come in.
    tol, max_epochs, allow_duplicate : as in ``fit``, from now on; None = as the run has them.
    report : also write the report there.
    machine, listen, time_limit, open_parts : as in ``fit``; the last makes a run of one part one of
        several.

    Raises
    ------
    SettingsError (a run of the paper's stages), MachineError
    DataError : no finished run; a shard that changed; a label or an index base not of the model; no
        row, or no row of a label, would remain.

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
    call, paths = Call.begin(machine, listen, open_parts, time_limit), as_paths(shards)
    changes = {"tol": tol, "max_epochs": max_epochs, "allow_duplicate": allow_duplicate or None}
    with EditableRun.opened(run, call, report, paths, **changes) as target:
        files, mirrors = find_shards(paths), mirror or window is not None
        if window is not None:
            files = files[-whole(window, "window", least=1) :]
        outcome = target.finish(_take_in(target, files, mirrors, again))
        gap, most = outcome.report["certificate"]["relative_duality_gap"], target.settings.tolerance
        if (1.0 - ROOM) * most < gap <= most:
            _log.warning(
                "The proven gap is %s, and the tolerance %g: so little room is left that the next "
                "update may have to train on all rows. A smaller --tol makes room.",
                up(gap, 3),
                most,
            )
        return outcome


def forget(
    run: str | os.PathLike[str],
    shards: Paths = (),
    *,
    key: str | None = None,
    values: str | float | Sequence[str | int | float] = (),
    rows: str | os.PathLike[str] | None = None,
    tol: float | None = None,
    max_epochs: int | None = None,
    report: str | os.PathLike[str] | None = None,
    machine: Machine | None = None,
    listen: Listener = ignore,
    open_parts: OpenParts | None = None,
) -> Outcome:
    """Delete rows from a finished run, and train on until the remaining rows are certified.

    If a shard still holds deleted rows, they are recorded in the run's directory and in the
    witness, and every reading for this run leaves them out. Afterwards model, witness, checkpoint,
    manifest and cache of the run, and the cache that ``machine`` names, hold nothing of the rows;
    copies elsewhere are not looked for. What a transformer took from the rows it was fitted on
    stays until a new fit: names of categories, words, means.

    An interrupted call leaves the run as it was (except cache files) or completely changed, and may
    be repeated. The report has the rows of each shard or value as ``forgotten``; as ``not_in_run``
    what the run does not have; and as ``forgotten_rows`` all that its shards still hold.

    Parameters
    ----------
    run : the model, or its run directory.
    shards : deleted whole, or with ``key`` where to look; none = in all shards. Names as in the
        manifest, paths, or directories, which stand for the run's shards below them; the files may
        be gone, unless only some of their rows are deleted.
    key, values : a column of the tables, which need not be a feature, and its values in the rows to
        delete, as text or numbers.
    rows : a CSV file whose first line is ``shard,row``: name or path of a shard, and the number of
        the row in its file, from 0, earlier deletions counted.
    tol, max_epochs : from now on; None = as the run has them.
    report : also write the report there.
    machine, listen : as in ``fit``.
    open_parts : as in ``fit``, for a run on several parts, which are dealt anew: as many, or one a
        shard.

    Raises
    ------
    SettingsError : a run of the paper's stages; ``key`` for text shards; options that exclude each
        other.
    DataError : no finished run; no row, or no row of a label, would remain; a remaining shard that
        changed.
    MachineError

    Examples
    --------
    >>> import tempfile, pathlib, streamtron
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     root = pathlib.Path(directory)
    ...     _ = (root / "0.svm").write_text("1 1:1\\n-1 1:-1\\n")
    ...     _ = (root / "1.svm").write_text("1 1:2\\n-1 2:1\\n")
    ...     _ = streamtron.fit([root / "0.svm", root / "1.svm"], model=root / "m.st")
    ...     streamtron.forget(root / "m.st", "1.svm").report["rows"]
    2
    """
    listed = [values] if isinstance(values, str | int | float | np.generic) else values
    names, texts = as_paths(shards), [*dict.fromkeys(map(str, listed))]
    if key is not None and rows is not None:
        raise SettingsError("--key and --rows exclude each other. Give one.")
    if (key is None) != (not texts):
        raise SettingsError("--key names a column, and --value a value in it: give both.")
    if rows is not None and names:
        raise SettingsError("--rows FILE names the shards itself. Leave the shards out.")
    if key is rows is None and not names:
        raise SettingsError("nothing to forget. Name shards, or rows with --key or --rows.")
    call, inputs = Call.begin(machine, listen, open_parts), [] if rows is None else [str(rows)]
    with EditableRun.opened(run, call, report, inputs, tol=tol, max_epochs=max_epochs) as target:
        if key is not None:
            deleted = _rows_by_key(target, names, key, texts)
        elif rows is not None:
            deleted = _rows_by_list(target, str(rows))
        else:
            deleted = _whole_shards(target, names)
        _check_left(target)
        facts: dict[str, Any] = {
            "forgotten": {name: number for name, number in deleted.items() if number},
            "not_in_run": [name for name, number in deleted.items() if number is None],
        }
        return target.finish(facts)


@dataclass(eq=False)
class EditableRun:
    """A run that has ended and is to be changed: its last state, its settings from the change on,
    the model, the path of the report, how its shards were read, and their files, in the order of
    the manifest.

    ``files`` : what these files are from the change on, with the rows that are left out then, None
    = the shard goes out. ``added`` : new shards, behind those. ``absent`` : fingerprint → the rows
    that are forgotten of a shard that the run does not have then.
    """

    call: Call
    store: Store
    saved: SavedState
    settings: Settings
    model_path: str
    model: LinearModel
    report: str | None
    manifest: Manifest
    reading: ReaderConfig
    shards: list[ShardFile]
    files: list[ShardFile | None]
    absent: dict[str, Absent]
    added: list[ShardFile] = field(default_factory=list)

    @classmethod
    @contextmanager
    def opened(
        cls, run: StrPath, call: Call, report: StrPath | None, inputs: Sequence[str], **changes: Any
    ) -> Iterator[EditableRun]:
        """Open a run to change it, see ``store.changing``; ``changes`` of its settings, None = as
        they are. A DataError if there is no run, or it has not ended; a SettingsError if the report
        would replace a file that is written, or read as ``inputs`` are."""
        place, cache = locate(run, call.machine.run_dir), call.machine.cache_dir
        how: Any = {"runs": [there(place.directory)]}
        how["directories"] = {"run directory": place.directory}
        written = check_outputs({"report": report}, [place.model, *inputs], cache=cache, **how)
        with nothing_empty(cache), changing(*place) as store:
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
            settings, (manifest, files) = recorded.but(**given), read_shards(store)
            model, learners = LinearModel.load(place.model), len(saved.state.content["learners"])
            expected = number_of_learners(recorded, len({*saved.labels}))
            if {*saved.labels} != {*model.classes} or learners != expected:
                raise DataError(_NOT_ITS_OWN.format(store.path))
            # text is prepared with the columns' numbers in the file, before the base is removed
            reading = replace(reading_from_model(model), index_base=settings.index_base)
            known = place.model, model, written["report"], manifest, reading, files
            absent = {gone.fingerprint: gone for gone in store.absent}
            yield cls(call, store, saved, settings, *known, [*files], absent)

    @property
    def kept(self) -> list[tuple[ShardFile, ShardRecord]]:
        """The shards of the run that stay, as they are from the change on, and their records."""
        pairs = zip(self.files, self.manifest.shards, strict=True)
        return [(file, record) for file, record in pairs if file is not None]

    @property
    def removed(self) -> Rows:
        """The rising numbers of the run's rows that go out."""
        removed, files = [NO_ROWS], zip(self.shards, self.files, strict=True)
        for (earlier, file), record in zip(files, self.manifest.shards, strict=True):
            if file is None:
                removed.append(record.row_numbers)
                continue
            rows = np.setdiff1d(_left_out(file), _left_out(earlier))
            rows -= np.searchsorted(self.not_read(earlier, rows), rows)
            removed.append(record.first_row + rows)
        return np.concatenate(removed)

    def remaining(self, alphas: Alphas) -> Pieces:
        """Yield the α of the run's rows that stay, by their new numbers."""
        removed = self.removed
        for numbers, values in alphas.nonzero():
            rows = numbers // alphas.width
            stays = ~np.isin(rows, removed)
            less = np.searchsorted(removed, rows[stays])
            yield numbers[stays] - alphas.width * less, values[stays]

    def not_read(self, file: ShardFile, rows: Rows) -> Rows:
        """Return the rows of a file that the run does not read, up to the last of ``rows``: deleted
        and held-out rows."""
        share = self.reading.share
        numbers = np.arange(rows.max(initial=-1) + 1 if share != ALL else 0)
        return np.union1d(_left_out(file), numbers[~in_share(file.name, numbers, share)])

    def leave_out(self, number: int, rows: Rows | None = None) -> int:
        """Leave rows out of a shard, by their numbers in its file, None = all of it; return how
        many of them would have been read."""
        file, record = self.files[number], self.manifest.shards[number]
        if file is None:
            return 0
        if rows is None:
            self.files[number] = None
            return record.rows
        if len(new := np.setdiff1d(rows, self.not_read(file, rows))):
            known = np.union1d(_left_out(file), new)
            without = Deletions(record.path, record.fingerprint, known)
            self.files[number] = file._replace(without=without)
        return len(new)

    @property
    def cache_directory(self) -> str:
        """Where the prepared files of the shards are."""
        return self.call.machine.cache_dir or str(self.store.path / CACHE)

    def restore(self, data: Dataset, settings: Settings) -> list[Learner]:
        """Restore the run's learners with the settings of the change, in the ranks of the data; of
        several parts, their α are read from the parts' states when they are used."""
        saved, weights = self.saved, class_weights(settings, data)
        learners = restored(saved, settings, data.facts, weights)
        recorded = Settings.from_dict(self.store.settings)
        if recorded.parts is not None:
            take_saved_alphas(self.store.parts, recorded, learners)
        saved.state.arrays.clear()  # the learners hold what they need of them
        known: Any = self.model.certificate or {}
        proofs = [certificate_of(k) for k in in_order(learners, data.labels, settings)]
        # no two runs have a bound in common
        if _bounds(proofs) != _bounds(known.get("learners", [known])):
            raise DataError(_NOT_ITS_OWN.format(self.store.path))
        places = data.places_of(saved.numbers)
        for learner in learners:
            renumber(learner, places, data.columns)
        return learners

    def finish(self, facts: Mapping[str, Any]) -> Outcome:
        """Train on with the changed rows, here or on parts, from the weights and α of the run;
        write the report with ``facts``, and commit. Where nothing changes, no data is read."""
        shards = [*(file for file, _ in self.kept), *self.added]
        as_they_were = [file.path for file in shards] == [file.path for file in self.shards]
        if as_they_were and not len(self.removed):
            read = {"readings": 0.0, "seconds": 0.0, "bytes_read": 0}
            report = {**(self.store.report or {}), **read, **facts}
            outcome = Outcome(self.model, report, (), self.manifest, deletions_of(self.shards))
            outcome.write(self.report)
            return outcome

        def decide(settings: Settings, data: Dataset) -> Settings:
            workers = bool(self.added) and self.call.open_parts is not None
            return with_parts(settings, data.shards, workers=workers, before=len(self.shards))

        check_as_read(shards, str(self.store.path))
        seen = {file.name: record.fingerprint for file, record in self.kept}
        how = [self.settings], self.cache_directory, decide, self.saved.labels, seen
        with prepared(self.call, self.store, shards, self.reading, *how) as fitting:
            data, parts = fitting.data, None
            _check_rows(self, data)
            learners = self.restore(data, fitting.settings)
            if fitting.settings.parts is None:
                _train_here(self, fitting, learners)
            else:
                parts = self.store.new_parts()
                for learner in learners:
                    begin_change(learner, only_more=False)
                    if len(self.removed):
                        learner.best.discard()  # no scan is to certify what the rows have made
                staying = [self.remaining(learner.alphas) for learner in learners]
                learners = fitting.train_on_parts(learners, parts, staying)
            reading, base = data.reading, self.model.index_base  # whichever columns are left
            data.reading = replace(reading, index_base=base)  # type: ignore[arg-type]
            outcome = fitting.outcome(learners)
            # the run itself does not keep the facts, which may name what was forgotten
            told = replace(outcome, report={**outcome.report, **facts})
            told.write(self.report)  # a committed change has its report
            if len(self.removed):
                _drop_stale(self, data, reading)
            state = [*self.absent.values()], fitting.last, parts
            fitting.commit(self.store, self.model_path, outcome, *state)
        if self.model.calibration is not None:
            _log.warning("The model has lost its probabilities: give it new ones with calibrate.")
        return told


def _train_here(target: EditableRun, fitting: Fitting, learners: Sequence[Learner]) -> None:
    """Train the learners on; few new rows, where no others go out, alone at first."""
    data, settings, removes = fitting.data, fitting.settings, bool(len(target.removed))
    size = 0 if removes else sum(shard.size for shard in target.added)
    few = 0 < size <= FEW * target.manifest.bytes
    only_more = few and settings.class_weight != "balanced"
    with data.part(len(target.kept), len(data.shards)) if few else nullcontext() as new:

        def begin(group: Sequence[Learner]) -> None:
            for learner in group:
                begin_change(learner, only_more=only_more)
                if removes:
                    alphas = learner.alphas
                    replace_alphas(learner, Alphas.of(target.remaining(alphas), alphas.width))
            if new is not None:
                add_rows(new, group, settings, target.manifest.rows, target.call.listen)
            if any(learner.finished is None for learner in group):
                fitting.hold_rows()

        fitting.train_here(learners, begin)
        if new is not None:
            fitting.readings = new.nonzeros_read / max(data.nonzeros, 1)
            fitting.bytes_read = new.bytes_read


def _check_rows(target: EditableRun, data: Dataset) -> None:
    """Raise a DataError if shards that come in have a column below the model's base, or, where rows
    go out, no row that stays has one of the labels."""
    if target.added and target.model.index_base == 1 and data.index_base == 0:
        raise DataError(
            f"{data.shards[-1].name} or a shard added with it has a column 0, and the run's "
            "columns are numbered from 1. Number them alike, or fit anew with --index-base 0."
        )
    if len(target.removed) and (unseen := data.unseen_labels):
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


def _bounds(proofs: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    names = ("primal_objective", "dual_objective")
    return [[proof.get(name) for name in names] for proof in proofs]


_NOT_ITS_OWN = "{}: the state is not the model's. Put the run's own model back, or fit anew."


# rows that come in


def _take_in(
    target: EditableRun, files: Sequence[ShardFile], mirrors: bool, again: bool
) -> dict[str, Any]:
    """Add the shards that the run does not have; where it ``mirrors`` them, keep of its own those
    that are given, wherever they are now, and take all others out. ``again`` : all rows of shards
    that were forgotten count again. Return the report's facts."""
    records, given, forgotten = target.manifest.shards, list[Known](), list[str]()
    absent, gone = target.absent, list[ShardRecord]()
    for shard, fingerprint in _identified(files, target):
        if again:
            absent.pop(fingerprint, None)
        if (known := absent.get(fingerprint)) is not None and known.rows is None:
            forgotten.append(shard.name)
        else:
            given.append((shard, fingerprint))
    at = _matched(given, target, moved=mirrors or not target.settings.allow_duplicate)
    for number, (file, record) in enumerate(target.kept if mirrors else ()):
        without = file.without
        if (moved := at.get(number)) is None:
            gone.append(record)
            if without is not None:
                absent[record.fingerprint] = Absent(record.fingerprint, record.bytes, without.rows)
        elif without is not None:
            moved = moved._replace(without=replace(without, path=moved.path))
        target.files[number] = moved
    matched, names = {shard.path for shard in at.values()}, {file.name for file, _ in target.kept}
    already = [shard.name for shard, _ in given if shard.path in matched]
    twins = {record.fingerprint: file for file, record in reversed(target.kept)}
    paths = {record.path for record in records}
    for shard, fingerprint in given:
        if shard.path in matched:
            continue
        if not mirrors and shard.path in paths:
            raise DataError(
                f"{shard.name}: its bytes differ from the run's shard. Take that out first, with "
                "streamtron forget, and add it then; or --mirror the directory."
            )
        if not mirrors and (twin := twins.get(fingerprint)) is not None:
            if not target.settings.allow_duplicate:
                already.append(shard.name)
                continue
            check_duplicate(twin, shard, True)
        if "libsvm" in (shard.format, records[0].format) and shard.format != records[0].format:
            raise DataError(
                f"{shard.name}: {shard.format}, and the run's shards are {records[0].format}. "
                "Convert them with streamtron convert."
            )
        shard = shard._replace(name=shard.path) if shard.name in names else shard
        known = absent.pop(fingerprint, None)
        if known is not None and known.rows is not None:
            without = Deletions(shard.path, known.fingerprint, known.rows)
            shard = shard._replace(without=without)
        target.added.append(shard)
    if not target.kept and not target.added:
        raise DataError(
            f"{target.store.path}: all the shards given were forgotten, and nothing would be left. "
            "Take them in with --again, or remove the model and its run directory."
        )
    if not mirrors:
        return {"stays_forgotten": forgotten, "already_in_run": already}
    changes = {"forgotten": {record.name: record.rows for record in gone}}
    return {"stays_forgotten": forgotten, "added": [s.name for s in target.added], **changes}


Known = tuple[ShardFile, str]
"""A shard and its fingerprint, "" = that of no shard that is known."""


def _identified(shards: Sequence[ShardFile], target: EditableRun) -> list[Known]:
    """Return shards with their fingerprints, "" = none that the run knows has its size. Only shards
    whose path, size or time is new are read."""
    records = target.manifest.shards
    sizes = {record.bytes for record in records} | {known.bytes for known in target.store.absent}
    known = {(r.path, r.bytes, r.mtime_ns): r.fingerprint for r in records}
    fingerprints = {s.path: known.get((s.path, s.size, s.mtime_ns), "") for s in shards}
    unsure = [s for s in shards if not fingerprints[s.path] and s.size in sizes]
    pairs = read_fingerprints(unsure, target.reading)
    fingerprints |= {file.path: digest for file, (_, digest) in zip(unsure, pairs, strict=True)}
    return [(shard, fingerprints[shard.path]) for shard in shards]


def _matched(given: Sequence[Known], target: EditableRun, *, moved: bool) -> dict[int, ShardFile]:
    """Return the number of a shard of the run → the given file that has its bytes: the one at its
    path, or else, if ``moved`` ones count, one under its name where this decides which rows are
    held out."""
    records, at, unplaced = target.manifest.shards, dict[int, ShardFile](), list[Known]()
    by_place = {(record.path, record.fingerprint): k for k, record in enumerate(records)}
    for shard, fingerprint in given:
        if (place := by_place.get((shard.path, fingerprint))) is not None:
            at[place] = shard
        else:
            unplaced.append((shard, fingerprint))
    by_bytes = defaultdict[str, list[int]](list)
    for number, record in enumerate(records):
        by_bytes[record.fingerprint].append(number)
    for shard, fingerprint in unplaced if moved else ():
        name = os.path.basename(shard.name)
        for number in by_bytes[fingerprint]:
            is_it = target.reading.share == ALL or os.path.basename(records[number].name) == name
            if is_it and number not in at:
                at[number] = shard
                break
    return at


# rows that go out

Deleted = dict[str, int | None]
"""Name in the call → its rows that are deleted, each counted where it is named first, None if the
run does not have it."""


def _check_left(target: EditableRun) -> None:
    """Note which shards the run has no more; raise a DataError if it would have no row."""
    if len(target.removed) == target.manifest.rows:
        raise DataError(
            f"{target.store.path}: these are all rows of the run, and nothing would be left. "
            "Remove the model and its run directory."
        )
    left_over = {record.fingerprint for _, record in target.kept}
    for record in target.manifest.shards:
        if record.fingerprint not in left_over:
            gone = Absent(record.fingerprint, record.bytes, None)
            target.absent[record.fingerprint] = gone


def _whole_shards(target: EditableRun, names: Sequence[str]) -> Deleted:
    return {
        name: sum(map(target.leave_out, numbers)) if numbers else None
        for name, numbers in _numbers(target, names).items()
    }


def _rows_by_key(
    target: EditableRun, names: Sequence[str], column: str, values: Sequence[str]
) -> Deleted:
    """Delete rows by a column's values, in the named shards; if none is named, in all."""
    numbers_of = _numbers(target, names)
    places = set[int]().union(*numbers_of.values()) if names else {*range(len(target.shards))}
    counts, occurs = np.zeros(len(values), np.int64), np.zeros(len(values), bool)
    for number in sorted(_with_duplicates(target, places)):
        shard = target.shards[number]
        rows, which, equal_to = rows_with(shard, column, values)
        new = ~np.isin(rows, target.not_read(shard, rows))
        target.leave_out(number, rows[new])
        counts_here = np.bincount(which[new], minlength=len(values))
        counts += counts_here
        occurs |= counts_here[equal_to] > 0
    deleted: Deleted = {name: None for name in names if not numbers_of[name]}
    if places:
        for value, count, known in zip(values, counts.tolist(), occurs, strict=True):
            deleted[f"{column} = {value}"] = count if known else None
    return deleted


def _rows_by_list(target: EditableRun, path: str) -> Deleted:
    """Delete the rows that a CSV file lists; it may list rows that were deleted before."""
    listed = listed_rows(path)
    if not listed:
        raise DataError(f"{path}: no row in it. List rows below the line shard,row.")
    numbers_of, records = _numbers(target, listed, below=False), target.manifest.shards
    deleted: Deleted = dict.fromkeys(listed)
    for name, rows in listed.items():
        not_in_run, last = rows, rows.max()
        for number in _with_duplicates(target, numbers_of[name]):
            left_out, read = target.not_read(target.shards[number], rows), records[number].rows
            if last + 1 - np.searchsorted(left_out, last, side="right") > read:
                total = f"{read + len(left_out)}" if target.reading.share == ALL else "fewer"
                raise DataError(
                    f"{path}: row {last} of {name}, which has {total} rows, from 0 on. Check the "
                    "list."
                )
            deleted[name] = (deleted[name] or 0) + target.leave_out(number, rows)
            not_in_run = np.intersect1d(not_in_run, left_out)
        if deleted[name] is not None and len(not_in_run):
            deleted[f"{len(not_in_run):,} row(s) of {name}"] = None
    return deleted


def _numbers(
    target: EditableRun, names: Iterable[str], *, below: bool = True
) -> dict[str, set[int]]:
    """Return name → the numbers of the shards of this name or path; if there are none, those
    ``below`` the directory of this name, which may be gone."""
    shards, known = target.manifest.shards, defaultdict[str, set[int]](set)
    for number, shard in enumerate(shards):
        known[shard.name].add(number)
        known[shard.path].add(number)
    numbers = {name: known[name] | known[os.path.abspath(name)] for name in names}
    for name in [name for name in numbers if below and not numbers[name]]:
        root = os.path.join(name if is_uri(name) else os.path.abspath(name), "")
        numbers[name] = {k for k, shard in enumerate(shards) if shard.path.startswith(root)}
    return numbers


def _left_out(file: ShardFile) -> Rows:
    return NO_ROWS if file.without is None else file.without.rows


def _with_duplicates(target: EditableRun, numbers: set[int]) -> set[int]:
    """Return the numbers of shards, and of all others with the same bytes."""
    prints = [record.fingerprint for record in target.manifest.shards]
    named = {prints[number] for number in numbers}
    return {number for number, fingerprint in enumerate(prints) if fingerprint in named}
