"""New shards in a directory: all of them or none.

They are written under hidden names and renamed at the end. While some are renamed and some are not,
the file ``logged.UNFINISHED`` stands beside them, and readers refuse the directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from streamtron.core.errors import MachineError, SettingsError
from streamtron.data.table_logs import UNFINISHED


@contextmanager
def new_shards(destination: str, ending: str, overwrite: bool) -> Iterator[Callable[[int], str]]:
    """A directory to which shards are added together, when the ``with`` block ends well.

    Gives the function from a shard's number to the path to write it at: a hidden file, which
    readers ignore. At the end all of them are renamed to ``part-00000.<ending>``, …, shards of an
    earlier conversion are removed if ``overwrite``, or if it was killed while it did this; if the
    block raises, the hidden ones are.

    Raises
    ------
    SettingsError : the directory holds files, or with ``overwrite`` files other than ``part-*``.
    MachineError : it cannot be written.
    """
    directory = Path(destination)
    with disk_sentence(destination):
        directory.mkdir(parents=True, exist_ok=True)
        old = _old_shards(directory, overwrite or (directory / UNFINISHED).exists())
    hidden: dict[Path, Path] = {}

    def shard_path(number: int) -> str:
        final = directory / f"part-{number:05d}.{ending}"
        partial_file = directory / f".{final.name}.partial"
        hidden[partial_file] = final
        return os.path.abspath(partial_file)  # who writes it may have been started elsewhere

    try:
        yield shard_path
        with disk_sentence(destination):
            _put_in_place(directory, hidden, old)
    finally:
        for path in _left_behind(directory):
            path.unlink(missing_ok=True)


def _put_in_place(directory: Path, hidden: Mapping[Path, Path], old: Iterable[Path]) -> None:
    """Give the hidden files their names and remove the old ones."""
    mark = directory / UNFINISHED
    mark.touch()
    _flush_directory(directory)
    for path in set(old) - set(hidden.values()):
        path.unlink()
    for path, final in hidden.items():
        path.replace(final)
    _flush_directory(directory)
    mark.unlink()
    _flush_directory(directory)


def _left_behind(directory: Path) -> list[Path]:
    """Hidden files of a conversion that is under way, or was killed."""
    return [path for path in directory.iterdir() if re.match(r"\.part-.*\.partial", path.name)]


def _old_shards(directory: Path, overwrite: bool) -> list[Path]:
    there = sorted(directory.iterdir())
    old = [path for path in there if re.fullmatch(r"part-\d+\.(svm|parquet)", path.name)]
    # What a killed conversion left behind is overwritten by number, or cleared away here.
    left = _left_behind(directory)
    ours = {*old, *left, directory / UNFINISHED}
    if foreign := [path.name for path in there if path not in ours]:
        raise SettingsError(
            f"{directory}: not empty, holds {foreign[0]!r}. Give a new or an empty directory."
        )
    if old and not overwrite:
        raise SettingsError(
            f"{directory}: not empty, holds {len(old)} shards from {old[0].name!r} on. Give a new "
            "directory, or say that they may be overwritten."
        )
    for path in left:
        path.unlink()
    return old


def flush(file: BinaryIO) -> int:
    """Force a file to the disk; its size in bytes."""
    file.flush()
    os.fsync(file.fileno())
    return file.tell()


def _flush_directory(directory: Path) -> None:
    """Force the renames to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_sentence(path: str) -> Iterator[None]:
    """Turn what the operating system raises while we write there into one sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise MachineError(
            f"{path}: cannot be written ({reason}). Make room or choose another."
        ) from error
