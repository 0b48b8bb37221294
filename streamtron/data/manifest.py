"""Record what the shards of a data set are, after the first reading."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.errors import DataError
from streamtron.data.discover import FORMATS, ShardFile
from streamtron.data.prefetch import in_order, raise_if_cancelled
from streamtron.data.reader_config import ALL
from streamtron.data.storage import REQUESTS, StoreError, is_uri, stamp

_log = logging.getLogger("streamtron")


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """One shard as it was read.

    ``path`` is the file, absolute, or its URI, and ``name`` what messages call it. ``mtime_ns`` is
    the time of its last change, ``fingerprint`` xxh3-128 of its bytes, 32 hex digits. ``rows`` and
    ``nonzeros`` are without deleted rows, ``first_row`` the number of the first in all data.
    """

    name: str
    path: str
    format: str
    bytes: int
    mtime_ns: int
    fingerprint: str
    rows: int
    nonzeros: int
    first_row: int

    @classmethod
    def of(
        cls, shard: ShardFile, fingerprint: str, rows: int, nonzeros: int, first_row: int
    ) -> ShardRecord:
        """Make the record of a shard that was read as it was found."""
        file = shard.name, shard.path, shard.format, shard.size, shard.mtime_ns
        return cls(*file, fingerprint, rows, nonzeros, first_row)

    @property
    def row_numbers(self) -> NDArray[np.int64]:
        """The numbers of its rows in the data, rising."""
        return self.first_row + np.arange(self.rows)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The shards in their order."""

    shards: tuple[ShardRecord, ...]

    @property
    def rows(self) -> int:
        """Rows of all shards."""
        return sum(shard.rows for shard in self.shards)

    @property
    def nonzeros(self) -> int:
        """Nonzeros of all shards."""
        return sum(shard.nonzeros for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Bytes of all shards on disk."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def fingerprints(self) -> dict[str, str]:
        """Names of all shards, and the fingerprints of their bytes."""
        return {shard.name: shard.fingerprint for shard in self.shards}

    def to_dict(self, home: str | None = None) -> dict[str, Any]:
        """Return plain dictionaries and lists, for JSON.

        ``home`` : the directory where they will be read. A shard beside it, or below, also gets its
        relative path, so that all can be moved together.
        """
        shards = [asdict(shard) for shard in self.shards]
        if home is not None:
            start = os.path.abspath(home)
            for shard in shards:
                if shard["path"].startswith(os.path.join(os.path.dirname(start), "")):
                    shard["from_here"] = os.path.relpath(shard["path"], start)
        return {"rows": self.rows, "nonzeros": self.nonzeros, "shards": shards}

    @classmethod
    def from_dict(cls, fields: Any, where: str = "manifest", home: str | None = None) -> Manifest:
        """Make the manifest of what ``to_dict`` returned, in the directory ``home``."""
        try:
            shards = tuple(_record(**shard, home=home) for shard in fields["shards"])
            starts = [*accumulate((shard.rows for shard in shards), initial=0)]
            if not shards or [shard.first_row for shard in shards] != starts[:-1]:
                raise ValueError("a shard does not begin where the one before ends")
        except (TypeError, KeyError, ValueError) as error:
            raise DataError(
                f"{where}: not a manifest ({error}): expected what a reading wrote."
            ) from error
        return cls(shards)


MOST = 2**62
"""More than shards have of rows, nonzeros or bytes, and more than is ever read of them."""


def _record(home: str | None, from_here: Any = None, **fields: Any) -> ShardRecord:
    """Make a record of JSON values; prefer a shard beside the manifest to the path recorded."""
    record = ShardRecord(**fields)
    for name, kind in ShardRecord.__annotations__.items():
        value = fields[name]
        is_count = kind == "int" and name != "mtime_ns"  # may be dated before 1970
        wrong = type(value).__name__ != kind or (is_count and not 0 <= value < MOST)
        if wrong or (name == "format" and value not in FORMATS):
            raise ValueError(f"{name} of shard {record.name!r} is {value!r}")
    if home is not None and isinstance(from_here, str):
        path = os.path.normpath(os.path.join(os.path.abspath(home), from_here))
        if os.path.exists(path) or not os.path.exists(record.path):
            record = replace(record, path=path)
    return record


def no_rows(shards: Sequence[ShardFile], share: tuple[float, float] = ALL) -> DataError:
    """Make the error where no shard has a row, or none within a share of the rows."""
    if share != ALL:
        return DataError(
            f"{shards[0].name}: no row, in {len(shards)} shard(s), is in the share of "
            f"{share[1] - share[0]:.3g} of the rows that is to be read. Hold out another share."
        )
    nothing = f"no rows, in {len(shards)} shard(s). Name shards with rows in them."
    return DataError(f"{shards[0].name}: {nothing}")


def check_duplicate(earlier: ShardFile, shard: ShardFile, allow_duplicate: bool) -> None:
    """Refuse a shard with the same bytes as another one before it."""
    if earlier.name != shard.name and not allow_duplicate:
        raise DataError(
            f"{shard.name}: the same bytes as {earlier.name}. Remove one, or count its rows twice "
            "with --allow-duplicate."
        )
    left_out = {file.without.digest if file.without else None for file in (earlier, shard)}
    if len(left_out) > 1:
        raise DataError(
            f"{shard.name}: the same bytes as {earlier.name}, but other rows of them were "
            "forgotten. Leave it out, or write it without those rows."
        )


def check_all_unchanged(shards: Iterable[ShardFile]) -> None:
    """Refuse to go on if a shard was changed; a store that does not answer is only warned of."""
    shards = list(shards)
    threads = REQUESTS if any(is_uri(shard.path) for shard in shards) else 1
    try:
        for _ in in_order(check_unchanged, shards, threads):
            raise_if_cancelled()
    except StoreError as error:
        _log.warning("%s The reading goes on from the cache.", error)


def check_unchanged(shard: ShardFile) -> None:
    """Refuse to go on if this shard is not as it was found."""
    current = stamp(shard.path, shard.name)
    if current != shard.stamp:
        how = f"{shard.size} bytes when the run began, {current.size} now"
        raise changed(shard, "written anew" if current.size == shard.size else how)


def changed(shard: ShardFile, how: str) -> DataError:
    """Make the error for a shard that is not as it was found."""
    return DataError(
        f"{shard.name}: changed while the run was going ({how}). Shards must stay as they are "
        "until the run has ended; run again."
    )
