"""A run taken up at any border ends with the bits of the run that nothing interrupted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamtron import kernels
from streamtron.config import Settings
from streamtron.errors import FileDamaged
from streamtron.sealed import read_sealed, write_sealed
from streamtron.training import passes, solve
from streamtron.training.active_set import Pool
from streamtron.training.learner import Learner
from streamtron.training.loop import train
from streamtron.training.solve import PHASES
from streamtron.training.state import NOT_BEGUN, Resumed, State
from tests.sources import ListSource, csr, random_rows, trained
from tests.test_company import (
    PLANS,
    ROWS,
    bits,
    classes_that_come_late,
    plans,
    source_of,
)


class KeepsAll:
    """Keeps the state at every border between chunks, as copies."""

    def __init__(self) -> None:
        self.states: list[State] = []

    def border(self, state: Callable[..., State]) -> None:
        self.states.append(state(copy=True))

    end = border

    def due(self, moved: bool) -> bool:
        return False


def through_a_file(state: State, path: Path) -> State:
    """The state as a checkpoint file gives it back."""
    write_sealed(path, state.content, state.arrays)
    content, arrays = read_sealed(path, "checkpoint")
    return State(state.reading, state.chunks, content, arrays)


def taken_up(state: State, settings: Settings, source: ListSource) -> list[Learner]:
    pool = Pool()
    held = state.learners(
        lambda positive: Learner(settings, source.labels, positive=positive, pool=pool), "learners"
    )
    learners = [one.learner for one in held]
    reopened = [one for one in learners if one.reopen()]
    train(source, learners, settings, resumed=Resumed(state.reading, state.chunks, held, reopened))
    return learners


@plans
def test_from_every_border_the_run_ends_with_the_same_bits(
    plan: dict[str, object], tmp_path: Path
) -> None:
    settings = Settings.from_dict({"C": 20.0, "tol": 0.02, **plan})
    keeper, source = KeepsAll(), source_of()
    learner = Learner(settings, source.labels)
    train(source, [learner], settings, keeper=keeper)
    assert len(keeper.states) > 17
    assert keeper.states[-1].chunks == NOT_BEGUN
    assert len({state.reading for state in keeper.states}) > 2
    for state in [*keeper.states[:36:5], *keeper.states[-40::7], *keeper.states[-2:]]:
        [again] = taken_up(through_a_file(state, tmp_path / "c"), settings, source_of())
        assert bits(again) == bits(learner), (state.reading, state.chunks)


# --- amid training in memory ---


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


def fields_of(packed: Any) -> dict[str, Any]:
    """The fields of an object as a state has them."""
    return dict(packed["fields"]["dict"])


def doing(state: State) -> tuple[object, ...] | None:
    """What the first learner does: its task and phase, whether amid a chunk, a mini-epoch, a
    conjugate gradient step; None between two readings or chunks."""
    fields = fields_of(state.content["learners"][0])
    if fields["_task"] is None:
        return None
    task, kind = fields_of(fields["_task"]), fields["_task"]["class"]
    if kind == "HardSolver" and task["solver"]:
        task = fields_of(task["solver"])
    newton = fields_of(task["newton"]) if task.get("newton") else {}
    direction = fields_of(newton["direction"]) if newton.get("direction") else {"calls": None}
    amid = fields["_to_hold"] is not None
    return kind, task.get("phase"), amid, bool(task.get("waiting")), direction["calls"]


@pytest.mark.parametrize("name", IN_MEMORY)
def test_from_within_every_kind_of_training_in_memory_the_run_ends_with_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, chosen = IN_MEMORY[name]
    settings = Settings.from_dict(chosen)
    monkeypatch.setattr(passes, "NONZEROS_A_CALL", 700)
    monkeypatch.setattr(solve, "SMALL", 0)  # what is finished to rounding is so in steps
    whole = trained(make(), settings)
    source, keeper = make(), KeepsFirstOfAKind()
    learner = Learner(settings, source.labels)
    train(source, [learner], settings, keeper=keeper)
    assert bits(learner) == bits(whole)
    assert len(keeper.kinds) >= 2
    for kind, states in keeper.kinds.items():
        for state in states:
            [again] = taken_up(through_a_file(state, tmp_path / "c"), settings, make())
            assert bits(again) == bits(learner), kind


class KeepsFirstOfAKind(KeepsAll):
    """Keeps the first and the fifth state of every kind of training in memory, which pauses after
    every step."""

    def __init__(self) -> None:
        self.kinds: dict[object, list[State]] = {}
        self.met: Counter[object] = Counter()

    def border(self, state: Callable[..., State]) -> None:
        kind = doing(state())
        self.met[kind] += 1
        if kind is not None and self.met[kind] in (1, 5):
            self.kinds.setdefault(kind, []).append(state(copy=True))

    end = border

    def due(self, moved: bool) -> bool:
        return moved


def test_together_those_kinds_are_every_phase_of_a_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve, "SMALL", 0)
    met: set[object] = set()
    for make, chosen in IN_MEMORY.values():
        settings, source, keeper = Settings.from_dict(chosen), make(), KeepsFirstOfAKind()
        train(source, [Learner(settings, source.labels)], settings, keeper=keeper)
        met |= {kind[1] for kind in keeper.kinds if isinstance(kind, tuple)}
    assert met - {None} == set(PHASES)


def test_learners_that_pause_at_every_border_find_what_they_find_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passes, "NONZEROS_A_CALL", 300)
    candidates = [Settings(C=C, active_set=2500, max_epochs=3) for C in (0.1, 5.0, 50.0)]
    found = []
    for keeper in (None, KeepsFirstOfAKind()):
        source, pool = source_of(), Pool()
        learners = [Learner(one, source.labels, pool=pool) for one in candidates]
        train(source, learners, candidates[0], threads=2, keeper=keeper)
        found.append([bits(learner) for learner in learners])
    assert found[0] == found[1]


def test_who_is_taken_further_amid_a_reading_of_others_waits_for_the_next_one(
    tmp_path: Path,
) -> None:
    settings = Settings(multiclass=True, C=0.3, tol=0.1, active_set=4000)
    labels = classes_that_come_late()
    keeper, source = KeepsAll(), source_of(labels)
    learners = [Learner(settings, source.labels, positive=label) for label in source.labels]
    train(source, learners, settings, keeper=keeper)
    last = {learner.reading for learner in learners}
    assert len(last) > 1, "one finished before the others"
    amid = [one for one in keeper.states if one.reading == max(last) and one.chunks == 1]
    finer = settings.but(tol=0.02)
    for again in taken_up(through_a_file(amid[0], tmp_path / "c"), finer, source_of(labels)):
        assert again.finished == "certified"
        assert again.certificate is not None
        assert again.certificate.rows_scanned == ROWS, "rows seen twice prove nothing"
        assert again.certificate.relative_duality_gap <= 0.02


def _shorten(name: str, task: dict[str, Any], arrays: Any) -> None:
    arrays[task[name]["array"]] = arrays[task[name]["array"]][:-1]


def _stray(name: str, task: dict[str, Any], arrays: Any) -> None:
    for one in task[name] if name == "waiting" else [task[name]]:
        arrays[one["array"]] = arrays[one["array"]] + 10**6


@pytest.mark.parametrize(
    "spoil",
    [
        *(partial(_shorten, name) for name in ("counts", "total", "erred")),
        partial(_stray, "live"),
        lambda task, arrays: task.update(phase="solve"),
        lambda task, arrays: task.update(turn=None),
        lambda task, arrays: task["turn"]["fields"]["dict"][2].__setitem__(1, "5"),
        lambda task, arrays: task.update(total=task["counts"]),
        lambda task, arrays: task.update(cost=task["total"]),
    ],
    ids=[
        "counts", "total", "erred", "a stray row", "no phase", "no turn", "another turn",
        "another kind", "one too many",
    ],
)  # fmt: skip
def test_arrays_that_kernels_cannot_take_are_refused(spoil: Any, tmp_path: Path) -> None:
    _refused(spoil, tmp_path, amid_mini_epoch=False)


def test_rows_still_to_be_visited_that_are_not_held_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "NONZEROS_A_CALL", 100)
    _refused(partial(_stray, "waiting"), tmp_path, amid_mini_epoch=True)


def _refused(spoil: Any, tmp_path: Path, *, amid_mini_epoch: bool) -> None:
    make, chosen = IN_MEMORY["wide"]
    settings, source, keeper = Settings.from_dict(chosen), make(), KeepsFirstOfAKind()
    train(source, [Learner(settings, source.labels)], settings, keeper=keeper)
    [(_, fifth)] = [
        states for kind, states in keeper.kinds.items()
        if isinstance(kind, tuple) and kind[1] == "_visit" and kind[3] == amid_mini_epoch
    ]  # fmt: skip
    state = through_a_file(fifth, tmp_path / "c")
    [task] = [
        value for name, value in state.content["learners"][0]["fields"]["dict"] if name == "_task"
    ]
    fields = fields_of(task)
    spoil(fields, state.arrays)
    task["fields"]["dict"] = list(fields.items())
    with pytest.raises(FileDamaged, match="no state of a run"):
        taken_up(state, settings, make())


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
    keeper, source = KeepsAll(), InOrder(rows, labels, block_rows=16)
    learner = Learner(settings, source.labels)
    train(source, [learner], settings, keeper=keeper)
    for state in keeper.states[1::6]:
        source = InOrder(rows, labels, block_rows=16)
        [again] = taken_up(through_a_file(state, tmp_path / "c"), settings, source)
        assert bits(again) == bits(learner), (state.reading, state.chunks)


def test_a_smaller_tolerance_takes_a_finished_run_further(tmp_path: Path) -> None:
    keeper, source = KeepsAll(), source_of()
    settings = Settings(C=20.0, tol=0.3)
    learner = Learner(settings, source.labels)
    train(source, [learner], settings, keeper=keeper)
    before = learner.certificate
    assert before is not None
    finer = settings.but(tol=1e-6)
    [again] = taken_up(through_a_file(keeper.states[-1], tmp_path / "c"), finer, source_of())
    assert again.finished == "certified"
    assert again.certificate is not None
    assert again.certificate.relative_duality_gap <= 1e-6 < before.relative_duality_gap
    assert again.full_epochs > learner.full_epochs


def test_more_epochs_take_a_run_further_that_its_limit_had_ended(tmp_path: Path) -> None:
    keeper, source = KeepsAll(), source_of()
    settings = Settings(C=20.0, tol=1e-9, active_set=2500, max_epochs=3)
    learner = Learner(settings, source.labels)
    train(source, [learner], settings, keeper=keeper)
    assert learner.finished == "epoch limit"
    longer = settings.but(max_epochs=9)
    [again] = taken_up(through_a_file(keeper.states[-1], tmp_path / "c"), longer, source_of())
    assert again.full_epochs == 9


def test_a_state_that_is_copied_stays_as_it_was(tmp_path: Path) -> None:
    class KeepsFirst(KeepsAll):
        text = ""

        def border(self, state: Callable[..., State]) -> None:
            super().border(state)
            self.text = self.text or _text(self.states[0])

    keeper, source, settings = KeepsFirst(), source_of(), Settings(C=20.0)
    train(source, [Learner(settings, source.labels)], settings, keeper=keeper)
    assert _text(keeper.states[0]) == keeper.text


def _text(state: State) -> str:
    arrays = {name: array.tolist() for name, array in state.arrays.items()}
    return json.dumps([state.content, arrays])


def test_what_is_no_part_of_a_checkpoint_is_not_packed() -> None:
    from streamtron.training.packing import Packer

    with pytest.raises(TypeError, match="Path: no part of a checkpoint"):
        Packer().pack(Path("x"))
    assert np.isinf(float(Packer().pack(np.inf)["float"]))


@pytest.mark.parametrize(
    ("active_set", "watches"), [(10**9, False), (2500, True)], ids=["scanning", "watching"]
)
def test_weights_that_have_drifted_from_the_counts_are_made_afresh_and_it_is_said(
    active_set: int, watches: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(C=20.0, tol=1e-4, active_set=active_set, max_epochs=40)
    learner = Learner(settings, source_of().labels)
    drifts: list[float] = []

    class Spoils:
        """Moves a weight once, as a flipped bit in memory would, and looks on."""

        spoilt = False

        def border(self, state: Callable[[], State]) -> None:
            if learner.certificate is not None:
                drifts.append(learner.certificate.drift)
            if learner.readings == (2 if watches else 1) and not self.spoilt:
                learner.dual.w[1] += np.abs(learner.dual.w).max()
                self.spoilt = True

        end = border

        def due(self, moved: bool) -> bool:
            return False

    source = source_of()
    train(source, [learner], settings, keeper=Spoils())
    assert max(drifts) > 0.01
    [chunk] = source.chunks([range(len(source.blocks))])
    fresh = np.zeros(len(learner.dual.w) + 1)
    factors = learner.counts.dense(len(chunk)) * learner.targets(chunk).signs.astype(float)
    kernels.combine(chunk.rows, factors, settings.rho, fresh)
    np.testing.assert_allclose(learner.dual.w, fresh[:-1], rtol=1e-9)
    assert learner.finished == "certified"
    assert caplog.text.count("had drifted by") == 1
    assert "They are made afresh from the counts." in caplog.text
