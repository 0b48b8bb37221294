"""A change of a run that has ended, all or nothing: what it writes lies in a directory of its own
until it is whole; one rename makes it count, and whoever opens the run next ends it.

``change/`` is being written: a process that died left the run as it was. ``changed/`` is whole:
what is in it takes the place of what the run has.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamtron.errors import DataError
from streamtron.sealed import reading_from, sync_directory, write_atomically
from streamtron.shards import drop_cached

UNDER_WAY, WHOLE = "change", "changed"
MODEL, PLAN = "model", "change.json"


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


class Stale(NamedTuple):
    """Flat files of a cache that a change makes useless; see ``shards.drop_cached``."""

    directory: str
    fingerprints: list[str]
    used: list[str]


def finish(
    run: Path,
    model: str | os.PathLike[str],
    remove: Sequence[str] = (),
    stale: Stale | None = None,
) -> None:
    """The change is whole: put it in place, and remove files, by their paths in the run, and what
    is stale in the cache.

    Raises
    ------
    MachineError : something cannot be written; the next one who opens the run tries again, or finds
        the run as it was, where the change did not count yet.
    """
    staged = run / UNDER_WAY
    plan = {"model": os.path.abspath(model), "remove": list(remove), "stale": stale}
    write_atomically(staged / PLAN, [json.dumps(plan).encode()])
    with reading_from(run):
        os.replace(staged, run / WHOLE)
        sync_directory(run)
    settle(run)


def settle(run: Path) -> None:
    """Put a change in place that is whole, if there is one. However often this is interrupted, what
    comes out is the same; the caller holds the run's lock.

    Raises
    ------
    MachineError : something cannot be written.
    DataError : the change is not one of ours.
    """
    staged = run / WHOLE
    if not (staged / PLAN).exists():
        if staged.is_dir():
            staged.rmdir()  # all was in place
        return
    plan = _plan(staged / PLAN)
    if plan["stale"] is not None:
        drop_cached(*plan["stale"])
    with reading_from(run):
        for name in plan["remove"]:
            (run / name).unlink(missing_ok=True)
        if (staged / MODEL).exists():
            write_atomically(plan["model"], [(staged / MODEL).read_bytes()])
        for path in sorted(staged.iterdir()):
            if path.name not in (MODEL, PLAN):
                os.replace(path, run / path.name)
        sync_directory(run)
        (staged / MODEL).unlink(missing_ok=True)
        (staged / PLAN).unlink()
        staged.rmdir()


def _stale(fields: Any) -> Stale | None:
    if fields is None:
        return None
    stale = Stale(*fields)
    names = (stale.directory, *stale.fingerprints, *stale.used)
    if not all(isinstance(name, str) for name in names):
        raise ValueError("a cache that is not named by strings")
    return stale


def _plan(path: Path) -> dict[str, Any]:
    with reading_from(path):
        text = path.read_bytes()
    try:
        plan: dict[str, Any] = json.loads(text)
        if any(os.path.isabs(name) or ".." in Path(name).parts for name in plan["remove"]):
            raise ValueError("a path that leads out of the run")
        os.fspath(plan["model"])
        plan["stale"] = _stale(plan.get("stale"))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"{path}: not the plan of a change ({error}). Fit anew.") from error
    return plan
