"""Find and write the flat files of shards in a cache directory.

A flat file is named by the shard's fingerprint and a digest of what else shaped it: the contract
(how shards are read), the rows that are left out, and where blocks end. An empty file beside it has
the name of a source: which fingerprint a path had at which size and time, so that a later run need
not open the shards at all.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import xxhash

from streamtron.core import rows as chunk
from streamtron.core.errors import FileDamaged
from streamtron.core.files import reading_from, writing_to
from streamtron.core.rows import Label
from streamtron.core.sealed import canonical
from streamtron.data import flat_file
from streamtron.data.discover import ROWS_GIVEN, ShardFile
from streamtron.data.flat_file import CachedShard, writing_cache
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.storage import Stamp

_SOURCE = re.compile(r"([0-9a-f]{16})_([0-9]+)_(-?[0-9]+)_([0-9a-f]{32})\.source")
_FLAT_FILE = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}\.cache")

_log = logging.getLogger("streamtron")


class Source(NamedTuple):
    """A shard as it was when it was cached, by a digest of its path."""

    path: str
    stamp: Stamp
    fingerprint: str

    @classmethod
    def of(cls, shard: ShardFile, fingerprint: str) -> Source:
        """Make that of a shard."""
        return cls(_digest(shard.path), shard.stamp, fingerprint)

    @property
    def name(self) -> str:
        """The name of the file that stands for it."""
        return "_".join(map(str, (self.path, *self.stamp, self.fingerprint))) + ".source"


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
            flat_file.remove_abandoned(self.directory)
        self._sources = {source.path: source for source in _sources(self.directory)}

    def find(self, shard: ShardFile) -> CachedShard | None:
        """Find the flat file of the shard as it is now, if it is intact."""
        known = self._flat_file(shard)
        if known is None:
            return None
        path, key = known
        try:
            contents = flat_file.read_contents(path)
            if contents.key != key:
                raise FileDamaged(f"{path}: not ours.")
        except FileDamaged as damage:
            _log.warning("%s It is rebuilt from %s.", damage, shard.name)
            return None
        return CachedShard(path, shard.name, contents)

    def writer(self) -> flat_file.FlatWriter:
        """Begin a flat file."""
        return flat_file.FlatWriter(self.directory)

    def finish(
        self,
        writer: flat_file.FlatWriter,
        shard: ShardFile,
        fingerprint: str,
        labels: Sequence[Label],
        places: Sequence[str],
        facts: dict[str, Any],
    ) -> CachedShard:
        """Complete a shard's flat file and remember the source it stands for."""
        path, key = self._place(shard, fingerprint)
        contents = writer.finish(path, key, labels, places, facts)
        if shard.name != ROWS_GIVEN:  # whose path is another one each time
            self._remember(shard, fingerprint)
        return CachedShard(path, shard.name, contents)

    def _flat_file(self, shard: ShardFile) -> tuple[str, dict[str, Any]] | None:
        """Return the path of the flat file of the shard as it is now, and what shaped it."""
        known = self._sources.get(_digest(shard.path))
        if known is None or known.stamp != shard.stamp:
            return None
        path, key = self._place(shard, known.fingerprint)
        return (path, key) if os.path.exists(path) else None

    def _place(self, shard: ShardFile, fingerprint: str) -> tuple[str, dict[str, Any]]:
        """Return the path of a shard's flat file, and what shaped it."""
        key = {
            "fingerprint": fingerprint,
            "format": shard.format,
            "reading": self._reading,
            "block": [chunk.BLOCK_ROWS, chunk.BLOCK_NONZEROS],
        }
        if self._reading.get("share"):  # which rows are in it depends on the name
            key["name"] = os.path.basename(shard.name)
        if shard.without is not None:
            key["without"] = shard.without.digest
        name = f"{fingerprint}-{_digest(canonical(key))}.cache"
        return os.path.join(self.directory, name), key

    def _remember(self, shard: ShardFile, fingerprint: str) -> None:
        """Let a source stand for the shard, and no longer for what the shard was before."""
        source = Source.of(shard, fingerprint)
        earlier = self._sources.get(source.path)
        with writing_cache(self.directory):
            open(os.path.join(self.directory, source.name), "wb").close()
            if earlier and earlier != source:
                _unlink(os.path.join(self.directory, earlier.name))

    def drop_outdated(self) -> None:
        """Remove the flat files of what shards were when this was opened and are no more, of which
        no other shard is a copy now. After all have been prepared: one may have got the name, and
        so the path, of another."""
        current = {source.fingerprint for source in _sources(self.directory)}
        earlier = {source.fingerprint for source in self._sources.values()}
        if earlier - current:
            drop_cached(self.directory, earlier - current, ())


def cache_files(directory: str) -> list[str]:
    """List the files that a cache has written in a directory, temporary ones included."""
    if not os.path.lexists(directory):
        return []
    with reading_from(directory):
        names = sorted(os.listdir(directory))
    ours = (_FLAT_FILE, _SOURCE, flat_file.TEMPORARY)
    names = [name for name in names if any(kind.fullmatch(name) for kind in ours)]
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
    """Remove the flat files of shards, but for those that are ``used`` (by their paths), and the
    sources of shards that are not used at all."""
    gone, paths_in_use = set(fingerprints), set(used)
    unused = gone - set(map(_fingerprint, paths_in_use))
    with writing_cache(directory):
        for path in cache_files(directory):
            fingerprints_gone = unused if _SOURCE.fullmatch(os.path.basename(path)) else gone
            if _fingerprint(path) in fingerprints_gone and path not in paths_in_use:
                _unlink(path)


def _sources(directory: str) -> Iterator[Source]:
    for file in cache_files(directory):
        if match := _SOURCE.fullmatch(os.path.basename(file)):
            path, size, time, fingerprint = match.groups()
            yield Source(path, Stamp(int(size), int(time)), fingerprint)


def _fingerprint(path: str) -> str:
    """Return the fingerprint in the name of a flat file or of a source."""
    match = re.search("[0-9a-f]{32}", os.path.basename(path))
    return match[0] if match else ""


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(os.fsencode(text))


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
