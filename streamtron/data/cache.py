"""Name and find the prepared files of a directory.

The name has digests of the path of a shard, from the directory on, and of its size and time, so
that a later run need not open the shard; the fingerprint of its bytes; and a digest of what else
shaped the file: how shards are read, the rows that are left out, and where blocks end.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import xxhash

from streamtron.core import rows as chunk
from streamtron.core.errors import FileDamaged
from streamtron.core.files import reading_from, writing_to
from streamtron.core.sealed import canonical
from streamtron.data.discover import ROWS_GIVEN, ShardFile
from streamtron.data.flat_file import (
    TEMPORARY,
    PreparedFile,
    read_prepared,
    remove_abandoned,
    writing_cache,
)
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.storage import is_uri

_FLAT_FILE = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{32})-([0-9a-f]{16})\.cache")

_log = logging.getLogger("streamtron")


class Names(NamedTuple):
    """The parts of the name of a prepared file."""

    place: str
    stamp: str
    fingerprint: str
    shape: str

    def path(self, directory: str) -> str:
        """Return the path of the file."""
        return os.path.join(directory, f"{'-'.join(self)}.cache")


class Cache:
    """The prepared files of a directory, which is made if it is not there.

    It may be shared by several data sets and several ways to read them; files made under another
    ``reading`` are left alone.
    """

    def __init__(self, directory: str, reading: ReaderConfig) -> None:
        self.directory, self._reading = os.path.abspath(directory), reading
        with writing_cache(self.directory):
            os.makedirs(self.directory, exist_ok=True)
            remove_abandoned(self.directory)
        prepared = _prepared_in(self.directory)
        self._paths = {names._replace(fingerprint=""): path for path, names in prepared}

    def find(self, shard: ShardFile) -> PreparedFile | None:
        """Find the prepared file of the shard as it is now, if it is intact."""
        path = self._paths.get(names_of(self.directory, self._reading, shard))
        if path is None:
            return None
        try:
            return read_prepared(path)
        except FileDamaged as damage:
            _log.warning("%s It is made anew from %s.", damage, shard.name)
            return None


def names_of(
    directory: str, reading: ReaderConfig, shard: ShardFile, fingerprint: str = ""
) -> Names:
    """Return the parts of the name of a shard's prepared file."""
    shape: dict[str, Any] = {
        "format": shard.format,
        "reading": reading.key(),
        "block": [chunk.BLOCK_ROWS, chunk.BLOCK_NONZEROS],
    }
    if shape["reading"].get("share"):  # which rows are in it depends on the name
        shape["name"] = os.path.basename(shard.name)
    if shard.without is not None:
        shape["without"] = shard.without.digest
    place, stamp = shard.path, canonical(shard.stamp)
    if shard.name == ROWS_GIVEN:  # at another path each time
        place, stamp = fingerprint, ""
    elif not is_uri(place):  # both may be moved together
        place = os.path.relpath(place, directory)
    return Names(_digest(place), _digest(stamp), fingerprint, _digest(canonical(shape)))


def _prepared_in(directory: str) -> Iterator[tuple[str, Names]]:
    for name in os.listdir(directory):
        if match := _FLAT_FILE.fullmatch(name):
            yield os.path.join(directory, name), Names(*match.groups())


def drop_earlier(directory: str, present: Iterable[str]) -> None:
    """Remove the prepared files of what shards were before, given the paths of the present ones."""
    stamps = dict(os.path.basename(path).split("-")[:2] for path in present)
    with writing_cache(directory):
        for path, names in _prepared_in(directory):
            if stamps.get(names.place, names.stamp) != names.stamp:
                _unlink(path)


def cache_files(directory: str) -> list[str]:
    """List the files that a cache has written in a directory, temporary ones included."""
    if not os.path.lexists(directory):
        return []
    with reading_from(directory):
        names = sorted(os.listdir(directory))
    names = [name for name in names if _FLAT_FILE.fullmatch(name) or TEMPORARY.fullmatch(name)]
    return [os.path.join(directory, name) for name in names]


def clear_cache(directory: str) -> int:
    """Remove the files that a cache has written in a directory; return their bytes."""
    freed = 0
    for path in cache_files(directory):
        with writing_to(path, "Remove it by hand.", "cannot be removed"):
            freed += os.stat(path).st_size
            os.unlink(path)
    return freed


def drop_cached(directory: str, fingerprints: Iterable[str], used: Iterable[str]) -> None:
    """Remove the prepared files of shards, but for those that are ``used``, by their paths."""
    gone, kept = set(fingerprints), set(used)
    with writing_cache(directory):
        for path, names in _prepared_in(directory):
            if names.fingerprint in gone and path not in kept:
                _unlink(path)


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(os.fsencode(text))


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
