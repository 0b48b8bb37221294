"""A change of a run that has ended, all or nothing: what it writes lies in a directory of its own
until it is whole; one rename makes it count, and who opens the run next to change it ends it.

``change/`` is being written: a process that died left the run as it was. ``changed/`` is whole:
what is in it takes the place of what the run has. A run may have come from anybody, so the plan
that lies there names files of the run directory and of its cache, by their bare names, and nothing
else; which model is the run's is said by whoever opens it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamtron.core.errors import DataError
from streamtron.core.sealed import reading_from, sync_directory, write_atomically
from streamtron.data import drop_cached

_log = logging.getLogger(__name__)

UNDER_WAY, WHOLE = "change", "changed"
MODEL, PLAN, CACHE = "model", "change.json", "cache"


def begin(run: Path) -> Path:
    """An empty directory for what the change writes, as it is to lie in the run; ``model`` in it is
    the run's model."""
    drop(run)
    staged = run / UNDER_WAY
    staged.mkdir()
    return staged


def drop(run: Path) -> None:
    """Forget a change that was not whole."""
    shutil.rmtree(run / UNDER_WAY, ignore_errors=True)


def pending(run: Path) -> bool:
    """Whether a change counts of which something is not in place yet."""
    return (run / WHOLE / PLAN).exists()


class Stale(NamedTuple):
    """Flat files that a change makes useless.

    Parameters
    ----------
    directory : the cache.
    fingerprints : of the shards.
    used : paths of flat files of these shards that are kept.
    """

    directory: str
    fingerprints: Sequence[str]
    used: Sequence[str]


class _Plan(NamedTuple):
    """What is to be done beside putting the files in place.

    Parameters
    ----------
    remove : names of files in the run directory.
    fingerprints, used : as ``Stale`` has them, but ``used`` by names.
    elsewhere : the cache's directory where it is not the run's own, to be told, never touched.
    """

    remove: list[str]
    fingerprints: list[str]
    used: list[str]
    elsewhere: str | None


def finish(
    run: Path,
    model: str | os.PathLike[str],
    remove: Sequence[str] = (),
    stale: Stale | None = None,
) -> None:
    """The change is whole: put it in place, and remove files, by their names in the run, and what
    is stale in the cache.

    Raises
    ------
    MachineError : something cannot be written; who opens the run next tries again, or finds the run
        as it was, where the change did not count yet.
    """
    staged, plan, cache = run / UNDER_WAY, _Plan(list(remove), [], [], None), None
    if stale is not None:
        cache = os.path.abspath(stale.directory)
        own = cache == os.path.abspath(run / CACHE)
        used = [os.path.basename(path) for path in stale.used]
        plan = plan._replace(
            fingerprints=list(stale.fingerprints), used=used, elsewhere=None if own else cache
        )
    write_atomically(staged / PLAN, [json.dumps(plan._asdict()).encode()])
    with reading_from(run):
        os.replace(staged, run / WHOLE)
        sync_directory(run)
    recover(run, model, cache)


def recover(
    run: Path, model: str | os.PathLike[str], cache: str | os.PathLike[str] | None = None
) -> None:
    """Put a change in place that is whole, if there is one. However often this is interrupted, what
    comes out is the same; the caller holds the run's lock.

    Parameters
    ----------
    model : where the run's model is.
    cache : where its flat files are, if not in the run directory.

    Raises
    ------
    MachineError : something cannot be written.
    DataError : the change is not one of ours.
    """
    staged = run / WHOLE
    if not pending(run):
        if staged.is_dir():
            with reading_from(staged):
                staged.rmdir()  # all was in place
        return
    plan = _plan(staged / PLAN)
    _drop_stale(run, plan, cache)
    with reading_from(run):
        for name in plan.remove:
            (run / name).unlink(missing_ok=True)
        if (staged / MODEL).exists():
            write_atomically(model, [(staged / MODEL).read_bytes()])
        for path in sorted(staged.iterdir()):
            if path.name not in (MODEL, PLAN):
                os.replace(path, run / path.name)
        sync_directory(run)
        (staged / MODEL).unlink(missing_ok=True)
        (staged / PLAN).unlink()
        staged.rmdir()


def _drop_stale(run: Path, plan: _Plan, cache: str | os.PathLike[str] | None) -> None:
    """Remove flat files that the change made useless, but in no directory that only it names."""
    if not plan.fingerprints:
        return
    directory = os.path.abspath(run / CACHE)
    if plan.elsewhere is not None:
        if cache is None or os.path.abspath(cache) != plan.elsewhere:
            _log.warning(
                "%s: a change that was cut off has been put in place; its cache, which may hold "
                "rows that it forgot, is elsewhere. Clear it: streamtron cache --clear %s",
                run,
                plan.elsewhere,
            )
            return
        directory = plan.elsewhere
    used = [os.path.join(directory, name) for name in plan.used]
    drop_cached(directory, plan.fingerprints, used)


def _plan(path: Path) -> _Plan:
    with reading_from(path):
        text = path.read_bytes()
    try:
        fields: dict[str, Any] = json.loads(text)
        plan = _Plan(**fields)
        for names in plan[:3]:
            if not isinstance(names, list) or not all(map(_is_name, names)):
                raise ValueError("wanted are bare names of files in the run")
        if not isinstance(plan.elsewhere, str | None):
            raise ValueError("a cache that is not named by a string")
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: not the plan of a change ({error}). Fit anew.") from error
    return plan


def _is_name(name: object) -> bool:
    """Whether this is a bare name, which leads nowhere else."""
    return isinstance(name, str) and os.path.basename(name) == name and name not in ("", ".", "..")
