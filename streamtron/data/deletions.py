"""Exclude rows that were forgotten and are still in their shard.

Readers drop these rows before anything else sees them, so a run on shards with deletions is, bit
for bit, the run on shards written without those rows. Deletions hold the fingerprint of the shard
and row numbers, nothing of the rows; a shard with other bytes is refused.
"""

from __future__ import annotations

import csv
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamtron.core.errors import DataError, FileDamaged
from streamtron.core.files import at_most, reading_from
from streamtron.core.limits import available_memory
from streamtron.core.splitmix import draw

_TENSOR = "{:06d}.forgotten"


@dataclass(frozen=True, slots=True, eq=False)
class Deletions:
    """The rows that are left out of a shard.

    ``path`` is the file, absolute, or its URI, ``fingerprint`` that of its bytes, which still hold
    the rows; ``rows`` are their numbers in the file, from 0, int64, rising.
    """

    path: str
    fingerprint: str
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def digest(self) -> str:
        """A digest of the row numbers."""
        return xxhash.xxh3_64_hexdigest(self.rows.astype("<i8").tobytes())


def in_share(name: str, rows: NDArray[np.int64], share: tuple[float, float]) -> NDArray[np.bool_]:
    """Tell which rows of a shard of this name are in a share: whether the hash of the shard's name,
    without its directories, and of the row's number in the file, as a number in [0, 1), lies in it.

    >>> [int(in_share(name, np.arange(1000), (0.0, 0.2)).sum()) for name in ("a.svm", "b/a.svm")]
    [205, 205]
    """
    start = xxhash.xxh3_64_intdigest(os.path.basename(name).encode(errors="surrogateescape"))
    hashed = draw(start, rows).astype(np.float64) / 2.0**64
    return (hashed >= share[0]) & (hashed < share[1])


def encode(deletions: Sequence[Deletions]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Encode deletions as JSON content and tensors."""
    table = [{"path": deletion.path, "fingerprint": deletion.fingerprint} for deletion in deletions]
    tensors = {_TENSOR.format(number): shard.rows for number, shard in enumerate(deletions)}
    return {"deletions": table} if table else {}, tensors


def decode(
    content: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], where: str | os.PathLike[str]
) -> list[Deletions]:
    """Decode the deletions in a sealed file, if its content has any."""
    decoded = []
    try:
        for number, shard in enumerate(content.get("deletions", ())):
            path, fingerprint = shard["path"], shard["fingerprint"]
            rows = tensors[_TENSOR.format(number)]
            if type(path) is not str or type(fingerprint) is not str:
                raise ValueError("a shard without a path and a fingerprint")
            if rows.dtype != np.int64 or rows.ndim != 1 or (np.diff(rows, prepend=-1) <= 0).any():
                raise ValueError("rows that are not rising int64")
            decoded.append(Deletions(path, fingerprint, rows))
    except (KeyError, TypeError, ValueError) as error:
        reason = f"sealed, but its deletions are none ({error}). Fit anew."
        raise FileDamaged(f"{where}: {reason}") from error
    return decoded


def total(deletions: Iterable[Deletions]) -> int:
    """Count the rows of all deletions."""
    return sum(map(len, deletions))


LIST_SHARE = 8
"""A list of rows may have 1/8 of the available memory: read, it takes about six times as much."""


def listed_rows(path: str) -> dict[str, NDArray[np.int64]]:
    """Read shard → rows from a CSV file, whose first line is ``shard,row``."""
    rows = defaultdict[str, list[int]](list)
    opener = at_most(available_memory() // LIST_SHARE)
    with reading_from(path), open(path, newline="", encoding="utf-8-sig", opener=opener) as file:
        lines = csv.DictReader(file, strict=True)
        try:
            if not {"shard", "row"} <= set(lines.fieldnames or ()):
                raise DataError(
                    f"{path}: begins with {','.join(lines.fieldnames or ())[:60]!r}: expected a "
                    "CSV file whose first line is shard,row."
                )
            for line in lines:
                shard, row = line["shard"], line["row"]
                if not shard or not re.fullmatch("[0-9]{1,18}", row or ""):
                    raise DataError(
                        f"{path}, line {lines.line_num}: shard {shard!r:.99}, row {row!r:.99}: "
                        "expected the name of a shard and a number from 0 on."
                    )
                rows[shard].append(int(row))
        except (csv.Error, UnicodeDecodeError) as error:
            reason = f"not CSV in UTF-8 ({error}). Its first line is shard,row."
            raise DataError(f"{path}: {reason}") from error
    return {name: np.array(numbers, dtype=np.int64) for name, numbers in rows.items()}
