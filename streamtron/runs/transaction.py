"""Change a finished run, all or nothing.

A change is written into ``change/`` of the run directory. Renaming that to ``changed/`` commits it;
its files are then moved into place, now or when the run is next opened to be changed. A process
that dies before the commit leaves the run as it was.

A run directory may come from an untrusted source. So the plan in ``changed/`` names files of the
run by bare names only, and the caller says which model is the run's.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from streamtron.core.errors import DataError
from streamtron.core.files import (
    parse_json,
    reading_from,
    remove_half_written,
    sync_directory,
    write_atomically,
)

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


def commit(run: Path, model: str | os.PathLike[str], remove: Sequence[str]) -> None:
    """Commit a change, put it in place, and remove files and directories of the run, by their bare
    names."""
    staged = run / STAGED
    write_atomically(staged / PLAN, [json.dumps({"remove": remove}).encode()])
    with reading_from(run):
        os.replace(staged, run / COMMITTED)
        sync_directory(run)
    recover(run, model)


def recover(run: Path, model: str | os.PathLike[str]) -> None:
    """Put a committed change in place, if there is one. May be interrupted and repeated.

    The caller holds the run's lock. A malformed plan is a DataError.
    """
    staged = run / COMMITTED
    if not pending(run):
        with reading_from(staged), suppress(FileNotFoundError):
            staged.rmdir()  # all was in place
        return
    remove = _read(staged / PLAN)
    with reading_from(run):
        for name in remove:
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
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _read(path: Path) -> list[str]:
    with reading_from(path):
        text = path.read_bytes()
    try:
        [(key, names)] = dict(parse_json(text)).items()
        if key != "remove" or not isinstance(names, list) or not all(map(_is_name, names)):
            raise ValueError("expected bare names of files in the run")
        return names
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: not the plan of a change ({error}). Fit anew.") from error


def _is_name(name: object) -> bool:
    return isinstance(name, str) and os.path.basename(name) == name and name not in ("", ".", "..")
