"""A run goes on from the state after any of its readings with the same bits; a stop gives a reading
up; columns are numbered anew where rows come and go."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streamtron.core import signals
from streamtron.core.config import Settings
from streamtron.core.errors import FileDamaged
from streamtron.core.events import Event, WorkDone
from streamtron.core.sealed import Streamed
from streamtron.solver.alphas import Alphas
from streamtron.solver.changes import add_rows, begin_change
from streamtron.solver.checkpoint import Resumed, State
from streamtron.solver.learner import renumber, replace_alphas
from streamtron.solver.stopping import reopen
from tests.helpers.learners import bits, data_of, drawn_data
from tests.helpers.optimum import least_primal
from tests.helpers.sources import ListData, csr, learner_of, random_rows, train, trained

PLANS: dict[str, dict[str, Any]] = {
    "all rows": {"tol": 1e-12},
    "few columns": {"active_set": 8000, "tol": 1e-9},
    "blocks": {"active_set": 2500, "C": 5.0, "loss": "hinge", "max_epochs": 6},
    "free bias": {"active_set": 6000, "loss": "log_loss", "intercept": "free", "max_epochs": 6},
    "stages": {"stage": "1,0.1", "tol": 0.02, "max_epochs": 20},
    "margitron": {"stage": "1,0.1", "tol": 0.0, "max_epochs": 6, "mini_epochs": 5},
    "l1": {"penalty": "l1", "loss": "log_loss", "active_set": 12_000, "tol": 1e-3},
}

plans = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


def make(plan: dict[str, Any]) -> ListData:
    if plan is PLANS["free bias"]:
        return drawn_data(4, 300, 300, 0.04, block_rows=16)
    return data_of()


def written(state: State) -> State:
    """The state as it comes back from a file."""

    def whole(array: Any) -> Any:
        return array.whole() if isinstance(array, Streamed) else array.copy()

    arrays = {name: whole(array) for name, array in state.arrays.items()}
    return State(state.reading, json.loads(json.dumps(state.content)), arrays)


class Keeper:
    """Keeps the state after every reading."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.last: State | None = None

    def save(self, state: Callable[[], State]) -> None:
        self.states.append(written(state()))

    def end(self, state: Callable[[], State]) -> None:
        assert self.last is None
        self.last = written(state())


@plans
def test_a_run_goes_on_from_the_state_after_any_reading_with_the_same_bits(plan):
    settings, keeper = Settings.from_dict(plan), Keeper()
    source = make(plan)
    learners = [learner_of(source, settings.but(C=C)) for C in (settings.C, 3.0)]
    train(source, learners, settings, checkpointer=keeper)
    wanted = [bits(learner) for learner in learners]
    assert keeper.last is not None
    assert keeper.last.all_finished
    assert len(keeper.states) == max(learner.progress.readings for learner in learners) - 1 > 0
    for number, state in enumerate(keeper.states):
        assert (state.reading, state.all_finished) == (number + 1, False)
    for state in keeper.states[:: 1 + len(keeper.states) // 6]:
        assert state.columns == source.columns
        source = make(plan)
        new = iter([learner_of(source, settings.but(C=C)) for C in (settings.C, 3.0)])
        again = state.learners(lambda _, new=new: next(new))
        train(source, again, settings, resumed=Resumed(state.reading))
        assert [bits(learner) for learner in again] == wanted


@plans
def test_a_run_that_ended_goes_on_to_a_smaller_tolerance(plan):
    plan = {**plan, "tol": 0.02 if plan.get("tol") != 0.0 else 0.0, "max_epochs": 40}
    keeper, source = Keeper(), make(PLANS["free bias"] if "intercept" in plan else plan)
    settings = Settings.from_dict(plan)
    first = trained(source, settings)
    train(source, [learner_of(source, settings)], settings, checkpointer=keeper)
    assert keeper.last is not None
    finer = settings.but(tol=1e-3, max_epochs=200)
    [learner] = keeper.last.learners(lambda _: learner_of(source, finer))
    assert bits(learner) == bits(first)
    assert reopen(learner) == (first.certificate.relative_duality_gap > 1e-3)
    if reopen(learner):
        train(source, [learner], finer, resumed=Resumed(keeper.last.reading, [learner]))
        assert learner.finished
        gaps = [proof.certificate.relative_duality_gap for proof in (learner, first)]
        assert gaps[0] <= gaps[1]
        assert gaps[0] <= 1e-3 or learner.finished != "certified"


@pytest.mark.parametrize("plan", [PLANS["few columns"], PLANS["blocks"]], ids=["few", "blocks"])
def test_a_stop_gives_the_reading_up_and_the_last_state_stays(plan, monkeypatch):
    settings, keeper, stop = Settings.from_dict(plan), Keeper(), signals.Signalled(2)

    def listen(event: Event) -> None:
        if isinstance(event, WorkDone) and event.rows and event.reading == 2:
            monkeypatch.setattr("streamtron.solver.train.pending_stop", lambda: stop)

    source = make(plan)
    with pytest.raises(signals.Signalled):
        train(source, [learner_of(source, settings)], settings, listen, checkpointer=keeper)
    assert [state.reading for state in keeper.states] == [1, 2]


@pytest.mark.parametrize("spoilt", ["shorter", "a field less", "no number"])
def test_a_state_that_no_learner_has_is_refused(spoilt):
    keeper, settings = Keeper(), Settings.from_dict(PLANS["few columns"])
    source = data_of()
    train(source, [learner_of(source, settings)], settings, checkpointer=keeper)
    state = keeper.states[1]
    name = state.content["learners"][0]["running"]["w"]["array"]
    if spoilt == "shorter":
        state.arrays[name] = state.arrays[name][:-1]
    elif spoilt == "no number":
        state.arrays[name][0] = np.nan
    else:
        state.content["learners"][0]["progress"].pop("kept")
    with pytest.raises(FileDamaged, match="no state of a run"):
        state.learners(lambda _: learner_of(source, settings))


ROWS, COLUMNS = 400, 12


def numbered(order: np.ndarray[Any, np.dtype[np.int64]], rows: slice) -> ListData:
    """Some rows, of whose columns number k is ``order[k]``."""
    plain, labels = random_rows(7, ROWS, COLUMNS)
    mixed = [sorted((int(order[column]), value) for column, value in row) for row in plain]
    data = ListData(csr(mixed[rows]), labels[rows], block_rows=32)
    data.columns = COLUMNS
    return data


def optimum(C: float, rows: slice) -> float:
    data = numbered(np.arange(COLUMNS), rows)
    X = np.zeros((len(data.codes), COLUMNS))
    for k in range(len(X)):
        inside = slice(*data.rows.indptr[k : k + 2])
        X[k, data.rows.indices[inside]] = data.rows.values[inside]
    return least_primal(X, data.codes, C)


HELD, BUFFERS = 10**6, 4000


@pytest.mark.parametrize("active_set", [HELD, BUFFERS])
@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss"])
def test_rows_are_added_in_other_ranks_and_the_first_scan_that_goes_on_may_do(loss, active_set):
    settings = Settings(loss=loss, C=2.0, tol=1e-3, active_set=active_set)
    learner = trained(numbered(np.arange(COLUMNS), slice(0, 360)), settings)
    places = np.random.default_rng(1).permutation(COLUMNS)
    whole, new = numbered(places, slice(0, ROWS)), numbered(places, slice(360, ROWS))
    weights, alpha = learner.best.w, learner.alphas.dense(360).tolist()
    learner.facts = whole.facts
    renumber(learner, places, COLUMNS)
    assert learner.best.w[places].tolist() == weights.tolist()
    begin_change(learner, only_more=True)
    assert learner.alphas.dense(360).tolist() == alpha
    add_rows(new, [learner], settings, 360, lambda _: None)
    if learner.finished is None:
        train(whole, [learner], settings)
    assert learner.finished == "certified"
    assert learner.certificate.rows_scanned == ROWS
    if loss == "squared_hinge":
        least = optimum(2.0, slice(0, ROWS))
        assert learner.certificate.dual <= least * (1 + 1e-9)
        assert least <= learner.certificate.primal * (1 + 1e-9)


@pytest.mark.parametrize("active_set", [HELD, BUFFERS])
def test_rows_are_taken_away_with_the_columns_that_only_they_had(active_set):
    settings = Settings(C=2.0, tol=1e-3, active_set=active_set)
    plain, labels = random_rows(7, ROWS, COLUMNS)
    plain[:300] = [[pair for pair in row if pair[0] != 3] for row in plain[:300]]
    learner = trained(ListData(csr(plain), labels, block_rows=32), settings)
    places = np.arange(COLUMNS) - (np.arange(COLUMNS) > 3)
    places[3] = -1
    left = [[(int(places[column]), value) for column, value in row] for row in plain[:300]]
    data = ListData(csr(left), labels[:300], block_rows=32)
    learner.facts, alphas = data.facts, learner.alphas
    renumber(learner, places, COLUMNS - 1)
    begin_change(learner, only_more=False)
    replace_alphas(learner, Alphas.of((n[n < 300], a[n < 300]) for n, a in alphas.nonzero()))
    learner.best.discard()
    train(data, [learner], settings)
    assert learner.finished == "certified"
    ours, anew = learner.certificate, trained(data, settings).certificate
    assert ours.dual <= anew.primal * (1 + 1e-9)
    assert anew.dual <= ours.primal * (1 + 1e-9)
    assert ours.rows_scanned == 300
