"""Find and write the flat files of shards in a cache directory.

A flat file is named by the shard's fingerprint and a digest of what else shaped it: the contract
(how shards are read), the rows that are left out, and where blocks end. ``manifest.json`` beside
the files remembers which fingerprint a path had at which size and time, so that a later run need
not open the shards at all.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import xxhash

from streamtron.core import rows as chunk
from streamtron.core.errors import FileDamaged
from streamtron.core.files import reading_from, write_atomically
from streamtron.core.rows import Label
from streamtron.data.cache.flat_file import (
    TEMPORARY,
    CachedShard,
    FlatWriter,
    read_contents,
    remove_abandoned,
    writing_cache,
)
from streamtron.data.deletions import Deletions
from streamtron.data.discover import ShardFile
from streamtron.data.disk import CACHE_REMEDY, check_room, writing_to
from streamtron.data.row_batch import Reading
from streamtron.data.storage import Stamp

ENDING = ".cache"
_MANIFEST = "manifest.json"

_log = logging.getLogger("streamtron")


class Source(NamedTuple):
    """A shard as it was when it was cached; see ``Stamp``."""

    size: int
    mtime_ns: int
    fingerprint: str
    tag: str = ""


Sources = dict[str, Source]
"""path → what is remembered of a shard."""


class Cache:
    """The flat files of a directory, which is made if it is not there.

    Parameters
    ----------
    directory : may be shared by several data sets and several ways to read them.
    reading : how shards are read; files made under another reading are left alone.
    """

    def __init__(self, directory: str, reading: Reading) -> None:
        self._directory = os.path.abspath(directory)
        self._reading = reading.key()
        with writing_cache(self._directory):
            os.makedirs(self._directory, exist_ok=True)
            remove_abandoned(self._directory)
        self._sources = _load_sources(self._directory)
        self._new: Sources = {}

    def knows(self, shard: ShardFile) -> bool:
        """Tell whether the shard was cached as it is now."""
        known = self._sources.get(shard.path)
        return known is not None and shard.stamp.may_be(Stamp(*known[:2], known.tag))

    def find(self, shard: ShardFile) -> CachedShard | None:
        """Find the flat file of the shard as it is now, if it is intact."""
        if not self.knows(shard):
            return None
        key = self._key(shard, self._sources[shard.path].fingerprint)
        path = self._path(key)
        if not os.path.exists(path):
            return None
        try:
            contents = read_contents(path)
        except FileDamaged as damage:
            _log.warning("%s It is rebuilt from %s.", damage, shard.name)
            return None
        if contents is None or contents.key != key:
            what = "written in another version of the format" if contents is None else "not ours"
            _log.warning("%s: %s; it is rebuilt.", path, what)
            return None
        return CachedShard(path, shard.name, contents)

    def find_copy(
        self, fingerprint: str, name: str, without: Deletions | None = None
    ) -> CachedShard | None:
        """Find a flat file of a shard that may be gone; ``without``: rows that are not in it."""
        left_out = None if without is None else without.digest
        for entry in sorted(os.listdir(self._directory)):
            path = os.path.join(self._directory, entry)
            if not (entry.startswith(f"{fingerprint}-") and entry.endswith(ENDING)):
                continue
            with suppress(FileDamaged):
                contents = read_contents(path)
                if (
                    contents is not None
                    and contents.key["reading"] == self._reading
                    and contents.key.get("without") == left_out
                ):
                    return CachedShard(path, name, contents)
        return None

    def retain(self, fingerprint: str) -> None:
        """Keep a shard's flat files, although it will be replaced, until ``drop_cached``."""
        self._sources[fingerprint] = self._new[fingerprint] = Source(0, 0, fingerprint)
        self.save()

    def writer(self) -> FlatWriter:
        """Return a context manager that writes a flat file; ``finish`` gives it its name."""
        return FlatWriter(self._directory, self.check_room)

    def finish(
        self, writer: FlatWriter, shard: ShardFile, fingerprint: str, labels: list[Label]
    ) -> CachedShard:
        """Complete a shard's flat file and remember the source it stands for."""
        key = self._key(shard, fingerprint)
        path = self._path(key)
        contents = writer.finish(path, key, labels)
        self._remember(shard, fingerprint)
        return CachedShard(path, shard.name, contents)

    def save(self) -> None:
        """Write down what has been remembered since the last time."""
        if not self._new:
            return
        with _locked(self._directory):  # others may have written meanwhile
            _save_sources(self._directory, _load_sources(self._directory) | self._new)
        self._new = {}

    def check_room(self, needed: float, what: str = "the next rows of the cache need") -> None:
        """Refuse to go on if the disk has less than ``needed`` bytes free."""
        check_room(self._directory, needed, f"{self._directory}: {what}", CACHE_REMEDY)

    def _key(self, shard: ShardFile, fingerprint: str) -> dict[str, Any]:
        key = {
            "fingerprint": fingerprint,
            "format": shard.format,
            "reading": self._reading,
            "block": [chunk.BLOCK_ROWS, chunk.BLOCK_NONZEROS],
        }
        return key if shard.without is None else key | {"without": shard.without.digest}

    def _path(self, key: dict[str, Any]) -> str:
        name = f"{key['fingerprint']}-{_digest(json.dumps(key, sort_keys=True))}{ENDING}"
        return os.path.join(self._directory, name)

    def _remember(self, shard: ShardFile, fingerprint: str) -> None:
        before = self._sources.get(shard.path)
        known = Source(shard.size, shard.mtime_ns, fingerprint, shard.tag)
        self._sources[shard.path] = self._new[shard.path] = known
        if before and before.fingerprint not in {s.fingerprint for s in self._sources.values()}:
            self._forget(before.fingerprint)
        if len(self._new) > len(self._sources) // 8:  # seldom enough for ten thousand shards
            self.save()

    def _forget(self, fingerprint: str) -> None:
        """Remove the flat files of a source that is no more."""
        for name in os.listdir(self._directory):
            if name.startswith(f"{fingerprint}-") and name.endswith(ENDING):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._directory, name))


def cache_files(directory: str) -> list[str]:
    """List the files that a cache has written in a directory, temporary ones included."""
    if not os.path.lexists(directory):
        return []
    with reading_from(directory):
        names = sorted(os.listdir(directory))
    ours = [name for name in names if name.endswith((ENDING, TEMPORARY)) or name == _MANIFEST]
    return [os.path.join(directory, name) for name in ours]


def clear_cache(directory: str) -> int:
    """Remove the files that a cache has written in a directory; return their bytes."""
    freed = 0
    for path in cache_files(directory):
        with writing_to(path, "Remove it by hand.", "cannot be removed"):
            freed += os.stat(path).st_size
            os.unlink(path)
    return freed


def drop_cached(directory: str, fingerprints: Iterable[str], used: Iterable[str]) -> None:
    """Remove the flat files of shards, but for those that are ``used`` (by their paths), and what
    is remembered of shards that are not used at all."""
    kept = set(used)
    in_use = {_fingerprint(path) for path in kept}
    gone = set(fingerprints)
    with writing_cache(directory):
        for path in cache_files(directory):
            if path.endswith(ENDING) and _fingerprint(path) in gone and path not in kept:
                os.unlink(path)
        unused = gone - in_use
        with _locked(directory):
            sources = _load_sources(directory)
            rest = {path: s for path, s in sources.items() if s.fingerprint not in unused}
            if rest != sources:
                _save_sources(directory, rest)


def _fingerprint(path: str) -> str:
    """That of the shard whose flat file this is."""
    return os.path.basename(path).split("-")[0]


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    """While the list of sources is read and written anew, which no two may do at a time. Without a
    lock, as some network file systems have none, what one of them remembers may be lost, and is
    then read once more."""
    with ExitStack() as stack:
        with suppress(OSError):
            descriptor = os.open(directory, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _save_sources(directory: str, sources: Sources) -> None:
    text = json.dumps(sources, sort_keys=True)
    checked = json.dumps({"checksum": _digest(text), "sources": text})
    write_atomically(os.path.join(directory, _MANIFEST), [checked.encode()])


def _load_sources(directory: str) -> Sources:
    path = os.path.join(directory, _MANIFEST)
    if not os.path.exists(path):
        return {}
    with reading_from(path), open(path, "rb") as file:
        data = file.read()
    try:
        checked = json.loads(data)
        if checked["checksum"] != _digest(checked["sources"]):
            raise ValueError("checksum")
        return {path: Source(*known) for path, known in json.loads(checked["sources"]).items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        _log.warning("%s: damaged; the cache is rebuilt.", path)
        return {}


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())
