"""Change the shards of a finished run: add some, or make them those of a directory.

Dual variables of rows that stay are kept, and the certificate covers all rows.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from streamtron.core.config import Machine
from streamtron.core.errors import DataError
from streamtron.core.events import Listener, ignore
from streamtron.core.kinds import whole
from streamtron.core.text import up
from streamtron.data import ShardFile, ShardRecord, check_duplicate, find_shards
from streamtron.data import fingerprints as read_fingerprints
from streamtron.data.deletions import Deletions
from streamtron.data.reader_config import ALL
from streamtron.runs.change import NO_ROWS, EditableRun, RowChange
from streamtron.runs.inputs import Paths, as_paths
from streamtron.runs.parts import OpenParts
from streamtron.runs.report import Outcome
from streamtron.runs.store import Absent

_log = logging.getLogger("streamtron")

ROOM = 0.2
"""The part of the tolerance, at least, that an update should leave between it and the gap: the next
one then seldom costs much more."""


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
    window : mirror the last so many of the shards, in their order.
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
    changes = {"tol": tol, "max_epochs": max_epochs, "allow_duplicate": allow_duplicate or None}
    with EditableRun.opened(run, machine, listen, open_parts, time_limit, **changes) as target:
        files = find_shards(as_paths(shards))
        if window is not None:
            files = files[-whole(window, "window", least=1) :]
        given = _Given.of(files, target, again)
        change = _mirrored if mirror or window is not None else _extended
        rows, facts = change(given, target)
        facts |= {"stays_forgotten": given.forgotten}
        outcome = target.finish(rows, report, [shard.path for shard in files], **facts)
        gap = outcome.report["certificate"]["relative_duality_gap"]
        if (1.0 - ROOM) * target.settings.tolerance < gap <= target.settings.tolerance:
            _log.warning(
                "The proven gap is %s, and the tolerance %g: so little room is left that the next "
                "update may have to train on all rows. A smaller --tol makes room.",
                up(gap, 3),
                target.settings.tolerance,
            )
        return outcome


class _Given(NamedTuple):
    """Shards that an update was given, without those that stay ``forgotten``: each with its
    fingerprint, None = that of no shard that is known; and what is known of absent shards."""

    shards: list[tuple[ShardFile, str | None]]
    forgotten: list[str]
    absent: dict[str, Absent]

    @classmethod
    def of(cls, files: Sequence[ShardFile], target: EditableRun, again: bool) -> _Given:
        """Identify shards; ``again`` : all rows of those that were forgotten count again."""
        absent = {known.fingerprint: known for known in target.store.absent}
        given = cls([], [], absent)
        for shard, fingerprint in _identified(files, target):
            known = absent.get(fingerprint or "")
            if known is not None and again:
                del absent[known.fingerprint]
            elif known is not None and known.rows is None:
                given.forgotten.append(shard.name)
                continue
            given.shards.append((shard, fingerprint))
        return given

    def added(self, shard: ShardFile, fingerprint: str | None) -> ShardFile:
        """Return a shard that comes in, without the rows that were forgotten of it."""
        known = self.absent.pop(fingerprint or "", None)
        if known is None or known.rows is None:
            return shard
        return shard._replace(without=Deletions(shard.path, known.fingerprint, known.rows))


Change = tuple[RowChange | None, dict[str, Any]]
"""A change of the rows, None = nothing is to be done, and what the report says of it."""


def _extended(given: _Given, target: EditableRun) -> Change:
    """Add the shards that the run does not have, under names that it does not have."""
    records = target.manifest.shards
    by_path = {record.path: record for record in records}
    by_fingerprint = {record.fingerprint: file for file, record in reversed(target.kept)}
    names = {record.name for record in records}
    added, already = list[ShardFile](), list[str]()
    for shard, fingerprint in given.shards:
        record, twin = by_path.get(shard.path), by_fingerprint.get(fingerprint or "")
        if record is not None and fingerprint != record.fingerprint:
            raise DataError(
                f"{shard.name}: its bytes are others than those that the run has of it. Take it "
                "out first, with streamtron forget, and add it then; or --mirror the directory."
            )
        if record is not None or (twin is not None and not target.settings.allow_duplicate):
            already.append(shard.name)
            continue
        if twin is not None:
            check_duplicate(twin, shard, True)
        _check_format(shard, records[0].format)
        name = shard.path if shard.name in names else shard.name
        added.append(given.added(shard._replace(name=name), fingerprint))
    rows = RowChange(target.kept, added, NO_ROWS, [*given.absent.values()]) if added else None
    return rows, {"already_in_run": already}


def _mirrored(given: _Given, target: EditableRun) -> Change:
    """Keep the shards that are given, wherever they are now, add those that the run does not have,
    and take all others out; what was forgotten of these is remembered."""
    at = _matched(given, target)
    kept, gone = list[tuple[ShardFile, ShardRecord]](), list[ShardRecord]()
    for number, (file, record) in enumerate(target.kept):
        if number in at:
            without = file.without and replace(file.without, path=at[number].path)
            kept.append((at[number]._replace(without=without), record))
            continue
        gone.append(record)
        if file.without is not None:
            rows = file.without.rows
            given.absent[record.fingerprint] = Absent(record.fingerprint, record.bytes, rows)
    matched = {shard.path for shard in at.values()}
    new = [(shard, known) for shard, known in given.shards if shard.path not in matched]
    for shard, _ in new:
        _check_format(shard, target.manifest.shards[0].format)
    added = [given.added(*entry) for entry in new]
    if not kept and not added:
        raise DataError(
            f"{target.store.path}: all the shards given were forgotten, and nothing would be left. "
            "Take them in with --again, or remove the model and its run directory."
        )
    facts = {
        "added": [shard.name for shard in added],
        "forgotten": {record.name: record.rows for record in gone},
    }
    if not added and [file.path for file, _ in kept] == [file.path for file in target.shards]:
        return None, facts
    removed = np.concatenate([NO_ROWS, *(record.row_numbers for record in gone)])
    return RowChange(kept, added, removed, [*given.absent.values()]), facts


def _matched(given: _Given, target: EditableRun) -> dict[int, ShardFile]:
    """Return the number of a shard of the run → the given file that has its bytes: that at its
    path, or else one that was moved, under its name where this decides which rows are held out."""
    records, at, moved = target.manifest.shards, dict[int, ShardFile](), []
    by_place = {(record.path, record.fingerprint): k for k, record in enumerate(records)}
    by_bytes = defaultdict[str | None, list[int]](list)
    for number, record in enumerate(records):
        by_bytes[record.fingerprint].append(number)
    for shard, fingerprint in given.shards:
        if (place := by_place.get((shard.path, fingerprint or ""))) is not None:
            at[place] = shard
        else:
            moved.append((shard, fingerprint))
    for shard, fingerprint in moved:
        name = os.path.basename(shard.name)
        for number in by_bytes[fingerprint]:
            is_it = target.reading.share == ALL or os.path.basename(records[number].name) == name
            if is_it and number not in at:
                at[number] = shard
                break
    return at


def _identified(
    shards: Sequence[ShardFile], target: EditableRun
) -> Iterator[tuple[ShardFile, str | None]]:
    """Yield shards with their fingerprints; None = none that the run knows has its size. Only
    shards whose path, size or time is new are read."""
    records = target.manifest.shards
    sizes = {record.bytes for record in records} | {known.bytes for known in target.store.absent}
    known = {(r.path, r.bytes, r.mtime_ns): r.fingerprint for r in records}
    fingerprints = {s.path: known.get((s.path, s.size, s.mtime_ns)) for s in shards}
    unsure = [s for s in shards if fingerprints[s.path] is None and s.size in sizes]
    pairs = read_fingerprints(unsure, target.reading)
    fingerprints |= {file.path: digest for file, (_, digest) in zip(unsure, pairs, strict=True)}
    yield from ((shard, fingerprints[shard.path]) for shard in shards)


def _check_format(shard: ShardFile, known: str) -> None:
    if "libsvm" in (shard.format, known) and shard.format != known:
        raise DataError(
            f"{shard.name}: {shard.format}, and the run's shards are {known}. Convert them "
            "with streamtron convert."
        )
