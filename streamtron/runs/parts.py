"""The parts of the data: how many, which shards each has, and a fit on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import accumulate, islice, pairwise
from typing import Any, NamedTuple

from streamtron.core.config import Settings, label_weights
from streamtron.core.errors import SettingsError
from streamtron.core.events import RoundDone
from streamtron.core.executor import LocalParts, Parts, Scans
from streamtron.core.rows import COLUMN_MAX, Label
from streamtron.data import ReaderConfig, ShardFile, ShardSource, SourceFacts, facts_of
from streamtron.runs.learners import (
    ClassWeights,
    Training,
    against_rest,
    balanced,
    read_to_end,
    restore_finished,
    weigh_labels,
)
from streamtron.solver.checkpoint import Resumed, State, densify
from streamtron.solver.duals import Counts, Pieces, SavedCounts, saved_at, split, write_first_state
from streamtron.solver.learner import Learner, choose_mode, hold_elsewhere, leave_counts
from streamtron.solver.many_parts import ManyParts
from streamtron.solver.part import START_GAP, Part
from streamtron.solver.stopping import reopen
from streamtron.solver.train import train

MOST_PARTS = 64
"""Parts at most where workers decide on their number: each sends a vector in every round."""


class PartPlan(NamedTuple):
    """What a part is made of: its shards, and how they are read and trained on.

    ``labels`` : the only ones there may be, None = as they come. ``path`` : where its state is
    saved, see ``Part``. ``threads`` : that parse text. ``most_labels``, ``seen`` : as of a source.
    """

    shards: tuple[ShardFile, ...]
    settings: Settings
    reading: ReaderConfig
    labels: tuple[Label, ...] | None
    weights: ClassWeights | None
    cache_dir: str
    path: str
    threads: int
    most_labels: int | None
    seen: Mapping[str, str]


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


def open_part(plan: PartPlan, scans: Scans, most_columns: int = COLUMN_MAX + 1) -> Part:
    """Open a part, new or restored after so many scans of each problem. ``most_columns`` : more are
    refused where they are read."""
    settings = plan.settings
    source = ShardSource(
        plan.shards,
        plan.reading,
        cache_dir=plan.cache_dir,
        threads=plan.threads,
        classes=plan.labels,
        most_labels=plan.most_labels,
        fingerprints=plan.seen,
        most_columns=most_columns,
        allow_duplicate=settings.allow_duplicate,
        allow_empty=True,
        on_bad_shard=settings.on_bad_shard,
        keep_buffers=False,
    )
    part = Part(source, settings, plan.weights, plan.path)
    if scans is not None:
        part.restore(scans)
    return part


class PartsTraining(NamedTuple):
    """A training on the parts of its settings, where ``open_parts`` has them, None = in this
    process. They keep flat copies of their shards in ``cache``, their states in ``directory``."""

    training: Training[ShardSource]
    cache: str
    directory: str
    open_parts: OpenParts | None

    @property
    def threads(self) -> int:
        """Threads of this process."""
        return self.training.machine.thread_count

    def opened(self, plans: Sequence[PartPlan], scans: Scans) -> AbstractContextManager[Parts]:
        """Open the parts, new or restored after so many scans of each problem."""
        return (self.open_parts or partial(open_here, threads=self.threads))(plans, scans)


class Planned(NamedTuple):
    """Planned parts; the learners that train on them, as they were after their last readings, none
    where they are new; and where a run is resumed."""

    plans: list[PartPlan]
    learners: list[Learner]
    resumed: Resumed | None = None


@contextmanager
def open_here(plans: Sequence[PartPlan], scans: Scans, threads: int = 1) -> Iterator[Parts]:
    """Open parts in this process, mapped over by so many threads."""
    parts = [open_part(plan, scans) for plan in plans]
    try:
        local = LocalParts(parts, threads)
        local.scans = scans
        yield local
    finally:
        for part in parts:
            part.close()


def plan_new(job: PartsTraining, state: State | None = None) -> Planned:
    """Plan the training of new learners, or of those of ``state``, of a run to resume."""
    source, settings = job.training.source, job.training.settings
    check_settings(settings)
    learners: list[Learner] = []
    resumed = None
    if state is not None:
        learners = restore_finished(state, settings, source.labels, None)
        for learner in learners:
            densify(learner)
        reopened = [learner for learner in learners if reopen(learner)]
        resumed = Resumed(state.reading, state.chunks, (), reopened)
    labels = source.labels if learners else None  # whose order is that of the learners
    return Planned(_plans_of(job, labels, weighed=bool(learners)), learners, resumed)


def train_on(job: PartsTraining, planned: Planned) -> tuple[list[Learner], dict[str, Any]]:
    """Train on planned parts; return the finished learners with the counts of all rows, in the
    order of ``source.labels``, and what the report has of parts."""
    training, source = job.training, job.training.source
    plans, learners, resumed = planned
    readings = [learner.progress.reading for learner in learners]
    with job.opened(plans, readings or None) as parts:
        parts.tell = lambda step, rounds: training.listen(
            RoundDone(step, rounds, parts.gap_estimate)
        )
        data = ManyParts(
            parts,
            learners,
            training.settings,
            source.labels,
            training.listen,
            training.checkpointer,
            meet=lambda: source.meet(parts(Part.describe, _facts)),
            ended=lambda: source.take(parts(Part.describe, _facts)),
        )
        train(data, resumed)
    take_saved_counts(job.directory, training.settings, learners)
    return learners, {"parts": len(plans), **_report(parts)}


def _weighed(source: ShardSource) -> tuple[tuple[float, dict[Label, float]], int, int]:
    """Return what the labels weigh, and how many nonzeros and bytes were read for that."""
    return weigh_labels(source), source.nonzeros_read, source.bytes_read


def _facts(source: ShardSource) -> SourceFacts:
    """Return what a source knows, which it reads for that if it has not been read."""
    if source.info is None:
        read_to_end(source)
    return facts_of(source)


def take_saved_counts(
    directory: str | os.PathLike[str], settings: Settings, learners: Sequence[Learner]
) -> None:
    """Give learners the counts that the parts have saved in a directory after their last scans."""
    paths = [_state_path(directory, number) for number in range(settings.parts or 0)]
    for number, learner in enumerate(learners):
        which = number if settings.one_vs_rest else None
        files = [saved_at(path, which, learner.progress.reading) for path in paths]
        leave_counts(learner, SavedCounts(files))


def _state_path(directory: str | os.PathLike[str], number: int) -> str:
    return os.path.join(os.path.abspath(directory), f"part-{number:04d}")


def plan_changed(
    job: PartsTraining, learners: list[Learner], counted: Sequence[Pieces], rows: Sequence[int]
) -> Planned:
    """Plan to train learners of a changed run on, from their weights and the counts ``counted`` of
    each. ``rows`` : how many the source's first shards have, all that have a count."""
    source, settings = job.training.source, job.training.settings
    check_settings(settings)
    os.makedirs(job.directory, exist_ok=True)
    plans = _plans_of(job, source.labels)
    rows_left = iter(rows)
    sizes = [sum(islice(rows_left, len(plan.shards))) for plan in plans]
    for number, (learner, pieces) in enumerate(zip(learners, counted, strict=True)):
        progress, positive = learner.progress, learner.targets.positive
        learner.best.propose(learner.best.augmented)
        choose_mode(learner, "scan")
        leave_counts(learner, Counts())
        hold_elsewhere(learner, 0)
        which = number if settings.one_vs_rest else None
        weights = plans[0].weights if which is None else against_rest(plans[0].weights, positive)
        for plan, counts in zip(plans, split(pieces, sizes), strict=True):
            path = saved_at(plan.path, which, progress.reading)
            label = next(iter(source.labels), None) if positive is None else positive
            center = learner.extent.center or 0.0
            write_first_state(path, counts, progress.b, label, weights, center)
    return Planned(plans, learners)


def _report(parts: Parts) -> dict[str, Any]:
    steps = {
        name: {"rounds": rounds, "seconds": parts.seconds[name]}
        for name, rounds in parts.rounds.items()
    }
    workers = {
        home: {"bytes_to": parts.bytes_to[home], "bytes_from": parts.bytes_from[home]}
        for home in sorted(parts.bytes_to)
    }
    sent = parts.bytes_to.total() + parts.bytes_from.total()
    return {
        "rounds": parts.rounds.total(),
        "bytes_sent": sent,
        "steps": steps,
        "workers": workers,
    }


def _plans_of(
    job: PartsTraining, labels: Sequence[Label] | None, *, weighed: bool = False
) -> list[PartPlan]:
    """Return the plan of every part; a reading of its own finds the balanced weights of the labels
    in all parts, if the settings want them and they are not ``weighed``."""
    source, settings, threads = job.training.source, job.training.settings, job.threads
    assert settings.parts is not None
    part_settings = settings.but(
        active_set=settings.active_set_bytes // settings.parts, tol=max(settings.tol, START_GAP)
    )
    weights: ClassWeights | None = label_weights(settings) or None
    reading = source.resolve()
    plans = [
        PartPlan(
            shards,
            part_settings,
            reading,
            None if labels is None else tuple(labels),
            weights,
            os.path.abspath(job.cache),
            _state_path(job.directory, number),
            max(1, threads // settings.parts),
            source.most_labels,
            source.seen,
        )
        for number, shards in enumerate(deal(source.shards, settings.parts))
    ]
    if settings.class_weight != "balanced" or weighed:
        return plans
    with job.opened(plans, None) as parts:
        facts = parts(Part.describe, _weighed)
    for _, nonzeros, size in facts:
        source.nonzeros_read += nonzeros
        source.bytes_read += size
    weights = balanced(weighed_labels for weighed_labels, _, _ in facts)
    return [plan._replace(weights=weights) for plan in plans]
