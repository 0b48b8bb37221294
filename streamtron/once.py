"""Changes of a run that are made once, however often they are asked for by the same name.

Whoever is cut off while a run changes cannot tell whether the change counts already. ``once.json``
in the run's directory can: before a change it notes its name and what the run is like, and as a
change counts all at once (see ``changes``), a run that is not like that any more has had it. A run
that is fitted anew has had none.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from streamtron.config import Settings
from streamtron.errors import DataError
from streamtron.learning import finished_learners
from streamtron.outcome import ENDINGS, EXIT_CODES
from streamtron.runs import LEDGER, Run, read_record, settle
from streamtron.sealed import reading_from, write_atomically

_KNOWN_BY = ("run.json", "manifest.json", "witness")
"""Files of a run of which every change leaves one otherwise."""


class _Ledger(NamedTuple):
    """The changes made: name → exit code; and the one that had begun: its name, and the digest of
    the run before it."""

    made: dict[str, int]
    begun: tuple[str, str] | None = None


def made(run: str | os.PathLike[str], name: str) -> int | None:
    """The exit code of the change of this name; None if the run has not had it.

    Parameters
    ----------
    run : its directory.

    Raises
    ------
    DataError : a ledger, or a model, that is damaged.
    MachineError : another process changes the run just now; a file cannot be read or written.
    """
    directory = Path(run)
    if not (directory / LEDGER).exists():
        return None
    settle(directory)
    ledger = _load(directory)
    if ledger.begun and ledger.begun[1] != _digest(directory):
        ledger = _Ledger(ledger.made | {ledger.begun[0]: _code(directory)})
        _save(directory, ledger)
    return ledger.made.get(name)


def begin(run: str | os.PathLike[str], name: str) -> int | None:
    """The same; and if the run has not had it, note that the change begins.

    Raises
    ------
    As ``made``.
    """
    directory = Path(run)
    code = made(directory, name)
    if code is None and directory.is_dir():  # where there is no run the change will say so
        settle(directory)
        before = _load(directory).made if (directory / LEDGER).exists() else {}
        _save(directory, _Ledger(before, (name, _digest(directory))))
    return code


def end(run: str | os.PathLike[str], name: str, code: int) -> None:
    """Note that the change has been made, and its exit code.

    Raises
    ------
    As ``made``.
    """
    directory = Path(run)
    _save(directory, _Ledger(_load(directory).made | {name: code}))


def _digest(run: Path) -> str:
    hashed = xxhash.xxh3_128()
    with reading_from(run):
        for name in _KNOWN_BY:
            path = run / name
            hashed.update(path.read_bytes() if path.exists() else b"")
    return hashed.hexdigest()


def _code(run: Path) -> int:
    """The exit code of the last change, from the end that the run came to."""
    settings, last = Settings.from_dict(read_record(run).settings), Run(run).load()
    assert last is not None
    learners = finished_learners(last.state, settings, last.labels, None)
    endings = [learner.finished or "epoch limit" for learner in learners]
    return EXIT_CODES[max(endings, key=ENDINGS.index)]


def _load(run: Path) -> _Ledger:
    path = run / LEDGER
    with reading_from(path):
        text = path.read_bytes()
    try:
        content: dict[str, Any] = json.loads(text)
        done = {str(name): int(code) for name, code in content["made"].items()}
        begun = content["begun"]
        return _Ledger(done, None if begun is None else (str(begun[0]), str(begun[1])))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise DataError(
            f"{path}: not a run's ledger ({error}). Remove it, and no change counts as made."
        ) from error


def _save(run: Path, ledger: _Ledger) -> None:
    text = json.dumps({"made": ledger.made, "begun": ledger.begun}, indent=1) + "\n"
    write_atomically(run / LEDGER, [text.encode()])
