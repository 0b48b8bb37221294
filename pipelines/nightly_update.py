"""A run that learns every night from the shards that have arrived since.

    python pipelines/nightly_update.py MODEL INBOX
    python pipelines/nightly_update.py --tiny

As a line of a crontab, every night at 3:15, and never twice at a time:

    15 3 * * *  flock -n /data/model.lock python /opt/nightly_update.py /data/clicks.st /data/inbox

The first night fits; later nights add what is new in INBOX. Only complete files are taken: those
directly in INBOX, renamed into place by their writer (names that begin with ``_`` or ``.`` are
ignored, so write to such a name first), and those in a directory of INBOX that holds a file
``_SUCCESS``, as Spark and Hadoop leave it when they are done. Shards may stay in INBOX: those
that the run has already are skipped, so the next night completes one that was interrupted; a
shard that has changed since ends the night with an error. Exit codes are streamtron's:
0 certified, 4 not yet (the model is written, and certified for what it is), others are errors.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import streamtron

ENDINGS = (".svm", ".libsvm", ".txt", ".gz", ".xz", ".parquet", ".pq", ".arrow", ".feather")


def complete_shards(inbox: Path) -> list[Path]:
    """The complete shards in a directory, by name."""
    found = []
    for path in sorted(inbox.iterdir()):
        if path.name.startswith(("_", ".")):
            continue
        if path.is_file() and path.suffix in ENDINGS:
            found.append(path)
        elif path.is_dir() and (path / "_SUCCESS").exists():
            parts = sorted(part for part in path.rglob("*") if part.is_file())
            found += [part for part in parts if not part.name.startswith(("_", "."))]
    return found


def night(model: Path, inbox: Path, **settings: Any) -> streamtron.LinearModel | None:
    """Fit, or add what is new; None if there are no shards."""
    arrived = complete_shards(inbox)
    if not arrived:
        return None
    if not model.exists():
        return streamtron.fit(arrived, model=model, **settings)
    return streamtron.update(model, arrived).model


def say(found: streamtron.LinearModel | None) -> int:
    """One line for the log of the night; the exit code."""
    if found is None:
        print("no shards yet")
        return 0
    certificate = found.certificate or {}
    gap, tol = certificate["relative_duality_gap"], found.settings["tol"]
    print(f"{certificate['rows_scanned']:,} rows, gap {gap:.2g} (wanted {tol:g})")
    return 0 if gap <= tol else 4


def tiny() -> int:
    """Three nights on generated shards, the second with one that is not complete."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        inbox, model = root / "inbox", root / "model.st"
        inbox.mkdir()
        streamtron.generate(str(root / "made"), rows=900, columns=200, seed=0, shards=3)
        made = sorted(root.glob("made/*.svm"))
        made[0].rename(inbox / "monday.svm")
        codes = [say(night(model, inbox, C=1.0, index_base=0))]
        (inbox / "tuesday").mkdir()
        made[1].rename(inbox / "tuesday" / "part-0.svm")
        codes.append(say(night(model, inbox)))
        (inbox / "tuesday" / "_SUCCESS").touch()
        made[2].rename(inbox / "wednesday.svm")
        codes.append(say(night(model, inbox)))
        return max(codes)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("inbox", nargs="?", type=Path)
    parser.add_argument("--tiny", action="store_true", help="three nights on generated shards")
    given = parser.parse_args()
    if given.tiny:
        return tiny()
    if given.model is None or given.inbox is None:
        parser.error("MODEL and INBOX are needed")
    if not given.inbox.is_dir():
        parser.error(f"{given.inbox}: not a directory")
    try:
        return say(night(given.model, given.inbox))
    except streamtron.errors.StreamtronError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
