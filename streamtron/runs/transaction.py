"""Change a finished run, all or nothing.

A change is written into ``change/`` of the run directory. Renaming that to ``changed/`` commits it;
its files are then moved into place, now or when the run is next opened to be changed. A process
that dies before the commit leaves the run as it was.

A run directory may come from an untrusted source. So the plan in ``changed/`` names files of the
run and of its cache by bare names only, and the caller says which model is the run's.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from streamtron.core.errors import DataError
from streamtron.core.files import (
    parse_json,
    reading_from,
    remove_half_written,
    sync_directory,
    write_atomically,
)
from streamtron.data import drop_cached

_log = logging.getLogger(__name__)

STAGED, COMMITTED = "change", "changed"
MODEL, PLAN, CACHE = "model", "change.json", "cache"


def begin(run: Path) -> Path:
    """Return the directory for the changed files, empty at first; ``model`` in it is the run's
    model."""
    staged = run / STAGED
    staged.mkdir(exist_ok=True)
    return staged


def discard(run: Path) -> None:
    """Discard a change that was not committed."""
    shutil.rmtree(run / STAGED, ignore_errors=True)


def pending(run: Path) -> bool:
    """Return whether a committed change is not completely in place."""
    return (run / COMMITTED / PLAN).exists()


class Plan(NamedTuple):
    """What a commit removes, by bare names: files and directories of the run, and flat files of
    shards with these ``fingerprints``, except ``used``, which until then may be needed.
    ``elsewhere``: the absolute path of the cache, if it is not in the run directory."""

    remove: Sequence[str]
    fingerprints: Sequence[str] = ()
    used: Sequence[str] = ()
    elsewhere: str | None = None


def commit(run: Path, model: str | os.PathLike[str], plan: Plan) -> None:
    """Commit a change, put it in place, and remove what the plan says."""
    staged = run / STAGED
    write_atomically(staged / PLAN, [json.dumps(plan._asdict()).encode()])
    with reading_from(run):
        os.replace(staged, run / COMMITTED)
        sync_directory(run)
    recover(run, model, plan.elsewhere)


def recover(
    run: Path, model: str | os.PathLike[str], cache: str | os.PathLike[str] | None = None
) -> None:
    """Put a committed change in place, if there is one. May be interrupted and repeated.

    The caller holds the run's lock. ``cache`` : directory of its flat files, if not in the run
    directory. A malformed plan is a DataError.
    """
    staged = run / COMMITTED
    if not pending(run):
        with reading_from(staged), suppress(FileNotFoundError):
            staged.rmdir()  # all was in place
        return
    plan = _read(staged / PLAN)
    _drop_stale(run, plan, cache)
    with reading_from(run):
        for name in plan.remove:
            _remove(run / name)
        if (staged / MODEL).exists():
            remove_half_written(model)  # by the process that has died
            write_atomically(model, [(staged / MODEL).read_bytes()])
        for path in sorted(staged.iterdir()):
            if path.name not in (MODEL, PLAN):
                if path.is_dir():
                    _remove(run / path.name)
                os.replace(path, run / path.name)
        sync_directory(run)
        (staged / MODEL).unlink(missing_ok=True)
        (staged / PLAN).unlink()
        staged.rmdir()


def _remove(path: Path) -> None:
    """Remove a file, or a directory with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _drop_stale(run: Path, plan: Plan, cache: str | os.PathLike[str] | None) -> None:
    """Remove stale flat files: in the run's own cache, or in the directory that the caller gave."""
    directory = plan.elsewhere or os.path.abspath(run / CACHE)
    if not plan.fingerprints:
        return
    if plan.elsewhere and (cache is None or os.path.abspath(cache) != plan.elsewhere):
        _log.warning(
            "%s: an interrupted change was completed. Its cache is elsewhere and may hold rows "
            "that were forgotten. Clear it: streamtron cache --clear %s", run, plan.elsewhere,
        )  # fmt: skip
        return
    drop_cached(directory, plan.fingerprints, [os.path.join(directory, name) for name in plan.used])


def _read(path: Path) -> Plan:
    with reading_from(path):
        text = path.read_bytes()
    try:
        plan = Plan(**parse_json(text))
        for names in plan[:3]:
            if not isinstance(names, list) or not all(map(_is_name, names)):
                raise ValueError("wanted are bare names of files in the run")
        if not isinstance(plan.elsewhere, str | None):
            raise ValueError("a cache that is not named by a string")
        return plan
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: not the plan of a change ({error}). Fit anew.") from error


def _is_name(name: object) -> bool:
    return isinstance(name, str) and os.path.basename(name) == name and name not in ("", ".", "..")
