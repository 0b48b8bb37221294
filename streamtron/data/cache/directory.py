"""Find and write the flat files of shards in a cache directory.

A flat file is named by the shard's fingerprint and a digest of what else shaped it: the contract
(how shards are read), the rows that are left out, and where blocks end. ``sources.sealed`` beside
them remembers which fingerprint a path had at which size and time, so that a later run need not
open the shards at all.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import xxhash

from streamtron.core import rows as chunk
from streamtron.core.errors import FileDamaged
from streamtron.core.files import reading_from, writing_to
from streamtron.core.rows import Label
from streamtron.core.sealed import canonical, read_sealed, write_sealed
from streamtron.data.cache.flat_file import (
    TEMPORARY,
    CachedShard,
    FlatWriter,
    read_contents,
    remove_abandoned,
    writing_cache,
)
from streamtron.data.discover import ShardFile
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.storage import Stamp

ENDING = ".cache"
_LIST = "sources.sealed"

_log = logging.getLogger("streamtron")


class Source(NamedTuple):
    """A shard as it was when it was cached; see ``Stamp``."""

    size: int
    mtime_ns: int
    fingerprint: str
    tag: str = ""


class Cache:
    """The flat files of a directory, which is made if it is not there.

    It may be shared by several data sets and several ways to read them; files made under another
    ``reading`` are left alone.
    """

    def __init__(self, directory: str, reading: ReaderConfig) -> None:
        self.directory = os.path.abspath(directory)
        self._reading = reading.key()
        with writing_cache(self.directory):
            os.makedirs(self.directory, exist_ok=True)
            remove_abandoned(self.directory)
        self._sources = _load_sources(self.directory)
        self._new: dict[str, Source] = {}

    def knows(self, shard: ShardFile) -> bool:
        """Tell whether the shard was cached as it is now."""
        known = self._sources.get(shard.path)
        return known is not None and shard.stamp.may_be(Stamp(*known[:2], known.tag))

    def find(self, shard: ShardFile) -> CachedShard | None:
        """Find the flat file of the shard as it is now, if it is intact."""
        if not self.knows(shard):
            return None
        path, key = self._place(shard, self._sources[shard.path].fingerprint)
        if not os.path.exists(path):
            return None
        try:
            contents = read_contents(path)
            if contents.key != key:
                raise FileDamaged(f"{path}: not ours.")
        except FileDamaged as damage:
            _log.warning("%s It is rebuilt from %s.", damage, shard.name)
            return None
        return CachedShard(path, shard.name, contents)

    def finish(
        self, writer: FlatWriter, shard: ShardFile, fingerprint: str, labels: list[Label]
    ) -> CachedShard:
        """Complete a shard's flat file and remember the source it stands for."""
        path, key = self._place(shard, fingerprint)
        contents = writer.finish(path, key, labels)
        self._remember(shard, fingerprint)
        return CachedShard(path, shard.name, contents)

    def save(self) -> None:
        """Write down what has been remembered since the last time."""
        if not self._new:
            return
        with writing_cache(self.directory), _locked(self.directory):
            # others may have written meanwhile
            sources = _load_sources(self.directory) | self._new
            write_sealed(os.path.join(self.directory, _LIST), {"sources": sources}, {})
        self._new = {}

    def _place(self, shard: ShardFile, fingerprint: str) -> tuple[str, dict[str, Any]]:
        """Return the path of a shard's flat file, and what shaped it."""
        key = {
            "fingerprint": fingerprint, "format": shard.format, "reading": self._reading,
            "block": [chunk.BLOCK_ROWS, chunk.BLOCK_NONZEROS],
        }  # fmt: skip
        if self._reading.get("share"):  # which rows are in it depends on the name
            key["name"] = os.path.basename(shard.name)
        if shard.without is not None:
            key["without"] = shard.without.digest
        name = f"{fingerprint}-{xxhash.xxh3_64_hexdigest(canonical(key).encode())}{ENDING}"
        return os.path.join(self.directory, name), key

    def _remember(self, shard: ShardFile, fingerprint: str) -> None:
        earlier = self._sources.get(shard.path)
        known = Source(shard.size, shard.mtime_ns, fingerprint, shard.tag)
        self._sources[shard.path] = self._new[shard.path] = known
        if earlier and earlier.fingerprint not in {s.fingerprint for s in self._sources.values()}:
            _unlink(_flat_files(self.directory, {earlier.fingerprint}))
        if len(self._new) > len(self._sources) // 8:  # seldom enough for ten thousand shards
            self.save()


def cache_files(directory: str) -> list[str]:
    """List the files that a cache has written in a directory, temporary ones included."""
    if not os.path.lexists(directory):
        return []
    with reading_from(directory):
        names = sorted(os.listdir(directory))
    ours = [name for name in names if name.endswith((ENDING, TEMPORARY)) or name == _LIST]
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
    gone, paths_in_use = set(fingerprints), set(used)
    with writing_cache(directory):
        _unlink(path for path in _flat_files(directory, gone) if path not in paths_in_use)
        unused = gone - set(map(_fingerprint, paths_in_use))
        with _locked(directory):
            sources = _load_sources(directory)
            remaining = {path: s for path, s in sources.items() if s.fingerprint not in unused}
            if remaining != sources:
                write_sealed(os.path.join(directory, _LIST), {"sources": remaining}, {})


def _flat_files(directory: str, fingerprints: Collection[str]) -> list[str]:
    """List the flat files of the shards with these fingerprints, which begin their names."""
    paths = [path for path in cache_files(directory) if path.endswith(ENDING)]
    return [path for path in paths if _fingerprint(path) in fingerprints]


def _fingerprint(path: str) -> str:
    return os.path.basename(path).split("-")[0]


def _unlink(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Let one process at a time write the list of sources anew. Where a network file system has no
    locks, what another one remembers may be lost, and is then read once more."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _load_sources(directory: str) -> dict[str, Source]:
    """Load what is remembered of shards, by their paths."""
    path = os.path.join(directory, _LIST)
    if not os.path.exists(path):
        return {}
    try:
        content, _ = read_sealed(path, "list of cached shards")
        return {path: Source(*known) for path, known in content["sources"].items()}
    except (FileDamaged, TypeError, KeyError, AttributeError):
        _log.warning("%s: damaged; the cache is rebuilt.", path)
        return {}
