"""Add new shards to a directory: all of them or none.

They are written under hidden names and renamed at the end. While some are renamed and some are not,
the file ``logged.UNFINISHED`` stands beside them, and readers refuse the directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from streamtron.core.errors import SettingsError
from streamtron.core.files import sync_directory
from streamtron.data.disk import writing_to
from streamtron.data.table_logs import UNFINISHED

REMEDY = "Make room or choose another."
"""What to do where shards cannot be written."""


@contextmanager
def new_shards(destination: str, ending: str, overwrite: bool) -> Iterator[Callable[[int], str]]:
    """Add shards to a directory, together, when the ``with`` block ends without an error.

    Yields the function from a shard's number to the path to write it at: a hidden file, which
    readers ignore. At the end the files are renamed to ``part-00000.<ending>``, …, and shards of
    an earlier conversion are removed if ``overwrite``, or if that was killed meanwhile.
    """
    directory = Path(destination)
    with writing_to(destination, REMEDY):
        directory.mkdir(parents=True, exist_ok=True)
        old = _old_shards(directory, overwrite or (directory / UNFINISHED).exists())
    hidden: dict[Path, Path] = {}

    def shard_path(number: int) -> str:
        final = directory / f"part-{number:05d}.{ending}"
        partial_file = directory / f".{final.name}.partial"
        hidden[partial_file] = final
        return os.path.abspath(partial_file)  # workers have another directory

    try:
        yield shard_path
        with writing_to(destination, REMEDY):
            _put_in_place(directory, hidden, old)
    finally:
        for path in _left_behind(directory):
            path.unlink(missing_ok=True)


def _put_in_place(directory: Path, hidden: Mapping[Path, Path], old: Iterable[Path]) -> None:
    """Give the hidden files their names and remove the old ones."""
    mark = directory / UNFINISHED
    mark.touch()
    sync_directory(directory)
    for path in set(old) - set(hidden.values()):
        path.unlink()
    for path, final in hidden.items():
        path.replace(final)
    sync_directory(directory)
    mark.unlink()
    sync_directory(directory)


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
