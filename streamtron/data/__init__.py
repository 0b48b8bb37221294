"""Convert files to chunks and back; no module here uses a model's weights."""

from streamtron.data.arrays import MemoryData, canonical
from streamtron.data.cache.directory import Cache, cache_files, clear_cache, drop_cached
from streamtron.data.cache.flat_file import remove_abandoned
from streamtron.data.dataset import Dataset, Expected
from streamtron.data.discover import ShardFile, find_shards
from streamtron.data.manifest import Manifest, ShardRecord, check_duplicate, no_rows
from streamtron.data.prepare import Preparing, Progress
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.readers import open_reader, resolve_reading
from streamtron.data.row_batch import RowBatch, ShardReader
from streamtron.data.source import ShardSource, Skipped, open_shards

__all__ = [
    "Cache",
    "Dataset",
    "Expected",
    "Manifest",
    "MemoryData",
    "Preparing",
    "Progress",
    "ReaderConfig",
    "RowBatch",
    "ShardFile",
    "ShardReader",
    "ShardRecord",
    "ShardSource",
    "Skipped",
    "cache_files",
    "canonical",
    "check_duplicate",
    "clear_cache",
    "drop_cached",
    "find_shards",
    "no_rows",
    "open_reader",
    "open_shards",
    "remove_abandoned",
    "resolve_reading",
]
