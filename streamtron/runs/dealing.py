"""What the parts of the data are: how many, which shards each has, and where they are opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate, pairwise
from typing import NamedTuple

from streamtron.core.config import Settings
from streamtron.core.errors import SettingsError
from streamtron.core.executor import Parts, Scans
from streamtron.core.rows import Label
from streamtron.data import ReaderConfig, ShardFile
from streamtron.runs.learners import ClassWeights

MOST_PARTS = 64
"""Parts at most where workers decide on their number: each sends a vector in every round."""


class PartPlan(NamedTuple):
    """What a part is made of: its number, its shards, and how they are read and trained on.

    ``labels`` : the only ones there may be, None = as they come. ``path`` : where its state is
    saved, see ``Part``. ``threads`` : that parse text.
    """

    number: int
    shards: tuple[ShardFile, ...]
    settings: Settings
    reading: ReaderConfig
    labels: tuple[Label, ...] | None
    weights: ClassWeights | None
    cache_dir: str
    path: str
    threads: int


OpenParts = Callable[[Sequence[PartPlan], Scans], AbstractContextManager[Parts]]
"""Opens parts, where they are to be: new ones, or restored after so many scans of each problem."""


def with_parts(settings: Settings, shards: Sequence[ShardFile], *, workers: bool) -> Settings:
    """Return the settings with the number of parts that the data is cut into, None for one. With
    workers, that is as many as there are shards, up to MOST_PARTS, however many workers there are.
    """
    parts = settings.parts
    if parts is None:
        parts = min(len(shards), MOST_PARTS) if workers else 1
    if parts > len(shards):
        raise SettingsError(
            f"parts is {parts}, and there are {len(shards)} shards: a part has whole shards. Give "
            "fewer parts, or write the rows to more shards with streamtron convert "
            "--rows-per-shard."
        )
    return settings.but(parts=None if parts == 1 else parts)


def with_parts_after(
    settings: Settings, before: int, shards: Sequence[ShardFile], *, workers: bool
) -> Settings:
    """Return the settings of a run after its shards, of which it had so many ``before``, have
    become these: new shards are parts of their own up to MOST_PARTS, and no part is without one.
    """
    if settings.parts is None:
        return with_parts(settings, shards, workers=workers)
    grown = max(settings.parts, min(settings.parts + len(shards) - before, MOST_PARTS))
    return with_parts(settings.but(parts=min(grown, len(shards))), shards, workers=workers)


def check_settings(settings: Settings) -> None:
    """Refuse settings with which only one part can train."""
    for refused, what, why in (
        (settings.faithful, "faithful", "visits all rows in the order of the files"),
        (settings.stages is not None, "stage", "visits all rows one after the other"),
        (settings.order == "sequential", "order sequential", "does the same"),
        (settings.hard, "the hard margin (C or delta)", "has no gradient for Newton's method"),
    ):
        if refused:
            raise SettingsError(
                f"{what} with {settings.parts} parts: it {why}, and several parts train apart, "
                "then by Newton's method. Give --parts 1, or leave that out."
            )


def deal(shards: Sequence[ShardFile], parts: int) -> list[tuple[ShardFile, ...]]:
    """Deal consecutive shards to parts, one at least to each, of about as many bytes.

    Examples
    --------
    >>> sizes = [5, 1, 1, 1, 9, 1]
    >>> shards = [ShardFile(f"{k}", f"{k}", "libsvm", size, 0) for k, size in enumerate(sizes)]
    >>> [[shard.size for shard in own] for own in deal(shards, 3)]
    [[5, 1], [1, 1], [9, 1]]
    """
    ends = list(accumulate(shard.size for shard in shards))
    borders = [0]
    for number in range(1, parts):
        wanted, left = ends[-1] * number / parts, len(shards) - (parts - number)
        choices = range(borders[-1] + 1, left + 1)
        borders.append(min(choices, key=lambda k: abs(ends[k - 1] - wanted)))
    return [tuple(shards[a:z]) for a, z in pairwise([*borders, len(shards)])]
