"""A run taken up at any border ends with the bits of the run that nothing interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.solver import few_columns
from streamtron.solver.checkpoint import NOT_BEGUN, Resumed, State
from streamtron.solver.learner import Learner, reopen
from streamtron.solver.one_part import train_here as train
from streamtron.solver.row_store import Pool
from tests.helpers.checkpoints import KeepsAll, through_a_file
from tests.helpers.examples import slow_but
from tests.helpers.learners import PLANS, ROWS, bits, classes_that_come_late, plans, source_of
from tests.helpers.sources import ListSource, csr, random_rows, trained


def taken_up(state: State, settings: Settings, source: ListSource) -> list[Learner]:
    pool = Pool()
    held = state.learners(
        lambda positive: Learner(settings, source.labels, positive=positive, pool=pool), "learners"
    )
    learners = [one.learner for one in held]
    reopened = [one for one in learners if reopen(one)]
    train(source, learners, settings, resumed=Resumed(state.reading, state.chunks, held, reopened))
    return learners


@plans
def test_from_every_border_the_run_ends_with_the_same_bits(
    plan: dict[str, object], tmp_path: Path
) -> None:
    settings = Settings.from_dict({"C": 20.0, "tol": 0.02, **plan})
    checkpointer, source = KeepsAll(), source_of()
    learner = Learner(settings, source.labels)
    train(source, [learner], settings, checkpointer=checkpointer)
    assert len(checkpointer.states) > 17
    assert checkpointer.states[-1].chunks == NOT_BEGUN
    assert len({state.reading for state in checkpointer.states}) > 2
    for state in [
        *checkpointer.states[:36:5],
        *checkpointer.states[-40::7],
        *checkpointer.states[-2:],
    ]:
        [again] = taken_up(through_a_file(state, tmp_path / "c"), settings, source_of())
        assert bits(again) == bits(learner), (state.reading, state.chunks)


# --- behind every kind of training in memory ---


def separable() -> ListSource:
    rows, _ = random_rows(5, ROWS, 12)
    truth = np.random.default_rng(0).normal(size=12)
    labels = [1 if sum(truth[j] * value for j, value in row) > 0.0 else -1 for row in rows]
    return ListSource(csr(rows), labels, block_rows=16)


def wide() -> ListSource:
    """More columns than rows: visits come before Newton's method."""
    rows, labels = random_rows(1, ROWS, 300, 0.05)
    return ListSource(csr(rows), labels, block_rows=32)


IN_MEMORY: dict[str, tuple[Callable[[], ListSource], dict[str, Any]]] = {
    "all held": (source_of, {"C": 50.0, "tol": 1e-3}),
    "to rounding": (source_of, {"C": 1.0, "tol": 0.0, "max_epochs": 3}),
    "in parts": (source_of, {"C": 50.0, "active_set": 2500, "tol": 1e-3, "max_epochs": 3}),
    "wide": (wide, {"C": 5.0, "tol": 1e-3, "max_epochs": 2, "mini_epochs": 12}),
    "wide, in parts": (wide, {"C": 50.0, "active_set": 3000, "max_epochs": 3}),
    "hard margin": (separable, {"delta": 0.0, "tol": 1e-3}),
    "hard margin, in parts": (
        separable, {"delta": 0.0, "tol": 1e-2, "active_set": 3000, "max_epochs": 4},
    ),
    "margitron": (source_of, dict(PLANS["margitron"])),
}  # fmt: skip


class KeepsAlways(KeepsAll):
    """Wants a border at every moment, and keeps the state at all there are."""

    def checkpoint_due(self) -> bool:
        return True


@pytest.mark.parametrize("name", slow_but(IN_MEMORY, "all held", "in parts", "hard margin"))
def test_behind_every_kind_of_training_in_memory_the_run_is_taken_up_to_the_same_bits(
    name: str, tmp_path: Path
) -> None:
    make, chosen = IN_MEMORY[name]
    settings = Settings.from_dict(chosen)
    whole = trained(make(), settings)
    source, checkpointer = make(), KeepsAlways()
    learner = Learner(settings, source.labels)
    train(source, [learner], settings, checkpointer=checkpointer)
    assert bits(learner) == bits(whole)
    places = Counter((state.reading, state.chunks) for state in checkpointer.states)
    assert max(places.values()) == 2, "behind the last chunk and before the solve, never amid it"
    for state in [
        *checkpointer.states[:3],
        *checkpointer.states[3:-2:7],
        *checkpointer.states[-2:],
    ]:
        [again] = taken_up(through_a_file(state, tmp_path / "c"), settings, make())
        assert bits(again) == bits(learner), (state.reading, state.chunks)


def test_learners_that_pause_at_every_border_find_what_they_find_without_one() -> None:
    candidates = [Settings(C=C, active_set=2500, max_epochs=3) for C in (0.1, 5.0, 50.0)]
    found = []
    for checkpointer in (None, KeepsAlways()):
        source, pool = source_of(), Pool()
        learners = [Learner(one, source.labels, pool=pool) for one in candidates]
        train(source, learners, candidates[0], threads=2, checkpointer=checkpointer)
        found.append([bits(learner) for learner in learners])
    assert found[0] == found[1]


def test_who_is_taken_further_amid_a_reading_of_others_waits_for_the_next_one(
    tmp_path: Path,
) -> None:
    settings = Settings(multiclass=True, C=0.3, tol=0.1, active_set=4000)
    labels = classes_that_come_late()
    checkpointer, source = KeepsAll(), source_of(labels)
    learners = [Learner(settings, source.labels, positive=label) for label in source.labels]
    train(source, learners, settings, checkpointer=checkpointer)
    last = {learner.progress.reading for learner in learners}
    assert len(last) > 1, "one finished before the others"
    amid = [one for one in checkpointer.states if one.reading == max(last) and one.chunks == 1]
    finer = settings.but(tol=0.02)
    for again in taken_up(through_a_file(amid[0], tmp_path / "c"), finer, source_of(labels)):
        assert again.finished == "certified"
        assert again.certificate is not None
        assert again.certificate.rows_scanned == ROWS, "rows seen twice prove nothing"
        assert again.certificate.relative_duality_gap <= 0.02


# --- where else ---


class InOrder(ListSource):
    """As shards without a cache: their rows come in no other order."""

    def chunks(self, order=None):  # type: ignore[no-untyped-def]
        assert order is None
        return super().chunks()


@pytest.mark.parametrize("active_set", [2500, 10**9])
def test_a_run_in_the_files_order_is_taken_up_where_there_is_no_other_order(
    active_set: int, tmp_path: Path
) -> None:
    settings = Settings(C=20.0, tol=1e-3, order="sequential", active_set=active_set, max_epochs=4)
    rows, labels = source_of().rows, [source_of().labels[k] for k in source_of().codes]
    checkpointer, source = KeepsAll(), InOrder(rows, labels, block_rows=16)
    learner = Learner(settings, source.labels)
    train(source, [learner], settings, checkpointer=checkpointer)
    for state in checkpointer.states[1::6]:
        source = InOrder(rows, labels, block_rows=16)
        [again] = taken_up(through_a_file(state, tmp_path / "c"), settings, source)
        assert bits(again) == bits(learner), (state.reading, state.chunks)


def test_a_smaller_tolerance_takes_a_finished_run_further(tmp_path: Path) -> None:
    checkpointer, source = KeepsAll(), source_of()
    settings = Settings(C=20.0, tol=0.3)
    learner = Learner(settings, source.labels)
    train(source, [learner], settings, checkpointer=checkpointer)
    before = learner.certificate
    assert before is not None
    finer = settings.but(tol=1e-6)
    [again] = taken_up(through_a_file(checkpointer.states[-1], tmp_path / "c"), finer, source_of())
    assert again.finished == "certified"
    assert again.certificate is not None
    assert again.certificate.relative_duality_gap <= 1e-6 < before.relative_duality_gap
    assert again.progress.full_epochs > learner.progress.full_epochs


def test_more_epochs_take_a_run_further_that_its_limit_had_ended(tmp_path: Path) -> None:
    checkpointer, source = KeepsAll(), source_of()
    settings = Settings(C=20.0, tol=1e-9, active_set=2500, max_epochs=3)
    learner = Learner(settings, source.labels)
    train(source, [learner], settings, checkpointer=checkpointer)
    assert learner.progress.finished == "epoch limit"
    longer = settings.but(max_epochs=9)
    [again] = taken_up(through_a_file(checkpointer.states[-1], tmp_path / "c"), longer, source_of())
    assert again.progress.full_epochs == 9


def test_what_is_no_part_of_a_checkpoint_is_not_encoded() -> None:
    from streamtron.solver.checkpoint import Encoder

    with pytest.raises(TypeError, match="Path: no part of a checkpoint"):
        Encoder().encode(Path("x"))
    assert np.isinf(float(Encoder().encode(np.inf)["float"]))


@pytest.mark.parametrize(
    ("active_set", "watches"), [(10**9, False), (2500, True)], ids=["scanning", "watching"]
)
def test_weights_that_have_drifted_from_the_counts_are_made_afresh_and_it_is_said(
    active_set: int,
    watches: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(few_columns, "worthwhile", lambda *_: False)  # it makes them afresh
    settings = Settings(C=20.0, tol=1e-4, active_set=active_set, max_epochs=200)
    learner = Learner(settings, source_of().labels)
    drifts: list[float] = []

    class Spoils:
        """Moves a weight once, as a flipped bit in memory would, and looks on."""

        spoilt = False

        def checkpoint(self, state: Callable[[], State]) -> None:
            if learner.certificate is not None:
                drifts.append(learner.certificate.drift)
            if learner.progress.readings == (2 if watches else 1) and not self.spoilt:
                learner.running.w[1] += np.abs(learner.running.w).max()
                self.spoilt = True

        before_solves = end = checkpoint

        def checkpoint_due(self) -> bool:
            return False

    source = source_of()
    train(source, [learner], settings, checkpointer=Spoils())
    assert max(drifts) > 0.01
    [chunk] = source.chunks([range(len(source.blocks))])
    fresh = np.zeros(len(learner.running.w) + 1)
    factors = learner.counts.dense(len(chunk)) * learner.targets(chunk).signs.astype(float)
    kernels.combine(chunk.rows, factors, settings.rho, fresh)
    np.testing.assert_allclose(learner.running.w, fresh[:-1], rtol=1e-9)
    assert learner.progress.finished == "certified"
    assert caplog.text.count("had drifted by") == 1
    assert "They are made afresh from the counts." in caplog.text
