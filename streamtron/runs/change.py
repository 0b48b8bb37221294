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
from dataclasses import replace
from typing import Any, NamedTuple

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
from streamtron.runs.inputs import (
    Paths,
    StrPath,
    as_paths,
    check_outputs,
    expected_of,
    reading_from_model,
)
from streamtron.runs.job import Call, Fitting, prepared
from streamtron.runs.learners import (
    class_weights,
    in_order,
    number_of_learners,
    restore_finished,
)
from streamtron.runs.parts import OpenParts, take_saved_alphas, with_parts
from streamtron.runs.report import Outcome, certificate_of, deletions_of
from streamtron.runs.store import CACHE, Absent, SavedState, Store, changing, is_run, no_run
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
        outcome = target.finish(*_updated(target, files, mirrors, again))
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
            removed, deleted = _rows_by_key(target, names, key, texts)
        elif rows is not None:
            removed, deleted = _rows_by_list(target, str(rows))
        else:
            removed, deleted = _whole_shards(target, names)
        facts: dict[str, Any] = {
            "forgotten": {name: number for name, number in deleted.items() if number},
            "not_in_run": [name for name, number in deleted.items() if number is None],
        }
        return target.finish(_without(target, removed), facts)


class RowChange(NamedTuple):
    """The rows of a run from its change on: some come in, some go out.

    ``kept`` : shards of the run that stay, with the rows that are left out now, and their records.
    ``added`` : new shards, behind those. ``removed`` : rising numbers of the run's rows that go
    out. ``absent`` : rows that are forgotten of shards that the run does not have then.
    """

    kept: Sequence[tuple[ShardFile, ShardRecord]]
    added: Sequence[ShardFile]
    removed: Rows
    absent: Sequence[Absent]

    @property
    def shards(self) -> list[ShardFile]:
        """All shards, in order."""
        return [*(file for file, _ in self.kept), *self.added]

    def remaining(self, alphas: Alphas) -> Pieces:
        """Yield the α of the run's rows that stay, by their new numbers."""
        for numbers, values in alphas.nonzero():
            rows = numbers // alphas.width
            stays = ~np.isin(rows, self.removed)
            less = np.searchsorted(self.removed, rows[stays])
            yield numbers[stays] - alphas.width * less, values[stays]


class EditableRun(NamedTuple):
    """A run that has ended and is to be changed: its last state, its settings from the change on,
    the model, the path of the report, how its shards were read, and their files, in the order of
    the manifest."""

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

    @classmethod
    @contextmanager
    def opened(
        cls,
        run: StrPath,
        call: Call,
        report: StrPath | None,
        inputs: Sequence[str],
        **changes: Any,
    ) -> Iterator[EditableRun]:
        """Open a run to change it, see ``store.changing``; ``changes`` of its settings, None = as
        they are. A DataError if there is no run, or it has not ended; a SettingsError if the report
        would replace a file that is written, or read as ``inputs`` are."""
        place, cache = locate(run, call.machine.run_dir), call.machine.cache_dir
        directory = place.directory
        if not is_run(directory):
            raise no_run(directory)
        how: Any = {"runs": [directory], "directories": {"run directory": directory}}
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
            yield cls(call, store, saved, settings, *known)

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
        return self.call.machine.cache_dir or str(self.store.path / CACHE)

    def restore(self, data: Dataset, settings: Settings) -> list[Learner]:
        """Restore the run's learners with the settings of the change, in the ranks of the data; of
        several parts, their α are read from the parts' states when they are used."""
        saved, weights = self.saved, class_weights(settings, data)
        learners = restore_finished(saved.state, settings, data.facts, saved.labels, weights)
        recorded = Settings.from_dict(self.store.settings)
        if recorded.parts is not None:
            take_saved_alphas(self.store.parts, recorded, learners)
        saved.state.arrays.clear()  # the learners hold what they need of them
        proofs = [certificate_of(k) for k in in_order(learners, data.labels, settings)]
        if _bounds(proofs) != _bounds(self.certificates):  # no two runs have one in common
            raise DataError(_NOT_ITS_OWN.format(self.store.path))
        places = data.places_of(saved.numbers)
        for learner in learners:
            renumber(learner, places, data.columns)
        return learners

    def finish(self, rows: RowChange | None, facts: Mapping[str, Any]) -> Outcome:
        """Train on with changed rows, here or on parts, from the weights and α of the run; write
        the report with ``facts``, and commit. ``rows`` : None = as they were; no data is read."""
        if rows is None:
            read = {"readings": 0.0, "seconds": 0.0, "bytes_read": 0}
            report = {**(self.store.report or {}), **read, **facts}
            outcome = Outcome(self.model, report, (), self.manifest, deletions_of(self.shards))
            outcome.write(self.report)
            return outcome

        def decide(settings: Settings, data: Dataset) -> Settings:
            workers = bool(rows.added) and self.call.open_parts is not None
            return with_parts(settings, data.shards, workers=workers, before=len(self.shards))

        check_as_read(rows.shards, str(self.store.path))
        expected = expected_of(self.settings, self.saved.labels)
        expected.fingerprints.update((file.name, record.fingerprint) for file, record in rows.kept)
        how = rows.shards, self.reading, expected, [self.settings], self.cache_directory, decide
        with prepared(self.call, *how) as fitting:
            data, parts = fitting.data, None
            _check_rows(rows, data, self)
            fitting.check_room(self.store)
            learners = self.restore(data, fitting.settings)
            if fitting.settings.parts is None:
                _train_here(self, rows, fitting, learners)
            else:
                parts = self.store.new_parts()
                for learner in learners:
                    begin_change(learner, only_more=False)
                    if len(rows.removed):
                        learner.best.discard()  # no scan is to certify what the rows have made
                staying = [rows.remaining(learner.alphas) for learner in learners]
                learners = fitting.train_on_parts(learners, parts, staying)
            reading, base = data.reading, self.model.index_base  # whichever columns are left
            data.reading = replace(reading, index_base=base)  # type: ignore[arg-type]
            outcome = fitting.outcome(learners)
            # the run itself does not keep the facts, which may name what was forgotten
            told = replace(outcome, report={**outcome.report, **facts})
            told.write(self.report)  # a committed change has its report
            if len(rows.removed):
                _drop_stale(self, data, reading)
            changed: Any = {"shards": data.shards, "state": fitting.last, "parts": parts}
            fitting.commit(self.store, self.model_path, outcome, rows.absent, **changed)
        if self.model.calibration is not None:
            _log.warning("The model has lost its probabilities: give it new ones with calibrate.")
        return told


def _train_here(
    target: EditableRun, rows: RowChange, fitting: Fitting, learners: Sequence[Learner]
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
                    alphas = learner.alphas
                    replace_alphas(learner, Alphas.of(rows.remaining(alphas), alphas.width))
            if new is not None:
                add_rows(new, group, settings, target.manifest.rows, target.call.listen)
            if any(learner.finished is None for learner in group):
                fitting.hold_rows()

        fitting.train_here(learners, begin)
        if new is not None:
            fitting.readings = new.nonzeros_read / max(data.nonzeros, 1)
            fitting.bytes_read = new.bytes_read


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


def _bounds(proofs: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    names = ("primal_objective", "dual_objective")
    return [[proof.get(name) for name in names] for proof in proofs]


_NOT_ITS_OWN = "{}: the state is not the model's. Put the run's own model back, or fit anew."


# rows that come in


def _updated(
    target: EditableRun, files: Sequence[ShardFile], mirrors: bool, again: bool
) -> tuple[RowChange | None, dict[str, Any]]:
    """Add the shards that the run does not have; where it ``mirrors`` them, keep of its own those
    that are given, wherever they are now, and take all others out. ``again`` : all rows of shards
    that were forgotten count again. Return the change, None = there is none, and the report's facts
    of it."""
    records, given, stay = target.manifest.shards, list[Known](), list[str]()
    absent = {known.fingerprint: known for known in target.store.absent}
    for shard, fingerprint in _identified(files, target):
        if again:
            absent.pop(fingerprint, None)
        if (known := absent.get(fingerprint)) is not None and known.rows is None:
            stay.append(shard.name)
        else:
            given.append((shard, fingerprint))
    at = _matched(given, target, moved=mirrors or not target.settings.allow_duplicate)
    kept, gone = target.kept, list[ShardRecord]()
    if mirrors:
        kept = []
        for number, (file, record) in enumerate(target.kept):
            if number in at:
                without = file.without and replace(file.without, path=at[number].path)
                kept.append((at[number]._replace(without=without), record))
                continue
            gone.append(record)
            if file.without is not None:
                rows = file.without.rows
                absent[record.fingerprint] = Absent(record.fingerprint, record.bytes, rows)
    matched, names = {shard.path for shard in at.values()}, {file.name for file, _ in kept}
    added, already = list[ShardFile](), [s.name for s, _ in given if s.path in matched]
    twins = {record.fingerprint: file for file, record in reversed(kept)}
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
        added.append(shard)
    if not kept and not added:
        raise DataError(
            f"{target.store.path}: all the shards given were forgotten, and nothing would be left. "
            "Take them in with --again, or remove the model and its run directory."
        )
    facts: dict[str, Any] = {"stays_forgotten": stay, "already_in_run": already}
    if mirrors:
        facts["added"] = [shard.name for shard in added]
        facts["forgotten"] = {record.name: record.rows for record in gone}
        del facts["already_in_run"]
    if not added and [file.path for file, _ in kept] == [file.path for file in target.shards]:
        return None, facts
    removed = np.concatenate([NO_ROWS, *(record.row_numbers for record in gone)])
    return RowChange(kept, added, removed, [*absent.values()]), facts


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

Exclusions = tuple[Mapping[int, Rows | None], dict[str, int | None]]
"""Number of a shard → rising numbers of the rows that are deleted from its file, None = all; name
in the call → its rows that are deleted, each counted where it is named first, None if the run does
not have it."""


def _without(target: EditableRun, removed: Mapping[int, Rows | None]) -> RowChange | None:
    """Return the rows of the run without the removed ones; None if there are none."""
    if all(rows is not None and not len(rows) for rows in removed.values()):
        return None
    kept, gone, left = list[tuple[ShardFile, ShardRecord]](), list[Rows](), 0
    for number, (file, record) in enumerate(target.kept):
        if (rows := removed.get(number, NO_ROWS)) is None:
            gone.append(record.row_numbers)
            continue
        gone.append(record.first_row + rows - np.searchsorted(_not_read(target, file, rows), rows))
        left += record.rows - len(rows)
        if len(rows):
            known = np.union1d(_left_out(file), rows)
            file = file._replace(without=Deletions(record.path, record.fingerprint, known))
        kept.append((file, record))
    if not left:
        raise DataError(
            f"{target.store.path}: these are all rows of the run, and nothing would be left. "
            "Remove the model and its run directory."
        )
    left_over = {record.fingerprint for _, record in kept}
    absent = {known.fingerprint: known for known in target.store.absent}
    for record in target.manifest.shards:
        if record.fingerprint not in left_over:
            absent[record.fingerprint] = Absent(record.fingerprint, record.bytes, None)
    return RowChange(kept, (), np.concatenate(gone), [*absent.values()])


def _whole_shards(target: EditableRun, names: Sequence[str]) -> Exclusions:
    records = target.manifest.shards
    removed, deleted = dict[int, None](), dict[str, int | None]()
    for name, numbers in _numbers(target, names).items():
        new = numbers - removed.keys()
        removed |= dict.fromkeys(new)
        deleted[name] = sum(records[number].rows for number in new) if numbers else None
    return removed, deleted


def _rows_by_key(
    target: EditableRun, names: Sequence[str], column: str, values: Sequence[str]
) -> Exclusions:
    """Delete rows by a column's values, in the named shards; if none is named, in all."""
    numbers_of = _numbers(target, names)
    places = set[int]().union(*numbers_of.values()) if names else {*range(len(target.shards))}
    hits, counts = dict[int, Rows](), np.zeros(len(values), np.int64)
    occurs = np.zeros(len(values), bool)
    for number in sorted(_with_duplicates(target, places)):
        shard = target.shards[number]
        rows, which, equal_to = rows_with(shard, column, values)
        new = ~np.isin(rows, _not_read(target, shard, rows))
        hits[number] = rows[new]
        counts_here = np.bincount(which[new], minlength=len(values))
        counts += counts_here
        occurs |= counts_here[equal_to] > 0
    deleted: dict[str, int | None] = {name: None for name in names if not numbers_of[name]}
    if places:
        for value, count, known in zip(values, counts.tolist(), occurs, strict=True):
            deleted[f"{column} = {value}"] = count if known else None
    return hits, deleted


def _rows_by_list(target: EditableRun, path: str) -> Exclusions:
    """Delete the rows that a CSV file lists; it may list rows that were deleted before."""
    listed = listed_rows(path)
    if not listed:
        raise DataError(f"{path}: no row in it. List rows below the line shard,row.")
    numbers_of, records = _numbers(target, listed, below=False), target.manifest.shards
    hits = dict[int, Rows]()
    deleted: dict[str, int | None] = dict.fromkeys(listed)
    for name, rows in listed.items():
        not_in_run, last = rows, rows.max()
        for number in _with_duplicates(target, numbers_of[name]):
            left_out, read = _not_read(target, target.shards[number], rows), records[number].rows
            if last + 1 - np.searchsorted(left_out, last, side="right") > read:
                total = f"{read + len(left_out)}" if target.reading.share == ALL else "fewer"
                raise DataError(
                    f"{path}: row {last} of {name}, which has {total} rows, from 0 on. Check the "
                    "list."
                )
            hit = hits.get(number, NO_ROWS)
            hits[number] = np.union1d(hit, np.setdiff1d(rows, left_out))
            deleted[name] = (deleted[name] or 0) + len(hits[number]) - len(hit)
            not_in_run = np.intersect1d(not_in_run, left_out)
        if deleted[name] is not None and len(not_in_run):
            deleted[f"{len(not_in_run):,} row(s) of {name}"] = None
    return hits, deleted


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


def _not_read(target: EditableRun, file: ShardFile, rows: Rows) -> Rows:
    """Return the rows of a file that the run does not read, up to the last of ``rows``: deleted and
    held-out rows."""
    share = target.reading.share
    numbers = np.arange(rows.max(initial=-1) + 1 if share != ALL else 0)
    return np.union1d(_left_out(file), numbers[~in_share(file.name, numbers, share)])


def _with_duplicates(target: EditableRun, numbers: set[int]) -> set[int]:
    """Return the numbers of shards, and of all others with the same bytes."""
    prints = [record.fingerprint for record in target.manifest.shards]
    named = {prints[number] for number in numbers}
    return {number for number, fingerprint in enumerate(prints) if fingerprint in named}
