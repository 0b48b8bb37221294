"""Rows in many parts: one certified model, from states after any reading with the same bits."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamtron.core import kernels
from streamtron.core.config import Settings
from streamtron.core.executor import LocalParts, Scans
from streamtron.solver.alphas import SavedAlphas
from streamtron.solver.checkpoint import Resumed, State
from streamtron.solver.learner import Learner
from streamtron.solver.many_parts import ManyParts
from streamtron.solver.memory import Memory
from streamtron.solver.part import START_GAP, Part
from streamtron.solver.train import train
from tests.helpers.learners import drawn_data
from tests.helpers.sources import ListData, learner_of, trained
from tests.solver.test_states import Keeper

PARTS = 3


class OfAll(ListData):
    """Rows of a part, which knows the columns, labels and facts of all."""

    def __init__(self, whole: ListData, first: int, stop: int, *, hold: bool) -> None:
        labels = [whole.labels[code] for code in whole.codes[first:stop]]
        start, end = whole.rows.indptr[[first, stop]]
        rows = type(whole.rows)(
            whole.rows.indptr[first : stop + 1] - start,
            whole.rows.indices[start:end],
            whole.rows.values[start:end],
        )
        super().__init__(rows, labels, block_rows=32, hold=hold)
        self.codes = whole.codes[first:stop]
        self.labels, self.columns, self._facts = whole.labels, whole.columns, whole.facts

    @property
    def facts(self) -> Any:
        return self._facts


def parts_of(
    whole: ListData, settings: Settings, path: Path | None = None, scans: Scans = None
) -> LocalParts:
    budget = settings.active_set_bytes // PARTS
    own = settings.but(active_set=budget, tol=max(settings.tol, START_GAP))
    borders = [len(whole.codes) * k // PARTS for k in range(PARTS + 1)]
    made = []
    for k in range(PARTS):
        data = OfAll(whole, borders[k], borders[k + 1], hold=False)
        data.hold = data.nbytes <= budget
        part = Part(data, [learner_of(data, own)], None if path is None else str(path / f"{k}"))
        if scans is not None:
            part.restore(scans)
        made.append(part)
    return LocalParts(made)


def fitted(
    whole: ListData, settings: Settings, path: Path | None = None, keeper: Any = None
) -> Learner:
    learner = learner_of(whole, settings)
    train(ManyParts(parts_of(whole, settings, path), [learner], checkpointer=keeper))
    return learner


def bits_of(learner: Learner) -> tuple[Any, ...]:
    weights = learner.running.w.tobytes(), learner.best.w.tobytes()
    return *weights, learner.certificate, learner.progress.readings


WIDE, FEW = (600, 300, 0.05), (600, 12, 0.5)

CASES: dict[str, tuple[Sequence[Any], dict[str, Any], Memory]] = {
    "all rows": (WIDE, {}, Memory.ALL_ROWS),
    "few columns": (FEW, {"active_set": 9_000}, Memory.FEW_COLUMNS),
    "working set": (WIDE, {"active_set": 80_000}, Memory.WORKING_SET),
    "blocks": (WIDE, {"active_set": 15_000}, Memory.BUFFERS),
    "log_loss in blocks": (WIDE, {"active_set": 15_000, "loss": "log_loss"}, Memory.BUFFERS),
    "hinge": (WIDE, {"loss": "hinge"}, Memory.ALL_ROWS),
}

cases = pytest.mark.parametrize(("shape", "changes", "memory"), CASES.values(), ids=CASES)


@cases
def test_parts_certify_the_optimum_that_one_process_certifies(shape, changes, memory, tmp_path):
    whole = drawn_data(3, *shape, block_rows=32)
    settings = Settings.from_dict({"C": 0.5, "tol": 1e-3, "parts": PARTS, **changes})
    learner = fitted(whole, settings, tmp_path)
    assert (learner.finished, learner.memory) == ("certified", memory)
    one = trained(
        whole, Settings.from_dict({"C": 0.5, "tol": 1e-6, **changes, "active_set": 10**9})
    )
    ours, theirs = learner.certificate, one.certificate
    assert ours.relative_duality_gap <= 1e-3
    assert ours.dual <= theirs.primal * (1 + 1e-9)
    assert theirs.dual <= ours.primal * (1 + 1e-9)
    assert ours.rows_scanned == 600
    files = sorted(tmp_path.glob(f"*.scan-{learner.progress.reading:04d}"))
    saved, v = SavedAlphas([*map(str, files)]).dense(600), learner.frozen.scan_sums
    assert np.abs(saved).sum(dtype=np.float64) == pytest.approx(v.sums[kernels.SIZES])


@cases
def test_parts_go_on_from_the_state_after_any_reading_with_the_same_bits(
    shape, changes, memory, tmp_path
):
    whole = drawn_data(3, *shape, block_rows=32)
    settings = Settings.from_dict({"C": 0.5, "tol": 1e-3, "parts": PARTS, **changes})

    class Copying(Keeper):
        """Keeps the files of the parts with each state."""

        def save(self, state: Callable[[], State]) -> None:
            super().save(state)
            copy = tmp_path / f"after-{len(self.states)}"
            copy.mkdir()
            for file in tmp_path.glob("*.scan-*"):
                (copy / file.name).write_bytes(file.read_bytes())

    keeper = Copying()
    learner = fitted(whole, settings, tmp_path, keeper)
    wanted = bits_of(learner)
    assert keeper.states
    for number, state in [*enumerate(keeper.states, 1)][:: 1 + len(keeper.states) // 4]:
        [again] = state.learners(lambda _: learner_of(whole, settings))
        scans = [again.progress.reading]
        local = parts_of(whole, settings, tmp_path / f"after-{number}", scans)
        train(ManyParts(local, [again]), Resumed(state.reading))
        assert bits_of(again) == wanted
    assert memory == learner.memory
