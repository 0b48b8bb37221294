"""Refuse directories whose files are not the rows: tables with a log, and unfinished data sets.

Tables of Delta Lake, Apache Iceberg and Apache Hudi keep files of earlier versions and deleted rows
beside the current ones, and only a log tells which is which. A ``streamtron convert`` that was
killed leaves a part of a data set.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath

from streamtron.core.errors import DataError

UNFINISHED = "_unfinished"
"""The name of the file that stands beside shards while not all of them are in place."""

_LOGS = {
    "_delta_log": "Delta Lake",
    ".hoodie": "Apache Hudi",
    ".hoodie_partition_metadata": "Apache Hudi",
}
_ICEBERG = "metadata/*.metadata.json"

LOG_DIRECTORIES = ("_delta_log", ".hoodie", "metadata")
"""Where the signs of tables are, in the directory of a table."""


def sign_on_disk(directory: str) -> str | None:
    """Return the sign of a table or an unfinished data set in a local directory, or None."""
    for name in (UNFINISHED, *_LOGS):
        if os.path.lexists(os.path.join(directory, name)):
            return name
    found = glob.glob(os.path.join(glob.escape(directory), *_ICEBERG.split("/")))
    return _ICEBERG if found else None


def signs_among(names: Iterable[str]) -> dict[str, str]:
    """Map directories to signs, by the names of all files below a prefix.

    Examples
    --------
    >>> signs_among(["t/_delta_log/0.json", "t/a.parquet", "u/metadata/v1.metadata.json"])
    {'t': '_delta_log', 'u': 'metadata/*.metadata.json'}
    """
    signs = {}
    for name in names:
        parts = name.split("/")
        for at, part in enumerate(parts):
            if part in _LOGS or part == UNFINISHED:
                signs["/".join(parts[:at])] = part
        if PurePosixPath(name).match(_ICEBERG):
            signs["/".join(parts[:-2])] = _ICEBERG
    return signs


def above(directory: str) -> Iterator[str]:
    """Yield the directories above a partition such as ``day=7``, or above ``data``.

    Examples
    --------
    >>> list(above("/lake/table/data/day=7")), list(above("/lake/table"))
    (['/lake/table/data', '/lake/table'], [])
    """
    parent, name = os.path.split(directory)
    if name == "data" or "=" in name:
        yield parent
        yield from above(parent)


def refuse_logged(
    files: Iterable[str],
    base: str,
    sign_of: Callable[[str], str | None],
    shown: Callable[[str], str] = str,
) -> None:
    """Refuse files that are not the rows, by the signs in their directories, up to ``base``.

    ``sign_of`` returns the sign in a directory, or None; ``shown`` names a directory in messages.
    """
    within = {directory for file in files for directory in _between(file, base)}
    for directory in (*above(base), base, *sorted(within)):
        if sign := sign_of(directory):
            raise DataError(_sentence(shown(directory), sign))


def refuse_unfinished(file: str) -> None:
    """Refuse a local file that was named itself, if it is a part of an unfinished data set."""
    directory = os.path.dirname(file)
    if os.path.lexists(os.path.join(directory, UNFINISHED)):
        raise DataError(_sentence(directory or ".", UNFINISHED))


def _between(file: str, base: str) -> Iterator[str]:
    """Yield the directories from a file's own up to ``base``, which is left out."""
    directory = os.path.dirname(file)
    while len(directory) > len(base):
        yield directory
        directory = os.path.dirname(directory)


def _sentence(directory: str, sign: str) -> str:
    if sign == UNFINISHED:
        return (
            f"{directory}: a part of a data set: it was being written, or its writer was killed, "
            f"when not all shards were in place ({sign}). Write it again."
        )
    kind = _LOGS.get(sign, "Apache Iceberg")
    return (
        f"{directory}: a table of {kind} ({sign}), where files of earlier versions and deleted "
        "rows lie beside those that count. Write its current version out as plain Parquet with "
        "the table's own library and give that, or, if no row in them is marked as deleted, name "
        "the files of the current version one by one."
    )
