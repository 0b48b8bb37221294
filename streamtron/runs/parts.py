"""The parts of the data: how many, which shards each has, and a fit on them."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import accumulate, islice, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamtron.core.config import Settings
from streamtron.core.errors import MachineError, SettingsError
from streamtron.core.events import Listener, WorkDone
from streamtron.core.executor import Executor, LocalParts, Parts, PartsLost, Scans, Work
from streamtron.core.rows import Facts, Label
from streamtron.core.threads import open_threads
from streamtron.data import Dataset, Expected, Preparing, ReaderConfig, ShardFile, ShardRecord
from streamtron.runs.learners import Training, make_learners, train_in_time
from streamtron.runs.memory import DataSize, fits_in_memory, size_of
from streamtron.solver.alphas import Alphas, Pieces, SavedAlphas, saved_at, split, write_state
from streamtron.solver.checkpoint import Resumed, State
from streamtron.solver.learner import Learner, choose_visits, hold_elsewhere, leave_alphas
from streamtron.solver.many_parts import ManyParts
from streamtron.solver.part import START_GAP, Part
from streamtron.solver.stopping import reopen

MOST_PARTS = 64
"""Parts at most where workers decide on their number: each sends a vector in every round."""


MOST_LOSSES = 4
"""So many times in a row, without a reading between, parts may be lost: then it is they that end
their workers, most likely by their memory."""


class PartPlan(NamedTuple):
    """What a part is made of: its shards, how they are read, where their prepared files are, and
    where its state is saved, see ``Part``; and what is known of all rows, see ``Dataset``.

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
"""Opens parts, where they are to be: new ones, or restored after so many scans of each problem. One
that has an ``executor`` wants the shards to be prepared by that, see ``executor_of``."""


def executor_of(open_parts: OpenParts | None) -> Executor | None:
    """Return what prepares the shards where the parts will be; None = threads of this process."""
    return getattr(open_parts, "executor", None)


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
        (bool(settings.paper), "stage", "visits all rows one after the other"),
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
        border, left = ends[-1] * number / parts, len(shards) - (parts - number)
        choices = range(borders[-1] + 1, left + 1)
        borders.append(min(choices, key=lambda k: abs(ends[k - 1] - border)))
    return [tuple(shards[a:z]) for a, z in pairwise([*borders, len(shards)])]


def open_part(plan: PartPlan, scans: Scans) -> Part:
    """Open a part, new or restored after so many scans of each problem."""
    expected = Expected(
        classes=plan.labels,
        fingerprints=dict(plan.fingerprints),
        allow_duplicate=True,
        allow_empty=True,
    )
    how = Preparing(plan.cache_dir, plan.threads)
    data = Dataset.prepare(plan.shards, plan.reading, how, expected, plan.numbers)
    data.facts = plan.facts
    if fits_in_memory(plan.settings, size_of(data)):
        with open_threads(plan.threads):
            data.load()
    part = Part(data, make_learners(data, plan.settings), plan.path)
    if scans is not None:
        part.restore(scans)
    return part


class PartsTraining(NamedTuple):
    """A training on the parts of its settings, where ``open_parts`` has them, None = in this
    process. They keep their states in ``directory``."""

    training: Training
    data: Dataset
    directory: str
    open_parts: OpenParts | None

    def opened(self, plans: Sequence[PartPlan], scans: Scans) -> AbstractContextManager[Parts]:
        """Open the parts, new or restored after so many scans of each problem."""
        threads = self.training.machine.thread_count
        return (self.open_parts or partial(open_here, threads=threads))(plans, scans)


@contextmanager
def open_here(plans: Sequence[PartPlan], scans: Scans, threads: int = 1) -> Iterator[Parts]:
    """Open parts in this process, mapped over by so many threads."""
    parts = [open_part(plan, scans) for plan in plans]
    try:
        yield LocalParts(parts, threads)
    finally:
        for part in parts:
            part.close()


Trained = tuple[list[Learner], dict[str, Any]]
"""The finished learners, with the α of all rows in the order of the data's labels; and what the
report has of parts."""


def train_new(job: PartsTraining, state: State | None = None) -> Trained:
    """Train new learners, or those of ``state``, of a run to resume."""
    learners = make_learners(job.data, job.training.settings)
    if state is None:
        return _train(job, learners)
    new = iter(learners)
    learners = state.learners(lambda _: next(new))
    resumed = Resumed(state.reading, [learner for learner in learners if reopen(learner)])
    return _train(job, learners, _readings_of(learners), resumed)


def _train(
    job: PartsTraining,
    learners: list[Learner],
    scans: Scans = None,
    resumed: Resumed | None = None,
) -> Trained:
    """Train learners that are as they were after the readings ``scans``, None = new. If parts are
    lost, training begins again with the last state."""
    training, data, plans, work, losses = job.training, job.data, _plans_of(job), Work(), 0
    start = learners, scans, resumed
    while True:
        learners, scans, resumed = copy.deepcopy(start) if job.open_parts else start
        trainer = None
        try:
            with job.opened(plans, scans) as parts:
                parts.work, parts.tell = work, partial(_tell_round, training.listen, parts)
                trainer = ManyParts(parts, learners, training.listen, training.checkpointer)
                train_in_time(trainer, resumed)
            break
        except PartsLost as error:
            losses += 1
            if trainer is not None and trainer.kept:
                start, losses = (trainer.kept, _readings_of(trainer.kept), None), 1
            if losses > MOST_LOSSES:
                raise MachineError(
                    f"workers were lost {losses} times in a row, likely by their memory. Give "
                    "them more: fewer --workers, a larger --memory; or a smaller --active-set."
                ) from error
    take_saved_alphas(job.directory, training.settings, learners)
    size, readings = trainer.parts_size, max(learner.progress.readings for learner in learners)
    # rows that memory holds are read once, which is a part of preparing them
    read = readings * (size.nonzeros - size.nonzeros_held)
    read += max(0, size.nonzeros_held - data.nonzeros_read)
    data.nonzeros_read += read
    data.bytes_read += data.bytes * read // max(data.nonzeros, 1)
    return learners, {"parts": len(plans), **work.report()}


def _tell_round(listen: Listener, parts: Parts, step: str, rounds: int) -> None:
    done = f"round {rounds}: {step.replace('_', ' ')}"
    listen(WorkDone(done, estimated_gap=parts.gap_estimate))


def _records_of(data: Dataset, dealt: Iterable[Sequence[ShardFile]]) -> Iterator[list[ShardRecord]]:
    """Yield the records of the shards of each part."""
    records = iter(data.manifest.shards)
    return ([*islice(records, len(shards))] for shards in dealt)


def _readings_of(learners: Sequence[Learner]) -> list[int]:
    return [learner.progress.reading for learner in learners]


def take_saved_alphas(
    directory: str | os.PathLike[str], settings: Settings, learners: Sequence[Learner]
) -> None:
    """Give learners the α that the parts have saved in a directory after their last scans."""
    paths = [_state_path(directory, number) for number in range(settings.parts or 0)]
    for number, learner in enumerate(learners):
        which = number if settings.one_vs_rest else None
        files = [saved_at(path, which, learner.progress.reading) for path in paths]
        leave_alphas(learner, SavedAlphas(files))


def _state_path(directory: str | os.PathLike[str], number: int) -> str:
    return os.path.join(os.path.abspath(directory), f"part-{number:04d}")


def train_changed(
    job: PartsTraining, learners: list[Learner], staying: Sequence[Pieces]
) -> Trained:
    """Train learners of a changed run on, from their weights and the α ``staying`` of each, by the
    numbers of the data's rows."""
    os.makedirs(job.directory, exist_ok=True)
    plans, settings = _plans_of(job), job.training.settings
    dealt = _records_of(job.data, (plan.shards for plan in plans))
    sizes = [sum(shard.rows for shard in records) for records in dealt]
    for number, (learner, pieces) in enumerate(zip(learners, staying, strict=True)):
        learner.best.propose(learner.best.augmented)
        choose_visits(learner, False)
        leave_alphas(learner, Alphas())
        hold_elsewhere(learner, 0)
        which = number if settings.one_vs_rest else None
        new = {"shuffles": 0, "center": learner.targets.center, "rho": learner.augmentation}
        for plan, rows, alphas in zip(plans, sizes, split(pieces, sizes), strict=True):
            path = saved_at(plan.path, which, learner.progress.reading)
            write_state(path, alphas, rows=rows, **new)
    return _train(job, learners, _readings_of(learners))


def _plans_of(job: PartsTraining) -> list[PartPlan]:
    """Return the plan of every part; refuse settings with which only one part can train."""
    data, settings = job.data, job.training.settings
    assert settings.parts is not None
    check_settings(settings)
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
            _state_path(job.directory, number),
            max(1, job.training.machine.thread_count // settings.parts),
            tuple(data.labels),
            data.facts,
            data.numbers,
            data.seen,
        )
        for number, shards in enumerate(dealt)
    ]
