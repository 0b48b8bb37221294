"""Convert files to chunks and back; no module here uses a model's weights."""

from streamtron.data.arrays import MemoryData, canonical
from streamtron.data.cache import Cache, cache_files, clear_cache, drop_cached
from streamtron.data.dataset import Dataset, Expected
from streamtron.data.discover import ShardFile, find_shards
from streamtron.data.flat_file import SCRATCH, remove_abandoned
from streamtron.data.manifest import Manifest, ShardRecord, check_duplicate, no_rows
from streamtron.data.prepare import Preparing, Progress
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.readers import excluding, fingerprints, open_reader, resolve_reading
from streamtron.data.row_batch import FileReader, RowBatch
from streamtron.data.shard_rows import ShardRows

__all__ = [
    "SCRATCH",
    "Cache",
    "Dataset",
    "Expected",
    "FileReader",
    "Manifest",
    "MemoryData",
    "Preparing",
    "Progress",
    "ReaderConfig",
    "RowBatch",
    "ShardFile",
    "ShardRecord",
    "ShardRows",
    "cache_files",
    "canonical",
    "check_duplicate",
    "clear_cache",
    "drop_cached",
    "excluding",
    "find_shards",
    "fingerprints",
    "no_rows",
    "open_reader",
    "remove_abandoned",
    "resolve_reading",
]
