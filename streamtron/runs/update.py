"""Add shards to a finished run: its counts are kept, and the certificate covers all rows."""

from __future__ import annotations

import os
from collections.abc import Sequence

from streamtron.core.config import Machine
from streamtron.core.errors import DataError
from streamtron.core.events import Listener, ignore
from streamtron.core.names import checks_keywords
from streamtron.data import ShardFile, ShardSource, check_duplicate, find_shards
from streamtron.runs.finished_run import Change, EditableRun, FinalState, finish, train_on
from streamtron.runs.inputs import Paths, as_paths
from streamtron.runs.outcome import Outcome
from streamtron.runs.parts import OpenParts
from streamtron.runs.transaction import Plan
from streamtron.solver.changes import add_rows, begin_change
from streamtron.solver.learner import Learner

FEW = 0.25
"""New shards of at most this part of the run's bytes are first solved alone, the old counts fixed.
With more of them the old counts change so much that this does not pay."""


@checks_keywords()
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
    them certifies the weights, no old shard is read. Otherwise all are: about 2 readings. A run on
    several parts gets one more for each new shard, up to 64, and reads all rows. A shard whose
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
    SettingsError (a faithful run), MachineError
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
    change = Change(
        machine or Machine(), tol, max_epochs, allow_duplicate, listen=listen, open_parts=open_parts
    )
    with EditableRun.opened(run, change) as target:
        added, already = _new_shards(as_paths(shards), target)
        report = target.check_report(report, [shard.path for shard in added])
        outcome = _train(target, added) if added else target.unchanged()
        outcome.report["already_in_run"] = already
        return finish(target, outcome, report, Plan(["checkpoint.before"]) if added else None)


def _new_shards(paths: list[str], target: EditableRun) -> tuple[list[ShardFile], list[str]]:
    """Return the shards to add, under names that the run does not have, and the names of shards
    whose bytes the run already has."""
    known = {shard.path: shard for shard in target.manifest.shards}
    by_fingerprint = {
        record.fingerprint: file
        for record, file in reversed([*zip(target.manifest.shards, target.shards, strict=True)])
    }
    found = find_shards(paths)
    fingerprints = _fingerprints(found, target)
    added: list[ShardFile] = []
    already: list[str] = []
    for shard in found:
        before, now = known.get(shard.path), fingerprints[shard.path]
        if before is not None and now != before.fingerprint:
            raise DataError(
                f"{shard.name}: its bytes are others than those that the run has of it. Take it "
                "out first, with streamtron forget, and add it then."
            )
        same = None if now is None else by_fingerprint.get(now)
        if before is not None or (same is not None and not target.settings.allow_duplicate):
            already.append(shard.name)
            continue
        if same is not None:
            check_duplicate(same, shard, True)
        added.append(shard)
    _check_format(added, target)
    names = {shard.name for shard in target.manifest.shards}
    return [s._replace(name=s.path) if s.name in names else s for s in added], already


def _fingerprints(found: Sequence[ShardFile], target: EditableRun) -> dict[str, str | None]:
    """Return path → fingerprint of shards; None = none of the run's has its size. Only shards whose
    path, size or time is new are read."""
    records = target.manifest.shards
    sizes = {one.bytes for one in records}
    known = {(one.path, one.bytes, one.mtime_ns): one.fingerprint for one in records}
    told = {one.path: known.get((one.path, one.size, one.mtime_ns)) for one in found}
    unsure = [one for one in found if told[one.path] is None and one.size in sizes]
    return told | target.fingerprints(unsure)


def _check_format(added: Sequence[ShardFile], target: EditableRun) -> None:
    wanted = target.manifest.shards[0].format
    for shard in added:
        if "libsvm" in (shard.format, wanted) and shard.format != wanted:
            raise DataError(
                f"{shard.name}: {shard.format}, and the run's shards are {wanted}. Convert them "
                "with streamtron convert."
            )


def _train(target: EditableRun, added: Sequence[ShardFile]) -> Outcome:
    """Train on with the new shards, and stage the changed run."""
    manifest, shards = target.manifest, [*target.shards, *added]
    target = target.with_parts(shards, workers=target.change.open_parts is not None)
    settings, size = target.settings, sum(shard.size for shard in added)
    few = settings.parts is None and size <= FEW * manifest.bytes
    balanced = settings.class_weight == "balanced"
    only_more = few and not balanced and _are_unchanged(target.shards)
    with target.source(added) as new, target.source(shards) as source:

        def begin(group: Sequence[Learner]) -> None:
            for learner in group:
                begin_change(learner, only_more=only_more)
            if few:
                add_rows(new, group, settings, manifest.rows, target.change.listen)
                _check_index_base(new, target)

        learners, final = target.restore(source), FinalState()
        rows = [shard.rows for shard in manifest.shards]
        outcome = train_on(target, source, learners, final, begin, rows=rows, before=new)
        if not few:
            _check_index_base(source, target)
        target.stage(source, outcome, final.state)
    return outcome


def _are_unchanged(shards: Sequence[ShardFile]) -> bool:
    """Return whether all shards have the size and the time that they had when they were read."""
    now = {(one.path, one.size, one.mtime_ns) for one in find_shards([one.path for one in shards])}
    return now >= {(one.path, one.size, one.mtime_ns) for one in shards}


def _check_index_base(new: ShardSource, target: EditableRun) -> None:
    """Raise a DataError if shards that were read have a column below the model's base."""
    if target.model.index_base == 1 and new.index_base == 0:
        raise DataError(
            f"{new.shards[-1].name} or a shard added with it has a column 0, and the run's columns "
            "are numbered from 1. Number them alike, or fit anew with --index-base 0."
        )
