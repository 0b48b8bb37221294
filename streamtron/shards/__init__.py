"""Files ↔ chunks; everything here sees rows and never a weight."""

from streamtron.shards.cache import Cache, cache_files, clear_cache, drop_cached
from streamtron.shards.discover import ShardFile, find_shards
from streamtron.shards.first_reading import Skipped, check_twin, no_rows
from streamtron.shards.flat import TEMPORARY
from streamtron.shards.manifest import Manifest, ShardRecord
from streamtron.shards.memory import MemorySource
from streamtron.shards.piece import Piece, Reading, ShardReader
from streamtron.shards.source import ShardSource, open_reader, open_shards, settled

__all__ = [
    "TEMPORARY",
    "Cache",
    "Manifest",
    "MemorySource",
    "Piece",
    "Reading",
    "ShardFile",
    "ShardReader",
    "ShardRecord",
    "ShardSource",
    "Skipped",
    "cache_files",
    "check_twin",
    "clear_cache",
    "drop_cached",
    "find_shards",
    "no_rows",
    "open_reader",
    "open_shards",
    "settled",
]
