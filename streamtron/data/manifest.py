"""Record what the shards of a data set are, after the first reading."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from typing import Any

from streamtron.core.errors import DataError
from streamtron.core.files import reading_from, regular, write_atomically


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """One shard as it was read.

    Parameters
    ----------
    name : what messages call it.
    path : the file, absolute, or its URI.
    format : ``"libsvm"`` or ``"parquet"``.
    bytes, mtime_ns : its size and the time of its last change.
    fingerprint : xxh3-128 of its bytes, 32 hex digits.
    rows, nonzeros : what is in it, rows with deletions left out.
    first_row : the number of its first row in the whole data, from 0.
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


_TYPES = {field.name: {"str": str, "int": int}[str(field.type)] for field in fields(ShardRecord)}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The shards in their order.

    Examples
    --------
    >>> record = ShardRecord("a.svm", "/data/a.svm", "libsvm", 24, 0, "0" * 32, 3, 5, 0)
    >>> manifest = Manifest((record,))
    >>> manifest.rows, Manifest.from_dict(manifest.to_dict()) == manifest
    (3, True)
    """

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

    def to_dict(self) -> dict[str, Any]:
        """As plain dictionaries and lists, for JSON."""
        return {
            "rows": self.rows,
            "nonzeros": self.nonzeros,
            "shards": [asdict(shard) for shard in self.shards],
        }

    @classmethod
    def from_dict(cls, fields: Any, where: str = "manifest") -> Manifest:
        """Make the manifest of what ``to_dict`` returned."""
        try:
            shards = tuple(ShardRecord(**shard) for shard in fields["shards"])
        except (TypeError, KeyError) as error:
            raise DataError(
                f"{where}: not a manifest ({error}). Wanted is what a reading wrote."
            ) from error
        _check(shards, where)
        return cls(shards)

    def save(self, path: str, home: str | None = None) -> None:
        """Write the manifest as JSON, whole or not at all.

        A shard beside the directory of the manifest, or below, also gets its relative path, so that
        all can be moved together. ``home`` is the directory where the manifest will be read.
        """
        start = os.path.abspath(os.path.dirname(path) if home is None else home)
        fields = self.to_dict()
        for shard in fields["shards"]:
            if shard["path"].startswith(os.path.join(os.path.dirname(start), "")):
                shard["from_here"] = os.path.relpath(shard["path"], start)
        text = json.dumps(fields, indent=1, sort_keys=True) + "\n"
        write_atomically(path, [text.encode()])

    @classmethod
    def load(cls, path: str) -> Manifest:
        """Load the manifest that ``save`` wrote."""
        with reading_from(path), open(path, "rb", opener=regular) as file:
            text = file.read()
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: not JSON ({error}). Wanted is a manifest.") from error
        return cls.from_dict(_from_here(fields, os.path.dirname(os.path.abspath(path))), path)


def _from_here(fields: Any, start: str) -> Any:
    """Prefer shards beside the manifest to the paths it recorded."""
    shards = fields.get("shards") if isinstance(fields, dict) else None
    for shard in shards if isinstance(shards, list) else ():
        beside = shard.pop("from_here", None) if isinstance(shard, dict) else None
        if isinstance(beside, str):
            path = os.path.normpath(os.path.join(start, beside))
            if os.path.exists(path) or not os.path.exists(str(shard.get("path"))):
                shard["path"] = path
    return fields


def _check(shards: tuple[ShardRecord, ...], where: str) -> None:
    row = 0
    for shard in shards:
        for name, wanted in _TYPES.items():
            value = getattr(shard, name)
            negative = wanted is int and name != "mtime_ns" and isinstance(value, int) and value < 0
            if type(value) is not wanted or negative:  # a file may be dated before 1970
                raise DataError(
                    f"{where}: {name} of shard {shard.name!r} is {value!r}. "
                    f"Wanted is {'a number of at least 0' if wanted is int else 'a string'}."
                )
        if shard.first_row != row:
            raise DataError(
                f"{where}: shard {shard.name!r} begins at row {shard.first_row}, "
                f"the shards before it end at {row}."
            )
        row += shard.rows
