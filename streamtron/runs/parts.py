"""Fit one model on parts of the data: whole shards, dealt by bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from streamtron.core.config import Machine, Settings
from streamtron.core.errors import SettingsError
from streamtron.core.events import Listener
from streamtron.core.executor import LocalParts, Parts
from streamtron.core.files import scratch_directory
from streamtron.data import Reading, ShardFile, ShardSource, facts_of
from streamtron.runs.directory import PARTS, CheckpointWriter
from streamtron.runs.learners import ClassWeights, given_class_weights
from streamtron.solver import part
from streamtron.solver.checkpoint import NOT_BEGUN, State
from streamtron.solver.learner import Learner
from streamtron.solver.part import START_GAP, Part
from streamtron.solver.stopping import reopen
from streamtron.solver.train_parts import train_parts

MOST_PARTS = 64
"""Parts at most where workers decide on their number: each sends a vector in every round."""


class PartPlan(NamedTuple):
    """What a part is made of: its number, its shards, and how they are read and trained on.

    ``path`` : where its state is saved, see ``Part``. ``threads`` : that parse text.
    """

    number: int
    shards: tuple[ShardFile, ...]
    settings: Settings
    reading: Reading
    weights: ClassWeights | None
    cache_dir: str
    path: str
    threads: int


OpenParts = Callable[[Sequence[PartPlan], int | None], AbstractContextManager[Parts]]
"""Opens parts, where they are to be: new ones, or restored after so many scans."""


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


def check_settings(settings: Settings) -> None:
    """Refuse settings with which only one part can train."""
    for refused, what in (
        (settings.faithful, "faithful"),
        (settings.stages is not None, "stage"),
        (settings.hard, "the hard margin (C or delta)"),
        (settings.multiclass, "multiclass"),
        (settings.multilabel, "multilabel"),
        (settings.class_weight == "balanced", "class-weight balanced"),
        (settings.order == "sequential", "order sequential"),
    ):
        if refused:
            raise SettingsError(
                f"{what} with {settings.parts} parts: several parts train two classes by dual "
                "ascent and Newton's method alone. Give --parts 1, or leave that out."
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


def open_part(plan: PartPlan, scans: int | None) -> Part:
    """Open a part, new or restored after so many scans."""
    settings = plan.settings
    source = ShardSource(
        plan.shards, plan.reading, cache_dir=plan.cache_dir, threads=plan.threads,
        allow_duplicate=settings.allow_duplicate, allow_empty=True,
        on_bad_shard=settings.on_bad_shard,
    )  # fmt: skip
    made = Part(source, Learner(settings, source.labels, plan.weights), plan.path)
    if scans is not None:
        made.restore(scans)
    return made


@contextmanager
def open_here(plans: Sequence[PartPlan], scans: int | None, threads: int = 1) -> Iterator[Parts]:
    """Open parts in this process, mapped over by so many threads."""
    made = [open_part(plan, scans) for plan in plans]
    try:
        parts = LocalParts(made, threads)
        parts.scans = scans
        yield parts
    finally:
        for one in made:
            one.close()


def train_in_parts(
    source: ShardSource,
    settings: Settings,
    machine: Machine,
    listen: Listener,
    cache: str,
    *,
    writer: CheckpointWriter | None,
    state: State | None,
    open_parts: OpenParts | None,
) -> tuple[Learner, dict[str, Any]]:
    """Train on the parts of the settings, where ``open_parts`` has them; None = in this process.
    Returns the finished learner, with the counts of all rows, and more for the report. ``state`` :
    of a run to resume; ``writer`` : of its checkpoints, beside which the parts save their states.
    """
    check_settings(settings)
    if writer is not None:
        writer.every = 0.0  # parts keep their states after the last two scans
    learner = Learner(settings, source.labels, given_class_weights(settings) or None)
    if state is not None:
        state.learners(lambda _: learner, "learners")
        if reopen(learner):
            learner.progress.finished = None
        learner.counts.clear()
    scans: int | None = None if state is None else learner.progress.reading

    def now() -> State:
        source.labels[:] = learner.targets.labels
        return State.of(learner.progress.reading, NOT_BEGUN, [learner])

    def checkpoint() -> None:
        if writer is not None:
            writer.checkpoint(now)

    threads = machine.thread_count
    open_parts = open_parts or partial(open_here, threads=threads)
    with (
        _states(writer) as directory,
        open_parts(plans_of(source, settings, cache, directory, threads), scans) as parts,
    ):
        train_parts(learner, parts, listen, checkpoint)
        source.take(parts.until_found(part.describe, facts_of).facts)
    if writer is not None:
        writer.end(now)
    return learner, {"parts": settings.parts, **_report(parts)}


def _report(parts: Parts) -> dict[str, Any]:
    """Return what the report has of rounds."""
    steps = {
        name: {"rounds": rounds, "seconds": parts.seconds[name]}
        for name, rounds in parts.rounds.items()
    }
    return {"rounds": parts.rounds.total(), "bytes_sent": parts.bytes_sent, "steps": steps}


def plans_of(
    source: ShardSource, settings: Settings, cache: str, directory: str, threads: int
) -> list[PartPlan]:
    """Return the plan of every part."""
    assert settings.parts is not None
    own = settings.but(
        active_set=settings.active_set // settings.parts, tol=max(settings.tol, START_GAP)
    )
    weights, reading = given_class_weights(settings) or None, source.resolve()
    return [
        PartPlan(
            number, shards, own, reading, weights, os.path.abspath(cache),
            os.path.join(os.path.abspath(directory), f"part-{number:04d}"),
            max(1, threads // settings.parts),
        )
        for number, shards in enumerate(deal(source.shards, settings.parts))
    ]  # fmt: skip


@contextmanager
def _states(writer: CheckpointWriter | None) -> Iterator[str]:
    """Give the directory in which parts save their states: the run's, or a temporary one."""
    if writer is None:
        with scratch_directory("streamtron-") as directory:
            yield directory
    else:
        directory = os.path.join(writer.run.path, PARTS)
        os.makedirs(directory, exist_ok=True)
        yield directory
