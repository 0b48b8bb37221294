"""Add shards to a finished run: its counts are kept, and the certificate covers all rows."""

from __future__ import annotations

import os
from collections.abc import Sequence

from streamtron.core.config import Machine
from streamtron.core.errors import DataError
from streamtron.core.events import Listener, ignore
from streamtron.data import ShardFile, ShardSource, check_duplicate, find_shards
from streamtron.runs.change import EditableRun, RowChange
from streamtron.runs.inputs import Paths, as_paths
from streamtron.runs.parts import OpenParts
from streamtron.runs.report import Outcome


def update(
    run: str | os.PathLike[str],
    shards: Paths,
    *,
    tol: float | None = None,
    max_epochs: int | None = None,
    allow_duplicate: bool = False,
    report: str | os.PathLike[str] | None = None,
    machine: Machine | None = None,
    listen: Listener = ignore,
    open_parts: OpenParts | None = None,
) -> Outcome:
    """Add shards to a finished run, and train on until all rows are certified.

    The new shards are appended; old counts are kept, new ones start at 0. Few new rows (a quarter
    of the bytes at most) are first read alone and solved with all other counts fixed: if a scan of
    them certifies the weights, no old row is read. Otherwise all are: about 2 readings, or one
    where memory holds all rows. A run on several parts gets one more for each new shard, up to 64,
    and reads all rows. A shard whose
    bytes the run has is skipped and listed in the report as ``already_in_run``. An interrupted call
    leaves the run as it was or completely changed, and may be repeated.

    Parameters
    ----------
    run : the model, or its run directory.
    shards : files, directories or globs, read as the model's own rows were.
    tol, max_epochs, allow_duplicate : as in ``fit``, from now on; None = as the run has them.
    report : also write the report there.
    machine, listen, open_parts : as in ``fit``; the last makes a run of one part one of several.

    Raises
    ------
    SettingsError (a run of the paper's stages), MachineError
    DataError : no finished run; a shard that changed; a label or an index base not of the model.

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
    with EditableRun.opened(run, machine, listen, open_parts, **changes) as target:
        added, already = _new_shards(as_paths(shards), target)
        report = target.check_report(report, [shard.path for shard in added])
        changed = RowChange(target.kept, added) if added else None
        return target.finish(changed, report, already_in_run=already)


def _new_shards(paths: list[str], target: EditableRun) -> tuple[list[ShardFile], list[str]]:
    """Return the shards to add, under names that the run does not have, and the names of shards
    whose bytes the run already has."""
    records = target.manifest.shards
    by_path = {record.path: record for record in records}
    by_fingerprint = {
        record.fingerprint: file
        for record, file in reversed([*zip(records, target.shards, strict=True)])
    }
    shards = find_shards(paths)
    fingerprints = _fingerprints(shards, target)
    added: list[ShardFile] = []
    already: list[str] = []
    for shard in shards:
        record, fingerprint = by_path.get(shard.path), fingerprints[shard.path]
        if record is not None and fingerprint != record.fingerprint:
            raise DataError(
                f"{shard.name}: its bytes are others than those that the run has of it. Take it "
                "out first, with streamtron forget, and add it then."
            )
        twin = None if fingerprint is None else by_fingerprint.get(fingerprint)
        if record is not None or (twin is not None and not target.settings.allow_duplicate):
            already.append(shard.name)
            continue
        if twin is not None:
            check_duplicate(twin, shard, True)
        _check_format(shard, records[0].format)
        added.append(shard)
    names = {record.name for record in records}
    return [s._replace(name=s.path) if s.name in names else s for s in added], already


def _fingerprints(shards: Sequence[ShardFile], target: EditableRun) -> dict[str, str | None]:
    """Return path → fingerprint of shards; None = none of the run's has its size. Only shards whose
    path, size or time is new are read."""
    records = target.manifest.shards
    sizes = {record.bytes for record in records}
    known = {(r.path, r.bytes, r.mtime_ns): r.fingerprint for r in records}
    fingerprints = {s.path: known.get((s.path, s.size, s.mtime_ns)) for s in shards}
    unsure = [s for s in shards if fingerprints[s.path] is None and s.size in sizes]
    with ShardSource(unsure, target.reading) as source:
        pairs = source.fingerprints()
    digests = {file.path: digest for file, (_, digest) in zip(unsure, pairs, strict=True)}
    return fingerprints | digests


def _check_format(shard: ShardFile, known: str) -> None:
    if "libsvm" in (shard.format, known) and shard.format != known:
        raise DataError(
            f"{shard.name}: {shard.format}, and the run's shards are {known}. Convert them "
            "with streamtron convert."
        )
