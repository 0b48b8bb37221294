"""The parts of the data: how many, which shards each has, and where it keeps its state."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate, islice, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import SettingsError
from streamtron.core.executor import LocalParts, Parts, Scans
from streamtron.core.rows import Facts, Label
from streamtron.core.threads import open_threads
from streamtron.data import Dataset, Expected, Preparing, ReaderConfig, ShardFile
from streamtron.runs.learners import make_learners
from streamtron.runs.memory import DataSize, fits_in_memory, size_of
from streamtron.solver.alphas import Alphas, Pieces, SavedAlphas, saved_at, split, write_state
from streamtron.solver.learner import Learner, choose_visits, hold_elsewhere, leave_alphas
from streamtron.solver.part import START_GAP, Part

MOST_PARTS = 64
"""Parts at most where workers decide on their number: each sends a vector in every round."""


class PartPlan(NamedTuple):
    """How to make a part: its shards, how they are read, where their prepared files are, where its
    state is saved, see ``Part``, and the facts of all rows, see ``Dataset``.

    ``threads`` : that read its rows into memory. ``fingerprints`` : of all shards, by their names.
    """

    shards: tuple[ShardFile, ...]
    settings: Settings
    reading: ReaderConfig
    cache_dir: str
    path: str
    threads: int
    labels: tuple[Label, ...]
    facts: Facts
    numbers: NDArray[np.uint32]
    fingerprints: Mapping[str, str]


OpenParts = Callable[[Sequence[PartPlan], Scans], AbstractContextManager[Parts]]
"""Opens parts in their places: new ones, or restored after a number of scans of each problem. If it
has an ``executor``, that prepares the shards."""


def with_parts(
    settings: Settings, shards: Sequence[ShardFile], *, workers: bool, before: int | None = None
) -> Settings:
    """Return the settings with the number of parts that the data is cut into, None for one.

    With workers, that is as many as there are shards, up to MOST_PARTS, however many workers there
    are. ``before`` : the number of shards of a run, which have become these: each new shard is a
    part of its own up to MOST_PARTS, and no part is without a shard.
    """
    parts = settings.parts
    if parts is None:
        parts = min(len(shards), MOST_PARTS) if workers else 1
    elif before is not None:
        grown = max(parts, min(parts + len(shards) - before, MOST_PARTS))
        parts = min(grown, len(shards))
    if parts > len(shards):
        raise SettingsError(
            f"parts is {parts}, and there are {len(shards)} shards: a part has whole shards. Give "
            "fewer parts, or write the rows to more shards with streamtron convert "
            "--rows-per-shard."
        )
    return settings.but(parts=None if parts == 1 else parts)


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
        border, left = ends[-1] * number / parts, len(shards) - (parts - number)
        choices = range(borders[-1] + 1, left + 1)
        borders.append(min(choices, key=lambda k: abs(ends[k - 1] - border)))
    return [tuple(shards[a:z]) for a, z in pairwise([*borders, len(shards)])]


def open_data(plan: PartPlan) -> Dataset:
    """Open the rows of a part, in the labels and ranks of all."""
    expected = Expected(
        classes=plan.labels,
        fingerprints=dict(plan.fingerprints),
        allow_duplicate=True,
        allow_empty=True,
    )
    how = Preparing(plan.cache_dir, plan.threads)
    data = Dataset.prepare(plan.shards, plan.reading, how, expected, plan.numbers)
    data.facts = plan.facts
    return data


def open_part(plan: PartPlan, scans: Scans) -> Part:
    """Open a part, new or restored after a number of scans of each problem."""
    data = open_data(plan)
    if fits_in_memory(plan.settings, size_of(data, plan.settings)):
        with open_threads(plan.threads):
            data.load()
    part = Part(data, make_learners(data, plan.settings), plan.path)
    if scans is not None:
        part.restore(scans)
    return part


@contextmanager
def open_here(plans: Sequence[PartPlan], scans: Scans, threads: int = 1) -> Iterator[Parts]:
    """Open parts in this process, mapped over by threads."""
    parts = [open_part(plan, scans) for plan in plans]
    try:
        yield LocalParts(parts, threads)
    finally:
        for part in parts:
            part.close()


def plan_parts(
    data: Dataset, settings: Settings, machine: Machine, directory: str | os.PathLike[str]
) -> list[PartPlan]:
    """Return the plan of every part, whose states are in a directory; refuse settings with which
    only one part can train."""
    assert settings.parts is not None
    if settings.paper:
        raise SettingsError(
            f"{'faithful' if settings.faithful else 'stage'} with {settings.parts} parts: the "
            "paper's procedure visits all rows one after the other, and parts train apart, then by "
            "Newton's method. Give --parts 1, or leave it out."
        )
    dealt = deal(data.shards, settings.parts)
    sizes = (
        DataSize(shard.rows, 0, shard.nonzeros, data.facts.by_row).row_bytes
        for shard in data.manifest.shards
    )
    most = max(sum(islice(sizes, len(shards))) for shards in dealt)
    active_set = min(settings.active_set_bytes // settings.parts, most)
    part_settings = settings.but(active_set=active_set, tol=max(settings.tol, START_GAP))
    return [
        PartPlan(
            shards,
            part_settings,
            data.reading,
            os.path.abspath(data.directory),
            _state_path(directory, number),
            max(1, machine.thread_count // settings.parts),
            tuple(data.labels),
            data.facts,
            data.numbers,
            data.manifest.fingerprints,
        )
        for number, shards in enumerate(dealt)
    ]


def _state_path(directory: str | os.PathLike[str], number: int) -> str:
    return os.path.join(os.path.abspath(directory), f"part-{number:04d}")


def take_saved_alphas(
    directory: str | os.PathLike[str], settings: Settings, learners: Sequence[Learner]
) -> None:
    """Give learners the α that the parts have saved in a directory after their last scans."""
    paths = [_state_path(directory, number) for number in range(settings.parts or 0)]
    for number, learner in enumerate(learners):
        which = number if settings.one_vs_rest else None
        files = [saved_at(path, which, learner.progress.reading) for path in paths]
        leave_alphas(learner, SavedAlphas(files))


def write_states(
    plans: Sequence[PartPlan],
    data: Dataset,
    learners: Sequence[Learner],
    staying: Sequence[Pieces],
) -> None:
    """Write the states from which the parts of a changed run begin: the α ``staying`` of each
    learner, by the numbers of the data's rows. The next reading scans the learners' weights."""
    records = iter(data.manifest.shards)
    sizes = [sum(shard.rows for shard in islice(records, len(plan.shards))) for plan in plans]
    for number, (learner, pieces) in enumerate(zip(learners, staying, strict=True)):
        learner.best.propose(learner.best.augmented)
        choose_visits(learner, False)
        leave_alphas(learner, Alphas())
        hold_elsewhere(learner, 0)
        which = number if learner.settings.one_vs_rest else None
        new = {"shuffles": 0, "center": learner.targets.center, "rho": learner.augmentation}
        for plan, rows, alphas in zip(plans, sizes, split(pieces, sizes), strict=True):
            path = saved_at(plan.path, which, learner.progress.reading)
            write_state(path, alphas, rows=rows, **new)
