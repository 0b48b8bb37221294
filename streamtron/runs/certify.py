"""Certify: bound how far an existing model is from the optimum, with a witness or without.

Rows are scanned at fixed weights as ``fit`` scans them, in the order of the shards. These are dealt
to parts, which are summed each by itself, and the sums are added in their order: they are the same
to the last bit wherever the rows are, in memory, on disk or with workers, which scan a part each.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, islice
from typing import Any, NamedTuple

import numpy as np

from streamtron.core import theory
from streamtron.core.certificate import Certificate, zero_columns
from streamtron.core.config import PROBLEM, Machine, Settings, check_names, problem_of
from streamtron.core.errors import DataError, SettingsError
from streamtron.core.events import Event, Listener, ReadingDone, ignore
from streamtron.core.executor import Executor, serial
from streamtron.core.files import scratch_directory
from streamtron.core.rows import Chunk, Label
from streamtron.core.text import number
from streamtron.core.threads import open_threads, opened_threads
from streamtron.data import Dataset, Expected, ShardFile, deletions, excluding, find_shards
from streamtron.model.display import certificate_facts, facts_text, joint_certificate
from streamtron.model.linear_model import Direction, LinearModel
from streamtron.runs import witness as witness_file
from streamtron.runs.finished_run import check_shards_exist, run_of
from streamtron.runs.inputs import (
    Paths,
    as_model,
    as_paths,
    cache_directory,
    open_dataset,
    problem_settings,
    reading_from_model,
    with_labels_of,
)
from streamtron.runs.learners import TimeIsUp, against_rest, class_weights, train_in_time
from streamtron.runs.memory import fits_in_memory, plan_memory, size_of
from streamtron.runs.parts import PartPlan, deal, open_data
from streamtron.runs.report import deletions_of
from streamtron.runs.witness import Witness, export
from streamtron.solver.alphas import Alphas, split
from streamtron.solver.learner import Learner, Memory, end_stage, enter, only_scanning, set_weights
from streamtron.solver.part import Part, ReadingPlan, ReadingSums
from streamtron.solver.reading import problem_of as problem_of_learner
from streamtron.solver.reading import start_from_slacks
from streamtron.solver.subproblem import Solve
from streamtron.solver.train import OnePart
from streamtron.solver.working_set import NEAR, hold_all

SEARCH_TOLERANCE = 1e-4
"""Gap at which the search for a larger dual objective ends early."""

PARTS = 16
"""Parts at most: to add the sums of one costs some passes over the columns."""


@dataclass(frozen=True, slots=True, repr=False)
class Proof:
    """The bounds proven for weights on these rows; of many classes, of that with the widest gap.

    Parameters
    ----------
    certificate : primal objective of the weights, dual objective of the data.
    decision_radius : every decision value of a row x is within decision_radius · ‖(x, ρ)‖ of the
        optimum's.
    distance : ‖w − v‖ / ‖v‖ of the weights from v = Σ α_k l_k x_k, made of the witness's dual
        variables; both are the optimum where the gap is 0. None without a witness.
    rows_excluded : rows of the shards that the witness leaves out; nothing is proven of them.
    problem : loss, penalty and price for which that is proven.
    classes : of many classes (label, proof) of each against the rest, in order.
    """

    certificate: Certificate
    readings: float
    decision_radius: float
    distance: float | None = None
    rows_excluded: int = 0
    problem: Mapping[str, Any] = field(default_factory=dict)
    classes: tuple[tuple[Label, Proof], ...] = ()

    def __repr__(self) -> str:
        proof = self.to_dict()
        facts = certificate_facts(proof["certificate"])
        if self.classes:
            facts.append(("classes", number(len(self.classes))))
        return facts_text("Proof", [*facts, ("readings", f"{self.readings:.3g}")])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; of many classes the joint certificate and ``learners``, a list of
        the proofs with their ``label``."""
        certificate = self.certificate.to_dict()
        known: dict[str, Any] = {"problem": dict(self.problem), "readings": self.readings}
        if self.classes:
            learners = [{"label": label, **proof.to_dict()} for label, proof in self.classes]
            certificate = joint_certificate([learner["certificate"] for learner in learners])
            del certificate["learners"]
            known["learners"] = learners
        else:
            known |= {"decision_radius": self.decision_radius, "distance": self.distance}
        certificate["rows_excluded"] = self.rows_excluded
        return {"certificate": certificate, **known}


def certify(
    model: LinearModel | str | os.PathLike[str],
    shards: Paths | None = None,
    *,
    witness: str | os.PathLike[str] | None = None,
    run: str | os.PathLike[str] | None = None,
    accept_exclusions: bool = False,
    settings: Settings | None = None,
    readings: int = 4,
    machine: Machine | None = None,
    executor: Executor = serial,
    listen: Listener = ignore,
    **names: Any,
) -> Proof:
    """Bound how far a model is from the optimum on these rows.

    The shards are prepared as by ``fit``, anew: what a run has prepared is not trusted. One scan
    follows, with the dual variables of a witness, or dual variables made of the slacks of the
    weights. Without a witness at most ``readings`` more follow, which bring the dual objective
    nearer to the optimum unless the gap is below 1e-4 already; the rows with a slack are trained on
    for it. Where all rows fit in memory, in the active set, none of that reads them again. The
    weights are certified as they are, at their scale. Many classes share the active set, and
    the readings where their vectors fit in memory together; else they are certified in groups.

    Parameters
    ----------
    model : a linear model or its file; its reader's contract says how the shards are read.
    shards : None = those of the model's run, with its witness.
    witness : the dual variables of these rows.
    run : directory of the model's run, if shards are not given; None = ``MODEL.run``.
    accept_exclusions : accept a witness that leaves out rows of the shards.
    settings : the problem, or C or delta, loss, rho and class_weight by name; else as in the model.
    readings : at most, after the first, without a witness.
    executor : where shards are scanned whose rows are not in memory, and prepared, if a cache
        directory is named; this process makes the readings that train, and one more with which they
        begin.
    listen : called with events, as by ``fit``.

    Raises
    ------
    DataError : other labels than the model's; a witness of other rows; damaged files.
    SettingsError : a bias where rho is 0; no C, or no rho, for a model that does not say it.
    """
    check_names(names, PROBLEM)
    if shards is None:
        model, store = run_of(model, run)
        check_shards_exist(records := store.manifest.shards)
        names |= {"settings": settings, "readings": readings, "machine": machine}
        names |= {"executor": executor, "listen": listen}
        paths = [shard.path for shard in records]
        with scratch_directory("streamtron-") as scratch:
            if witness is None:
                accept_exclusions, witness = True, os.path.join(scratch, "witness")
                export(store, witness)
            names |= {"witness": witness, "accept_exclusions": accept_exclusions}
            return certify(model, paths, **names)
    model = with_labels_of(as_model(model), shards)
    machine, problem = machine or Machine(), settings or problem_settings(model, names)
    if problem.regression != model.regression or (problem.softmax and model.kind != "multiclass"):
        raise SettingsError(f"a {model.kind} model has no loss {problem.loss}: leave it out.")
    number = 1 if problem.softmax else np.size(model.bias)  # of problems
    known = None if witness is None else _load(witness, accept_exclusions, number)
    if known is None and problem.hard:
        raise SettingsError(
            "a hard margin (delta 0) is proven by its dual variables: give its run, or --witness."
        )
    files, reading = find_shards(as_paths(shards)), reading_from_model(model)
    if known is not None and known.deletions:
        files = excluding(files, known.deletions, reading)
    expected = Expected(2, model.classes or None, allow_duplicate=problem.allow_duplicate)
    exact = problem.but(
        stage="1" if problem.hard else "ascent",
        b=None,
        tol=SEARCH_TOLERANCE,
        faithful=False,
        parts=None,
    )
    named = machine.cache_dir is not None and executor is not serial
    with (
        cache_directory(None, machine) as cache,
        open_threads(machine.thread_count),
        open_dataset(
            files,
            reading,
            machine,
            cache,
            expected=expected,
            listen=listen,
            executor=executor if named else None,
        ) as data,
    ):
        order = None if known is None else known.order_of(data.manifest.shards)
        exact, at_once = _planned(exact, machine, data, model, known)
        certified = list[tuple[Certificate, float | None]]()
        outputs = len(model.classes) if problem.softmax else 1
        singles = ([direction] for direction in model.directions())
        problems = enumerate([[*model.directions()]] if problem.softmax else singles)
        while group := [*islice(problems, at_once)]:
            learners = []
            for number, directions in group:
                alphas = None
                if known is not None and order is not None:
                    alphas = known.alphas(number, order, outputs)
                learners.append(_learner(data, model, exact, directions, alphas))
            searches = readings if known is None else None
            certifier = _Certifier(data, learners, exact, listen, executor, searches)
            train_in_time(certifier, None)
            for learner in learners:
                apart = None
                if known is not None and (scan := learner.frozen) is not None:
                    apart = scan.scan_sums.distance(scan.w)
                certified.append((certifier.proofs[learner], apart))
            del certifier
            learners.clear()  # before the next ones are made
    proofs = [_proof(certificate, apart, problem, data) for certificate, apart in certified]
    if isinstance(model.bias, float) or problem.softmax:
        return proofs[0]
    widest = max(proofs, key=lambda proof: proof.certificate.relative_duality_gap)
    return replace(widest, classes=tuple(zip(model.classes, proofs, strict=True)))


def _planned(
    exact: Settings, machine: Machine, data: Dataset, model: LinearModel, known: Witness | None
) -> tuple[Settings, int]:
    """Return the settings of each learner, with its active set, and how many fit in memory
    together; read all rows into memory if they fit there, too."""
    size, directions = size_of(data, exact), 1 if exact.softmax else np.size(model.bias)
    if not fits_in_memory(exact, size):
        exact = exact.but(active_set=exact.active_set_bytes // directions)
    sizes = machine, size, directions, model.sparse_weights.nnz
    plan = plan_memory(exact, *sizes)
    if plan.total > plan.limit:  # it was fitted with more memory than there is
        plan = plan_memory(exact := exact.but(active_set=None), *sizes)
        if known is None:  # else rows are only scanned, on disk
            plan.check(exact)
    exact = exact.but(active_set=plan.active_set)
    if plan.total <= plan.limit and fits_in_memory(exact, size):
        data.load()
    return exact, plan.at_once


def _learner(
    data: Dataset,
    model: LinearModel,
    exact: Settings,
    directions: Sequence[Direction],
    alphas: Alphas | None,
) -> Learner:
    """Return a learner with the weights of a direction, of softmax of all, those of columns that do
    not occur behind the others, and with its α."""
    rho, direction = exact.augmentation, directions[0]
    strange = next((part.bias for part in directions if part.bias != 0.0), None)
    if rho == 0.0 and strange is not None:
        raise SettingsError(
            f"the model has the bias {strange:g}, but rho is 0. Give --rho as it was "
            "trained with (LIBLINEAR's -B)."
        )
    columns = np.unique(np.concatenate([part.nonzero.indices for part in directions]))
    ranks = data.places_of(columns.astype(np.int64) + model.index_base)
    behind = np.flatnonzero(ranks < 0)
    ranks[behind] = data.columns + np.arange(len(behind))
    v = np.zeros((len(directions), data.columns + len(behind) + 1))
    of_class, label = class_weights(exact, data), direction.positive
    if exact.softmax:
        by_label = {part.positive: part for part in directions}
        directions, label = [by_label[label] for label in data.labels], None
    else:
        of_class = against_rest(of_class, None if model.kind == "two classes" else label)
    learner = Learner(exact, v.size - 1, data.facts, data.labels, of_class, label)
    for w, part in zip(v, directions, strict=True):
        w[ranks[np.searchsorted(columns, part.nonzero.indices)]] = part.nonzero.data
        w[-1] = (part.bias - learner.targets.center) / rho if rho > 0.0 else 0.0
    set_weights(learner, v.T.ravel()[:-1], float(v[-1, -1]), alphas)
    return learner


def _proof(
    certificate: Certificate, distance: float | None, problem: Settings, data: Dataset
) -> Proof:
    radius = theory.decision_radius(certificate.primal, certificate.dual, problem.ratio)
    radius = math.inf if problem.free else radius  # nothing bounds the bias
    excluded = deletions.total(deletions_of(data.shards))
    solved = problem_of(problem.to_dict())
    return Proof(certificate, data.readings, radius, distance, excluded, solved)


def _load(path: str | os.PathLike[str], accepted: bool, number: int) -> Witness:
    """Load a witness of the model's learners, so many; a DataError if it leaves out rows, unless
    that is accepted."""
    known = witness_file.load(path)
    if len(known.stored) != number:
        raise DataError(
            f"{known.path}: the witness of {len(known.stored)} learners, and the model has "
            f"{number}. Give the witness of this model's own run."
        )
    if known.deletions and not accepted:
        raise DataError(
            f"{path}: this witness leaves {deletions.total(known.deletions):,} rows of the shards "
            "out, and nothing would be proven of them. If they are known to have been forgotten, "
            "accept that by --accept-exclusions; or certify the run itself."
        )
    return known


class _Certifier(OnePart):
    """Certifies the learners' weights by one scan, which is reading 0: with the dual of their α.

    ``searches`` : there are no α. The first are made of the slopes of the loss at the weights: of a
    smooth loss they prove optimal weights, of the hinge little. Where they leave a gap, the
    learners train from there in at most ``searches`` readings more, for a larger dual objective.
    ``executor`` : scans shards whose rows are not in memory. ``proofs`` : of each learner.
    """

    _data: Dataset

    def __init__(
        self,
        data: Dataset,
        learners: Sequence[Learner],
        settings: Settings,
        listen: Listener,
        executor: Executor,
        searches: int | None = None,
    ) -> None:
        super().__init__(data, learners, settings, self._tell, opened_threads())
        self._executor, self._searches, self._told = executor, searches, listen
        self._dealt = deal(data.shards, min(len(data.shards), PARTS))
        records = iter(data.manifest.shards)
        self._rows = [sum(k.rows for k in islice(records, len(part))) for part in self._dealt]
        self._borders = {*accumulate(self._rows)}
        self.proofs = dict[Learner, Certificate]()
        self._learner_of = {problem_of_learner(learner): learner for learner in learners}

    def begin(self, learners: Sequence[Learner]) -> None:
        """Hold no rows yet. The scan finds those that matter, if they may be trained on and are not
        in memory."""
        if self._searches is None or self._data.held is not None:
            for learner in learners:
                enter(learner, Memory.ALL_ROWS)

    def begin_reading(self, learner: Learner, reading: int) -> None:
        """Prepare a reading; the scan makes the α where there are none."""
        super().begin_reading(learner, reading)
        frozen = learner.frozen
        if reading == 0 and self._searches is not None and frozen is not None:
            frozen.from_slacks = True
            # of the hinge rows without a slack matter, too: at the kink
            frozen.threshold = NEAR if learner.loss.zone else -math.inf

    def read(self, reading: int, learners: Sequence[Learner]) -> int:
        """Scan all rows, which learners then hold as far as they matter and have room; later have
        learners take all rows. A DataError if no row has a weight above 0."""
        if reading:
            return super().read(reading, learners)
        data, left = self._data, learners
        trains = self._searches and learners[0].loss.zone  # a scan alone proves little of the hinge
        if data.held is None and self._executor is not serial and not trains:
            self._prove(learners, self._scan_on_workers)
            left = [*filter(self._goes_on, learners)]
        if left:
            self._prove(left, partial(super().read, reading))
        hold_all([*filter(self._goes_on, learners)], data)
        return data.rows

    def _prove(self, learners: Sequence[Learner], scan: Callable[[Sequence[Learner]], Any]) -> None:
        """Scan all rows, and take the proofs of the learners."""
        scans = [learner.frozen for learner in learners if learner.frozen]
        self._sums = [frozen.scan_sums.emptied() for frozen in scans]
        for frozen in scans:
            frozen.scan_sums = frozen.scan_sums.emptied()
        scan(learners)
        for learner, frozen, sums in zip(learners, scans, self._sums, strict=True):
            frozen.scan_sums = sums
            self.proofs[learner] = _certificate(learner, self._data.rows)

    def _chunks(self, reading: int, learners: Sequence[Learner]) -> Generator[Chunk, None, None]:
        yield from super()._chunks(reading, learners) if reading else self._data.chunks()

    def _take(self, chunk: Chunk, learners: Sequence[Learner]) -> None:
        super()._take(chunk, learners)
        if self.reading == 0 and chunk.ranges[-1][1] in self._borders:
            for learner, sums in zip(learners, self._sums, strict=True):
                if (frozen := learner.frozen) is not None:
                    sums.add(frozen.scan_sums)
                    frozen.scan_sums = sums.emptied()

    def _scan_on_workers(self, learners: Sequence[Learner]) -> None:
        """Have the executor scan all parts, each with the α of its rows alone, and add what it
        finds in their order."""
        data, rows = self._data, 0
        slacks = self._searches is not None
        readings = [
            ReadingPlan(k, Memory.ALL_ROWS, frozen.augmented, learner.augmentation, None, slacks)
            for k, learner in enumerate(learners)
            if (frozen := learner.frozen) is not None
        ]
        bare = [only_scanning(learner, Alphas()) for learner in learners]
        pieces = [split(k.alphas.nonzero(), self._rows, k.outputs) for k in learners]
        tasks = (ScanTask(shards, k) for shards, *k in zip(self._dealt, *pieces, strict=True))
        scanned = self._executor(scan_part, tasks, bare, readings, self._plan())
        for part_rows, part in zip(self._rows, scanned, strict=True):
            for sums, reading in zip(self._sums, part, strict=True):
                sums.add(*reading.sums)
            rows += part_rows
            self.tell(done=data.nonzeros * rows // data.rows, rows=rows)
        data.nonzeros_read += data.nonzeros

    def _plan(self) -> PartPlan:
        """Return how workers open a part, but for its shards."""
        data, cache = self._data, os.path.abspath(self._data.directory)
        known = tuple(data.labels), data.facts, data.numbers, data.manifest.fingerprints
        return PartPlan((), self.settings, data.reading, cache, "", 1, *known)

    def _goes_on(self, learner: Learner) -> bool:
        """Whether the scan leaves a gap, in which a search is worthwhile."""
        proof = self.proofs[learner]
        return bool(self._searches) and proof.relative_duality_gap > SEARCH_TOLERANCE

    def finish_reading(self, learner: Learner) -> Solve:
        """End with the scan; or solve the rows in memory, in place of the α that it has made."""
        if self.reading:
            yield from super().finish_reading(learner)
        elif self._goes_on(learner):
            start_from_slacks(learner)
        else:
            end_stage(learner, "certified", "the weights are certified")

    def end_reading(self, learners: Sequence[Learner]) -> None:
        """Keep the largest dual objectives."""
        for learner in learners:
            bound = learner.certificate
            if bound is not None and bound.dual:
                self.proofs[learner] = _with_bound(self.proofs[learner], bound)

    def save(self) -> None:
        """End the search after its last reading; nothing is saved."""
        if self.reading > (self._searches or 0):
            raise TimeIsUp

    def _tell(self, event: Event) -> None:
        """Tell a reading with the proof of the weights that were scanned."""
        if isinstance(event, ReadingDone):
            event = replace(event, certificate=self.proofs[self._learner_of[event.problem]])
        self._told(event)


def _certificate(learner: Learner, rows: int) -> Certificate:
    assert learner.frozen is not None
    proof = learner.frozen.certificate()
    if not proof.rows_scanned:
        raise DataError(
            f"none of the {rows:,} rows has a weight above 0, and there is nothing to certify. "
            "Check the weights."
        )
    zeros = zero_columns(learner.frozen.scan_sums, proof.primal, proof.dual)
    return replace(proof, zero_columns=int(np.count_nonzero(zeros)))


def _with_bound(proof: Certificate, bound: Certificate) -> Certificate:
    """Return a certificate with the larger D of the two and its rounding, and with as many columns
    as either has proven to weigh 0."""
    proof = replace(proof, zero_columns=max(proof.zero_columns, bound.zero_columns))
    if bound.dual <= proof.dual:
        return proof
    return replace(proof, dual=bound.dual, rounding_bound=bound.rounding_bound)


class ScanTask(NamedTuple):
    """The shards of a part to scan; and of each learner the α of their rows, numbered from 0."""

    shards: tuple[ShardFile, ...]
    alphas: Sequence[Alphas]

    @property
    def name(self) -> str:
        """Label on the dashboard."""
        return self.shards[0].name


def scan_part(
    task: ScanTask, learners: Sequence[Learner], readings: Sequence[ReadingPlan], plan: PartPlan
) -> Iterator[tuple[ReadingSums, ...]]:
    """Scan the rows of a part; its shards are prepared anew by a worker that does not see the
    directory of the prepared files."""
    with ExitStack() as stack:
        if not os.path.isdir(plan.cache_dir):
            scratch = stack.enter_context(scratch_directory("streamtron-"))
            plan = plan._replace(cache_dir=scratch)
        data = stack.enter_context(open_data(plan._replace(shards=task.shards)))
        yield Part(data, [*map(only_scanning, learners, task.alphas)]).scan(0, readings)
