"""A learner finds the same whatever is trained with it: other learners, threads, or when its class
came."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array

from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.core.rows import Chunk, Label
from streamtron.solver import ascent, batched, one_part, passes
from streamtron.solver import train as training
from streamtron.solver.batched import PendingSolve, open_threads
from streamtron.solver.checkpoint import State
from streamtron.solver.learner import Learner
from streamtron.solver.one_part import train_here as train
from streamtron.solver.one_vs_rest import CandidateClasses, Classes
from streamtron.solver.reading import Solve, begin_reading, finish_reading
from streamtron.solver.reading import take_and_solve as take_chunk
from streamtron.solver.row_store import Pool
from streamtron.solver.scan import Frozen
from tests.helpers.examples import slow_but
from tests.helpers.learners import (
    COLUMNS,
    ROWS,
    GrowingSource,
    bits,
    classes_that_come_late,
    plans,
    source_of,
)
from tests.helpers.sources import ListSource, csr, random_rows


@pytest.fixture(autouse=True)
def visits_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where columns are many: Newton's method only where visits crawl."""
    monkeypatch.setattr(ascent, "solved_directly", lambda *_: False)


def source_of_many_rows() -> ListSource:
    """More rows than a kernel call visits, and so many columns that visits come first."""
    rows, two = random_rows(4, batched.VISITS + 900, 400, density=0.02)
    return ListSource(csr(rows), two, block_rows=1000)


@plans
@pytest.mark.parametrize("threads", slow_but([1, 4], 4))
def test_candidates_trained_together_learn_what_they_learn_alone(
    plan: dict[str, object], threads: int
) -> None:
    candidates = [
        Settings.from_dict({"C": C, "rho": rho, **plan}) for C in (0.1, 5) for rho in (0, 1)
    ]
    assert together(candidates, threads=threads) == alone(candidates)


MANY = [
    Settings(C=C, rho=rho, tol=tol)
    for C in (0.05, 0.3, 1.0, 8.0) for rho in (0, 1) for tol in (0.02, 1e-4)
]  # fmt: skip
"""More than lie side by side, done after different numbers of mini-epochs."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often kernels were called."""
    found: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., None]:
        kernel = getattr(kernels, name)

        def call(*arguments: Any) -> None:
            found[name] += 1
            kernel(*arguments)

        return call

    for name in ("visit", "visit_ascent_batch", "dot_batch"):
        monkeypatch.setattr(kernels, name, counted(name))
    return found


def alone(
    candidates: Sequence[Settings], make: Callable[[], ListSource] = source_of
) -> list[tuple[object, ...]]:
    found = []
    for settings in candidates:
        source = make()
        learner = Learner(settings, source.labels)
        train(source, [learner], settings)
        found.append(bits(learner, len(source.codes)))
    return found


def together(
    candidates: Sequence[Settings],
    make: Callable[[], ListSource] = source_of,
    **options: Any,
) -> list[tuple[object, ...]]:
    source, pool = make(), Pool()
    learners = [Learner(settings, source.labels, pool=pool) for settings in candidates]
    train(source, learners, candidates[0], **options)
    return [bits(learner, len(source.codes)) for learner in learners]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [5, 9, len(MANY)])
def test_learners_that_look_at_a_row_together_learn_what_they_learn_alone(
    threads: int, count: int, calls: Counter[str]
) -> None:
    candidates = MANY[:count]
    apart = alone(candidates)
    visits = calls["visit"]
    assert not calls["visit_ascent_batch"] + calls["dot_batch"]
    assert together(candidates, threads=threads) == apart
    together_wanted = count >= batched.LEAST * threads
    assert (calls["visit_ascent_batch"] > 0) == together_wanted
    assert (calls["dot_batch"] > 0) == (-(-count // threads) >= batched.LEAST)
    assert (calls["visit"] - visits < visits) == together_wanted


@pytest.mark.parametrize("threads", [1, 2])
def test_together_they_learn_what_they_learn_alone_of_more_rows_than_a_call_visits(
    threads: int, calls: Counter[str]
) -> None:
    candidates = [Settings(C=C, tol=1e-3) for C in (0.02, 0.05, 0.1, 0.3, 1, 3, 8, 30)]
    apart = alone(candidates, source_of_many_rows)
    assert together(candidates, source_of_many_rows, threads=threads) == apart
    assert calls["visit_ascent_batch"] > 2
    assert len(set(apart)) == len(candidates)


def test_learners_trained_together_may_pause_between_any_two_batches(calls: Counter[str]) -> None:
    class Hasty:
        def __init__(self) -> None:
            self.met: Counter[tuple[int, int]] = Counter()

        def checkpoint(self, state: Callable[[], State]) -> None:
            now = state()
            self.met[now.reading, now.chunks] += 1

        def checkpoint_due(self) -> bool:
            return True

        before_solves = end = checkpoint

    checkpointer = Hasty()
    assert together(MANY, checkpointer=checkpointer) == alone(MANY)
    assert max(checkpointer.met.values()) > 1, "behind the last chunk, and between two batches"
    assert calls["visit_ascent_batch"]


def test_where_memory_is_short_every_thread_solves_one_learner_at_a_time(
    calls: Counter[str],
) -> None:
    asked = []

    def can_batch(learners: Sequence[Learner]) -> bool:
        asked.append(len(learners))
        return False

    candidates = MANY[:9]
    assert together(candidates, can_batch=can_batch) == alone(candidates)
    assert not calls["visit_ascent_batch"] + calls["dot_batch"]
    assert set(asked) == {9}


def test_learners_that_hold_other_rows_are_solved_one_at_a_time(
    calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = batched.step

    def alone_only(batch: Sequence[PendingSolve]) -> None:
        assert len(batch) == 1
        step(batch)

    monkeypatch.setattr(batched, "step", alone_only)
    candidates = [replace(one, active_set=2500, max_epochs=4) for one in MANY[:9]]
    assert together(candidates) == alone(candidates)
    assert not calls["visit_ascent_batch"]


def about_to_visit(candidates: Sequence[Settings], pool: Pool | None = None) -> list[PendingSolve]:
    """Solves of learners that have taken all rows, before the first mini-epoch."""
    source = source_of()
    learners = [Learner(settings, source.labels, pool=pool) for settings in candidates]
    chunks = list(source.chunks())
    for learner in learners:
        begin_reading(learner, 0)
        for chunk in chunks:
            take_chunk(learner, chunk, np.arange(len(chunk)))
    solves = [PendingSolve(learner, finish_reading) for learner in learners]
    for one in solves:
        one.go_on()
    assert all(one.epoch for one in solves)
    return solves


def test_a_solve_begins_before_those_that_have_begun_go_on() -> None:
    first, second = about_to_visit(MANY[8:10])
    late = PendingSolve(second.learner, finish_reading)
    before = first.epoch
    batched.step([first, late])
    assert late.begun
    assert first.epoch is before


def test_who_is_behind_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    solves, crowds, kernel = about_to_visit(MANY[8:14], Pool()), [], kernels.visit_ascent_batch

    def noted(rows: Any, order: Any, signs: Any, *others: Any) -> None:
        crowds.append(int(signs.any(axis=0).sum()))
        kernel(rows, order, signs, *others)

    monkeypatch.setattr(kernels, "visit_ascent_batch", noted)
    ahead = solves[1]
    for _ in range(2):
        assert ahead.epoch is not None
        ahead.epoch.make()
        ahead.go_on()
    for _ in range(6):
        batched.step(solves)
    assert crowds[:3] == [5, 5, 6]


def test_rows_that_are_not_held_once_are_not_visited_together(calls: Counter[str]) -> None:
    solves = about_to_visit(MANY[8:14])
    before = [one.learner.running.updates for one in solves]
    batched.step(solves)
    assert not calls["visit_ascent_batch"]
    now = [one.learner.running.updates for one in solves]
    assert all(after > then for after, then in zip(now, before, strict=True))


def test_rows_that_few_of_them_visit_are_not_visited_together(calls: Counter[str]) -> None:
    solves = about_to_visit(MANY[8:14], Pool())

    def step(live: Sequence[NDArray[np.int64]]) -> int:
        """Kernel calls of a step in which they visit these rows."""
        before = calls["visit_ascent_batch"]
        for one, its in zip(solves, live, strict=True):
            assert one.epoch is not None
            one.epoch = replace(one.epoch, live=its)
        batched.step(solves)
        return calls["visit_ascent_batch"] - before

    assert step([np.arange(k, ROWS, len(solves)) for k in range(len(solves))]) == 0
    assert step([np.arange(0, ROWS, 3)] * len(solves)) == 1


def test_the_last_of_a_team_are_dealt_out_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    met, step = [], batched.step

    def noted(batch: Sequence[PendingSolve]) -> None:
        met.append(len(batch))
        step(batch)

    monkeypatch.setattr(batched, "step", noted)
    assert together(MANY[:9]) == alone(MANY[:9])
    assert {1, kernels.BATCH_WIDTH} <= set(met)
    assert all(busy == 1 or busy >= batched.LEAST for busy in met)


def test_mini_epochs_cut_into_kernel_calls_find_what_they_find_together(
    calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "NONZEROS_A_CALL", 300)
    assert together(MANY[:9]) == alone(MANY[:9])
    assert calls["visit_ascent_batch"]


@pytest.mark.parametrize("width", [COLUMNS, COLUMNS - 1])
def test_products_are_summed_together_for_weights_as_wide_as_the_rows(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "empty", lambda shape, dtype=float: np.full(shape, 255, dtype))
    source = source_of()
    _ = list(source.chunks())
    [chunk] = source.chunks([range(len(source.blocks))])
    assert chunk.width == COLUMNS
    chance = np.random.default_rng(0)
    learners = [Learner(Settings()) for _ in range(6)]
    for learner in learners:
        learner.frozen = Frozen(chance.normal(size=width), 0.0, 1.0, 0.0)
    first = learners[0].frozen
    assert first is not None
    first.w = first.w[:7]
    with open_threads(1) as threads:
        found = batched.dots(chunk, learners, threads)
    assert set(found) == (set(learners) if width == COLUMNS else set())
    X = csr_array((chunk.rows.values, chunk.rows.indices, chunk.rows.indptr))
    for learner, sums in found.items():
        assert learner.frozen is not None
        w = learner.frozen.w
        assert np.allclose(sums, X[:, : len(w)] @ w, rtol=1e-12, atol=1e-12)


def test_more_columns_than_nonzeros_are_not_put_side_by_side(
    calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched, "DENSE", 10**6)
    assert together(MANY[:9]) == alone(MANY[:9])
    assert not calls["visit_ascent_batch"] + calls["dot_batch"]


@given(st.integers(0, 200), st.integers(1, 9))
def test_everybody_is_in_one_team_and_teams_are_as_many_as_threads_or_full(
    count: int, threads: int
) -> None:
    people = [Learner(Settings()) for _ in range(count)]
    found = batched.batches_of(people, threads)
    assert {id(one) for batch in found for one in batch} == {id(one) for one in people}
    full, rest = divmod(count, threads * kernels.BATCH_WIDTH)
    sizes = [len(batch) for batch in found]
    assert sizes[: full * threads] == [kernels.BATCH_WIDTH] * (full * threads)
    last = sizes[full * threads :]
    assert len(last) == min(threads, rest)
    assert max(last, default=0) - min(last, default=0) <= 1


@plans
@pytest.mark.parametrize(
    "weights", [pytest.param(None, marks=pytest.mark.slow), {"a": 3.0, "c": 0.5}]
)
def test_a_class_born_late_learns_what_it_would_have_learned_from_the_first_row_on(
    plan: dict[str, object], weights: dict[Label, float] | None
) -> None:
    labels = classes_that_come_late()
    settings = Settings.from_dict({"C": 2.0, **plan})
    source = GrowingSource(source_of(labels).rows, labels, block_rows=16)
    classes = Classes(settings, source.labels, weights, Pool())
    train(source, [], settings, new_classes=CandidateClasses([classes]), threads=2)
    assert [learner.targets.positive for learner in classes.learners] == ["b", "a", "d", "c"]
    for learner in classes.learners:
        source = source_of(labels)
        name = learner.targets.positive
        assert name is not None
        own = None if weights is None else {name: weights.get(name, 1.0)}
        known = Learner(settings, source.labels, own, name)
        train(source, [known], settings)
        assert bits(learner) == bits(known)


def test_learners_trained_together_read_the_data_as_often_as_the_one_that_needs_most() -> None:
    candidates = [Settings(C=C, active_set=2500, max_epochs=9) for C in (0.01, 1.0, 30.0)]
    readings = []
    for settings in candidates:
        source = source_of()
        train(source, [Learner(settings, source.labels)], settings)
        readings.append(source.nonzeros_read)
    source, pool = source_of(), Pool()
    train(source, [Learner(one, source.labels, pool=pool) for one in candidates], candidates[0])
    assert source.nonzeros_read == max(readings)
    assert len(set(readings)) > 1


def test_an_error_of_a_learner_on_a_thread_comes_out_at_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, settings = source_of(), Settings()
    learners = [Learner(settings, source.labels) for _ in range(2)]

    def failing(learner: Learner) -> Solve:
        if learner is learners[1]:
            raise RuntimeError("as it should")
        return finish_reading(learner)

    monkeypatch.setattr(training, "finish_reading", failing)
    with pytest.raises(RuntimeError, match="as it should"):
        train(source, learners, settings, threads=2)


def test_a_signal_in_the_calling_thread_waits_for_no_other_learner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caller, ended = threading.current_thread(), threading.Event()

    def interrupted(*arguments: Any, **more: Any) -> None:
        if threading.current_thread() is caller:
            raise KeyboardInterrupt
        assert ended.wait(60)

    monkeypatch.setattr(one_part, "take_and_solve", interrupted)
    source, settings = source_of(), Settings()
    learners = [Learner(settings, source.labels) for _ in range(2)]
    try:
        with pytest.raises(KeyboardInterrupt):
            train(source, learners, settings, threads=2)
        assert not ended.is_set()
    finally:
        ended.set()


def test_of_several_errors_that_of_the_first_learner_comes_out_whichever_failed_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later_failed = threading.Event()
    source, settings = source_of(), Settings()
    learners = [Learner(settings, source.labels) for _ in range(2)]

    def failing(learner: Learner) -> Solve:
        if learner is learners[0]:
            assert later_failed.wait(60.0)
            raise RuntimeError("of the first")
        later_failed.set()
        raise RuntimeError("of a later one")

    monkeypatch.setattr(training, "finish_reading", failing)
    with pytest.raises(RuntimeError, match="of the first"):
        train(source, learners, settings, threads=2)


def test_all_rows_that_fit_are_held_once_for_all() -> None:
    source, pool = source_of(), Pool()
    candidates = [Settings(C=C) for C in (0.1, 1.0, 10.0)]
    learners = [Learner(one, source.labels, pool=pool) for one in candidates]
    train(source, learners, candidates[0])
    assert len(pool) == ROWS
    held = [learner.active.rows.values for learner in learners]
    assert all(np.shares_memory(held[0], other) for other in held)


def test_memory_is_asked_for_new_classes_before_their_learners_are_made() -> None:
    labels = classes_that_come_late()
    source, settings = GrowingSource(source_of(labels).rows, labels, block_rows=16), Settings()
    classes = Classes(settings, source.labels, None, Pool())
    asked: list[tuple[int, int]] = []

    def has_room(learners: int, chunk: Chunk) -> bool:
        asked.append((learners, len(classes.learners)))
        return True

    train(source, [], settings, new_classes=CandidateClasses([classes]), has_room=has_room)
    assert [there for _, there in asked[:1]] == [0]
    for (learners, there), (_, after) in pairwise(asked):
        assert learners == after + 1, "all classes met so far, and the placeholder"
        assert there <= after
    assert asked[-1][0] == 5
